"""What arrives, at a worker and at the server. Nothing that cannot be used ends a run.

A worker reads a broadcast: fresh, repeated, stale, or of a server that went back to a checkpoint. The server reads
the answers: whole, damaged, poisoned, doubled, uninvited.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from fedmiss.arrays import F64, I64, Bool
from fedmiss.core.state import Base, Downlink, Dropped, Replies, Uplink, WorkerState
from fedmiss.core.wire import HEADER, REFUSED, Part, frame, frame_batch, unframe, unframe_batch, work_of
from fedmiss.errors import UplinkError

if TYPE_CHECKING:
    from fedmiss.core.fedem import FedEM

__all__ = [
    "LARGEST", "NOTHING", "bounded", "collect", "hear", "nothing", "open_batch", "outliers", "pack_batch",
    "read_uplink", "too_long", "usable",
]  # fmt: skip

LARGEST = 1e30  # of a number that a worker may want to send; its decoded message may be 1e15 times larger
_DECODED = 1e45
NOTHING = b"its statistic holds nan, inf or a number above 1e30; look at its data."
_UNSTATED = 15  # number of the cost of an oracle that does not list its costs


def usable(D: F64) -> Bool:
    """(a,) which of the (a, q) vectors are finite and below :data:`LARGEST`."""
    out: Bool = np.abs(D).max(axis=-1, initial=0.0) < LARGEST  # nan compares as false
    return out


def nothing(name: str, k: int) -> str:
    """Why a worker without a usable number is left out, as the server reads it in its frame."""
    return f"worker {name!r} has nothing to send at round {k}: {NOTHING.decode()}"


def outliers(Q: F64, bound: float | None) -> Bool:
    """(a,) which messages are more than ``bound`` times as long as the median one; none when fewer than three came.

    Source: none, a guard that no theorem asks for.
    """
    if bound is None or len(Q) < 3:
        return np.zeros(len(Q), dtype=bool)
    norms = np.sqrt(np.einsum("ij,ij->i", Q, Q))
    middle = float(np.median(norms))
    out: Bool = norms > bound * middle if middle > 0.0 else np.zeros(len(Q), dtype=bool)
    return out


# ---- worker ---------------------------------------------------------------------------------------------------------


def hear(algo: FedEM, worker: WorkerState, down: Downlink, name: str) -> tuple[WorkerState, object]:
    """Read a broadcast: return the settled state, and the estimator's memory from which to answer.

    The worker knows which of its messages the server counts by ``down.ack``, and refuses (UplinkError) whatever
    does not fit what it remembers: V would part from the mean of the V_c for good. A server that starts again from
    the last checkpoint that the worker heard of is followed back to it.
    """
    asked = worker.pending[0] if worker.pending is not None else None
    who = f"worker {name!r}"
    if down.life < worker.life or (down.life == worker.life and asked is not None and down.k < asked):
        raise UplinkError(
            f"{who} heard round {down.k} after round {asked if asked is not None else worker.acked}: the broadcast "
            "is stale (delayed on the way, or of a server that was restored without load_checkpoint); it is refused.",
            worker=name,
            k=down.k,
        )
    base, prev, memory, V_i = worker.base, worker.prev, worker.oracle, worker.V_i
    again = down.life > worker.life
    if again and base is not None and base.k == down.saved and base.acked == down.ack:
        V_i, memory = base.V_i, base.oracle
    elif down.ack == worker.acked:
        if asked == down.k and not again:
            memory = worker.before  # the same question again: the same bytes
    elif asked is not None and down.ack == asked:
        V_i = algo.settle(worker, down.ack)
        prev = Base(asked, worker.acked, worker.V_i, worker.before)
    elif base is not None and base.acked == down.ack:
        # it wrote later checkpoints after it went back, without this worker
        V_i, memory = base.V_i, base.oracle
    elif prev is not None and prev.acked == down.ack:
        V_i, memory, prev = prev.V_i, prev.oracle, None  # it went back two rounds
    else:
        held = f"its memory holds its messages up to round {worker.acked}"
        raise UplinkError(
            f"{who} cannot follow the server back or ahead: the server counts its message of round {down.ack} as the "
            f"last one at round {down.k}, {held}"
            + (f", and it can go back to the checkpoint of round {base.k}" if base is not None else "")
            + ". Restore the server from its latest checkpoint, or start the job anew.",
            worker=name,
            k=down.k,
        )
    if down.saved > (base.k if base is not None else -1) and down.ack < down.saved:
        base = Base(down.saved, down.ack, V_i, memory)
    return replace(
        worker, V_i=V_i, acked=down.ack, life=down.life, base=base, prev=prev, pending=None
    ), memory


# ---- server ---------------------------------------------------------------------------------------------------------


def read_uplink(algo: FedEM, down: Downlink, up: Uplink, slot: int) -> tuple[F64, int]:
    """Return (decoded message (q,), conditional expectations computed) or raise UplinkError with the worker's name."""
    q, k, name = algo.model.q, down.k, up.worker
    payload = unframe(
        up.payload, kind=algo.compressor.kind, k=k, q=q, worker=name, context=algo.context(name)
    )
    return _decode(algo, down, payload, name), _work(algo, slot, work_of(up.payload), up, k)


def _decode(algo: FedEM, down: Downlink, payload: bytes, name: str) -> F64:
    try:
        Q = algo.from_wire(down.theta, algo.rule.quant(algo, down.k).decode(payload, algo.model.q))
    except UplinkError as error:
        raise UplinkError(f"worker {name!r} at round {down.k}: {error}", worker=name, k=down.k) from None
    if not float(np.abs(Q).max(initial=0.0)) < _DECODED:
        worst = float(Q[np.argmax(~np.isfinite(Q))]) if not np.isfinite(Q).all() else float(np.abs(Q).max())
        raise UplinkError(
            f"worker {name!r} sent {worst:g} at round {down.k} (numbers must be finite and below {_DECODED:g}): it "
            "counts as missing; look at that worker's data.",
            worker=name,
            k=down.k,
        )
    return Q


def _work(algo: FedEM, slot: int, code: int, up: Uplink, k: int) -> int:
    costs = algo.costs(slot)
    claimed = up.evaluations
    if costs is None:  # an oracle of somebody else's that lists none: a count is at least a number of rows
        costs, code = ((claimed,), 0) if code == _UNSTATED and 0 <= claimed < 1 << 40 else ((), code)
    if code >= len(costs) or claimed not in (0, costs[code]):
        raise UplinkError(
            f"worker {up.worker!r} claims {claimed} conditional expectations at round {k} (an answer costs one of "
            f"{list(costs)[:8]}): it counts as missing; restart it with this run's settings.",
            worker=up.worker,
            k=k,
        )
    return int(costs[code])


def collect(
    algo: FedEM, down: Downlink, active: I64, uplinks: Iterable[Uplink], dropped: Iterable[Dropped] = ()
) -> Replies:
    """Check and decode the messages of a round, in slot order whatever their order of arrival.

    What is damaged, poisoned, late, uninvited or doubled with other bytes is dropped, listed in ``dropped`` and
    counts as missing, so its worker does not add it to V_c. ``dropped`` given: what the machine lost already.
    """
    asked = set(np.asarray(active).tolist())
    out, size = list(dropped), 0
    came: dict[int, list[Uplink]] = {}
    for up in uplinks:
        size += len(up.payload)
        slot = algo.roster.slots.get(up.worker)
        if slot is None or slot not in asked:
            reason = f"worker {up.worker!r} answered round {down.k} without being asked"
            out.append(Dropped(down.k, str(up.worker), reason))
        else:
            came.setdefault(slot, []).append(up)
    slots, Q, evaluations = [], [], 0
    for slot in sorted(came):
        first, *more = came[slot]
        if any(up.payload != first.payload for up in more):
            reason = (
                f"worker {first.worker!r} answered round {down.k} twice with different bytes; two processes run "
                "under one name: stop one"
            )
            out.append(Dropped(down.k, first.worker, reason))
            continue
        try:
            Q_i, count = read_uplink(algo, down, first, slot)
        except UplinkError as error:
            out.append(Dropped(down.k, first.worker, str(error)))
            continue
        slots.append(slot)
        Q.append(Q_i)
        evaluations += count
    found = np.array(Q).reshape(len(slots), algo.model.q)
    return bounded(algo, down, Replies(np.array(slots, dtype=np.int64), found, size, evaluations, tuple(out)))


def bounded(algo: FedEM, down: Downlink, replies: Replies) -> Replies:
    """Drop the messages that are too long beside the others' (``FedEM.bound``)."""
    far = outliers(replies.Q, algo.bound)
    if not far.any():
        return replies
    return replace(
        replies,
        slots=replies.slots[~far],
        Q=replies.Q[~far],
        dropped=(*replies.dropped, *too_long(algo, down.k, replies.slots[far])),
    )


def too_long(algo: FedEM, k: int, slots: I64) -> list[Dropped]:
    """Entries of the list of dropped messages."""
    return [
        Dropped(
            k,
            algo.roster.ids[c],
            f"worker {algo.roster.ids[c]!r} sent a message more than bound={algo.bound:g} times as long as the median "
            f"one at round {k}; it counts as missing",
        )
        for c in slots
    ]


# ---- many workers of one machine -------------------------------------------------------------------------------------


def pack_batch(algo: FedEM, k: int, uplinks: Iterable[Uplink]) -> bytes:
    """One frame for the answers of several workers: their 16-byte headers become about 3 bytes each."""
    order = sorted((algo.roster.slots[up.worker], up) for up in uplinks)
    parts = [Part(slot, work_of(up.payload), up.payload[3], up.payload[HEADER:]) for slot, up in order]
    kind, q = algo.compressor.kind, algo.model.q
    return frame_batch(parts, kind=kind, k=k, q=q, context=algo.context(""))


def open_batch(
    algo: FedEM, down: Downlink, message: bytes, sender: str
) -> tuple[list[Uplink], list[Dropped]]:
    """Return the answers in a batch, framed one by one again, and what could not be used; never raises UplinkError."""
    kind, q, k = algo.compressor.kind, algo.model.q, down.k
    try:
        parts = unframe_batch(message, kind=kind, k=k, q=q, sender=sender, context=algo.context(""))
    except UplinkError as error:
        return [], [Dropped(k, sender, str(error))]
    ups, out = [], []
    for part in parts:
        if part.slot >= algo.roster.n:
            out.append(
                Dropped(k, sender, f"the batch of {sender!r} names slot {part.slot} of {algo.roster.n}")
            )
            continue
        name = algo.roster.ids[part.slot]
        which = REFUSED if part.kind == REFUSED else kind
        whole = frame(part.payload, kind=which, k=k, q=q, work=part.work, context=algo.context(name))
        ups.append(Uplink(k, name, whole))
    return ups, out
