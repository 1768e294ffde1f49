"""Expected counts at standard effort, summed over a group's sites by month and region; slopes of its sites stay at home."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from scipy.special import ndtr

from fedmiss.arrays import F64, I64, Bool
from fedmiss.federation import messages as msg
from fedmiss.federation.group.batch import Batch
from fedmiss.federation.keys import keyed_hashes, normals, seed_key
from fedmiss.models.lowrank.moments import means, moments
from fedmiss.models.lowrank.occupancy import log_yearly

if TYPE_CHECKING:
    from fedmiss.federation.group.program import GroupProgram

__all__ = ["regions_of", "told_apart", "totals"]

BLOCK = 65_536  # cells of sites x months held at a time: they stay in the cache


def totals(program: GroupProgram, batch: Batch, question: msg.Totals) -> msg.RegionTotals:
    """Sums over sites of every fit: all, by region, and with ``q.visited`` those with a visit."""
    axis, J = program.axis, batch.cells.J
    region = regions_of(program)
    # sites of the sums: all, by region, visited; then of the group's own reports
    n_rows = len(axis.regions) + 1 + question.visited
    of = np.zeros((n_rows + len(program.parts), J), dtype=bool)
    of[0] = True
    for i in range(len(axis.regions)):
        of[i + 1] = region == i
    if question.visited:
        of[n_rows - 1] = program.visited
    for i, sites in enumerate(program.parts):
        of[n_rows + i, sites] = True
    first, full, x = _complete_years(axis.months, program.visits.calendar)
    T, D = batch.months(question)
    out = np.zeros((question.fits.size, len(of), axis.L))
    for i, f in enumerate(question.fits):
        present = _presence(program, batch, question.batch, int(f), drawn=question.drawn)
        yearly = np.zeros((J, x.size))
        for at in np.array_split(np.arange(J), max(1, J * axis.L // BLOCK)):
            value = _expected(batch, question, i, at, T[i], D[i])
            if batch.presence is not None and present is not None:
                value *= present[at][:, batch.presence.year]
            whole = value.sum(axis=0)
            for row, sites in zip(out[i], of, strict=True):
                mine = sites[at]
                if mine.all():
                    row += whole
                elif mine.any():
                    row += value[mine].sum(axis=0)
            if x.size:
                yearly[at] = np.add.reduceat(value, first, axis=1)[:, full]
        program.own_totals[question.batch, int(f)] = out[i, n_rows:]
        if x.size >= 3:
            # Slope of log yearly totals on the year, by least squares.
            logs = log_yearly(yearly, empty=batch.presence is not None)
            program.slopes[question.batch, int(f)] = logs @ x / float(x @ x)
    # Of fewer sites than the custodian allows nothing is said, not even a total.
    return msg.RegionTotals(out[:, :n_rows] * (J >= axis.minimum))


def _expected(batch: Batch, question: msg.Totals, i: int, at: I64, T: F64, D: F64) -> F64:
    """Expected counts (sites ``at``, L) of the ``i``-th fit asked about; drawn coefficients have no variance."""
    f, p, mu = int(question.fits[i]), T.shape[-1], float(question.mu[i])
    P = batch.site_mean[f, at, :p]
    # A draw has no variance to integrate over: the spread of the replicates holds it already.
    if question.drawn:
        eta = means(mu, P, T)
        eta = batch.family.marginal(eta, np.zeros(1))
    else:
        eta = batch.family.marginal(*moments(mu, P, batch.site_cov[f, at, :p, :p], T, D))
    # Expected counts exp(eta + var / 2), times smear and what the mean observer finds.
    return batch.scale.counts(batch.family.mean(eta), float(question.smear[i]))


def _presence(program: GroupProgram, batch: Batch, number: int, f: int, *, drawn: bool) -> F64 | None:
    """Probability (J, Y) that sites are occupied, or where coefficients are ``drawn`` a draw, keyed by the sites' ids.

    None where no site may be empty.
    """
    chain = program.site_presence(number, f)
    if chain is None or not drawn:
        return None if chain is None else chain.present
    place = keyed_hashes(program.visits.site_id, seed_key("presence", batch.seed))
    return chain.draw(
        ndtr(normals(place, chain.came.shape[1], "presence", batch.seed, int(batch.numbers[f])))
    )


def regions_of(program: GroupProgram) -> I64:
    """Regions (J,) of sites as their sums are told, -1 for none."""
    region = np.full(program.J, -1, dtype=np.int64)
    for i, name in enumerate(program.axis.regions):
        region[program.visits.region == name] = i
    return told_apart(region, program.axis.minimum)


def told_apart(region: I64, minimum: int) -> I64:
    """Regions of sites, -1 where the group has fewer than ``minimum`` of them: nor may the rest of the whole be so few."""
    out = region.copy()
    if minimum <= 1 or not region.size:
        return out
    count = np.bincount(region[region >= 0], minlength=int(region.max()) + 1)
    out[np.isin(region, np.flatnonzero(count < minimum))] = -1
    rest = int((out < 0).sum())
    if 0 < rest < minimum and (out >= 0).any():
        kept = np.flatnonzero(count >= minimum)
        out[out == kept[np.argmin(count[kept])]] = -1
    return out


def _complete_years(months: I64, calendar: bool) -> tuple[I64, Bool, F64]:
    """First month of every year, which years have all months of the panel's season, and these years about their mean."""
    if not calendar:
        return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=bool), np.zeros(0)
    years, first, counts = np.unique(months // 12, return_index=True, return_counts=True)
    full: Bool = counts == np.unique(months % 12).size
    x = years[full].astype(float)
    return first.astype(np.int64), full, x - x.mean() if x.size else x
