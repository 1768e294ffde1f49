"""Keyed hashes of identifiers, and random numbers keyed by them.

Results must not depend on how sites are numbered. So a site enters a draw by a hash of its id, under the public seed or the
group's secret. The draw is made at home, and no hash travels.
"""

from __future__ import annotations

import hashlib

import numpy as np
import pandas as pd
from scipy.special import ndtri

from fedmiss.arrays import F64

U64 = np.typing.NDArray[np.uint64]
_STEP = np.uint64(0x9E3779B97F4A7C15)


def seed_key(*words: str | int | bytes) -> bytes:
    """Key of 16 bytes made of words."""
    raw = b"\0".join(word if isinstance(word, bytes) else str(word).encode() for word in words)
    return hashlib.blake2b(raw, digest_size=16).digest()


def keyed_hashes(ids: np.ndarray, key: bytes) -> U64:
    """SipHash-2-4 of texts under a key of 16 bytes: (n,) uint64.

    Two of n ids collide with a probability of about n^2 / 4e19.
    """
    if len(ids) == 0:
        return np.zeros(0, dtype=np.uint64)
    # pandas takes the key as text of 16 bytes: seven bits of each byte keep it so, which leaves 112 bits
    text = bytes(byte & 0x7F for byte in key).decode("ascii")
    return np.asarray(
        pd.util.hash_array(np.asarray(ids, dtype=object), hash_key=text, categorize=False), dtype=np.uint64
    )


def _mix(x: U64) -> U64:
    """Finaliser of SplitMix64 (Steele, Lea and Flood 2014): every bit of the input moves half of the output's."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def uniforms_by_key(hashes: U64, counter: np.ndarray, *words: str | int) -> F64:
    """Uniforms on (0, 1), one per (hash, counter): the same wherever, and in whatever order, they are drawn."""
    stream = np.frombuffer(seed_key(*words)[:8], dtype=np.uint64)[0]
    with np.errstate(over="ignore"):
        # Counters on a Weyl sequence, mixed twice.
        x = _mix(hashes ^ stream) + _STEP * (np.asarray(counter).astype(np.uint64) + np.uint64(1))
        return uniforms(_mix(x))


def uniforms(hashes: U64) -> F64:
    """Hashes as numbers on (0, 1): 53 bits and a half keep clear of 0 and 1, where quantiles are infinite."""
    out: F64 = ((hashes >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
    return out


def normals(hashes: U64, size: int, *words: str | int) -> F64:
    """Standard normal draws (n, size), keyed by the hash of each row."""
    out: F64 = ndtri(uniforms_by_key(hashes[:, None], np.arange(size)[None, :], *words))
    return out
