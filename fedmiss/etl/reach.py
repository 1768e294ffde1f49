"""How far the records reach: a sampling file for more years or places than the EBD would give false zeros.

eBird's file names say what was asked for (``ebd_US-WA_woothr_201501_201812_relApr-2025.txt``), and a file of many
species has records wherever somebody looked. From either, zeros are kept to where the records reach. A file of
few species, under another name, may be narrower because it was cut or because the species is not there: that can
only be pointed out.
"""

from __future__ import annotations

import re
from calendar import monthrange
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, timedelta

import numpy as np
import polars as pl

from fedmiss.arrays import I32, Bool
from fedmiss.etl.filters import EPOCH
from fedmiss.etl.projection import Projection

MANY_SPECIES = 30  # from here on, next to no complete checklist is without any of them
SEVERAL_SPECIES = 10  # from here on, few are; a file that was cut at a line end leaves many without
SHARE = 0.05  # of the zeros: so many outside the reach of few species, or without a record of any, are pointed out
REGIONS = ("county_code", "state_code", "country_code")  # from the smallest up
_REGION = re.compile(r"ebd_([A-Z]{2}(?:-[A-Z0-9]{1,3}){0,2})(?=[_.])")
# eBird's code of a species: a file of that alone, or another word of somebody's own
_TAXON = re.compile(r"ebd_(?:[A-Z0-9-]+_)?([a-z][a-z0-9]{5,7})_")
_MONTHS = re.compile(r"_((?:18|19|20)\d{2})(0[1-9]|1[0-2])_((?:18|19|20)\d{2})(0[1-9]|1[0-2])(?=[_.])")


@dataclass(frozen=True, slots=True)
class Reach:
    """Where one file of records reaches; None and '' are no limit.

    first, last : days since 1970-01-01; region : a code; places : codes of counties (states or countries where
    there are none), cut to their first ``parts`` parts ('US-WA-033' has three)
    """

    first: int | None = None
    last: int | None = None
    region: str = ""
    places: tuple[str, ...] | None = None
    parts: int = 3

    def covers(self, places: pl.DataFrame) -> Bool:
        """Say which of some places, each named once, lie within."""
        smallest = pl.coalesce(pl.col(region).replace("", None) for region in REGIONS).fill_null("")
        inside = np.ones(places.height, dtype=np.bool_)
        if self.region:
            named = places.select(
                pl.any_horizontal(pl.col(region) == self.region for region in REGIONS).fill_null(False)
            )
            mask = named.to_series().to_numpy()
            if mask.any():  # otherwise no place has such a code, and nothing can be excluded
                inside &= mask
        if self.places is not None:
            inside &= np.array(self._held(places.select(smallest).to_series().to_list()), dtype=np.bool_)
        return inside

    def _held(self, codes: list[str]) -> list[bool]:
        """Say which regions have records; one file may tell counties where the other tells states only."""
        held = {_cut(place, self.parts) for place in self.places or ()}
        # A county lies in its state, and the state in its country: wider places count as held.
        above = {wide for code in held for wide in _wider(code)}

        def has(code: str) -> bool:
            mine = _cut(code, self.parts)
            return mine in held or mine in above or any(wide in held for wide in _wider(mine))

        unknown = "" in held  # records without any code: nothing is known of them, nor of a place without one
        return [unknown or not code or has(code) for code in codes]

    def spans(self, days: I32) -> Bool:
        """Say which days lie within."""
        inside = np.ones(days.size, dtype=np.bool_)
        if self.first is not None:
            inside &= days >= self.first
        if self.last is not None:
            inside &= days <= self.last
        return inside


@dataclass(frozen=True, slots=True)
class Limits:
    """``sure``: beyond these there are no zeros; ``seen``: beyond these nothing was seen, which may be true.

    ``sure`` has the reaches of the files of each species: there are zeros only where every species is covered.
    ``n_species`` : in the file that has most
    """

    sure: tuple[tuple[Reach, ...], ...] = ()
    seen: tuple[Reach, ...] = ()
    n_species: int = 0


NO_LIMIT = Limits()


def _cut(code: str, parts: int) -> str:
    return "-".join(code.split("-")[:parts])


def _wider(code: str) -> list[str]:
    """Return the regions that hold a region: its code without the last part, and so on."""
    parts = code.split("-")
    return ["-".join(parts[:length]) for length in range(1, len(parts))]


def _days(year: str, month: str, *, end: bool) -> int:
    day = monthrange(int(year), int(month))[1] if end else 1
    return (date(int(year), int(month), day) - EPOCH).days


def limits_of(records: Sequence[Projection], chosen: Sequence[I32]) -> Limits:
    """Return how far the reviewed records reach, file by file; a file of one species that was not asked for says nothing.

    ``chosen`` : per file, of each taxon which of the species asked for it is, or -1
    """
    sure: dict[str, list[Reach]] = {}
    seen, most = [], 0
    for record, asked in zip(records, chosen, strict=True):
        if record.meta["role"] != "ebd" or not record.has("reach"):
            continue
        name = record.meta["source"].rsplit(":", 1)[-1].rsplit("/", 1)[-1]
        region, months, taxon = (pattern.search(name) for pattern in (_REGION, _MONTHS, _TAXON))
        taxa = record.read("taxa", ["species", "rows"])
        held = taxa["rows"] > 0
        # without what stands behind the names of domestic birds
        n_species = taxa.filter(held)["species"].str.extract(r"^(\S+ ?\S*)").n_unique()
        most = max(most, n_species)
        if taxon and n_species == 1 and asked[held.to_numpy()].max() < 0:
            continue
        mine = sure.setdefault(taxon[1] if taxon and n_species < 2 else "", [])
        first = _days(months[1], months[2], end=False) if months else None
        last = _days(months[3], months[4], end=True) if months else None
        places = tuple(record.column("reach", "region").unique().sort().to_list())
        earliest, latest = record.meta["record_dates"] or (None, None)
        if n_species >= MANY_SPECIES:
            first = max((each for each in (first, earliest) if each is not None), default=None)
            last = min((each for each in (last, latest) if each is not None), default=None)
        counties = places if n_species >= MANY_SPECIES else None
        mine.append(Reach(first, last, region[1] if region else "", counties))
        if record.meta["rows"]:
            seen.append(Reach(earliest, latest, "", places, parts=2))
    every = sure.get("", [])  # a file of all species is one of each
    return Limits(
        tuple(tuple(mine) if mine is every else (*mine, *every) for mine in sure.values()), tuple(seen), most
    )


def reach_warnings(limits: Limits, counts: dict[str, int], silent: float = 0.0) -> list[str]:
    """Return the sentences on complete checklists that lie beyond the records.

    ``silent`` : share of the checklists giving zeros that have no record of any species
    """

    def span(species: tuple[tuple[Reach, ...], ...]) -> str:
        dated = [mine for mine in species if all(None not in (reach.first, reach.last) for reach in mine)]
        if not dated:
            return "their region"
        low = max(min(reach.first or 0 for reach in mine) for mine in dated)
        high = min(max(reach.last or 0 for reach in mine) for mine in dated)
        return f"{EPOCH + timedelta(days=low)} to {EPOCH + timedelta(days=high)} and their region"

    out = []
    if counts.get("out of reach"):
        out.append(
            f"{counts['out of reach']:,} complete checklists lie beyond the records, which reach over "
            f"{span(limits.sure)}: what was seen there is not in the files, so they give no zeros. Download the "
            "EBD and the sampling file for the same dates and region to use them."
        )
    beyond = counts.get("nothing seen", 0)
    if beyond > SHARE * counts["zero_ok"]:
        out.append(
            f"{beyond:,} of {counts['zero_ok']:,} complete checklists lie outside the dates or the states that have "
            f"any record ({span((limits.seen,))}). Where the species was looked for and missed, these are true zeros; "
            "if the EBD was cut more narrowly than the sampling file, they are false: leave them out with --start, "
            "--end or --state."
        )
    if limits.n_species >= SEVERAL_SPECIES and silent > SHARE:
        out.append(
            f"{100 * silent:.0f} % of the complete checklists have no record of any species of the EBD. If all species were "
            "downloaded, the file was cut short on its way, and species on the lost lines turn into false zeros: download "
            "or copy the file again. If it was cut to some species on purpose, the zeros are true."
        )
    return out
