"""From projections to the records folder: duplicates, shared copies, filters, rollup, exceptions, row flow.

Ids stay integers and the tables are read in row groups, so memory follows the number of checklists only by a
few bytes each; records of the species asked for go through in portions of about half a million.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedmiss.arrays import I32, I64, U8
from fedmiss.etl.filters import Filters
from fedmiss.etl.projection import EVENT_COLUMNS, Projection
from fedmiss.etl.sites import site_table
from fedmiss.tables import table_writer

if TYPE_CHECKING:
    import polars as pl

__all__ = ["POLICIES", "Events", "SpeciesChoice", "write_checklists", "write_records"]

POLICIES = ("first", "merged", "raw")
PORTION = 500_000
UNVETTED, ESCAPEE = 2, 1
# fate of an event row
KEPT, KEPT_ZERO_OK, DUPLICATE, COPY, NO_SITE, FILTERED = 0, 1, 2, 3, 4, 5  # FILTERED + i: the i-th filter


@dataclass(slots=True)
class Events:
    """All events of all sources: their order, the kept copy of each, and (later) the fate of every row."""

    sources: list[Projection]
    starts: list[int]  # first row of each source
    fate: U8  # (rows,)
    event: I64  # (distinct,) ids in ascending order
    kept_row: I32  # (distinct,) row of the checklist that stands for it
    group: I64  # (groups,) group ids in ascending order
    group_row: I32  # (groups,) row of the kept copy
    kept_event: I64  # (rows,) id by row
    copies_speak_alone: bool = False  # policy raw
    members: dict[int, str] = field(default_factory=dict)  # row -> joined observers, policy merged
    steps: list[str] = field(default_factory=list)
    seen: dict[str, set[str]] = field(default_factory=dict)  # values met by the filters

    @classmethod
    def load(cls, sources: list[Projection], policy: str, shared: pl.DataFrame | None = None) -> Events:
        """Find duplicated events and the kept copy of each shared checklist.

        ``shared`` (event, group) names copies that the source itself does not mark.

        The copy with the numerically lowest id stands for its group, whatever the filters: which copy speaks
        for a party must not depend on what is asked of it.
        """
        parts = [s.read("events", ["event", "group", "edited"]) for s in sources]
        event = np.concatenate([p["event"].to_numpy() for p in parts] or [np.zeros(0, np.int64)])
        group = np.concatenate([p["group"].to_numpy() for p in parts] or [np.zeros(0, np.int64)])
        if shared is not None:
            alike = shared["event"].to_numpy()
            at = np.minimum(np.searchsorted(alike, event), alike.size - 1)
            group = np.where(alike[at] == event, shared["group"].to_numpy()[at], group)
        order = np.argsort(event, kind="stable")
        ordered = event[order]
        first = np.ones(order.size, dtype=np.bool_)
        first[1:] = ordered[1:] != ordered[:-1]
        fate = np.zeros(event.size, dtype=np.uint8)
        if not first.all():  # the row edited last stays
            edited = np.concatenate([p["edited"].to_numpy() for p in parts])
            order = np.lexsort((-edited, event))
            fate[order[~first]] = DUPLICATE
        rows = order[first].astype(np.int32)
        kept_row = rows.copy()
        distinct = ordered[first]
        starts = np.cumsum([0, *(p.height for p in parts)]).tolist()
        del parts, order, ordered
        none = (np.zeros(0, np.int64), np.zeros(0, np.int32))
        out = cls(sources, starts, fate, distinct, kept_row, *none, event, policy == "raw")
        copies = np.flatnonzero(group[rows] >= 0)  # positions in `distinct`, ascending by event id
        if copies.size:
            by_group = copies[np.argsort(group[rows[copies]], kind="stable")]
            ids = group[rows[by_group]]
            lead = np.ones(ids.size, dtype=np.bool_)
            lead[1:] = ids[1:] != ids[:-1]
            leader = rows[by_group][lead][np.cumsum(lead) - 1]
            out.group, out.group_row = ids[lead], rows[by_group][lead]
            if policy != "raw":
                kept_row[by_group] = leader
                fate[rows[by_group][~lead]] = COPY
            if policy == "merged":
                out._merge_observers(rows[by_group], leader, lead)
        return out

    def _merge_observers(self, rows: Any, leader: Any, lead: Any) -> None:
        import polars as pl

        names = pl.concat(
            [
                s.read("observers")["observer"].gather(s.read("events", ["observer"])["observer"])
                for s in self.sources
            ]
        )
        joined: dict[int, list[str]] = {}
        for row, to in zip(rows.tolist(), leader.tolist(), strict=True):
            party = joined.setdefault(to, [])
            if names[row] not in party:
                party.append(names[row])
        self.members = {row: ",".join(party) for row, party in joined.items()}

    def rows_of(self, event: I64, group: I64) -> I32:
        """Return the row of the checklist that stands for each record, -1 for an orphan.

        A record whose own event is unknown still belongs to its group when another copy is known.
        """
        out = np.full(event.size, -1, dtype=np.int32)
        if self.event.size:
            at = np.minimum(np.searchsorted(self.event, event), self.event.size - 1)
            hit = self.event[at] == event
            out[hit] = self.kept_row[at[hit]]
        if self.group.size and not self.copies_speak_alone:
            lost = np.flatnonzero((out < 0) & (group >= 0))
            at = np.minimum(np.searchsorted(self.group, group[lost]), self.group.size - 1)
            hit = self.group[at] == group[lost]
            out[lost[hit]] = self.group_row[at[hit]]
        return out


def _row_groups(path: Path, columns: list[str]) -> Iterator[dict[str, Any]]:
    import pyarrow.parquet as pq

    with pq.ParquetFile(path) as file:
        for i in range(file.num_row_groups):
            table = file.read_row_group(i, columns=columns)
            yield {c: table[c].to_numpy() for c in columns}


def write_checklists(
    events: Events, filters: Filters, site_km: float | None, *, presence_only: bool, path: Path
) -> dict[str, int]:
    """Filter the checklists, write those that are left, and set the fate of every row.

    Returns
    -------
    rows by step: ``read``, ``duplicates``, ``copies``, each filter, ``no coordinates``, ``written``, ``zero_ok``
    """
    counts: dict[str, int] = {}
    dates = [d for s in events.sources for d in (s.meta["dates"] or [])]

    def chunks() -> Iterator[Any]:
        for source, start in zip(events.sources, events.starts, strict=False):
            places, observers, protocols = (source.read(t) for t in ("places", "observers", "protocols"))
            steps = filters.steps(
                {"places": places, "observers": observers, "protocols": protocols},
                max(dates, default=0),
                events.seen,
            )
            if not events.steps:
                events.steps = [name for name, _ in steps]
            sites = site_table(places, site_km)
            has_site = sites["site_id"].is_not_null().to_numpy()
            stationary = (protocols["protocol"] == "Stationary").to_numpy()
            row = start
            for batch in _row_groups(source.folder / "events.parquet", list(EVENT_COLUMNS)):
                n = batch["event"].size
                batch["distance"] = np.where(stationary[batch["protocol"]], 0.0, batch["distance"])
                fate = events.fate[row : row + n]
                for i, (_, passes) in enumerate(steps):
                    out = ~passes(batch) & (fate == KEPT)
                    fate[out] = FILTERED + i
                fate[~has_site[batch["place"]] & (fate == KEPT)] = NO_SITE
                if not presence_only:
                    fate[(fate == KEPT) & (batch["complete"] == 1)] = KEPT_ZERO_OK
                take = np.flatnonzero(fate <= KEPT_ZERO_OK)
                if take.size:
                    yield _checklists(
                        source, batch, take, fate[take], row, events, sites, observers, protocols
                    )
                row += n

    counts["written"] = table_writer(path, "checklists", chunks())
    seen = np.bincount(events.fate, minlength=FILTERED + len(events.steps))
    counts |= {
        "read": int(events.fate.size),
        "duplicates": int(seen[DUPLICATE]),
        "copies": int(seen[COPY]),
        "no coordinates": int(seen[NO_SITE]),
        "zero_ok": int(seen[KEPT_ZERO_OK]),
    }
    for i, name in enumerate(events.steps):
        counts[f"filter: {name}"] = int(seen[FILTERED + i])
    return counts


def _checklists(
    source: Projection,
    batch: dict[str, Any],
    take: Any,
    fate: Any,
    first_row: int,
    events: Events,
    sites: pl.DataFrame,
    observers: pl.DataFrame,
    protocols: pl.DataFrame,
) -> pl.DataFrame:
    import polars as pl

    def optional(key: str) -> pl.Series:
        return pl.Series(batch[key][take]).fill_nan(None)

    def ids(key: str, prefix: str) -> pl.Series:
        numbers = pl.Series(batch[key][take])
        return pl.Series(key, [prefix]).new_from_index(0, take.size) + numbers.cast(pl.String)

    place = batch["place"][take]
    start = pl.Series(batch["start"][take])
    table = pl.DataFrame(
        {
            "checklist_id": event_names(source, batch["event"][take]),
            "group_id": ids("group", source.meta["group_prefix"]),
            "_group": batch["group"][take],
            "observer_id": observers["observer"].gather(batch["observer"][take]),
            **{c: sites[c].gather(place) for c in sites.columns},
            "date": pl.Series(batch["date"][take]).cast(pl.Date),
            "complete": batch["complete"][take] == 1,
            "zero_ok": fate == KEPT_ZERO_OK,
            "start_minutes": start,
            "duration_minutes": optional("duration"),
            "distance_km": optional("distance"),
            "n_observers": optional("n_observers"),
            "protocol": protocols["protocol"].gather(batch["protocol"][take]),
        }
    )
    if events.members:
        party = [events.members.get(int(r)) for r in take + first_row]
        table = table.with_columns(observer_id=pl.coalesce(pl.Series(party, dtype=pl.String), "observer_id"))
    return table.with_columns(
        group_id=pl.when(pl.col("_group") >= 0).then("group_id"),
        start_minutes=pl.when(pl.col("start_minutes") >= 0).then("start_minutes").cast(pl.Int16),
        n_observers=pl.col("n_observers").round().cast(pl.Int32, strict=False),
        protocol=pl.col("protocol").replace("", None),
    ).drop("_group")


def event_names(source: Projection, event: I64) -> pl.Series:
    """Write event ids as the source does."""
    import polars as pl

    if source.has("names"):
        names = source.read("names")
        order = np.searchsorted(names["event"].to_numpy(), event)
        return names["name"].gather(order).alias("checklist_id")
    prefix = pl.Series("checklist_id", [source.meta["prefix"]]).new_from_index(0, event.size)
    return prefix + pl.Series(event).cast(pl.String)


@dataclass(frozen=True, slots=True)
class SpeciesChoice:
    """Which taxa of which source belong to which species asked for."""

    names: list[str]  # scientific names
    common: list[str | None]
    code: list[I32]  # per source: taxon -> index in names, -1 not asked for or above species
    above: list[Any]  # per source: taxon -> bool, dropped by category
    exotic: list[Any]  # per source: taxon -> bool, escapee
    unvetted: list[Any]  # per source: taxon -> bool, not accepted by review


def write_records(
    events: Events, sources: list[Projection], choice: SpeciesChoice, path: Path
) -> tuple[dict[str, int], pl.DataFrame, I64]:
    """Resolve duplicates, shared copies and subspecies of the records, and write one row per checklist and species.

    Returns
    -------
    counts : rows by step
    species : one row per species: records, X, zeros implied, visits
    orphans : (n,) ids of events that no sampling file knows
    """
    import polars as pl

    counts = dict.fromkeys(
        (
            *("above", "other species", "duplicates", "explicit zeros", "orphans", "unvetted", "escapees"),
            *("copies", "rolled up", "written", "X", "held back"),
        ),
        0,
    )
    for i, s in enumerate(sources):
        rows = s.read("taxa", ["rows"])["rows"].to_numpy()
        counts["above"] += int(rows[choice.above[i]].sum())
        counts["other species"] += int(rows[~choice.above[i] & (choice.code[i] < 0)].sum())
    tally = pl.DataFrame({"species": choice.names, "common_name": choice.common}).with_columns(
        records=pl.lit(0), x=pl.lit(0), on_zero_ok=pl.lit(0)
    )
    orphans: list[I64] = []
    fate_rows: dict[int, int] = {}

    def chunks() -> Iterator[Any]:
        nonlocal tally
        for part in _portions(events, sources, choice):
            table = _resolve(part, events, sources, choice, counts, orphans, fate_rows)
            counts["X"] += int((table["reason"] == "X").sum())
            tally = _add(tally, table)
            prefix = _ids_of_rows(events, table["row"].to_numpy())
            yield table.select(
                checklist_id=prefix,
                species=pl.Series(choice.names, dtype=pl.String).gather(table["species"]),
                common_name=pl.Series(choice.common, dtype=pl.String).gather(table["species"]),
                count="count",
                detected="detected",
                reason="reason",
            )

    counts["written"] = table_writer(path, "records", chunks())
    for i, name in enumerate(events.steps):
        if fate_rows.get(FILTERED + i):
            counts[f"on checklists left out by {name}"] = fate_rows[FILTERED + i]
    if fate_rows.get(NO_SITE):
        counts["on checklists without coordinates"] = fate_rows[NO_SITE]
    ids = np.unique(np.concatenate(orphans)) if orphans else np.zeros(0, np.int64)
    return counts, tally, ids


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


def _add(tally: pl.DataFrame, table: pl.DataFrame) -> pl.DataFrame:
    import polars as pl

    held = pl.col("reason").is_in(["unvetted", "exotic"]).fill_null(False)
    here = table.group_by("species").agg(
        r=(~held).sum(), x=(pl.col("count").is_null() & ~held).sum(), z=pl.col("zero_ok").sum()
    )
    more = {k: np.zeros(tally.height, np.int64) for k in "rxz"}
    for k in "rxz":
        more[k][here["species"].to_numpy()] = here[k].to_numpy()
    return tally.with_columns(
        records=tally["records"] + more["r"],
        x=tally["x"] + more["x"],
        on_zero_ok=tally["on_zero_ok"] + more["z"],
    )


def _portions(events: Events, sources: list[Projection], choice: SpeciesChoice) -> Iterator[pl.DataFrame]:
    """Yield the records of the species asked for, in portions that never split a checklist and its copies."""
    import polars as pl

    total = sum(
        int(s.read("taxa", ["rows"])["rows"].to_numpy()[c >= 0].sum())
        for s, c in zip(sources, choice.code, strict=True)
    )
    n = max(1, -(-total // PORTION))
    with tempfile.TemporaryDirectory(prefix="fedmiss-") as spill:
        held: list[pl.DataFrame] = []
        for k, frame in enumerate(_chosen(events, sources, choice)):
            if n == 1:
                held.append(frame)
                continue
            bucket = (
                pl.when(pl.col("row") >= 0).then(pl.col("row").cast(pl.Int64)).otherwise(pl.col("event")) % n
            )
            for (b,), rows in frame.group_by(bucket.alias("b")):
                rows.write_ipc(Path(spill) / f"{b}-{k}.arrow")
        for b in range(n):
            if n > 1:
                held = [pl.read_ipc(p) for p in sorted(Path(spill).glob(f"{b}-*.arrow"))]
            if held:
                yield pl.concat(held)
            held = []


def _chosen(events: Events, sources: list[Projection], choice: SpeciesChoice) -> Iterator[pl.DataFrame]:
    import polars as pl

    for i, s in enumerate(sources):
        flags = np.where(choice.unvetted[i], UNVETTED, np.where(choice.exotic[i], ESCAPEE, 0)).astype(np.int8)
        columns = ["taxon", "event", "group", "count", "guid", "edited"]
        for batch in _row_groups(s.folder / "records.parquet", columns):
            species = choice.code[i][batch["taxon"]]
            at = np.flatnonzero(species >= 0)
            if at.size:
                yield pl.DataFrame(
                    {
                        "species": species[at],
                        "flag": flags[batch["taxon"][at]],
                        "row": events.rows_of(batch["event"][at], batch["group"][at]),
                        **{k: batch[k][at] for k in columns[1:]},
                    }
                )


def _edited_later(sources: list[Projection], choice: SpeciesChoice, part: pl.DataFrame) -> pl.DataFrame:
    """Drop records of which a later edit exists, under whatever species it stands now."""
    import polars as pl

    guids = part["guid"].filter(part["guid"] != 0)
    others = []
    for s, code in zip(sources, choice.code, strict=True):
        same = (
            s.scan("records")
            .select("guid", "edited", "taxon")
            .filter(pl.col("guid").is_in(guids.implode()))
            .collect()
        )
        others.append(same.filter(pl.Series(code[same["taxon"].to_numpy()] < 0)).select("guid", "edited"))
    elsewhere = pl.concat(others).group_by("guid").agg(later=pl.col("edited").max())
    if elsewhere.height:
        part = part.join(elsewhere, on="guid", how="left").filter(
            pl.col("later").is_null() | (pl.col("later") <= pl.col("edited"))
        )
        part = part.drop("later")
    if guids.n_unique() < guids.len():
        part = pl.concat(
            [
                part.filter(pl.col("guid") == 0),
                part.filter(pl.col("guid") != 0)
                .sort("guid", "edited", descending=[False, True])
                .unique("guid", keep="first", maintain_order=True),
            ]
        )
    return part


def _resolve(
    part: pl.DataFrame,
    events: Events,
    sources: list[Projection],
    choice: SpeciesChoice,
    counts: dict[str, int],
    orphans: list[I64],
    fate_rows: dict[int, int],
) -> pl.DataFrame:
    """Return one row per (checklist, species): row, species, count, detected, reason, zero_ok."""
    import polars as pl

    def step(name: str, before: pl.DataFrame, after: pl.DataFrame) -> pl.DataFrame:
        counts[name] += before.height - after.height
        return after

    from fedmiss.etl._kernels import COUNT_BAD

    part = step("duplicates", part, _edited_later(sources, choice, part))
    if not sources[0].meta.get("explicit_zeros"):
        part = step("explicit zeros", part, part.filter(pl.col("count") != 0))
    known = part.filter(pl.col("row") >= 0)
    orphans.append(part.filter(pl.col("row") < 0)["event"].unique().to_numpy())
    part = step("orphans", part, known)
    fate = events.fate[part["row"].to_numpy()]
    for value, n in enumerate(np.bincount(fate).tolist()):
        if value > KEPT_ZERO_OK and n:
            fate_rows[value] = fate_rows.get(value, 0) + n
    part = part.filter(pl.Series(fate <= KEPT_ZERO_OK))
    held = part.filter(pl.col("flag") != 0)
    counts["unvetted"] += held.filter(pl.col("flag") == UNVETTED).height
    counts["escapees"] += held.filter(pl.col("flag") == ESCAPEE).height
    part = part.filter(pl.col("flag") == 0)
    # The copy with the lowest id that lists the species gives the count, all its taxa summed: rollup comes
    # after the choice of the copy (otherwise Myrtle 3 + Audubon's 2 on a shared list would give 3).
    key = ["row", "species"]
    if not events.copies_speak_alone:
        part = step("copies", part, part.filter(pl.col("event") == pl.col("event").min().over(key)))
    count = pl.col("count")
    table = part.group_by(key).agg(
        count=pl.when((count >= 0).all()).then(count.sum()),
        detected=(count != 0).any(),
        reason=pl.when((count == COUNT_BAD).any())
        .then(pl.lit("unreadable"))
        .when((count < 0).any())
        .then(pl.lit("X")),
    )
    counts["rolled up"] += part.height - table.height
    if held.height:
        reason = pl.when(pl.col("flag") == UNVETTED).then(pl.lit("unvetted")).otherwise(pl.lit("exotic"))
        more = held.group_by(key).agg(reason=reason.max()).join(table, on=key, how="anti")
        counts["held back"] += more.height
        table = pl.concat(
            [table, more.select(*key, count=pl.lit(None, pl.Int64), detected=pl.lit(True), reason="reason")]
        )
    table = table.sort(key)
    return table.with_columns(zero_ok=pl.Series(events.fate[table["row"].to_numpy()] == KEPT_ZERO_OK))
