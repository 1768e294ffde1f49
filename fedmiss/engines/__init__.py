"""Machines that hold the workers and carry the messages."""

from __future__ import annotations

from fedmiss.engines.local import LocalEngine, PlainEngine

__all__ = ["LocalEngine", "PlainEngine"]
