"""How coefficients travel: symmetric blocks as their lower triangles, row by row, and months without the known line."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from fedmiss.arrays import F64, I64


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


def free_columns(p: int, *, slopes: bool) -> I64:
    """Coefficients of a month that are estimated: with ``slopes`` the second is the known line x."""
    return np.array([a for a in range(p) if not (slopes and a == 1)], dtype=np.int64)


def free_places(p: int, *, slopes: bool) -> I64:
    """Places of the free columns' gradient and triangle within those of all p coefficients."""
    a, b, _ = _places(p)
    at = [i for i in range(p) if not (slopes and i == 1)]
    at += [p + i for i in range(a.size) if not (slopes and 1 in (a[i], b[i]))]
    return np.array(at, dtype=np.int64)
