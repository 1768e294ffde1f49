"""From records to one row per checklist and species: duplicates, shared copies, subspecies, exceptions.

Records of the species asked for go through in portions that never split a checklist and its copies, so memory
does not grow with their number. The rules of a portion are written in polars on integers: a checklist is its row,
a species its place in the list of names.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from fedmiss.arrays import I32, I64
from fedmiss.etl.codes import COUNT_BAD
from fedmiss.etl.columns import KEEP
from fedmiss.etl.projection import Cache, Projection, latest_edits, row_groups
from fedmiss.etl.rows import joined_texts
from fedmiss.etl.select import FILTERED, KEPT_ZERO_OK, NO_SITE, Events, event_names, find_sorted
from fedmiss.etl.species import ESCAPEE, UNVETTED, SpeciesChoice
from fedmiss.files import scratch_folder
from fedmiss.tables import table_writer

PORTION = 150_000
SAMPLE = 20_000  # checklists that are looked up among all records
# one record on its way through a file on disk
_SPILLED = [("species", "i4"), ("flag", "i1"), ("row", "i4"), ("event", "i8"), ("count", "i8")]
_EDITS = [("guid", "i8"), ("edited", "i8")]  # needed only where an identifier is repeated
_TEXTS = [("kept", "i4")]  # only where columns are kept on request; -1 is no text
REASONS = [None, "X", "unreadable", "exotic", "unvetted"]
_X, _UNREADABLE, _EXOTIC, _UNVETTED = 1, 2, 3, 4
KEY = ("row", "species")


@dataclass(slots=True)
class RecordCounts:
    """What became of the records.

    ``steps`` are rows by step, ``fates`` rows by the fate of their checklist. ``of_species`` (4, species): records, those
    not counted, explicit zeros, and what takes the place of a zero (records, and visits held back).
    """

    steps: Counter[str]
    of_species: I64
    orphans: set[int] = field(default_factory=set)
    fates: Counter[int] = field(default_factory=Counter)


def write_records(
    events: Events, sources: list[Projection], choice: SpeciesChoice, path: Path, store: Cache
) -> RecordCounts:
    """Write one row per kept checklist and species; ``events`` must have been through ``write_checklists``.

    ``store`` keeps what has been found out about several files of records.
    """
    steps = Counter[str]()
    counts = RecordCounts(steps, np.zeros((4, len(choice.names)), np.int64))
    for i, source in enumerate(sources):
        rows = source.read("taxa", ["rows"])["rows"].to_numpy()
        steps["above"] += int(rows[choice.above[i]].sum())
        steps["other species"] += int(rows[~choice.above[i] & (choice.code[i] < 0)].sum())

    edits = store.make(lambda cache: latest_edits(sources, cache))
    texts = _texts(sources)
    record = np.dtype(_SPILLED + _EDITS * bool(edits.height) + _TEXTS * bool(texts.width))
    zeros = bool(sources[0].meta.get("explicit_zeros"))

    def chunks() -> Iterator[pl.DataFrame]:
        for part in _portions(events, sources, choice, record, path.parent):
            found = _resolve(part, events, counts, edits, texts, zeros=zeros)
            yield _table(found, events, choice, texts.columns)

    names = [column.removeprefix(KEEP) for column in texts.columns]
    unique = ("checklist_id", "checklist_row", *names)
    steps["written"] = table_writer(path, "records", chunks(), unique=unique, texts=names)
    lost = {FILTERED + i: f"left out: {name}" for i, name in enumerate(events.steps)}
    for fate, why in (lost | {NO_SITE: "without coordinates"}).items():
        if counts.fates[fate]:
            steps[f"on checklists {why}"] = counts.fates[fate]
    return counts


def share_without_records(events: Events, sources: list[Projection]) -> float:
    """Return which share of the checklists that may give zeros has no record of any species.

    Of a large file every k-th checklist by its id stands for all, so that this takes a pass over one column.
    """
    ids = events.kept_event[np.flatnonzero(events.fate == KEPT_ZERO_OK)]
    every = max(1, ids.size // SAMPLE)
    ids = np.sort(ids[ids % every == 0])
    silent = np.ones(ids.size, dtype=np.bool_)
    for source in sources:
        for batch in row_groups(source.folder / "records.parquet", ["event"]):
            at = find_sorted(ids, batch["event"][batch["event"] % every == 0])
            silent[at[at >= 0]] = False
    return float(silent.mean()) if ids.size else 0.0


def _texts(sources: list[Projection]) -> pl.DataFrame:
    """Return the texts of the columns that are kept on request; the codes of each source begin behind the last one's."""
    parts = [source.read("kept") for source in sources if source.has("kept")]
    return pl.concat(parts) if parts else pl.DataFrame()


def _table(found: pl.DataFrame, events: Events, choice: SpeciesChoice, texts: Sequence[str]) -> pl.DataFrame:
    row, reason = found["row"].to_numpy(), pl.col("reason")
    names = pl.DataFrame(
        {"species": choice.names, "common_name": choice.common},
        schema=dict.fromkeys(("species", "common_name"), pl.String),
    )
    return found.select(
        *(pl.col(text).alias(text.removeprefix(KEEP)) for text in texts),
        checklist_id=_ids_of_rows(events, row),
        checklist_row=events.written_rows(row),
        species=names["species"].gather(found["species"]),
        common_name=names["common_name"].gather(found["species"]),
        count=pl.when(reason == 0).then("count"),
        detected="detected",
        reason=pl.Series(REASONS).gather(found["reason"]),
    )


def _ids_of_rows(events: Events, rows: I32) -> pl.Series:
    which = np.searchsorted(np.array(events.starts[1:]), rows, side="right")
    out = pl.Series([None], dtype=pl.String).new_from_index(0, rows.size)
    for i, source in enumerate(events.sources):
        at = np.flatnonzero(which == i)
        if at.size == rows.size:
            return event_names(source, events.kept_event[rows])
        if at.size:
            out = out.scatter(at, event_names(source, events.kept_event[rows[at]]))
    return out


def _portions(
    events: Events, sources: list[Projection], choice: SpeciesChoice, record: np.dtype[Any], beside: Path
) -> Iterator[pl.DataFrame]:
    """Yield the records of the species asked for, in portions that never split a checklist and its copies.

    What does not stay in memory lies in a temporary folder in ``beside``.
    """
    total = sum(
        int(source.read("taxa", ["rows"])["rows"].to_numpy()[codes >= 0].sum())
        for source, codes in zip(sources, choice.code, strict=True)
    )
    # -(-a // b) rounds up.
    n = min(256, max(1, -(-total // PORTION)))  # as many files are open at once
    if n == 1:
        held = list(_chosen(events, sources, choice, record))
        if held:
            yield pl.DataFrame(np.concatenate(held))
        return
    with scratch_folder(beside / "records") as spill, ExitStack() as stack:
        files = [stack.enter_context(open(spill / str(b), "w+b")) for b in range(n)]
        # neighbours stay together: what follows reads fewer places
        stretch = max(1, -(-events.fate.size // n))
        for part in _chosen(events, sources, choice, record):
            # A checklist and its copies have one row, so one bucket; orphans have none and go by their event.
            bucket = np.where(part["row"] >= 0, part["row"] // stretch, part["event"] % n)
            ordered = part[np.argsort(bucket.astype(np.uint16), kind="stable")]
            ends = np.cumsum(np.bincount(bucket, minlength=n))
            for file, mine in zip(files, np.split(ordered, ends[:-1]), strict=True):
                mine.tofile(file)
        events.all_found()
        for file in files:
            file.seek(0)
            yield pl.DataFrame(np.fromfile(file, dtype=record))


def _chosen(
    events: Events, sources: list[Projection], choice: SpeciesChoice, record: np.dtype[Any]
) -> Iterator[np.ndarray[Any, np.dtype[np.void]]]:
    """Yield the records of the species asked for as they come, as structured arrays of type ``record``."""
    read = [name for name in ("event", "count", "guid", "edited") if name in (record.names or ())]
    begin = 0  # of the source's codes of texts
    for i, source in enumerate(sources):
        texts = ["kept"] if source.has("kept") else []
        asked = np.flatnonzero(choice.code[i] >= 0).astype(np.int32)
        for batch in row_groups(source.folder / "records.parquet", ["taxon", "group", *read, *texts], asked):
            species = choice.code[i][batch["taxon"]]
            at = np.flatnonzero(species >= 0)
            out = np.empty(at.size, dtype=record)
            out["species"], out["flag"] = species[at], choice.flag[i][batch["taxon"][at]]
            out["row"] = events.rows_of(batch["event"][at], batch["group"][at])
            for name in read:
                out[name] = batch[name][at]
            if "kept" in (record.names or ()):
                out["kept"] = batch["kept"][at] + begin if texts else -1
            yield out
        begin += source.height("kept") if texts else 0


def _latest(part: pl.DataFrame, edits: pl.DataFrame) -> pl.DataFrame:
    """Keep the latest edit of each record, under whatever species and on whatever checklist it stands now."""
    named = pl.col("guid") != 0
    newest_here = pl.int_range(pl.len()) == pl.col("edited").arg_max()
    return (
        part.join(edits, on="guid", how="left", maintain_order="left")
        # eBird keeps the identifier when a record is edited or moved
        # to another species: older versions must not count twice.
        .filter(pl.col("latest").is_null() | (pl.col("latest") <= pl.col("edited")))
        # Two rows with the same stamp are one record in two files: the first stays.
        .filter(~named | newest_here.over("guid"))
        .drop("guid", "edited", "latest")
    )


def _sums(part: pl.DataFrame, texts: pl.DataFrame) -> pl.DataFrame:
    """Add up the counts of each checklist and species; one part that was not counted makes the sum not counted.

    Different texts of one column are joined by '; '.
    """
    if texts.width:
        code = pl.when(pl.col("kept") >= 0).then("kept")
        part = part.with_columns(
            texts[column].gather(part.select(code).to_series()) for column in texts.columns
        )
    number = pl.col("count")
    # Counts below 0 are codes: X, blank, unreadable.
    why = pl.when(number == COUNT_BAD).then(_UNREADABLE).when(number < 0).then(_X).otherwise(0)
    return part.group_by("row", "species").agg(
        # Codes add nothing to the sum; the reason then says that it is no count.
        number.clip(0).sum(),
        why.cast(pl.Int8).max().alias("reason"),
        # X is a detection, 0 is not.
        (number != 0).any().alias("detected"),
        *(joined_texts(column) for column in texts.columns),
    )


def _resolve(
    part: pl.DataFrame,
    events: Events,
    counts: RecordCounts,
    edits: pl.DataFrame,
    texts: pl.DataFrame,
    *,
    zeros: bool,
) -> pl.DataFrame:
    """Return row, species, count, reason, detected, texts: one row per checklist and species, in order.

    ``zeros`` : a count of 0 is a record of its own (plain tables), not one to drop
    """
    steps = counts.steps

    def step(name: str, before: pl.DataFrame, after: pl.DataFrame) -> pl.DataFrame:
        steps[name] += before.height - after.height
        return after

    # First of all rules: a record that was moved elsewhere is not a record of this checklist any more.
    if "guid" in part.columns:
        part = step("duplicates", part, _latest(part, edits))
    # In eBird's files absence is told by complete lists without the species: a record with a count of 0 is dropped.
    if not zeros:
        part = step("explicit zeros", part, part.filter(pl.col("count") != 0))
    # Records whose checklist is none of the lists that were read.
    counts.orphans.update(part.filter(pl.col("row") < 0)["event"].unique())
    part = step("orphans", part, part.filter(pl.col("row") >= 0))
    row = part["row"].to_numpy()
    part = part.with_columns(fate=events.fate[row], own=part["event"].to_numpy() == events.kept_event[row])
    for fate, number in part.group_by("fate").len().filter(pl.col("fate") > KEPT_ZERO_OK).iter_rows():
        counts.fates[fate] += number
    part = part.filter(pl.col("fate") <= KEPT_ZERO_OK)
    held = part.filter(pl.col("flag") != 0)
    steps["unvetted"] += held.filter(pl.col("flag") == UNVETTED).height
    steps["escapees"] += held.filter(pl.col("flag") == ESCAPEE).height
    part = part.filter(pl.col("flag") == 0)

    # The copy with the lowest id that lists the species gives the count, all its taxa summed: rollup comes after
    # the choice of the copy (otherwise Myrtle 3 + Audubon's 2 on a shared list would give 3). Nearly always that
    # is the kept copy itself, so the others are looked at apart.
    own, rest = part.filter("own"), part.filter(~pl.col("own"))
    if rest.height:
        rest_of = rest.join(own, on=KEY, how="anti")
        lowest = pl.col("event") == pl.col("event").min().over(KEY)
        own = pl.concat([own, step("copies", rest, rest_of.filter(lowest))])
    found = step("rolled up", own, _sums(own, texts))
    # A record that was held back makes the visit neither a detection nor a zero, unless another record is valid.
    if held.height:
        back = held.join(found, on=KEY, how="anti").group_by(KEY).agg(pl.col("flag").max())
        steps["held back"] += back.height
        why = pl.when(pl.col("flag") == UNVETTED).then(_UNVETTED).otherwise(_EXOTIC).cast(pl.Int8)
        back = back.select(*KEY, count=pl.lit(0, pl.Int64), reason=why, detected=pl.lit(True))
        found = pl.concat([found, back], how="diagonal")
    found = found.sort(KEY)
    _tally(found, events, counts)
    return found


def _tally(found: pl.DataFrame, events: Events, counts: RecordCounts) -> None:
    """Add to the numbers of each species."""
    real, uncounted = pl.col("reason") < _EXOTIC, pl.col("reason") > 0
    zero_ok = pl.Series(events.fate[found["row"].to_numpy()]) == KEPT_ZERO_OK

    masks: tuple[pl.Expr | pl.Series, ...] = (real, real & uncounted, real & ~pl.col("detected"), zero_ok)
    for to, mask in zip(counts.of_species, masks, strict=True):
        to += np.bincount(found.filter(mask)["species"], minlength=to.size)
    counts.steps["X"] += found.filter(real & uncounted).height
