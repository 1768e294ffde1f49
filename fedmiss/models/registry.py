"""Models of the core by name; ``register`` adds one of your own."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from typing import Any

from fedmiss.core.protocols import Model
from fedmiss.errors import ConfigError

__all__ = ["MODELS", "model", "register"]

MODELS: dict[str, str | Callable[..., Any]] = {  # "module:class" is loaded when first asked for
    "gmm": "fedmiss.models.gmm:GMM",
    "lsa": "fedmiss.models.lsa:LSA",
    "saem-counts": "fedmiss.models.saem_counts:Counts",
    "saem-gauss": "fedmiss.models.saem:GaussMonths",
    "saem-poisson": "fedmiss.models.saem:PoissonMonths",
    "ridge-logistic": "fedmiss.models.fedavg:RidgeLogistic",
}


def register(name: str, make: str | Callable[..., Any]) -> None:
    """Add a model under a name that is free."""
    if name in MODELS and MODELS[name] != make:
        raise ConfigError(f"there is already a model {name!r}; choose another name.")
    MODELS[name] = make


def model(name: str, **settings: Any) -> Model:
    """Make a model: ``model("gmm", G=2, d=2, covariance="full")``."""
    if name not in MODELS:
        raise ConfigError(f"there is no model {name!r}; known are {', '.join(sorted(MODELS))}.")
    make = MODELS[name]
    if isinstance(make, str):
        module, _, attribute = make.partition(":")
        make = getattr(importlib.import_module(module), attribute)
        assert callable(make)
    try:
        inspect.signature(make).bind(**settings)
    except TypeError as error:
        raise ConfigError(f"model {name!r}: {error}; it takes {inspect.signature(make)}.") from None
    made: Model = make(**settings)
    return made
