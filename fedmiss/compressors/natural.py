"""Natural dithering: levels at powers of two below the largest entry."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from fedmiss.arrays import F64, I64
from fedmiss.compressors._natural import batch, batch_parallel, message, unpack
from fedmiss.compressors.dither import not_finite
from fedmiss.errors import ConfigError, UplinkError

__all__ = ["Natural"]

_LIMIT = "must be finite, below 1e300"
_PARALLEL = 500_000  # numbers in a batch from which starting the threads pays


@dataclass(frozen=True, slots=True)
class Natural:
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

    def draws(self, q: int) -> int:
        """One uniform per number."""
        return q

    def omega(self, q: int) -> float:
        """1/8 between powers of two, plus what is lost below the smallest level m = M 2^(1-s).

        Between 2^e and 2^(e+1) the variance (|x| - 2^e)(2^(e+1) - |x|) is at most x^2 / 8. Below m it is
        |x| (m - |x|), at most m |x| and m^2/4 an entry; M < 2 max |x| and one entry is the largest, so the sum is at
        most min(2 c sqrt(q), c^2 q) ||x||^2 with c = 2^(1-s).
        """
        c = 2.0 ** (1 - self.levels)
        return 1.0 / 8.0 + min(2.0 * c * math.sqrt(q), c * c * q)

    def encode(self, x: F64, u: F64) -> bytes:
        """Tag, exponent, levels."""
        x = np.ascontiguousarray(x, dtype=np.float64)
        out = message(x, u, self.levels, np.empty_like(x))
        if out.size == 0:
            raise not_finite(x, _LIMIT)
        return bytes(out.tobytes())

    def decode(self, payload: bytes, q: int) -> F64:
        """Rebuild the powers of two."""
        x_hat = np.empty(q)
        if len(payload) < 3 or not unpack(np.frombuffer(payload, dtype=np.uint8), self.levels, x_hat):
            raise UplinkError(f"the code of q={q} levels is damaged, or was made with other settings.")
        return x_hat

    def compress_batch(self, X: F64, U: F64) -> tuple[F64, I64]:
        """Quantize each row, (a, q), and measure its code, (a,)."""
        X = np.ascontiguousarray(X, dtype=np.float64)
        X_hat, nbytes = np.empty_like(X), np.empty(len(X), dtype=np.int64)
        kernel = batch_parallel if X.size >= _PARALLEL else batch
        kernel(X, U, self.levels, X_hat, nbytes)
        if not nbytes.all():
            raise not_finite(X, _LIMIT)
        return X_hat, nbytes
