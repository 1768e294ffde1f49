"""Kills, journals and their damages: an interrupted job ends where one without interruption does."""

import errno
import os
import random
import threading
from dataclasses import dataclass, fields, replace

import numpy as np
import pytest

from fedmiss.errors import ConfigError, EngineError, InputError
from fedmiss.federation import journal as journal_module
from fedmiss.federation.circle import Circle, Ended, entries, frame_label
from fedmiss.federation.gather import Board, Seat, packed
from fedmiss.federation.group.visits import digest_of
from fedmiss.federation.hub.job import run_job
from fedmiss.federation.journal import Journal
from fedmiss.federation.link import Link
from fedmiss.federation.masks import Masks, masked_fields
from fedmiss.federation.member import Member
from fedmiss.federation.outline import outline_of
from fedmiss.models.lowrank.choice import default_candidates
from fedmiss.rng import rng_for

from .network import (
    JOB,
    NEGBIN,
    SETTINGS,
    Kill,
    Places,
    all_have,
    all_of,
    clubs_of,
    in_one_process,
    order,
    quick,
    run,
    same_bits,
    shared_folder,
    together,
    with_the_same_keys,
)
from .owners import largest, owned


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
    killing = Killing(monkeypatch, seed, 5)

    def club(name):
        while True:
            try:
                return clubs[name].run(shared_folder(shared, clubs[name], sleep=quick))
            except Kill:
                continue  # started again by its user

    got = together({n: (lambda n=n: club(n)) for n in clubs})
    assert killing.left == 0
    all_have(got, masked[0])


@pytest.mark.slow
def test_a_journal_gives_the_job_again_and_ends_where_it_ends(panel, masked, tmp_path):
    clubs = with_the_same_keys(panel, masked, tmp_path)
    assert not any(isinstance(x, BaseException) for x in run(clubs).values())
    club = clubs["owner-1"]
    journal = Journal.reading(club.journal)
    done = list(entries(journal))
    assert [e.exchange for e in done] == list(range(len(done)))
    again = club.circle(None, journal)
    link = Link(Member(club.program(), again), JOB[:8], SETTINGS, masked=True)
    same_bits(masked[0], run_job(link, order()))
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
        ({"value": 2.0}, "does not give the same answer to exchange 1 .* draws without a seed"),
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


@pytest.mark.parametrize("lost", ["journal", "half of it"])
def test_no_mask_ever_hides_two_answers(panel, tmp_path, monkeypatch, lost):
    """A kit put back from a backup of before the job, or of the middle of it, with other data: also on another computer."""
    hide, hidden = Masks.hide, {}

    def watched(masks, answers, exchange, transcript=b""):
        plain = hidden.setdefault((masks.name, exchange, transcript), set())
        told = [[np.asarray(getattr(a, f)).tobytes() for f in masked_fields(type(a))] for a in answers]
        plain.add(repr(told))
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
        "exposure": ones, "given": not held.given, "calendar": False, "frame": True, "chosen": True,
        "covariates": {"height": ones[:15]}, "observer_id": held.who[::-1],
    }  # fmt: skip
    change |= {name: getattr(held, name) + 1 for name in ("site", "month", "count", "observer", "weight")}
    assert change.keys() == {f.name for f in fields(held)}
    assert (
        len({digest_of(held), *(digest_of(replace(held, **{k: v})) for k, v in change.items())})
        == len(change) + 1
    )


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
    one = in_one_process(clubs_of(panel, tmp_path / "c"), tried)
    many = run(clubs_of(panel, tmp_path / "d"), tried)
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
        # the second one is told the same, not that it is in use
        for opened in (Journal, Journal.reading, Journal):
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
    one, other = (shared_folder(shared, clubs[n]) for n in ("owner-0", "owner-1"))
    label = frame_label(JOB, "owner-1", 0)
    this, that = (clubs["owner-1"].party.sign(label, body) for body in (b"this", b"that"))
    other.restore(0, this)
    with pytest.raises(EngineError, match="owner-1 has shown another frame before"):
        shared_folder(shared, clubs["owner-1"]).restore(0, that)
    assert [p.read_bytes() for p in shared.rglob("*.frame")] == [this]
    # of another computer
    next(shared.rglob("*.frame")).with_name(f"owner-1-{'0' * 32}.frame").write_bytes(that)
    mine = clubs["owner-0"].party.sign(frame_label(JOB, "owner-0", 0), b"mine")
    with pytest.raises(EngineError, match="owner-1 has signed two frames"):
        all_of(one, list(clubs), "owner-0", 0, mine)
