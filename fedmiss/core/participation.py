"""Who answers in a round. Drawn by the server from the run's seed, never left to the machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedmiss.arrays import F64, I64
from fedmiss.core.protocols import Participation
from fedmiss.errors import ConfigError
from fedmiss.rng import rng_for, uniforms
from fedmiss.settings import kinds_checked


def _probabilities(p: float | Sequence[float] | F64, n: int) -> F64:
    try:
        prob = np.asarray(p, dtype=np.float64)
    except (TypeError, ValueError):
        raise ConfigError(
            f"participation p is {p!r} (must be one probability, or one for each worker)."
        ) from None
    prob = np.broadcast_to(prob, (n,)) if prob.ndim == 0 else prob
    if prob.shape != (n,):
        raise ConfigError(
            f"participation gives {prob.size} probabilities for {n} workers; give one per worker."
        )
    if not bool(((prob > 0) & (prob <= 1)).all()):
        bad = float(prob[~((prob > 0) & (prob <= 1))][0])
        raise ConfigError(
            f"participation probability {bad} is not in (0, 1]; leave such a worker out instead."
        )
    return prob


@dataclass(frozen=True, slots=True)
class Full:
    """Every worker answers in every round."""

    def prob(self, n: int) -> F64:
        """All ones."""
        return np.ones(n)

    def active(self, seed: int, k: int, n: int) -> I64:
        """All slots."""
        return np.arange(n, dtype=np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class Bernoulli:
    """Each worker answers with its own probability, independently (assumption A9, with unequal p_c as well).

    Parameters
    ----------
    p : one probability for all, or one per slot, in (0, 1]

    Examples
    --------
    >>> import fedmiss
    >>> fedmiss.core.Bernoulli(0.5).p
    0.5
    """

    p: float | Sequence[float] | F64

    def prob(self, n: int) -> F64:
        """(n,) the probabilities p_c."""
        return _probabilities(self.p, n)

    def active(self, seed: int, k: int, n: int) -> I64:
        """Slots whose uniform of round ``k`` falls below p_c."""
        # B_{k+1,c} of A9, from the seed and the slot: the same on every machine, and after a resume.
        u = uniforms(seed, "participation", k, range(n), 1)[:, 0]
        return np.flatnonzero(u < self.prob(n)).astype(np.int64, copy=False)


@kinds_checked
@dataclass(frozen=True, slots=True)
class FixedSize:
    """``size`` workers answer in each round, drawn without replacement: p_c = size / n.

    Differs in: the paper's workers answer independently of each other (A9).
    """

    size: int

    def prob(self, n: int) -> F64:
        """(n,) filled with size / n."""
        if not 1 <= self.size <= n:
            raise ConfigError(f"participation size={self.size} of {n} workers; choose it from 1 to {n}.")
        return np.full(n, self.size / n)

    def active(self, seed: int, k: int, n: int) -> I64:
        """Return the drawn slots, increasing."""
        self.prob(n)
        # A permutation's first ``size``: every subset of this size is as likely, hence p_c = size / n.
        return np.sort(rng_for(seed, "participation", k).permutation(n)[: self.size]).astype(np.int64)


@kinds_checked
@dataclass(frozen=True, slots=True, eq=False)
class Given:
    """A schedule known beforehand: round k is answered by ``rounds[k % len(rounds)]``.

    H stays unbiased over a random position in the schedule, with p_c = share of the rounds in which worker c
    answers (default), or with the probabilities from which the schedule was drawn, given as ``p``.
    """

    rounds: Sequence[Sequence[int]]
    p: float | Sequence[float] | F64 | None = None

    def prob(self, n: int) -> F64:
        """(n,) ``p``, or each slot's share of the rounds."""
        if self.p is not None:
            return _probabilities(self.p, n)
        count = np.zeros(n)
        for k in range(len(self.rounds)):
            count[self.active(0, k, n)] += 1
        return _probabilities(count / max(len(self.rounds), 1), n)

    def active(self, seed: int, k: int, n: int) -> I64:
        """Return the slots of round ``k``, increasing."""
        given = np.unique(np.asarray(self.rounds[k % len(self.rounds)], dtype=np.float64))
        wrong = (given < 0) | (given >= n) | (given != np.rint(given))
        if wrong.any():  # -1 would be the last worker, 0.5 the first
            raise ConfigError(
                f"the schedule names slot {given[wrong][0]:g} but the run has slots 0 to {n - 1}."
            )
        return given.astype(np.int64)


@kinds_checked
@dataclass(frozen=True, slots=True)
class Remembered:
    """Who answers by ``who``, but without 1/p: a silent worker counts with what is remembered of it.

    What biased compressors and memory="statistic" need. Source: EF21-PP (Fatkhullin et al.), algorithm 5.
    """

    who: Participation

    def prob(self, n: int) -> F64:
        """All ones: nothing is scaled up."""
        self.who.prob(n)
        return np.ones(n)

    def active(self, seed: int, k: int, n: int) -> I64:
        """Return the slots that answer."""
        return self.who.active(seed, k, n)
