"""The projected form of a source: what an ingest needs of it, as compact parquet, kept for the next ingest.

A projection is a folder with
    records.parquet    event, group, taxon, count, guid, edited[, kept]  (one row per record read; rows of one
                       taxon lie together in stretches of half a million, so that reading one species reads little)
    kept.parquet       the texts of columns that are kept on request (what the codes ``kept`` mean)
    repeats.parquet    guid, edited of the records whose guid occurs more than once (eBird text only)
    reach.parquet      codes of the counties (else states, countries) that have records (eBird text only)
    taxa.parquet       taxon -> category, names, exotic code, approved, rows
    events.parquet     event, group, edited, observer, place, protocol, date, start, effort, complete
    places.parquet, observers.parquet, protocols.parquet                  (what those codes mean)
    meta.json          rows read and malformed, hash and release of the source, how an event id is written
It does not depend on the species or filters asked for, so a second ingest of the same file reads no text.
"""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict, TypeVar, Unpack

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from fedmiss.arrays import I32, Columns
from fedmiss.atomic import hash_json, make_parent, read_json, write_json
from fedmiss.errors import InputError
from fedmiss.etl.sources import Faults, Source
from fedmiss.files import atomic_folder, read_manifest, write_manifest
from fedmiss.locks import locked
from fedmiss.owner import remove_cache
from fedmiss.progress import note

T = TypeVar("T")
# Raised whenever the meaning of a projection changes: older ones are then made again.
CACHE = ".fedmiss-cache"  # beside the records, where no other place is named
VERSION = 19
ROW_GROUP = 1 << 16
STRETCH = 8  # row groups that are sorted together
AT_ONCE = 3_000_000  # identifiers compared at once, so that memory does not follow the number of records
EVENT_COLUMNS = {
    "event": np.int64,
    "group": np.int64,
    "edited": np.int64,
    "observer": np.int32,
    "place": np.int32,
    "protocol": np.int32,
    "date": np.int32,  # days since 1970-01-01
    "start": np.int32,  # seconds after midnight, -1 blank
    "duration": np.float64,  # minutes, nan blank
    "distance": np.float64,  # km, nan blank
    "n_observers": np.float64,  # nan blank
    "complete": np.int8,
}
RECORD_COLUMNS = {
    "event": np.int64,
    "group": np.int64,  # -1 none
    "taxon": np.int32,
    "count": np.int64,  # negative: see codes.COUNT_*
    "guid": np.int64,  # 0 none
    "edited": np.int64,
}
KEPT_COLUMN: dict[str, type[object]] = {"kept": np.int32}  # of records, where columns are kept on request
PLACE_COLUMNS = tuple(
    "country country_code state state_code county county_code bcr site_name site site_type latitude longitude".split()
)
TAXON_COLUMNS = ("category", "common_name", "species", "exotic", "approved", "reviewed", "breeding")
PROTOCOL_COLUMNS = ("protocol", "project")


class Meta(TypedDict, total=False):
    """What reading a source has found: ``meta.json`` of its projection. Some entries are of one kind of source only."""

    source: str  # the file's name
    role: str  # key of sources.ROLES
    prefix: str  # what stands before the number of an event, and of a group, in its id
    group_prefix: str
    sha256: str
    rows: int
    malformed: dict[str, int]  # reason -> rows left out
    unreadable: dict[str, int]  # column -> values that read as blank
    examples: list[str]
    odd: list[str]
    long_rows: int
    short_rows: int
    unterminated: bool
    absent_columns: list[str]
    dates: list[int] | None  # first and last day of the events, and of the records
    record_dates: list[int] | None
    release: str  # blank where the name of the file does not tell it
    explicit_zeros: bool  # a count of 0 says that the species was not found
    any_name: bool  # species may have any name, not only scientific ones
    licences: list[str]
    said: list[str]  # sentences for the user
    missing: int  # rows without a count
    without_birds: int  # rows of complete visits that name no species
    other_species: int  # rows of other species than the one of a table of counts
    joined: int  # rows that were joined to another one of their cell


def meta_of(source: Source, faults: Faults, /, **more: Unpack[Meta]) -> Meta:
    """Return the meta data that every projection has, and ``more``."""
    return {
        "source": source.short_name,
        "role": source.role,
        "malformed": faults.malformed,
        "unreadable": faults.unreadable,
        "examples": faults.examples,
        "odd": faults.odd,
        "release": "",
        **more,
    }


@dataclass(frozen=True, slots=True)
class Projection:
    """One projected source; tables are read when asked for."""

    folder: Path
    meta: Meta

    def has(self, table: str) -> bool:
        """Say whether the projection holds that table."""
        return (self.folder / f"{table}.parquet").exists()

    def height(self, table: str) -> int:
        """Return the number of rows of a table."""
        return int(pq.read_metadata(self.folder / f"{table}.parquet").num_rows)

    def slices(self, table: str, columns: Sequence[str]) -> Iterator[pl.DataFrame]:
        """Yield some columns of a large table in slices, one at least, so that the whole is never in memory."""
        rows = pl.scan_parquet(self.folder / f"{table}.parquet", glob=False).select(columns)
        for i in range(0, max(self.height(table), 1), ROW_GROUP):
            yield rows.slice(i, ROW_GROUP).collect()

    def column(self, table: str, name: str) -> pl.Series:
        """Read one column of a table."""
        return self.read(table, [name])[name]

    def read(self, table: str, columns: list[str] | None = None) -> pl.DataFrame:
        """Read a table, or some of its columns."""
        return pl.read_parquet(self.folder / f"{table}.parquet", columns=columns, glob=False)


def row_groups(path: Path, columns: list[str], taxa: I32 | None = None) -> Iterator[Columns]:
    """Yield a projection's table as numpy columns, one row group after the other.

    ``taxa`` : ascending codes; row groups that hold none of them are passed over
    """
    with pq.ParquetFile(path) as file:
        at = file.schema_arrow.names.index("taxon") if taxa is not None else -1
        for i in range(file.num_row_groups):
            if taxa is not None:
                held = file.metadata.row_group(i).column(at).statistics
                if held is not None and held.has_min_max:
                    low, high = np.searchsorted(taxa, [held.min, held.max + 1])
                    if low == high:
                        continue
            # through polars, because arrow's own conversion to numpy would load pandas
            frame = pl.DataFrame(file.read_row_group(i, columns=columns))
            yield {column: frame[column].to_numpy() for column in columns}


class ParquetSink:
    """Collect blocks of numpy columns and write them as row groups of at most 65,000 rows.

    With ``by``, several row groups are collected and ordered by that column of codes: a reader of a few codes can
    pass over most row groups.
    """

    def __init__(self, path: Path, columns: Mapping[str, type], *, by: str | None = None) -> None:
        self._by = by
        self._schema = pa.schema(
            [
                pa.field(key, pa.from_numpy_dtype(np.dtype(column)), nullable=False)
                for key, column in columns.items()
            ]
        )
        # Ids are all different, so a dictionary of them costs time and saves nothing; digests cannot be compressed.
        self._writer = pq.ParquetWriter(
            path,
            self._schema,
            compression={column: "none" if column in ("guid", "edited") else "lz4" for column in columns},
            use_dictionary=[
                column for column in columns if column not in ("event", "group", "guid", "edited")
            ],
            write_statistics=[by] if by else False,
        )
        # Every stretch uses the same memory: to map fresh pages costs as much as to sort them.
        self._room = ROW_GROUP * (STRETCH if by else 1)
        self._held: Columns = {key: np.empty(self._room, column) for key, column in columns.items()}
        self._turned = (
            {key: np.empty(self._room, column) for key, column in columns.items()} if by else self._held
        )
        self._pending = 0

    def add(self, part: Columns) -> None:
        """Add one block of columns."""
        n, done = len(part["event"]), 0
        while done < n:
            step = min(n - done, self._room - self._pending)
            for key, column in self._held.items():
                column[self._pending : self._pending + step] = part[key][done : done + step]
            self._pending += step
            done += step
            if self._pending == self._room:
                self._flush()

    def _flush(self) -> None:
        pending = self._pending
        if not pending:
            return
        if self._by:
            codes = self._held[self._by][:pending]
            small = codes.max() < 1 << 16  # numpy sorts 16-bit codes in one pass
            order = np.argsort(codes.astype(np.uint16) if small else codes, kind="stable")
            for key, column in self._held.items():
                np.take(column[:pending], order, out=self._turned[key][:pending], mode="clip")
        # not pa.array: it would load pandas
        arrays = [
            pa.Array.from_buffers(
                field.type, pending, [None, pa.py_buffer(self._turned[field.name][:pending])]
            )
            for field in self._schema
        ]
        table = pa.Table.from_arrays(arrays, schema=self._schema)
        self._writer.write_table(table, row_group_size=ROW_GROUP)
        self._pending = 0

    def __enter__(self) -> ParquetSink:
        return self

    def __exit__(self, *exc: object) -> None:
        self._flush()
        self._writer.close()


def is_full(error: Exception) -> bool:
    """Whether an error, or its cause, is that a disk, or a user's share of it, is full."""
    return any(getattr(e, "errno", None) in (errno.ENOSPC, errno.EDQUOT) for e in (error, error.__cause__))


def size_of(cache: Path) -> int:
    """Return how many bytes a cache holds."""
    return sum(file.stat().st_size for file in cache.rglob("*") if file.is_file())


class Cache:
    """Projections by the identity of their source: path, member, size, time of change, first and last megabyte.

    ``spare`` is a folder beside the result, for what the cache's disk has no room for.
    """

    def __init__(self, folder: Path, spare: Path) -> None:
        self.folder, self.spare = folder.absolute(), spare.absolute()

    def make(self, build: Callable[[Path], T]) -> T:
        """Return what ``build(folder)`` makes in the cache, and where the disk is full, with a note, in the spare folder."""
        try:
            return build(self.folder)
        except (InputError, OSError) as error:
            if self.folder == self.spare or not is_full(error):
                raise
            note(f"the disk is full; this import goes on without the cache {self.folder}.")
            self.folder = self.spare
        return build(self.spare)

    def key(self, source: Source, how: str) -> str:
        """Return the name of the projection of ``source`` made ``how``; any change of the file changes it."""
        stat = source.path.stat()
        digest = hashlib.sha256(
            f"{VERSION}|{source.path.resolve()}|{source.member}|{stat.st_size}|{stat.st_mtime_ns}|{source.role}|"
            f"{source.sheet}|{source.short_name}|{source.year}|{source.header_row}|{source.encoding}|{how}".encode()
        )
        with open(source.path, "rb") as stream:
            digest.update(stream.read(1 << 20))
            stream.seek(max(0, stat.st_size - (1 << 20)))
            digest.update(stream.read(1 << 20))
        return digest.hexdigest()[:24]

    def projection(self, key: str, build: Callable[[Path], Meta]) -> Projection:
        """Return the projection of that key; where there is none, ``build(folder)`` writes it and returns the meta data."""

        def whole(new: Path) -> None:
            write_json(new / "meta.json", build(new))

        folder = self.make(lambda folder: kept(folder / key, whole))
        return Projection(folder, read_json(folder / "meta.json"))


def kept(folder: Path, build: Callable[[Path], None]) -> Path:
    """Return a folder of the cache, made by ``build(empty folder)`` unless it is there and whole.

    If another process makes the same folder, this one waits. A damaged folder is made again, with a note.
    """
    make_parent(folder)
    if not os.access(folder.parent, os.W_OK | os.X_OK):
        raise InputError(
            f"this user may not write to the cache {folder.parent}; name another folder with --cache, or pass --no-cache.",
            path=str(folder.parent),
        )
    with locked(folder, wait=True):
        if folder.exists():
            try:
                read_manifest(folder, "cache", verify=True)
                return folder
            except InputError as error:
                note(f"{error} It is read from its source again.")
                remove_cache(folder)
        with atomic_folder(folder) as tmp:
            build(tmp)
            write_manifest(tmp, "cache", settings={}, inputs={})
    return folder


def write_repeats(paths: Sequence[Path], out: Path) -> None:
    """Write the records of ``paths`` whose identifier stands on another one too: guid, edited."""
    total = sum(int(pq.read_metadata(path).num_rows) for path in paths)
    n = 1 << (max(1, -(-total // AT_ONCE)) - 1).bit_length()
    found = []
    for part in range(n):
        held = [np.zeros(0, np.int64)]
        for guid in (batch["guid"] for path in paths for batch in row_groups(path, ["guid"])):
            held.append(guid[guid & (n - 1) == part] if n > 1 else guid)
        values = pl.Series(np.concatenate(held)).sort().to_numpy()  # four times as fast as numpy's
        del held
        found.append(np.unique(values[1:][(values[1:] == values[:-1]) & (values[1:] != 0)]))
    repeated = np.sort(np.concatenate(found))
    rows: dict[str, list[Any]] = {"guid": [], "edited": []}
    if repeated.size:
        for path in paths:
            for batch in row_groups(path, ["guid", "edited"]):
                at = np.minimum(np.searchsorted(repeated, batch["guid"]), repeated.size - 1)
                mine = repeated[at] == batch["guid"]
                for key, column in rows.items():
                    column.append(batch[key][mine])
    table = {key: np.concatenate([*row, np.zeros(0, np.int64)]) for key, row in rows.items()}
    pl.DataFrame(table).write_parquet(out)


def latest_edits(sources: Sequence[Projection], cache: Path) -> pl.DataFrame:
    """Return the time of the latest edit of every repeated identifier: guid, latest (in no order).

    What several files have in common is looked for once and kept in ``cache``.
    """
    if len(sources) == 1 and sources[0].has("repeats"):
        path = sources[0].folder / "repeats.parquet"
    else:
        which = {"version": VERSION, "sources": sorted(source.folder.name for source in sources)}
        records = [source.folder / "records.parquet" for source in sources]
        folder = kept(
            cache / f"repeats-{hash_json(which)[:24]}",
            lambda new: write_repeats(records, new / "repeats.parquet"),
        )
        path = folder / "repeats.parquet"
    return pl.read_parquet(path, glob=False).group_by("guid").agg(pl.col("edited").max().alias("latest"))
