"""A step is stopped at each of its file operations; the next run gives the same bytes, and nothing is left.

An audit hook sees every operation that makes, names or removes something below the folder of the test. At the n-th one
the process is killed, or the disk is full, or it fails, or somebody presses Ctrl-C. Each run is a fork of this process,
which has loaded everything and computed nothing. ``FEDMISS_ATTACKS=full`` stops at every operation, else at some of them.
"""

from __future__ import annotations

import errno
import importlib
import os
import signal
import sys
import traceback
from pathlib import Path

import pytest

from tests.attacks.command import FULL, STEPS, Step, clear, finished, good_files, leftovers

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")]
HOWS = ("kill", "full disk", "failing disk", "Ctrl-C")
MAKING = {"open", "os.mkdir", "os.rename", "os.truncate"}
REMOVING = {"os.remove", "os.rmdir"}
EXTRA = (
    Step("table", ("table", "records", "--out", "out.csv"), ()),
    Step("plot", ("plot", "fit", "--out", "out"), ()),
)
ONE_BY_ONE = {"run": ("run", "recipe.toml", "--out", "out", "--jobs", "1")}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return good_files(tmp_path_factory.mktemp("crash"))


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
        sys.argv = ["fedmiss", *words]
        from fedmiss.cli.app import main

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


def points(n: int, some: int) -> list[int]:
    return (
        list(range(1, n + 1)) if FULL else sorted({1 + (n - 1) * k // max(some - 1, 1) for k in range(some)})
    )


@pytest.mark.parametrize(
    "step",
    [
        pytest.param(s, id=s.name, marks=() if s.name == "panel" else pytest.mark.nightly)
        for s in (*STEPS, *EXTRA)
    ],
)
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
        for i, at in enumerate(points(n, 4)):
            for how in HOWS if FULL else (HOWS[i % 4],):
                _one_point(step, over, files, keep, at, how, wanted, names, again=again)
    finally:
        clear(files, keep)


def _one_point(
    step: Step, words: tuple[str, ...], files: Path, keep: set[str], at: int, how: str, wanted: dict[str, str],
    names: list[str], *, again: bool,
) -> None:  # fmt: skip
    where = f"{step.name}, operation {at}, {how}"
    if not again:
        clear(files, keep)
    code, said, _ = run(words, files, at, how)
    assert "Traceback" not in said, f"{where}: {said}"
    assert code != 70, f"{where}: {said}"
    found = state(step, files)  # whatever has its name is whole
    assert found.items() <= wanted.items(), where
    code, said, _ = run(words, files)
    whole = "exists already" in said and state(step, files) == wanted
    if code and whole and not step.outputs:  # of several loose files some are there
        whole = True
    elif code and "exists already" in said and not step.outputs:
        code, said, _ = run((*words, "--overwrite"), files)
    assert code == 0 or whole, f"{where}: {said}"
    assert state(step, files) == wanted, where
    assert leftovers(files) == [], where
    if code == 0:
        assert tree(files) == names, where


def tree(folder: Path) -> list[str]:
    """Names of everything below a folder, without those of the cache, which are hashes."""
    return sorted(
        str(p.relative_to(folder))
        for p in folder.rglob("*")
        if ".fedmiss-cache/" not in str(p.relative_to(folder))
    )


@pytest.fixture(scope="module", autouse=True)
def loaded():
    """Load everything that the commands load, so that a fork has it."""
    for name in ("cli.app", "experiments.plot_trace", "pipeline.chain", "simulate.ebird", "etl.export"):
        importlib.import_module(f"fedmiss.{name}")
