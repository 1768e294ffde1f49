"""A records folder as visits of a species, as site x month cells of many, and as a table for other programs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import polars as pl
import polars.selectors as cs

from fedmiss.atomic import atomic_file
from fedmiss.errors import ConfigError, InputError, listed, several
from fedmiss.etl.columns import did_you_mean, near_names, several_species
from fedmiss.files import making_files, read_manifest
from fedmiss.folders import SpeciesRow
from fedmiss.tables import load_schema

Entry = TypeVar("Entry", bound=Mapping[str, Any])  # with ``species`` and ``common_name``
# reasons of a blank count that make the whole visit missing: neither a detection nor a zero
MISSING = ("unvetted", "exotic")


def entry_of(entries: Sequence[Entry], name: str) -> Entry | None:
    """Return the entry of a manifest or table for a species, by scientific or common name; case does not matter.

    Raises
    ------
    ConfigError : a common name that several species have
    """
    key = name.strip().casefold()
    if scientific := [entry for entry in entries if key and entry["species"].casefold() == key]:
        return scientific[0]
    common = [entry for entry in entries if key and (entry["common_name"] or "").casefold() == key]
    if len(common) > 1:
        raise several_species(name, [entry["species"] for entry in common])
    return common[0] if common else None


def resolve_species(entries: list[SpeciesRow], wanted: str, folder: Path) -> SpeciesRow:
    """Return the same, or the only entry when no name is given; propose near names where there is none.

    Raises
    ------
    InputError : no species of that name, or none at all
    ConfigError : several species and no name
    """
    if not entries:
        raise InputError(f"{folder} holds no record of any species; loosen the filters of ingest.")
    if not wanted.strip():
        if len(entries) == 1:
            return entries[0]
        shown = ", ".join(entry["species"] for entry in entries[:8])
        raise ConfigError(f"{folder} holds {len(entries)} species ({shown}, ...); name one with --species.")
    if entry := entry_of(entries, wanted):
        return entry
    names = [name for entry in entries for name in (entry["common_name"], entry["species"]) if name]
    near = near_names(wanted.strip().casefold(), {name.casefold(): name for name in names})
    hint = did_you_mean(near, "`fedmiss inspect` lists the species.")
    raise InputError(f"the species {wanted!r} is not in {folder}. {hint}", species=wanted, near=near)


def _entries(folder: Path) -> list[SpeciesRow]:
    found: list[SpeciesRow] = read_manifest(folder, "records")["results"]["species"]
    return found


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
    folder = Path(folder)
    entry = None if absent else resolve_species(_entries(folder), species, folder)
    name, zeros_allowed = (entry["species"], entry["zeros_allowed"]) if entry else (species, True)
    records = pl.scan_parquet(folder / "records.parquet", glob=False).filter(pl.col("species") == name)
    joined = (
        pl.scan_parquet(folder / "checklists.parquet", glob=False)
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
    zero = pl.col("zero_ok") & pl.lit(zeros_allowed)
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
    folder = Path(folder)
    known = _entries(folder)
    wanted = [resolve_species(known, name, folder) for name in species] if species else known
    entries = list({entry["species"]: entry for entry in wanted}.values())
    lists, labels = _visited(folder / "checklists.parquet")
    asked = pl.Series([entry["species"] for entry in entries], dtype=pl.String)
    code = pl.col("species").cast(pl.Enum(asked), strict=False).to_physical().cast(pl.Int64)
    missing = pl.col("reason").is_in(MISSING).fill_null(False)
    row = pl.col("checklist_row")  # of ``lists``: gathered, which costs a sixth of a join
    detections = (
        pl.scan_parquet(folder / "records.parquet", glob=False)
        .select(
            key=code * _CELLS + pl.lit(lists["cell"]).gather(row),
            n_records=~missing,
            n_on_zero_ok=pl.lit(lists["zero_ok"]).gather(row),
            n_counted=pl.col("count").is_not_null(),
            n_detected=pl.col("detected") & ~missing,
            count_sum="count",
        )
        .drop_nulls("key")
        .sort("key")  # first: groups of sorted keys cost less than their sort afterwards
        .group_by("key", maintain_order=True)
        .agg(pl.col("^n_.*$").sum().cast(pl.Int64), pl.col("count_sum").sum())
        .with_columns(**labels(pl.col("key") % _CELLS), species=pl.lit(asked).gather(pl.col("key") // _CELLS))
        .select("species", "site_id", "month", pl.exclude("key", "species", "site_id", "month"))
        .collect()
    )
    totals = lists.filter("zero_ok").group_by("cell").agg(n_zero_ok=pl.len().cast(pl.Int64)).sort("cell")
    return Aggregate(
        totals.select(**labels(pl.col("cell")), n_zero_ok="n_zero_ok"), detections, without_zeros(entries)
    )


def without_zeros(entries: Iterable[Mapping[str, object]]) -> frozenset[str]:
    """Species of a records folder that were named as sensitive when it was made."""
    return frozenset(str(entry["species"]) for entry in entries if not entry["zeros_allowed"])


_CELLS = 1 << 40  # a species and a cell are one number


def _visited(path: Path) -> tuple[pl.DataFrame, Callable[[pl.Expr], dict[str, pl.Expr]]]:
    """Return cell and ``zero_ok`` of each checklist, and what gives the site_id and month of a cell.

    Cells are numbered by site id, then by month.
    """
    rows = pl.scan_parquet(path, glob=False)
    month = pl.col("date").dt.year() * 12 + pl.col("date").dt.month() - 1
    sites = rows.select(pl.col("site_id").unique().sort()).collect(engine="streaming")["site_id"]
    first, last = rows.select(first=month.min(), last=month.max()).collect().row(0)
    span = range(first, last + 1) if sites.len() else range(1)
    months = pl.Series([f"{month // 12:04d}-{month % 12 + 1:02d}" for month in span])
    place = pl.col("site_id").cast(pl.Enum(sites)).to_physical().cast(pl.Int64)
    lists = rows.select((place * len(span) + month - span.start).alias("cell"), "zero_ok")

    def labels(cell: pl.Expr) -> dict[str, pl.Expr]:
        return {
            "site_id": pl.lit(sites).gather(cell // len(span)),
            "month": pl.lit(months).gather(cell % len(span)),
        }

    return lists.collect(engine="streaming"), labels


def sites_of(visits: pl.DataFrame) -> pl.DataFrame:
    """The sites of visits or checklists, in no order: site_id, site_name, mean place, region."""
    return visits.group_by("site_id").agg(
        pl.col("site_name").drop_nulls().sort().first(),
        pl.col("latitude").mean(),
        _middle(pl.col("longitude")),
        pl.col("region").drop_nulls().sort().first(),
    )


def _middle(longitude: pl.Expr) -> pl.Expr:
    """Mean longitude, of a site on the 180th meridian too."""
    east = _eastward(longitude).mean()
    over = pl.when(east > 180.0).then(east - 360.0).otherwise(east)
    return pl.when(_width(longitude) > 180.0).then(over).otherwise(longitude.mean())


def _eastward(longitude: pl.Expr) -> pl.Expr:
    return pl.when(longitude < 0.0).then(longitude + 360.0).otherwise(longitude)


def _width(degrees: pl.Expr) -> pl.Expr:
    return degrees.max() - degrees.min()


FAR_APART = 0.9  # degrees of latitude between two places of one site: 100 km, more than a site has


def scattered(visits: pl.DataFrame) -> list[str]:
    """Say which sites have places far from each other: the mean of them is the place of none."""
    latitude, longitude = pl.col("latitude"), pl.col("longitude")
    narrow = pl.min_horizontal(_width(longitude), _width(_eastward(longitude)))
    far = (
        visits.group_by("site_id")
        .agg(north=_width(latitude), east=narrow * latitude.mean().radians().cos())
        .filter(pl.max_horizontal("north", "east") > FAR_APART)
        .sort("site_id")["site_id"]
        .to_list()
    )
    if not far:
        return []
    have, their = ("has", "its place is") if len(far) == 1 else ("have", "their places are")
    return [
        f"{several(len(far), 'site')} {have} places more than 100 km apart ({listed(far, 3)}); {their} "
        "the mean of them, which may be far from all. See whether latitude and longitude are swapped in some rows, or two "
        "sites have one name."
    ]


def export_table(
    records: str | Path,
    out: str | Path,
    species: str = "",
    *,
    zero_filled: bool = False,
    overwrite: bool = False,
) -> int:
    """Write a table with one row for each species on each checklist, effort beside it; return its number of rows.

    Parameters
    ----------
    out : ``.csv``, ``.txt`` (tabs) or ``.parquet``; in text, cells that a spreadsheet would run begin with ``'``
    species : scientific or common name; all when blank (zero-filled: may be blank when the records hold one)
    zero_filled : one row for each visit of the species; a count of 0 where it was looked for and not found

    Raises
    ------
    ConfigError    ``out`` is there and not to be overwritten, was not written by fedmiss, lies inside a folder of fedmiss,
        or has another ending; several species to fill with zeros
    InputError     no records folder, a damaged one, or no such species
    """
    folder, out = Path(records), Path(out)
    separators = {".csv": ",", ".txt": "\t", ".tsv": "\t", ".parquet": ""}
    if out.suffix.lower() not in separators:
        raise ConfigError(f"{out} has the ending {out.suffix!r} (must be {', '.join(separators)}).")
    with making_files(out, overwrite=overwrite):
        table = _table(folder, species, zero_filled=zero_filled)
        with atomic_file(out) as tmp:
            if out.suffix.lower() == ".parquet":
                table.collect().write_parquet(tmp)
            else:
                harmless(table).sink_csv(tmp, separator=separators[out.suffix.lower()])
        return int(table.select(pl.len()).collect().item())


def _table(folder: Path, species: str, *, zero_filled: bool) -> pl.LazyFrame:
    entries = read_manifest(folder, "records", verify=True)["results"]["species"]
    seen = pl.scan_parquet(folder / "records.parquet", glob=False)
    if zero_filled:
        entry = resolve_species(entries, species, folder)
        names = (pl.lit(entry["species"]).alias("species"), pl.lit(entry["common_name"]).alias("common_name"))
        table = species_visits(folder, entry["species"]).drop("exported").with_columns(*names)
        known = load_schema("records").names
        kept = seen.filter(pl.col("species") == entry["species"]).select("checklist_id", cs.exclude(known))
        table = table.join(kept, on="checklist_id", how="left", maintain_order="left")
    else:
        if species:
            seen = seen.filter(pl.col("species") == resolve_species(entries, species, folder)["species"])
        lists = pl.scan_parquet(folder / "checklists.parquet", glob=False).with_row_index("checklist_row")
        table = seen.with_columns(pl.col("checklist_row").cast(pl.UInt32)).join(
            lists, on=["checklist_row", "checklist_id"], how="left", maintain_order="left"
        )
        table = table.drop("checklist_row")
    return table


def harmless(table: pl.LazyFrame) -> pl.LazyFrame:
    """Put ' before texts that a spreadsheet would run as a formula: those that begin with = + - @, a tab or CR."""
    text = pl.col(pl.String)
    sign = pl.when(text.str.contains(r"^[=+\-@\t\r]")).then(pl.lit("'")).otherwise(pl.lit(""))
    return table.with_columns((sign + text).name.keep())
