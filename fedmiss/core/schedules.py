"""Step sizes gamma_k."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["Decreasing", "Piecewise"]

Schedule = float | Callable[[int], float]


@dataclass(frozen=True, slots=True)
class Decreasing:
    """gamma_k = gamma / (1 + k / k0)^power: the classical stochastic-approximation step."""

    gamma: float
    k0: float = 100.0
    power: float = 0.6

    def __call__(self, k: int) -> float:
        """gamma_k."""
        return self.gamma / float((1.0 + k / self.k0) ** self.power)


@dataclass(frozen=True, slots=True)
class Piecewise:
    """gamma_k constant between given rounds: ``gammas[i]`` from ``starts[i]`` on (``starts[0] == 0``)."""

    starts: tuple[int, ...]
    gammas: tuple[float, ...]

    def __call__(self, k: int) -> float:
        """gamma_k."""
        i = max(i for i, start in enumerate(self.starts) if start <= k)
        return self.gammas[i]
