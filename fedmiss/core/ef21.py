"""EF21: a biased compressor made harmless by a memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from fedmiss.core.rules import Field
from fedmiss.errors import ConfigError

if TYPE_CHECKING:
    from fedmiss.core.fedem import FedEM

__all__ = ["EF21", "ef21_step"]


@dataclass(frozen=True)
class EF21(Field):
    """V_c <- V_c + C(h_c(S_k) - V_c), S <- S + gamma mean V_c: no bias at the root, with Top-k too.

    FedEM's step with alpha = 1 and no 1/p; silent workers count with what is remembered (``Remembered``). With gamma at
    most :func:`ef21_step`, the objective plus gamma / theta times the mean of ||V_c - h_c||^2 falls by 1 - gamma mu a round.

    Source: Richtarik, Sokolov, Fatkhullin (2021), algorithm 2 and theorem 2. Differs in: statistics in place of gradients;
    the field h_c stands for minus the gradient.
    """

    scales: ClassVar[bool] = False

    def check(self, algo: FedEM) -> None:
        """Alpha must be 1."""
        if algo.alpha != 1.0:
            raise ConfigError(f"EF21 has alpha=1, got {algo.alpha:g}; give alpha=1.")


def ef21_step(compressor: Any, q: int, *, L: float, L_mean: float, mu: float) -> tuple[float, float]:
    """(gamma, theta): the largest step for which the linear rate is proved, and the weight of the memories' error.

    ``L`` of the mean field, ``L_mean`` the root mean square of the workers' constants, ``mu`` of strong convexity or PL.
    """
    # Their alpha is the contraction delta of C, theta = 1 - sqrt(1 - alpha), beta = (1 - alpha) / theta.
    left = 1.0 - float(compressor.delta(q))
    theta = 1.0 - left**0.5
    # Theorem 2: gamma <= min( 1 / (L + L_mean sqrt(2 beta / theta)), theta / (2 mu) ).
    return min(1.0 / (L + L_mean * (2.0 * left) ** 0.5 / theta), theta / (2.0 * mu)), theta
