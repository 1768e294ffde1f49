"""Compiled loops over keys: digests of fields, codes of repeated values.

Numba takes arrays one by one, so the arguments of a loop are not grouped.
"""

from __future__ import annotations

import numpy as np

from fedmiss.arrays import I32, I64, U8
from fedmiss.etl._bits import load8
from fedmiss.loops import compiled, part

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
MIX = np.uint64(0xBF58476D1CE4E5B9)
ODD = np.uint64(0x94D049BB133111EB)
MASKS = np.array([(1 << 8 * k) - 1 for k in range(9)], dtype=np.uint64)


@part
def _head(buf: U8, s: int, n: int) -> np.uint64:
    """Return the first ``n`` <= 8 bytes as one number."""
    if s + 8 <= buf.size:
        return np.uint64(load8(buf, s) & MASKS[n])
    word = np.uint64(0)
    for k in range(n):
        word |= np.uint64(buf[s + k]) << np.uint64(8 * k)
    return word


@part
def _hash_field(buf: U8, s: int, n: int, h: np.uint64) -> np.uint64:
    """Digest a field into ``h``: sixteen bytes a turn, the last turn overlapping the one before."""
    # The length first: fields that are equal but for zero bytes at the end must differ, and a blank field must count.
    h ^= np.uint64(n + 1) * GOLDEN
    if n <= 8:
        h = (h ^ _head(buf, s, n)) * MIX
        return h ^ (h >> np.uint64(29))
    last = s + n - 8
    while True:
        first = min(s, last)
        x = (load8(buf, first) ^ GOLDEN) * ODD
        y = (load8(buf, min(first + 8, last)) ^ ODD) * GOLDEN
        h = (h ^ x ^ (y >> np.uint64(32)) ^ (y << np.uint64(32))) * MIX
        h ^= h >> np.uint64(29)
        s += 16
        if s > last + 7:
            return h


@compiled
def read_guids(buf: U8, start: I32, length: I32, out: I64) -> None:
    """Digest unique identifiers to 64 bits; 0 for a blank."""
    for row in range(start.size):
        size = length[row]
        if size == 0:
            out[row] = 0
            continue
        h = _hash_field(buf, int(start[row]), int(size), GOLDEN) * GOLDEN
        h ^= h >> np.uint64(29)
        # 0 is the code of a blank, so no digest may be 0.
        out[row] = np.int64(h if h else GOLDEN)


@compiled
def encode(
    buf: U8,
    starts: I32,
    lengths: I32,
    slots: I32,
    keys: np.ndarray,
    codes: I32,
    n_codes: int,
    out: I32,
    new_rows: I32,
) -> int:
    """Give each row the code of its joint value in ``slots``; list the first row of each new value.

    ``keys``/``codes`` is an open-addressing table of 64-bit digests (power-of-two size, 0 = empty); the caller
    keeps it at most half full. Returns how many values were new.
    """
    mask = np.uint64(keys.size - 1)
    fresh = 0
    for row in range(out.size):
        h = GOLDEN
        for j in range(slots.size):
            h = _hash_field(buf, int(starts[row, slots[j]]), int(lengths[row, slots[j]]), h)
        h ^= h >> np.uint64(32)
        if h == np.uint64(0):
            h = np.uint64(1)
        at = h & mask
        # Linear probing. Two values with one digest of 64 bits would
        # be one: among 10^8 values the chance is about 3 in 10^4.
        while keys[at] != np.uint64(0) and keys[at] != h:
            at = (at + np.uint64(1)) & mask
        if keys[at] == np.uint64(0):
            keys[at] = h
            codes[at] = n_codes + fresh
            new_rows[fresh] = row
            fresh += 1
        out[row] = codes[at]
    return fresh


@compiled
def move(old_keys: np.ndarray, old_codes: I32, keys: np.ndarray, codes: I32) -> None:
    """Fill a larger table of ``encode`` from a smaller one."""
    mask = np.uint64(keys.size - 1)
    for i in range(old_keys.size):
        if old_keys[i] == np.uint64(0):
            continue
        at = old_keys[i] & mask
        while keys[at] != np.uint64(0):
            at = (at + np.uint64(1)) & mask
        keys[at] = old_keys[i]
        codes[at] = old_codes[i]


@compiled
def gather(buf: U8, start: I32, offsets: I32, out: U8) -> None:
    """Copy fields one behind the other; ``offsets[i]`` is where field ``i`` goes."""
    for i in range(start.size):
        begin = start[i]
        for k in range(offsets[i], offsets[i + 1]):
            out[k] = buf[begin]
            begin += 1
