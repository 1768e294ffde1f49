"""The version of fedmiss, where every room may read it."""

__version__ = "0.2.1"
