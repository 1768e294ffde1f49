"""Files of records in, panels out: the importer, its rules, and the sparse aggregation to site x month."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedmiss.etl.aggregate import Aggregate, aggregate, species_visits
    from fedmiss.etl.filters import PRESETS, Filters, preset
    from fedmiss.etl.ingest import IngestSettings, ingest
    from fedmiss.etl.sources import expand

__all__ = [
    "PRESETS",
    "Aggregate",
    "Filters",
    "IngestSettings",
    "aggregate",
    "expand",
    "ingest",
    "preset",
    "species_visits",
]

# Names are fetched when first asked for, so that `import fedmiss.etl` stays light.
_HOME = {
    "Aggregate": "aggregate",
    "aggregate": "aggregate",
    "species_visits": "aggregate",
    "PRESETS": "filters",
    "Filters": "filters",
    "preset": "filters",
    "IngestSettings": "ingest",
    "ingest": "ingest",
    "expand": "sources",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'fedmiss.etl' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"fedmiss.etl.{_HOME[name]}"), name)
