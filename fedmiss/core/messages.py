"""A worker's answer as bytes, and which answers count. What cannot be used counts as missing, and ends no run.

An answer is 8 bytes, the conditional expectations that it cost (-1 less those: no usable number), and the compressor's code.
Round, sender and integrity are the carrier's: a study signs, masks and compares whole frames (:mod:`fedmiss.federation`).
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from fedmiss.arrays import F64, I64, Bool
from fedmiss.core.protocols import Compressor
from fedmiss.core.state import Downlink, Dropped, Replies
from fedmiss.errors import UplinkError

if TYPE_CHECKING:
    from fedmiss.core.fedem import FedEM

HEADER = 16  # bytes counted with each code: round, size, cost and checksum, 4 each
LARGEST = 1e30  # of a number that a worker may want to send; its decoded message may be 1e15 times larger
_DECODED = 1e45
_COST = struct.Struct("<q")
_MOST = 1 << 40  # conditional expectations of one answer
_NOTHING = "its statistic holds nan, inf or a number above 1e30; look at its data."


def usable(X: F64) -> Bool:
    """(a,) which of the (a, q) vectors are finite and below :data:`LARGEST`."""
    out: Bool = np.abs(X).max(axis=-1, initial=0.0) < LARGEST  # nan compares as false
    return out


def compress_rows(compressor: Compressor, X: F64, U: F64) -> tuple[F64, I64]:
    """Return decode(encode(x)) of each row and the length of its code: ``compress_batch``, or one row at a time."""
    batch = getattr(compressor, "compress_batch", None)
    if batch is not None:
        out: tuple[F64, I64] = batch(X, U)
        return out
    codes = [compressor.encode(x, u) for x, u in zip(X, U, strict=True)]
    Q = np.array([compressor.decode(code, X.shape[1]) for code in codes]).reshape(X.shape)
    return Q, np.array([len(code) for code in codes], dtype=np.int64)


def compress(algo: FedEM, down: Downlink, slots: I64, X: F64, xi: F64, count: int) -> Replies:
    """Quant of each row of X (a, q), with real lengths: the answers of ``slots`` that count, all at once."""
    dropped: list[Dropped] = []
    size = HEADER * len(slots)
    # numpy's quickest test of a matrix: nan and inf fail it, and so does a sum of squares that is too large.
    if not np.vdot(X, X) < LARGEST**2:  # one pass; who it is, is only asked then
        good = usable(X)
        dropped = [_drop(algo, down.k, int(c), f"has nothing to send: {_NOTHING}") for c in slots[~good]]
        slots, X, xi = slots[good], X[good], xi[good]
    Q, nbytes = compress_rows(algo.rule.quant(algo, down.k), X, xi)
    return _bounded(algo, down, slots, Q, size + int(nbytes.sum()), count, dropped)


def encode(algo: FedEM, down: Downlink, X: F64, xi: F64, count: int) -> bytes:
    """One worker's answer: X (q,) its increment, xi the uniforms of its quantizer."""
    if not usable(X):
        # A worker with a statistic that is no number says so, in place of a code: the others need not wait for it.
        return _COST.pack(-1 - count)
    return _COST.pack(count) + algo.rule.quant(algo, down.k).encode(X, xi)


def collect(algo: FedEM, down: Downlink, answers: Mapping[int, bytes]) -> Replies:
    """Decode a round's answers, by slot: what is damaged or not finite is dropped, listed, and counts as missing."""
    slots, decoded, size, evaluations, dropped = [], [], 0, 0, []
    quant, q = algo.rule.quant(algo, down.k), algo.model.q
    # By slot, not by arrival: the server's sums must not depend on who was quickest.
    for slot, answer in sorted(answers.items()):
        size += HEADER + max(len(answer) - _COST.size, 0)
        try:
            (count,) = _COST.unpack(answer[: _COST.size]) if len(answer) >= _COST.size else (_MOST,)
            if len(answer) == _COST.size and -_MOST <= count < 0:
                evaluations += -1 - count
                raise UplinkError(f"has nothing to send: {_NOTHING}")
            if not 0 <= count < _MOST:
                raise UplinkError(f"sent {len(answer)} bytes that are no answer.")
            Q_i = quant.decode(answer[_COST.size :], q)
            if not float(np.abs(Q_i).max(initial=0.0)) < _DECODED:
                raise UplinkError(
                    f"sent numbers that are not finite or above {_DECODED:g}; look at its data."
                )
        except UplinkError as error:
            dropped.append(_drop(algo, down.k, slot, str(error)))
            continue
        slots.append(slot)
        decoded.append(Q_i)
        evaluations += count
    Q = np.array(decoded).reshape(len(slots), q)
    return _bounded(algo, down, np.array(slots, dtype=np.int64), Q, size, evaluations, dropped)


def _bounded(
    algo: FedEM, down: Downlink, slots: I64, Q: F64, size: int, count: int, dropped: list[Dropped]
) -> Replies:
    """Back to the statistic's coordinates, without the messages longer than ``bound`` times the median one (three at least).

    Source: none, a guard that no theorem asks for.
    """
    from_wire = getattr(algo.model, "from_wire", None)
    Q = Q if from_wire is None else from_wire(down.theta, Q)
    if algo.bound is not None and len(Q) >= 3:
        norms = np.sqrt(np.einsum("ij,ij->i", Q, Q))
        middle = float(np.median(norms))
        near = norms <= algo.bound * middle if middle > 0.0 else np.ones(len(Q), dtype=bool)
        words = f"sent a message more than bound={algo.bound:g} times as long as the median one"
        dropped = [*dropped, *(_drop(algo, down.k, int(c), words) for c in slots[~near])]
        slots, Q = slots[near], Q[near]
    return Replies(slots, Q, size, count, tuple(dropped))


def _drop(algo: FedEM, k: int, slot: int, words: str) -> Dropped:
    name = algo.roster.ids[slot]
    return Dropped(k, name, f"round {k}: worker {name!r} {words}")
