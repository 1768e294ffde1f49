"""The three natural exponential families of FedMissEM: Gaussian, Poisson, Bernoulli.

A cell with sufficient statistics (y, E) has loss  E psi(eta) - y eta.  For one visit with weight w, offset o and
count c:  Poisson E = w exp(o), y = w c;  Gaussian E = w, y = w (c - o);  Bernoulli E = w (trials), y = w
[detected].  Sums of (y, E) over the visits of a cell are exact sufficient statistics for eta.

Source: Dieuleveut, Fort, Moulines, Robin (NeurIPS 2021), section on FedMissEM; offsets and weights are ours.
"""

from __future__ import annotations

import numpy as np

from fedmiss.arrays import F64
from fedmiss.errors import ConfigError

__all__ = ["BERNOULLI", "FAMILIES", "GAUSSIAN", "POISSON", "deviance", "family_code", "mean", "psi"]

GAUSSIAN, POISSON, BERNOULLI = 0, 1, 2
ETA_MAX = 50.0  # exp(50) birds: beyond this the exponential is continued by its tangent
FAMILIES = {"gaussian": GAUSSIAN, "poisson": POISSON, "bernoulli": BERNOULLI}


def family_code(name: str) -> int:
    """Return the kernel code of a family name."""
    if name not in FAMILIES:
        raise ConfigError(f"the family {name!r} is unknown; choose one of {', '.join(sorted(FAMILIES))}.")
    return FAMILIES[name]


def psi(eta: F64, family: str) -> F64:
    """Log-partition psi(eta)."""
    if family == "gaussian":
        return 0.5 * eta**2
    if family == "poisson":
        out: F64 = np.exp(np.minimum(eta, ETA_MAX)) * (1.0 + np.maximum(eta - ETA_MAX, 0.0))
        return out
    return np.logaddexp(0.0, eta)


def mean(eta: F64, family: str) -> F64:
    """Return psi'(eta): the expected value of an observation with natural parameter eta."""
    if family == "gaussian":
        return np.asarray(eta, dtype=float)
    if family == "poisson":
        return np.exp(np.minimum(eta, ETA_MAX))
    return 0.5 * (1.0 + np.tanh(0.5 * eta))


def deviance(y: F64, mu: F64, family: str) -> F64:
    """Unit deviance of observations ``y`` at means ``mu`` (2 (saturated - fitted log-likelihood))."""
    y, mu = np.asarray(y, dtype=float), np.asarray(mu, dtype=float)
    if family == "gaussian":
        return (y - mu) ** 2
    if family == "poisson":
        mu = np.maximum(mu, 1e-300)
        with np.errstate(divide="ignore", invalid="ignore"):
            log_ratio = np.where(y > 0, y * np.log(y / mu), 0.0)
        return 2.0 * (log_ratio - (y - mu))
    mu = np.clip(mu, 1e-15, 1 - 1e-15)
    return -2.0 * (y * np.log(mu) + (1 - y) * np.log1p(-mu))
