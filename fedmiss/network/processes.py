"""Processes of engines: those that `join` and `run` start, and those that outlived them."""

from __future__ import annotations

import contextlib
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from fedmiss.errors import BusyError, EngineError
from fedmiss.locks import locked
from fedmiss.progress import interrupt
from fedmiss.system import command_lines, end_tree, kill, on_request_to_end

Say = Callable[[str], None]

GOING = 5.0  # seconds in which an engine that was ended must be gone
ENGINES = (b"nvflare.private.fed.app",)  # modules that engines are started as
QUICK, OFTEN = 20.0, 5  # give up on an engine that dies within so many seconds, so many times in a row


@contextlib.contextmanager
def alone(engine: Path, what: str) -> Iterator[None]:
    """Hold an engine's folder: two processes would end each other's engines as leftovers.

    Raises
    ------
    EngineError    another process runs there
    """
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(locked(engine))
        except BusyError as error:
            raise EngineError(
                f"{engine.parent} is at work: {what} runs here already{error.fields.get('owner', '')}. Leave it, or "
                "end it first."
            ) from None
        yield


def last_line(log: Path) -> str:
    """The last line of an engine's log."""
    lines = [x for x in log.read_text(errors="replace").splitlines() if x.strip()] if log.exists() else []
    return lines[-1][:300] if lines else "nothing"


def not_too_often(deaths: int, log: Path) -> None:
    """Raise where an engine has died so many times in a row."""
    if deaths >= OFTEN:
        raise EngineError(
            f"the engine dies as soon as it is started, {deaths} times now. Its last line in {log}: {last_line(log)}"
        )


def stop_on_request() -> None:
    """Let SIGTERM do what Ctrl-C does: end the engine too. Only the main thread may set signals."""
    if threading.current_thread() is threading.main_thread():
        on_request_to_end(interrupt, ["SIGTERM"])()


def end_leftovers(engine: Path) -> None:
    """End engines of this very folder that outlived the `join` or `run` that had started them (kill -9)."""
    mark = str(engine.resolve()).encode()
    until = time.monotonic() + GOING
    while left := [n for n, w in command_lines() if mark in w and any(x.startswith(ENGINES) for x in w)]:
        for number in left:
            with contextlib.suppress(OSError):
                kill(number)
        if time.monotonic() > until:  # of another user: whoever starts next says what is in the way
            return
        time.sleep(0.1)  # it keeps its port until it is gone


def end(process: subprocess.Popen[bytes] | None) -> None:
    """End an engine and its children."""
    if process is not None:
        end_tree(process)
