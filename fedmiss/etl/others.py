"""MyEBirdData.csv (an observer's own records) and GBIF occurrences, projected like the rest."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Sequence
from pathlib import Path

import polars as pl
import polars.selectors as cs

from fedmiss.errors import SchemaError
from fedmiss.etl.checks import at_zero
from fedmiss.etl.codes import COUNT_BAD, NO_DATE, NO_SIGHTING
from fedmiss.etl.columns import KEEP, kept_columns, normal, resolve
from fedmiss.etl.projection import Meta
from fedmiss.etl.rows import Rows, date_of_parts, digest_ids, parse_count, parse_dates, write_projection
from fedmiss.etl.sources import Source

MYEBIRD: dict[str, tuple[str, ...]] = {
    "submission": ("submission id",), "common_name": ("common name",), "scientific": ("scientific name",),
    "count": ("count",), "state_code": ("state province",), "county": ("county",), "site": ("location id",),
    "site_name": ("location",), "latitude": ("latitude",), "longitude": ("longitude",), "date": ("date",),
    "time": ("time",), "protocol": ("protocol",), "duration": ("duration min",),
    "complete": ("all obs reported",), "distance": ("distance traveled km",),
    "n_observers": ("number of observers",),
}  # fmt: skip
# The words of MyEBirdData for eBird's own protocol names
PROTOCOLS = {
    "eBird - Traveling Count": "Traveling",
    "eBird - Stationary Count": "Stationary",
    "eBird - Casual Observation": "Incidental",
    "eBird - Exhaustive Area Count": "Area",
}
GBIF: dict[str, tuple[str, ...]] = {
    "id": ("gbifid",), "occurrence": ("occurrenceid",), "species": ("species",), "scientific": ("scientificname",),
    "count": ("individualcount",), "quantity": ("organismquantity",), "quantity_type": ("organismquantitytype",),
    "basis": ("basisofrecord",), "status": ("occurrencestatus",), "latitude": ("decimallatitude",),
    "longitude": ("decimallongitude",), "date": ("eventdate",), "year": ("year",), "month": ("month",),
    "day": ("day",), "observer": ("recordedby",), "country_code": ("countrycode", "publishingcountry"),
    "state": ("stateprovince",), "licence": ("license",),
    # of the Humboldt extension
    "effort": ("samplingeffortvalue",), "unit": ("samplingeffortunit",),
}  # fmt: skip
_MINUTES = {"minute": 1.0, "minutes": 1.0, "min": 1.0, "hour": 60.0, "hours": 60.0, "h": 60.0}


def project_myebird(
    source: Source,
    folder: Path,
    *,
    observer: str,
    keep: Sequence[str] = (),
    advance: Callable[[float], None] = lambda done: None,
) -> Meta:
    """Write the projection of one observer's MyEBirdData.csv, either header generation; return its meta data.

    Taxa are exact there, so they are rolled up by the first two words of the scientific name; spuhs, slashes,
    hybrids and undescribed forms have no such two words. Complete lists that hold no bird are not in the file.
    """
    rows = Rows(source, advance)
    required = ["submission", "scientific", "count", "site_name", "date", "complete"]
    columns = resolve(source.header, MYEBIRD, required, source.name)
    columns |= kept_columns(source.header, keep, source.name)
    parts = (_myebird(chunk, rows, observer) for chunk in rows.chunks(columns, MYEBIRD))
    dates = write_projection(folder, pl.concat(parts))
    return rows.meta(prefix="S", group_prefix="suspected-S", dates=dates)


def _myebird(frame: pl.DataFrame, rows: Rows, observer: str) -> pl.DataFrame:
    """Return the columns of the projection of a chunk of MyEBirdData."""
    frame = frame.with_columns(event=pl.col("submission").str.extract(r"^S(\d{1,17})$").cast(pl.Int64))
    frame = rows.leave_out(frame, frame["event"].is_null(), "Submission ID", "submission")
    frame = frame.with_columns(day=parse_dates(frame["date"], ("%Y-%m-%d", "%m-%d-%Y")))
    frame = rows.leave_out(frame, frame["day"].is_null(), "Date", "date")
    frame = rows.leave_out(frame, frame["day"] == dt.date(1900, 1, 1), "", "date", why=NO_DATE)
    count, odd = parse_count(frame["count"])
    rows.blank(frame, odd, "Count", "count")
    numbers = {
        key: rows.numbers(frame, key, shown)
        for key, shown in (
            ("duration", "Duration"), ("distance", "Distance"), ("n_observers", "Number of Observers"),
        )
    }  # fmt: skip
    start = rows.clock(frame, "time", "Time")
    place = pl.concat_str("site_name", "latitude", "longitude", separator=" | ")
    record = frame.select(pl.concat_str("submission", "scientific", separator="|")).to_series()
    species = _two_words()
    return frame.select(
        cs.starts_with(KEEP),
        "event",
        "site_name",
        "latitude",
        "longitude",
        "state_code",
        "county",
        pl.col("common_name").str.replace(r" \(.*\)$", ""),
        pl.col("protocol").replace(PROTOCOLS),
        site=pl.when(pl.col("site") != "").then("site").otherwise(place),
        country_code=pl.col("state_code").str.split("-").list.first(),
        species=species,
        category=_category(species),
        observer=pl.lit(observer),
        count=count,
        guid=digest_ids(record),
        date=pl.col("day"),
        start=start,
        **numbers,
        complete=(pl.col("complete") == "1").cast(pl.Int8),
    )


def _category(species: pl.Expr) -> pl.Expr:
    return pl.when(species == "").then(pl.lit("above")).otherwise(pl.lit("species"))


def _two_words() -> pl.Expr:
    """Roll an exact taxon (``scientific``) up to its species; '' where it is none (sp., slash, hybrid, undescribed)."""
    words = pl.col("scientific").str.extract_groups(r"^([A-Z][a-z-]+) ([a-z-]+)(?: (.*))?$")
    genus, epithet, rest = (words.struct.field(str(level)) for level in (1, 2, 3))
    # 'Anas platyrhynchos x Cairina moschata' is a hybrid; 'Setophaga coronata coronata x auduboni' an intergrade
    species = genus.is_not_null() & (epithet != "x") & ~rest.fill_null("").str.contains(r"^[x\u00d7]( |$)")
    return pl.when(species).then(pl.concat_str(genus, epithet, separator=" ")).otherwise(pl.lit(""))


def suspected_copies(parts: list[tuple[str, pl.DataFrame]]) -> pl.DataFrame:
    """Find lists of different observers at one place with the same date, start and duration.

    Parameters
    ----------
    parts : per file: observer and a frame with event, site, date, start, duration

    Returns
    -------
    frame (event, group): ``group`` is the lowest event id of those that are alike
    """
    key = ["site", "date", "start", "duration"]
    both = pl.concat([convert.with_columns(observer=pl.lit(name)) for name, convert in parts])
    timed = both.filter(pl.col("start") >= 0, pl.col("duration").is_not_nan())
    return (
        timed.with_columns(group=pl.col("event").min().over(key), n=pl.col("observer").n_unique().over(key))
        .filter(pl.col("n") > 1)
        .group_by("event")
        .agg(pl.col("group").min())  # an event that is alike with lists of two groups is of the lower one
        .sort("event")
    )


def project_gbif(
    source: Source,
    folder: Path,
    *,
    decimals: int,
    keep: Sequence[str] = (),
    advance: Callable[[float], None] = lambda done: None,
) -> Meta:
    """Write the projection of GBIF occurrences (simple download or Darwin Core); return its meta data.

    There is no checklist in them, so every sighting is a visit of its own, at a site of rounded coordinates; specimens and
    samples are none. A blank individualCount is the organismQuantity where that is of individuals. Sampling
    effort in minutes or hours (terms of the Humboldt extension) is the duration of the visit; in other units it is not used.
    """
    rows = Rows(source, advance)
    squeezed = tuple(normal(column).replace(" ", "") for column in source.header)
    if "id" in squeezed and not {"decimallatitude", "decimallongitude"} & set(squeezed):
        raise SchemaError(
            f"{source.name} is of an archive of sampling events, whose event.txt has the places and dates. Download the "
            "data set from GBIF as a Darwin Core archive, whose occurrence.txt has all; or join both tables by their ids, "
            "and read the result with --map."
        )
    columns = resolve(squeezed, GBIF, ["latitude", "longitude"], source.name)
    key = "id" if "id" in columns else "occurrence"
    resolve(squeezed, GBIF, [key], source.name)
    columns |= kept_columns(source.header, keep, source.name)
    species = pl.col("species") if "species" in columns else _two_words()
    parts, licences = [], set()
    for chunk in rows.chunks(columns, GBIF):
        frame = _usable_gbif(chunk, rows, key)
        licences |= set(frame["licence"].unique().to_list()) - {""}
        parts.append(_gbif(frame, rows, key, species, decimals))
    dates = write_projection(folder, pl.concat(parts))
    return rows.meta(dates=dates, explicit_zeros=True, licences=sorted(licences))


def _usable_gbif(frame: pl.DataFrame, rows: Rows, key: str) -> pl.DataFrame:
    """Leave out specimens, and occurrences without an id, a full day or coordinates; adds ``day``, ``lat`` and ``lon``."""
    # in one word or with _: PreservedSpecimen, MATERIAL_SAMPLE, MaterialCitation
    sample = frame["basis"].str.to_uppercase().str.contains("SPECIMEN|MATERIAL")
    frame = rows.leave_out(frame, sample, "", "basis", why=NO_SIGHTING)
    frame = rows.leave_out(frame, frame[key] == "", "record id", key)
    first, last = (
        pl.col("date").str.slice(0, 10),
        pl.col("date").str.split("/").list.last().str.slice(0, 10),
    )
    spans = pl.col("date").str.contains("/") & (first != last)  # '2007-02-01/2007-02-28' is no single day
    day = pl.coalesce(text.str.to_date("%Y-%m-%d", strict=False) for text in (first, date_of_parts()))
    frame = frame.with_columns(
        day=pl.when(~spans).then(day),
        lat=pl.col("latitude").cast(pl.Float64, strict=False),
        lon=pl.col("longitude").cast(pl.Float64, strict=False),
    )
    frame = rows.leave_out(frame, frame["day"].is_null(), "eventDate (a full day)", "date")
    known = (frame["lat"].is_between(-90, 90) & frame["lon"].is_between(-180, 180)).fill_null(False)
    known &= ~at_zero(frame["lat"], frame["lon"])
    return rows.leave_out(frame, ~known, "coordinates", "latitude")


def _gbif(frame: pl.DataFrame, rows: Rows, key: str, species: pl.Expr, decimals: int) -> pl.DataFrame:
    """Return the columns of the projection of a chunk of occurrences."""
    individuals = (pl.col("count") == "") & pl.col("quantity_type").str.contains(r"(?i)^individuals?$")
    frame = frame.with_columns(count=pl.when(individuals).then("quantity").otherwise("count"))
    count, odd = parse_count(frame["count"])
    rows.blank(frame, odd, "individualCount", "count")
    minutes = frame["unit"].str.to_lowercase().replace_strict(_MINUTES, default=None, return_dtype=pl.Float64)
    rows.blank(
        frame, minutes.is_null() & (frame["effort"] != ""), "samplingEffortUnit (minutes or hours)", "unit"
    )
    absent = pl.col("status").str.to_uppercase() == "ABSENT"
    event = digest_ids(frame[key])

    def rounded(column: str) -> pl.Expr:
        value = pl.col(column).round(decimals)
        return pl.when(value != 0).then(value).otherwise(0.0).cast(pl.String)  # -0.0 and 0.0 are one place

    return frame.select(
        cs.starts_with(KEEP),
        "country_code",
        "state",
        event=event,
        guid=event,
        name=pl.col(key),
        species=species,
        category=_category(species),
        observer=pl.when(pl.col("observer") == "").then(pl.lit("not stated")).otherwise("observer"),
        duration=rows.numbers(frame, "effort", "samplingEffortValue") * minutes,
        count=pl.when(absent).then(0).when(pl.lit(count) == 0).then(COUNT_BAD).otherwise(count),
        date=pl.col("day"),
        site=pl.concat_str(rounded("lat"), rounded("lon"), separator=","),
        latitude=rounded("lat"),
        longitude=rounded("lon"),
        complete=pl.lit(0, pl.Int8),
    )
