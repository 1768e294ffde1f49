"""``fedmiss impute``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedmiss.cli.options import Out, Overwrite

__all__ = ["impute"]


def impute(
    panel: Annotated[Path, typer.Argument(help="Panel folder.")],
    fit: Annotated[Path, typer.Argument(help="Fit folder of this panel.")],
    out: Out = Path("imputed"),
    overwrite: Overwrite = False,
) -> None:
    """Write the expected count of every site and month at standard effort."""
    from fedmiss.cli.show import say_written
    from fedmiss.pipeline.imputing import impute_panel

    say_written(impute_panel(panel, fit, out, overwrite=overwrite), panel, fit)
