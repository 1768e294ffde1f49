"""Messages as bytes and back, without pickle: a frame, then typed fields in the order of their dataclass.

    offset 0    2 bytes  b"FH" question, b"FG" answer
           2    u16      protocol version
           4    8 bytes  job
           12   8 bytes  digest of the job's settings
           20   u32      exchange, from 0
           24   u32      CRC-32 of the first 24 bytes and of the body
           28   body: u16 number of messages, then each: u8 kind and its fields

A field starts with one byte for its type: i (int64), f (float64), b (bool), s (text), t (tuple of texts), a (array).
Little-endian. Arrays: u8 type, u8 dimensions, u32 each, then the numbers.
"""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from fedmiss.errors import ConfigError, UplinkError
from fedmiss.federation.messages import ANSWERS, PROTOCOL, QUESTIONS, Message, Refusal

_HEAD = struct.Struct("<2sH8s8sI")
_CRC = struct.Struct("<I")
HEADER = _HEAD.size + _CRC.size
_TYPES = ("<f8", "<i8", "<i4", "|u1", "<u8", "<u4")
_DTYPES = tuple(np.dtype(t) for t in _TYPES)
_INT, _FLOAT, _LENGTH, _COUNT, _BYTE = (struct.Struct("<" + c) for c in "qdIHB")
_SHAPES = [struct.Struct(f"<{n}I") for n in range(9)]
_HEADS = [struct.Struct(f"<cBB{n}I") for n in range(9)]
_ARRAY = ord("a")
_CODE = {np.dtype(t): i for i, t in enumerate(_TYPES)}
_NUMBER: dict[type, int] = {k: i for kinds in (QUESTIONS, ANSWERS) for i, k in enumerate(kinds)}
_NAMES = {k: tuple(f.name for f in fields(k)) for k in (*QUESTIONS, *ANSWERS)}


@dataclass(frozen=True, slots=True)
class Envelope:
    """What a frame must say of itself: job and settings (8 bytes each) and the number of the exchange."""

    job: bytes
    settings: bytes
    exchange: int


def _put(value: Any, out: list[bytes]) -> None:
    if isinstance(value, np.ndarray):
        code = _CODE.get(value.dtype)
        if code is None:
            raise TypeError(f"arrays of {value.dtype} do not travel")
        out.append(_HEADS[value.ndim].pack(b"a", code, value.ndim, *value.shape))
        out.append(value.tobytes())
    elif isinstance(value, bool):
        out.append(b"b\x01" if value else b"b\x00")
    elif isinstance(value, int | np.integer):
        if not -1 << 63 <= value < 1 << 63:
            raise ConfigError(f"the whole number {value} does not travel (must be below 2^63).")
        out.append(b"i" + _INT.pack(int(value)))
    elif isinstance(value, float):
        out.append(b"f" + _FLOAT.pack(value))
    elif isinstance(value, str):
        raw = value.encode()
        out.append(b"s" + _LENGTH.pack(len(raw)) + raw)
    elif isinstance(value, tuple):
        out.append(b"t" + _LENGTH.pack(len(value)))
        for text in value:
            raw = text.encode()
            out.append(_LENGTH.pack(len(raw)) + raw)
    else:
        raise TypeError(f"a field of {type(value).__name__} does not travel")


def encode(messages: Sequence[Message], envelope: Envelope) -> bytes:
    """Pack messages of one side into one frame."""
    asks = not messages or type(messages[0]) in QUESTIONS
    out: list[bytes] = [struct.pack("<H", len(messages))]
    for message in messages:
        out.append(bytes([_NUMBER[type(message)]]))
        for name in _NAMES[type(message)]:
            _put(getattr(message, name), out)
    body = b"".join(out)
    head = _HEAD.pack(b"FH" if asks else b"FG", PROTOCOL, envelope.job, envelope.settings, envelope.exchange)
    return head + _CRC.pack(zlib.crc32(body, zlib.crc32(head))) + body


def whole(raw: bytes, question: bytes) -> bool:
    """Whether a frame is an undamaged answer of the question's job and exchange."""
    if len(raw) < HEADER or raw[:2] != b"FG" or raw[4:12] != question[4:12] or raw[20:24] != question[20:24]:
        return False
    (crc,) = _CRC.unpack_from(raw, _HEAD.size)
    return bool(crc == zlib.crc32(memoryview(raw)[HEADER:], zlib.crc32(raw[: _HEAD.size])))


def refuses(raw: bytes) -> bool:
    """Whether a whole answer is a refusal."""
    return (
        len(raw) > HEADER + 2
        and raw[HEADER : HEADER + 2] == b"\x01\x00"
        and raw[HEADER + 2] == _NUMBER[Refusal]
    )


# In one process the very same frame goes to every group: it is read once. Messages are values, nobody changes them.
_LAST: list[tuple[bytes, Envelope, list[Message]] | None] = [None]


class _Reader:
    def __init__(self, raw: bytes, *, copy: bool) -> None:
        self.raw, self.at, self.copy = raw, HEADER, copy

    def take(self, form: struct.Struct) -> Any:
        (out,) = form.unpack_from(self.raw, self.at)
        self.at += form.size
        return out

    def bytes(self, n: int) -> bytes:
        if n > len(self.raw) - self.at:
            raise ValueError("a field is longer than the message")
        self.at += n
        return self.raw[self.at - n : self.at]

    def value(self) -> Any:
        kind = self.raw[self.at]
        self.at += 1
        if kind == _ARRAY:
            dtype, ndim = _DTYPES[self.raw[self.at]], self.raw[self.at + 1]
            shape = _SHAPES[ndim].unpack_from(self.raw, self.at + 2)
            self.at += 2 + 4 * ndim
            n = math.prod(shape)
            if n * dtype.itemsize > len(self.raw) - self.at:
                raise ValueError("an array is longer than the message")
            out = np.frombuffer(self.raw, dtype, n, self.at).reshape(shape)
            self.at += n * dtype.itemsize
            # What comes from bytes cannot be written to, and compiled loops would be compiled twice: groups get a copy.
            return out.copy() if self.copy else out
        if kind == ord("i"):
            return self.take(_INT)
        if kind == ord("b"):
            return self.take(_BYTE) == 1
        if kind == ord("f"):
            return self.take(_FLOAT)
        if kind == ord("s"):
            return self.bytes(self.take(_LENGTH)).decode()
        if kind == ord("t"):
            return tuple(self.bytes(self.take(_LENGTH)).decode() for _ in range(self.take(_LENGTH)))
        raise ValueError(f"a field of type {kind}")


def decode(raw: bytes, envelope: Envelope | None, *, asks: bool, who: str) -> tuple[Envelope, list[Message]]:
    """Check a frame and unpack its messages.

    Parameters
    ----------
    envelope : what the frame must say, None to take what it says (a group's first question)
    asks : whether questions are expected, else answers
    who : name of the sender, for messages to people

    Raises
    ------
    UplinkError    damaged, of another version, job, settings or exchange, or of unknown content
    """
    last = _LAST[0]
    if last is not None and last[0] is raw and asks:
        return last[1], last[2]
    if len(raw) < HEADER:
        raise UplinkError(
            f"{who} sent {len(raw)} bytes (a header alone has {HEADER}): cut on the way. Ask again.", who=who
        )
    magic, version, job, settings, exchange = _HEAD.unpack_from(raw)
    (crc,) = _CRC.unpack_from(raw, _HEAD.size)
    if magic != (b"FH" if asks else b"FG"):
        raise UplinkError(
            f"{who} sent {magic!r}, not a message of this protocol. Check the address.", who=who
        )
    if version != PROTOCOL:
        raise UplinkError(
            f"{who} speaks version {version} of the protocol, here it is {PROTOCOL}. Install the same fedmiss on all sides.",
            who=who,
        )
    if crc != zlib.crc32(memoryview(raw)[HEADER:], zlib.crc32(raw[: _HEAD.size])):
        raise UplinkError(
            f"{who} sent a damaged message: its checksum is not {crc:#010x}. Ask again.", who=who
        )
    if envelope is not None:
        for what, got, want, move in (
            ("of job", job.hex(), envelope.job.hex(), "Stop the other job, or start this group again"),
            ("under settings", settings.hex(), envelope.settings.hex(), "Give all sides the same settings"),
            ("from exchange", exchange, envelope.exchange, "A late message is ignored; ask again"),
        ):
            if got != want:
                raise UplinkError(f"{who} sent a message {what} {got}, expected {want}. {move}.", who=who)
    kinds = QUESTIONS if asks else ANSWERS
    try:
        reader = _Reader(raw, copy=asks)
        messages: list[Message] = []
        for _ in range(reader.take(_COUNT)):
            kind = kinds[reader.take(_BYTE)]
            messages.append(kind(*(reader.value() for _ in _NAMES[kind])))
        if reader.at != len(raw):
            raise ValueError(f"{len(raw) - reader.at} bytes too many")
    except (ValueError, IndexError, struct.error, TypeError) as error:
        raise UplinkError(f"{who} sent a message that cannot be read: {error}. Ask again.", who=who) from None
    found = Envelope(job, settings, exchange)
    if asks:
        _LAST[0] = (raw, found, messages)
    return found, messages
