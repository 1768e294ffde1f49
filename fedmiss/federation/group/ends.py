"""Sums over visits at the end of a fit: counted and fitted totals, dispersion, and scores of visits that were held out."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from fedmiss.arrays import F64, I32, I64
from fedmiss.federation import messages as msg
from fedmiss.federation.group import visit_kernels
from fedmiss.federation.group.batch import Batch
from fedmiss.federation.group.folds import secret_rng
from fedmiss.federation.group.own_lines import held_out_bends
from fedmiss.federation.group.presence import LEAST
from fedmiss.models.lowrank.families import negbin_deviance
from fedmiss.models.lowrank.occupancy import log_zero

if TYPE_CHECKING:
    from fedmiss.federation.group.program import GroupProgram

COARSE = 0.25  # unit of the sums of effort by month: drift of effort over years is all that is said of them


def fit_sums(
    program: GroupProgram, batch: Batch, fits: I64, nodes: F64, *, months: bool = False
) -> msg.FitSums:
    """Sums at the predictor that the cells have; with ``months`` also month by month."""
    totals = np.zeros((fits.size, 2 + len(msg.FACTORS)))
    by_month = np.zeros((fits.size, batch.month_mean.shape[1] * months, 8))
    month = batch.cells.col[batch.cells.visit_cell] if batch.off else batch.cells.col
    told = _told(program, batch)
    for i, f in enumerate(fits):
        # Weights, counted and expected totals: all but the first make equation smear.
        w = batch.weights[f]
        fitted = batch.fitted(int(f))
        weight = w if batch.off else batch.rows.w[f]
        counted = w @ (1.0 + program.need().count) if batch.scale.log else batch.rows.wy[f].sum()
        totals[i, :2] = w.sum(), counted
        if told is None:
            totals[i, 2:] = float(weight @ fitted) * np.array(msg.FACTORS)
        else:
            totals[i, 2:] = [float(weight @ told(int(f), factor * fitted)) for factor in msg.FACTORS]
        if months:
            by_month[i] = _by_month(program, batch, int(f), month, weight, fitted)
    return msg.FitSums(totals, dispersion_sums(batch, fits, nodes), by_month)


def _told(program: GroupProgram, batch: Batch) -> Callable[[int, F64], F64] | None:
    """Counts that a fit expects at sites that are here for some find, mu / (1 - P(no find)); None where none is.

    P is that of all visits of the site, whatever a fold or replicate leaves out: the panel was made before. It counts no
    site that is here for a find without a number, or in other months: that its visits found something was not asked.
    """
    if not (program.visits.chosen and batch.family.counts):
        return None
    used, cells = program.need(), batch.cells
    visits = used.weight if batch.off else np.bincount(cells.visit_cell, used.weight, cells.nnz)
    site = used.site if batch.off else np.repeat(np.arange(cells.J), np.diff(cells.ptr))
    some = np.bincount(used.site, used.weight * (used.count > 0), cells.J) > 0

    def told(f: int, fitted: F64) -> F64:
        zero = visits * log_zero(fitted, float(batch.inverse_size[f]), float(batch.phi[f]))
        if batch.presence is not None:  # in years when the site was empty nothing could be found
            place = batch.presence.visit_at if batch.off else batch.presence.cell_at
            zero *= batch.presence.q[f].ravel()[place]
        found = -np.expm1(np.bincount(site, zero, cells.J))
        return fitted * (some / np.maximum(found, 1e-300))[site]

    return told


def _by_month(program: GroupProgram, batch: Batch, f: int, month: I32, weight: F64, fitted: F64) -> F64:
    """The sums of ``messages.FitSums.months`` (L, 8)."""
    used, L, counted = program.need(), batch.month_mean.shape[1], batch.rows.wy[f]
    if batch.scale.log:
        counted = np.bincount(used.month, batch.weights[f] * (1.0 + used.count), L)
        variance = fitted**2
    else:
        counted = np.bincount(month, counted, L)
        variance = batch.family.variance(fitted) + batch.inverse_size[f] * fitted**2
    if batch.presence is not None:  # visits of sites that were perhaps empty scatter by that too
        place = batch.presence.visit_at if batch.off else batch.presence.cell_at
        variance = variance + (1.0 - batch.presence.q[f].ravel()[place]) * fitted**2
    K = batch.terms
    effect = batch.effort[:, :K] @ batch.kappa[f, :K] if K else np.zeros_like(fitted)
    sums = [np.ones_like(fitted), fitted, variance, effect, effect**2]
    rest = np.stack([np.bincount(month, weight * x, L) for x in sums])
    if program.jointly:  # of a few visits exact sums of logs tell each one's minutes, which are whole
        # Up or down by chance, the same in every fit: the nearest of small squares would be 0 in all months.
        by_chance = secret_rng(program.secret, program.name, "effort by month").random((2, L))
        rest[3:] = np.floor(rest[3:] / COARSE + by_chance) * COARSE
    finds = np.bincount(used.month, used.weight * (used.count > 0), L)
    return np.column_stack([rest[0], counted, *rest[1:], finds + program.uncounted, program.uncounted])


def score(program: GroupProgram, batch: Batch, question: msg.Score) -> msg.ScoreSums:
    """Deviance, squared log error, predicted and counted total and number of the held-out visits."""
    used = program.used
    assert used is not None
    out, told = np.zeros((question.fits.size, 5)), _told(program, batch)
    for i, f in enumerate(question.fits):
        test = batch.test[f] > 0
        if not test.any():
            continue
        eta = batch.birds_eta(int(f))[batch.cells.visit_cell[test]]
        eta = eta + held_out_bends(program, batch, int(f), np.flatnonzero(test))
        if batch.summed_off:
            eta = eta + batch.offset[f][test]
        y, w = used.count[test], batch.test[f][test]
        # The expected count of a visit is P(z = 1) mu (equation chain).
        if batch.presence is not None:
            eta = eta + np.log(np.maximum(batch.presence.q[f].ravel()[batch.presence.visit_at[test]], LEAST))
        family = batch.counted
        mu, y = batch.scale.counts(family.mean(eta), question.smear[i]), family.values(y)
        if family.counts:
            mu = np.maximum(mu, 1e-3)  # a mean of 0 would make any bird impossible
        size = question.inverse_size[i]
        judge = negbin_deviance(y, mu, size) if size > 0 else family.deviance(y, mu)
        predicted = mu
        if told is not None:  # what was counted there is above what is expected, at visits left out too
            fitted = question.smear[i] * batch.fitted(int(f))
            above = told(int(f), fitted) / np.maximum(fitted, 1e-300)
            predicted = mu * above[test if batch.off else batch.cells.visit_cell[test]]
        out[i] = (w @ judge, w @ family.log_error(y, mu) ** 2, w @ predicted, w @ y, w.sum())
        if program.left_out is not None:
            fit = question.batch, int(batch.numbers[f]), int(batch.rank[f])
            program.left_out[fit] = np.flatnonzero(test), w * judge
    return msg.ScoreSums(out)


def dispersion_sums(batch: Batch, fits: I64, nodes: F64) -> F64:
    """Weighted squared residuals over the variance (n, m), at each of the m ``nodes``."""
    out = np.zeros((fits.size, batch.chunks, nodes.shape[1]))
    if nodes.size:
        rows = batch.rows
        batch.run(
            visit_kernels.dispersion_sums, fits, batch.chunks, fits, rows.ptr, rows.w, rows.wy, rows.wyy, batch.offset,
            batch.summed_off, batch.eta, batch.family.code, nodes, out, chunks=batch.chunks,
        )  # fmt: skip
    total: F64 = out.sum(axis=1)
    return total
