"""One process at a time makes a folder or file; what a process that died has left behind is removed."""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

from fedmiss.errors import BusyError, ConfigError
from fedmiss.owner import end_work, remove_own, settle, unfinished
from fedmiss.parsing import parse_json
from fedmiss.system import owner_of

_SIGNED = '{"fedmiss": "'  # then a random token
_MINE: ContextVar[frozenset[Path]] = ContextVar("fedmiss_locks", default=frozenset())


@contextmanager
def locked(path: str | Path, *, wait: bool = False) -> Iterator[bool]:
    """Hold the lock of an output while the block runs; its folder must exist.

    The lock is the system's (``filelock``): it ends with its process, so a dead owner holds nothing. A block inside another
    on the same path passes; True is yielded to the outermost only. In an unfinished folder no lock is needed, and none made:
    one that could not be removed would come into the finished folder.

    ``wait``: wait for the other process instead of refusing.

    Raises
    ------
    BusyError      another process or thread makes ``path``; the message names it
    ConfigError    a file that fedmiss did not write has the lock's name
    """
    from filelock import FileLock, Timeout  # loads asyncio, which commands that read only do not need

    path = Path(path)
    path = path.parent.resolve() / path.name
    if path in _MINE.get():
        yield False
        return
    # Only its maker knows the name of an unfinished folder.
    if any(unfinished(above)[0] for above in path.parents):
        yield True
        return
    file = lock_of(path)
    if not _is_lock(file):
        raise ConfigError(
            f"{file} has the name of the lock of {path}, and fedmiss did not make it; rename it, or choose another --out.",
            path=str(file),
        )
    # Of the process, not of the thread: the block may hand its work to other threads.
    lock = FileLock(file, thread_local=False)
    try:
        # Half a second, not zero: an owner that has just ended removes its file, and then filelock must try again.
        lock.acquire(timeout=-1 if wait else 0.5)
    except Timeout:
        raise BusyError(
            f"{path} is being made by another process{_owner(file)}. Wait until it has ended, or choose another folder "
            "with --out.",
            path=str(path),
            owner=_owner(file),
        ) from None
    except PermissionError:
        if not os.path.lexists(file):  # the folder takes no file of this user
            raise
        raise BusyError(
            f"{file} is another user's, who makes {path}{_owner(file)} or left it there. Ask {owner_of(file)} to end that, "
            "or to remove the file; or choose another folder with --out.",
            path=str(path),
            owner=_owner(file),
        ) from None
    token = _MINE.set(_MINE.get() | {path})
    try:
        _sign(file)
        yield True
    finally:
        _MINE.reset(token)
        # Removed before it is released: after that another process may hold a lock of this name.
        with contextlib.suppress(OSError):  # removed while it is held: a waiting process tries again
            file.unlink()
        lock.release()


def lock_of(path: Path) -> Path:
    """The file that is locked while ``path`` is made."""
    return path.with_name(f".{path.name}.lock")


def _is_lock(file: Path) -> bool:
    """Whether a lock may be made at ``file``: nothing is there, or a lock of fedmiss, with a token or still empty."""
    if not os.path.lexists(file):
        return True
    if file.is_symlink() or not file.is_file():
        return False
    try:
        text = file.read_text(encoding="utf-8")
    except OSError:  # removed by its owner just now
        return True
    except UnicodeDecodeError:
        return False
    soft = os.name != "posix" and re.fullmatch(r"\d+\n(.*\n?){1,3}", text) is not None  # filelock's own words
    return soft or _SIGNED.startswith(text) or re.match(_SIGNED + "[0-9a-f]{32}", text) is not None


def _sign(file: Path) -> None:
    """Write who holds the lock, for the one who is refused."""
    owner = {
        "fedmiss": secrets.token_hex(16), "pid": os.getpid(), "host": socket.gethostname(),
        "since": time.strftime("%Y-%m-%d %H:%M:%S"),
    }  # fmt: skip
    with contextlib.suppress(OSError):
        # Without system locks filelock writes something of its own into the file, which must stay.
        if file.read_text(encoding="utf-8")[:1] in ("", "{"):
            file.write_text(json.dumps(owner), encoding="utf-8")


def _owner(file: Path) -> str:
    try:
        owner = parse_json(file.read_text(encoding="utf-8"))
        return f" (process {owner['pid']} on {owner['host']}, since {owner['since']})"
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def clear_leftovers(path: Path) -> None:
    """Remove what a dead process left beside ``path``, and put back what it had set aside; ``path`` must be locked."""
    for left in sorted(path.parent.iterdir()):
        name, old = unfinished(left)
        if name == path.name:
            if old:
                settle(left, path)
            else:
                remove_own(left)


def tidy(path: Path) -> None:
    """Remove what a process that died at its very end left beside a whole ``path``."""
    try:
        names = [unfinished(file)[0] or _locks(file) for file in path.parent.iterdir()]
        if path.name in names:
            with locked(path):
                clear_leftovers(path)
        end_work(path)
    except (BusyError, ConfigError, OSError):  # it is not for this process
        return


def clear_inside(folder: Path) -> None:
    """Remove everything unfinished in a folder whose owner does not live any more, and locks that nobody holds."""
    if not folder.is_dir():
        return
    names = {unfinished(path)[0] or _locks(path) for path in folder.iterdir()} - {""}
    for name in sorted(names):
        with contextlib.suppress(BusyError, ConfigError), locked(folder / name):  # ConfigError: a user's
            clear_leftovers(folder / name)


def _locks(file: Path) -> str:
    """Return the name whose lock a file would be; a blank for all else."""
    found = re.fullmatch(r"\.(.+)\.lock", file.name, re.DOTALL)
    return found[1] if found else ""
