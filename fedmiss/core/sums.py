"""Sums, lengths and batches that the two steps of FedEM use."""

from __future__ import annotations

from dataclasses import fields, is_dataclass

import numpy as np

from fedmiss.arrays import F64, I64
from fedmiss.core.protocols import Compressor

__all__ = ["compress_rows", "theta_bytes", "weighted_sum"]


def compress_rows(compressor: Compressor, X: F64, U: F64) -> tuple[F64, I64]:
    """Return decode(encode(x)) of each row and the length of its code: ``compress_batch``, or one row at a time."""
    batch = getattr(compressor, "compress_batch", None)
    if batch is not None:
        out: tuple[F64, I64] = batch(X, U)
        return out
    codes = [compressor.encode(x, u) for x, u in zip(X, U, strict=True)]
    Q = np.array([compressor.decode(code, X.shape[1]) for code in codes]).reshape(X.shape)
    return Q, np.array([len(code) for code in codes], dtype=np.int64)


def weighted_sum(coef: F64, Q: F64) -> F64:
    """sum_i coef_i Q_i, added in slot order (so that every engine gives the same bits)."""
    if len(coef) == 0:
        return np.zeros(Q.shape[1])
    # One product for equal weights: faster, and the same operations in every engine.
    if bool((coef == coef[0]).all()):
        total: F64 = coef[0] * np.add.reduce(Q, axis=0)
        return total
    out: F64 = np.add.reduce(coef[:, None] * Q, axis=0)
    return out


def theta_bytes(theta: object) -> int:
    """Bytes of the arrays and numbers in a parameter, as they are counted in ``bytes_down``."""
    if isinstance(theta, np.ndarray):
        return int(theta.nbytes)
    if isinstance(theta, (tuple, list)):
        return sum(theta_bytes(part) for part in theta)
    if isinstance(theta, dict):
        return sum(theta_bytes(part) for part in theta.values())
    if is_dataclass(theta):
        return sum(theta_bytes(getattr(theta, entry.name)) for entry in fields(theta))
    return 8 if isinstance(theta, (int, float)) else 0
