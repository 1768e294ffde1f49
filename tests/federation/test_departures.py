"""Who departs from the protocol is named, and sees nothing but sums."""

import re
from dataclasses import replace

import numpy as np
import pytest

from fedmiss.errors import ConfigError, EngineError, UplinkError
from fedmiss.federation import messages as msg
from fedmiss.federation.circle import Circle, frame_label
from fedmiss.federation.codec import decode, encode
from fedmiss.federation.gather import Board
from fedmiss.federation.masks import Masks
from fedmiss.federation.outline import Outline, outline_of

from .network import JOB, NEGBIN, SETTINGS, Places, all_of, clubs_of, order, run, together


@pytest.mark.slow
def test_a_copy_that_asks_something_else_is_named(panel, tmp_path):
    """Another number of candidates, another seed, another rank: in exchange and field, and by the name of who is alone."""
    for i, (what, words) in enumerate(
        (
            (order(seed=1), "other words, whole numbers or shapes in (Pairs|Support|Open)"),
            (order((replace(NEGBIN, rank=0),)), "Open instead of Pairs"),
            (order(plan=replace(order().plan, share=0.8)), r"Support\.share: 0\.8 instead of 0\.9"),
        )
    ):
        got = run(clubs_of(panel, tmp_path / str(i)), order(), whats={"owner-1": what})
        for name, error in got.items():
            assert isinstance(error, EngineError), (name, error)
            assert "the copy of owner-1 of the job asks something else" in str(error), error
        assert re.search(words, str(got["owner-0"])), str(got["owner-0"])


def test_the_sign_of_one_column_is_seen(panel):
    """Numbers that a processor may round are equal; a changed one in a million, a sign, a row that moved are not."""
    rng = np.random.default_rng(0)
    for shape in ((1,), (1, 24), (3, 24, 2), (1, 600, 3)):
        V = rng.normal(size=shape)
        ask = msg.Product(0, np.zeros(1, np.int64), V, np.ones(1), np.zeros((0, 0), np.uint8))
        mine = outline_of([ask])
        near = replace(ask, V=V * (1 + 1e-9 * rng.normal(size=shape)))
        assert not mine.differs(outline_of([near]))
        for other in (-V, V[..., ::-1].copy(), V * (1 + 1e-4)):
            if np.array_equal(other, V):
                continue
            assert "Product.V" in mine.differs(outline_of([replace(ask, V=other)])), shape
    assert "shapes" in mine.differs(outline_of([replace(ask, batch=1)]))
    read, rest = type(mine).read(mine.as_bytes() + b"more")
    assert rest == b"more"
    assert not mine.differs(read)


class Liar:
    """Changes the frames of exchange 7."""

    def __init__(self, seat, change):
        self.seat, self.change, self.restore = seat, change, seat.restore

    def some_of(self, exchange, have, enough):
        got = self.seat.some_of(exchange, have, enough)
        return self.change(got) if exchange == 7 else got


def lied_to(clubs, change):
    """Seats of which that of owner-0 is shown changed frames."""
    board = Board(list(clubs), patience=5.0)
    seats = {name: board.seat(name) for name in clubs}
    return seats | {"owner-0": Liar(seats["owner-0"], change)}


def signs_twice(party):
    """owner-1 signs two different frames of one exchange."""
    label = frame_label(JOB, "owner-1", 7)
    return lambda got: got | {"owner-1": resigned(party, label, got["owner-1"])}


@pytest.mark.slow
def test_a_relay_that_shows_different_frames_is_found_out(panel, tmp_path):
    """Whoever carries frames cannot make them; whoever signs two of them is found at the next exchange."""

    def swap(got):
        return got | {"owner-1": got["owner-1"][:-1] + bytes([got["owner-1"][-1] ^ 1])}

    clubs = clubs_of(panel, tmp_path / "a")
    got = run(clubs, seats=lied_to(clubs, swap))
    assert isinstance(got["owner-0"], UplinkError)
    assert "a frame in the name of 'owner-1' is not signed by its key" in str(got["owner-0"])
    # a member that signs two different frames of one exchange: here its own program makes the second one
    clubs = clubs_of(panel, tmp_path / "b")
    got = run(clubs, seats=lied_to(clubs, signs_twice(clubs["owner-1"].party)))
    said = [str(e) for e in got.values() if isinstance(e, EngineError)]
    assert any("have seen different frames before it" in s for s in said), said
    assert not any(hasattr(e, "totals") for e in got.values())


def resigned(party, label, raw):
    """Other sums under a valid signature."""
    body = party.unlock(KEY["now"], label, raw[64:])
    answer = Outline.read(body[32:])[1]
    envelope, (*others, last) = decode(answer, None, asks=False, who="")
    last = replace(last, months=last.months + np.uint64(1 << 32))
    changed = encode([*others, last], envelope)
    return party.sign(label, party.lock(KEY["now"], label, body[: len(body) - len(answer)] + changed))


KEY = {}


@pytest.fixture(autouse=True)
def _remember_the_key_of_frames(monkeypatch):
    genuine = Circle._agree

    def agree(self):
        genuine(self)
        KEY["now"] = self.key

    monkeypatch.setattr(Circle, "_agree", agree)


def test_masks_cancel_up_to_the_exchange_at_which_frames_differ(panel, tmp_path, monkeypatch):
    """And not after it: nobody can hand one organisation other frames than the rest and read its next answer."""
    sums, genuine = {}, Masks.stream

    def stream(self, exchange, size, transcript=b""):
        out = genuine(self, exchange, size, transcript)
        sums.setdefault(exchange, []).append(out)
        return out

    monkeypatch.setattr(Masks, "stream", stream)
    clubs = clubs_of(panel, tmp_path)
    run(clubs, seats=lied_to(clubs, signs_twice(clubs["owner-1"].party)))
    for exchange in range(1, 8):
        assert not sum(sums[exchange]).any()
    assert len({x.size for x in sums[8]}) == 1
    assert np.count_nonzero(sum(sums[8])) > 0.99 * sums[8][0].size


@pytest.mark.slow
def test_frames_are_read_by_the_roster_only(panel, tmp_path):
    """Who carries them sees no word of a question or an answer, and no number: only sizes."""
    clubs = clubs_of(panel, tmp_path, masked=False)
    board = Board(list(clubs))
    got = run(clubs, board=board)
    assert not any(isinstance(x, BaseException) for x in got.values())
    frames = b"".join(f for number, fs in board.frames.items() if number for f in fs.values())
    assert len(frames) > 100_000
    numbers = [np.float64(x).tobytes() for x in got["owner-0"].totals[0]]
    for word in (b"Solve", b"Months", b"owner-", SETTINGS, *numbers):
        assert word not in frames


def test_more_exchanges_than_approved_are_refused(panel, tmp_path):
    got = run(clubs_of(panel, tmp_path), exchanges=20)
    for name, error in got.items():
        assert isinstance(error, ConfigError)
        assert f"the job of '{name}' asks for exchange 21 (the approved study allows 20)" in str(error)
        assert "new study with more (exchanges in study.toml)" in str(error), "a revision keeps the number"


def test_another_version_is_named_before_anything_else_is_sent(panel, tmp_path, monkeypatch):
    clubs = clubs_of(panel, tmp_path)
    board = Board(list(clubs), patience=5.0)
    club = clubs["owner-2"]

    def old():
        import json

        body = json.dumps({"version": "0.1.0", "protocol": 1, "sealed": {}}).encode()
        return all_of(
            board.seat("owner-2"),
            list(clubs),
            "owner-2",
            0,
            club.party.sign(frame_label(JOB, "owner-2", 0), body),
        )

    got = together(
        {"owner-2": old} | {n: (lambda n=n: clubs[n].run(board.seat(n))) for n in ("owner-0", "owner-1")}
    )
    for name in ("owner-0", "owner-1"):
        assert "owner-2 runs fedmiss 0.1.0" in str(got[name])
    assert set(board.frames) == {0}


def test_who_hands_out_two_common_keys_is_named(tmp_path):
    """Those who had another key named each other: nobody could read the frames of the other half."""
    places = Places(("a", "b", "c"), tmp_path, masked=True, patience=0.3)
    honest = places.parties["a"].seal
    object.__setattr__(
        places.parties["a"], "seal", lambda peer, key: honest(peer, key if peer == "b" else bytes(16))
    )
    got = together({n: (lambda n=n: places.circle(n).add_up([], np.ones(1))) for n in "abc"})
    assert str(got["c"]).startswith("a signed a frame of exchange 0 that cannot be read")
    assert "no frame from c" in str(got["b"])
