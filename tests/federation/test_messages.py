"""Messages as bytes: whole, or refused by name."""

import importlib.util
import struct
import zlib
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest

from fedmiss.errors import UplinkError
from fedmiss.federation import messages as msg
from fedmiss.federation.codec import HEADER, Envelope, decode, encode
from fedmiss.federation.words import describe_kinds, privacy_table
from fedmiss.resources import resource

ENVELOPE = Envelope(b"12345678", b"abcdefgh", 7)
RESEARCH = Path(__file__).resolve().parents[2] / "docs" / "research"


def sample(kind, seed=0):
    """A message of a kind with a value of the right type in every field."""
    rng = np.random.default_rng(seed)
    values = {
        "str": lambda: "Ärdea alba é" * int(rng.integers(3)),
        "int": lambda: int(rng.integers(-(2**40), 2**40)),
        "float": lambda: float(rng.normal()),
        "bool": lambda: bool(rng.integers(2)),
        "tuple[str, ...]": lambda: tuple("abc"[: rng.integers(4)]),
    }

    def array():
        shape = tuple(rng.integers(0, 4, rng.integers(1, 4)))
        dtype = rng.choice([np.float64, np.int64, np.uint8, np.uint64, np.int32])
        return rng.integers(0, 200, shape).astype(dtype)

    return kind(*(values.get(f.type, array)() for f in fields(kind)))


def same(a, b):
    for f in fields(a):
        x, y = getattr(a, f.name), getattr(b, f.name)
        np.testing.assert_array_equal(x, y)
        if isinstance(x, np.ndarray):
            assert (x.dtype, x.shape) == (y.dtype, y.shape)
        else:
            assert type(x) is type(y)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("kinds", [msg.QUESTIONS, msg.ANSWERS], ids=["questions", "answers"])
def test_round_trip_of_every_kind(kinds, seed):
    sent = [sample(k, seed + 100 * i) for i, k in enumerate(kinds)]
    raw = encode(sent, ENVELOPE)
    envelope, got = decode(raw, ENVELOPE, asks=kinds is msg.QUESTIONS, who="x")
    assert envelope == ENVELOPE
    assert [type(m) for m in got] == list(kinds)
    for a, b in zip(sent, got, strict=True):
        same(a, b)


def test_a_changed_byte_is_an_uplink_error_and_nothing_else():
    rng = np.random.default_rng(0)
    raw = encode([sample(k, i) for i, k in enumerate(msg.ANSWERS)], ENVELOPE)
    for _ in range(1000):
        bad = bytearray(raw)
        for at in rng.integers(0, len(raw), rng.integers(1, 4)):
            bad[at] = rng.integers(256)
        if bytes(bad) == raw:
            continue
        with pytest.raises(UplinkError, match="group 'a'"):
            decode(bytes(bad), ENVELOPE, asks=False, who="group 'a'")
    for cut in (0, 3, HEADER - 1, HEADER, len(raw) - 1):
        with pytest.raises(UplinkError, match="group 'a'"):
            decode(raw[:cut], ENVELOPE, asks=False, who="group 'a'")


@pytest.mark.parametrize("kinds", [msg.QUESTIONS, msg.ANSWERS], ids=["questions", "answers"])
def test_a_forged_body_with_a_right_checksum_is_read_or_refused(kinds):
    """A stranger may compute checksums: sizes and types are still checked, and there is no other error."""
    pool, rng, read = (
        [encode([sample(k, i)], ENVELOPE) for i, k in enumerate(kinds)],
        np.random.default_rng(9),
        0,
    )
    for trial in range(4000):
        raw = bytearray(pool[trial % len(pool)])
        for _ in range(rng.integers(1, 5)):
            raw[rng.integers(HEADER, len(raw))] = rng.integers(256)
        body = bytes(raw[HEADER : len(raw) - rng.choice([0, 0, 0, 1, 5])]) + rng.bytes(
            rng.choice([0, 0, 1, 4])
        )
        head = bytes(raw[: HEADER - 4])
        raw = head + struct.pack("<I", zlib.crc32(body, zlib.crc32(head))) + body
        try:
            found, messages = decode(raw, ENVELOPE, asks=kinds is msg.QUESTIONS, who="north")
        except UplinkError as error:
            assert "north" in str(error)  # noqa: PT017
            continue
        read += 1
        assert found == ENVELOPE
        assert all(type(m) in kinds for m in messages)
    assert 100 < read < 3900


@pytest.mark.parametrize(
    ("envelope", "words"),
    [
        (Envelope(b"another!", b"abcdefgh", 7), "of job"),
        (Envelope(b"12345678", b"changed!", 7), "under settings"),
        (Envelope(b"12345678", b"abcdefgh", 6), "from exchange 6, expected 7"),
    ],
)
def test_a_frame_of_another_job_settings_or_exchange_is_refused_by_name(envelope, words):
    raw = encode([sample(msg.Done)], envelope)
    with pytest.raises(UplinkError, match=f"group 'club' sent a message {words}"):
        decode(raw, ENVELOPE, asks=False, who="group 'club'")
    with pytest.raises(UplinkError, match="not a message of this protocol"):
        decode(encode([sample(msg.Close)], ENVELOPE), ENVELOPE, asks=False, who="group 'club'")


def test_another_version_of_the_protocol_is_said():
    raw = bytearray(encode([sample(msg.Done)], ENVELOPE))
    raw[2:4] = struct.pack("<H", msg.PROTOCOL + 1)
    with pytest.raises(UplinkError, match=f"speaks version {msg.PROTOCOL + 1} of the protocol"):
        decode(bytes(raw), ENVELOPE, asks=False, who="group 'club'")


def test_the_page_on_privacy_lists_what_the_types_say():
    page = (RESEARCH / "messages.md").read_text()
    assert privacy_table() in page, "run python docs/make_privacy.py"


def test_the_walk_through_has_the_numbers_of_its_example():
    script = importlib.util.spec_from_file_location("make_federation", resource("docs", "make_federation.py"))
    module = importlib.util.module_from_spec(script)
    script.loader.exec_module(module)
    assert module.numbers() in (RESEARCH / "federation.md").read_text(), "run python docs/make_federation.py"


def test_messages_in_words_name_every_kind_that_was_sent():
    text = "\n".join(describe_kinds({"Months": 3, "Solve": 2}))
    assert "Months (3)" in text
    assert "Solve (2)" in text
    assert "Score" not in text
