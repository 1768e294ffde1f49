"""Shared by all tests."""

import gc
import os
import shutil
import sys
from pathlib import Path

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


def room(memory: Path = Path("/proc/meminfo"), group: Path = Path("/sys/fs/cgroup")) -> bool:
    """Whether folder, machine and container each have 8 GB left, and programs in the folder may run."""
    least = 8 << 30
    try:
        enough = shutil.disk_usage(MEMORY).free > least and os.access(MEMORY, os.W_OK | os.X_OK)
        enough &= int(memory.read_text().partition("MemAvailable:")[2].split()[0]) << 10 > least
        if (group / "memory.max").exists() and (most := (group / "memory.max").read_text().strip()) != "max":
            enough &= int(most) - int((group / "memory.current").read_text()) > least
        return enough and not os.statvfs(MEMORY).f_flag & os.ST_NOEXEC
    except (OSError, AttributeError, IndexError, ValueError):  # not Linux
        return False


if room():
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", MEMORY)


def pytest_collection_finish() -> None:
    """Take what was imported out of what the collector walks through: it stays until the end."""
    gc.collect()
    gc.freeze()
