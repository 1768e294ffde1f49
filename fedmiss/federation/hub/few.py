"""The prior variance of a few coefficients: regions' lines, and sites' slopes, hardly tell it; its posterior is drawn from.

Coefficients B (k,) ~ N(0, rho) have the likelihood exp(g' B - B' H B / 2). With H = U diag(lambda) U' and h = U' g,

    log p(data | rho) = sum_i [h_i^2 rho / (1 + lambda_i rho) - log(1 + lambda_i rho)] / 2,

and sqrt(rho) has a half-normal prior. The likeliest rho is often 0 by chance where few coefficients differ little (Chung et
al., Psychometrika 2013): as one number for all replicates it would make the coefficients known to be alike. As a point
estimate it serves: the mean of the posterior makes regions that are alike differ more, and predicts others no better.
"""

from __future__ import annotations

import numpy as np

from fedmiss.arrays import F64

KNOWN = 1.0 - 1e-6  # share of a coefficient that counts tell, at most
SD: F64 = np.geomspace(1e-3, 2.0, 80)  # standard deviations sqrt(rho) that are weighed, in units of the link


def drawn_variance(cov: F64, mean: F64, rho: float, scale: float, unit: float, level: float) -> float:
    """The variance below which the share ``level`` of its posterior lies.

    Parameters
    ----------
    cov, mean : (k, k), (k,) posterior of the coefficients under the variance ``rho``
    scale : of the half-normal prior of the standard deviation, in units of ``unit``
    """
    precision = np.linalg.inv(cov)
    values, vectors = np.linalg.eigh(0.5 * (precision + precision.T))
    # The prior's part is the same in all directions: H = cov^-1 - 1 / rho, and g = cov^-1 mean.
    information, h = np.maximum(values - 1.0 / rho, 0.0), vectors.T @ (precision @ mean)
    return _quantile(information, h**2, 1.0, scale, unit, level)


def drawn_of_slopes(told: F64, scale: float, unit: float, level: float) -> float:
    """The same of the sites' slopes; ``told`` (5,) as in :class:`.state.MonthState`.

    The hub knows sums over the sites only. The shares k = 1 - C / tau of slopes that counts tell are taken for those of n
    sites that are told alike and others that are told nothing, with the same sums of k and of k^2, hence the same curvature.
    """
    number, square, spread, tau, squared = told
    shares = number * (1.0 - spread / tau)
    if shares <= 0.0 or squared <= 0.0:
        return _quantile(np.zeros(1), np.zeros(1), 1.0, scale, unit, level)
    n, k = shares**2 / squared, min(squared / shares, KNOWN)
    # C = 1 / (information + 1 / tau), and a slope is C h more than its prior mean.
    C = (1.0 - k) * tau
    return _quantile(np.array([k / C]), np.array([number * square / (n * C**2)]), n, scale, unit, level)


def _quantile(
    information: F64, squares: F64, number: float, scale: float, unit: float, level: float
) -> float:
    """Quantile of the posterior of a variance; ``number`` coefficients have each ``information`` and h^2 = ``squares``."""
    grid = (SD * unit) ** 2
    known = 1.0 + information * grid[:, None]
    log = 0.5 * number * (squares * grid[:, None] / known - np.log(known)).sum(axis=1)
    # Half-normal in the standard deviation; steps of the grid are as long as its values.
    log += np.log(SD) - 0.5 * (SD / scale) ** 2
    weight = np.exp(log - log.max())
    weight /= weight.sum()
    return float(np.exp(np.interp(level, np.cumsum(weight) - 0.5 * weight, np.log(grid))))
