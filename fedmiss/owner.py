"""The one owner of removing and replacing: only what fedmiss made, by a proof that lies beside it or in it.

    unfinished    ``.NAME.tmp-TOKEN``: a random token, and a check of it with the name, which nobody else would write
    work folder   ``.fedmiss-made`` in it: a random token, and the names of the files that were put there
    folder        its manifest: every file in it is listed, with the SHA-256 of what lies there
    file          ``.fedmiss-made`` beside it: the SHA-256 of what was written

What has no proof stays, and the command says so. Nothing else in fedmiss deletes, renames or replaces a path.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from fedmiss.errors import ConfigError
from fedmiss.parsing import parse_json
from fedmiss.system import owner_of

MANIFEST = "manifest.json"
MARK = ".fedmiss-made"
DROPPINGS = (".DS_Store", "Thumbs.db", "desktop.ini")  # written by file managers; deleted with the folder
_UNFINISHED = re.compile(r"\.(.+)\.tmp-([0-9a-f]{16})([0-9a-f]{8})(\.old)?", re.DOTALL)
_WORK, _FILES = "fedmiss work ", "fedmiss files "  # how a mark begins
_STUDY = ("kit.json", "study.json")  # what lies beside them are states, which a study replaces


def hash_file(path: str | Path) -> str:
    """Return the SHA-256 of a file's bytes, as hex."""
    with open(path, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


# --- unfinished things


def _check(name: str, token: str) -> str:
    return hashlib.sha256(f"fedmiss {name} {token}".encode("utf-8", "surrogateescape")).hexdigest()[:8]


def temporary(path: Path, *, old: bool = False) -> Path:
    """Return a new name for something unfinished beside ``path``, or (``old``) for what its successor replaces."""
    token = secrets.token_hex(8)
    return path.with_name(f".{path.name}.tmp-{token}{_check(path.name, token)}" + (".old" if old else ""))


def unfinished(path: Path) -> tuple[str, bool]:
    """Return the name of which this is an unfinished form, and whether it is an old one; a blank for all else."""
    found = _UNFINISHED.fullmatch(path.name)
    if found is None or _check(found[1], found[2]) != found[3]:
        return "", False
    return found[1], bool(found[4])


def drop_unfinished(folder: Path) -> None:
    """Remove every unfinished thing in a folder and below it; nobody else may be writing there."""
    for at, folders, names in os.walk(folder):
        for name in [name for name in (*folders, *names) if unfinished(Path(name))[0]]:
            remove_own(Path(at) / name)
        # os.walk goes into what is left in this list: removed folders must not be entered.
        folders[:] = [folder for folder in folders if not unfinished(Path(folder))[0]]


def remove_own(path: Path) -> None:
    """Remove an unfinished file or folder, which its name proves to be one."""
    if not unfinished(path)[0]:
        raise ConfigError(f"{path} was not made by fedmiss, so it stays.", path=str(path))
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


# --- marks: what was put into a work folder, or beside others into a folder of the user


def _mark(folder: Path, begin: str) -> dict[str, set[str]] | None:
    """Names in the mark of a folder, with the hashes under which they were put there; None where there is no such mark."""
    try:
        lines = (folder / MARK).read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError):
        return None
    if not re.fullmatch(begin + "[0-9a-f]{32}", lines[0]):
        return None
    found: dict[str, set[str]] = {}
    for line in lines[1:]:
        digest, _, name = line.partition(" ")
        if len(digest) == 64 and name[:1] == '"' and name[-1:] == '"':  # the last line may be torn
            with contextlib.suppress(ValueError):
                found.setdefault(json.loads(name), set()).add(digest)
    return found


def _note(folder: Path, name: str, digest: str) -> None:
    """Write down, before it is put there, what is put into a folder."""
    try:
        with open(folder / MARK, "ab") as stream:
            stream.write(f"\n{digest} {json.dumps(name)}".encode())
    except PermissionError:
        raise ConfigError(
            f"{folder / MARK}, the list of what fedmiss wrote there, is {owner_of(folder / MARK)}'s, and this user "
            f"may not add {name} to it; choose another folder with --out.",
            path=str(folder),
        ) from None


# --- files


def _home(path: Path) -> tuple[str, Path]:
    """Return in what a file lies: ``unfinished``, ``work`` or ``study`` and the folder; a blank for all else."""
    for above in path.absolute().parents:
        if unfinished(above)[0]:
            return "unfinished", above
        if above.name.endswith(".partial") and _mark(above, _WORK) is not None:
            return "work", above
        if any((above / name).exists() for name in _STUDY):
            return "study", above
    return "", path.parent


def replaceable(path: Path, ours: Callable[[Path], bool] | None = None, content: Path | None = None) -> None:
    """Raise ConfigError unless a file may be put at ``path``: nothing is there, or something that fedmiss wrote.

    Parameters
    ----------
    ours : says of a file whether fedmiss wrote it, where the file itself tells
    content : what is to be put there; the same bytes may always be
    """
    what, folder = _home(path)
    if not os.path.lexists(path):
        return
    if path.is_symlink() or not path.is_file():
        kind = "is a link" if path.is_symlink() else "is a folder"
        raise ConfigError(
            f"{path} {kind}, and a file is to be written there; choose another name.", path=str(path)
        )
    if what in ("unfinished", "study"):
        return
    if what == "work":
        known = path.absolute().relative_to(folder).as_posix() in (_mark(folder, _WORK) or {})
    else:
        known = hash_file(path) in (_mark(folder, _FILES) or {}).get(path.name, ())
    if known or (ours is not None and ours(path)) or (content is not None and _same(path, content)):
        return
    raise ConfigError(
        f"{path} was not written by fedmiss, or was changed since, so it is not replaced; choose another name, or move it "
        "away.",
        path=str(path),
    )


def _same(first: Path, second: Path) -> bool:
    return first.stat().st_size == second.stat().st_size and hash_file(first) == hash_file(second)


def put_file(tmp: Path, path: Path, ours: Callable[[Path], bool] | None = None) -> None:
    """Rename a finished file to its name, and write down that it was put there."""
    replaceable(path, ours, tmp)
    what, folder = _home(path)
    if what == "work":
        name = path.absolute().relative_to(folder).as_posix()
        if name not in (_mark(folder, _WORK) or {}):
            _note(folder, name, "0" * 64)
    elif not what and (ours is None or not ours(tmp)):
        mark = folder / MARK
        # An empty mark is one whose maker was killed before the first word.
        if not os.path.lexists(mark) or (
            mark.is_file() and not mark.is_symlink() and not mark.stat().st_size
        ):
            with open(mark, "ab") as stream:
                if not stream.tell():
                    stream.write(f"{_FILES}{secrets.token_hex(16)}".encode())
        known, digest = _mark(folder, _FILES), hash_file(tmp)
        if known is None:
            raise ConfigError(
                f"{folder / MARK} was not made by fedmiss, which keeps there what it wrote; rename it.",
                path=str(folder),
            )
        if digest not in known.get(path.name, ()):
            _note(folder, path.name, digest)
    os.replace(tmp, path)


def refuse_others(path: Path) -> None:
    """Raise ConfigError where ``path`` lies inside a folder of fedmiss, which holds nothing but what one step wrote."""
    for above in path.resolve().parents:
        if found := kind_of(above):
            raise ConfigError(
                f"{path} lies inside {above}, which holds a {found!r} of fedmiss; choose an --out outside of it.",
                path=str(path),
            )


def remove_file(path: Path, ours: Callable[[Path], bool]) -> None:
    """Remove a file which itself tells that fedmiss wrote it."""
    if path.is_file() and not path.is_symlink() and ours(path):
        path.unlink()


def remove_empty(folder: Path) -> None:
    """Remove a folder; an OSError where anything is in it."""
    folder.rmdir()


def remove_state(path: Path) -> None:
    """Remove a state of a study: a file, or the folder of its engine, inside a kit or a hub."""
    if _home(path)[0] not in ("study", "unfinished"):
        raise ConfigError(f"{path} lies in no study of fedmiss, so it stays.", path=str(path))
    if path.name == "engine" and path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


# --- folders


def files_of(folder: Path) -> list[str]:
    """Files below a folder, as its manifest names them; links to folders are not followed."""
    found = []
    for at, folders, names in os.walk(folder):
        links = [name for name in folders if os.path.islink(os.path.join(at, name))]
        found += [(Path(at) / name).relative_to(folder).as_posix() for name in (*names, *links)]
    return sorted(path for path in found if path not in (MANIFEST, MARK))


def _manifest(folder: Path) -> Mapping[str, Any]:
    try:
        found = parse_json((folder / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


# folders that hold no others: what is made beside them must not lie inside
_CLOSED = (
    "records", "panel", "fit", "imputed", "report", "own", "simulation", "experiment", "trim", "cache", "joint_report",
)  # fmt: skip


def kind_of(folder: Path) -> str:
    """Return the kind of a folder that fedmiss made and that holds no other things; blank for all else."""
    kind = _manifest(folder).get("kind")
    return kind if kind in _CLOSED and "seal" in _manifest(folder) else ""


def not_ours(folder: Path, kind: str = "") -> str:
    """Why a folder may not be deleted, in words; empty when every byte in it is one that fedmiss wrote."""
    if not (folder / MANIFEST).exists():
        return f"was not made by fedmiss (no {MANIFEST} in it)"
    manifest = _manifest(folder)
    found, files = manifest.get("kind"), manifest.get("files")
    if not isinstance(found, str):
        return f"has a {MANIFEST} that cannot be read"
    if kind and found != kind:
        return f"holds a {found!r}, not a {kind!r}"
    if not isinstance(files, dict) or not all(
        isinstance(file, dict) and isinstance(file.get("sha256"), str) for file in files.values()
    ):
        return f"was made by fedmiss {manifest.get('fedmiss', '')} and does not say which files are its own"
    strange = [
        path for path in files_of(folder) if path not in files and path.rpartition("/")[2] not in DROPPINGS
    ]
    if strange:
        more = f" and {len(strange) - 3} more files" if len(strange) > 3 else ""
        return f"holds {', '.join(strange[:3])}{more}, which fedmiss did not write there"
    for name, entry in files.items():
        path = folder / name
        if path.is_symlink() or (path.is_file() and hash_file(path) != entry["sha256"]):
            return f"holds {name}, which was changed after fedmiss wrote it"
    # Found before anything is made: a folder can be renamed that cannot be emptied.
    for place in {(folder / name).parent for name in (MANIFEST, *files)}:
        if place.is_dir() and not os.access(place, os.W_OK | os.X_OK):
            return f"is write-protected ({place})"
    return ""


def _remove_files(folder: Path, names: Iterable[str], last: str) -> None:
    """Remove files by their names, the folders that this leaves empty, and at last what proves them."""
    droppings = [path for path in files_of(folder) if path.rpartition("/")[2] in DROPPINGS]
    for name in {*names, *droppings}:
        if not os.path.isabs(name) and ".." not in Path(name).parts:
            (folder / name).unlink(missing_ok=True)
    for at, folders, _ in os.walk(folder, topdown=False):
        for name in folders:
            with contextlib.suppress(OSError):  # it holds something
                os.rmdir(os.path.join(at, name))
    if last == MANIFEST:
        end_work(folder)
    if os.listdir(folder) == [last]:
        (folder / last).unlink()
    with contextlib.suppress(OSError):
        folder.rmdir()


def remove_folder(folder: Path) -> str:
    """Remove a finished folder whole, or not at all: then the reason is returned."""
    if not any(folder.iterdir()):
        folder.rmdir()
        return ""
    if not (refusal := not_ours(folder)):
        _remove_files(folder, _manifest(folder)["files"], MANIFEST)
    return refusal


def remove_cache(folder: Path) -> None:
    """Remove a damaged folder of a cache; its files are known by their endings, for its manifest may be the damage."""
    strange = [path for path in files_of(folder) if Path(path).suffix not in (".parquet", ".npy", ".json")]
    if strange or not re.fullmatch(r"([a-z]+-)?[0-9a-f]{24}", folder.name):
        raise ConfigError(
            f"the cache {folder} is damaged and holds {', '.join(strange[:1]) or 'other things'}, which fedmiss did not "
            "write there; remove the folder yourself.",
            path=str(folder),
        )
    _remove_files(folder, files_of(folder), MANIFEST)


def put_folder(new: Path, path: Path) -> None:
    """Put a finished folder in the place of ``path``, which is removed: a kill at any moment leaves the one or the other."""
    old = temporary(path, old=True)
    if path.exists():
        os.replace(path, old)
    try:
        os.replace(new, path)
    except OSError:
        if old.exists():
            os.replace(old, path)
        raise
    settle(old, path)


def settle(old: Path, path: Path) -> None:
    """Remove what was set aside for ``path``; put it back, or keep it by another name, where it must not be removed."""
    if not old.exists():
        return
    if not os.path.lexists(path):
        os.replace(old, path)
    elif refusal := remove_folder(old):
        kept = _set_aside(old, path)
        raise ConfigError(
            f"{path} is made. The folder that was there {refusal}; so it is kept as {kept}.", path=str(path)
        )


def _set_aside(folder: Path, path: Path) -> Path:
    kept = path.with_name(f"{path.name}.kept-{secrets.token_hex(4)}")
    os.replace(folder, kept)
    return kept


def set_aside(path: Path) -> Path | None:
    """Rename a file, or a folder of fedmiss in which something was changed, that is made again; None where nothing was."""
    changed = path.is_file() or ((path / MANIFEST).exists() and not_ours(path))
    return _set_aside(path, path) if changed else None


# --- work that may be interrupted


def begin_work(work: Path) -> None:
    """Make the folder of unfinished work, or go on in it; drop what an interrupted write left anywhere in it.

    Raises ConfigError: something is there that fedmiss did not make.
    """
    if work.is_symlink() or (work.exists() and not work.is_dir()):
        raise _in_the_way(work, "fedmiss did not make it")
    work.mkdir(parents=True, exist_ok=True)
    if _mark(work, _WORK) is None and any(not unfinished(path)[0] for path in work.iterdir()):
        raise _in_the_way(work, "fedmiss did not make it")
    drop_unfinished(work)
    if _mark(work, _WORK) is None:
        tmp = temporary(work / MARK)
        try:
            tmp.write_text(_WORK + secrets.token_hex(16), encoding="utf-8")
            os.replace(tmp, work / MARK)
        finally:
            tmp.unlink(missing_ok=True)
    refuse_strangers(work)


def refuse_strangers(work: Path) -> None:
    """Raise ConfigError where unfinished work holds a file that fedmiss did not put there.

    It would come into the finished folder, and be removed with it one day.
    """
    known = {*(_mark(work, _WORK) or {}), MANIFEST}
    for name in files_of(work):
        if name not in known and name.rpartition("/")[2] not in DROPPINGS:
            raise _in_the_way(work, f"holds {name}, which fedmiss did not write there")


def _in_the_way(work: Path, why: str) -> ConfigError:
    return ConfigError(
        f"{work} is in the way of unfinished work, and {why}; rename it, or choose another --out.",
        path=str(work),
    )


def empty_work(work: Path, names: Iterable[str] | None = None) -> None:
    """Remove the files that were put into a folder of work (or those named), and nothing else.

    Raises ConfigError: all are to be removed, and there is one more.
    """
    known = _mark(work, _WORK) or {}
    if names is not None:
        for name in names:
            if name in known:
                (work / name).unlink(missing_ok=True)
                with contextlib.suppress(OSError):  # it holds something
                    (work / name).parent.rmdir()
        return
    refuse_strangers(work)
    _remove_files(work, known, MARK)


def empty_part(part: Path) -> None:
    """Remove what was put into a folder inside unfinished work, and nothing else."""
    what, work = _home(part / MANIFEST)
    if what != "work":
        return
    inside = part.absolute().relative_to(work).as_posix() + "/"
    for name in _mark(work, _WORK) or {}:
        if name.startswith(inside):
            (work / name).unlink(missing_ok=True)
    for at, _, _ in os.walk(part, topdown=False):
        with contextlib.suppress(OSError):  # it holds something
            os.rmdir(at)


def end_work(folder: Path) -> None:
    """Take the mark out of work that has its final name: from here on the manifest is the proof."""
    if _mark(folder, _WORK) is not None:
        (folder / MARK).unlink()
