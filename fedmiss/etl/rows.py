"""Rows of quoted or unquoted text tables and of parquet, in chunks of strings, and their projection.

For the sources that are not eBird's own big files: they are small, so plainness comes before speed.
"""

from __future__ import annotations

import csv
import hashlib
import io
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Unpack

import numpy as np
import polars as pl

from fedmiss.arrays import I32
from fedmiss.errors import InputError
from fedmiss.etl.checks import AT_ZERO, at_zero
from fedmiss.etl.codes import COUNT_BAD, COUNT_BLANK, COUNT_X
from fedmiss.etl.columns import KEEP
from fedmiss.etl.projection import (
    EVENT_COLUMNS,
    KEPT_COLUMN,
    PLACE_COLUMNS,
    PROTOCOL_COLUMNS,
    RECORD_COLUMNS,
    TAXON_COLUMNS,
    Meta,
    ParquetSink,
    meta_of,
)
from fedmiss.etl.sources import EXAMPLES, Faults, Source, broken_input, open_member
from fedmiss.etl.spreadsheets import sheet_rows
from fedmiss.files import hash_file

CHUNK = 100_000
YEARS = (1500, 2200)  # a number outside is no year
LINE = "line\n"  # the column with the number of each row's line; no column of a table is called like this
_IN_QUOTES = re.compile(r'"(?:[^"]|""|\\")*"')
NOTHING = ("", "NA", "NAN", "NULL", "NONE")
# What a column holds that a table does not have.
_ABSENT: dict[str, pl.Expr] = {
    **{name: pl.lit("") for name in (*PLACE_COLUMNS, *TAXON_COLUMNS, *PROTOCOL_COLUMNS)},
    **{name: pl.lit(None, pl.Float64) for name in ("duration", "distance", "n_observers")},
    "category": pl.lit("species"),
    "start": pl.lit(None, pl.Int32),
    "group": pl.lit(-1, pl.Int64),
    "guid": pl.lit(0, pl.Int64),
    "edited": pl.lit(0, pl.Int64),
}


class Rows(Faults):
    """The rows of a table: reads them, and keeps how many there were and what could not be used."""

    def __init__(self, source: Source, advance: Callable[[float], None] = lambda done: None) -> None:
        super().__init__()
        self.source, self.advance = source, advance
        self.read = 0
        self.short = 0

    def chunks(self, columns: dict[str, int], blanks: Iterable[str] = ()) -> Iterator[pl.DataFrame]:
        """Yield chunks, one at least, with ``LINE`` and one string column per entry of ``columns`` (name -> position).

        ``blanks``: names that get a column of blanks where ``columns`` does not have them.

        Raises
        ------
        InputError : not UTF-8 or a zero byte (with its line), a quote that is never closed, a damaged archive
        """
        absent = [pl.lit("").alias(blank) for blank in blanks if blank not in columns]
        if self.source.sheet:
            parts: Iterable[pl.DataFrame] = [self._of_sheet(columns)]
        elif self.source.separator == "":
            parts = [self._of_parquet(columns)]
        else:
            parts = self._of_text(columns)
        for chunk in parts:
            yield chunk.with_columns(absent)

    def _of_text(self, columns: dict[str, int]) -> Iterator[pl.DataFrame]:
        schema = {LINE: pl.Int64(), **dict.fromkeys(columns, pl.String())}
        # Where tabs separate, a quote may stand anywhere in a text (Isla "x): only those around a whole value are quotes.
        quoted = self.source.separator != "\t" or self.source.role == "myebird"
        clean = str.strip if quoted else _bare
        values = (
            (line, *(clean(row[column]) for column in columns.values()))
            for line, row in self._records(quoted)
        )
        got, first = list(islice(values, CHUNK)), True
        while got or first:
            chunk = pl.DataFrame(got, schema, orient="row")
            for key in columns:
                self._refuse_zero_bytes(chunk, key, self.source.header[columns[key]])
            yield chunk
            got, first = list(islice(values, CHUNK)), False

    def _refuse_zero_bytes(self, chunk: pl.DataFrame, key: str, column: str) -> None:
        """Refuse a value that a screen shows like another one, and that would be a site or an observer of its own."""
        self.source.refuse(
            chunk[key].str.contains("\0", literal=True), chunk[LINE], column,
            lambda row: f"{chunk[key][row]!r} holds a zero byte, which no text has; write the value again.",
        )  # fmt: skip

    def _of_parquet(self, columns: dict[str, int]) -> pl.DataFrame:
        title = {key: self.source.header[column] for key, column in columns.items()}
        frame = pl.read_parquet(self.source.path, columns=list(dict.fromkeys(title.values())), glob=False)
        self.read += frame.height
        texts = {key: _as_texts(frame[name]) for key, name in title.items()}
        return pl.DataFrame(texts).with_row_index(LINE, offset=1)

    def _of_sheet(self, columns: dict[str, int]) -> pl.DataFrame:
        """Return the rows below the header of a sheet that hold anything; ``LINE`` is the number that the sheet shows."""
        self.source.refuse_changed()
        held = [
            (line, (*row, self.source.year))
            for line, row in enumerate(sheet_rows(self.source.path, self.source.sheet), 1)
            if line > self.source.header_row and any(row)
        ]
        self.read += len(held)
        values = {key: [row[column] for _, row in held] for key, column in columns.items()}
        schema = {LINE: pl.Int64(), **dict.fromkeys(columns, pl.String())}
        return pl.DataFrame({LINE: [line for line, _ in held], **values}, schema)

    def _records(self, quoted: bool) -> Iterator[tuple[int, list[str]]]:
        """Yield the number of the line and the fields of each row, as many as the header has; longer rows are faults."""
        source, width = self.source, len(self.source.header)
        with (
            broken_input(source.name),
            open_member(source.path, source.member) as (stream, position),
            io.TextIOWrapper(io.BufferedReader(stream), encoding=source.encoding, newline="") as text,
        ):
            above = source.header_row - 1
            if quoted:
                reader = csv.reader(text, delimiter=source.separator, strict=True)
            else:
                reader = csv.reader(text, delimiter=source.separator, quoting=csv.QUOTE_NONE)
            try:
                for _ in range(above):
                    text.readline()
                next(reader)
                for row in reader:
                    if not any(row):  # a line of separators only, as spreadsheets write
                        continue
                    self.read += 1
                    if self.read % CHUNK == 0:
                        self.advance(position())
                    # Blank surplus fields are the trailing separators that spreadsheets write.
                    if len(row) > width and any(value.strip() for value in row[width:]):
                        what = "more columns than the header"
                        self.malformed[what] = self.malformed.get(what, 0) + 1
                        if len(self.examples) < EXAMPLES:
                            self.examples.append(
                                f"line {reader.line_num + above}: {len(row)} columns, the header has {width}"
                            )
                        continue
                    self.short += len(row) < width
                    yield reader.line_num + above, row + [""] * (width - len(row))
            except csv.Error as error:
                raise InputError(
                    f"{source.name} line {reader.line_num + above}: {error}; the file is damaged or was cut short.",
                    line=reader.line_num + above,
                ) from None
            except UnicodeDecodeError as error:
                line = _undecodable_line(source)
                raise InputError(
                    f"{source.name} line {line}: {error.reason} (the byte 0x{error.object[error.start]:02x} is not UTF-8); "
                    "convert the file (for example: iconv -f LATIN1 -t UTF-8).",
                    line=line,
                ) from None

    def leave_out(
        self, frame: pl.DataFrame, bad: pl.Series, what: str, column: str, *, why: str = ""
    ) -> pl.DataFrame:
        """Drop the rows where ``bad``, and remember why: no usable ``what``, or ``why``."""
        self._note(self.malformed, frame, bad, why or f"no usable {what}", column)
        return frame.filter(~bad)

    def blank(self, frame: pl.DataFrame, bad: pl.Series, what: str, column: str) -> None:
        """Remember values that read as blank."""
        self._note(self.unreadable, frame, bad, what, column)

    def numbers(self, frame: pl.DataFrame, column: str, what: str, *, comma: bool = False) -> pl.Series:
        """Read non-negative decimals of a column, with a decimal comma too where asked; null for blank or bad."""
        number, bad = decimals(frame[column], NOTHING, comma=comma)
        bad |= (number < 0).fill_null(False)
        self.blank(frame, bad, what, column)
        return number.set(bad, None)

    def clock(self, frame: pl.DataFrame, column: str, what: str) -> pl.Series:
        """Read times of day as seconds after midnight; null for blank or bad."""
        text = frame.select(gap_as_blank(column)).to_series()
        seconds = parse_clock(text)
        self.blank(frame, seconds.is_null() & (text != ""), what, column)
        return seconds

    def places(self, frame: pl.DataFrame) -> None:
        """Remember coordinates that read as blank: no numbers, no degrees, or 0 and 0."""
        place = []
        for key, limit in (("latitude", 90.0), ("longitude", 180.0)):
            degrees, bad = decimals(frame[key], NOTHING)
            self.blank(frame, bad | (degrees.abs() > limit).fill_null(False), key, key)
            place.append(degrees)
        self.blank(frame, at_zero(*place), AT_ZERO, "latitude")

    def _note(
        self, kinds: dict[str, int], frame: pl.DataFrame, bad: pl.Series, what: str, column: str
    ) -> None:
        if n_bad := int(bad.sum()):
            row = frame.row(int(bad.arg_max() or 0), named=True)
            self.add(kinds, what, n_bad, row[LINE], row[column])

    def meta(self, **more: Unpack[Meta]) -> Meta:
        """Return the meta data that every projection has, and ``more``."""
        remedy = "is this the right file, and the right column for each name?"
        self.refuse_mostly_bad(self.source, self.read, "be used", remedy)
        return {
            **meta_of(self.source, self),
            "sha256": hash_file(self.source.path),
            "rows": self.read,
            "short_rows": self.short if self.source.role == "plain" else 0,
            "prefix": "",
            "group_prefix": "",
            **more,
        }


def _bare(value: str) -> str:
    """Return a value without blanks and the quotes that R and Excel write around it."""
    value = value.strip()
    if not (value.startswith('"') and _IN_QUOTES.fullmatch(value)):
        return value
    return re.sub(r'["\\]"', '"', value[1:-1]).strip()


def _as_texts(values: pl.Series) -> pl.Series:
    try:
        return values.cast(pl.String).str.strip_chars().fill_null("")
    # bytes that are no text, as the geometry of a map, or a length of time
    except (pl.exceptions.ComputeError, pl.exceptions.InvalidOperationError):
        return pl.Series([""] * values.len(), dtype=pl.String)


def read_texts(source: Source) -> pl.DataFrame:
    """Return all values of a table as texts: ``LINE``, and the columns that have a name.

    A table whose ``texts`` are kept with it is not read again.
    """
    if source.texts is not None:
        return source.texts
    rows = Rows(source)
    names = {title: i for i, title in enumerate(source.header) if title}
    texts = pl.concat(rows.chunks(names))
    source.refuse_changed()
    if texts.is_empty():
        raise InputError(f"{source.name}: a header and no rows, so there is nothing to read.")
    if rows.malformed:
        raise InputError(
            f"{source.name} {rows.examples[0]}; a value with a comma in it needs quotes around it."
        )
    return texts


def _undecodable_line(source: Source) -> int:
    with open_member(source.path, source.member) as (stream, _), io.BufferedReader(stream) as lines:
        for number, line in enumerate(lines, 1):
            try:
                line.decode("utf-8")
            except UnicodeDecodeError:
                return number
    return 0


def joined_texts(column: str) -> pl.Expr:
    """Join the different texts of a group by '; '; null where all are blank."""
    said = pl.col(column).replace("", None).drop_nulls().unique(maintain_order=True)
    return said.str.join("; ").replace("", None)


def digest_ids(values: pl.Series) -> pl.Series:
    """Return a positive 63-bit digest of each string, the same on every machine."""
    table = {
        value: int.from_bytes(hashlib.blake2b(value.encode(), digest_size=8).digest(), "big") >> 1
        for value in values.unique()
    }
    return pl.Series([table[value] for value in values], dtype=pl.Int64)


def decimals(
    text: pl.Series, absent: Iterable[str] = ("",), *, comma: bool = True
) -> tuple[pl.Series, pl.Series]:
    """Read finite decimals; null for the words ``absent`` (capitals). Also returns which others are none, and null too."""
    text = text.str.strip_chars()
    # A word for "missing" is a gap, and no fault of the value.
    gap = text.str.to_uppercase().is_in(list(absent))
    if comma:
        text = text.str.replace(",", ".", literal=True)
    value = text.cast(pl.Float64, strict=False)
    no_number = ~value.is_finite().fill_null(False)
    return value.set(gap | no_number, None), ~gap & no_number


def without_codes(text: pl.Series, codes: Iterable[str]) -> pl.Series:
    """Blank what is one of ``codes`` in any case, or the same number: 999.0 where 999 is, -1,00 where -1 is."""
    words = pl.Series([word.strip().upper() for word in codes], dtype=pl.String)
    written = text.str.strip_chars()
    # +50 is a limit, not the number 50
    numbers, number = (decimals(each)[0].set(each.str.starts_with("+"), None) for each in (words, written))
    is_code = written.str.to_uppercase().is_in(words.to_list()) | number.is_in(numbers.drop_nulls().to_list())
    return text.set(is_code.fill_null(False), "")


def gap_as_blank(column: str) -> pl.Expr:
    """A column of texts, with a blank for each word that says that a value is missing."""
    return pl.when(pl.col(column).str.to_uppercase().is_in(NOTHING)).then(pl.lit("")).otherwise(column)


def parse_clock(values: pl.Series) -> pl.Series:
    """Read '07:05 PM' or '19:05:30' as seconds after midnight; null for anything else."""
    groups = pl.col("t").str.extract_groups(r"^(\d{1,2}):(\d{2})(?::(\d{2}))?(?: (AM|PM))?$")
    hour, minute, second = (groups.struct.field(name).cast(pl.Int32) for name in ("1", "2", "3"))
    half = groups.struct.field("4")
    afternoon = pl.when(half == "PM").then(12).otherwise(0)
    # 12 AM is hour 0, 12 PM hour 12.
    total = pl.when(half.is_null()).then(hour).otherwise(hour % 12 + afternoon) * 60 + minute
    frame = pl.DataFrame({"t": values.str.to_uppercase()})
    seconds = total * 60 + second.fill_null(0)
    return frame.select(
        pl.when((total < 1440) & (minute < 60) & (seconds - total * 60 < 60)).then(seconds)
    ).to_series()


def parse_dates(values: pl.Series, formats: Sequence[str]) -> pl.Series:
    """Read dates by the first format that fits each value; null where none does, and for years of two digits."""
    read = (values.str.to_date(f, strict=False, exact=True) for f in formats)
    day = pl.select(pl.coalesce(*read)).to_series()
    return day.set(~day.dt.year().is_between(*YEARS), None)


def date_of_parts() -> pl.Expr:
    """The columns ``year``, ``month`` and ``day`` as one text, 2024-05-06."""
    return pl.concat_str("year", pl.col("month").str.zfill(2), pl.col("day").str.zfill(2), separator="-")


def parse_count(values: pl.Series) -> tuple[pl.Series, pl.Series]:
    """Read counts as the codes of the projection; also returns which were unreadable (a blank is not)."""
    text = pl.col("t")
    code = (
        pl.DataFrame({"t": values.str.strip_chars().str.to_uppercase().str.strip_suffix(".0")})
        .select(
            pl.when(text.str.contains(r"^[0-9]{1,18}$"))
            .then(text.cast(pl.Int64, strict=False))
            .when(text == "X")
            .then(COUNT_X)
            .when(text.is_in(NOTHING))
            .then(COUNT_BLANK)
            .otherwise(COUNT_BAD)
        )
        .to_series()
    )
    return code, code == COUNT_BAD


def write_projection(
    folder: Path, frame: pl.DataFrame, without: pl.DataFrame | None = None
) -> list[int] | None:
    """Write the projection of a table in which every row is a record with its visit; return first and last day.

    ``without``: rows of visits that have no record.

    ``frame`` has the record columns (taxon columns instead of codes), the event columns (observer and protocol
    as strings, numbers nullable, date as Date) and the place columns (coordinates also with a decimal comma); the columns
    of ``_ABSENT`` may be left out. Columns whose name begins with ``KEEP`` are kept as texts.
    The first row of an event gives its effort.
    """

    def coded(table: pl.DataFrame, names: Sequence[str], file: str) -> I32:
        """Write the distinct values of some columns as a code table; return the code of each row."""
        values = table.select(names).unique(maintain_order=True).with_row_index("_code")
        codes = table.join(values, on=list(names), how="left", nulls_equal=True, maintain_order="left")
        out: I32 = codes["_code"].cast(pl.Int32).to_numpy()
        values = values.drop("_code")
        if file == "taxa":
            values = values.with_columns(
                rows=pl.Series(np.bincount(out, minlength=values.height), dtype=pl.Int64)
            )
        values.write_parquet(folder / f"{file}.parquet")
        return out

    records = frame.height
    frame = frame if without is None else pl.concat([frame, without])
    frame = frame.with_columns(value.alias(key) for key, value in _ABSENT.items() if key not in frame.columns)
    frame = frame.with_columns(pl.col("latitude", "longitude").str.replace(r"^(-?\d+),(\d+)$", "$1.$2"))
    visits = frame.unique("event", keep="first", maintain_order=True)
    frame = frame.head(records)
    record = {column: frame[column].to_numpy() for column in RECORD_COLUMNS if column != "taxon"}
    record["taxon"] = coded(frame, TAXON_COLUMNS, "taxa")
    if kept := [column for column in frame.columns if column.startswith(KEEP)]:
        record["kept"] = coded(frame, kept, "kept")
    with ParquetSink(folder / "records.parquet", RECORD_COLUMNS | (KEPT_COLUMN if kept else {})) as sink:
        sink.add(record)
    if "name" in visits.columns:
        visits.select("event", "name").sort("event").write_parquet(folder / "names.parquet")
    days = visits["date"].cast(pl.Int32)
    effort = ("duration", "distance", "n_observers")
    with ParquetSink(folder / "events.parquet", EVENT_COLUMNS) as sink:
        sink.add(
            {
                **{name: visits[name].to_numpy() for name in ("event", "group", "edited", "complete")},
                **{name: visits[name].cast(pl.Float64).fill_null(float("nan")).to_numpy() for name in effort},
                "observer": coded(visits, ["observer"], "observers"),
                "place": coded(visits, PLACE_COLUMNS, "places"),
                "protocol": coded(visits, PROTOCOL_COLUMNS, "protocols"),
                "date": days.to_numpy(),
                "start": visits["start"].fill_null(-1).to_numpy(),
            }
        )
    return [int(days.min()), int(days.max())] if days.len() else None  # type: ignore[arg-type]
