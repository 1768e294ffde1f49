"""A table of yearly or monthly counts as visits: each count is one visit of its site, in its year or month."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import polars as pl

from fedmiss.errors import InputError
from fedmiss.etl.columns import PLACES, familiar
from fedmiss.etl.counts import CountOptions, read_counts
from fedmiss.etl.projection import Meta
from fedmiss.etl.rows import Rows, decimals, digest_ids, write_projection
from fedmiss.etl.sources import Source

__all__ = ["MONTH_OF_YEARLY", "project_counts"]

MONTH_OF_YEARLY = 6  # yearly counts have no month: all of them get June
_DAY = 15
_PLACE = {
    "county_code": PLACES["region"],
    **{k: PLACES[k] for k in ("latitude", "longitude", "site_name")},
    "observer": ("observer", "observerid", "recorder", "surveyor", "counter"),
    "duration": ("effort", "duration", "minutes", "durationminutes", "effortminutes"),
    "distance": ("distance", "distancekm", "km"),
}
_EFFORT = {"duration": "minutes", "distance": "km"}


def project_counts(
    source: Source,
    folder: Path,
    *,
    options: CountOptions,
    one_species: str,
    first_year: int | None,
    advance: Callable[[float], None] = lambda done: None,
) -> Meta:
    """Write the projection of a table of counts; return its meta data.

    ``one_species`` is the name that was asked for; where neither it nor the table names the species, the file does. The
    observer of a visit is its site where no column names one, so that replicates of a bootstrap draw sites. A row with a
    missing count is no visit. ``first_year`` turns time points 1, 2, ... into years.
    """
    table = read_counts(source, options)
    said = list(table.said)
    asked = " ".join(one_species.split())
    species = table.species or asked or source.path.name.split(".")[0]
    frame = _whole(table.frame.filter(pl.col("count").is_not_null()), source)
    frame = frame.with_columns(year=_years(frame["year"], source, first_year))
    if "month" not in frame.columns:
        frame = frame.with_columns(month=pl.lit(MONTH_OF_YEARLY, pl.Int64))
        said.append("there is no month: the counts are yearly, and stand in June of their year.")
    if "weight" in frame.columns:
        said.append("the weights are not used by this model; `fedmiss trim` uses them.")
    found = familiar(table.covariates, _PLACE)
    if others := [c for c in table.covariates if c not in found.values()]:
        said.append(
            f"the columns {', '.join(others)} are not used: `fedmiss trim --covariate` uses them, and what belongs to the "
            "sites the model gets by `fedmiss panel --site-table`."
        )
    name = frame.select(pl.concat_str("site", "year", "month", separator="|").alias("name")).to_series()
    effort = {key: _amount(frame, found.pop(key), source) for key in _EFFORT if key in found}
    for key, (column, _) in effort.items():
        said.append(f"the column {column!r} is the {key} of the visits, in {_EFFORT[key]}.")
    out = frame.select(
        name,
        "site",
        event=digest_ids(name),
        count=pl.col("count").cast(pl.Int64),
        observer=pl.col(found.pop("observer")).fill_null("") if "observer" in found else pl.col("site"),
        date=pl.date("year", "month", _DAY),
        complete=pl.lit(1, pl.Int8),
        species=pl.lit(species),
        common_name=pl.lit(table.common_name or (asked if asked.casefold() != species.casefold() else "")),
        **{key: value for key, (_, value) in effort.items()},
        **{key: pl.col(column).fill_null("") for key, column in found.items()},
    )
    dates = write_projection(folder, out)
    rows = Rows(source)
    rows.read = table.rows_read
    return rows.meta(
        prefix="", group_prefix="", dates=dates, explicit_zeros=True, any_name=True, said=said,
        missing=table.frame.height - frame.height, other_species=table.other_species, joined=table.joined,
    )  # fmt: skip


def _amount(frame: pl.DataFrame, column: str, source: Source) -> tuple[str, pl.Series]:
    """Return a column of effort as numbers, with its name; a blank is an effort that nobody noted."""
    value, bad = decimals(frame[column].fill_null(""))
    bad |= (value < 0).fill_null(False)
    if bad.any():
        row = frame.filter(bad).row(0, named=True)
        said = f"{row[column]!r} is no effort; write a number, or leave it blank."
        raise source.fault(row["line"], column, said)
    return column, value


def _whole(frame: pl.DataFrame, source: Source) -> pl.DataFrame:
    odd = frame.filter(pl.col("count") != pl.col("count").round())
    if odd.height:
        row = odd.row(0, named=True)
        raise source.fault(
            row["line"],
            "",
            f"the count {row['count']:g} is no whole number (rows: {odd.height:,}), and this model is one of whole counts. "
            "Round them if they are rounded means, or use `fedmiss trim`, which takes them as they are.",
        )
    return frame


def _years(years: pl.Series, source: Source, first_year: int | None) -> pl.Series:
    low, high = (int(str(y)) for y in (years.min(), years.max()))
    if first_year is not None:
        years = years - low + first_year
        low, high = first_year, first_year + high - low
    if low < 1500 or high > 2200:
        raise InputError(
            f"{source.name}: the time points {low} to {high} are no years; pass --first-year, the year of the first of them."
        )
    return years
