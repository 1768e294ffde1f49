"""Top-k: the k entries of largest magnitude. Biased."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedmiss.arrays import F64, I64
from fedmiss.compressors.randk import pack_positions, unpack_kept
from fedmiss.errors import ConfigError

__all__ = ["TopK"]


@dataclass(frozen=True, slots=True)
class TopK:
    """Keep the k largest |x|, ties by position; ||C(x) - x||^2 <= (1 - k/q) ||x||^2, attained at equal |x|.

    Biased, so it needs a memory that returns to what was left out: FedEM with ``Remembered`` participation and
    alpha = 1 (EF21, Richtarik et al. 2021), or memory="error". Bytes as :class:`~.randk.RandK`'s.

    Source: FL-SAEM's weekly report. Differs in: the report sends Top-k of the statistic itself, which keeps a bias for
    ever (experiment ``saem``).

    Parameters
    ----------
    k : entries kept; all of them when k >= q
    """

    k: int

    def __post_init__(self) -> None:
        if self.k < 1:
            raise ConfigError(f"top-k with k={self.k}; choose at least 1.")

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

    def _keep(self, X: F64) -> I64:
        order = np.argsort(-np.abs(X), axis=-1, kind="stable")[..., : self.k]
        keep: I64 = np.sort(order, axis=-1)
        return keep

    def encode(self, x: F64, u: F64) -> bytes:
        """Values, tag, positions."""
        if self.k >= x.size:
            return x.astype("<f8").tobytes()
        keep = self._keep(x)
        return x[keep].astype("<f8").tobytes() + pack_positions(keep, x.size)

    def decode(self, payload: bytes, q: int) -> F64:
        """Put the values back."""
        return unpack_kept(payload, min(self.k, q), q)

    def compress_batch(self, X: F64, U: F64) -> tuple[F64, I64]:
        """Keep k entries of each row, (a, q), and measure the code, (a,)."""
        a, q = X.shape
        if self.k >= q:
            return X, np.full(a, 8 * q, dtype=np.int64)
        X_hat, keep = np.zeros_like(X), self._keep(X)
        np.put_along_axis(X_hat, keep, np.take_along_axis(X, keep, 1), 1)
        return X_hat, np.array([8 * self.k + len(pack_positions(row, q)) for row in keep], dtype=np.int64)
