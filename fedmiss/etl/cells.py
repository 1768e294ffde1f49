"""From a records folder to visits of a species, and to site x month cells of many, without storing zeros."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedmiss.arrays import I32, I64, U8, Bool
from fedmiss.errors import InputError
from fedmiss.etl.lookup import stable_order
from fedmiss.etl.memory import give_back
from fedmiss.files import read_manifest

if TYPE_CHECKING:
    import polars as pl

__all__ = ["Aggregate", "aggregate", "species_visits"]

# reasons of a blank count that make the whole visit missing: neither a detection nor a zero
MISSING = ("unvetted", "exotic")


def _known(folder: Path, wanted: Sequence[str]) -> list[dict[str, Any]]:
    """Return the manifest's entries of the species wanted, by scientific or common name."""
    entries = read_manifest(folder, "records")["results"]["species"]
    by_name: dict[str, dict[str, Any]] = {}
    for entry in entries:
        for name in (entry["common_name"], entry["species"]):
            if name:
                by_name[name.casefold()] = entry
    if not wanted:
        return list(entries)
    for name in wanted:
        if name.casefold() not in by_name:
            held = ", ".join(e["species"] for e in entries[:5])
            raise InputError(
                f"{folder} holds no species {name!r} (it holds {held}{', ...' if len(entries) > 5 else ''}); ingest "
                "it first.",
                species=name,
            )
    return [by_name[name.casefold()] for name in wanted]


def species_visits(folder: str | Path, species: str, *, absent: bool = False) -> pl.LazyFrame:
    """Return the visits of one species: every checklist on which it was seen or may be read as a zero.

    A checklist without a record counts 0 where ``zero_ok`` says so, and is no visit elsewhere. A record without
    a count (X) is a detection with a missing count. Unvetted records and escapees make the visit missing. A
    species named as sensitive at ingest has no zeros. With ``absent`` a species that is not held has zeros only.

    Returns
    -------
    lazy frame : the columns of ``checklists``, and ``count`` (null = seen, not counted), ``detected``, and ``exported``
    (whether the checklist is of an observer's own export)

    Raises
    ------
    InputError : a folder that is not of kind "records", or without the species
    """
    import polars as pl

    folder = Path(folder)
    entry = {"species": species, "zeros_allowed": True} if absent else _known(folder, [species])[0]
    records = pl.scan_parquet(folder / "records.parquet").filter(pl.col("species") == entry["species"])
    joined = (
        pl.scan_parquet(folder / "checklists.parquet")
        .with_row_index("checklist_row")
        .join(
            records.select(
                pl.col("checklist_row").cast(pl.UInt32), "count", "detected", "reason", seen=pl.lit(True)
            ),
            on="checklist_row",
            how="left",
            maintain_order="left",
        )
    )
    seen = pl.col("seen").is_not_null()
    missing = pl.col("reason").is_in(MISSING).fill_null(False)
    zero = pl.col("zero_ok") & pl.lit(bool(entry["zeros_allowed"]))
    return (
        joined.filter((seen & ~missing) | (~seen & zero))
        .with_columns(
            count=pl.when(seen).then("count").otherwise(pl.lit(0, pl.Int64)),
            detected=pl.col("detected").fill_null(False),
            exported=pl.lit(read_manifest(folder)["settings"].get("exported", False)),
        )
        .drop("checklist_row", "seen", "reason")
    )


@dataclass(frozen=True, slots=True)
class Aggregate:
    """Cells of many species, sparse: what holds for all species once, what differs per species apart.

    ``totals`` : site_id, month, n_zero_ok (checklists that give a zero to a species they do not list)
    ``detections`` : species, site_id, month, n_records, n_on_zero_ok (records that take the place of a zero),
    n_counted, n_detected, count_sum
    ``no_zeros`` : species that may have no zeros
    """

    totals: pl.DataFrame
    detections: pl.DataFrame
    no_zeros: frozenset[str]

    def cells(self, species: str) -> pl.DataFrame:
        """Return the visited cells of one species: site_id, month, n_visits, n_counted, n_detected, count_sum."""
        import polars as pl

        mine = self.detections.filter(pl.col("species") == species).drop("species")
        totals = self.totals if species not in self.no_zeros else self.totals.clear()
        both = totals.join(mine, on=["site_id", "month"], how="full", coalesce=True).with_columns(
            pl.exclude("site_id", "month").fill_null(0)
        )
        zeros = pl.col("n_zero_ok") - pl.col("n_on_zero_ok")
        if species in self.no_zeros:
            zeros = pl.lit(0)
        return (
            both.select(
                "site_id",
                "month",
                n_visits=zeros + pl.col("n_records"),
                n_counted=zeros + pl.col("n_counted"),
                n_detected="n_detected",
                count_sum="count_sum",
            )
            .filter(pl.col("n_visits") > 0)
            .sort("site_id", "month")
        )


def aggregate(folder: str | Path, species: Sequence[str] = ()) -> Aggregate:
    """Count visits and birds by site and month for some species, or all of a records folder.

    Zeros are never made: a checklist that may give zeros is counted once for its cell, whatever the number of
    species. Months are 'YYYY-MM'.

    Raises
    ------
    InputError : a folder that is not of kind "records", or without one of the species
    """
    import polars as pl

    folder = Path(folder)
    entries = _known(folder, species)
    names, site, month, zero_ok = _visited(folder / "checklists.parquet")
    base = int(month.min()) if month.size else 0
    width = int(month.max()) - base + 1 if month.size else 1
    months = pl.Series([f"{m // 12:04d}-{m % 12 + 1:02d}" for m in range(base, base + width)])
    key = site.astype(np.int64)
    key *= width
    key += month
    key -= base
    del site, month
    # each visited cell once, in order: so everything below is in order too
    keys, cell, n_zero_ok = _numbered(key, zero_ok)
    del key
    give_back()

    def labels(mine: I64) -> dict[str, pl.Series]:
        return {"site_id": names.gather(mine // width), "month": months.gather(mine % width)}

    wanted = pl.Series([e["species"] for e in entries], dtype=pl.String)
    columns: dict[str, list[Any]] = {"species": [], "cell": [], "flags": [], "count": []}
    for code, row, held, counted, detected, count in _batches(folder / "records.parquet", wanted):
        columns["species"].append(code.astype(np.int32))
        columns["cell"].append(cell[row])
        columns["flags"].append(_flags(~held, zero_ok[row], counted, detected & ~held))
        columns["count"].append(count)
    del cell, zero_ok
    give_back()
    sums = _sums_by_species({k: _joined(v) for k, v in columns.items()}, wanted.len())
    detections = pl.DataFrame(
        {
            "species": wanted.gather(sums.pop("species")),
            **labels(keys[sums.pop("cell")]),
            **{k: sums.pop(k).astype(np.int64, copy=False) for k in _SUMS},
        }
    )
    some = n_zero_ok > 0
    return Aggregate(
        pl.DataFrame({**labels(keys[some]), "n_zero_ok": n_zero_ok[some]}),
        detections,
        frozenset(e["species"] for e in entries if not e["zeros_allowed"]),
    )


def _numbered(key: I64, marked: Bool) -> tuple[I64, I32, I64]:
    """Return the distinct keys in order, of each key its place among them, and how many of each are marked.

    ``key`` is used up: it and its row are packed into one number where they fit, sorted in place, and looked at
    in slices, so that no copies of it are made.
    """
    n = key.size
    shift = max(n - 1, 0).bit_length()
    if not n or int(key.max()).bit_length() + shift > 63:
        distinct, at = np.unique(key, return_inverse=True)
        n_of = np.bincount(at[marked], minlength=distinct.size).astype(np.int64)
        return distinct, at.astype(np.int32), n_of
    key <<= shift
    for i in range(0, n, SLICE):
        key[i : i + SLICE] |= np.arange(i, min(i + SLICE, n))
    key.sort()
    place = np.empty(n, dtype=np.int32)
    found: list[I64] = []
    n_marked: list[I64] = []
    last, held = -1, 0  # the key of the row before, and how many keys were met
    for i in range(0, n, SLICE):
        packed = key[i : i + SLICE]
        value, row = packed >> shift, packed & ((1 << shift) - 1)
        new = np.empty(value.size, dtype=np.bool_)
        new[0] = value[0] != last
        new[1:] = value[1:] != value[:-1]
        at = np.cumsum(new) - 1  # -1 is the last key of the slice before
        place[row] = at + held
        counts = np.bincount(at + 1, weights=marked[row], minlength=int(at[-1]) + 2).astype(np.int64)
        if n_marked:
            n_marked[-1][-1] += counts[0]
        if counts.size > 1:
            n_marked.append(counts[1:])
            found.append(value[new])
        last, held = int(value[-1]), held + int(at[-1]) + 1
    return _joined(found), place, _joined(n_marked)


SLICE = 1 << 19  # rows looked at together
_NO_KEYS = np.zeros(0, dtype=np.int64)
_FLAGS = ("n_records", "n_on_zero_ok", "n_counted", "n_detected")
_SUMS = (*_FLAGS, "count_sum")


def _flags(*masks: Bool) -> U8:
    """Pack one bit per mask, in the order of ``_FLAGS``."""
    out = np.zeros(masks[0].size, dtype=np.uint8)
    for k, mask in enumerate(masks):
        out |= mask.view(np.uint8) << np.uint8(k)
    return out


def _joined(parts: list[Any]) -> Any:
    """Put the parts behind each other; ``parts`` is emptied, so that they are not in memory twice for long."""
    out = np.concatenate(parts) if parts else _NO_KEYS
    parts.clear()
    return out


def _sums_by_species(columns: dict[str, Any], n_species: int) -> dict[str, Any]:
    """Add up records by species and cell; the result is in the order of species, then of cells."""
    order = np.argsort(
        columns["species"].astype(np.uint16 if n_species < 1 << 16 else np.int64), kind="stable"
    )
    edges = np.concatenate([[0], np.cumsum(np.bincount(columns.pop("species"), minlength=n_species))])
    found: dict[str, list[Any]] = {k: [] for k in ("species", "cell", *_SUMS)}
    for species in range(n_species):
        mine = order[edges[species] : edges[species + 1]]
        if not mine.size:
            continue
        cell = columns["cell"][mine]
        by_cell = stable_order(cell)
        mine, cell = mine[by_cell], cell[by_cell]
        new = np.ones(cell.size, dtype=np.bool_)
        new[1:] = cell[1:] != cell[:-1]
        first = np.flatnonzero(new)
        flags = columns["flags"][mine]
        found["species"].append(np.full(first.size, species, dtype=np.int32))
        found["cell"].append(cell[first])
        for k, name in enumerate(_FLAGS):
            found[name].append(np.add.reduceat((flags >> np.uint8(k)) & np.uint8(1), first, dtype=np.int32))
        found["count_sum"].append(np.add.reduceat(columns["count"][mine], first))
    return {k: _joined(v) for k, v in found.items()}


def _plain(array: Any) -> pl.Series:
    """Turn an arrow array into a series by way of a table: otherwise polars loads arrow's compute functions."""
    import polars as pl
    import pyarrow as pa

    return pl.DataFrame(pa.table({"values": array}))["values"]


def _visited(path: Path) -> tuple[pl.Series, I32, I32, Bool]:
    """Return the site ids in order, and of each checklist its site's place, month (since year 0) and ``zero_ok``."""
    import polars as pl
    import pyarrow.parquet as pq

    # polars numbers names as they are met, for as long as a series has this type
    numbered = pl.Series(dtype=pl.Categorical(pl.Categories.random()))
    found: list[pl.Series] = []
    n_sites = at = 0

    with pq.ParquetFile(path, read_dictionary=["site_id"]) as file:
        n = file.metadata.num_rows
        code, month = np.empty(n, dtype=np.int32), np.empty(n, dtype=np.int32)
        zero_ok = np.empty(n, dtype=np.bool_)
        for i in range(file.num_row_groups):
            table = file.read_row_group(i, columns=["site_id", "date", "zero_ok"])
            rest = pl.DataFrame(table.drop_columns(["site_id"]))
            rows = slice(at, at + rest.height)
            month[rows] = rest["date"].to_numpy().astype("M8[M]").astype(np.int32) + 1970 * 12
            zero_ok[rows] = rest["zero_ok"].to_numpy()
            for part in table["site_id"].chunks:
                mine = _plain(part.dictionary)
                number = mine.cast(numbered.dtype).to_physical().to_numpy()
                code[at : at + len(part)] = number[_plain(part.indices).to_numpy()]
                at += len(part)
                found.append(mine.filter(number >= n_sites))
                n_sites += found[-1].len()
    names = pl.concat([pl.Series(dtype=pl.String), *found]).rename("site_id")
    order = names.arg_sort()
    rank = np.empty(n_sites, dtype=np.int32)
    rank[order.to_numpy()] = np.arange(n_sites, dtype=np.int32)
    for i in range(0, n, SLICE):
        code[i : i + SLICE] = rank[code[i : i + SLICE]]
    return names.gather(order), code, month, zero_ok


def _batches(path: Path, wanted: pl.Series) -> Iterator[tuple[Any, ...]]:
    """Read the records of some species, row group by row group.

    Yields
    ------
    place in ``wanted``, row of the checklist, whether the visit is missing, counted, detected, count (0 if blank)
    """
    import polars as pl
    import pyarrow.parquet as pq

    place = {name: i for i, name in enumerate(wanted.to_list())}
    with pq.ParquetFile(path, read_dictionary=["species", "reason"]) as file:
        for i in range(file.num_row_groups):
            columns = ["species", "reason", "checklist_row", "count", "detected"]
            table = file.read_row_group(i, columns=columns).combine_chunks()
            if not table.num_rows:
                continue
            species, reason = (table[c].chunk(0) for c in columns[:2])
            names = species.dictionary.to_pylist()
            code = np.array([place.get(n, -1) for n in names], np.int64)[_plain(species.indices).to_numpy()]
            bad = np.array([*(r in MISSING for r in reason.dictionary.to_pylist()), False])
            held = bad[_plain(reason.indices).fill_null(bad.size - 1).to_numpy()]
            rest = pl.DataFrame(table.drop_columns(columns[:2]))
            mine: Any = slice(None) if (code >= 0).all() else np.flatnonzero(code >= 0)
            count = rest["count"]
            yield (
                code[mine],
                rest["checklist_row"].to_numpy()[mine],
                held[mine],
                count.is_not_null().to_numpy()[mine],
                rest["detected"].to_numpy()[mine],
                count.fill_null(0).to_numpy()[mine],
            )
