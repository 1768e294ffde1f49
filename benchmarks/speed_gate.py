"""Whether a change made fedmiss slower: base and head on one machine, in turns, by CPU time.

    python benchmarks/speed_gate.py --base origin/main

A task fails when it is slower both by share (15 %) and by seconds (0.3 s of CPU): one of them alone is noise, on a machine
that others use too. Each measurement is a process of its own, so that imports count; the compiled loops are warm.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SHARE, SECONDS, TURNS = 1.15, 0.3, 5
FILES = "from fedmiss.simulate.ebird import *; simulate_ebird(Path('sim'), EbirdSettings(records=200_000, species=8))"
MEMORY = """
from fedmiss import CountSettings, Group, GroupPanel, fit_counts
from fedmiss.federation.calls import bootstrap
from fedmiss.simulate.panels import simulate_panel
def panel(J, L, share, **more):
    p = simulate_panel(J, L, share, observers=2465, seed=1, **more)
    return GroupPanel.of(J, L, [Group.of("all", p.site_index, p.month_index, p.y, observer=p.observer)])
"""
TASKS = {
    "import": "import fedmiss",
    "ingest": "from fedmiss.etl.ingest import ingest; ingest([SIM / 'ebd_sim.txt'], Path('r'), sampling=[SIM / "
    "'ebd_sim_sampling.txt'], keep_cache=False)",
    "panel": "from fedmiss.etl.panel import *; make_panel(R, Path('p'), PanelSettings(species='American Wigeon'))",
    "fit": "import fedmiss; fedmiss.fit_panel(P, Path('f'), fedmiss.FitSettings(model='quasi', rank='1'))",
    "job": "import fedmiss; fedmiss.fit_panel(P, Path('f'), fedmiss.FitSettings(bootstrap=50))",
    # replicates at the paper's size; a fit of a million visits
    "replicates": f"{MEMORY}p = panel(9721, 249, .005); bootstrap(p, fit_counts(p, CountSettings(rank=2)), draws=40)",
    "visits": f"{MEMORY}fit_counts(panel(10_000, 300, .3, visits=10**6), CountSettings(rank=2))",
    "impute": "from fedmiss.pipeline.imputing import *; impute_panel(P, F, Path('i'))",
    "report": "from fedmiss.report.build import *; build_report(P, F, I, Path('o'))",
}  # fmt: skip


def cpu_seconds(tree: Path, code: str, made: Path) -> float:
    """Run code on a tree's package in an empty folder; return its user and system time."""
    head = f"from pathlib import Path; SIM, R, P, F, I = (Path({str(made)!r}) / n for n in ('sim', 'r', 'p', 'f', 'i'))\n"
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | {
            "PYTHONPATH": str(tree),
            "FEDMISS_QUIET": "1",
            "OPENBLAS_NUM_THREADS": "1",
        }
        done = subprocess.run(
            [sys.executable, "-c", head + code], cwd=folder, env=environment, capture_output=True, text=True
        )
    if done.returncode:
        raise SystemExit(f"{tree}: {code}\n{done.stderr}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def prepare(tree: Path, made: Path) -> None:
    """Make what the tasks read with the tree's own code: formats differ between versions."""
    made.mkdir()
    code = "import os; os.chdir(SIM.parent); " + FILES
    cpu_seconds(tree, code, made)
    for name in ("ingest", "panel", "fit", "impute"):
        cpu_seconds(tree, "import os; os.chdir(SIM.parent); " + TASKS[name], made)


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--base", default="origin/main")
    asked.add_argument("--turns", type=int, default=TURNS)
    asked.add_argument("tasks", nargs="*", default=list(TASKS))
    given = asked.parse_args()
    slower = []
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder) / "base"
        subprocess.run(
            ["git", "worktree", "add", "--detach", "--quiet", str(base), given.base], cwd=ROOT, check=True
        )
        try:
            trees = {"base": base, "head": ROOT}
            for name, tree in trees.items():
                prepare(tree, Path(folder) / f"made-{name}")
            print(f"{'task':<12}{'base s':>10}{'head s':>10}{'head/base':>11}")
            for task in given.tasks:
                best = dict.fromkeys(trees, float("inf"))
                for turn in range(given.turns):
                    for name in sorted(trees, reverse=bool(turn % 2)):
                        spent = cpu_seconds(trees[name], TASKS[task], Path(folder) / f"made-{name}")
                        best[name] = min(best[name], spent)
                share, more = best["head"] / best["base"], best["head"] - best["base"]
                bad = share > SHARE and more > SECONDS
                slower += [task] * bad
                print(
                    f"{task:<12}{best['base']:>10.2f}{best['head']:>10.2f}{share:>11.2f}{'  slower' if bad else ''}"
                )
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", str(base)], cwd=ROOT, check=False)
    if slower:
        raise SystemExit(f"slower than {given.base}: {', '.join(slower)}")


if __name__ == "__main__":
    main()
