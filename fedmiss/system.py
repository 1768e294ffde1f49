"""What operating systems do differently: the only module that calls what POSIX has and Windows has not.

Every function works where the call is missing; its docstring says what it does then. ``tests/test_system.py`` hides the
calls, and runs a whole job and a study's files without them. No Windows was there to try it on.
"""

from __future__ import annotations

import contextlib
import ctypes
import getpass
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any
from unicodedata import normalize

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

POSIX = fcntl is not None

Handler = Callable[[int, FrameType | None], Any]


# files


def at_home(path: Path) -> Path:
    """Read a ~ at the beginning, alone, as the home folder; ``~other`` and ``~$file`` are names."""
    return Path(os.path.expanduser("~"), *path.parts[1:]) if path.parts[:1] == ("~",) else path


def as_spelled(path: Path) -> Path:
    """Return a path as the disk spells it, where only accents differ: a Mac writes them apart, and both look the same."""
    if str(path).isascii() or os.path.lexists(path):
        return path
    out = Path(path.anchor)
    for part in path.parts[bool(path.anchor) :]:
        forms = (part, normalize("NFC", part), normalize("NFD", part))
        out = next((out / form for form in forms if os.path.lexists(out / form)), out / part)
    return out


def open_own(path: Path, flags: int) -> int:
    """Open a file of bytes, made for its owner alone; elsewhere than POSIX the folder's rights decide."""
    return os.open(path, flags | getattr(os, "O_BINARY", 0), 0o600)


def open_plain(path: str, flags: int) -> int:
    """Opener of files where others can put things: no link that leads elsewhere is followed (POSIX), no pipe waited for."""
    return os.open(path, flags | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0), 0o666)


def open_to_others(path: Path) -> bool:
    """Return whether others than its owner may read or write a file; False where a file has no such rights."""
    return POSIX and bool(path.stat().st_mode & 0o077)


def lock_now(handle: int) -> bool:
    """Lock an open file for this process; False if another holds it. Elsewhere than POSIX there is no lock: True."""
    if not POSIX:
        return True
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def to_disk(what: int | Path) -> None:
    """Have the system write a file (or the names in a folder) to the disk now; folders on POSIX only."""
    if isinstance(what, int):
        os.fsync(what)
        return
    if not POSIX and what.is_dir():
        return
    handle = os.open(what, os.O_RDONLY if POSIX else os.O_RDWR)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def change_owner(path: str | Path, user: int) -> None:
    """Give a file to a user and the group of the same number; nothing happens elsewhere than on POSIX."""
    if hasattr(os, "chown"):
        os.chown(path, user, user)


def share_like(made: int | Path, folder: Path) -> None:
    """Open a new file or folder of this user to whom ``folder`` is open, and give it that one's group; POSIX only.

    Nothing is taken away, a link is not followed, and nothing happens where the system refuses it.
    """
    if not hasattr(os, "fchown"):
        return
    if isinstance(made, Path):
        with contextlib.suppress(OSError):
            handle = os.open(made, os.O_RDONLY | os.O_NOFOLLOW | os.O_DIRECTORY)
            try:
                share_like(handle, folder)
            finally:
                os.close(handle)
        return
    with contextlib.suppress(OSError):
        like, now = os.stat(folder), os.fstat(made)
        if now.st_uid != os.geteuid():
            return
        if now.st_gid != like.st_gid:
            with contextlib.suppress(OSError):
                os.fchown(made, -1, like.st_gid)
        rights = stat.S_IMODE(like.st_mode) if stat.S_ISDIR(now.st_mode) else like.st_mode & 0o444
        if rights & ~now.st_mode:
            os.fchmod(made, rights | stat.S_IMODE(now.st_mode))


# processes


def user_name() -> str:
    """Return the name of the user, or a number for one without a name."""
    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):
        return f"user {os.getuid()}" if hasattr(os, "getuid") else "user unknown"


def owner_of(path: Path) -> str:
    """Return the name of a file's owner, or a number for one without a name; "its owner" where the system has none."""
    try:
        return path.owner()
    except KeyError:
        return f"user {path.stat().st_uid}"
    except (OSError, NotImplementedError):
        return "its owner"


def is_administrator() -> bool:
    """Return whether this process may change owners of files (root); False elsewhere than on POSIX."""
    return hasattr(os, "geteuid") and os.geteuid() == 0


def in_own_group() -> dict[str, Any]:
    """Return the arguments of ``Popen`` for a process with a group of its own, which Ctrl-C of the parent does not reach."""
    if POSIX:
        return {"start_new_session": True}
    return {"creationflags": getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0)}


def interrupt_process(process: subprocess.Popen[bytes]) -> None:
    """Ask a process to end, as Ctrl-C does; elsewhere than on POSIX it is ended."""
    if POSIX:
        process.send_signal(signal.SIGINT)
    else:
        process.terminate()


def kill(process: int) -> None:
    """End a process at once."""
    os.kill(process, getattr(signal, "SIGKILL", signal.SIGTERM))


def end_tree(process: subprocess.Popen[bytes]) -> None:
    """End a process of its own group and its children: asked first, then killed. Elsewhere than on POSIX itself only."""
    if not hasattr(os, "killpg"):
        process.terminate()
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        return
    # Asked first: a process that can put its work away is given five seconds.
    for what in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, what)
        except ProcessLookupError:
            break
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            continue
    process.wait()
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def command_lines() -> Iterator[tuple[int, list[bytes]]]:
    """Number and words of the command line of every other process, where the system lists them (``/proc``: Linux)."""
    table = Path("/proc")
    for entry in table.iterdir() if table.is_dir() else ():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                yield int(entry.name), (entry / "cmdline").read_bytes().split(b"\0")
            except (OSError, ValueError):
                continue


# signals


def on_request_to_end(
    handler: Handler, only: Sequence[str] = ("SIGINT", "SIGTERM", "SIGHUP")
) -> Callable[[], None]:
    """Prepare to hear requests to end (Ctrl-C, a stop, a closed terminal), and return what begins to hear them.

    Until then such a request ends the process without a word. Signals that the system has not, and signals that were
    set to be ignored, are left alone. From the main thread only.
    """
    usual = (signal.SIG_DFL, signal.default_int_handler)
    named = [getattr(signal, name) for name in only if hasattr(signal, name)]
    heard = [number for number in named if signal.getsignal(number) in usual]
    for number in heard:
        signal.signal(number, signal.SIG_DFL)

    def begin() -> None:
        for number in heard:
            signal.signal(number, handler)

    return begin


def hear_no_interrupt() -> None:
    """Leave Ctrl-C to the parent process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


# limits


def cores() -> int:
    """Return the number of processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def address_limit() -> int | None:
    """Return the limit on addresses of this process in bytes (``ulimit -v``); None where there is none."""
    try:
        import resource
    except ImportError:
        return None
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    return None if limit == resource.RLIM_INFINITY else limit


def trim_memory() -> None:
    """Give freed memory back to the system, where the allocator can (glibc)."""
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)
