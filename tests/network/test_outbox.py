"""What is on hold, what was sent, and what is replayed: a custodian's view of messages."""

import threading
import time
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from fedmiss.atomic import read_json
from fedmiss.errors import EngineError, InputError
from fedmiss.federation.gather import Board
from fedmiss.network import join
from fedmiss.network.demo import CLUBS
from fedmiss.network.hold import HELD, on_hold, release
from fedmiss.network.kits import open_kit
from fedmiss.network.member import replay, take_part
from fedmiss.network.outbox import holder, ledger_of, outbox
from fedmiss.network.proposer import new_revision
from fedmiss.network.status import status
from tests.cli.terminal import fedmiss
from tests.federation.network import together

from .conftest import all_take_part


@pytest.mark.slow
def test_a_message_waits_until_it_is_released(folder, kit, panels):
    said, released, stop = [], [], threading.Event()
    hold = holder(kit, said.append, pause=0.01)

    def look(exchange, questions, answers):
        if len(released) < 5:
            hold(exchange, questions, answers)

    def custodian():
        while not stop.is_set():
            if len(said) > len(released):  # who is quicker than the sentence is not told it
                with suppress(InputError):
                    released.append(release(kit))
            time.sleep(0.01)

    thread = threading.Thread(target=custodian)
    thread.start()
    results = all_take_part(folder, panels, looks={"north": look})
    stop.set()
    thread.join()
    assert results["north"] == kit.result
    assert "exchange 1 of job" in released[0]
    assert said[0] == (
        f"north: exchange 1 is on hold. Read it in {kit.private / HELD}; "
        f"`fedmiss federation outbox {kit.folder} PANEL --release` sends it."
    )
    assert any("visits: number of visits" in text for text in released)
    with pytest.raises(InputError, match="holds no message now"):
        release(kit)


def test_a_message_that_was_held_for_another_job_releases_none(folder, kit):
    """Whoever stopped at a held message left its text, and a release of it let a message of the next job go unseen."""
    with pytest.raises(KeyboardInterrupt):
        held_and_stopped(kit, exchange=5)
    assert "exchange 5" in (kit.private / HELD).read_text(encoding="utf-8")
    # it waits for its custodian, said nowhere
    assert "north: exchange 5 is on hold" in " ".join(fedmiss("federation", "status", kit.folder).out.split())
    new_revision(folder)
    again = open_kit(kit.folder)
    with pytest.raises(InputError, match="holds no message now"):
        release(again)
    with pytest.raises(KeyboardInterrupt):
        held_and_stopped(again, exchange=5)
    assert "exchange 5" in release(again)
    held_and_stopped(again, exchange=5)  # it goes


def test_a_message_that_went_is_on_hold_no_more(folder, kit, panels):
    """Stopped while it held one, and joined again without `--look`: the message went, its words stayed."""
    with pytest.raises(KeyboardInterrupt):
        held_and_stopped(kit, exchange=5)
    all_take_part(folder, panels, preview=True)
    assert not (kit.private / HELD).exists()
    with pytest.raises(InputError, match="holds no message now"):
        release(kit)


def held_and_stopped(kit, exchange):
    """Hold a message; who waits for its release says Ctrl-C."""

    def stop(seconds):
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fedmiss.network.outbox.time.sleep", stop)
        holder(kit)(exchange, [], [])


def test_what_was_sent_and_waits_for_the_others_is_in_outbox_and_ledger(folder, kit, panels):
    all_take_part(folder, panels, preview=True)
    _, lines = ledger_of(kit)
    board = Board(CLUBS, patience=0.5)  # the others are away now
    with pytest.raises(EngineError, match="no frame from"):
        take_part(kit, panels["north"], board.seat("north"))
    _, more = ledger_of(kit)
    assert more[:-1] == lines
    assert more[-1][0] == len(lines)
    shown = fedmiss("federation", "ledger", kit.folder).out
    # as `status` counts: neither the keys' exchange, nor the one that waits
    assert f"\n{status(kit.private)['exchanges']} exchanges after that of the keys (0): " in shown
    assert status(kit.private)["exchanges"] == len(lines) - 1
    assert more[-1][2] > 0 == more[-1][3]
    shown = outbox(kit, panels["north"], last=2)
    heads = [line.split(",")[0] for line in shown if line.startswith("---")]
    assert heads == [f"--- exchange {n}" for n in (len(lines) - 1, len(lines))]
    assert shown[-1] == "the others' frames have not all come; when they have, its words stand here"


@pytest.mark.slow
def test_a_replay_shows_what_was_asked_and_answered(folder, panels):
    results = all_take_part(folder, panels)
    kit = open_kit(folder / "kits" / "south")
    again = replay(kit, panels["south"])
    np.testing.assert_array_equal(
        again.joint.totals, np.array(read_json(results["south"] / "totals.json")["totals"])
    )


def whole(kit):
    """Give the kit the engine's files."""
    (kit.folder / "engine" / "startup").mkdir(parents=True)
    for name in ("rootCA.pem", "client.crt", "client.key"):
        (kit.folder / "engine" / "startup" / name).touch()


def test_what_is_on_hold_is_said_over_a_relay_too(folder, panels, monkeypatch):
    """The engine's own process holds the message: its words went into the log, and `join --look` waited without one."""
    kit, said, there = open_kit(folder / "kits" / "north"), [], [True]
    engine = SimpleNamespace(start_member=lambda *given: SimpleNamespace(poll=lambda: None))
    whole(kit)
    for name in ("check_certificate", "check_connection", "need", "start", "end_leftovers", "end"):
        monkeypatch.setattr(join, name, lambda *given, **more: None)
    monkeypatch.setattr(join, "engine_of", lambda study: engine)
    monkeypatch.setattr(join, "_listens", lambda *given: there[0])

    def look():
        for exchange in (1, 2):
            holder(kit, pause=0.02)(exchange, [], [])
        there[0] = False
        kit.result.mkdir()

    def heard(line):
        said.append(line)
        if "on hold" in line:
            release(kit)

    how = {"say": heard, "look": True, "preview": False}
    job = threading.Thread(target=look, daemon=True)
    job.start()
    together({"join": lambda: join._join_engine(kit, panels["north"], kit.result, **how)})
    where = (
        f"Read it in {kit.private / HELD}; `fedmiss federation outbox {kit.folder} PANEL --release` sends it."
    )
    held = [line for line in said if "on hold" in line]
    assert held == [f"north: exchange {exchange} is on hold. {where}" for exchange in (1, 2)]


def test_a_relay_that_leaves_before_the_job_begins_is_named(folder, panels, monkeypatch):
    """The engine tries on without a word: whoever had joined read "connected" for good."""
    kit, said, ways = open_kit(folder / "kits" / "north"), [], iter(["", "gone.", "gone.", ""])
    engine = SimpleNamespace(start_member=lambda *given: SimpleNamespace(poll=lambda: None))

    def connection(*given):
        if why := next(ways, None):
            raise EngineError(why)
        if why is None:
            kit.result.mkdir(exist_ok=True)
            raise EngineError("it has ended")

    whole(kit)
    for name in ("check_certificate", "need", "start", "end_leftovers", "end"):
        monkeypatch.setattr(join, name, lambda *given, **more: None)
    monkeypatch.setattr(join, "engine_of", lambda study: engine)
    monkeypatch.setattr(join, "check_connection", connection)
    monkeypatch.setattr(join, "STILL", 0.0)
    pauses = iter(range(20))
    monkeypatch.setattr(join.time, "sleep", lambda seconds: next(pauses))
    join._join_engine(kit, panels["north"], kit.result, say=said.append, look=False, preview=False)
    assert said[1:3] == ["gone. Waiting for it.", "north: the relay answers again."]


def test_an_engine_that_is_not_whole_is_named_before_the_relay_is_waited_for(folder, panels, monkeypatch):
    """Without the extra, `join` waited for the relay; without its key, "No such file or directory" was all."""
    kit, how = open_kit(folder / "kits" / "north"), {"say": print, "look": False, "preview": False}
    monkeypatch.setattr(join, "engine_of", lambda study: None)
    monkeypatch.setattr(join, "need", lambda engine: None)
    with pytest.raises(InputError, match=r"there is no .*rootCA\.pem, which came with the kit of 'north'"):
        join._join_engine(kit, panels["north"], kit.result, **how)

    def lacks(engine):
        raise EngineError("not installed")

    monkeypatch.setattr(join, "need", lacks)
    for name in ("rootCA.pem", "client.crt", "client.key"):
        (kit.folder / "engine" / "startup" / name).parent.mkdir(parents=True, exist_ok=True)
        (kit.folder / "engine" / "startup" / name).touch()
    with pytest.raises(EngineError, match="not installed"):
        join._join_engine(kit, panels["north"], kit.result, **how)


def test_a_message_that_is_released_meanwhile_is_not_said(folder, monkeypatch):
    """Its file went away between a look whether it is there and its reading; an empty line was said."""
    kit, said, exists = open_kit(folder / "kits" / "north"), [], Path.exists
    with monkeypatch.context() as patch:
        patch.setattr(Path, "exists", lambda path: path.name == HELD or exists(path))
        assert on_hold(kit) == ""

    def released(kit):
        release(kit)
        return ""

    monkeypatch.setattr("fedmiss.network.outbox.on_hold", released)
    holder(kit, said.append, pause=0.01)(1, [], [])
    assert said == []
