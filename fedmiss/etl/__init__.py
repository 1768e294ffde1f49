"""Files of records in, panels out: the importer, its rules, and the sparse aggregation to site x month."""

from __future__ import annotations

from fedmiss.etl import memory as memory  # first: what it tells polars counts only before polars is loaded
from fedmiss.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__)
