"""Compressors by name, for command lines and recipes; ``register`` adds one of your own."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from fedmiss.compressors.blocks import Blocks
from fedmiss.compressors.dither import Dithering, block_quantization
from fedmiss.compressors.identity import Identity
from fedmiss.compressors.natural import Natural
from fedmiss.compressors.randk import RandK
from fedmiss.compressors.topk import TopK
from fedmiss.core.protocols import Compressor
from fedmiss.errors import ConfigError

__all__ = ["COMPRESSORS", "compressor", "register"]

COMPRESSORS: dict[str, Callable[..., Any]] = {
    "block": block_quantization,
    "blocks": Blocks,
    "dithering": Dithering,
    "identity": Identity,
    "natural": Natural,
    "randk": RandK,
    "topk": TopK,
}


def register(name: str, make: Callable[..., Any]) -> None:
    """Add a compressor under a name that is free."""
    if name in COMPRESSORS and COMPRESSORS[name] is not make:
        raise ConfigError(f"there is already a compressor {name!r}; choose another name.")
    COMPRESSORS[name] = make


def compressor(name: str, **settings: Any) -> Compressor:
    """Make a compressor: ``compressor("dithering", levels=4)``."""
    if name not in COMPRESSORS:
        raise ConfigError(f"there is no compressor {name!r}; known are {', '.join(sorted(COMPRESSORS))}.")
    make = COMPRESSORS[name]
    try:
        inspect.signature(make).bind(**settings)
    except TypeError as error:
        raise ConfigError(f"compressor {name!r}: {error}; it takes {inspect.signature(make)}.") from None
    made: Compressor = make(**settings)
    return made
