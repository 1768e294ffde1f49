"""No compression: numbers as they are."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedmiss.arrays import F64, I64
from fedmiss.errors import ConfigError, UplinkError
from fedmiss.settings import kinds_checked


@kinds_checked
@dataclass(frozen=True, slots=True)
class Identity:
    """Send 8 bytes per number (``bits=64``, exact) or 4 (``bits=32``).

    With 32 bits each number is rounded to the nearest float32: omega is 0, and instead of being unbiased the
    message is within 6e-8 of each number, relatively (for numbers from 1.2e-38 to 3.4e38).
    """

    bits: int = 64

    def __post_init__(self) -> None:
        if self.bits not in (32, 64):
            raise ConfigError(f"identity with bits={self.bits}; choose 64 or 32.")

    @property
    def _dtype(self) -> str:
        return f"<f{self.bits // 8}"

    def draws(self, q: int) -> int:
        """No randomness."""
        return 0

    def omega(self, q: int) -> float:
        """Zero: the message is not random."""
        return 0.0

    def encode(self, x: F64, u: F64) -> bytes:
        """The numbers, little-endian."""
        return x.astype(self._dtype).tobytes()

    def decode(self, payload: bytes, q: int) -> F64:
        """Read q numbers."""
        if len(payload) != q * self.bits // 8:
            raise UplinkError(
                f"{len(payload)} bytes of float{self.bits}, expected {q * self.bits // 8} (q={q})."
            )
        return np.frombuffer(payload, dtype=self._dtype).astype(np.float64)

    def compress_batch(self, X: F64, U: F64) -> tuple[F64, I64]:
        """The rows as they are (rounded to float32 with 32 bits)."""
        n_rows, q = X.shape
        X_hat = X if self.bits == 64 else X.astype(np.float32).astype(np.float64)
        return X_hat, np.full(n_rows, q * self.bits // 8, dtype=np.int64)
