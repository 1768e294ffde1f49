"""Mutated frames: the same content or a sentence; never another error, whatever a correct checksum hides."""

# ruff: noqa: PT017
from __future__ import annotations

import struct
import typing
import zlib
from functools import cache

import numpy as np
import pytest

from fedmiss.errors import FedmissError, UplinkError
from fedmiss.federation import codec
from fedmiss.federation.codec import HEADER, Envelope, decode, encode
from fedmiss.federation.messages import ANSWERS, QUESTIONS

ENVELOPE = Envelope(b"j" * 8, b"s" * 8, 3)


def a_value(hint: object) -> object:
    if hint is int:
        return 7
    if hint is bool:
        return True
    if hint is float:
        return 0.25
    if hint is str:
        return "site"
    if typing.get_origin(hint) is tuple:
        return ("a", "bc")
    return np.arange(6.0).reshape(2, 3)


@cache
def frames(asks: bool) -> list[bytes]:
    """One good frame of each kind of message."""
    out = []
    for kind in QUESTIONS if asks else ANSWERS:
        hints = typing.get_type_hints(kind)
        values = [a_value(hints[name]) for name in codec._NAMES[kind]]
        try:
            out.append(encode([kind(*values)], ENVELOPE))
        except (FedmissError, ValueError):
            continue
    return out


def sealed(raw: bytes) -> bytes:
    """Give a frame the checksum that its bytes have."""
    head = raw[: codec._HEAD.size]
    return head + struct.pack("<I", zlib.crc32(raw[HEADER:], zlib.crc32(head))) + raw[HEADER:]


@pytest.mark.parametrize("asks", [True, False])
def test_a_mutated_frame_is_read_or_refused(asks):
    pool, rng, read = frames(asks), np.random.default_rng(9), 0
    assert len(pool) > 3
    for trial in range(4000):
        raw = bytearray(pool[trial % len(pool)])
        for _ in range(rng.integers(1, 5)):
            raw[rng.integers(HEADER, len(raw))] = rng.integers(256)
        raw = raw[: len(raw) - rng.choice([0, 0, 0, 1, 5])] + rng.bytes(rng.choice([0, 0, 1, 4]))
        try:
            found, messages = decode(sealed(bytes(raw)), ENVELOPE, asks=asks, who="north")
        except UplinkError as error:
            assert "north" in str(error)
            continue
        read += 1
        assert found == ENVELOPE
        assert all(type(m) in (QUESTIONS if asks else ANSWERS) for m in messages)
    assert 100 < read < 3900
