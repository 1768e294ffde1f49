"""``fedmiss impute``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedmiss.cli.options import Out, Overwrite, options_of
from fedmiss.pipeline.settings import ImputeSettings

__all__ = ["impute"]


@options_of(ImputeSettings)
def impute(
    panel: Annotated[Path, typer.Argument(help="Panel folder.")],
    fit: Annotated[Path, typer.Argument(help="Fit folder of this panel.")],
    out: Out = Path("imputed"),
    *,
    settings: ImputeSettings,
    overwrite: Overwrite = False,
) -> None:
    """Write the expected count of every site and month at standard effort, with intervals, and draws if asked for."""
    from fedmiss.cli.show import say_written
    from fedmiss.pipeline.imputing import impute_panel

    say_written(impute_panel(panel, fit, out, settings, overwrite=overwrite), panel, fit)
