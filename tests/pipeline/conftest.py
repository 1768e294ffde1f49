"""Fixtures of several modules."""

from tests.blank import blank_figures

__all__ = ["blank_figures"]
