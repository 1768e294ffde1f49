"""A journal: records appended to a file and forced to the disk, so that a killed program goes on where it was.

    file     8 bytes b"FEDMISSK", then records
    record   u8 kind, u64 length, u32 CRC-32 of both; body; u32 CRC-32 of head and body, 1 byte 0xA5

A crash while a record is written leaves its beginning, and behind it nothing or zeros: that is cut off when the journal is
opened again, and nothing of it was sent. Every other difference is damage, and an error: an exchange that was answered must
not look as if it were not, since it would be answered again under the same masks. So the length of a record has a checksum
of its own, and a record ends in a byte that one flipped bit does not make 0.
"""

from __future__ import annotations

import contextlib
import os
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

from fedmiss.errors import EngineError, InputError
from fedmiss.system import POSIX, lock_now, open_own, to_disk

_MAGIC = b"FEDMISSK"
_OLD = b"FEDMISSJ"  # up to 0.2
_HEAD = struct.Struct("<BQI")
_PLAIN = struct.Struct("<BQ")
_TAIL = struct.Struct("<IB")
_MARK = 0xA5
_PART = 1 << 20  # bytes looked at together


class Journal:
    """Append-only records ``(kind, body)``; only its owner may read the file, since it holds secrets.

    One process at a time: the file is locked while it is open.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._file = open_own(path, os.O_RDWR | os.O_CREAT)
        try:
            self._lock()
            self._end = self._cut()
        except BaseException:
            self.close()  # a refusal must not keep the lock
            raise

    @classmethod
    def reading(cls, path: Path) -> Journal:
        """Open a journal to read it, while another process may go on writing it."""
        out = cls.__new__(cls)
        out.path, out._file = path, open_own(path, os.O_RDONLY)
        try:
            size = os.fstat(out._file).st_size
            out._end = out._whole(size) if out._begun(size) else len(_MAGIC)
        except BaseException:
            out.close()
            raise
        return out

    @classmethod
    def idle(cls, path: Path) -> bool:
        """Whether no process has the journal open to write it; False where the system has no such locks."""
        if not (POSIX and path.exists()):
            return False
        with path.open("rb") as file:
            return lock_now(file.fileno())

    def _lock(self) -> None:
        # without such locks, exchange numbers refuse two programs on one journal
        if not lock_now(self._file):
            raise EngineError(
                f"{self.path} is in use: another process runs this job. Wait for it, or stop it first.",
                busy=True,
            )

    def _begun(self, size: int) -> bool:
        """Whether the file is a journal; False for one whose first bytes had not all reached the disk."""
        found = self._read(len(_MAGIC), 0)
        if found == _MAGIC:
            return True
        if size <= len(_MAGIC) and _MAGIC.startswith(found.rstrip(b"\0")):
            return False
        why = "is of an older fedmiss; end its job with that version, or start the job again under a new revision"
        raise InputError(
            f"{self.path} {why if found == _OLD else 'is not a journal of fedmiss; move it away'}.",
            path=str(self.path),
        )

    def _cut(self) -> int:
        """Length of the whole records; what is behind them is cut off."""
        size = os.fstat(self._file).st_size
        if not self._begun(size):
            os.ftruncate(self._file, 0)
            self._write(_MAGIC, 0)
            to_disk(self._file)
            to_disk(self.path.parent)
            return len(_MAGIC)
        end = self._whole(size)
        if end < size:
            os.ftruncate(self._file, end)
            to_disk(self._file)
        return end

    def _whole(self, size: int) -> int:
        """Where the last whole record ends."""
        return max(self._walk(size), default=len(_MAGIC))

    def _walk(self, size: int) -> Iterator[int]:
        """Ends of the whole records."""
        at = len(_MAGIC)
        while at + _HEAD.size <= size:
            head = self._read(_HEAD.size, at)
            kind, length, sum_of_head = _HEAD.unpack(head)
            if sum_of_head != zlib.crc32(_PLAIN.pack(kind, length)):
                if self._zeros(at + _HEAD.size, size) and head[-1] == 0:
                    return
                raise self._damaged(at)
            end = at + _HEAD.size + length + _TAIL.size
            if end > size:
                return
            crc, mark = _TAIL.unpack(self._read(_TAIL.size, end - _TAIL.size))
            if mark != _MARK or crc != zlib.crc32(self._read(length, at + _HEAD.size), zlib.crc32(head)):
                if mark == 0 and self._zeros(end, size):
                    return
                raise self._damaged(at)
            at = end
            yield at

    def _zeros(self, start: int, end: int) -> bool:
        """Whether the file holds nothing but zeros between two places."""
        return all(not any(self._read(min(_PART, end - at), at)) for at in range(start, end, _PART))

    def _damaged(self, at: int) -> InputError:
        return InputError(
            f"{self.path} is damaged at byte {at}. Start the job again under a new revision: numbers that were sent "
            "cannot be made again from it.",
            path=str(self.path),
        )

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

    def append(self, *records: tuple[int, bytes]) -> None:
        """Append records and force them to the disk, all in one go."""
        parts = []
        for kind, body in records:
            plain = _PLAIN.pack(kind, len(body))
            head = plain + struct.pack("<I", zlib.crc32(plain))
            parts += [head, body, _TAIL.pack(zlib.crc32(body, zlib.crc32(head)), _MARK)]
        raw = b"".join(parts)
        try:
            self._write(raw, self._end)
            to_disk(self._file)
        except OSError:
            with contextlib.suppress(OSError):  # else a shorter record would lie before the rest of this one
                os.ftruncate(self._file, self._end)
            raise
        self._end += len(raw)

    def records(self) -> Iterator[tuple[int, bytes]]:
        """All records, in order."""
        at = len(_MAGIC)
        while at < self._end:
            kind, length, _ = _HEAD.unpack(self._read(_HEAD.size, at))
            yield kind, self._read(length, at + _HEAD.size)
            at += _HEAD.size + length + _TAIL.size

    def close(self) -> None:
        """Let go of the file."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
