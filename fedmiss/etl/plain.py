"""Plain tables as projections: rows of visits, or of their counts, with a column map."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

import polars as pl
import polars.selectors as cs

from fedmiss.errors import ConfigError, fold, listed
from fedmiss.etl.checks import (
    advice,
    observers_alike,
    refuse_thousands,
    settle_spellings,
)
from fedmiss.etl.codes import COUNT_BLANK
from fedmiss.etl.columns import (
    DATE_NAMES,
    DATE_PARTS,
    KEEP,
    check_named,
    familiar,
    kept_columns,
    names_beside,
    quoted,
    said_of_unused,
)
from fedmiss.etl.count_table import CountOptions
from fedmiss.etl.projection import Meta
from fedmiss.etl.rows import (
    LINE,
    Rows,
    digest_ids,
    gap_as_blank,
    joined_texts,
    parse_count,
    parse_dates,
    write_projection,
)
from fedmiss.etl.sources import Source
from fedmiss.etl.species import columns_with, refuse_mixed, same_names, species_columns

# canonical name -> names of columns that usually mean it (compared by `columns.normal`, without spaces); an id of a place
# comes before its name, which two places may have
_FAMILIAR = {
    "observer": "observer observerid who recorder recordedby surveyor counter beobachter waarnemer observateur",
    "site": "siteid site plotid plot station colony square localityid locality locationid location transect "
    "gebiet ort standort flache flaeche probeflache probeflaeche gebied lieu",
    "date": " ".join([*DATE_NAMES, "day"]),
    "species": "species scientificname speciesname taxon speciescode",
    "common_name": "commonname englishname vernacularname",
    "count": "count n number abundance individuals total howmany individualcount observationcount birds anzahl aantal",
    "visit": "visit visitid checklist checklistid samplingeventidentifier surveyid eventid submissionid",
    "site_name": "sitename locationname plotname",
    "region": "region county state countycode statecode province",
    "latitude": "latitude lat decimallatitude breitengrad latitud",
    "longitude": "longitude lon long lng decimallongitude langengrad laengengrad longitud",
    "start": "start starttime time timestarted timeobservationsstarted",
    "duration": "duration minutes durationminutes effortminutes",
    "distance": "distance distancekm km effortdistancekm",
    "n_observers": "nobservers numberobservers partysize observers",
    "protocol": "protocol protocoltype protocolname method surveytype",
    "complete": "complete completelist allspeciesreported allobsreported",
}
FAMILIAR = {key: words.split() for key, words in _FAMILIAR.items()}
_KNOWN = (*FAMILIAR, *DATE_PARTS)
OF_SPECIES = "counts of "  # before the names of columns that hold the counts of a species each
_DECIMALS = ("duration", "distance")  # a comma in them is a decimal comma
REQUIRED = ("observer", "site", "date", "count")
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
_EITHER = r"^\d{1,2}[/-]\d{1,2}[/-]\d{4}"
DATES = {"": (), "day-first": ("%d/%m/%Y", "%d-%m-%Y"), "month-first": ("%m/%d/%Y", "%m-%d-%Y")}
_TRUE = ("1", "true", "t", "yes", "y", "wahr", "ja", "vrai", "oui")
_FALSE = ("0", "false", "f", "no", "n", "falsch", "nein", "faux", "non", "")


def check_map(
    source: Source, column_map: dict[str, str] | None, *, one_species: str | None, wide: bool = False
) -> dict[str, str]:
    """Return the map to use, or raise with the proposal.

    ``one_species``: where a single species was asked for, the table need not name it; ``wide``: species are columns.
    """
    proposal = _dated(source.header, familiar(source.header, FAMILIAR))
    proposal = familiar(source.header, {"site_name": names_beside(proposal.get("site", ""))}, proposal)
    missing = _lacking(proposal, wide)
    named = {**proposal, **(column_map or {})}
    offer = ",".join(f"{key}={value}" for key, value in named.items() if key != "auto")
    more = " Where nobody noted the observer, say observer=..., too, with the column of the site."
    more = "" if "observer" in named else more
    if "count" not in named and not wide:
        more += " Where every species has a column of counts, pass --wide instead of a count."
    if column_map is None:
        if missing and len(proposal) < 2:
            raise ConfigError(
                f"{source.name} is no eBird, MyEBirdData or GBIF file (its columns: {listed(source.header, 6)}). "
                "If it is a table of counts, say which column is what: --map observer=...,site=...,date=...,count=..., or, "
                "of yearly counts, --map site=...,year=...,count=...",
                header=list(source.header),
            )
        lack = (
            f" Still to name: {', '.join(missing)}." if missing else " Or --map auto to take this proposal."
        )
        raise ConfigError(
            f"{source.name} is a plain table; say which column is what. Its columns look like --map {offer}.{lack}"
            f"{more}",
            proposal=proposal,
        )
    chosen = dict(proposal if "auto" in column_map else column_map)
    check_named("--map", chosen, _KNOWN, source.name, source.header)
    if "date" in chosen and DATE_PARTS.keys() & chosen.keys():
        raise ConfigError("--map: name date, or year, month and day, not both.")
    if wide and (named_too := sorted({"count", "species", "common_name"} & chosen.keys())):
        raise ConfigError(
            f"--wide takes a column for each species of {source.name}: leave {listed(named_too, 3)} out of --map, or --wide."
        )
    if lacking := _lacking(chosen, wide):
        raise ConfigError(
            f"--map does not say which column of {source.name} is {' or '.join(lacking)}. Proposal: --map {offer}."
            f"{more}",
            missing=lacking,
        )
    if not wide and not {"species", "common_name"} & set(chosen):
        # A column of species that the map leaves out would be counts of several added up.
        free = [column for column in source.header if column and column not in chosen.values()]
        if found := species_columns(free):
            chosen["species"] = found[0]
        elif one_species is None:
            raise ConfigError(
                f"--map names no species column of {source.name}: add species=..., or name the one species of the table "
                "with --species."
            )
        else:
            _refuse_species(source, free, one_species, chosen)
    return chosen


def _dated(header: Sequence[str], found: dict[str, str]) -> dict[str, str]:
    """Return the map with year, month and day where they make the date and no other column is called so."""
    parts = familiar(header, DATE_PARTS)
    if len(parts) < len(DATE_PARTS) or found.get("date", parts["day"]) != parts["day"]:
        return found
    return {key: column for key, column in found.items() if key != "date"} | parts


_NO_SPECIES = " If this column is no species, name the species with --species, or --keep the column."


def by_species(
    source: Source, column_map: Mapping[str, str], asked: Sequence[str], keep: Sequence[str]
) -> tuple[str, ...]:
    """Return the columns that are species: those asked for, by name, or all that no map names and nobody wants kept."""
    kept = kept_columns(source.header, keep, source.name).values()
    free = [
        column
        for at, column in enumerate(source.header)
        if column and column not in column_map.values() and at not in kept
    ]
    if not free:
        raise ConfigError(
            f"--wide: --map names all columns of {source.name}, and none is left for a species."
        )
    wanted = {fold(name) for name in asked}
    return tuple(column for column in free if fold(column) in wanted) or tuple(free)


def _lacking(chosen: Mapping[str, str], wide: bool) -> list[str]:
    """Return what is required and not named; a date is one column, or three."""
    needed = DATE_PARTS if DATE_PARTS.keys() & chosen.keys() else ("date",)
    every = [part for name in REQUIRED for part in (needed if name == "date" else (name,))]
    return [name for name in every if name not in chosen and not (wide and name == "count")]


def _refuse_species(source: Source, free: Sequence[str], wanted: str, chosen: Mapping[str, str]) -> None:
    """Refuse a column that the map leaves out and that holds the species asked for: it names the species, or remarks."""
    at = {column: source.header.index(column) for column in free}
    texts = pl.concat(Rows(source).chunks(at))
    if found := columns_with({column: texts[column] for column in free}, wanted):
        offer = ",".join(f"{key}={value}" for key, value in {**chosen, "species": found[0]}.items())
        raise ConfigError(
            f"--map names no species column of {source.name}, and {wanted!r} stands in the column {found[0]!r}. If that "
            f"names the species: --map {quoted(offer)}. If it holds remarks, leave it out of the table.",
            column=found[0],
        )


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
            _usable(_one_by_one(chunk, own), rows, columns, dates, assume_complete),
            rows,
            columns,
            rules.missing,
        )
        for chunk in rows.chunks(columns | own, _KNOWN)
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
            *([f"a species each: {listed([repr(name) for name in by_species], 12)}."] if own else []),
            *said_of_unused(source.header, columns | own),
            *spelt,
            *alike,
            *said,
        ],
        missing=missing,
        without_birds=without.height,
    )


def _one_by_one(chunk: pl.DataFrame, own: Collection[str]) -> pl.DataFrame:
    """Return a row for each count of a row, where species have columns of their own; its species is the column's name."""
    if not own:
        return chunk
    chunk = chunk.drop("species", "count")
    others = [column for column in chunk.columns if column not in own]
    long = chunk.unpivot(list(own), index=others, variable_name="species", value_name="count")
    return long.with_columns(pl.col("species").str.strip_prefix(OF_SPECIES)).sort(LINE, maintain_order=True)


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
        year, *rest = (pl.col(part).str.replace(r"\.0+$", "") for part in DATE_PARTS)
        chunk = chunk.with_columns(
            date=pl.concat_str(year, *(part.str.zfill(2) for part in rest), separator="-")
        )
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
        _refuse(
            chunk, day.is_null() & chunk["date"].str.contains(_EITHER), "date", rows,
            "may be two days. Write it as 2024-05-31, or pass --dates day-first or month-first.", title["date"],
        )  # fmt: skip
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
    # 2,0 and 2.00 are 2; a sign of a missing count is blank
    written = pl.col("count").str.strip_chars().str.replace(r"^([0-9]+)[.,]0+$", "$1")
    blank = pl.when(written.is_in(missing)).then(pl.lit("")).otherwise(written)
    count, odd = parse_count(chunk.select(blank).to_series())
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
