"""TRIM's models: which may be chosen, and what their columns are: time effects or slopes, their covariates, and months."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass

import numpy as np

from fedmiss.arrays import F64, I64
from fedmiss.errors import ConfigError, InputError
from fedmiss.report.trim.cells import Cells, Label
from fedmiss.settings import kinds_checked


@kinds_checked
@dataclass(frozen=True, slots=True)
class TrimSettings:
    """Which model, and how.

    ``model`` 1 (no change over time), 2 (slopes between change points) or 3 (one effect for each time point);
    ``changepoints`` time points, or ``"auto"``: all of them, thinned stepwise; ``stepwise`` thins those given;
    ``overdispersion`` scales variances by Pearson's chi-square over its degrees of freedom; ``serial_correlation``
    estimates the correlation between neighbouring time points of a site. Both are off, as in rtrim.

    Examples
    --------
    >>> import fedmiss
    >>> fedmiss.TrimSettings(model=2, changepoints="auto", overdispersion=True).model
    2
    """

    model: int = 3
    changepoints: Sequence[Label] | str = ()
    stepwise: bool = False
    overdispersion: bool = False
    serial_correlation: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.changepoints, str):  # a list has no hash, and is not equal to the same tuple
            object.__setattr__(self, "changepoints", tuple(self.changepoints))


@dataclass(frozen=True, slots=True)
class Term:
    """One parameter.

    ``kind`` is ``time`` (model 3), ``slope`` (model 2) or ``month``; ``at`` is its time point, the
    number of its change point, or its month; ``covariate`` is -1 for the part that all sites share.
    """

    kind: str
    at: int
    covariate: int = -1
    category: int = 0


@dataclass(frozen=True)
class Design:
    """``X`` (C, T, p): the rows of C classes of sites, which differ in their covariates; ``site_class`` (I,)."""

    terms: tuple[Term, ...]
    X: F64
    site_class: I64
    changepoints: tuple[int, ...]

    def where(self, **wanted: int | str) -> list[int]:
        """Positions of the parameters whose fields have these values."""
        return [i for i, term in enumerate(self.terms) if wanted.items() <= asdict(term).items()]


def positions_of(changepoints: Iterable[Label], times: tuple[Label, ...]) -> tuple[int, ...]:
    """Turn change points, named by their time point, into positions; sorted.

    Raises ConfigError: a change point that is no time point, or the last one, after which nothing changes.
    """
    out = []
    for point in changepoints:
        if point not in times[:-1]:
            raise ConfigError(
                f"the change point {point} is not one of the time points {times[0]} to {times[-2]} "
                "(a slope can change at any but the last)."
            )
        out.append(times.index(point))
    return tuple(sorted(set(out)))


def make_design(cells: Cells, model: int, changepoints: tuple[int, ...] = ()) -> Design:
    """Build the design of model 1, 2 or 3. Model 2 without change points has one slope from the first time point.

    Raises InputError: a stretch between two change points (in a category of a covariate) without a positive count.
    """
    _I, M, J = cells.shape
    if model == 2:
        changepoints = changepoints or (0,)
        base = _slopes(cells.time, changepoints)
        _check_stretches(cells, changepoints)
        own = [Term("slope", at) for at in range(len(changepoints))]
    elif model == 3:
        # The first time point is the reference of every effect: its column is left out.
        base = np.eye(J)[:, 1:]
        own = [Term("time", j) for j in range(1, J)]
    else:
        base, own = np.zeros((J, 0)), []
    classes, site_class = (
        np.unique(cells.category, axis=0, return_inverse=True)
        if cells.covariates
        else (np.zeros((1, 0), np.int64), np.zeros(len(cells.sites), np.int64))
    )
    terms, blocks = list(own), [np.repeat(np.tile(base, (M, 1))[None], len(classes), axis=0)]
    for at, labels in enumerate(cells.labels if model > 1 else ()):
        for value in range(1, len(labels)):
            mine = (classes[:, at] == value).astype(float)
            blocks.append(blocks[0] * mine[:, None, None])
            terms += [Term(term.kind, term.at, at, value) for term in own]
    if M > 1:
        # Cells are ordered month by month, each with all time points.
        month = np.kron(np.eye(M)[:, 1:], np.ones((J, 1)))
        blocks.append(np.repeat(month[None], len(classes), axis=0))
        terms += [Term("month", at) for at in range(1, M)]
    return Design(
        tuple(terms),
        np.concatenate(blocks, axis=2),
        np.asarray(site_class).ravel(),
        changepoints if model == 2 else (),
    )


def _slopes(time: F64, changepoints: tuple[int, ...]) -> F64:
    """(J, K): position of each time point within the stretch that starts at each change point."""
    starts = time[list(changepoints)]
    # A slope's column grows through its own stretch and keeps its end value after it: beta is then the slope of the
    # stretch, not the change of slope.
    lengths = np.append(np.diff(starts), time[-1] - starts[-1])
    return np.clip(time[:, None] - starts[None, :], 0.0, lengths[None, :])


def _check_stretches(cells: Cells, changepoints: tuple[int, ...]) -> None:
    J = len(cells.times)
    # Counts at the start of a stretch belong to the one before: they fix the level, not this slope.
    f = np.nan_to_num(cells.counts).reshape(len(cells.sites), -1, J).sum(axis=1)
    counted = np.asarray(cells.seen.reshape(len(cells.sites), -1, J).any(axis=1))
    ends = [*changepoints[1:], J - 1]
    for _, where, mask in cells.groups():
        for start, end in zip(changepoints, ends, strict=True):
            if not f[mask, start + 1 : end + 1].sum() > 0:
                # A slope that bends where nothing was counted would run on there from the counts before it.
                loose = end if end in changepoints and not counted[mask, end].any() else start
                raise InputError(
                    f"no positive count{where} after {cells.times[start]} up to {cells.times[end]}, so the slope of this "
                    f"stretch cannot be estimated; leave out the change point {cells.times[loose]}.",
                    changepoint=loose,
                )
