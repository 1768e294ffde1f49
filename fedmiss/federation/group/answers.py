"""Answers about fits: what a group computes from its cells at the months' parameters of the hub."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from fedmiss.arrays import F64, I32, I64
from fedmiss.errors import ConfigError, UplinkError
from fedmiss.federation import messages as msg
from fedmiss.federation.group import kernels
from fedmiss.federation.group.batch import Batch
from fedmiss.federation.group.features import feature_sums, move_prior_means
from fedmiss.federation.group.months import months_of
from fedmiss.federation.group.presence import LEAST
from fedmiss.federation.group.totals import totals
from fedmiss.federation.keys import keyed_hashes, normals, seed_key
from fedmiss.federation.triangle import free_places, to_triangle
from fedmiss.models.lowrank.families import negbin_deviance
from fedmiss.models.lowrank.occupancy import SURE
from fedmiss.models.site_time import site_effects, site_time

if TYPE_CHECKING:
    from fedmiss.federation.group.program import GroupProgram

__all__ = ["ANSWER", "check", "start_from"]


BLOCK = 4_000_000  # cells of sites x months held at a time
NO_BIRD = -50.0  # log effect of a site at which no bird was counted: it has none

_CHECKED: list[tuple[Any, tuple[int, ...]] | None] = [None]  # the last question that was found right


def start_from(batch: Batch, full: Batch) -> None:
    """Let every fit of a batch of replicates start at the full fit (fit 0 of ``full``)."""
    p = int(full.rank[0])
    batch.site_mean[:, :, :p], batch.site_cov[:, :, :p, :p] = (
        full.site_mean[0, :, :p],
        full.site_cov[0, :, :p, :p],
    )
    batch.effects[:] = full.effects[0]
    batch.rank[:] = p
    if batch.presence is not None and full.presence is not None:
        batch.presence.q[:] = full.presence.q[0]
        for f in range(len(batch.mu)):
            batch.weigh(f)


def check(program: GroupProgram, b: Batch, question: Any) -> None:
    """Refuse a question that names fits, ranks or shapes that are not there: compiled loops check no bounds."""
    fits, (n, L) = question.fits, b.month_mean.shape[:2]
    there = (n, L, b.kappa.shape[1], b.p, program.shared_sites.size, b.test.shape[0])
    last = _CHECKED[0]
    if last is not None and last[0] is question and last[1] == there:
        return  # in one process the very same question goes to every group
    wrong = []
    if (
        fits.ndim != 1
        or not fits.size
        or fits.min() < 0
        or fits.max() >= n
        or np.unique(fits).size < fits.size
    ):
        wrong.append(f"fits {fits.tolist()[:5]} of {n}")
    p = question.T.shape[2] + b.slopes if isinstance(question, msg.Broadcast) else getattr(question, "p", 1)
    if not 1 + b.slopes <= p <= b.p and not isinstance(
        question, msg.Score | msg.Product | msg.SharedProduct | msg.Predict
    ):
        wrong.append(f"{p} coefficients of at most {b.p}")
    k, q, S, K = fits.size, p + p * (p + 1) // 2, program.shared_sites.size, b.kappa.shape[1]
    f = p - b.slopes
    shapes = {
        "T": (k, L, f), "D": (k, L, f * (f + 1) // 2), "tau": (k, p), "mu": (k,), "phi": (k,), "inverse_size": (k,),
        "kappa": (k, K), "ridge": (k,), "chain": (k, 3 if b.presence is not None else 0),
        "B": (k, *b.B.shape[1:]), "time": (k, L), "shift": (k, p), "refill": (k,), "smear": (k,),
    }  # fmt: skip
    if isinstance(question, msg.Product | msg.SharedProduct):
        q = question.V.shape[-1]
        shapes |= {"V": (k, L, q), "unit": (k,)}
    if isinstance(question, msg.Solve | msg.Predict):
        shapes["nodes"] = (k, question.nodes.shape[-1])
    if isinstance(question, msg.Solve) and b.presence is not None:
        q += b.presence.years
    if S and isinstance(question, msg.Product | msg.Solve):
        shapes["totals"] = (k, S, q)
    for name, shape in shapes.items():
        value = getattr(question, name, None)
        if value is not None and value.shape != shape:
            wrong.append(f"{name} of shape {value.shape} instead of {shape}")
    if isinstance(question, msg.Score) and b.test.shape[0] != n:
        wrong.append("scores of a fit without held-out visits")
    if wrong:
        raise UplinkError(
            f"group {program.name!r} was asked {type(question).__name__} about {wrong[0]}. Install the same fedmiss on all "
            "sides, and start the job again."
        )
    _CHECKED[0] = (question, there)


def broadcast(program: GroupProgram, b: Batch, q: msg.Broadcast) -> msg.SharedRows:
    """Take the months' parameters; return the sums of joint sites at the sites' old coefficients."""
    fits, p = q.fits, q.T.shape[2] + b.slopes
    at = slice(None) if fits.size == len(b.mu) and (np.diff(fits) > 0).all() else fits  # a slice is a view
    if q.begin == msg.Begin.FROM_ZERO:
        b.site_mean[at], b.site_cov[at] = 0.0, 0.0
        known = slice(1 + b.slopes, 1 + b.slopes + b.responses.shape[1])
        b.site_mean[at, :, known] = b.site_prior[at, :, known] = b.responses
        b.effects[at] = 0.0
        if b.presence is not None:
            b.presence.q[at], b.presence.evidence[at] = 1.0, SURE
            for f in fits:
                b.weigh(int(f))
    elif q.begin == msg.Begin.NEW_FACTOR:
        b.site_mean[at, :, p - 1], b.site_cov[at, :, p - 1, :], b.site_cov[at, :, :, p - 1] = 0.0, 0.0, 0.0
    if q.shift.any():
        b.site_mean[at, :, :p] -= q.shift[:, None, :]
    b.rank[at] = p
    b.mu[at], (b.month_mean[at, :, :p], b.month_cov[at, :, :p, :p]) = q.mu, months_of(b, q)
    b.tau[at, :p], b.phi[at], b.inverse_size[at] = q.tau, q.phi, q.inverse_size
    b.kappa[at], b.ridge[at] = q.kappa, q.ridge
    if b.presence is not None:
        b.presence.chain[at] = q.chain
    move_prior_means(b, at, q.B)
    if q.begin == msg.Begin.PERTURBED:
        _perturb_prior(program, b, fits, p)
    if q.begin:
        b.old[fits] = 0
        b.set_offsets(fits)
        b.predict(fits, p)
    refill = fits if q.begin else fits[q.refill == 1]
    if refill.size:
        b.set_offsets(refill)
        b.refill(refill)
    S = program.shared_sites
    rows = np.zeros((fits.size, S.size if q.sums else 0, p + p * (p + 1) // 2))
    if rows.size:
        offset, by_visit = b.cell_offset()
        b.run(
            kernels.shared_sums, fits, fits, p, S, b.cells.ptr, b.cells.col, b.y, b.E, offset, by_visit, b.mu,
            b.month_mean, b.month_cov, b.site_mean, b.site_cov, b.family.code, rows,
        )  # fmt: skip
    if b.presence is not None:
        seen = (
            [b.evidence(int(f))[S] for f in fits]
            if rows.shape[1]
            else np.zeros((fits.size, 0, b.presence.years))
        )
        rows = np.concatenate([rows, seen], axis=2)
    return msg.SharedRows(rows)


def _perturb_prior(program: GroupProgram, b: Batch, fits: I64, p: int) -> None:
    """Draw the prior means of replicates, of sites and of observers, and start where the fit will go for them.

    Sites, keyed by their ids, start at their response with all else held. Observers start at the whole of their draw: where
    an observer is known apart from years and sites, one step takes it back; where all observers of a year are new, the year
    and they share one sum of counts, and steps in turn would take long to get there.
    """
    place = keyed_hashes(program.visits.site_id, seed_key("prior noise", b.seed))
    who = keyed_hashes(
        np.arange(b.effects.shape[1]).astype(str), seed_key("observer noise", b.seed, program.name)
    )
    for f in fits:
        z = normals(place, p, "sites", b.seed, int(b.numbers[f]))
        b.site_prior[f, :, :p] += z * np.sqrt(b.tau[f, :p])
        b.site_mean[f, :, :p] += np.einsum("nab,nb->na", b.site_cov[f, :, :p, :p], z / np.sqrt(b.tau[f, :p]))
        if b.observers:
            drawn = normals(who, 1, "observers", b.seed, int(b.numbers[f]))[:, 0]
            b.leaning[f] = drawn * np.sqrt(1.0 / b.ridge[f])
            b.effects[f] += b.leaning[f]


def solve(program: GroupProgram, b: Batch, q: msg.Solve) -> msg.Months:
    """Solve the sites at home; return the months' sums over them."""
    fits, p, c = q.fits, q.p, b.cells
    n, L = fits.size, b.month_mean.shape[1]
    month = np.zeros((n * b.chunks, L, p + p * (p + 1) // 2))
    stats = np.zeros((n * b.chunks, 4 + 3 * p))
    offset, by_visit = b.cell_offset()
    totals = q.totals if q.totals.size else np.zeros((n, 1, 1))
    evidence = [b.evidence(int(f)) for f in fits] if b.presence is not None else []
    loop = kernels.round_sums(p, n * c.nnz)
    b.run(
        loop, fits, fits, p, b.chunks, c.ptr, c.col, program.share, program.shared_at, totals, b.y, b.E,
        offset, by_visit, b.mu, b.month_mean, b.month_cov, b.tau, b.phi, b.family.max_step,
        b.site_prior, b.site_mean, b.site_cov, b.eta, b.family.code, month, stats,
        chunks=b.chunks,
    )  # fmt: skip
    K = b.kappa.shape[1]
    effort = np.zeros((n, K + K * K))
    if q.effort and K:
        b.run(
            kernels.effort_sums, fits, fits, b.rows.ptr, b.effort, b.rows.w, b.rows.wy, b.offset, b.summed_off,
            b.eta, b.inverse_size, b.family.code, effort,
        )  # fmt: skip
    watched = np.zeros((n, 3))
    if q.observers and b.observers:
        for i, f in enumerate(fits):
            watched[i] = _observer_step(b, int(f)) * (b.effects.shape[1] >= program.axis.minimum)
        b.set_offsets(fits)
    chain = np.zeros((n, 8 if b.presence is not None else 0))
    for i, seen in enumerate(evidence):
        if q.totals.size:
            seen[program.shared_sites] = q.totals[i][:, -seen.shape[1] :]
        chain[i] = _presence_step(program, b, int(fits[i]), seen)
    free = _added(month, n)[:, :, free_places(p, slopes=b.slopes)]
    equations, about = np.zeros((n, 0)), np.zeros((n, 0))
    if b.F.shape[1]:
        equations, about = feature_sums(program, b, fits, p)
    return msg.Months(
        free, _added(stats, n), equations, about, chain, effort, watched, _dispersion(b, fits, q.nodes)
    )


def _presence_step(program: GroupProgram, b: Batch, f: int, evidence: F64) -> F64:
    """Bring the sites' presence up to what their counts say; the sums of ``messages.Months.chain``."""
    known = b.presence
    assert known is not None
    seen = np.bincount(known.row_at // known.years, known.w[f], len(evidence)) > 0
    exposure = known.of_years(known.cell_at, b.E[f])
    share = program.share * seen
    factor, sums = known.step(f, evidence, share, exposure)
    sums = sums * (np.count_nonzero(share) >= program.axis.minimum)
    b.E[f] *= factor.ravel()[known.cell_at]
    b.weigh(f)
    return np.append(sums, b.rows.w[f].sum())


def _added(parts: F64, n: int) -> F64:
    """Add the parts of every fit, in their order."""
    if len(parts) == n:
        return parts
    out: F64 = parts.reshape(n, -1, *parts.shape[1:]).sum(axis=1)
    return out


def _observer_step(b: Batch, f: int) -> F64:
    """One damped Newton step of every observer effect; sums of squares, number and effective number of observers."""
    mu, w = b.visit_mean(f), b.weights[f]
    if b.inverse_size[f] > 0:
        w = w / (1.0 + mu * b.inverse_size[f])
    n, value = b.effects.shape[1], b.rows.wy[f]
    count = np.divide(value, b.weights[f], out=np.zeros_like(value), where=b.weights[f] > 0)
    ridge = b.phi[f] * b.ridge[f]
    grad = np.bincount(b.observer, w * (count - mu), n)
    curve = np.bincount(b.observer, w * b.family.variance(mu), n)
    step = (grad - ridge * (b.effects[f] - b.leaning[f])) / (curve + ridge)
    o = b.effects[f] + np.clip(step, -b.family.observer_cap, b.family.observer_cap)
    active = np.bincount(b.observer, b.weights[f], n) > 0
    o[~active] = 0.0
    b.effects[f] = o
    return np.array(
        [
            float((o[active] ** 2).sum() + (b.phi[f] / (curve[active] + ridge)).sum()),
            float(active.sum()),
            float((curve[active] / (curve[active] + ridge)).sum()),
        ]
    )


def _dispersion(b: Batch, fits: I64, nodes: F64) -> F64:
    out = np.zeros((fits.size, b.chunks, nodes.shape[1]))
    if nodes.size:
        r = b.rows
        b.run(
            kernels.dispersion_sums, fits, b.chunks, fits, r.ptr, r.w, r.wy, r.wyy, b.offset, b.summed_off, b.eta,
            b.family.code, nodes, out, chunks=b.chunks,
        )  # fmt: skip
    total: F64 = out.sum(axis=1)
    return total


def predict(program: GroupProgram, b: Batch, q: msg.Predict) -> msg.FitSums:
    """Bring the predictor up to the months of the end; counted and fitted totals, and the dispersion there."""
    b.predict(q.fits, int(b.rank[q.fits[0]]))
    return fit_sums(program, b, q.fits, q.nodes, months=q.months)


def fit_sums(program: GroupProgram, b: Batch, fits: I64, nodes: F64, *, months: bool = False) -> msg.FitSums:
    """Sums at the predictor that the cells have; with ``months`` also month by month."""
    totals, by_month = np.zeros((fits.size, 3)), np.zeros((fits.size, b.month_mean.shape[1] * months, 6))
    month = b.cells.col[b.cells.visit_cell] if b.off else b.cells.col
    for i, f in enumerate(fits):
        w = b.weights[f]
        fitted = b.visit_mean(int(f)) if b.off else b.family.mean(b.eta[f])
        weight = w if b.off else b.rows.w[f]
        if b.scale.log:
            totals[i] = (w.sum(), _counted_log1p(program, w), float(weight @ np.exp(fitted)))
        else:
            totals[i] = (w.sum(), float(b.rows.wy[f].sum()), float(weight @ fitted))
        if months:
            by_month[i] = _by_month(program, b, int(f), month, weight, fitted)
    return msg.FitSums(totals, _dispersion(b, fits, nodes), by_month)


def _by_month(program: GroupProgram, b: Batch, f: int, month: I32, weight: F64, fitted: F64) -> F64:
    """Weights, counted and fitted totals, the counts' variance at dispersion 1, effect of effort and its square: (L, 6)."""
    L, counted = b.month_mean.shape[1], b.rows.wy[f]
    if b.scale.log:
        assert program.used is not None
        at = b.cells.col[b.cells.visit_cell]
        counted = np.bincount(at, b.weights[f] * (1.0 + program.used.count), L)
        fitted = np.exp(fitted)
        variance = fitted**2
    else:
        counted = np.bincount(month, counted, L)
        variance = b.family.variance(fitted) + b.inverse_size[f] * fitted**2
    if b.presence is not None:  # visits of sites that were perhaps empty scatter by that too
        place = b.presence.visit_at if b.off else b.presence.cell_at
        variance = variance + (1.0 - b.presence.q[f].ravel()[place]) * fitted**2
    K = b.terms
    effect = b.effort[:, :K] @ b.kappa[f, :K] if K else np.zeros_like(fitted)
    sums = [np.ones_like(fitted), fitted, variance, effect, effect**2]
    rest = [np.bincount(month, weight * x, L) for x in sums]
    return np.column_stack([rest[0], counted, *rest[1:]])


def _counted_log1p(program: GroupProgram, w: F64) -> float:
    used = program.used
    assert used is not None
    return float(w @ (1.0 + used.count))


def score(program: GroupProgram, b: Batch, q: msg.Score) -> msg.ScoreSums:
    """Deviance, squared log error, predicted and counted total and number of the held-out visits."""
    used = program.used
    assert used is not None
    out = np.zeros((q.fits.size, 5))
    for i, f in enumerate(q.fits):
        test = b.test[f] > 0
        if not test.any():
            continue
        eta = b.eta[f][b.cells.visit_cell[test]]
        if b.summed_off:
            eta = eta + b.offset[f][test]
        y, w = used.count[test], b.test[f][test]
        if b.presence is not None:
            eta = eta + np.log(np.maximum(b.presence.q[f].ravel()[b.presence.visit_at[test]], LEAST))
        mu, family = b.scale.counts(b.family.mean(eta), q.smear[i]), b.scale.scoring_family(b.family)
        y = family.values(y)
        if family.counts:
            mu = np.maximum(mu, 1e-3)  # a mean of 0 would make any bird impossible
        judge = negbin_deviance(y, mu, q.inverse_size[i]) if q.inverse_size[i] > 0 else family.deviance(y, mu)
        out[i] = (w @ judge, w @ family.log_error(y, mu) ** 2, w @ mu, w @ y, w.sum())
        if program.left_out is not None:
            program.left_out[q.batch, int(b.numbers[f]), int(b.rank[f])] = (np.flatnonzero(test), w * judge)
    return msg.ScoreSums(out)


def shared_product(program: GroupProgram, b: Batch, q: msg.SharedProduct) -> msg.SharedRows:
    """R V at the joint sites."""
    rows = np.zeros((q.fits.size, program.shared_sites.size, q.V.shape[2]))
    if rows.size:
        c = b.cells
        b.run(
            kernels.shared_products, q.fits, q.fits, program.shared_sites, c.ptr, c.col, b.y, b.E, b.eta, q.V,
            b.family.code, rows,
        )  # fmt: skip
    return msg.SharedRows(rows)


def product(program: GroupProgram, b: Batch, q: msg.Product) -> msg.ProductSums:
    """R' (R V)."""
    c, n = b.cells, q.fits.size
    totals = q.totals if q.totals.size else np.zeros((n, 1, q.V.shape[2]))
    out = np.zeros((n * b.chunks, *q.V.shape[1:]))
    b.run(
        kernels.product_sums, q.fits, b.chunks, q.fits, c.ptr, c.col, program.shared_at, totals, b.y, b.E, b.eta, q.V,
        b.family.code, out, chunks=b.chunks,
    )  # fmt: skip
    return msg.ProductSums(_added(out, n) / q.unit[:, None, None])


def site_time_sums(program: GroupProgram, b: Batch, q: msg.SiteTime) -> msg.SiteTimeSums:
    """Equations of free time effects; the sites' own effects stay in the batch, as for every other fit."""
    if program.axis.minimum > 1 or program.shared_sites.size or b.off:
        raise ConfigError(
            f"group {program.name!r} was asked for fixed time effects with a least number behind each sum, joint sites or "
            "effort terms. A pair of months may rest on one site, so no least number can be kept; fit with --time smooth."
        )
    L, step = b.month_mean.shape[1], max(1, BLOCK // b.month_mean.shape[1])
    sums, counted = np.zeros((q.fits.size, 2)), np.zeros((q.fits.size, L))
    gradient, information = np.zeros((q.fits.size, L)), np.zeros((q.fits.size, L, L))
    c = b.cells
    for i, f in enumerate(q.fits):
        for first in range(0, c.J, step):
            last = min(first + step, c.J)
            at = slice(c.ptr[first], c.ptr[last])
            row = np.repeat(np.arange(last - first), np.diff(c.ptr[first : last + 1]))
            y, E = np.zeros((last - first, L)), np.zeros((last - first, L))
            y[row, c.col[at]], E[row, c.col[at]] = b.rows.wy[f, at], b.rows.w[f, at]
            effect = site_effects(y, E, q.time[i])
            b.site_mean[f, first:last, 0] = np.maximum(effect, NO_BIRD)
            with_birds = np.isfinite(effect)
            one = site_time(y[with_birds], E[with_birds], q.time[i])
            sums[i] += one.value, with_birds.sum()
            counted[i] += y.sum(axis=0)
            gradient[i] += one.gradient
            information[i] += one.information
        b.site_cov[f] = 0.0
    b.rank[q.fits] = 1
    return msg.SiteTimeSums(sums, counted, gradient, to_triangle(information))


ANSWER: dict[type, Callable[[GroupProgram, Batch, Any], msg.Answer]] = {
    msg.Broadcast: broadcast,
    msg.Solve: solve,
    msg.Predict: predict,
    msg.Score: score,
    msg.SharedProduct: shared_product,
    msg.Product: product,
    msg.Totals: totals,
    msg.SiteTime: site_time_sums,
}
