"""The core's algorithms over a transport: the machine that carries the default job carries algorithm 7 and mixtures too.

A transport is anything with sorted ``names`` and ``ask(frames) -> answers``, bytes in and bytes out
(``fedmiss.federation.link.Transport``): in process, pipes, or a federated framework.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np

from fedmiss.arrays import F64, I64
from fedmiss.core.fedem import FedEM
from fedmiss.core.letters import pack_downlink, pack_worker, unpack_downlink, unpack_worker
from fedmiss.core.protocols import Rows
from fedmiss.core.state import Downlink, Dropped, Replies, ServerState, Uplink, WorkerState
from fedmiss.errors import ConfigError, UplinkError

__all__ = ["CoreWorker", "TransportEngine"]

_ROUND, _FIRST, _REFUSED = b"R", b"M", b"X"


class Carrier(Protocol):
    """What is asked of a transport."""

    names: Sequence[str]

    def ask(self, frames: Mapping[str, bytes]) -> dict[str, bytes]:
        """Carry one frame to every worker named; a worker that is missing has no answer."""
        ...


class CoreWorker:
    """One worker of the core behind a transport: a broadcast in, a message out.

    Parameters
    ----------
    algo : the job, the same on all sides (its hash is in every frame)
    name : the worker's name in the roster;  rows : its data
    """

    def __init__(self, algo: FedEM, name: str, rows: Rows) -> None:
        self.algo, self.name, self.rows = algo, name, rows
        self.slot = algo.roster.slots[name]
        self.state = WorkerState(np.zeros(algo.model.q), None, algo.oracle.start())

    def answer(self, frame: bytes) -> bytes:
        """Answer a broadcast; the first one asks for the memory h_c(S_0)."""
        try:
            down = unpack_downlink(self.algo, frame[1:])
            if frame[:1] == _FIRST:
                S = self.algo.model.s_bar(down.theta, self.rows)[None]
                server = ServerState(down.S_hat, np.zeros_like(S[0]), 0, np.zeros(0, dtype=np.int64))
                first = WorkerState(self.algo.first_memories(server, S)[0], None, self.algo.oracle.start())
                self.state = first
                return _FIRST + pack_worker(self.algo, self.state, self.name)
            self.state, up = self.algo.worker_step(self.state, down, self.rows, self.slot)
        except UplinkError as error:
            return _REFUSED + str(error).encode()
        return _ROUND + up.payload


class TransportEngine:
    """Workers behind a transport; gives the bits of ``LocalEngine``."""

    def __init__(self, transport: Carrier) -> None:
        self.transport = transport

    def start(self, algo: FedEM, S_hat: F64, init: str | F64) -> ServerState:
        """See :class:`fedmiss.core.protocols.Engine`; memories are zero or h_c(S_0), not given values."""
        if not isinstance(init, str) or init not in ("zero", "h"):
            raise ConfigError(
                "workers behind a transport start with init='zero' or init='h' (their local field)."
            )
        missing = [name for name in algo.roster.ids if name not in self.transport.names]
        if missing:
            raise ConfigError(
                f"worker {missing[0]!r} of the roster is not at the transport; start it, or leave it out."
            )
        n, q = algo.roster.n, algo.model.q
        V = np.zeros((n, q))
        server = algo.init(S_hat, V)
        if init == "zero" or not algo.rule.remembers:
            return server
        frame = _FIRST + pack_downlink(algo, algo.broadcast(server))
        answers = self.transport.ask(dict.fromkeys(algo.roster.ids, frame))
        for c, name in enumerate(algo.roster.ids):
            answer = answers.get(name, b"")
            if answer[:1] != _FIRST:
                raise UplinkError(
                    f"worker {name!r} sent no first memory: {answer[1:].decode(errors='replace') or 'no answer'}. "
                    "Start it again.",
                    worker=name,
                )
            V[c] = unpack_worker(algo, answer[1:], name).V_i
        return algo.init(S_hat, V)

    def round(self, algo: FedEM, server: ServerState, down: Downlink, active: I64) -> Replies:
        """Ask the active workers; who is missing, or refuses, counts as missing."""
        ids = algo.roster.ids
        frames = {ids[c]: _ROUND + pack_downlink(algo, down.to(int(server.acks[c]))) for c in active}
        answers = self.transport.ask(frames)
        uplinks, dropped = [], []
        for name in frames:
            answer = answers.get(name)
            if answer is None:
                dropped.append(Dropped(down.k, name, "no answer"))
            elif answer[:1] == _ROUND:
                uplinks.append(Uplink(down.k, name, answer[1:]))
            else:
                dropped.append(Dropped(down.k, name, answer[1:].decode(errors="replace")))
        return algo.collect(down, active, uplinks, dropped)

    def save(self, algo: FedEM) -> dict[str, np.ndarray]:
        """Not offered: each worker keeps its own state on its own disk (``core.letters.pack_worker``)."""
        raise ConfigError(
            "workers behind a transport keep their own state; the hub has no checkpoint of them."
        )

    def load(self, algo: FedEM, arrays: dict[str, np.ndarray]) -> None:
        """Not offered, see :meth:`save`."""
        raise ConfigError(
            "workers behind a transport keep their own state; the hub has no checkpoint of them."
        )
