"""eBird text in large blocks of whole lines, the wanted fields of a block, and the codes and numbers of repeated values."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from fedmiss.arrays import F64, I32, U8
from fedmiss.errors import InputError
from fedmiss.etl import _lines
from fedmiss.etl.projection import ROW_GROUP
from fedmiss.etl.sources import Source, broken_input, is_gzip, open_member
from fedmiss.files import hash_file

BLOCK_BYTES = 2 << 20
MOST_LINE = 4 * BLOCK_BYTES  # eBird's comments stay below a hundredth of it


@dataclass(slots=True)
class Block:
    """Whole lines: ``buf[:stop]``, ``lines`` of them; ``first_line`` counts the header as line 1.

    ``seps`` and ``ends`` say where the fields end (see ``_lines.separators``).
    """

    buf: U8
    stop: int
    first_line: int
    lines: int
    seps: I32
    ends: I32


@dataclass(slots=True)
class ReadReport:
    """What reading a source to its end has found."""

    lines: int = 0  # data lines, blank ones included
    sha256: str = ""
    unterminated: bool = False  # the last line has no line end


def read_blocks(
    source: Source, report: ReadReport, advance: Callable[[float], None] = lambda done: None
) -> Iterator[Block]:
    """Read a text source in blocks of whole lines, each checked to be UTF-8 and split; ``report`` is filled on the way.

    The arrays of a block are reused for the next one. A last line without a line end is given one and reported.

    Raises
    ------
    InputError : bytes that are not UTF-8 (with their line), damaged archives, a file that changes while read
    """
    plain = source.member is None and not is_gzip(source.path)
    digest = hashlib.sha256()
    held = bytearray(BLOCK_BYTES + 1)
    seps = ends = np.empty(0, dtype=np.int32)
    have = 0
    line = 2
    with broken_input(source.name), open_member(source.path, source.member) as (stream, position):
        digest.update(stream.read(source.header_bytes) or b"")
        finished = False
        while not finished:
            if have >= len(held) - 1:
                held = _twice_as_long(held, have, source, line)
            buf: U8 = np.frombuffer(held, np.uint8)
            window = memoryview(held)[have:-1]
            n = stream.readinto(window) or 0
            if plain:
                digest.update(window[:n])
            finished = n == 0
            have += n
            if finished:
                if have == 0:
                    break
                buf[have] = 10
                have += 1
                report.unterminated = True
            stop = _last_line_end(held, have, have - n - (1 if finished else 0))
            if stop == 0:
                continue
            if (bad := _bad_utf8(buf, stop)) >= 0:
                raise _not_utf8(source, line + int(np.count_nonzero(buf[:bad] == 10)), int(buf[bad]))
            if seps.size < buf.size + 64:
                seps, ends = (np.empty(buf.size + 64, dtype=np.int32) for _ in range(2))
            n_lines = int(_lines.separators(buf, stop, ord(source.separator), seps, ends))
            yield Block(buf, stop, line, n_lines, seps, ends)
            line += n_lines
            report.lines += n_lines
            buf[: have - stop] = buf[stop:have]
            have -= stop
            advance(position())
    source.refuse_changed()
    report.sha256 = digest.hexdigest() if plain else hash_file(source.path)


def _twice_as_long(held: bytearray, have: int, source: Source, line: int) -> bytearray:
    """Return a longer buffer for a line that is longer than the block, unless no text has such lines."""
    if have > MOST_LINE:
        raise InputError(
            f"{source.name} line {line} has more than {MOST_LINE:,} bytes and no end, so this is no text table "
            "(or its lines end with CR alone: save it with LF or CR LF).",
            path=source.name,
        )
    return held + bytes(len(held))


def _bad_utf8(buf: U8, stop: int) -> int:
    """Return the place of the first byte of ``buf[:stop]`` that is not UTF-8, or -1."""
    text = pa.StringArray.from_buffers(1, pa.py_buffer(np.array([0, stop], np.int32)), pa.py_buffer(buf))
    try:
        text.validate(full=True)  # as one string: ten times as fast as to decode it
        return -1
    except pa.ArrowInvalid:
        pass
    try:
        buf[:stop].tobytes().decode()
    except UnicodeDecodeError as error:
        return error.start
    return -1


def _not_utf8(source: Source, line: int, byte: int) -> InputError:
    return InputError(
        f"{source.name} line {line}: the byte 0x{byte:02x} is not UTF-8. Convert the file "
        "(for example: iconv -f LATIN1 -t UTF-8), or download it again if it was damaged.",
        line=line,
    )


def _last_line_end(held: bytearray, have: int, seen: int) -> int:
    """Index after the last line end in ``held[seen:have]``, 0 when there is none."""
    return held.rfind(b"\n", seen, have) + 1


class Fields:
    """The wanted fields of one block, by canonical name."""

    def __init__(self, block: Block, positions: list[int]) -> None:
        self.buf, self.n, self.first_line = block.buf, block.lines, block.first_line
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
            _lines.move(self._keys, self._codes, keys, codes)
            self._keys, self._codes = keys, codes
        codes = np.empty(n, dtype=np.int32)
        new = np.empty(n, dtype=np.int32)
        fresh = _lines.encode(
            buf, starts, lengths, self.slots, self._keys, self._codes, self.size, codes, new
        )
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
    _lines.gather(buf, start, offsets, data)
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
