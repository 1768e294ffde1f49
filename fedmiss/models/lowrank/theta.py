"""Parameters of the low-rank model, what a fit gives, and moments of the predictor: no compiled loop is loaded for them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedmiss.arrays import F64, I64


@dataclass(frozen=True, slots=True)
class Theta:
    """Parameters: mu scalar, a (J,), b (L,), U (J, r), V (L, r), all on the link scale."""

    mu: float
    a: F64
    b: F64
    U: F64
    V: F64

    @property
    def rank(self) -> int:
        """Number of factor columns r."""
        return int(self.U.shape[1])

    def eta(self, site: slice | I64, month: slice | I64 = slice(None)) -> F64:
        """Linear predictor of the block ``site`` x ``month``."""
        return self.mu + self.a[site][:, None] + self.b[month] + self.U[site] @ self.V[month].T


@dataclass(slots=True)
class Fit:
    """Result of one fit: parameters, objective after each sweep, and why it stopped."""

    theta: Theta
    objective: list[float]
    converged: bool
    stop_reason: str
    sweeps: int
    edf: float = float("nan")


def moments(mu: float, P: F64, C: F64, T: F64, D: F64) -> tuple[F64, F64]:
    """Mean and variance (J, L) of eta = mu + a_j + b_l + u_j . v_l for sites N(P_j, C_j) and months N(T_l, D_l).

    All are independent; ``P`` (J, p), ``T`` (L, p) hold the effect, then the factors.

    With the designs x_l = (1, v_l) and z_j = (1, u_j) the variance is x'C x + z'D z + tr(C D), the trace over the factors:
    three matrix products.
    """
    p = T.shape[1]
    x = np.column_stack([np.ones(len(T)), T[:, 1:]])
    z = np.column_stack([np.ones(len(P)), P[:, 1:]])
    # x'C x = <C, x x'>: with both flattened, all J x L variances are a matrix product.
    xx = (x[:, :, None] * x[:, None, :]).reshape(-1, p * p)
    zz = (z[:, :, None] * z[:, None, :]).reshape(-1, p * p)
    var = C.reshape(-1, p * p) @ xx.T + zz @ D.reshape(-1, p * p).T
    # The product u_j . v_l of two uncertain factors has tr(C D)
    # besides: means and levels do not multiply, so factors only.
    k = (p - 1) ** 2
    var += C[:, 1:, 1:].reshape(len(P), k) @ D[:, 1:, 1:].reshape(len(T), k).T
    eta: F64 = mu + P[:, :1] + T[:, 0] + P[:, 1:] @ T[:, 1:].T
    return eta, var


def moments_at(mu: float, P: F64, C: F64, T: F64, D: F64) -> tuple[F64, F64]:
    """The same (n,) for pairs of a site and a month: ``P``, ``T`` (n, p), ``C``, ``D`` (n, p, p)."""
    x, z = np.hstack([np.ones((len(T), 1)), T[:, 1:]]), np.hstack([np.ones((len(P), 1)), P[:, 1:]])
    eta = mu + P[:, 0] + T[:, 0] + np.einsum("na,na->n", P[:, 1:], T[:, 1:])
    var = np.einsum("na,nab,nb->n", x, C, x) + np.einsum("na,nab,nb->n", z, D, z)
    return eta, var + np.einsum("nab,nab->n", C[:, 1:, 1:], D[:, 1:, 1:])
