"""Parameters of the low-rank model, and what a fit gives: no compiled loop is loaded for them."""

from __future__ import annotations

from dataclasses import dataclass

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
    edf: float = float("nan")
