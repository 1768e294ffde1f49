"""The hub's half of variational EM: pure steps from one state and the groups' sums to the next state.

Site coefficients p_j = (a_j, s_j, u_j) ~ N(0, diag(tau)) and month coefficients t_l = (b_l, v_l) ~ N(f_l, noise), with f a
line, season and smooth series (:mod:`.season`), are latent; a_j is the site's effect and s_j its slope on the known line
x_l, the centred and scaled year, around the slope of b. Their posteriors are taken Gaussian and independent. The expected
loss of a cell uses the lognormal mean exp(eta + var/2), so that a factor that is poorly known counts for less. Each round
the groups solve their sites at home, the hub solves the months from sums over sites. Variances follow by EM.

Relation to the paper: this is EM with latent factors (probabilistic PCA with missing cells; for counts its Poisson
analogue). It differs from FedMissEM's objective in integrating the factors out instead of maximising over them.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from fedmiss.arrays import F64, Bool
from fedmiss.federation.hub.coefficients import feature_step
from fedmiss.federation.hub.priors import (
    SMALLEST,
    level_pull,
    share_of_step,
    shrunk_variances,
)
from fedmiss.federation.hub.state import LATE, MonthState, Panel
from fedmiss.federation.hub.values import evolve
from fedmiss.federation.hub.visit_steps import common_step, effort_step, visit_step
from fedmiss.federation.triangle import from_triangle
from fedmiss.models.lowrank.families import FAMILIES, Family
from fedmiss.models.lowrank.settings import CountSettings

SWING = 0.02  # share of the longest step beyond which a month's step that turns back is halved
# After ``LATE`` rounds of a rank also one that is hardly shorter than the last: two that undo each other go on for good.
LASTING = 0.9
# A step that turns back is halved, to the least share of a full one, and grows by a factor when it does not: months' more
# slowly, else both go round in a circle with the dispersion (benchmarks/lowrank_hard.py, up to 1,186 rounds).
LEAST_SHARE, MONTHS_GROW, VARIANCES_GROW = 0.05, 1.2, 2.0
# A variance that keeps its direction takes so many full steps at once, by so much of its logarithm at most.
LONGEST, FAR = 4.0, 0.5
# of a logarithm: the sign of a shorter step is rounding's, and processors must not part on it
LEAST_TURN = 1e-3
# Moves that fall by a factor from round to round have a way to go that a small move does not show: at its end it is at most
# so many of the longest move that ends a fit. Moves of a tenth of that, or that no longer fall, end it: it comes no nearer.
WAY, SMALL = 16.0, 0.1
STARTS = 2  # rounds in which a fit finds its place, before variances, effort, observers and dispersion move
Sums = dict[str, F64]  # sums over groups of the fields of ``Months``, of one fit


class Turn(NamedTuple):
    """What a round does; fits of one turn take their step together.

    ``learn``: prior variances are re-estimated (False: kept, for replicates; prior means still follow); ``settled``: the
    first rounds of a rank are over; ``effort``, ``observers``: whose turn it is; ``tol``: a fit has converged when neither
    the cells' predictors nor the months moved by more than ``tol`` (root mean square) in three rounds in a row, and have not
    far to go (``WAY``).
    """

    learn: bool
    settled: bool
    effort: bool
    observers: bool
    tol: float


def turn_of(panel: Panel, settings: CountSettings, k: int, *, learn: bool, tol: float) -> Turn:
    """The turn of round ``k`` of a rank: effort and observers take turns, else they undo each other."""
    settled, effort = k > STARTS, panel.K + settings.learning > 0
    own = settings.observers and (k % 2 == 0 or (learn and not effort))
    return Turn(
        learn, settled, effort and (settled or not learn) and not (settings.observers and k % 2 == 0),
        own and (settled or not learn), tol,
    )  # fmt: skip


def after_round(
    state: MonthState, sums: Sums, panel: Panel, settings: CountSettings, nodes: F64, turn: Turn
) -> MonthState:
    """One round's M-step, given the sums over groups after the sites were solved.

    Parameters
    ----------
    state : of one fit, or of many (:func:`.state.stacked`); then sums and nodes have their leading axis
    sums : of ``messages.Months``: ``months`` (L, p (p + 3) / 2) of the free columns, ``sites`` (5 + 3 p,), ``effort``
        (e (e + 1),), ``observers`` (7,), ``dispersion`` (m,)
    nodes : (m,) values of 1 / size at which ``dispersion`` was computed
    """
    learn = turn.learn
    p, k = state.p, state.k + 1
    state = evolve(state, counted=sums["months"][..., state.free.size] > 0)
    sites = sums["sites"]
    # E-step at the sites: means over visited sites of P - M, P^2 and diag C, and how far predictors moved, weighted by E.
    J, cells = np.maximum(sites[..., 3], 1.0), np.maximum(sites[..., 2], 1e-300)
    moved = np.sqrt(sites[..., 1] / cells)
    mean, squares, spread = (sites[..., 4 + i * p : 4 + (i + 1) * p] / J[..., None] for i in range(3))
    about, features = squares, state.features
    told = state.told
    if state.slopes:
        told = np.stack([J, squares[..., 1], spread[..., 1], state.tau[..., 1], sites[..., -1]], axis=-1)
    if sums["distances"].size:
        about = sums["distances"] / J[..., None]  # tau is about the prior means that follow the features
        unsure = features.uncertainty(panel)
        if state.slopes:  # a site that is told nothing goes along with its prior mean
            told[..., 1] = about[..., 1] + unsure[..., 1] * sites[..., -1] / J
        # E (B' f - B_hat' f)^2 is added whole, though the sites' posterior shares it: too wide rather than too narrow, since
        # with a tau of 0 sites without visits would have no error of their own.
        about[..., : features.B.shape[-1]] += unsure
        features = (
            feature_step(state, sums["features"], learn=learn) if turn.settled or not learn else features
        )
    tau = state.tau
    if learn and turn.settled:
        # M-step of tau, equation variance: the mean of squares and variances about B' f_j, under half-normal priors.
        tau = np.maximum(
            shrunk_variances(about, spread, state.tau, J, state.unit, slopes=state.slopes),
            SMALLEST * np.asarray(state.unit)[..., None] ** 2,
        )
        known = slice(1 + state.slopes, 1 + state.slopes + state.responses)
        tau[..., known] = state.tau[..., known]
    chain, weight = state.chain, np.asarray(state.weight)
    if chain.size:
        # A visit counts with P(z = 1): presence that moves is a move of the expected counts as well.
        moved = np.sqrt(moved**2 + sums["chain"][..., 6] / cells)
        chain, weight = chain_step(sums["chain"]) if learn else chain, sums["chain"][..., 7]
    # Months: equation normal, with sums over sites where a site has sums over months.
    T, D, edf_months, damping, ahead = _newton(
        state,
        sums["months"],
        FAMILIES[settings.family],
        damped=settings.inverse_size is not None,
        replicate=not learn,
    )
    # What all sites have in common belongs to the months: their mean effect, and their mean slope.
    shift = np.zeros_like(mean)
    shift[..., : 1 + state.slopes] = mean[..., : 1 + state.slopes]
    # The mean slope goes into beta, in the months as s x_l: beta is not shrunk, the s_j are.
    line = shift[..., 1:2] * state.T[..., 1] if state.slopes else np.zeros(panel.L)
    if turn.settled or not learn:
        _share_factors(state, shift, T, D, mean, tau, J)
    T[..., 0] += line
    # b has the mean 0 over the months: the level is mu's alone. Prior means move along, so that no month feels a pull.
    level = T[..., 0].mean(axis=-1)
    pull = level_pull(state.mu, state.origin, _common_variance(state, J), state.unit)
    before = state.T[..., 0]
    prior = state.prior.copy()
    T[..., 0] -= level[..., None]
    prior[..., 0] += line - level[..., None]
    changed: dict[str, Any] = {
        "mu": state.mu + shift[..., 0] + level + pull, "T": T, "D": D, "prior": prior, "tau": tau, "features": features,
        "chain": chain, "weight": weight, "shift": shift, "squares": squares, "told": told,
        "common": np.zeros_like(state.common),
        "edf": sites[..., 0] + edf_months + features.edf + 1.0, "k": k, "damping": damping,
        # replicates weigh visits again where their observers or effort have moved
        "refill": np.full(np.shape(k), (turn.observers or turn.effort) and not learn),
    }  # fmt: skip
    new = evolve(state, **changed)
    # M-step of the series (equation month), then what is estimated on visits: kappa, observers' variance, dispersion.
    if turn.settled or not learn:
        new = _prior_step(new, ahead, learn=learn)
    if turn.effort:
        new = effort_step(state, new, sums["effort"], panel, settings)
    if turn.observers:
        new = common_step(new, sums["observers"], learning=settings.learning)
    if turn.settled and learn:
        new = _paced(state, visit_step(new, sums, nodes, settings, observers=turn.observers))
    # Months without a visit move no cell: they are watched by themselves, and so are effort's coefficients.
    move = np.maximum(moved, np.sqrt(((new.T[..., 0] - before) ** 2).mean(axis=-1)))
    steps = np.abs(new.kappa - state.kappa)
    if settings.learning and panel.calendar is not None:
        # How late observers come is in years: in turns it and the trend creep, and move predictors by as many steps.
        steps[..., -1] *= 1 + np.ptp(panel.calendar[1])
    move = np.maximum(move, steps.max(axis=-1, initial=0.0)) / state.unit
    moves = np.concatenate([state.moves[..., 1:], move[..., None]], axis=-1)
    return evolve(new, moves=moves, converged=at_rest(moves, k, turn.tol * new.patience))


def at_rest(moves: F64, k: F64 | int, tol: F64 | float) -> Bool:
    """Whether a fit ends after round ``k`` of a rank, by its last three ``moves`` (3,): see :class:`Turn`."""
    moves = np.clip(moves, 1e-100, 1e100)  # before the third round they are infinite
    most, rate = moves.max(axis=-1), np.sqrt(moves[..., 2] / moves[..., 0])
    # What is left is a geometric series: m (rate + rate^2 + ...) = m rate / (1 - rate).
    near = (most * rate < WAY * tol * (1.0 - rate)) | (most < SMALL * tol) | (rate >= 1.0)
    out: Bool = (k > 5) & (most < tol) & near
    return out


def _share_factors(state: MonthState, shift: F64, T: F64, D: F64, mean: F64, tau: F64, J: F64) -> None:
    """Move what all sites' coefficients u_j of a factor have in common to the months' effects, in ``shift`` and ``T``.

    No count tells (b_l + d v_l, u_j - d) from (b_l, u_j), only their priors do: in turns sites and months would creep along
    it. The fixed point is that of the turns (Luttinen and Ilin, Neurocomputing 2010, "Transformations in variational
    Bayesian factor analysis to speed up learning").
    """
    precision = 1.0 / state.widths[..., 0]
    for factor in range(state.p - state.rank, state.p):
        # Least sum_j (u_j - d)^2 / (2 tau) + sum_l E (b_l + d v_l - prior_l)^2 / (2 width_l), a parabola in d.
        v, site = T[..., factor], J / tau[..., factor]
        apart = v * (T[..., 0] - state.prior[..., 0]) + D[..., 0, factor]
        score = site * mean[..., factor] - (precision * apart).sum(axis=-1)
        d = score / (site + (precision * (v**2 + D[..., factor, factor])).sum(axis=-1))
        shift[..., factor] = d
        T[..., 0] += d[..., None] * v


def chain_step(sums: F64) -> F64:
    """Probabilities of the sites' chain from its expected numbers, with a year's worth of one site as prior."""
    # Equation rates: psi, gamma, epsilon, in the order of ``MonthState.chain``.
    first, sites, occupied, lost, empty, gained = np.moveaxis(sums[..., :6], -1, 0)
    return np.stack(
        [(first + 0.5) / (sites + 1.0), (gained + 1.0) / (empty + 50.0), (lost + 0.05) / (occupied + 1.0)],
        axis=-1,
    )


def _common_variance(state: MonthState, J: F64) -> F64:
    """Prior variance of what all sites, and all months, have in common."""
    # Var of the mean of J site effects, of L months' noises and of the season's effects.
    common: F64 = state.tau[..., 0] / J + state.noise[..., 0] / state.T.shape[-2]
    if state.series is not None and state.series[0].sizes[1]:
        common = common + state.series[0].season / state.series[0].sizes[1]
    return common


def _newton(
    state: MonthState, sums: F64, family: Family, *, damped: bool, replicate: bool
) -> tuple[F64, F64, F64, tuple[F64, F64], F64]:
    """One Newton step of every month.

    Returns means, covariances, effective degrees of freedom, steps and their damping, and how far ahead (..., L, free
    columns) of its mean the series take each month to be.

    The curvature is the expected one of the negative binomial. Where a month (a species, in a community) holds a count far
    above its mean the true one is larger, and full steps swing for good: a month whose step turns back takes half of it, and
    more again when not. With a size that is held (``damped``) every such step counts, else only a long one, above ``SWING``
    of the longest, or one that lasts: the others die out by themselves.
    """
    free = state.free
    n, width = free.size, state.widths
    phi = np.asarray(state.phi)[..., None, None]
    # Quasi-likelihood: score and curvature are over phi, Var = phi mu.
    g, H = sums[..., :n] / phi, from_triangle(sums[..., n:], n) / phi[..., None]
    # Newton: (H + K) step = g - K (T - prior), K = diag(1 / width) of equation prior.
    A = H.copy()
    A[..., np.arange(n), np.arange(n)] += 1.0 / width
    cov: F64 = np.asarray(np.linalg.inv(A), dtype=float)
    step = np.einsum("...ab,...b->...a", cov, g - (state.T - state.prior)[..., free] / width)
    # Shortened as a whole, so that it keeps its direction: exp(eta) is far from its tangent after a long step.
    whole = np.minimum(1.0, family.max_step / np.maximum(np.abs(step).max(axis=-1), 1e-12))[..., None]
    full, step = step, step * whole
    last, part = state.damping
    if last.shape == step.shape:
        back = (step * last).sum(axis=-1) < 0
        longest, late = np.abs(step).max(axis=-1), (np.asarray(state.k) >= LATE)[..., None]
        lasts = (longest > LEAST_TURN) & (part * _length(step) > LASTING * _length(last))
        swings = back if damped else back & ((longest > SWING * family.max_step) | (late & lasts))
        # At the end all months may go one way in every round, and sites or the level's prior the other: a month that swings
        # about that keeps its sign.
        common = np.median(last, axis=-2, keepdims=True) * (np.arange(n) == 0)
        off, was = part[..., None] * step - common, last - common
        lasts = (np.abs(off).max(axis=-1) > LEAST_TURN) & (_length(off) > LASTING * _length(was))
        swings |= late & lasts & ((off * was).sum(axis=-1) < 0)
        part = _share(part, swings, MONTHS_GROW)
        step *= part[..., None]
    else:
        part = np.ones(step.shape[:-1])
    ahead = np.zeros_like(step)
    if replicate:
        # The series take a month's mean apart into counts and prior. A replicate begins at prior means that were moved at
        # once, and where these are narrow a step that falls short of them would tell the series of counts far away from all
        # others. So they hear of the whole way to the prior; a step that was too long is shortened in what the counts ask.
        short = (whole < 1.0) | (part[..., None] != 1.0)
        all_the_way = full - (1.0 - whole) * np.einsum("...ab,...b->...a", cov, g)
        ahead = np.where(short, all_the_way - step, 0.0)
    T, D = state.T.copy(), np.zeros_like(state.D)
    T[..., free] += step
    # Trace of the hat matrix, (H + K)^-1 H: how many coefficients the data determine.
    known = np.einsum("...ab,...ba->...", cov, H)
    block = (..., free[:, None], free[None, :])
    if family.tilts:
        old = state.D[block]
        # Variance that the month's covariance gives the predictor of a typical site, u^2 at its mean over sites.
        square = np.where(np.arange(n) == 0, 1.0, state.squares[..., None, free])
        before, after = ((np.einsum("...aa->...a", x) * square).sum(axis=-1) for x in (old, cov))
        share = share_of_step(before, after, known)[..., None, None]
        cov = np.where(share == 1.0, cov, old + share * (cov - old))
    D[block] = cov
    return T, D, known.sum(axis=-1), (step, part), ahead


def _length(step: F64) -> F64:
    out: F64 = np.sqrt((step**2).sum(axis=-1))
    return out


def _share(part: F64, back: Bool, grows: float, most: F64 | float = 1.0) -> F64:
    """Share of a full step that is taken next: half of the last one where the step turned ``back``, else it grows."""
    return np.where(
        back, np.maximum(0.5 * np.minimum(part, 1.0), LEAST_SHARE), np.minimum(grows * part, most)
    )


def _paced(old: MonthState, new: MonthState) -> MonthState:
    """Let 1 / size, ``tau`` and ``noise`` take a part of their steps, on the log scale, where they turn back.

    A flock that is most of what is known of its month moves the dispersion, which moves its weight, which moves the month:
    full steps go round in a circle for good. Steps that keep their direction become longer. The fixed point is the same.
    """
    before, after = _variances(old), _variances(new)
    both = (before > 0.0) & (after > 0.0)  # 1 / size may come to 0 or leave it
    step = np.log(np.divide(after, before, out=np.ones_like(after), where=both))
    last, part = np.moveaxis(new.strides, -2, 0)
    way, full = step * last, np.abs(step)
    # A fit that creeps: what has kept its direction for long goes by several steps at once, to ``FAR`` at most.
    late = (np.asarray(old.k) >= LATE) & (old.rank > 0)
    long = (way > 0.0) & (part >= 1.0) & late[..., None]
    part = _share(part, (way < 0.0) & (full > LEAST_TURN), VARIANCES_GROW, np.where(long, LONGEST, 1.0))
    reach = np.where(part > 1.0, np.maximum(full, FAR), full)
    step = np.clip(part * step, -reach, reach)
    size, tau, noise = np.split(
        np.where(both & (part != 1.0), before * np.exp(step), after), [1, 1 + old.p], axis=-1
    )
    series = new.series and tuple(
        evolve(one, noise=noise[..., column]) for one, column in zip(new.series, new.free, strict=True)
    )
    changed: dict[str, Any] = {"inverse_size": size[..., 0], "tau": tau, "noise": noise, "series": series}
    return evolve(new, **changed, strides=np.stack([step, part], axis=-2))


def _variances(state: MonthState) -> F64:
    return np.concatenate([np.asarray(state.inverse_size)[..., None], state.tau, state.noise], axis=-1)


def _prior_step(state: MonthState, ahead: F64, *, learn: bool) -> MonthState:
    """Re-estimate the months' prior means, and with ``learn`` their variances; ``ahead`` as in :func:`_newton`."""
    spread = np.einsum("...aa->...a", state.D)
    if state.series is None:
        if not learn:
            return state
        # No calendar, no series: EM's step for N(0, noise), the mean of mean^2 + variance.
        unit = np.asarray(state.unit)[..., None]  # of the effect; the factors' months have none
        least = SMALLEST * np.where(np.arange(state.p) == 0, unit, 1.0) ** 2
        return evolve(state, noise=np.maximum((state.T**2 + spread).mean(axis=-2), least))
    prior, T, noise, widths = state.prior.copy(), state.T.copy(), state.noise.copy(), state.widths
    series = []
    for column, (i, old) in enumerate(zip(state.free, state.series, strict=True)):
        jolt = None if state.jolt is None else state.jolt[..., i]
        one, prior[..., i], T[..., i] = evolve(old, noise=noise[..., i]).update(
            T[..., i],
            spread[..., i],
            prior[..., i],
            widths[..., column],
            ahead[..., column],
            learn=learn,
            jolt=jolt,
        )
        if i == 0:
            one = evolve(one, noise=np.minimum(one.noise, state.widest))
        noise[..., i] = one.noise
        series.append(one)
    return evolve(state, prior=prior, T=T, noise=noise, series=tuple(series))
