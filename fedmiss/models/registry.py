"""Models of the core by name; ``register`` adds one of your own."""

from __future__ import annotations

from collections.abc import Callable

from fedmiss.core import names
from fedmiss.core.protocols import Model

__all__ = ["MODELS", "model", "register"]

MODELS: dict[str, str | Callable[..., Model]] = {  # "module:class" is loaded when first asked for
    "gmm": "fedmiss.models.gmm:GMM",
    "lsa": "fedmiss.models.lsa:LSA",
    "saem-counts": "fedmiss.models.saem.counts:Counts",
    "saem-gauss": "fedmiss.models.saem.months:GaussMonths",
    "saem-poisson": "fedmiss.models.saem.months:PoissonMonths",
    "ridge-logistic": "fedmiss.models.fedavg:RidgeLogistic",
}


def register(name: str, make: str | Callable[..., Model]) -> None:
    """Add a model under a name that is free."""
    names.add("model", MODELS, name, make)


def model(name: str, **settings: object) -> Model:
    """Make a model: ``model("gmm", G=2, d=2, covariance="full")``."""
    return names.make("model", MODELS, name, settings)
