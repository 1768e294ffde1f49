"""Make small eBird-style files by code: every row is a dict, every generation of headers is known."""

from __future__ import annotations

from pathlib import Path

EBD_52 = (
    "GLOBAL UNIQUE IDENTIFIER|LAST EDITED DATE|TAXONOMIC ORDER|CATEGORY|TAXON CONCEPT ID|COMMON NAME|SCIENTIFIC NAME|"
    "SUBSPECIES COMMON NAME|SUBSPECIES SCIENTIFIC NAME|EXOTIC CODE|OBSERVATION COUNT|BREEDING CODE|BREEDING CATEGORY|"
    "BEHAVIOR CODE|AGE/SEX|COUNTRY|COUNTRY CODE|STATE|STATE CODE|COUNTY|COUNTY CODE|IBA CODE|BCR CODE|USFWS CODE|"
    "ATLAS BLOCK|LOCALITY|LOCALITY ID|LOCALITY TYPE|LATITUDE|LONGITUDE|OBSERVATION DATE|TIME OBSERVATIONS STARTED|"
    "OBSERVER ID|OBSERVER ORCID ID|SAMPLING EVENT IDENTIFIER|OBSERVATION TYPE|PROTOCOL NAME|PROTOCOL CODE|"
    "PROJECT NAMES|PROJECT IDENTIFIERS|DURATION MINUTES|EFFORT DISTANCE KM|EFFORT AREA HA|NUMBER OBSERVERS|"
    "ALL SPECIES REPORTED|GROUP IDENTIFIER|HAS MEDIA|APPROVED|REVIEWED|REASON|CHECKLIST COMMENTS|SPECIES COMMENTS"
).split("|")
_OLD = {
    "OBSERVATION TYPE": "PROTOCOL TYPE",
    "PROJECT NAMES": "PROJECT CODE",
    "CHECKLIST COMMENTS": "TRIP COMMENTS",
}
_NEW_2025 = ("OBSERVER ORCID ID", "PROTOCOL NAME", "PROJECT IDENTIFIERS")
EBD_49 = [_OLD.get(c, c) for c in EBD_52 if c not in _NEW_2025]
EBD_46 = [
    {"BREEDING CODE": "BREEDING BIRD ATLAS CODE", "BREEDING CATEGORY": "BREEDING BIRD ATLAS CATEGORY"}.get(
        c, c
    )
    for c in EBD_49
    if c not in ("TAXON CONCEPT ID", "EXOTIC CODE", "BEHAVIOR CODE")
]
_SPECIES_ONLY = set(EBD_52[2:15]) | {
    "GLOBAL UNIQUE IDENTIFIER",
    "HAS MEDIA",
    "APPROVED",
    "REVIEWED",
    "REASON",
}
SED_33 = [c for c in EBD_52 if c not in _SPECIES_ONLY and c != "SPECIES COMMENTS"]
SED_30 = [_OLD.get(c, c) for c in SED_33 if c not in _NEW_2025]
LAYOUTS = {46: (EBD_46, SED_30), 49: (EBD_49, SED_30), 52: (EBD_52, SED_33)}
_TO_NEW = {v: k for k, v in _OLD.items()}

THRUSH = ("Hylocichla mustelina", "Wood Thrush")
WARBLER = ("Setophaga coronata", "Yellow-rumped Warbler")


def visit(event: str, **more: str) -> dict[str, str]:
    """A complete travelling checklist, with some fields changed."""
    return {
        "SAMPLING EVENT IDENTIFIER": event,
        "LAST EDITED DATE": "2024-06-01 10:00:00.25",
        "COUNTRY": "United States",
        "COUNTRY CODE": "US",
        "STATE": "Washington",
        "STATE CODE": "US-WA",
        "COUNTY": "King",
        "COUNTY CODE": "US-WA-033",
        "LOCALITY": "Long Meadow",
        "LOCALITY ID": "L100",
        "LOCALITY TYPE": "H",
        "LATITUDE": "47.6500",
        "LONGITUDE": "-122.3000",
        "OBSERVATION DATE": "2020-05-14",
        "TIME OBSERVATIONS STARTED": "06:30:00",
        "OBSERVER ID": "obsr1",
        "OBSERVATION TYPE": "Traveling",
        "PROTOCOL NAME": "Traveling",
        "PROTOCOL CODE": "P22",
        "DURATION MINUTES": "60",
        "EFFORT DISTANCE KM": "2.5",
        "NUMBER OBSERVERS": "2",
        "ALL SPECIES REPORTED": "1",
        **more,
    }


_counter = [0]


def seen(
    visit_row: dict[str, str], count: str, species: tuple[str, str] = THRUSH, **more: str
) -> dict[str, str]:
    """A record of a species on a checklist."""
    _counter[0] += 1
    return {
        **visit_row,
        "GLOBAL UNIQUE IDENTIFIER": f"URN:CornellLabOfOrnithology:EBIRD:OBS{1000 + _counter[0]}",
        "CATEGORY": "species",
        "SCIENTIFIC NAME": species[0],
        "COMMON NAME": species[1],
        "OBSERVATION COUNT": count,
        "APPROVED": "1",
        "REVIEWED": "0",
        **more,
    }


def text(
    rows: list[dict[str, str]], columns: list[str], *, trailing_tab: bool = False, end: str = "\n"
) -> bytes:
    """Rows as an eBird text file."""
    tail = "\t" if trailing_tab else ""
    lines = ["\t".join(columns) + tail]
    lines += ["\t".join(r.get(c, r.get(_TO_NEW.get(c, ""), "")) for c in columns) + tail for r in rows]
    return (end.join(lines) + end).encode()


def write_pair(
    folder: Path,
    records: list[dict[str, str]],
    visits: list[dict[str, str]],
    *,
    layout: int = 52,
    trailing_tab: bool = False,
    end: str = "\n",
) -> tuple[Path, Path]:
    """Write an EBD and its sampling file; return their paths."""
    ebd_columns, sed_columns = LAYOUTS[layout]
    folder.mkdir(parents=True, exist_ok=True)
    ebd, sed = folder / "ebd_test.txt", folder / "ebd_test_sampling.txt"
    ebd.write_bytes(text(records, ebd_columns, trailing_tab=trailing_tab, end=end))
    sed.write_bytes(text(visits, sed_columns, trailing_tab=trailing_tab, end=end))
    return ebd, sed
