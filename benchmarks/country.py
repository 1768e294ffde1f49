"""`fedmiss run` over all species of a simulated country: seconds by CPU and clock, peak memory, on all cores and on one.

    python benchmarks/country.py                     24 species, 3,000 sites, 240 months
    python benchmarks/country.py --one-core          the same again on one core, for the gain by the others
    python benchmarks/country.py --groups 10         with the observers of each panel in ten groups

Import, panels, choice of the rank, 200 replicates, imputed counts and reports. Then the slope of every species beside the
true one, over the same sites and years: visits grow sixteenfold in the 20 years.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from ebird_truth import beside_truth

FEDMISS = [sys.executable, "-c", "from fedmiss.cli.app import main; main()"]
RECIPE = """name = "country"
out = "{out}"
species = "all"
[ingest]
files = "{sim}/ebd_sim.txt"
sampling = "{sim}/ebd_sim_sampling.txt"
[panel]
groups = {groups}
[fit]
bootstrap = {bootstrap}
"""


def run(folder: Path, recipe: str, cores: set[int]) -> tuple[float, float]:
    """Run a recipe on some cores; CPU seconds of all processes and seconds by the clock."""
    (folder / "country.toml").write_text(recipe)
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(
        [*FEDMISS, "run", "country.toml"], cwd=folder, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        preexec_fn=lambda: os.sched_setaffinity(0, cores),
    )  # fmt: skip
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, time.perf_counter() - began


def slopes(made: Path, truth: Path) -> np.ndarray:
    """Error of the slope, its standard error, and whether the interval holds the truth; a row for each species."""
    rows = []
    for place in sorted(path.parent for path in made.glob("*/fit")):
        _, row, true, held = beside_truth(place, truth)
        rows.append((row["slope"] - true, row["slope_se"], held[0]))
    return np.array(rows, dtype=float)


def main() -> None:
    """Simulate, run, print the table."""
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--species", type=int, default=24)
    asked.add_argument("--sites", type=int, default=3000)
    asked.add_argument("--records", type=int, default=420_000)
    asked.add_argument("--bootstrap", type=int, default=200)
    asked.add_argument("--groups", type=int, default=1)
    asked.add_argument("--seed", type=int, default=0)
    asked.add_argument("--one-core", action="store_true")
    given = asked.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        size = [
            "--records",
            given.records,
            "--species",
            given.species,
            "--sites",
            given.sites,
            "--seed",
            given.seed,
        ]
        words = [*map(str, size), "--start", "2001-01", "--end", "2020-12", "--out", "sim"]
        subprocess.run([*FEDMISS, "simulate", *words], cwd=folder, check=True, stdout=subprocess.DEVNULL)
        known = os.sched_getaffinity(0)
        print(
            "| cores | species | visits in all | CPU s | clock s | peak MiB of a process |\n|---|---|---|---|---|---|"
        )
        for cores in [known, {min(known)}][: 1 + given.one_core]:
            out = f"on{len(cores)}"
            recipe = RECIPE.format(out=out, sim="sim", groups=given.groups, bootstrap=given.bootstrap)
            cpu, clock = run(folder, recipe, cores)
            made = [
                json.loads(p.read_text())["results"] for p in (folder / out).glob("*/panel/manifest.json")
            ]
            peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
            visits = sum(panel["n_visits"] for panel in made)
            row = [len(cores), len(made), f"{visits:,}", f"{cpu:.0f}", f"{clock:.0f}", f"{peak:,.0f}"]
            print("| " + " | ".join(map(str, row)) + " |", flush=True)
        error, se, held = slopes(folder / out, folder / "sim" / "truth").T
        print(
            f"\nslopes: mean error {error.mean():+.4f}, root mean square {np.sqrt((error**2).mean()):.4f}, mean standard "
            f"error {se.mean():.4f}; held in {held.sum():.0f} of {held.size}"
        )


if __name__ == "__main__":
    main()
