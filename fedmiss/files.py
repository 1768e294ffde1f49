"""Files and folders written whole or not at all, their hashes, and the manifest beside them."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Required, TypedDict, Unpack

from fedmiss.errors import ConfigError, InputError
from fedmiss.folders import FACTS
from fedmiss.locks import clear_leftovers, lock_of, locked, tidy
from fedmiss.owner import MANIFEST as MANIFEST
from fedmiss.owner import (
    drop_unfinished,
    files_of,
    not_ours,
    put_file,
    put_folder,
    refuse_others,
    remove_own,
    replaceable,
    temporary,
    unfinished,
)
from fedmiss.owner import hash_file as hash_file
from fedmiss.parsing import misfit, parse_json, said
from fedmiss.system import to_disk
from fedmiss.version import __version__

SECRET = "secret.key"  # of a group, beside its visits
# of produced folders; raised when a step reads what older versions did not write, or wrote otherwise
FORMAT = 2

# what a full disk or a forbidden place answers; other errors inside a step are not about writing
_REFUSALS = {
    errno.ENOSPC: "the disk is full; free some space or ",
    errno.EDQUOT: "the disk quota is used up; free some space or ",
    errno.EACCES: "this user may not write there; ask for the right to, or ",
    errno.EPERM: "this user may not write there; ask for the right to, or ",
    errno.EROFS: "the file system is read-only; ",
}

_RIGHTS = (errno.EACCES, errno.EPERM)


class FlowRow(TypedDict):
    """One step of the row flow, with the rows that it read, added or (below 0) left out."""

    step: str
    rows: int
    note: str


class FileEntry(TypedDict):
    """A file of a folder, as its manifest has it."""

    bytes: int
    sha256: str


class Content(TypedDict, total=False):
    """The part of a manifest that the step provides."""

    settings: Required[dict[str, Any]]  # every option that the result depends on, the seed included
    inputs: Required[dict[str, str]]  # path or name of each input and its SHA-256
    results: dict[str, Any]  # figures a person wants to see first (counts, objective, ...)
    flow: list[FlowRow]
    terms: dict[str, str]  # where the data come from: licence, citation, release, terms
    warnings: list[str]  # sentences shown to the user while the folder was made


class Manifest(Content):
    """The manifest of a produced folder."""

    kind: str
    fedmiss: str
    format: int
    files: dict[str, FileEntry]
    seal: str


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


def _make_parent(path: Path) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _explain(error, path) from error


@contextmanager
def atomic_file(path: str | Path, *, ours: Callable[[Path], bool] | None = None) -> Iterator[Path]:
    """Give a temporary name beside ``path``; rename it onto ``path`` on success, remove it on failure.

    Parameters
    ----------
    ours : says of a file that is there already whether fedmiss wrote it, where the file itself tells

    Raises
    ------
    ConfigError    a file is there that fedmiss did not write, or that was changed since
    """
    path = Path(path)
    replaceable(path, ours)
    tmp = temporary(path.absolute())  # pyarrow takes a relative name with a colon for an address
    _make_parent(path)
    with _explained(path):
        try:
            yield tmp
            to_disk(tmp)  # a rename must not come first
            put_file(tmp, path, ours)
        finally:
            remove_own(tmp)


def replace_folder(new: Path, path: Path) -> None:
    """Put a finished folder in the place of ``path``: a kill at any moment leaves the one or the other."""
    # Content first, then the names: after a power cut the new folder is whole, or the old one is still there.
    for below in [*new.rglob("*"), new]:
        to_disk(below)
    put_folder(new, path)
    to_disk(path.parent)


@contextmanager
def making(
    path: str | Path, kind: str = "", *, overwrite: bool = False, inputs: Sequence[str | Path] = ()
) -> Iterator[None]:
    """Check that a folder may be made at ``path``, hold its lock, and remove what a dead process left of it.

    Parameters
    ----------
    kind : what is made (see :func:`write_manifest`); only a folder of this kind is ever replaced
    inputs : files and folders that the step reads

    Raises
    ------
    ConfigError    see :func:`check_free`
    BusyError      another process makes ``path``
    """
    path = Path(path)
    try:
        check_free(path, kind, overwrite=overwrite, inputs=inputs)
    except ConfigError:
        tidy(path)
        raise
    _make_parent(path)
    with _explained(path), locked(path) as first:
        if first:
            clear_leftovers(path)
            check_free(path, kind, overwrite=overwrite, inputs=inputs)
        yield


@contextmanager
def _explained(path: Path) -> Iterator[None]:
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


@contextmanager
def atomic_folder(
    path: str | Path, kind: str = "", *, overwrite: bool = False, inputs: Sequence[str | Path] = ()
) -> Iterator[Path]:
    """Give an empty temporary folder; rename it to ``path`` on success, remove it on failure.

    Arguments and errors are those of :func:`making`: an existing folder is replaced only with ``overwrite``, and only
    when fedmiss made it, whole, as a folder of this kind.
    """
    path = Path(path)
    with making(path, kind, overwrite=overwrite, inputs=inputs), scratch_folder(path) as tmp:
        yield tmp
        drop_unfinished(tmp)
        seal(tmp)
        replace_folder(tmp, path)


@contextmanager
def scratch_folder(path: Path) -> Iterator[Path]:
    """Give an empty folder beside ``path`` for what is not finished; it is removed at the end."""
    tmp = temporary(path.absolute())
    tmp.mkdir()
    try:
        yield tmp
    finally:
        remove_own(tmp)


def check_free(path: Path, kind: str = "", *, overwrite: bool, inputs: Sequence[str | Path] = ()) -> None:
    """Raise ConfigError unless a folder of this kind may be made at ``path``.

    It may not be a link, an input, or hold one; it may not lie inside another folder of fedmiss; and with ``overwrite`` it
    must be of the same kind and hold nothing but what fedmiss wrote into it.
    """
    refuse_link(path)
    here = path.resolve()
    for given in inputs:
        source = Path(given).resolve()
        if source.is_relative_to(here) or any(_same_place(one, here) for one in (source, *source.parents)):
            what = "is an input" if source == here else f"holds the input {given}"
            raise ConfigError(
                f"{path} {what}, so nothing can be made there; choose another --out.", path=str(path)
            )
    refuse_others(path)
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
    if refusal := not_ours(path, kind):
        raise ConfigError(
            f"the folder {path} {refusal}, so --overwrite will not delete it; choose another folder with --out, or remove "
            "it yourself.",
            path=str(path),
        )


@contextmanager
def making_files(*paths: Path, overwrite: bool) -> Iterator[None]:
    """Check that files may be made, hold their locks, and remove what a dead process left of them.

    Raises
    ------
    ConfigError    a file is there and is not to be overwritten, was not written by fedmiss, or would lie inside a folder
        of fedmiss
    BusyError      another process makes one of them
    """
    with ExitStack() as held:
        for path in paths:
            tidy(path)
            refuse_others(path)
            if path.exists() and not overwrite:
                raise ConfigError(
                    f"{path} exists already; choose another name with --out, or pass --overwrite to replace it.",
                    path=str(path),
                )
            replaceable(path)
        for path in paths:
            _make_parent(path)
            held.enter_context(_explained(path))
            held.enter_context(locked(path))
            clear_leftovers(path)
        yield


def refuse_link(path: Path) -> None:
    """Raise ConfigError where an output is a link: what is made would lie elsewhere than the user says."""
    if path.is_symlink():
        raise ConfigError(
            f"{path} is a link to {path.resolve()}; name a folder itself with --out.", path=str(path)
        )


def _same_place(first: Path, second: Path) -> bool:
    """Whether two paths are one folder by other names, as in a file system that takes capitals for small letters."""
    try:
        return os.path.samefile(first, second)
    except OSError:
        return False


def hash_json(value: object) -> str:
    """Return the SHA-256 of a JSON value, independent of the order of its keys."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()


def plain_json(value: object) -> Any:
    """A value as JSON holds it, which knows no number that is not finite: null stands in its place."""
    return json.loads(json.dumps(value, default=str), parse_constant=lambda _: None)


def write_json(path: str | Path, value: object) -> None:
    """Write a JSON file atomically, readable by a person."""
    with atomic_file(path, ours=_sealed if Path(path).name == MANIFEST else None) as tmp:
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


def write_manifest(
    folder: str | Path, kind: str, *, files: Sequence[str] | None = None, **content: Unpack[Content]
) -> None:
    """Write the manifest of a produced folder, with size and SHA-256 of every file in it.

    Parameters
    ----------
    kind : what the folder is: ``records``, ``panel``, ``fit``, ``imputed``, ``report``, ``simulation``
    files : the folder's own files, where others may lie beside them; all when None
    content : see :class:`Content`
    """
    folder = Path(folder)
    own = files_of(folder) if files is None else files
    manifest = {
        "kind": kind,
        "fedmiss": __version__,
        "format": FORMAT,
        "settings": content["settings"],
        "inputs": content["inputs"],
        "results": content.get("results") or {},
        "flow": content.get("flow") or [],
        "terms": content.get("terms") or {},
        "warnings": content.get("warnings") or [],
        "files": {name: _entry(folder / name) for name in own},
    }
    _write_sealed(folder, manifest)


def _sealed(path: Path) -> bool:
    """Whether a manifest is as fedmiss wrote it."""
    try:
        raw = read_json(path)
    except InputError:
        return False
    return isinstance(raw, dict) and _hash_unsealed(raw) == raw.get("seal")


def _hash_unsealed(manifest: Mapping[str, object], *without: str) -> str:
    """Return the SHA-256 of a manifest without its seal, and without the parts named."""
    return hash_json({key: value for key, value in manifest.items() if key not in ("seal", *without)})


def _entry(path: Path) -> FileEntry:
    return {"bytes": path.stat().st_size, "sha256": hash_file(path)}


def _write_sealed(folder: Path, manifest: Mapping[str, object]) -> None:
    """Write a manifest with the hash of its own content."""
    content = plain_json({key: value for key, value in manifest.items() if key != "seal"})
    write_json(folder / MANIFEST, content | {"seal": hash_json(content)})


def update_manifest(folder: str | Path, **parts: object) -> None:
    """Replace parts of a folder's manifest (``terms``, ``warnings``, ...)."""
    _write_sealed(Path(folder), {**read_manifest(folder), **parts})


def identity(folder: str | Path) -> str:
    """Return the SHA-256 of what a folder is: its manifest without the list of files, which hold clock times too."""
    return _hash_unsealed(read_manifest(folder), "files")


def seal(folder: Path) -> None:
    """Bring the manifest's list of files up to date, where files came or went after it was written."""
    if not (folder / MANIFEST).exists():
        return
    known, now = read_manifest(folder)["files"], files_of(folder)
    if now != sorted(known):
        update_manifest(folder, files={name: known.get(name) or _entry(folder / name) for name in now})


_MAKER = {
    "records": "ingest", "panel": "panel", "fit": "fit", "imputed": "impute", "report": "report", "own": "own",
    "report-index": "run", "simulation": "simulate", "experiment": "experiment", "study": "federation init",
    "community": "community",
}  # fmt: skip


def read_manifest(folder: str | Path, kind: str | None = None, *, verify: bool = False) -> Manifest:
    """Read a folder's manifest, and check that it is of the ``kind`` asked for and unchanged.

    Parameters
    ----------
    verify : check size and SHA-256 of the folder's files too; a step does so once with each folder that it reads

    Raises
    ------
    InputError    no such folder, another kind or format, a manifest or file that was changed since (named)

    Examples
    --------
    >>> import fedmiss
    >>> p = fedmiss.simulate_panel(20, 24, 0.5, seed=1, groups=2)
    >>> panel = fedmiss.simulate.write_panel(p, "panel")
    >>> manifest = fedmiss.files.read_manifest("panel", "panel")
    >>> sorted(manifest["results"]["groups"])
    ['g01', 'g02']
    """
    folder = Path(folder)
    file = folder / MANIFEST
    maker = f"; `fedmiss {_MAKER[kind]}` makes one" if kind in _MAKER else ""
    article = "an" if (kind or "").startswith("i") else "a"
    needed = f", but {article} {kind!r} is needed here{maker}." if kind else "."

    def refusal(text: str) -> InputError:
        return InputError(text, path=str(folder))

    if not folder.exists():
        raise refusal(f"there is no folder {folder}{maker}.")
    if not file.exists():
        raise refusal(f"{folder} was not made by fedmiss: it has no {MANIFEST}{needed}")
    found: object = read_json(file)
    if not isinstance(found, dict) or not isinstance(found.get("kind"), str):
        raise refusal(f"{file} does not say what the folder is; make it again.")
    again = f"make it again with `fedmiss {_MAKER.get(found['kind'], '...')} --out`"
    made = found.get("format", 1)
    if made != FORMAT:
        newer = isinstance(made, int) and made > FORMAT
        raise refusal(
            f"{folder} was made by fedmiss {found.get('fedmiss', '(unknown)')} in format {made}, and this version reads "
            f"format {FORMAT}; {'install the newer fedmiss' if newer else again + ' under another name'}."
        )
    if _hash_unsealed(found) != found.get("seal"):
        raise refusal(f"{file} is not as it was written; {again}.")
    fault = misfit(dict(found), Manifest)
    if not fault and found["kind"] in FACTS:
        fault = FACTS[found["kind"]].misfit(found.get("results", {}))
    if fault:
        raise refusal(f"{file} has a wrong entry: {fault}; {again}.")
    manifest: Manifest = said(found, str(file))
    if kind is not None and manifest["kind"] != kind:
        own = folder.parent / "report" / kind  # of an organisation, beside the result of its study
        if manifest["kind"] == "joint" and own.is_dir():
            raise refusal(
                f"{folder} holds the result of a study, which knows no site; that of your sites is {own}."
            )
        raise refusal(f"{folder} holds a {manifest['kind']!r}{needed}")
    for name, entry in manifest["files"].items() if verify else ():
        _check_file(folder / name, entry, again)
    return manifest


def panel_beside(fit: Path, inputs: Mapping[str, str]) -> Path | None:
    """The panel beside a fit if these, its ``inputs``, are that panel's tables, as in an organisation's own report."""
    panel = fit.parent / "panel"
    if not (panel / MANIFEST).is_file():
        return None
    files = read_manifest(panel, "panel")["files"]
    return panel if all(name in files and files[name]["sha256"] == x for name, x in inputs.items()) else None


def _check_file(path: Path, entry: FileEntry, again: str) -> None:
    if not path.is_file():
        fault = "is missing, and its folder cannot be used without it"
    elif (size := path.stat().st_size) != entry["bytes"]:
        fault = f"is damaged: it has {size} bytes, and {entry['bytes']} were written"
    elif hash_file(path) != entry["sha256"]:
        fault = "is damaged: its content is not what was written (SHA-256)"
    else:
        return
    raise InputError(f"{path} {fault}; {again}.", path=str(path))


def write_secret(path: str | Path, secret: bytes = b"") -> None:
    """Write 32 random bytes that only their owner may read; or a ``secret`` that follows from the data beside it."""
    with atomic_file(path) as tmp:
        if not secret:
            tmp.touch(mode=0o600)
        tmp.write_bytes(secret or os.urandom(32))
