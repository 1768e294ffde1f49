"""A relay and its engines, without NVFLARE: who is waited for, who has no part, what dies and is started again."""

import re
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from fedmiss.atomic import read_json, write_json
from fedmiss.errors import ConfigError, EngineError, InputError
from fedmiss.federation.gather import OVER, Seat, packed
from fedmiss.locks import locked
from fedmiss.network import join, processes, relay
from fedmiss.network.demo import CLUBS
from fedmiss.network.engine import relay as ask_all
from fedmiss.network.engine import still_there
from fedmiss.network.kits import job_hash, read_roster
from fedmiss.network.member import DATA
from fedmiss.network.nvflare import Admin
from fedmiss.network.nvflare_kits import place_admin
from fedmiss.network.proposer import make_study
from fedmiss.network.relay import _all_there
from fedmiss.network.status import STATUS, Status, status
from fedmiss.network.study import read_study
from fedmiss.system import command_lines
from tests.federation.network import all_of, together

from .conftest import engine_files, enrolled, small_study


def test_a_relay_says_for_whom_the_others_wait(folder, monkeypatch):
    """North looks at its message: it is there and answers, so nobody was missing, and nobody knew why nothing went on."""
    monkeypatch.setattr("fedmiss.federation.gather.PAUSE", 0.01)
    monkeypatch.setattr("fedmiss.network.engine.LONG", 0.05)
    seats, seen, looked = {c: Seat(c) for c in CLUBS}, [], threading.Event()

    def job(name):
        for exchange in range(3):
            if (name, exchange) == ("north", 1):
                assert looked.wait(20)
            all_of(seats[name], CLUBS, name, exchange, b"frame")
        seats[name].end(True)

    def ask(packets):
        if (stands := status(folder / "hub"))["missing"]:
            seen.append((stands["state"], stands["missing"]))
            looked.set()
        return {n: seats[n].answer(packet) for n, packet in packets.items()}

    got = together({c: (lambda c=c: job(c)) for c in CLUBS} | {"relay": lambda: ask_all(folder / "hub", ask)})
    assert set(got.values()) == {None}
    assert {(state, *missing) for state, missing in seen} == {("waiting", "north")}
    assert (status(folder / "hub")["state"], status(folder / "hub")["missing"]) == ("done", [])


@pytest.mark.parametrize("end", ["join", "run"])
def test_a_second_process_on_one_engine_is_refused(tmp_path, panels, monkeypatch, end):
    """Each ended the other's engine as a leftover; a second `join` let a message go that the first one held."""
    study, kits = enrolled(small_study(engine="nvflare"), tmp_path / "study")
    (study / "hub" / "engine").mkdir()
    ended = []
    for side in (join, relay):
        monkeypatch.setattr(side, "check_certificate", lambda *given, **more: None)
        monkeypatch.setattr(side, "end_leftovers", ended.append)

    def second():
        if end == "run":
            relay.run(study)
        else:
            join.join(kits["central"], panels["central"])

    there = (study / "hub" if end == "run" else kits["central"].folder) / "engine"
    with locked(there):
        got = together({"second": second})["second"]
    assert isinstance(got, EngineError)
    assert re.search(rf"`fedmiss federation {end}` runs here already \(process \d+ on ", str(got))
    assert not ended
    assert not (kits["central"].private / DATA).exists()


def test_a_relays_engine_that_dies_while_it_waits_for_organisations_is_started_again(tmp_path, monkeypatch):
    """`run` ended, with words about paths and the disk."""
    study, _ = enrolled(small_study(engine="nvflare"), tmp_path / "study")
    (study / "hub" / "engine").mkdir()
    codes, said = [], []

    def started(hub, log):
        codes.append(None)
        n = len(codes) - 1
        return SimpleNamespace(poll=lambda: codes[n], wait=lambda seconds: codes[n])

    def connected():
        if len(codes) == 1:
            codes[0] = -9
            raise OSError("cannot connect to server")
        return list(CLUBS)

    def submit(names):
        assert names == CLUBS
        job = job_hash(read_study(study), read_roster(study / "hub", read_study(study))).hex()
        Status(study / "hub" / STATUS, job, CLUBS).write(state="done")
        return "job"

    control = SimpleNamespace(connected=connected, submit=submit, close=lambda: None)
    for name in ("check_certificate", "check_port", "end_leftovers", "end"):
        monkeypatch.setattr(relay, name, lambda *given, **more: None)
    monkeypatch.setattr(relay, "engine_of", lambda study: SimpleNamespace(start_relay=started))
    monkeypatch.setattr(relay, "_session", lambda *given: control)
    relay.run(study, say=said.append)
    assert len(codes) == 2
    assert said[0].startswith("the engine ended and is started again.")
    assert said[1].startswith("all organisations are connected; job job is under way")
    assert len(said) == 2


@pytest.mark.parametrize("at", ["study.json", "roster.json"])
def test_a_revision_that_reached_half_of_a_relays_folder_is_named(tmp_path, at):
    """`run` and its engine were of two jobs, and waited for each other."""
    study, _ = enrolled(small_study(engine="nvflare"), tmp_path / "study")
    raw = read_json(study / at)
    odd = {"revision": 2} if at == "study.json" else {"north": raw["south"], "south": raw["north"]}
    write_json(study / at, raw | odd)
    with pytest.raises(
        ConfigError, match=r"hub at revision 1, or with another roster\. Put study\.json and roster"
    ):
        relay.run(study)


@pytest.mark.parametrize("end", ["leftover", "run"])
def test_an_engine_that_outlived_its_run_is_gone_before_the_next_one_begins(folder, monkeypatch, end):
    """It still had the port, and `run` said that another program had it; of a study that was done it was left alone."""
    engine = folder / "hub" / "engine"
    engine.mkdir()
    if not list(command_lines()):
        pytest.skip("this system lists no processes")
    words = ["nvflare.private.fed.app.server.server_train", "-m", str(engine.resolve())]
    left = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)", *words])
    until = time.monotonic() + 10
    while not any(str(engine.resolve()).encode() in w for _, w in command_lines()):
        assert time.monotonic() < until
    # the system takes its time
    monkeypatch.setattr(processes, "kill", lambda n: threading.Timer(0.3, left.kill).start())
    monkeypatch.setattr(relay, "engine_of", None)
    try:
        if end == "run":
            study = read_study(folder)
            job = job_hash(study, read_roster(folder / "hub", study)).hex()
            Status(folder / "hub" / STATUS, job, CLUBS).write(state="done")
            monkeypatch.setattr(relay, "read_study", lambda at: small_study(engine="nvflare"))
            monkeypatch.setattr(relay, "_job_of", lambda *given: job)
            relay.run(folder)
        else:
            processes.end_leftovers(engine)
        assert left.poll() is not None or not Path(f"/proc/{left.pid}/cmdline").read_bytes()
    finally:
        left.kill()
        left.wait()


def test_a_job_in_which_somebody_has_no_part_is_ended(folder, monkeypatch):
    """A site that was started again while a job began was waited for, without a word, for ten minutes."""
    monkeypatch.setattr(relay, "CHECK", 0.0)
    idle, said, ended = iter([["north"], [], *[["north"]] * relay.IDLE]), [], []
    control = SimpleNamespace(over=lambda job: False, idle=lambda job: next(idle), abort=ended.append)
    process = SimpleNamespace(poll=lambda: None)
    relay._watch(control, "job", process, folder / "hub", said.append)
    assert (ended, list(idle)) == (["job"], [])
    assert said == ["north has no part in job job: it left, or was started again, while it began."]


def test_an_engine_names_who_answers_and_who_has_no_part():
    """It lists one that has left for minutes; one that sleeps lets the question run out."""
    rows = {
        "central": {"status": "started", "job_id": "7"},
        "north": {"status": "no_jobs"},
        "west": {"status": "no_reply"},
    }

    def told(names):
        if names == ["south"]:
            raise OSError("cannot connect to server")
        return [rows[n] for n in names]

    admin = Admin.__new__(Admin)
    admin.names = (*CLUBS, "west")
    listed = SimpleNamespace(client_info=[SimpleNamespace(name=c) for c in (*CLUBS, "west")])
    admin.session = SimpleNamespace(get_system_info=lambda: listed, get_client_job_status=told)
    assert admin.connected() == ["central", "north"]
    assert admin.idle("7") == ["north", "south", "west"]
    # it has begun nowhere; all left while it was to begin, and it was waited for without end
    assert admin.idle("8") == ["south", "west"]
    admin.names = ("central",)  # the others have their results
    assert admin.idle("7") == []


def test_a_relay_needs_those_only_that_have_no_result(folder, monkeypatch):
    """South was killed at the end; when it was back, the others had left with their results, and were waited for."""
    hub, study, frame = folder / "hub", small_study(), packed(7, {"": b"frame"})
    job = job_hash(study, read_roster(hub, study)).hex()
    monkeypatch.setattr("fedmiss.network.engine.BACK", -1.0)
    assert still_there(hub, study, job) == CLUBS
    with pytest.raises(EngineError, match="no answer from south"):
        ask_all(hub, lambda packets: {n: frame + OVER for n in packets if n != "south"})
    assert still_there(hub, study, job) == ("south",)
    assert still_there(hub, study, "another job") == CLUBS
    (kept,) = hub.glob("*.last")
    whole = kept.read_bytes()
    kept.write_bytes(whole[:-1])
    with pytest.raises(InputError, match=r"\.last, the last exchange of the job, is damaged\. Remove it"):
        ask_all(hub, lambda packets: pytest.fail("it asks"))
    kept.write_bytes(whole)

    def ask(packets):
        assert list(packets) == ["south"]
        return {"south": frame + OVER}

    ask_all(hub, ask)
    assert status(hub)["state"] == "done"
    there = SimpleNamespace(connected=list)
    with pytest.raises(EngineError, match=r"The others have their results, .* when south can join"):
        _all_there(there, hub, small_study(engine="nvflare", patience=1e-9), [].append, ["south"])


def test_the_coordinator_needs_no_way_to_the_relays_public_name(tmp_path):
    """Behind a router the relay could not reach itself by it: all were connected, and nothing was ever begun."""
    path = make_study(small_study(), tmp_path / "study", engine_files) / "hub" / "admin" / "startup"
    path.mkdir(parents=True)
    write_json(path / "fed_admin.json", {"admin": {"host": "relay.example", "port": 8102}})
    place_admin(path.parent)
    assert read_json(path / "fed_admin.json") == {"admin": {"host": "127.0.0.1", "port": 8102}}


@pytest.mark.slow
def test_the_status_names_who_has_not_joined(folder):
    hub, study = folder / "hub", small_study()
    assert status(hub)["state"] == "not begun"

    class Connections:
        there = iter([["north"], ["north", "south"], list(CLUBS)])

        def connected(self):
            stood.append(status(hub))
            return next(self.there)

    stood, said = [], []
    _all_there(Connections(), hub, study, said.append)
    assert [s["missing"] for s in stood] == [[], ["central", "south"], ["central"]]
    assert {s["state"] for s in stood[1:]} == {"waiting"}
    assert status(hub)["missing"] == []
    assert len(said) == 2
