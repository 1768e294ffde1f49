"""Project eBird text files (EBD, sampling, unvetted) of any release, in one pass over the bytes."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import polars as pl

from fedmiss.arrays import I32, I64, Bool, Columns
from fedmiss.errors import InputError
from fedmiss.etl import _lines
from fedmiss.etl.codes import BAD, COUNT_BLANK, NO_DATE
from fedmiss.etl.columns import EBD_RECORD, EVENT, PLACE, REACH, kept_columns, resolve
from fedmiss.etl.fields import Block, Dictionary, Fields, Parsed, ReadReport, read_blocks
from fedmiss.etl.memory import give_back
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
    write_repeats,
)
from fedmiss.etl.sources import Faults, Source

_RELEASE = re.compile(r"rel([A-Z][a-z]{2})-(\d{4})")
LISTS = {"observers": ("observer",), "places": PLACE_COLUMNS, "protocols": PROTOCOL_COLUMNS}  # of an event
UNKNOWN_DATE = -25567  # 1900-01-01, which eBird writes for an unknown date
_DECIMAL = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)", re.ASCII)
_CLOCK = re.compile(r"([01]\d|2[0-3]):([0-5]\d)(?::([0-5]\d))?", re.ASCII)


def read_decimal(text: str) -> float:
    """Read 12, -3.5 or .25; nan for anything else."""
    return float(text) if _DECIMAL.fullmatch(text) else np.nan


def read_clock(text: str) -> float:
    """Read HH:MM or HH:MM:SS as seconds after midnight; nan for anything else."""
    found = _CLOCK.fullmatch(text)
    return int(found[1]) * 3600 + int(found[2]) * 60 + int(found[3] or 0) if found else np.nan


_NUMBERS = {
    "start": read_clock,
    **dict.fromkeys(("duration", "distance", "n_observers"), read_decimal),
}  # of an event


class _Reader:
    """Reads blocks of one source into record and event columns."""

    def __init__(
        self, source: Source, folder: Path, *, records: bool, events: bool, keep: Sequence[str] = ()
    ) -> None:
        self.source = source
        wanted: dict[str, tuple[str, ...]] = {}
        required: list[str] = []
        if records:
            wanted |= EBD_RECORD | REACH
            required += ["event", "count", "species"]
        if events:
            wanted |= EVENT | PLACE
            required += ["event", "observer", "date", "site", "complete"]
        kept = kept_columns(source.header, keep, source.name)
        found = resolve(source.header, wanted, required, source.name) | kept
        self.positions = sorted(set(found.values()))
        slot_of = {position: i for i, position in enumerate(self.positions)}
        self.slot = {key: slot_of[value] for key, value in found.items()}
        absent = len(self.positions)  # one more slot, always blank, serves every column that is absent
        self.positions.append(1 << 30)
        for key in wanted:
            self.slot.setdefault(key, absent)
        self.absent = [wanted[name][0].upper() for name in wanted if self.slot[name] == absent]
        self.faults = Faults()
        books = ({"taxa": TAXON_COLUMNS} if records else {}) | (LISTS if events else {})
        if kept:
            books["kept"] = tuple(kept)
        self.books = {
            name: Dictionary([self.slot[column] for column in columns], folder / f"{name}.parquet", columns)
            for name, columns in books.items()
        }
        if records:  # of the one field that `_region` gives
            self.books["reach"] = Dictionary([0], folder / "reach.parquet", ["region"])
        self.parsed = {key: Parsed(self.slot[key], parse) for key, parse in _NUMBERS.items() if events}
        self.taxon_rows: I64 = np.zeros(0, dtype=np.int64)
        self.long = self.short = self.rows = 0
        self.dates: list[int] | None = None  # first and last day
        self.record_dates: list[int] | None = None

    def fields(self, block: Block) -> Fields:
        fields = Fields(block, self.positions)
        width = len(self.source.header)
        self.long += int(np.count_nonzero(fields.n_fields > width))
        self.short += int(np.count_nonzero(fields.n_fields < width))
        self.rows += fields.n
        return fields

    def read(self, fields: Fields, key: str, by: Callable[..., object], kind: type, *more: int) -> np.ndarray:
        """Read one field of every line by a compiled loop, which gets the field, ``more`` and the column to fill."""
        out: np.ndarray = np.empty(fields.n, dtype=kind)
        by(*fields.column(self.slot[key]), *more, out)
        return out

    def ids(self, fields: Fields) -> tuple[I64, I64, I32]:
        """Return the numbers of event and group, and the date."""
        event, group = (
            self.read(fields, key, _lines.read_ids, np.int64, ord(letter))
            for key, letter in (("event", "S"), ("group", "G"))
        )
        return event, group, self.read(fields, "date", _lines.read_dates, np.int32)

    def _region(self, fields: Fields) -> tuple[I32, I32]:
        """Return the field that names the smallest region of each line: county, else state, else country."""
        start, length = (array[:, [self.slot["county_code"]]] for array in (fields.starts, fields.lengths))
        for key in ("state_code", "country_code"):
            # Many countries have no counties, and some no states: the next wider region stands for the place.
            blank = np.flatnonzero(length[:, 0] == 0)
            if blank.size:
                start[blank, 0] = fields.starts[blank, self.slot[key]]
                length[blank, 0] = fields.lengths[blank, self.slot[key]]
        return start, length

    def _note(self, kinds: dict[str, int], what: str, fields: Fields, bad: Bool, key: str) -> None:
        """Remember the rows of a block whose field ``key`` could not be used."""
        rows = np.flatnonzero(bad)
        if rows.size:
            first = int(rows[0])
            value = fields.text(first, self.slot[key])
            self.faults.add(kinds, what, rows.size, first + fields.first_line, value)

    def usable(
        self, fields: Fields, event: I64, group: I64, more: dict[str, Bool], *, fault: bool = True
    ) -> Bool:
        """Rows with an event id, a readable group id and whatever else is asked; the others are noted if a ``fault``."""
        good = np.ones(fields.n, dtype=np.bool_)
        checks = {"event": event < 0, "group": group == BAD, **more}
        names = EBD_RECORD | EVENT | PLACE
        for key, bad in checks.items():
            if fault and key in names:
                what = f"no usable {names[key][0].upper()}"
                self._note(self.faults.malformed, what, fields, bad & good, key)
            elif fault:
                self._note(self.faults.malformed, key, fields, bad & good, "date")
            good &= ~bad
        return good

    def records(self, fields: Fields) -> Columns:
        event, group, date = self.ids(fields)
        more = {"species": fields.lengths[:, self.slot["species"]] == 0, NO_DATE: date == UNKNOWN_DATE}
        good = self.usable(fields, event, group, more)
        count = self.read(fields, "count", _lines.read_counts, np.int64)
        odd = good & (count <= COUNT_BLANK)
        self._note(self.faults.unreadable, "OBSERVATION COUNT", fields, odd, "count")
        columns: Columns = {
            "event": event,
            "group": group,
            "taxon": self.books["taxa"].encode(fields.buf, fields.starts, fields.lengths),
            "count": count,
            "guid": self.read(fields, "guid", _lines.read_guids, np.int64),
            "edited": self.read(fields, "edited", _lines.read_stamps, np.int64),
        }
        if "kept" in self.books:
            columns["kept"] = self.books["kept"].encode(fields.buf, fields.starts, fields.lengths)
        if not good.all():
            columns = {key: column[good] for key, column in columns.items()}
        self.books["reach"].encode(fields.buf, *self._region(fields))
        self.record_dates = _widened(self.record_dates, date[(date != BAD) & (date != UNKNOWN_DATE)])
        rows = np.bincount(columns["taxon"], minlength=self.books["taxa"].size)
        # Codes only grow: the numbers so far are those of the first codes.
        rows[: self.taxon_rows.size] += self.taxon_rows
        self.taxon_rows = rows
        return columns

    def events(self, fields: Fields, *, fault: bool) -> Columns:
        """Event columns; ``fault`` says whether bad rows are to be noted (not again after ``records``)."""
        event, group, date = self.ids(fields)
        bad = {
            "date": date == BAD,
            NO_DATE: date == UNKNOWN_DATE,
            "observer": fields.lengths[:, self.slot["observer"]] == 0,
            "site": fields.lengths[:, self.slot["site"]] == 0,
        }
        good = self.usable(fields, event, group, bad, fault=fault)
        numbers = {}
        for key, parsed in self.parsed.items():
            out = parsed.read(fields.buf, fields.starts, fields.lengths)
            if fault:
                odd = good & np.isnan(out) & (fields.lengths[:, self.slot[key]] > 0)
                self._note(self.faults.unreadable, EVENT[key][0].upper(), fields, odd, key)
            numbers[key] = np.where(out < 0, np.nan, out)
        start = np.nan_to_num(numbers.pop("start"), nan=-1).astype(np.int32)
        buf, starts, lengths = fields.column(self.slot["complete"])
        columns: Columns = {
            "event": event,
            "group": group,
            "edited": self.read(fields, "edited", _lines.read_stamps, np.int64),
            **{
                name[:-1]: self.books[name].encode(fields.buf, fields.starts, fields.lengths)
                for name in LISTS
            },
            "date": date,
            "start": start,
            **numbers,
            "complete": ((lengths == 1) & (buf[np.minimum(starts, buf.size - 1)] == ord("1"))).astype(
                np.int8
            ),
        }
        if not good.all():
            columns = {key: column[good] for key, column in columns.items()}
        self.dates = _widened(self.dates, columns["date"])
        return columns


def _widened(span: list[int] | None, days: I32) -> list[int] | None:
    """Return the first and last day of a span and of more days."""
    if not days.size:
        return span
    ends = [*(span or ()), int(days.min()), int(days.max())]
    return [min(ends), max(ends)]


def _distinct(columns: Columns) -> Columns:
    """Keep, of each event, the row edited last (an EBD repeats the event on every record)."""
    order = np.lexsort((-columns["edited"], columns["event"]))
    event = columns["event"][order]
    first = np.ones(event.size, dtype=np.bool_)
    first[1:] = event[1:] != event[:-1]
    keep = np.sort(order[first])
    return {key: column[keep] for key, column in columns.items()}


def project_ebird(
    source: Source,
    folder: Path,
    *,
    with_events: bool,
    keep: Sequence[str] = (),
    advance: Callable[[float], None] = lambda done: None,
) -> Meta:
    """Write the projection of an EBD, sampling or unvetted file into ``folder``; return its meta data.

    ``with_events`` makes an EBD give its checklists too (needed when no sampling file is given); ``keep`` names columns
    whose text is kept with each record.

    Raises
    ------
    InputError, SchemaError : bytes that are not UTF-8, a damaged or cut-short file, a required column missing
    """
    records = source.role in ("ebd", "unvetted")
    events = source.role == "sampling" or with_events
    reader = _Reader(source, folder, records=records, events=events, keep=keep)
    report = ReadReport()
    columns = RECORD_COLUMNS | (KEPT_COLUMN if keep else {})
    last_fields = len(source.header)
    with ExitStack() as sinks:
        for book in reader.books.values():
            sinks.callback(book.close)
        if records:
            to_records = sinks.enter_context(ParquetSink(folder / "records.parquet", columns, by="taxon"))
        if events:
            to_events = sinks.enter_context(ParquetSink(folder / "events.parquet", EVENT_COLUMNS))
        for block in read_blocks(source, report, advance):
            fields = reader.fields(block)
            if fields.n:
                last_fields = int(fields.n_fields[-1])
            if records:
                to_records.add(reader.records(fields))
            if events:
                found = reader.events(fields, fault=not records)
                to_events.add(_distinct(found) if records else found)
    _check_end(source, report, last_fields, reader)
    reader.faults.refuse_mostly_bad(
        source,
        reader.rows,
        "be read",
        "this does not look like an eBird file, or it is damaged. Download it again.",
    )
    if records:
        give_back()
        write_repeats([folder / "records.parquet"], folder / "repeats.parquet")
        taxa = pl.read_parquet(folder / "taxa.parquet", glob=False)
        rows = np.zeros(taxa.height, dtype=np.int64)
        rows[: reader.taxon_rows.size] = reader.taxon_rows
        taxa.with_columns(pl.Series("rows", rows)).write_parquet(folder / "taxa.parquet")
    release = _RELEASE.search(source.short_name)
    return meta_of(
        source, reader.faults, prefix="S", group_prefix="G", sha256=report.sha256, rows=reader.rows,
        long_rows=reader.long, short_rows=reader.short, unterminated=report.unterminated,
        absent_columns=reader.absent, dates=reader.dates, record_dates=reader.record_dates,
        release=f"{release[1]}-{release[2]}" if release else "",
    )  # fmt: skip


def _check_end(source: Source, report: ReadReport, last_fields: int, reader: _Reader) -> None:
    needed = reader.positions[-2] + 1  # behind it stands the place of what is absent
    if report.unterminated and last_fields < needed:
        raise InputError(
            f"{source.name} is cut short: its last line ({report.lines + 1}) has {last_fields} of "
            f"{len(source.header)} columns and no line end. Species on the lost lines would turn into false zeros; "
            "download or copy the file again.",
            line=report.lines + 1,
        )
