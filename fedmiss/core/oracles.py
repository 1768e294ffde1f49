"""How a worker estimates its statistic s_bar_c(theta_k): all rows, a minibatch, or SPIDER's recursion.

An oracle answers for many workers at once, and gives each the bits that it has alone: rows are drawn from the uniforms
given, and a model's ``s_bar_many`` repeats its ``s_bar``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from fedmiss.arrays import F64, I64
from fedmiss.core.protocols import Model, Oracle, Shards, Theta, WorkerContext
from fedmiss.core.state import Downlink
from fedmiss.errors import ConfigError, DomainError
from fedmiss.settings import kinds_checked


def draw_rows(u: F64, sizes: I64, *, replace: bool) -> I64:
    """Turn (a, b) uniforms into row numbers, one minibatch per row of ``u``.

    Parameters
    ----------
    u : (a, b) uniforms on [0, 1)
    sizes : (a,) rows that each worker holds
    replace : draw with replacement; without, the first b steps of a Fisher-Yates shuffle (needs b <= m_c)
    """
    if replace:
        # floor(u m_c): uniform over 0..m_c - 1, since u < 1.
        return (u * sizes[:, None]).astype(np.int64)
    a, b = u.shape
    if b > int(sizes.min(initial=b)):
        raise ConfigError(
            f"a minibatch of b={b} without replacement needs b rows, but a worker holds {int(sizes.min())}; "
            "lower b or draw with replacement."
        )
    deck = np.tile(np.arange(int(sizes.max(initial=b))), (a, 1))
    at = np.arange(a)
    for j in range(b):
        # Step j of Fisher and Yates: swap card j with one of those that are left, j..m_c - 1.
        pick = j + (u[:, j] * (sizes - j)).astype(np.int64)
        deck[at, pick], deck[:, j] = deck[:, j].copy(), deck[at, pick]
    return deck[:, :b].copy()


def s_bar_many(model: Model, theta: Theta, data: Shards, slots: I64, index: I64 | None) -> F64:
    """Return the (a, q) statistics of several workers, all rows or those of ``index`` (a, b)."""
    fast = getattr(model, "s_bar_many", None)
    if fast is not None:
        out: F64 = fast(theta, data, slots, index)
        return out
    out = np.empty((len(slots), model.q))
    for i, c in enumerate(slots):
        out[i] = model.s_bar(theta, data[c] if index is None else data[c][index[i]])
    return out


def _s_bar_mixed(model: Model, thetas: list[Theta], which: I64, data: Shards, slots: I64, index: I64) -> F64:
    """Return the (a, q) statistics of workers of which the i-th is asked at ``thetas[which[i]]``."""
    fast = getattr(model, "s_bar_mixed", None)
    if fast is not None:
        mixed: F64 = fast(thetas, which, data, slots, index)
        return mixed
    out = np.empty((len(slots), model.q))
    for t, theta in enumerate(thetas):
        here = which == t
        out[here] = s_bar_many(model, theta, data, slots[here], index[here])
    return out


def sizes_of(data: Shards, slots: I64) -> I64:
    """(a,) rows of each of the workers."""
    if isinstance(data, np.ndarray):
        return np.full(len(slots), data.shape[1], dtype=np.int64)
    return np.array([len(data[c]) for c in slots], dtype=np.int64)


def check_batch(b: int, k_in: int = 1) -> None:
    """Refuse a minibatch without rows, and an outer loop without rounds."""
    if b < 1:
        raise ConfigError(f"minibatch size b={b} (must be at least 1).")
    if k_in < 1:
        raise ConfigError(f"k_in={k_in} rounds in an outer loop (must be at least 1).")


class OneByOne:
    """Base of an oracle that is asked for one worker after the other; the stacked memory is a list with each worker's.

    Give it ``draws`` and ``one(model, memory, down, rows, u, *own) -> (S_c (q,), new memory, evaluations)``; the memory is
    None before a worker's first answer, then a mapping of arrays (of ``theta`` too where ``S_hat`` is beside it).
    """

    __slots__ = ()

    def start_many(self, n: int, q: int) -> list[Any] | None:
        """Nothing is known before the first answers."""
        return [None] * n

    def many(
        self, model: Model, memory: Any, down: Downlink, data: Shards, slots: I64, u: F64, *own: WorkerContext
    ) -> tuple[F64, int]:
        """Return the answers of ``one``, worker by worker."""
        out, count = np.empty((len(slots), model.q)), 0
        for i, c in enumerate(slots):
            mine = [context.of(i) for context in own]
            try:
                out[i], memory[c], cost = self.one(model, memory[c], down, data[c], u[i], *mine)  # type: ignore[attr-defined]
            except DomainError as error:
                raise DomainError(str(error), **{**error.fields, "slot": int(c)}) from error
            count += cost
        return out, count

    def pack(self, memory: Any) -> dict[str, np.ndarray]:
        """Arrays of each worker's memory under its number; theta is T(S_hat) again, where there is an S_hat."""
        return {
            f"{c}.{name}": np.asarray(value)
            for c, state in enumerate(memory)
            for name, value in (state or {}).items()
            if name != "theta" or "S_hat" not in state
        }

    def unpack(self, model: Model, arrays: Mapping[str, np.ndarray], n: int, q: int) -> Any:
        """Return what ``pack`` saw."""
        memory: list[Any] = [None] * n
        for key, value in arrays.items():
            c, name = key.split(".", 1)
            memory[int(c)] = (memory[int(c)] or {}) | {name: np.array(value)}
        for state in memory:
            if state is not None and "S_hat" in state:
                state["theta"] = model.T(state["S_hat"])
        return memory


class NoMemory(OneByOne):
    """Base of an oracle that starts afresh in every round: give it ``draws`` and ``one``, or ``many``."""

    __slots__ = ()

    def many(
        self, model: Model, memory: None, down: Downlink, data: Shards, slots: I64, u: F64, *own: Any
    ) -> tuple[F64, int]:
        """Return the answers of ``one``, worker by worker."""
        return super().many(model, dict.fromkeys(slots.tolist()), down, data, slots, u, *own)

    def start_many(self, n: int, q: int) -> None:
        """Nothing is remembered."""

    def pack(self, memory: None) -> dict[str, np.ndarray]:
        """Nothing to store."""
        return {}

    def unpack(self, model: Model, arrays: Mapping[str, np.ndarray], n: int, q: int) -> None:
        """Nothing to restore."""


@dataclass(frozen=True, slots=True)
class Around:
    """Base of an oracle around another; its memory is a mapping of arrays of its own, and the memory of the one inside."""

    inner: Oracle

    @property
    def draws(self) -> int:
        """As the oracle inside."""
        return self.inner.draws

    def pack(self, memory: tuple[Mapping[str, np.ndarray], Any]) -> dict[str, np.ndarray]:
        """The own arrays, and those of the memory inside."""
        own, inside = memory
        return {**own} | {f"inner.{name}": array for name, array in self.inner.pack(inside).items()}

    def unpack(
        self, model: Model, arrays: Mapping[str, np.ndarray], n: int, q: int
    ) -> tuple[dict[str, np.ndarray], Any]:
        """Return what ``pack`` saw."""
        own = {name: np.array(array) for name, array in arrays.items() if not name.startswith("inner.")}
        inside = {name.removeprefix("inner."): arrays[name] for name in arrays if name not in own}
        return own, self.inner.unpack(model, inside, n, q)


@dataclass(frozen=True, slots=True)
class Full(NoMemory):
    """The exact local statistic: all rows, no noise."""

    draws: ClassVar[int] = 0

    def many(
        self, model: Model, memory: None, down: Downlink, data: Shards, slots: I64, u: F64, *own: Any
    ) -> tuple[F64, int]:
        """s_bar over all rows of each worker."""
        return s_bar_many(model, down.theta, data, slots, None), int(sizes_of(data, slots).sum())


@kinds_checked
@dataclass(frozen=True, slots=True)
class Minibatch(NoMemory):
    """The mean over b rows drawn at random (algorithm 1, line 6).

    Parameters
    ----------
    b : rows in a minibatch
    replace : draw with replacement (as the paper's MNIST run) or without
    """

    b: int
    replace: bool = True

    def __post_init__(self) -> None:
        check_batch(self.b)

    @property
    def draws(self) -> int:
        """One uniform per row."""
        return self.b

    def many(
        self, model: Model, memory: None, down: Downlink, data: Shards, slots: I64, u: F64, *own: Any
    ) -> tuple[F64, int]:
        """s_bar over each worker's minibatch of round k."""
        index = draw_rows(u, sizes_of(data, slots), replace=self.replace)
        return s_bar_many(model, down.theta, data, slots, index), self.b * len(slots)


@dataclass(slots=True, eq=False)
class _SpiderMany:
    """Stacked memory: the statistics, the round of each worker's last answer, and the broadcasts still needed."""

    S: F64
    last: I64  # (n,) round of the last evaluation, -1 for never
    seen: dict[int, tuple[F64, Theta]]  # round -> (S_hat, theta) for the rounds in ``last``


@kinds_checked
@dataclass(frozen=True, slots=True)
class Spider:
    """The variance-reduced recursion of VR-FedEM (algorithm 2; Fort, Moulines, Wai 2020 for n = 1).

    Rounds are cut into outer loops of ``k_in``. In its first answer of an outer loop a worker takes all its rows;
    in the others one minibatch, evaluated at the new theta and at the theta of its previous answer:
    S_c += mean_B [ s_bar_cj(theta_k) - s_bar_cj(theta_last) ].

    Differs from algorithm 2 in two ways. A worker that does not take part does not compute, so its previous
    answer may lie several rounds back (the paper states the algorithm for full participation, where the two are
    the same). And at k = 0 of an outer loop the paper adds a difference that is zero, since S_{t,0} = S_{t,-1}:
    here it is not computed, so an outer loop costs n m + 2 b n (k_in - 1) conditional expectations.
    """

    b: int
    k_in: int
    replace: bool = True

    def __post_init__(self) -> None:
        check_batch(self.b, self.k_in)

    @property
    def draws(self) -> int:
        """One uniform per row of the minibatch."""
        return self.b

    def start_many(self, n: int, q: int) -> _SpiderMany:
        """Nothing is known before the first answers."""
        return _SpiderMany(np.zeros((n, q)), np.full(n, -1, dtype=np.int64), {})

    def many(
        self, model: Model, memory: _SpiderMany, down: Downlink, data: Shards, slots: I64, u: F64
    ) -> tuple[F64, int]:
        """Refresh those who answer first in this outer loop; move the others by their minibatch."""
        outer = down.k - down.k % self.k_in
        last = memory.last[slots]
        fresh = last < outer
        count = 0
        if fresh.any():
            # Lines 3 and 20 of algorithm 2: S_{t,0,c} is the mean over all rows, which ends the bias of the recursion.
            whole = slots[fresh]
            memory.S[whole] = s_bar_many(model, down.theta, data, whole, None)
            count += int(sizes_of(data, whole).sum())
        if not fresh.all():
            move = slots[~fresh]
            # Line 7: one minibatch, which line 8 evaluates at both points, so that their common noise falls away.
            index = draw_rows(u[~fresh], sizes_of(data, move), replace=self.replace)
            # one call for both points: the new theta first, then the theta of each worker's last answer
            rounds, which = np.unique(last[~fresh], return_inverse=True)
            thetas = [down.theta, *(memory.seen[int(k)][1] for k in rounds)]
            which = np.concatenate([np.zeros(len(move), dtype=np.int64), which + 1])
            twice = np.concatenate([move, move]), np.concatenate([index, index])
            both = _s_bar_mixed(model, thetas, which, data, *twice)
            # algorithm 2, line 8: S_c <- S_c + mean_B [ s_bar_cj(theta_k) - s_bar_cj(theta_last) ]
            memory.S[move] += both[: len(move)] - both[len(move) :]
            count += 2 * self.b * len(move)
        memory.last[slots] = down.k
        memory.seen[down.k] = (down.S_hat, down.theta)
        for k in [k for k in memory.seen if k < outer]:  # answers of older loops are followed by a full pass
            del memory.seen[k]
        return memory.S[slots], count

    def pack(self, memory: _SpiderMany) -> dict[str, np.ndarray]:
        """Statistics, rounds, and the S_hat of those rounds; theta is T(S_hat) again."""
        rounds = sorted(memory.seen)
        points = np.array([memory.seen[k][0] for k in rounds]).reshape(len(rounds), memory.S.shape[1])
        known = {"rounds": np.array(rounds, dtype=np.int64), "points": points}
        return {"S": memory.S, "last": memory.last} | known

    def unpack(self, model: Model, arrays: Mapping[str, np.ndarray], n: int, q: int) -> _SpiderMany:
        """Restore, recomputing theta = T(S_hat) at the points still needed."""
        seen = {
            int(k): (np.array(S), model.T(np.array(S)))
            for k, S in zip(arrays["rounds"], arrays["points"], strict=True)
        }
        return _SpiderMany(np.array(arrays["S"]), np.array(arrays["last"]), seen)


# ---- late answers: a worker that is asked in a round sends what it has computed since it was asked before --------------


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

    def start_many(self, n: int, q: int) -> tuple[dict[str, F64], Any]:
        """Statistics S_j (nan: never asked), memory of the oracle inside."""
        return {"S": np.full((n, q), np.nan)}, self.inner.start_many(n, q)

    def many(
        self,
        model: Model,
        memory: tuple[dict[str, F64], Any],
        down: Downlink,
        data: Shards,
        slots: I64,
        u: F64,
        *own: Any,
    ) -> tuple[F64, int]:
        """Answers of those asked, together for workers that were asked in the same round before."""
        S, inner = memory[0]["S"], memory[1]
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
