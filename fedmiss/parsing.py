"""One boundary for JSON and TOML that somebody else may have written: every fault, depth included, is a ValueError."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable
from typing import Any

__all__ = ["DEEPEST", "parse_json", "parse_toml"]

DEEPEST = 64  # levels of lists and tables; what fedmiss writes has fewer than 10


def parse_json(text: str) -> Any:
    """Parse JSON; a ValueError where it is none, or too deep."""
    return _limited(json.loads, text)


def parse_toml(text: str) -> dict[str, Any]:
    """Parse TOML; a ValueError where it is none, or too deep."""
    found: dict[str, Any] = _limited(tomllib.loads, text)
    return found


def _limited(parse: Callable[[str], Any], text: str) -> Any:
    too_deep = f"lists and tables lie more than {DEEPEST} levels deep"
    try:
        value = parse(text)
    except RecursionError:
        raise ValueError(too_deep) from None
    level = [value]
    for _ in range(DEEPEST):  # whoever walks through the value later must come to its end
        level = [
            inner
            for one in level
            if isinstance(one, dict | list)
            for inner in (one.values() if isinstance(one, dict) else one)
        ]
        if not level:
            return value
    raise ValueError(too_deep)
