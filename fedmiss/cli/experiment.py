"""``fedmiss experiment``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedmiss.cli.options import Overwrite

__all__ = ["experiment"]


def experiment(
    name: Annotated[str, typer.Argument(help="Name of the experiment; a wrong name lists all names.")],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Folder to make; default experiment-NAME.")
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="A smaller setting, labelled so, in a few seconds.")
    ] = False,
    seed: Annotated[int, typer.Option(help="Seed: the same seed gives the same numbers.")] = 0,
    data: Annotated[
        Path | None,
        typer.Option("--data", help="Folder of input data, for experiments that need them (mnist)."),
    ] = None,
    overwrite: Overwrite = False,
) -> None:
    """Reproduce a figure of the papers: figures, their numbers, and a text of what is seen."""
    import importlib

    from fedmiss.errors import ConfigError
    from fedmiss.experiments import EXPERIMENTS, WITH_DATA

    if name not in EXPERIMENTS:
        raise ConfigError(f"there is no experiment {name!r}; known are {', '.join(sorted(EXPERIMENTS))}.")
    if data is not None and name not in WITH_DATA:
        raise ConfigError(
            f"--data does nothing here: {name} makes its own data; {', '.join(WITH_DATA)} reads some. Leave --data out."
        )
    module, function = EXPERIMENTS[name].split(":")
    main = getattr(importlib.import_module(module), function)
    folder = main(out or Path(f"experiment-{name}"), quick=quick, seed=seed, data=data, overwrite=overwrite)
    typer.echo((folder / "what_is_seen.md").read_text(encoding="utf-8").strip())
    typer.echo(f"\nFigures and tables: {folder}")
