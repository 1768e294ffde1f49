"""A league of back-tests: real counts are hidden, and methods predict them.

    FEDMISS_DATA=... python benchmarks/league.py [--quick] [--out league.csv]

Five masks hide a part of each panel (:mod:`league_data`): a fifth of the cells, whole sites, the last three years at half of
the sites, one observer, one owner; each five times, with fixed seeds. Methods are those of :mod:`league_methods`. Scores of
hidden counts: mean Poisson deviance, mean log score, ratio of totals, share of counts inside the 95 % predictive interval,
whether the hidden total lies inside its interval, CPU seconds.

Goes on where it was stopped: rows of ``--out`` are not computed again. It ends with the tables of docs/guide/evidence.md.
"""

from __future__ import annotations

import argparse
import csv
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
import pandas as pd
from league_data import MASKS, PANELS, hidden, masks_of
from league_methods import METHODS, Task, deviance
from lowrank_peers import markdown

SEEDS = 5
QUICK = ("peaks-sneg",)  # ships with fedmiss
COLUMNS = (
    "panel", "mask", "seed", "method", "hidden", "deviance", "log_score", "ratio", "covered", "total_covered", "cpu",
)  # fmt: skip


def scored(panel: str, mask: str, seed: int) -> list[dict[str, object]]:
    """One row for each method; none where the mask hides nothing."""
    visits = PANELS[panel]()
    away = hidden(visits, mask, seed)
    if not away.any():
        return []
    task = Task.of(visits.table, away, visits.known)
    y = task.test["count"].to_numpy()
    rows = []
    for name, method in METHODS.items():
        start = time.process_time()
        p = method(task)
        cpu = time.process_time() - start
        low, high = np.quantile(p.totals, [0.025, 0.975])
        inside = (y >= p.lower) & (y <= p.upper)
        values = (
            panel, mask, seed, name, y.size, deviance(y, p.expected).mean(), p.log_score.mean(),
            p.expected.sum() / max(y.sum(), 1.0), inside.mean(), low <= y.sum() <= high, cpu,
        )  # fmt: skip
        rows.append(dict(zip(COLUMNS, values, strict=True)))
    return rows


def _work(task: tuple[str, str, int]) -> list[dict[str, object]]:
    return scored(*task)


def tables(rows: pd.DataFrame) -> str:
    """The tables of docs/guide/evidence.md."""
    rows = rows.assign(panel=pd.Categorical(rows["panel"], list(PANELS)))
    wide = rows.groupby(["panel", "method"], observed=True)
    by_mask = rows.groupby(["panel", "mask", "method"], observed=True)["deviance"].mean().unstack()
    ratio = by_mask.div(by_mask.min(axis=1), axis=0)
    best = np.exp(np.log(ratio).groupby("panel", observed=True).mean())
    cells = ratio.xs("cells", level="mask")
    log = wide["log_score"].mean().unstack()
    inside = (rows["covered"] * rows["hidden"]).groupby([rows["panel"], rows["method"]], observed=True).sum()
    cover = (inside / wide["hidden"].sum()).unstack()
    total = wide["total_covered"].mean().unstack()
    names = list(METHODS)
    out = []
    for title, table, form in (
        ("Deviance of hidden cells, relative to the best method", cells, "{:.2f}"),
        ("The same over all masks: geometric mean, each mask counts once", best, "{:.2f}"),
        ("Log score of hidden counts (larger is better)", log, "{:.2f}"),
        ("Share of hidden counts inside the 95 % predictive interval", cover, "{:.1%}"),
        ("Share of masks whose hidden total lies inside its 95 % interval", total, "{:.0%}"),
    ):
        body = [[str(i), *(form.format(table.loc[i, m]) for m in names)] for i in table.index]
        out += [f"\n{title}\n", markdown(["panel", *names], body)]
    of_mask = (rows["covered"] * rows["hidden"]).groupby([rows["mask"], rows["method"]]).sum()
    cover_mask = of_mask / rows.groupby(["mask", "method"])["hidden"].sum()
    body = [
        [m, *(f"{cover_mask[m, n]:.1%}" for n in names)] for m in MASKS if (m, names[0]) in cover_mask.index
    ]
    out += ["\nThe same share by mask\n", markdown(["mask", *names], body)]
    cpu = rows.groupby("method")["cpu"].mean()
    first = {
        "deviance of cells": (cells.idxmin(axis=1) == "fedmiss").sum(),
        "deviance over all masks": (best.idxmin(axis=1) == "fedmiss").sum(),
        "log score": (log.idxmax(axis=1) == "fedmiss").sum(),
    }
    out.append(
        f"\nOf {len(log)} panels fedmiss is first on "
        + ", ".join(f"{n} ({name})" for name, n in first.items())
        + ". CPU seconds a task: "
        + ", ".join(f"{n} {cpu[n]:.2f}" for n in names)
    )
    return "\n".join(out)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("league.csv"))
    parser.add_argument("--quick", action="store_true", help="one small panel, one seed")
    parser.add_argument("--panel", action="append", choices=list(PANELS))
    parser.add_argument("--jobs", type=int, default=2)
    args = parser.parse_args()
    tasks = []
    for panel in args.panel or (QUICK if args.quick else PANELS):
        try:
            visits = PANELS[panel]()
        except FileNotFoundError as error:
            print(f"{panel}: left out, there is no {error.filename} (set FEDMISS_DATA)", file=sys.stderr)
            continue
        tasks += [
            (panel, mask, seed) for mask in masks_of(visits) for seed in range(1 if args.quick else SEEDS)
        ]
    done = pd.read_csv(args.out) if args.out.exists() else pd.DataFrame(columns=list(COLUMNS))
    known = set(zip(done["panel"], done["mask"], done["seed"], strict=True))
    left = [t for t in tasks if t not in known]
    print(f"{len(left)} of {len(tasks)} tasks are to be done -> {args.out}", file=sys.stderr)
    with ProcessPoolExecutor(args.jobs, get_context("spawn")) as pool, args.out.open("a", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        if not known:
            writer.writeheader()
        for rows in pool.map(_work, left):
            writer.writerows(rows)
            file.flush()
    rows = pd.read_csv(args.out)
    print(tables(rows[rows["panel"].isin({t[0] for t in tasks})]))


if __name__ == "__main__":
    main()
