"""Random dithering on norms of blocks: QSGD's quantizer, and the paper's block-p quantization at one level.

The kernels come first: levels, norms, code length, one message or a batch (same inner function). ``_levels`` takes many
parameters: numba takes arrays one by one.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedmiss.arrays import F32, F64, I32, I64, U8
from fedmiss.compressors._coder import capacity, decode_levels, encode_levels
from fedmiss.errors import ConfigError, DomainError, UplinkError
from fedmiss.loops import compiled, part, spread_out
from fedmiss.settings import kinds_checked

SPARSE = 2  # bit 1 of the tag: a bitmap says which blocks are not zero, and only their norms follow

# Kernels of one message and of a batch, their settings, and the limit of numbers in words.
Kernels = tuple[Callable[..., Any], Callable[..., Any], tuple[Any, ...], str]


@part
def _norm(x: F64, r: float) -> float:
    """||x||_r, scaled against overflow; at least max |x|; nan when x is not finite."""
    top = 0.0
    for value in x:
        if not abs(value) < np.inf:
            return np.nan
        top = max(top, abs(value))
    if top == 0.0 or r == np.inf:
        return top
    if top < 1e-290:
        return top * x.size  # an upper bound is as good, far below any number that matters
    # Scaled by the largest entry: no square overflows, and the norm is never below that entry.
    scale, total = 1.0 / top, 0.0
    if r == 1.0:
        for value in x:
            total += abs(value)
        return max(top, total)
    if r == 2.0:
        for value in x:
            scaled = value * scale
            total += scaled * scaled
        return float(top * max(1.0, np.sqrt(total)))
    for value in x:
        total += (abs(value) * scale) ** r
    return float(top * max(1.0, total ** (1.0 / r)))


@part
def _levels(
    x: F64, u: F64, s: int, r: float, block: int, norms: F32, bits: I32, levels: I64, x_hat: F64
) -> int:
    """Quantize; return the number of levels to code (blocks of norm 0 have none), or -1 if x is not finite.

    ``bits`` views the float32 ``norms`` as integers: adding 1 rounds a norm up, so that |x| <= norm holds for the
    rounded norm and the levels stay unbiased.
    """
    count = 0
    for at in range(norms.size):
        lo, hi = at * block, min((at + 1) * block, x.size)
        norm = _norm(x[lo:hi], r)
        # Above the largest float32, or nan (which compares as false).
        if not norm <= 3.4028234e38:
            return -1
        # The decoder knows the float32 norm only, so levels are made for that one.
        norms[at] = norm
        if np.float64(norms[at]) < norm:
            bits[at] += 1
        unit = np.float64(norms[at]) / s
        if unit == 0.0:
            x_hat[lo:hi] = 0.0
            continue
        for i in range(lo, hi):
            # level floor(s |x| / N + u): its mean is s |x| / N, so E Quant(x) = x (eqs. (13), (14) at s = 1)
            # |x| / unit <= s up to rounding of the quotient: the bound keeps the level in its alphabet.
            level = min(int(np.floor(abs(x[i]) / unit + u[i])), s)
            if x[i] < 0:
                level = -level
            levels[count] = level
            x_hat[i] = level * unit
            count += 1
    return count


@compiled
def message(x: F64, u: F64, s: int, r: float, block: int, x_hat: F64) -> U8:
    """Encode one vector: return its bytes (tag, norms, code); an empty array if x is not finite."""
    q = x.size
    norms = np.empty((q + block - 1) // block, dtype=np.float32)
    levels = np.empty(q, dtype=np.int64)
    count = _levels(x, u, s, r, block, norms, norms.view(np.int32), levels, x_hat)
    if count < 0:
        return np.empty(0, dtype=np.uint8)
    full = 0
    for b in range(norms.size):
        full += norms[b] > 0
    # A bitmap and the norms that are not zero, where that is shorter than all norms.
    sparse = (norms.size + 7) // 8 + 4 * full < 4 * norms.size
    mask = (norms.size + 7) // 8 if sparse else 0
    sent = full if sparse else norms.size
    head = 1 + mask + 4 * sent
    out = np.zeros(head + capacity(count, s), dtype=np.uint8)
    tag, size = encode_levels(levels, count, s, True, out[head:])
    out[0] = tag | (SPARSE if sparse else 0)
    kept = np.empty(sent, dtype=np.float32)
    at = 0
    for b in range(norms.size):
        if sparse and not norms[b] > 0:
            continue
        kept[at] = norms[b]
        at += 1
        if sparse:
            out[1 + b // 8] |= np.uint8(1 << (b % 8))
    out[1 + mask : head] = kept.view(np.uint8)
    return out[: head + size]


@compiled
def batch(
    first: int, last: int, X: F64, U: F64, s: int, r: float, block: int, X_hat: F64, nbytes: I64
) -> None:
    """Encode rows ``first`` to ``last``; keep what the server would decode, and the length."""
    for i in range(first, last):
        nbytes[i] = message(X[i], U[i], s, r, block, X_hat[i]).size


@compiled
def unpack(code: U8, tag: int, norms: F32, s: int, block: int, x_hat: F64) -> bool:
    """Decode into ``x_hat``; return False when the code is damaged."""
    q, count = x_hat.size, 0
    for b in range(norms.size):
        # The encoder's own test: a norm so small that its unit is 0 has no levels either.
        if np.float64(norms[b]) / s > 0.0:
            count += min((b + 1) * block, q) - b * block
    levels = np.empty(count, dtype=np.int64)
    if not decode_levels(code, tag, count, s, True, levels):
        return False
    at = 0
    for b in range(norms.size):
        unit = np.float64(norms[b]) / s
        for i in range(b * block, min((b + 1) * block, q)):
            x_hat[i] = 0.0
            if unit > 0.0:
                x_hat[i] = levels[at] * unit
                at += 1
    return True


class Coded(ABC):
    """Base of a compressor whose kernels quantize and code a message, with one uniform per number."""

    __slots__ = ()

    @abstractmethod
    def _kernels(self, q: int) -> Kernels: ...

    def draws(self, q: int) -> int:
        """One uniform per number."""
        return q

    def encode(self, x: F64, u: F64) -> bytes:
        """Return the code of the (q,) vector ``x``; DomainError if a number is too large for it, or none."""
        one, _, settings, limit = self._kernels(x.size)
        x = np.ascontiguousarray(x, dtype=np.float64)
        out = one(x, u, *settings, np.empty_like(x))
        if out.size == 0:
            raise _not_finite(x, limit)
        return bytes(out.tobytes())

    def compress_batch(self, X: F64, U: F64) -> tuple[F64, I64]:
        """Quantize each row, (a, q), and measure its code, (a,)."""
        _, many, settings, limit = self._kernels(X.shape[1])
        X = np.ascontiguousarray(X, dtype=np.float64)
        X_hat, nbytes = np.empty_like(X), np.empty(len(X), dtype=np.int64)
        spread_out(many, len(X), X.size // 10, X, U, *settings, X_hat, nbytes)
        if not nbytes.all():
            raise _not_finite(X, limit)
        return X_hat, nbytes


def _not_finite(X: F64, limit: str) -> DomainError:
    """Say that a message is outside the limits of its code."""
    big = float(np.max(np.abs(X)))
    return DomainError(
        f"a message holds {big:g}, which cannot be quantized ({limit}): the run diverged. Lower gamma."
    )


@kinds_checked
@dataclass(frozen=True, slots=True)
class Dithering(Coded):
    """``(1/s) ||x||_r sign(x) floor(s |x| / ||x||_r + xi)``, xi ~ U[0, 1]^q, block by block.

    Bytes: one tag, a float32 norm per block (one bit for a block of zeros when there are many), then the levels,
    entropy-coded (see :mod:`._coder`). Norms are
    rounded up to float32 and the levels drawn with the rounded norm, so unbiasedness stays exact.

    Source: Alistarh et al. (2017), QSGD (r = 2, one block); Dieuleveut et al. (2021), lemma 5 (levels = 1). Differs
    from QSGD in the coding: adaptive range coding instead of Elias codes.

    Parameters
    ----------
    levels : s >= 1
    norm : r >= 1, math.inf allowed
    block : entries per block; None is the whole vector

    Examples
    --------
    >>> import fedmiss
    >>> # variance of the message, relative to its length squared
    >>> round(fedmiss.compressors.Dithering(levels=4).omega(16), 6)
    0.25
    """

    levels: int = 1
    norm: float = 2.0
    block: int | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.levels < 1 << 31:
            raise ConfigError(f"dithering with levels={self.levels}; choose it from 1 to 2^31 - 1.")
        if not self.norm >= 1:
            raise ConfigError(f"dithering with norm={self.norm}; choose 1, 2, inf or any number >= 1.")
        if self.block is not None and self.block < 1:
            raise ConfigError(f"dithering with block={self.block}; choose at least 1, or None for one block.")

    @classmethod
    @kinds_checked
    def of(cls, q: int, omega: float = 1.0, norm: float = 2.0) -> Dithering:
        """The fewest levels with which the noise of a vector of ``q`` numbers is at most ``omega`` times its length squared.

        Examples
        --------
        >>> import fedmiss
        >>> fedmiss.compressors.Dithering.of(100)
        Dithering(levels=6, norm=2.0, block=None)
        """
        if q < 1 or not omega > 0:
            raise ConfigError(f"q={q} numbers with omega={omega:g} (must be at least 1, and above 0).")
        levels = 1
        # omega falls with the number of levels: double, then halve the gap.
        while cls(levels, norm).omega(q) > omega:
            levels *= 2
        low = levels // 2
        while levels - low > 1:
            middle = (low + levels) // 2
            low, levels = (low, middle) if cls(middle, norm).omega(q) <= omega else (middle, levels)
        return cls(levels, norm)

    def omega(self, q: int) -> float:
        """Bound of E||Quant(x) - x||^2 / ||x||^2.

        With N = ||x||_r, B entries in a block, v = s|x|/N and f its fractional part, the variance of an entry is
        (N/s)^2 f (1 - f). f (1 - f) <= min(v, 1/4) gives (N/s) ||x||_1 and B N^2 / (4 s^2). At s = 1 it is
        N |x| - x^2, in sum N ||x||_1 - ||x||_2^2 (lemma 5). With N <= B^max(1/r - 1/2, 0) ||x||_2 and
        ||x||_1 <= sqrt(B) ||x||_2 the bounds follow; at s = 1 they are attained for r = 1, 2, inf:
        B - 1, sqrt(B) - 1, (sqrt(B) - 1) / 2. The rounding of norms adds a factor (1 + 2^-23), for
        norms from 1.2e-38: below, float32 has fewer digits, and the norm is up to 1.4e-45 too large.
        """
        B, s, r = min(self.block or q, q), self.levels, self.norm
        up = 1.0 + 2.0**-23
        c = float(B ** max(1.0 / r - 0.5, 0.0)) * up
        if s == 1:
            # Attained by vectors of one large entry and equal small ones: (sqrt(B) - 1) / 2.
            if r == math.inf:
                return (1.0 + math.sqrt(B)) / 2.0 * up - 1.0
            return c * math.sqrt(B) - 1.0
        return min(c * math.sqrt(B) / s, c * c * B / (4.0 * s * s))

    def _block(self, q: int) -> int:
        return max(min(self.block or q, q), 1)

    def _kernels(self, q: int) -> Kernels:
        settings = (self.levels, float(self.norm), self._block(q))
        return message, batch, settings, "numbers must be finite, norms below 3.4e38"

    def decode(self, payload: bytes, q: int) -> F64:
        """Rebuild sign * level * norm / s."""
        block = self._block(q)
        n_blocks = -(-q // block)
        raw = np.frombuffer(payload, dtype=np.uint8)
        sparse = raw.size > 0 and bool(raw[0] & SPARSE)
        mask = (n_blocks + 7) // 8 if sparse else 0
        known = np.ones(n_blocks, bool)
        if sparse:
            known = np.unpackbits(raw[1 : 1 + mask], bitorder="little")[:n_blocks].astype(bool)
        head = 1 + mask + 4 * int(known.sum())
        if len(payload) < head or known.size < n_blocks:
            raise UplinkError(f"{len(payload)} bytes cannot hold the {n_blocks} norms of q={q} numbers.")
        norms = np.zeros(n_blocks, dtype=np.float32)
        norms[known] = np.frombuffer(payload[1 + mask : head], dtype="<f4")
        x_hat = np.empty(q)
        if not bool((norms >= 0).all() and np.isfinite(norms).all()):
            raise UplinkError("a norm of the message is negative or not a number.")
        if not unpack(raw[head:], int(raw[0]) & ~SPARSE, norms, self.levels, block, x_hat):
            raise UplinkError(f"the code of q={q} levels is damaged, or was made with other settings.")
        return x_hat


@kinds_checked
def block_quantization(block: int, p: float = 2.0) -> Dithering:
    """Block-p quantization of Dieuleveut et al. (2021), eq. (13)-(14): one level, omega = sqrt(block) - 1 for p = 2."""
    return Dithering(levels=1, norm=p, block=block)
