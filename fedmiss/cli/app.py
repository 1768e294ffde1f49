"""The command line: registers the commands, turns errors into one message and an exit code.

Each command lives in its own file and imports what it needs inside the function, so ``fedmiss --help``
stays fast. Exit codes: 0 done, 1 the data or the model, 2 the usage.
"""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from fedmiss import __version__
from fedmiss.errors import FedmissError

__all__ = ["app", "main"]

app = typer.Typer(
    name="fedmiss",
    help="Bird counts imputed and trends reported across groups that keep their own records.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(value: bool) -> None:
    if value:
        typer.echo(f"fedmiss {__version__}")
        raise typer.Exit()


@app.callback()
def _common(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and stop.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    if debug:
        os.environ["FEDMISS_DEBUG"] = "1"


def _register() -> None:
    from fedmiss.cli import commands

    commands.register(app)


def main() -> None:
    """Run the command line; errors made on purpose become one message on stderr."""
    # Our matrices are small: a second BLAS thread only spins, and competes with the compiled loops' threads.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    _register()
    try:
        app()
    except FedmissError as error:
        if os.environ.get("FEDMISS_DEBUG"):
            raise
        typer.echo(f"fedmiss: {error}", err=True)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        typer.echo(
            "fedmiss: interrupted; nothing half-written was left, and `fedmiss fit` resumes.", err=True
        )
        sys.exit(130)
