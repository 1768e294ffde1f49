"""``fedmiss panel``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["panel"]


def panel(
    records: Annotated[
        list[Path], typer.Argument(help="Records folder made by ingest; several make one group each.")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder to make.")] = Path("panel"),
    species: Annotated[str, typer.Option(help="Scientific or common name.")] = "",
    groups: Annotated[
        int | None,
        typer.Option(
            help="Number of groups; observers are drawn at random.",
            show_default="10, or one for each observer where they are fewer",
        ),
    ] = None,
    group_by: Annotated[
        str, typer.Option(help="Column that makes the groups: region, observer_id, protocol.")
    ] = "",
    sites: Annotated[
        str, typer.Option(help="seen: sites with at least one detection; all: every site.")
    ] = "seen",
    min_visits: Annotated[int, typer.Option(help="Visits that a site needs.")] = 1,
    seed: Annotated[int, typer.Option(help="Seed of the random groups.")] = 0,
    secrets: Annotated[
        bool,
        typer.Option(
            help="Give every group a secret of its own, from which its bootstrap weights are drawn."
        ),
    ] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the folder if it is there.")
    ] = False,
) -> None:
    """Turn records into the panel of one species: visits of observer, site and month, in groups."""
    from fedmiss.cli.show import say_written
    from fedmiss.etl.panel import PanelSettings, make_panel

    settings = PanelSettings(species, groups, group_by, sites, min_visits, seed, secrets)
    say_written(make_panel(records, out, settings, overwrite=overwrite))
