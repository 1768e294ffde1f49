"""Names that are fetched when first used: written once, in the ``__init__.pyi`` of their package.

Type checkers read that file as it stands, and the package at run time, so that no second list is needed (as in the
Scientific Python SPEC 1).
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any


def names_of(package: str) -> dict[str, str]:
    """Return the names of a package and the module that defines each, in the order of its ``__init__.pyi``.

    ``package``: full name of an imported package; each line ``from MODULE import NAME as NAME`` of its file is a name.
    """
    text = Path(sys.modules[package].__path__[0], "__init__.pyi").read_text(encoding="utf-8")
    lines = [line.split() for line in text.splitlines() if line.startswith("from ")]
    return {words[3]: words[1] for words in lines if words[4:5] == ["as"]}


def attach(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return ``__getattr__``, ``__dir__`` and ``__all__`` of a package (PEP 562).

    A line ``from PACKAGE import NAME as NAME`` of its own makes a package below it known: not part of ``__all__``.

    Raises
    ------
    AttributeError
        From ``__getattr__``: a name that the package has not.
    """
    homes = names_of(package)

    def fetch(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        if homes[name] == package:
            return import_module(f"{package}.{name}")
        return getattr(import_module(homes[name]), name)

    public = sorted(name for name, home in homes.items() if home != package and not name.startswith("_"))
    return fetch, lambda: sorted({*homes, *vars(sys.modules[package])}), public
