"""Rand-k and top-k: k entries, and which they are."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedmiss.arrays import F64, I64
from fedmiss.compressors._coder import capacity, decode_levels, encode_levels
from fedmiss.errors import ConfigError, UplinkError
from fedmiss.settings import kinds_checked


@dataclass(frozen=True, slots=True)
class _Sparse(ABC):
    """Keep k entries; all of them when k >= q.

    Bytes: k float64 values, then which entries they are, as zero flags through the range coder (close to
    log2 C(q, k) bits) or, when that is shorter, as k fixed-width numbers.
    """

    _name: ClassVar[str]
    k: int

    def __post_init__(self) -> None:
        if self.k < 1:
            raise ConfigError(f"{self._name} with k={self.k}; choose at least 1.")

    @abstractmethod
    def _keep(self, x: F64, u: F64) -> I64:
        """Kept entries of each row, increasing, (a, k); ties by position, alone as in a batch."""

    def _scale(self, q: int) -> float:
        """What kept entries are multiplied by."""
        return 1.0

    def encode(self, x: F64, u: F64) -> bytes:
        """Values, tag, positions."""
        q = x.size
        if self.k >= q:
            return x.astype("<f8").tobytes()
        # Increasing positions, so that flags alone say which value is whose.
        keep = self._keep(x, u)
        return (x[keep] * self._scale(q)).astype("<f8").tobytes() + _pack_positions(keep, q)

    def decode(self, payload: bytes, q: int) -> F64:
        """Put the values back."""
        k = min(self.k, q)
        if len(payload) < 8 * k or (k == q and len(payload) != 8 * k):
            raise UplinkError(f"{len(payload)} bytes cannot hold {k} numbers of 8 bytes.")
        values = np.frombuffer(payload[: 8 * k], dtype="<f8")
        if k == q:
            return values.astype(np.float64)
        x_hat = np.zeros(q)
        x_hat[_unpack_positions(payload[8 * k :], k, q)] = values
        return x_hat

    def compress_batch(self, X: F64, U: F64) -> tuple[F64, I64]:
        """Keep k entries of each row, (a, q), and measure the code, (a,)."""
        n_rows, q = X.shape
        if self.k >= q:
            return X, np.full(n_rows, 8 * q, dtype=np.int64)
        X_hat, keep = np.zeros_like(X), self._keep(X, U)
        np.put_along_axis(X_hat, keep, np.take_along_axis(X, keep, 1) * self._scale(q), 1)
        return X_hat, np.array([8 * self.k + len(_pack_positions(row, q)) for row in keep], dtype=np.int64)


@kinds_checked
@dataclass(frozen=True, slots=True)
class RandK(_Sparse):
    """Keep k entries drawn without replacement, times q/k; E||Quant(x) - x||^2 = (q/k - 1) ||x||^2 exactly.

    Parameters
    ----------
    k : entries kept; all of them when k >= q
    """

    _name = "rand-k"

    def draws(self, q: int) -> int:
        """One uniform per entry: the k smallest are kept."""
        return q if self.k < q else 0

    def omega(self, q: int) -> float:
        """q/k - 1, exact."""
        return max(q / self.k - 1.0, 0.0)

    def _keep(self, x: F64, u: F64) -> I64:
        return _first(u, self.k)

    def _scale(self, q: int) -> float:
        return q / self.k  # an entry is kept with probability k/q and scaled by q/k: the mean is x


@kinds_checked
@dataclass(frozen=True, slots=True)
class TopK(_Sparse):
    """Keep the k largest |x|, ties by position; ||C(x) - x||^2 <= (1 - k/q) ||x||^2, attained at equal |x|.

    Biased, so it needs a memory that returns to what was left out: FedEM with ``Remembered`` participation and
    alpha = 1 (EF21, Richtarik et al. 2021), or memory="error".

    Source: FL-SAEM's weekly report. Differs in: the report sends Top-k of the statistic itself, which keeps a bias for
    ever (experiment ``saem``).

    Parameters
    ----------
    k : entries kept; all of them when k >= q
    """

    _name = "top-k"

    def draws(self, q: int) -> int:
        """No randomness."""
        return 0

    def delta(self, q: int) -> float:
        """k/q: the share of ||x||^2 that surely arrives."""
        return min(self.k / q, 1.0)

    def omega(self, q: int) -> float:
        """Not defined for a biased compressor: raises ConfigError."""
        raise ConfigError(
            f"top-k (k={self.k}) is biased and has no omega; use delta, Remembered participation, alpha=1."
        )

    def _keep(self, x: F64, u: F64) -> I64:
        return _first(-np.abs(x), self.k)


def _first(values: F64, k: int) -> I64:
    """Places of the k least values of each row, increasing."""
    return np.sort(np.argsort(values, axis=-1, kind="stable")[..., :k], axis=-1)


def _width(q: int) -> int:
    return max((q - 1).bit_length(), 1)


def _pack_positions(keep: I64, q: int) -> bytes:
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


def _unpack_positions(code: bytes, k: int, q: int) -> I64:
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
    # Anything but k increasing positions below q is damage: an index out of range must not reach the statistic.
    if keep.size != k or keep[-1] >= q or bool((np.diff(keep) <= 0).any()):
        raise UplinkError(f"the positions of {k} entries out of {q} are damaged.")
    return keep
