"""The demo's three clubs: the embedded survey split by place, so that every colony has one owner."""

from __future__ import annotations

from pathlib import Path

import polars as pl

from fedmiss.etl.ingest import ingest
from fedmiss.etl.panel import PanelSettings, make_panel
from fedmiss.etl.settings import IngestSettings
from fedmiss.network.study import Study
from fedmiss.pipeline.demo import write_survey

__all__ = ["CLUBS", "club_panels", "demo_study"]

CLUBS = ("central", "north", "south")


def club_panels(out: Path) -> dict[str, Path]:
    """Write each club's counts and make its panel; club -> panel folder. The colonies are dealt in turn, from the south."""
    write_survey(out / "survey.csv")
    table = pl.read_csv(out / "survey.csv", infer_schema=False)
    places = table.group_by("site").agg(pl.col("latitude").cast(pl.Float64).first()).sort("latitude", "site")
    owner = {site: CLUBS[i % len(CLUBS)] for i, site in enumerate(places["site"])}
    panels = {}
    for club in CLUBS:
        mine = table.filter(pl.col("site").is_in([s for s, c in owner.items() if c == club]))
        folder = out / club
        folder.mkdir(parents=True, exist_ok=True)
        mine.write_csv(folder / "counts.csv")
        ingest([folder / "counts.csv"], folder / "records", IngestSettings(column_map={"auto": ""}), overwrite=True)
        panels[club] = folder / "panel"
        make_panel([folder / "records"], panels[club], PanelSettings(groups=1), overwrite=True)
    return panels


def demo_study(*, bootstrap: int, port: int, name: str = "egrets") -> Study:
    """The study of the demo."""
    return Study(
        name=name, species="Ardea alba", organisations=CLUBS, minimum=5, port=port, patience=120.0,
        model={"bootstrap": bootstrap},
    )  # fmt: skip
