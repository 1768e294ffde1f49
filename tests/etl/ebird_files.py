"""Make small files by code: eBird's (every row is a dict, every generation of headers is known) and all other kinds."""

import random
from pathlib import Path

import numpy as np

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
    "GLOBAL UNIQUE IDENTIFIER", "HAS MEDIA", "APPROVED", "REVIEWED", "REASON",
}  # fmt: skip
SED_33 = [c for c in EBD_52 if c not in _SPECIES_ONLY and c != "SPECIES COMMENTS"]
SED_30 = [_OLD.get(c, c) for c in SED_33 if c not in _NEW_2025]
LAYOUTS = {46: (EBD_46, SED_30), 49: (EBD_49, SED_30), 52: (EBD_52, SED_33)}
_TO_NEW = {v: k for k, v in _OLD.items()}

THRUSH = ("Hylocichla mustelina", "Wood Thrush")
WARBLER = ("Setophaga coronata", "Yellow-rumped Warbler")


def visit(event: str, **more: str) -> dict[str, str]:
    """A complete travelling checklist, with some fields changed."""
    return {
        "SAMPLING EVENT IDENTIFIER": event, "LAST EDITED DATE": "2024-06-01 10:00:00.25",
        "COUNTRY": "United States", "COUNTRY CODE": "US", "STATE": "Washington", "STATE CODE": "US-WA",
        "COUNTY": "King", "COUNTY CODE": "US-WA-033", "LOCALITY": "Long Meadow", "LOCALITY ID": "L100",
        "LOCALITY TYPE": "H", "LATITUDE": "47.6500", "LONGITUDE": "-122.3000",
        "OBSERVATION DATE": "2020-05-14", "TIME OBSERVATIONS STARTED": "06:30:00", "OBSERVER ID": "obsr1",
        "OBSERVATION TYPE": "Traveling", "PROTOCOL NAME": "Traveling", "PROTOCOL CODE": "P22",
        "DURATION MINUTES": "60", "EFFORT DISTANCE KM": "2.5", "NUMBER OBSERVERS": "2",
        "ALL SPECIES REPORTED": "1", **more,
    }  # fmt: skip


_counter = [0]


def seen(
    visit_row: dict[str, str], count: str, species: tuple[str, str] = THRUSH, **more: str
) -> dict[str, str]:
    """A record of a species on a checklist."""
    _counter[0] += 1
    return {
        **visit_row, "GLOBAL UNIQUE IDENTIFIER": f"URN:CornellLabOfOrnithology:EBIRD:OBS{1000 + _counter[0]}",
        "CATEGORY": "species", "SCIENTIFIC NAME": species[0], "COMMON NAME": species[1],
        "OBSERVATION COUNT": count, "APPROVED": "1", "REVIEWED": "0", **more,
    }  # fmt: skip


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
    name: str = "ebd_test",
) -> tuple[Path, Path]:
    """Write an EBD and its sampling file; return their paths."""
    ebd_columns, sed_columns = LAYOUTS[layout]
    folder.mkdir(parents=True, exist_ok=True)
    ebd, sed = folder / f"{name}.txt", folder / f"{name}_sampling.txt"
    ebd.write_bytes(text(records, ebd_columns, trailing_tab=trailing_tab, end=end))
    sed.write_bytes(text(visits, sed_columns, trailing_tab=trailing_tab, end=end))
    return ebd, sed


BIRDS = [("Hylocichla mustelina", "Wood Thrush"), ("Turdus merula", "Blackbird"), ("Larus sp.", "gull sp.")]


def random_rows(seed: int, n_visits: int = 60, n_records: int = 150):
    """Checklists with shared copies and gaps, and records on them."""
    rng = random.Random(seed)
    visits = [
        visit(
            f"S{100 + i}",
            **{
                "OBSERVER ID": f"obsr{rng.randrange(9)}", "LOCALITY ID": f"L{rng.randrange(5)}",
                "OBSERVATION DATE": f"{rng.randrange(2008, 2024)}-{rng.randrange(1, 13):02d}-10",
                "ALL SPECIES REPORTED": rng.choice("01"),
                "GROUP IDENTIFIER": rng.choice(["", "", f"G{rng.randrange(8)}"]),
                "CHECKLIST COMMENTS": rng.choice(["", 'fog "thick"', "árbol"]),
                "DURATION MINUTES": rng.choice(["", "10", "500", "bad"]),
                "EFFORT DISTANCE KM": rng.choice(["", "1", "20"]), "LATITUDE": rng.choice(["47.1", ""]),
            },
        )
        for i in range(n_visits)
    ]  # fmt: skip
    records = [
        seen(rng.choice(visits), rng.choice(["1", "5", "X", "0"]), rng.choice(BIRDS), CATEGORY="issf")
        for _ in range(n_records)
    ]
    return records, visits


NEW = (
    "Submission ID,Common Name,Scientific Name,Taxonomic Order,Count,State/Province,County,Location ID,Location,"
    "Latitude,Longitude,Date,Time,Protocol,Duration (Min),All Obs Reported,Distance Traveled (km),Area Covered (ha),"
    "Number of Observers,Breeding Code,Observation Details,Checklist Comments,ML Catalog Numbers"
)
OLD = (
    NEW.replace("Location ID,", "")
    .replace(",ML Catalog Numbers", "")
    .replace("Observation Details", "Species Comments")
)


def new_row(sub="S1", name="Wood Thrush", sci="Hylocichla mustelina", count="2", time="06:30 AM", **more):
    base = {
        "place": "L9,Old Mill,41.5,-72.25", "date": "2021-05-02", "protocol": "eBird - Traveling Count",
        "tail": "45,1,.659,,2",
    }  # fmt: skip
    m = base | more
    return f"{sub},{name},{sci},27000,{count},US-CT,Tolland,{m['place']},{m['date']},{time},{m['protocol']},{m['tail']}"


def csv(folder, name, rows, header=NEW):
    path = folder / name
    path.write_text("\n".join([header, *rows]) + "\n", encoding="utf-8")
    return path


GBIF = (
    "gbifID\tdatasetKey\toccurrenceID\tspecies\ttaxonRank\tscientificName\tcountryCode\tlocality\tstateProvince\t"
    "occurrenceStatus\tindividualCount\tdecimalLatitude\tdecimalLongitude\teventDate\tday\tmonth\tyear\t"
    "recordedBy\tlicense"
)


def gbif_row(n=1, species="Spheniscus mendiculus", status="PRESENT", count="7", day="2007-02-26", **more):
    m = {"lat": "-0.264551", "lon": "-91.445946", "who": "obsr5"} | more
    return (
        f'{n}\tk\tURN:{n}\t{species}\tSPECIES\t{species} Sundevall, 1871\tEC\tIsla "x\tGalápagos\t{status}\t{count}\t'
        f"{m['lat']}\t{m['lon']}\t{day}\t26\t2\t2007\t{m['who']}\tCC_BY_4_0"
    )


PLAIN = "who,plot,day,sp,n,minutes,all_species_reported"
MAP = {"observer": "who", "site": "plot", "date": "day", "count": "n", "species": "sp"}


def small_file(folder: Path, kind: str) -> tuple[Path, list[Path]]:
    """Write a few rows of a kind of file; return its path, and that of the sampling file that goes with it."""
    if kind == "ebird":
        path, sampling = write_pair(folder, *random_rows(9, 12, 20))
        return path, [sampling]
    name, rows, header = {
        "myebird": ("ann.csv", [new_row(f"S{i}") for i in range(8)], NEW),
        "gbif": ("0001.csv", [gbif_row(i) for i in range(8)], GBIF),
        "plain": ("p.csv", [f"a,p{i},2020-05-01,greg,3,30,1" for i in range(8)], PLAIN),
    }[kind]
    return csv(folder, name, rows, header), []


def fields_of(words: list[str]) -> tuple:
    """Words one behind the other, as the loops want them."""
    buf = np.frombuffer("".join(words).encode() or b" ", np.uint8)
    length = np.array([len(w.encode()) for w in words], np.int32)
    return buf, np.cumsum(length, dtype=np.int32) - length, length
