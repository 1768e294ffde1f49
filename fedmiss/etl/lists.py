"""The checklists of an import, made once for each choice of files, filters, sites and policy."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedmiss.etl.filters import Filters
from fedmiss.etl.projection import VERSION, Projection
from fedmiss.etl.select import Events, write_checklists
from fedmiss.files import atomic_folder, hash_file, hash_json, read_json, write_json

if TYPE_CHECKING:
    import polars as pl

__all__ = ["make_checklists"]

_ARRAYS = ("fate", "event", "kept_row", "group", "group_row", "kept_event", "written_row")


def make_checklists(
    lists: list[Projection],
    path: Path,
    *,
    filters: Filters,
    policy: str,
    site_km: float | None,
    presence_only: bool,
    shared: pl.DataFrame | None,
    cache: Path | None,
) -> tuple[Events, dict[str, int], list[str]]:
    """Write ``checklists.parquet``, or take the one that an earlier import with the same choices has left.

    Returns
    -------
    events : the fate of every checklist
    counts : rows by step of the flow
    unmatched : sentences on filter values that no row has
    """
    kept = None
    if cache is not None:
        choices = {
            "version": VERSION,
            "sources": [p.folder.name for p in lists],
            "filters": asdict(filters),
            "polygon": hash_file(filters.polygon)
            if filters.polygon and Path(filters.polygon).is_file()
            else None,
            "policy": policy,
            "site_km": site_km,
            "presence_only": presence_only,
            "shared": shared.rows() if shared is not None else None,
        }
        kept = cache / f"lists-{hash_json(choices)[:24]}"
        if (kept / "meta.json").exists():
            meta = read_json(kept / "meta.json")
            with np.load(kept / "events.npz") as arrays:
                events = Events(
                    lists,
                    meta["starts"],
                    **{k: arrays[k] for k in _ARRAYS},
                    copies_speak_alone=policy == "raw",
                    steps=meta["steps"],
                )
            shutil.copyfile(kept / "checklists.parquet", path)
            return events, meta["counts"], meta["unmatched"]
    events = Events.load(lists, policy, shared)
    counts = write_checklists(events, filters, site_km, presence_only=presence_only, path=path)
    unmatched = filters.unmatched(events.seen)
    if kept is not None:
        with atomic_folder(kept) as folder:
            shutil.copyfile(path, folder / "checklists.parquet")
            np.savez(folder / "events.npz", **{k: getattr(events, k) for k in _ARRAYS})
            meta = {"starts": events.starts, "steps": events.steps, "counts": counts, "unmatched": unmatched}
            write_json(folder / "meta.json", json.loads(json.dumps(meta)))
    return events, counts, unmatched
