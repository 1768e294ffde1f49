"""The steps from folder to folder, and recipes."""

from __future__ import annotations

from fedmiss.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__)
