"""Files of records in, panels out: the importer, its rules, and the sparse aggregation to site x month.

The import itself is :func:`fedmiss.etl.ingest.ingest`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from fedmiss.etl import memory as memory  # first: what it tells polars counts only before polars is loaded

if TYPE_CHECKING:
    from fedmiss.etl.cells import Aggregate, aggregate, species_visits
    from fedmiss.etl.filters import PRESETS, Filters, preset
    from fedmiss.etl.sources import expand

__all__ = ["PRESETS", "Aggregate", "Filters", "aggregate", "expand", "preset", "species_visits"]

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


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'fedmiss.etl' has no attribute {name!r}")
    return getattr(import_module(f"fedmiss.etl.{_HOME[name]}"), name)
