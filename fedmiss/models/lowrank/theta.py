"""Parameters of the low-rank model, their penalty, and what a fit gives: no compiled loop is loaded for them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from fedmiss.arrays import F64, I64

__all__ = ["Fit", "Penalty", "Theta"]


@dataclass(frozen=True, slots=True)
class Penalty:
    """Ridges of the objective, on the scale of the summed loss.

    ``factors`` lambda on U and V; ``sites`` on a; ``months`` on b.
    """

    factors: float = 0.0
    sites: float = 0.0
    months: float = 0.0


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

    def sides(self, effects: bool) -> tuple[F64, F64]:
        """Coefficients of sites (J, p) and months (L, p), the effect first where there are effects."""
        if effects:
            return np.column_stack([self.a, self.U]), np.column_stack([self.b, self.V])
        return self.U, self.V

    def with_sides(self, mu: float, sites: F64, months: F64, effects: bool) -> Theta:
        """Take coefficients in the form of :meth:`sides`."""
        if not effects:
            return replace(self, U=sites, V=months)
        U, V = np.ascontiguousarray(sites[:, 1:]), np.ascontiguousarray(months[:, 1:])
        return Theta(mu, sites[:, 0].copy(), months[:, 0].copy(), U, V)

    def eta(self, site: slice | I64, month: slice | I64 = slice(None)) -> F64:
        """Linear predictor of the block ``site`` x ``month``."""
        out: F64 = self.mu + self.a[site][:, None] + self.b[month] + self.U[site] @ self.V[month].T
        return out


@dataclass(slots=True)
class Fit:
    """Result of one fit: parameters, objective after each sweep, and why it stopped."""

    theta: Theta
    objective: list[float]
    converged: bool
    stop_reason: str
    sweeps: int
    loss: float = float("nan")
    edf: float = float("nan")
