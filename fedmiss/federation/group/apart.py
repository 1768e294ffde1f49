"""Which rows a sum over a column would be of, once sums over other columns have been taken from it."""

from __future__ import annotations

import numpy as np

from fedmiss.arrays import F64, I32, Bool

__all__ = ["set_apart"]

STEPS, SHRINK = 24, 0.4  # of the weights 1 / |residual|, which are bounded by a number that shrinks to 3e-10
TELLS = 1e-6  # of a column's spread: less is rounding


def set_apart(columns: F64, part: I32) -> Bool:
    """Rows (m, K) at which a column is not what a constant of each part and the columns before it make of it.

    Members know the sums over all of these columns, and over each part: where three columns agree but for one row, a
    difference of their sums is this row's. By least absolute deviations (weighted least squares again and again), which
    leave most rows without a residual where few differ; least squares would spread it over all.

    Parameters
    ----------
    columns : (m, K) numbers;  part : (m,) which part, 0 and up, each row is in, as its month
    """
    out = np.zeros(columns.shape, dtype=bool)
    spread = columns.std(axis=0) if len(columns) else np.zeros(columns.shape[1])
    live = np.flatnonzero(spread > 0)
    x = columns[:, live] / spread[live]
    for at, i in enumerate(live):
        least, w = 1.0, np.ones(len(x))
        for _ in range(STEPS):
            total = np.bincount(part, w)[part]
            centred = x[:, : at + 1] - np.column_stack(
                [np.bincount(part, w * x[:, j])[part] / total for j in range(at + 1)]
            )
            before, left = centred[:, :at], centred[:, at]
            if at:
                weighed = before * w[:, None]
                left = left - before @ np.linalg.lstsq(weighed.T @ before, weighed.T @ left, rcond=1e-12)[0]
            least *= SHRINK
            w = 1.0 / np.maximum(np.abs(left), least)
        out[:, i] = np.abs(left) > TELLS
    return out
