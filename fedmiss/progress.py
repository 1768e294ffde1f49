"""One way to show that long work is going on: a rich bar on stderr, silent when nobody watches."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["progress"]


@contextmanager
def progress(label: str, total: float | None = None, *, unit: str = "") -> Iterator[Callable[[float], None]]:
    """Show a bar with rate and remaining time; call the yielded function with how far the work has come.

    ``unit="bytes"`` shows sizes and speed in bytes. Nothing is drawn when stderr is not a terminal.
    """
    if not sys.stderr.isatty():
        yield lambda done: None
        return
    from rich.console import Console
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
        yield lambda done: bar.update(task, completed=done)
