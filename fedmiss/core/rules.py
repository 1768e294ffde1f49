"""What a worker remembers and how the server moves: one small object per method, plugged into FedEM as ``memory``.

A rule is an object with the members of :class:`Field`; derive from it and change what differs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from fedmiss.arrays import F64
from fedmiss.core.protocols import Compressor, Model
from fedmiss.core.state import Downlink
from fedmiss.errors import ConfigError

if TYPE_CHECKING:
    from fedmiss.core.fedem import FedEM

__all__ = ["RULES", "Bare", "Error", "Field", "Nothing", "Statistic", "rule_of"]


@dataclass(frozen=True)
class Field:
    """FedEM: V_c learns h_c, D_c = S_c - S_k - V_c, H = V + sum_c (w_c / p_c) Q_c."""

    remembers: ClassVar[bool] = True  # False: V_c starts at 0 whatever ``init`` says
    learns: ClassVar[bool] = True  # False: alpha is 0
    scales: ClassVar[bool] = True  # False: messages must not be scaled by 1/p

    def check(self, algo: FedEM) -> None:
        """Raise ConfigError for settings with which the rule cannot work."""

    def first(self, S: F64, S_hat: F64) -> F64:
        """First memories with init "h", from the statistics at S_0."""
        return S - S_hat

    def increment(self, S: F64, V: F64, down: Downlink, gamma: float) -> F64:
        """D_c, what is compressed."""
        # Delta_c of algorithm 1, line 7, in place: D is as large as all workers' statistics together.
        D: F64 = S - down.S_hat
        D -= V
        return D

    def kept(self, D: F64, Q: F64) -> F64:
        """What the worker holds until its message is acknowledged."""
        return Q

    def settle(self, V: F64, kept: F64, alpha: float) -> F64:
        """V_c once the message has counted."""
        return V + alpha * kept

    def quant(self, algo: FedEM, k: int) -> Compressor:
        """Compressor of round ``k``."""
        return algo.compressor

    def server(
        self, V: F64, S_hat: F64, mean: F64, scaled: F64, alpha: float, gamma: float
    ) -> tuple[F64, F64]:
        """New V and H, from sum_c w_c Q_c and sum_c (w_c / p_c) Q_c."""
        # Lines 16 and 14 of algorithm 1.
        return V + alpha * mean, V + scaled  # no 1/p in V: it stays the mean of the V_c

    def place(self, model: Model, S_hat: F64) -> F64:
        """Where the server really goes, for rules with a projection or a proximal step."""
        return S_hat


@dataclass(frozen=True)
class Nothing(Field):
    """V_c stays 0: the naive ablation."""

    remembers: ClassVar[bool] = False
    learns: ClassVar[bool] = False


@dataclass(frozen=True)
class Statistic(Field):
    """V_c is the last S_c that the server knows, and S = mean V_c: silent workers count with what they said last."""

    def first(self, S: F64, S_hat: F64) -> F64:
        """The statistics themselves."""
        return S

    def increment(self, S: F64, V: F64, down: Downlink, gamma: float) -> F64:
        """Change of the statistic."""
        return S - V

    def server(
        self, V: F64, S_hat: F64, mean: F64, scaled: F64, alpha: float, gamma: float
    ) -> tuple[F64, F64]:
        """H leads to the mean of what is known."""
        # V = sum w_c V_c estimates s_bar(T(S_k)) itself here, so that h(S_k) is V - S_k.
        V = V + alpha * mean
        return V, V - S_hat


@dataclass(frozen=True)
class Error(Field):
    """Error feedback (Seide et al. 2014; Stich et al. 2018): V_c is what compression has left out so far."""

    remembers: ClassVar[bool] = False
    scales: ClassVar[bool] = False

    def increment(self, S: F64, V: F64, down: Downlink, gamma: float) -> F64:
        """What was left out, and the step that is wanted now."""
        # p = gamma g + e of error feedback, h_c = S_c - S_k for minus the gradient: gamma is inside what is compressed.
        return V + gamma * (S - down.S_hat)

    def kept(self, D: F64, Q: F64) -> F64:
        """What this message leaves out."""
        # The next e = p - C(p).
        return D - Q

    def settle(self, V: F64, kept: F64, alpha: float) -> F64:
        """It replaces what was left out before."""
        return kept

    def server(
        self, V: F64, S_hat: F64, mean: F64, scaled: F64, alpha: float, gamma: float
    ) -> tuple[F64, F64]:
        """S moves by the messages as they are."""
        # Messages hold gamma already; the step of FedEM multiplies by it again.
        return V, mean / gamma


@dataclass(frozen=True)
class Bare(Nothing):
    """C(S_c) itself is sent: the weekly report's Top-k, an ablation that keeps a bias for ever."""

    def increment(self, S: F64, V: F64, down: Downlink, gamma: float) -> F64:
        """The statistic itself."""
        return S - V

    def server(
        self, V: F64, S_hat: F64, mean: F64, scaled: F64, alpha: float, gamma: float
    ) -> tuple[F64, F64]:
        """H leads to the mean of what came."""
        # V stays 0: what is sent is S_c, and H = sum (w_c / p_c) C(S_c) - S_k has the bias of C at the root as well.
        return V + alpha * mean, V + scaled - S_hat


RULES: dict[str, Field] = {
    "field": Field(), "statistic": Statistic(), "error": Error(), "none": Nothing(), "bare": Bare(),
}  # fmt: skip


def rule_of(memory: str | Field) -> Field:
    """Return the rule of a name, or the rule given."""
    if isinstance(memory, str):
        if memory not in RULES:
            raise ConfigError(
                f"memory={memory!r} is unknown; use one of {', '.join(RULES)}, or a rule of core.rules."
            )
        return RULES[memory]
    return memory
