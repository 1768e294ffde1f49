"""The hub's half of variational EM: pure steps from one state and the groups' sums to the next state.

Site coefficients p_j = (a_j, u_j) ~ N(0, diag(tau)) and month coefficients t_l = (b_l, v_l) ~ N(f_l, noise), with f a
seasonal and smooth series (:mod:`.season`), are latent. Their posteriors are taken Gaussian and independent. The expected
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
from fedmiss.federation.hub.season import SeriesPrior
from fedmiss.federation.hub.state import MonthState, Panel
from fedmiss.federation.triangle import from_triangle
from fedmiss.models.lowrank.families import FAMILIES, GAUSSIAN
from fedmiss.models.lowrank.settings import CountSettings

__all__ = [
    "LEARN_EVERY",
    "Sums",
    "after_round",
    "first_state",
    "start_replicate",
    "switched_off",
    "with_factor",
]

SMALLEST = 1e-4  # least prior variance
SLIGHT = 0.01  # root mean square of u_k v_k below which a factor has been switched off
LEARN_EVERY = 3  # rounds between two updates of effort, observers and dispersion

Sums = dict[str, F64]  # sums over groups of the fields of ``Months``, of one fit


def first_state(panel: Panel, settings: CountSettings, sums: F64) -> MonthState:
    """Start at the overall mean; ``sums`` (4,): weights, weighted values, exposures, weighted squared values.

    Counts have their own scale (the link is a logarithm); values of a Gaussian have that of their standard deviation, and
    variances and the stopping rule start there.
    """
    weight, value, exposure, square = (float(v) for v in sums)
    family, L = FAMILIES[settings.family], panel.L
    mu = family.link(value / exposure)
    unit = max(square / weight - (value / weight) ** 2, 1e-12) if family is GAUSSIAN else 1.0
    state = MonthState(
        mu, np.zeros((L, 1)), np.zeros((L, 1, 1)), np.zeros((L, 1)), np.full(1, unit), np.full(1, unit),
        kappa=np.zeros(panel.K), stretch=np.ones(1), squares=np.zeros(1), weight=weight,
        phi=unit if family is GAUSSIAN else 1.0,
        ridge=4.0 / unit, unit=float(np.sqrt(unit)),
    )  # fmt: skip
    if settings.season and panel.calendar is not None:
        state = replace(state, series=(SeriesPrior.of(*panel.calendar, unit),))
    return state


def start_replicate(full: MonthState, weight: float) -> MonthState:
    """Start of a bootstrap replicate: the full fit, with its variances."""
    return replace(
        full, weight=weight, k=0, moves=(np.inf,), shift=0.0, stretch=np.ones(full.p), refill=False
    )


def switched_off(state: MonthState) -> bool:
    """Whether the last factor has been switched off: the next one stays at zero too."""
    return state.p > 1 and float(state.squares[-1] * (state.T[:, -1] ** 2).mean()) <= SLIGHT**4


def with_factor(state: MonthState, v: F64 | None) -> MonthState:
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
        fresh = replace(state.series[0], season=third, step=third, noise=third, cov=np.zeros((0, 0)))
        _, prior, _ = fresh.update(column, np.full(L, third / 2), prior, learn=False)
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
        shift=0.0,
        stretch=np.ones(p + 1),
        squares=np.r_[state.squares, 0.0],
        k=0,
        moves=(np.inf,),
        refill=False,
        converged=False,
    )


START_TAU = 0.25  # prior variance of the sites' coefficients of a new factor; EM moves it


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
    sums : of ``messages.Months``: ``months`` (L, p (p + 3) / 2), ``sites`` (4 + 2 p,), ``effort`` (K + K^2,),
        ``observers`` (3,), ``dispersion`` (m,)
    nodes : (m,) values of 1 / size at which ``dispersion`` was computed
    learn : re-estimate the prior variances (False: keep them, for replicates; prior means still follow)
    tol : the fit has converged when neither the cells' predictors nor the months moved by more than ``tol`` (root mean
        square) in three rounds in a row (effort, observers and dispersion are updated every third round)
    """
    p, k = state.p, state.k + 1
    sites, J = sums["sites"], panel.J
    mean_effect, edf_sites = sites[0] / J, float(sites[1])
    moved = float(np.sqrt(sites[2] / max(sites[3], 1e-300)))
    squares = sites[4 : 4 + p] / J
    tau = np.maximum(squares + sites[4 + p :] / J, SMALLEST) if learn and k > 2 else state.tau
    T, D, edf_months = _newton(state, sums["months"], FAMILIES[settings.family].reach)
    shift = float(T[:, 0].mean())
    mu = state.mu + float(mean_effect) + shift
    before = state.T[:, 0]
    prior = state.prior.copy()
    T[:, 0] -= shift
    prior[:, 0] -= shift
    new = replace(
        state, mu=mu, T=T, D=D, prior=prior, tau=tau, shift=float(mean_effect), stretch=np.ones(p), squares=squares,
        edf=edf_sites + edf_months + 1.0, k=k, rounds=state.rounds + 1, refill=False,
    )  # fmt: skip
    if k > 2 or not learn:
        new = _prior_step(new, learn=learn)
    if k > 2 and learn:
        new = _rescale(new)
    learns = learn and k % LEARN_EVERY == 0
    if learns:
        new = _visit_step(new, sums, nodes, panel, settings)
    elif settings.observers and not learn and k % 2 == 0:
        new = replace(new, refill=True)
    # Months without a visit move no cell: they are watched by themselves, and so are effort's coefficients.
    move = max(moved, float(np.sqrt(((new.T[:, 0] - before) ** 2).mean())))
    move = max(move, float(np.abs(new.kappa - state.kappa).max(initial=0.0))) / state.unit
    both = bool(panel.K) and settings.observers  # take turns: a full turn is twice as long
    moves = (*state.moves[-(5 if both else 2) :], move)
    return replace(new, moves=moves, converged=bool(k > 5 and max(moves) < tol))


def effort_turn(panel: Panel, settings: CountSettings, k: int) -> bool:
    """Whether the update after round ``k`` is effort's: with observer effects they take turns, else they undo each other."""
    return panel.K > 0 and (not settings.observers or k // LEARN_EVERY % 2 == 1)


def observer_turn(panel: Panel, settings: CountSettings, k: int) -> bool:
    """Whether the update after round ``k`` is the observers'."""
    return settings.observers and (panel.K == 0 or k // LEARN_EVERY % 2 == 0)


def _newton(state: MonthState, sums: F64, reach: float) -> tuple[F64, F64, float]:
    """One damped Newton step of every month; means, covariances and effective degrees of freedom."""
    p = state.p
    g, H = sums[:, :p], from_triangle(sums[:, p:], p) / state.phi
    A = H.copy()
    A[:, np.arange(p), np.arange(p)] += 1.0 / state.noise
    cov: F64 = np.asarray(np.linalg.inv(A), dtype=float)
    step = np.einsum("nab,nb->na", cov, g / state.phi - (state.T - state.prior) / state.noise)
    step *= np.minimum(1.0, reach / np.maximum(np.abs(step).max(axis=1), 1e-12))[:, None]
    return state.T + step, cov, float(np.einsum("nab,nba->", cov, H))


def _prior_step(state: MonthState, *, learn: bool) -> MonthState:
    """Re-estimate the months' prior means, and with ``learn`` their variances."""
    spread = np.einsum("naa->na", state.D)
    if state.series is None:
        if not learn:
            return state
        return replace(state, noise=np.maximum((state.T**2 + spread).mean(axis=0), SMALLEST))
    prior, T, noise = state.prior.copy(), state.T.copy(), state.noise.copy()
    series = []
    for i, s in enumerate(state.series):
        one, prior[:, i], T[:, i] = replace(s, noise=float(noise[i])).update(
            T[:, i], spread[:, i], prior[:, i], learn=learn
        )
        noise[i] = one.noise
        series.append(one)
    return replace(state, prior=prior, T=T, noise=noise, series=tuple(series))


def _rescale(state: MonthState) -> MonthState:
    """Give every factor column the same prior variance on both sides; U V' does not change."""
    p = state.p
    if p == 1:
        return state
    c = np.ones(p)
    total = (state.T**2 + np.einsum("naa->na", state.D)).mean(axis=0)
    c[1:] = np.clip((np.maximum(total[1:], 1e-8) / np.maximum(state.tau[1:], 1e-8)) ** 0.25, 0.2, 5.0)
    series = state.series
    if series is not None:
        series = tuple(
            replace(s, season=s.season / ci**2, step=s.step / ci**2) for s, ci in zip(series, c, strict=True)
        )
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
        weak = state.phi * 0.1  # a weak ridge: sd about 3 on the log scale
        H = sums["effort"][K:].reshape(K, K) + weak * np.eye(K)
        step = np.linalg.solve(H, sums["effort"][:K] - weak * kappa)
        kappa = kappa + np.clip(step, -family.effort_cap, family.effort_cap)
    if observer_turn(panel, settings, state.k):
        squares, number, used = (float(v) for v in sums["observers"])
        ridge = 1.0 / max(squares / max(number, 1.0), 1e-4)
    edf_visits = K + used
    free = max(state.weight - state.edf - edf_visits, 0.2 * state.weight)
    inverse_size, phi = state.inverse_size, state.phi
    if settings.dispersion == "negbin":
        inverse_size = inverse_size_of(nodes, sums["dispersion"] / free, state.inverse_size)
    if settings.dispersion != "none" and family.dispersed:
        phi = max(pearson_at(nodes, sums["dispersion"], inverse_size) / free, family.least_phi)
    return replace(
        state,
        kappa=kappa,
        ridge=ridge,
        edf_observers=used,
        inverse_size=inverse_size,
        phi=phi,
        refill=True,
    )
