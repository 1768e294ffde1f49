"""A step is stopped at each of its file operations; the next run gives the same bytes, and nothing is left.

An audit hook sees every operation that makes, names or removes something below the folder of the test. At the n-th one
the process is killed, or the disk is full, or it fails, or somebody presses Ctrl-C. Each run is a fork of this process,
which has loaded everything, and compiled the loops of fits. Figures are blank: drawing is most of a report's time, and no
operation of files. A state of the disk that a run has gone on from already is not run again.

``FEDMISS_ATTACKS=full`` stops at every operation in every way (``run`` chains the other steps: at every third, in one way
after the other), else at some of them. With ``-s`` each test prints a row: step, fresh or not, operations, points, states
that were run again, failures.
"""

import errno
import functools
import gc
import hashlib
import importlib
import os
import pkgutil
import re
import select
import shutil
import signal
import sys
import traceback
from pathlib import Path

import pytest
import typer.main

from fedmiss.cli import commands
from fedmiss.cli.app import app, main
from tests.attacks.command import FULL, STEPS, Step, clear, finished, leftovers
from tests.blank import draw_nothing
from tests.cli import terminal

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")]
PATIENCE = 600.0  # seconds of a command
HOWS = ("kill", "full disk", "failing disk", "Ctrl-C")
MAKING = {"open", "os.mkdir", "os.rename", "os.truncate"}
REMOVING = {"os.remove", "os.rmdir"}
EXTRA = (
    Step("table", ("table", "records", "--out", "out.csv"), ()),
    Step("plot", ("plot", "fit", "--out", "out"), ()),
    Step("trim", ("trim", "counts.csv", "--out", "out"), ("out",)),
    Step("own", ("own", "panel", "owned", "--group", "g01", "--out", "out"), ("out",)),
)
LOOPS = ("fit", "algorithm 7", "impute")  # they start no thread, so a process that ran them can fork
ONE_BY_ONE = {"run": ("run", "recipe.toml", "--out", "out", "--jobs", "1")}


@pytest.fixture(scope="module")
def files(first_files, tmp_path_factory):
    """Load in this process what the commands load, so that a fork has it."""
    folder = shutil.copytree(first_files, tmp_path_factory.mktemp("crash") / "files")
    for room in ("cli", "etl", "experiments", "pipeline", "report", "simulate"):
        package = importlib.import_module(f"fedmiss.{room}")
        for module in pkgutil.walk_packages(package.__path__, f"fedmiss.{room}."):
            importlib.import_module(module.name)
    with pytest.MonkeyPatch.context() as once:
        once.setattr(app, "registered_commands", [])
        once.setattr(app, "registered_groups", [])
        commands.register(app)
        once.setattr(commands, "register", lambda app, words: None)
        once.setattr(typer.main, "get_command", functools.cache(typer.main.get_command))
        typer.main.get_command(app)
        gc.collect()
        gc.freeze()  # a fork copies no page because of the collector
        yield folder
        gc.unfreeze()


@pytest.fixture
def compiled(step, files, monkeypatch):
    """Compile in this process the loops of a step, so that each fork has them."""
    keep = {p.name for p in files.iterdir()}
    monkeypatch.chdir(files)
    for one in STEPS:
        if one.name in LOOPS and step.name in (one.name, "run"):
            done = terminal.fedmiss(*one.words)
            assert done.code == 0, done.err
            clear(files, keep)


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


def run(words: tuple[str, ...], folder: Path, at: int = 0, how: str = "") -> tuple[int, str, int]:
    """Run a command in a fork; return its exit code (below 0: a signal), what it said and how many operations it came to."""
    said, count = folder.parent / "said.txt", folder.parent / "count.txt"
    count.unlink(missing_ok=True)
    child = os.fork()
    if child == 0:
        _child(words, folder, Watch(folder, at, how), said, count)
    if hasattr(os, "pidfd_open"):
        handle = os.pidfd_open(child)
        ended = select.select([handle], [], [], PATIENCE)[0]
        os.close(handle)
        if not ended:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            pytest.fail(f"{words} waits for a thread that its fork does not have: run this file by itself")
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


def state(step: Step, folder: Path) -> dict[str, str]:
    """What the step made: the folders as they are, or loose files."""
    if step.outputs:
        return finished(step, folder)
    return {p.name: p.read_bytes().hex() for p in sorted(folder.glob("out*")) if not p.is_dir()}


def points(step: Step, n: int) -> list[tuple[int, str]]:
    """At which operations to stop, and how."""
    if not FULL:
        return [(1 + (n - 1) * i // 3, how) for i, how in enumerate(HOWS)]
    if step.name == "run":
        return [(at, HOWS[i % len(HOWS)]) for i, at in enumerate(range(1, n + 1, 3))]
    return [(at, how) for at in range(1, n + 1) for how in HOWS]


@pytest.mark.parametrize(
    "step",
    [
        pytest.param(s, id=s.name, marks=() if s.name == "panel" else pytest.mark.nightly)
        for s in (*STEPS, *EXTRA)
    ],
)
@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("again", [False, True], ids=["fresh", "overwrite"])
def test_stopped_at_every_operation(step, again, files):
    words = ONE_BY_ONE.get(step.name, step.words)
    over = (*words, "--overwrite") if again and step.name != "run" else words
    keep = {p.name for p in files.iterdir()}
    try:
        code, said, _ = run(words, files)
        assert code == 0, said
        wanted, names = state(step, files), tree(files)
        assert wanted
        if not again:
            clear(files, keep)
        code, said, n = run(over, files)
        assert (code, said and state(step, files)) == (0, wanted), said
        assert n > 2 or (step.name == "run" and again)
        faults, known, tried = [], set(), 0
        for at, how in points(step, n):
            tried += 1
            try:
                _one_point(step, over, files, keep, at, how, wanted, names, known, again=again)
            except AssertionError as fault:
                faults.append(f"{at} {how}: {fault}")
                clear(files, keep)
                if again:
                    run(words, files)
        row = (step.name, "overwrite" if again else "fresh", n, tried, len(known), len(faults))
        print("", *row, "", sep=" | ", flush=True)
        assert not faults, "\n".join(faults)
    finally:
        clear(files, keep)


def _one_point(
    step: Step, words: tuple[str, ...], files: Path, keep: set[str], at: int, how: str, wanted: dict[str, str],
    names: list[str], known: set[str], *, again: bool,
) -> None:  # fmt: skip
    if not again:
        clear(files, keep)
    code, said, _ = run(words, files, at, how)
    assert "Traceback" not in said, said
    assert code != 70, said
    found = state(step, files)  # whatever has its name is whole
    assert found.items() <= wanted.items(), f"not whole: {found.items() - wanted.items()}"
    disk = on_disk(files, keep)
    if disk in known:
        return
    code, said, _ = run(words, files)
    whole = "exists already" in said and state(step, files) == wanted
    # of several loose files some are there
    if code and "exists already" in said and not step.outputs and not whole:
        code, said, _ = run((*words, "--overwrite"), files)
    assert code == 0 or whole, said
    assert state(step, files) == wanted, "other bytes"
    # a lock in the cache that could not be removed: the next command to use it does
    if whole and leftovers(files):
        run((*words, "--overwrite"), files)
    assert leftovers(files) == []
    if code == 0:
        assert tree(files) == names
    known.add(disk)


def on_disk(folder: Path, keep: set[str]) -> str:
    """Hash all that a stopped run left: names and bytes, without random tokens and who held a lock."""
    found = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if name.split("/")[0] in keep:
            continue
        found.update(re.sub(r"\.tmp-[0-9a-f]{24}", ".tmp-", name).encode() + b"\0")
        if path.is_file() and not name.endswith(".lock"):
            content = path.read_bytes()
            found.update(re.sub(rb"\A(fedmiss (work|files) )[0-9a-f]{32}", rb"\1", content) + b"\0")
    return found.hexdigest()


def tree(folder: Path) -> list[str]:
    """Names of everything below a folder, without those of the cache, which are hashes."""
    return sorted(
        str(p.relative_to(folder))
        for p in folder.rglob("*")
        if ".fedmiss-cache/" not in str(p.relative_to(folder))
    )
