"""The papers' figures, one command each: ``fedmiss experiment NAME``."""

from __future__ import annotations

__all__ = ["EXPERIMENTS", "WITH_DATA"]

WITH_DATA = ("mnist",)  # those that read a folder of input data

# name -> "module:function"; each function takes (out, *, quick, seed, data, overwrite) and returns the folder
EXPERIMENTS = {
    "ebird": "fedmiss.experiments.ebird:main",
    "fedmm": "fedmiss.experiments.fedmm:main",
    "gmm": "fedmiss.experiments.gmm:main",
    "heterogeneity": "fedmiss.experiments.heterogeneity:main",
    "lsa": "fedmiss.experiments.lsa:main",
    "mnist": "fedmiss.experiments.mnist:main",
    "participation": "fedmiss.experiments.participation:main",
    "saem": "fedmiss.experiments.saem:main",
}
