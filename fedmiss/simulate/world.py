"""The simulated country: its sites, observers, months and species, drawn once and then only read.

Standard effort is one hour by one observer with observer effect 0. On a checklist of observer i at site j in
month l that lasts d minutes, species s is met with probability ``met_s`` (flocks are here today or they are
not) and then counted as negative binomial of size ``size_s``; its expected number is

    m = exp(mu_s + a_sj + b_sl + u_sj . v_l + o_i + EFFORT_SLOPE log(d / 60)),    given a meeting: m / met_s

so a fit of expected counts can be scored against exp(mu_s + a_sj + b_sl + u_sj . v_l), cell by cell.

Who goes where and when follows a list: an observer has a private, endless list of sites (and one of months),
drawn from the country's popular sites, and the r-th entry is used with a probability that falls as a power of
r. Entries come from a hash of (observer, r), so no list is ever stored.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from fedmiss.arrays import F64, I64
from fedmiss.errors import ConfigError
from fedmiss.rng import rng_for
from fedmiss.simulate.panels import month_basis, normal_scores
from fedmiss.simulate.species import SPECIES, Species

EFFORT_SLOPE = 0.6
RANK = 2
MAX_OBSERVERS = 4_999_999  # a prime, so that multiples scatter the ids without collisions
INTERACTION_SD = 0.35
OBSERVER_SD = 0.4
UNTIMED_MINUTES = 30.0  # true length of a visit whose duration is not given
COPIES_PER_CHECKLIST = 0.2  # share of all checklists that are shared copies
INCOMPLETE_KEEP = 0.5  # share of the species met that an incomplete checklist reports

# Share of checklists by calendar month, and yearly growth: fourfold over ten years.
MONTH_SHARE = np.array([8, 6, 8, 10, 14, 11, 8, 7, 8, 7, 7, 7], dtype=np.float64) / 101
YEARLY_GROWTH = 4 ** (1 / 10)

# Quantiles 25/50/75/90/99/max of checklists per observer and per site, as a function of -log(1 - rank).
_TAIL = -np.log(1 - np.array([0.0, 0.25, 0.5, 0.75, 0.9, 0.99, 0.9998]))
_PER_OBSERVER = np.log([0.3, 0.4, 0.9, 3, 9, 190, 3800])
_PER_SITE = np.log([0.5, 0.7, 1.0, 1.5, 3, 15, 40])
_SITES_PER_CHECKLIST = 0.25


@dataclass(frozen=True)
class World:
    """Everything that all checklists share.

    Attributes
    ----------
    seed : int
    species : the S species
    months : (L,) labels ``YYYY-MM``; month_days : (L,) their days; first_day : (L,) day number of the 1st
    month_cdf : (L,) cumulative share of checklists
    site_cdf, latitude, longitude : (J,); region : (J,) number of the county
    observer_cdf, observer_weight, observer_effect : (I,)
    met, mu : (S,); a : (J, S); u : (J, S, r); b : (S, L); V : (L, r)
    """

    seed: int
    species: tuple[Species, ...]
    months: npt.NDArray[np.str_]
    month_days: I64
    first_day: I64
    month_cdf: F64
    site_cdf: F64
    latitude: F64
    longitude: F64
    region: I64
    observer_cdf: F64
    observer_weight: F64
    observer_effect: F64
    met: F64
    mu: F64
    a: npt.NDArray[np.float32]
    u: npt.NDArray[np.float32]
    b: F64
    V: F64

    @property
    def n_sites(self) -> int:
        """J, before it is known which ones are visited."""
        return int(self.site_cdf.size)

    @property
    def n_observers(self) -> int:
        """I, before it is known which ones are active."""
        return int(self.observer_cdf.size)

    @cached_property
    def observer_number(self) -> I64:
        """(I,) the digits of the observers' ids: unique, in no order."""
        return 100_000 + (np.arange(self.n_observers, dtype=np.int64) * 611_953 + 7) % MAX_OBSERVERS

    @cached_property
    def breadth(self) -> F64:
        """(I,) how evenly an observer spreads over the list of months: busy people are out all year."""
        return np.asarray(0.1 * np.maximum(np.sqrt(self.observer_weight) - 1, 0))

    def log_mean(self, species: I64, site: I64, month: I64) -> F64:
        """Return eta at standard effort and observer effect 0, for arrays of (species, site, month)."""
        eta: F64 = np.asarray(
            self.mu[species] + self.a[site, species] + self.b[species, month], dtype=np.float64
        )
        u = self.u[site, species]
        for factor in range(RANK):
            eta += u[:, factor] * self.V[month, factor]
        return eta

    def places(self, observer: I64, draw: F64) -> I64:
        """Pick a site from each observer's own list; ``draw`` are uniforms."""
        return self._listed(1, self.site_cdf, observer, draw, power=1.2)

    def times(self, observer: I64, draw: F64) -> I64:
        """Pick a month from each observer's own list; ``draw`` are uniforms."""
        return self._listed(2, self.month_cdf, observer, draw, power=1.4, breadth=self.breadth[observer])

    def friends(self, observer: I64, draw: F64) -> I64:
        """Pick a companion from each observer's own list of friends; ``draw`` are uniforms."""
        return self._listed(3, self.observer_cdf, observer, draw, power=1.2)

    def _listed(
        self, stream: int, cdf: F64, observer: I64, draw: F64, *, power: float, breadth: F64 | float = 0.0
    ) -> I64:
        # An observer's list exists nowhere: entry r is a hash of
        # (observer, r), so that memory does not grow with visits.
        rank = _list_rank(draw, power, breadth)
        return np.minimum(np.searchsorted(cdf, _hash01(self.seed, stream, observer, rank)), cdf.size - 1)


def _list_rank(draw: F64, power: float, breadth: F64 | float) -> I64:
    """Return ranks 0, 1, 2, ... with P(rank >= r) = ((breadth + 1 + r) / (breadth + 1)) ** -power."""
    # Inverse of the survival function above.
    x = (breadth + 1) * (np.maximum(draw, 1e-12) ** (-1 / power) - 1)
    return np.minimum(x, 1e9).astype(np.int64)


def _hash01(seed: int, stream: int, observer: I64, rank: I64) -> F64:
    """Hash (seed, stream, observer, rank) to uniforms on [0, 1): the finaliser of SplitMix64."""
    with np.errstate(over="ignore"):
        x = np.asarray(observer).astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        x ^= np.asarray(rank).astype(np.uint64) * np.uint64(0xD1B54A32D192ED03)
        x += np.uint64(seed % 2**32 * 4 + stream) * np.uint64(0x8CB92BA72F3D8DD7)
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            x = (x ^ (x >> np.uint64(shift))) * np.uint64(factor)
        x ^= x >> np.uint64(31)
    return np.asarray((x >> np.uint64(11)).astype(np.float64) * 2.0**-53)


def _heavy_tail(n: int, log_quantiles: F64, rng: np.random.Generator | None = None) -> F64:
    """Return weights of ``n`` observers or sites, in random order where there is ``rng``."""
    rank = (np.arange(n) + 0.5) / n
    rank = rank if rng is None else rng.permutation(rank)
    return np.asarray(np.exp(np.interp(-np.log1p(-rank), _TAIL, log_quantiles)))


def month_labels(start: str, end: str) -> npt.NDArray[np.datetime64]:
    """Return the months from ``start`` to ``end`` (YYYY-MM, both included), checked."""
    try:
        first, last = np.datetime64(start, "M"), np.datetime64(end, "M")
    except ValueError:
        raise ConfigError(f"--start {start!r} or --end {end!r} is not a month; write YYYY-MM.") from None
    if last < first:
        raise ConfigError(f"--end {end} is before --start {start}; swap them.")
    return np.arange(first, last + np.timedelta64(1, "M"))


def make_world(
    seed: int,
    *,
    n_species: int,
    checklists: float,
    start: str,
    end: str,
    sites: int | None = None,
    observers: int | None = None,
) -> World:
    """Draw the country for about ``checklists`` checklists of the first ``n_species`` species.

    Raises
    ------
    ConfigError   an impossible number of sites, observers or months
    """
    months = month_labels(start, end)
    J = sites or max(round(checklists * _SITES_PER_CHECKLIST), 5)
    n_observers = observers or max(round(checklists / _heavy_tail(200_000, _PER_OBSERVER).mean()), 5)
    if J < 2 or n_observers < 2:
        raise ConfigError(f"--sites {J}, --observers {n_observers}: both must be at least 2.")
    if n_observers > MAX_OBSERVERS:
        raise ConfigError(f"--observers is {n_observers:,} (must be at most {MAX_OBSERVERS:,}).")
    species = SPECIES[:n_species]
    days = months.astype("datetime64[D]").astype(np.int64)
    length = np.diff(
        np.append(days, (months[-1] + np.timedelta64(1, "M")).astype("datetime64[D]").astype(np.int64))
    )
    month_of_year = months.astype(np.int64) % 12
    share = MONTH_SHARE[month_of_year] * YEARLY_GROWTH ** (np.arange(months.size) / 12)

    rng = rng_for(seed, "ebird", "sites")
    site_weight = _heavy_tail(J, _PER_SITE, rng)
    # Sites gather around a few towns inside a box of about 400 km; a town is the county.
    towns = rng.random((20, 2))
    region = rng.integers(0, 20, J)
    spot = np.clip(towns[region] + 0.05 * rng.standard_normal((J, 2)), 0, 1)

    rng = rng_for(seed, "ebird", "observers")
    observer_weight = _heavy_tail(n_observers, _PER_OBSERVER, rng)
    observer_effect = OBSERVER_SD * normal_scores(rng, n_observers)

    a, u, b = _effects(seed, species, J, month_of_year)
    level = np.array([bird.level for bird in species])
    world = World(
        seed=seed,
        species=species,
        months=months.astype(str),
        month_days=length,
        first_day=days,
        month_cdf=np.cumsum(share) / share.sum(),
        site_cdf=np.cumsum(site_weight) / site_weight.sum(),
        latitude=np.round(38 + 3.6 * spot[:, 0] + 1e-4 * rng.random(J), 7),
        longitude=np.round(-119 + 4.6 * spot[:, 1] + 1e-4 * rng.random(J), 7),
        region=region,
        observer_cdf=np.cumsum(observer_weight) / observer_weight.sum(),
        observer_weight=observer_weight,
        observer_effect=observer_effect,
        met=np.ones(n_species),
        mu=level,
        a=a,
        u=u,
        b=b,
        V=month_basis(seed, months.size, RANK),
    )
    # A species' level is of the count where it is met; mu, of any visit, is lower by the chance of a meeting.
    met = _met(world)
    return replace(world, met=met, mu=level + np.log(met))


def _effects(
    seed: int, species: tuple[Species, ...], J: int, month_of_year: I64
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32], F64]:
    """Draw the effects of sites a (J, S) and u (J, S, r), and of months b (S, L), species by species."""
    L = month_of_year.size
    a = np.empty((J, len(species)), dtype=np.float32)
    u = np.empty((J, len(species), RANK), dtype=np.float32)
    b = np.empty((len(species), L))
    years = (np.arange(L) - (L - 1) / 2) / 12
    for at, bird in enumerate(species):
        draw = rng_for(seed, "ebird", "species", at)
        a[:, at] = bird.site_sd * normal_scores(draw, J)
        for factor in range(RANK):
            u[:, at, factor] = INTERACTION_SD / np.sqrt(RANK) * normal_scores(draw, J)
        season = np.sqrt(2) * np.cos(2 * np.pi * (month_of_year + 1 - bird.peak) / 12)
        b[at] = bird.season_sd * season + bird.trend * years + 0.1 * draw.standard_normal(L)
    return a, u, b


def _met(world: World) -> F64:
    """Choose the probability of a meeting so that each species is detected as often as its table says.

    Average P(count > 0 | met) over visits drawn as the simulation draws them, then divide.
    """
    rng, n = rng_for(world.seed, "ebird", "pilot"), 20_000
    observer = np.searchsorted(world.observer_cdf, rng.random(n))
    site, month = world.places(observer, rng.random(n)), world.times(observer, rng.random(n))
    nuisance = world.observer_effect[observer] + EFFORT_SLOPE * (np.log(0.75) + 0.7 * rng.standard_normal(n))
    met = np.empty(len(world.species))
    for at, bird in enumerate(world.species):
        mean = np.exp(world.log_mean(np.full(n, at), site, month) + nuisance)
        # P(count > 0) of the negative binomial.
        seen = 1 - (1 + mean / bird.size) ** -bird.size
        met[at] = min(bird.detection / seen.mean(), 1.0)
    return met
