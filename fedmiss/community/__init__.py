"""All species of a site together: the low rank over sites and species."""

from __future__ import annotations

from fedmiss.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__)
