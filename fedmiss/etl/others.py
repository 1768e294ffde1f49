"""MyEBirdData.csv (an observer's own records) and GBIF occurrences, projected like the rest."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedmiss.etl.codes import COUNT_BAD, NO_DATE
from fedmiss.etl.columns import normal, resolve
from fedmiss.etl.rows import (
    Rows,
    digest_ids,
    parse_count,
    parse_dates,
    parse_numbers,
    read_rows,
    write_projection,
)
from fedmiss.etl.sources import Source

if TYPE_CHECKING:
    import polars as pl

__all__ = ["project_gbif", "project_myebird", "suspected_copies"]

MYEBIRD: dict[str, tuple[str, ...]] = {
    "submission": ("submission id",),
    "common_name": ("common name",),
    "scientific": ("scientific name",),
    "count": ("count",),
    "state_code": ("state province",),
    "county": ("county",),
    "site": ("location id",),
    "site_name": ("location",),
    "latitude": ("latitude",),
    "longitude": ("longitude",),
    "date": ("date",),
    "time": ("time",),
    "protocol": ("protocol",),
    "duration": ("duration min",),
    "complete": ("all obs reported",),
    "distance": ("distance traveled km",),
    "n_observers": ("number of observers",),
}
# The words of MyEBirdData for eBird's own protocol names
PROTOCOLS = {
    "eBird - Traveling Count": "Traveling",
    "eBird - Stationary Count": "Stationary",
    "eBird - Casual Observation": "Incidental",
    "eBird - Exhaustive Area Count": "Area",
}
GBIF: dict[str, tuple[str, ...]] = {
    "id": ("gbifid",),
    "occurrence": ("occurrenceid",),
    "species": ("species",),
    "scientific": ("scientificname",),
    "count": ("individualcount",),
    "status": ("occurrencestatus",),
    "latitude": ("decimallatitude",),
    "longitude": ("decimallongitude",),
    "date": ("eventdate",),
    "year": ("year",),
    "month": ("month",),
    "day": ("day",),
    "observer": ("recordedby",),
    "country_code": ("countrycode", "publishingcountry"),
    "state": ("stateprovince",),
    "licence": ("license",),
}


def project_myebird(
    source: Source, folder: Path, *, observer: str, advance: Callable[[float], None] = lambda done: None
) -> dict[str, Any]:
    """Write the projection of one observer's MyEBirdData.csv, either header generation; return its meta data.

    Taxa are exact there, so they are rolled up by the first two words of the scientific name; spuhs, slashes,
    hybrids and undescribed forms have no such two words. Complete lists that hold no bird are not in the file.
    """
    import polars as pl

    rows = Rows(source)
    required = ["submission", "scientific", "count", "site_name", "date", "complete"]
    columns = resolve(source.header, MYEBIRD, required, source.name)
    parts = []
    for chunk in read_rows(source, columns, rows, quoted=True, advance=advance):
        frame = chunk.with_columns(*(pl.lit("").alias(k) for k in MYEBIRD if k not in columns))
        number = frame["submission"].str.extract(r"^S(\d{1,17})$").cast(pl.Int64)
        bad = number.is_null()
        frame, number = rows.leave_out(frame, bad, "Submission ID", "submission"), number.filter(~bad)
        day = parse_dates(frame["date"], ("%Y-%m-%d", "%m-%d-%Y"))
        bad = day.is_null()
        frame, number, day = rows.leave_out(frame, bad, "Date", "date"), number.filter(~bad), day.filter(~bad)
        bad = day == dt.date(1900, 1, 1)
        frame = rows.leave_out(frame, bad, "", "date", why=NO_DATE)
        number, day = number.filter(~bad), day.filter(~bad)
        count, odd = parse_count(frame["count"])
        rows.blank(frame, odd, "Count", "count")
        values = {}
        for key, shown in (
            ("duration", "Duration"),
            ("distance", "Distance"),
            ("n_observers", "Number of Observers"),
        ):
            values[key], wrong = parse_numbers(frame[key])
            rows.blank(frame, wrong, shown, key)
        start = _clock(frame["time"])
        rows.blank(frame, start.is_null() & (frame["time"] != ""), "Time", "time")
        place = (
            pl.when(pl.col("site") != "")
            .then("site")
            .otherwise(pl.concat_str("site_name", "latitude", "longitude", separator=" | "))
        )
        parts.append(
            frame.select(
                place.alias("site"),
                _two_words("scientific").alias("species"),
                pl.col("common_name").str.replace(r" \(.*\)$", ""),
                "site_name",
                "latitude",
                "longitude",
                "state_code",
                "county",
                pl.col("protocol").replace(PROTOCOLS),
                pl.lit(observer).alias("observer"),
                event=number,
                count=pl.Series(count),
                guid=pl.Series(
                    digest_ids(
                        frame.select(pl.concat_str("submission", "scientific", separator="|")).to_series()
                    )
                ),
                date=day,
                start=start,
                **values,
                complete=(frame["complete"] == "1").cast(pl.Int8),
            ).with_columns(
                *(pl.lit("").alias(c) for c in ("country", "county_code", "site_type", "exotic", "approved")),
                country_code=pl.col("state_code").str.split("-").list.first(),
                state=pl.lit(""),
                category=pl.when(pl.col("species") == "").then(pl.lit("above")).otherwise(pl.lit("species")),
                group=pl.lit(-1, pl.Int64),
                edited=pl.lit(0, pl.Int64),
            )
        )
    dates = write_projection(folder, pl.concat(parts)) if parts else write_projection(folder, _nothing())
    return rows.meta(prefix="S", group_prefix="suspected-S", dates=dates)


def _two_words(column: str) -> pl.Expr:
    """Roll an exact taxon up to its species: '' where the name is no species' (sp., slash, hybrid, undescribed)."""
    import polars as pl

    words = pl.col(column).str.extract_groups(r"^([A-Z][a-z-]+) ([a-z-]+)(?: (.*))?$")
    genus, epithet, rest = (words.struct.field(str(i)) for i in (1, 2, 3))
    # 'Anas platyrhynchos x Cairina moschata' is a hybrid; 'Setophaga coronata coronata x auduboni' an intergrade
    species = genus.is_not_null() & (epithet != "x") & ~rest.fill_null("").str.contains(r"^x( |$)")
    return pl.when(species).then(pl.concat_str(genus, epithet, separator=" ")).otherwise(pl.lit(""))


def _clock(values: pl.Series) -> pl.Series:
    """Read '07:05 PM' or '19:05' as minutes after midnight."""
    import polars as pl

    frame = pl.DataFrame({"t": values.str.to_uppercase()})
    groups = pl.col("t").str.extract_groups(r"^(\d{1,2}):(\d{2})(?::\d{2})?(?: (AM|PM))?$")
    hour, minute, half = (
        groups.struct.field("1").cast(pl.Int32),
        groups.struct.field("2").cast(pl.Int32),
        groups.struct.field("3"),
    )
    hour = (
        pl.when(half.is_null()).then(hour).otherwise(hour % 12 + pl.when(half == "PM").then(12).otherwise(0))
    )
    total = hour * 60 + minute
    return frame.select(pl.when((total < 1440) & (minute < 60)).then(total)).to_series()


def suspected_copies(parts: list[tuple[str, pl.DataFrame]]) -> pl.DataFrame:
    """Find lists of different observers at one place with the same date, start and duration.

    Parameters
    ----------
    parts : per file: observer and a frame with event, site, date, start, duration

    Returns
    -------
    frame (event, group): ``group`` is the lowest event id of those that are alike
    """
    import polars as pl

    key = ["site", "date", "start", "duration"]
    both = pl.concat([f.with_columns(observer=pl.lit(name)) for name, f in parts])
    timed = both.filter(pl.col("start") >= 0, pl.col("duration").is_not_nan())
    return (
        timed.with_columns(group=pl.col("event").min().over(key), n=pl.col("observer").n_unique().over(key))
        .filter(pl.col("n") > 1)
        .select("event", "group")
        .unique()
        .sort("event")
    )


def project_gbif(
    source: Source, folder: Path, *, decimals: int, advance: Callable[[float], None] = lambda done: None
) -> dict[str, Any]:
    """Write the projection of GBIF occurrences (simple download or Darwin Core); return its meta data.

    There is no checklist in them, so every record is a visit of its own, at a site of rounded coordinates.
    """
    import polars as pl

    rows = Rows(source)
    squeezed = tuple(normal(h).replace(" ", "") for h in source.header)
    columns = resolve(squeezed, GBIF, ["latitude", "longitude"], source.name)
    key = "id" if "id" in columns else "occurrence"
    resolve(squeezed, GBIF, [key], source.name)
    parts, licences = [], set()
    for chunk in read_rows(source, columns, rows, quoted=source.separator == ",", advance=advance):
        frame = chunk.with_columns(*(pl.lit("").alias(k) for k in GBIF if k not in columns))
        frame = rows.leave_out(frame, frame[key] == "", "record id", key)
        day = frame.select(
            pl.coalesce(
                pl.col("date").str.slice(0, 10).str.to_date("%Y-%m-%d", strict=False),
                pl.concat_str(
                    pl.col("year"), pl.col("month").str.zfill(2), pl.col("day").str.zfill(2), separator="-"
                ).str.to_date("%Y-%m-%d", strict=False),
            )
        ).to_series()
        # '2007-02-01/2007-02-28' says no day
        spans = frame["date"].str.contains("/") & (
            frame["date"].str.slice(0, 10) != frame["date"].str.split("/").list.last().str.slice(0, 10)
        )
        bad = day.is_null() | spans
        frame, day = rows.leave_out(frame, bad, "eventDate (a full day)", "date"), day.filter(~bad)
        lat, lon = (frame[c].cast(pl.Float64, strict=False) for c in ("latitude", "longitude"))
        bad = ~(lat.is_between(-90, 90) & lon.is_between(-180, 180)).fill_null(False)
        frame, day = rows.leave_out(frame, bad, "coordinates", "latitude"), day.filter(~bad)
        lat, lon = lat.filter(~bad), lon.filter(~bad)
        count, odd = parse_count(frame["count"])
        rows.blank(frame, odd, "individualCount", "count")
        absent = (frame["status"].str.to_uppercase() == "ABSENT").to_numpy()
        count = np.where(absent, 0, np.where(count == 0, COUNT_BAD, count))
        licences |= set(frame["licence"].unique().to_list()) - {""}
        sites = pl.DataFrame({"lat": lat.round(decimals), "lon": lon.round(decimals)}).with_columns(
            pl.when(pl.all() != 0).then(pl.all()).otherwise(0.0)  # -0.0 and 0.0 are one place
        )
        name = pl.when(pl.col("species") != "").then("species").otherwise(_two_words("scientific"))
        species = name if "species" not in columns else pl.col("species")
        parts.append(
            frame.select(
                species.alias("species"),
                pl.when(pl.col("observer") == "")
                .then(pl.lit("not stated"))
                .otherwise("observer")
                .alias("observer"),
                "country_code",
                "state",
                event=pl.Series(digest_ids(frame[key])),
                name=frame[key],
                count=pl.Series(count),
                date=day,
                latitude=sites["lat"].cast(pl.String),
                longitude=sites["lon"].cast(pl.String),
            ).with_columns(
                *(
                    pl.lit("").alias(c)
                    for c in ("country", "county", "county_code", "state_code", "site_name")
                ),
                *(
                    pl.lit("").alias(c)
                    for c in ("site_type", "common_name", "exotic", "approved", "protocol")
                ),
                *(pl.lit(None, pl.Float64).alias(c) for c in ("duration", "distance", "n_observers")),
                category=pl.when(pl.col("species") == "").then(pl.lit("above")).otherwise(pl.lit("species")),
                site=pl.concat_str("latitude", "longitude", separator=","),
                start=pl.lit(None, pl.Int32),
                complete=pl.lit(0, pl.Int8),
                guid=pl.col("event"),
                group=pl.lit(-1, pl.Int64),
                edited=pl.lit(0, pl.Int64),
            )
        )
    dates = write_projection(folder, pl.concat(parts)) if parts else write_projection(folder, _nothing())
    return rows.meta(prefix="", group_prefix="", dates=dates, explicit_zeros=True, licences=sorted(licences))


def _nothing() -> pl.DataFrame:
    """Return the frame of a table without rows."""
    import polars as pl

    from fedmiss.etl.projection import EVENT_COLUMNS, PLACE_COLUMNS, TAXON_COLUMNS

    text = (*PLACE_COLUMNS, *TAXON_COLUMNS, "observer", "protocol", "name")
    whole = [k for k in (*EVENT_COLUMNS, "count", "guid") if k not in (*text, "date", "place")]
    return pl.DataFrame(
        {
            **{k: pl.Series(k, [], dtype=pl.String) for k in text},
            **{k: pl.Series(k, [], dtype=pl.Int64) for k in whole},
            "date": pl.Series("date", [], dtype=pl.Date),
        }
    )
