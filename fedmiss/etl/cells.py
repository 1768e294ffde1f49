"""From a records folder to visits of a species, and to site x month cells of many, without storing zeros."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedmiss.errors import InputError
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


def species_visits(folder: str | Path, species: str) -> pl.LazyFrame:
    """Return the visits of one species: every checklist on which it was seen or may be read as a zero.

    A checklist without a record counts 0 where ``zero_ok`` says so, and is no visit elsewhere. A record without
    a count (X) is a detection with a missing count. Unvetted records and escapees make the visit missing. A
    species named as sensitive at ingest has no zeros.

    Returns
    -------
    lazy frame : the columns of ``checklists``, and ``count`` (null = seen, not counted) and ``detected``

    Raises
    ------
    InputError : a folder that is not of kind "records", or without the species
    """
    import polars as pl

    folder = Path(folder)
    entry = _known(folder, [species])[0]
    records = pl.scan_parquet(folder / "records.parquet").filter(pl.col("species") == entry["species"])
    joined = pl.scan_parquet(folder / "checklists.parquet").join(
        records.select("checklist_id", "count", "detected", "reason", seen=pl.lit(True)),
        on="checklist_id",
        how="left",
    )
    seen = pl.col("seen").is_not_null()
    missing = pl.col("reason").is_in(MISSING).fill_null(False)
    zero = pl.col("zero_ok") & pl.lit(bool(entry["zeros_allowed"]))
    return (
        joined.filter((seen & ~missing) | (~seen & zero))
        .with_columns(
            count=pl.when(seen).then("count").otherwise(pl.lit(0, pl.Int64)),
            detected=pl.col("detected").fill_null(False),
        )
        .drop("seen", "reason")
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
    lists = pl.scan_parquet(folder / "checklists.parquet").select(
        "checklist_id", "site_id", "zero_ok", month=pl.col("date").dt.truncate("1mo")
    )
    totals = lists.filter("zero_ok").group_by("site_id", "month").agg(n_zero_ok=pl.len().cast(pl.Int64))
    names = [e["species"] for e in entries]
    held = pl.col("reason").is_in(MISSING).fill_null(False)
    records = pl.scan_parquet(folder / "records.parquet").filter(pl.col("species").is_in(names))
    detections = (
        records.join(lists, on="checklist_id")
        .group_by("species", "site_id", "month")
        .agg(
            n_records=(~held).sum().cast(pl.Int64),
            n_on_zero_ok=pl.col("zero_ok").sum().cast(pl.Int64),
            n_counted=pl.col("count").is_not_null().sum().cast(pl.Int64),
            n_detected=(pl.col("detected") & ~held).sum().cast(pl.Int64),
            count_sum=pl.col("count").sum(),
        )
    )
    month = pl.col("month").dt.strftime("%Y-%m")
    done = pl.collect_all([totals, detections], engine="streaming")
    return Aggregate(
        done[0].with_columns(month).sort("site_id", "month"),
        done[1].with_columns(month).sort("species", "site_id", "month"),
        frozenset(e["species"] for e in entries if not e["zeros_allowed"]),
    )
