"""``fedmiss table``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["table"]


def table(
    records: Annotated[Path, typer.Argument(help="Records folder.")] = Path("records"),
    out: Annotated[
        Path, typer.Option("--out", "-o", help="File to write: .csv, .txt (tabs) or .parquet.")
    ] = Path("records.csv"),
    species: Annotated[
        str, typer.Option("--species", "-s", help="Common or scientific name.", show_default="all")
    ] = "",
    zero_filled: Annotated[
        bool, typer.Option("--zero-filled", help="Every visit of one species: 0 where it was not detected.")
    ] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the file --out.")] = False,
) -> None:
    """Write records, or one species' visits with their zeros, as one table for other programs."""
    from fedmiss.etl.export import export_table

    rows = export_table(records, out, species, zero_filled=zero_filled, overwrite=overwrite)
    typer.echo(f"wrote {out}: {rows:,} rows.")
