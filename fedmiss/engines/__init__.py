"""Machines that hold the workers and carry the messages."""

from __future__ import annotations

from fedmiss.engines.local import LocalEngine, PlainEngine
from fedmiss.engines.lossy import LossyEngine
from fedmiss.engines.study import StudyEngine

__all__ = ["LocalEngine", "LossyEngine", "PlainEngine", "StudyEngine"]
