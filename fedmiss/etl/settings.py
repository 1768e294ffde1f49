"""The settings of an import and of a panel; light, because the command line makes its options of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from fedmiss.errors import ConfigError
from fedmiss.etl.filters import Filters, Words, parse_map, preset, where
from fedmiss.settings import Settings, defaults, definitions, setting

# kinds of input, in words for messages
EBIRD, MYEBIRD, GBIF = "an eBird file", "a MyEBirdData file", "a file of GBIF occurrences"
PLAIN, COUNTS = "a plain table", "a table of counts"

rule = partial(setting, panel="Rules")
plain = partial(setting, panel="Plain tables and other sources")


@dataclass(frozen=True, slots=True)
class IngestSettings(Settings):
    """What to take from the files, beside ``filters``: which checklists to keep.

    Examples
    --------
    >>> import fedmiss
    >>> from fedmiss.etl import preset
    >>> mallard = fedmiss.IngestSettings(species=("Mallard",), filters=preset("best-practices-v2"))
    >>> mallard.species
    ('Mallard',)
    """

    species: Words = setting(
        (), "Common or scientific name; repeat for more.", flags=("--species", "-s"), shown="all"
    )
    filters: Filters = field(default_factory=Filters)
    groups: str = rule(
        "first",
        "Shared checklists: first (keep the lowest id), merged (observers joined), raw (every copy counts).",
        among=("first", "merged", "raw"),
        kinds=(EBIRD, MYEBIRD),
    )
    site: str = where("locality", "What a site is: locality, or grid:3km (equal areas).")
    exotic: Words = rule(
        ("", "N", "P"),
        "Exotic codes to keep, with commas; native birds are always kept. X is an escapee.",
        shown="N,P",
        read=lambda text: text.split(","),
        kinds=(EBIRD,),
    )
    breeding: Words = rule(
        (), "Breeding code, or any: records without it are neither a detection nor a zero.", kinds=(EBIRD,)
    )
    reviewed_only: bool = rule(
        False,
        "Reviewed records only; the others are neither a detection nor a zero.",
        flags=("--reviewed",),
        kinds=(EBIRD,),
    )
    sensitive: Words = rule((), "Species withheld in some places: its absence is not a zero.")
    allow_absent: bool = rule(
        False, "Accept a species that the files never mention.", kinds=(EBIRD, MYEBIRD, GBIF, PLAIN)
    )
    keep: Words = rule(
        (), "Column of the files to keep as text with each record, as 'BREEDING CODE' or 'SPECIES COMMENTS'."
    )
    column_map: dict[str, str] | None = plain(
        None,
        "Columns of a plain table, as observer=who,site=plot,date=day,count=n, or site=plot,year=time,count=n; or auto.",
        flags=("--map",),
        read=parse_map,
        kinds=(PLAIN, COUNTS),
    )
    assume_complete: bool = plain(
        False, "Every visit reported every species, so absence is zero.", kinds=(PLAIN,)
    )
    drop_suspected: bool = plain(
        False,
        "MyEBirdData of friends: same place, date, time and duration is one shared list.",
        kinds=(MYEBIRD,),
    )
    decimals: int = plain(
        2, "GBIF: decimals of the coordinates that make a site.", low=0, high=5, kinds=(GBIF,)
    )
    repeats: str = plain(
        "refuse",
        "Several counts of a species on one visit (plain tables; refuse means sum), or of a site in one year or month "
        "(tables of counts): refuse, sum, max or mean.",
        among=("refuse", "sum", "max", "mean"),
        kinds=(PLAIN, COUNTS),
    )
    spellings: str = plain(
        "refuse",
        "Plain tables: sites written in two ways (case, blanks, accents, 01): refuse, join or apart.",
        among=("refuse", "join", "apart"),
        kinds=(PLAIN, COUNTS),
    )
    wide: bool = plain(
        False,
        "One column for each year (tables of counts), or each species (tables of visits: all that --map does not name).",
        kinds=(PLAIN, COUNTS),
    )
    missing: Words = plain(
        (), "Plain tables: one more code for a missing count, as 999.", kinds=(PLAIN, COUNTS)
    )
    sheet: str = plain(
        "",
        "Sheet of a workbook (.xlsx, .ods) that has several, or all: parts of one table.",
        kinds=(PLAIN, COUNTS, GBIF),
    )
    header_row: int | None = plain(
        None,
        "Row or line in which the column names stand.",
        low=1,
        shown="the first of 20 that names a site and a year or date",
        kinds=(PLAIN, COUNTS, GBIF),
    )
    first_year: int | None = plain(
        None, "Table of counts whose time points are 1, 2, ...: the year of the first.", kinds=(COUNTS,)
    )
    dates: str = plain(
        "",
        "Plain tables: what 05/06/2024 means, day-first or month-first.",
        among=("", "day-first", "month-first"),
        shown="refused",
        kinds=(PLAIN,),
    )

    def __post_init__(self) -> None:
        Settings.__post_init__(self)
        codes = (code.strip().upper() for code in self.exotic)
        object.__setattr__(self, "exotic", ("", *filter(None, codes)))  # the blank stands for native


def ingest_settings(values: dict[str, Any]) -> IngestSettings:
    """Build the settings of an import of fields of both classes, and of ``preset``: named filters, which they change."""
    named = values.get("preset")
    filters = {name: value for name, value in values.items() if name in definitions(Filters)}
    others = {name: value for name, value in values.items() if name in definitions(IngestSettings)}
    return IngestSettings(filters=preset(named, **filters) if named else Filters(**filters), **others)


@dataclass(frozen=True, slots=True)
class PanelSettings(Settings):
    """How a panel is made.

    Examples
    --------
    >>> import fedmiss
    >>> fedmiss.PanelSettings(groups=4).groups
    4
    """

    species: str = setting("", "Scientific or common name; optional when the records hold one species.")
    groups: int = setting(
        1, "Number of groups; with more than one, observers are drawn into them at random.", low=1
    )
    group_by: str = setting(
        "", "Column that makes the groups: region, observer_id, protocol; or file, for own exports."
    )
    sites: str = setting(
        "seen",
        "seen: sites with at least one detection; all: every site; frame: every site, and those of --site-table that "
        "nobody visited, whose numbers follow from their covariates.",
        among=("seen", "all", "frame"),
    )
    site_table: str | None = setting(
        None,
        "Table of sites: a column that names the site, and covariates (numbers or categories: elevation, habitat).",
        typed=Path,
    )
    community: str | None = setting(
        None,
        "Folder of `fedmiss community`: what the other species say of the sites becomes covariates of them.",
        typed=Path,
    )
    min_visits: int = setting(1, "Minimum number of visits of a site.", low=1)
    seed: int = setting(0, "Seed of the random groups.", low=0)
    secrets: bool = setting(
        False,
        "Give every group its own secret key for bootstrap weights, not one for all species of the records.",
    )

    def __post_init__(self) -> None:
        Settings.__post_init__(self)
        if self.sites == "frame" and not self.site_table:
            raise ConfigError("--sites frame needs the sites: name their table with --site-table.")
        if self.group_by:
            self.refuse_groups(f"--group-by {self.group_by} makes the groups")
        elif self.groups == 1:
            self.refuse_groups("there is one group", ("seed",))

    def refuse_groups(self, why: str, names: tuple[str, ...] = ("groups", "seed")) -> None:
        """Refuse what draws groups at random, where nothing is drawn."""
        usual = defaults(PanelSettings)
        for name in names:
            if getattr(self, name) != usual[name]:
                flag = definitions(PanelSettings)[name][1].flag(name)
                raise ConfigError(f"{flag} does nothing here: {why}. Leave {flag} out.")
