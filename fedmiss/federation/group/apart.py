"""Which rows a sum over a column would be of, once sums over other columns have been taken from it."""

from __future__ import annotations

import numpy as np

from fedmiss.arrays import F64, I32, Bool

STEPS, SHRINK = 24, 0.4  # of the weights 1 / |residual|, which are bounded by a number that shrinks to 3e-10
TELLS = 1e-6  # of a column's spread: less is rounding
SAMPLE = 20_000  # rows that tell what the columns before make of a column
FAR = 3.0  # median deviations beyond which a row pulls less


def set_apart(columns: F64, part: I32) -> Bool:
    """Rows (m, K) at which a column is not what a constant of each part and the columns before it make of it.

    Members know the sums over all of these columns, and over each part: where three columns agree but for one row, a
    difference of their sums is this row's. By least absolute deviations, which leave most rows without a residual where few
    differ; least squares would spread it over all.

    Parameters
    ----------
    columns : (m, K) numbers;  part : (m,) which part, 0 and up, each row is in, as its month
    """
    out = np.zeros(columns.shape, dtype=bool)
    spread = columns.std(axis=0) if len(columns) else np.zeros(columns.shape[1])
    live = np.flatnonzero(spread > 0)
    x = columns[:, live] / spread[live]
    few = np.argsort(part, kind="stable")[:: max(1, len(x) // SAMPLE)]
    for at, i in enumerate(live):
        left = x[:, at] - x[:, :at] @ _slopes(x[few, : at + 1], part[few])
        # Where a column is told by others at most rows, the rows that told the slopes are such; the constants are of all.
        out[:, i] = np.abs(left - _medians(left, part)) > TELLS
    return out


def _slopes(x: F64, part: I32) -> F64:
    """Slopes (k,) of the last column of ``x`` (m, k + 1) on the others, by weighted least squares again and again."""
    k = x.shape[1] - 1
    away = np.abs(x[:, :k] - np.median(x[:, :k], axis=0))
    usual = FAR * np.median(away, axis=0)
    # A row far out in a column before would pull a slope through itself, and leave a residual at all others.
    pull = 1.0 / np.maximum(away[:, usual > 0] / usual[usual > 0], 1.0).max(axis=1, initial=1.0)
    least, w, slopes = 1.0, pull, np.zeros(k)
    for _ in range(STEPS if k else 0):
        total = np.bincount(part, w)[part]
        centred = x - np.column_stack([np.bincount(part, w * column)[part] / total for column in x.T])
        weighed = centred[:, :k] * w[:, None]
        slopes = np.linalg.lstsq(weighed.T @ centred[:, :k], weighed.T @ centred[:, k], rcond=1e-12)[0]
        least *= SHRINK
        w = pull / np.maximum(np.abs(centred[:, k] - centred[:, :k] @ slopes), least)
    return slopes


def _medians(value: F64, part: I32) -> F64:
    """Median (m,) of the part of each row; of two values in the middle the lower one, so that one of two rows differs."""
    order = np.lexsort((value, part))
    first = np.searchsorted(part[order], np.arange(part.max(initial=-1) + 2))
    middle = value[order][np.minimum((first[:-1] + first[1:] - 1) // 2, len(value) - 1)]
    return np.asarray(middle[part])
