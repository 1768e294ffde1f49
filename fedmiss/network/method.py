"""A study about a method of one's own: a function that is installed at all organisations is run at each of them.

The function gets the organisation's place in the study, and the path of its data::

    def job(circle: Circle, data: Path, **settings) -> Mapping[str, Any]

What it tells the others goes through ``circle``: :meth:`~fedmiss.federation.circle.Circle.add_up` gives the sum of arrays
over all organisations, masked where the study has masks; :class:`fedmiss.engines.StudyEngine` runs the core's algorithms.
What it returns (numbers, texts, arrays) is the result. No code travels: only the function's name does.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedmiss.errors import ConfigError
from fedmiss.federation.circle import Circle
from fedmiss.files import atomic_folder, write_json, write_manifest
from fedmiss.version import __version__

if TYPE_CHECKING:
    from fedmiss.network.kits import Kit

__all__ = ["function_of", "run_method"]


def function_of(named: str) -> Callable[..., Mapping[str, Any]]:
    """The function that a study names as ``package.module:function``.

    Raises
    ------
    ConfigError    it is not installed here
    """
    module, _, name = named.partition(":")
    try:
        found = getattr(importlib.import_module(module), name)
    except ImportError as error:
        raise ConfigError(
            f"the study runs {named}, and {module} cannot be imported here: {error}. Install the package that the "
            "organisations have agreed on, the same version everywhere."
        ) from None
    except AttributeError:
        raise ConfigError(
            f"the study runs {named}, and {module} has no {name!r}. Install the version that the organisations have "
            "agreed on."
        ) from None
    out: Callable[..., Mapping[str, Any]] = found
    return out


def run_method(kit: Kit, data: Path, circle: Circle) -> Path:
    """Run the study's method with the others; write what it returns and return its folder."""
    method = dict(kit.study.method)
    job = function_of(str(method.pop("run")))
    found = job(circle, data, **method)
    arrays = {k: np.asarray(v) for k, v in found.items() if isinstance(v, np.ndarray | list | tuple)}
    facts = {k: v for k, v in found.items() if k not in arrays}
    try:
        json.dumps(facts)
    except TypeError as error:
        raise ConfigError(
            f"{kit.study.method['run']} returned what no file can hold ({error}); return numbers, texts, and arrays."
        ) from None
    if kit.result.exists():
        return kit.result
    with atomic_folder(kit.result) as tmp:
        np.savez(tmp / "arrays.npz", **arrays)  # type: ignore[arg-type]  # names are those of the function
        write_json(tmp / "result.json", facts)
        shapes = {k: list(v.shape) for k, v in arrays.items()}
        write_manifest(
            tmp, "method", settings=asdict(kit.study), inputs={"job": kit.job.hex()},
            results={
                "version": __version__, "exchanges": circle.exchange, "arrays": shapes,
                "rounds_without": {name: n for name, n in circle.left_out.items() if n},
            },
        )  # fmt: skip
    return kit.result
