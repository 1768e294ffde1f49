"""Files and folders written whole or not at all, their hashes, and the manifest beside them."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedmiss.errors import ConfigError, InputError

__all__ = [
    "MANIFEST",
    "SECRET",
    "atomic_file",
    "atomic_folder",
    "hash_file",
    "hash_json",
    "read_json",
    "read_manifest",
    "write_json",
    "write_manifest",
    "write_secret",
]

MANIFEST = "manifest.json"
SECRET = "secret.key"  # of a group, beside its visits


# what a full disk or a forbidden place answers; other errors inside a step are not about writing
_REFUSALS = (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EROFS)


def _explain(error: OSError, path: Path) -> InputError:
    reason = {
        errno.ENOSPC: "the disk is full; free some space or choose another folder with --out",
        errno.EDQUOT: "the disk quota is used up; free some space or choose another folder with --out",
        errno.EACCES: "this user may not write there; choose another folder with --out",
        errno.EPERM: "this user may not write there; choose another folder with --out",
        errno.EROFS: "the file system is read-only; choose another folder with --out",
        errno.ENOTDIR: f"{path.parent} lies inside a file; choose another folder with --out",
        errno.EEXIST: f"{path.parent} is a file; choose another folder with --out",
    }.get(error.errno or 0, error.strerror or str(error))
    return InputError(f"cannot write {path}: {reason}. Nothing half-written was left.", path=str(path))


def _make_parent(path: Path) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _explain(error, path) from error


@contextmanager
def atomic_file(path: str | Path) -> Iterator[Path]:
    """Give a temporary name beside ``path``; rename it onto ``path`` on success, remove it on failure."""
    path = Path(path)
    tmp = path.with_name(f".{path.name}.tmp-{os.getpid()}")
    _make_parent(path)
    try:
        yield tmp
        os.replace(tmp, path)
    except OSError as error:
        if error.errno in _REFUSALS:
            raise _explain(error, path) from error
        raise
    finally:
        tmp.unlink(missing_ok=True)


@contextmanager
def atomic_folder(path: str | Path, *, overwrite: bool = False) -> Iterator[Path]:
    """Give an empty temporary folder; rename it to ``path`` on success, remove it on failure.

    An existing non-empty ``path`` is an error unless ``overwrite``, and is only ever replaced when it holds
    a manifest of ours: a user's own folder is never deleted.
    """
    path = Path(path)
    check_free(path, overwrite=overwrite)
    _make_parent(path)
    tmp: Path | None = None
    try:
        tmp = Path(tempfile.mkdtemp(prefix=f".{path.name}.tmp-", dir=path.parent))
        tmp.chmod(0o755)
        yield tmp
        if path.exists():
            shutil.rmtree(path)
        os.replace(tmp, path)
    except OSError as error:
        if error.errno in _REFUSALS:
            raise _explain(error, path) from error
        raise
    except InputError as error:  # a file inside could not be written: name the folder that the user asked for
        inside = tmp is not None and Path(error.fields.get("path", "")).is_relative_to(tmp)
        if inside and isinstance(error.__cause__, OSError):
            raise _explain(error.__cause__, path) from error.__cause__
        raise
    finally:
        if tmp is not None:
            shutil.rmtree(tmp, ignore_errors=True)


def check_free(path: Path, *, overwrite: bool) -> None:
    """Raise unless a folder may be made at ``path`` (see :func:`atomic_folder`)."""
    if not path.exists():
        return
    if not path.is_dir():
        raise ConfigError(f"{path} is a file, not a folder; choose another name with --out.", path=str(path))
    if not any(path.iterdir()):
        return
    if not overwrite:
        raise ConfigError(
            f"the folder {path} exists already; choose another with --out, or pass --overwrite to replace it.",
            path=str(path),
        )
    if not (path / MANIFEST).exists():
        raise ConfigError(
            f"the folder {path} was not made by fedmiss (no {MANIFEST} in it), so --overwrite will not "
            "delete it; choose another folder with --out.",
            path=str(path),
        )


def hash_file(path: str | Path) -> str:
    """Return the SHA-256 of a file's bytes, as hex."""
    with open(path, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def hash_json(value: Any) -> str:
    """Return the SHA-256 of a JSON value, independent of the order of its keys."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()


def write_json(path: str | Path, value: Any) -> None:
    """Write a JSON file atomically, readable by a person."""
    with atomic_file(path) as tmp:
        tmp.write_text(json.dumps(value, indent=2, ensure_ascii=False, default=str) + "\n", encoding="utf-8")


def read_json(path: str | Path) -> Any:
    """Read a JSON file; a missing or broken one is an :class:`InputError`."""
    path = Path(path)
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"there is no file {path}.", path=str(path)) from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is not valid JSON ({error}); make it again.", path=str(path)) from None


def write_manifest(
    folder: str | Path,
    kind: str,
    *,
    settings: dict[str, Any],
    inputs: dict[str, str],
    results: dict[str, Any] | None = None,
    flow: list[dict[str, Any]] | None = None,
    terms: dict[str, Any] | None = None,
    warnings: list[str] | None = None,
) -> None:
    """Write the manifest of a produced folder.

    Parameters
    ----------
    kind : what the folder is: ``records``, ``panel``, ``fit``, ``imputed``, ``report``, ``simulation``
    settings : every option that the result depends on, the seed included
    inputs : path or name of each input and its SHA-256
    results : figures a person wants to see first (counts, objective, ...)
    flow : rows of the row-flow table, in order: ``{"step", "rows", "note"}``
    terms : where the data come from: ``{"licence", "citation", "release", "terms"}``
    warnings : sentences shown to the user while the folder was made
    """
    from fedmiss import __version__

    write_json(
        Path(folder) / MANIFEST,
        {
            "kind": kind,
            "fedmiss": __version__,
            "settings": settings,
            "inputs": inputs,
            "results": results or {},
            "flow": flow or [],
            "terms": terms or {},
            "warnings": warnings or [],
        },
    )


_MAKER = {"records": "ingest", "panel": "panel", "fit": "fit", "imputed": "impute", "report": "report"}


def read_manifest(folder: str | Path, kind: str | None = None) -> dict[str, Any]:
    """Read a folder's manifest, and check that it is of the ``kind`` asked for.

    Examples
    --------
    >>> import fedmiss
    >>> p = fedmiss.simulate_panel(20, 24, 0.5, seed=1, groups=2)
    >>> panel = fedmiss.write_panel(p, "panel")
    >>> manifest = fedmiss.read_manifest("panel", "panel")
    >>> sorted(manifest["results"]["groups"])
    ['g01', 'g02']
    """
    folder = Path(folder)
    maker = f"; `fedmiss {_MAKER[kind]}` makes one" if kind in _MAKER else ""
    if not folder.exists():
        raise InputError(f"there is no folder {folder}{maker}.", path=str(folder))
    if not (folder / MANIFEST).exists():
        raise InputError(f"{folder} was not made by fedmiss: it has no {MANIFEST}.", path=str(folder))
    manifest: dict[str, Any] = read_json(folder / MANIFEST)
    if kind is not None and manifest.get("kind") != kind:
        raise InputError(
            f"{folder} holds a {manifest.get('kind')!r}, but a {kind!r} is needed here{maker}.",
            path=str(folder),
        )
    return manifest


def write_secret(path: str | Path) -> None:
    """Draw 32 random bytes and write them to a file that only its owner may read."""
    with atomic_file(path) as tmp:
        tmp.touch(mode=0o600)
        tmp.write_bytes(os.urandom(32))
