"""A table of yearly or monthly counts as visits: each count is one visit of its site, in its year or month."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np

from fedmiss.errors import InputError
from fedmiss.etl.counts import CountOptions, read_counts
from fedmiss.etl.rows import Rows, digest_ids, write_projection
from fedmiss.etl.sources import Source

__all__ = ["MONTH_OF_YEARLY", "project_counts"]

MONTH_OF_YEARLY = 6  # a yearly count has no month: all of them stand in one, and June is as good as any
_DAY = 15
_PLACE = {
    "region": ("region", "county", "state", "stratum", "province"),
    "latitude": ("latitude", "lat", "decimallatitude", "y"),
    "longitude": ("longitude", "lon", "long", "lng", "decimallongitude", "x"),
    "site_name": ("site name", "sitename", "name"),
}


def project_counts(
    source: Source,
    folder: Path,
    *,
    options: CountOptions,
    one_species: str,
    first_year: int | None,
    advance: Callable[[float], None] = lambda done: None,
) -> dict[str, Any]:
    """Write the projection of a table of counts; return its meta data.

    The observer of a visit is its site, so that replicates of a bootstrap draw sites. Rows with a missing count are
    no visits. ``first_year`` turns time points 1, 2, ... into years.
    """
    import polars as pl

    table = read_counts(source, options)
    said = list(table.said)
    frame = _whole(table.frame.filter(pl.col("count").is_not_null()), source)
    frame = frame.with_columns(year=_years(frame["year"], source, first_year))
    month = (
        frame["month"]
        if "month" in frame.columns
        else pl.Series([MONTH_OF_YEARLY]).new_from_index(0, frame.height)
    )
    if "month" not in frame.columns:
        said.append("there is no month: the counts are yearly, and stand in June of their year.")
    if "weight" in frame.columns:
        said.append("the weights are not used by this model; `fedmiss trim` uses them.")
    found = _places(table.covariates)
    others = [c for c in table.covariates if c not in found.values()]
    if others:
        said.append(
            f"the columns {', '.join(others)} are not used by this model; `fedmiss trim --covariate` uses them."
        )

    def text(key: str) -> pl.Series:
        return (
            frame[found[key]].fill_null("")
            if key in found
            else pl.Series([""]).new_from_index(0, frame.height)
        )

    name = frame.select(pl.concat_str("site", "year", month.alias("m"), separator="|")).to_series()
    day = [date(y, m, _DAY) for y, m in zip(frame["year"], month, strict=True)]
    out = pl.DataFrame(
        {
            "event": digest_ids(name),
            "name": name,
            "count": frame["count"].cast(pl.Int64),
            "observer": frame["site"],
            "site": frame["site"],
            "site_name": text("site_name"),
            "county_code": text("region"),
            "latitude": text("latitude"),
            "longitude": text("longitude"),
            "date": pl.Series(day, dtype=pl.Date),
            "complete": np.ones(frame.height, np.int8),
        }
    )
    dates = write_projection(folder, _with_blanks(out, one_species))
    rows = Rows(source)
    rows.read = table.rows_read
    meta = rows.meta(prefix="", group_prefix="", dates=dates, explicit_zeros=True, any_name=True)
    return meta | {"said": said, "missing": table.rows_read - frame.height}


def _with_blanks(out: Any, one_species: str) -> Any:
    """Add what a table of counts does not tell: no effort, no places above the region, one species."""
    import polars as pl

    blanks = (
        "common_name protocol country country_code state state_code county site_type exotic approved".split()
    )
    numbers = {"duration": pl.Float64, "distance": pl.Float64, "n_observers": pl.Float64, "start": pl.Int32}
    return out.with_columns(
        *(pl.lit("").alias(c) for c in blanks),
        *(pl.lit(None, dtype).alias(c) for c, dtype in numbers.items()),
        species=pl.lit(one_species),
        category=pl.lit("species"),
        group=pl.lit(-1, pl.Int64),
        guid=pl.lit(0, pl.Int64),
        edited=pl.lit(0, pl.Int64),
    )


def _whole(frame: Any, source: Source) -> Any:
    import polars as pl

    odd = frame.filter(pl.col("count") != pl.col("count").round())
    if odd.height:
        row = odd.row(0, named=True)
        raise InputError(
            f"{source.name} line {row['line']}: the count {row['count']:g} is no whole number (rows: {odd.height:,}), and "
            "this model is one of whole counts. Round them if they are rounded means, or use `fedmiss trim`, which takes "
            "them as they are.",
            line=row["line"],
        )
    return frame


def _years(years: Any, source: Source, first_year: int | None) -> Any:
    low, high = int(years.min()), int(years.max())
    if first_year is not None:
        years = years - low + first_year
        low, high = first_year, first_year + high - low
    if low < 1500 or high > 2200:
        raise InputError(
            f"{source.name}: the time points {low} to {high} are no years; pass --first-year, the year of the first of them."
        )
    return years


def _places(covariates: tuple[str, ...]) -> dict[str, str]:
    low = {c.lower(): c for c in reversed(covariates)}
    return {
        key: next(low[n] for n in names if n in low) for key, names in _PLACE.items() if set(names) & set(low)
    }
