"""Laws of the compiled reader of text: blocks, fields, codes, and what single values read as."""

import random
from datetime import datetime

import numpy as np
import polars as pl
import pytest
from ebird_files import fields_of
from hypothesis import given, settings
from hypothesis import strategies as st

from fedmiss.errors import FedmissError
from fedmiss.etl import _lines, codes, fields
from fedmiss.etl.fields import Dictionary, ReadReport, _bad_utf8, read_blocks
from fedmiss.etl.sources import expand


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(raw=st.binary(max_size=300), size=st.integers(8, 64))
def test_blocks_give_back_every_byte(raw, size, tmp_path_factory):
    """Whole lines, in order, nothing lost or doubled, whatever the block size; UTF-8 is judged as Python does."""
    path = tmp_path_factory.getbasetemp() / "blocks.txt"
    path.write_bytes(b"a\tb\n" + raw)
    before = fields.BLOCK_BYTES
    fields.BLOCK_BYTES = size
    try:
        report = ReadReport()
        got = b"".join(bytes(b.buf[: b.stop]) for b in read_blocks(expand(path)[0], report))
    except FedmissError:
        with pytest.raises(UnicodeDecodeError):
            raw.decode("utf-8")
        return
    finally:
        fields.BLOCK_BYTES = before
    raw.decode("utf-8")
    assert got == raw + (b"\n" if raw and not raw.endswith(b"\n") else b"")
    assert report.lines == got.count(b"\n")
    assert report.unterminated == (got != raw)


@settings(max_examples=200, deadline=None)
@given(
    lines=st.lists(st.lists(st.text("ab\r é", max_size=4), min_size=1, max_size=6), min_size=1, max_size=8),
    more=st.integers(1, 12),
)
def test_fields_equal_python_split(lines, more):
    lines = lines * more  # most are cut sixty-four bytes at a time, the rest one by one
    raw = "".join("\t".join(f) + "\n" for f in lines).encode()
    buf = np.frombuffer(raw, np.uint8)
    seps, ends = np.empty(buf.size + 64, np.int32), np.empty(buf.size + 64, np.int32)
    n = _lines.separators(buf, buf.size, 9, seps, ends)
    assert n == len(lines)
    wanted = np.arange(6, dtype=np.int32)
    starts, lengths = np.empty((n, 6), np.int32), np.empty((n, 6), np.int32)
    counts = np.empty(n, np.int32)
    _lines.fields(buf, n, seps, ends, wanted, starts, lengths, counts)
    for r, line in enumerate(raw.decode().split("\n")[:-1]):
        expected = line.removesuffix("\r").split("\t")
        got = [raw[s : s + k].decode() for s, k in zip(starts[r], lengths[r], strict=True)]
        assert counts[r] == len(expected)
        assert got == expected + [""] * (6 - len(expected))


def test_dictionary_codes_survive_growth(tmp_path):
    """More distinct values than the first table holds."""
    words = [f"w{i:06d}" for i in range(90_000)]
    raw = np.frombuffer("".join(words).encode(), np.uint8)
    starts = (np.arange(len(words), dtype=np.int32) * 7).reshape(-1, 1)
    lengths = np.full_like(starts, 7)
    book = Dictionary([0], tmp_path / "words.parquet", ["word"])
    parts = [
        book.encode(raw, starts[i : i + 10_000], lengths[i : i + 10_000])
        for i in range(0, len(words), 10_000)
    ]
    assert np.array_equal(np.concatenate(parts), np.arange(len(words)))
    assert np.array_equal(book.encode(raw, starts[::-1], lengths[::-1]), np.arange(len(words))[::-1])
    book.close()
    assert pl.read_parquet(tmp_path / "words.parquet")["word"].to_list() == words


def test_utf8_is_checked_as_python_does():
    """The first byte that is no UTF-8 is found where ``bytes.decode`` finds it, in blocks of any length."""
    rng = random.Random(3)
    broken = 0
    for _ in range(1500):
        parts = [rng.choice(["a", "b" * 9, "é", "漢", "😀", "x" * 60]) for _ in range(rng.randrange(60))]
        raw = bytearray("".join(parts).encode())
        for _ in range(rng.randrange(3) if raw else 0):
            raw[rng.randrange(len(raw))] = rng.randrange(256)
        if rng.random() < 0.2:
            del raw[rng.randrange(len(raw) + 1) :]
        try:
            raw.decode()
            expected = -1
        except UnicodeDecodeError as error:
            expected = error.start
        broken += expected >= 0
        buf = np.frombuffer(bytes(raw) + b"\n" * 8, np.uint8)
        assert _bad_utf8(buf, len(raw)) == expected
    assert 300 < broken < 1300


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(
    st.lists(
        st.from_regex(r"S[0-9]{0,20}", fullmatch=True) | st.text("S0123456789x/:", max_size=20), max_size=9
    )
)
def test_ids_read_as_python_reads_them(words):
    """A letter and 1 to 17 digits, wherever in the block they stand; a blank; nothing else."""
    out = np.empty(len(words), np.int64)
    _lines.read_ids(*fields_of(words), ord("S"), out)
    plain = [w[0] == "S" and w[1:].isdigit() and len(w) <= 18 if w else False for w in words]
    expected = [
        int(w[1:]) if ok else -1 if w == "" else codes.BAD for w, ok in zip(words, plain, strict=True)
    ]
    assert out.tolist() == expected


@pytest.mark.slow
@settings(deadline=None)
@given(st.lists(st.datetimes(datetime(1900, 1, 1), datetime(2200, 1, 1)), min_size=2, max_size=12))
def test_stamps_sort_like_the_times(times):
    """With 0 to 6 decimals, in any mixture."""
    words = [str(t).rstrip("0") if t.microsecond else str(t) for t in times]
    out = np.empty(len(words), np.int64)
    _lines.read_stamps(*fields_of(words), out)
    rank = {t: i for i, t in enumerate(sorted(set(times)))}
    ranked = {v: i for i, v in enumerate(sorted(set(out.tolist())))}
    assert [rank[t] for t in times] == [ranked[v] for v in out.tolist()]
