"""Compiled loops of the Newton steps: products with the mixed second derivatives of sites and months.

For cell (j, l) with design x_l = (1, v_l) of the site, z_j = (1, u_j) of the month, weight w = E psi'' and residual
res = y - E psi', the mixed block is H_jl = w x_l z_j' - res C, with C the identity on factors and zero on effects: the
second term is there because u_j and v_l multiply each other. It is never formed: a product costs O(p) per cell.
The loops take many parameters: numba takes arrays one by one.
"""

from __future__ import annotations

import numpy as np
from numba import njit, prange

from fedmiss.models.lowrank.family_kernels import mean_var
from fedmiss.models.lowrank.kernels import _chunks

__all__ = ["cell_weights", "month_cross", "site_cross"]


@njit(parallel=True, cache=True)
def cell_weights(y, E, eta, family, w, res):
    """Fill w = E psi''(eta) and res = y - E psi'(eta) of every cell."""
    for k in prange(y.size):
        mu, var = mean_var(eta[k], family)
        w[k] = E[k] * var
        res[k] = y[k] - E[k] * mu


@njit(parallel=True, cache=True)
def site_cross(ptr, col, w, res, X, Z, D, dmu, first, out):
    """Add sum_l H_jl D_l (and the part of mu) to every row of ``out`` (J, p); factors start at column ``first``."""
    J, p = Z.shape
    for j in prange(J):
        for k in range(ptr[j], ptr[j + 1]):
            l = col[k]
            move = dmu
            for a in range(p):
                move += D[l, a] * Z[j, a]
            move *= w[k]
            for a in range(p):
                out[j, a] += move * X[l, a]
            for a in range(first, p):
                out[j, a] -= res[k] * D[l, a]


@njit(parallel=True, cache=True)
def month_cross(ptr, col, w, res, X, Z, D, dmu, W, first, out):
    """Add the months' part of H (-W, D, dmu) to ``out`` (L, p) and return the part of mu.

    W (J, p) are the sites' moves, with the opposite sign; the ridges are left to the caller.
    """
    J, p = Z.shape
    n = _chunks(col.size)
    part = np.zeros((n, X.shape[0], p))
    total = np.zeros(n)
    for c in prange(n):
        for j in range(c * J // n, (c + 1) * J // n):
            for k in range(ptr[j], ptr[j + 1]):
                l = col[k]
                move = dmu
                for a in range(p):
                    move += D[l, a] * Z[j, a] - W[j, a] * X[l, a]
                move *= w[k]
                total[c] += move
                for a in range(p):
                    part[c, l, a] += move * Z[j, a]
                for a in range(first, p):
                    part[c, l, a] += res[k] * W[j, a]
    for c in range(n):
        out += part[c]
    return total.sum()
