"""Panels with known truth: site and season effects, low-rank interactions, and visits that may prefer birds.

The expected count of site j in month l at standard effort (one hour, observer effect 0) is

    mean_jl = link^-1(eta_jl),    eta_jl = mu + a_j + b_l + u_j . v_l

and a visit of observer i with effort e (in hours) has the expectation
link^-1(eta_jl + o_i + effort_slope log e). The first columns of V are a linear trend and the two halves of
an annual cycle (each site has its own trend and its own season), any further one is a smooth random curve;
columns have mean 0 and mean square 1 over the months. Site effects are shuffled normal quantiles rather than
free normal draws, so that the overall mean hardly changes from seed to seed and figures can be averaged.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from scipy.special import expit, ndtri

from fedmiss.arrays import F64, I32, I64, Bool
from fedmiss.errors import ConfigError
from fedmiss.rng import rng_for
from fedmiss.settings import kinds_checked

FAMILIES = ("poisson", "negbin", "gaussian", "bernoulli")


@dataclass(frozen=True, slots=True)
class PanelKind:
    """The strengths of a panel's effects, all on the log scale.

    Attributes
    ----------
    mu : level
    site_sd : standard deviation of the site effects a_j
    season_sd : root mean square of the annual cycle in b_l
    trend : slope of b_l per year, common to all sites
    interaction_sd : standard deviation of u_j . v_l
    prefer_interaction, prefer_main : log odds ratio of a visit per unit of u_j.v_l and of a_j + b_l;
        above 0 the cells with many birds are visited more
    """

    mu: float
    site_sd: float
    season_sd: float
    trend: float
    interaction_sd: float
    prefer_interaction: float = 0.0
    prefer_main: float = 0.0


KINDS = {
    "random": PanelKind(1.76, 1.0, 0.5, 0.03, 0.57),
    "preferential": PanelKind(1.37, 1.0, 0.5, 0.03, 0.67, 1.45, 0.5),
    "weak": PanelKind(1.06, 0.8, 0.5, 0.03, 0.215),
}


@dataclass(frozen=True, slots=True, eq=False)
class Panel:
    """A simulated panel: n visits on J sites x L months, its truth, and cells held out to score a fit.

    Attributes
    ----------
    kind, family, seed : what was asked for
    shape : (J, L)
    mu, a, b, U, V : scalar, (J,), (L,), (J, r), (L, r): the truth on the link scale
    observer_effect : (I,) link scale; group_of_observer : (I,) int32, 0 .. groups-1
    effort_slope : change of eta per unit of log(effort)
    size : negative-binomial size k (variance = m + m^2 / k); infinite for the other families
    site_index, month_index, observer : (n,) int32
    effort : (n,) hours, 1 is the standard
    y : (n,) counts (Poisson, negbin), values (Gaussian, noise sd 1) or 0/1 (Bernoulli)
    test_site, test_month : (t,) int32 cells that no visit of the panel has seen
    test_visited : (t,) True for a cell drawn by the same rule as the visits and then held out,
        False for one drawn evenly from the cells that the rule left unvisited. All True unless
        the kind is ``preferential``
    y_test : (t,) one fresh draw per test cell, at standard effort, observer effect 0
    """

    kind: str
    family: str
    seed: int
    shape: tuple[int, int]
    mu: float
    a: F64
    b: F64
    U: F64
    V: F64
    observer_effect: F64
    group_of_observer: I32
    effort_slope: float
    size: float
    site_index: I32
    month_index: I32
    observer: I32
    effort: F64
    y: F64
    test_site: I32
    test_month: I32
    test_visited: Bool
    y_test: F64

    @property
    def group(self) -> I32:
        """(n,) group of each visit, 0 .. groups-1."""
        return self.group_of_observer[self.observer]

    @property
    def expected(self) -> F64:
        """(J, L) true expectation of every cell at standard effort (dense: 8 J L bytes)."""
        return _mean(self.mu + self.a[:, None] + self.b + self.U @ self.V.T, self.family)

    @property
    def totals(self) -> F64:
        """(L,) true total over sites per month, at standard effort."""
        return np.asarray(self.expected.sum(axis=0))

    def expected_at(self, sites: I32, months: I32) -> F64:
        """Return the true expectation of the cells named, at standard effort, without the dense matrix."""
        return _mean(_eta(self, sites, months), self.family)


@kinds_checked
def simulate_panel(
    sites: int = 1000,
    months: int = 200,
    observed: float = 0.1,
    kind: str = "random",
    family: str = "poisson",
    *,
    rank: int = 2,
    seed: int = 0,
    observers: int = 100,
    groups: int = 10,
    visits: int | None = None,
    observer_sd: float = 0.0,
    effort_sd: float = 0.0,
    effort_slope: float = 1.0,
    size: float = 2.0,
    test_cells: int = 200_000,
) -> Panel:
    """Simulate a panel of visits with known truth.

    The defaults are the setting on which the accuracy of imputation methods is compared: 1,000 sites,
    200 months, 10 % of the cells seen once, Poisson counts, rank-2 interactions.

    Parameters
    ----------
    sites, months : J and L
    observed : share of the J x L cells that have a visit, in (0, 1]; every site and month keeps at least one
        while there are enough visits for that
    kind : ``random`` (cells visited evenly), ``preferential`` (cells with many birds are visited more, so a
        plain model overestimates the others), ``weak`` (small interactions); see :data:`KINDS`
    family : ``poisson``, ``negbin`` (size ``size``), ``gaussian`` (noise sd 1 around eta), ``bernoulli``
        (logit link, level lowered to about one third of detections)
    rank : columns of U and V; 0 gives site + month effects only
    observers : number of observers; their shares of the visits are heavy-tailed
    groups : observers are dealt evenly to that many groups
    visits : total number of visits; the ones beyond one per observed cell are spread evenly over those cells.
        Default: one per observed cell
    observer_sd : standard deviation of the observer effects (link scale)
    effort_sd : standard deviation of log effort; 0 makes every visit one hour
    effort_slope : effect of log effort on eta
    test_cells : most held-out cells to draw (half of them never visited when ``preferential``)

    Raises
    ------
    ConfigError   unknown kind or family, a number out of its range, more visits asked than cells allow

    Examples
    --------
    >>> import fedmiss
    >>> p = fedmiss.simulate_panel(50, 24, 0.3, seed=1)
    >>> p.y.size, p.expected.shape
    (360, (50, 24))
    """
    # Fifteen parameters, because they are documented API.
    for name, spread in (("observer_sd", observer_sd), ("effort_sd", effort_sd)):
        if not 0 <= spread <= 3:
            raise ConfigError(f"{name} is {spread} (must be 0 to 3, on the log scale).")
    if seed < 0:
        raise ConfigError(f"the seed is {seed} (must be 0 or more).")
    for word, value, known in (("panel kind", kind, tuple(KINDS)), ("family", family, FAMILIES)):
        if value not in known:
            raise ConfigError(f"there is no {word} {value!r}; choose one of {', '.join(known)}.")
    for name, number, least in (
        ("sites", sites, 2), ("months", months, 2), ("observers", observers, 1), ("groups", groups, 1), ("rank", rank, 0),
        ("test_cells", test_cells, 0), ("visits", visits or 0, 0),
    ):  # fmt: skip
        if not least <= number < 1 << 31:
            raise ConfigError(f"{name} is {number} (must be {least} to 2^31 - 1).")
    n = round(observed * sites * months) if 0 < observed <= 1 else 1
    for wrong, said in (
        (
            rank > min(sites, months) - 1,
            f"rank is {rank} (must be below both sites, {sites}, and months, {months}).",
        ),
        (not 0 < observed <= 1, f"observed is {observed} (must be a share above 0 and at most 1)."),
        (not size > 0, f"size is {size} (the negative-binomial size must be above 0)."),
        (n < 1, f"observed is {observed}: not one of {sites * months} cells; ask for more."),
        (
            visits is not None and visits < n,
            f"visits is {visits}, but {n} cells are observed (observed={observed}); lower observed.",
        ),
        (
            groups > observers,
            f"groups is {groups}, more than the {observers} observers; ask for fewer groups.",
        ),
    ):
        if wrong:
            raise ConfigError(said)
    spec = KINDS[kind]
    mu, a, b, U, V = _truth(seed, spec, sites, months, rank, family)
    cells, test, visited = _choose_cells(seed, spec, a, b, U, V, observed, test_cells)

    rng = rng_for(seed, "panel", "visits")
    if visits is not None:
        cells = np.concatenate([cells, cells[rng.integers(0, cells.size, visits - cells.size)]])
    # A stream of its own for each purpose: one more observer leaves cells and effects as they were.
    weights = rng_for(seed, "panel", "observers").lognormal(0.0, 1.5, observers)
    share = np.cumsum(weights) / weights.sum()
    observer = np.minimum(np.searchsorted(share, rng.random(cells.size)), observers - 1).astype(np.int32)
    effort = np.exp(effort_sd * rng.standard_normal(cells.size)) if effort_sd else np.ones(cells.size)
    effects = observer_sd * normal_scores(rng_for(seed, "panel", "observer effects"), observers)
    dealt = rng_for(seed, "panel", "groups").permutation(observers) % groups

    panel = Panel(
        kind=kind, family=family, seed=seed, shape=(sites, months), mu=mu, a=a, b=b, U=U, V=V,
        observer_effect=effects, group_of_observer=dealt.astype(np.int32), effort_slope=effort_slope,
        size=size if family == "negbin" else np.inf, site_index=(cells // months).astype(np.int32),
        month_index=(cells % months).astype(np.int32), observer=observer, effort=effort, y=np.empty(0),
        test_site=(test // months).astype(np.int32), test_month=(test % months).astype(np.int32),
        test_visited=visited, y_test=np.empty(0),
    )  # fmt: skip
    return _counted(panel)


def _counted(panel: Panel) -> Panel:
    """Draw the counts of the visits and of the held-out cells."""
    eta = _eta(panel, panel.site_index, panel.month_index) + panel.observer_effect[panel.observer]
    eta += panel.effort_slope * np.log(panel.effort)
    fresh = panel.expected_at(panel.test_site, panel.test_month)
    return replace(
        panel,
        y=_draw(rng_for(panel.seed, "panel", "y"), _mean(eta, panel.family), panel.family, panel.size),
        y_test=_draw(rng_for(panel.seed, "panel", "y test"), fresh, panel.family, panel.size),
    )


def normal_scores(rng: np.random.Generator, n: int) -> F64:
    """Return n normal quantiles in random order, mean 0 and standard deviation 1 exactly."""
    # Quantiles instead of draws: the spread of the effects is the asked one, in a small world too.
    z = ndtri((np.arange(n) + 0.5) / n)
    return np.asarray(rng.permutation(z / z.std()) if n > 1 else np.zeros(1))


def month_basis(seed: int, months: int, rank: int) -> F64:
    """Return V, (months, rank): trend, the two halves of the annual cycle, then smooth random curves."""
    t = np.arange(months, dtype=np.float64)
    angle = 2 * np.pi * t / 12
    columns = [t, np.sin(angle), np.cos(angle)][:rank]
    for factor in range(3, rank):
        steps = rng_for(seed, "month basis", factor).standard_normal(months)
        columns.append(np.convolve(np.cumsum(steps), np.ones(6) / 6, mode="same"))
    V = np.stack(columns, axis=1) if columns else np.empty((months, 0))
    # Columns of mean 0 and mean square 1: the level is b's, and the size of the interaction is U's.
    V -= V.mean(axis=0)
    spread = np.sqrt((V**2).mean(axis=0))
    return np.asarray(V / np.where(spread > 1e-9, spread, 1.0))


def _truth(
    seed: int, spec: PanelKind, sites: int, months: int, rank: int, family: str
) -> tuple[float, F64, F64, F64, F64]:
    rng = rng_for(seed, "panel", "truth")
    t = np.arange(months)
    a = spec.site_sd * normal_scores(rng, sites)
    b = spec.season_sd * np.sqrt(2) * np.cos(2 * np.pi * t / 12) + spec.trend * (t - t.mean()) / 12
    b += 0.1 * normal_scores(rng, months)
    V = month_basis(seed, months, rank)
    scale = spec.interaction_sd / np.sqrt(max(rank, 1))
    U = np.empty((sites, rank))
    for factor in range(rank):
        U[:, factor] = scale * normal_scores(rng, sites)
    return (-1.0 if family == "bernoulli" else spec.mu), a, b - b.mean(), U, V


def _choose_cells(
    seed: int, spec: PanelKind, a: F64, b: F64, U: F64, V: F64, observed: float, test_cells: int
) -> tuple[I64, I64, Bool]:
    """Draw cells without replacement with weights exp(preference): the Gumbel trick, one sort for all.

    Returns
    -------
    cells : flat indices of the observed cells; test : of the held-out ones; visited : (test,) bool
    """
    J, L = a.size, b.size
    rng = rng_for(seed, "panel", "cells")
    # The n largest of log weight + Gumbel noise are a sample without replacement with those weights.
    key = rng.gumbel(size=(J, L))
    prefers = spec.prefer_interaction > 0 or spec.prefer_main > 0
    if prefers:
        key += spec.prefer_interaction * (U @ V.T) + spec.prefer_main * (a[:, None] + b)
    n = round(observed * J * L)
    forced = np.zeros((J, L), dtype=bool)
    if n >= J + L:  # no site and no month without any visit
        forced[np.arange(J), key.argmax(axis=1)] = True
        forced[key.argmax(axis=0), np.arange(L)] = True
        # The best cell of every site and month comes first, whatever its key.
        key[forced] = np.inf
    # Held-out cells of preferential panels: half drawn as visits are, half never visited, so that both errors can be seen.
    half = min(test_cells // 2, n, (J * L - n) // 2)
    drawn = n + (half if prefers else 0)
    chosen = np.argpartition(-key.ravel(), drawn - 1)[:drawn]
    rng.shuffle(chosen)
    # Only cells that were drawn, not forced, may be held out: the others come first and stay in the panel.
    chosen = chosen[np.argsort(~forced.ravel()[chosen], kind="stable")]
    cells, seen = chosen[:n], chosen[n:]
    free = np.ones(J * L, dtype=bool)
    free[chosen] = False
    never = np.flatnonzero(free)
    wanted = min(half if prefers else test_cells, never.size)
    if wanted < never.size:
        never = never[np.sort(rng.choice(never.size, wanted, replace=False))]
    test = np.concatenate([seen, never])
    return rng.permutation(cells), test, np.arange(test.size) < (seen.size if prefers else test.size)


def _eta(panel: Panel, sites: I32, months: I32) -> F64:
    eta = panel.mu + panel.a[sites] + panel.b[months]
    for factor in range(panel.U.shape[1]):
        eta += panel.U[:, factor][sites] * panel.V[:, factor][months]
    return np.asarray(eta)


def _mean(eta: F64, family: str) -> F64:
    if family == "gaussian":
        return eta
    return np.asarray(expit(eta) if family == "bernoulli" else np.exp(eta))


def _draw(rng: np.random.Generator, mean: F64, family: str, size: float) -> F64:
    if family == "poisson":
        return rng.poisson(mean).astype(np.float64)
    if family == "negbin":
        # A gamma factor of mean 1 and variance 1/size: variance mu + mu^2 / size.
        return rng.poisson(mean * rng.gamma(size, 1 / size, mean.size)).astype(np.float64)
    if family == "bernoulli":
        return (rng.random(mean.size) < mean).astype(np.float64)
    return np.asarray(mean + rng.standard_normal(mean.size))
