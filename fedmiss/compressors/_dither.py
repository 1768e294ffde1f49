"""The kernels of dithering: levels, norms, code length, one message or a batch (same inner function).

``_levels`` takes many parameters: numba takes arrays one by one.
"""

from __future__ import annotations

import numpy as np
from numba import njit, prange

from fedmiss.arrays import F32, F64, I32, I64, U8
from fedmiss.compressors._coder import capacity, decode_levels, encode_levels

__all__ = ["batch", "batch_parallel", "message", "unpack"]


SPARSE = 2  # bit 1 of the tag: a bitmap says which blocks are not zero, and only their norms follow


@njit(cache=True)
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


@njit(cache=True)
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


@njit(cache=True)
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


@njit(cache=True)
def batch(X: F64, U: F64, s: int, r: float, block: int, X_hat: F64, nbytes: I64) -> None:
    """Encode each row; keep what the server would decode, and the length."""
    for i in range(X.shape[0]):
        nbytes[i] = message(X[i], U[i], s, r, block, X_hat[i]).size


@njit(cache=True, parallel=True)
def batch_parallel(X: F64, U: F64, s: int, r: float, block: int, X_hat: F64, nbytes: I64) -> None:
    """Do as :func:`batch`, over the cores."""
    for i in prange(X.shape[0]):
        nbytes[i] = message(X[i], U[i], s, r, block, X_hat[i]).size


@njit(cache=True)
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
