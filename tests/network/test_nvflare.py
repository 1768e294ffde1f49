"""Real processes over NVFLARE on this computer: kills, strangers, code from outside, and where connections go."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("nvflare", reason="run by `make test-nvflare` in an environment with the extra")

from fedmiss.errors import EngineError
from fedmiss.files import read_json
from fedmiss.network import nvflare, nvflare_kits
from fedmiss.network.demo import CLUBS, demo_study, in_process, prepare, stop
from fedmiss.network.kits import approve, make_study, open_kit
from fedmiss.network.operate import _session, end
from fedmiss.network.site import start
from fedmiss.network.study import read_study

pytestmark = [
    pytest.mark.nvflare,
    pytest.mark.filterwarnings("ignore"),  # the engine's own
]
PORT = 8142
HERE = Path(nvflare.__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """A study that is ready to run, and a copy of it before the run for every test."""
    out = tmp_path_factory.mktemp("nv")
    study = demo_study(bootstrap=10, port=PORT)
    folder, panels = prepare(out, study)
    for club in CLUBS:
        kit = open_kit(folder / "kits" / club)
        approve(kit, ask=None, given=kit.job.hex())
        from fedmiss.files import SECRET, write_secret

        write_secret(kit.private / SECRET)
    return folder, panels


class Ends:
    """The processes of one study."""

    def __init__(self, folder, panels, prefix=()):
        self.folder, self.panels, self.prefix = folder, panels, list(prefix)
        self.processes = {}
        self.logs = folder.parent / f"{folder.name}-logs"
        self.logs.mkdir(exist_ok=True)

    def start(self, name):
        what = (
            ["run", str(self.folder)]
            if name == "hub"
            else ["join", str(self.folder / "kits" / name), str(self.panels[name])]
        )
        with open(self.logs / f"{name}.log", "ab") as log:
            self.processes[name] = subprocess.Popen(
                [*self.prefix, sys.executable, "-m", "fedmiss.cli.app", "federation", *what],
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                env={**os.environ, "PYTHONPATH": str(HERE)},
            )

    def kill(self, name):
        """kill -9 of an end and everything that it started."""
        families = [p for p in _tree(self.processes[name].pid)]
        for pid in families:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        self.processes[name].wait()

    def kill_engine_only(self, name):
        """kill -9 of the engine's processes; `join` or `run` itself stays."""
        for pid in _tree(self.processes[name].pid)[1:]:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass

    def wait(self, seconds=240):
        until = time.monotonic() + seconds
        while any(p.poll() is None for p in self.processes.values()):
            for name, p in self.processes.items():
                if p.poll():
                    raise EngineError(f"{name}: {(self.logs / f'{name}.log').read_text()[-2000:]}")
            assert time.monotonic() < until, self.words()
            time.sleep(0.3)

    def words(self):
        return "\n".join(f"{p.name}: {p.read_text(errors='replace')[-1500:]}" for p in self.logs.iterdir())

    def until(self, exchanges, seconds=120):
        """Wait until the hub has so many exchanges behind it."""
        journal = self.folder / "hub"
        limit = time.monotonic() + seconds
        while time.monotonic() < limit:
            stands = read_json(journal / "status.json") if (journal / "status.json").exists() else {}
            if stands.get("exchanges", 0) >= exchanges:
                return
            time.sleep(0.02)
        raise AssertionError(self.words())

    def stop(self):
        for p in self.processes.values():
            stop(p)


def _tree(pid):
    """A process and all its descendants, from the system's table."""
    out, parents = [pid], {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
            except (OSError, IndexError, ValueError):
                continue
    for one in out:
        out += [child for child, parent in parents.items() if parent == one]
    return out


def copy_of(prepared, name):
    folder, panels = prepared
    there = folder.parent / name
    shutil.copytree(folder, there)
    return there, panels


def result_of(folder):
    (out,) = (folder / "hub").glob("result-*")
    return np.array(read_json(out / "totals.json")["totals"])


@pytest.fixture(scope="module")
def uninterrupted(prepared, tmp_path_factory):
    """A whole run; every connect() of every process is recorded by the system where strace is there."""
    folder, panels = copy_of(prepared, "uninterrupted")
    trace = tmp_path_factory.mktemp("trace") / "connect"
    tool = shutil.which("strace")
    prefix = [tool, "-f", "-qq", "-e", "trace=connect,sendto", "-o", str(trace), "-A"] if tool else []
    ends = Ends(folder, panels, prefix)
    try:
        for name in ("hub", *CLUBS):
            ends.start(name)
        ends.wait()
    finally:
        ends.stop()
    return folder, trace if tool else None


def test_the_answer_is_that_of_one_process(prepared, uninterrupted):
    folder, _ = uninterrupted
    here = in_process(folder, prepared[1])
    np.testing.assert_allclose(result_of(folder), here.totals, rtol=1e-8)
    for club in CLUBS:
        assert (folder / "kits" / club / "report" / "report" / "index.html").exists()
    assert (folder / "report" / "index.html").exists()


def test_no_process_connects_to_anything_but_the_roster(uninterrupted):
    _, trace = uninterrupted
    if trace is None:
        pytest.fail("strace is not installed, so connections were NOT recorded; install it")
    calls = [line for line in trace.read_text().splitlines() if "AF_INET" in line]
    assert calls, "nothing was recorded"
    strangers = []
    for line in calls:
        assert "sendto" not in line or '"10.255' not in line, line
        address = re.search(r'inet_addr\("([^"]+)"\)|inet_pton\(AF_INET6, "([^"]+)"', line)
        port = re.search(r"htons\((\d+)\)", line)
        host = (address[1] or address[2]) if address else "?"
        if (host, port and port[1]) == ("10.255.255.255", "1"):
            continue  # NVFLARE learns its own address so: a UDP socket that is given an address and sends nothing
        if host not in ("127.0.0.1", "::1") or (port and int(port[1]) == 53):
            strangers.append(line)
    assert not strangers, strangers[:5]


def test_kill_9_of_a_site_and_of_the_hub_changes_no_bit(prepared, uninterrupted):
    folder, panels = copy_of(prepared, "killed")
    ends = Ends(folder, panels)
    try:
        for name in ("hub", *CLUBS):
            ends.start(name)
        ends.until(20)
        ends.kill_engine_only("north")  # nobody types anything: `join` starts it again
        ends.until(60)
        ends.processes["south"].kill()  # `join` only: its engine outlives it, until the next `join` ends it
        ends.processes["south"].wait()
        ends.start("south")
        ends.until(90)
        ends.kill("hub")
        ends.start("hub")  # the system's service manager, or the coordinator
        ends.wait()
    finally:
        ends.stop()
    np.testing.assert_array_equal(result_of(folder), result_of(uninterrupted[0]))


@pytest.fixture
def server(prepared, tmp_path):
    """A hub and its sites without a job, and the coordinator's session."""
    folder, panels = prepared
    there = tmp_path / "study"
    shutil.copytree(folder, there)
    processes = [nvflare.start_hub(there / "hub", tmp_path / "hub.log")]
    admin = None
    try:
        for club in CLUBS:
            kit = open_kit(there / "kits" / club)
            start(kit, panels[club])
            processes.append(nvflare.start_site(kit.folder, club, tmp_path / f"{club}.log"))
        for _ in range(60):
            try:
                admin = admin or _session(there / "hub", read_study(there), processes[0])
                if admin is not None and admin.connected() == sorted(CLUBS):
                    break
            except Exception:
                pass
            time.sleep(1)
        assert admin is not None
        assert admin.connected() == sorted(CLUBS)
        yield there, admin, tmp_path
    finally:
        if admin is not None:
            admin.close()
        for process in processes:
            end(process)


def _ended(admin, job):
    for _ in range(120):
        state = admin.state(job)
        if any(word in state.upper() for word in ("FINISHED", "FAILED", "ABORTED", "ABANDONED", "REJECTED")):
            return state
        time.sleep(0.5)
    raise AssertionError(f"job {job} did not end: {state}")


def test_a_job_with_code_runs_nowhere(server, tmp_path):
    """Code in the job, a class of the library that is not ours, a stranger's kit, another's name: all refused."""
    folder, admin, logs = server
    study = read_study(folder)
    proof = tmp_path / "it-ran"

    job = nvflare_kits.job_folder(study, tmp_path / "with-code")
    for app in ("server", "site"):
        custom = job / app / "custom"
        custom.mkdir()
        (custom / "evil.py").write_text(f"open({str(proof)!r}, 'w').close()\nclass Evil: pass\n")
        path = job / app / "config" / f"config_fed_{'client' if app == 'site' else 'server'}.json"
        config = json.loads(path.read_text())
        config["components"].append({"id": "evil", "path": "evil.Evil", "args": {}})
        path.write_text(json.dumps(config))
    try:
        state = _ended(admin, admin.submit(job))
    except Exception as error:  # refused at once
        state = f"REJECTED {error}"
    assert "COMPLETED" not in state.upper()
    assert not proof.exists()

    job = nvflare_kits.job_folder(study, tmp_path / "other-class")
    path = job / "site" / "config" / "config_fed_client.json"
    config = json.loads(path.read_text())
    config["components"].append(
        {"id": "shell", "path": "subprocess.Popen", "args": {"args": ["touch", str(proof)]}}
    )
    path.write_text(json.dumps(config))
    state = _ended(admin, admin.submit(job))
    assert "COMPLETED" not in state.upper()
    assert not proof.exists()
    said = "".join(p.read_text(errors="replace") for p in logs.glob("*.log"))
    assert "is not in allow_list" in said

    # a kit of another study with the same names: its certificate is of another root
    other = make_study(demo_study(bootstrap=10, port=PORT), tmp_path / "other", nvflare_kits.provision)
    stranger = nvflare.start_site(other / "kits" / "north", "stranger", tmp_path / "stranger.log")
    # north's certificate under a name that is not north's
    thief = tmp_path / "thief"
    shutil.copytree(folder / "kits" / "north", thief)
    named = nvflare.start_site(thief, "west", tmp_path / "thief.log")
    try:
        for _ in range(10):
            time.sleep(1)
            assert admin.connected() == sorted(CLUBS)
    finally:
        end(stranger)
        end(named)
