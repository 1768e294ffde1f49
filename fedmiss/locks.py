"""One process at a time makes a folder or file; what a process that died has left behind is removed."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

from fedmiss.errors import BusyError

__all__ = ["aside", "clear_inside", "clear_leftovers", "locked", "temporary"]

_TEMPORARY = ".tmp-"
_MINE: ContextVar[frozenset[Path]] = ContextVar("fedmiss_locks", default=frozenset())


def temporary(path: Path, suffix: object) -> Path:
    """Name of something unfinished beside ``path``; :func:`clear_leftovers` finds it."""
    return path.with_name(f".{path.name}{_TEMPORARY}{suffix}")


def aside(path: Path) -> Path:
    """Where a folder waits while its successor takes its place."""
    return temporary(path, "old")


@contextmanager
def locked(path: str | Path, *, wait: bool = False) -> Iterator[bool]:
    """Hold the lock of an output while the block runs; its folder must exist.

    The lock is the system's (``filelock``): it ends with its process, so a dead owner holds nothing. A block inside another
    on the same path passes; True is yielded to the outermost only.

    Parameters
    ----------
    wait : wait for the other process instead of refusing

    Raises
    ------
    BusyError    another process or thread makes ``path``; the message names it
    """
    from filelock import FileLock, Timeout  # loads asyncio, which commands that read only do not need

    path = Path(path)
    path = path.parent.resolve() / path.name
    if path in _MINE.get():
        yield False
        return
    file = path.with_name(f".{path.name}.lock")
    lock = FileLock(file, thread_local=False)
    try:
        # Half a second, not zero: an owner that has just ended removes its file, and then filelock must try again.
        lock.acquire(timeout=-1 if wait else 0.5)
    except Timeout:
        raise BusyError(
            f"{path} is being made by another process{_owner(file)}. Wait until it has ended, or choose another folder "
            "with --out.",
            path=str(path),
        ) from None
    token = _MINE.set(_MINE.get() | {path})
    try:
        _sign(file)
        yield True
    finally:
        _MINE.reset(token)
        with contextlib.suppress(OSError):  # removed while it is held: a waiting process tries again
            file.unlink()
        lock.release()


def _sign(file: Path) -> None:
    """Write who holds the lock, for the one who is refused."""
    owner = {"pid": os.getpid(), "host": socket.gethostname(), "since": time.strftime("%Y-%m-%d %H:%M:%S")}
    with contextlib.suppress(OSError):
        # Without system locks filelock writes something of its own into the file, which must stay.
        if file.read_text(encoding="utf-8")[:1] in ("", "{"):
            file.write_text(json.dumps(owner), encoding="utf-8")


def _owner(file: Path) -> str:
    try:
        owner = json.loads(file.read_text(encoding="utf-8"))
        return f" (process {owner['pid']} on {owner['host']}, since {owner['since']})"
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def clear_leftovers(path: Path) -> None:
    """Remove what a dead process left beside ``path``, and put back what it had set aside; ``path`` must be locked."""
    if aside(path).exists() and not path.exists():
        os.replace(aside(path), path)
    start = f".{path.name}{_TEMPORARY}"
    for left in [p for p in path.parent.iterdir() if p.name.startswith(start)]:
        _remove(left)


def clear_inside(folder: Path) -> None:
    """Remove everything unfinished in a folder whose owner does not live any more."""
    if not folder.is_dir():
        return
    for left in [p for p in folder.iterdir() if p.name.startswith(".") and _TEMPORARY in p.name]:
        path = folder / left.name[1:].partition(_TEMPORARY)[0]
        with contextlib.suppress(BusyError), locked(path):
            clear_leftovers(path)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
