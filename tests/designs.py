"""Panels with biased visits: known totals, and designs under which the trends of real schemes are wrong.

The expected count of site j in month l of year t at standard effort is exp(mu + a_j + s_j (t - mean t) + season_l + r_jt),
with site effects a_j, site slopes s_j around the common ``trend``, and site-years r_jt that follow an AR(1). A visit of
observer i with known effort e (hours) has that mean times e^0.7 exp(o_i), and a negative binomial count.

========  =============================================================================================
plain     random visits, one slope for all sites, no site-years, observers alike, effort constant
random    site slopes, site-years, observers with Pareto effort who drop in over time, effort +7 % a year,
          a third of the sites starts late, a third is given up at a random time
preferred ``random`` with visits in proportion to exp(0.8 a_j)
abandoned ``preferred``, and declining sites are given up first
learning  ``random`` with new observers who find 35 % fewer birds at first and learn over some 60 visits
handover  ``random`` with one observer for each site, who hands it to another one at a random time
turnover  ``random`` with four new observers every year, who count for that year only
skilled   ``random`` with observers who stay for four years and find 4 % more for each year that they began later
arrivals  ``random``; six of ten sites have no birds until a random year, and are visited from that year on
losses    ``random``; four of ten sites lose their birds in a random year, and are visited to the end of that year
renewed   ``random``; the poorer sites are given up at a random time, the better ones start at a random time
colonised the sites of ``arrivals``, visited in all years
vacated   the sites of ``losses``, visited in all years
========  =============================================================================================
"""

from dataclasses import dataclass

import numpy as np

from fedmiss.arrays import F64, I32, Bool
from fedmiss.errors import ConfigError
from fedmiss.rng import rng_for

__all__ = ["DESIGNS", "TrendPanel", "simulate_design"]

DESIGNS = (
    "plain", "random", "preferred", "abandoned", "learning", "handover", "turnover", "skilled", "arrivals", "losses",
    "renewed", "colonised", "vacated",
)  # fmt: skip
EFFORT = 0.7  # power of effort in the mean
NEW = 0.65  # what a new observer finds, where observers learn
VISITS_TO_LEARN = 60.0
SKILL = 0.04  # log of what observers find more who began a year later
STAY, NEW_A_YEAR = 4, 12  # years that they stay, and how many begin in each


@dataclass(frozen=True, slots=True)
class TrendPanel:
    """Visits and truth of one panel.

    Attributes
    ----------
    site, month, observer : (n,) int32, sorted by month
    log_effort : (n,) log hours, 0 is the standard
    count : (n,)
    expected : (J, L) true expectation at standard effort
    year : (L,) calendar year of every month
    """

    site: I32
    month: I32
    observer: I32
    log_effort: F64
    count: F64
    expected: F64
    year: np.ndarray

    @property
    def yearly(self) -> F64:
        """(Y,) true mean monthly total of every year."""
        total = self.expected.sum(axis=0)
        return np.array([total[self.year == y].mean() for y in np.unique(self.year)])

    @property
    def slope(self) -> float:
        """Least-squares slope of the log yearly totals, per year."""
        x = np.arange(np.unique(self.year).size, dtype=float)
        x -= x.mean()
        return float(np.log(self.yearly) @ x / (x @ x))


def simulate_design(
    design: str,
    seed: int,
    *,
    trend: float = -0.03,
    visits: int = 2200,
    size: float = 2.0,
    sites: int = 100,
    years: int = 8,
    slope_sd: float = 0.05,
) -> TrendPanel:
    """Simulate one panel of a design.

    Parameters
    ----------
    design : one of ``DESIGNS``
    trend, slope_sd : mean and standard deviation of the sites' slopes, log per year (``plain``: all alike)
    visits : number of visits;  size : of the negative binomial, infinite for Poisson counts

    Raises
    ------
    ConfigError : for another design.
    """
    if design not in DESIGNS:
        raise ConfigError(f"there is no design {design!r}; choose one of {', '.join(DESIGNS)}.")
    rng = rng_for(seed, "design", design)
    plain, L = design == "plain", 12 * years
    year = np.arange(L) // 12
    a = rng.standard_normal(sites)
    s = trend + (0.0 if plain else slope_sd) * rng.standard_normal(sites)
    x = np.arange(years) - (years - 1) / 2
    season = 0.5 * np.sin(2 * np.pi * (np.arange(L) % 12) / 12)
    site_year = np.zeros((sites, years)) if plain else _autoregressive(rng, sites, years, sd=0.2, rho=0.5)
    eta = 0.7 + a[:, None] + s[:, None] * x[year] + season + site_year[:, year]
    here, known = _presence(rng, design, sites, years)
    at, month = _visits(rng, design, a, s - trend, year, visits, known)
    observer, found = _observers(rng, design, at, year[month], years)
    log_effort = np.zeros(visits) if plain else 0.07 * x[year[month]] + 0.3 * rng.standard_normal(visits)
    mean = here[at, year[month]] * np.exp(eta[at, month] + EFFORT * log_effort + found)
    rate = mean * rng.gamma(size, 1 / size, visits) if np.isfinite(size) else mean
    count = rng.poisson(rate).astype(float)
    return TrendPanel(
        at.astype(np.int32), month.astype(np.int32), observer.astype(np.int32), log_effort, count,
        np.where(here[:, year], np.exp(eta), 0.0), 2010 + year,
    )  # fmt: skip


def _autoregressive(rng: np.random.Generator, rows: int, steps: int, *, sd: float, rho: float) -> F64:
    out = np.empty((rows, steps))
    out[:, 0] = sd * rng.standard_normal(rows)
    for t in range(1, steps):
        out[:, t] = rho * out[:, t - 1] + sd * np.sqrt(1 - rho**2) * rng.standard_normal(rows)
    return out


def _presence(rng: np.random.Generator, design: str, sites: int, years: int) -> tuple[Bool, Bool]:
    """Whether a site (J, Y) has birds in a year, and whether anybody goes there."""
    here = np.ones((sites, years), dtype=bool)
    if design not in ("arrivals", "losses", "colonised", "vacated"):
        return here, here
    t, turn = np.arange(years), rng.integers(1, years, sites)[:, None]
    if design in ("arrivals", "colonised"):
        here = (rng.random(sites) >= 0.6)[:, None] | (t >= turn)
        return here, here | (design == "colonised")
    here = (rng.random(sites) >= 0.4)[:, None] | (t < turn)
    return here, here | (t == turn) | (design == "vacated")


def _visits(
    rng: np.random.Generator, design: str, a: F64, s: F64, year: np.ndarray, visits: int, known: Bool
) -> tuple[np.ndarray, np.ndarray]:
    """Draw the cells that are visited, sorted by month: (visits,) sites and months."""
    J, L, years = a.size, year.size, int(year[-1]) + 1
    if design == "plain":
        return rng.integers(J, size=visits), np.sort(rng.integers(L, size=visits))
    start = np.where(rng.random(J) < 1 / 3, rng.integers(1, max(2, years // 2 + 1), J), 0)
    end = np.where(rng.random(J) < 1 / 3, rng.integers(max(2, years // 2), years + 1, J), years)
    if design == "abandoned":  # a steeper decline makes an earlier and likelier end of a site
        risk = 1 / (1 + np.exp(s / 0.02))
        gone = np.ceil(rng.exponential(3.0 / np.maximum(risk, 1e-9)) + 2)
        end = np.minimum(end, gone)
    if design == "renewed":
        order, turn = (
            a.argsort().argsort() / J,
            rng.integers(max(1, years // 4), max(2, 3 * years // 4 + 1), J),
        )
        start, end = np.where(order >= 0.6, turn, 0), np.where(order < 0.4, turn, years)
    end = np.maximum(end, start + 1)
    weight = np.exp(0.8 * a) if design in ("preferred", "abandoned") else rng.gamma(1.0, 1.0, J)
    # sites are taken up and given up for the birds' sake only
    if design in ("arrivals", "losses", "colonised", "vacated"):
        start, end = np.zeros(J), np.full(J, years)
    open_cells = (year[None, :] >= start[:, None]) & (year[None, :] < end[:, None]) & known[:, year]
    p = weight[:, None] * open_cells * np.linspace(0.6, 1.4, L)[None, :]  # more visits in later years
    cell = rng.choice(J * L, size=visits, p=(p / p.sum()).ravel())
    month = cell % L
    order = np.argsort(month, kind="stable")
    return cell[order] // L, month[order]


def _observers(
    rng: np.random.Generator, design: str, site: np.ndarray, year: np.ndarray, years: int
) -> tuple[np.ndarray, F64]:
    """Draw the observer of each visit, and the effect on the log mean."""
    n = site.size
    if design == "plain":
        return rng.integers(30, size=n), np.zeros(n)
    if design == "handover":
        J = int(site.max()) + 1
        at = rng.integers(1, years, J)
        observer = site * 2 + (year >= at[site])
        return observer, 0.3 * rng.standard_normal(2 * J)[observer]
    if design == "turnover":
        observer = 4 * year + rng.integers(4, size=n)
        return observer, 0.2 * rng.standard_normal(4 * years)[observer]
    if design == "skilled":
        first = np.repeat(np.arange(1 - STAY, years), NEW_A_YEAR)
        there = (first[None, :] <= np.arange(years)[:, None]) & (first + STAY > np.arange(years)[:, None])
        share = (1 + rng.pareto(1.2, first.size))[None, :] * there
        share /= share.sum(axis=1, keepdims=True)
        observer = (rng.random(n)[:, None] > share.cumsum(axis=1)[year]).sum(axis=1).clip(0, first.size - 1)
        return observer, (SKILL * first + 0.2 * rng.standard_normal(first.size))[observer]
    I = 16
    first = np.sort(np.r_[np.zeros(6), rng.integers(0, max(years - 2, 1), I - 6)])
    share = (1 + rng.pareto(1.2, I))[None, :] * (first[None, :] <= np.arange(years)[:, None])
    share /= share.sum(axis=1, keepdims=True)
    observer = (rng.random(n)[:, None] > share.cumsum(axis=1)[year]).sum(axis=1).clip(0, I - 1)
    found = 0.2 * rng.standard_normal(I)[observer]
    if design == "learning":
        before = np.full(n, np.inf)  # observers of the first year are experienced
        for i in np.flatnonzero(first > 0):
            mine = np.flatnonzero(observer == i)
            before[mine] = np.arange(mine.size)
        found = found + np.log(NEW) * np.exp(-before / VISITS_TO_LEARN)
    return observer, found
