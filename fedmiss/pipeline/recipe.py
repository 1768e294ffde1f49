"""Recipes: TOML files that name inputs and settings of the whole chain; checked before anything runs."""

from __future__ import annotations

import difflib
import re
import tomllib
import types
import typing
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar

from fedmiss.errors import ConfigError, InputError
from fedmiss.etl.filters import Filters
from fedmiss.etl.ingest import IngestSettings
from fedmiss.etl.panel import PanelSettings
from fedmiss.pipeline.fitting import FitSettings
from fedmiss.report.analysis import ReportSettings

__all__ = ["Recipe", "from_table", "read_recipe", "slug"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Recipe:
    """A checked recipe.

    Attributes
    ----------
    name : shown in reports of progress
    out : folder of all results
    files, sampling, unvetted : inputs of ingest, resolved against the recipe's own folder
    species : species to report; ``["all"]`` takes every species with at least ``min_records`` records
    ingest, panel, fit, report : settings of the steps
    """

    name: str
    out: Path
    files: tuple[Path, ...]
    sampling: tuple[Path, ...] = ()
    unvetted: tuple[Path, ...] = ()
    species: tuple[str, ...] = ()
    min_records: int = 200
    ingest: IngestSettings = field(default_factory=IngestSettings)
    panel: PanelSettings = field(default_factory=PanelSettings)
    fit: FitSettings = field(default_factory=FitSettings)
    report: ReportSettings = field(default_factory=ReportSettings)


def slug(species: str) -> str:
    """Folder name of a species: lower case, dashes."""
    return re.sub(r"[^a-z0-9]+", "-", species.lower()).strip("-") or "species"


def _unknown(key: str, known: list[str], where: str) -> ConfigError:
    near = difflib.get_close_matches(key, known, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else f" Known are {', '.join(sorted(known))}."
    return ConfigError(f"{where}: the setting {key!r} is unknown.{hint}", key=key)


def _convert(value: Any, hint: Any, where: str) -> Any:
    """Fit a TOML value to a field's type: lists become tuples, whole numbers become floats."""
    options = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    for option in options:
        origin = typing.get_origin(option) or option
        if origin is tuple and isinstance(value, list):
            return tuple(_plain_tuple(v) for v in value)
        if origin is tuple and isinstance(value, str):
            return (value,)
        if origin is float and isinstance(value, int | float) and not isinstance(value, bool):
            return float(value)
        if origin is str and isinstance(value, int | float) and not isinstance(value, bool):
            return str(value)
        if origin is not type(None) and isinstance(origin, type) and isinstance(value, origin):
            if origin is int and isinstance(value, bool):
                continue
            return value
    wanted = getattr(hint, "__name__", str(hint))
    raise ConfigError(f"{where} is {value!r} (must be {wanted}).")


def _plain_tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def from_table(cls: type[T], table: dict[str, Any], where: str) -> T:
    """Build a settings dataclass from a TOML table; unknown keys and wrong types are errors.

    A field that is itself a dataclass (the filters of ingest) is filled from the same table.
    """
    hints = typing.get_type_hints(cls)
    own = {f.name: f for f in fields(cls)}  # type: ignore[arg-type]
    nested = {name: hint for name, hint in hints.items() if name in own and is_dataclass(hint)}
    nested_keys = {key: name for name, hint in nested.items() for key in (f.name for f in fields(hint))}
    values: dict[str, Any] = {}
    inner: dict[str, dict[str, Any]] = {name: {} for name in nested}
    for key, value in table.items():
        name = key.replace("-", "_")
        if name in own and name not in nested:
            values[name] = _convert(value, hints[name], f"{where}.{key}")
        elif name in nested_keys:
            inner[nested_keys[name]][name] = value
        else:
            raise _unknown(key, [*own, *nested_keys], where)
    for name, hint in nested.items():
        if inner[name]:
            values[name] = from_table(typing.cast(type, hint), inner[name], where)
    missing = [
        n for n, f in own.items() if f.default is MISSING and f.default_factory is MISSING and n not in values
    ]
    if missing:
        raise ConfigError(f"{where}: the setting {missing[0]!r} is missing.")
    return cls(**values)


def read_recipe(path: str | Path, out: str | Path | None = None) -> Recipe:
    """Read and check a recipe; paths in it are relative to its own folder.

    Raises
    ------
    InputError    no such file, or not TOML
    ConfigError   unknown table or setting (a near name is proposed), wrong type, no input files
    """
    path = Path(path)
    try:
        raw = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"there is no recipe {path}.", path=str(path)) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, IsADirectoryError) as error:
        raise InputError(f"{path} is not a TOML recipe: {error}.", path=str(path)) from None
    tables = {"name", "out", "species", "min_records", "ingest", "panel", "fit", "report"}
    for key in raw:
        if key not in tables:
            raise _unknown(key, sorted(tables), path.name)
    base = path.parent
    ingest = dict(raw.get("ingest", {}))
    inputs = {}
    for key in ("files", "sampling", "unvetted"):
        given = ingest.pop(key, [])
        names = [given] if isinstance(given, str) else given
        if not isinstance(names, list) or not all(isinstance(n, str) for n in names):
            raise ConfigError(f"{path.name}: ingest.{key} is {given!r} (must be a path or a list of paths).")
        inputs[key] = tuple(base / n for n in names)
    if not inputs["files"]:
        raise ConfigError(f"{path.name}: ingest.files is missing; name the files to read.")
    species = raw.get("species", [])
    wanted = (species,) if isinstance(species, str) else tuple(species)
    if "species" not in ingest and wanted and wanted != ("all",):
        ingest["species"] = list(wanted)
    return Recipe(
        name=str(raw.get("name", path.stem)),
        out=Path(out) if out else base / str(raw.get("out", f"{path.stem}-out")),
        **inputs,
        species=wanted,
        min_records=int(raw.get("min_records", 200)),
        ingest=from_table(IngestSettings, ingest, f"{path.name}: ingest"),
        panel=from_table(PanelSettings, raw.get("panel", {}), f"{path.name}: panel"),
        fit=from_table(FitSettings, raw.get("fit", {}), f"{path.name}: fit"),
        report=from_table(ReportSettings, raw.get("report", {}), f"{path.name}: report"),
    )


_ = Filters  # resolved by name when IngestSettings' type hints are read
