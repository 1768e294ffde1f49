"""Names of columns: one canonical name per concept, whatever the release or the custom download calls it."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from difflib import get_close_matches

from fedmiss.errors import ConfigError, SchemaError, listed, plain
from fedmiss.tables import load_schema

UNITS = {"duration": "minutes", "distance": "km"}  # of effort
KEEP = "keep "  # before the names of columns that are kept on request

# Canonical name -> spellings in the order of preference. Compared by `normal`: case, '_', '/' and spaces are equal.
EBD_RECORD: dict[str, tuple[str, ...]] = {
    "event": ("sampling event identifier",), "group": ("group identifier",),
    "guid": ("global unique identifier",), "edited": ("last edited date",), "count": ("observation count",),
    "category": ("category",), "common_name": ("common name",), "species": ("scientific name",),
    "exotic": ("exotic code",), "approved": ("approved",), "reviewed": ("reviewed",),
    "breeding": ("breeding code", "breeding bird atlas code"),
}  # fmt: skip
EVENT: dict[str, tuple[str, ...]] = {
    "event": ("sampling event identifier",),
    "group": ("group identifier",),
    "edited": ("last edited date",),
    "observer": ("observer id",),
    "date": ("observation date",),
    "start": ("time observations started",),
    # 'OBSERVATION TYPE' (2025) is what was 'PROTOCOL TYPE'; 'PROTOCOL NAME' is finer and only a last resort.
    "protocol": ("observation type", "protocol type", "protocol name"),
    "project": ("project identifiers", "project code", "project names"),
    "duration": ("duration minutes",),
    "distance": ("effort distance km",),
    "n_observers": ("number observers",),
    "complete": ("all species reported",),
}
PLACE: dict[str, tuple[str, ...]] = {
    "country": ("country",), "country_code": ("country code",), "state": ("state", "state province"),
    "state_code": ("state code", "subnational1 code"), "county": ("county",),
    "county_code": ("county code", "subnational2 code"), "bcr": ("bcr code",), "site_name": ("locality",),
    "site": ("locality id",), "site_type": ("locality type",), "latitude": ("latitude",),
    "longitude": ("longitude",),
}  # fmt: skip

# Names that eBird changed between releases
RENAMED = (
    ("breeding code", "breeding bird atlas code"),
    ("breeding category", "breeding bird atlas category"),
    ("observation type", "protocol type"),
    ("checklist comments", "trip comments"),
)
REACH = {name: {**EVENT, **PLACE}[name] for name in ("date", "country_code", "state_code", "county_code")}

DATE_NAMES = (
    "date", "surveydate", "observationdate", "visitdate", "eventdate", "datum", "beobachtungsdatum", "begehungsdatum",
    "fecha",
)  # fmt: skip
DATE_PARTS = {  # of tables whose date stands in three columns
    "year": ("year", "annee", "jahr", "jaar", "ano"),
    "month": ("month", "mois", "monat", "maand", "mes"),
    "day": ("day", "dayofmonth", "jour", "tag", "dag", "dia"),
}
# What the columns of a table of counts are called: an id before a name, which two places may have. For species see
# the module `species`.
NAMES: dict[str, tuple[str, ...]] = {
    "site": ("siteid", "sitecode", "site", "plotid", "plotcode", "plot", "station", "colony", "square", "transect",
             "localityid", "locality", "locationid", "location", "route", "lieu", "ort", "gebiet", "flache", "flaeche",
             "zahlgebiet", "zaehlgebiet", "probeflache", "probeflaeche",
             "standort", "gebied", "sitio",
             "eeacellcode", "eqdcellcode", "isea3hcellcode", "mgrscellcode"),
    "year": ("year", "time", "timepoint", *DATE_PARTS["year"][1:], "yearmonth"),
    "month": DATE_PARTS["month"],
    "count": ("count", "counts", "n", "number", "abundance", "individuals", "total", "birds", "pairs", "nests",
              "territories", "nombre", "anzahl", "aantal",
              "occurrences"),
    "weight": ("weight", "weights", "wt", "siteweight", "poids", "gewicht"),
    "species": (),
}  # fmt: skip

# What the columns of a place are called, in tables of counts and of sites
PLACES: dict[str, tuple[str, ...]] = {
    "site_name": ("sitename", "name", "localityname"),
    "latitude": ("latitude", "lat", "decimallatitude", "breitengrad", "latitud", "y"),
    "longitude": (
        "longitude",
        "lon",
        "long",
        "lng",
        "decimallongitude",
        "langengrad",
        "laengengrad",
        "longitud",
        "x",
    ),
    "region": ("region", "county", "state", "stratum", "province"),
}


def quoted(name: str) -> str:
    """Return a name as a command line needs it."""
    return f'"{name}"' if " " in name else name


def near_names(asked: str, pool: Mapping[str, str]) -> list[str]:
    """Return at most three names like the one asked for; ``pool`` has them by the key that is compared with ``asked``."""
    near = [pool[known] for known in get_close_matches(asked, list(pool), n=3, cutoff=0.6)]
    # the last word alone is often right: 'Wood Trush' for 'Wood Thrush', 'thrush' for it too
    return near or [name for key, name in pool.items() if asked.split()[-1] in key][:3]


def did_you_mean(near: Sequence[str], otherwise: str) -> str:
    """Return the sentence that proposes near names, or ``otherwise`` where there are none."""
    return f"Did you mean {' or '.join(near)}?" if near else otherwise


def several_species(name: str, species: Sequence[str]) -> ConfigError:
    """Return the error about a common name that several species have: taking one of them would be a guess."""
    return ConfigError(
        f"{name!r} is the common name of {len(species)} species ({listed(species, 4)}); name one of them by its scientific "
        "name.",
        species=name,
        near=list(species),
    )


def normal(name: str) -> str:
    """Return a column name in lower case with every run of other signs as one space."""
    return re.sub(r"[^a-z0-9]+", " ", name.lower()).strip()


def squeezed(header: Iterable[str]) -> dict[str, str]:
    """Return the columns by their normal names without blanks and accents; of two that are alike, the first."""
    return {normal(plain(column)).replace(" ", ""): column for column in reversed(tuple(header))}


def familiar(
    header: Iterable[str], words: Mapping[str, Iterable[str]], taken: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Return ``taken`` (name -> column), and of each further name the first column that is called so; each column once.

    ``words`` has the usual names of the columns, squeezed, the best first.
    """
    columns, found = squeezed(header), dict(taken or {})
    for key, known in words.items():
        free = (columns[word] for word in known if word in columns and columns[word] not in found.values())
        if key not in found and (hit := next(free, None)) is not None:
            found[key] = hit
    return found


def names_beside(ids: str) -> set[str]:
    """Return what a column of names is called beside this one of ids, squeezed: site beside Site_ID or site code."""
    (squeezed_ids,) = squeezed([ids])
    return {squeezed_ids.removesuffix("id"), squeezed_ids.removesuffix("code")} - {squeezed_ids}


def check_named(
    option: str, named: Mapping[str, str], known: Iterable[str], where: str, header: Sequence[str]
) -> None:
    """Refuse an option that names columns (name -> column) when a name is unknown or a column is absent."""
    for key, column in named.items():
        if key not in known:
            raise ConfigError(f"{option}: {key!r} is unknown; the names are {', '.join(known)}.", key=key)
        if column not in header:
            raise ConfigError(
                f"{option} {key}={column}: {where} has no column {column!r}; it has {listed(header, 12)}.",
                column=column,
            )


def resolve(
    header: Iterable[str], wanted: dict[str, tuple[str, ...]], required: Iterable[str], where: str
) -> dict[str, int]:
    """Return the position of each wanted column that is there; raise when a required one is not."""
    at: dict[str, int] = {}
    for i, name in enumerate(header):
        at.setdefault(normal(name), i)
    found = {}
    for key, spellings in wanted.items():
        if spelling := next((each for each in spellings if each in at), None):
            found[key] = at[spelling]
    missing = [wanted[key][0].upper() for key in required if key not in found]
    if missing:
        raise SchemaError(
            f"{where} has no column {missing[0]!r} (it has {len(at)} columns). Download it again with "
            f"{', '.join(missing)} among the chosen columns.",
            missing=missing,
        )
    return found


def said_of_unused(header: Sequence[str], columns: Mapping[str, int]) -> list[str]:
    """A sentence on the columns of a table of visits that no name was given, as ``columns`` has them: name -> place."""
    unused = [column for at, column in enumerate(header) if column and at not in columns.values()]
    said = f"columns that are not used: {', '.join(map(repr, unused))}."
    known = {key: f"{key} ({unit})" for key, unit in UNITS.items()} | {"n_observers": "n_observers"}
    if effort := [name for key, name in known.items() if key not in columns]:
        said += f" If one of them tells the effort of the visits, name it in --map: {', '.join(effort)}."
    return [said] if unused else []


def kept_columns(header: Sequence[str], keep: Iterable[str], where: str) -> dict[str, int]:
    """Return the position of each column that is to be kept, under the name that was asked for, behind ``KEEP``.

    A name that stands in the header is that column; else signs and case are ignored, and older names are tried.

    Raises
    ------
    ConfigError : no such column, several like it, or a name that a table of fedmiss has already
    """
    exact: dict[str, int] = {}
    alike: dict[str, list[int]] = {}
    for i, title in enumerate(header):
        exact.setdefault(title.strip(), i)
        if normal(title):
            alike.setdefault(normal(title), []).append(i)
    own = {name for table in ("records", "checklists") for name in load_schema(table).names}
    found: dict[str, int] = {}
    for name in map(str.strip, keep):
        if not name:
            raise ConfigError("--keep: give the name of a column.")
        same = next((renamed for renamed in RENAMED if normal(name) in renamed), ())
        places = (
            [exact[name]]
            if name in exact
            else next((alike[spelling] for spelling in (normal(name), *same) if spelling in alike), [])
        )
        if len(places) > 1:
            several = ", ".join(repr(header[place]) for place in places)
            raise ConfigError(
                f"--keep: {where} has several columns like {name!r}: {several}; write one exactly."
            )
        if not places:
            near = [header[alike[match][0]] for match in get_close_matches(normal(name), alike, n=3)]
            said = f"did you mean {' or '.join(map(repr, near))}?" if near else f"it has {listed(header, 6)}."
            raise ConfigError(f"--keep: {where} has no column {name!r}; {said}", column=name)
        if name.casefold() in own:
            raise ConfigError(
                f"--keep: fedmiss's tables have a column {name.casefold()!r} already, so that of {where} cannot be kept "
                "under this name.",
                column=name,
            )
        if places[0] in found.values() and KEEP + name not in found:
            raise ConfigError(
                f"--keep: {name!r} is a column that is kept already; name it once.", column=name
            )
        found[KEEP + name] = places[0]
    return found


def wide_years(header: Sequence[str], least: int = 3) -> list[str]:
    """Return the columns that are years, when there are at least ``least`` and no column is a count, a total aside."""
    years = [
        column
        for column in header
        if column.strip().lstrip("Xx").isdigit() and 1800 <= int(column.strip().lstrip("Xx")) <= 2100
    ]
    counts = squeezed(header).keys() & set(NAMES["count"]) - {"total"}
    return years if len(years) >= least and not counts else []


def date_parts(header: Sequence[str]) -> dict[str, str]:
    """Return the columns of year, month and day of a month by these names; none where one of them is lacking."""
    parts = familiar(header, DATE_PARTS)
    return parts if len(parts) == len(DATE_PARTS) else {}


def is_count_table(header: Sequence[str], named: Collection[str] = ()) -> bool:
    """Say whether a header looks like a table of yearly or monthly counts: site and year, and no date.

    ``named``: what the user named a column for, whatever that is called.
    """
    names = squeezed(header)
    if set(DATE_NAMES) & set(names):
        return False
    has = {key: key in named or any(word in names for word in words) for key, words in NAMES.items()}
    return has["site"] and (has["year"] or bool(wide_years(header)))


def tells_when(header: Sequence[str]) -> bool:
    """Say whether a column of a table is called as years or dates are, or columns are years."""
    return bool({*NAMES["year"], *DATE_NAMES} & set(squeezed(header)) or wide_years(header, 1))


def find_header(rows: Sequence[Sequence[str]]) -> int:
    """Return which of the first twenty rows holds the names of the columns, counted from 0.

    That is the first that names a site, and a year or a date; or else, since columns have many names and titles stand in one
    cell, the first of two cells or more; or else the first that holds anything.
    """
    for at, row in enumerate(rows[:20]):
        names = squeezed(row)
        if any(name in names for name in NAMES["site"]) and (
            is_count_table(row) or set(DATE_NAMES) & set(names)
        ):
            return at
    filled = [sum(value.strip() != "" for value in row) for row in rows[:20]]
    return next((at for least in (2, 1) for at, n_filled in enumerate(filled) if n_filled >= least), 0)
