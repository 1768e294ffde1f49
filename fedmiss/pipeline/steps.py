"""Steps of a run that are done once: a folder is kept while the key of what went into it is the same."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from fedmiss.atomic import atomic_file
from fedmiss.errors import ConfigError, InputError
from fedmiss.files import MANIFEST, read_manifest
from fedmiss.owner import remove_empty, remove_file, set_aside
from fedmiss.parsing import parse_json
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
            "yourself."
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
    """Note in a folder of results of which recipe they are, before the block makes some; None: of no file.

    Raises ConfigError: they are of another recipe that is still there, and a run of this one would replace them; or the note
    is damaged.
    """
    if recipe is None:
        yield
        return
    file, recipe = out / ".recipe.json", recipe.resolve()
    other = _noted(file)
    if other == recipe:
        yield
        return
    # A recipe that is gone was renamed, or has given its folder up.
    if other is not None and other.is_file() and _has_results(out):
        raise ConfigError(
            f"the folder {out} has the results of the recipe {other}, which {recipe} would replace. Give one of them "
            "another folder: out = ... in the recipe, or --out."
        )
    # Relative, so that both can be moved together.
    with suppress(ValueError):  # another drive of Windows: the whole path stays
        recipe = Path(os.path.relpath(recipe, out.resolve()))
    made = not out.exists()
    with atomic_file(file, ours=_is_note) as tmp:
        tmp.write_text(json.dumps({"recipe": recipe.as_posix()}) + "\n", encoding="utf-8")
    try:
        yield
    finally:
        # A run that was refused has made nothing, and leaves nothing. What fails here hides no error of the run.
        with suppress(OSError, ConfigError):
            if not _has_results(out):
                remove_file(file, _is_note)
                if made:
                    remove_empty(out)


def _noted(file: Path) -> Path | None:
    """Return the recipe that the note of a folder of results names; None where there is no note."""
    try:
        recipe: Path = file.parent / parse_json(file.read_text(encoding="utf-8"))["recipe"]
        return recipe.resolve()
    except FileNotFoundError:
        return None
    except (KeyError, TypeError, ValueError):
        raise ConfigError(
            f"{file} is damaged; it notes of which recipe the results in this folder are. Nothing was run. Delete it if "
            "this recipe may replace them, or choose another folder: out = ... in the recipe, or --out."
        ) from None


def _is_note(file: Path) -> bool:
    return _noted(file) is not None


def _has_results(out: Path) -> bool:
    return any(out.rglob(".*.key"))


def _write_key(file: Path, key: str) -> None:
    with atomic_file(file, ours=_is_key) as tmp:
        tmp.write_text(f"{key}\n", encoding="utf-8")


def _is_key(path: Path) -> bool:
    return re.fullmatch(rb"[0-9a-f]{64}\n", path.read_bytes()) is not None
