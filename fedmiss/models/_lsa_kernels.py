"""The local steps of linear stochastic approximation, one worker after the other: same bits alone and together."""

from __future__ import annotations

import numpy as np
from numba import njit

from fedmiss.arrays import F64, I64

__all__ = ["walk"]


@njit(cache=True)
def walk(rows: F64, index: I64, b: int, eta: float, steps: int, shift: F64, x: F64) -> None:
    """Move x (p,) by ``steps`` steps; rows (m, p, p + 1) hold [A | b]; ``index`` (steps * b,), or empty for all rows."""
    p = x.size
    h = np.empty(p)
    count = b if index.size else rows.shape[0]
    for t in range(steps):
        h[:] = 0.0
        for j in range(count):
            r = index[t * b + j] if index.size else j
            for i in range(p):
                # h(x) = b(Z) - A(Z) x, the mean field of LSA at one draw.
                g = rows[r, i, p]
                for l in range(p):
                    g -= rows[r, i, l] * x[l]
                h[i] += g
        for i in range(p):
            # FedLSA: shift = 0. SCAFFLSA: shift = V - V_c = xi_c, the control variate.
            x[i] += eta * (h[i] / count + shift[i])
