"""A process that has loaded everything and runs each command in a fork of its own, stopped at an operation on files.

The forks are not those of the tests' process, whose libraries have started threads that no fork has: a command would wait
for them without an end.
"""

import errno
import functools
import gc
import importlib
import os
import pkgutil
import signal
import sys
import traceback
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
import typer.main

from fedmiss.cli import commands
from fedmiss.cli.app import app, main
from tests.blank import draw_nothing
from tests.cli import terminal

PATIENCE = 600.0  # seconds of a command
MAKING = {"open", "os.mkdir", "os.rename", "os.truncate"}
REMOVING = {"os.remove", "os.rmdir"}


class Watch:
    """Counts the operations below a folder and does something at one of them."""

    def __init__(self, root: Path, at: int, how: str) -> None:
        self.root, self.at, self.how, self.seen = str(root.resolve()), at, how, 0
        self.busy = False

    def __call__(self, event: str, args: tuple[object, ...]) -> None:
        if self.busy or event not in MAKING | REMOVING:
            return
        if event == "open" and not (
            isinstance(args[2], int) and args[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
        ):
            return
        self.busy = True  # what is asked below is seen here too
        try:
            if not self._inside(args[0]):
                return
        finally:
            self.busy = False
        self.seen += 1
        if self.seen == self.at:
            self.stop(event)

    def _inside(self, path: object) -> bool:
        try:
            return os.path.abspath(os.fsdecode(path)).startswith(self.root)  # type: ignore[arg-type]
        except TypeError:  # a handle
            return False

    def stop(self, event: str) -> None:
        if self.how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.how == "Ctrl-C":
            raise KeyboardInterrupt
        if self.how == "failing disk" or event in MAKING:
            raise OSError(errno.EIO if self.how == "failing disk" else errno.ENOSPC, "no luck")


class Forks:
    """The end of the tests' process."""

    def __init__(self, pipe: Connection) -> None:
        self.pipe = pipe

    def run(self, words: tuple[str, ...], folder: Path, at: int = 0, how: str = "") -> tuple[int, str, int]:
        """Run a command in a fork; return its exit code (below 0: a signal), what it said and how many operations it did."""
        return self._ask(_fork, words, folder, at, how)

    def compile(self, words: tuple[str, ...], folder: Path) -> None:
        """Run a command that starts no thread where forks are made, so that each has its compiled loops."""
        code, said = self._ask(_compile, words, folder)
        assert code == 0, said

    def _ask(self, *what: object) -> Any:
        self.pipe.send(what)
        assert self.pipe.poll(PATIENCE), f"{what} has not ended after {PATIENCE} s"
        return self.pipe.recv()


@contextmanager
def forks():
    """Start the process, and end it with all that it has begun."""
    here, there = get_context("spawn").Pipe()
    process = get_context("spawn").Process(target=_serve, args=(there,), daemon=True)
    process.start()
    there.close()
    try:
        assert here.poll(PATIENCE), "it has not loaded everything"
        here.recv()
        yield Forks(here)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.join()


def _serve(pipe: Connection) -> None:
    os.setsid()
    for room in ("cli", "etl", "experiments", "pipeline", "report", "simulate"):
        package = importlib.import_module(f"fedmiss.{room}")
        for module in pkgutil.walk_packages(package.__path__, f"fedmiss.{room}."):
            importlib.import_module(module.name)
    commands.register(app)
    commands.register = lambda app, words: None
    typer.main.get_command = functools.cache(typer.main.get_command)
    typer.main.get_command(app)
    gc.collect()
    gc.freeze()  # a fork copies no page because of the collector
    pipe.send("loaded")
    while True:
        what, *given = pipe.recv()
        pipe.send(what(*given))


def _compile(words: tuple[str, ...], folder: Path) -> tuple[int, str]:
    os.chdir(folder)
    done = terminal.fedmiss(*words)
    return done.code, done.err


def _fork(words: tuple[str, ...], folder: Path, at: int, how: str) -> tuple[int, str, int]:
    said, count = folder.parent / "said.txt", folder.parent / "count.txt"
    count.unlink(missing_ok=True)
    child = os.fork()
    if child == 0:
        _child(words, folder, Watch(folder, at, how), said, count)
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    return code, said.read_text(encoding="utf-8"), int(count.read_text()) if count.exists() else 0


def _child(words: tuple[str, ...], folder: Path, watch: Watch, said: Path, count: Path) -> None:
    code = 70
    try:
        handle = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(handle, 1)
        os.dup2(handle, 2)
        sys.stdout = open(1, "w", encoding="utf-8", closefd=False)
        sys.stderr = open(2, "w", encoding="utf-8", closefd=False)
        os.chdir(folder)
        os.environ["FEDMISS_QUIET"] = "1"
        draw_nothing(pytest.MonkeyPatch())
        os.fsync = lambda handle: None  # no power fails here
        sys.argv = ["fedmiss", *words]
        sys.addaudithook(watch)
        try:
            main()
            code = 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
        watch.busy = True
        sys.stdout.flush()
        sys.stderr.flush()
        count.write_text(str(watch.seen))
    except BaseException:
        watch.busy = True
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(code)
