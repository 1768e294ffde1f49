"""The demo: the whole chain on the embedded survey of wading birds in the Everglades: one species, or all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import polars as pl

from fedmiss.atomic import atomic_file
from fedmiss.pipeline.chain import run_recipe
from fedmiss.pipeline.failures import SpeciesResult
from fedmiss.pipeline.recipe import read_recipe
from fedmiss.resources import resource

SURVEY = "everglades_great_egret_flights_long.csv"
PEAKS = "everglades_peak_counts.csv"
COMPLETE = 0.95  # share of the published total from which the table holds the counts of all colonies
LEAST_YEARS = 3
# The species that every survey looks for, so that a colony counted for another one had none.
SPECIES = {
    "gbhe": ("Ardea herodias", "Great Blue Heron"), "greg": ("Ardea alba", "Great Egret"),
    "lbhe": ("Egretta caerulea", "Little Blue Heron"), "rosp": ("Platalea ajaja", "Roseate Spoonbill"),
    "sneg": ("Egretta thula", "Snowy Egret"), "whib": ("Eudocimus albus", "White Ibis"),
    "wost": ("Mycteria americana", "Wood Stork"),
}  # fmt: skip


REGIONS = {
    "1": "Loxahatchee (WCA 1)", "2": "WCA 2", "3": "WCA 3", "enp": "Everglades National Park", "other": "elsewhere",
}  # fmt: skip


def nest_counts() -> pl.DataFrame:
    """Nesting counts of great egrets of the embedded survey, as a plain table.

    Counts of roosting birds and of birds of unknown behaviour are left out: one colony would be counted twice.

    Returns
    -------
    observer, site, date, scientific_name, common_name, count, latitude, longitude
    """
    latin, english = SPECIES["greg"]
    table = pl.read_csv(resource("demo_data", SURVEY), infer_schema=False, glob=False)
    names = {"scientific_name": pl.lit(latin), "common_name": pl.lit(english)}
    return (
        table.filter(pl.col("behavior") == "nesting")
        .with_columns(**names)
        .select("observer", "site", "date", *names, "count", "latitude", "longitude")
    )


def peak_counts() -> pl.DataFrame:
    """Yearly peak counts of nests of the species that every survey looks for, by colony, with zeros.

    The survey writes down no zeros. It covers the whole area, so where the counts of a year add up to its published total,
    a colony without a row had no nest. Where they fall short, counts of colonies are missing in the table: only colonies
    that were counted for another species get a zero. Colonies in which the species was found in fewer than three years are
    left out.

    Returns
    -------
    site, species, common_name, year, count, region, latitude, longitude
    """
    texts = {"site": pl.String, "region": pl.String}
    rows = pl.read_csv(resource("demo_data", PEAKS), schema_overrides=texts, glob=False)
    rows = rows.with_columns(pl.col("region").replace_strict(REGIONS))
    places = rows.group_by("site").agg(pl.col("region", "latitude", "longitude").first())
    found = rows.filter(pl.col("species").is_in(list(SPECIES))).select("site", "species", "year", "count")
    sums = found.group_by("species", "year").agg(counted=pl.col("count").sum())
    published = (
        published_totals().filter(pl.col("region") == "all").select("species", "year", published="count")
    )
    whole = (
        sums.join(published, on=["species", "year"])
        .filter(pl.col("counted") >= COMPLETE * pl.col("published"))
        .select("species", "year")
    )
    sites = found.filter(pl.len().over("site", "species") >= LEAST_YEARS).select("site", "species").unique()
    cells = pl.concat(
        [sites.join(whole, on="species"), sites.join(rows.select("site", "year").unique(), on="site")]
    )
    latin, english = ({code: names[i] for code, names in SPECIES.items()} for i in (0, 1))
    return (
        cells.unique()
        .join(found, on=["site", "species", "year"], how="left")
        .with_columns(
            pl.col("count").fill_null(0),
            common_name=pl.col("species").replace_strict(english),
            species=pl.col("species").replace_strict(latin),
        )
        .join(places, on="site")
        .select("site", "species", "common_name", "year", "count", "region", "latitude", "longitude")
        .sort("species", "site", "year")
    )


def published_totals() -> pl.DataFrame:
    """The survey's own totals of nests: year, region (all, loxahatchee, wca2-3, wcas, enp), species (code), count."""
    return pl.read_csv(resource("demo_data", "everglades_published_totals.csv"), glob=False)


def run_demo(
    out: Path,
    *,
    every_species: bool = False,
    bootstrap: int | None = None,
    date: str | None = None,
    say: Callable[[str], None] = print,
) -> list[SpeciesResult]:
    """Run a recipe of ``pipelines/`` on embedded counts, in the folder ``out``: great egrets, or every species."""
    name, counted = ("birds", "wading_birds") if every_species else ("egrets", "great_egret_nests")
    table = out / f"{counted}.csv"
    if not table.exists():
        counts = peak_counts() if every_species else nest_counts()
        with atomic_file(table) as tmp:
            counts.write_csv(tmp)
        what = (
            f"{counts.height:,} yearly counts of {len(SPECIES)} species, {counts['site'].n_unique():,} colonies, "
            f"Everglades, {min(counts['year'])}-{max(counts['year'])}"
            if every_species
            else f"{counts.height} counts of nesting great egrets, Everglades, 2004-2026"
        )
        say(f"survey: {what} (CC0, Weecology lab) -> {table}")
    # fedmiss's own recipe, wherever it is installed: the folder is not bound to its place
    recipe = read_recipe(resource("pipelines", f"everglades-{name}.toml"), out)
    recipe = replace(recipe, files=(table,), path=None)
    if bootstrap is not None:
        recipe = replace(recipe, fit=replace(recipe.fit, bootstrap=bootstrap))  # type: ignore[type-var]
    if date is not None:
        recipe = replace(recipe, report=replace(recipe.report, date=date))
    return run_recipe(recipe, say=say)
