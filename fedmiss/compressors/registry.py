"""Compressors by name, for command lines and recipes; ``register`` adds one of your own."""

from __future__ import annotations

import inspect
from collections.abc import Callable

from fedmiss.compressors.blocks import Blocks
from fedmiss.compressors.dither import Dithering, block_quantization
from fedmiss.compressors.identity import Identity
from fedmiss.compressors.natural import Natural
from fedmiss.compressors.sparse import RandK, TopK
from fedmiss.core.protocols import Compressor
from fedmiss.errors import ConfigError

COMPRESSORS: dict[str, Callable[..., Compressor]] = {
    "block": block_quantization, "blocks": Blocks, "dithering": Dithering, "identity": Identity,
    "natural": Natural, "randk": RandK, "topk": TopK,
}  # fmt: skip


def register(name: str, make: Callable[..., Compressor]) -> None:
    """Add a compressor under a name that is free."""
    if COMPRESSORS.get(name, make) != make:
        raise ConfigError(f"there is already a compressor {name!r}; choose another name.")
    COMPRESSORS[name] = make


def compressor(name: str, **settings: object) -> Compressor:
    """Make a compressor: ``compressor("dithering", levels=4)``; ConfigError says which names and settings there are."""
    if name not in COMPRESSORS:
        raise ConfigError(f"there is no compressor {name!r}; known are {', '.join(sorted(COMPRESSORS))}.")
    takes = inspect.signature(COMPRESSORS[name])
    try:
        takes.bind(**settings)
    except TypeError as error:
        raise ConfigError(f"compressor {name!r}: {error}; it takes {takes}.") from None
    return COMPRESSORS[name](**settings)


def compressor_of(text: str) -> Compressor:
    """Make a compressor of its name and numbers as one text: ``"randk:k=200"``, ``"dithering:levels=8,block=64"``.

    Raises
    ------
    ConfigError : no such compressor or setting, or a value that is no number
    """
    name, _, rest = (part.strip() for part in text.partition(":"))
    settings: dict[str, object] = {}
    for part in filter(None, rest.split(",")):
        key, _, value = (word.strip() for word in part.partition("="))
        try:
            number = float(value)
        except ValueError:
            raise ConfigError(
                f"compressor {text!r}: {part!r} is no setting; write it as dithering:levels=8,block=64."
            ) from None
        if key in settings:
            raise ConfigError(f"compressor {text!r}: {key} is given twice.")
        settings[key] = int(number) if number.is_integer() else number
        takes = inspect.signature(COMPRESSORS[name]).parameters if name in COMPRESSORS else {}
        if key in takes and not number.is_integer() and "float" not in str(takes[key].annotation):
            raise ConfigError(f"compressor {text!r}: {key}={value} must be a whole number.")
    return compressor(name, **settings)
