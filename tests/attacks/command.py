"""What the attacks share: small good files, the steps as commands, and what a finished folder is.

``FEDMISS_ATTACKS=full`` runs the whole numbers; without it a sample runs, with the same seed.
"""

import hashlib
import os
import shutil
import signal
import subprocess
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pandas as pd

from fedmiss.files import identity, read_manifest
from fedmiss.tables import read_table
from tests.cli.terminal import entry_point

FULL = os.environ.get("FEDMISS_ATTACKS") == "full"
RUN_STEPS = ("panel", "fit", "imputed", "report")
FIT = ("--model", "quasi", "--rank", "auto", "--max-rank", "1", "--folds", "2", "--bootstrap", "20")
RECIPE = """
species = ["Mareca americana", "Aquila chrysaetos"]
[ingest]
files = ["sim/ebd_sim.txt"]
sampling = ["sim/ebd_sim_sampling.txt"]
[panel]
groups = 3
[fit]
model = "log1p"
rank = "0"
bootstrap = 10
[report]
date = "2026-01-01"
"""
COUNTS = "site,year,count\n" + "".join(
    f"{s},{y},{5 + s + y % 3}\n" for s in range(6) for y in range(2010, 2016)
)


def number(whole: int, sample: int) -> int:
    """How many attacks to run."""
    return whole if FULL else sample


@dataclass(frozen=True)
class Step:
    """A command with its output, made anew in a folder of its own."""

    name: str
    words: tuple[str, ...]
    outputs: tuple[str, ...]


OF_RUN = (
    "out/records",
    *(f"out/{s}/{f}" for s in ("mareca-americana", "aquila-chrysaetos") for f in RUN_STEPS),
)
STEPS = (
    Step("simulate", ("simulate", "--records", "1000", "--species", "3", "--out", "out"), ("out",)),
    Step("ingest", ("ingest", "sim/ebd_sim.txt", "--sampling", "sim/ebd_sim_sampling.txt", "--out", "out"),
         ("out",)),
    Step("panel", ("panel", "records", "--species", "American Wigeon", "--groups", "3", "--out", "out"),
         ("out",)),
    Step("fit", ("fit", "panel", *FIT, "--out", "out"), ("out",)),
    Step("algorithm 7", ("fit", "panel", "--method", "fedmissem", "--rounds", "300", "--out", "out"),
         ("out",)),
    Step("impute", ("impute", "panel", "fit", "--out", "out"), ("out",)),
    Step("report", ("report", "--date", "2026-01-01", "--out", "out"), ("out",)),
    Step("run", ("run", "recipe.toml", "--out", "out", "--jobs", "2"), OF_RUN),
)  # fmt: skip


def good_files(folder: Path) -> Path:
    """Files, records, panel, fit, imputed counts, a recipe and a table of counts, all small."""
    folder.mkdir(exist_ok=True)
    (folder / "recipe.toml").write_text(RECIPE, encoding="utf-8")
    (folder / "counts.csv").write_text(COUNTS, encoding="utf-8")
    for words in (
        (*STEPS[0].words[:-1], "sim", "--start", "2018-01", "--end", "2020-12", "--seed", "3"),
        (*STEPS[1].words[:-1], "records"),
        (*STEPS[2].words[:-1], "panel"),
        (*STEPS[3].words[:-1], "fit"),
        (*STEPS[5].words[:-1], "imputed"),
        ("fit", "panel", "--model", "log1p", "--rank", "0", "--bootstrap", "2", "--own", "--out", "owned"),
    ):  # fmt: skip
        done = begin(words, folder)
        _, err = done.communicate()
        assert done.returncode == 0, err
    shutil.rmtree(folder / ".fedmiss-cache")
    return folder


def begin(words: tuple[str, ...], folder: Path) -> subprocess.Popen[str]:
    """Start a command, which hears Ctrl-C also where the tests run in the background of a shell."""
    return subprocess.Popen(
        [*entry_point(), *words], cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        env=os.environ | {"FEDMISS_QUIET": "1"}, preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip


def finished(step: Step, folder: Path) -> dict[str, str]:
    """Verify the outputs that are there, and return what they are; clock times left out."""
    found = {}
    for out in step.outputs:
        if (folder / out).exists():
            manifest = read_manifest(folder / out, verify=True)
            found[out] = identity(folder / out)
            for name, entry in manifest["files"].items():
                found[f"{out}/{name}"] = entry["sha256"]
                if name.endswith(("trace.parquet", "convergence.csv")):  # these hold clock times
                    path = folder / out / name
                    table = (
                        pd.read_csv(path) if path.suffix == ".csv" else read_table(path, "trace").to_pandas()
                    )
                    table = table.drop(columns="seconds")
                    found[f"{out}/{name}"] = hashlib.sha256(table.to_csv().encode()).hexdigest()
    return found


def leftovers(folder: Path) -> list[str]:
    """What should not be there after a command that ended well."""
    names = (p for p in folder.rglob("*") if ".tmp-" in p.name or p.name.endswith((".partial", ".lock")))
    return sorted(str(p.relative_to(folder)) for p in names)


def clear(folder: Path, keep: set[str]) -> None:
    """Bring the folder back to its good files."""
    for path in folder.iterdir():
        if path.name not in keep:
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def end(process: subprocess.Popen[str], after: float, how: signal.Signals) -> str:
    """Send a signal after some time; return what was said on stderr."""
    try:
        process.wait(after)
    except subprocess.TimeoutExpired:
        process.send_signal(how)
    return process.communicate()[1]


def alive(words: str) -> list[int]:
    """Processes whose command line or environment's working folder holds these words."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                if words in os.readlink(entry / "cwd"):
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


def wait_until(ready, seconds: float) -> bool:
    """Look every twentieth of a second."""
    limit = time.monotonic() + seconds
    while time.monotonic() < limit:
        if ready():
            return True
        time.sleep(0.05)
    return bool(ready())
