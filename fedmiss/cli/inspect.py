"""``fedmiss inspect``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedmiss.cli.options import refuse_typed

__all__ = ["inspect"]


def inspect(
    context: typer.Context,
    path: Annotated[Path, typer.Argument(help="A folder or parquet file made by fedmiss.")],
    messages: Annotated[
        bool,
        typer.Option("--messages", help="For a fit: content of each kind of message between groups and hub."),
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print a folder's manifest as JSON.")] = False,
) -> None:
    """Describe in words what a file or folder made by fedmiss holds."""
    from fedmiss.cli import show

    if json:
        refuse_typed(context, ("messages",), "--json prints the manifest")
        import json as to_json

        from fedmiss.files import read_manifest

        typer.echo(to_json.dumps(read_manifest(path), indent=2, ensure_ascii=False))
        return
    typer.echo(show.messages(path) if messages else show.describe(path))
