"""Engines that ask one worker after the other, in any order, through bytes; the second loses and delays answers.

They say what a study between organisations relies on: a worker alone gets the bits that it gets among all, and one that
adds alpha Quant(D_c) to V_c only when its message counted keeps V the mean of V_c.
"""

import numpy as np

from fedmiss.core import run
from fedmiss.core.messages import collect, encode
from fedmiss.engines import LocalEngine
from fedmiss.engines.local import first_memories, in_slot_order
from fedmiss.rng import rng_for

ALONE = np.zeros(1, dtype=np.int64)


class PlainEngine:
    """One worker at a time; ``tamper(k, slot, answer)`` changes the bytes on their way."""

    def __init__(self, data, *, backwards=False, tamper=None):
        self.data, self.backwards, self.tamper = data, backwards, tamper

    def start(self, algo, S_hat, init):
        self.rows = in_slot_order(algo, self.data)
        self.V = first_memories(algo, self.rows, S_hat, init)
        self.memories = [algo.oracle.start_many(1, algo.model.q) for _ in self.rows]
        return algo.init(S_hat, self.V)

    def lost(self, k, slot):
        return False

    def round(self, algo, server, down, active):
        answers, increments = {}, {}
        for c in (active[::-1] if self.backwards else active).tolist():
            D, X, xi, count = algo.answers(
                self.V[c : c + 1], self.memories[c], down, [self.rows[c]], np.array([c]), ALONE
            )
            answer = encode(algo, down, X[0], xi[0], count)
            increments[c] = D[0]
            if not self.lost(down.k, c):
                answers[c] = answer if self.tamper is None else self.tamper(down.k, c, answer)
        replies = collect(algo, down, answers)
        for c, Q in zip(replies.slots, replies.Q, strict=True):
            self.V[c] = algo.settle(self.V[c], increments[c], Q)
        return replies


class LossyEngine(PlainEngine):
    """Each answer is lost, or too late to count, with probability ``loss``."""

    def __init__(self, data, *, loss=0.0, seed=0):
        super().__init__(data)
        self.loss, self.seed, self.losses = loss, seed, 0

    def lost(self, k, slot):
        gone = rng_for(self.seed, "losses", k, slot).random() < self.loss
        self.losses += gone
        return gone


def equal(a, b):
    """Two runs have the same bits."""
    for name in ("S_hat", "V", "acks", "shadow"):
        assert np.array_equal(getattr(a.server, name), getattr(b.server, name)), name
    for name in ("k", "gamma", "h_norm2", "active", "bytes_up", "bytes_down", "evaluations"):
        assert np.array_equal(a.trace[name], b.trace[name]), name


def same_everywhere(algo, data, S_0, folder=None, *, stop=20, **more):
    """Check that a run has the same bits stacked or not, one by one in any order, and resumed; return it."""
    stacked, each = LocalEngine(data), list(data)
    whole = run(algo, stacked, S_0, stop=stop, **more)
    for engine in (
        LocalEngine(each),
        PlainEngine(data),
        PlainEngine(each, backwards=True),
        LossyEngine(data),
    ):
        equal(whole, run(algo, engine, S_0, stop=stop, **more))
        assert np.array_equal(stacked.V, engine.V)
    if folder is not None:
        file = folder / "state.npz"
        run(algo, LocalEngine(data), S_0, stop=stop * 2 // 5, checkpoint=file, **more)
        equal(whole, run(algo, LocalEngine(data), S_0, stop=stop, checkpoint=file, **more))
    return whole
