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
    from fedmiss.experiments import run_experiment

    where = out or Path(f"experiment-{name}")
    folder = run_experiment(name, where, quick=quick, seed=seed, data=data, overwrite=overwrite)
    typer.echo((folder / "what_is_seen.md").read_text(encoding="utf-8").strip())
    typer.echo(f"\nFigures and tables: {folder}")
