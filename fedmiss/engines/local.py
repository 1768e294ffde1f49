"""Engines in this process: vectorised over workers, and one worker at a time through real messages."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from fedmiss.arrays import F64, I64
from fedmiss.core.arrivals import hear, open_batch, pack_batch
from fedmiss.core.fedem import FedEM
from fedmiss.core.oracles import s_bar_many
from fedmiss.core.protocols import Rows, Shards
from fedmiss.core.state import Downlink, Dropped, Replies, ServerState, Uplink, WorkerState
from fedmiss.errors import ConfigError, UplinkError

__all__ = ["LocalEngine", "PlainEngine", "first_memories", "in_slot_order"]


def in_slot_order(algo: FedEM, data: Shards | Mapping[str, Rows]) -> Shards:
    """Check that the data fit the roster; return them in slot order."""
    if isinstance(data, Mapping):
        missing = [name for name in algo.roster.ids if name not in data]
        if missing:
            raise ConfigError(f"there are no data of worker {missing[0]!r} (of {algo.roster.n} workers).")
        data = [data[name] for name in algo.roster.ids]
    sizes = [len(rows) for rows in data]
    if sizes != algo.roster.sizes.tolist():
        raise ConfigError(
            f"the data have {len(sizes)} workers with {sum(sizes)} rows in all; the roster says {algo.roster.n} "
            f"workers with {algo.roster.total}, each of its own size. Make the roster from these data."
        )
    return data


def _stacked(data: Shards) -> Shards:
    """One (n, m, ...) array when all workers hold equal numbers of the same kind of rows: the fast path."""
    if isinstance(data, np.ndarray) or not all(isinstance(rows, np.ndarray) for rows in data):
        return data
    if len({(rows.shape, rows.dtype) for rows in data}) > 1:
        return data
    return np.stack(data)


def first_memories(algo: FedEM, data: Shards, S_hat: F64, init: str | F64) -> F64:
    """Return the (n, q) first memories V_c: h_c(S_0) ("h"), zeros ("zero"), or the values given."""
    n, q = algo.roster.n, algo.model.q
    if not isinstance(init, str):
        return np.array(init, dtype=np.float64)
    if init not in ("h", "zero"):
        raise ConfigError(
            f"init={init!r} is unknown; use 'h' (local field at S_0), 'zero', or an (n, q) array."
        )
    if init == "zero" or not algo.rule.remembers:
        return np.zeros((n, q))
    zero = algo.init(S_hat, np.zeros((n, q)))
    theta = algo.broadcast(zero).theta
    S = s_bar_many(algo.model, theta, data, np.arange(n, dtype=np.int64), None)
    return algo.first_memories(zero, S)


class LocalEngine:
    """All workers at once, on stacked arrays; the fast path for simulations and for fits on one machine.

    Parameters
    ----------
    data : (n, m, ...) array, or one row container per worker in slot order, or a mapping from worker names.
        Each container needs ``len`` and ``[index]``.

    A worker whose statistic is not finite is left out of the round, as if its message had not come.

    Examples
    --------
    >>> import numpy as np, fedmiss
    >>> from fedmiss.core import pooled_s_bar
    >>> from fedmiss.models.gmm import GMMParams
    >>> rows = np.random.default_rng(0).normal(size=(4, 50, 1)) + np.where(np.arange(50) % 2, 3, -3)[:, None]
    >>> model = fedmiss.models.GMM(G=2, d=1, covariance="known", Sigma=np.eye(1))
    >>> roster = fedmiss.core.Roster.of([50] * 4)  # four workers with 50 rows each
    >>> start = pooled_s_bar(model, GMMParams(np.array([0.5, 0.5]), np.array([[-1.0], [1.0]]), np.eye(1)), rows, roster)
    >>> engine = fedmiss.engines.LocalEngine(rows)
    >>> algo = fedmiss.core.FedEM(model, fedmiss.compressors.Dithering(), roster, gamma=0.1)
    >>> fedmiss.core.run(algo, engine, start, stop=3).server.k
    3
    """

    def __init__(self, data: Shards | Mapping[str, Rows]) -> None:
        self._data = data
        self.V: F64 = np.empty((0, 0))
        self._memory: object = None
        self._rows: Shards = ()

    def start(self, algo: FedEM, S_hat: F64, init: str | F64) -> ServerState:
        """See :class:`fedmiss.core.protocols.Engine`."""
        self._rows = _stacked(in_slot_order(algo, self._data))
        self.V = first_memories(algo, self._rows, S_hat, init)
        self._memory = algo.oracle.start_many(algo.roster.n, algo.model.q)
        return algo.init(S_hat, self.V)

    def round(self, algo: FedEM, server: ServerState, down: Downlink, active: I64) -> Replies:
        """Every active worker answers, nothing is lost."""
        return algo.workers_step(self.V, self._memory, down, self._rows, active)

    def save(self, algo: FedEM) -> dict[str, np.ndarray]:
        """Memories V_c and the oracle's."""
        return {"V": self.V} | {f"oracle.{k}": v for k, v in algo.oracle.pack(self._memory).items()}

    def load(self, algo: FedEM, arrays: dict[str, np.ndarray]) -> None:
        """Restore what :meth:`save` gave."""
        self._rows = _stacked(in_slot_order(algo, self._data))
        self.V = np.array(arrays["V"], dtype=np.float64)
        packed = {k[7:]: v for k, v in arrays.items() if k.startswith("oracle.")}
        self._memory = algo.oracle.unpack(algo.model, packed, algo.roster.n, algo.model.q)


class PlainEngine:
    """One worker at a time, through encoded messages, in any order: what a network does, without the network.

    Gives the bits of :class:`LocalEngine`. ``backwards`` asks the workers in reverse order. ``together`` puts the
    answers of a round under one header (:func:`fedmiss.core.arrivals.pack_batch`): what a machine with many workers
    sends; only ``bytes_up`` differs. ``tamper``, for tests, changes the answers on their way.
    """

    def __init__(
        self,
        data: Shards | Mapping[str, Rows],
        *,
        backwards: bool = False,
        together: bool = False,
        tamper: Callable[[Uplink], Uplink] | None = None,
    ) -> None:
        self._data = data
        self._backwards, self._together, self._tamper = backwards, together, tamper
        self._rows: Shards = ()
        self.workers: list[WorkerState] = []

    def start(self, algo: FedEM, S_hat: F64, init: str | F64) -> ServerState:
        """See :class:`fedmiss.core.protocols.Engine`."""
        self._rows = in_slot_order(algo, self._data)
        V = first_memories(algo, self._rows, S_hat, init)
        self.workers = [WorkerState(V_i, None, algo.oracle.start()) for V_i in V]
        return algo.init(S_hat, V)

    def ask(self, algo: FedEM, server: ServerState, down: Downlink, slot: int) -> Uplink:
        """One worker answers and keeps its new state."""
        self.workers[slot], up = algo.worker_step(
            self.workers[slot], down.to(int(server.acks[slot])), self._rows[slot], slot
        )
        return up

    def round(self, algo: FedEM, server: ServerState, down: Downlink, active: I64) -> Replies:
        """Every active worker answers, nothing is lost."""
        uplinks, dropped = self.answers(algo, server, down, active)
        if not self._together or not uplinks:
            return algo.collect(down, active, uplinks, dropped)
        message = pack_batch(algo, down.k, uplinks)
        parts, damaged = open_batch(algo, down, message, "this machine")
        replies = algo.collect(down, active, parts, [*dropped, *damaged])
        return replace(replies, bytes_up=len(message))

    def answers(
        self, algo: FedEM, server: ServerState, down: Downlink, active: I64
    ) -> tuple[list[Uplink], list[Dropped]]:
        """Ask the active workers; return their answers, and who refused the broadcast and why."""
        uplinks, dropped = [], []
        for c in active[::-1] if self._backwards else active:
            try:
                up = self.ask(algo, server, down, int(c))
            except UplinkError as error:
                dropped.append(Dropped(down.k, algo.roster.ids[int(c)], str(error)))
                continue
            uplinks.append(up if self._tamper is None else self._tamper(up))
        return uplinks, dropped

    def settled(self, algo: FedEM, server: ServerState) -> F64:
        """(n, q) memories V_c once every worker has heard ``server``: what counted, and whether it went back."""
        out = np.empty((algo.roster.n, algo.model.q))
        for c, (worker, ack) in enumerate(zip(self.workers, server.acks, strict=True)):
            down = Downlink(server.k, server.S_hat, None, int(ack), saved=server.saved, life=server.life)
            try:
                out[c] = hear(algo, worker, down, algo.roster.ids[c])[0].V_i
            except UplinkError:  # it will not follow, and keeps what it has
                out[c] = algo.settle(worker, int(ack))
        return out

    def save(self, algo: FedEM) -> dict[str, np.ndarray]:
        """Not offered: each worker of a network keeps its own state on its own disk."""
        raise ConfigError(
            "the one-by-one engine writes no checkpoint; use LocalEngine, which gives the same bits."
        )

    def load(self, algo: FedEM, arrays: dict[str, np.ndarray]) -> None:
        """Not offered, see :meth:`save`."""
        raise ConfigError(
            "the one-by-one engine reads no checkpoint; use LocalEngine, which gives the same bits."
        )
