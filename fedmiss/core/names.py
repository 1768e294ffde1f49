"""Parts by name: a table for each kind, to which anybody may add. ``"module:class"`` is loaded when first asked for."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping
from typing import TypeVar

from fedmiss.errors import ConfigError

__all__ = ["add", "make"]

Part = TypeVar("Part")
Maker = TypeVar("Maker")


def add(kind: str, table: dict[str, Maker], name: str, maker: Maker) -> None:
    """Add a maker under a name that is free."""
    if name in table and table[name] != maker:
        raise ConfigError(f"there is already a {kind} {name!r}; choose another name.")
    table[name] = maker


def make(
    kind: str, table: Mapping[str, str | Callable[..., Part]], name: str, settings: dict[str, object]
) -> Part:
    """Make a part of its settings; ConfigError says which names and settings there are."""
    if name not in table:
        raise ConfigError(f"there is no {kind} {name!r}; known are {', '.join(sorted(table))}.")
    maker = table[name]
    if isinstance(maker, str):
        module, _, attribute = maker.partition(":")
        maker = getattr(importlib.import_module(module), attribute)
        assert callable(maker)
    try:
        inspect.signature(maker).bind(**settings)
    except TypeError as error:
        raise ConfigError(f"{kind} {name!r}: {error}; it takes {inspect.signature(maker)}.") from None
    made: Part = maker(**settings)
    return made
