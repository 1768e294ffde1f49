"""Values of which every step of a fit makes new ones."""

from __future__ import annotations

from typing import Any, TypeVar

T = TypeVar("T")


def evolve(value: T, **changes: Any) -> T:
    """Return ``dataclasses.replace(value, **changes)`` in a tenth of its time: a step makes some hundreds of them.

    For dataclasses without slots and without ``__post_init__``: the fields are copied as they are.
    """
    if not changes.keys() <= vars(value).keys():
        raise TypeError(f"{type(value).__name__} has no {', '.join(sorted(changes.keys() - vars(value)))}")
    new = object.__new__(type(value))
    vars(new).update(vars(value), **changes)
    return new
