"""What decides a run's result, in words and as 8 bytes: checkpoints and copies of another run are refused by it."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from fedmiss.core.fedem import FedEM

_DEPTH = 12  # deeper parts are described by their type only
_SHORT = 8  # arrays up to this size are spelled out


def settings(algo: FedEM) -> dict[str, str]:
    """Everything that decides the result beside the data, in words: what a checkpoint must agree with."""
    roster = algo.roster
    names = ("gamma", "bound", "downlink", "model", "compressor", "participation", "oracle")
    return {name: describe(getattr(algo, name)) for name in names} | {
        "seed": str(algo.seed),
        "alpha": repr(float(algo.alpha)),
        "memory": algo.memory if isinstance(algo.memory, str) else describe(algo.memory),
        "n": str(roster.n),
        "names": digest("\n".join(roster.ids)).hex(),
        "sizes": describe(roster.sizes),
        "weighting": f"{roster.weighting} {describe(roster.weights)}",
        "q": str(algo.model.q),
    }


def identity(algo: FedEM) -> bytes:
    """The settings as 8 bytes, by which the copies of a study see that they run the same."""
    return digest("\n".join(f"{name}={text}" for name, text in sorted(settings(algo).items())))


def digest(text: str) -> bytes:
    """First 8 bytes of the SHA-256 of a description."""
    return hashlib.sha256(text.encode()).digest()[:8]


def describe(thing: Any, depth: int = 0) -> str:
    """Return a text that is equal for equal settings, in every process and on every machine.

    Dataclasses and other objects by their type and attributes, arrays by shape and hash (short ones spelled out),
    functions by name, code and the values that they enclose. A part may give its own text in ``fingerprint()``.
    """
    if thing is None or isinstance(thing, (bool, int, str)):
        return repr(thing)
    if isinstance(thing, (float, np.floating)):
        return repr(float(thing))
    if isinstance(thing, np.integer):
        return repr(int(thing))
    if isinstance(thing, bytes):
        return f"bytes {hashlib.sha256(thing).hexdigest()[:16]}"
    if isinstance(thing, np.ndarray):
        return _array(thing)
    if isinstance(thing, type):
        return f"{thing.__module__}.{thing.__qualname__}"
    if depth > _DEPTH:
        return type(thing).__qualname__
    if isinstance(thing, (list, tuple)):
        return f"({', '.join(describe(value, depth + 1) for value in thing)})"
    if isinstance(thing, (set, frozenset)):
        return f"{{{', '.join(sorted(describe(value, depth + 1) for value in thing))}}}"
    if isinstance(thing, Mapping):
        parts = sorted(
            f"{describe(name, depth + 1)}: {describe(value, depth + 1)}" for name, value in thing.items()
        )
        return f"{{{', '.join(parts)}}}"
    own = getattr(thing, "fingerprint", None)
    if callable(own):
        return f"{type(thing).__qualname__}({own()})"
    if isinstance(thing, functools.partial):
        return (
            f"partial({describe(thing.func, depth + 1)}, {describe((thing.args, thing.keywords), depth + 1)})"
        )
    code = getattr(thing, "__code__", None)
    if code is not None:
        return _function(thing, code, depth)
    bound = getattr(thing, "__func__", None)
    if bound is not None:
        return f"{describe(thing.__self__, depth + 1)}.{bound.__qualname__}"
    return f"{type(thing).__qualname__}({_attributes(thing, depth)})"


def _array(array: np.ndarray) -> str:
    if array.size <= _SHORT and array.dtype.kind in "biuf":
        return repr(array.tolist())
    if array.dtype.kind == "O":
        return f"array{list(array.shape)} of {describe(array.ravel().tolist())}"
    sha = hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()[:16]
    return f"{array.dtype.str}{list(array.shape)} {sha}"


def _function(function: FunctionType, code: CodeType, depth: int) -> str:
    """Name and code of a function, its defaults, the values that it encloses, and the numbers it reads outside."""
    text = hashlib.sha256(_code(code)).hexdigest()[:16]
    cells = [describe(cell.cell_contents, depth + 1) for cell in function.__closure__ or ()]
    read = {name: function.__globals__[name] for name in code.co_names if name in function.__globals__}
    numbers = {word: value for word, value in read.items() if isinstance(value, (bool, int, float, str))}
    values = [describe(function.__defaults__ or (), depth + 1), *cells, describe(numbers) if numbers else ""]
    return f"{function.__qualname__} {text} {' '.join(values)}".rstrip()


def _code(code: CodeType) -> bytes:
    inner = b"".join(_code(constant) for constant in code.co_consts if hasattr(constant, "co_code"))
    consts = [
        constant for constant in code.co_consts if isinstance(constant, (bool, int, float, str, bytes, tuple))
    ]
    return code.co_code + repr((consts, code.co_names)).encode() + inner


def _attributes(thing: object, depth: int) -> str:
    """name=value of a dataclass's fields, or of every public attribute that is not a cached property.

    Private attributes are taken as derived from public ones, as caches are; a class whose private ones decide
    something says so in ``fingerprint()``.
    """
    if is_dataclass(thing):
        names = [part.name for part in fields(thing) if part.init]
    else:
        slots = [name for kind in type(thing).__mro__ for name in getattr(kind, "__slots__", ())]
        cached = {
            name
            for kind in type(thing).__mro__
            for name, value in vars(kind).items()
            if isinstance(value, functools.cached_property)
        }
        found = {*slots, *getattr(thing, "__dict__", {})} - cached
        names = sorted(name for name in found if not name.startswith("_"))
    return ", ".join(
        f"{own}={describe(getattr(thing, own), depth + 1)}" for own in names if hasattr(thing, own)
    )
