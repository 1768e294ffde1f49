"""Run the command line as a user does: in this process (quick) or in one of its own (real)."""

import contextlib
import io
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from unittest import mock


@dataclass(frozen=True)
class Done:
    """What the user saw."""

    code: int
    out: str
    err: str


def fedmiss(*words: object) -> Done:
    """Call the command's own entry point with these words."""
    from fedmiss.cli import app

    out, err = io.StringIO(), io.StringIO()
    environment = {k: v for k, v in os.environ.items() if k != "FEDMISS_DEBUG"}
    with (
        mock.patch.object(sys, "argv", ["fedmiss", *map(str, words)]),
        mock.patch.dict(os.environ, environment, clear=True),
        mock.patch.object(app.app, "registered_commands", []),
        mock.patch.object(app.app, "registered_groups", []),  # of this call alone
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            app.main()
            code = 0
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    return Done(code, out.getvalue(), err.getvalue())


def entry_point() -> list[str]:
    """Return the installed command, or the same thing through the interpreter."""
    script = Path(sys.executable).with_name("fedmiss")
    call = "import sys; sys.argv[0] = 'fedmiss'; from fedmiss.cli.app import main; main()"
    return [str(script)] if script.exists() else [sys.executable, "-c", call]


def real(*words: object, timeout: float = 120, **more: object) -> Done:
    """Run the installed command in a process of its own."""
    done = subprocess.run(
        [*entry_point(), *map(str, words)], capture_output=True, text=True, timeout=timeout, check=False,
        **more,
    )  # fmt: skip
    return Done(done.returncode, done.stdout, done.stderr)


def tree(folder: Path) -> dict[str, int]:
    """Return every file and folder below, with sizes: two equal trees mean that nothing was left or lost."""
    return {
        str(p.relative_to(folder)): p.stat().st_size if p.is_file() else -1 for p in sorted(folder.rglob("*"))
    }


@contextlib.contextmanager
def refusing(function: str, number: int, below: Path) -> Iterator[None]:
    """Let ``os.<function>`` fail with this errno for paths below a folder: a full disk, a forbidden place."""
    genuine = getattr(os, function)

    def refuse(path: object, *rest: object, **more: object) -> object:
        if Path(os.fsdecode(path)).is_relative_to(below):  # type: ignore[arg-type]
            raise OSError(number, os.strerror(number), str(path))
        return genuine(path, *rest, **more)

    with mock.patch.object(os, function, refuse):
        yield
