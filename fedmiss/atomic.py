"""One file written whole or not at all: bytes, JSON, checked work, secrets; and what a refusal of the disk means."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedmiss.errors import InputError
from fedmiss.locks import lock_of
from fedmiss.owner import put_file, remove_own, replaceable, temporary, unfinished
from fedmiss.parsing import parse_json
from fedmiss.system import to_disk

# what a full disk or a forbidden place answers; other errors inside a step are not about writing
_REFUSALS = {
    errno.ENOSPC: "the disk is full; free some space or ",
    errno.EDQUOT: "the disk quota is used up; free some space or ",
    errno.EACCES: "this user may not write there; ask for the right to, or ",
    errno.EPERM: "this user may not write there; ask for the right to, or ",
    errno.EROFS: "the file system is read-only; ",
    errno.EFBIG: "a file is larger than this disk (FAT: 4 GB) or `ulimit -f` allows; ",
}

_RIGHTS = (errno.EACCES, errno.EPERM)


def _explain(error: OSError, path: Path) -> InputError:
    known = {
        errno.ENOTDIR: f"{path.parent} lies inside a file; ",
        errno.EEXIST: f"{path.parent} is a file; ",
        **_REFUSALS,
    }.get(error.errno or 0)
    reason = f"{known}choose another folder" if known else error.strerror or str(error)
    if error.errno == errno.ENOSPC:
        reason = reason.replace(";", f" ({_free(path)});", 1)
    work = work_of(path)
    left = (
        f"What is done stays in {work}; the same command goes on with it"
        if work.exists()
        else "Nothing half-written was left"
    )
    return InputError(f"cannot write {path}: {reason}. {left}.", path=str(path))


def _free(path: Path) -> str:
    """How much of the disk of a path is free, where what was begun has been taken away."""
    there = next(folder for folder in path.absolute().parents if folder.exists())
    return f"{shutil.disk_usage(there).free / 1e6:,.1f} MB are free in {there}, without what was begun"


def work_of(path: Path) -> Path:
    """The folder of what is not finished and may go on, of a folder that is made at ``path``."""
    return path.with_name(f"{path.name}.partial")


def make_parent(path: Path) -> None:
    """Make the folder of a path; a refusal of the disk is explained."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _explain(error, path) from error


@contextmanager
def atomic_file(path: str | Path, *, ours: Callable[[Path], bool] | None = None) -> Iterator[Path]:
    """Give a temporary name beside ``path``; rename it onto ``path`` on success, remove it on failure.

    ``ours``: says of a file that is there already whether fedmiss wrote it, where the file itself tells.

    Raises ConfigError: a file is there that fedmiss did not write, or that was changed since.
    """
    path = Path(path)
    replaceable(path, ours)
    tmp = temporary(path.absolute())  # pyarrow takes a relative name with a colon for an address
    make_parent(path)
    with explained(path):
        try:
            yield tmp
            to_disk(tmp)  # a rename must not come first
            put_file(tmp, path, ours)
        finally:
            remove_own(tmp)


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Errors of writing something temporary name the folder that the user asked for."""
    try:
        yield
    except InputError as error:
        at = Path(error.fields.get("path", ""))
        within = any(unfinished(place)[0] or place == work_of(path) for place in (at, *at.parents))
        if isinstance(error.__cause__, OSError) and within:
            raise _explain(error.__cause__, path) from error.__cause__
        raise
    except Exception as error:  # polars writes the number of what the disk refused into its text only
        found = re.search(r"\(os error (\d+)\)", str(error))
        number = int(found[1]) if found else getattr(error, "errno", None)
        if re.match(r"Not enough free space|\d+ requested and \d+ written", str(error)):
            number = errno.ENOSPC  # as numpy words it
        if number in _REFUSALS and not (number in _RIGHTS and _elsewhere(error, path)):
            refusal = OSError(number, "")
            refusal.__cause__ = error
            raise _explain(refusal, path) from refusal
        raise


def _elsewhere(error: Exception, path: Path) -> bool:
    """Whether a refusal is of another file than what is made: of an input, which the error names itself."""
    # polars leaves out the beginning of a long path, and says how to see it
    told = re.search(r"\(os error \d+\): (.+?)(?: \(set POLARS_VERBOSE.*)?$", str(error))
    named = getattr(error, "filename", None) or (told[1] if told else "")
    here, there = (Path(one).parent.resolve() / Path(one).name for one in (path, os.fsdecode(named)))
    return bool(named) and not (
        there in (here, here.parent, lock_of(here))
        or there.is_relative_to(here)
        or any(unfinished(place)[0] for place in (there, *there.parents))
    )


def hash_json(value: object) -> str:
    """Return the SHA-256 of a JSON value, independent of the order of its keys."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()


def plain_json(value: object) -> Any:
    """A value as JSON holds it, which knows no number that is not finite: null stands in its place."""
    return json.loads(json.dumps(value, default=str), parse_constant=lambda _: None)


def write_json(path: str | Path, value: object, ours: Callable[[Path], bool] | None = None) -> None:
    """Write a JSON file atomically, readable by a person; ``ours`` as of :func:`atomic_file`."""
    with atomic_file(path, ours=ours) as tmp:
        text = json.dumps(plain_json(value), indent=2, ensure_ascii=False)
        tmp.write_text(text + "\n", encoding="utf-8")


def read_json(path: str | Path) -> Any:
    """Read a JSON file; a missing or broken one is an :class:`InputError`."""
    path = Path(path)
    try:
        return parse_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"there is no file {path}. Check its name and folder.", path=str(path)) from None
    except ValueError as error:
        raise InputError(f"{path} is not valid JSON ({error}); make it again.", path=str(path)) from None


def read_object(path: str | Path, *needed: str) -> dict[str, Any]:
    """Read a JSON file that holds an object with the names ``needed``; any other is an :class:`InputError`."""
    out = read_json(path)
    lacking = [repr(name) for name in needed if not isinstance(out, dict) or name not in out]
    if lacking or not isinstance(out, dict):
        what = f"no {', '.join(lacking)}" if lacking else "no names with values"
        raise InputError(
            f"{path} has {what}: it was changed, or is another file. Take it again from where you had it.",
            path=str(path),
        )
    return out


def write_checked(path: str | Path, content: bytes) -> None:
    """Write bytes behind their SHA-256, atomically: for unfinished work, which a crash may damage."""
    with atomic_file(path, ours=_is_checked) as tmp:
        tmp.write_bytes(hashlib.sha256(content).digest() + content)


def _is_checked(path: Path) -> bool:
    try:
        read_checked(path)
    except InputError:
        return False
    return True


def read_checked(path: str | Path) -> bytes:
    """Read what :func:`write_checked` wrote; a damaged file is an :class:`InputError`."""
    raw = Path(path).read_bytes()
    if hashlib.sha256(raw[32:]).digest() != raw[:32]:
        raise InputError(f"{path} is damaged.", path=str(path))
    return raw[32:]


def write_secret(path: str | Path, secret: bytes = b"") -> None:
    """Write 32 random bytes that only their owner may read; or a ``secret`` that follows from the data beside it."""
    with atomic_file(path) as tmp:
        if not secret:
            tmp.touch(mode=0o600)
        tmp.write_bytes(secret or os.urandom(32))
