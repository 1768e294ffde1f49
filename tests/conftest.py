"""Shared by all tests."""

from __future__ import annotations

import os

# As the command line does: our matrices are small, and a second BLAS thread only spins.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("MPLBACKEND", "Agg")
