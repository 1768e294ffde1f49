"""``fedmiss report``: the page, figures and tables of one species."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedmiss.cli.options import Out, options_of
from fedmiss.report.settings import ReportSettings

__all__ = ["report"]


@options_of(ReportSettings)
def report(
    panel: Annotated[Path, typer.Option("--panel", help="Folder made by `fedmiss panel`.")] = Path("panel"),
    fit: Annotated[Path, typer.Option("--fit", help="Folder made by `fedmiss fit`.")] = Path("fit"),
    imputed: Annotated[Path, typer.Option("--imputed", help="Folder made by `fedmiss impute`.")] = Path(
        "imputed"
    ),
    out: Out = Path("report"),
    *,
    settings: ReportSettings,
    json: Annotated[bool, typer.Option("--json", help="Print the results as JSON.")] = False,
    open_: Annotated[bool, typer.Option("--open", help="Open the page in the browser.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing report.")] = False,
) -> None:
    """Write the trend report of a fitted species: one HTML page, figures, tables, exchange files."""
    import json as to_json

    from fedmiss.files import read_manifest
    from fedmiss.report.build import build_report

    path = build_report(panel, fit, imputed, out, settings, overwrite=overwrite)
    results = read_manifest(out, "report")["results"]
    if json:
        typer.echo(to_json.dumps(results | {"page": str(path)}, indent=2, ensure_ascii=False))
    else:
        typer.echo(results["headline"])
        typer.echo(path)
    if open_:
        typer.launch(Path(path).resolve().as_uri())
