"""Write an EBD file and its sampling file in eBird's exact format, with the truth beside them.

Outings are drawn and written block by block, so memory does not grow with the number of records (beyond one
number per site and observer). The same settings give the same bytes on every machine.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

from fedmiss.errors import ConfigError
from fedmiss.files import atomic_folder, hash_file, write_manifest
from fedmiss.progress import progress
from fedmiss.settings import kinds_checked
from fedmiss.simulate.checklists import (
    BLOCK,
    INCOMPLETE_LISTS,
    MAX_OUTINGS,
    Block,
    count_kept,
    cut_block,
    draw_block,
    lowest_number,
)
from fedmiss.simulate.marginals import Marginals
from fedmiss.simulate.species import SPECIES
from fedmiss.simulate.text import LAYOUTS, Writer
from fedmiss.simulate.truth import TERMS, TruthWriter
from fedmiss.simulate.world import COPIES_PER_CHECKLIST, INCOMPLETE_KEEP, World, make_world

MIN_RECORDS, MAX_RECORDS = 1_000, 50_000_000


@kinds_checked
@dataclass(frozen=True, slots=True)
class EbirdSettings:
    """What to simulate.

    Attributes
    ----------
    records : rows of the observation file; the file ends with the outing that reaches the number
    species : number of species; the first follows a duck on 8 % and the second an eagle on 3 % of checklists
    start, end : first and last month, YYYY-MM
    sites, observers : sizes of the country; 0 chooses them so that visits per site and per observer look real
    columns : generation of the format: 52, 49 or 46 columns
    blank_last : end every line with a tab, an unnamed last column
    compress : write .txt.gz
    seed : int

    Examples
    --------
    >>> import fedmiss
    >>> fedmiss.simulate.EbirdSettings(records=1000, start="2015-01", end="2018-12").records
    1000
    """

    records: int = 200_000
    species: int = 16
    start: str = "2010-01"
    end: str = "2020-12"
    sites: int = 0
    observers: int = 0
    columns: str = "52"
    blank_last: bool = False
    compress: bool = False
    seed: int = 0


@kinds_checked
def simulate_ebird(
    out: str | Path, settings: EbirdSettings | None = None, *, overwrite: bool = False
) -> Path:
    """Simulate an EBD file, its sampling file and the truth.

    The folder holds ``ebd_sim.txt`` and ``ebd_sim_sampling.txt`` (tab separated, never quoted, line feeds),
    ``truth/`` (see :mod:`fedmiss.simulate.truth`) and a manifest whose results compare the file's marginals
    with those of real extracts.

    Raises
    ------
    ConfigError   settings out of range, or more checklists needed than there are numbers for

    Examples
    --------
    >>> import fedmiss
    >>> folder = fedmiss.simulate.simulate_ebird("sim", fedmiss.simulate.EbirdSettings(records=1000, species=3))
    >>> (folder / "ebd_sim.txt").exists()
    True
    """
    settings = settings or EbirdSettings()
    if not MIN_RECORDS <= settings.records <= MAX_RECORDS:
        raise ConfigError(f"--records is {settings.records:,} (must be {MIN_RECORDS:,} to {MAX_RECORDS:,}).")
    if settings.seed < 0:
        raise ConfigError(f"--seed is {settings.seed} (must be 0 or more).")
    if settings.columns not in LAYOUTS:
        known = ", ".join(LAYOUTS)
        raise ConfigError(f"there is no layout {settings.columns!r}; choose one of {known} (columns).")
    checklists = settings.records / records_per_checklist(settings.species)
    outings = checklists * (1 - COPIES_PER_CHECKLIST)
    if outings > 0.95 * MAX_OUTINGS:
        raise ConfigError(
            f"{settings.records:,} records of {settings.species} species need about {outings:,.0f} "
            f"outings (limit {MAX_OUTINGS:,}); ask for more --species or fewer --records."
        )
    world = make_world(
        settings.seed,
        n_species=settings.species,
        checklists=checklists,
        start=settings.start,
        end=settings.end,
        sites=settings.sites or None,
        observers=settings.observers or None,
    )
    ending = ".txt.gz" if settings.compress else ".txt"
    names = (f"ebd_sim{ending}", f"ebd_sim_sampling{ending}")
    writer = Writer(world, LAYOUTS[settings.columns], blank_last=settings.blank_last)
    tally = Marginals(world)
    with atomic_folder(out, "simulation", overwrite=overwrite) as tmp:
        with ExitStack() as stack:
            files = [stack.enter_context(_open(tmp / name)) for name in names]
            truth = TruthWriter(tmp / "truth", world, stack)
            for file, header in zip(files, writer.headers(), strict=True):
                file.write(header.encode())
            _write_blocks(settings, world, writer, files, truth, tally)
        truth.write_parameters()
        write_manifest(
            tmp,
            "simulation",
            settings=asdict(settings),
            inputs={},
            results={
                "files": {name: hash_file(tmp / name) for name in names},
                "records": tally.records,
                "checklists": tally.checklists,
                "outings": truth.outings,
                "sites": int(truth.visited.sum()),
                "observers": int(tally.per_observer.astype(bool).sum()),
                "species": [bird.scientific for bird in world.species],
                "marginals": tally.table(),
            },
            terms=TERMS,
        )
    return Path(out)


def records_per_checklist(n_species: int) -> float:
    """Return how many rows of the observation file a checklist has on average, from the species' table."""
    if not 1 <= n_species <= len(SPECIES):
        raise ConfigError(f"--species is {n_species} (must be 1 to {len(SPECIES)}).")
    met = sum(bird.detection * (1.1 if bird.forms else 1.0) for bird in SPECIES[:n_species])
    # Complete lists report what they meet, others the share that they keep; 0.03 are birds of no species.
    return met * (1 - INCOMPLETE_LISTS * (1 - INCOMPLETE_KEEP)) + 0.03


def _write_blocks(
    settings: EbirdSettings,
    world: World,
    writer: Writer,
    files: list[IO[bytes]],
    truth: TruthWriter,
    tally: Marginals,
) -> None:
    number = 0
    with progress("simulating records", settings.records) as show:
        while tally.records < settings.records:
            if (number + 1) * BLOCK > MAX_OUTINGS:
                raise ConfigError(
                    f"{MAX_OUTINGS:,} outings gave {tally.records:,} of {settings.records:,} records; "
                    "ask for more --species or fewer --records."
                )
            # A block is drawn whole from its own stream and then cut: the
            # first records of a longer file are those of a shorter one.
            block: Block = cut_block(draw_block(world, number), settings.records - tally.records)
            writer.write(block, number, *files)
            kept = lowest_number(block.outing, block.number)
            truth.write(block, kept, count_kept(block))
            tally.add(block)
            number += 1
            show(min(tally.records, settings.records))


@contextmanager
def _open(path: Path) -> Iterator[Any]:
    with open(path, "wb") as raw:
        if path.suffix != ".gz":
            yield raw
            return
        # Without name and time in its header, a compressed file has the same bytes every time too.
        with gzip.GzipFile("", "wb", compresslevel=1, fileobj=raw, mtime=0) as packed:
            yield packed
