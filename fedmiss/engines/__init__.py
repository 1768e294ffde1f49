"""Machines that hold the workers and carry the messages."""

from __future__ import annotations

from fedmiss.engines.local import LocalEngine, PlainEngine
from fedmiss.engines.lossy import LossyEngine
from fedmiss.engines.transport import CoreWorker, TransportEngine

__all__ = ["CoreWorker", "LocalEngine", "LossyEngine", "PlainEngine", "TransportEngine"]
