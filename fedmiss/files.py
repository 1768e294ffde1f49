"""Folders made whole or not at all, and the manifest of each; :mod:`fedmiss.atomic` writes single files."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Required, TypedDict, Unpack

from fedmiss.atomic import explained, hash_json, make_parent, plain_json, read_json, write_json
from fedmiss.errors import ConfigError, InputError
from fedmiss.folders import FACTS
from fedmiss.locks import clear_leftovers, locked, tidy
from fedmiss.owner import MANIFEST as MANIFEST
from fedmiss.owner import (
    drop_unfinished,
    files_of,
    not_ours,
    put_folder,
    refuse_others,
    remove_own,
    replaceable,
    temporary,
)
from fedmiss.owner import hash_file as hash_file
from fedmiss.parsing import misfit, said
from fedmiss.system import to_disk
from fedmiss.version import __version__

SECRET = "secret.key"  # of a group, beside its visits
# of produced folders; raised when a step reads what older versions did not write, or wrote otherwise
FORMAT = 2
WITHHELD = "visits withheld"  # the step of the row flow for visits that a study left out


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
    make_parent(path)
    with explained(path), locked(path) as first:
        if first:
            clear_leftovers(path)
            check_free(path, kind, overwrite=overwrite, inputs=inputs)
        yield


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
            make_parent(path)
            held.enter_context(explained(path))
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
        "kind": kind, "fedmiss": __version__, "format": FORMAT, "settings": content["settings"],
        "inputs": content["inputs"], "results": content.get("results") or {},
        "flow": content.get("flow") or [], "terms": content.get("terms") or {},
        "warnings": content.get("warnings") or [], "files": {name: _entry(folder / name) for name in own},
    }  # fmt: skip
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
    write_json(folder / MANIFEST, content | {"seal": hash_json(content)}, _sealed)


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
    "report-index": "run", "simulation": "simulate", "experiment": "experiment", "study": "federation new",
    "community": "community",
}  # fmt: skip


def read_manifest(folder: str | Path, kind: str | None = None, *, verify: bool | str = False) -> Manifest:
    """Read a folder's manifest, and check that it is of the ``kind`` asked for and unchanged.

    Parameters
    ----------
    verify : check size and SHA-256 of the folder's files too, or of those whose name fits a pattern; a step does so once
        with each folder that it reads

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
    if found["kind"] == "joint":  # from the journal, with the same numbers
        again = f"remove {folder}, and `fedmiss federation join` makes it again (over a relay: put a copy of it back)"
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
    for name, entry in manifest["files"].items():
        if verify is True or (verify and fnmatchcase(name, verify)):
            _check_file(folder / name, entry, again)
    return manifest


def panel_tables(panel: Manifest) -> dict[str, str]:
    """SHA-256 of every table that a panel's fit and what follows depend on."""
    return {
        name: entry["sha256"]
        for name, entry in panel["files"].items()
        if name in ("sites.parquet", "months.parquet", "site_covariates.parquet")
        or (name.startswith("groups/") and name.endswith(".parquet"))
    }


def imputed_from(fit: Manifest) -> dict[str, str]:
    """What is imputed with a fit comes from: its panel's tables and its own factors, each with its SHA-256."""
    factors = {
        name: file["sha256"] for name, file in fit["files"].items() if name.endswith("_factors.parquet")
    }
    return {f"panel/{name}": value for name, value in fit["inputs"].items()} | {
        f"fit/{name}": value for name, value in factors.items()
    }


def check_same_panel(panel: Manifest, where: Path, fit: Manifest, fit_path: Path) -> None:
    """Raise unless the fit was made on this panel, which lies at ``where``: then sites and months are the same."""
    if fit["inputs"] == panel_tables(panel):
        return
    own, mend = fit_path.parent / "panel", "Run `fedmiss fit` on this panel first."
    # an organisation's own report has its panel beside its fit
    if (own / MANIFEST).is_file() and panel_tables(read_manifest(own, "panel")) == fit["inputs"]:
        mend = f"It belongs to {own}: name that."
    raise InputError(f"{fit_path} was not fitted on {where}: their tables differ. {mend}")


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
