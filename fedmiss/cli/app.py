"""The command line: ``fedmiss`` and its commands (see ``commands``)."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

import typer
from typer import Option

from fedmiss.cli import commands
from fedmiss.progress import interrupt, quiet_figures
from fedmiss.system import address_limit, on_request_to_end
from fedmiss.version import __version__

ADDRESSES = 3_000_000_000  # bytes; a small fit aborts in the compiler at 2 GB on some runs, never at 3

app = typer.Typer(
    name="fedmiss",
    help="Impute bird counts and report trends over groups that keep their own records.",
    cls=commands.OneMessage,
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
    version: bool = Option(
        False, "--version", callback=_version, is_eager=True, help="Print the version and stop."
    ),
    quiet: bool = Option(False, "--quiet", "-q", help="No progress on stderr; results and errors only."),
    debug: bool = Option(False, "--debug", help="Show the traceback of an error."),
) -> None:
    if quiet:
        os.environ["FEDMISS_QUIET"] = "1"
    if debug:
        os.environ["FEDMISS_DEBUG"] = "1"


def main() -> None:
    """Run the command line."""
    # Our matrices are small: a second BLAS thread only spins, and competes with the compiled loops' threads.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    # Asked to end, or the terminal is gone: as Ctrl-C, so that all is put away. What was set to be ignored stays so.
    hear = on_request_to_end(interrupt)  # until the commands are loaded there is nothing to put away
    quiet_figures()
    commands.register(app, sys.argv[1:])
    _check_limit()
    sys.unraisablehook = _silent_on_interrupts(sys.unraisablehook)
    try:
        hear()
        app()
    except KeyboardInterrupt:  # before the command itself began
        sys.exit(130)


def _silent_on_interrupts(
    hook: Callable[[sys.UnraisableHookArgs], object],
) -> Callable[[sys.UnraisableHookArgs], None]:
    """Print no traceback of a request to end that compiled code drops: ``progress`` raises it again at its next step."""

    def silent(found: sys.UnraisableHookArgs) -> None:
        if not isinstance(found.exc_value, KeyboardInterrupt):
            hook(found)

    return silent


def _check_limit() -> None:
    """Refuse a limit on addresses (``ulimit -v``) below which the libraries abort without a word."""
    limit = address_limit()
    if limit is not None and limit < ADDRESSES:
        typer.echo(
            f"fedmiss: this process may use {limit / 1e9:.1f} GB of addresses (ulimit -v), and the libraries need "
            f"{ADDRESSES / 1e9:.0f} GB before any data is read. Raise the limit.",
            err=True,
        )
        sys.exit(1)


if __name__ == "__main__":
    main()
