# mypy: disable-error-code="assignment"
"""Natural dithering: levels at powers of two below the largest entry. One kernel codes one message or a batch."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from fedmiss.arrays import F64, I64, U8
from fedmiss.compressors._coder import capacity, decode_levels, encode_levels
from fedmiss.compressors.dither import Coded, Kernels
from fedmiss.errors import ConfigError, UplinkError
from fedmiss.loops import compiled
from fedmiss.settings import kinds_checked

_HEAD = 3  # tag (with the code length), then the exponent of the largest level as int16
_NONE = -32768  # exponent of a zero vector


@compiled
def message(x: F64, u: F64, s: int, x_hat: F64) -> U8:
    """Encode one vector; an empty array if x is not finite. Level l > 0 stands for 2^(top + 1 - l)."""
    q, big = x.size, 0.0
    for value in x:
        if not abs(value) < 1e300:
            return np.empty(0, dtype=np.uint8)
        big = max(big, abs(value))
    x_hat[:] = 0.0
    if big < 1e-290:  # far below any number that matters; sent as zeros
        out = np.empty(_HEAD, dtype=np.uint8)
        out[0], out[1], out[2] = 0, _NONE & 0xFF, (_NONE >> 8) & 0xFF
        return out
    top = np.int64(np.ceil(np.log2(big)))
    while np.ldexp(1.0, top) < big:  # log2 may be off by one ulp next to a power of two
        top += 1
    levels = np.empty(q, dtype=np.int64)
    for i in range(q):
        magnitude = abs(x[i])
        levels[i] = 0
        if magnitude == 0.0:
            continue
        # log2 rounds: the two loops put 2^e <= |x| < 2^(e + 1) right.
        exponent = np.int64(np.floor(np.log2(magnitude)))
        while np.ldexp(1.0, exponent) > magnitude:
            exponent -= 1
        while np.ldexp(1.0, exponent + 1) <= magnitude:
            exponent += 1
        level = top + 1 - exponent  # of the lower neighbour 2^e
        if level > s:  # below the smallest level: between 0 and it
            low, step, lower = 0.0, np.ldexp(1.0, top + 1 - s), 0
            upper = s
        else:
            low, step, lower = np.ldexp(1.0, exponent), np.ldexp(1.0, exponent), level
            upper = level - 1
        # the upper neighbour with probability (|x| - low) / (high - low): the mean is |x|
        take = upper if (magnitude - low) / step + u[i] >= 1.0 else lower
        if take > 0:
            x_hat[i] = np.copysign(np.ldexp(1.0, top + 1 - take), x[i])
            levels[i] = take if x[i] > 0 else -take
    out = np.empty(_HEAD + capacity(q, s), dtype=np.uint8)
    tag, size = encode_levels(levels, q, s, True, out[_HEAD:])
    out[0], out[1], out[2] = tag, top & 0xFF, (top >> 8) & 0xFF
    return out[: _HEAD + size]


@compiled
def batch(first: int, last: int, X: F64, U: F64, s: int, X_hat: F64, nbytes: I64) -> None:
    """Encode rows ``first`` to ``last``; keep what the server would decode, and the length."""
    for i in range(first, last):
        nbytes[i] = message(X[i], U[i], s, X_hat[i]).size


@compiled
def unpack(code: U8, s: int, x_hat: F64) -> bool:
    """Decode into ``x_hat``; return False when the code is damaged."""
    x_hat[:] = 0.0
    top = np.int64(code[1]) | (np.int64(code[2]) << 8)
    if top >= 32768:
        top -= 65536
    if top == _NONE:
        return code.size == _HEAD
    levels = np.empty(x_hat.size, dtype=np.int64)
    if top > 1024 or top < -1100 or not decode_levels(code[_HEAD:], code[0], x_hat.size, s, True, levels):
        return False
    for i in range(x_hat.size):
        if levels[i] != 0:
            value = np.ldexp(1.0, top + 1 - abs(levels[i]))
            x_hat[i] = value if levels[i] > 0 else -value
    return True


@kinds_checked
@dataclass(frozen=True, slots=True)
class Natural(Coded):
    """Round |x| at random to a neighbour among 0 and M, M/2, ..., M 2^(1-s), M the power of two above max |x|.

    Relative precision for large and small entries alike, where dithering has absolute precision: the choice when
    entries of one statistic differ by orders of magnitude. Bytes: a tag, the exponent of M, the levels through the
    range coder.

    Source: Horvath et al. (2019), natural dithering, with norm infinity rounded up to a power of two.

    Parameters
    ----------
    levels : s, from 1 to 60
    """

    levels: int = 12

    def __post_init__(self) -> None:
        if not 1 <= self.levels <= 60:
            raise ConfigError(f"natural dithering with levels={self.levels}; choose it from 1 to 60.")

    def omega(self, q: int) -> float:
        """1/8 between powers of two, plus what is lost below the smallest level m = M 2^(1-s).

        Between 2^e and 2^(e+1) the variance (|x| - 2^e)(2^(e+1) - |x|) is at most x^2 / 8. Below m it is
        |x| (m - |x|), at most m |x| and m^2/4 an entry; M < 2 max |x| and one entry is the largest, so the sum is at
        most min(2 c sqrt(q), c^2 q) ||x||^2 with c = 2^(1-s).
        """
        c = 2.0 ** (1 - self.levels)
        return 1.0 / 8.0 + min(2.0 * c * math.sqrt(q), c * c * q)

    def _kernels(self, q: int) -> Kernels:
        return message, batch, (self.levels,), "must be finite, below 1e300"

    def decode(self, payload: bytes, q: int) -> F64:
        """Rebuild the powers of two."""
        x_hat = np.empty(q)
        if len(payload) < _HEAD or not unpack(np.frombuffer(payload, dtype=np.uint8), self.levels, x_hat):
            raise UplinkError(f"the code of q={q} levels is damaged, or was made with other settings.")
        return x_hat
