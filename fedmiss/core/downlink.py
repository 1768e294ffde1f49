"""What a broadcast costs, and broadcasts that are compressed too.

With a compressed downlink workers hold E_k, which moves by C(S_k - E_k) / (1 + omega), and answer at T(E_k), which each
computes itself. A worker whose answer of the round before did not count gets E_k whole. Source: Philippenko and Dieuleveut
(2020), Artemis, with the memory on the server; not in the paper.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedmiss.arrays import F64, I64
from fedmiss.core.messages import HEADER
from fedmiss.core.state import Downlink, ServerState
from fedmiss.core.sums import theta_bytes
from fedmiss.rng import uniforms

if TYPE_CHECKING:
    from fedmiss.core.fedem import FedEM

__all__ = ["move"]


def move(algo: FedEM, server: ServerState, down: Downlink, S_hat: F64, slots: I64) -> tuple[F64 | None, int]:
    """Return what the workers will hold (None: S_k itself), and the bytes of the round's broadcast."""
    a, q, quant = len(slots), algo.model.q, algo.downlink
    V = 0 if down.V is None else 8 * q
    # Without compression everybody gets S_k and theta_k = T(S_k), line 17 of algorithm 1.
    if quant is None or server.shadow is None:
        return None, a * (HEADER + 8 * q + theta_bytes(down.theta) + V)
    u = uniforms(algo.seed, "downlink", server.k, [0], quant.draws(q))[0]
    code = quant.encode(S_hat - server.shadow, u)
    # E_k is the same at all who heard the last round; the others (no answer counted) get it whole, and go on from there.
    follow = int((server.acks[slots] == server.k - 1).sum()) if server.k else 0
    size = follow * (HEADER + len(code) + V) + (a - follow) * (HEADER + 8 * q + V)
    # 1 / (1 + omega) is the step of the memory, as alpha is upwards.
    return server.shadow + quant.decode(code, q) / (1.0 + quant.omega(q)), size
