"""``fedmiss panel``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedmiss.cli.options import Out, Overwrite, options_of
from fedmiss.etl.settings import PanelSettings

__all__ = ["panel"]


@options_of(PanelSettings)
def panel(
    records: Annotated[
        list[Path], typer.Argument(help="Records folder made by ingest; several make one group each.")
    ],
    out: Out = Path("panel"),
    *,
    settings: PanelSettings,
    overwrite: Overwrite = False,
) -> None:
    """Turn records into the panel of one species: visits of observer, site and month, in groups."""
    from fedmiss.cli.show import say_written
    from fedmiss.etl.panel import make_panel

    say_written(make_panel(records, out, settings, overwrite=overwrite), *records)
