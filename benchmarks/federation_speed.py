"""Fit, cross-validation and bootstrap beside another checkout of the project, in interleaved pairs.

    git worktree add /tmp/before b8daa7c
    python benchmarks/federation_speed.py --against /tmp/before                       # demo and paper size, 20 pairs
    python benchmarks/federation_speed.py --against /tmp/before --panel large --pairs 5

Panels: ``demo`` (the panel folder named by --panel-folder, made by ``fedmiss demo``), ``paper`` (9,721 x 249, ten groups of
observers), ``large`` (10^6 visits at 10,000 x 300, three groups); ``core`` are 400 epochs of the paper's mixture by FedEM
and VR-FedEM. Each side runs in a process of its own that is warmed up first; the two take turns. The figure is the median
ratio (this / other) of CPU seconds, and of wall seconds, with a 95 % confidence interval of the median by order statistics.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np

CASES = {
    "demo": ("fit0", "fit2", "cv", "bootstrap"),
    "paper": ("fit2", "cv", "bootstrap"),
    "large": ("fit2",),
    "core": ("fedem", "vr"),
}


def panel_of(name: str, folder: str):
    from fedmiss.models.lowrank.data import Group, GroupPanel
    from fedmiss.simulate.panels import simulate_panel

    if name == "demo":
        from fedmiss.pipeline.panels import open_panel

        return open_panel(folder).load("poisson")
    J, L, share, groups = (
        (9721, 249, 12185 / (9721 * 249), 10) if name == "paper" else (10_000, 300, 1 / 3, 3)
    )
    made = simulate_panel(J, L, share, seed=1, observers=2465 if name == "paper" else 300, groups=groups)
    parts = []
    for k in range(groups):
        m = made.group == k
        who = np.unique(made.observer[m], return_inverse=True)[1]
        parts.append(Group.of(f"g{k}", made.site_index[m], made.month_index[m], made.y[m], who))
    month = np.arange(L)
    return GroupPanel.of(J, L, parts, (month % 12 + 1, 2000 + month // 12))


def core_worker() -> None:
    """FedEM and VR-FedEM on the paper's mixture."""
    from fedmiss.core import Minibatch, Spider, Stop, run
    from fedmiss.engines import LocalEngine
    from fedmiss.experiments.mixture import Mixture, Setting

    mix = Mixture()
    settings = {"fedem": Setting(Minibatch(20)), "vr": Setting(Spider(5, 20))}
    for line in sys.stdin:
        case = line.split()[0]
        wall, cpu = time.perf_counter(), time.process_time()
        run(mix.algo(settings[case]), LocalEngine(mix.data), mix.S_0, stop=Stop(epochs=400))
        print(time.process_time() - cpu, time.perf_counter() - wall, flush=True)


def worker(name: str, folder: str) -> None:
    """Time one case for every line on standard input."""
    if name == "core":
        core_worker()
        return
    panel = panel_of(name, folder)
    from fedmiss.federation.local import bootstrap, cross_validate, fit_counts
    from fedmiss.models.lowrank.choice import default_candidates
    from fedmiss.models.lowrank.settings import CountSettings

    negbin = CountSettings(rank=2, dispersion="negbin")
    fit = None
    for line in sys.stdin:
        case, *rest = line.split()
        draws = int(rest[0]) if rest else 200
        if case == "bootstrap" and fit is None:
            fit = fit_counts(panel, negbin)
        wall, cpu = time.perf_counter(), time.process_time()
        if case == "cv":
            cross_validate(panel, default_candidates(negbin))
        elif case == "bootstrap":
            bootstrap(panel, fit, draws=draws)
        else:
            fit_counts(panel, CountSettings(rank=int(case[3:]), dispersion="negbin"))
        print(time.process_time() - cpu, time.perf_counter() - wall, flush=True)


def median_interval(x: np.ndarray) -> tuple[float, float, float]:
    """Median and its 95 % confidence interval by order statistics."""
    from scipy.stats import binom

    x, n = np.sort(x), len(x)
    k = int(binom.ppf(0.025, n, 0.5))
    return float(np.median(x)), float(x[max(k - 1, 0)]), float(x[min(n - k, n - 1)])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--against", type=Path, help="another checkout")
    parser.add_argument("--panel", choices=tuple(CASES), action="append")
    parser.add_argument("--cases", nargs="*")
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--draws", type=int, default=200)
    parser.add_argument("--panel-folder", default="fedmiss-demo/panel")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        worker(args.worker, args.panel_folder)
        return
    here = Path(__file__).resolve().parents[1]
    print("| panel | case | CPU s, other | CPU s, this | ratio of CPU (95 %) | ratio of wall (95 %) |")
    print("|---|---|---|---|---|---|")
    for name in args.panel or ("demo", "paper"):
        sides = []
        for root in (args.against, here):
            env = os.environ | {"PYTHONPATH": str(root)}
            command = [sys.executable, str(Path(__file__).resolve()), "--worker", name]
            command += ["--panel-folder", str(Path(args.panel_folder).resolve())]
            sides.append(
                subprocess.Popen(
                    command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd="/"
                )
            )

        def ask(side: subprocess.Popen[str], case: str, draws: int = args.draws) -> tuple[float, float]:
            assert side.stdin is not None
            assert side.stdout is not None
            side.stdin.write(f"{case} {draws}\n")
            side.stdin.flush()
            cpu, wall = side.stdout.readline().split()
            return float(cpu), float(wall)

        for case in args.cases or CASES[name]:
            for side in sides:
                ask(side, case, 2)
            pairs = np.array([[ask(side, case) for side in sides] for _ in range(args.pairs)])
            other, this = np.median(pairs[:, 0, 0]), np.median(pairs[:, 1, 0])
            cpu, wall = (median_interval(pairs[:, 1, i] / pairs[:, 0, i]) for i in (0, 1))
            text = [f"{m:.2f} ({a:.2f} to {b:.2f})" for m, a, b in (cpu, wall)]
            print(f"| {name} | {case} | {other:.2f} | {this:.2f} | {text[0]} | {text[1]} |", flush=True)
        for side in sides:
            side.stdin.close()  # type: ignore[union-attr]
            side.wait()


if __name__ == "__main__":
    main()
