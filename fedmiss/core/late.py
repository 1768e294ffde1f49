"""Late answers: a worker that is asked in a round sends what it has computed since it was asked before."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedmiss.arrays import F64, I64
from fedmiss.core.oracles import Around, Spider
from fedmiss.core.protocols import Model, Shards
from fedmiss.core.state import Downlink
from fedmiss.errors import ConfigError
from fedmiss.settings import kinds_checked


@kinds_checked
@dataclass(frozen=True, slots=True)
class Late(Around):
    """Asynchronous answers: S_c = S_k + h_c(S_j), j the round in which c was asked before (its first answer is fresh).

    The worker starts to compute when it is asked and hands the result over when it is asked again, so nobody waits: its
    answer is as old as its pause between two rounds. The message is Quant(h_c(S_j) - V_c), and memories, bytes
    and checkpoints are those of every other answer.

    Steps must be smaller: with every worker one round late S_{k+1} = S_k + gamma h(S_{k-1}), which for a field of slope
    -1 needs gamma < 1 instead of 2.

    Source: none in the papers, which are synchronous; stale fields as in asynchronous stochastic approximation (Tsitsiklis,
    Bertsekas, Athans 1986). For models without a carry; not around SPIDER.
    """

    def __post_init__(self) -> None:
        if getattr(self.inner, "corrects", False):
            raise ConfigError(
                f"Late({self.inner!r}): local steps with control variates need this round's V; use local steps without "
                "correction, or another oracle."
            )
        if isinstance(self.inner, Spider):  # it keeps one point a round, and late answers are at several
            raise ConfigError(
                f"Late({self.inner!r}): use SemVr, each of whose workers keeps its own reference."
            )

    @property
    def wants_own(self) -> bool:
        """As the oracle inside."""
        return bool(getattr(self.inner, "wants_own", False))

    def start_many(self, n: int, q: int) -> tuple[F64, object]:
        """Statistics S_j (nan: never asked), memory of the oracle inside."""
        return np.full((n, q), np.nan), self.inner.start_many(n, q)

    def many(
        self,
        model: Model,
        memory: tuple[F64, Any],
        down: Downlink,
        data: Shards,
        slots: I64,
        u: F64,
        *own: Any,
    ) -> tuple[F64, int]:
        """Answers of those asked, together for workers that were asked in the same round before."""
        S, inner = memory
        before, out, count = S[slots], np.empty((len(slots), model.q)), 0
        # Rows of ``before`` that are alike stem from the same round: their workers share one theta_j = T(S_j), one M-step.
        _, kind = np.unique(before, axis=0, return_inverse=True, equal_nan=True)
        for i in range(int(kind.max(initial=-1)) + 1):
            at = np.flatnonzero(kind.ravel() == i)
            first = before[at[0]]
            old = down if np.isnan(first[0]) else replace(down, S_hat=first, theta=model.T(first))
            mine = [context.of(at) for context in own]
            new, cost = self.inner.many(model, inner, old, data, slots[at], u[at], *mine)
            # S_c - S_k = h_c(S_j): the old field at the new point.
            out[at] = new - old.S_hat + down.S_hat
            count += cost
        S[slots] = down.S_hat
        return out, count

    def pack(self, memory: tuple[F64, object]) -> dict[str, np.ndarray]:
        """S_j, and the memory inside."""
        return {"S": memory[0]} | self.pack_inner(memory[1])

    def unpack(self, model: Model, arrays: Mapping[str, np.ndarray], n: int, q: int) -> tuple[F64, object]:
        """Return what ``pack`` saw."""
        return np.array(arrays["S"]), self.unpack_inner(model, arrays, n, q)
