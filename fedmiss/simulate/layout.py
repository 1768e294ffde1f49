"""The columns of eBird's text files, by generation of the format.

``52`` is the layout since March 2025, ``49`` that of 2021-2024, ``46`` the one up to 2020; their sampling
files have 33, 30 and 30 columns. A row is built from a few ready pieces that already hold their tabs (taxon,
place, checklist), which is what makes writing fast; this module says which columns each piece covers.
"""

from __future__ import annotations

from dataclasses import dataclass

from fedmiss.errors import ConfigError

__all__ = ["LAYOUTS", "Layout", "layout_of"]

PLACE = (
    "COUNTRY", "COUNTRY CODE", "STATE", "STATE CODE", "COUNTY", "COUNTY CODE", "IBA CODE", "BCR CODE",
    "USFWS CODE", "ATLAS BLOCK", "LOCALITY", "LOCALITY ID", "LOCALITY TYPE", "LATITUDE", "LONGITUDE",
)  # fmt: skip
EFFORT = (
    "DURATION MINUTES", "EFFORT DISTANCE KM", "EFFORT AREA HA", "NUMBER OBSERVERS", "ALL SPECIES REPORTED",
    "GROUP IDENTIFIER",
)  # fmt: skip
REVIEW = ("HAS MEDIA", "APPROVED", "REVIEWED", "REASON")


@dataclass(frozen=True, slots=True)
class Layout:
    """One generation of the format.

    Attributes
    ----------
    name : number of columns of the observation file
    taxon : columns of the taxon; breeding : columns between the count and the place
    who : date, time, observer and checklist id; protocol : how the visit was made, and its projects
    comments : the checklist's comment column
    """

    name: str
    taxon: tuple[str, ...]
    breeding: tuple[str, ...]
    who: tuple[str, ...]
    protocol: tuple[str, ...]
    comments: str

    @property
    def checklist(self) -> tuple[str, ...]:
        """Columns that both files share, in their order, without the last-edited date and the comments."""
        return (*PLACE, *self.who, *self.protocol, *EFFORT)

    @property
    def observation_header(self) -> tuple[str, ...]:
        """Header of the EBD file."""
        first = ("GLOBAL UNIQUE IDENTIFIER", "LAST EDITED DATE")
        taxon = (*self.taxon, "OBSERVATION COUNT", *self.breeding)
        return (*first, *taxon, *self.checklist, *REVIEW, self.comments, "SPECIES COMMENTS")

    @property
    def sampling_header(self) -> tuple[str, ...]:
        """Header of the sampling event file."""
        return ("LAST EDITED DATE", *self.checklist, self.comments)


_TAXON_46 = (
    "TAXONOMIC ORDER", "CATEGORY", "COMMON NAME", "SCIENTIFIC NAME", "SUBSPECIES COMMON NAME",
    "SUBSPECIES SCIENTIFIC NAME",
)  # fmt: skip
_TAXON = (
    "TAXONOMIC ORDER", "CATEGORY", "TAXON CONCEPT ID", "COMMON NAME", "SCIENTIFIC NAME",
    "SUBSPECIES COMMON NAME", "SUBSPECIES SCIENTIFIC NAME", "EXOTIC CODE",
)  # fmt: skip
_WHO = ("OBSERVATION DATE", "TIME OBSERVATIONS STARTED", "OBSERVER ID", "SAMPLING EVENT IDENTIFIER")
_WHO_52 = (*_WHO[:3], "OBSERVER ORCID ID", _WHO[3])
_PROTOCOL = ("PROTOCOL TYPE", "PROTOCOL CODE", "PROJECT CODE")
_PROTOCOL_52 = ("OBSERVATION TYPE", "PROTOCOL NAME", "PROTOCOL CODE", "PROJECT NAMES", "PROJECT IDENTIFIERS")
_BREEDING_46 = ("BREEDING BIRD ATLAS CODE", "BREEDING BIRD ATLAS CATEGORY", "AGE/SEX")
_BREEDING = ("BREEDING CODE", "BREEDING CATEGORY", "BEHAVIOR CODE", "AGE/SEX")

LAYOUTS = {
    "52": Layout("52", _TAXON, _BREEDING, _WHO_52, _PROTOCOL_52, "CHECKLIST COMMENTS"),
    "49": Layout("49", _TAXON, _BREEDING, _WHO, _PROTOCOL, "TRIP COMMENTS"),
    "46": Layout("46", _TAXON_46, _BREEDING_46, _WHO, _PROTOCOL, "TRIP COMMENTS"),
}


def layout_of(name: str) -> Layout:
    """Return a layout by its number of columns; unknown ones are a :class:`ConfigError`."""
    if name not in LAYOUTS:
        raise ConfigError(f"there is no layout {name!r}; choose one of {', '.join(LAYOUTS)} (columns).")
    return LAYOUTS[name]
