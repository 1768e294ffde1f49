"""``fedmiss report``: the page, figures and tables of one species."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["report"]


def report(
    panel: Annotated[Path, typer.Option("--panel", help="Folder made by `fedmiss panel`.")] = Path("panel"),
    fit: Annotated[Path, typer.Option("--fit", help="Folder made by `fedmiss fit`.")] = Path("fit"),
    imputed: Annotated[Path, typer.Option("--imputed", help="Folder made by `fedmiss impute`.")] = Path(
        "imputed"
    ),
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder to make.")] = Path("report"),
    base: Annotated[
        str | None,
        typer.Option(
            "--base",
            help="Base of the index: a year or a range, 2010 or 2005-2010. [default: first complete year]",
        ),
    ] = None,
    rule: Annotated[
        str, typer.Option("--rule", help="Rule of the trend classes: pecbms or rtrim.")
    ] = "pecbms",
    convention: Annotated[
        str,
        typer.Option(
            "--convention",
            help="Error of the trend: long-term (the scatter of years is part of it) or trim (it is not, as in TRIM).",
        ),
    ] = "long-term",
    min_counts: Annotated[
        int,
        typer.Option(
            "--min-counts",
            help="Site-months that must be counted in a year of the index; twice as many in its base.",
        ),
    ] = 5,
    min_sites: Annotated[
        int,
        typer.Option(
            "--min-sites",
            help="Sites that must be counted in a year of the index; twice as many in its base.",
        ),
    ] = 3,
    date: Annotated[
        str | None,
        typer.Option(
            "--date",
            help="Date printed on the report, YYYY-MM-DD; fix it to get the same bytes again. [default: today]",
        ),
    ] = None,
    span: Annotated[
        float | None,
        typer.Option("--span", help="Span of the LOESS curve, 0 to 1. [default: by cross-validation]"),
    ] = None,
    coarse_map: Annotated[
        float,
        typer.Option(
            "--coarse-map",
            help="Round positions of sites to so many degrees, and withhold their names (0: exact).",
        ),
    ] = 0.0,
    title: Annotated[
        str | None, typer.Option("--title", help="Title of the page. [default: the species]")
    ] = None,
    unit: Annotated[
        str, typer.Option("--unit", help="What was counted: birds, nests, pairs, territories, or any word.")
    ] = "birds",
    trim: Annotated[
        bool, typer.Option("--trim", help="Show TRIM's index (model 3) of the same counts beside fedmiss's.")
    ] = False,
    photo: Annotated[
        str | None, typer.Option("--photo", help="A picture (JPEG or PNG) for the top of the page.")
    ] = None,
    photo_credit: Annotated[
        str, typer.Option("--photo-credit", help="Who took the picture, and its licence.")
    ] = "",
    author: Annotated[str, typer.Option("--author", help='Who publishes the report, for "cite as".')] = "",
    url: Annotated[
        str, typer.Option("--url", help="Where the report will stand, for links and share images.")
    ] = "",
    json: Annotated[bool, typer.Option("--json", help="Print the results as JSON.")] = False,
    open_: Annotated[bool, typer.Option("--open", help="Open the page in the browser.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a report that is there.")] = False,
) -> None:
    """Write the trend report of a fitted species: one HTML page, figures, tables, exchange files."""
    import json as to_json

    from fedmiss.files import read_manifest
    from fedmiss.report.analysis import ReportSettings
    from fedmiss.report.build import build_report

    settings = ReportSettings(
        base=base, rule=rule, convention=convention, min_counts=min_counts, min_sites=min_sites, date=date, span=span,
        coarse_map=coarse_map, title=title, unit=unit, trim=trim, photo=photo, photo_credit=photo_credit, author=author,
        url=url,
    )  # fmt: skip
    path = build_report(panel, fit, imputed, out, settings, overwrite=overwrite)
    results = read_manifest(out, "report")["results"]
    if json:
        typer.echo(to_json.dumps(results | {"page": str(path)}, indent=2, ensure_ascii=False))
    else:
        typer.echo(results["headline"])
        typer.echo(path)
    if open_:
        typer.launch(Path(path).resolve().as_uri())
