"""The sites' own lines beyond their visits, in what a group answers: totals, and scores of held-out visits."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from fedmiss.arrays import F64, I64
from fedmiss.federation.group.batch import Batch
from fedmiss.federation.keys import keyed_hashes, normals
from fedmiss.models.lowrank.theta import moments_at
from fedmiss.seasons import years_of

if TYPE_CHECKING:
    from fedmiss.federation.group.program import GroupProgram

BLOCK = 1_000_000  # held-out visits at a time
Lines = tuple[F64, F64, F64, I64]


def own_lines(program: GroupProgram, batch: Batch, *, drawn: bool) -> Callable[[int], Lines]:
    """Give what :func:`.total_kernels.expected_sums` takes of the lines of a fit; no rows without slopes.

    Bends (J, Y), the slopes without them (J,), the variance of later changes of slopes (J, Y), or where coefficients are
    ``drawn`` a draw of them, keyed by the sites' ids, and the year (L,) of every month.
    """
    if not batch.slopes:
        nothing = np.zeros((0, 1)), np.zeros(0), np.zeros((0, 1)), np.zeros(program.axis.L, np.int64)
        return lambda f: nothing
    lines = batch.own_lines(0, years_of(program.axis.months))
    bend = lines.bend()
    if drawn:
        place = keyed_hashes(
            program.visits.site_id, program.key("own line", program.visits.species, batch.seed)
        )
    else:
        variance = lines.variance()

    def of(f: int) -> Lines:
        tau = batch.prior_variances(f, 2)[:, 1:]
        if drawn:
            z = normals(place, lines.n_years, "own line", batch.seed, int(batch.numbers[f]))
            changes = np.sqrt(tau) * lines.path(z)
        else:
            changes = tau * variance
        return bend, batch.common_slopes(f), changes, lines.year

    return of


def held_out_bends(program: GroupProgram, batch: Batch, f: int, visits: I64) -> F64:
    """What the predictors of held-out ``visits`` change by: their sites' lines end with the visits that are left."""
    out = np.zeros(visits.size)
    if not batch.slopes:
        return out
    used, p, cells = program.need(), int(batch.rank[f]), batch.cells
    left = np.bincount(cells.visit_cell, batch.weights[f] > 0, cells.nnz) > 0
    lines = batch.own_lines(f, years_of(program.axis.months), left)
    sites, months = (x[visits].astype(np.int64) for x in (used.site, used.month))
    beyond = np.flatnonzero(lines.beyond(sites, months))
    for at in np.array_split(beyond, beyond.size // BLOCK + 1):
        site, month = sites[at], months[at]
        P, C = batch.site_mean[f, site, :p], batch.site_cov[f, site, :p, :p]
        T, D = batch.month_mean[f, month, :p], batch.month_cov[f, month, :p, :p]
        eta, var = moments_at(float(batch.mu[f]), P, C, T, D)
        if cells.by_visit and batch.off:  # then the cell's predictor holds the offset
            eta = eta + batch.offset[f][visits[at]]
        further, more = lines.moved_at(P, C, T, batch.tau[f], site, month)
        marginal = batch.counted.marginal
        out[at] = marginal(eta + further, var + more) - marginal(eta, var)
    return out
