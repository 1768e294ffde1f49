"""``fedmiss plot``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["plot"]


def plot(
    path: Annotated[Path, typer.Argument(help="A trace.parquet, or the folder of a fit or an experiment.")],
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            help="Name of the figures, no extension.",
            show_default="FOLDER-trace beside the folder",
        ),
    ] = None,
    by: Annotated[str, typer.Option(help="Horizontal axis: round, epochs, bytes or seconds.")] = "round",
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace figures that fedmiss wrote.")
    ] = False,
) -> None:
    """Draw the trace of a run: ||H||^2, the true field and the objective where known (svg, png, csv)."""
    from fedmiss.experiments.plot_trace import plot_trace

    for file in plot_trace(path, out, by, overwrite=overwrite):
        typer.echo(f"wrote {file}")
