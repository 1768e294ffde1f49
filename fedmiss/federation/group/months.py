"""The months' half of a fit, as a group receives it."""

from __future__ import annotations

import numpy as np

from fedmiss.arrays import F64
from fedmiss.federation import messages as msg
from fedmiss.federation.group.batch import Batch
from fedmiss.federation.triangle import free_columns, from_triangle

__all__ = ["months_of"]

_Seen = tuple[msg.Broadcast | msg.Totals, bool, F64, F64]
_LAST: list[_Seen | None] = [
    None
]  # in one process the very same question goes to every group: it is read once


def months_of(batch: Batch, question: msg.Broadcast | msg.Totals) -> tuple[F64, F64]:
    """Months' coefficients (n, L, p) and covariances (n, L, p, p), with the known line among them."""
    last = _LAST[0]
    if last is None or last[0] is not question or last[1] != batch.slopes:
        n, L, f = question.T.shape
        free = free_columns(f + batch.slopes, slopes=batch.slopes)
        T, D = np.zeros((n, L, f + batch.slopes)), np.zeros((n, L, f + batch.slopes, f + batch.slopes))
        # The line x_l is known to both ends: it is not sent, and has no variance.
        if batch.slopes:
            T[:, :, 1] = batch.month_mean[0, :, 1]
        T[:, :, free] = question.T
        D[:, :, free[:, None], free[None, :]] = from_triangle(question.D, f)
        last = _LAST[0] = (question, batch.slopes, T, D)
    return last[2], last[3]
