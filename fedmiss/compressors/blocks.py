"""Blocks of free lengths, each compressed on its own: statistics whose parts differ in size and scale."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from fedmiss.arrays import F64, I64
from fedmiss.compressors.dither import Dithering
from fedmiss.core.messages import compress_rows
from fedmiss.core.protocols import Compressor
from fedmiss.errors import ConfigError, UplinkError
from fedmiss.settings import kinds_checked


@kinds_checked
@dataclass(frozen=True, slots=True)
class Blocks:
    """Cut a vector into blocks of the given lengths and compress each by ``inner``; omega is the largest of the blocks'.

    With ``Dithering(levels=1, norm=p)`` it is the paper's block-p quantization with any block lengths: omega =
    max_b sqrt(q_b) - 1 for p = 2. Bytes: the blocks' codes, each after its length in 1 to 4 bytes (7 bits a byte).

    Source: Dieuleveut et al. (2021), eq. (13)-(14), lemma 5. Differs in: the code of each block.

    Parameters
    ----------
    lengths : entries of each block, in order; their sum is q
    inner : an unbiased compressor
    """

    lengths: tuple[int, ...]
    inner: Compressor = field(default_factory=Dithering)

    def __post_init__(self) -> None:
        object.__setattr__(self, "lengths", tuple(int(length) for length in self.lengths))
        if not self.lengths or min(self.lengths) < 1:
            raise ConfigError(f"blocks of lengths {self.lengths} (give at least one, each of at least 1).")
        if getattr(self.inner, "delta", None) is not None:
            raise ConfigError(f"{self.inner} is biased; blocks need an unbiased compressor.")

    def _check(self, q: int) -> None:
        if sum(self.lengths) != q:
            raise ConfigError(
                f"blocks of {sum(self.lengths)} entries in all for a statistic of q={q}; they must agree."
            )

    def _cuts(self, q: int) -> Iterator[tuple[int, slice, slice]]:
        """Length of each block, where its entries are, and where its uniforms: blocks are independent."""
        self._check(q)
        at = used = 0
        for length in self.lengths:
            draws = self.inner.draws(length)
            yield length, slice(at, at + length), slice(used, used + draws)
            at, used = at + length, used + draws

    def draws(self, q: int) -> int:
        """Uniforms of all blocks."""
        self._check(q)
        return sum(self.inner.draws(length) for length in self.lengths)

    def omega(self, q: int) -> float:
        """Return the largest omega of a block: variances add up as squared norms do."""
        self._check(q)
        return max(self.inner.omega(length) for length in self.lengths)

    def encode(self, x: F64, u: F64) -> bytes:
        """Length and code of each block."""
        out = []
        for _, at, own in self._cuts(x.size):
            code = self.inner.encode(x[at], u[own])
            out += [_varint(len(code)), code]
        return b"".join(out)

    def decode(self, payload: bytes, q: int) -> F64:
        """Rebuild the blocks."""
        x_hat, read = np.empty(q), 0
        for length, at, _ in self._cuts(q):
            size, read = _read(payload, read)
            if read + size > len(payload):
                raise UplinkError(f"a block of {length} entries was cut: {size} bytes announced.")
            x_hat[at] = self.inner.decode(payload[read : read + size], length)
            read += size
        if read != len(payload):
            raise UplinkError(f"{len(payload) - read} bytes follow the last block.")
        return x_hat

    def compress_batch(self, X: F64, U: F64) -> tuple[F64, I64]:
        """Each block of all rows at once."""
        X_hat, nbytes = np.empty_like(X), np.zeros(len(X), dtype=np.int64)
        for _, at, own in self._cuts(X.shape[1]):
            block, u = np.ascontiguousarray(X[:, at]), np.ascontiguousarray(U[:, own])
            X_hat[:, at], size = compress_rows(self.inner, block, u)
            nbytes += size + np.array([len(_varint(int(bytes_of))) for bytes_of in size], dtype=np.int64)
        return X_hat, nbytes


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def _read(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= len(data) or shift > 28:
            raise UplinkError("the length of a block is damaged.")
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return value, at
