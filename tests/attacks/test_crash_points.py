"""A step is stopped at each of its file operations; the next run gives the same bytes, and nothing is left.

An audit hook sees every operation that makes, names or removes something below the folder of the test. At the n-th one
the process is killed, or the disk is full, or it fails, or somebody presses Ctrl-C. Each run is a fork (``forks``). Figures
are blank: drawing is most of a report's time, and no operation of files. A state of the disk that a run has gone on from
already is not run again.

``FEDMISS_ATTACKS=full`` stops at every operation in every way (``run`` chains the other steps: at every third, in one way
after the other), else at some of them. With ``-s`` each test prints a row: step, fresh or not, operations, points, states
that were run again, failures.
"""

import hashlib
import os
import re
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest

from tests.attacks.command import FULL, STEPS, Step, clear, finished, leftovers
from tests.attacks.forks import forks

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")]
HOWS = ("kill", "full disk", "failing disk", "Ctrl-C")
EXTRA = (
    Step("table", ("table", "records", "--out", "out.csv"), ()),
    Step("plot", ("plot", "fit", "--out", "out"), ()),
    Step("trim", ("trim", "counts.csv", "--out", "out"), ("out",)),
    Step("own", ("own", "panel", "owned", "--group", "g01", "--out", "out"), ("out",)),
)
LOOPS = ("fit", "algorithm 7", "impute")  # they start no thread, so a process that ran them can fork
ONE_BY_ONE = {"run": ("run", "recipe.toml", "--out", "out", "--jobs", "1")}


@pytest.fixture(scope="module")
def process():
    pl.LazyFrame({"a": [1]}).collect(
        engine="streaming"
    )  # starts threads here, as tests before this one may have
    with forks() as process:
        yield process


@pytest.fixture
def run(step, files, process):
    """Run a command in a fork, which has the compiled loops of the step."""
    keep = {p.name for p in files.iterdir()}
    for one in STEPS:
        if one.name in LOOPS and step.name in (one.name, "run"):
            process.compile(one.words, files)
            clear(files, keep)
    return process.run


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
@pytest.mark.parametrize("again", [False, True], ids=["fresh", "overwrite"])
def test_stopped_at_every_operation(step, again, files, run):
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
                _one_point(run, step, over, files, keep, at, how, wanted, names, known, again=again)
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
    run: Callable, step: Step, words: tuple[str, ...], files: Path, keep: set[str], at: int, how: str,
    wanted: dict[str, str], names: list[str], known: set[str], *, again: bool,
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
