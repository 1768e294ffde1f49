"""The papers' figures, one command each: ``fedmiss experiment NAME``."""

from __future__ import annotations

import importlib
from pathlib import Path

from fedmiss.errors import ConfigError
from fedmiss.files import atomic_folder

__all__ = ["EXPERIMENTS", "WITH_DATA", "run_experiment"]

# modules of this package; the function ``main`` of each fills a ``Folder``
EXPERIMENTS = ("ebird", "fedmm", "gmm", "heterogeneity", "lsa", "mnist", "participation", "saem")
WITH_DATA = ("mnist",)  # those that read a folder of input data


def run_experiment(
    name: str,
    out: Path,
    *,
    quick: bool = False,
    seed: int = 0,
    data: Path | None = None,
    overwrite: bool = False,
) -> Path:
    """Write the folder ``out`` of an experiment, completely or not at all; ``quick``: smaller than the paper's.

    Raises
    ------
    ConfigError    no such experiment, ``data`` for one that reads none, a folder that is there
    """
    if name not in EXPERIMENTS:
        raise ConfigError(f"there is no experiment {name!r}; known are {', '.join(EXPERIMENTS)}.")
    if data is not None and name not in WITH_DATA:
        raise ConfigError(
            f"--data does nothing here: {name} makes its own data; {', '.join(WITH_DATA)} reads some. Leave --data out."
        )
    from fedmiss.experiments.folder import Folder  # figures and tables are slow to load

    experiment = importlib.import_module(f"{__name__}.{name}")
    with atomic_folder(out, "experiment", overwrite=overwrite) as made:
        experiment.main(Folder(made, quick=quick, seed=seed, data=data))
    return out
