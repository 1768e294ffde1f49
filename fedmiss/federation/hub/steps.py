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

from dataclasses import replace

import numpy as np

from fedmiss.arrays import F64
from fedmiss.federation.hub.dispersion import inverse_size_of, pearson_at
from fedmiss.federation.hub.features import feature_step, start_coefficients
from fedmiss.federation.hub.priors import (
    EFFORT_SD,
    FEWEST_BIRDS,
    LEARNING_SD,
    STRIDE,
    level_pull,
    share_of_step,
    shrunk_variances,
)
from fedmiss.federation.hub.season import LEAST_YEARS, SeriesPrior, line_of
from fedmiss.federation.hub.state import MonthState, Panel
from fedmiss.federation.triangle import from_triangle
from fedmiss.models.lowrank.families import FAMILIES, Family
from fedmiss.models.lowrank.settings import CountSettings

__all__ = [
    "STARTS",
    "Sums",
    "after_round",
    "first_state",
    "known_line",
    "most_rank",
    "responding",
    "start_replicate",
    "switched_off",
    "with_factor",
]

SMALLEST = 1e-4  # least prior variance
SLIGHT = 0.01  # root mean square of u_k v_k below which a factor has been switched off
STARTS = 2  # rounds in which a fit finds its place, before variances, effort, observers and dispersion move

Sums = dict[str, F64]  # sums over groups of the fields of ``Months``, of one fit


def known_line(panel: Panel, settings: CountSettings) -> F64:
    """The line x (L,) on which sites have slopes of their own; empty where they have none, or the years are too few."""
    calendar = panel.calendar if settings.season and settings.slopes else None
    few = calendar is None or np.unique(calendar[1]).size <= LEAST_YEARS
    return np.zeros(0) if calendar is None or few else line_of(calendar[1])


def responding(panel: Panel, settings: CountSettings) -> int:
    """Number of sites' features that every month responds to with a coefficient of its own."""
    return 0 if panel.features is None else panel.features.of(settings.responses).size


def most_rank(panel: Panel, settings: CountSettings) -> int:
    """The rank that a panel can bear: at most its sites, and one factor for every five months after the first two.

    Where months are no months but species (``season=False``), one for every two after the first: neighbours in time are
    alike, and a factor that follows noise is a smooth one there.
    """
    bears = (panel.L - 2) // 5 if settings.season else (panel.L - 1) // 2
    return int(max(0, min(settings.rank, round(panel.J), bears)))


def first_state(panel: Panel, settings: CountSettings, sums: F64) -> MonthState:
    """Start at the overall mean; ``sums`` (4,): weights, weighted values, exposures, weighted squared values.

    Counts have their own scale (the link is a logarithm); values of a Gaussian have that of their standard deviation, and
    variances and the stopping rule start there.
    """
    weight, value, exposure, square = (float(v) for v in sums)
    family, L = FAMILIES[settings.family], panel.L
    mu = family.link(max(value, FEWEST_BIRDS) / exposure if family.counts else value / exposure)
    x = known_line(panel, settings)
    slopes, known = x.size > 0, responding(panel, settings)
    p = 1 + slopes + known
    unit = family.unit(square / weight - (value / weight) ** 2)
    T = np.column_stack([np.zeros(L), *([x] if slopes else []), np.zeros((L, known))])
    tau = unit * np.r_[1.0, [START_SLOPE] * slopes, [KNOWN] * known]
    state = MonthState(
        mu, T, np.zeros((L, p, p)), np.zeros((L, p)), np.full(p, unit), tau,
        kappa=np.zeros(panel.K + settings.learning), shift=np.zeros(p), stretch=np.ones(p), squares=np.zeros(p),
        slopes=slopes, responses=known, inverse_size=settings.inverse_size or 0.0,
        chain=START_CHAIN if settings.occupancy else np.zeros(0),
        features=start_coefficients(panel, settings.features, unit, slopes=slopes), weight=weight,
        phi=unit,
        ridge=4.0 / unit, unit=float(np.sqrt(unit)), origin=mu,
    )  # fmt: skip
    if settings.season and panel.calendar is not None:
        state = replace(state, series=(SeriesPrior.of(*panel.calendar, unit, effect=True),))
    return state


def start_replicate(full: MonthState, weight: float, rng: np.random.Generator | None) -> MonthState:
    """Start of a bootstrap replicate: the full fit with its variances, and prior means drawn from the prior.

    Data are perturbed by the weights of observers, the prior by its means: the solution of the perturbed problem is a draw
    from the joint posterior of sites and months, with the noise of the data measured instead of modelled (perturb and solve:
    Papandreou and Yuille, NIPS 2010). It starts where each month by itself would go. Without ``rng`` prior means stay.
    """
    state = replace(
        full,
        weight=weight,
        k=0,
        moves=(np.inf,),
        shift=np.zeros(full.p),
        stretch=np.ones(full.p),
        refill=False,
        away=0,
    )
    if rng is None:
        return state
    free = full.free
    jolt = np.zeros_like(full.T)
    jolt[:, free] = np.sqrt(full.widths) * rng.standard_normal((len(full.T), free.size))
    move, series = jolt.copy(), full.series
    if series is not None:
        drawn = [s.jolted(rng.standard_normal((s.B.shape[1],))) for s in series]
        series = tuple(s for s, _ in drawn)
        move[:, free] += np.stack([m for _, m in drawn], axis=1)
    # variances may have moved since the covariances were computed: a month answers by its whole move at most
    pull = np.zeros_like(move)
    pull[:, free] = move[:, free] / np.maximum(full.widths, np.einsum("naa->na", full.D)[:, free])
    return replace(
        state,
        T=full.T + np.einsum("nab,nb->na", full.D, pull),
        prior=full.prior + move,
        jolt=jolt,
        series=series,
        features=full.features.drawn(rng),
    )


def switched_off(state: MonthState) -> bool:
    """Whether the last factor has been switched off: the next one stays at zero too."""
    return state.rank > 0 and float(state.squares[-1] * (state.T[:, -1] ** 2).mean()) <= SLIGHT**4


def with_factor(state: MonthState, v: F64 | None, panel: Panel) -> MonthState:
    """Give a fit one more factor: months start along ``v`` (L,), sites at zero; None starts it switched off.

    Factors enter one by one, and after each the whole posterior is fitted again ("greedy, then backfit": Wang and
    Stephens, JMLR 2021, "Empirical Bayes matrix factorization", section 3.3). Started together, weak factors share one
    signal, each is too weak for its prior, and all are switched off where one alone would have stayed. With a calendar
    the factor starts at its season and walk, without the month-by-month rest: the leading singular vector of noisy
    residuals is mostly noise.
    """
    L, p = state.T.shape
    tau, noise = (
        (SMALLEST, SMALLEST) if v is None else (START_TAU * state.unit**2, float((v**2).mean()) + 0.05)
    )
    column, prior, series = (np.zeros(L) if v is None else v), np.zeros(L), state.series
    if state.series is not None:
        third = noise / 3
        assert panel.calendar is not None
        fresh = SeriesPrior.of(*panel.calendar, noise)
        _, prior, _ = fresh.update(column, np.full(L, third / 2), prior, np.full(L, third), learn=False)
        column, noise, series = prior, third, (*state.series, fresh)
    D = np.zeros((L, p + 1, p + 1))
    D[:, :p, :p] = state.D
    return replace(
        state,
        T=np.column_stack([state.T, column]),
        D=D,
        prior=np.column_stack([state.prior, prior]),
        noise=np.r_[state.noise, noise],
        tau=np.r_[state.tau, tau],
        series=series,
        shift=np.zeros(p + 1),
        stretch=np.ones(p + 1),
        squares=np.r_[state.squares, 0.0],
        k=0,
        moves=(np.inf,),
        refill=False,
        converged=False,
    )


START_CHAIN = np.array([0.5, 0.1, 0.1])  # presence at first, gained, lost; EM moves them
START_TAU = 0.25  # prior variance of the sites' coefficients of a new factor; EM moves it
KNOWN = 1e-8  # prior variance of sites' coefficients that are features, hence known
START_SLOPE = 0.02  # and of their slopes, for one standard deviation of the years


def after_round(
    state: MonthState,
    sums: Sums,
    panel: Panel,
    settings: CountSettings,
    nodes: F64,
    *,
    learn: bool,
    tol: float,
) -> MonthState:
    """One round's M-step, given the sums over groups after the sites were solved.

    Parameters
    ----------
    sums : of ``messages.Months``: ``months`` (L, p (p + 3) / 2) of the free columns, ``sites`` (4 + 3 p,), ``effort``
        (K + K^2,), ``observers`` (3,), ``dispersion`` (m,)
    nodes : (m,) values of 1 / size at which ``dispersion`` was computed
    learn : re-estimate the prior variances (False: keep them, for replicates; prior means still follow)
    tol : the fit has converged when neither the cells' predictors nor the months moved by more than ``tol`` (root mean
        square) in three rounds in a row
    """
    p, k = state.p, state.k + 1
    state = replace(state, counted=sums["months"][:, state.free.size] > 0)
    sites = sums["sites"]
    edf_sites, J = float(sites[0]), max(float(sites[3]), 1.0)
    moved = float(np.sqrt(sites[1] / max(sites[2], 1e-300)))
    mean, squares, spread = sites[4 : 4 + p] / J, sites[4 + p : 4 + 2 * p] / J, sites[4 + 2 * p :] / J
    about, features = squares, state.features
    if sums["distances"].size:
        about = sums["distances"] / J  # tau is about the prior means that follow the features
        about[: features.B.shape[1]] += features.uncertainty(panel)
        features = feature_step(state, sums["features"], learn=learn) if k > STARTS or not learn else features
    tau = state.tau
    if learn and k > STARTS:
        tau = np.maximum(
            shrunk_variances(about, spread, state.tau, J, state.unit, slopes=state.slopes), SMALLEST
        )
        known = slice(1 + state.slopes, 1 + state.slopes + state.responses)
        tau[known] = state.tau[known]
    chain, weight = state.chain, state.weight
    if chain.size:
        moved = float(np.sqrt(moved**2 + sums["chain"][6] / max(sites[2], 1e-300)))
        chain, weight = chain_step(sums["chain"]) if learn else chain, float(sums["chain"][7])
    T, D, edf_months, damping = _newton(
        state, sums["months"], FAMILIES[settings.family], damped=settings.inverse_size is not None
    )
    # What all sites have in common belongs to the months: their mean effect, and their mean slope.
    shift = np.zeros(p)
    shift[: 1 + state.slopes] = mean[: 1 + state.slopes]
    line = shift[1] * state.T[:, 1] if state.slopes else np.zeros(panel.L)
    T[:, 0] += line
    level = float(T[:, 0].mean())
    pull = level_pull(state.mu, state.origin, _common_variance(state, J), state.unit)
    mu = state.mu + float(shift[0]) + level + pull
    before = state.T[:, 0]
    prior = state.prior.copy()
    T[:, 0] -= level
    prior[:, 0] += line - level
    new = replace(
        state, mu=mu, T=T, D=D, prior=prior, tau=tau, features=features, chain=chain, weight=weight,
        shift=shift, stretch=np.ones(p), squares=squares,
        edf=edf_sites + edf_months + features.edf + 1.0, k=k, rounds=state.rounds + 1, refill=False,
        damping=damping,
    )  # fmt: skip
    if k > STARTS or not learn:
        new = _prior_step(new, learn=learn)
    if k > STARTS and learn:
        new = _rescale(new)
    learns = learn and k > STARTS
    if learns:
        new = _visit_step(new, sums, nodes, panel, settings)
    elif settings.observers and not learn and k % 2 == 0:
        new = replace(new, refill=True)
    # Months without a visit move no cell: they are watched by themselves, and so are effort's coefficients.
    move = max(moved, float(np.sqrt(((new.T[:, 0] - before) ** 2).mean())))
    move = max(move, float(np.abs(new.kappa - state.kappa).max(initial=0.0))) / state.unit
    moves = (*state.moves[-2:], move)
    return replace(new, moves=moves, converged=bool(k > 5 and max(moves) < tol))


def chain_step(sums: F64) -> F64:
    """Probabilities of the sites' chain from its expected numbers, with a year's worth of one site as prior."""
    first, sites, occupied, lost, empty, gained = sums[:6]
    return np.array(
        [(first + 0.5) / (sites + 1.0), (gained + 1.0) / (empty + 50.0), (lost + 0.05) / (occupied + 1.0)]
    )


def _common_variance(state: MonthState, J: float) -> float:
    """Prior variance of what all sites, and all months, have in common."""
    common = float(state.tau[0] / J + state.noise[0] / len(state.T))
    if state.series is not None and state.series[0].sizes[1]:
        common += state.series[0].season / state.series[0].sizes[1]
    return common


def effort_turn(panel: Panel, settings: CountSettings, k: int) -> bool:
    """Whether the update after round ``k`` is effort's: with observer effects they take turns, else they undo each other."""
    return panel.K + settings.learning > 0 and (not settings.observers or k % 2 == 1)


def observer_turn(panel: Panel, settings: CountSettings, k: int) -> bool:
    """Whether the update after round ``k`` is the observers'."""
    return settings.observers and (panel.K + settings.learning == 0 or k % 2 == 0)


def _newton(
    state: MonthState, sums: F64, family: Family, *, damped: bool
) -> tuple[F64, F64, float, tuple[F64, F64]]:
    """One Newton step of every month; means, covariances, effective degrees of freedom, steps and their damping.

    The curvature is the expected one of the negative binomial. Where a month (a species, in a community) holds a count far
    above its mean the true one is larger, and with a size that is held full steps swing for good. ``damped``: a month whose
    step turns back takes half of it, and more again when not.
    """
    free = state.free
    n, width = free.size, state.widths
    g, H = sums[:, :n], from_triangle(sums[:, n:], n) / state.phi
    A = H.copy()
    A[:, np.arange(n), np.arange(n)] += 1.0 / width
    cov: F64 = np.asarray(np.linalg.inv(A), dtype=float)
    step = np.einsum("nab,nb->na", cov, g / state.phi - (state.T - state.prior)[:, free] / width)
    step *= np.minimum(1.0, family.reach / np.maximum(np.abs(step).max(axis=1), 1e-12))[:, None]
    last, part = state.damping
    if damped and last.shape == step.shape:
        back = (step * last).sum(axis=1) < 0
        part = np.where(back, np.maximum(0.5 * part, 0.05), np.minimum(1.2 * part, 1.0))
        step *= part[:, None]
    else:
        part = np.ones(len(step))
    T, D = state.T.copy(), np.zeros_like(state.D)
    T[:, free] += step
    known = np.einsum("nab,nba->n", cov, H)
    if family.tilts:
        old = state.D[:, free[:, None], free[None, :]]
        square = np.where(np.arange(n) == 0, 1.0, state.squares[free])
        share = share_of_step(np.einsum("naa,a->n", old, square), np.einsum("naa,a->n", cov, square), known)
        cov = np.where(share[:, None, None] == 1.0, cov, old + share[:, None, None] * (cov - old))
    D[:, free[:, None], free[None, :]] = cov
    return T, D, float(known.sum()), (step, part)


def _prior_step(state: MonthState, *, learn: bool) -> MonthState:
    """Re-estimate the months' prior means, and with ``learn`` their variances."""
    spread = np.einsum("naa->na", state.D)
    if state.series is None:
        if not learn:
            return state
        return replace(state, noise=np.maximum((state.T**2 + spread).mean(axis=0), SMALLEST))
    prior, T, noise = state.prior.copy(), state.T.copy(), state.noise.copy()
    series = []
    for i, s, width in zip(state.free, state.series, state.widths.T, strict=True):
        jolt = None if state.jolt is None else state.jolt[:, i]
        one, prior[:, i], T[:, i] = replace(s, noise=float(noise[i])).update(
            T[:, i], spread[:, i], prior[:, i], width, learn=learn, jolt=jolt
        )
        noise[i] = one.noise
        series.append(one)
    return replace(state, prior=prior, T=T, noise=noise, series=tuple(series))


def _rescale(state: MonthState) -> MonthState:
    """Give every factor column the same prior variance on both sides; U V' does not change."""
    p, first = state.p, state.p - state.rank
    if not state.rank:
        return state
    c = np.ones(p)
    total = (state.T**2 + np.einsum("naa->na", state.D)).mean(axis=0)
    c[first:] = np.clip((np.maximum(total, 1e-8) / np.maximum(state.tau, 1e-8)) ** 0.25, 0.2, 5.0)[first:]
    series = state.series
    if series is not None:
        series = tuple(s.scaled(ci) for s, ci in zip(series, c[state.free], strict=True))
    return replace(
        state,
        T=state.T / c,
        D=state.D / (c[:, None] * c[None, :]),
        prior=state.prior / c,
        noise=state.noise / c**2,
        tau=state.tau * c**2,
        stretch=c,
        squares=state.squares * c**2,
        series=series,
    )


def _visit_step(
    state: MonthState, sums: Sums, nodes: F64, panel: Panel, settings: CountSettings
) -> MonthState:
    """Effort coefficients (one damped Newton step), observers' variance (EM) and dispersion (moment equation)."""
    family = FAMILIES[settings.family]
    K = state.kappa.size
    kappa, ridge, used = state.kappa, state.ridge, state.edf_observers
    if effort_turn(panel, settings, state.k):
        sd = np.where(np.arange(K) < panel.K, EFFORT_SD, LEARNING_SD)
        weak = state.phi / (sd * state.unit) ** 2
        H = sums["effort"][K:].reshape(K, K) + np.diag(weak)
        step = np.linalg.solve(H, sums["effort"][:K] - weak * kappa)
        kappa = kappa + np.clip(step, -family.effort_cap, family.effort_cap)
    if observer_turn(panel, settings, state.k):
        squares, number, used = (float(v) for v in sums["observers"])
        # MacKay's fixed point, sum o^2 / sum (1 - C / var): that of EM, in a third of its rounds where observers are alike
        effects = max(squares - (number - used) / ridge, 0.0)
        ridge = float(
            np.clip(max(used, 1e-12) / max(effects, 1e-4 * used, 1e-12), ridge / STRIDE, ridge * STRIDE)
        )
    edf_visits = K + used
    free = max(state.weight - state.edf - edf_visits, 0.2 * state.weight)
    inverse_size, phi = state.inverse_size, state.phi
    held = (
        settings.inverse_size is not None
    )  # then phi is 1: the Pearson ratio of a size too large is few cells' doing
    if settings.dispersion == "negbin" and not held:
        inverse_size = inverse_size_of(nodes, sums["dispersion"] / free, state.inverse_size)
    if settings.dispersion != "none" and family.dispersed and not held:
        phi = max(pearson_at(nodes, sums["dispersion"], inverse_size) / free, family.least_phi)
    return replace(
        state, kappa=kappa, ridge=ridge, edf_observers=used, inverse_size=inverse_size, phi=phi, refill=True
    )
