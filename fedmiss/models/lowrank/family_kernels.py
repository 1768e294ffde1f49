"""What differs by family in compiled loops, by :attr:`fedmiss.models.lowrank.families.Family.code`.

Gaussian 0, Poisson 1, Bernoulli 2; a family of another code is refused when it is made
(``families.COMPILED``). They are parts of the loops of ``federation/group/kernels.py``.
"""

from __future__ import annotations

import math

from fedmiss.loops import exponential, part
from fedmiss.models.lowrank.families import ETA_MAX, SHRINK, VAR_MAX


@part
def mean(eta: float, family: int) -> float:
    """Mean psi'(eta)."""
    if family == 0:
        return eta
    if family == 1:
        return exponential(min(eta, ETA_MAX))
    return 1.0 / (1.0 + exponential(-eta))


@part
def variance(mu: float, family: int) -> float:
    """Variance psi'' as a function of the mean."""
    if family == 0:
        return 1.0
    return mu if family == 1 else mu * (1.0 - mu)


@part
def curvature(m: float, E: float, family: int) -> float:
    """E psi'' of a cell with the expected sum m = E psi'."""
    if family == 1:
        return m
    return E if family == 0 else m * (1.0 - m / E)


@part
def far_above(y: float, res: float) -> bool:
    """Whether a count is above twice its mean: others do not make Newton's steps twice too long."""
    return res > y - res


@part
def bend(y: float, E: float, res: float, inverse_size: float) -> float:
    """What the curvature of a cell's negative binomial has above the expected one."""
    # A visit of weight w = 1 / (1 + mu / size) has w mu + (1 - w) w (y - mu); 1 - w is taken of the cell's standard effort.
    u = inverse_size * (y - res)
    return res * u / (E + u)


@part
def predictor(eta: float, var: float, family: int) -> float:
    """Predictor whose mean is the expected mean of a predictor N(eta, var)."""
    if family == 1:
        return min(eta + 0.5 * min(var, VAR_MAX), ETA_MAX)
    if family == 0:
        return eta
    return eta / math.sqrt(1.0 + SHRINK * var)  # logistic-normal mean by the pi/8 rule


@part
def tilts(family: int) -> bool:
    """Whether the covariance of a block's coefficients moves its design: the mean of exp(eta) grows with the variance."""
    return family == 1


@part
def visit_sums(w: float, wy: float, o: float, off: bool, factor: float, family: int) -> tuple[float, float]:
    """What a visit of weight w, weighted count wy and offset o adds to (y, E) of its cell."""
    if family == 1:
        return factor * wy, factor * w * (exponential(o) if off else 1.0)
    if family == 0:
        return wy - w * o, w
    return wy, w  # one cell a visit: its offset is inside eta
