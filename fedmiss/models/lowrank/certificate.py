"""How far a fit is from the optimum: a duality gap (Gaussian) or the norm of the mean field (others)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedmiss.arrays import F64
from fedmiss.models.lowrank.data import Cells
from fedmiss.models.lowrank.families import mean
from fedmiss.rng import rng_for

__all__ = ["residual_svd"]


def _residuals(cells: Sequence[Cells], family: str) -> list[F64]:
    return [c.y - c.E * mean(c.eta, family) for c in cells]


def residual_svd(
    cells: Sequence[Cells], family: str, J: int, L: int, k: int, *, seed: int = 0, iterations: int = 30
) -> tuple[F64, F64, F64]:
    """Leading ``k`` singular triplets of the residual P_Omega(y - E psi'(eta)), by block power iterations.

    Only products with J x k and L x k blocks are needed; in a federation each is a sum over groups.

    Returns
    -------
    left (J, k), values (k,), right (L, k)
    """
    import scipy.sparse as sp

    mats = [
        sp.csr_array((r, c.col, c.ptr), shape=(J, L))
        for r, c in zip(_residuals(cells, family), cells, strict=True)
    ]
    k_work = min(k + 5, J, L)
    V = np.linalg.qr(rng_for(seed, "residual-svd", k).standard_normal((L, k_work)))[0]
    U = np.zeros((J, k_work))
    for _ in range(iterations):
        U = np.linalg.qr(sum(m @ V for m in mats))[0]
        V = np.linalg.qr(sum(m.T @ U for m in mats))[0]
    small = sum(U.T @ (m @ V) for m in mats)
    A, s, Bt = np.linalg.svd(small)
    return (U @ A)[:, :k], s[:k], (V @ Bt.T)[:, :k]
