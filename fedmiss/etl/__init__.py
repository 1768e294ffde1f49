"""Files of records in, panels out: the importer, its rules, and the sparse aggregation to site x month.

The import itself is :func:`fedmiss.etl.ingest.ingest`.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedmiss.etl.cells import Aggregate, aggregate, species_visits
    from fedmiss.etl.filters import PRESETS, Filters, preset
    from fedmiss.etl.sources import expand

# Read once by the allocator of polars (jemalloc), when polars is loaded: what it frees goes back at once. As it
# comes, it keeps freed pages for good, and a large import takes up to 50 MB more.
os.environ.setdefault("_RJEM_MALLOC_CONF", "dirty_decay_ms:0,muzzy_decay_ms:0")

__all__ = [
    "PRESETS",
    "Aggregate",
    "Filters",
    "aggregate",
    "expand",
    "preset",
    "species_visits",
]

# Names are fetched when first asked for, so that `import fedmiss.etl` stays light.
_HOME = {
    "Aggregate": "cells",
    "aggregate": "cells",
    "species_visits": "cells",
    "PRESETS": "filters",
    "Filters": "filters",
    "preset": "filters",
    "expand": "sources",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'fedmiss.etl' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"fedmiss.etl.{_HOME[name]}"), name)
