"""Array aliases and the letters of their axes.

n workers, m rows of a worker, b rows of a minibatch, q numbers in a statistic, d features, G components;
J sites, L months, r rank. All floating arrays are float64 unless a name says otherwise.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

__all__ = ["F32", "F64", "I32", "I64", "U8", "Bool", "Columns"]

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]
I32 = npt.NDArray[np.int32]
U8 = npt.NDArray[np.uint8]
Bool = npt.NDArray[np.bool_]
Columns = dict[str, np.ndarray]  # columns of a table by name: types differ, lengths do not
