"""``fedmiss ingest``: records in, a records folder out."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedmiss.cli.options import Out, options_of
from fedmiss.etl.filters import Filters
from fedmiss.etl.settings import IngestSettings, ingest_settings

if TYPE_CHECKING:
    from fedmiss.files import Manifest

__all__ = ["ingest"]


@options_of(Filters, IngestSettings, make=dict)
def ingest(
    files: Annotated[
        list[Path],
        typer.Argument(
            help="EBD text, MyEBirdData.csv, GBIF occurrences, a table of counts (site, year[, month], count), or any other "
            "CSV or parquet with --map. "
            "Plain, .gz, .zip or .tar, as downloaded; a sampling file may be among them.",
            show_default=False,
        ),
    ],
    out: Out = Path("records"),
    sampling: Annotated[
        list[Path] | None,
        typer.Option(help="eBird sampling event file; without it there are no zeros.", show_default=False),
    ] = None,
    unvetted: Annotated[
        list[Path] | None,
        typer.Option(
            help="eBird file of unvetted or provisional records: they prevent zeros.", show_default=False
        ),
    ] = None,
    preset: Annotated[
        str | None,
        typer.Option(help="Named filters: best-practices-v1 or best-practices-v2.", show_default=False),
    ] = None,
    *,
    settings: dict[str, Any],
    cache: Annotated[
        Path | None,
        typer.Option(
            help="Folder for data that a second ingest can reuse.", show_default=".fedmiss-cache beside --out"
        ),
    ] = None,
    no_cache: Annotated[bool, typer.Option("--no-cache", help="Store nothing for a second ingest.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the folder --out.")] = False,
) -> None:
    """Read bird records, apply the rules for zeros, and write a records folder."""
    from fedmiss.etl.ingest import ingest as run_ingest

    manifest = run_ingest(
        files,
        out,
        ingest_settings(settings | {"preset": preset}),
        sampling=sampling or (),
        unvetted=unvetted or (),
        cache=cache,
        keep_cache=not no_cache,
        overwrite=overwrite,
    )
    _show(manifest, out)


def _show(manifest: Manifest, out: Path) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    for warning in manifest["warnings"]:
        typer.echo(f"note: {warning}", err=True)
    if not console.is_terminal:  # lines that other programs can read
        for row in manifest["flow"]:
            typer.echo(f"{row['rows']:>12}  {row['step']}" + (f"  ({row['note']})" if row["note"] else ""))
    else:
        flow = Table("step", title="Row flow", title_justify="left")
        flow.add_column("rows", justify="right")
        flow.add_column("note", style="dim")
        for row in manifest["flow"]:
            flow.add_row(
                row["step"], f"{row['rows']:,}", row["note"], end_section=row["step"].endswith(": written")
            )
        console.print(flow)
    typer.echo(f"{'species':<32}{'records':>10}{'X':>8}{'zeros':>10}{'visits':>10}")
    listed = sorted(manifest["results"]["species"], key=lambda s: -s["records"])
    for species in listed[:20]:
        name = species["common_name"] or species["species"]
        typer.echo(
            f"{name[:31]:<32}{species['records']:>10}{species['x']:>8}{species['zeros']:>10}{species['visits']:>10}"
        )
    if len(listed) > 20:
        typer.echo(f"... and {len(listed) - 20} more species")
    typer.echo(f"wrote {out}. Cite: {manifest['terms']['citation']}")
