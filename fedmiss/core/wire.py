"""The frame around a compressed message: versioned header, round, kind, size, checksum.

    offset 0   2 bytes  b"FM"
           2   u8       format version, 1
           3   u8       kind of the encoding (Compressor.kind)
           4   u32      round k
           8   u32      q, numbers in the decoded message
          12   u32      CRC-32 of the first 12 bytes and of the payload
          16   payload

Little-endian. Nothing is ever unpickled.
"""

from __future__ import annotations

import struct
import zlib

from fedmiss.errors import UplinkError

__all__ = ["HEADER", "frame", "unframe"]

_HEAD = struct.Struct("<2sBBII")
_CRC = struct.Struct("<I")
_VERSION = 1
HEADER = _HEAD.size + _CRC.size  # 16 bytes


def frame(payload: bytes, *, kind: int, k: int, q: int) -> bytes:
    """Put the header before a payload."""
    head = _HEAD.pack(b"FM", _VERSION, kind, k, q)
    return head + _CRC.pack(zlib.crc32(payload, zlib.crc32(head))) + payload


def unframe(message: bytes, *, kind: int, k: int, q: int, worker: str) -> bytes:
    """Check a frame against what round ``k`` expects of ``worker``; return its payload or raise UplinkError."""
    who = f"worker {worker!r}"
    if len(message) < HEADER:
        raise UplinkError(
            f"{who} sent {len(message)} bytes at round {k} (a header alone has {HEADER}): cut on the way; "
            "it counts as missing, ask again.",
            worker=worker,
            k=k,
        )
    magic, version, got_kind, got_k, got_q = _HEAD.unpack_from(message)
    (crc,) = _CRC.unpack_from(message, _HEAD.size)
    if magic != b"FM" or version != _VERSION:
        raise UplinkError(
            f"{who} sent a frame of format {magic!r} version {version} at round {k} (this is b'FM' version "
            f"{_VERSION}); install the same fedmiss on both sides.",
            worker=worker,
            k=k,
        )
    if crc != zlib.crc32(memoryview(message)[HEADER:], zlib.crc32(message[: _HEAD.size])):
        raise UplinkError(
            f"{who} sent a damaged message at round {k}: its checksum is not {crc:#010x}; ask again.",
            worker=worker,
            k=k,
        )
    if got_k != k:
        raise UplinkError(
            f"{who} answered round {got_k} at round {k}; a late answer counts as missing.", worker=worker, k=k
        )
    if got_kind != kind:
        raise UplinkError(
            f"{who} used encoding {got_kind} at round {k} (this run uses {kind}); "
            "restart it with this run's settings.",
            worker=worker,
            k=k,
        )
    if got_q != q:
        raise UplinkError(
            f"{who} sent {got_q} numbers at round {k}, expected q={q}; restart it with this run's settings.",
            worker=worker,
            k=k,
        )
    return message[HEADER:]
