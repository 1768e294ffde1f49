"""Simulated data with known truth: panels for solvers, eBird-format files for the whole chain."""

from __future__ import annotations

from fedmiss.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__)
