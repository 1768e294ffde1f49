"""The species trend report: totals, indices, trends, their classes, the page and the exchange files."""

from __future__ import annotations

from fedmiss.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__)
