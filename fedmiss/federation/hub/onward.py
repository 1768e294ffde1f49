"""A job that goes on from an earlier one: its model is known, and its months begin where that job's ended.

A study whose roster or data have changed needs no new choice of the model, and few rounds. What goes over is joint: the
chosen settings, the months' parameters and the variances. Sites begin anew at each organisation, and follow from the
months before the first round, so nobody needs what a club that left has held.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

import numpy as np
import pandas as pd

from fedmiss.arrays import F64, I64
from fedmiss.errors import ConfigError, FedmissError
from fedmiss.federation.hub.begin import first_state, known_line, most_rank, responding, with_factor
from fedmiss.federation.hub.fit import polished
from fedmiss.federation.hub.lockstep import FitTask, run_lockstep
from fedmiss.federation.hub.members import FittedModel, batches_of, fit_members, opened
from fedmiss.federation.hub.state import MonthState, Panel
from fedmiss.federation.link import Link
from fedmiss.federation.messages import Begin
from fedmiss.federation.outline import CLOSE
from fedmiss.models.lowrank.choice import Choice
from fedmiss.models.lowrank.settings import CountSettings

_TUPLES = ("features", "responses")


@dataclass(frozen=True, slots=True, eq=False)
class Before:
    """One model of the earlier job, and what its months had come to; without ``months`` it had been chosen only.

    Attributes
    ----------
    settings : of the model
    months : (L,) 12 year + month - 1, as the groups agreed on them
    T : (L, p) months' coefficients: effect, then with slopes the known line, then factors;  mu : overall level
    tau, noise : (p,) prior variances of sites' and months' coefficients
    series : (columns, 4) variances of season, years, walk and noise of every column that is estimated
    phi, inverse_size, ridge, kappa, chain : as in :class:`.state.MonthState`
    k : rounds that its rank has behind it on the same visits; 0 where they may be others
    """

    settings: CountSettings
    months: I64 | None = None
    T: F64 | None = None
    mu: float = 0.0
    tau: F64 | None = None
    noise: F64 | None = None
    series: F64 | None = None
    phi: float = 1.0
    inverse_size: float = 0.0
    ridge: float = 4.0
    kappa: F64 | None = None
    chain: F64 | None = None
    k: int = 0

    @property
    def known_columns(self) -> int:
        """Columns of a month that are no factor: effect, line, responses."""
        assert self.T is not None
        return int(self.T.shape[1]) - self.settings.rank


def before_of(member: FittedModel, months: I64) -> Before:
    """What a finished model hands on; only its settings where observers were left out, whom more data may tell apart."""
    state = member.state
    if state.observers_left_out:
        return Before(replace(member.settings, rank=state.rank))
    series = np.array([[one.season, one.year, one.step, one.noise] for one in state.series or ()])
    return Before(
        replace(member.settings, rank=state.rank), np.asarray(months, np.int64), state.T, float(state.mu), state.tau,
        state.noise, series, float(state.phi), float(state.inverse_size), float(state.ridge), state.kappa, state.chain,
    )  # fmt: skip


def begun_beside(
    members: Sequence[CountSettings], known: Mapping[CountSettings, MonthState], months: I64
) -> list[Before]:
    """The members of a choice, each to begin with what all visits came to beside the folds; without it from nothing."""
    return [
        replace(before_of(FittedModel(member, known[member]), months), k=_behind(known[member], member))
        if member in known
        else Before(member)
        for member in members
    ]


def _behind(state: MonthState, settings: CountSettings) -> int:
    """Rounds that a fit has behind it; none where they would leave it too few of those that it may take."""
    return state.k if state.converged and 2 * state.k < settings.max_sweeps else 0


def written(models: Sequence[Before]) -> list[dict[str, Any]]:
    """As plain numbers, lists and texts, for JSON: floats keep their bits."""
    out = []
    for one in models:
        row: dict[str, Any] = {"settings": asdict(one.settings)}
        for field in fields(Before)[1:] if one.months is not None else ():
            value = getattr(one, field.name)
            if value is not None:
                row[field.name] = value.tolist() if isinstance(value, np.ndarray) else value
        out.append(row)
    return out


def differing(kept: Sequence[Before], given: Sequence[Before]) -> str:
    """Name the first part of ``given`` that is not as it was ``kept``; empty where there is none.

    Floats may differ by ``CLOSE`` of the largest number of their part, as between processors. A model that was kept, or
    given, before it was fitted has its settings only.
    """
    if len(kept) != len(given):
        return f"{len(given)} models for {len(kept)}"
    for i, (mine, theirs) in enumerate(zip(kept, given, strict=True), 1):
        if mine.settings != theirs.settings:
            return f"model {i}, settings"
        if mine.months is None or theirs.months is None:
            continue
        for name in (*_ARRAYS, *_NUMBERS):
            one, other = getattr(mine, name), getattr(theirs, name)
            if one is None and other is None:
                continue
            if one is None or other is None or np.shape(one) != np.shape(other):
                return f"model {i}, {name}"
            # whole numbers of months are below 1 / CLOSE, so they have to be equal
            if not (np.abs(np.subtract(one, other)) <= CLOSE * np.abs(one).max(initial=0.0)).all():
                return f"model {i}, {name}"
    return ""


def read_before(rows: object, where: str) -> tuple[Before, ...]:
    """Read what :func:`written` gave.

    Raises
    ------
    ConfigError    it is something else; names the place and the value
    """
    out = []
    for i, row in enumerate(rows if isinstance(rows, list | tuple) else [rows]):
        try:
            given: dict[str, Any] = dict(row["settings"])
            given |= {k: tuple(given[k]) for k in _TUPLES if k in given}
            settings = CountSettings(**given)
            settings.check()
            if settings.time == "fixed" or settings.responses:
                raise ConfigError(
                    "no job about one species has fixed times or responses: their sums may be of one site."
                )
            values: dict[str, Any] = {
                k: np.array(row[k], np.int64 if k == "months" else float) for k in _ARRAYS if k in row
            }
            values |= {k: float(row[k]) for k in _NUMBERS if k in row}
            one = Before(settings, **values, k=int(row.get("k", 0)))
            _check(one)
        except FedmissError as error:
            raise ConfigError(f"{where}: model {i + 1} of the job to go on from: {error}") from None
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ConfigError(
                f"{where}: model {i + 1} of the job to go on from cannot be read ({type(error).__name__}: {error}). Make "
                "the revision again from a kit that took part in it."
            ) from None
        out.append(one)
    if not out:
        raise ConfigError(f"{where} names a job to go on from, and no model of it. Leave it out.")
    return tuple(out)


_ARRAYS = ("months", "T", "tau", "noise", "series", "kappa", "chain")
_NUMBERS = ("mu", "phi", "inverse_size", "ridge")


def _check(one: Before) -> None:
    if one.months is None:
        return
    p = one.T.shape[1] if one.T is not None and one.T.ndim == 2 else 0
    if not p > one.settings.rank:
        raise ConfigError(f"T has {p} columns for an effect and {one.settings.rank} factors.")
    n = 0 if one.series is None else len(one.series)
    for name, shape in (("T", (one.months.size, p)), ("tau", (p,)), ("noise", (p,)), ("series", (n, 4))):
        if name == "series" and not n:
            continue
        value = getattr(one, name)
        if value is None or value.shape != shape or not np.isfinite(value).all():
            raise ConfigError(f"{name} is not {' x '.join(map(str, shape))} finite numbers.")
    for name in ("tau", "noise"):
        if not (getattr(one, name) > 0).all():
            raise ConfigError(f"{name} holds a variance that is not above 0.")
    for name, least in (("mu", -np.inf), ("phi", 0.0), ("inverse_size", 0.0), ("ridge", 0.0)):
        if not (np.isfinite(getattr(one, name)) and getattr(one, name) >= least):
            raise ConfigError(f"{name} is {getattr(one, name)}.")


def choice_of(models: Sequence[Before]) -> Choice:
    """The earlier job's choice."""
    best, *near = (model.settings for model in models)
    advice = "The model is that of the job which this one goes on from."
    return Choice(pd.DataFrame(), pd.DataFrame(), best, advice, near=tuple(near))


def state_onward(panel: Panel, start: F64, before: Before, months: I64) -> MonthState:
    """The months' parameters to begin with: a month of the earlier job as it was, a new one as its calendar month was.

    Parameters
    ----------
    start : (4,) sums of weights, values, exposures and squares
    months : (L,) of this job
    """
    settings = before.settings
    state = first_state(panel, settings, start)
    assert before.T is not None
    assert before.months is not None
    assert before.tau is not None
    assert before.noise is not None
    columns = _moved(before.T, before.months, months)
    for k in range(state.p, before.T.shape[1]):
        state = with_factor(state, columns[:, k], panel)
    T, prior = state.T.copy(), state.prior.copy()
    free = state.free
    T[:, free], prior[:, free] = columns[:, free], columns[:, free]
    series = state.series
    if series is not None and before.series is not None and len(before.series) == len(series):
        series = tuple(
            replace(one, season=row[0], year=row[1], step=row[2], noise=row[3])
            for one, row in zip(series, before.series.tolist(), strict=True)
        )
    same = before.kappa is not None and before.kappa.shape == state.kappa.shape
    chained = before.chain is not None and before.chain.shape == state.chain.shape
    return replace(
        state, T=T, prior=prior, series=series, mu=before.mu, tau=before.tau.copy(), noise=before.noise.copy(),
        phi=before.phi, inverse_size=before.inverse_size, ridge=before.ridge, k=before.k,
        kappa=before.kappa.copy() if same and before.kappa is not None else state.kappa,
        chain=before.chain.copy() if chained and before.chain is not None else state.chain,
        # What sites had come to is the groups', and is not kept: they find it from zero. Their squares are expected at tau.
        squares=before.tau.copy(),
    )  # fmt: skip


def _moved(T: F64, old: I64, new: I64) -> F64:
    """Rows of ``old`` months for ``new`` ones; a month that is new has the mean of its calendar month, or of all."""
    out = np.empty((new.size, T.shape[1]))
    at = {int(stamp): i for i, stamp in enumerate(old)}
    for i, month in enumerate(new.tolist()):
        if month in at:
            out[i] = T[at[month]]
            continue
        alike = old % 12 == month % 12
        out[i] = T[alike].mean(axis=0) if alike.any() else T.mean(axis=0)
    return out


def _fits(panel: Panel, before: Before) -> bool:
    """Whether a month has the same columns in both jobs, and the panel bears the rank."""
    settings = before.settings
    fixed = 1 + (known_line(panel, settings).size > 0) + responding(panel, settings)
    return fixed == before.known_columns and most_rank(panel, settings) == settings.rank


def fit_onward(
    link: Link,
    panel: Panel,
    models: Sequence[Before],
    months: I64,
    watch: Callable[[int, float], None] | None = None,
) -> list[FittedModel]:
    """Fit all visits by the models of the earlier job, side by side, from where it ended.

    Models that had been chosen only, or whose months had other columns (sites have slopes from four years on), and one that
    runs away from there, are fitted from nothing.

    Raises
    ------
    InputError    no visit has a positive weight
    """
    settings = [model.settings for model in models]
    if any(
        model.months is None or model.settings.time == "fixed" or not _fits(panel, model) for model in models
    ):
        return fit_members(link, panel, settings, watch=watch)
    batches = batches_of(len(models))
    lanes: list[FitTask] = []
    for batch, before, start in zip(batches, models, opened(link, panel, batches, settings), strict=True):
        state = state_onward(panel, start, before, months)
        told = None if lanes else watch
        fitting = polished(panel, before.settings, state, state, told, begin=Begin.AT_REST)
        lanes.append(FitTask(batch, 0, fitting))
    ends = run_lockstep(link, panel, lanes)
    if any(end.away for end in ends):
        return fit_members(link, panel, settings, watch=watch)
    return [FittedModel(own, end, batch) for own, end, batch in zip(settings, ends, batches, strict=True)]
