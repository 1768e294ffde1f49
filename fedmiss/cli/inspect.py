"""``fedmiss inspect``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["inspect"]


def inspect(path: Annotated[Path, typer.Argument(help="A folder or parquet file made by fedmiss.")]) -> None:
    """Say in words what a produced file or folder holds."""
    from fedmiss.cli.show import describe

    typer.echo(describe(path))
