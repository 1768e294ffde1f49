"""Recipes: TOML files that name inputs and settings of the whole chain; checked before anything runs."""

from __future__ import annotations

import difflib
import re
import tomllib
import types
import typing
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar

from fedmiss.errors import ConfigError, InputError
from fedmiss.etl.filters import Filters, preset
from fedmiss.etl.ingest import IngestSettings
from fedmiss.etl.options import clock_range, date_range, four_numbers, number_range, parse_map, season_window
from fedmiss.etl.panel import PanelSettings
from fedmiss.pipeline.fitting import FitSettings
from fedmiss.report.analysis import ReportSettings

__all__ = ["Recipe", "from_table", "ingest_options", "read_recipe", "slug"]

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
    terms : licence and citation of records that come without them (plain tables); kept with every result
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
    terms: dict[str, str] = field(default_factory=dict)


def slug(species: str) -> str:
    """Folder name of a species: lower case, dashes."""
    return re.sub(r"[^a-z0-9]+", "-", species.lower()).strip("-") or "species"


def _unknown(key: str, known: list[str], where: str) -> ConfigError:
    near = difflib.get_close_matches(key, known, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else f" Known are {', '.join(sorted(known))}."
    return ConfigError(f"{where}: the setting {key!r} is unknown.{hint}", key=key)


def _convert(value: Any, hint: Any, where: str) -> Any:
    """Fit a TOML value to a field's type: lists become tuples, one text a list of one, whole numbers floats."""
    options = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    for option in options:
        kind, parts = typing.get_origin(option) or option, typing.get_args(option)
        if kind is tuple and isinstance(value, list | str):
            items = [value] if isinstance(value, str) else value
            hints = [parts[0]] * len(items) if parts[-1] is Ellipsis else list(parts)
            if len(items) == len(hints):
                pairs = zip(items, hints, strict=True)
                return tuple(_convert(v, h, f"{where}[{i}]") for i, (v, h) in enumerate(pairs, start=1))
        elif kind is dict and isinstance(value, dict):
            return {k: _convert(v, parts[1], f"{where}.{k}") for k, v in value.items()}
        elif value is None and option is type(None):
            return None
        elif isinstance(value, bool) and kind is not bool:
            continue
        elif kind in (str, float) and isinstance(value, int | float):
            return kind(value)
        elif kind in (str, int, bool) and isinstance(value, kind):
            return value
    raise ConfigError(f"{where} is {value!r} (must be {' or '.join(_in_words(o) for o in options)}).")


def _in_words(hint: Any) -> str:
    if typing.get_origin(hint) is tuple:
        parts = typing.get_args(hint)
        return "a list" if parts[-1] is Ellipsis else f"a list of {len(parts)}"
    words = {str: "text", int: "a whole number", float: "a number", bool: "true or false"}
    return words.get(hint, "left out" if hint is type(None) else "a table")


def _table(raw: dict[str, Any], key: str, where: str) -> dict[str, Any]:
    table = raw.get(key, {})
    if not isinstance(table, dict):
        raise ConfigError(
            f"{where}: {key} is {table!r} (must be a table: a line [{key}], settings below it)."
        )
    return table


def from_table(cls: type[T], table: dict[str, Any], where: str) -> T:
    """Build a settings dataclass from a TOML table; unknown keys and wrong types are errors."""
    hints = typing.get_type_hints(cls)
    known = [f.name for f in fields(cls)]  # type: ignore[arg-type]
    values: dict[str, Any] = {}
    for key, value in table.items():
        name = key.replace("-", "_")
        if name not in known:
            raise _unknown(key, known, where)
        values[name] = _convert(value, hints[name], f"{where}.{key}")
    return cls(**values)


# options of `fedmiss ingest` whose field has another name; a recipe uses the words of the command line
_FIELD = {
    "country": "countries",
    "state": "states",
    "county": "counties",
    "bcr": "bcrs",
    "year": "years",
    "project": "projects",
    "reviewed": "reviewed_only",
    "locality": "localities",
    "hotspots": "hotspots_only",
    "start": "first_date",
    "end": "last_date",
    "time": "start",
    "protocol": "protocols",
    "max_observers": "party",
    "complete": "complete_only",
    "observer": "observers",
    "without_observer": "without_observers",
    "map": "column_map",
}
_READ: dict[str, Callable[[str], Any]] = {
    "bbox": four_numbers,
    "season": season_window,
    "last_edited": date_range,
    "time": clock_range,
    "duration": lambda text: number_range(text, "duration"),
    "distance": lambda text: number_range(text, "distance"),
    "map": parse_map,
    "exotic": lambda text: text.split(","),
}


def ingest_options() -> list[str]:
    """Return the settings that the table ``[ingest]`` of a recipe may hold, beside its files."""
    own = {f.name for cls in (Filters, IngestSettings) for f in fields(cls)} - {"filters"}
    return sorted((own - set(_FIELD.values())) | set(_FIELD) | {"preset"})


def _ingest(table: dict[str, Any], where: str, base: Path) -> IngestSettings:
    """Read the table ``[ingest]``: the names and values of the options of ``fedmiss ingest``, or lists of values."""
    filters: dict[str, Any] = {}
    settings: dict[str, Any] = {}
    hints = {cls: typing.get_type_hints(cls) for cls in (Filters, IngestSettings)}
    for key, value in table.items():
        option = key.replace("-", "_")
        if option not in ingest_options():
            raise _unknown(key, ingest_options(), where)
        if isinstance(value, str) and option in _READ:
            value = _READ[option](value)
            value = list(value) if isinstance(value, tuple) else value
        if option == "max_observers":
            value = [None, _convert(value, int, f"{where}.{key}")]
        elif option == "exotic":
            codes = _convert(value, tuple[str, ...], f"{where}.{key}")
            value = ["", *(c.strip().upper() for c in codes if c.strip())]
        elif option == "polygon":
            value = str(base / _convert(value, str, f"{where}.{key}"))
        field_name = _FIELD.get(option, option)
        if option == "preset":
            settings[option] = _convert(value, str, f"{where}.{key}")
        elif field_name in hints[Filters]:
            filters[field_name] = _convert(value, hints[Filters][field_name], f"{where}.{key}")
        else:
            settings[field_name] = _convert(value, hints[IngestSettings][field_name], f"{where}.{key}")
    name = settings.pop("preset", None)
    return IngestSettings(filters=preset(name, **filters) if name else Filters(**filters), **settings)


def read_recipe(path: str | Path, out: str | Path | None = None) -> Recipe:
    r"""Read and check a recipe; paths in it are relative to its own folder.

    Raises
    ------
    InputError    no such file, or not TOML
    ConfigError   unknown table or setting (a near name is proposed), wrong type, no input files

    Examples
    --------
    >>> import fedmiss
    >>> from pathlib import Path
    >>> rows = "site;year;count\na;2001;4\na;2002;6\nb;2001;10\nb;2002;NA\n"
    >>> n = Path("counts.csv").write_text(rows)
    >>> text = 'species = ["wren"]\n\n[ingest]\nfiles = ["counts.csv"]\n'
    >>> n = Path("wren.toml").write_text(text)
    >>> fedmiss.read_recipe("wren.toml").files[0].name
    'counts.csv'
    """
    path = Path(path)
    where = path.name
    try:
        raw = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"there is no recipe {path}.", path=str(path)) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, IsADirectoryError) as error:
        raise InputError(f"{path} is not a TOML recipe: {error}.", path=str(path)) from None
    tables = {"name", "out", "species", "min_records", "ingest", "panel", "fit", "report", "terms"}
    for key in raw:
        if key not in tables:
            raise _unknown(key, sorted(tables), where)
    base = path.parent
    ingest = dict(_table(raw, "ingest", where))
    inputs = {}
    for key in ("files", "sampling", "unvetted"):
        names = _convert(ingest.pop(key, []), tuple[str, ...], f"{where}: ingest.{key}")
        inputs[key] = tuple(base / n for n in names)
    if not inputs["files"]:
        raise ConfigError(f"{where}: ingest.files is missing; name the files to read.")
    species = _convert(raw.get("species", []), tuple[str, ...], f"{where}: species")
    if "species" not in ingest and species and species != ("all",):
        ingest["species"] = list(species)
    return Recipe(
        name=_convert(raw.get("name", path.stem), str, f"{where}: name"),
        out=Path(out) if out else base / _convert(raw.get("out", f"{path.stem}-out"), str, f"{where}: out"),
        **inputs,
        species=species,
        min_records=_convert(raw.get("min_records", 200), int, f"{where}: min_records"),
        ingest=_ingest(ingest, f"{where}: ingest", base),
        panel=from_table(PanelSettings, _table(raw, "panel", where), f"{where}: panel"),
        fit=from_table(FitSettings, _table(raw, "fit", where), f"{where}: fit"),
        report=from_table(ReportSettings, _table(raw, "report", where), f"{where}: report"),
        terms=_terms(_table(raw, "terms", where), f"{where}: terms"),
    )


def _terms(table: dict[str, Any], where: str) -> dict[str, str]:
    for key in table:
        if key not in ("licence", "citation"):
            raise _unknown(key, ["licence", "citation"], where)
    return {key: _convert(value, str, f"{where}.{key}") for key, value in table.items()}
