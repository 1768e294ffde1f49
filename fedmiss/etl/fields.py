"""The wanted fields of a block of eBird text, and the codes and numbers of repeated values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from fedmiss.arrays import F64, I32, U8
from fedmiss.etl import _keys, _lines
from fedmiss.etl.projection import ROW_GROUP
from fedmiss.etl.sources import Block

__all__ = ["Dictionary", "Fields", "Parsed"]


class Fields:
    """The wanted fields of one block, by canonical name."""

    def __init__(self, block: Block, positions: list[int]) -> None:
        self.buf, self.n = block.buf, block.lines
        n = self.n
        self.starts = np.empty((n, len(positions)), dtype=np.int32)
        self.lengths = np.empty((n, len(positions)), dtype=np.int32)
        self.n_fields = np.empty(n, dtype=np.int32)
        columns = np.array(positions, dtype=np.int32)
        _lines.fields(block.buf, n, block.seps, block.ends, columns, self.starts, self.lengths, self.n_fields)

    def column(self, slot: int) -> tuple[U8, I32, I32]:
        """Return the bytes, and first byte and length of one field of every line."""
        return self.buf, self.starts[:, slot], self.lengths[:, slot]

    def text(self, row: int, slot: int) -> str:
        """Return one field, to be shown."""
        begin, size = int(self.starts[row, slot]), int(self.lengths[row, slot])
        return self.buf[begin : begin + size].tobytes().decode("utf-8", "replace")


class Codes:
    """Codes of the joint values of some columns, in the order in which they are first met; digests stay in memory."""

    def __init__(self, columns: list[int]) -> None:
        self.slots = np.array(columns, dtype=np.int32)
        self.size = 0
        self._keys = np.zeros(1 << 16, dtype=np.uint64)
        self._codes = np.zeros(1 << 16, dtype=np.int32)

    def encode(self, buf: U8, starts: I32, lengths: I32) -> I32:
        """Return the code of every line of a block; new values get new codes."""
        n = len(starts)
        while 2 * (self.size + n) > self._keys.size:
            keys, codes = (np.zeros(2 * old.size, dtype=old.dtype) for old in (self._keys, self._codes))
            _keys.move(self._keys, self._codes, keys, codes)
            self._keys, self._codes = keys, codes
        codes = np.empty(n, dtype=np.int32)
        new = np.empty(n, dtype=np.int32)
        fresh = _keys.encode(buf, starts, lengths, self.slots, self._keys, self._codes, self.size, codes, new)
        if fresh:
            new = new[:fresh]
            self.add([_texts(buf, starts[new, slot], lengths[new, slot]) for slot in self.slots])
            self.size += fresh
        return codes

    def add(self, new: list[pa.StringArray]) -> None:
        """Take the texts of new values, one array for each column."""
        raise NotImplementedError


def _texts(buf: U8, start: I32, length: I32) -> pa.StringArray:
    """Copy fields out of a block."""
    offsets = np.zeros(start.size + 1, dtype=np.int32)
    np.cumsum(length, out=offsets[1:])
    data = np.empty(int(offsets[-1]), dtype=np.uint8)
    _keys.gather(buf, start, offsets, data)
    return pa.StringArray.from_buffers(start.size, pa.py_buffer(offsets), pa.py_buffer(data))


class Dictionary(Codes):
    """Codes whose values go to a parquet file as they come, without blanks around them."""

    def __init__(self, columns: list[int], path: Path, names: Sequence[str]) -> None:
        super().__init__(columns)
        self._schema = pa.schema([pa.field(name, pa.large_string()) for name in names])
        self._writer = pq.ParquetWriter(path, self._schema, compression="lz4")
        self._waiting: list[pa.Table] = []
        self._held = 0  # rows of them

    def add(self, new: list[pa.StringArray]) -> None:
        """Write the new values, many at once."""
        self._waiting.append(pa.Table.from_arrays(new, names=self._schema.names))
        self._held += len(new[0])
        if self._held >= ROW_GROUP:
            self._flush()

    def _flush(self) -> None:
        if self._waiting:
            values = pl.DataFrame(pa.concat_tables(self._waiting)).with_columns(pl.all().str.strip_chars())
            self._writer.write_table(values.to_arrow(compat_level=pl.CompatLevel.oldest()))
        self._waiting, self._held = [], 0

    def close(self) -> None:
        """Write what is waiting and close the file."""
        self._flush()
        self._writer.close()


class Parsed(Codes):
    """Numbers of a column whose texts repeat: ``parse`` sees each different text once."""

    def __init__(self, column: int, parse: Callable[[str], float]) -> None:
        super().__init__([column])
        self._parse = parse
        self._values = np.empty(0)

    def add(self, new: list[pa.StringArray]) -> None:
        """Parse the new texts."""
        self._values = np.append(self._values, [self._parse(text) for text in new[0].to_pylist()])

    def read(self, buf: U8, starts: I32, lengths: I32) -> F64:
        """Return the number of every line of a block."""
        codes = self.encode(buf, starts, lengths)
        return self._values[codes]
