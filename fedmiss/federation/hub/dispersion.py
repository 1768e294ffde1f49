"""The dispersion from a short table: the Pearson statistic as a function of the negative binomial's size.

The moment equation  sum w (y - mu)^2 / (mu + mu^2 / t) = residual degrees of freedom  is solved for t without a root search
over the wire: the groups send the left side at a few Chebyshev nodes of log t, the hub solves on the interpolated curve. The
last value of t is one of the nodes, so at the fixed point nothing is interpolated and the solution is exact.

The table is short on purpose. As a function of 1/t the statistic is a rational function with a pole at every visit's mean:
with two exact values for each visit it could be taken apart into means and residuals, hence counts. So a group that has
fewer than twice as many visits as there are nodes takes no part where a minimum is set.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy.optimize import brentq

from fedmiss.arrays import F64

LOW, HIGH = float(np.log(1e-3)), float(np.log(1e4))  # range of log size; above it there is no over-dispersion
FIRST = float(np.log(1e-2))  # lower end of the first table
WIDE, NARROW = 9, 5
REACH = 0.5  # half-width of the window around the last value, on the log scale
NONE = np.zeros(1)  # the Pearson statistic of a family without a size


def table_nodes(dispersion: str, inverse_size: float) -> F64:
    """Values of 1 / size at which the groups compute the statistic, the Poisson limit first."""
    if dispersion != "negbin":
        return NONE
    (low, high), n = _window(inverse_size), WIDE if inverse_size <= 0.0 else NARROW
    # Chebyshev points of the first kind on the window of log size, where the curve is smooth.
    x = np.cos(np.pi * (2 * np.arange(n) + 1) / (2 * n))
    nodes: F64 = np.r_[0.0, np.exp(-(0.5 * (low + high) + 0.5 * (high - low) * x))]
    return nodes


def _window(last: float) -> tuple[float, float]:
    """Range of log size that the table covers: all of it at first, then around the last value."""
    if last <= 0.0:
        return FIRST, HIGH
    return -float(np.log(last)) - REACH, -float(np.log(last)) + REACH


def _curve(nodes: F64, values: F64) -> Callable[[float], float]:
    """Barycentric interpolation in log size, with the weights of Chebyshev points of the first kind."""
    at, n = -np.log(nodes), nodes.size
    weights = np.sin(np.pi * (2 * np.arange(n) + 1) / (2 * n)) * np.where(np.arange(n) % 2, -1.0, 1.0)

    def value(t: float) -> float:
        gap = t - at
        hit = np.flatnonzero(gap == 0.0)
        if hit.size:
            return float(values[hit[0]])
        # Barycentric formula (Berrut and Trefethen 2004): stable, and exact at the nodes.
        w = weights / gap
        return float(w @ values / w.sum())

    return value


def inverse_size_of(nodes: F64, statistic: F64, last: float) -> float:
    """Solve statistic(t) = 1 for 1 / t; 0 where even the Poisson limit is not over-dispersed.

    Parameters
    ----------
    nodes : (m,) from :func:`table_nodes`;  statistic : (m,) Pearson statistics over the residual degrees of freedom
    last : the value before: a solution outside the nodes' range is approached by a step to its border
    """
    low, high = _window(last)
    curve = _curve(nodes[1:], statistic[1:] - 1.0)
    # Without over-dispersion even at the largest size of the window: Poisson, or on to a larger size in the next round.
    if curve(high) <= 0.0:
        return 0.0 if high >= HIGH or statistic[0] <= 1.0 else float(np.exp(-high))
    # Over-dispersed at the smallest size of the window: on to a smaller one.
    if curve(low) >= 0.0:
        return float(np.exp(-max(low, LOW)))
    return float(np.exp(-brentq(curve, low, high, xtol=1e-10)))


def pearson_at(nodes: F64, statistic: F64, inverse_size: float) -> float:
    """Pearson statistic at a size, from the table."""
    if inverse_size <= 0.0 or nodes.size == 1:
        return float(statistic[0])
    return _curve(nodes[1:], statistic[1:])(-np.log(inverse_size))
