"""Months' sums of a study as differences to what was sent before, on a lattice of whole numbers that masks can hide.

Worker c keeps ``V_c``, what the others know of its sums ``S_c``, and sends ``Q(S_c - V_c)``. At all ends ``V_c`` goes on by
what was sent, and ``V = sum V_c`` stands for the sum. This is the memory of FedEM (Dieuleveut et al. 2021, algorithm 1,
lines 6 to 9) with steps gamma = alpha = 1, where ``V_c`` follows ``S_c`` itself (EF21: Richtarik et al. 2021, algorithm 2).

``Q`` is the paper's dithering on a lattice: ``delta floor(x / delta + u)`` with u uniform, so that E Q(x) = x. All ends
know ``delta``, a power of 2 that follows from ``V`` and its last change. Whole numbers are of 32 bits and add up under masks
modulo 2^32; none is larger than a worker's share of the range, so sums do not wrap. Of what exceeds that a part by chance
goes, half of the share at least; the rest stays in ``S_c - V_c`` and goes with the next one. Rounding does not build up
either: it is in the next difference too.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from fedmiss.arrays import F64
from fedmiss.federation import messages as msg
from fedmiss.rng import rng_for

RANGE = (1 << 31) - 1
HEADROOM = 64.0  # largest change that can be sent, in units of the last one of the sums
LEAST = 2.0**-30  # least such change, relative to the month's sums
MONTH = 1e-6  # least size of a month's sums, relative to the largest month


@dataclass(slots=True)
class Memory:
    """Of one fit: own ``V_c``, and ``V`` by the name that answers come under, (L, d) each.

    ``last``: largest change of ``V`` at the last exchange, relative to the month's sums; 1 where nothing is known.
    """

    own: F64
    whole: dict[str, F64]
    last: float = 1.0

    def delta(self, workers: int) -> F64:
        """Width of the lattice (L, 1): the same at every end, to the bit."""
        total = sum(self.whole.values())
        size = np.abs(total).max(axis=1, keepdims=True)
        size = np.maximum(size, MONTH * size.max()) if size.max() > 0 else np.ones_like(size)
        wanted = size * (HEADROOM * max(self.last, LEAST) / (RANGE // workers))
        out: F64 = np.ldexp(1.0, np.frexp(wanted)[1])  # exact, whatever the processor
        return out


class Differences:
    """Memories of one organisation's copy of a job, by batch and fit.

    Parameters
    ----------
    workers : number of organisations
    secret : of the organisation: dither is drawn from it
    bits : binary digits after the point of whole sums under masks, None without masks
    """

    def __init__(self, workers: int, secret: bytes, bits: int | None) -> None:
        self.workers, self.bits = workers, bits
        self.seed = int.from_bytes(hashlib.blake2b(b"dither" + secret, digest_size=16).digest())
        self.memories: dict[tuple[int, int], Memory] = {}

    def shrink(
        self, questions: Sequence[msg.Message], answers: Sequence[msg.Answer], exchange: int
    ) -> list[msg.Answer]:
        """Own answers, in which months' sums that the others know in part are differences: whole numbers of 32 bits."""
        out = []
        for i, (question, answer) in enumerate(zip(questions, answers, strict=True)):
            if isinstance(answer, msg.Months):
                assert isinstance(question, msg.Solve)
                if question.begin in (msg.Begin.FROM_ZERO, msg.Begin.NEW_FACTOR, msg.Begin.AT_REST):
                    for fit in question.fits.tolist():  # begins anew
                        self.memories.pop((question.batch, fit), None)
                answer = replace(answer, months=self._shrunk(question, answer.months, (exchange, i)))
            out.append(answer)
        return out

    def _shrunk(self, question: msg.Solve, x: F64, key: tuple[int, int]) -> np.ndarray:
        known = [self.memories.get((question.batch, fit)) for fit in question.fits.tolist()]
        if any(memory is None or memory.own.shape != x.shape[1:] for memory in known):
            for fit, row in zip(question.fits.tolist(), x, strict=True):
                whole = row if self.bits is None else np.rint(row * 2.0**self.bits) * 2.0**-self.bits
                self.memories[question.batch, fit] = Memory(whole, {})
            return x
        found = [memory for memory in known if memory is not None]
        # Sums of all workers must fit into 31 bits and a sign: each has its share of the range.
        limit = RANGE // self.workers
        dither = rng_for(self.seed, "dither", *key).random(x.shape)
        out = np.zeros(x.shape, np.int32)
        for row, memory, uniform, sent in zip(x, found, dither, out, strict=True):
            delta = memory.delta(self.workers)
            # Dithering, algorithm 1's Quant on a lattice: floor(x / delta + u) has the mean x / delta.
            whole = np.floor((row - memory.own) / delta + uniform)
            # Cut at the limit it would be a known number, and the other workers' difference, of perhaps one, what is left.
            part = np.copysign(np.floor(limit * (1.0 + uniform) / 2.0), whole)
            sent[:] = np.where(np.abs(whole) > limit, part, whole)
            # V_c += Q(S_c - V_c): line 8 with alpha = 1.
            memory.own = memory.own + delta * sent
        return out

    def expand(
        self, questions: Sequence[msg.Message], answers: Sequence[Mapping[str, msg.Answer]]
    ) -> list[dict[str, msg.Answer]]:
        """Everybody's answers (their sum, under masks) with the months' sums that follow from what was sent."""
        out = []
        solved = (one for one in questions if isinstance(one, msg.Solve))
        going_on = {(one.batch, fit) for one in solved for fit in one.fits.tolist()}
        for question, named in zip(questions, answers, strict=True):
            if isinstance(question, msg.Solve):
                out.append(
                    self._expanded(question, {k: v for k, v in named.items() if isinstance(v, msg.Months)})
                )
                continue
            out.append(dict(named))
            if (
                isinstance(question, msg.Open)
                and question.source >= 0
                and (question.source, 0) in self.memories
            ):
                source = self.memories[question.source, 0]
                for fit in range(question.numbers.size):
                    self.memories[question.batch, fit] = replace(source, whole=dict(source.whole), last=1.0)
            elif isinstance(question, msg.Keep):
                for fit in question.fits.tolist():
                    # of a fit that goes on in this exchange the own sums are known already, the others' are not
                    if (question.batch, fit) in self.memories.keys() - going_on:
                        source = self.memories[question.batch, fit]
                        self.memories[question.to, fit] = replace(source, whole=dict(source.whole))
            elif isinstance(question, msg.Close):
                over = question.batches.tolist()
                self.memories = {key: known for key, known in self.memories.items() if key[0] not in over}
        return out

    def _expanded(self, question: msg.Solve, named: Mapping[str, msg.Months]) -> dict[str, msg.Answer]:
        out: dict[str, msg.Answer] = {}
        memories = [self.memories[question.batch, fit] for fit in question.fits.tolist()]
        deltas = [memory.delta(self.workers) if memory.whole else np.zeros(0) for memory in memories]
        before = [sum(memory.whole.values()) if memory.whole else None for memory in memories]
        for name, answer in named.items():
            months = answer.months
            if months.dtype == np.int32:
                months = np.stack(
                    [
                        memory.whole[name] + delta * row
                        for memory, delta, row in zip(memories, deltas, months, strict=True)
                    ]
                )
            for memory, row in zip(memories, months, strict=True):
                memory.whole[name] = row
            out[name] = replace(answer, months=months)
        for memory, old in zip(memories, before, strict=True):
            if old is not None:
                now = sum(memory.whole.values())
                size = np.abs(now).max(axis=1, keepdims=True)
                change = np.abs(now - old) / np.maximum(size, max(MONTH * float(size.max()), 1e-300))
                memory.last = min(float(change.max()), 1.0)
        return out
