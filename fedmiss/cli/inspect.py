"""``fedmiss inspect``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["inspect"]


def inspect(
    path: Annotated[Path, typer.Argument(help="A folder or parquet file made by fedmiss.")],
    messages: Annotated[
        bool,
        typer.Option("--messages", help="Of a fit: what each kind of message between groups and hub held."),
    ] = False,
) -> None:
    """Say in words what a produced file or folder holds."""
    from fedmiss.cli import show

    typer.echo(show.messages(path) if messages else show.describe(path))
