"""The penalised objective with estimated dispersion and ridges: in process only.

Effort, observers, dispersion and the ridges of a and b come from the federated fit of rank 0; then the joint Newton solver
(:mod:`fedmiss.models.lowrank.solver`) minimises the paper's objective at their values. Its line searches and conjugate
gradients ask several questions a round, so over a network it is not offered: there the default asks one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from fedmiss.arrays import F64
from fedmiss.federation import messages as msg
from fedmiss.federation.group.answers import fit_sums, score
from fedmiss.federation.group.batch import Batch
from fedmiss.federation.hub.agree import folds_like_gaps
from fedmiss.federation.hub.bootstrap import spread_of
from fedmiss.federation.hub.crossval import cross_validate, open_batch, starts
from fedmiss.federation.hub.fit import fit_path, fit_replicate, summarised
from fedmiss.federation.hub.lockstep import Lane, run_lockstep
from fedmiss.federation.hub.state import MonthState
from fedmiss.federation.results import CountFit, site_slopes, totals_by_region
from fedmiss.models.lowrank.choice import Choice, choose, model_name, scores
from fedmiss.models.lowrank.data import Cells
from fedmiss.models.lowrank.families import FAMILIES
from fedmiss.models.lowrank.settings import Auxiliary, CountSettings
from fedmiss.models.lowrank.solver import effective_parameters, fit_cells, set_eta
from fedmiss.models.lowrank.theta import Fit, Penalty, Theta

if TYPE_CHECKING:
    from fedmiss.federation.local import LocalFederation

__all__ = ["cross_validate_penalised", "fit_penalised", "marginal_cells", "replicate_penalised", "result_of"]

BATCH, FOLDS = 2, 3


def _marginal(s: CountSettings) -> CountSettings:
    # the ridge of the months stands for all of their variance, so season and walk must not absorb a part of it
    return replace(s, rank=0, penalty=None, effects=True, season=False, site_penalty=None, month_penalty=None)


def _penalty(s: CountSettings, aux: Auxiliary) -> Penalty:
    """Ridges on the scale of the loss."""
    sites = aux.sites if s.site_penalty is None else s.site_penalty
    months = aux.months if s.month_penalty is None else s.month_penalty
    return Penalty(0.0 if s.penalty is None else s.penalty, sites, months).scaled(aux.phi)


def _cells(federation: LocalFederation, batch: int, fit: int) -> list[Cells]:
    """The groups' cells of one fit on the panel's common axis of sites."""
    out = []
    for name, program in federation.programs.items():
        b: Batch = program.batches[batch]
        ptr = np.zeros(federation.J + 1, dtype=np.int64)
        count = np.zeros(federation.J, dtype=np.int64)
        count[federation.at[name]] = np.diff(b.cells.ptr)
        np.cumsum(count, out=ptr[1:])
        offset, by_visit = b.cell_offset()
        o = offset[fit].copy() if by_visit else np.zeros(b.cells.nnz)
        out.append(Cells(name, ptr, b.cells.col, b.cells.visit_cell, b.y[fit].copy(), b.E[fit].copy(), o))
    return out


def _minimise(
    federation: LocalFederation,
    batch: int,
    fit: int,
    state: MonthState,
    s: CountSettings,
    start: Theta | None,
    watch: Callable[[int, float, float], None] | None = None,
) -> tuple[Fit, MonthState]:
    """Solve at the dispersion and ridges of ``state``; the groups' predictors are those of the solution after it."""
    cells = _cells(federation, batch, fit)
    aux = federation.auxiliary(batch, fit, state)
    penalty = _penalty(s, aux)
    J, L = federation.J, federation.L
    found = fit_cells(
        cells, J, L, family=FAMILIES[s.family], rank=s.rank, effects=s.effects, penalty=penalty, start=start, tol=s.tol,
        max_sweeps=s.max_sweeps, seed=s.seed, watch=watch,
    )  # fmt: skip
    return found, _summarised(federation, batch, fit, state, s, found, cells, penalty)


def _summarised(
    federation: LocalFederation,
    batch: int,
    fit: int,
    state: MonthState,
    s: CountSettings,
    found: Fit,
    cells: list[Cells],
    penalty: Penalty,
) -> MonthState:
    """Hand the solution's predictors to the groups; calibration and dispersion there, and the edf in ``found``."""
    set_eta(cells, found.theta)
    found.edf = effective_parameters(cells, found.theta, penalty, FAMILIES[s.family], effects=s.effects)
    fits = np.array([fit])
    totals, dispersion = np.zeros(3), 0.0
    for program, c in zip(federation.programs.values(), cells, strict=True):
        b = program.batches[batch]
        b.eta[fit] = c.eta
        one = fit_sums(program, b, fits, np.array([[state.inverse_size]]))
        totals, dispersion = totals + one.totals[0], dispersion + float(one.dispersion[0, 0])
    return summarised(replace(state, edf=found.edf), s, totals, dispersion)


def _rank0(
    federation: LocalFederation, batch: int, fit: int, state: MonthState, s: CountSettings
) -> Theta | None:
    """Where the solver starts: the posterior means of the rank-0 fit; nothing for a model without effects."""
    if not s.effects:
        return None
    a = np.zeros(federation.J)
    for name, program in federation.programs.items():
        a[federation.at[name]] = program.site_posterior(batch, fit)[0][:, 0]
    return Theta(state.mu, a, state.T[:, 0], np.zeros((a.size, 0)), np.zeros((federation.L, 0)))


def fit_penalised(
    federation: LocalFederation, s: CountSettings, watch: Callable[[int, float, float], None] | None = None
) -> CountFit:
    """Fit with a given ridge on the factors."""
    state = federation.run(BATCH, _marginal(s))
    found, state = _minimise(federation, BATCH, 0, state, s, _rank0(federation, BATCH, 0, state, s), watch)
    return _result(federation, state, s, found)


def marginal_cells(federation: LocalFederation, s: CountSettings) -> tuple[MonthState, list[Cells], Penalty]:
    """Rank-0 fit for the dispersion and the ridges, and the groups' cells there: what another solver starts from."""
    state = federation.run(BATCH, _marginal(s))
    return state, _cells(federation, BATCH, 0), _penalty(s, federation.auxiliary(BATCH, 0, state))


def result_of(
    federation: LocalFederation,
    state: MonthState,
    s: CountSettings,
    found: Fit,
    cells: list[Cells],
    penalty: Penalty,
) -> CountFit:
    """What another solver found on :func:`marginal_cells`, as a fitted count model."""
    return _result(federation, _summarised(federation, BATCH, 0, state, s, found, cells, penalty), s, found)


def _result(federation: LocalFederation, state: MonthState, s: CountSettings, found: Fit) -> CountFit:
    return CountFit(
        replace(s, rank=found.theta.rank), federation.J, federation.L, found,
        federation.auxiliary(BATCH, 0, state), state.dispersion, found.edf, federation.n_counted, state.smear, None, state,
    )  # fmt: skip


def replicate_penalised(
    federation: LocalFederation, fit: CountFit, numbers: Sequence[int], seed: int, batch: int
) -> tuple[F64, F64]:
    """Bootstrap replicates of a penalised fit: totals (n, 1 + regions, L) and site slopes (n, J).

    No prior noise is drawn: the objective has no posterior.
    """
    link, hub, s = federation.link, federation.hub, fit.settings
    base = _marginal(s)
    question = replace(
        open_batch(hub, batch, base, numbers),
        weights="replicate",
        seed=seed,
        spread=spread_of(hub),
        source=BATCH,
    )
    sums = starts(link.ask([question])[0], len(numbers))
    assert fit.state is not None
    lanes = [Lane(batch, i, fit_replicate(hub, base, fit.state, sums[i])) for i in range(len(numbers))]
    totals, slopes = [], []
    month, year = hub.calendar if hub.calendar is not None else (np.arange(hub.L), np.zeros(hub.L, np.int64))
    regions = np.full(federation.J, -1)
    for name, program in federation.programs.items():
        for i, region in enumerate(hub.regions):
            regions[federation.at[name][program.visits.region == region]] = i
    for i, state in enumerate(run_lockstep(link, hub, lanes)):
        found, state = _minimise(federation, batch, i, state, s, fit.theta)
        one = replace(fit, fit=found, smear=state.smear)
        totals.append(totals_by_region(one, regions, len(hub.regions)))
        slopes.append(site_slopes(one, year, month)[0])
    return np.stack(totals), np.stack(slopes)


def cross_validate_penalised(
    federation: LocalFederation,
    candidates: Sequence[CountSettings],
    folds: int,
    by: str,
    seed: int,
    *,
    one_se: bool,
    watch: Callable[[int], None] | None,
) -> Choice:
    """Cross-validation with penalised candidates among the others: each is warm-started at the one before it."""
    link, hub = federation.link, federation.hub
    by = folds_like_gaps(link, hub) if by == "auto" else by
    rows: list[dict[str, object]] = []
    free = [c for c in candidates if c.penalty is None]
    if free:
        table = cross_validate(link, hub, free, folds=folds, by=by, seed=seed, watch=watch).table
        number = [i for i, c in enumerate(candidates) if c.penalty is None]
        rows += table.assign(candidate=[number[k] for k in table["candidate"]]).to_dict("records")  # type: ignore[arg-type]
    marginal = {i: _marginal(c) for i, c in enumerate(candidates) if c.penalty is not None}
    for base in dict.fromkeys(marginal.values()):
        members = [i for i, m in marginal.items() if m == base]
        question = open_batch(hub, FOLDS, base, range(folds))
        question = replace(question, weights="fold", by=by, folds=folds, seed=seed)
        sums = starts(link.ask([question])[0], folds)
        lanes = [Lane(FOLDS, k, fit_path(hub, base, sums[k])) for k in range(folds)]
        states = run_lockstep(link, hub, lanes)
        for fold, state in enumerate(states):
            last: tuple[CountSettings, Theta] | None = None
            for i in members:
                c = candidates[i]
                quick = replace(c, tol=max(c.tol, 1e-5), max_sweeps=min(c.max_sweeps, 100))
                same = last is not None and replace(last[0], rank=c.rank, penalty=c.penalty) == c
                warm = last[1] if last is not None and same and last[1].rank <= c.rank else None
                warm = _rank0(federation, FOLDS, fold, state, c) if warm is None else warm
                found, state = _minimise(federation, FOLDS, fold, state, quick, warm)
                last = (c, found.theta)
                asked = msg.Score(FOLDS, np.array([fold]), np.array([state.smear]))
                total = sum(
                    (score(p, p.batches[FOLDS], asked).sums[0] for p in federation.programs.values()),
                    np.zeros(5),
                )
                rows.append(
                    {
                        "candidate": i,
                        "model": model_name(c),
                        "rank": c.rank,
                        "penalty": c.penalty,
                        "fold": fold,
                    }
                    | scores(total, c)
                )
                if watch:
                    watch(len(rows))
    link.ask([msg.Close(np.array([FOLDS]))])
    return choose(pd.DataFrame(rows), candidates, by=by, one_se=one_se)
