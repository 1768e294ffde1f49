"""A journal: records appended to a file and forced to the disk, so that a killed program goes on where it was.

    file     8 bytes b"FEDMISSJ", then records
    record   u8 kind, u64 length, u32 CRC-32 of kind, length and body, body

A record counts when it is whole. What a crash left of the last one is cut off when the journal is opened again; a damaged
record in the middle is an error, since what follows it cannot be trusted.
"""

from __future__ import annotations

import os
import struct
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path

from fedmiss.errors import EngineError, InputError

if sys.platform != "win32":
    import fcntl

__all__ = ["Journal"]

_MAGIC = b"FEDMISSJ"
_HEAD = struct.Struct("<BQ")
_CRC = struct.Struct("<I")


class Journal:
    """Append-only records ``(kind, body)``; only its owner may read the file, since it holds secrets.

    One process at a time: the file is locked while it is open.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o600)
        self._lock()
        self._end = self._cut()

    @classmethod
    def reading(cls, path: Path) -> Journal:
        """Open a journal to read it, while another process may go on writing it."""
        out = cls.__new__(cls)
        out.path, out._file = path, os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
        out._end = out._whole(os.fstat(out._file).st_size)
        return out

    def _lock(self) -> None:
        if sys.platform == "win32":
            return  # there is no such lock: exchange numbers refuse two programs on one journal
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._file)
            raise EngineError(
                f"{self.path} is in use: another process runs this job. Wait for it, or stop it first.",
                busy=True,
            ) from None

    def _cut(self) -> int:
        """Length of the whole records; what is behind them is cut off."""
        size = os.fstat(self._file).st_size
        if size < len(_MAGIC):
            os.ftruncate(self._file, 0)
            self._write(_MAGIC, 0)
            os.fsync(self._file)
            self._sync_folder()
            return len(_MAGIC)
        if self._read(len(_MAGIC), 0) != _MAGIC:
            raise InputError(f"{self.path} is not a journal of fedmiss; move it away.", path=str(self.path))
        end = self._whole(size)
        if end < size:
            os.ftruncate(self._file, end)
            os.fsync(self._file)
        return end

    def _whole(self, size: int) -> int:
        """Where the last whole record ends."""
        return max(self._walk(size), default=len(_MAGIC))

    def _walk(self, size: int) -> Iterator[int]:
        """Ends of the whole records."""
        at = len(_MAGIC)
        while at + _HEAD.size + _CRC.size <= size:
            head = self._read(_HEAD.size, at)
            _, length = _HEAD.unpack(head)
            end = at + _HEAD.size + _CRC.size + length
            if end > size:
                return
            (crc,) = _CRC.unpack(self._read(_CRC.size, at + _HEAD.size))
            body = self._read(length, at + _HEAD.size + _CRC.size)
            if crc != zlib.crc32(body, zlib.crc32(head)):
                if end == size:
                    return  # the last record: its bytes had not all reached the disk
                raise InputError(
                    f"{self.path} is damaged at byte {at}. Start the job again under a new revision: numbers that were sent "
                    "cannot be made again from it.",
                    path=str(self.path),
                )
            at = end
            yield at

    def _read(self, n: int, at: int) -> bytes:
        os.lseek(self._file, at, os.SEEK_SET)
        out = bytearray()
        while len(out) < n and (part := os.read(self._file, n - len(out))):
            out += part
        return bytes(out)

    def _write(self, raw: bytes, at: int) -> None:
        os.lseek(self._file, at, os.SEEK_SET)
        rest = memoryview(raw)
        while rest:
            rest = rest[os.write(self._file, rest) :]

    def _sync_folder(self) -> None:
        if os.name == "posix":
            folder = os.open(self.path.parent, os.O_RDONLY)
            os.fsync(folder)
            os.close(folder)

    def append(self, *records: tuple[int, bytes]) -> None:
        """Append records and force them to the disk, all in one go."""
        parts = []
        for kind, body in records:
            head = _HEAD.pack(kind, len(body))
            parts += [head, _CRC.pack(zlib.crc32(body, zlib.crc32(head))), body]
        raw = b"".join(parts)
        self._write(raw, self._end)
        os.fsync(self._file)
        self._end += len(raw)

    def records(self) -> Iterator[tuple[int, bytes]]:
        """All records, in order."""
        at = len(_MAGIC)
        while at < self._end:
            kind, length = _HEAD.unpack(self._read(_HEAD.size, at))
            at += _HEAD.size + _CRC.size
            yield kind, self._read(length, at)
            at += length

    def close(self) -> None:
        """Let go of the file."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
