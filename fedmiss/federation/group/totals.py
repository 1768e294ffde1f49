"""Expected counts at standard effort, summed over a group's sites by month and region; slopes of its sites stay at home."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import ndtr

from fedmiss.arrays import F64, I64, Bool
from fedmiss.federation import messages as msg
from fedmiss.federation.group.batch import Batch
from fedmiss.federation.group.folds import secret_rng
from fedmiss.federation.group.kernels import chunks_of
from fedmiss.federation.group.own_lines import own_lines
from fedmiss.federation.group.total_kernels import expected_sums
from fedmiss.federation.keys import keyed_hashes, normals
from fedmiss.loops import spread_out
from fedmiss.models.lowrank.occupancy import log_yearly
from fedmiss.seasons import years_of

if TYPE_CHECKING:
    from fedmiss.federation.group.program import GroupProgram

NOISE = 2.0**19  # times the limit of sums: the most that is told of a fit beyond it


def totals(program: GroupProgram, batch: Batch, question: msg.Totals) -> msg.RegionTotals:
    """Sums over sites of every fit: all, by region, and with ``q.visited`` those with a visit."""
    axis, J = program.axis, batch.cells.J
    region = regions_of(program)
    # sites of the sums: all, by region, visited; then of the group's own reports
    n_rows = len(axis.regions) + 1 + question.visited
    of = np.zeros((n_rows + len(program.parts), J), dtype=bool)
    of[0] = program.standing
    for i in range(len(axis.regions)):
        of[i + 1] = region == i
    if question.visited:
        # between organisations a few sites that nobody visited count as visited: the difference would tell their covariates
        few = program.jointly and program.n_standing - program.visited.sum() < max(
            axis.minimum, program.minimum
        )
        of[n_rows - 1] = program.visited | (few & program.standing)
    for i, sites in enumerate(program.parts):
        of[n_rows + i, sites] = True
    first, full, x = _complete_years(axis.months, program.visits.calendar)
    T, D = batch.months(question)
    T, D = (np.ascontiguousarray(np.moveaxis(x, 1, -1)) for x in (T, D))
    nowhere, p = np.ones((0, 1)), T.shape[1]
    lines = own_lines(program, batch, drawn=question.drawn)
    out = np.zeros((question.fits.size, len(of), axis.L))
    chunks = chunks_of(J * axis.L)
    year = np.zeros(axis.L, np.int64) if batch.presence is None else batch.presence.year
    for i, f in enumerate(question.fits):
        present = _presence(program, batch, question.batch, int(f), drawn=question.drawn)
        parts, yearly = np.zeros((chunks, *out.shape[1:])), np.zeros((J, first.size))
        spread_out(
            expected_sums, chunks, J * axis.L // 20, chunks, float(question.mu[i]), batch.site_mean[f, :, :p],
            batch.site_cov[f, :, :p, :p], T[i], D[i], *lines(int(f)), question.drawn, batch.counted.code, batch.scale.log,
            float(question.smear[i]), nowhere if present is None else present, year, of, first, parts, yearly,
        )  # fmt: skip
        out[i] = parts.sum(axis=0)
        program.own_totals[question.batch, int(f)] = out[i, n_rows:]
        if x.size >= 3:
            # Slope of log yearly totals on the year, by least squares.
            logs = log_yearly(yearly[:, full], empty=batch.presence is not None)
            program.slopes[question.batch, int(f)] = logs @ x / float(x @ x)
    if question.most > 0:
        _hide_large(program, question, out[:, :n_rows])
    # Of fewer sites than the custodian allows nothing is said, not even a total.
    return msg.RegionTotals(out[:, :n_rows] * (program.n_standing >= axis.minimum))


def _hide_large(program: GroupProgram, question: msg.Totals, out: F64) -> None:
    """Put noise in the place of all sums of a fit (n, rows, L) that has one above the limit.

    A sum that is cut at the limit has a known number in the place of this group's part, so that the others' part, which may
    be one group's, would be told. Beside noise it is lost, and what is asked is whether the sum is above half the limit.
    """
    asked = hashlib.blake2b(
        b"".join(x.tobytes() for x in (question.mu, question.T, question.D, question.smear))
    )
    for i in np.flatnonzero(~(out <= question.most).all(axis=(1, 2))):
        rng = secret_rng(
            program.secret, program.name, "large", question.batch, int(question.fits[i]), asked.hexdigest()
        )
        out[i] = rng.uniform(question.most, NOISE * question.most, out[i].shape)


def _presence(program: GroupProgram, batch: Batch, number: int, f: int, *, drawn: bool) -> F64 | None:
    """Probability (J, Y) that sites are occupied, or where coefficients are ``drawn`` a draw, keyed by the sites' ids.

    None where no site may be empty.
    """
    chain = program.site_presence(number, f)
    if chain is None or not drawn:
        return None if chain is None else chain.present
    place = keyed_hashes(program.visits.site_id, program.key("presence", program.visits.species, batch.seed))
    return chain.draw(
        ndtr(normals(place, chain.came.shape[1], "presence", batch.seed, int(batch.numbers[f])))
    )


def regions_of(program: GroupProgram) -> I64:
    """Regions (J,) of sites as their sums are told, -1 for none."""
    region = np.full(program.J, -1, dtype=np.int64)
    for i, name in enumerate(program.axis.regions):
        region[program.visits.region == name] = i
    here = program.standing
    region[here], region[~here] = told_apart(region[here], program.axis.minimum), -1
    return region


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
    year = years_of(months)
    years, first, counts = np.unique(year, return_index=True, return_counts=True)
    full: Bool = counts == np.unique(months % 12).size
    x = years[full].astype(float)
    return first.astype(np.int64), full, x - x.mean() if x.size else x
