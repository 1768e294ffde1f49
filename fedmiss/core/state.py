"""What is passed around: frozen, arrays only, state first in and state first out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, NamedTuple

import numpy as np

from fedmiss.arrays import F64, I64
from fedmiss.core.protocols import Theta
from fedmiss.errors import ConfigError
from fedmiss.settings import kinds_checked

Carry = Mapping[str, np.ndarray]


class Dropped(NamedTuple):
    """A message that did not count: the round, the worker's name as it came, and why, in words."""

    k: int
    worker: str
    reason: str


@dataclass(frozen=True, slots=True, eq=False)
class Roster:
    """The workers of a run, in sorted order of their names: worker ``ids[c]`` sits in slot ``c``.

    Parameters
    ----------
    ids : (n,) names, sorted, unique
    sizes : (n,) int64       rows m_c that each worker holds
    weights : (n,) float64   w_c >= 0, sum 1: worker c's share in F = sum_c w_c L_c
    weighting : "uniform" (w_c = 1/n, the paper) or "pooled" (w_c = m_c / N)

    Examples
    --------
    >>> import fedmiss
    >>> roster = fedmiss.core.Roster.of({"club b": 30, "club a": 10})
    >>> roster.ids, roster.weights.tolist()
    (('club a', 'club b'), [0.5, 0.5])
    """

    ids: tuple[str, ...]
    sizes: I64
    weights: F64
    weighting: str = "uniform"
    slots: Mapping[str, int] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "slots", {name: c for c, name in enumerate(self.ids)})

    @staticmethod
    @kinds_checked
    def of(sizes: Mapping[str, int] | Sequence[int], weighting: str = "uniform") -> Roster:
        """Make the roster from the number of rows of each worker.

        A plain sequence names its workers by their position, zero-padded so that names sort like numbers.
        "pooled" makes equal rows count equally (the fit of all rows together); "uniform" makes equal workers
        count equally, whatever they hold. The two are the same when all m_c are equal.
        """
        if not isinstance(sizes, Mapping):
            width = len(str(max(len(sizes) - 1, 0)))
            sizes = {f"{c:0{width}d}": int(m) for c, m in enumerate(sizes)}
        ids = tuple(sorted(sizes))
        if not ids:
            raise ConfigError("the run has 0 workers (at least 1 is needed); give it data.")
        m = np.array([sizes[name] for name in ids], dtype=np.int64)
        if (m < 1).any():
            name = ids[int(np.argmin(m))]
            raise ConfigError(f"worker {name!r} holds {m.min()} rows (at least 1 is needed); leave it out.")
        if weighting == "uniform":
            weights = np.full(len(ids), 1.0 / len(ids))
        elif weighting == "pooled":
            weights = m / m.sum()
        else:
            raise ConfigError(f"weighting={weighting!r} is unknown; use 'uniform' (1/n) or 'pooled' (m_c/N).")
        return Roster(ids, m, weights, weighting)

    @property
    def n(self) -> int:
        """Number of workers."""
        return len(self.ids)

    @property
    def total(self) -> int:
        """Number N of rows of all workers: one epoch is N conditional expectations."""
        return int(self.sizes.sum())


@dataclass(frozen=True, slots=True, eq=False)
class ServerState:
    """What the server knows after ``k`` rounds.

    Parameters
    ----------
    S_hat : (q,)        the statistic S_k
    V : (q,)            the weighted mean of the workers' memories, never computed from them
    k : int             rounds done
    acks : (n,) int64   last round in which each worker's message counted, -1 for never
    carry : dict of arrays or None   the companion of S_hat of models with a common, known part of s_bar
    shadow : (q,) or None   with a compressed downlink, the approximation of S_k that the workers hold
    """

    S_hat: F64
    V: F64
    k: int
    acks: I64
    carry: Carry | None = None
    shadow: F64 | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Downlink:
    """Round ``k``'s broadcast: S_k, theta_k = T(S_k), and V, the mean memory, for oracles that correct drift."""

    k: int
    S_hat: F64
    theta: Theta
    V: F64 | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Replies:
    """The answers that count, decoded, in slot order.

    Parameters
    ----------
    slots : (a,) int64     who answered, increasing
    Q : (a, q) float64     the decoded messages
    bytes_up : int         length of all codes and 16 bytes with each, those dropped included
    evaluations : int      conditional expectations s_bar_cj that the workers computed for them
    dropped : what could not be used, by worker's name: it counts as missing
    away : number of workers that were asked and did not answer
    """

    slots: I64
    Q: F64
    bytes_up: int
    evaluations: int
    dropped: tuple[Dropped, ...] = ()
    away: int = 0


@dataclass(frozen=True, slots=True)
class RoundInfo:
    """Diagnostics of one round; never read back by the algorithm."""

    k: int
    gamma: float
    h_norm2: float
    active: int
    bytes_up: int
    bytes_down: int
    evaluations: int
    dropped: tuple[Dropped, ...] = ()
    away: int = 0


def leaves(theta: Theta) -> Iterator[Any]:
    """What a parameter holds: tuples, lists, mappings and dataclasses are opened."""
    if isinstance(theta, dict):
        parts = [*theta.values()]
    elif is_dataclass(theta):
        parts = [getattr(theta, entry.name, None) for entry in fields(theta)]
    elif isinstance(theta, tuple | list):
        parts = [*theta]
    else:
        yield theta
        return
    for part in parts:
        yield from leaves(part)
