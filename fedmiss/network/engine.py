"""What an engine must do for a study, and what both engines share: how their processes are started and end."""

from __future__ import annotations

import importlib
import importlib.util
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol, cast

from fedmiss.errors import EngineError
from fedmiss.files import read_json
from fedmiss.network.kits import open_kit
from fedmiss.network.outbox import holder, note_refusal
from fedmiss.network.site import DATA, program_of, warm_up
from fedmiss.network.study import Study

__all__ = [
    "FAREWELL",
    "Control",
    "Engine",
    "Responding",
    "engine_of",
    "environment",
    "farewell",
    "need",
    "spawn",
]


FAREWELL = b"fedmiss: the hub has its result"


def farewell(ask: Callable[[Mapping[str, bytes]], dict[str, bytes]], names: Sequence[str]) -> None:
    """Tell all organisations that the hub has its result; one that misses the message leaves by itself after a while."""
    try:
        ask(dict.fromkeys(names, FAREWELL))
    except Exception:  # the result is written; nothing depends on this message
        return


class Control(Protocol):
    """The coordinator's connection to a hub that listens."""

    def connected(self) -> list[str]:
        """Names of connected organisations."""
        ...

    def submit(self) -> str:
        """Submit the study's job, when all are connected; return its number."""
        ...

    def over(self, job: str) -> bool:
        """Whether the engine has ended the job."""
        ...

    def close(self) -> None:
        """Close the connection."""
        ...


class Engine(Protocol):
    """A module that carries frames: it makes kits, and starts a process at either end."""

    def provision(self, study: Study, out: Path) -> None:
        """Make certificates and addresses for the hub and every organisation."""
        ...

    def start_site(self, kit: Path, name: str, log: Path) -> subprocess.Popen[bytes]:
        """Start the engine at an organisation."""
        ...

    def start_hub(self, hub: Path, log: Path, *, preview: bool = False) -> subprocess.Popen[bytes]:
        """Start the engine at the hub."""
        ...

    def control(self, hub: Path, study: Study) -> Control:
        """Connect to a hub that listens."""
        ...


def engine_of(study: Study) -> Engine:
    """The engine of a study: the module of this package with its name."""
    return cast(Engine, importlib.import_module(f"fedmiss.network.{study.engine}"))


def need(package: str, extra: str) -> None:
    """Raise unless an engine's package is installed."""
    if importlib.util.find_spec(package) is None:
        raise EngineError(
            f"the engine {extra} is not installed. Say: pip install 'fedmiss[{extra}]' in an environment of its own."
        )


def environment(more: Mapping[str, str]) -> dict[str, str]:
    """Variables of an engine's process: one thread of linear algebra, so that bits do not depend on the computer's load."""
    return {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", **more}


def spawn(words: Sequence[str], log: Path, more: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start a Python module as a process with a group of its own, writing to a log."""
    with open(log, "ab") as stream:
        return subprocess.Popen(
            [sys.executable, "-u", "-m", *words], stdout=stream, stderr=stream, stdin=subprocess.DEVNULL,
            env=environment(more), start_new_session=True,
        )  # fmt: skip


class Responding:
    """An organisation's program behind an engine: compiled and replayed before the engine reports it as ready."""

    def __init__(self, kit_folder: str | Path) -> None:
        self.kit = open_kit(kit_folder)
        warm_up()
        local = read_json(self.kit.private / DATA)
        look: Callable[..., None] | None = holder(self.kit) if local["look"] else None
        for attempt in range(60):  # the process of the job before may still end, and hold the journal
            try:
                self.program = program_of(self.kit, Path(local["data"]), look, self._refused)
                return
            except EngineError as error:
                if attempt == 59 or not error.fields.get("busy"):
                    raise
                time.sleep(0.5)

    def _refused(self, error: Exception) -> None:
        print(
            note_refusal(self.kit, error), flush=True
        )  # into the engine's log; `join` shows the file on the screen

    def answer(self, frame: bytes) -> bytes:
        """Answer one frame; record for ``join`` that the last question was answered, and that the hub has its result."""
        if frame == FAREWELL:
            self.kit.done.touch()
            return frame
        out = self.program.answer(frame)
        if self.program.program.results:
            self.kit.answered.touch()
        return out
