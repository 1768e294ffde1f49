"""The residual matrix R = P_Omega(y - E psi'(eta)), summed over groups: the negative gradient of the loss in U V'."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import scipy.sparse as sp

from fedmiss.arrays import F64
from fedmiss.models.lowrank.data import Cells
from fedmiss.models.lowrank.families import Family
from fedmiss.rng import rng_for

__all__ = ["residual_svd", "residuals", "times", "times_t"]

SPARE, ITERATIONS = 5, 6  # columns beyond those asked, and products with R and R' of the power iterations


def residuals(cells: Sequence[Cells], family: Family, J: int, L: int) -> list[sp.csr_array]:
    """Return y - E psi'(eta) of every group on its cells, (J, L)."""
    return [sp.csr_array((c.y - c.E * family.mean(c.eta), c.col, c.ptr), shape=(J, L)) for c in cells]


def times(mats: list[sp.csr_array], X: F64) -> F64:
    """R X, summed over groups."""
    out: F64 = np.add.reduce([m @ X for m in mats])
    return out


def times_t(mats: list[sp.csr_array], X: F64) -> F64:
    """R' X, summed over groups."""
    out: F64 = np.add.reduce([m.T @ X for m in mats])
    return out


def residual_svd(
    cells: Sequence[Cells], family: Family, J: int, L: int, k: int, *, seed: int = 0
) -> tuple[F64, F64, F64]:
    """Leading ``k`` singular triplets of the residual R, by block power iterations.

    Returns
    -------
    left (J, k), values (k,), right (L, k)
    """
    mats = residuals(cells, family, J, L)
    width = min(k + SPARE, J, L)
    V = np.linalg.qr(rng_for(seed, "residual-svd", k).standard_normal((L, width)))[0]
    U = np.zeros((J, width))
    for _ in range(ITERATIONS):
        U = np.linalg.qr(times(mats, V))[0]
        V = np.linalg.qr(times_t(mats, U))[0]
    A, s, Bt = np.linalg.svd(U.T @ times(mats, V))
    return (U @ A)[:, :k], s[:k], (V @ Bt.T)[:, :k]
