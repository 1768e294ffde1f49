"""Which column of a plain table is what: the map that is asked for, proposed, and checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import polars as pl

from fedmiss.errors import ConfigError, fold, listed
from fedmiss.etl.checks import TOTALS
from fedmiss.etl.columns import (
    DATE_NAMES,
    DATE_PARTS,
    check_named,
    date_parts,
    familiar,
    kept_columns,
    names_beside,
    quoted,
    squeezed,
)
from fedmiss.etl.rows import Rows
from fedmiss.etl.sources import Source
from fedmiss.etl.species import columns_with, species_columns

# canonical name -> names of columns that usually mean it (compared by `columns.normal`, without spaces); an id of a place
# comes before its name, which two places may have
_FAMILIAR = {
    "observer": "observer observerid who recorder recordedby surveyor counter beobachter waarnemer observateur",
    "site": "siteid site plotid plot station colony square localityid locality locationid location transect "
    "gebiet ort standort flache flaeche zahlgebiet zaehlgebiet probeflache probeflaeche gebied lieu",
    "date": " ".join([*DATE_NAMES, "day"]),
    "species": "species scientificname speciesname taxon speciescode",
    "common_name": "commonname englishname vernacularname",
    "count": "count n number abundance individuals total howmany individualcount observationcount birds anzahl aantal",
    "visit": "visit visitid checklist checklistid samplingeventidentifier surveyid eventid submissionid",
    "site_name": "sitename locationname plotname",
    "region": "region county state countycode statecode province",
    "latitude": "latitude lat decimallatitude breitengrad latitud",
    "longitude": "longitude lon long lng decimallongitude langengrad laengengrad longitud",
    "start": "start starttime time timestarted timeobservationsstarted",
    "duration": "duration minutes durationminutes effortminutes",
    "distance": "distance distancekm km effortdistancekm",
    "n_observers": "nobservers numberobservers partysize observers",
    "protocol": "protocol protocoltype protocolname method surveytype",
    "complete": "complete completelist allspeciesreported allobsreported",
}
FAMILIAR = {key: words.split() for key, words in _FAMILIAR.items()}
KNOWN = (*FAMILIAR, *DATE_PARTS)
REQUIRED = ("observer", "site", "date", "count")


def check_map(
    source: Source, column_map: dict[str, str] | None, *, one_species: str | None, wide: bool = False
) -> dict[str, str]:
    """Return the map to use, or raise with the proposal.

    ``one_species``: where a single species was asked for, the table need not name it; ``wide``: species are columns.
    """
    proposal = _dated(source.header, familiar(source.header, FAMILIAR))
    proposal = familiar(source.header, {"site_name": names_beside(proposal.get("site", ""))}, proposal)
    if wide:
        proposal.pop("count", None)  # a total of the species
    missing = _lacking(proposal, wide)
    named = {**proposal, **(column_map or {})}
    offer = ",".join(f"{key}={value}" for key, value in named.items() if key != "auto")
    more = " Where nobody noted the observer, say observer=..., too, with the column of the site."
    more = "" if "observer" in named else more
    if "count" not in named and not wide:
        more += " Where every species has a column of counts, pass --wide instead of a count."
    if column_map is None:
        if missing and len(proposal) < 2:
            raise ConfigError(
                f"{source.name} is no eBird, MyEBirdData or GBIF file (its columns: {listed(source.header, 6)}). "
                "If it is a table of counts, say which column is what: --map observer=...,site=...,date=...,count=..., or, "
                "of yearly counts, --map site=...,year=...,count=...",
                header=list(source.header),
            )
        lack = (
            f" Still to name: {', '.join(missing)}." if missing else " Or --map auto to take this proposal."
        )
        raise ConfigError(
            f"{source.name} is a plain table; say which column is what. Its columns look like --map {offer}.{lack}"
            f"{more}",
            proposal=proposal,
        )
    chosen = dict(proposal if "auto" in column_map else column_map)
    check_named("--map", chosen, KNOWN, source.name, source.header)
    if "date" in chosen and DATE_PARTS.keys() & chosen.keys():
        raise ConfigError("--map: name date, or year, month and day, not both.")
    if wide and (named_too := sorted({"count", "species", "common_name"} & chosen.keys())):
        raise ConfigError(
            f"--wide takes a column for each species of {source.name}: leave {listed(named_too, 3)} out of --map, or --wide."
        )
    if lacking := _lacking(chosen, wide):
        offer = f"Proposal: --map {offer}." if offer else f"Its columns: {listed(source.header, 12)}."
        raise ConfigError(
            f"--map does not say which column of {source.name} is {' or '.join(lacking)}. {offer}{more}",
            missing=lacking,
        )
    if not wide and not {"species", "common_name"} & set(chosen):
        # A column of species that the map leaves out would be counts of several added up.
        free = [column for column in source.header if column and column not in chosen.values()]
        if found := species_columns(free):
            chosen["species"] = found[0]
        elif one_species is None:
            raise ConfigError(
                f"--map names no species column of {source.name}: add species=..., or name the one species of the table "
                "with --species."
            )
        else:
            _refuse_species(source, free, one_species, chosen)
    return chosen


def _dated(header: Sequence[str], found: dict[str, str]) -> dict[str, str]:
    """Return the map with year, month and day where they make the date and no other column is called so."""
    parts = date_parts(header)
    if not parts or found.get("date", parts["day"]) != parts["day"]:
        return found
    return {key: column for key, column in found.items() if key != "date"} | parts


def by_species(
    source: Source, column_map: Mapping[str, str], asked: Sequence[str], keep: Sequence[str]
) -> tuple[str, ...]:
    """Return the columns that are species: those asked for, by name, or all that no map names and nobody wants kept.

    A column that is called as counts are, as Total, is none unless it is asked for.
    """
    kept = kept_columns(source.header, keep, source.name).values()
    free = [
        column
        for at, column in enumerate(source.header)
        if column and column not in column_map.values() and at not in kept
    ]
    wanted = {fold(name) for name in asked}
    if named := tuple(column for column in free if fold(column) in wanted):
        return named
    found = tuple(column for column in free if not {*squeezed([column])} & {*FAMILIAR["count"], *TOTALS})
    if not found:
        raise ConfigError(
            f"--wide: --map names all columns of {source.name}, and none is left for a species."
        )
    return found


def _lacking(chosen: Mapping[str, str], wide: bool) -> list[str]:
    """Return what is required and not named; a date is one column, or three."""
    needed = DATE_PARTS if DATE_PARTS.keys() & chosen.keys() else ("date",)
    every = [part for name in REQUIRED for part in (needed if name == "date" else (name,))]
    return [name for name in every if name not in chosen and not (wide and name == "count")]


def _refuse_species(source: Source, free: Sequence[str], wanted: str, chosen: Mapping[str, str]) -> None:
    """Refuse a column that the map leaves out and that holds the species asked for: it names the species, or remarks."""
    at = {column: source.header.index(column) for column in free}
    texts = pl.concat(Rows(source).chunks(at))
    if found := columns_with({column: texts[column] for column in free}, wanted):
        offer = ",".join(f"{key}={value}" for key, value in {**chosen, "species": found[0]}.items())
        raise ConfigError(
            f"--map names no species column of {source.name}, and {wanted!r} stands in the column {found[0]!r}. If that "
            f"names the species: --map {quoted(offer)}. If it holds remarks, leave it out of the table.",
            column=found[0],
        )
