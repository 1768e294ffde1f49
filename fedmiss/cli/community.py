"""``fedmiss community``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedmiss.cli.options import Out, Overwrite, options_of
from fedmiss.community.settings import CommunitySettings

__all__ = ["community"]


@options_of(CommunitySettings)
def community(
    records: Annotated[Path, typer.Argument(help="Records folder with all species of complete checklists.")],
    out: Out = Path("community"),
    *,
    settings: CommunitySettings,
    overwrite: Overwrite = False,
) -> None:
    """Fit all species of complete checklists together: axes of the sites, associations, richness, and a page."""
    from fedmiss.cli.show import say_written
    from fedmiss.community.run import build_community

    made = build_community(records, out, settings, overwrite=overwrite)
    say_written(made, records)
    typer.echo(f"Page: {made / 'index.html'}")
