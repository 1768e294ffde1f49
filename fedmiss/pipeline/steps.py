"""Steps of a run that are done once: a folder is kept while the key of what went into it is the same."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from fedmiss.errors import ConfigError, InputError
from fedmiss.files import MANIFEST, atomic_file, read_json, read_manifest, write_json
from fedmiss.owner import remove_file, set_aside
from fedmiss.progress import note


def step(folder: Path, key: str, make: Callable[..., object]) -> bool:
    """Run a step unless ``folder`` was made with the same key; returns whether it ran.

    The key is kept beside the folder, so that the folder's own content stays a pure function of its inputs. It is also the
    proof that a run made the folder, so one that holds for no settings is written before the folder is made.
    """
    file = folder.parent / f".{folder.name}.key"
    if not file.exists() and folder.exists() and any(folder.iterdir()):
        raise ConfigError(
            f"the folder {folder} exists already, and no run of a recipe made it; choose another --out, or remove it "
            "yourself.",
            path=str(folder),
        )
    if (folder / MANIFEST).exists() and file.exists() and file.read_bytes().strip() == key.encode():
        try:
            read_manifest(folder, verify=True)
            return False
        except InputError as error:
            kept = set_aside(folder)
            note(f"{error} It is made again." + (f" What is there is kept as {kept}." if kept else ""))
    if file.exists() and not _is_key(file):
        note(f"{file} is damaged; what is there is kept as {set_aside(file)}.")
    # The folder that is now made belongs to no settings until it is whole.
    _write_key(file, "0" * 64)
    try:
        make(overwrite=folder.exists())
    except BaseException:
        # Nothing was there before and nothing came: the key would prove a folder that does not exist.
        if not folder.exists():
            remove_file(file, _is_key)
        raise
    _write_key(file, key)
    return True


@contextmanager
def claimed(out: Path, recipe: Path | None) -> Iterator[None]:
    """Note in a folder of results of which recipe they are, once the block has made some; None: of no file.

    Raises
    ------
    ConfigError    they are of another recipe that is still there: a run of this one would replace them
    """
    if recipe is None:
        yield
        return
    note_of, recipe, other = out / ".recipe.json", recipe.resolve(), None
    with suppress(
        InputError, KeyError, TypeError, ValueError
    ):  # none yet, or a damaged one, which is not replaced
        # Relative, so that both can be moved together; a recipe that is gone was renamed, or has given its folder up.
        other = (out / str(read_json(note_of)["recipe"])).resolve()
    if other is not None and other != recipe and other.is_file():
        raise ConfigError(
            f"the folder {out} has the results of the recipe {other}, which {recipe} would replace. Give one of them "
            "another folder: out = ... in the recipe, or --out.",
            path=str(out),
        )
    try:
        yield
    finally:
        # a run that was refused has made nothing, and leaves nothing
        if other != recipe and any(out.rglob(".*.key")):
            with suppress(ValueError):  # another drive of Windows: the whole path stays
                recipe = Path(os.path.relpath(recipe, out.resolve()))
            write_json(note_of, {"recipe": recipe.as_posix()})


def _write_key(file: Path, key: str) -> None:
    with atomic_file(file, ours=_is_key) as tmp:
        tmp.write_text(f"{key}\n", encoding="utf-8")


def _is_key(path: Path) -> bool:
    return re.fullmatch(rb"[0-9a-f]{64}\n", path.read_bytes()) is not None
