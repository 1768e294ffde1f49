"""The version of fedmiss, where every room may read it."""

__all__ = ["__version__"]

__version__ = "0.2.1"
