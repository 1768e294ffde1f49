"""The core's algorithms between organisations: each runs the whole algorithm, and computes its own worker's answers only.

What carries the answers is the organisation's place in a study (:class:`fedmiss.federation.circle.Circle`): in threads,
over a shared folder, or through a relay, with its signatures, masks, journal and comparison of what all copies ask.
Where the study lets rounds go on without some, a cohort that is away keeps its memories, and V goes on with them.
"""

from __future__ import annotations

import operator
import struct
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol

import numpy as np

from fedmiss.arrays import F64, I64
from fedmiss.core.checks import check_rows
from fedmiss.core.fedem import FedEM
from fedmiss.core.fingerprint import identity
from fedmiss.core.messages import collect, encode
from fedmiss.core.protocols import Rows
from fedmiss.core.state import Downlink, Replies, Roster, ServerState
from fedmiss.engines.local import first_memories
from fedmiss.errors import ConfigError, UplinkError

ALONE = np.zeros(1, dtype=np.int64)  # the place of the own rows among the rows that are here
BITS = 40  # binary digits after the point of masked numbers


class _Circle(Protocol):
    """What is asked of a place in a study."""

    name: str
    left_out: dict[str, int]  # rounds that went on without each
    party: Any  # its keys
    absence: Any  # the rule by which rounds go on without some, None where all wait

    def begin(self, asks: Sequence[Any]) -> bytes:
        """Begin an exchange about what the own copy asks."""

    def share(self, answer: bytes, *, all_needed: bool = True) -> dict[str, bytes]:
        """Show an answer; return the answers of all, or of those who are there."""

    def add_up(self, asks: Sequence[Any], x: F64, bits: int = 32) -> F64:
        """Return the sum of arrays over all organisations."""

    def add_up_here(self, asks: Sequence[Any], x: F64, bits: int = 32) -> dict[tuple[str, ...], F64]:
        """Return the sums over the cohorts that are there, by the names of their members."""


@dataclass(frozen=True, slots=True, eq=False)
class AskRows:
    """How many rows the organisation has."""

    weighting: str


@dataclass(frozen=True, slots=True, eq=False)
class AskMemory:
    """The first question: the worker's memory at S_0."""

    settings: bytes
    S_hat: F64


@dataclass(frozen=True, slots=True, eq=False)
class _AskRound:
    """The question of a round: who answers, at which statistic."""

    settings: bytes
    k: int
    active: I64
    S_hat: F64


class StudyEngine:
    """One worker here, the others at their organisations; gives the bits of ``LocalEngine`` at each of them, unless masked.

    Parameters
    ----------
    circle : the organisation's place in the study; its name is that of its worker in the roster
    rows : the organisation's data: they are seen by its own worker only
    masked : whether only the sum over all organisations (a cohort, where rounds go on without some) of w_c D_c is seen, in
        fixed point with 40 binary digits after the point, instead of each organisation's message. Then no sum is formed
        over a changing set: nobody is drawn to be left out of a round, nothing is compressed (entries that one organisation
        alone keeps, and levels of two norms, would tell each one's message), and rows are drawn by the organisation's key,
        since of rows that all know sums tell single ones (``tests/attacks/test_rounds.py``)

    Examples
    --------
    ``docs/examples/three_organisations.py`` runs a model of one's own in three processes over a shared folder.
    """

    in_step: ClassVar[bool] = True  # the clocks of the copies may end no run

    def __init__(self, circle: _Circle, rows: Rows, *, masked: bool = False) -> None:
        self.circle, self.rows, self.masked = circle, rows, masked
        self.V: F64 = np.empty((1, 0))  # the own worker's memory V_c
        self._memory: object = None
        self._settings = b""
        self._own: FedEM | None = None  # the algorithm with the draws of the own worker

    @classmethod
    def roster(cls, circle: _Circle, rows: int, weighting: str = "uniform") -> Roster:
        """The roster of all organisations, from the numbers of rows that each of them says."""
        circle.begin([AskRows(weighting)])
        got = circle.share(struct.pack("<q", operator.index(rows)))
        return Roster.of({name: struct.unpack("<q", raw)[0] for name, raw in got.items()}, weighting)

    def start(self, algo: FedEM, S_hat: F64, init: str | F64) -> ServerState:
        """See :class:`fedmiss.core.protocols.Engine`; memories are zero or h_c(S_0), not given values."""
        if not isinstance(init, str) or init not in ("zero", "h"):
            raise ConfigError("workers of a study start with init='zero' or init='h' (their local field).")
        c = self._slot(algo)
        if int(algo.roster.sizes[c]) != len(self.rows):
            raise ConfigError(
                f"{self.circle.name!r} has {len(self.rows)} rows, the roster says {algo.roster.sizes[c]}. Make the roster "
                "from these data."
            )
        check_rows(algo.model, self.circle.name, self.rows)
        # of Remembered, whose own probabilities are 1
        who = getattr(algo.participation, "who", algo.participation)
        if self.masked and (who.prob(algo.roster.n) < 1.0).any():
            raise ConfigError(
                "masked messages need all workers in every round: no sum is formed over a changing set. Use Full() "
                "participation, or masked=False."
            )
        if self.masked and algo.bound is not None:
            raise ConfigError(
                "bound compares messages, and masked ones are seen by nobody. Leave bound out, or masked=False."
            )
        if self.masked:
            self._check_whole(algo)
        (n, q), ids = (algo.roster.n, algo.model.q), algo.roster.ids
        self._settings, self._memory = identity(algo), algo.oracle.start_many(1, q)
        self._own = replace(algo, seed=self.circle.party.own_seed()) if self.masked else algo
        self.V = first_memories(algo, [self.rows], S_hat, init, ALONE)
        V = np.zeros((n, q))
        if init == "h" and algo.rule.remembers:
            # The server needs V_0 = sum w_c V_{0,c} (line 1): with masks it sees no single first memory either.
            ask = AskMemory(self._settings, np.asarray(S_hat))
            if self.masked:
                V = self._spread(
                    algo, {ids: self.circle.add_up([ask], algo.roster.weights[c] * self.V[0], BITS)}
                )
            else:
                self.circle.begin([ask])
                got = self.circle.share(self.V[0].astype("<f8").tobytes())
                V = np.stack([self._numbers(name, got[name], q) for name in algo.roster.ids])
        return algo.init(S_hat, V)

    def round(self, algo: FedEM, server: ServerState, down: Downlink, active: I64) -> Replies:
        """Answer if the own worker is active; take what the others answer. All see which answers count."""
        c, ids = self._slot(algo), algo.roster.ids
        answer, D = b"", np.empty((0, algo.model.q))
        before = deepcopy(self._memory) if self.circle.absence else self._memory
        if c in active:
            # Lines 6 and 7 of algorithm 1 for the own rows: the oracle has one place here, the draws are those of slot c.
            own_draws = self._own or algo
            D, X, xi, count = own_draws.answers(self.V, self._memory, down, [self.rows], np.array([c]), ALONE)
            answer = encode(algo, down, X[0], xi[0], count)
        ask = _AskRound(self._settings, down.k, active, down.S_hat)
        if self.masked:
            own = collect(algo, down, {c: answer})
            if own.dropped:
                raise UplinkError(
                    f"{own.dropped[0].reason} Where all organisations say so of this round, S has left the domain of T, and "
                    'no data are to blame: lower gamma or, where rounds go on without some, take memory="statistic".',
                    worker=ids[c], k=down.k,
                )  # fmt: skip
            replies = self._sum(algo, ask, own)
            there = c in replies.slots
        else:
            self.circle.begin([ask])
            got = self.circle.share(answer, all_needed=False)
            here = {i: got[ids[i]] for i in active.tolist() if ids[i] in got}
            own = replies = replace(collect(algo, down, here), away=active.size - len(here))
            there = ids[c] in got
            for one in replies.dropped:
                self.circle.left_out[one.worker] += 1
        if not there:  # who is away computes nothing (lines 10 to 12): its oracle goes on from where it was
            self._memory = before
        mine = own.slots == c
        if mine.any() and c in replies.slots:  # else the round went on without this answer, and V without it
            self.V = algo.settle(self.V, D, own.Q[mine])
        return replies

    def _sum(self, algo: FedEM, ask: _AskRound, own: Replies) -> Replies:
        """The answers of those who are there, of which only the weighted sums over cohorts are known."""
        # The weight is inside what is masked, since nobody sees a single message that it could multiply afterwards.
        weighted = algo.roster.weights[own.slots[0]] * own.Q[0]
        unit = 2.0**-BITS  # numbers of evaluations are whole: all 63 bits are theirs
        sums = self.circle.add_up_here([ask], np.append(weighted, own.evaluations * unit), BITS)
        slots = np.array(sorted(algo.roster.slots[n] for cohort in sums for n in cohort), dtype=np.int64)
        Q = self._spread(algo, {cohort: total[:-1] for cohort, total in sums.items()})[slots]
        count = round(float(sum(total[-1] for total in sums.values())) / unit)
        size = 8 * slots.size * (algo.model.q + 1)  # the number of evaluations is one more
        return Replies(slots, Q, size, count, away=algo.roster.n - slots.size)

    @staticmethod
    def _check_whole(algo: FedEM) -> None:
        """Raise ConfigError where a message is compressed."""
        for quant in (algo.compressor, algo.rule.quant(algo, 0)):
            if getattr(quant, "delta", None) is not None or quant.omega(algo.model.q):
                raise ConfigError(
                    f"masked messages are not compressed, and the algorithm has {quant!r}: the sum of compressed messages "
                    "tells single ones, and takes no fewer bytes. Use Identity(), or masked=False."
                )

    @staticmethod
    def _spread(algo: FedEM, sums: Mapping[tuple[str, ...], F64]) -> F64:
        """(n, q) numbers whose weighted sums over cohorts are these: the server uses nothing else of them."""
        out = np.zeros((algo.roster.n, algo.model.q))
        for cohort, total in sums.items():
            slots = [algo.roster.slots[name] for name in cohort]
            # The whole sum stands at the largest weight of the cohort: dividing by it loses least.
            first = slots[int(np.argmax(algo.roster.weights[slots]))]
            out[first] = total / algo.roster.weights[first]
        return out

    def _slot(self, algo: FedEM) -> int:
        name = self.circle.name
        if name not in algo.roster.slots:
            raise ConfigError(f"{name!r} is no worker of the roster: {', '.join(algo.roster.ids[:5])}.")
        return algo.roster.slots[name]

    @staticmethod
    def _numbers(name: str, raw: bytes, q: int) -> F64:
        if len(raw) != 8 * q:
            raise UplinkError(
                f"worker {name!r} sent a first memory of {len(raw) // 8} numbers, expected q={q}. Give all sides the same "
                "settings.",
                worker=name,
            )
        return np.frombuffer(raw, "<f8")

    def save(self, algo: FedEM) -> dict[str, np.ndarray]:
        """Not offered: the study's journal goes through the job again."""
        raise ConfigError("a study goes on from its journal; it writes no checkpoint. Leave checkpoint out.")

    def load(self, algo: FedEM, arrays: dict[str, np.ndarray]) -> None:
        """Not offered, see :meth:`save`."""
        raise ConfigError("a study goes on from its journal; it reads no checkpoint. Leave resume out.")
