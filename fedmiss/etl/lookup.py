"""Where ids stand in a sorted list (binary search for some, compiled buckets for millions)."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedmiss.arrays import I32, I64

__all__ = ["MANY", "Buckets", "find_sorted"]

MANY = 2_000_000  # from about here on, buckets save more than the second that numba takes to start


def find_sorted(ids: Any, wanted: I64) -> Any:
    """Return the place of each wanted id among the ascending ``ids``, -1 where it is not among them."""
    if not ids.size:
        return np.full(wanted.size, -1, dtype=np.int64)
    # ids may be narrower than what is wanted: numpy would widen them all, at every call
    at = np.searchsorted(ids, np.clip(wanted, ids[0], ids[-1]).astype(ids.dtype))
    return np.where(ids[at] == wanted, at, -1)


class Buckets:
    """The same as :func:`find_sorted` for ids that are spread evenly, with far fewer comparisons.

    The range of the ids is cut into equal buckets of a few ids each, and the first id of each is remembered.
    Ids that crowd in few buckets are still found, by binary search within the bucket.
    """

    def __init__(self, ids: Any) -> None:
        self._ids = ids
        span = int(ids[-1]) - int(ids[0]) if ids.size else 0
        self._shift = max(0, (2 * span // max(ids.size, 1)).bit_length())
        edges = np.arange((span >> self._shift) + 2, dtype=np.int64) << self._shift
        edges = np.minimum(edges + (int(ids[0]) if ids.size else 0), np.iinfo(ids.dtype).max)
        self._first: I32 = np.searchsorted(ids, edges.astype(ids.dtype)).astype(np.int32)
        self._first[-1] = ids.size

    def find(self, wanted: I64) -> I32:
        """Return the place of each wanted id, -1 where it is not there."""
        from fedmiss.etl import _keys

        out = np.full(wanted.size, -1, dtype=np.int32)
        if self._ids.size:
            _keys.find(self._ids, self._first, self._shift, wanted, out)
        return out
