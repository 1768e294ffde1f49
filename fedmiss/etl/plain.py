"""Plain tables with a column map: which column is what, proposed from familiar names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedmiss.errors import ConfigError, InputError
from fedmiss.etl.codes import COUNT_BLANK
from fedmiss.etl.columns import normal
from fedmiss.etl.counts import settle_spellings
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

__all__ = ["DATES", "PlainRules", "check_map", "project_plain", "propose_map"]

# canonical name -> names of columns that usually mean it (compared by `columns.normal`, without spaces)
FAMILIAR: dict[str, tuple[str, ...]] = {
    "observer": ("observer", "observerid", "who", "recorder", "recordedby", "surveyor", "counter"),
    "site": (
        "site",
        "siteid",
        "plot",
        "plotid",
        "station",
        "colony",
        "square",
        "locality",
        "location",
        "transect",
    ),
    "date": ("date", "surveydate", "observationdate", "visitdate", "eventdate", "day"),
    "species": ("species", "scientificname", "speciesname", "taxon", "speciescode"),
    "common_name": ("commonname", "englishname", "vernacularname"),
    "count": (
        "count",
        "n",
        "number",
        "abundance",
        "individuals",
        "total",
        "howmany",
        "individualcount",
        "birds",
    ),
    "visit": ("visit", "visitid", "checklist", "checklistid", "surveyid", "eventid", "submissionid"),
    "site_name": ("sitename", "locationname", "plotname"),
    "region": ("region", "county", "state", "countycode", "statecode", "province"),
    "latitude": ("latitude", "lat", "decimallatitude"),
    "longitude": ("longitude", "lon", "long", "lng", "decimallongitude"),
    "start": ("start", "starttime", "time", "timestarted"),
    "duration": ("duration", "minutes", "durationminutes", "effortminutes"),
    "distance": ("distance", "distancekm", "km", "effortdistancekm"),
    "n_observers": ("nobservers", "numberobservers", "partysize", "observers"),
    "protocol": ("protocol", "method", "surveytype"),
    "complete": ("complete", "completelist", "allspeciesreported", "allobsreported"),
}
_DECIMALS = ("latitude", "longitude", "duration", "distance")  # a comma in them is a decimal comma
REQUIRED = ("observer", "site", "date", "count")
_DATES = ("%Y-%m-%d", "%Y/%m/%d", "%Y%m%d", "%d.%m.%Y")  # 05/06/2024 may be May or June: see DATES
_EITHER = r"^\d{1,2}/\d{1,2}/\d{4}"
DATES = {"": (), "day-first": ("%d/%m/%Y",), "month-first": ("%m/%d/%Y",)}
_TRUE, _FALSE = ("1", "true", "t", "yes", "y"), ("0", "false", "f", "no", "n", "")


@dataclass(frozen=True, slots=True)
class PlainRules:
    """What to do where a table leaves a choice.

    ``repeats`` says what several counts of a species on one visit (observer, site, day, and start time or visit id where
    the table has them) are worth: their ``sum`` (parts of a flock), ``max`` or ``mean`` (the same birds counted again).
    ``spellings`` of one site: ``refuse``, ``join`` or ``apart``. ``missing``: further signs of a count that was not made.
    ``dates``: what 05/06/2024 means, ``day-first`` or ``month-first``; blank refuses it.
    """

    repeats: str = "sum"
    spellings: str = "refuse"
    missing: tuple[str, ...] = ()
    dates: str = ""


def propose_map(header: tuple[str, ...]) -> dict[str, str]:
    """Return the map that familiar column names suggest; each column at most once."""
    squeezed = {normal(h).replace(" ", ""): h for h in reversed(header)}
    taken: dict[str, str] = {}
    for key, names in FAMILIAR.items():
        hit = next((squeezed[n] for n in names if n in squeezed and squeezed[n] not in taken.values()), None)
        if hit is not None:
            taken[key] = hit
    return taken


def check_map(source: Source, column_map: dict[str, str] | None, *, one_species: bool) -> dict[str, str]:
    """Return the map to use, or raise with the proposal.

    ``one_species`` says that a single species was asked for, so the table need not name it.
    """
    proposal = propose_map(source.header)
    missing = [k for k in REQUIRED if k not in proposal]
    offer = ",".join(f"{k}={v}" for k, v in proposal.items())
    if column_map is None:
        if missing and len(proposal) < 2:
            shown = ", ".join(source.header[:6]) + (", ..." if len(source.header) > 6 else "")
            raise ConfigError(
                f"{source.name} is no eBird, MyEBirdData or GBIF file (its columns: {shown}). If it is a table of "
                "counts, say which column is what: --map observer=...,site=...,date=...,count=...",
                header=list(source.header),
            )
        lack = (
            f" Still to name: {', '.join(missing)}." if missing else " Or --map auto to take this proposal."
        )
        raise ConfigError(
            f"{source.name} is a plain table; say which column is what. Its columns look like --map {offer}.{lack}",
            proposal=proposal,
        )
    chosen = proposal if "auto" in column_map else column_map
    for key, column in chosen.items():
        if key not in FAMILIAR:
            raise ConfigError(f"--map: {key!r} is unknown; the names are {', '.join(FAMILIAR)}.", key=key)
        if column not in source.header:
            raise ConfigError(
                f"--map {key}={column}: {source.name} has no column {column!r}; it has "
                f"{', '.join(source.header[:12])}{', ...' if len(source.header) > 12 else ''}.",
                column=column,
            )
    lacking = [k for k in REQUIRED if k not in chosen]
    if lacking:
        raise ConfigError(
            f"--map does not say which column of {source.name} is {' or '.join(lacking)}. Proposal: --map {offer}",
            missing=lacking,
        )
    if "species" not in chosen and "common_name" not in chosen and not one_species:
        raise ConfigError(
            f"--map names no species column of {source.name}: add species=..., or name the one species of the table "
            "with --species.",
        )
    return chosen


def project_plain(
    source: Source,
    folder: Path,
    *,
    column_map: dict[str, str],
    one_species: str | None,
    assume_complete: bool,
    rules: PlainRules | None = None,
    advance: Callable[[float], None] = lambda done: None,
) -> dict[str, Any]:
    """Write the projection of a plain table; return its meta data.

    Raises
    ------
    InputError : a count that is none, a date that may be two, a site in two spellings; each with line and remedy
    """
    import polars as pl

    rules = rules or PlainRules()
    rows = Rows(source)
    columns = {k: source.header.index(v) for k, v in column_map.items()}
    parts = [
        _prepare(chunk, rows, columns, one_species, assume_complete, rules)
        for chunk in read_rows(source, columns, rows, quoted=source.separator in (",", ";"), advance=advance)
    ]
    frame = (
        pl.concat(parts)
        if parts
        else _prepare(_empty(columns), rows, columns, one_species, assume_complete, rules)
    )
    frame, spelt = settle_spellings(frame, source.name, rules.spellings)
    # Nobody counted: neither a presence nor an absence. On a complete visit the species must not become a zero either,
    # so the row stays and holds the zero back; on others it goes.
    blank = pl.col("count") == COUNT_BLANK
    n = frame.height
    frame = frame.filter(~blank | (pl.col("complete") == 1))
    missing = n - frame.height
    frame = frame.with_columns(approved=pl.when(blank).then(pl.lit("0")).otherwise(pl.col("approved")))
    frame, said = _joined(frame.drop("line"), rules.repeats)
    dates = write_projection(folder, frame)
    meta = rows.meta(prefix="", group_prefix="", dates=dates, explicit_zeros=True, any_name=True)
    return meta | {"said": spelt + said, "missing": missing}


def _joined(frame: pl.DataFrame, repeats: str) -> tuple[pl.DataFrame, list[str]]:
    """Join several counts of one species on one visit by their largest or mean; sums are made later, for all sources."""
    import polars as pl

    keys = ["event", "species", "common_name"]
    doubled = frame.select(keys).is_duplicated() & (frame["count"] >= 0)
    n = int(doubled.sum())
    if not n:
        return frame, []
    cells = frame.filter(doubled).select(keys).n_unique()
    if repeats in ("sum", "refuse"):
        return frame, [
            f"{n:,} counts are of {cells:,} visits that have several of one species: they are added up. If they "
            "are of the same "
            "birds, pass --repeats max or mean."
        ]
    one = pl.col("count").max() if repeats == "max" else pl.col("count").mean().round().cast(pl.Int64)
    parts = frame.filter(doubled)
    joined = parts.group_by(keys, maintain_order=True).agg(
        one, *(pl.col(c).first() for c in frame.columns if c not in (*keys, "count"))
    )
    word = "largest" if repeats == "max" else "mean, rounded,"
    said = [
        f"{n:,} counts are of {cells:,} visits that have several of one species: the {word} of each is taken."
    ]
    return pl.concat([frame.filter(~doubled), joined.select(frame.columns)]), said


def _refuse(chunk: pl.DataFrame, bad: pl.Series, key: str, rows: Rows, why: str) -> None:
    """Raise with the line and the value of the first bad one."""
    if bad.any():
        row = chunk.row(int(bad.arg_max() or 0), named=True)
        raise InputError(
            f"{rows.source.name} line {row['_line']}, {key}: {row[key]!r} {why}", line=row["_line"]
        )


def _empty(columns: dict[str, int]) -> pl.DataFrame:
    import polars as pl

    return pl.DataFrame(
        {"_line": pl.Series([], dtype=pl.Int64), **{k: pl.Series([], dtype=pl.String) for k in columns}}
    )


def _prepare(
    chunk: pl.DataFrame,
    rows: Rows,
    columns: dict[str, int],
    one_species: str | None,
    assume_complete: bool,
    rules: PlainRules,
) -> pl.DataFrame:
    import polars as pl

    for key in ("observer", "site", *(k for k in ("species",) if k in columns)):
        chunk = rows.leave_out(chunk, chunk[key] == "", key, key)
    day = parse_dates(chunk["date"].str.slice(0, 10), (*_DATES, *DATES[rules.dates]))
    bad = day.is_null()
    if not rules.dates:
        _refuse(
            chunk, bad & chunk["date"].str.contains(_EITHER), "date", rows,
            "may be two days. Write it as 2024-05-31, or pass --dates day-first or month-first.",
        )  # fmt: skip
    chunk, day = rows.leave_out(chunk, bad, "date (write it as 2024-05-31)", "date"), day.filter(~bad)

    def text(key: str, default: str = "") -> pl.Series:
        if key not in columns:
            return pl.Series(key, [default]).new_from_index(0, chunk.height)
        return chunk[key].str.replace(r"^(-?\d+),(\d+)$", "$1.$2") if key in _DECIMALS else chunk[key]

    def number(key: str) -> pl.Series:
        if key not in columns:
            return pl.Series(key, [None], dtype=pl.Float64).new_from_index(0, chunk.height)
        value, wrong = parse_numbers(text(key))
        rows.blank(chunk, wrong, key, key)
        return value

    # 2,0 and 2.00 are 2; a sign of a missing count is blank
    written = chunk["count"].str.strip_chars().str.replace(r"^(\d+)[.,]0+$", "$1")
    written = (
        written.to_frame("t")
        .select(pl.when(pl.col("t").is_in(rules.missing)).then(pl.lit("")).otherwise("t"))
        .to_series()
    )
    count, odd = parse_count(written)
    _refuse(
        chunk, odd, "count", rows,
        "is no count. Give one number, X where birds were present but not counted, or NA where nobody counted "
        "(--missing takes a value as NA).",
    )  # fmt: skip
    clock = (
        text("start").str.extract_groups(r"^(\d{1,2}):(\d{2})(?::\d{2})?$").struct.rename_fields(["h", "m"])
    )
    minutes = clock.struct.field("h").cast(pl.Int32) * 60 + clock.struct.field("m").cast(pl.Int32)
    rows.blank(
        chunk, minutes.is_null() & (text("start") != ""), "start", "start" if "start" in columns else "date"
    )
    said = text("complete").str.to_lowercase()
    odd_flag = ~said.is_in([*_TRUE, *_FALSE])
    rows.blank(chunk, odd_flag, "complete", "complete" if "complete" in columns else "date")
    name = text("species") if "species" in columns else text("common_name", one_species or "")
    visit = (
        chunk["visit"]
        if "visit" in columns
        else chunk.select(
            pl.concat_str("observer", "site", day.dt.to_string().alias("d"), text("start"), separator="|")
        ).to_series()
    )
    event = digest_ids(visit)
    blank = pl.lit("")
    return pl.DataFrame(
        {
            "line": chunk["_line"],
            "event": event,
            "name": visit,
            "count": count,
            "species": name
            if "species" in columns or "common_name" in columns
            else text("_", one_species or ""),
            "common_name": text("common_name"),
            "observer": chunk["observer"],
            "site": chunk["site"],
            "site_name": text("site_name"),
            "county_code": text("region"),
            "latitude": text("latitude"),
            "longitude": text("longitude"),
            "protocol": text("protocol"),
            "date": day,
            "start": minutes,
            "duration": number("duration"),
            "distance": number("distance"),
            "n_observers": number("n_observers"),
            "complete": np.ones(chunk.height, np.int8)
            if assume_complete
            else said.is_in(_TRUE).cast(pl.Int8),
        }
    ).with_columns(
        *(blank.alias(c) for c in ("country", "country_code", "state", "state_code", "county", "site_type")),
        *(blank.alias(c) for c in ("exotic", "approved")),
        category=pl.lit("species"),
        group=pl.lit(-1, pl.Int64),
        guid=pl.lit(0, pl.Int64),
        edited=pl.lit(0, pl.Int64),
    )
