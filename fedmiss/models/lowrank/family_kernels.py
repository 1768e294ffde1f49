"""What differs by family in compiled loops, by :attr:`fedmiss.models.lowrank.families.Family.code`.

Gaussian 0, Poisson 1, Bernoulli 2; a family of another code is refused when it is made
(``families.COMPILED``). The functions are inlined where they are used (``federation/group/kernels.py``).
Numba's cache does not see a change of this file: delete ``__pycache__`` after one.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit

from fedmiss.arrays import F64
from fedmiss.models.lowrank.families import ETA_MAX, SHRINK, VAR_MAX

__all__ = [
    "curvature", "expected_weights", "mean", "means_at", "predictor", "tilts", "variance", "visit_sums", "weights_of",
]  # fmt: skip


@njit(inline="always")
def mean(eta: float, family: int) -> float:
    """Mean psi'(eta)."""
    if family == 0:
        return eta
    if family == 1:
        return math.exp(min(eta, ETA_MAX))
    if eta > 0.0:
        return 1.0 / (1.0 + math.exp(-eta))
    e = math.exp(eta)
    return e / (1.0 + e)


@njit(inline="always")
def variance(mu: float, family: int) -> float:
    """Variance psi'' as a function of the mean."""
    if family == 0:
        return 1.0
    return mu if family == 1 else mu * (1.0 - mu)


@njit(inline="always")
def curvature(m: float, E: float, G: float, family: int) -> float:
    """E psi'' of a cell with the expected sum m = E psi'; counts have the weight ``G`` there in place of ``E``."""
    if family == 1:
        return m * (G / E)
    return E if family == 0 else m * (1.0 - m / E)


@njit(inline="always")
def predictor(eta: float, var: float, family: int) -> float:
    """Predictor whose mean is the expected mean of a predictor N(eta, var)."""
    if family == 1:
        return min(eta + 0.5 * min(var, VAR_MAX), ETA_MAX)
    if family == 0:
        return eta
    return eta / math.sqrt(1.0 + SHRINK * var)  # logistic-normal mean by the pi/8 rule


@njit(inline="always")
def tilts(family: int) -> bool:
    """Whether the covariance of a block's coefficients moves its design: the mean of exp(eta) grows with the variance."""
    return family == 1


@njit(inline="always")
def visit_sums(w: float, wy: float, o: float, off: bool, family: int) -> tuple[float, float]:
    """What a visit of weight w, weighted count wy and offset o adds to (y, E) of its cell."""
    if family == 1:
        return wy, w * (math.exp(o) if off else 1.0)
    if family == 0:
        return wy - w * o, w
    return wy, w  # one cell a visit: its offset is inside eta


@njit(inline="always")
def means_at(eta: float, var: float) -> tuple[float, float]:
    """Three means exp(x), x ~ N(eta - var / 2, var), at nodes of Gauss and Hermite: the middle one, the factor between them.

    They weigh 1/6, 4/6, 1/6.
    """
    v = max(0.0, min(var, VAR_MAX))  # rounding may bring it below 0
    return math.exp(min(eta - 0.5 * v, ETA_MAX)), math.exp(math.sqrt(3.0 * v))


@njit(inline="always")
def expected_weights(eta: float, var: float, inverse_size: float) -> tuple[float, float, float]:
    """Weights of the negative binomial (equation score): of a count, of its mean E m, and of E m in the curvature.

    The score (y - m) / (1 + m / size) has under the posterior of m, log m ~ N(eta - var / 2, var), the expectation
    y E[1 / (1 + m / size)] - E[m / (1 + m / size)]. With 1 / (1 + E m / size) in both, a count that moves its own mean up
    would weigh less than one that moves it down, and all means would be too small. The curvature in log m is
    (1 + y / size) E[m / (1 + m / size)^2]: a large count says more of its mean than a small one.
    """
    middle, step = means_at(eta, var)
    t = middle * inverse_size
    a, b, c = 1.0 / (1.0 + t / step), 1.0 / (1.0 + t), 1.0 / (1.0 + t * step)
    # Means over the middle one: where it is 0 for a computer, the weights are still 1.
    whole = 1.0 / step + 4.0 + step
    of_mean = (a / step + 4.0 * b + c * step) / whole
    return (a + 4.0 * b + c) / 6.0, of_mean, (a * a / step + 4.0 * b * b + c * c * step) / whole


@njit(cache=True)
def weights_of(eta: F64, var: F64, inverse_size: float) -> F64:
    """The weights (3, n) of :func:`expected_weights` for predictors (n,) and their variances (n,)."""
    out = np.empty((3, eta.size))
    for i in range(eta.size):
        out[0, i], out[1, i], out[2, i] = expected_weights(eta[i], var[i], inverse_size)
    return out
