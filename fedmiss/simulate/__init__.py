"""Simulated data with known truth: panels for solvers, eBird-format files for the whole chain."""

from __future__ import annotations
