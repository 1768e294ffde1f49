"""One exchange before a run: a weighted mean of a value that each worker computes from its rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from fedmiss.arrays import F64
from fedmiss.core.fedem import FedEM
from fedmiss.core.protocols import Compressor, Engine, Rows, Theta
from fedmiss.core.state import Roster, RoundInfo
from fedmiss.errors import UplinkError

__all__ = ["gather"]


@dataclass(frozen=True, slots=True)
class _Value:
    """A statistic that does not depend on theta."""

    q: int
    value: Callable[[Rows], F64]

    def s_bar(self, theta: Theta, rows: Rows) -> F64:
        return np.asarray(self.value(rows), dtype=np.float64).reshape(self.q)

    def T(self, S: F64, /) -> F64:
        return S


def gather(
    value: Callable[[Rows], F64],
    q: int,
    roster: Roster,
    engine: Engine,
    compressor: Compressor,
    *,
    seed: int = 0,
) -> tuple[F64, RoundInfo]:
    """Return sum_c w_c value(rows of c), (q,), and what the exchange cost.

    For what a model needs before its first round: (1/N) sum y y' of a common covariance, a mean, S_0. Every worker
    must answer: one that is dropped raises UplinkError with its name, since a mean without it would be another one.

    Source: Dieuleveut et al. (2021), section 4: sum y y' is "collected once, at initialisation". Differs in nothing.
    """
    model = _Value(q, value)
    algo = FedEM(model, compressor, roster, 1.0, 1.0, memory="statistic", seed=seed)
    server = engine.start(algo, np.zeros(q), "zero")
    down = algo.broadcast(server)
    active = algo.participation.active(seed, 0, roster.n)
    replies = engine.round(algo, server, down, active)
    if len(replies.slots) < roster.n:
        silent = sorted(set(range(roster.n)) - set(replies.slots.tolist()))
        why = replies.dropped[0].reason if replies.dropped else "no answer came"
        raise UplinkError(
            f"worker {roster.ids[silent[0]]!r} ({len(silent)} of {roster.n}) is missing from a mean over all: {why}",
            worker=roster.ids[silent[0]],
        )
    server, info = algo.server_step(server, down, replies)
    return server.S_hat, info
