"""Tables on disk: parquet files that follow a versioned schema of ``data_schema/``.

A schema file lists columns with type, unit, nullability and meaning. It is checked when a table is written
and again when it is read, and its name and version travel in the parquet metadata.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TypedDict

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from fedmiss.atomic import atomic_file
from fedmiss.errors import InputError, SchemaError
from fedmiss.resources import resource


class _Column(TypedDict):
    """One column of a schema."""

    name: str
    type: str  # of arrow
    unit: str
    nullable: bool
    description: str


@dataclass(frozen=True, slots=True)
class Schema:
    """One schema file."""

    name: str
    version: int
    description: str
    columns: tuple[_Column, ...]
    open: bool = False  # True: further columns may follow the listed ones (factor columns u1, u2, ...)

    @property
    def names(self) -> list[str]:
        """Names of the listed columns, in order."""
        return [column["name"] for column in self.columns]

    def arrow(self) -> pa.Schema:
        """Return the arrow schema of the listed columns."""
        special = {"date": pa.date32(), "list<string>": pa.list_(pa.string())}
        return pa.schema(
            [
                pa.field(
                    column["name"],
                    special.get(column["type"]) or pa.type_for_alias(column["type"]),
                    column["nullable"],
                )
                for column in self.columns
            ],
            metadata={b"fedmiss_schema": f"{self.name}.v{self.version}".encode()},
        )


def schema_names() -> list[str]:
    """Return the names of all shipped schemas, sorted."""
    return sorted(path.name.split(".")[0] for path in resource("data_schema").glob("*.json"))


@cache
def load_schema(name: str) -> Schema:
    """Load ``data_schema/<name>.v*.json``, the newest version."""
    files = sorted(resource("data_schema").glob(f"{name}.v*.json"))
    if not files:
        raise SchemaError(f"there is no schema {name!r}; known are {', '.join(schema_names())}.")
    raw = json.loads(files[-1].read_text(encoding="utf-8"))
    return Schema(
        raw["name"], raw["version"], raw["description"], tuple(raw["columns"]), raw.get("open", False)
    )


def _conform(table: pa.Table, schema: Schema, where: str) -> pa.Table:
    """Put the columns in the schema's order and types, or say which one does not fit."""
    target = schema.arrow()
    missing = [field.name for field in target if field.name not in table.column_names]
    extra = [name for name in table.column_names if name not in target.names]
    if missing or (extra and not schema.open):
        what = f"lacks the column {missing[0]!r}" if missing else f"has the unknown column {extra[0]!r}"
        raise SchemaError(
            f"{where} {what} of schema {schema.name}.v{schema.version}; make the file again with this version."
        )
    columns, fields = [], []
    for field in [*target, *(table.schema.field(column) for column in extra)]:
        column = table[field.name]
        # polars writes 64-bit offsets; files have 32-bit ones, which every reader takes.
        if column.type == pa.large_string() and field.type == pa.string():
            column = _narrow(column)
        if column.type != field.type:
            try:
                column = column.cast(field.type)
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
                raise SchemaError(
                    f"{where}, column {field.name!r}: {error} (must be {field.type})."
                ) from None
        if not field.nullable and column.null_count:
            raise SchemaError(
                f"{where}, column {field.name!r} has {column.null_count} blanks (none allowed)."
            )
        columns.append(column)
        fields.append(field)
    # The schema's own words last: a table that was read from another schema must not keep its name.
    merged = {**(table.schema.metadata or {}), **target.metadata}
    return pa.Table.from_arrays(columns, schema=pa.schema(fields, metadata=merged))


def _narrow(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Give strings with 64-bit offsets (polars makes them) 32-bit ones; arrow's cast would load its functions."""
    chunks = []
    for chunk in column.chunks:
        valid, offsets, data = chunk.buffers()
        if chunk.offset or not len(chunk):
            return column.cast(pa.string())
        wide = np.frombuffer(offsets, np.int64, len(chunk) + 1)
        if int(wide[-1]) >= 1 << 31:
            return column.cast(pa.string())
        narrow = pa.py_buffer(wide.astype(np.int32))
        chunks.append(pa.Array.from_buffers(pa.string(), len(chunk), [valid, narrow, data], chunk.null_count))
    return pa.chunked_array(chunks, pa.string())


def _as_arrow(table: object) -> pa.Table:
    if isinstance(table, pa.Table):
        return table
    if isinstance(table, dict):
        return pa.table(table)
    if hasattr(table, "to_arrow"):  # polars
        return table.to_arrow()
    return pa.Table.from_pandas(table, preserve_index=False)


def write_table(table: object, path: str | Path, schema: str) -> None:
    """Write a table (arrow, polars, pandas or a dict of columns) as parquet, atomically, checked by schema."""
    checked = _conform(_as_arrow(table), load_schema(schema), str(path))
    with atomic_file(path, ours=is_ours) as tmp:
        pq.write_table(checked, tmp, compression="zstd")


def is_ours(path: Path) -> bool:
    """Whether a table says itself that fedmiss wrote it."""
    try:
        return b"fedmiss_schema" in (pq.read_schema(Path(path).absolute()).metadata or {})
    except (pa.ArrowInvalid, OSError):
        return False


def table_writer(
    path: str | Path,
    schema: str,
    chunks: Iterable[object],
    *,
    unique: Collection[str] = (),
    texts: Collection[str] = (),
) -> int:
    """Write a table that comes in chunks, never whole in memory; return its number of rows.

    ``unique`` names columns whose values hardly repeat, so that a dictionary of them would only cost time. Such
    tables are large and read again soon: lz4 takes half the time of zstd, and a third more room. ``texts`` names
    further columns, of an open schema.
    """
    spec = load_schema(schema)
    rows = 0
    target = spec.arrow()
    for name in texts:
        target = target.append(pa.field(name, pa.large_string()))
    repeated = [name for name in target.names if name not in unique]
    with (
        atomic_file(path) as tmp,
        pq.ParquetWriter(tmp, target, compression="lz4", use_dictionary=repeated) as writer,
    ):
        for chunk in chunks:
            checked = _conform(_as_arrow(chunk), spec, str(path))
            writer.write_table(checked)
            rows += checked.num_rows
    return rows


def unreadable(path: Path, error: Exception) -> InputError:
    """What to raise where a parquet file cannot be read; pyarrow's own words, of magic bytes, would help nobody."""
    refused = error.strerror if isinstance(error, OSError) else ""  # by the system, as "Permission denied"
    why = refused or "it is a file of another kind, or damaged; copy it again, or make it again"
    return InputError(f"{path} is not a readable parquet file: {why}.")


def read_table(path: str | Path, schema: str, columns: list[str] | None = None) -> pa.Table:
    """Read a parquet table and check it against its schema; returns an arrow table.

    Examples
    --------
    >>> import fedmiss
    >>> p = fedmiss.simulate_panel(20, 24, 0.5, seed=1, groups=2)
    >>> panel = fedmiss.simulate.write_panel(p, "panel")
    >>> sites = fedmiss.tables.read_table("panel/sites.parquet", "sites")
    >>> sites.num_rows
    20
    """
    path = Path(path)
    if not path.exists():
        raise InputError(f"there is no file {path}. Check its name and folder.")
    try:
        table = pq.read_table(path.absolute(), columns=columns)
    except (pa.ArrowInvalid, OSError) as error:
        raise unreadable(path, error) from None
    spec = load_schema(schema)
    if columns is not None:
        # Only what was read can be checked.
        wanted = tuple(column for column in spec.columns if column["name"] in columns)
        spec = replace(spec, columns=wanted)
    return _conform(table, spec, str(path))
