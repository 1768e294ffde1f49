"""The lines of eBird's text files: their columns, by generation of the format, and a block of checklists in them.

``52`` is the layout since March 2025, ``49`` that of 2021-2024, ``46`` the one up to 2020; their sampling files have 33,
30 and 30 columns. A row is joined by polars from a few ready pieces that already hold their tabs (taxon, place,
checklist). No Python loop touches a row: a place, a date, a time, an observer or a taxon is turned into text once, in a
table, and rows gather from the tables. Fields are never quoted, as in eBird's own files, where ``"`` is data.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import IO

import numpy as np
import polars as pl

from fedmiss.arrays import F64, I64, Bool
from fedmiss.rng import rng_for
from fedmiss.simulate.checklists import PROTOCOLS, Block, runs
from fedmiss.simulate.species import NOT_SPECIES
from fedmiss.simulate.world import World

_CODES = ("P22", "P21", "P20", "P62", "P23")  # of PROTOCOLS
_CHECKLIST_COMMENTS = (
    'Cool and clear, "quiet" morning', "Überzogen, später Regen; Wind SW 3",
    "Con Íñigo y Zoë, mañana despejada", 'The "old pond" is dry again', "Début à l'étang, puis forêt",
    "wind 10-15 mph, 3°C", 'Birded with a "lister"', "鳥見、晴れ",
)  # fmt: skip
_SPECIES_COMMENTS = (
    'flushed from the "island"', "♂ and ♀, seen well", "heard only", 'one banded, code "A7"',
    "estimación, grupo grande", "juvénile près du nid", "flyover", "continuing bird",
)  # fmt: skip
_BREEDING = (("", ""), ("S ", "C2"), ("NY", "C4"), ("FL", "C4"), ("F ", "C1"))
_PROJECTS = ("EBIRD", "EBIRD_XS_ATLAS")
_COUNTIES = (
    "Ardèno", "Brindle", "Calder", "Dunmoor", "Eskdale", "Fjällby", "Garrick", "Hollin", "Ilvesmäki",
    "Jarrow", "Kestrel", "Llanfair", "Marisco", "Norða", "Oxley", "Peñalta", "Quillan", "Rushmere", "Søndal",
    "Tarn",
)  # fmt: skip
_KINDS_OF_PLACE = ("Marsh", "Lake", "Woods", "Park", 'Field "North"', "Étang", "River Mouth", "Home")


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


_TAXON = (
    "TAXONOMIC ORDER", "CATEGORY", "TAXON CONCEPT ID", "COMMON NAME", "SCIENTIFIC NAME",
    "SUBSPECIES COMMON NAME", "SUBSPECIES SCIENTIFIC NAME", "EXOTIC CODE",
)  # fmt: skip
_TAXON_46 = tuple(column for column in _TAXON if column not in ("TAXON CONCEPT ID", "EXOTIC CODE"))
_WHO = ("OBSERVATION DATE", "TIME OBSERVATIONS STARTED", "OBSERVER ID", "SAMPLING EVENT IDENTIFIER")
_WHO_52 = (*_WHO[:3], "OBSERVER ORCID ID", _WHO[3])
_PROTOCOL = ("PROTOCOL TYPE", "PROTOCOL CODE", "PROJECT CODE")
_PROTOCOL_52 = ("OBSERVATION TYPE", "PROTOCOL NAME", "PROTOCOL CODE", "PROJECT NAMES", "PROJECT IDENTIFIERS")
_BREEDING_46 = ("BREEDING BIRD ATLAS CODE", "BREEDING BIRD ATLAS CATEGORY", "AGE/SEX")
_BREEDING_NAMES = ("BREEDING CODE", "BREEDING CATEGORY", "BEHAVIOR CODE", "AGE/SEX")

LAYOUTS = {
    "52": Layout("52", _TAXON, _BREEDING_NAMES, _WHO_52, _PROTOCOL_52, "CHECKLIST COMMENTS"),
    "49": Layout("49", _TAXON, _BREEDING_NAMES, _WHO, _PROTOCOL, "TRIP COMMENTS"),
    "46": Layout("46", _TAXON_46, _BREEDING_46, _WHO, _PROTOCOL, "TRIP COMMENTS"),
}


class Writer:
    """Turns blocks into lines of one layout.

    Parameters
    ----------
    blank_last : end every line with a tab, which some of eBird's files have: an unnamed last column
    """

    def __init__(self, world: World, layout: Layout, *, blank_last: bool) -> None:
        self.world, self.layout = world, layout
        self.end = "\t" if blank_last else ""
        self.modern = layout.name == "52"
        self.places = _places(world)
        self.observers = pl.Series(world.observer_number).cast(pl.String)
        self.taxa = self._taxa()
        self.days = pl.Series(
            np.arange(world.first_day[0], world.first_day[-1] + 800).astype("datetime64[D]")
        ).dt.strftime("%Y-%m-%d")
        self.clock = pl.Series([f"{minute // 60:02d}:{minute % 60:02d}:00" for minute in range(1440)])
        self.edited = _edited(world.seed)
        if self.modern:
            kind, projects = "{0}\t{0}\t{1}\t{2}", ("\t", "Simland Atlas|Marsh Count\tPRJ101|PRJ202")
        else:
            kind, projects = "{0}\t{1}\t{2}", _PROJECTS
        self.protocols = pl.Series(
            [
                kind.format(protocol, code, project)
                for protocol, code in zip(PROTOCOLS, _CODES, strict=True)
                for project in projects
            ]
        )
        self.checklist_comments = pl.Series(["", *_CHECKLIST_COMMENTS])
        self.species_comments = pl.Series(["", *_SPECIES_COMMENTS])
        # code, category, (behaviour,) age/sex
        self.breeding = pl.Series(
            ["\t".join((first, last, *([""] * (len(layout.breeding) - 2)))) for first, last in _BREEDING]
        )
        self.media = pl.Series([f"{media}\t1\t{reviewed}\t" for media in (0, 1) for reviewed in (0, 1)])

    def headers(self) -> tuple[str, str]:
        """Return the header lines of the observation and the sampling file."""
        header = ("\t".join(self.layout.observation_header), "\t".join(self.layout.sampling_header))
        return header[0] + self.end + "\n", header[1] + self.end + "\n"

    def write(self, block: Block, number: int, observations: IO[bytes], sampling: IO[bytes]) -> None:
        """Append one block to both files."""
        n_outings, n_counts = block.outing.size, block.count.size

        def draw(column: str, size: int) -> F64:
            # One generator per column, so that a block cut short has the same text up to the cut.
            return rng_for(self.world.seed, "ebird", "text", number, column).random(size)

        day = block.day - self.world.first_day[0]
        edited = np.minimum(day + (700 * draw("edit day", n_outings)).astype(np.int64), self.days.len() - 1)
        stamp = (self.edited.len() * draw("edit time", n_outings)).astype(np.int64)
        project = draw("project", n_outings) < 0.05
        head = pl.DataFrame(
            {
                "edited": self.days.gather(edited) + " " + self.edited.gather(stamp),
                "place": self.places.gather(block.site),
                "date": self.days.gather(day),
                "start": _blank(self.clock.gather(np.maximum(block.start, 0)), block.start < 0),
                "observer": self.observers.gather(block.observer),
                "number": block.number,
                "protocol": self.protocols.gather(block.protocol * 2 + project),
                "duration": _number(block.duration),
                "distance": _number(block.distance, 1000),
                "area": _number(block.area, 10),
                "people": _number(block.n_observers),
                "complete": block.complete.astype(np.int8),
                "group": _blank(pl.Series(7_000_000 + block.outing).cast(pl.String), ~block.shared),
                "comments": self.checklist_comments.gather(
                    _which(draw("checklist comment", n_outings), 0.06, len(_CHECKLIST_COMMENTS))
                ),
            }
        )
        observer = [pl.lit("obsr") + pl.col("observer"), *([pl.lit("")] if self.modern else [])]
        body = pl.concat_str(
            "place", "date", "start", *observer, pl.lit("S") + pl.col("number").cast(pl.String), "protocol",
            "duration", "distance", "area", "people", "complete",
            pl.when(pl.col("group") == "").then(pl.lit("")).otherwise(pl.lit("G") + pl.col("group")),
            separator="\t",
        )  # fmt: skip
        head = head.select("edited", body.alias("body"), "comments")
        _lines(head, sampling, self.end)
        at = pl.Series(block.checklist)
        slot = np.arange(n_counts) - np.repeat(*runs(block.checklist))
        # Unique over the file: a checklist has fewer than 64 records.
        guid = block.number[block.checklist] * 64 + slot
        rows = pl.DataFrame(
            {
                "guid": pl.select(
                    pl.lit("URN:CornellLabOfOrnithology:EBIRD:OBS") + pl.Series(guid).cast(pl.String)
                ).to_series(),
                "edited": head["edited"].gather(at),
                "taxon": self.taxa.gather(block.taxon),
                "count": _blank(pl.Series(block.count).cast(pl.String), block.count < 0, "X"),
                "breeding": self.breeding.gather(
                    _which(draw("breeding", n_counts), 0.03, len(_BREEDING) - 1)
                ),
                "body": head["body"].gather(at),
                "media": self.media.gather(_which(draw("media", n_counts), 0.2, 3)),
                "checklist_comments": head["comments"].gather(at),
                "comments": self.species_comments.gather(
                    _which(draw("species comment", n_counts), 0.04, len(_SPECIES_COMMENTS))
                ),
            }
        )
        _lines(rows, observations, self.end)

    def _taxa(self) -> pl.Series:
        """Return the text of every taxon: the species, each with its forms, then what is no species."""
        rows = []
        for order, bird in enumerate(self.world.species):
            place = 300 + 917 * order
            rows.append((place, "species", bird.common, bird.scientific, "", "", bird.exotic))
            names = (bird.common, bird.scientific)
            rows += [
                (place + 1 + at, form.category, *names, form.common, form.scientific, bird.exotic)
                for at, form in enumerate(bird.forms)
            ]
        rows += [
            (200 + at, taxon.category, taxon.common, taxon.scientific, "", "", "")
            for at, taxon in enumerate(NOT_SPECIES)
        ]
        out = []
        for order, category, common, scientific, form, exact, exotic in rows:
            concept = f"avibase-{order * 2_654_435_761 % 2**32:08X}"
            filed = (common, scientific, form, exact)
            old = self.layout.name == "46"
            out.append("\t".join((str(order), category, *(filed if old else (concept, *filed, exotic)))))
        return pl.Series(out)


def _edited(seed: int) -> pl.Series:
    """Return times of day with zero to six decimals, as eBird's edit stamps have them."""
    rng, n = rng_for(seed, "ebird", "edited"), 4096
    second = rng.integers(0, 86_400, n).tolist()
    fraction = (rng.integers(0, 1_000_000, n) // 10 ** rng.integers(0, 7, n)).tolist()
    return pl.Series(
        [
            f"{one // 3600:02d}:{one // 60 % 60:02d}:{one % 60:02d}" + (f".{part}" if part else "")
            for one, part in zip(second, fraction, strict=True)
        ]
    )


def _places(world: World) -> pl.Series:
    """Return the fifteen place columns of every site, joined."""
    number = np.arange(world.n_sites)
    counties = pl.Series([f"{name}\tXS-01-{at + 1:03d}" for at, name in enumerate(_COUNTIES)])
    kinds = pl.Series(_KINDS_OF_PLACE)
    frame = pl.DataFrame(
        {
            "county": counties.gather(world.region),
            "kind": kinds.gather((number * 31 + 5) % len(_KINDS_OF_PLACE)),
            "number": number,
            "type": pl.Series(["H", "P", "P"]).gather(number % 3),
            "latitude": world.latitude,
            "longitude": world.longitude,
        }
    )
    return frame.select(
        pl.concat_str(
            pl.lit("Simland\tXS\tFirst State\tXS-01"), "county", pl.lit("\t9\t\t"),
            pl.concat_str("kind", pl.col("number").cast(pl.String), separator=" "),
            pl.lit("L") + (pl.col("number") + 100_000).cast(pl.String), "type",
            pl.col("latitude").round(7).cast(pl.String), pl.col("longitude").round(7).cast(pl.String),
            separator="\t",
        )
    ).to_series()  # fmt: skip


def _blank(text: pl.Series, where: Bool, other: str = "") -> pl.Series:
    return text.set(pl.Series(where), other)


def _number(value: I64, unit: int = 1) -> pl.Series:
    scaled = pl.Series(value if unit == 1 else value / unit).cast(pl.String)
    return _blank(scaled, value < 0)


def _which(draw: F64, share: float, choices: int) -> I64:
    """Return 0 (blank) mostly, and one of 1..choices for a ``share`` of the uniforms."""
    return np.where(draw < share, 1 + (draw / share * choices).astype(np.int64), 0)


def _lines(frame: pl.DataFrame, out: IO[bytes], end: str) -> None:
    last = frame.columns[-1]
    frame = frame.with_columns(pl.col(last) + pl.lit(end))
    # By way of memory: polars' own error for a full disk carries no error number.
    text = io.BytesIO()
    frame.write_csv(text, include_header=False, separator="\t", quote_style="never", line_terminator="\n")
    out.write(text.getbuffer())
