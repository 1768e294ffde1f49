"""A table of species and their groups (habitats, guilds), for indicators."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from fedmiss.errors import InputError, listed
from fedmiss.etl.columns import familiar, near_names
from fedmiss.etl.counts import read_texts
from fedmiss.etl.one_species import fold, species_columns
from fedmiss.etl.sources import expand

__all__ = ["not_counted", "read_groups"]

_NAMES = "group habitat habitatgroup guild indicator speciesgroup groupe gruppe lebensraum".split()


def read_groups(path: str | Path) -> dict[str, tuple[str, ...]]:
    """Read a table with a column of species and one of groups; a species with two rows is in two groups.

    Raises
    ------
    InputError : no column of species or of groups; a row with one of them blank
    """
    source = expand(path)[0]
    group = familiar(source.header, {"group": _NAMES}).get("group", "")
    species = next((h for h in species_columns(source.header) if h != group), "")
    if not group or not species:
        raise InputError(
            f"{source.name}: a table of groups has a column of species and one called group or habitat; its columns are "
            f"{listed(source.header, 8)}.",
            path=source.name,
        )
    raw, _ = read_texts(source)
    at = {h: f"_{source.header.index(h)}" for h in (species, group)}
    out: dict[str, list[str]] = {}
    for row in raw.rows(named=True):
        name, kind = row[at[species]].strip(), row[at[group]].strip()
        if not name or not kind:
            said = "blank; name the species and its group, or leave the row out."
            raise source.fault(row["_line"], group if name else species, said)
        out.setdefault(kind, []).append(name)
    return {kind: tuple(dict.fromkeys(names)) for kind, names in sorted(out.items())}


def not_counted(asked: Iterable[str], known: Mapping[str, str]) -> dict[str, list[str]]:
    """Return the names asked for that are not among those of the counts (folded -> shown), each with names like it."""
    missing = dict.fromkeys(name for name in asked if fold(name) not in known)
    return {name: list(dict.fromkeys(near_names(fold(name), known))) for name in missing}
