"""Mutated frames: the same content or a sentence; never another error, whatever a correct checksum hides."""

# ruff: noqa: PT017
from __future__ import annotations

import struct
import typing
import zlib

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from fedmiss.errors import FedmissError, InputError, UplinkError
from fedmiss.federation import codec
from fedmiss.federation.codec import HEADER, Envelope, decode, encode
from fedmiss.federation.messages import ANSWERS, QUESTIONS
from fedmiss.network.report import _facts

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
@settings(max_examples=400, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_a_mutated_frame_is_read_or_refused(asks, data):
    pool = frames(asks)
    assert len(pool) > 3
    raw = bytearray(data.draw(st.sampled_from(pool)))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(HEADER, len(raw) - 1))
        raw[at] = data.draw(st.integers(0, 255))
    cut = data.draw(st.sampled_from([0, 0, 1, 5]))
    raw = raw[: len(raw) - cut] + data.draw(st.binary(max_size=4))
    try:
        found, messages = decode(sealed(bytes(raw)), ENVELOPE, asks=asks, who="north")
    except UplinkError as error:
        assert "north" in str(error)
        return
    assert found == ENVELOPE
    assert all(type(m) in (QUESTIONS if asks else ANSWERS) for m in messages)


class Told:
    """The only field of a result that is JSON."""

    def __init__(self, results: str) -> None:
        self.results = results


@settings(max_examples=200, deadline=None)
@given(st.one_of(st.text(), st.recursive(st.none() | st.integers() | st.text(max_size=3),
       lambda inner: st.lists(inner) | st.dictionaries(st.text(max_size=4), inner)).map(repr)))  # fmt: skip
@example("[" * 100_000)
@example('{"a":' * 100_000)
@example("3")
@example("{}")
@example("NaN")
def test_the_result_that_a_hub_sends_is_facts_or_a_sentence(text):
    with pytest.raises(InputError):
        _facts(Told(text))  # type: ignore[arg-type]
