"""``fedmiss own``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedmiss.cli.options import Out, Overwrite

__all__ = ["own"]


def own(
    panel: Annotated[Path, typer.Argument(help="Panel folder.")],
    fit: Annotated[Path, typer.Argument(help="Fit folder of this panel, made with --own.")],
    group: Annotated[str, typer.Option("--group", help="Name of the group: its folder in the panel.")],
    out: Out = Path("own"),
    overwrite: Overwrite = False,
) -> None:
    """Make one group's own report: its sites, its imputed matrix, its map; nothing of any other group's sites."""
    from fedmiss.cli.show import say_written
    from fedmiss.pipeline.own import own_report

    say_written(own_report(panel, fit, group, out, overwrite=overwrite))
