"""Between organisations nothing is lost, and no bit changes, whatever the network does."""

import os
import random
import shutil
import threading
import time

import numpy as np
import pytest

from fedmiss.errors import EngineError, InputError
from fedmiss.federation.circle import frame_label
from fedmiss.federation.gather import OVER, STOPPED, WORKING, Board, Relay, Seat, packed, unpacked
from fedmiss.federation.journal import Journal

from .network import (
    Kill,
    all_have,
    all_of,
    clubs_of,
    one_seat,
    quick,
    run,
    same_bits,
    seats_in,
    shared_folder,
    together,
    with_the_same_keys,
)
from .owners import largest


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
    genuine, last, chance = os.listdir, {}, random.Random(seed)

    def stale(path="."):
        if chance.random() < 0.3 and path in last:
            return last[path]  # an old listing
        last[path] = genuine(path)
        return last[path]

    monkeypatch.setattr("fedmiss.network.folder.os.listdir", stale)
    seats = {name: shared_folder(copies[name], clubs[name], sleep=quick) for name in clubs}
    synchroniser = Synchroniser(copies, seed)
    synchroniser.start()
    got = run(clubs, seats=seats)
    synchroniser.over.set()
    synchroniser.join()
    all_have(got, masked[0])


def test_no_shared_folder_is_made_where_one_was_mounted(panel, tmp_path):
    club, folder = one_seat(tmp_path, panel, patience=0.1)
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
    rubbish = threading.Event()
    seats = seats_in(tmp_path / "shared", clubs)
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
    all_have(got, masked[0])
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
    all_have(got, masked[0])


def test_a_relay_says_who_stopped_and_lets_nobody_wait_for_nothing():
    posts = {"a": packed(0, {"": b"x"}), "b": STOPPED}
    relay = Relay(["a", "b"])
    with pytest.raises(EngineError, match="b stopped before the end, after a preview, or for a reason"):
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
        assert len(held) == len(board.frames) > 40
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


def test_who_is_late_has_the_last_frames_of_those_that_have_left():
    """They had their results and were gone; the relay began anew, and waited for them."""
    names, last = "abc", {n: f"{n}1".encode() for n in "abc"}
    first = Relay(names)
    assert first.kept() == b"", "nobody has a result: all are needed"

    def until_c_is_killed(packets):
        out = {n: packed(0, {"": b"0"}) + packed(1, {"": last[n]}) for n in packets}
        return {n: raw if n == "c" else raw + OVER for n, raw in out.items()}

    with pytest.raises(ZeroDivisionError):
        first.run(lambda packets: until_c_is_killed(packets) if not first.ended else 1 / 0, lambda: None)
    assert first.ended == {"a": True, "b": True}

    again, seat = Relay(names), Seat("c")
    again.restore(first.kept())

    def rest():
        got = all_of(seat, names, "c", 1, last["c"])
        seat.end(True)
        return got

    def ask(packets):
        assert set(packets) == {"c"}
        return {"c": seat.answer(packets["c"])}

    got = together({"c": rest, "relay": lambda: again.run(ask, lambda: None)})
    assert got == {"c": last, "relay": None}
    assert again.ended == dict.fromkeys(names, True)


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
