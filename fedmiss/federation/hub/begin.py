"""How a fit begins: its first state, that of a replicate, and the one with a factor more."""

from __future__ import annotations

import numpy as np

from fedmiss.arrays import F64
from fedmiss.federation.hub.coefficients import start_coefficients
from fedmiss.federation.hub.few import drawn_of_slopes
from fedmiss.federation.hub.priors import FEWEST_BIRDS, LEARNING_SD, LEFT_OUT, SLOPE_SD, SMALLEST
from fedmiss.federation.hub.season import LEAST_YEARS, SeriesPrior, line_of
from fedmiss.federation.hub.state import MonthState, Panel
from fedmiss.federation.hub.values import evolve
from fedmiss.models.lowrank.families import FAMILIES
from fedmiss.models.lowrank.settings import CountSettings

SLIGHT = 1e-4  # root mean square of u_k v_k, in units of the link, below which a factor has been switched off
START_CHAIN = np.array([0.5, 0.1, 0.1])  # presence at first, gained, lost; EM moves them
START_TAU = 0.25  # prior variance of the sites' coefficients of a new factor; EM moves it
KNOWN = 1e-8  # prior variance of sites' coefficients that are features, hence known
START_SLOPE = 0.02  # and of their slopes, for one standard deviation of the years
DISPERSED = 10.0  # times 1 / size by moments
WILD = 1.8  # standard deviation of months' noise: one month would be twelve times the next


def known_line(panel: Panel, settings: CountSettings) -> F64:
    """The line x (L,) on which sites have slopes of their own; empty where they have none, or the years are too few."""
    if panel.calendar is None or not (settings.season and settings.slopes):
        return np.zeros(0)
    year = panel.years
    return np.zeros(0) if np.unique(year).size <= LEAST_YEARS else line_of(year)


def responding(panel: Panel, settings: CountSettings) -> int:
    """Number of sites' features that every month responds to with a coefficient of its own."""
    return 0 if panel.features is None else panel.features.of(settings.responses).size


def most_rank(panel: Panel, settings: CountSettings) -> int:
    """The rank that a panel can bear: at most its sites, and one factor for every five months after the first two.

    Where months are no months but species (``season=False``), one for every two after the first: neighbours in time are
    alike, and a factor that follows noise is a smooth one there. None where too few sites stand behind most pairs of months.
    """
    if not panel.patterns:
        return 0
    bears = (panel.L - 2) // 5 if settings.season else (panel.L - 1) // 2
    return int(max(0, min(settings.rank, round(panel.J), bears)))


def first_state(panel: Panel, settings: CountSettings, sums: F64) -> MonthState:
    """Start at the overall mean; ``sums`` (4,): weights, weighted values, exposures, weighted squared values.

    Counts have their own scale (the link is a logarithm); values of a Gaussian have that of their standard deviation, and
    variances and the stopping rule start there.
    """
    weight, value, exposure, square = (float(v) for v in sums)
    family, L = FAMILIES[settings.family], panel.L
    # Equation predictor (guide, model page) with everything at 0 but mu, the link of the mean value: a score of 0 for mu.
    mu = family.link(max(value, FEWEST_BIRDS) / exposure if family.counts else value / exposure)
    x = known_line(panel, settings)
    slopes, known = x.size > 0, responding(panel, settings)
    p = 1 + slopes + known
    unit = family.unit(square / weight - (value / weight) ** 2)
    T = np.column_stack([np.zeros(L), *([x] if slopes else []), np.zeros((L, known))])
    # Prior variances of the coefficients (a_j, s_j, known features); factors come later, one by one.
    tau = unit * np.r_[1.0, [START_SLOPE] * slopes, [KNOWN] * known]
    state = MonthState(
        mu, T, np.zeros((L, p, p)), np.zeros((L, p)), np.full(p, unit), tau,
        kappa=np.zeros(panel.K + len(LEARNING_SD) * settings.learning), shift=np.zeros(p), squares=np.zeros(p),
        slopes=slopes, half=value / 2 if slopes and family.counts else 0.0, responses=known,
        inverse_size=settings.inverse_size or 0.0,
        chain=START_CHAIN if settings.occupancy else np.zeros(0),
        features=start_coefficients(panel, settings.features, unit, slopes=slopes), weight=weight,
        phi=unit,
        ridge=4.0 / unit, unit=float(np.sqrt(unit)), origin=mu, damping=unhindered(L, p - slopes), strides=full_strides(p),
    )  # fmt: skip
    if settings.season and panel.calendar is not None:
        state = evolve(state, series=(SeriesPrior.of(*panel.calendar, unit, effect=True),))
    return state


def learns_size(settings: CountSettings) -> bool:
    """Whether the size of the negative binomial is estimated."""
    return settings.dispersion == "negbin" and settings.inverse_size is None


def start_again(panel: Panel, settings: CountSettings, sums: F64) -> MonthState:
    """Start where counts scatter far more than those of all visits do: then sites and months take what is theirs only.

    Effects of observers are left out: they would take the flocks in the place of months.
    """
    weight, value, _, square = (float(v) for v in sums)
    mean = value / weight
    state = first_state(panel, settings, sums)
    state = evolve(state, ridge=LEFT_OUT / state.unit**2)
    if not learns_size(settings):
        return state
    scatter = (square / weight - mean - mean**2) / mean**2  # 1 / size by moments
    # Some would take the flocks again on the way to the end: a study of few months expected 30 times its birds.
    return evolve(state, inverse_size=DISPERSED * max(scatter, 1.0), widest=WILD**2)


def unhindered(L: int, n: int) -> tuple[F64, F64]:
    """Damping at the start: months have not moved, and take full steps."""
    return np.zeros((L, n)), np.ones(L)


def full_strides(p: int) -> F64:
    """Variances and dispersion of p coefficients at the start: they have not moved, and take full steps."""
    return np.repeat([[0.0], [1.0]], 1 + 2 * p, axis=1)


def start_replicate(full: MonthState, weight: float, rng: np.random.Generator | None) -> MonthState:
    """Start of a bootstrap replicate: the full fit with its variances (of slopes a draw), and prior means from the prior.

    Data are perturbed by the weights of observers, the prior by its means: the solution of the perturbed problem is a draw
    from the joint posterior of sites and months, with the noise of the data measured instead of modelled (perturb and solve:
    Papandreou and Yuille, NIPS 2010). It starts where each month by itself would go. Without ``rng`` prior means stay.
    """
    state = evolve(
        full,
        weight=weight,
        k=0,
        moves=np.full(3, np.inf),
        shift=np.zeros(full.p),
        common=np.zeros(2),
        refill=False,
        away=0,
    )
    if rng is None:
        return state
    free = full.free
    # Perturb: a draw z sqrt(width) of the months' prior means, and of the series' own.
    jolt = np.zeros_like(full.T)
    jolt[:, free] = np.sqrt(full.widths) * rng.standard_normal((len(full.T), free.size))
    move, series = jolt.copy(), full.series
    if series is not None:
        drawn = [one.perturbed(rng.standard_normal((one.B.shape[1],))) for one in series]
        series = tuple(one for one, _ in drawn)
        move[:, free] += np.stack([moved for _, moved in drawn], axis=1)
    # variances may have moved since the covariances were computed: a month answers by its whole move at most
    pull = np.zeros_like(move)
    pull[:, free] = move[:, free] / np.maximum(full.widths, np.einsum("naa->na", full.D)[:, free])
    features, tau = full.features.drawn(rng, full.unit), full.tau.copy()
    if full.slopes:
        least = SMALLEST * full.unit**2
        tau[1] = max(drawn_of_slopes(full.told, SLOPE_SD, full.unit, rng.random()), least)
    return evolve(
        state,
        tau=tau,
        # Solve, for each month alone: a coefficient answers to a prior mean m by C K m, C = D and K = 1 / width.
        T=full.T + np.einsum("nab,nb->na", full.D, pull),
        prior=full.prior + move,
        jolt=jolt,
        series=series,
        features=features,
    )


def switched_off(state: MonthState) -> bool:
    """Whether the last factor has been switched off: the next one stays at zero too."""
    return (
        state.rank > 0
        and float(state.squares[-1] * (state.T[:, -1] ** 2).mean()) <= (SLIGHT * state.unit) ** 2
    )


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
        (SMALLEST * state.unit**2, SMALLEST)
        if v is None
        else (START_TAU * state.unit**2, float((v**2).mean()) + 0.05)
    )
    column, prior, series = (np.zeros(L) if v is None else v), np.zeros(L), state.series
    if state.series is not None:
        # Equation month without its line: season, walk and noise share the variance, a third each.
        third = noise / 3
        assert panel.calendar is not None
        fresh = SeriesPrior.of(*panel.calendar, noise)
        _, prior, _ = fresh.update(column, np.full(L, third / 2), prior, np.full(L, third), learn=False)
        column, noise, series = prior, third, (*state.series, fresh)
    D = np.zeros((L, p + 1, p + 1))
    D[:, :p, :p] = state.D
    return evolve(
        state,
        T=np.column_stack([state.T, column]),
        D=D,
        prior=np.column_stack([state.prior, prior]),
        noise=np.r_[state.noise, noise],
        tau=np.r_[state.tau, tau],
        series=series,
        shift=np.r_[state.shift, 0.0],
        squares=np.r_[state.squares, 0.0],
        damping=unhindered(L, state.free.size + 1),
        strides=full_strides(p + 1),
        k=0,
        moves=np.full(3, np.inf),
        refill=False,
        converged=False,
    )
