"""Step sizes gamma_k."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from fedmiss.errors import ConfigError

__all__ = ["Decreasing", "Piecewise"]

Schedule = float | Callable[[int], float]


def _positive(name: str, value: float) -> None:
    if not (math.isfinite(value) and value > 0.0):
        raise ConfigError(f"{name}={value} of the schedule is not a positive number.")


@dataclass(frozen=True, slots=True)
class Decreasing:
    """gamma_k = gamma / (1 + k / k0)^power: the classical stochastic-approximation step."""

    gamma: float
    k0: float = 100.0
    power: float = 0.6

    def __post_init__(self) -> None:
        _positive("gamma", self.gamma)
        _positive("k0", self.k0)
        if not (math.isfinite(self.power) and self.power >= 0.0):
            raise ConfigError(f"power={self.power} of the schedule must be 0 (constant) or more.")

    def __call__(self, k: int) -> float:
        """gamma_k."""
        return self.gamma / float((1.0 + k / self.k0) ** self.power)


@dataclass(frozen=True, slots=True)
class Piecewise:
    """gamma_k constant between given rounds: ``gammas[i]`` from ``starts[i]`` on (``starts[0] == 0``)."""

    starts: tuple[int, ...]
    gammas: tuple[float, ...]

    def __post_init__(self) -> None:
        starts = self.starts
        if (
            not starts
            or starts[0] != 0
            or len(starts) != len(self.gammas)
            or list(starts) != sorted({*starts})
        ):
            raise ConfigError(
                f"starts={starts} of {len(self.gammas)} steps: give one increasing start for each step, the first 0."
            )
        for gamma in self.gammas:
            _positive("gamma", gamma)

    def __call__(self, k: int) -> float:
        """gamma_k."""
        i = max(i for i, start in enumerate(self.starts) if start <= k)
        return self.gammas[i]
