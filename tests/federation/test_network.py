"""Between organisations: nothing is lost, nothing is seen but sums, whatever the network and the power supply do."""

from __future__ import annotations

import errno
import os
import random
import shutil
import threading
import time
from dataclasses import dataclass, fields, replace

import numpy as np
import pytest

from fedmiss.errors import ConfigError, EngineError, InputError, UplinkError
from fedmiss.federation import journal as journal_module
from fedmiss.federation import messages as msg
from fedmiss.federation.circle import Circle, Ended, entries, frame_label
from fedmiss.federation.codec import decode, encode
from fedmiss.federation.gather import STOPPED, WORKING, Board, Relay, Seat, packed, unpacked
from fedmiss.federation.group.visits import digest_of
from fedmiss.federation.hub.job import run_job
from fedmiss.federation.journal import Journal
from fedmiss.federation.link import Link
from fedmiss.federation.masks import Masks, masked_fields
from fedmiss.federation.member import Member
from fedmiss.federation.outline import Outline, outline_of
from fedmiss.models.lowrank.choice import default_candidates
from fedmiss.network.folder import Folder, check_folder
from fedmiss.rng import rng_for

from .network import (
    JOB,
    NEGBIN,
    SETTINGS,
    Kill,
    Places,
    all_of,
    clubs_of,
    in_one_process,
    order,
    run,
    together,
)
from .owners import largest, owned


@pytest.fixture(scope="module")
def panel():
    return owned(3, n=700, J=40, L=24, size=2.0, seed=5)


@pytest.fixture(scope="module")
def here(panel, tmp_path_factory):
    """The job in one process."""
    return in_one_process(clubs_of(panel, tmp_path_factory.mktemp("here")))


@pytest.fixture(scope="module")
def masked(panel, tmp_path_factory):
    """The job under masks, without interruption, and its folder."""
    folder = tmp_path_factory.mktemp("masked")
    return run(clubs_of(panel, folder))["owner-0"], folder


def same_bits(a, b):
    np.testing.assert_array_equal(a.totals, b.totals)
    np.testing.assert_array_equal(a.draws, b.draws)
    np.testing.assert_array_equal(a.members[0].state.T, b.members[0].state.T)


def with_the_same_keys(panel, masked, folder):
    """Clubs with the keys of the uninterrupted job."""
    for path in masked[1].glob("*/identity.key"):
        shutil.copytree(path.parent, folder / path.parent.name)
    return clubs_of(panel, folder)


def test_everybody_ends_with_the_answer_of_one_process(panel, here, masked, tmp_path):
    for name, joint in run(clubs_of(panel, tmp_path, masked=False)).items():
        same_bits(here, joint), name
    clubs = clubs_of(panel, tmp_path / "masked")
    got = run(clubs)
    for joint in got.values():
        same_bits(got["owner-0"], joint)
        assert largest(joint.totals[0], here.totals[0]) < 1e-8
        for b in range(len(here.draws)):
            assert largest(joint.draws[b, 0], here.draws[b, 0]) < 1e-8
    assert got["owner-0"].agreement.panel.visits == here.agreement.panel.visits


# -- the network ---------------------------------------------------------------------------------------------


class Synchroniser(threading.Thread):
    """Every club has a copy of the shared folder; files come late, in any order, in part, twice, and listings are old."""

    def __init__(self, copies, seed):
        super().__init__(daemon=True)
        self.copies, self.chance, self.over = copies, random.Random(seed), threading.Event()
        self.stale = {}

    def run(self):
        while not self.over.is_set():
            files = [
                (c, p) for n, c in self.copies.items() for p in c.rglob(f"{n}-*.frame") if " " not in p.name
            ]
            self.chance.shuffle(files)
            for at, path in files:
                for other in self.copies.values():
                    what = self.chance.random()
                    there = other / path.relative_to(at)
                    raw = path.read_bytes()
                    if other == at or what < 0.3 or (there.exists() and there.stat().st_size == len(raw)):
                        continue  # late
                    there.parent.mkdir(parents=True, exist_ok=True)
                    if what < 0.5:
                        there.write_bytes(raw[: len(raw) // 2])  # in part: the rest comes later
                    elif what < 0.6:
                        there.with_name(f"{there.stem} (conflicted copy).frame").write_bytes(raw)
                    elif what < 0.65:
                        there.with_name(there.name + ".part").write_bytes(raw[:-1])
                    else:
                        there.write_bytes(raw)
            time.sleep(0.002)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.nightly)])
def test_a_folder_that_is_synchronised_late_twice_and_in_part_changes_no_bit(
    panel, masked, tmp_path, monkeypatch, seed
):
    clubs = with_the_same_keys(panel, masked, tmp_path / "clubs")
    copies = {name: tmp_path / f"copy-{name}" for name in clubs}
    for copy in copies.values():
        copy.mkdir()
    genuine, last, chance = os.listdir, {}, random.Random(seed)

    def stale(path="."):
        if chance.random() < 0.3 and path in last:
            return last[path]  # an old listing
        last[path] = genuine(path)
        return last[path]

    monkeypatch.setattr("fedmiss.network.folder.os.listdir", stale)
    synchroniser = Synchroniser(copies, seed)
    synchroniser.start()
    seats = {
        name: shared_folder(copies[name], clubs[name], sleep=lambda s: time.sleep(0.002)) for name in clubs
    }
    got = run(clubs, seats=seats)
    synchroniser.over.set()
    synchroniser.join()
    for joint in got.values():
        same_bits(masked[0], joint)


def shared_folder(root, club, **more):
    party = club.party
    return Folder(
        root, club.name, party.roster, "egrets", club.job, patience=20.0,
        genuine=lambda name, exchange, raw: party.verified(name, frame_label(club.job, name, exchange), raw), **more,
    )  # fmt: skip


def test_no_shared_folder_is_made_where_one_was_mounted(panel, tmp_path):
    club = clubs_of(panel, tmp_path / "clubs")["owner-1"]
    (tmp_path / "shared").mkdir()
    folder = shared_folder(tmp_path / "shared", club, sleep=lambda s: None)
    frame = club.party.sign(frame_label(club.job, club.name, 0), b"{}")
    (tmp_path / "shared").rmdir()
    with pytest.raises(InputError, match="could not be written"):
        folder.restore(0, frame)
    folder._show_again()
    assert not (tmp_path / "shared").exists()
    (tmp_path / "shared").mkdir()
    folder._show_again()  # it is there again, and so is the frame
    assert [path.read_bytes() for path in (tmp_path / "shared").rglob("*.frame")] == [frame]


@pytest.mark.slow
def test_what_strangers_put_into_the_folder_is_passed_over(panel, masked, tmp_path):
    """Frames of another exchange or job, bytes of somebody else, other files: under an organisation's name, too."""
    clubs = with_the_same_keys(panel, masked, tmp_path / "clubs")
    shared = tmp_path / "shared"
    shared.mkdir()
    rubbish = threading.Event()
    seats = {
        name: shared_folder(shared, club, sleep=lambda s: time.sleep(0.002)) for name, club in clubs.items()
    }
    at = seats["owner-0"].at

    def stranger():
        import hashlib

        while not rubbish.is_set():
            for exchange in sorted(at.glob("*")):
                for name in clubs:
                    whole = list(exchange.glob(f"{name}-*.frame"))
                    old = whole[0].read_bytes() if whole else bytes(200)
                    for raw in (old[:64] + b"changed" + old[71:], bytes(100), b""):
                        digest = hashlib.blake2b(raw, digest_size=16).hexdigest()
                        after = at / f"{int(exchange.name) + 1:06d}"
                        after.mkdir(exist_ok=True)
                        (after / f"{name}-{digest}.frame").write_bytes(raw)
                    if whole:  # a genuine frame under a later number
                        shutil.copy(whole[0], after / whole[0].name)
                (exchange / "photo.jpg").write_bytes(b"a bird")
            time.sleep(0.01)

    thread = threading.Thread(target=stranger, daemon=True)
    thread.start()
    got = run(clubs, seats=seats)
    rubbish.set()
    thread.join()
    for joint in got.values():
        same_bits(masked[0], joint)
    assert (at / "000002" / "photo.jpg").exists()


class Star:
    """A relay and seats whose connections lose, repeat and damage packets; the relay forgets everything now and then."""

    def __init__(self, names, seed):
        self.chance, self.seats = random.Random(seed), {n: Seat(n) for n in names}
        self.old, self.restarts = {}, 0

    def ask(self, packets):
        if self.chance.random() < 0.03:
            raise Kill
        out = {}
        for name, packet in packets.items():
            what = self.chance.random()
            if what < 0.1:
                continue  # the packet is lost
            if what < 0.2 and name in self.old:
                packet = self.old[name]  # an old one comes in its place
            answer = self.seats[name].answer(packet)
            if 0.2 < what < 0.3:
                continue  # the answer is lost
            if 0.3 < what < 0.35:
                answer = answer[: len(answer) // 2]
            self.old[name] = packet
            out[name] = answer
        return out

    def run(self):
        while True:
            try:
                return Relay(list(self.seats)).run(self.ask, lambda: None)
            except Kill:
                self.restarts += 1


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_a_relay_that_loses_repeats_damages_and_forgets_changes_no_bit(panel, masked, tmp_path, seed):
    clubs = with_the_same_keys(panel, masked, tmp_path)
    star = Star(list(clubs), seed)

    def club(name):
        joint = clubs[name].run(star.seats[name])
        star.seats[name].end(True)
        return joint

    got = together({**{n: (lambda n=n: club(n)) for n in clubs}, "relay": star.run})
    assert got.pop("relay") is None
    assert star.restarts
    for joint in got.values():
        same_bits(masked[0], joint)


def test_a_relay_says_who_stopped_and_lets_nobody_wait_for_nothing():
    posts = {"a": packed(0, {"": b"x"}), "b": STOPPED}
    relay = Relay(["a", "b"])
    with pytest.raises(EngineError, match="b stopped before the end"):
        relay.run(lambda packets: {n: posts[n] for n in packets}, lambda: None)
    assert relay.ended == {"b": False}


@pytest.mark.slow
def test_a_carrier_that_shares_with_a_member_learns_what_the_member_has(panel, masked, tmp_path):
    """All that was carried lies in every member's journal already, bit by bit: two views are one."""
    clubs = with_the_same_keys(panel, masked, tmp_path)
    board = Board(list(clubs))
    run(clubs, board=board)
    for name, club in clubs.items():
        journal = Journal.reading(club.journal)
        held = {
            e: frames for kind, body in journal.records() if kind == 3 for e, frames, _ in [unpacked(body)]
        }
        journal.close()
        assert len(held) == len(board.frames) > 50
        for exchange, frames in board.frames.items():
            assert {n: f for n, f in frames.items() if n != name} == held[exchange]


def test_invented_organisations_without_visits_of_their_own_are_told_nothing(panel, tmp_path):
    """A proposer that makes two of three organisations up must make up visits too, in every month that it wants."""
    clubs = clubs_of(panel, tmp_path)
    for name in ("owner-1", "owner-2"):
        empty = np.zeros(clubs[name].visits.site.size, dtype=bool)
        clubs[name].visits = clubs[name].visits.take(empty)
    for error in run(clubs).values():
        assert isinstance(error, InputError), error
        assert "all visits were withheld: none of the months has" in str(error)
        assert "Lower --minimum" not in str(error)


# -- departures ----------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_copy_that_asks_something_else_is_named(panel, tmp_path):
    """Another number of candidates, another seed, another rank: in exchange and field, and by the name of who is alone."""
    for i, (what, words) in enumerate(
        (
            (order(seed=1), "other words, whole numbers or shapes in Support|Open"),
            (order((replace(NEGBIN, rank=0),)), "other words, whole numbers or shapes in Open"),
            (order(plan=replace(order().plan, share=0.8)), r"Support\.share: 0\.8 instead of 0\.9"),
        )
    ):
        got = run(clubs_of(panel, tmp_path / str(i)), order(), whats={"owner-1": what})
        for name, error in got.items():
            assert isinstance(error, EngineError), (name, error)
            assert "the copy of owner-1 of the job asks something else" in str(error), error
        import re

        assert re.search(words, str(got["owner-0"])), str(got["owner-0"])


def test_the_sign_of_one_column_is_seen(panel):
    """Numbers that a processor may round are equal; a changed one in a million, a sign, a row that moved are not."""
    rng = np.random.default_rng(0)
    for shape in ((1,), (1, 24), (3, 24, 2), (1, 600, 3)):
        V = rng.normal(size=shape)
        ask = msg.Product(0, np.zeros(1, np.int64), V, np.ones(1))
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


def test_masks_of_different_transcripts_do_not_cancel(panel, tmp_path):
    """A sum over them is noise."""
    clubs = clubs_of(panel, tmp_path)
    a, b, c = (club.party for club in clubs.values())
    size = 50
    together_ = a.stream(3, size, b"same") + b.stream(3, size, b"same") + c.stream(3, size, b"same")
    assert not together_.any()
    apart = a.stream(3, size, b"other") + b.stream(3, size, b"same") + c.stream(3, size, b"same")
    assert np.count_nonzero(apart) == size


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


# -- the folder ----------------------------------------------------------------------------------------------


def test_a_kit_or_data_in_the_shared_folder_would_be_given_away(tmp_path):
    shared, kit, data = tmp_path / "shared", tmp_path / "kit", tmp_path / "panel"
    for folder in (shared / "kits" / "north", kit, data):
        folder.mkdir(parents=True)
    with pytest.raises(InputError, match=r"lies in the shared folder .* private keys"):
        check_folder(shared, shared / "kits" / "north", data)
    with pytest.raises(InputError, match=r"the data .* lies in the shared folder .* all of it"):
        check_folder(shared, kit, shared / "panel")
    with pytest.raises(InputError, match="there is no folder"):
        check_folder(tmp_path / "none", kit, data)
    assert check_folder(shared, kit, data) == shared


@pytest.mark.slow
def test_a_full_disk_and_missing_rights_are_said_and_nothing_is_lost(panel, masked, tmp_path, monkeypatch):
    clubs = with_the_same_keys(panel, masked, tmp_path / "clubs")
    shared = tmp_path / "shared"
    shared.mkdir()
    genuine, left = os.fsync, [30]

    def full(handle):
        left[0] -= 1
        if left[0] == 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        return genuine(handle)

    seats = {n: shared_folder(shared, c, sleep=lambda s: time.sleep(0.002)) for n, c in clubs.items()}
    for seat in seats.values():
        seat.patience = 1.0
    monkeypatch.setattr("fedmiss.network.folder.os.fsync", full)
    got = run(clubs, seats=seats)
    said = [str(e) for e in got.values()]
    assert any("No space left" in s for s in said), said
    got = run(clubs, seats=seats)
    for joint in got.values():
        same_bits(masked[0], joint)


@pytest.mark.parametrize("lost", ["file", "bytes", "folder"])
def test_own_frames_are_shown_again_where_they_are_lost(panel, tmp_path, monkeypatch, lost):
    """A folder that was not mounted for a moment, somebody who tidies up, zeros in a file after a power cut."""
    monkeypatch.setattr("fedmiss.network.folder.QUIET", -1.0)
    club = clubs_of(panel, tmp_path / "clubs")["owner-0"]
    shared = tmp_path / "shared"
    shared.mkdir()
    seat = shared_folder(shared, club, sleep=lambda s: None)
    frames = [club.party.sign(frame_label(JOB, "owner-0", e), b"sums") for e in (0, 1)]
    for exchange, frame in enumerate(frames):
        seat.restore(exchange, frame)
    files = sorted(shared.rglob("*.frame"))
    for path in files:
        path.write_bytes(bytes(len(frames[0]))) if lost == "bytes" else path.unlink()
    if lost == "folder":
        shutil.rmtree(seat.at)
    seat.patience = 0.0
    with pytest.raises(EngineError, match="no frame from owner-1, owner-2"):
        all_of(seat, list(club.roster), "owner-0", 1, frames[1])
    assert [path.read_bytes() for path in files] == frames


@pytest.mark.parametrize("put", ["link to a file", "link to a device", "pipe", "endless file", "folder"])
def test_what_is_no_frame_in_the_shared_folder_is_neither_followed_nor_waited_for(
    panel, tmp_path, monkeypatch, put
):
    """A member, or who can write there, would have files of another overwritten, or let it wait and fill its memory."""
    monkeypatch.setattr("fedmiss.network.folder.MOST_BYTES", 10_000)
    club = clubs_of(panel, tmp_path / "clubs")["owner-0"]
    shared, key = tmp_path / "shared", tmp_path / "identity.key"
    shared.mkdir()
    key.write_bytes(b"my key")
    seat = shared_folder(shared, club, sleep=lambda s: None)
    frame = club.party.sign(frame_label(JOB, "owner-0", 0), b"sums")
    seat.restore(0, frame)
    (own,) = shared.rglob("*.frame")
    at = own.with_name("owner-1-" + "0" * 32 + ".frame")
    before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    if put == "pipe":
        os.mkfifo(at)
    elif put == "folder":
        at.mkdir()
    elif put == "link to a device":
        at.symlink_to("/dev/zero")
    elif put == "endless file":
        with open(at, "wb") as stream:
            stream.truncate(1 << 40)
    else:
        own.unlink()
        own.symlink_to(key)
        with pytest.raises(InputError, match="could not be written"):
            seat.restore(0, frame)
        seat._show_again()
    assert not seat._look(0, {}).keys() - {"owner-0"}
    assert not before or len(os.listdir("/proc/self/fd")) == before, "what was opened is closed"
    assert key.read_bytes() == b"my key"


@pytest.mark.parametrize("twin", ["job", "exchange"])
def test_a_second_folder_that_a_synchronising_program_made_is_read_too(panel, tmp_path, twin):
    """Two members that make one folder at the same time have two, and nobody else ever saw what lies in the second."""
    clubs = clubs_of(panel, tmp_path / "clubs")
    shared = tmp_path / "shared [1]"
    shared.mkdir()
    seats = {n: shared_folder(shared, c, sleep=lambda s: None) for n, c in clubs.items()}
    frames = {n: c.party.sign(frame_label(JOB, n, 0), b"sums") for n, c in clubs.items()}
    for name in ("owner-1", "owner-2"):
        seats[name].restore(0, frames[name])
        at = seats[name].at if twin == "job" else seats[name].at / "000000"
        at.rename(at.with_name(f"{at.name} ({name})"))
    seats["owner-0"].patience = 0.0
    assert all_of(seats["owner-0"], list(clubs), "owner-0", 0, frames["owner-0"]) == frames
    assert [seats["owner-0"].latest(n) for n in clubs] == [0, 0, 0]


def test_names_that_no_study_made_are_not_shown(panel, tmp_path):
    seat = shared_folder(tmp_path, clubs_of(panel, tmp_path / "clubs")["owner-0"])
    for name in ("egrets-" + "0" * 16, "x-\x1b[2J", "egrets-paste your key"):
        (tmp_path / name).mkdir()
    assert seat.others_here() == ["egrets-" + "0" * 16]


@pytest.mark.slow
def test_who_is_missing_is_said_and_the_job_goes_on_later(panel, masked, tmp_path):
    clubs = with_the_same_keys(panel, masked, tmp_path / "clubs")
    shared = tmp_path / "shared"
    shared.mkdir()
    said = []
    seats = {n: shared_folder(shared, c, sleep=lambda s: time.sleep(0.002)) for n, c in clubs.items()}
    seats["owner-0"].told, seats["owner-0"].patience = said.append, 0.5
    import fedmiss.network.folder as folder_module

    two = {n: clubs[n] for n in ("owner-0", "owner-1")}
    seats["owner-1"].patience = 0.5
    quiet, folder_module.QUIET = folder_module.QUIET, 0.1
    try:
        got = run(two, seats=seats)
    finally:
        folder_module.QUIET = quiet
    assert "exchange 0: no frame from owner-2" in str(got["owner-0"])
    assert said == [("owner-2",)]
    for seat in seats.values():
        seat.patience = 20.0
    for joint in run(clubs, seats=seats).values():
        same_bits(masked[0], joint)


# -- kills and journals --------------------------------------------------------------------------------------


class Killing:
    """Kills the program that writes a journal: before, amid, or after a record; so many times, at random moments."""

    def __init__(self, monkeypatch, seed, kills, rate=0.05):
        self.chance, self.left, self.rate = random.Random(seed), kills, rate
        append = Journal.append

        def dying(journal, *records):
            when = self.chance.random()
            if self.left and when < self.rate:
                self.left -= 1
                how = self.chance.randrange(3)
                if how == 1:  # the disk has a part of it
                    whole = journal._end
                    append(journal, *records)
                    size = journal._end
                    journal_module.os.ftruncate(journal._file, self.chance.randrange(whole, size))
                elif how == 2:
                    append(journal, *records)
                raise Kill(str(journal.path))
            append(journal, *records)

        monkeypatch.setattr(Journal, "append", dying)


@pytest.mark.parametrize(
    "seed",
    [
        0,
        *(pytest.param(s, marks=pytest.mark.slow) for s in range(1, 4)),
        *(pytest.param(s, marks=pytest.mark.nightly) for s in range(4, 10)),
    ],
)
def test_fifty_kills_with_real_journals(panel, masked, tmp_path, monkeypatch, seed):
    clubs = with_the_same_keys(panel, masked, tmp_path / "clubs")
    shared = tmp_path / "shared"
    shared.mkdir()
    killing = Killing(monkeypatch, seed, 5)

    def club(name):
        while True:
            try:
                return clubs[name].run(shared_folder(shared, clubs[name], sleep=lambda s: time.sleep(0.002)))
            except Kill:
                continue  # started again by its user

    got = together({n: (lambda n=n: club(n)) for n in clubs})
    assert killing.left == 0
    for joint in got.values():
        same_bits(masked[0], joint)


@pytest.mark.slow
def test_a_journal_gives_the_job_again_and_ends_where_it_ends(panel, masked, tmp_path):
    clubs = with_the_same_keys(panel, masked, tmp_path)
    assert not any(isinstance(x, BaseException) for x in run(clubs).values())
    club = clubs["owner-1"]
    journal = Journal.reading(club.journal)
    done = list(entries(journal))
    assert [e.exchange for e in done] == list(range(len(done)))
    again = club.circle(None, journal)
    same_bits(
        masked[0], run_job(Link(Member(club.program(), again), JOB[:8], SETTINGS, masked=True), order())
    )
    assert again.replayed == len(done)
    again.close()
    raw = club.journal.read_bytes()
    club.journal.write_bytes(raw[: len(raw) // 2])
    half = club.circle(None, Journal.reading(club.journal))
    with pytest.raises(Ended, match="ends at exchange"):
        run_job(Link(Member(club.program(), half), JOB[:8], SETTINGS, masked=True), order())
    assert 10 < half.replayed < len(done)
    half.close()


@dataclass(frozen=True)
class Ask:
    fold: int
    at: np.ndarray


def test_who_departs_from_the_others_or_from_itself_is_refused(tmp_path):
    """Another question, another answer after a restart, other data, another job: by three sums of one number."""
    places, asked = Places(("a", "b", "c"), tmp_path, masked=True, patience=10.0), {}

    def job(name, fold=(0, 0), value=1.0, held=b"data"):
        circle = places.circle(name, held=held)
        try:
            asks = [Ask(k, np.ones(2)) for k in fold]
            asked[name] = circle.begin(asks[:1]), circle.begin([Ask(1, np.ones(2))])
            return [circle.add_up([ask], np.full(3, value)).tolist() for ask in asks]
        finally:
            circle.close()

    got = together({n: (lambda n=n: job(n, (0, 1) if n == "c" else (0, 0))) for n in "abc"})
    assert len(set(asked.values())) == 1
    assert len(set(asked["a"])) == 2  # masks of two questions do not cancel
    one, other = (outline_of([Ask(0, np.array([1, k]))]) for k in (2, 3))
    assert one.differs(other)
    assert one.exact != other.exact
    for name, error in got.items():
        assert isinstance(error, EngineError), name
        assert "the copy of c of the job asks something else" in str(error)
    for more, words in (
        ({"value": 2.0}, "does not give the same answer to exchange 1"),
        ({"held": b"other"}, "other data"),
    ):
        with pytest.raises((ConfigError, EngineError), match=words):
            job("a", **more)
    places.parties["a"] = replace(places.parties["a"], context=bytes(32))
    with pytest.raises(ConfigError, match="the journal of another job"):
        job("a")


def test_a_forged_frame_is_not_written_down(tmp_path):
    """What a relay makes up stops the job, and the genuine frame goes on with it later."""
    places = Places(("a", "b", "c"), tmp_path, masked=True, patience=10.0)

    def job(name):
        circle = places.circle(name)
        try:
            return circle.add_up([], np.ones(1)).tolist()
        finally:
            circle.close()

    places.board.frames[0] = {"c": bytes(200)}
    got = together({n: (lambda n=n: job(n)) for n in "ab"})
    assert all("in the name of 'c' is not signed" in str(error) for error in got.values()), got
    places.board.frames.clear()
    assert list(together({n: (lambda n=n: job(n)) for n in "abc"}).values()) == [[3.0]] * 3


def test_a_relay_that_brings_no_frame_of_one_loses_nobody_its_journal(tmp_path):
    places = Places(("a", "b", "c"), tmp_path, masked=True, patience=10.0)

    def job(name, gather):
        circle = Circle(places.parties[name], tmp_path / f"{name}.journal", gather)
        try:
            return circle.add_up([], np.ones(1)).tolist()
        finally:
            circle.close()

    seat = Seat("b")
    threading.Timer(0.1, lambda: seat.answer(packed(0, {"a": bytes(200)}))).start()
    with pytest.raises(EngineError, match="brought none of c"):
        job("b", seat)
    got = together({n: (lambda n=n: job(n, places.seat(n))) for n in "abc"})
    assert list(got.values()) == [[3.0]] * 3


@pytest.mark.slow
def test_a_job_goes_on_only_with_the_data_and_the_study_it_began_with(panel, tmp_path):
    clubs = clubs_of(panel, tmp_path, masked=False)
    run(clubs)
    club, board = clubs["owner-1"], Board(list(clubs), patience=1.0)
    held = club.visits
    club.visits = replace(held, count=held.count + (np.arange(held.count.size) == 3))
    with pytest.raises(ConfigError, match="other data"):
        club.run(board.seat("owner-1"))
    club.visits, club.job = held, bytes(32)
    with pytest.raises(ConfigError, match="another job"):
        club.run(board.seat("owner-1"))
    club.job = JOB
    with pytest.raises(EngineError, match="does not give the same answer to exchange"):
        club.run(board.seat("owner-1"), order((replace(NEGBIN, rank=0, dispersion="quasi"),)))


@pytest.mark.parametrize("lost", ["journal", "half of it"])
def test_no_mask_ever_hides_two_answers(panel, tmp_path, monkeypatch, lost):
    """A kit put back from a backup of before the job, or of the middle of it, with other data: also on another computer."""
    hide, hidden = Masks.hide, {}

    def watched(masks, answers, exchange, transcript=b""):
        plain = hidden.setdefault((masks.name, exchange, transcript), set())
        plain.add(
            repr([[np.asarray(getattr(a, f)).tobytes() for f in masked_fields(type(a))] for a in answers])
        )
        return hide(masks, answers, exchange, transcript)

    monkeypatch.setattr(Masks, "hide", watched)
    clubs, board = clubs_of(panel, tmp_path), Board(["owner-0", "owner-1", "owner-2"], patience=5.0)
    run(clubs, board=board, exchanges=5)
    club = clubs["owner-1"]
    raw = club.journal.read_bytes()
    club.journal.unlink() if lost == "journal" else club.journal.write_bytes(raw[: len(raw) // 2])
    count = club.visits.count
    club.visits = replace(club.visits, count=count + 7 * (np.arange(count.size) == 3))
    with pytest.raises((ConfigError, EngineError), match=r"other data|seen different frames"):
        club.run(board.seat("owner-1"), exchanges=5)
    assert len(hidden) > 9
    assert {len(plain) for plain in hidden.values()} == {1}


def test_a_digest_of_the_data_covers_every_field(panel, tmp_path):
    held = clubs_of(panel, tmp_path)["owner-0"].visits
    ones = np.ones(held.count.size)
    change = {
        "site_id": held.site_id[::-1], "region": np.array(["north"] * len(held.site_id), dtype=object),
        "detected": ~held.detected, "effort": ones[:, None], "species": "Ardea alba", "checklist": ones.astype(object),
        "exposure": ones, "given": not held.given, "calendar": False, "frame": True, "covariates": {"height": ones[:15]},
    }  # fmt: skip
    change |= {name: getattr(held, name) + 1 for name in ("site", "month", "count", "observer", "weight")}
    assert change.keys() == {f.name for f in fields(held)}
    assert len({digest_of(held), *(digest_of(replace(held, **{k: v})) for k, v in change.items())}) == 17


def test_two_programs_never_run_on_one_journal(panel, tmp_path):
    club = clubs_of(panel, tmp_path)["owner-1"]
    held = Journal(club.journal)
    with pytest.raises(EngineError, match="in use"):
        club.run(Board(["owner-1"], patience=0.5).seat("owner-1"))  # it would wait for the others
    held.close()


@pytest.mark.slow
def test_a_choice_of_models_goes_through_masks(panel, tmp_path):
    what = order(default_candidates(NEGBIN, max_rank=1), bootstrap=0)
    here = in_one_process(clubs_of(panel, tmp_path / "a"), what)
    got = run(clubs_of(panel, tmp_path / "b"), what)["owner-2"]
    assert got.choice.best == here.choice.best
    np.testing.assert_allclose(got.choice.table["deviance"], here.choice.table["deviance"], rtol=1e-8)
    assert largest(got.totals[0], here.totals[0]) < 1e-8


def with_squares(visits, n):
    """The visits of an organisation whose table of sites has ``n`` more, like its first ones."""
    sites = np.r_[np.arange(len(visits.site_id)), np.arange(n) % len(visits.site_id)]
    ids = np.r_[visits.site_id, [f"square-{i}" for i in range(n)]]
    covariates = {name: column[sites] for name, column in visits.covariates.items()}
    return replace(visits, site_id=ids, region=visits.region[sites], covariates=covariates, frame=True)


@pytest.mark.slow
def test_features_of_sites_go_through_masks(tmp_path):
    """Covariates stay at home; the joint result is that of one process, and a category of one organisation is left out."""
    panel = owned(3, n=900, J=60, L=24, size=2.0, seed=6)
    rng = rng_for(6, "covariates")
    home = np.zeros(60, dtype=np.int64)
    for k, g in enumerate(panel.groups):
        home[g.site] = k
    level = np.zeros(60)
    for g in panel.groups:
        np.add.at(level, g.site, np.log1p(g.count) / np.bincount(g.site, minlength=60).clip(1)[g.site])
    habitat = np.where(level > np.median(level), "marsh", "farm").astype(object)
    habitat[home == 0] = "harbour"
    panel = replace(panel, covariates={"height": level + 0.3 * rng.normal(size=60), "habitat": habitat})
    chosen = replace(NEGBIN, rank=0, features=("covariates",), occupancy=True)
    what = order([chosen], bootstrap=2)
    plain = in_one_process(clubs_of(panel, tmp_path / "plain"), what)
    clubs = {name: clubs_of(panel, tmp_path / name) for name in ("a", "b")}
    for one in clubs.values():  # one organisation lists squares that nobody visited
        one["owner-1"].visits = with_squares(one["owner-1"].visits, 15)
    here = in_one_process(clubs["a"], what)
    assert here.agreement.panel.rows == [*plain.agreement.panel.rows, "visited sites"]
    assert largest(here.totals[-1], plain.totals[0]) < 1e-8  # they change nothing at the others
    assert (here.totals[0] > 1.05 * here.totals[-1]).all()
    got = run(clubs["b"], what)
    for joint in got.values():
        same_bits(got["owner-0"], joint)
        assert largest(joint.totals[0], here.totals[0]) < 1e-8
        assert largest(joint.draws[1, 0], here.draws[1, 0]) < 1e-8
    assert here.facts.site_covariates == ["height"]
    assert here.facts.explained["covariates"] > 0.3
    tried = order([replace(NEGBIN, rank=0), NEGBIN], bootstrap=0, structure=("covariates", "smooth"))
    one, many = (
        in_one_process(clubs_of(panel, tmp_path / "c"), tried),
        run(clubs_of(panel, tmp_path / "d"), tried),
    )
    assert many["owner-1"].choice.best == one.choice.best
    assert [t.taken for t in many["owner-1"].choice.trials] == [t.taken for t in one.choice.trials]
    assert largest(many["owner-1"].totals[0], one.totals[0]) < 1e-8


def test_a_damaged_journal_is_refused_and_a_cut_one_goes_on(tmp_path):
    path = tmp_path / "j"
    j = Journal(path)
    j.append((1, b"one"), (2, b"two" * 100))
    j.append((3, b"three"))
    assert path.stat().st_mode & 0o077 == 0
    with pytest.raises(EngineError, match="in use"):
        Journal(path)
    j.close()
    raw = path.read_bytes()
    for cut in range(len(raw) - 17, len(raw)):  # anywhere in the last record
        path.write_bytes(raw[:cut])
        j = Journal(path)
        assert list(j.records()) == [(1, b"one"), (2, b"two" * 100)]
        j.append((4, b"four"))
        assert [k for k, _ in j.records()] == [1, 2, 4]
        j.close()
        j = Journal.reading(path)
        assert [k for k, _ in j.records()] == [1, 2, 4]
        j.close()
    for lost in range(1, 23):  # its length has reached the disk, its last bytes have not
        path.write_bytes(raw[:-lost] + bytes(lost))
        j = Journal(path)
        assert [k for k, _ in j.records()] == [1, 2]
        j.close()
    # what is left of a long record must not come back behind a short one that is written in its place: here a record
    # stands in the long one's body, just where the short one will end
    other = Journal(tmp_path / "other")
    other.append((9, b"stale"))
    other.close()
    stale = (tmp_path / "other").read_bytes()[8:]
    long = Journal(tmp_path / "long")
    long.append((1, b"one"))
    long.append((2, b"....." + stale + bytes(500)))
    long.close()
    whole = (tmp_path / "long").read_bytes()
    (tmp_path / "long").write_bytes(whole[:-100])
    j = Journal(tmp_path / "long")
    j.append((3, b"three"))
    j.close()
    j = Journal(tmp_path / "long")
    assert list(j.records()) == [(1, b"one"), (3, b"three")]
    j.close()


@pytest.mark.slow
def test_every_flipped_bit_of_a_journal_is_an_error_and_leaves_no_lock(tmp_path):
    """Also those of the last record and of a length: an exchange that was answered must not look as if it were not."""
    path = tmp_path / "j"
    j = Journal(path)
    j.append((0, b"start"))
    j.append((1, bytes(4)), (2, b""))
    j.append((1, b"question" * 9 + bytes(3)))
    j.close()
    raw = path.read_bytes()
    for bit in range(8 * len(raw)):
        bad = bytearray(raw)
        bad[bit // 8] ^= 1 << bit % 8
        path.write_bytes(bad)
        for opened in (
            Journal,
            Journal.reading,
            Journal,
        ):  # the second one is told the same, not that it is in use
            with pytest.raises(InputError, match=r"damaged at byte|not a journal|older fedmiss"):
                opened(path)
        assert path.read_bytes() == bad
    for cut in range(len(raw)):
        path.write_bytes(raw[:cut])
        j = Journal(path)
        assert [k for k, _ in j.records()] == [0, 1, 2, 1][: len(list(j.records()))]
        j.close()


def test_a_record_that_could_not_be_written_leaves_nothing(tmp_path, monkeypatch):
    """A full disk in the middle of a long record: a shorter one in its place is the last thing in the file."""
    path = tmp_path / "j"
    j = Journal(path)
    j.append((1, b"one"))
    genuine = os.write
    with monkeypatch.context() as patch:

        def full(handle, raw):
            if len(raw) < 400:
                raise OSError(errno.ENOSPC, "no space left")
            return genuine(handle, raw[:100])

        patch.setattr(os, "write", full)
        with pytest.raises(OSError, match="no space"):
            j.append((2, b"long" * 110))
    j.append((3, b"three"))
    j.close()
    j = Journal(path)
    assert list(j.records()) == [(1, b"one"), (3, b"three")]
    j.close()


@pytest.mark.parametrize("content", [b"mine", b"FEDMISSJ" + bytes(20), b"a photo of a bird"])
def test_a_file_that_is_no_journal_stays(tmp_path, content):
    (tmp_path / "j").write_bytes(content)
    with pytest.raises(InputError, match=r"not a journal|older fedmiss"):
        Journal(tmp_path / "j")
    assert (tmp_path / "j").read_bytes() == content


def test_two_frames_of_one_number_are_not_chosen_from(panel, tmp_path):
    """A kit that was copied, or lost its journal, signs twice: nobody takes either."""
    clubs = clubs_of(panel, tmp_path / "clubs")
    shared = tmp_path / "shared"
    shared.mkdir()
    one, other = (shared_folder(shared, clubs[n]) for n in ("owner-0", "owner-1"))
    label = frame_label(JOB, "owner-1", 0)
    this, that = (clubs["owner-1"].party.sign(label, body) for body in (b"this", b"that"))
    other.restore(0, this)
    with pytest.raises(EngineError, match="owner-1 has shown another frame before"):
        shared_folder(shared, clubs["owner-1"]).restore(0, that)
    assert [p.read_bytes() for p in shared.rglob("*.frame")] == [this]
    next(shared.rglob("*.frame")).with_name(f"owner-1-{'0' * 32}.frame").write_bytes(
        that
    )  # of another computer
    with pytest.raises(EngineError, match="owner-1 has signed two frames"):
        all_of(
            one,
            list(clubs),
            "owner-0",
            0,
            clubs["owner-0"].party.sign(frame_label(JOB, "owner-0", 0), b"mine"),
        )


def test_a_relay_is_not_kept_waiting_and_brings_frames_once(monkeypatch):
    """An organisation that computes for long says so: the relay asks again, without the frames."""
    monkeypatch.setattr("fedmiss.federation.gather.PAUSE", 0.02)
    seats, asked = {n: Seat(n) for n in "ab"}, []

    def job(name):
        got = []
        for exchange in range(3):
            if name == "b":
                time.sleep(0.1)
            got.append(all_of(seats[name], "ab", name, exchange, f"{name}{exchange}".encode()))
        seats[name].end(True)
        return got

    def ask(packets):
        asked.append(packets)
        return {n: seats[n].answer(packet) for n, packet in packets.items()}

    relay = Relay("ab")
    got = together(
        {"a": lambda: job("a"), "b": lambda: job("b"), "relay": lambda: relay.run(ask, lambda: None)}
    )
    assert got["a"] == got["b"] == [{"a": f"a{e}".encode(), "b": f"b{e}".encode()} for e in range(3)]
    brought = [p for packets in asked for n, p in packets.items() if n == "b" and p not in (b"", WORKING)]
    assert len(brought) == len(set(brought)) == 3
    assert [unpacked(p)[1] for p in brought] == [{"a": f"a{e}".encode()} for e in range(3)], "not b's own"
    assert sum(p == WORKING for packets in asked for p in packets.values()) > 3


def test_a_relay_takes_no_frame_of_the_journal_for_where_an_organisation_is(monkeypatch):
    """All three were killed, and go through their journals at different paces while a new relay asks them already."""
    monkeypatch.setattr("fedmiss.federation.gather.PAUSE", 0.01)
    seats = {n: Seat(n) for n in "abc"}

    def job(name, pace):
        for exchange in range(20):
            seats[name].restore(exchange, f"{name}{exchange}".encode())
            time.sleep(pace)
        got = all_of(seats[name], "abc", name, 19, f"{name}19".encode())
        seats[name].end(True)
        return got

    def ask(packets):
        return {n: seats[n].answer(packet) for n, packet in packets.items()}

    relay, asked = Relay("abc"), [0]

    def limited(packets):
        asked[0] += 1
        assert asked[0] < 1000, "the relay goes round in circles"
        return ask(packets)

    paces = {"a": 0.001, "b": 0.004, "c": 0.008}
    jobs = {n: (lambda n=n: job(n, paces[n])) for n in seats}
    got = together({**jobs, "relay": lambda: relay.run(limited, lambda: None)})
    assert got["a"] == got["b"] == got["c"] == {n: f"{n}19".encode() for n in "abc"}
