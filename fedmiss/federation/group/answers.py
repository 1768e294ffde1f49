"""Answers about fits: what a group computes from its cells at the months' parameters of the hub."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from fedmiss.arrays import F64, I64
from fedmiss.errors import ConfigError, UplinkError
from fedmiss.federation import messages as msg
from fedmiss.federation.group import kernels, visit_kernels
from fedmiss.federation.group.batch import Batch
from fedmiss.federation.group.ends import dispersion_sums, fit_sums, score
from fedmiss.federation.group.features import feature_sums, move_prior_means
from fedmiss.federation.group.folds import secret_rng
from fedmiss.federation.group.totals import totals
from fedmiss.federation.keys import keyed_hashes, normals
from fedmiss.federation.triangle import free_places, from_triangle, to_triangle
from fedmiss.loops import spread_out
from fedmiss.models.lowrank.occupancy import SURE
from fedmiss.models.site_time import site_effects, site_time
from fedmiss.seasons import years_of

if TYPE_CHECKING:
    from fedmiss.federation.group.program import GroupProgram

BLOCK = 4_000_000  # cells of sites x months held at a time
NO_BIRD = -50.0  # log effect of a site at which no bird was counted: it has none

_CHECKED: list[tuple[Any, tuple[int, ...]] | None] = [None]  # the last question that was found right

YEARS = 1.0  # unit of the sums of how late observers' visits are, and of its squares: they lead steps, not where these end
STEPS = 20  # of sites, to come to their end for given months


def start_from(batch: Batch, full: Batch) -> None:
    """Let every fit of a batch of replicates start at the full fit (fit 0 of ``full``)."""
    p = int(full.rank[0])
    batch.site_mean[:, :, :p] = full.site_mean[0, :, :p]
    batch.site_cov[:, :, :p, :p] = full.site_cov[0, :, :p, :p]
    batch.effects[:] = full.effects[0]
    batch.rank[:] = p
    batch.major[:] = full.major[0]
    if batch.presence is not None and full.presence is not None:
        batch.presence.q[:] = full.presence.q[0]
        for f in range(len(batch.mu)):
            batch.weigh(f)


def check(program: GroupProgram, batch: Batch, question: Any) -> None:
    """Refuse a question that names fits, ranks or shapes that are not there: compiled loops check no bounds."""
    fits, (n, L) = question.fits, batch.month_mean.shape[:2]
    there = (n, L, batch.kappa.shape[1], batch.p, batch.test.shape[0])
    last = _CHECKED[0]
    if last is not None and last[0] is question and last[1] == there:
        return  # in one process the very same question goes to every group
    wrong = []
    one_each = fits.ndim == 1 and 0 < fits.size == np.unique(fits).size
    if not (one_each and fits.min() >= 0 and fits.max() < n):
        wrong.append(f"fits {fits.tolist()[:5]} of {n}")
    p = batch.slopes + 1
    if isinstance(question, msg.Broadcast | msg.Totals):
        p = batch.slopes + (question.T.shape[2] if question.T.ndim == 3 else 0)
    if not 1 + batch.slopes <= p <= batch.p:
        wrong.append(f"{p} coefficients of at most {batch.p}")
    k, K = fits.size, batch.kappa.shape[1]
    f = p - batch.slopes
    shapes = {
        "T": (k, L, f), "D": (k, L, f * (f + 1) // 2), "tau": (k, p), "mu": (k,), "phi": (k,), "inverse_size": (k,),
        "kappa": (k, K), "ridge": (k,), "chain": (k, 3 if batch.presence is not None else 0),
        "B": (k, *batch.B.shape[1:]), "time": (k, L), "shift": (k, p), "common": (k, 2), "refill": (k,), "smear": (k,),
        "half": (k,),
    }  # fmt: skip
    if isinstance(question, msg.Product):
        shapes |= {"V": (k, L, question.V.shape[-1]), "unit": (k,)}
        if question.pairs.size:
            shapes["pairs"] = (L, L)
    if isinstance(question, msg.Broadcast):
        shapes["nodes"] = (k, question.nodes.shape[-1])
    for name, shape in shapes.items():
        value = getattr(question, name, None)
        if value is not None and value.shape != shape:
            wrong.append(f"{name} of shape {value.shape} instead of {shape}")
    if isinstance(question, msg.Score) and batch.test.shape[0] != n:
        wrong.append("scores of a fit without held-out visits")
    if wrong:
        raise UplinkError(
            f"group {program.name!r} was asked {type(question).__name__} about {wrong[0]}. Install the same fedmiss on all "
            "sides, and start the job again."
        )
    _CHECKED[0] = (question, there)


def receive(program: GroupProgram, batch: Batch, question: msg.Broadcast) -> int:
    """Take the months' parameters; return the number of coefficients p."""
    fits, p = question.fits, int(question.T.shape[2]) + batch.slopes
    # a slice is a view
    at = slice(None) if fits.size == len(batch.mu) and (np.diff(fits) > 0).all() else fits
    if question.begin in (msg.Begin.FROM_ZERO, msg.Begin.AT_REST):
        batch.site_mean[at], batch.site_cov[at] = 0.0, 0.0
        batch.major[at] = -1
        if question.half.any():
            batch.major[at] = batch.with_more_than(question.half, fits, years_of(program.axis.months))
        known = slice(1 + batch.slopes, 1 + batch.slopes + batch.responses.shape[1])
        batch.site_mean[at, :, known] = batch.site_prior[at, :, known] = batch.responses
        batch.effects[at], batch.effect_var[at] = 0.0, 0.0
        if batch.presence is not None:
            batch.presence.q[at], batch.presence.evidence[at] = 1.0, SURE
            for f in fits:
                batch.weigh(int(f))
    elif question.begin == msg.Begin.NEW_FACTOR:
        batch.site_mean[at, :, p - 1] = 0.0
        batch.site_cov[at, :, p - 1, :] = batch.site_cov[at, :, :, p - 1] = 0.0
    # The hub has moved the sites' mean effect and slope to level and line; taken off here, they leave eta as it was.
    if question.shift.any():
        batch.site_mean[at, :, :p] -= question.shift[:, None, :]
    batch.kappa[at] = question.kappa
    if question.common.any():  # the mean effect of observers likewise: what cells lack, offsets have lost
        level, late = question.common[:, :1], question.common[:, 1:]
        common = level + late * batch.late
        batch.effects[at] -= np.where(batch.effects[at] != 0.0, common, 0.0)  # not of those without weight
        if batch.summed_off:
            batch.eta[at] += level
        batch.set_offsets(fits)
    batch.rank[at] = p
    batch.month_mean[at, :, :p], batch.month_cov[at, :, :p, :p] = batch.months(question)
    batch.mu[at], batch.tau[at, :p] = question.mu, question.tau
    batch.phi[at], batch.inverse_size[at], batch.ridge[at] = (
        question.phi,
        question.inverse_size,
        question.ridge,
    )
    if batch.presence is not None:
        batch.presence.chain[at] = question.chain
    move_prior_means(batch, at, question.B)
    if question.begin == msg.Begin.PERTURBED:
        _perturb_prior(program, batch, fits, p)
    if question.begin:
        batch.old[fits] = 0
        batch.set_offsets(fits)
        batch.predict(fits, p)
    # Weights 1 / (1 + mu / size) of the negative binomial, and offsets, follow the new predictor.
    refill = fits if question.begin else fits[question.refill == 1]
    if refill.size:
        batch.set_offsets(refill)
        batch.refill(refill)
    return p


def _perturb_prior(program: GroupProgram, batch: Batch, fits: I64, p: int) -> None:
    """Draw the prior means of replicates, of sites and of observers, and start where the fit will go for them.

    Sites, keyed by their ids, start at their response with all else held. Observers start at the whole of their draw: where
    an observer is known apart from years and sites, one step takes it back; where all observers of a year are new, the year
    and they share one sum of counts, and steps in turn would take long to get there.
    """
    species = program.visits.species  # what the prior says of one tells nothing of another's
    place = keyed_hashes(program.visits.site_id, program.key("prior noise", species, batch.seed))
    who = keyed_hashes(
        np.arange(batch.effects.shape[1]).astype(str),
        program.key("observer noise", species, batch.seed, program.name),
    )
    for f in fits:
        # Sites: prior mean M + z sqrt(tau), and the response C K z sqrt(tau), K = 1 / tau. The replicate's tau is not
        # that of C: a coefficient answers by its whole move at most.
        z = normals(place, p, "sites", batch.seed, int(batch.numbers[f]))
        tau = batch.prior_variances(int(f), p)
        move, C = z * np.sqrt(tau), batch.site_cov[f, :, :p, :p]
        batch.site_prior[f, :, :p] += move
        wide = np.maximum(tau, np.einsum("naa->na", C))
        batch.site_mean[f, :, :p] += np.einsum("nab,nb->na", C, move / wide)
        if batch.observers:
            drawn = normals(who, 1, "observers", batch.seed, int(batch.numbers[f]))[:, 0]
            batch.leaning[f] = drawn * np.sqrt(1.0 / batch.ridge[f])
            batch.effects[f] += batch.leaning[f]
            batch.effect_var[f] = 0.0  # a draw has none


def solve(program: GroupProgram, batch: Batch, question: msg.Solve) -> msg.Months:
    """Solve the sites at home; return the months' sums over them."""
    fits, p = question.fits, receive(program, batch, question)
    n = fits.size
    if question.begin == msg.Begin.AT_REST:
        for _ in range(STEPS):
            evidence = _evidence(batch, fits)
            _site_steps(batch, fits, p)
            if batch.observers:
                _observer_steps(program, batch, fits)
            for f, seen in zip(fits.tolist(), evidence, strict=False):
                _presence_step(program, batch, f, seen)
            batch.set_offsets(fits)
            batch.refill(fits)
    evidence = _evidence(batch, fits)
    month, stats = _site_steps(batch, fits, p)
    q = batch.effort.shape[1] + 1
    effort = _effort_sums(batch, fits, q) if question.effort and q > 1 else np.zeros((n, q + q * q))
    watched = np.zeros((n, 7))
    if question.observers and batch.observers:
        # A custodian's least number holds for observers as well: sums over fewer are answered with zeros.
        watched = _observer_steps(program, batch, fits) * (batch.effects.shape[1] >= program.axis.minimum)
        batch.set_offsets(fits)
    chain = np.zeros((n, 8 if batch.presence is not None else 0))
    for i, seen in enumerate(evidence):
        chain[i] = _presence_step(program, batch, int(fits[i]), seen)
    free = month[:, :, free_places(p, slopes=batch.slopes)]
    equations, about = np.zeros((n, 0)), np.zeros((n, 0))
    if batch.F.shape[1]:
        equations, about = feature_sums(batch, fits, p)
    return msg.Months(
        free, stats, equations, about, chain, effort, watched, dispersion_sums(batch, fits, question.nodes)
    )


def _evidence(batch: Batch, fits: I64) -> list[F64]:
    """What counts say of presence before the sites move; empty where no site may be empty."""
    return [batch.evidence(int(f)) for f in fits] if batch.presence is not None else []


def _site_steps(batch: Batch, fits: I64, p: int) -> tuple[F64, F64]:
    """One step of every site; sums of the months (n, L, p + p (p + 1) / 2) and over sites (n, 5 + 3 p)."""
    n, L, cells, chunks = fits.size, batch.month_mean.shape[1], batch.cells, batch.chunks
    month = np.zeros((n * chunks, L, p + p * (p + 1) // 2))
    stats = np.zeros((n * chunks, 5 + 3 * p))
    offset, by_visit = batch.cell_offset()
    # Sites in their own order of chunks, added in that order: the bits do not depend on the number of threads.
    begin = 0
    for loop, count, tasks, width in kernels.round_loops(p, batch.family.code, n, cells.nnz, chunks):
        here, parts = slice(begin, begin + count), slice(begin * chunks, (begin + count) * chunks)
        spread_out(
            loop, tasks, count * cells.nnz, fits[here], width, chunks, cells.ptr, cells.col, batch.y, batch.E, offset,
            by_visit, batch.mu, batch.month_mean, batch.month_cov, batch.tau, batch.major, batch.phi, batch.inverse_size,
            batch.family.max_step, batch.site_prior, batch.site_mean, batch.site_cov, batch.eta,
            batch.family.code, month[parts], stats[parts],
        )  # fmt: skip
        begin += count
    return _added(month, n), _added(stats, n)


def _presence_step(program: GroupProgram, batch: Batch, f: int, evidence: F64) -> F64:
    """Bring the sites' presence up to what their counts say; the sums of ``messages.Months.chain``."""
    known = batch.presence
    assert known is not None
    # E-step of the chain, equation chain; sites without a visit say nothing of its probabilities.
    seen = np.bincount(known.row_at // known.years, known.w[f], len(evidence)) > 0
    exposure = known.of_years(known.cell_at, batch.E[f])
    factor, sums = known.step(f, evidence, seen.astype(float), exposure)
    sums = sums * (np.count_nonzero(seen) >= program.axis.minimum)
    batch.E[f] *= factor.ravel()[known.cell_at]
    batch.weigh(f)
    return np.append(sums, batch.rows.w[f].sum())


def _added(parts: F64, n: int) -> F64:
    """Add the parts of every fit, in their order."""
    if len(parts) == n:
        return parts
    out: F64 = parts.reshape(n, -1, *parts.shape[1:]).sum(axis=1)
    return out


def _effort_sums(batch: Batch, fits: I64, q: int) -> F64:
    """Score and curvature (n, q + q^2) of the q columns of effort, and of the year and a constant among them."""
    rows, n = batch.rows, fits.size
    parts = np.zeros((n, batch.chunks, q + q * (q + 1) // 2))
    batch.run(
        visit_kernels.effort_sums, fits, batch.chunks, fits, rows.ptr, batch.effort, rows.w, rows.wy, batch.offset,
        batch.summed_off, batch.observer, batch.effect_var, batch.eta, batch.inverse_size, batch.family.code, parts,
        chunks=batch.chunks,
    )  # fmt: skip
    sums = parts.sum(axis=1)
    return np.hstack([sums[:, :q], from_triangle(sums[:, q:], q).reshape(n, q * q)])


def _observer_steps(program: GroupProgram, batch: Batch, fits: I64) -> F64:
    """One damped Newton step of every observer effect; sums (n, 7) over them as in ``messages.Months.observers``."""
    rows = batch.rows
    sums = np.zeros((fits.size, 3, batch.effects.shape[1]))
    batch.run(
        visit_kernels.observer_sums, fits, fits, rows.ptr, rows.w, rows.wy, batch.offset, batch.summed_off,
        batch.observer, batch.effect_var, batch.eta, batch.inverse_size, batch.family.code, sums,
    )  # fmt: skip
    grad, curve, weight = sums.transpose(1, 0, 2)
    # Everything times phi: score - phi ridge (o - prior mean) over curvature + phi ridge.
    phi = batch.phi[fits, None]
    ridge = phi * batch.ridge[fits, None]
    step = (grad - ridge * (batch.effects[fits] - batch.leaning[fits])) / (curve + ridge)
    active, cap = weight > 0, batch.family.observer_cap
    effects = np.where(active, batch.effects[fits] + np.clip(step, -cap, cap), 0.0)
    batch.effects[fits] = effects
    # sum of o^2 + posterior variance (EM's statistic), their number, and sum of 1 - C ridge, the effective number.
    spread, known = phi / (curve + ridge), curve / (curve + ridge)
    if batch.family.tilts:
        # The mean of exp(h), else observers whom few counts tell would lift the level. Damped as the rows of sites are.
        share = np.minimum(1.0, 1.0 / (0.5 + 0.5 * spread))
        var = batch.effect_var[fits] + share * (spread - batch.effect_var[fits])
        batch.effect_var[fits] = np.where(batch.leaning[fits].any(axis=1, keepdims=True), 0.0, var)
    about = np.where(active, effects - batch.leaning[fits], 0.0)
    # Between organisations those whom a fold leaves out count too, as people of whom nothing is known: else its sums would
    # tell how late one is who came to a single block.
    told = active | batch.observing if program.jointly else active
    late = np.where(told, batch.late, 0.0)
    each = (
        effects**2 + np.where(told, spread, 0.0), told, np.where(active, known, 0.0), about,
        late * about, late, late**2,
    )  # fmt: skip
    sums = np.stack([x.sum(axis=1) for x in each], axis=1)
    if program.jointly and batch.late.any():
        sums[:, 5:] = _in_years(program, sums[:, 1:2], sums[:, 5:])
    return sums


def _in_years(program: GroupProgram, number: F64, sums: F64) -> F64:
    """Sums (n, 2) of how late ``number`` (n, 1) observers come, and of the squares, in whole years.

    Exact ones of few observers tell how late each comes (``tests/attacks/test_late.py``). The first goes up or down by
    chance, the same in every fit; the second up, so that steps of what observers have in common are seldom longer for it.
    """
    by_chance = secret_rng(program.secret, program.name, "how late observers come").random()
    first = np.floor(sums[:, :1] / YEARS + by_chance) * YEARS
    second = np.maximum(sums[:, 1:], first**2 / np.maximum(number, 1.0))
    return np.hstack([first, (np.ceil(second / YEARS) + 1.0) * YEARS])


def predict(program: GroupProgram, batch: Batch, question: msg.Predict) -> msg.FitSums:
    """Bring the predictor up to the months of the end; counted and fitted totals, and the dispersion there."""
    p = receive(program, batch, question)
    batch.predict(question.fits, p)
    return fit_sums(program, batch, question.fits, question.nodes, months=question.months)


def product(program: GroupProgram, batch: Batch, question: msg.Product) -> msg.ProductSums:
    """R' (R V), without products of two months that may not be released."""
    cells, n = batch.cells, question.fits.size
    pairs = question.pairs
    if program.few.any():  # the custodian's own rule
        pairs = np.where(program.few == 1, np.uint8(0), pairs if pairs.size else np.uint8(1))
    out = np.zeros((n * batch.chunks, *question.V.shape[1:]))
    batch.run(
        kernels.product_sums, question.fits, batch.chunks, question.fits, cells.ptr, cells.col, batch.y, batch.E,
        batch.eta, question.V, batch.family.code, pairs, out, chunks=batch.chunks,
    )  # fmt: skip
    return msg.ProductSums(_added(out, n) / question.unit[:, None, None])


def site_time_sums(program: GroupProgram, batch: Batch, question: msg.SiteTime) -> msg.SiteTimeSums:
    """Equations of free time effects; the sites' own effects stay in the batch, as for every other fit."""
    if program.jointly or program.axis.minimum > 1 or batch.off:
        raise ConfigError(
            f"group {program.name!r} was asked for fixed time effects with a least number behind each sum or effort "
            "terms. A pair of months may rest on one site, so no least number can be kept; fit with --time smooth."
        )
    L, step = batch.month_mean.shape[1], max(1, BLOCK // batch.month_mean.shape[1])
    sums, counted = np.zeros((question.fits.size, 2)), np.zeros((question.fits.size, L))
    gradient, information = np.zeros((question.fits.size, L)), np.zeros((question.fits.size, L, L))
    cells = batch.cells
    for i, f in enumerate(question.fits):
        for first in range(0, cells.J, step):
            last = min(first + step, cells.J)
            at = slice(cells.ptr[first], cells.ptr[last])
            row = np.repeat(np.arange(last - first), np.diff(cells.ptr[first : last + 1]))
            y, E = np.zeros((last - first, L)), np.zeros((last - first, L))
            y[row, cells.col[at]], E[row, cells.col[at]] = batch.rows.wy[f, at], batch.rows.w[f, at]
            # Effects of sites at these times: log of counted over expected (score equation of a site in Poisson regression).
            effect = site_effects(y, E, question.time[i])
            batch.site_mean[f, first:last, 0] = np.maximum(effect, NO_BIRD)
            with_birds = np.isfinite(effect)
            one = site_time(y[with_birds], E[with_birds], question.time[i])
            sums[i] += one.value, with_birds.sum()
            counted[i] += y.sum(axis=0)
            gradient[i] += one.gradient
            information[i] += one.information
        batch.site_cov[f] = 0.0
    batch.rank[question.fits] = 1
    return msg.SiteTimeSums(sums, counted, gradient, to_triangle(information))


ANSWER: dict[type, Callable[[GroupProgram, Batch, Any], msg.Answer]] = {
    msg.Solve: solve, msg.Predict: predict, msg.Score: score, msg.Product: product, msg.Totals: totals,
    msg.SiteTime: site_time_sums,
}  # fmt: skip
