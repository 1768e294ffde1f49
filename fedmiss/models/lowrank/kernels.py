"""Compiled loops over observed cells: the only code that touches every cell on every sweep.

Cells are stored by site (``ptr``, ``col``: compressed sparse rows, J sites), with sufficient statistics
``y``, ``E`` and the current linear predictor ``eta``. Sites are independent, so loops over sites run in
parallel; sums over months are taken in a fixed number of site chunks and added in order, so the result has
the same bits for any number of threads.
The loops take more parameters than other functions may: numba takes arrays one by one.
"""

from __future__ import annotations

import math
import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # waiting threads sleep: spinning slows a busy machine

# isort: split
import numba
import numpy as np
from numba import njit, prange

from fedmiss.models.lowrank.family_kernels import loss_mean_var, psi

__all__ = [
    "add_ridge", "cap_steps", "factor_blocks", "mirror", "month_step", "month_sums", "predict",
    "set_threads", "site_step", "site_sums", "solve_factored",
]  # fmt: skip

CHUNKS = 16  # of sites, for sums over months of a large group


@njit(inline="always")
def _chunks(cells):
    # A function of the data only, so that the order of summation, hence the bits, never depends on the machine.
    return CHUNKS if cells > 20_000 else 1


def set_threads(cells: int) -> None:
    """Use all cores for large panels only: below some 50,000 cells waking the threads costs more than the work."""
    numba.set_num_threads(1 if cells < 50_000 else numba.config.NUMBA_NUM_THREADS)  # type: ignore[attr-defined]


@njit(parallel=True, cache=True)
def predict(ptr, col, offset, mu, a, b, U, V, eta):
    """Linear predictor of every cell."""
    J, r = U.shape
    for j in prange(J):
        for k in range(ptr[j], ptr[j + 1]):
            l = col[k]
            e = offset[k] + mu + a[j] + b[l]
            for c in range(r):
                e += U[j, c] * V[l, c]
            eta[k] = e


@njit(parallel=True, cache=True)
def site_sums(ptr, col, y, E, eta, X, family, g, G, loss):
    """Add a group's normal equations of every site: gradient g (J, p) and curvature G (J, p, p) of minus the loss.

    Only the lower triangle of G is summed; ``loss`` (J,) gets the loss of the site's cells.
    """
    J, p = ptr.size - 1, X.shape[1]
    for j in prange(J):
        total = 0.0
        for k in range(ptr[j], ptr[j + 1]):
            loss_k, mu, var = loss_mean_var(eta[k], family)
            total += E[k] * loss_k - y[k] * eta[k]
            res = y[k] - E[k] * mu
            w = E[k] * var
            l = col[k]
            for a in range(p):
                xa = X[l, a]
                g[j, a] += res * xa
                xa *= w
                for b in range(a + 1):
                    G[j, a, b] += xa * X[l, b]
        loss[j] += total


@njit(parallel=True, cache=True)
def month_sums(ptr, col, y, E, eta, Z, family, g, G, loss):
    """Add a group's normal equations of every month: g (L, p), lower triangle of G (L, p, p), loss (L,)."""
    J, p = ptr.size - 1, Z.shape[1]
    L = loss.size
    n = _chunks(col.size)
    gc = np.zeros((n, L, p))
    Gc = np.zeros((n, L, p, p))
    part = np.zeros((n, L))
    for c in prange(n):
        for j in range(c * J // n, (c + 1) * J // n):
            for k in range(ptr[j], ptr[j + 1]):
                loss_k, mu, var = loss_mean_var(eta[k], family)
                res = y[k] - E[k] * mu
                w = E[k] * var
                l = col[k]
                part[c, l] += E[k] * loss_k - y[k] * eta[k]
                for a in range(p):
                    za = Z[j, a]
                    gc[c, l, a] += res * za
                    za *= w
                    for b in range(a + 1):
                        Gc[c, l, a, b] += za * Z[j, b]
    for c in range(n):
        g += gc[c]
        G += Gc[c]
        loss += part[c]


@njit(cache=True)
def mirror(G):
    """Copy the lower triangle of every block to the upper one."""
    for i in range(G.shape[0]):
        for a in range(G.shape[1]):
            for b in range(a):
                G[i, b, a] = G[i, a, b]


@njit(parallel=True, cache=True)
def site_step(ptr, col, y, E, eta, D, X, todo, family, out, loss):
    """Trial move of the sites in ``todo``: out = eta + D_j . X_l, and the loss of each of those sites."""
    J, p = ptr.size - 1, X.shape[1]
    for j in prange(J):
        if todo[j]:
            total = 0.0
            for k in range(ptr[j], ptr[j + 1]):
                l = col[k]
                e = eta[k]
                for a in range(p):
                    e += D[j, a] * X[l, a]
                out[k] = e
                total += E[k] * psi(e, family) - y[k] * e
            loss[j] = total


@njit(parallel=True, cache=True)
def month_step(ptr, col, y, E, eta, D, Z, todo, family, out, loss):
    """Trial move of the months in ``todo``: out = eta + D_l . Z_j, and the loss of each of those months."""
    J, L, p = ptr.size - 1, todo.size, Z.shape[1]
    n = _chunks(col.size)
    part = np.zeros((n, L))
    for c in prange(n):
        for j in range(c * J // n, (c + 1) * J // n):
            for k in range(ptr[j], ptr[j + 1]):
                l = col[k]
                if todo[l]:
                    e = eta[k]
                    for a in range(p):
                        e += D[l, a] * Z[j, a]
                    out[k] = e
                    part[c, l] += E[k] * psi(e, family) - y[k] * e
    for l in range(L):
        if todo[l]:
            total = 0.0
            for c in range(n):
                total += part[c, l]
            loss[l] = total


@njit(parallel=True, cache=True)
def factor_blocks(G, ridge, floor):
    """Cholesky factors of G_i + diag(ridge) for every block i, in place in the lower half of G, pivots inverted.

    ``floor`` keeps pivots positive: a pivot below ``floor`` times the largest diagonal entry marks a direction that
    neither data nor ridge determine; it is set to zero, and a solution has no component along it.
    """
    n, p = G.shape[0], ridge.size
    for i in prange(n):
        big = 0.0
        for a in range(p):
            big = max(big, G[i, a, a] + ridge[a])
        for a in range(p):
            for b in range(a + 1):
                s = G[i, a, b]
                if a == b:
                    s += ridge[a]
                for k in range(b):
                    s -= G[i, a, k] * G[i, b, k]
                if a == b:
                    G[i, a, a] = 1.0 / math.sqrt(s) if s > floor * big else 0.0
                else:
                    G[i, a, b] = s * G[i, b, b]


@njit(parallel=True, cache=True)
def solve_factored(G, d):
    """Solve G_i x = d_i for every block, from the factors of :func:`factor_blocks`, in place in d (n, p)."""
    n, p = d.shape
    for i in prange(n):
        some = False  # blocks without data have nothing to solve: on sparse panels there are many
        for a in range(p):
            some |= d[i, a] != 0.0
        if not some:
            continue
        for a in range(p):
            s = d[i, a]
            for k in range(a):
                s -= G[i, a, k] * d[i, k]
            d[i, a] = s * G[i, a, a]
        for a in range(p - 1, -1, -1):
            s = d[i, a]
            for k in range(a + 1, p):
                s -= G[i, k, a] * d[i, k]
            d[i, a] = s * G[i, a, a]


@njit(parallel=True, cache=True)
def add_ridge(coef, ridge, out):
    """Add ridge/2 |coef_i|^2 to every out_i."""
    n, p = coef.shape
    for i in prange(n):
        for a in range(p):
            out[i] += 0.5 * ridge[a] * coef[i, a] * coef[i, a]


@njit(parallel=True, cache=True)
def cap_steps(step, reach):
    """Shorten every row of ``step`` (n, p) so that its absolute values sum to at most ``reach``."""
    n, p = step.shape
    for i in prange(n):
        size = 0.0
        for a in range(p):
            size += abs(step[i, a])
        if size > reach:
            for a in range(p):
                step[i, a] *= reach / size
