"""``fedmiss run``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from fedmiss.pipeline.chain import SpeciesResult

__all__ = ["conclude", "run"]


def run(
    recipe: Annotated[Path, typer.Argument(help="TOML recipe; see pipelines/ for examples.")],
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", help="Folder of all results; default as in the recipe.", show_default=False
        ),
    ] = None,
    jobs: Annotated[
        int | None, typer.Option(help="Species at a time; by default one per core.", show_default=False)
    ] = None,
    scheduler: Annotated[
        str | None,
        typer.Option(
            help="Distribute species over your Dask cluster, as tcp://host:8786.",
            show_default="processes here",
        ),
    ] = None,
) -> None:
    """Run a recipe from records to report; repeat only what changed, continue after an interruption."""
    from fedmiss.cli.doctor import first_use
    from fedmiss.pipeline.chain import input_files, run_recipe
    from fedmiss.pipeline.recipe import read_recipe

    plan = read_recipe(recipe, out)
    input_files(plan)  # a missing file is an error before anything else is printed
    first_use()
    conclude(run_recipe(plan, say=typer.echo, jobs=jobs, scheduler=scheduler))


def conclude(results: list[SpeciesResult]) -> None:
    """Say what was found and where the pages are, then what became of every species; exit 1 when one failed."""
    from fedmiss.files import read_manifest

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
    from fedmiss.files import MANIFEST, read_manifest

    if result.page is None:
        return f"failed at {result.step}"
    # The page's manifest has the sentence; whether the fit converged is the fit's to say.
    results = read_manifest(result.page.parent)["results"]
    fit = result.folder / "fit"
    known = {} if not (fit / MANIFEST).exists() else read_manifest(fit, "fit")["results"]
    outcome = str(results.get("headline", "") or "done")
    return (
        outcome if known.get("converged", True) else f"{outcome} (its fit did not converge; see the report)"
    )
