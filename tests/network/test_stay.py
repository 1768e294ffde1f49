"""When an organisation may leave: never while a hub that was killed may come back for the last answers."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from fedmiss.network import engine, operate
from fedmiss.network.engine import FAREWELL, Responding, farewell
from fedmiss.network.operate import LINGER, RETURN, Stay


@pytest.fixture
def kit(tmp_path):
    return SimpleNamespace(done=tmp_path / "done", answered=tmp_path / "answered")


@pytest.fixture
def clock(monkeypatch):
    now = SimpleNamespace(time=1000.0)
    monkeypatch.setattr(operate.time, "monotonic", lambda: now.time)
    return now


def test_it_stays_until_the_hub_says_farewell_or_is_away_for_long(kit, clock):
    hub = SimpleNamespace(there=True)
    stay = Stay(kit, lambda: hub.there)
    hub.there = False
    assert not stay.over()  # the job goes on, the hub is away
    clock.time += 10 * RETURN
    assert not stay.over()
    kit.answered.touch()
    assert not stay.over()  # all is answered, the hub was killed with answers of others to come
    clock.time += 0.9 * RETURN
    assert not stay.over()
    hub.there = True
    assert not stay.over()  # it is back
    clock.time += 10 * RETURN
    assert not stay.over()
    kit.done.touch()
    assert not stay.over()  # it has its result, and may still listen for a while
    hub.there = False
    assert stay.over()


def test_it_leaves_a_hub_that_does_not_come_back_and_one_that_never_stops_listening(kit, clock):
    kit.answered.touch()
    stay = Stay(kit, lambda: False)
    assert not stay.over()
    clock.time += 1.1 * RETURN
    assert stay.over()
    kit.done.touch()
    stay = Stay(kit, lambda: True)
    assert not stay.over()
    clock.time += 1.1 * LINGER
    assert stay.over()


def test_a_farewell_is_no_question_and_a_lost_one_does_no_harm(kit):
    program = SimpleNamespace(program=SimpleNamespace(results=[]), answer=lambda frame: b"answer")
    site = Responding.__new__(Responding)
    site.kit, site.program = kit, program
    assert site.answer(b"question") == b"answer"
    assert not kit.answered.exists()
    program.program.results.append("outcome")
    assert site.answer(b"question") == b"answer"
    assert kit.answered.exists()
    assert not kit.done.exists()
    farewell(lambda frames: {n: site.answer(f) for n, f in frames.items()}, ["north"])
    assert kit.done.exists()

    def broken(frames):
        assert frames == {"north": FAREWELL}
        raise OSError

    engine.farewell(broken, ["north"])
