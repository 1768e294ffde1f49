"""Rounds that go on without a cohort whose member is away: FedEM with those workers, on any carrier, and nothing else."""

import contextlib
import threading
import time
from functools import partial
from itertools import pairwise

import numpy as np
import pytest

from fedmiss.compressors import Dithering, Identity
from fedmiss.core import FedEM, Roster, Spider, Stop, Streaming, run
from fedmiss.core.participation import Given, Remembered
from fedmiss.core.rules import Marina
from fedmiss.engines import LocalEngine, StudyEngine
from fedmiss.errors import ConfigError, EngineError, UplinkError
from fedmiss.federation.attendance import Absence, Attendance, cohorts_of
from fedmiss.federation.circle import frame_label
from fedmiss.federation.masks import Masks
from fedmiss.federation.outline import Outline
from fedmiss.models.lowrank.paper import FedMissEM
from tests.core.toys import mixture
from tests.models.panels import simulate

from .network import JOB, Kill, Places, keys_of, together

SECONDS = 0.3


class Off:
    """A place of an organisation whose computer is off between two exchanges, as the others count them."""

    def __init__(self, seat, board, chair, spans):
        self.seat, self.board, self.chair, self.spans = seat, board, chair, spans
        self.latest = seat.latest

    def some_of(self, exchange, have, enough):
        return self.seat.some_of(exchange, have, enough)

    def restore(self, exchange, frame):
        for first, last in self.spans:
            until = time.monotonic() + 60
            while first <= exchange < last and self.board.seat("").latest(self.chair) < last:
                if time.monotonic() > until or self.board.over.is_set():
                    raise EngineError("it does not come back")
                time.sleep(0.005)
        self.seat.restore(exchange, frame)


class Study(Places):
    """Organisations in one process, some of which are off for a while; the first is the chair."""

    def __init__(self, names, folder, *, masked, off=None):
        super().__init__(names, folder, masked, patience=60.0)
        self.off, self.chair = off or {}, names[0]
        self.board.over = threading.Event()
        self.circles, self.present = {}, []

    def seat(self, name):
        return Off(super().seat(name), self.board, self.chair, self.off.get(name, []))

    def circle(self, name):
        absence = Absence(cohorts_of(self.names, masks=self.masked), self.chair, SECONDS)
        self.circles[name] = super().circle(name, absence=absence)
        return self.circles[name]

    def run(self, algo, data, start, **more):
        def one(name):
            circle = self.circle(name)
            try:
                engine = StudyEngine(circle, data[name], masked=self.masked)
                share = circle.share

                def noted(answer, *, all_needed=True):
                    got = share(answer, all_needed=all_needed)
                    if name == self.chair and not all_needed:
                        self.present.append(list(got))
                    return got

                circle.share = noted
                return run(algo, engine, start, **more)
            finally:
                circle.close()

        got = together({n: (lambda n=n: one(n)) for n in self.names})
        for result in got.values():
            if isinstance(result, BaseException):
                raise result
        return got


def clubs(n, seed=0):
    model, data, _, start = mixture(n=n, seed=seed)
    return model, {f"club-{c}": rows for c, rows in enumerate(data)}, start


def algorithm(model, data, quant=None, **more):
    roster = Roster.of({n: len(r) for n, r in data.items()})
    return FedEM(model, quant or Dithering(4), roster, **({"gamma": 0.2, "seed": 3} | more))


@pytest.mark.parametrize("n", range(3, 30))
def test_cohorts_of_three_to_five_hold_everybody_once(n):
    names = [f"club-{i:02}" for i in range(n)]
    cohorts = cohorts_of(names[::-1], masks=True)
    assert [name for c in cohorts for name in c] == names
    assert {len(c) for c in cohorts} <= {3, 4, 5}
    assert len(cohorts) == n // 3
    assert cohorts_of(names, masks=False) == tuple((name,) for name in names)


@pytest.mark.parametrize("masked", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_study_with_absences_is_fedem_with_the_workers_that_were_there(masked, tmp_path):
    """The same S_hat and V as one process that is told who was there; V_c of the others stood still."""
    model, data, start = clubs(7)
    quant = Identity() if masked else Dithering(4)
    algo = algorithm(model, data, quant)
    off = {"club-5": [(6, 14)], "club-2": [(20, 26)]}
    study = Study(list(data), tmp_path, masked=masked, off=off)
    got = study.run(algo, data, start, stop=Stop(rounds=40))
    active = got["club-0"].trace["active"].astype(int)
    rounds = [[algo.roster.slots[n] for n in names] for names in study.present]
    assert [len(r) for r in rounds] == active.tolist()
    missing = [set(data) - set(names) for names in study.present]
    first, second = (
        ({"club-4", "club-5", "club-6"}, {f"club-{i}" for i in range(4)})
        if masked
        else ({"club-5"}, {"club-2"})
    )
    assert first in missing  # on a slow computer others may be late as well
    assert second in missing
    told = algorithm(model, data, quant, participation=Remembered(Given(rounds)))
    local = run(told, LocalEngine(data), start, stop=Stop(rounds=40))
    for result in got.values():
        if masked:
            np.testing.assert_allclose(result.server.S_hat, local.server.S_hat, rtol=1e-8, atol=1e-8)
            np.testing.assert_allclose(result.server.V, local.server.V, rtol=1e-8, atol=1e-8)
        else:
            np.testing.assert_array_equal(result.server.S_hat, local.server.S_hat)
            np.testing.assert_array_equal(result.server.V, local.server.V)
        np.testing.assert_array_equal(result.server.S_hat, got["club-0"].server.S_hat)
        np.testing.assert_array_equal(result.trace["away"], 7 - active)
    for circle in study.circles.values():
        assert circle.left_out["club-5"] > 0
        assert circle.left_out == study.circles["club-0"].left_out
        # Until the chair has said who counts, its frame alone is waited for: nobody else is named as missing.
        assert circle._there("club-0", {"club-3": b""}) == {"club-0"}


MARINA = Marina(0.3, Identity(), 1)


@pytest.mark.parametrize(
    "oracle",
    [{"oracle": Spider(8, 30)}, {"memory": MARINA, "oracle": MARINA, "alpha": 1.0}, {"oracle": Streaming(7)}],
    ids=["spider", "marina", "streaming"],
)
def test_who_is_away_computes_nothing_that_its_next_answer_rests_on(oracle, tmp_path):
    """What it computed as it went through the rounds that it had missed stayed in its oracle: rows of a stream were lost."""
    model, data, start = clubs(4)
    algo = algorithm(model, data, **oracle)
    study = Study(list(data), tmp_path, masked=False, off={"club-2": [(6, 11)]})
    got = study.run(algo, data, start, stop=Stop(rounds=20))
    rounds = [[algo.roster.slots[n] for n in names] for names in study.present]
    assert any(2 not in names for names in rounds)
    told = algorithm(model, data, participation=Remembered(Given(rounds)), **oracle)
    local = run(told, LocalEngine(data), start, stop=Stop(rounds=20))
    for result in got.values():
        np.testing.assert_array_equal(result.server.S_hat, local.server.S_hat)


@pytest.mark.slow
def test_when_all_are_back_the_answer_is_that_of_a_study_without_absences(tmp_path):
    """FedMissEM of six clubs, one of them off for a third of the rounds: it stops only where all have been heard."""
    panel, _ = simulate(J=20, L=12, n=400, family="gaussian", groups=6)
    paper = FedMissEM(panel, family="gaussian", rank=2, penalty=0.3, seed=0)
    data = paper.rows(panel)
    names = list(data)
    algo = algorithm(paper, data, Identity(), gamma=1.0)
    local = run(algo, LocalEngine(data), np.zeros(paper.q), stop=Stop(rounds=2000, tol=1e-22, window=3))
    rounds = local.server.k
    off = {names[4]: [(5, 5 + rounds // 3)]}
    study = Study(names, tmp_path, masked=True, off=off)
    got = study.run(algo, data, np.zeros(paper.q), stop=Stop(rounds=4000, tol=1e-22, window=3))
    assert study.circles[names[0]].left_out[names[4]] >= rounds // 3 - 3
    for result in got.values():
        assert result.converged
        assert result.server.k <= 1.5 * rounds + rounds // 3
        np.testing.assert_allclose(result.server.S_hat, local.server.S_hat, atol=1e-6)


@pytest.mark.slow
def test_who_never_comes_back_stops_nobody_and_the_run_does_not_claim_to_have_converged(tmp_path):
    model, data, start = clubs(6)
    algo = algorithm(model, data, Identity(), gamma=1.0)
    study = Study(list(data), tmp_path, masked=True, off={"club-4": [(5, 10**6)]})
    out = {}

    def one(name):
        circle = study.circle(name)
        try:
            engine = StudyEngine(circle, data[name], masked=True)
            out[name] = run(algo, engine, start, stop=Stop(rounds=60, tol=1e-20, window=3))
        finally:
            circle.close()

    there = [n for n in data if n != "club-4"]

    def gone():
        with contextlib.suppress(Exception):  # it ends with the test
            one("club-4")

    thread = threading.Thread(target=gone)
    thread.start()
    got = together({n: (lambda n=n: one(n)) for n in there})
    study.board.over.set()
    thread.join()
    assert not any(isinstance(g, BaseException) for g in got.values())
    assert all(not out[n].converged and out[n].server.k == 60 for n in there)
    assert study.circles["club-0"].left_out["club-3"] > 40, "its cohort is left out with it"


@pytest.mark.slow
@pytest.mark.parametrize("who", ["club-0", "club-3"])
def test_a_kill_changes_nothing_of_who_was_there(who, tmp_path):
    """The chair says again what it said before its restart, although everybody is there by then."""
    model, data, start = clubs(6)
    algo = algorithm(model, data)
    study, left = Study(list(data), tmp_path, masked=False, off={"club-4": [(6, 12)]}), [4]

    def club(name, circle):
        genuine = circle._advance

        def dying(got):
            genuine(got)
            if name == who and left[0] and circle.exchange == 16 - 3 * left[0]:
                left[0] -= 1
                raise Kill

        circle._advance = dying
        return run(algo, StudyEngine(circle, data[name]), start, stop=Stop(rounds=30))

    got = together({n: (lambda n=n: study.until_done(n, partial(club, n))) for n in data})
    assert left[0] == 0
    for result in got.values():
        np.testing.assert_array_equal(result.server.S_hat, got["club-1"].server.S_hat)
        np.testing.assert_array_equal(result.trace["away"], got["club-1"].trace["away"])
    assert got["club-1"].trace["away"].sum() > 0


def test_a_chair_that_is_cut_off_does_not_go_on_alone(tmp_path):
    """Half of the organisations must be there."""
    clock = [0.0]

    class Nobody:
        def latest(self, name):
            return -1

    names = [f"club-{i}" for i in range(5)]
    rule = Absence(cohorts_of(names, masks=False), "club-0", 60.0)
    enough = rule.waiting(Nobody(), 7, lambda: clock[0])
    assert enough({"club-1": b"", "club-2": b""}) is None
    clock[0] = 1e6
    assert enough({"club-1": b""}) is None
    assert enough({"club-1": b"", "club-2": b""}) == {"club-1", "club-2"}
    with pytest.raises(ConfigError, match="the chair 'x' is not among the organisations"):
        Absence(cohorts_of(names, masks=False), "x", 60.0)


def test_who_was_left_out_is_not_waited_for_until_it_shows_a_frame(tmp_path):
    clock, shown = [0.0], {"b": 6, "c": 6}

    class Carrier:
        def latest(self, name):
            return shown[name]

    rule = Absence([("a",), ("b",), ("c",)], "a", 10.0)

    def waits(exchange, frames):
        """Seconds until the chair goes on."""
        enough, begun = rule.waiting(Carrier(), exchange, lambda: clock[0]), clock[0]
        while enough(frames) is None:
            clock[0] += 1.0
        return clock[0] - begun

    assert waits(7, {"b": b"", "c": b""}) == 0
    assert waits(8, {"c": b""}) == 11, "b was there in the round before"
    assert waits(9, {"c": b""}) == 0, "and is away now"
    shown["b"] = 8
    assert waits(10, {"c": b""}) == 11, "it shows frames of rounds that it missed"
    assert waits(11, {"c": b""}) == 0
    assert waits(12, {"b": b"", "c": b""}) == 0
    assert waits(13, {"b": b""}) == 11, "c"


def test_a_chair_that_was_started_again_waits_for_who_is_coming_back():
    clock, shown = [0.0], [80]

    class Carrier:
        def latest(self, name):
            return shown[0]

    enough = Absence([("a",), ("b",)], "a", 10.0).waiting(Carrier(), 100, lambda: clock[0])
    for _ in range(5):
        clock[0] += 8.0
        shown[0] += 1
        assert enough({}) is None, "it shows a frame every 8 seconds"
    clock[0] += 11.0
    assert enough({}) == frozenset()


@pytest.mark.parametrize(
    "change",
    [lambda names: [n for n in names if n != "club-5"], lambda names: [], lambda names: [*names, "club-6"]],
    ids=["part of a cohort", "nobody", "a stranger"],
)
def test_a_list_of_other_than_whole_cohorts_is_refused(change, tmp_path, monkeypatch):
    model, data, start = clubs(6)
    genuine = Attendance.of.__func__

    def lied(cls, *given):
        frames = dict(genuine(cls, *given).frames)
        return cls({n: frames.get(n, bytes(16)) for n in change(sorted(frames))})

    monkeypatch.setattr(Attendance, "of", classmethod(lied))
    algo = algorithm(model, data, Identity())
    with pytest.raises(UplinkError, match="club-0 signed a frame of exchange 2 that cannot be read"):
        Study(list(data), tmp_path, masked=True).run(algo, data, start, stop=Stop(rounds=6))


def test_masks_of_a_cohort_cancel_over_it_and_over_nothing_less(tmp_path):
    names = [f"club-{i}" for i in range(6)]
    keys, roster = keys_of(names, tmp_path)
    parties = {n: Masks(n, keys[n], roster, JOB) for n in names}
    cohort = cohorts_of(names, masks=True)[0]
    streams = [parties[n].stream(5, 100, b"t", cohort) for n in cohort]
    assert not np.sum(streams, axis=0, dtype=np.uint64).any()
    for a, b in pairwise(streams):
        both = a + b
        assert (both >> np.uint64(60)).astype(int).std() > 3, "looks random"


@pytest.mark.parametrize(
    ("lie", "words"),
    [
        ("left out", "have seen different frames before it"),
        ("another frame", "have seen different frames of club-2"),
    ],
)
def test_a_chair_that_says_two_things_is_found(lie, words, tmp_path):
    """It signs a second frame for one of the others, in which somebody is left out, or has another frame."""
    model, data, start = clubs(4)
    algo = algorithm(model, data)
    study = Study(list(data), tmp_path, masked=False)
    genuine, label = study.board.seat, frame_label(JOB, "club-0", 8)

    class Lied:
        latest = restore = None

        def __init__(self, seat):
            self.seat, self.latest, self.restore = seat, seat.latest, seat.restore

        def some_of(self, exchange, have, enough):
            got = self.seat.some_of(exchange, have, enough)
            if exchange != 8:
                return got
            chair = study.circles["club-0"]
            body = chair.party.unlock(chair.key, label, chair.party.verified("club-0", label, got["club-0"]))
            rest = Outline.read(body[32:])[1]
            said, answer = Attendance.read(rest)
            frames = {n: d for n, d in said.frames.items() if n != "club-2"}
            if lie == "another frame":
                frames["club-2"] = bytes(16)
            body = body[: len(body) - len(rest)] + Attendance(frames).as_bytes() + answer
            got["club-0"] = chair.party.sign(label, chair.party.lock(chair.key, label, body))
            if lie == "left out":
                del got["club-2"]
            return got

    study.board.seat = lambda name: Lied(genuine(name)) if name == "club-3" else genuine(name)
    with pytest.raises(EngineError, match=words):
        study.run(algo, data, start, stop=Stop(rounds=30))


def test_what_is_read_of_a_list_is_what_was_written_and_cut_bytes_are_refused():
    said = Attendance({"north": bytes(range(16)), "south-west": bytes(16)})
    raw = said.as_bytes()
    assert Attendance.read(raw + b"answer") == (said, b"answer")
    for cut in range(len(raw)):
        with pytest.raises(ValueError, match="cut"):
            Attendance.read(raw[:cut])
