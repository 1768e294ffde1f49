"""The three natural exponential families of FedMissEM: Gaussian, Poisson, Bernoulli.

A cell with sufficient statistics (y, E) has loss  E psi(eta) - y eta.  For one visit with weight w, offset o and
count c:  Poisson E = w exp(o), y = w c;  Gaussian E = w, y = w (c - o);  Bernoulli E = w (trials), y = w
[detected].  Sums of (y, E) over the visits of a cell are exact sufficient statistics for eta.

Source: Dieuleveut, Fort, Moulines, Robin (NeurIPS 2021), section on FedMissEM; offsets and weights are ours.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy.special import xlogy

from fedmiss.arrays import F64
from fedmiss.errors import ConfigError
from fedmiss.models.lowrank.predictive import CountLaw, Law, LogCountLaw, PresenceLaw, ValueLaw

COMPILED = (0, 1, 2)  # codes of which compiled loops have branches
ETA_MAX = 50.0  # exp(50) birds: beyond this the exponential is continued by its tangent
VAR_MAX = 20.0  # bound of the variance of a lognormal
SHRINK = 0.39269908169872414  # pi / 8: variance of a logistic in units of a probit


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Family:
    """A natural exponential family, seen through its log-partition psi(eta).

    Parameters
    ----------
    name, code : its name, and its number in compiled loops (:mod:`.family_kernels`)
    psi, mean : psi(eta), and psi'(eta), the expected value of an observation with natural parameter eta
    variance : psi'' as a function of the mean
    link : natural parameter of a mean, kept inside its domain
    deviance : unit deviance of observations y at means mu (2 (saturated - fitted log-likelihood))
    marginal : of (eta, var): predictor whose mean is the expected mean of a predictor N(eta, var)
    law : of (phi, inverse_size, observers), given by name: law of an observation with this dispersion, 1 / size of the
        negative binomial, and variance of observer effects
    values : observations that counts are
    log_error : error of a prediction mu of y, on the log scale
    unit : square of the unit of the predictor, from the variance of the observations: 1 where the link has no unit
    titles : dispersion -> name in tables and sentences, where it is not the family's own
    effort_cap, observer_cap, max_step : bounds of Newton steps of coefficients of effort, of observers, and of sites
        and months (a Gaussian step is exact, whatever its unit)
    least_phi, dispersed : the least dispersion, and whether one can be estimated
    counts : whether observations are counts, 0 or more
    sized : whether the negative binomial extends it: its size can be estimated
    tilts : whether the mean, hence the curvature, grows with the variance of the predictor
    quadratic : whether psi is: Newton steps are exact, and psi'(U V') has low rank
    sums_offsets : whether visits with different offsets can be summed into one cell

    Raises
    ------
    ConfigError : compiled loops have no branch for ``code``: the last one would be taken
    """

    name: str
    code: int
    psi: Callable[[F64], F64]
    mean: Callable[[F64], F64]
    variance: Callable[[F64], F64]
    link: Callable[[float], float]
    deviance: Callable[[F64, F64], F64]
    marginal: Callable[[F64, F64], F64]
    law: Callable[..., Law]
    values: Callable[[F64], F64] = lambda count: count
    log_error: Callable[[F64, F64], F64] = lambda y, mu: np.log1p(y) - np.log1p(mu)
    unit: Callable[[float], float] = lambda variance: 1.0
    titles: Mapping[str, str] = field(default_factory=dict)
    effort_cap: float = 0.5
    observer_cap: float = 1.0
    max_step: float = 1.0
    least_phi: float = 1e-8
    dispersed: bool = True
    counts: bool = False
    sized: bool = False
    tilts: bool = False
    quadratic: bool = False
    sums_offsets: bool = True

    def __post_init__(self) -> None:
        if self.code not in COMPILED:
            raise ConfigError(
                f"the family {self.name} has the code {self.code}, and compiled loops have branches of "
                f"{', '.join(map(str, COMPILED))} only; write its branches in family_kernels.py, and add the code."
            )

    def title(self, dispersion: str) -> str:
        """Name in tables and sentences."""
        return self.titles.get(dispersion, self.name.capitalize())


GAUSSIAN = Family(
    name="gaussian",
    code=0,
    psi=lambda eta: 0.5 * eta**2,
    mean=lambda eta: np.asarray(eta, dtype=float),
    variance=lambda mu: np.ones_like(mu),
    link=lambda mean: mean,
    deviance=lambda y, mu: (np.asarray(y, dtype=float) - mu) ** 2,
    marginal=lambda eta, var: eta,
    law=lambda *, phi, inverse_size, observers: ValueLaw(phi, observers),
    log_error=lambda y, mu: y - mu,  # on the scale of the values, which may be negative
    unit=lambda variance: max(variance, 1e-12),  # that of their standard deviation
    effort_cap=np.inf,
    observer_cap=np.inf,
    max_step=np.inf,
    quadratic=True,
)


def _poisson_deviance(y: F64, mu: F64) -> F64:
    y, mu = np.asarray(y, dtype=float), np.maximum(np.asarray(mu, dtype=float), 1e-300)
    with np.errstate(divide="ignore", invalid="ignore"):
        log_ratio = np.where(y > 0, y * np.log(y / mu), 0.0)
    return 2.0 * (log_ratio - (y - mu))


POISSON = Family(
    name="poisson",
    code=1,
    # Beyond ETA_MAX the tangent of exp: finite numbers, still convex, and psi' constant as the mean below says.
    psi=lambda eta: np.exp(np.minimum(eta, ETA_MAX)) * (1.0 + np.maximum(eta - ETA_MAX, 0.0)),
    mean=lambda eta: np.exp(np.minimum(eta, ETA_MAX)),
    variance=lambda mu: mu,
    link=lambda mean: float(np.log(max(mean, 1e-8))),
    deviance=_poisson_deviance,
    marginal=lambda eta, var: eta + 0.5 * np.minimum(var, VAR_MAX),  # lognormal mean
    law=lambda *, phi, inverse_size, observers: CountLaw(inverse_size, phi, observers),
    titles={"quasi": "quasi-Poisson", "negbin": "negative binomial", "none": "Poisson"},
    least_phi=1.0,
    counts=True,
    sized=True,
    tilts=True,
)


def _bernoulli_link(mean: float) -> float:
    m = min(max(mean, 1e-6), 1 - 1e-6)
    return float(np.log(m / (1 - m)))


def _bernoulli_deviance(y: F64, mu: F64) -> F64:
    y, mu = np.asarray(y, dtype=float), np.clip(np.asarray(mu, dtype=float), 1e-15, 1 - 1e-15)
    return -2.0 * (y * np.log(mu) + (1 - y) * np.log1p(-mu))


BERNOULLI = Family(
    name="bernoulli",
    code=2,
    psi=lambda eta: np.logaddexp(0.0, eta),
    # The logistic function, written so that no exponential overflows.
    mean=lambda eta: 0.5 * (1.0 + np.tanh(0.5 * eta)),
    variance=lambda mu: mu * (1 - mu),
    link=_bernoulli_link,
    deviance=_bernoulli_deviance,
    marginal=lambda eta, var: eta / np.sqrt(1.0 + SHRINK * var),  # logistic-normal mean by the pi/8 rule
    law=lambda *, phi, inverse_size, observers: PresenceLaw(observers),
    values=lambda count: (count > 0).astype(float),  # detections
    dispersed=False,
    # log and identity links let an offset leave the predictor (as a factor, a difference); the logistic one does not.
    sums_offsets=False,
)
FAMILIES = {family.name: family for family in (GAUSSIAN, POISSON, BERNOULLI)}


def negbin_deviance(y: F64, mu: F64, inverse_size: float) -> F64:
    """Unit deviance of the negative binomial with variance mu + mu^2 * ``inverse_size`` (above 0)."""
    # 2 [y log(y / mu) - (y + k) log((y + k) / (mu + k))], k the size; 0 log 0 = 0.
    k, mu = 1.0 / inverse_size, np.maximum(mu, 1e-12)
    return 2.0 * (xlogy(y, y / mu) - (y + k) * np.log((y + k) / (mu + k)))


def family_of(name: str | Family) -> Family:
    """Return the family of this name (or itself), or raise ConfigError."""
    if isinstance(name, Family):
        return name
    if name not in FAMILIES:
        raise ConfigError(f"the family {name!r} is unknown; choose one of {', '.join(sorted(FAMILIES))}.")
    return FAMILIES[name]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Scale:
    """The scale on which counts are modelled; by default as they are.

    Parameters
    ----------
    name, log : its name, and whether it is logarithmic
    needs : the family that goes with it, None for any
    values : counts on this scale
    counted : of the model's family: the one whose mean makes birds of a predictor, and whose deviance judges them
    counts : of (mean, smear): expected counts, from the mean of ``counted`` and the calibration of totals
    shift : what the calibration adds to the predictor of an observation
    law : of (the family's law, smear): the law of counts
    """

    name: str
    log: bool = False
    needs: Family | None = None
    values: Callable[[F64], F64] = lambda count: count
    counted: Callable[[Family], Family] = lambda family: family
    counts: Callable[[F64, float], F64] = lambda mean, smear: smear * mean
    shift: Callable[[float], float] = lambda smear: float(np.log(smear))
    law: Callable[[Any, float], Law] = lambda law, smear: law


LOG1P = Scale(
    name="log1p",
    log=True,
    needs=GAUSSIAN,
    values=np.log1p,
    # 1 + count is lognormal: a predictor N(eta, var) has the mean exp(eta + var / 2), as Poisson's has, and Duan's smearing
    # factor (JASA 1983) takes it to the mean of 1 + y.
    counted=lambda family: POISSON,
    counts=lambda mean, smear: np.maximum(smear * mean - 1.0, 0.0),
    shift=lambda smear: 0.0,  # it belongs to the mean of exp(value), not to the values
    law=LogCountLaw,
)
SCALES: dict[str, Scale] = {scale.name: scale for scale in (Scale(name="raw"), LOG1P)}


def counted_family(family: str, scale: str) -> Family:
    """The family whose mean makes birds of the predictors of a model, by the names of its family and scale."""
    return SCALES[scale].counted(FAMILIES[family])
