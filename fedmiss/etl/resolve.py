"""Which records stand: duplicates, shared copies, subspecies, exceptions; one row per checklist and species.

Records of the species asked for go through in portions that never split a checklist and its copies, so memory
does not grow with their number. All work is on integer arrays: a checklist is its row, a species its place in
the list of names.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedmiss.arrays import I32, I64
from fedmiss.etl.codes import COUNT_BAD
from fedmiss.etl.lookup import stable_order
from fedmiss.etl.projection import Projection, row_groups
from fedmiss.etl.repeats import latest_edits
from fedmiss.etl.select import FILTERED, KEPT_ZERO_OK, NO_SITE, Events, event_names
from fedmiss.tables import table_writer

if TYPE_CHECKING:
    import polars as pl

__all__ = ["RecordCounts", "SpeciesChoice", "write_records"]

PORTION = 150_000
# one record on its way through a file on disk
_SPILLED = [("species", "i4"), ("flag", "i1"), ("row", "i4"), ("event", "i8"), ("count", "i8")]
_EDITS = [("guid", "i8"), ("edited", "i8")]  # needed only where an identifier is repeated
ESCAPEE, UNVETTED = 1, 2
REASONS = np.array(["", "X", "unreadable", "exotic", "unvetted"])
_X, _UNREADABLE, _EXOTIC, _UNVETTED = 1, 2, 3, 4

Columns = dict[str, Any]


@dataclass(frozen=True, slots=True)
class SpeciesChoice:
    """Which taxa of which source belong to which species asked for."""

    names: list[str]  # scientific names
    common: list[str | None]
    code: list[I32]  # per source: taxon -> index in names, -1 not asked for or above species
    above: list[Any]  # per source: taxon -> bool, dropped by category
    exotic: list[Any]  # per source: taxon -> bool, escapee
    unvetted: list[Any]  # per source: taxon -> bool, not accepted by review


@dataclass(slots=True)
class RecordCounts:
    """What became of the records; ``steps`` are rows by step, the arrays hold one number per species."""

    steps: dict[str, int]
    records: I64
    not_counted: I64
    explicit_zeros: I64
    on_zero_ok: I64  # records, and visits held back, that take the place of a zero
    orphans: set[int] = field(default_factory=set)
    fates: dict[int, int] = field(default_factory=dict)


def write_records(
    events: Events, sources: list[Projection], choice: SpeciesChoice, path: Path, *, cache: Path
) -> RecordCounts:
    """Write one row per kept checklist and species; ``events`` must have been through ``write_checklists``.

    ``cache`` keeps what has been found out about several files of records.
    """
    steps = dict.fromkeys(
        (
            *("above", "other species", "duplicates", "explicit zeros", "orphans", "unvetted", "escapees"),
            *("copies", "rolled up", "written", "X", "held back"),
        ),
        0,
    )
    n = len(choice.names)
    counts = RecordCounts(
        steps, np.zeros(n, np.int64), np.zeros(n, np.int64), np.zeros(n, np.int64), np.zeros(n, np.int64)
    )
    for i, s in enumerate(sources):
        rows = s.read("taxa", ["rows"])["rows"].to_numpy()
        steps["above"] += int(rows[choice.above[i]].sum())
        steps["other species"] += int(rows[~choice.above[i] & (choice.code[i] < 0)].sum())

    edits = latest_edits(sources, cache)
    record = np.dtype(_SPILLED + _EDITS if edits.height else _SPILLED)

    def chunks() -> Iterator[Any]:
        for part in _portions(events, sources, choice, record, path.parent):
            yield _table(_resolve(part, events, sources, choice, counts, edits), events, choice)

    steps["written"] = table_writer(path, "records", chunks(), unique=("checklist_id", "checklist_row"))
    for i, name in enumerate(events.steps):
        if counts.fates.get(FILTERED + i):
            steps[f"on checklists left out by {name}"] = counts.fates[FILTERED + i]
    if counts.fates.get(NO_SITE):
        steps["on checklists without coordinates"] = counts.fates[NO_SITE]
    return counts


def _table(found: Columns, events: Events, choice: SpeciesChoice) -> pl.DataFrame:
    import polars as pl

    assert events.written_row is not None
    species = pl.Series(found["species"])
    reason = pl.Series(found["reason"])
    return pl.DataFrame(
        {
            "checklist_id": _ids_of_rows(events, found["row"]),
            "checklist_row": events.written_row[found["row"]],
            "species": pl.Series(choice.names, dtype=pl.String).gather(species),
            "common_name": pl.Series(choice.common, dtype=pl.String).gather(species),
            "count": pl.Series(found["count"]).set(reason > 0, None),
            "detected": found["detected"],
            "reason": pl.Series([None, *REASONS[1:].tolist()], dtype=pl.String).gather(reason),
        }
    )


def _ids_of_rows(events: Events, rows: Any) -> pl.Series:
    import polars as pl

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
) -> Iterator[Columns]:
    """Yield the records of the species asked for, in portions that never split a checklist and its copies.

    What does not stay in memory lies in a temporary folder in ``beside``.
    """
    total = sum(
        int(s.read("taxa", ["rows"])["rows"].to_numpy()[c >= 0].sum())
        for s, c in zip(sources, choice.code, strict=True)
    )
    events.expect(total)
    n = min(256, max(1, -(-total // PORTION)))  # as many files are open at once
    if n == 1:
        held = list(_chosen(events, sources, choice, record))
        if held:
            yield {k: np.concatenate([h[k] for h in held]) for k in held[0]}
        return
    with tempfile.TemporaryDirectory(prefix=".records.tmp-", dir=beside) as spill, ExitStack() as stack:
        files = [stack.enter_context(open(Path(spill) / str(b), "w+b")) for b in range(n)]
        stretch = max(
            1, -(-events.fate.size // n)
        )  # neighbours stay together: what follows reads fewer places
        for part in _chosen(events, sources, choice, record):
            bucket = np.where(part["row"] >= 0, part["row"] // stretch, part["event"] % n)
            order = np.argsort(bucket.astype(np.uint16), kind="stable")
            rows = np.empty(order.size, dtype=record)
            for c in record.names or ():
                rows[c] = part[c][order]
            for file, mine in zip(
                files, np.split(rows, np.cumsum(np.bincount(bucket, minlength=n))[:-1]), strict=True
            ):
                mine.tofile(file)
        for file in files:
            file.seek(0)
            rows = np.fromfile(file, dtype=record)
            yield {c: np.ascontiguousarray(rows[c]) for c in record.names or ()}


def _chosen(
    events: Events, sources: list[Projection], choice: SpeciesChoice, record: np.dtype[Any]
) -> Iterator[Columns]:
    read = [c for c in ("event", "count", "guid", "edited") if c in (record.names or ())]
    for i, s in enumerate(sources):
        flags = np.where(choice.unvetted[i], UNVETTED, np.where(choice.exotic[i], ESCAPEE, 0)).astype(np.int8)
        for batch in row_groups(
            s.folder / "records.parquet",
            ["taxon", "group", *read],
            np.flatnonzero(choice.code[i] >= 0).astype(np.int32),
        ):
            species = choice.code[i][batch["taxon"]]
            at = np.flatnonzero(species >= 0)
            if at.size:
                yield {
                    "species": species[at],
                    "flag": flags[batch["taxon"][at]],
                    "row": events.rows_of(batch["event"][at], batch["group"][at]),
                    **{k: batch[k][at] for k in read},
                }


def _where(part: Columns, mask: Any) -> Columns:
    return part if mask.all() else {k: v[mask] for k, v in part.items()}


def _latest(part: Columns, edits: pl.DataFrame) -> Columns:
    """Keep the latest edit of each record, under whatever species and on whatever checklist it stands now."""
    import polars as pl

    guid, edited = part["guid"], part["edited"]
    keep = np.ones(guid.size, dtype=np.bool_)
    order = np.lexsort((-edited, guid))
    ordered = guid[order]
    keep[order[1:][(ordered[1:] == ordered[:-1]) & (ordered[1:] != 0)]] = False
    mine = pl.DataFrame({"guid": guid, "mine": edited})
    known = mine.join(edits, on="guid", how="left", maintain_order="left")
    keep &= ~(known["latest"] > known["mine"]).fill_null(False).to_numpy()
    return _where(part, keep)


def _new(ordered: I64) -> Any:
    """Say where a value differs from the one before."""
    out = np.ones(ordered.size, dtype=np.bool_)
    out[1:] = ordered[1:] != ordered[:-1]
    return out


def _sums(key: I64, count: I64) -> Columns:
    """Add up the counts of equal keys; one part that was not counted makes the sum not counted."""
    order = stable_order(key)
    ordered, n = key[order], count[order]
    first = np.flatnonzero(_new(ordered))
    if not first.size:
        return {"key": ordered, "count": n, "reason": np.zeros(0, np.int8), "detected": np.zeros(0, np.bool_)}
    reason = np.where(n == COUNT_BAD, _UNREADABLE, np.where(n < 0, _X, 0)).astype(np.int8)
    return {
        "key": ordered[first],
        "count": np.add.reduceat(np.maximum(n, 0), first),
        "reason": np.maximum.reduceat(reason, first),
        "detected": np.maximum.reduceat(n != 0, first),
    }


def _missing_from(keys: I64, known: I64) -> Any:
    """Say which keys are not among the sorted ``known``."""
    if not known.size:
        return np.ones(keys.size, dtype=np.bool_)
    return known[np.minimum(np.searchsorted(known, keys), known.size - 1)] != keys


def _lowest_copy(key: I64, event: I64) -> Any:
    """Say which rows are of the lowest event of their key."""
    order = np.lexsort((event, key))
    k, e = key[order], event[order]
    first = _new(k)
    lowest = e[first][np.cumsum(first) - 1]
    out = np.empty(key.size, dtype=np.bool_)
    out[order] = e == lowest
    return out


def _resolve(
    part: Columns,
    events: Events,
    sources: list[Projection],
    choice: SpeciesChoice,
    counts: RecordCounts,
    edits: pl.DataFrame,
) -> Columns:
    """Return row, species, count, reason and detected: one entry per (checklist, species), in order."""
    steps = counts.steps
    n_species = len(choice.names)

    def step(name: str, before: Columns, after: Columns) -> Columns:
        steps[name] += len(before["row"]) - len(after["row"])
        return after

    if "guid" in part:
        part = step("duplicates", part, _latest(part, edits))
    if not sources[0].meta.get("explicit_zeros"):
        part = step("explicit zeros", part, _where(part, part["count"] != 0))
    counts.orphans.update(np.unique(part["event"][part["row"] < 0]).tolist())
    part = step("orphans", part, _where(part, part["row"] >= 0))
    fate = events.fate[part["row"]]
    for value, n in enumerate(np.bincount(fate).tolist()):
        if value > KEPT_ZERO_OK and n:
            counts.fates[value] = counts.fates.get(value, 0) + n
    part = _where(part, fate <= KEPT_ZERO_OK)
    part["key"] = part["row"].astype(np.int64) * n_species + part["species"]
    held = {k: v[part["flag"] != 0] for k, v in part.items()}
    steps["unvetted"] += int((held["flag"] == UNVETTED).sum())
    steps["escapees"] += int((held["flag"] == ESCAPEE).sum())
    part = _where(part, part["flag"] == 0)

    # The copy with the lowest id that lists the species gives the count, all its taxa summed: rollup comes after
    # the choice of the copy (otherwise Myrtle 3 + Audubon's 2 on a shared list would give 3). Nearly always that
    # is the kept copy itself.
    own = part["event"] == events.kept_event[part["row"]]
    found = _sums(part["key"][own], part["count"][own])
    n_summed = int(own.sum())
    if not own.all():
        rest = {k: v[~own] for k, v in part.items()}
        n_rest = rest["key"].size
        rest = _where(rest, _missing_from(rest["key"], found["key"]))
        rest = _where(rest, _lowest_copy(rest["key"], rest["event"]))
        steps["copies"] += n_rest - rest["key"].size
        n_summed += rest["key"].size
        more = _sums(rest["key"], rest["count"])
        found = {k: np.concatenate([found[k], more[k]]) for k in found}
    steps["rolled up"] += n_summed - found["key"].size
    if held["key"].size:
        new = np.sort(found["key"])
        out = _missing_from(held["key"], new)
        keys = np.unique(held["key"][out])
        flags = np.zeros(keys.size, np.int8)
        np.maximum.at(flags, np.searchsorted(keys, held["key"][out]), held["flag"][out])
        steps["held back"] += keys.size
        extra = {
            "key": keys,
            "count": np.zeros(keys.size, np.int64),
            "reason": np.where(flags == UNVETTED, _UNVETTED, _EXOTIC).astype(np.int8),
            "detected": np.ones(keys.size, dtype=np.bool_),
        }
        found = {k: np.concatenate([found[k], extra[k]]) for k in found}
    if (found["key"][1:] < found["key"][:-1]).any():
        order = stable_order(found["key"])
        found = {k: v[order] for k, v in found.items()}
    found["row"], found["species"] = np.divmod(found.pop("key"), n_species)
    _tally(found, events, counts, n_species)
    return found


def _tally(found: Columns, events: Events, counts: RecordCounts, n_species: int) -> None:
    def count(mask: Any) -> I64:
        return np.bincount(found["species"][mask], minlength=n_species)

    real = found["reason"] < _EXOTIC
    counts.records += count(real)
    counts.not_counted += count(real & (found["reason"] > 0))
    counts.explicit_zeros += count(real & ~found["detected"])
    counts.on_zero_ok += count(events.fate[found["row"]] == KEPT_ZERO_OK)
    counts.steps["X"] += int((real & (found["reason"] > 0)).sum())
