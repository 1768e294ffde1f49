"""Make the checklists of an import, or take over what an earlier one with the same choices has left.

Two things are kept in the cache: which copy of each checklist stands (it depends on the policy for shared lists
alone), and what a set of filters has made of that.
"""

from __future__ import annotations

import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from fedmiss.etl.memory import give_back
from fedmiss.etl.projection import VERSION, Projection, kept
from fedmiss.etl.select import Events, ListRules, write_checklists
from fedmiss.files import hash_file, hash_json, read_json, write_json

__all__ = ["make_checklists"]

_ARRAYS = ("fate", "event", "kept_row", "group", "group_row")


def make_checklists(
    lists: list[Projection], path: Path, rules: ListRules, *, shared: pl.DataFrame | None, cache: Path | None
) -> tuple[Events, dict[str, int], list[str]]:
    """Write ``checklists.parquet``, or take the one that an earlier import with the same choices has left.

    Returns
    -------
    events : the fate of every checklist
    counts : rows by step of the flow
    unmatched : sentences on filter values that no row has
    """
    who = {
        "version": VERSION,
        "sources": [projection.folder.name for projection in lists],
        "policy": rules.policy,
        "shared": shared.rows() if shared is not None else None,
    }
    filters = rules.filters
    events = _events(lists, rules.policy, shared, cache / f"events-{hash_json(who)[:24]}" if cache else None)
    if cache is None:
        counts = write_checklists(events, rules, path)
        return events, counts, filters.unmatched(events.seen)
    polygon = filters.polygon if filters.polygon and Path(filters.polygon).is_file() else None
    # The polygon's content and not its path is part of the key.
    what = asdict(rules) | {"polygon": hash_file(polygon) if polygon else None}
    made = False

    def build(folder: Path) -> None:
        nonlocal made
        made, target = True, folder / "checklists.parquet"
        counts = write_checklists(events, rules, target)
        np.save(folder / "fate.npy", events.fate)
        meta = {"steps": events.steps, "counts": counts, "unmatched": filters.unmatched(events.seen)}
        write_json(folder / "meta.json", meta)

    folder = kept(cache / f"lists-{hash_json(who | what)[:24]}", build)
    meta = read_json(folder / "meta.json")
    # Taken over: the fates are those of the earlier import, which its filters have left.
    if not made:
        events.set_fate(np.load(folder / "fate.npy"), meta["steps"])
    shutil.copyfile(folder / "checklists.parquet", path)
    return events, meta["counts"], meta["unmatched"]


def _events(lists: list[Projection], policy: str, shared: pl.DataFrame | None, folder: Path | None) -> Events:
    """Find the copies that stand, or load what was found before."""
    if folder is None:
        return Events.load(lists, policy, shared)

    def build(new: Path) -> None:
        events = Events.load(lists, policy, shared)
        for array in _ARRAYS:
            np.save(new / f"{array}.npy", getattr(events, array))
        if events.kept_event is not events.event:  # the same where ids ascend and none stands twice
            np.save(new / "kept_event.npy", events.kept_event)
        meta = {"starts": events.starts, "members": events.members, "elsewhere": events.elsewhere}
        write_json(new / "meta.json", meta)

    kept(folder, build)
    give_back()
    meta = read_json(folder / "meta.json")
    # only what is looked at comes into memory: all but the fates not before the records are written
    held = [name for name in (*_ARRAYS, "kept_event") if (folder / f"{name}.npy").exists()]
    arrays: dict[str, Any] = {
        name: np.asarray(np.load(folder / f"{name}.npy", mmap_mode="c")) for name in held
    }
    arrays.setdefault("kept_event", arrays["event"])
    members = {int(row): party for row, party in meta["members"].items()}
    alone = policy == "raw"
    return Events(
        lists,
        meta["starts"],
        **arrays,
        copies_speak_alone=alone,
        members=members,
        elsewhere=meta["elsewhere"],
    )
