"""The engine of simulations and of fits on one machine: all workers in this process, vectorised."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from fedmiss.arrays import F64, I64
from fedmiss.core.checks import check_rows
from fedmiss.core.fedem import FedEM
from fedmiss.core.fingerprint import describe, digest
from fedmiss.core.messages import compress
from fedmiss.core.oracles import s_bar_many
from fedmiss.core.protocols import Rows, Shards
from fedmiss.core.state import Downlink, Replies, ServerState
from fedmiss.errors import ConfigError


def in_slot_order(algo: FedEM, data: Shards | Mapping[str, Rows]) -> Shards:
    """Check that the data fit the roster; return them in slot order, as one (n, m, ...) array where all are alike."""
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
    if isinstance(data, np.ndarray) or not all(isinstance(rows, np.ndarray) for rows in data):
        return data
    return np.stack(data) if len({(rows.shape, rows.dtype) for rows in data}) == 1 else data


def first_memories(algo: FedEM, data: Shards, S_hat: F64, init: str | F64, at: I64 | None = None) -> F64:
    """Return the (a, q) first memories V_c of the rows ``at``: h_c(S_0) ("h"), zeros ("zero"), or the values given."""
    n, q = algo.roster.n, algo.model.q
    if not isinstance(init, str):
        return np.array(init, dtype=np.float64)
    if init not in ("h", "zero"):
        raise ConfigError(
            f"init={init!r} is unknown; use 'h' (local field at S_0), 'zero', or an (n, q) array."
        )
    at = np.arange(n, dtype=np.int64) if at is None else at
    if init == "zero" or not algo.rule.remembers:
        return np.zeros((len(at), q))
    # The theorems' start, V_{0,c} = h_c(S_0), at theta_0 = T(S_0).
    server = algo.init(S_hat, np.zeros((n, q)))
    return algo.rule.first(s_bar_many(algo.model, algo.broadcast(server).theta, data, at, None), server.S_hat)


class LocalEngine:
    """All workers at once, on stacked arrays.

    Parameters
    ----------
    data : (n, m, ...) array, or one row container per worker in slot order, or a mapping from worker names.
        Each container needs ``len`` and ``[index]``.

    A worker whose statistic is not finite is left out of the round, as if its message had not come.

    Examples
    --------
    >>> import numpy as np, fedmiss
    >>> from fedmiss.models.lsa import LSA, linear_pools
    >>> rows, roster = linear_pools(4, 2, 50), fedmiss.core.Roster.of([50] * 4)  # four workers with 50 rows each
    >>> engine = fedmiss.engines.LocalEngine(rows)
    >>> algo = fedmiss.core.FedEM(LSA(2), fedmiss.compressors.Dithering(), roster, gamma=0.1)
    >>> fedmiss.core.run(algo, engine, np.zeros(2), stop=3).server.k
    3
    """

    def __init__(self, data: Shards | Mapping[str, Rows]) -> None:
        self._data = data
        self.V: F64 = np.empty((0, 0))
        self._memory: object = None
        self._rows: Shards = ()
        self._told: np.ndarray | None = None

    def start(self, algo: FedEM, S_hat: F64, init: str | F64) -> ServerState:
        """See :class:`fedmiss.core.protocols.Engine`."""
        self._rows, self._told = in_slot_order(algo, self._data), None
        for name, rows in zip(algo.roster.ids, self._rows, strict=True):
            check_rows(algo.model, name, rows)
        self.V = first_memories(algo, self._rows, S_hat, init)
        self._memory = algo.oracle.start_many(algo.roster.n, algo.model.q)
        return algo.init(S_hat, self.V)

    def round(self, algo: FedEM, server: ServerState, down: Downlink, active: I64) -> Replies:
        """Every active worker answers; the memories of those whose messages count move at once."""
        # A slice is a view: no copy when all answer.
        at = slice(None) if len(active) == len(self.V) else active
        D, X, xi, count = algo.answers(self.V[at], self._memory, down, self._rows, active)
        replies = compress(algo, down, active, X, xi, count)
        if len(replies.slots) < len(active):
            at = replies.slots
            D = D[np.isin(active, at)]
        # Line 8 for those whose message has counted; the others keep V_c (line 12).
        self.V[at] = algo.settle(self.V[at], D, replies.Q)
        return replies

    def save(self, algo: FedEM) -> dict[str, np.ndarray]:
        """Memories V_c and the oracle's, and a digest of the data, of which the memories are."""
        return {"V": self.V, "data": self._digest()} | {
            f"oracle.{k}": v for k, v in algo.oracle.pack(self._memory).items()
        }

    def load(self, algo: FedEM, arrays: dict[str, np.ndarray]) -> None:
        """Restore what :meth:`save` gave; ConfigError where the data are not those of the run."""
        self._rows, self._told = in_slot_order(algo, self._data), None
        if not np.array_equal(arrays.get("data", ()), self._digest()):
            raise ConfigError(
                "the checkpoint is of a run on other data; resume with the same data, or delete it to start afresh."
            )
        self.V = np.array(arrays["V"], dtype=np.float64)
        packed = {k[7:]: v for k, v in arrays.items() if k.startswith("oracle.")}
        self._memory = algo.oracle.unpack(algo.model, packed, algo.roster.n, algo.model.q)

    def _digest(self) -> np.ndarray:
        if self._told is None:  # once a run
            self._told = np.frombuffer(digest(describe(self._rows)), dtype=np.uint8)
        return self._told
