"""E-step kernels of Gaussian mixtures: one inner function, so that one worker and many give the same bits.

For every kind of covariance the log-weights are linear in features F(y) (y; y and y^2; y and y y'), and the statistic
is r (x) (1, F(y)): see gmm.py.
"""

from __future__ import annotations

import numpy as np
from numba import njit, prange

from fedmiss.arrays import F64, I64

__all__ = ["many", "many_parallel", "weights"]

LINEAR, SQUARES, PRODUCTS = 0, 1, 2


@njit(cache=True)
def _features(y: F64, kind: int, F: F64) -> None:
    d = y.size
    for i in range(d):
        F[i] = y[i]
    if kind == SQUARES:
        for i in range(d):
            F[d + i] = y[i] * y[i]
    elif kind == PRODUCTS:
        at = d
        for i in range(d):
            for j in range(i + 1):
                F[at] = y[i] * y[j]
                at += 1


@njit(cache=True)
def _weights(const: F64, A: F64, F: F64, r: F64) -> float:
    """Fill r_g; return log sum_g exp(const_g + F . A_g)."""
    G = const.size
    for g in range(G):
        r[g] = const[g]
    for i in range(F.size):
        v = F[i]
        for g in range(G):
            r[g] += v * A[i, g]
    # E-step, the posterior probabilities of the paper's equation (58).
    top = r[0]  # r_g = exp(l_g - max l) / sum: the posterior weights of the components, without overflow
    for g in range(1, G):
        top = max(top, r[g])
    total = 0.0
    for g in range(G):
        r[g] = np.exp(r[g] - top)
        total += r[g]
    scale = 1.0 / total
    for g in range(G):
        r[g] *= scale
    return float(top + np.log(total))


@njit(cache=True)
def _worker(const: F64, A: F64, kind: int, rows: F64, index: I64, out: F64) -> None:
    """Mean statistic of the rows ``index`` of one worker (all rows when it is empty)."""
    G, f = const.size, A.shape[0]
    F, r = np.empty(f), np.empty(G)
    out[:] = 0.0
    count = index.size if index.size else rows.shape[0]
    for j in range(count):
        y = rows[index[j]] if index.size else rows[j]
        _features(y, kind, F)
        _weights(const, A, F, r)
        for g in range(G):  # s = (r_g, r_g F(y))
            out[g] += r[g]
            v, at = r[g], G + g * f
            for i in range(f):
                out[at + i] += v * F[i]
    for i in range(out.size):
        out[i] /= count


@njit(cache=True)
def many(const: F64, A: F64, which: I64, kind: int, data: F64, slots: I64, index: I64, out: F64) -> None:
    """Mean statistics of several workers of a stacked array (n, m, d); ``index`` is (a, b), or (a, 0) for all rows."""
    for i in range(slots.size):
        _worker(const[which[i]], A[which[i]], kind, data[slots[i]], index[i], out[i])


@njit(cache=True, parallel=True)
def many_parallel(
    const: F64, A: F64, which: I64, kind: int, data: F64, slots: I64, index: I64, out: F64
) -> None:
    """Do as :func:`many`, over the cores."""
    for i in prange(slots.size):
        _worker(const[which[i]], A[which[i]], kind, data[slots[i]], index[i], out[i])


@njit(cache=True)
def weights(const: F64, A: F64, kind: int, rows: F64, r: F64) -> float:
    """Fill the responsibilities (m, G) of each row; return the mean log-density, up to its constant."""
    F, total = np.empty(A.shape[0]), 0.0
    for j in range(rows.shape[0]):
        _features(rows[j], kind, F)
        total += _weights(const, A, F, r[j])
    return float(total / rows.shape[0])
