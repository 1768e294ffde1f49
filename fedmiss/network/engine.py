"""What an engine with a relay must do for a study, and how its processes are started and end."""

from __future__ import annotations

import importlib
import importlib.util
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol, cast

from fedmiss.atomic import read_checked, read_object, write_checked
from fedmiss.errors import EngineError, InputError
from fedmiss.federation.gather import Relay, RelayGone, Seat, unpacked
from fedmiss.network.kits import job_hash, open_kit, read_roster
from fedmiss.network.member import DATA, take_part, warm_up
from fedmiss.network.outbox import holder, note_refusal
from fedmiss.network.status import STATUS, Status
from fedmiss.network.study import Study, read_study
from fedmiss.owner import remove_state
from fedmiss.system import in_own_group


class Control(Protocol):
    """The connection to a relay that listens."""

    def connected(self) -> list[str]:
        """Names of connected organisations."""

    def submit(self, names: Sequence[str]) -> str:
        """Submit the study's job to organisations that are all connected; return its number."""

    def over(self, job: str) -> bool:
        """Whether the engine has ended the job."""

    def idle(self, job: str) -> list[str]:
        """Names of organisations that do not answer, or whose engine has no part in a job that others' engines run."""

    def abort(self, job: str) -> None:
        """End a job of the engine; the study's goes on in the next one."""

    def close(self) -> None:
        """Close the connection."""


class Carrier(Protocol):
    """A module that carries frames: it makes kits, and starts a process at either end."""

    def provision(self, study: Study, out: Path) -> None:
        """Make certificates and addresses for the relay and every organisation."""

    def start_member(self, kit: Path, name: str, log: Path) -> subprocess.Popen[bytes]:
        """Start the engine at an organisation."""

    def start_relay(self, hub: Path, log: Path) -> subprocess.Popen[bytes]:
        """Start the engine at the relay."""

    def control(self, hub: Path, study: Study) -> Control:
        """Connect to a relay that listens."""


def engine_of(study: Study) -> Carrier:
    """The engine of a study: the module of this package with its name."""
    return cast(Carrier, importlib.import_module(f"fedmiss.network.{study.engine}"))


def provision(study: Study, out: Path) -> None:
    """Add to the kits what the study's engine needs: certificates and addresses, where there is a relay."""
    if study.engine != "folder":
        engine_of(study).provision(study, out)


def need(package: str) -> None:
    """Raise unless an engine's package, which the extra is called after, is installed."""
    if importlib.util.find_spec(package) is None:
        raise EngineError(
            f"the engine {package} is not installed. Say: pip install 'fedmiss[{package}]' in an environment of its own."
        )


def environment(more: Mapping[str, str]) -> dict[str, str]:
    """Variables of an engine's process: one thread of linear algebra, so that bits do not depend on the computer's load."""
    return {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", **more}


def spawn(words: Sequence[str], log: Path, more: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start a Python module as a process with a group of its own, writing to a log."""
    with open(log, "ab") as stream:
        return subprocess.Popen(
            [sys.executable, "-u", "-m", *words], stdout=stream, stderr=stream, stdin=subprocess.DEVNULL,
            env=environment(more), **in_own_group(),
        )  # fmt: skip


def log_to(log: Path) -> None:
    """Write what libraries of this process warn of into an engine's log: Python would put it on the screen."""
    if not logging.getLogger().handlers:
        logging.basicConfig(filename=log, level=logging.WARNING, format="%(asctime)s %(name)s %(message)s")


BACK = 5.0  # seconds in which who does not answer may be back in this job of the engine; then another one is begun
LONG = 30.0  # seconds after which it is said that the others wait for somebody who is at work, or looks at a message


class Interrupted(EngineError):
    """The engine's job ended before the study's."""


class Responding:
    """An organisation's job behind an engine with a relay: it runs in a thread, once the compiled loops are ready."""

    def __init__(self, kit_folder: str | Path) -> None:
        self.kit = open_kit(kit_folder)
        self.seat = Seat(self.kit.name)
        # Before the engine calls: the first question would else wait for the compiler.
        warm_up()
        # A daemon: the engine ends its process when the job is over, and would else wait for this thread.
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        local = read_object(self.kit.private / DATA)
        look = holder(self.kit) if local["look"] else None
        for attempt in range(120):  # the job before may still end, and hold the journal
            try:
                take_part(self.kit, Path(local["data"]), self.seat, look=look, preview=bool(local["preview"]))
                self.seat.end(not local["preview"])
                return
            except RelayGone:  # the engine has ended this job; it begins another one
                return
            except EngineError as error:
                if attempt < 119 and error.fields.get("busy"):
                    time.sleep(0.5)
                    continue
                self._stop(error)
                return
            except Exception as error:
                self._stop(error)
                return

    def _stop(self, error: Exception) -> None:
        # into the engine's log; `join` shows the file on the screen
        print(note_refusal(self.kit, error), flush=True)
        # Said on the organisation's own computer only; the relay is told that it has ended, and no reason.
        self.seat.end(False)

    def answer(self, packet: bytes) -> bytes:
        """Take what the relay brings, and return this organisation's next frame."""
        return self.seat.answer(packet)


def relay(hub: Path, ask: Callable[[Mapping[str, bytes]], dict[str, bytes]]) -> None:
    """Bring everybody's frames to everybody until all have their results; say how it stands in the relay's status."""
    study = read_study(hub)
    job = job_hash(study, read_roster(hub, study)).hex()
    note = Status(hub / STATUS, job, study.organisations)
    away: list[str] = []
    since = [0.0]
    slow: list[str] = []
    slow_since = [0.0]
    ended: set[str] = set()

    def watch(exchange: int, missing: Sequence[str]) -> None:
        note.going("relay", exchange)
        now, before = time.monotonic(), note.values["missing"]
        if (over := set(middle.ended)) != ended and (kept := middle.kept()):
            write_checked(at, kept)
            ended.update(over)
        if list(missing) != away:
            away[:], since[0] = missing, now
        if (waited := middle.waited_for()) != slow:
            slow[:], slow_since[0] = waited, now
        names = away or (slow if now - slow_since[0] > LONG else [])
        if names != before:  # only a change is written
            note.away(names)

    def pause() -> None:
        if time.monotonic() - since[0] > BACK:
            raise Interrupted(f"no answer from {', '.join(away)}.", groups=list(away))
        time.sleep(1.0)

    middle, at = Relay(study.organisations, watch), _kept_at(hub, job)
    middle.restore(_kept(at))
    try:
        middle.run(ask, pause)
    except Interrupted as error:
        note.write(state="interrupted", error=str(error))
        raise
    except Exception as error:
        note.write(state="stopped", error=str(error))
        raise
    note.write(state="done", missing=[])
    remove_state(at)


def _kept_at(hub: Path, job: str) -> Path:
    return hub / f"{job[:16]}.last"


def _kept(at: Path) -> bytes:
    try:
        return read_checked(at) if at.exists() else b""
    except InputError:
        raise InputError(
            f"{at}, the last exchange of the job, is damaged. Remove it and begin again (`fedmiss federation run`): all "
            "organisations are needed then; one that is done already needs a new revision of the study."
        ) from None


def still_there(hub: Path, study: Study, job: str) -> tuple[str, ...]:
    """Organisations that the relay still needs: those that have their results may have left for good."""
    kept = _kept(_kept_at(hub, job))
    done = unpacked(kept)[1] if kept else {}
    return tuple(n for n in study.organisations if n not in done)
