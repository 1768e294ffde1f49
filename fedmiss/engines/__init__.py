"""Machines that hold the workers and carry the messages."""

from __future__ import annotations

from fedmiss.engines.local import LocalEngine
from fedmiss.engines.study import StudyEngine

__all__ = ["LocalEngine", "StudyEngine"]
