"""Symmetric blocks as their lower triangles, row by row."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from fedmiss.arrays import F64

__all__ = ["from_triangle", "to_triangle"]


@lru_cache(maxsize=64)
def _places(p: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    a, b = np.tril_indices(p)
    full = np.zeros((p, p), dtype=np.int64)
    full[a, b] = full[b, a] = np.arange(a.size)
    return a, b, full.ravel()


def to_triangle(blocks: F64) -> F64:
    """Blocks (..., p, p) to triangles (..., p (p + 1) / 2)."""
    a, b, _ = _places(blocks.shape[-1])
    out: F64 = np.ascontiguousarray(blocks[..., a, b])
    return out


def from_triangle(rows: F64, p: int) -> F64:
    """Triangles (..., p (p + 1) / 2) to blocks (..., p, p)."""
    out: F64 = np.ascontiguousarray(rows[..., _places(p)[2]]).reshape(*rows.shape[:-1], p, p)
    return out
