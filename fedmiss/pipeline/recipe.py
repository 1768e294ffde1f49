"""Recipes: TOML files that name inputs and settings of the whole chain; checked before anything runs."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from fedmiss.community.settings import CommunitySettings
from fedmiss.errors import ConfigError, InputError
from fedmiss.etl.filters import Filters
from fedmiss.etl.settings import IngestSettings, PanelSettings, ingest_settings
from fedmiss.parsing import parse_toml
from fedmiss.pipeline.settings import FastSettings, FitSettings
from fedmiss.report.settings import ReportSettings
from fedmiss.settings import convert, from_table, kinds_checked, names, read_table, unknown
from fedmiss.system import as_spelled, at_home

INPUTS = ("files", "sampling", "unvetted")  # fields of a recipe that stand in its table [ingest]


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
    community : settings of a fit of all species together, whose scores the panels get; None for no such step
    species_groups : table of species and group, each with an indicator of its own; None for none
    terms : licence and citation of records that come without them (plain tables); kept with every result
    path : the recipe's own file; its results are of it alone
    """

    name: str
    out: Path
    files: tuple[Path, ...]
    sampling: tuple[Path, ...] = ()
    unvetted: tuple[Path, ...] = ()
    species: tuple[str, ...] = ()
    min_records: int = 200
    ingest: IngestSettings = field(default_factory=IngestSettings)
    community: CommunitySettings | None = None
    panel: PanelSettings = field(default_factory=PanelSettings)
    fit: FitSettings = field(default_factory=FastSettings)
    report: ReportSettings = field(default_factory=ReportSettings)
    species_groups: Path | None = None
    terms: dict[str, str] = field(default_factory=dict)
    path: Path | None = None


LONGEST = 200  # letters of a folder's name: files have 255 bytes, and more than the name in theirs


def slug(species: str) -> str:
    """Folder name of a species: lower case, dashes; a number of its own for a name in another script or a very long one."""
    number = f"-{hashlib.sha256(species.encode()).hexdigest()[:8]}"
    found = re.sub(r"[^a-z0-9]+", "-", species.lower()).strip("-")
    if len(found) > LONGEST:  # no file could be called so
        return found[: LONGEST - len(number)] + number
    return found or f"species{number if any(map(str.isalnum, species)) else ''}"


def _table(raw: dict[str, Any], key: str, where: str) -> dict[str, Any]:
    table = raw.get(key, {})
    if not isinstance(table, dict):
        raise ConfigError(
            f"{where}: {key} is {table!r} (must be a table: a line [{key}], settings below it)."
        )
    return table


def ingest_options() -> dict[str, str]:
    """Return the settings that the table ``[ingest]`` of a recipe may hold beside its files, with their fields."""
    return names(Filters, IngestSettings) | {"preset": "preset"}


def _ingest(table: dict[str, Any], where: str, base: Path) -> IngestSettings:
    """Read the table ``[ingest]``: the names and values of the options of ``fedmiss ingest``, or lists of values."""
    rest = {key: value for key, value in table.items() if key != "preset"}
    values = read_table(rest, where, Filters, IngestSettings)
    if "polygon" in values:
        values["polygon"] = str(_beside(base, values["polygon"]))
    if "preset" in table:
        values["preset"] = convert(table["preset"], str, f"{where}.preset")
    try:
        return ingest_settings(values)
    except ConfigError as error:  # a value that only its own check refuses, or some that do not go together
        raise ConfigError(f"{where}: {error}") from None


@kinds_checked
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
    >>> fedmiss.pipeline.read_recipe("wren.toml").files[0].name
    'counts.csv'
    """
    path = Path(path)
    raw, where, base = _raw(path), path.name, path.parent
    ingest = dict(_table(raw, "ingest", where))
    inputs = {}
    for key in INPUTS:
        names = convert(ingest.pop(key, []), tuple[str, ...], f"{where}: ingest.{key}")
        inputs[key] = tuple(_beside(base, name) for name in names)
    if not inputs["files"]:
        raise ConfigError(f"{where}: ingest.files is missing; name the files to read.")
    species = convert(raw.get("species", []), tuple[str, ...], f"{where}: species")
    # Only these species need to be imported; a community needs all that were on the lists.
    if "species" not in ingest and species and species != ("all",) and "community" not in raw:
        ingest["species"] = list(species)
    panel, others = (_with_sites(raw, name, where, base) for name in ("panel", "community"))
    if "community" in raw and "community" in panel:
        raise ConfigError(
            f"{where}: panel.community names a folder, and [community] makes one; leave one of them out."
        )
    if isinstance(panel.get("community"), str):
        panel["community"] = str(_beside(base, panel["community"]))
    report = dict(_table(raw, "report", where))
    for name in ("photo", "language"):
        # A language without an ending is one of fedmiss's own.
        if isinstance(report.get(name), str) and (name == "photo" or Path(report[name]).suffix):
            report[name] = str(_beside(base, report[name]))
    results = convert(raw.get("out", f"{path.stem}-out"), str, f"{where}: out")
    return Recipe(
        name=convert(raw.get("name", path.stem), str, f"{where}: name"),
        out=Path(out) if out else _beside(base, results),
        **inputs,
        species=species,
        min_records=convert(raw.get("min_records", 200), int, f"{where}: min_records"),
        ingest=_ingest(ingest, f"{where}: ingest", base),
        community=from_table(CommunitySettings, others, f"{where}: community")
        if "community" in raw
        else None,
        panel=from_table(PanelSettings, panel, f"{where}: panel"),
        fit=from_table(FitSettings, _table(raw, "fit", where), f"{where}: fit"),
        report=from_table(ReportSettings, report, f"{where}: report"),
        species_groups=_beside(base, convert(raw["species_groups"], str, f"{where}: species_groups"))
        if "species_groups" in raw
        else None,
        terms=_terms(_table(raw, "terms", where), f"{where}: terms"),
        path=path,
    )


def _raw(path: Path) -> dict[str, Any]:
    try:
        raw = parse_toml(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"there is no recipe {path}. Check its name and folder.") from None
    except (ValueError, IsADirectoryError) as error:
        raise InputError(f"{path} is not a TOML recipe: {error}.") from None
    tables = {item.name for item in fields(Recipe)} - {*INPUTS, "path"}
    for key in raw:
        if key not in tables:
            raise unknown(key, sorted(tables), path.name)
    return raw


def _with_sites(raw: dict[str, Any], name: str, where: str, base: Path) -> dict[str, Any]:
    """Return the table ``name`` with the path of its table of sites, which must be there."""
    table = dict(_table(raw, name, where))
    if isinstance(table.get("site_table"), str):
        at = _beside(base, table["site_table"])
        table["site_table"] = str(at)
        if not at.is_file():
            raise InputError(f"{where}: {name}.site_table: there is no file {at}.")
    return table


def _beside(base: Path, name: str) -> Path:
    """A path of a recipe: beside it, unless it is absolute; ~ is the home folder."""
    return as_spelled(base / at_home(Path(name)))


def _terms(table: dict[str, Any], where: str) -> dict[str, str]:
    for key in table:
        if key not in ("licence", "citation"):
            raise unknown(key, ["licence", "citation"], where)
    return {key: convert(value, str, f"{where}.{key}") for key, value in table.items()}
