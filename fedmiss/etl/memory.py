"""Freed memory goes back to the system between two steps, so that a step does not pay for the one before it."""

from __future__ import annotations

import os

from fedmiss.system import trim_memory

# Read once by the allocator of polars (jemalloc), when polars is loaded: what it frees goes back at once. As it
# comes, it keeps freed pages for good, and a large import takes up to 50 MB more.
os.environ.setdefault("_RJEM_MALLOC_CONF", "dirty_decay_ms:0,muzzy_decay_ms:0")


def give_back() -> None:
    """Hand back what is freed: allocators keep it in sizes that the next step may have no use for."""
    import pyarrow as pa

    pa.default_memory_pool().release_unused()
    trim_memory()
