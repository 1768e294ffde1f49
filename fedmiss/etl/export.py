"""A records folder as one table for other programs: what was detected, or every visit of one species with its zeros."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import polars.selectors as cs

from fedmiss.errors import ConfigError
from fedmiss.etl.cells import resolve_species, species_visits
from fedmiss.files import atomic_file, making_files, read_manifest
from fedmiss.tables import load_schema


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
    seen = pl.scan_parquet(folder / "records.parquet")
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
        lists = pl.scan_parquet(folder / "checklists.parquet").with_row_index("checklist_row")
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
