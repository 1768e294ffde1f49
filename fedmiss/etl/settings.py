"""The settings of an import."""

from __future__ import annotations

from dataclasses import dataclass, field

from fedmiss.etl.filters import Filters

__all__ = ["IngestSettings"]


@dataclass(frozen=True, slots=True)
class IngestSettings:
    """What to take from the files.

    Parameters
    ----------
    species : scientific or common names; none means all species of the files
    filters : which checklists to keep
    groups : policy for shared checklists: ``first``, ``merged`` or ``raw``
    site : ``locality``, or ``grid:3km``
    exotic : eBird exotic codes to keep; blank stands for native
    breeding : breeding codes; a record without one of them is neither a detection nor a zero; ``any`` takes every code
    reviewed_only : keep records that a reviewer has seen; the others are neither a detection nor a zero
    sensitive : species whose absence is no zero, because their records are withheld somewhere
    allow_absent : accept a species that the files do not contain (all zeros)
    column_map : canonical name -> column, for plain tables; ``{"auto": ""}`` takes the proposal
    assume_complete : plain tables: every visit reported all species
    drop_suspected : MyEBirdData: treat suspected copies of a shared list as one shared list
    decimals : GBIF: coordinates are rounded to so many decimals to make sites
    repeats, spellings, wide, missing : tables of counts, see ``counts.CountOptions``; all but ``wide`` also plain tables
    dates : plain tables: what 05/06/2024 means, ``day-first`` or ``month-first``; blank refuses it
    first_year : tables of counts: the year of the first time point, where time points are 1, 2, ...

    Examples
    --------
    >>> import fedmiss
    >>> from fedmiss.etl import preset
    >>> mallard = fedmiss.IngestSettings(species=("Mallard",), filters=preset("best-practices-v2"))
    >>> mallard.species
    ('Mallard',)
    """

    species: tuple[str, ...] = ()
    filters: Filters = field(default_factory=Filters)
    groups: str = "first"
    site: str = "locality"
    exotic: tuple[str, ...] = ("", "N", "P")
    breeding: tuple[str, ...] = ()
    reviewed_only: bool = False
    sensitive: tuple[str, ...] = ()
    allow_absent: bool = False
    column_map: dict[str, str] | None = None
    assume_complete: bool = False
    drop_suspected: bool = False
    decimals: int = 2
    repeats: str = "refuse"
    spellings: str = "refuse"
    wide: bool = False
    missing: tuple[str, ...] = ()
    first_year: int | None = None
    dates: str = ""
