"""The three natural exponential families of FedMissEM: Gaussian, Poisson, Bernoulli.

A cell with sufficient statistics (y, E) has loss  E psi(eta) - y eta.  For one visit with weight w, offset o and
count c:  Poisson E = w exp(o), y = w c;  Gaussian E = w, y = w (c - o);  Bernoulli E = w (trials), y = w
[detected].  Sums of (y, E) over the visits of a cell are exact sufficient statistics for eta.

Source: Dieuleveut, Fort, Moulines, Robin (NeurIPS 2021), section on FedMissEM; offsets and weights are ours.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from scipy.special import xlogy

from fedmiss.arrays import F64
from fedmiss.errors import ConfigError
from fedmiss.models.lowrank.predictive import CountLaw, Law, PresenceLaw, ValueLaw

__all__ = [
    "BERNOULLI",
    "FAMILIES",
    "GAUSSIAN",
    "LOG1P",
    "POISSON",
    "RAW",
    "SCALES",
    "Family",
    "Scale",
    "family_of",
    "negbin_deviance",
]

COMPILED = (0, 1, 2)  # codes of which compiled loops have branches
ETA_MAX = 50.0  # exp(50) birds: beyond this the exponential is continued by its tangent


@dataclass(frozen=True, slots=True)
class Family(ABC):
    """A natural exponential family, seen through its log-partition psi(eta).

    ``code`` is its number in compiled loops (:mod:`.family_kernels`); ``effort_cap`` and ``observer_cap`` bound Newton steps
    of coefficients of visits and ``max_step`` those of sites and months (a Gaussian step is exact, whatever its unit);
    ``least_phi`` is the least dispersion.
    """

    name: ClassVar[str]
    code: ClassVar[int]
    effort_cap: ClassVar[float] = 0.5
    observer_cap: ClassVar[float] = 1.0
    max_step: ClassVar[float] = 1.0
    least_phi: ClassVar[float] = 1e-8
    dispersed: ClassVar[bool] = True  # whether a dispersion can be estimated
    counts: ClassVar[bool] = False  # whether observations are counts, 0 or more
    sized: ClassVar[bool] = False  # whether the negative binomial extends it: its size can be estimated
    tilts: ClassVar[bool] = (
        False  # whether the mean, hence the curvature, grows with the variance of the predictor
    )
    quadratic: ClassVar[bool] = False  # whether psi is: Newton steps are exact, and psi'(U V') has low rank
    sums_offsets: ClassVar[bool] = True  # whether visits with different offsets can be summed into one cell

    def __init_subclass__(cls) -> None:
        if cls.__dict__.get("code") not in COMPILED:  # a branch that is not there would be the last one
            raise ConfigError(
                f"the family {cls.__name__} has the code {cls.__dict__.get('code')}, and compiled loops have branches of "
                f"{', '.join(map(str, COMPILED))} only; write its branches in family_kernels.py, and add the code."
            )

    def title(self, dispersion: str) -> str:
        """Name in tables and sentences."""
        return self.name.capitalize()

    def values(self, count: F64) -> F64:
        """Observations that counts are."""
        return count

    def unit(self, variance: float) -> float:
        """Square of the unit of the predictor, from the variance of the observations: 1 where the link has no unit."""
        return 1.0

    def log_error(self, y: F64, mu: F64) -> F64:
        """Error of a prediction, on the log scale."""
        out: F64 = np.log1p(y) - np.log1p(mu)
        return out

    @abstractmethod
    def psi(self, eta: F64) -> F64:
        """Log-partition psi(eta)."""

    @abstractmethod
    def mean(self, eta: F64) -> F64:
        """Return psi'(eta): the expected value of an observation with natural parameter eta."""

    @abstractmethod
    def variance(self, mu: F64) -> F64:
        """Return psi'' as a function of the mean."""

    @abstractmethod
    def link(self, mean: float) -> float:
        """Natural parameter of a mean, kept inside its domain."""

    @abstractmethod
    def deviance(self, y: F64, mu: F64) -> F64:
        """Unit deviance of observations ``y`` at means ``mu`` (2 (saturated - fitted log-likelihood))."""

    @abstractmethod
    def marginal(self, eta: F64, var: F64) -> F64:
        """Predictor whose mean is the expected mean of a predictor N(eta, var)."""

    @abstractmethod
    def law(self, *, phi: float, inverse_size: float, observers: float) -> Law:
        """Law of an observation: dispersion, 1 / size of the negative binomial, variance of observer effects."""


class Gaussian(Family):
    """psi = eta^2 / 2."""

    name, code = "gaussian", 0
    effort_cap = observer_cap = max_step = np.inf
    quadratic = True

    def unit(self, variance: float) -> float:
        """See :meth:`Family.unit`: values have that of their standard deviation."""
        return max(variance, 1e-12)

    def log_error(self, y: F64, mu: F64) -> F64:
        """See :meth:`Family.log_error`: on the scale of the values, which may be negative."""
        return y - mu

    def psi(self, eta: F64) -> F64:
        """See :meth:`Family.psi`."""
        return 0.5 * eta**2

    def mean(self, eta: F64) -> F64:
        """See :meth:`Family.mean`."""
        return np.asarray(eta, dtype=float)

    def variance(self, mu: F64) -> F64:
        """See :meth:`Family.variance`."""
        return np.ones_like(mu)

    def link(self, mean: float) -> float:
        """See :meth:`Family.link`."""
        return mean

    def deviance(self, y: F64, mu: F64) -> F64:
        """See :meth:`Family.deviance`."""
        out: F64 = (np.asarray(y, dtype=float) - mu) ** 2
        return out

    def marginal(self, eta: F64, var: F64) -> F64:
        """See :meth:`Family.marginal`."""
        return eta

    def law(self, *, phi: float, inverse_size: float, observers: float) -> Law:
        """See :meth:`Family.law`."""
        return ValueLaw(phi, observers)


class Poisson(Family):
    """psi = exp(eta)."""

    name, code = "poisson", 1
    least_phi = 1.0
    counts = sized = tilts = True

    def title(self, dispersion: str) -> str:
        """See :meth:`Family.title`."""
        return {"quasi": "quasi-Poisson", "negbin": "negative binomial", "none": "Poisson"}[dispersion]

    def psi(self, eta: F64) -> F64:
        """See :meth:`Family.psi`."""
        out: F64 = np.exp(np.minimum(eta, ETA_MAX)) * (1.0 + np.maximum(eta - ETA_MAX, 0.0))
        return out

    def mean(self, eta: F64) -> F64:
        """See :meth:`Family.mean`."""
        return np.exp(np.minimum(eta, ETA_MAX))

    def variance(self, mu: F64) -> F64:
        """See :meth:`Family.variance`."""
        return mu

    def link(self, mean: float) -> float:
        """See :meth:`Family.link`."""
        return float(np.log(max(mean, 1e-8)))

    def deviance(self, y: F64, mu: F64) -> F64:
        """See :meth:`Family.deviance`."""
        y, mu = np.asarray(y, dtype=float), np.maximum(np.asarray(mu, dtype=float), 1e-300)
        with np.errstate(divide="ignore", invalid="ignore"):
            log_ratio = np.where(y > 0, y * np.log(y / mu), 0.0)
        return 2.0 * (log_ratio - (y - mu))

    def marginal(self, eta: F64, var: F64) -> F64:
        """See :meth:`Family.marginal`: lognormal mean."""
        out: F64 = eta + 0.5 * np.minimum(var, 20.0)
        return out

    def law(self, *, phi: float, inverse_size: float, observers: float) -> Law:
        """See :meth:`Family.law`."""
        return CountLaw(inverse_size, phi, observers)


class Bernoulli(Family):
    """psi = log(1 + exp(eta))."""

    name, code = "bernoulli", 2
    dispersed = sums_offsets = False

    def values(self, count: F64) -> F64:
        """See :meth:`Family.values`: detections."""
        return (count > 0).astype(float)

    def psi(self, eta: F64) -> F64:
        """See :meth:`Family.psi`."""
        return np.logaddexp(0.0, eta)

    def mean(self, eta: F64) -> F64:
        """See :meth:`Family.mean`."""
        return 0.5 * (1.0 + np.tanh(0.5 * eta))

    def variance(self, mu: F64) -> F64:
        """See :meth:`Family.variance`."""
        return mu * (1 - mu)

    def link(self, mean: float) -> float:
        """See :meth:`Family.link`."""
        m = min(max(mean, 1e-6), 1 - 1e-6)
        return float(np.log(m / (1 - m)))

    def deviance(self, y: F64, mu: F64) -> F64:
        """See :meth:`Family.deviance`."""
        y, mu = np.asarray(y, dtype=float), np.clip(np.asarray(mu, dtype=float), 1e-15, 1 - 1e-15)
        return -2.0 * (y * np.log(mu) + (1 - y) * np.log1p(-mu))

    def marginal(self, eta: F64, var: F64) -> F64:
        """See :meth:`Family.marginal`: logistic-normal mean by the pi/8 rule."""
        out: F64 = eta / np.sqrt(1.0 + 0.39269908169872414 * var)
        return out

    def law(self, *, phi: float, inverse_size: float, observers: float) -> Law:
        """See :meth:`Family.law`."""
        return PresenceLaw(observers)


GAUSSIAN, POISSON, BERNOULLI = Gaussian(), Poisson(), Bernoulli()
FAMILIES: dict[str, Family] = {f.name: f for f in (GAUSSIAN, POISSON, BERNOULLI)}


def negbin_deviance(y: F64, mu: F64, inverse_size: float) -> F64:
    """Unit deviance of the negative binomial with variance mu + mu^2 * ``inverse_size`` (above 0)."""
    k, mu = 1.0 / inverse_size, np.maximum(mu, 1e-12)
    out: F64 = 2.0 * (xlogy(y, y / mu) - (y + k) * np.log((y + k) / (mu + k)))
    return out


def family_of(name: str | Family) -> Family:
    """Return the family of this name (or itself), or raise ConfigError."""
    if isinstance(name, Family):
        return name
    if name not in FAMILIES:
        raise ConfigError(f"the family {name!r} is unknown; choose one of {', '.join(sorted(FAMILIES))}.")
    return FAMILIES[name]


@dataclass(frozen=True, slots=True)
class Scale:
    """The scale on which counts are modelled: as they are.

    ``needs`` is the family that goes with it, None for any; ``log`` whether it is logarithmic.
    """

    name: ClassVar[str] = "raw"
    needs: ClassVar[Family | None] = None
    log: ClassVar[bool] = False

    def values(self, count: F64) -> F64:
        """Counts on this scale."""
        return count

    def counts(self, mean: F64, smear: float) -> F64:
        """Expected counts, from the family's mean and the calibration of totals."""
        return smear * mean

    def shift(self, smear: float) -> float:
        """What the calibration adds to the predictor of an observation."""
        return float(np.log(smear))

    def birds(self, value: F64) -> F64:
        """Observations on this scale as counts."""
        return value

    def scoring_family(self, family: Family) -> Family:
        """Return the family whose deviance compares predicted with counted birds."""
        return family


class Log1p(Scale):
    """log(1 + count)."""

    name, needs, log = "log1p", GAUSSIAN, True

    def values(self, count: F64) -> F64:
        """See :meth:`Scale.values`."""
        return np.log1p(count)

    def counts(self, mean: F64, smear: float) -> F64:
        """See :meth:`Scale.counts`."""
        return np.maximum(smear * np.exp(np.minimum(mean, ETA_MAX)) - 1.0, 0.0)

    def shift(self, smear: float) -> float:
        """See :meth:`Scale.shift`: it belongs to the mean of exp(value), not to the values."""
        return 0.0

    def birds(self, value: F64) -> F64:
        """See :meth:`Scale.birds`: whole numbers."""
        return np.maximum(np.rint(np.expm1(np.minimum(value, ETA_MAX))), 0.0)

    def scoring_family(self, family: Family) -> Family:
        """See :meth:`Scale.scoring_family`."""
        return POISSON


RAW, LOG1P = Scale(), Log1p()
SCALES: dict[str, Scale] = {s.name: s for s in (RAW, LOG1P)}
