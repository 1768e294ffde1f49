"""Step sizes gamma_k."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from fedmiss.errors import ConfigError
from fedmiss.settings import kinds_checked


def _positive(name: str, value: float) -> None:
    if not (math.isfinite(value) and value > 0.0):
        raise ConfigError(f"{name}={value} of the schedule is not a positive number.")


@kinds_checked
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
        # Robbins and Monro: sum gamma_k diverges and sum gamma_k^2 does not for a power in (1/2, 1].
        return self.gamma / float((1.0 + k / self.k0) ** self.power)


@kinds_checked
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


@kinds_checked
@dataclass(frozen=True, slots=True)
class Times:
    """A schedule times a constant: gamma_k = eta_k H of local steps."""

    schedule: Callable[[int], float]
    factor: float

    def __call__(self, k: int) -> float:
        """gamma_k."""
        return self.factor * float(self.schedule(k))


@kinds_checked
@dataclass(frozen=True, slots=True)
class SaemSteps:
    """rho_k of SAEM: ``cap`` up to round R1, then min(cap, (k - R1 + 1)^-a).

    Source: Delyon, Lavielle, Moulines (1999) for a in (1/2, 1]; Kuhn, Lavielle (2005) for the two phases. Differs from
    saemix in the default a = 0.7 instead of 1, which freezes a slow EM, and in the cap for compressed messages.
    """

    R1: int = 300
    a: float = 0.7
    cap: float = 1.0

    def __post_init__(self) -> None:
        _positive("cap", self.cap)
        if self.R1 < 0 or not 0.0 <= self.a <= 1.0 or self.cap > 1.0:
            raise ConfigError(
                f"R1={self.R1}, a={self.a}, cap={self.cap}: give R1 >= 0, a in [0, 1], cap in (0, 1]."
            )

    def __call__(self, k: int) -> float:
        """rho_k."""
        return min(self.cap, float(max(k - self.R1 + 1, 1) ** -self.a))
