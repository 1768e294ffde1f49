"""One way to show that long work is going on: a rich bar on stderr; a line now and then when stderr is no terminal."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_asked_to_end: list[int] = []  # signals that came


def interrupt(number: int, frame: object) -> None:
    """Handle a signal as Ctrl-C: raise KeyboardInterrupt, here and once more at the next step of any progress.

    Python drops an exception that is raised while compiled code calls back (numba, when it loads a loop). Without the
    second chance such a request to end would be lost.
    """
    _asked_to_end.append(number)
    raise KeyboardInterrupt


def _go_on() -> None:
    if _asked_to_end:
        raise KeyboardInterrupt


def note(text: str) -> None:
    """Say something that the user should know, on stderr, in one line."""
    print(f"note: {text}", file=sys.stderr, flush=True)


def quiet_figures() -> None:
    """Keep off the screen what matplotlib says of its cache where the home is closed; figures are the same without."""
    logging.getLogger("matplotlib").setLevel(logging.ERROR)


@contextmanager
def progress(label: str, total: float | None = None, *, unit: str = "") -> Iterator[Callable[[float], None]]:
    """Show a bar with rate and remaining time; call the yielded function with how far the work has come.

    ``unit="bytes"`` shows sizes and speed in bytes. Into a pipe or a file goes a line after ten seconds, and one more each
    half minute: how far, how long, and about how much longer. ``FEDMISS_QUIET`` in the environment silences both.
    """
    if os.environ.get("FEDMISS_QUIET"):
        yield lambda done: _go_on()
        return
    if not sys.stderr.isatty():
        yield _lines(label, total)
        return
    from rich.console import Console  # heavy, and only a terminal needs it
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    middle = [DownloadColumn(), TransferSpeedColumn()] if unit == "bytes" else [MofNCompleteColumn()]
    columns = [TextColumn("{task.description}"), BarColumn(), *middle, TimeRemainingColumn()]
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(label, total=total)

        def show(done: float) -> None:
            _go_on()
            bar.update(task, completed=done)

        yield show


def _lines(label: str, total: float | None) -> Callable[[float], None]:
    """Return what says how far the work is, for a log."""
    start = time.monotonic()
    next_line = start + 10.0

    def show(done: float) -> None:
        nonlocal next_line
        _go_on()
        now = time.monotonic()
        if now < next_line:
            return
        next_line = now + 30.0
        spent = now - start
        far = ""
        if total and done > 0:
            far = f", {min(done / total, 1.0):.0%}"
        if total and done >= 0.05 * total:  # before, most of the time went into compiling
            far += f", about {spent * max(total - done, 0.0) / done:.0f} s left"
        print(f"{label}: {spent:.0f} s{far}", file=sys.stderr, flush=True)

    return show
