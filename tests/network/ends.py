"""Organisations (and a relay) as processes, over whichever engine: start, kill, wait; where connections went."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import pytest

import fedmiss
from fedmiss.atomic import read_json, write_secret
from fedmiss.errors import EngineError
from fedmiss.files import SECRET
from fedmiss.network.approval import approve
from fedmiss.network.demo import CLUBS, demo_study, in_process, prepare, stop
from fedmiss.network.kits import open_kit
from fedmiss.network.member import replay
from fedmiss.network.study import read_study

HERE = Path(fedmiss.__file__).resolve().parents[1]


def prepared_study(out, *, engine, port):
    """A study that is ready to run: its custodians have approved. Kills are in its choice of a model and in its fit."""
    folder, panels = prepare(out, demo_study(bootstrap=2, port=port, engine=engine))
    for club in CLUBS:
        kit = open_kit(folder / "kits" / club)
        approve(kit, ask=None, given=kit.job.hex())
        write_secret(kit.private / SECRET)
    return folder, panels


def strangers(trace):
    """Calls of connect and sendto, as strace wrote them, that go elsewhere than to this computer."""
    # several tracers write into one file, and one line may hold the calls of two processes
    calls = re.split(r"\n|(?=\d+ +(?:connect|sendto)\()", trace.read_text())
    calls = [line for line in calls if "AF_INET" in line]
    assert calls, "nothing was recorded"
    out = []
    for line in calls:
        assert "sendto" not in line or '"10.255' not in line, line
        address = re.search(r'inet_addr\("([^"]+)"\)|inet_pton\(AF_INET6, "([^"]+)"', line)
        port = re.search(r"htons\((\d+)\)", line)
        host = (address[1] or address[2]) if address else "?"
        if (host, port and port[1]) == ("10.255.255.255", "1"):
            continue  # NVFLARE learns its own address so: a UDP socket that is given an address and sends nothing
        if host not in ("127.0.0.1", "::1") or (port and int(port[1]) == 53):
            out.append(line)
    return out


def strace(file, calls="connect,sendto"):
    """Words before a command that write its connections down; none where the tool is missing."""
    tool = shutil.which("strace")
    return [tool, "-f", "--seccomp-bpf", "-qq", "-e", f"trace={calls}", "-o", str(file), "-A"] if tool else []


@contextmanager
def loopback_only():
    """Words before a command that put it into a network with nothing but loopback; none where that cannot be made."""
    name = f"fedmiss-{os.getpid()}"
    made = (
        shutil.which("ip")
        and subprocess.run(["ip", "netns", "add", name], capture_output=True).returncode == 0
    )
    if not made:
        yield []
        return
    inside = ["ip", "netns", "exec", name]
    try:
        up = subprocess.run([*inside, "ip", "link", "set", "lo", "up"], capture_output=True).returncode == 0
        yield inside if up else []
    finally:
        subprocess.run(["ip", "netns", "del", name], check=True)


def whole_run(folder, panels, prefix=(), seconds=900):
    """Run a prepared study to its end."""
    ends = Ends(folder, panels, prefix)
    try:
        for name in ends.names:
            ends.start(name)
        ends.wait(seconds)
    finally:
        ends.stop()


def killed_run(folder, panels):
    """Run a study while an engine, a `join` and the whole hub are killed at their exchanges."""
    ends = Ends(folder, panels)
    try:
        for name in ends.names:
            ends.start(name)
        ends.until(15)
        if not ends.by_folder:
            ends.kill_engine_only("north")  # nobody types anything: `join` starts it again
        ends.until(35)
        ends.processes["south"].kill()  # `join` only: its engine outlives it, until the next `join` ends it
        ends.processes["south"].wait()
        ends.start("south")
        ends.until(
            55
        )  # of 90 and more: what folds and replicates draw is secret, and so is how many they take
        ends.kill(ends.names[0])
        ends.start(ends.names[0])  # the system's service manager, or its user
        if ends.by_folder:
            ends.until_results()  # reports are made from journals then: see `uninterrupted`, and the replay below
        else:
            ends.wait()
    finally:
        ends.stop()


class Ends:
    """The processes of one study."""

    def __init__(self, folder, panels, prefix=()):
        self.folder, self.panels, self.prefix = folder, panels, list(prefix)
        self.by_folder = read_study(folder).engine == "folder"
        self.shared = folder.parent / f"{folder.name}-shared"
        self.shared.mkdir(exist_ok=True)
        self.names = CLUBS if self.by_folder else ("hub", *CLUBS)
        self.processes = {}
        self.logs = folder.parent / f"{folder.name}-logs"
        self.logs.mkdir(exist_ok=True)

    def start(self, name):
        what = (
            ["run", str(self.folder)]
            if name == "hub"
            else ["join", str(self.folder / "kits" / name), str(self.panels[name])]
        )
        if self.by_folder:
            what += ["--folder", str(self.shared)]
        with open(self.logs / f"{name}.log", "ab") as log:
            self.processes[name] = subprocess.Popen(
                [*self.prefix, sys.executable, "-m", "fedmiss.cli.app", "federation", *what], stdout=log,
                stderr=log, stdin=subprocess.DEVNULL, start_new_session=True,
                env={**os.environ, "PYTHONPATH": str(HERE)},
            )  # fmt: skip

    def kill(self, name):
        """kill -9 of an end and everything that it started."""
        kill_all(tree_of(self.processes[name].pid))
        self.processes[name].wait()

    def kill_engine_only(self, name):
        """kill -9 of the engine's processes; `join` or `run` itself stays."""
        kill_all(tree_of(self.processes[name].pid)[1:])

    def wait(self, seconds=900):
        until = time.monotonic() + seconds
        while any(p.poll() is None for p in self.processes.values()):
            for name, p in self.processes.items():
                if p.poll():
                    raise EngineError(f"{name}: {(self.logs / f'{name}.log').read_text()[-2000:]}")
            assert time.monotonic() < until, self.words()
            time.sleep(0.3)

    def words(self):
        return "\n".join(f"{p.name}: {p.read_text(errors='replace')[-1500:]}" for p in self.logs.iterdir())

    def until(self, exchanges, seconds=300):
        """Wait until an organisation that is not killed has so many exchanges behind it."""
        path = self.folder / "kits" / "central" / "private" / "status.json"
        limit = time.monotonic() + seconds
        while time.monotonic() < limit:
            stands = read_json(path) if path.exists() else {}
            if stands.get("exchanges", 0) >= exchanges:
                return
            assert stands.get("state") != "done", f"the job was over before exchange {exchanges}: {stands}"
            time.sleep(0.02)
        raise AssertionError(f"{stands}\n{self.words()}")

    def until_results(self, seconds=300):
        """Wait until every organisation has the joint result."""
        limit = time.monotonic() + seconds
        results = [open_kit(self.folder / "kits" / name).result for name in CLUBS]
        while not all(r.exists() for r in results):
            assert not any(p.poll() for p in self.processes.values()), self.words()
            assert time.monotonic() < limit, self.words()
            time.sleep(0.1)

    def stop(self):
        for p in self.processes.values():
            stop(p)


def tree_of(pid):
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


def kill_all(processes):
    for pid in processes:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def copy_of(prepared, name):
    folder, panels = prepared
    there = folder.parent / name
    shutil.copytree(folder, there)
    return there, panels


def result_of(folder):
    """The joint result, the same bytes at every organisation."""
    raw = {c: (open_kit(folder / "kits" / c).result / "totals.json").read_bytes() for c in CLUBS}
    assert len(set(raw.values())) == 1
    return np.array(read_json(open_kit(folder / "kits" / CLUBS[0]).result / "totals.json")["totals"])


def uninterrupted_run(prepared, trace, calls="connect,sendto"):
    """A whole run in a network of its own, connections recorded, where the system can: (folder, trace, whether alone)."""
    folder, panels = copy_of(prepared, "uninterrupted")
    with loopback_only() as inside:
        whole_run(folder, panels, [*inside, *strace(trace, calls)])
    return folder, trace, bool(inside)


class Laws:
    """What must hold of a study over any engine; ``prepared`` and ``uninterrupted`` are fixtures of the engine's tests."""

    def test_the_answer_is_that_of_one_process(self, prepared, uninterrupted):
        folder = uninterrupted[0]
        np.testing.assert_allclose(result_of(folder), in_process(folder, prepared[1]).totals, rtol=1e-8)
        for club in CLUBS:
            assert (folder / "kits" / club / "joint" / "index.html").exists()
            assert (folder / "kits" / club / "report" / "report" / "index.html").exists()

    def test_no_process_connects_to_anything_but_the_roster(self, uninterrupted):
        if not strace("x"):
            pytest.fail("strace is not installed, so connections were NOT recorded; install it")
        assert not strangers(uninterrupted[1])

    def test_a_study_needs_no_network_but_the_roster(self, uninterrupted):
        if not uninterrupted[2]:
            pytest.skip(
                "no network namespace can be made here (`ip netns add`), so the run was in the common network"
            )
        assert result_of(uninterrupted[0]).size

    def test_kill_9_of_any_end_changes_no_bit(self, prepared, uninterrupted):
        folder, panels = copy_of(prepared, "killed")
        killed_run(folder, panels)
        wanted = result_of(uninterrupted[0])
        np.testing.assert_array_equal(result_of(folder), wanted)
        # from the journal of a killed end
        again = replay(open_kit(folder / "kits" / "south"), panels["south"])
        np.testing.assert_array_equal(again.joint.totals, wanted)
