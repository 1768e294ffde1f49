"""Frames around what travels: a worker's message, many small messages, a broadcast, a worker's stored state.

A message:

    offset 0   2 bytes  b"FM"
           2   u8       format version, 1, in the low four bits; in the high four the number of the answer's cost among
                        those that the oracle allows, so that nobody can claim another count of evaluations
           3   u8       kind of the encoding (Compressor.kind); 0 for "I have no usable number"
           4   u32      round k
           8   u32      q, numbers in the decoded message
          12   u32      CRC-32 of context, the first 12 bytes and the payload
          16   payload

``context`` is known on both sides and does not travel: job, settings, worker's name. A message of another job, of
other settings or of another worker has a wrong checksum.

Many messages of one round from one machine (:func:`frame_batch`): the same 16 bytes once (magic b"FB"), then for each
slot, cost, kind and length in one to five bytes each, then the payloads.

Little-endian. Nothing is ever unpickled.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from typing import NamedTuple

from fedmiss.errors import UplinkError

__all__ = [
    "HEADER",
    "REFUSED",
    "Part",
    "batch_size",
    "frame",
    "frame_batch",
    "unframe",
    "unframe_batch",
    "work_of",
]

_HEAD = struct.Struct("<2sBBII")
_CRC = struct.Struct("<I")
_VERSION = 1
REFUSED = 0  # kind of a frame whose worker has no usable number; the payload says why
HEADER = _HEAD.size + _CRC.size  # 16 bytes


def frame(payload: bytes, *, kind: int, k: int, q: int, work: int = 0, context: bytes = b"") -> bytes:
    """Put the header before a payload; ``work`` (0..15) is the number of the answer's cost."""
    head = _HEAD.pack(b"FM", _VERSION | work << 4, kind, k, q)
    return head + _CRC.pack(_crc(context, head, payload)) + payload


def _crc(context: bytes, head: bytes, payload: bytes | memoryview) -> int:
    return zlib.crc32(payload, zlib.crc32(head, zlib.crc32(context)))


def work_of(message: bytes) -> int:
    """Return the number of the answer's cost in a frame that :func:`unframe` has checked."""
    return message[2] >> 4


def unframe(message: bytes, *, kind: int, k: int, q: int, worker: str, context: bytes = b"") -> bytes:
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
    if magic != b"FM" or version & 15 != _VERSION:
        raise UplinkError(
            f"{who} sent a frame of format {magic!r} version {version & 15} at round {k} (this is b'FM' version "
            f"{_VERSION}); install the same fedmiss on both sides.",
            worker=worker,
            k=k,
        )
    head, body = message[: _HEAD.size], memoryview(message)[HEADER:]
    alien = crc != _crc(context, head, body)
    if alien and crc != _crc(b"", head, body):
        raise UplinkError(
            f"{who} sent a damaged message at round {k}: its checksum is not {crc:#010x} (damaged on the way, or of "
            "another job or other settings); it counts as missing, ask again.",
            worker=worker,
            k=k,
        )
    if got_k != k:
        raise UplinkError(
            f"{who} answered round {got_k} at round {k}; a late answer counts as missing.", worker=worker, k=k
        )
    if got_kind == REFUSED:
        words = bytes(message[HEADER : HEADER + 200]).decode(errors="replace")
        raise UplinkError(f"{who} has nothing to send at round {k}: {words}", worker=worker, k=k)
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
    if alien:
        raise UplinkError(
            f"{who} sent a whole message at round {k} that names no job; it counts as missing.",
            worker=worker,
            k=k,
        )
    return message[HEADER:]


# ---- many small messages under one header -------------------------------------------------------------------------


class Part(NamedTuple):
    """One worker's part of a batch."""

    slot: int
    work: int
    kind: int
    payload: bytes


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def _entries(parts: Sequence[Part], kind: int) -> bytes:
    """Slots as steps from the one before, the cost and whether the kind is the batch's in one byte, the length."""
    out, last = [_varint(len(parts))], -1
    for part in parts:
        flag = part.work << 1 | int(part.kind != kind)
        out += [_varint(part.slot - last - 1), bytes([flag]), _varint(len(part.payload))]
        last = part.slot
    return b"".join(out)


def frame_batch(parts: Sequence[Part], *, kind: int, k: int, q: int, context: bytes = b"") -> bytes:
    """One header for the messages of several workers of one machine, in increasing slot order."""
    body = _entries(parts, kind) + b"".join(part.payload for part in parts)
    head = _HEAD.pack(b"FB", _VERSION, kind, k, q)
    return head + _CRC.pack(_crc(context, head, body)) + body


def batch_size(slots: Sequence[int], lengths: Sequence[int]) -> int:
    """Return the bytes of :func:`frame_batch` without making them."""
    if len(slots) == 0:
        return 0
    size, last = HEADER + len(_varint(len(slots))), -1
    for slot, length in zip(slots, lengths, strict=True):
        size += len(_varint(int(slot) - last - 1)) + 1 + len(_varint(int(length))) + int(length)
        last = int(slot)
    return size


def unframe_batch(
    message: bytes, *, kind: int, k: int, q: int, sender: str, context: bytes = b""
) -> list[Part]:
    """Check a batch; return its parts or raise UplinkError. All of it is lost when a bit of it is wrong."""
    who = f"the batch of {sender!r} at round {k}"
    if len(message) < HEADER:
        raise UplinkError(
            f"{who} has {len(message)} bytes (a header alone has {HEADER}): cut on the way; ask again."
        )
    magic, version, got_kind, got_k, got_q = _HEAD.unpack_from(message)
    (crc,) = _CRC.unpack_from(message, _HEAD.size)
    body = bytes(message[HEADER:])
    if magic != b"FB" or version != _VERSION or crc != _crc(context, message[: _HEAD.size], body):
        raise UplinkError(f"{who} is damaged, or of another job, version or settings; ask again.")
    if (got_kind, got_k, got_q) != (kind, k, q):
        raise UplinkError(
            f"{who} is of round {got_k}, encoding {got_kind}, q={got_q} (expected {k}, {kind}, {q}); it is ignored."
        )
    at, parts, last = 0, [], -1

    def number() -> int:
        nonlocal at
        value = shift = 0
        while True:
            if at >= len(body) or shift > 35:
                raise UplinkError(f"{who} has a damaged table of messages.")
            byte = body[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    count, entries = number(), []
    if count > len(body):
        raise UplinkError(f"{who} has a damaged table of messages.")
    for _ in range(count):
        last += number() + 1
        flag = number()
        entries.append((last, flag, number()))
    for slot, flag, length in entries:
        if flag > 31 or at + length > len(body):
            raise UplinkError(f"{who} has a damaged table of messages.")
        parts.append(Part(slot, flag >> 1, REFUSED if flag & 1 else kind, body[at : at + length]))
        at += length
    if at != len(body):
        raise UplinkError(f"{who} has {len(body) - at} bytes too many.")
    return parts
