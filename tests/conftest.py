"""Shared by all tests."""

from __future__ import annotations

import gc
import os
import shutil
import sys

from tests.blank import blank_figures  # noqa: F401

# As the command line does: our matrices are small, and a second BLAS thread only spins.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# Nor are the tables of most tests worth a second thread of polars, which costs a third more; slow tests have two (.ci/run).
os.environ.setdefault("POLARS_MAX_THREADS", "1")
os.environ.setdefault("MPLBACKEND", "Agg")

# Containers often forbid bytecode: every process that a test starts would then compile the whole package again.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# No power fails while a test runs, and a disk would be waited for thousands of times.
os.fsync = lambda handle: None

# Folders of tests lie in memory where there is enough of it: on a disk, tests that write many files take a quarter more.
# PYTEST_DEBUG_TEMPROOT=/tmp puts them elsewhere. What a test has left is removed when it has passed (pyproject.toml).
MEMORY = "/dev/shm"
if os.access(MEMORY, os.W_OK | os.X_OK) and shutil.disk_usage(MEMORY).free > 8 << 30:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", MEMORY)


def pytest_collection_finish() -> None:
    """Take what was imported out of what the collector walks through: it stays until the end."""
    gc.collect()
    gc.freeze()
