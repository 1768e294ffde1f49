"""Random dithering on norms of blocks: QSGD's quantizer, and the paper's block-p quantization at one level."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from fedmiss.arrays import F64, I64
from fedmiss.compressors._dither import SPARSE, batch, batch_parallel, message, unpack
from fedmiss.errors import ConfigError, DomainError, UplinkError

__all__ = ["Dithering", "block_quantization"]

_LIMIT = "numbers must be finite, norms below 3.4e38"
_PARALLEL = 500_000  # numbers in a batch from which starting the threads pays


@dataclass(frozen=True, slots=True)
class Dithering:
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
    def of(cls, q: int, omega: float = 1.0, norm: float = 2.0) -> Dithering:
        """The fewest levels with which the noise of a vector of ``q`` numbers is at most ``omega`` times its length squared.

        Examples
        --------
        >>> import fedmiss
        >>> fedmiss.compressors.Dithering.of(100)
        Dithering(levels=6, norm=2.0, block=None)
        """
        levels = 1
        # omega falls with the number of levels: double, then halve the gap.
        while cls(levels, norm).omega(q) > omega:
            levels *= 2
        low = levels // 2
        while levels - low > 1:
            middle = (low + levels) // 2
            low, levels = (low, middle) if cls(middle, norm).omega(q) <= omega else (middle, levels)
        return cls(levels, norm)

    def draws(self, q: int) -> int:
        """One uniform per number."""
        return q

    def omega(self, q: int) -> float:
        """Bound of E||Quant(x) - x||^2 / ||x||^2.

        With N = ||x||_r, B entries in a block, v = s|x|/N and f its fractional part, the variance of an entry is
        (N/s)^2 f (1 - f). f (1 - f) <= min(v, 1/4) gives (N/s) ||x||_1 and B N^2 / (4 s^2). At s = 1 it is
        N |x| - x^2, in sum N ||x||_1 - ||x||_2^2 (lemma 5). With N <= B^max(1/r - 1/2, 0) ||x||_2 and
        ||x||_1 <= sqrt(B) ||x||_2 the bounds follow; at s = 1 they are attained for r = 1, 2, inf:
        B - 1, sqrt(B) - 1, (sqrt(B) - 1) / 2. The rounding of norms adds a factor (1 + 2^-23).
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

    def encode(self, x: F64, u: F64) -> bytes:
        """Tag, norms, levels."""
        x = np.ascontiguousarray(x, dtype=np.float64)
        out = message(x, u, self.levels, float(self.norm), self._block(x.size), np.empty_like(x))
        if out.size == 0:
            raise not_finite(x, _LIMIT)
        return bytes(out.tobytes())

    def decode(self, payload: bytes, q: int) -> F64:
        """Rebuild sign * level * norm / s."""
        block = self._block(q)
        n_blocks = -(-q // block)
        raw = np.frombuffer(payload, dtype=np.uint8)
        sparse = raw.size > 0 and bool(raw[0] & SPARSE)
        mask = (n_blocks + 7) // 8 if sparse else 0
        known = (
            np.unpackbits(raw[1 : 1 + mask], bitorder="little")[:n_blocks].astype(bool)
            if sparse
            else np.ones(n_blocks, bool)
        )
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

    def compress_batch(self, X: F64, U: F64) -> tuple[F64, I64]:
        """Quantize each row, (a, q), and measure its code, (a,)."""
        X = np.ascontiguousarray(X, dtype=np.float64)
        X_hat, nbytes = np.empty_like(X), np.empty(len(X), dtype=np.int64)
        kernel = batch_parallel if X.size >= _PARALLEL else batch
        kernel(X, U, self.levels, float(self.norm), self._block(X.shape[1]), X_hat, nbytes)
        if not nbytes.all():
            raise not_finite(X, _LIMIT)
        return X_hat, nbytes


def block_quantization(block: int, p: float = 2.0) -> Dithering:
    """Block-p quantization of Dieuleveut et al. (2021), eq. (13)-(14): one level, omega = sqrt(block) - 1 for p = 2."""
    return Dithering(levels=1, norm=p, block=block)


def not_finite(X: F64, limit: str) -> DomainError:
    """Say that a message is outside the limits of its code."""
    big = float(np.max(np.abs(X)))
    return DomainError(
        f"a message holds {big:g}, which cannot be quantized ({limit}): the run diverged. Lower gamma."
    )
