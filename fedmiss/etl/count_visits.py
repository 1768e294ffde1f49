"""Tables of yearly or monthly counts as projections: each count is one visit of its site."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import polars as pl

from fedmiss.errors import ConfigError, InputError
from fedmiss.etl.checks import no_count, refuse_parts
from fedmiss.etl.columns import PLACES, UNITS, check_named, familiar, names_beside
from fedmiss.etl.count_table import CountOptions
from fedmiss.etl.counts import read_counts
from fedmiss.etl.projection import Meta
from fedmiss.etl.rows import LINE, YEARS, Rows, decimals, digest_ids, write_projection
from fedmiss.etl.sources import Source

MONTH_OF_YEARLY = 6  # yearly counts have no month: all of them get June
DAY_OF_COUNTS = 15
_PLACE = {
    "county_code": PLACES["region"],
    **{name: PLACES[name] for name in ("latitude", "longitude", "site_name")},
    "observer": ("observer", "observerid", "recorder", "surveyor", "counter"),
    "duration": ("effort", "duration", "minutes", "durationminutes", "effortminutes"),
    "distance": ("distance", "distancekm", "km"),
}
# what a map may name beside the count
OF_PLACE = ("region", *(key for key in _PLACE if key != "county_code"))


def project_counts(
    source: Source,
    folder: Path,
    *,
    options: CountOptions,
    one_species: str,
    first_year: int | None,
    places: Mapping[str, str],
    advance: Callable[[float], None] = lambda done: None,
) -> Meta:
    """Write the projection of a table of counts; return its meta data.

    ``one_species`` is the name that was asked for; where neither it nor the table names the species, the file does. The
    observer of a visit is its site where no column names one, so that replicates of a bootstrap draw sites. A row with a
    missing count is no visit. ``first_year`` turns time points 1, 2, ... into years. ``places`` : name of ``OF_PLACE`` ->
    column, for columns that are not found by their names.
    """
    check_named("--map", places, OF_PLACE, source.name, source.header)
    table = read_counts(source, options)
    said = list(table.said)
    asked = " ".join(one_species.split())
    species = table.species or asked or source.path.name.split(".")[0]
    frame = table.frame.filter(pl.col("count").is_not_null())
    if frame.is_empty():
        raise no_count(source, table.frame.height, species)
    refuse_parts(source, frame["count"], frame["line"])
    frame = frame.with_columns(year=_years(frame["year"], source, first_year))
    if "month" not in frame.columns:
        frame = frame.with_columns(month=pl.lit(MONTH_OF_YEARLY, pl.Int64))
        said.append("there is no month: the counts are yearly, and stand in June of their year.")
    if "weight" in frame.columns:
        said.append("the weights are not used by this model; `fedmiss trim` uses them.")
    names = (*_PLACE["site_name"], *names_beside(table.columns["site"]))
    named = {"county_code" if key == "region" else key: column for key, column in places.items()}
    if named.get("observer") == table.columns["site"]:
        del named["observer"]  # as it is without
    if taken := [column for column in named.values() if column not in table.covariates]:
        raise ConfigError(f"--map: {source.name} has the column {taken[0]!r} for something else already.")
    free = [column for column in table.covariates if column not in named.values()]
    found = familiar(free, _PLACE | {"site_name": names}, named)
    if others := [covariate for covariate in table.covariates if covariate not in found.values()]:
        said.append(
            f"columns that are not used: {', '.join(map(repr, others))}. `fedmiss trim --covariate` uses them, and what "
            "belongs to the sites the model gets by `fedmiss panel --site-table`."
        )
    name = frame.select(pl.concat_str("site", "year", "month", separator="|").alias("name")).to_series()
    effort = {key: _amount(frame, found.pop(key), source) for key in UNITS if key in found}
    for key, (column, _) in effort.items():
        said.append(f"{key} of the visits, in {UNITS[key]}: the column {column!r}.")
    out = frame.select(
        name,
        "site",
        event=digest_ids(name),
        count=pl.col("count").cast(pl.Int64),
        observer=pl.coalesce(pl.col(found.pop("observer", "site")).replace("", None), "site"),
        date=pl.date("year", "month", DAY_OF_COUNTS),
        complete=pl.lit(0, pl.Int8),  # a count of one species says nothing of the others
        species=pl.lit(species),
        common_name=pl.lit(table.common_name or (asked if asked.casefold() != species.casefold() else "")),
        **{key: value for key, (_, value) in effort.items()},
        **{key: pl.col(column).fill_null("") for key, column in found.items()},
    )
    dates = write_projection(folder, out)
    rows = Rows(source)
    rows.read = table.rows_read
    place = {
        key: pl.col(found[key]).fill_null("") if key in found else pl.lit("")
        for key in ("latitude", "longitude")
    }
    rows.places(frame.select(pl.col("line").alias(LINE), **place))
    return rows.meta(
        dates=dates, explicit_zeros=True, any_name=True, said=said,
        missing=table.frame.height - frame.height, other_species=table.other_species, joined=table.joined,
    )  # fmt: skip


def _amount(frame: pl.DataFrame, column: str, source: Source) -> tuple[str, pl.Series]:
    """Return a column of effort as numbers, with its name; a blank is an effort that nobody noted."""
    value, bad = decimals(frame[column].fill_null(""))
    bad |= (value < 0).fill_null(False)
    source.refuse(
        bad,
        frame["line"],
        column,
        lambda row: f"{frame[column][row]!r} is no effort; write a number, or leave it blank.",
    )
    return column, value


def _years(years: pl.Series, source: Source, first_year: int | None) -> pl.Series:
    low, high = (int(str(edge)) for edge in (years.min(), years.max()))
    if first_year is not None:
        years = years - low + first_year
        low, high = first_year, first_year + high - low
    if low < YEARS[0] or high > YEARS[1]:
        raise InputError(
            f"{source.name}: the time points {low} to {high} are no years; pass --first-year, the year of the first of them."
        )
    return years
