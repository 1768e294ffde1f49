"""The steps from records to pages, and what runs them one after the other."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from fedmiss.cli.doctor import first_use
from fedmiss.cli.options import Language, Out, Overwrite, Unit, options_of
from fedmiss.cli.show import say_written
from fedmiss.community.settings import CommunitySettings
from fedmiss.errors import several
from fedmiss.etl.filters import Filters
from fedmiss.etl.settings import IngestSettings, PanelSettings, ingest_settings
from fedmiss.files import MANIFEST, Manifest, read_manifest
from fedmiss.pipeline.settings import FitSettings, ImputeSettings
from fedmiss.report.settings import ReportSettings

if TYPE_CHECKING:
    from fedmiss.pipeline.failures import SpeciesResult

_Panel = Annotated[Path, Argument(help="Panel folder.")]


def demo(
    out: Path = Option(Path("fedmiss-demo"), "--out", "-o", help="Folder of all results."),
    all_: bool = Option(
        False, "--all", help="All species of the survey: their pages, and one that compares them."
    ),
    bootstrap: int | None = Option(
        None,
        help="Bootstrap replicates for the intervals; by default 200, with --all 100.",
        show_default=False,
    ),
    date: str | None = Option(
        None, help="Date printed on the report, as 2026-01-31; by default today.", show_default=False
    ),
    open_: bool = Option(False, "--open", help="Open the report in the browser."),
) -> None:
    """Run the whole job on embedded data: great egrets in the Everglades. Needs no network and no file."""
    from fedmiss.pipeline.demo import run_demo

    first_use()
    results = run_demo(out, every_species=all_, bootstrap=bootstrap, date=date, say=typer.echo)
    conclude(results)
    page = results[0].index if all_ else results[0].page
    if open_ and page is not None:
        typer.launch(page.resolve().as_uri())


@options_of(Filters, IngestSettings, make=dict)
def ingest(
    files: list[Path] = Argument(
        help="EBD text, MyEBirdData.csv, GBIF occurrences, a table of counts (site, year[, month], count), or any other "
        "CSV or parquet with --map. "
        "Plain, .gz, .zip or .tar, as downloaded; a sampling file may be among them.",
        show_default=False,
    ),
    out: Out = Path("records"),
    sampling: list[Path] | None = Option(
        None, help="eBird sampling event file; without it there are no zeros.", show_default=False
    ),
    unvetted: list[Path] | None = Option(
        None, help="eBird file of unvetted or provisional records: they prevent zeros.", show_default=False
    ),
    preset: str | None = Option(
        None, help="Named filters: best-practices-v1 or best-practices-v2.", show_default=False
    ),
    *,
    settings: dict[str, Any],
    cache: Path | None = Option(
        None,
        help="Folder for data that a second ingest can reuse.",
        show_default=".fedmiss-cache beside --out",
    ),
    no_cache: bool = Option(False, "--no-cache", help="Store nothing for a second ingest."),
    overwrite: bool = Option(False, "--overwrite", help="Replace the folder --out."),
) -> None:
    """Read bird records, apply the rules for zeros, and write a records folder."""
    from fedmiss.etl.ingest import ingest as run_ingest

    manifest = run_ingest(
        files, out, ingest_settings(settings | {"preset": preset}), sampling=sampling or (),
        unvetted=unvetted or (), cache=cache, keep_cache=not no_cache, overwrite=overwrite,
    )  # fmt: skip
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


def table(
    records: Path = Argument(Path("records"), help="Records folder."),
    out: Path = Option(
        Path("records.csv"), "--out", "-o", help="File to write: .csv, .txt (tabs) or .parquet."
    ),
    species: str = Option("", "--species", "-s", help="Common or scientific name.", show_default="all"),
    zero_filled: bool = Option(
        False, "--zero-filled", help="Every visit of one species: 0 where it was not detected."
    ),
    overwrite: bool = Option(False, "--overwrite", help="Replace the file --out."),
) -> None:
    """Write records, or one species' visits with their zeros, as one table for other programs."""
    from fedmiss.etl.cells import export_table

    rows = export_table(records, out, species, zero_filled=zero_filled, overwrite=overwrite)
    typer.echo(f"wrote {out}: {several(rows, 'row')}.")


@options_of(PanelSettings)
def panel(
    records: list[Path] = Argument(help="Records folder made by ingest; several make one group each."),
    out: Out = Path("panel"),
    *,
    settings: PanelSettings,
    overwrite: Overwrite = False,
) -> None:
    """Turn records into the panel of one species: visits of observer, site and month, in groups."""
    from fedmiss.etl.panel import make_panel

    say_written(make_panel(records, out, settings, overwrite=overwrite), *records)


@options_of(FitSettings)
def fit(
    panel: _Panel, out: Out = Path("fit"), *, settings: FitSettings, overwrite: Overwrite = False
) -> None:
    """Fit the model of a panel over its groups; after an interruption, run it again to continue."""
    from fedmiss.pipeline.fitting import fit_panel

    say_written(fit_panel(panel, out, settings, overwrite=overwrite), panel)


@options_of(ImputeSettings)
def impute(
    panel: _Panel,
    fit: Path = Argument(help="Fit folder of this panel."),
    out: Out = Path("imputed"),
    *,
    settings: ImputeSettings,
    overwrite: Overwrite = False,
) -> None:
    """Write the expected count of every site and month at standard effort, with intervals, and draws if asked for."""
    from fedmiss.pipeline.imputing import impute_panel

    say_written(impute_panel(panel, fit, out, settings, overwrite=overwrite), panel, fit)


@options_of(ReportSettings)
def report(
    panel: Path = Option(Path("panel"), "--panel", help="Folder made by `fedmiss panel`."),
    fit: Path = Option(Path("fit"), "--fit", help="Folder made by `fedmiss fit`."),
    imputed: Path = Option(Path("imputed"), "--imputed", help="Folder made by `fedmiss impute`."),
    out: Out = Path("report"),
    *,
    settings: ReportSettings,
    json: bool = Option(False, "--json", help="Print the results as JSON."),
    open_: bool = Option(False, "--open", help="Open the page in the browser."),
    overwrite: bool = Option(False, "--overwrite", help="Replace an existing report."),
) -> None:
    """Write the trend report of a fitted species: one HTML page, figures, tables, exchange files."""
    import json as to_json

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


def own(
    panel: _Panel,
    fit: Path = Argument(help="Fit folder of this panel, made with --own."),
    group: str = Option(..., "--group", help="Name of the group: its folder in the panel."),
    out: Out = Path("own"),
    unit: Unit = "birds",
    language: Language = None,
    overwrite: Overwrite = False,
) -> None:
    """Make one group's own report: its sites, its imputed matrix, its map; nothing of any other group's sites."""
    from fedmiss.pipeline.own import own_report

    say_written(own_report(panel, fit, group, out, unit=unit, language=language, overwrite=overwrite))


def run(
    recipe: Path = Argument(help="TOML recipe; see pipelines/ for examples."),
    out: Path | None = Option(
        None, "--out", "-o", help="Folder of all results; default as in the recipe.", show_default=False
    ),
    jobs: int | None = Option(None, help="Species at a time; by default one per core.", show_default=False),
    scheduler: str | None = Option(
        None,
        help="Distribute species over your Dask cluster, as tcp://host:8786.",
        show_default="processes here",
    ),
) -> None:
    """Run a recipe from records to report; repeat only what changed, continue after an interruption."""
    from fedmiss.pipeline.chain import input_files, run_recipe
    from fedmiss.pipeline.recipe import read_recipe

    plan = read_recipe(recipe, out)
    input_files(plan)  # a missing file is an error before anything else is printed
    first_use()
    conclude(run_recipe(plan, say=typer.echo, jobs=jobs, scheduler=scheduler))


def conclude(results: list[SpeciesResult]) -> None:
    """Say what was found and where the pages are, then what became of every species; exit 1 when one failed."""
    done = [result for result in results if result.page is not None]
    if len(results) == 1:
        for result in done:
            assert result.page is not None
            found = read_manifest(result.page.parent)["results"].get("headline", "")
            typer.echo(f"\n{found}\nReport: {result.page.resolve()}")
    else:
        typer.echo("")
        width = max(len(result.species) for result in results)
        for result in results:
            typer.echo(f"{result.species:<{width}}  {_became(result)}")
        if results[0].index is not None:
            typer.echo(
                f"{len(done)} of {len(results)} species done. All species: {results[0].index.resolve()}"
            )
    failed = [result for result in results if result.page is None]
    if failed:
        for result in failed:
            typer.echo(
                f"{result.species}: failed at {result.step}. {result.error}\n  Next: {result.next}", err=True
            )
        raise typer.Exit(1)


def _became(result: SpeciesResult) -> str:
    if result.page is None:
        return f"failed at {result.step}"
    # The page's manifest has the sentence; whether the fit converged is the fit's to say.
    results = read_manifest(result.page.parent)["results"]
    fit = result.folder / "fit"
    known = {} if not (fit / MANIFEST).exists() else read_manifest(fit, "fit")["results"]
    # without a class the sentence begins with the name, which the line has already
    outcome = str(results.get("headline", "") or "done").removeprefix(f"{result.species}: ")
    return (
        outcome if known.get("converged", True) else f"{outcome} (its fit did not converge; see the report)"
    )


@options_of(CommunitySettings)
def community(
    records: Path = Argument(help="Records folder with all species of complete checklists."),
    out: Out = Path("community"),
    *,
    settings: CommunitySettings,
    overwrite: Overwrite = False,
) -> None:
    """Fit all species of complete checklists together: axes of the sites, associations, richness, and a page."""
    from fedmiss.community.run import build_community

    made = build_community(records, out, settings, overwrite=overwrite)
    say_written(made, records)
    typer.echo(f"Page: {made / 'index.html'}")
