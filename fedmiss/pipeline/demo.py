"""The demo: the whole chain on the embedded survey of great egrets in the Everglades."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import polars as pl

from fedmiss.files import atomic_file
from fedmiss.pipeline.chain import SpeciesResult, run_recipe
from fedmiss.pipeline.recipe import read_recipe
from fedmiss.resources import resource

__all__ = ["run_demo", "write_survey"]

SURVEY = "everglades_great_egret_flights_long.csv"


def write_survey(path: Path) -> int:
    """Write the nesting counts of the embedded survey as a plain table; return the number of rows.

    Counts of roosting birds and of birds of unknown behaviour are left out: one colony would be counted twice.
    """
    table = pl.read_csv(resource("demo_data", SURVEY), infer_schema=False)
    nests = table.filter(pl.col("behavior") == "nesting").select(
        "observer",
        "site",
        "date",
        pl.lit("Ardea alba").alias("scientific_name"),
        pl.lit("Great Egret").alias("common_name"),
        "count",
        "latitude",
        "longitude",
    )
    with atomic_file(path) as tmp:
        nests.write_csv(tmp)
    return nests.height


def run_demo(
    out: Path, *, bootstrap: int | None = None, date: str | None = None, say: Callable[[str], None] = print
) -> SpeciesResult:
    """Run the recipe ``pipelines/everglades-egrets.toml`` on the embedded data, in the folder ``out``."""
    recipe = read_recipe(resource("pipelines", "everglades-egrets.toml"), out)
    table = out / "great_egret_nests.csv"
    if not table.exists():
        n = write_survey(table)
        say(
            f"survey: {n} counts of nesting great egrets, Everglades, 2004-2026 (CC0, Weecology lab) -> {table}"
        )
    recipe = replace(recipe, files=(table,))
    if bootstrap is not None:
        recipe = replace(recipe, fit=replace(recipe.fit, bootstrap=bootstrap))  # type: ignore[type-var]
    if date is not None:
        recipe = replace(recipe, report=replace(recipe.report, date=date))
    return run_recipe(recipe, say=say)[0]
