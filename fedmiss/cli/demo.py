"""``fedmiss demo``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["demo"]


def demo(
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder of all results.")] = Path("fedmiss-demo"),
    bootstrap: Annotated[int, typer.Option(help="Bootstrap replicates for the intervals.")] = 200,
    date: Annotated[
        str | None,
        typer.Option(help="Date printed on the report, as 2026-01-31; by default today.", show_default=False),
    ] = None,
    open_: Annotated[bool, typer.Option("--open", help="Open the report in the browser.")] = False,
) -> None:
    """Run the whole job on embedded data: great egrets in the Everglades. Needs no network and no file."""
    from fedmiss.cli.doctor import first_use
    from fedmiss.cli.run import conclude
    from fedmiss.pipeline.demo import run_demo

    first_use()
    result = run_demo(out, bootstrap=bootstrap, date=date, say=typer.echo)
    conclude([result])
    if open_ and result.page is not None:
        typer.launch(result.page.resolve().as_uri())
