"""Rows of quoted or unquoted text tables and of parquet, in chunks of strings, and their projection.

For the sources that are not eBird's own big files: they are small, so plainness comes before speed.
"""

from __future__ import annotations

import csv
import hashlib
import io
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedmiss.errors import InputError
from fedmiss.etl.codes import COUNT_BAD, COUNT_BLANK, COUNT_X
from fedmiss.etl.projection import (
    EVENT_COLUMNS,
    PLACE_COLUMNS,
    PROTOCOL_COLUMNS,
    RECORD_COLUMNS,
    TAXON_COLUMNS,
    ParquetSink,
)
from fedmiss.etl.sources import Source, broken_input, open_source
from fedmiss.files import hash_file

if TYPE_CHECKING:
    import polars as pl

__all__ = [
    "Rows",
    "digest_ids",
    "parse_count",
    "parse_dates",
    "parse_numbers",
    "read_rows",
    "write_projection",
]

CHUNK = 100_000


class Rows:
    """What was read of a table: the wanted columns as strings ('' for blank), with line numbers and faults."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.read = 0
        self.short = 0
        self.malformed: dict[str, int] = {}
        self.unreadable: dict[str, int] = {}
        self.examples: list[str] = []

    def leave_out(
        self, frame: pl.DataFrame, bad: pl.Series, what: str, column: str, *, why: str = ""
    ) -> pl.DataFrame:
        """Drop the rows where ``bad``, and remember why: no usable ``what``, or ``why``."""
        self._note(self.malformed, frame, bad, why or f"no usable {what}", column)
        return frame.filter(~bad)

    def blank(self, frame: pl.DataFrame, bad: pl.Series, what: str, column: str) -> None:
        """Remember values that read as blank."""
        self._note(self.unreadable, frame, bad, what, column)

    def _note(
        self, table: dict[str, int], frame: pl.DataFrame, bad: pl.Series, what: str, column: str
    ) -> None:
        n = int(bad.sum())
        if n:
            table[what] = table.get(what, 0) + n
            if len(self.examples) < 5:
                row = frame.row(int(bad.arg_max() or 0), named=True)
                self.examples.append(f"line {row['_line']}: {what} {row[column]!r}")

    def meta(self, **more: Any) -> dict[str, Any]:
        """Return the meta data that every projection has."""
        bad = sum(self.malformed.values())
        if bad > 10 and 2 * bad > self.read:
            raise InputError(
                f"{self.source.name}: {bad:,} of {self.read:,} rows cannot be used ({self.examples[0]}); is this the "
                "right file, and the right column for each name?",
                rows=bad,
            )
        return {
            "source": self.source.short_name,
            "role": self.source.role,
            "sha256": hash_file(self.source.path),
            "rows": self.read,
            "malformed": self.malformed,
            "unreadable": self.unreadable,
            "examples": self.examples,
            "short_rows": self.short if self.source.role == "plain" else 0,
            "release": None,
            "columns": len(self.source.header),
            **more,
        }


def read_rows(
    source: Source,
    columns: dict[str, int],
    rows: Rows,
    *,
    quoted: bool,
    advance: Callable[[float], None] = lambda done: None,
) -> Iterator[pl.DataFrame]:
    """Yield chunks with one string column per entry of ``columns`` (name -> position) and ``_line``.

    Raises
    ------
    InputError : not UTF-8 (with its line), a quote that is never closed, a damaged archive
    """
    import polars as pl

    if source.separator == "":
        frame = pl.read_parquet(source.path, columns=[source.header[p] for p in columns.values()])
        rows.read += frame.height
        yield frame.select(
            *(pl.col(source.header[p]).cast(pl.String).fill_null("").alias(k) for k, p in columns.items())
        ).with_row_index("_line", offset=1)
        return
    width = len(source.header)
    positions = list(columns.values())
    with broken_input(source.name), open_source(source) as (stream, position):
        text = io.TextIOWrapper(io.BufferedReader(_Raw(stream)), encoding="utf-8-sig", newline="")
        options: dict[str, Any] = {"strict": True} if quoted else {"quoting": csv.QUOTE_NONE}
        reader = csv.reader(text, delimiter=source.separator, **options)
        got: list[list[str]] = []
        lines: list[int] = []

        def chunk() -> pl.DataFrame:
            data = list(zip(*got, strict=True)) or [()] * len(positions)
            out = {k: pl.Series(k, list(v), dtype=pl.String) for k, v in zip(columns, data, strict=True)}
            return pl.DataFrame({"_line": pl.Series(lines, dtype=pl.Int64), **out})

        try:
            next(reader)
            for row in reader:
                if not row:
                    continue
                rows.read += 1
                if len(row) > width and any(v.strip() for v in row[width:]):
                    rows.malformed["more columns than the header"] = (
                        rows.malformed.get("more columns than the header", 0) + 1
                    )
                    if len(rows.examples) < 5:
                        rows.examples.append(
                            f"line {reader.line_num}: {len(row)} columns, the header has {width}"
                        )
                    continue
                if len(row) < width:
                    rows.short += 1
                    row = row + [""] * (width - len(row))
                got.append([row[p].strip() for p in positions])
                lines.append(reader.line_num)
                if len(got) == CHUNK:
                    yield chunk()
                    advance(position())
                    got, lines = [], []
        except csv.Error as error:
            raise InputError(
                f"{source.name} line {reader.line_num}: {error}; the file is damaged or was cut short.",
                line=reader.line_num,
            ) from None
        except UnicodeDecodeError as error:
            line = _undecodable_line(source)
            raise InputError(
                f"{source.name} line {line}: {error.reason} (the byte 0x{error.object[error.start]:02x} is not UTF-8); "
                "convert the file (for example: iconv -f LATIN1 -t UTF-8).",
                line=line,
            ) from None
        if got:
            yield chunk()


class _Raw(io.RawIOBase):
    """Gives any binary stream the interface that BufferedReader asks for, and leaves closing to its owner."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._stream.read(len(buffer)) or b""
        buffer[: len(data)] = data
        return len(data)


def _undecodable_line(source: Source) -> int:
    with open_source(source) as (stream, _):
        for number, line in enumerate(io.BufferedReader(_Raw(stream)), 1):
            try:
                line.decode("utf-8")
            except UnicodeDecodeError:
                return number
    return 0


def digest_ids(values: pl.Series) -> Any:
    """Return a positive 63-bit digest of each string, the same on every machine."""
    table = {
        v: int.from_bytes(hashlib.blake2b(v.encode(), digest_size=8).digest(), "big") >> 1
        for v in values.unique()
    }
    return np.array([table[v] for v in values], dtype=np.int64)


def parse_dates(values: pl.Series, formats: Sequence[str]) -> pl.Series:
    """Read dates by the first format that fits each value; null where none does."""
    import polars as pl

    frame = pl.DataFrame({"d": values})
    return frame.select(
        pl.coalesce(pl.col("d").str.to_date(f, strict=False, exact=True) for f in formats)
    ).to_series()


def parse_numbers(values: pl.Series) -> tuple[pl.Series, pl.Series]:
    """Read non-negative decimals; returns the numbers (null for blank or bad) and which were bad."""
    import polars as pl

    text = values.str.strip_chars()
    number = text.cast(pl.Float64, strict=False)
    number = number.set(number.is_not_null() & ~(number.is_finite() & (number >= 0)).fill_null(False), None)
    return number, number.is_null() & ~text.str.to_uppercase().is_in(["", "NA", "NAN", "NULL", "NONE"])


def parse_count(values: pl.Series) -> tuple[Any, pl.Series]:
    """Read counts as the codes of the projection; also returns which were unreadable (a blank is not)."""
    import polars as pl

    text = values.str.strip_chars().str.to_uppercase().str.strip_suffix(".0")
    whole = text.str.contains(r"^\d{1,18}$")
    frame = pl.DataFrame({"t": text, "whole": whole})
    code = frame.select(
        pl.when("whole")
        .then(pl.col("t").cast(pl.Int64, strict=False))
        .when(pl.col("t") == "X")
        .then(COUNT_X)
        .when(pl.col("t").is_in(["", "NA", "NAN", "NULL", "NONE"]))
        .then(COUNT_BLANK)
        .otherwise(COUNT_BAD)
    ).to_series()
    return code.to_numpy(), code == COUNT_BAD


def write_projection(folder: Path, frame: pl.DataFrame) -> list[int] | None:
    """Write the projection of a table in which every row is a record with its visit; return first and last day.

    ``frame`` has the record columns (taxon columns instead of codes), the event columns (observer and protocol
    as strings, numbers nullable, date as Date) and the place columns. The first row of an event gives its effort.
    """
    import polars as pl

    def coded(table: pl.DataFrame, names: Sequence[str], file: str) -> Any:
        """Write the distinct values of some columns as a code table; return the code of each row."""
        values = table.select(names).unique(maintain_order=True).with_row_index("_code")
        codes = table.join(values, on=list(names), how="left", nulls_equal=True, maintain_order="left")[
            "_code"
        ]
        out = codes.cast(pl.Int32).to_numpy()
        values = values.drop("_code")
        if file == "taxa":
            values = values.with_columns(
                rows=pl.Series(np.bincount(out, minlength=values.height), dtype=pl.Int64)
            )
        values.write_parquet(folder / f"{file}.parquet")
        return out

    only_ebird = ("bcr", "project", "reviewed", "breeding")
    frame = frame.with_columns(pl.lit("").alias(k) for k in only_ebird if k not in frame.columns)
    record = {k: frame[k].to_numpy() for k in RECORD_COLUMNS if k != "taxon"}
    with ParquetSink(folder / "records.parquet", RECORD_COLUMNS) as sink:
        sink.add({**record, "taxon": coded(frame, TAXON_COLUMNS, "taxa")})
    visits = frame.unique("event", keep="first", maintain_order=True)
    if "name" in visits.columns:
        visits.select("event", "name").sort("event").write_parquet(folder / "names.parquet")
    days = visits["date"].cast(pl.Int32)
    effort = ("duration", "distance", "n_observers")
    with ParquetSink(folder / "events.parquet", EVENT_COLUMNS) as sink:
        sink.add(
            {
                **{k: visits[k].to_numpy() for k in ("event", "group", "edited", "complete")},
                **{k: visits[k].cast(pl.Float64).fill_null(float("nan")).to_numpy() for k in effort},
                "observer": coded(visits, ["observer"], "observers"),
                "place": coded(visits, PLACE_COLUMNS, "places"),
                "protocol": coded(visits, PROTOCOL_COLUMNS, "protocols"),
                "date": days.to_numpy(),
                "start": visits["start"].fill_null(-1).to_numpy(),
            }
        )
    return [int(days.min()), int(days.max())] if days.len() else None  # type: ignore[arg-type]
