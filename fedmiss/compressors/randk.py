"""Rand-k: k entries at random, scaled by q/k."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedmiss.arrays import F64, I64
from fedmiss.compressors._coder import capacity, decode_levels, encode_levels
from fedmiss.errors import ConfigError, UplinkError

__all__ = ["RandK", "pack_positions", "unpack_kept", "unpack_positions"]


@dataclass(frozen=True, slots=True)
class RandK:
    """Keep k entries drawn without replacement, times q/k; E||Quant(x) - x||^2 = (q/k - 1) ||x||^2 exactly.

    Bytes: k float64 values, then which entries they are, as zero flags through the range coder (close to
    log2 C(q, k) bits) or, when that is shorter, as k fixed-width numbers.

    Parameters
    ----------
    k : entries kept; all of them when k >= q
    """

    k: int

    def __post_init__(self) -> None:
        if self.k < 1:
            raise ConfigError(f"rand-k with k={self.k}; choose at least 1.")

    def draws(self, q: int) -> int:
        """One uniform per entry: the k smallest are kept."""
        return q if self.k < q else 0

    def omega(self, q: int) -> float:
        """q/k - 1, exact."""
        return max(q / self.k - 1.0, 0.0)

    def _keep(self, U: F64) -> I64:
        """Kept entries of each row, increasing, (a, k)."""
        # a stable sort breaks ties by position, so the draw is the same alone and in a batch
        keep: I64 = np.sort(np.argsort(U, axis=-1, kind="stable")[..., : self.k], axis=-1)
        return keep

    def encode(self, x: F64, u: F64) -> bytes:
        """Values, tag, positions."""
        q = x.size
        if self.k >= q:
            return x.astype("<f8").tobytes()
        keep = self._keep(u)  # an entry is kept with probability k/q and scaled by q/k: the mean is x
        return (x[keep] * (q / self.k)).astype("<f8").tobytes() + pack_positions(keep, q)

    def decode(self, payload: bytes, q: int) -> F64:
        """Put the values back."""
        return unpack_kept(payload, min(self.k, q), q)

    def compress_batch(self, X: F64, U: F64) -> tuple[F64, I64]:
        """Keep k entries of each row, (a, q), and measure the code, (a,)."""
        a, q = X.shape
        if self.k >= q:
            return X, np.full(a, 8 * q, dtype=np.int64)
        X_hat, nbytes, keep = np.zeros_like(X), np.empty(a, dtype=np.int64), self._keep(U)
        np.put_along_axis(X_hat, keep, np.take_along_axis(X, keep, 1) * (q / self.k), 1)
        for i in range(a):
            nbytes[i] = 8 * self.k + len(pack_positions(keep[i], q))
        return X_hat, nbytes


def _width(q: int) -> int:
    return max((q - 1).bit_length(), 1)


def pack_positions(keep: I64, q: int) -> bytes:
    """Code of which of q entries are kept: zero flags, or fixed-width numbers when that is shorter."""
    flags = np.zeros(q, dtype=np.int64)
    flags[keep] = 1
    out = np.empty(capacity(q, 1), dtype=np.uint8)
    tag, size = encode_levels(flags, q, 1, False, out)
    width = _width(q)
    if (keep.size * width + 7) // 8 < size:
        bits = (keep[:, None] >> np.arange(width)) & 1
        return b"\x02" + np.packbits(bits.astype(np.uint8).ravel(), bitorder="little").tobytes()
    return bytes([tag]) + out[:size].tobytes()


def unpack_kept(payload: bytes, k: int, q: int) -> F64:
    """(q,) vector of k values and their positions, zero elsewhere."""
    if len(payload) < 8 * k or (k == q and len(payload) != 8 * k):
        raise UplinkError(f"{len(payload)} bytes cannot hold {k} numbers of 8 bytes.")
    values = np.frombuffer(payload[: 8 * k], dtype="<f8")
    if k == q:
        return values.astype(np.float64)
    x_hat = np.zeros(q)
    x_hat[unpack_positions(payload[8 * k :], k, q)] = values
    return x_hat


def unpack_positions(code: bytes, k: int, q: int) -> I64:
    """Return the k positions, increasing, or raise UplinkError."""
    raw = np.frombuffer(code, dtype=np.uint8)
    keep = np.empty(0, dtype=np.int64)
    if raw.size and raw[0] == 2:
        width = _width(q)
        if raw.size - 1 == (k * width + 7) // 8:
            bits = np.unpackbits(raw[1:], count=k * width, bitorder="little").reshape(k, width)
            keep = (bits.astype(np.int64) << np.arange(width)).sum(axis=1)
    elif raw.size:
        flags = np.empty(q, dtype=np.int64)
        if decode_levels(raw[1:], int(raw[0]), q, 1, False, flags):
            keep = np.flatnonzero(flags)
    if keep.size != k or keep[-1] >= q or bool((np.diff(keep) <= 0).any()):
        raise UplinkError(f"the positions of {k} entries out of {q} are damaged.")
    return keep
