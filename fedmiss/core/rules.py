"""What a worker remembers and how the server moves: one small object per method, plugged into FedEM as ``memory``.

A rule is an object with the members of :class:`Field`; derive from it and change what differs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from fedmiss.arrays import F64
from fedmiss.core.oracles import OneByOne
from fedmiss.core.protocols import Compressor, Model, Rows, WorkerContext
from fedmiss.core.state import Downlink
from fedmiss.errors import ConfigError
from fedmiss.rng import uniforms

if TYPE_CHECKING:
    from fedmiss.core.fedem import FedEM


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


@dataclass(frozen=True)
class FedMM(Field):
    """FedEM's memories and step, followed by a projection (or proximal step) of S in the space of surrogates.

    Workers send what characterises their majorizing functions, not their parameters. A noisy step may leave the set on
    which T is defined; ``project`` brings it back. A projection keeps the roots that lie inside. ``||H||^2`` in the
    trace is that of the step before it.

    Source: the idea of Dieuleveut, Fort, Hegazy, Wai (arXiv 2507.17534). Differs from it: a projection only, no general
    proximal term; its norm is the caller's choice, fixed over rounds. ``fedmiss experiment fedmm`` draws the paper's
    curves on a problem of our own sizes, since its text could not be had.

    Parameters
    ----------
    project : function of S giving the nearest statistic at which T is defined; None takes the model's ``project``
    """

    project: Callable[[F64], F64] | None = None

    def place(self, model: Model, S_hat: F64) -> F64:
        """Project."""
        project = getattr(model, "project", None) if self.project is None else self.project
        if project is None:
            raise ConfigError(
                f"FedMM needs project(S), and {type(model).__name__} has none; give FedMM(project=...)."
            )
        # Instead of line 15 of algorithm 1: S_{k+1} = projection of S_k + gamma H.
        return project(S_hat)


@dataclass(frozen=True)
class Marina(Field, OneByOne):
    """With probability p a round is whole: V_c <- h_c(S_k). Otherwise V_c <- V_c + C(h_c(S_k) - h_c(S_{k-1})).

    Rule and oracle in one: ``FedEM(..., memory=m, oracle=m, alpha=1.0)``; H = mean V_c. All workers answer in all rounds.
    Source: Gorbunov, Burlachenko, Li, Richtarik (2021), algorithm 1. Differs in: a lost message is made good in the next
    whole round. ``full`` sends the whole answers, as ``Identity()``; the coin is thrown from ``seed``.
    """

    p: float
    full: Compressor
    seed: int = 0
    wants_own: ClassVar[bool] = True
    draws: ClassVar[int] = 0

    def check(self, algo: FedEM) -> None:
        """All present, alpha = 1, an unbiased compressor, and this oracle."""
        present = bool((algo.participation.prob(algo.roster.n) == 1.0).all())
        unbiased = getattr(algo.compressor, "delta", None) is None
        if not (0 < self.p <= 1 and algo.alpha == 1.0 and algo.oracle == self and present and unbiased):
            raise ConfigError("MARINA needs 0 < p <= 1, alpha=1, memory=oracle=Marina, all present, no bias.")

    def whole(self, k: int) -> bool:
        """Whether round k is whole; round 0 is."""
        # A worker that has never answered has no h_c(S_{k-1}): the first round must be whole.
        return k == 0 or bool(uniforms(self.seed, "marina", k, [0], 1)[0, 0] < self.p)

    def quant(self, algo: FedEM, k: int) -> Compressor:
        """Nothing is compressed in a whole round."""
        return self.full if self.whole(k) else algo.compressor

    def one(self, model: Model, memory: Any, down: Downlink, rows: Rows, u: F64, own: WorkerContext) -> Any:
        """S_c, or S_c moved so that D_c is the difference of the two fields."""
        S = model.s_bar(down.theta, rows)
        h = S - down.S_hat
        # The rule subtracts S_k and V_c: a whole round leaves h_c(S_k) - V_c, another h_c(S_k) - h_c(S_{k-1}).
        # The paper adds the compressed difference to the mean g, here a worker adds it to its own V_c: the means agree.
        sent = S if self.whole(down.k) or memory is None else down.S_hat + own.V_i.ravel() + (h - memory["h"])
        return sent, {"h": h}, len(rows)


def marina_step(p: float, *, omega: float, n: int, L: float, mu: float) -> float:
    """Largest gamma for which theorem 2.2 (PL) proves the rate 1 - gamma mu; L the rms of the workers' constants."""
    # sqrt(2 (1 - p) omega / (p n)) of theorem 2.2, which is 0 where every round is whole or nothing is compressed.
    spread = float(np.sqrt(2.0 * (1.0 - p) * omega / (p * n)))
    return min(1.0 / (L * (1.0 + spread)), p / (2.0 * mu))


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
