"""The only place that builds a random generator.

Every draw is keyed by (seed, stream, round, worker), never by the order in which messages arrive, so a run
gives the same bits on every engine, in every order of workers, and after a resume.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from fedmiss.arrays import F64
from fedmiss.errors import ConfigError


def _bits(seed: Any, *key: int | str) -> np.random.PCG64:
    # Words enter by a fixed digest: Python's own hash of a string changes from process to process.
    if not isinstance(seed, int | np.integer) or seed < 0:  # 1.5 would draw what 1 draws
        raise ConfigError(f"the seed is {seed!r} (must be a whole number, 0 or more).")
    words = [zlib.crc32(part.encode()) if isinstance(part, str) else int(part) for part in key]
    return np.random.PCG64(np.random.SeedSequence(int(seed), spawn_key=words))


def rng_for(seed: int, *key: int | str) -> np.random.Generator:
    """Return the generator of one purpose: ``rng_for(seed, "minibatch", k, "worker-03")``.

    Parameters
    ----------
    seed : int, >= 0; ConfigError for another
    key : words and non-negative integers; different keys give independent generators

    Examples
    --------
    >>> float(rng_for(7, "demo", 1).random()) == float(rng_for(7, "demo", 1).random())
    True
    """
    return np.random.Generator(_bits(seed, *key))


def uniforms(seed: int, stream: str, k: int, slots: Sequence[int], size: int) -> F64:
    """Draw ``size`` uniforms on [0, 1) for each worker slot of round ``k``.

    A worker's slot is its rank in the sorted list of worker ids of the run. Row ``i`` depends on
    ``(seed, stream, k, slots[i], size)`` only: drawn alone on the worker's own machine or together with
    ten thousand others, it has the same bits. Slot ``c`` owns draws ``c*size .. (c+1)*size`` of one stream.

    Returns
    -------
    (len(slots), size) float64
    """

    def block(first: int, rows: int) -> F64:
        bits = _bits(seed, stream, k)
        bits.advance(first * size)
        return np.random.Generator(bits).random((rows, size))

    if isinstance(slots, range) and slots.step == 1 and len(slots) and size:  # all workers, in every round
        return block(slots.start, len(slots))
    index = np.asarray(slots, dtype=np.int64)
    if index.size == 0 or size == 0:
        return np.empty((index.size, size))
    lo, hi = int(index.min()), int(index.max()) + 1
    if 2 * index.size >= hi - lo:  # most slots of the span are wanted: one call, then pick the rows
        drawn = block(lo, hi - lo)
        return drawn if index.size == hi - lo and bool((np.diff(index) == 1).all()) else drawn[index - lo]
    return np.concatenate([block(int(letter), 1) for letter in index])
