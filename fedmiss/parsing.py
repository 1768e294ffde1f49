"""One boundary for JSON and TOML that somebody else may have written: every fault, depth included, is a ValueError."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable
from datetime import date, time
from functools import cache
from types import UnionType
from typing import Any, NotRequired, Required, Union, get_args, get_origin, get_type_hints, is_typeddict

from fedmiss.errors import InputError

DEEPEST = 64  # levels of lists and tables; what fedmiss writes has fewer than 10


def parse_json(text: str) -> Any:
    """Parse JSON; a ValueError where it is none, or too deep."""
    return _limited(json.loads, text)


def parse_toml(text: str) -> dict[str, Any]:
    """Parse TOML, dates without quotes as text; a ValueError where it is none, or too deep."""
    found: dict[str, Any] = _dates_as_text(_limited(tomllib.loads, text))
    return found


def _dates_as_text(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _dates_as_text(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_dates_as_text(item) for item in value]
    return value.isoformat() if isinstance(value, date | time) else value


class Said(dict[str, Any]):
    """What a file says, by name; a name that it lacks is an error that a user understands."""

    where = "the file"

    def __missing__(self, key: str) -> Any:
        raise InputError(f"{self.where} does not say {key!r}; make it again.")


def said(value: Any, where: str) -> Any:
    """Make every table in a value a :class:`Said`."""
    if isinstance(value, dict):
        out = Said((key, said(item, where)) for key, item in value.items())
        out.where = where
        return out
    return [said(item, where) for item in value] if isinstance(value, list) else value


def misfit(value: Any, hint: Any, name: str = "") -> str:
    """Return which part of a value is not of its type, in words; a blank when all are. Names that lack are no misfit."""
    origin, inner = origin_and_parts(hint)
    if hint is Any:
        return ""
    if origin in (Union, UnionType):
        faults = [misfit(value, one, name) for one in inner]
        return "" if "" in faults else faults[0]
    if origin in (Required, NotRequired):
        return misfit(value, inner[0], name)
    if is_typeddict(hint) or origin is dict:
        if not isinstance(value, dict):
            return _fault(value, "a table", name)
        hints = _hints(hint) if is_typeddict(hint) else {}
        each = inner[1] if inner else Any
        parts = ((item, hints.get(key, each), f"{name}.{key}".lstrip(".")) for key, item in value.items())
        return next((fault for part in parts if (fault := misfit(*part))), "")
    if origin is list:
        if not isinstance(value, list):
            return _fault(value, "a list", name)
        return next(
            (fault for i, item in enumerate(value) if (fault := misfit(item, inner[0], f"{name}[{i}]"))), ""
        )
    if hint is float:
        fits = isinstance(value, int | float) and not isinstance(value, bool)
    elif hint is int:
        fits = isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << 63
    else:
        fits = isinstance(value, hint)
    return "" if fits else _fault(value, _WORDS.get(hint, str(hint)), name)


@cache
def origin_and_parts(hint: Any) -> tuple[Any, tuple[Any, ...]]:
    """Return ``get_origin`` and ``get_args`` of a type; they are asked for with every value that is checked."""
    return get_origin(hint), get_args(hint)


_hints = cache(get_type_hints)  # they are read for every table of every manifest
_WORDS = {int: "a whole number", float: "a number", str: "a text", bool: "true or false", type(None): "null"}


def _fault(value: Any, wanted: str, name: str) -> str:
    return f"{name} is {str(value)[:40]!r}, not {wanted}"


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
