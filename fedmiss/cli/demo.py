"""``fedmiss demo``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["demo"]


def demo(
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder of all results.")] = Path("fedmiss-demo"),
    all_: Annotated[
        bool,
        typer.Option("--all", help="All species of the survey: their pages, and one that compares them."),
    ] = False,
    bootstrap: Annotated[
        int | None,
        typer.Option(
            help="Bootstrap replicates for the intervals; by default 200, with --all 100.", show_default=False
        ),
    ] = None,
    date: Annotated[
        str | None,
        typer.Option(help="Date printed on the report, as 2026-01-31; by default today.", show_default=False),
    ] = None,
    open_: Annotated[bool, typer.Option("--open", help="Open the report in the browser.")] = False,
) -> None:
    """Run the whole job on embedded data: great egrets in the Everglades. Needs no network and no file."""
    from fedmiss.cli.doctor import first_use
    from fedmiss.cli.run import conclude
    from fedmiss.pipeline.demo import run_all, run_demo

    first_use()
    if all_:
        results = run_all(out, bootstrap=bootstrap, date=date, say=typer.echo)
    else:
        results = [run_demo(out, bootstrap=bootstrap, date=date, say=typer.echo)]
    conclude(results)
    page = results[0].index if all_ else results[0].page
    if open_ and page is not None:
        typer.launch(page.resolve().as_uri())
