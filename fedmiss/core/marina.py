"""MARINA: compressed differences, and now and then a whole answer of everybody."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from fedmiss.arrays import F64
from fedmiss.core.oracles import OneByOne
from fedmiss.core.protocols import Compressor, Model, Rows, WorkerContext
from fedmiss.core.rules import Field
from fedmiss.core.state import Downlink
from fedmiss.errors import ConfigError
from fedmiss.rng import uniforms

if TYPE_CHECKING:
    from fedmiss.core.fedem import FedEM

__all__ = ["Marina", "marina_step"]


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
