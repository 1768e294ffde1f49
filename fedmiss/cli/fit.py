"""``fedmiss fit``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedmiss.cli.options import Out, Overwrite, options_of
from fedmiss.pipeline.settings import FitSettings

__all__ = ["fit"]


@options_of(FitSettings)
def fit(
    panel: Annotated[Path, typer.Argument(help="Panel folder.")],
    out: Out = Path("fit"),
    *,
    settings: FitSettings,
    overwrite: Overwrite = False,
) -> None:
    """Fit the model of a panel over its groups; after an interruption, run it again to continue."""
    from fedmiss.cli.show import say_written
    from fedmiss.pipeline.fitting import fit_panel

    say_written(fit_panel(panel, out, settings, overwrite=overwrite), panel)
