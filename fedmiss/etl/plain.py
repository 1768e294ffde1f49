"""Plain tables as projections: rows of visits, or of their counts, with a column map."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

import polars as pl
import polars.selectors as cs

from fedmiss.errors import listed
from fedmiss.etl.checks import (
    advice,
    observers_alike,
    refuse_thousands,
    settle_spellings,
)
from fedmiss.etl.codes import COUNT_BLANK
from fedmiss.etl.column_map import KNOWN
from fedmiss.etl.columns import (
    DATE_PARTS,
    KEEP,
    kept_columns,
    said_of_unused,
)
from fedmiss.etl.count_table import CountOptions
from fedmiss.etl.projection import Meta
from fedmiss.etl.rows import (
    LINE,
    Rows,
    date_of_parts,
    digest_ids,
    gap_as_blank,
    joined_texts,
    parse_count,
    parse_dates,
    without_codes,
    write_projection,
)
from fedmiss.etl.sources import Source
from fedmiss.etl.species import refuse_mixed, same_names

_DECIMALS = ("duration", "distance")  # a comma in them is a decimal comma
OF_SPECIES = "counts of "  # before the names of columns that hold the counts of a species each
_NO_SPECIES = (
    " If it is no species, name the species with --species, --keep the column, or leave it out of the table."
)
_DATES = (
    "%Y-%m-%d",
    "%Y/%m/%d",
    "%Y%m%d",
    "%d.%m.%Y",
    "%d-%b-%Y",
)  # 05/06/2024 may be May or June: see DATES
# 7:00, 07.00.30, T0700Z, 7 PM, 07:00+02:00; a span of them is on one day, and words (morning) are on that of the date
_CLOCK = r"\d{1,2}([:.h]?\d\d([:.]?\d\d([.,]\d+)?)?|\s*[AaPp][Mm])"
_TIME = rf"[\sT,;_]*{_CLOCK}\s*([A-Za-z][A-Za-z/_]*)?\s*([+-]\d\d(:?\d\d)?)?"
_TO = r"\s*(-|\u2013|/|to)\s*"
_TIMES = rf"^(\D*|{_TIME}({_TO}{_TIME})?({_TO})?\s*)$"
_EITHER = r"^(\d{1,2})[/-](\d{1,2})[/-]\d{4}"
DATES = {"": (), "day-first": ("%d/%m/%Y", "%d-%m-%Y"), "month-first": ("%m/%d/%Y", "%m-%d-%Y")}
_TRUE = ("1", "true", "t", "yes", "y", "wahr", "ja", "vrai", "oui")
_FALSE = ("0", "false", "f", "no", "n", "falsch", "nein", "faux", "non", "")


def project_plain(
    source: Source,
    folder: Path,
    *,
    column_map: dict[str, str],
    one_species: str | None,
    assume_complete: bool,
    by_species: Sequence[str] = (),
    rules: CountOptions,
    dates: str = "",
    keep: Sequence[str] = (),
    advance: Callable[[float], None] = lambda done: None,
) -> Meta:
    """Write the projection of a plain table; return its meta data.

    ``repeats`` of the ``rules`` says what several counts of a species on one visit (observer, site, day, and start time or
    visit id where the table has them) are worth: their ``sum`` (parts of a flock; ``refuse`` means it too), ``max`` or
    ``mean`` (the same birds counted again). ``by_species``: columns that hold the counts of a species each, where a row is a
    visit; every count is a row of its own then. ``dates``: what 05/06/2024 means, ``day-first`` or ``month-first``; blank
    refuses it.

    Raises
    ------
    InputError : a count that is none, a date that may be two, a site in two spellings; each with line and remedy
    """
    rows = Rows(source, advance)
    columns = {key: source.header.index(value) for key, value in column_map.items()}
    columns |= kept_columns(source.header, keep, source.name)
    own = {OF_SPECIES + column: source.header.index(column) for column in by_species}
    frame = pl.concat(
        _visits(
            _usable(_one_by_one(chunk, own, assume_complete), rows, columns, dates, assume_complete),
            rows,
            columns,
            rules.missing,
        )
        for chunk in rows.chunks(columns | own, KNOWN)
    )
    rows.read *= len(own) or 1
    if one_species is not None:
        frame = frame.with_columns(species=pl.lit(one_species))
    else:
        if "species" in column_map:
            refuse_mixed(source, column_map["species"], frame["species"], frame["line"])
        frame = frame.with_columns(same_names(frame["species"]), same_names(frame["common_name"]))
    if assume_complete:
        frame = frame.with_columns(complete=pl.lit(1, pl.Int8))
    frame, spelt = settle_spellings(frame, source.name, rules.spellings)
    frame = _named(frame)
    # A missing count is neither a presence nor an absence. On a complete visit the row is kept, so that no zero is made
    # for the species; on other visits it is dropped.
    blank = pl.col("count") == COUNT_BLANK
    height = frame.height
    frame = frame.filter(~blank | (pl.col("complete") == 1))
    missing = height - frame.height
    frame = frame.with_columns(approved=pl.when(blank).then(pl.lit("0")).otherwise(pl.lit("")))
    alike = observers_alike(frame)
    frame = frame.drop("line")
    birds = frame.filter(pl.col("species") != "")
    without = frame.filter(pl.col("species") == "")
    birds, said = _joined(birds, rules.repeats)
    days = write_projection(folder, birds, without)
    return rows.meta(
        dates=days,
        explicit_zeros=True,
        any_name=True,
        said=[
            *source.said,
            *([_said_of_species(by_species, missing)] if own else []),
            *said_of_unused(source.header, columns | own),
            *spelt,
            *alike,
            *said,
        ],
        missing=missing,
        without_birds=without.height,
    )


def _said_of_species(columns: Sequence[str], missing: int) -> str:
    said = f"a species each: {listed([repr(name) for name in columns], 12)}."
    if missing:
        said += (
            f" {missing:,} counts are missing, as nobody counted; where a blank means that a species was not found, pass "
            "--assume-complete, or write 0."
        )
    return said


def _one_by_one(chunk: pl.DataFrame, own: Collection[str], assume_complete: bool) -> pl.DataFrame:
    """Return a row for each count of a row, where species have columns of their own; its species is the column's name.

    A blank on a complete visit is a species that was not found, as one without a row is in other tables.
    """
    if not own:
        return chunk
    chunk = chunk.drop("species", "count")
    others = [column for column in chunk.columns if column not in own]
    long = chunk.unpivot(list(own), index=others, variable_name="species", value_name="count")
    complete = pl.lit(True) if assume_complete else pl.col("complete").str.to_lowercase().is_in(_TRUE)
    none = complete & (pl.col("count").str.strip_chars() == "")
    return long.with_columns(
        pl.col("species").str.strip_prefix(OF_SPECIES),
        pl.when(none).then(pl.lit("0")).otherwise("count").alias("count"),
    ).sort(LINE, maintain_order=True)


def _named(frame: pl.DataFrame) -> pl.DataFrame:
    """Give each visit its name and number, and to its rows what any of them says of its completeness.

    A visit is at one site on one day: ids are often numbers within a site and year (1, 2). The name is of the row alone, so
    that a visit has one in every table.
    """
    day = pl.col("date").dt.to_string()
    named = pl.when(pl.col("visit") == "").then(
        pl.concat_str("observer", "site", day, "clock", separator="|")
    )
    frame = frame.with_columns(name=named.otherwise(pl.concat_str("visit", "site", day, separator="|")))
    frame = frame.with_columns(event=digest_ids(frame["name"])).drop("visit", "clock")
    return frame.with_columns(pl.col("complete").max().over("event"))


def _joined(frame: pl.DataFrame, repeats: str) -> tuple[pl.DataFrame, list[str]]:
    """Join several counts of one species on one visit by their largest or mean; sums are made later, for all sources."""
    keys = ["event", "species", "common_name"]
    doubled = frame.select(keys).is_duplicated() & (frame["count"] >= 0)
    n_doubled = int(doubled.sum())
    if not n_doubled:
        return frame, []
    parts = frame.filter(doubled)
    several = f"{n_doubled:,} counts are of {parts.select(keys).n_unique():,} visits that have several of one species: "
    if repeats in ("sum", "refuse"):
        return frame, [
            f"{several}they are added up. If they are of the same birds, pass --repeats max or mean."
        ]
    count = pl.col("count")
    rule = {"max": (count.max(), "largest"), "mean": (count.mean().round().cast(pl.Int64), "mean, rounded,")}
    one, word = rule[repeats]
    joined = parts.group_by(keys, maintain_order=True).agg(
        one,
        *(
            joined_texts(column) if column.startswith(KEEP) else pl.col(column).first()
            for column in frame.columns
            if column not in (*keys, "count")
        ),
    )
    said = f"{several}the {word} of each is taken."
    return pl.concat([frame.filter(~doubled), joined.select(frame.columns)]), [said]


def _refuse(chunk: pl.DataFrame, bad: pl.Series, key: str, rows: Rows, why: str, column: str) -> None:
    """Raise with the place and the value of the first bad one, and with what people mean by it, if that is known.

    ``column``: blank where every species has its own.
    """
    if bad.any():
        row = chunk.row(int(bad.arg_max() or 0), named=True)
        if said := advice(key, row[key]):
            why = f"is no {key}; {said}."
        raise rows.source.fault(row[LINE], column or row["species"], f"{row[key]!r} {why}")


def _refuse_either(chunk: pl.DataFrame, either: pl.Series, rows: Rows, column: str) -> None:
    """Refuse dates that are written as 05/06/2024, and name the order that others of the column show."""
    number = [chunk["date"].str.extract(_EITHER, at).cast(pl.Int64, strict=False) for at in (1, 2)]
    shown = {
        order: either & (each > 12) for order, each in zip(("day-first", "month-first"), number, strict=True)
    }
    hints = [
        f"{chunk['date'].filter(rows_)[0]!r} is {order}" for order, rows_ in shown.items() if rows_.any()
    ]
    two = either & ~shown["day-first"] & ~shown["month-first"]
    hint = f" ({' and '.join(hints)})" if hints else ""
    what = "may be two days" if two.any() else "has an order of day and month that other dates may not show"
    why = f"{what}. Write dates as 2024-05-31, or pass --dates day-first or month-first{hint}."
    _refuse(chunk, two if two.any() else either, "date", rows, why, column)


def _usable(
    chunk: pl.DataFrame, rows: Rows, columns: Mapping[str, int], dates: str, assume_complete: bool
) -> pl.DataFrame:
    """Leave out rows that do not say who, where, what or when; refuse a date that may be two. Adds ``read_date``.

    A row without a species is a visit without birds where it says that the visit is complete; where all are, where its count
    is 0: one without a count may be a visit that was planned.
    """
    for key in ("observer", "site"):
        if key in columns:
            chunk = rows.leave_out(chunk, chunk[key] == "", key, key)
    if "species" in columns:
        count, complete = chunk["count"].str.strip_chars(), chunk["complete"].str.to_lowercase().is_in(_TRUE)
        no_bird = ((count == "") & complete) | ((count == "0") & (complete | assume_complete))
        no_bird &= chunk["common_name"] == ""
        chunk = rows.leave_out(chunk, (chunk["species"] == "") & ~no_bird, "species", "species")
    title = {key: rows.source.header[at] for key, at in columns.items()}
    if "day" in columns:
        title["date"] = ", ".join(title[part] for part in DATE_PARTS)
        chunk = chunk.with_columns(pl.col(*DATE_PARTS).str.replace(r"\.0+$", ""))
        chunk = chunk.with_columns(date=date_of_parts())
    # as where years, or days of months, were named as dates
    no_day = chunk["date"].str.contains(r"^\d{4}$|^\d{1,2}$")
    _refuse(
        chunk, no_day & (no_day.sum() == chunk.height), "date", rows,
        "is no date. Name columns of year, month and day in --map: year=...,month=...,day=..., of yearly counts "
        "site=...,year=...,count=...", title["date"],
    )  # fmt: skip
    serial = chunk["date"].str.contains(r"^[2-6]\d{4}(\.\d+)?$")
    _refuse(chunk, serial, "date", rows, "", title["date"])
    first = chunk["date"].str.extract(r"^([^\sT,;_]*)")
    day = parse_dates(first, (*_DATES, *DATES[dates]))
    # 2024-05-06 - 2024-06-08 is no day; 2024-05-06T07:00/2024-05-06T09:00 is one.
    behind = chunk.select(pl.col("date").str.split(first).list.join("")).to_series()
    day = day.set(~behind.str.contains(_TIMES), None)
    if not dates:
        _refuse_either(chunk, day.is_null() & chunk["date"].str.contains(_EITHER), rows, title["date"])
    chunk = chunk.with_columns(day.alias("read_date"))
    return rows.leave_out(chunk, day.is_null(), "date (write it as 2024-05-31)", "date")


def _visits(
    chunk: pl.DataFrame, rows: Rows, columns: Mapping[str, int], missing: Sequence[str]
) -> pl.DataFrame:
    """Return the columns of the projection; values that cannot be read are noted and blank, and a bad count is refused."""
    title = rows.source.header[columns["count"]] if "count" in columns else ""
    for part in [chunk] if title else chunk.partition_by("species"):
        column = title or part["species"][0]
        refuse_thousands(rows.source, column, part["count"].str.strip_chars(), part[LINE])
    counts = without_codes(chunk["count"].str.strip_chars(), missing)
    count, odd = parse_count(counts.str.replace(r"^([0-9]+)[.,]0+$", "$1"))  # 2,0 and 2.00 are 2
    _refuse(
        chunk, odd, "count", rows,
        "is no count. Give one number, X where birds were present but not counted, or NA where nobody counted "
        f"(--missing takes a value as NA).{'' if title else _NO_SPECIES}", title,
    )  # fmt: skip
    rows.places(chunk)
    seconds = rows.clock(chunk, "start", "start")
    said = chunk["complete"].str.to_lowercase()
    rows.blank(chunk, ~said.is_in([*_TRUE, *_FALSE]), "complete", "complete")
    return chunk.select(
        cs.starts_with(KEEP),
        "common_name",
        "observer",
        "site",
        "site_name",
        "visit",
        "latitude",
        "longitude",
        "protocol",
        line=pl.col(LINE),
        clock=pl.coalesce(
            (seconds.cast(pl.Int64) * 10**9).cast(pl.Time).cast(pl.String), gap_as_blank("start")
        ),
        count=count,
        species=pl.coalesce(pl.col("species").replace("", None), "common_name"),
        county_code=pl.col("region"),
        date=pl.col("read_date"),
        start=seconds,
        **{
            key: rows.numbers(chunk, key, key, comma=key in _DECIMALS)
            for key in ("duration", "distance", "n_observers")
        },
        complete=said.is_in(_TRUE).cast(pl.Int8),
    )
