"""What an owner of records gains by joining a federation, on real counts split by their real owners.

    FEDMISS_DATA=... python benchmarks/dividend.py [--quick] [--out dividend.csv] [--figure docs/img/dividend.png]

A fifth of every owner's cells is hidden. Then each owner fits its own counts alone; all fit together, as a federation
between organisations does (each treats a site that several visit as its own, nothing but sums crosses); and together with
``--minimum 5``. For each owner, of its own sites in its own years: standard error of the slope of its total, as in a report
(with the scatter of years); years whose total is known within a factor of 2; width of the intervals of its sites' expected
counts; deviance and log score of its hidden counts, and how many of them lie inside their 95 % predictive intervals.

Owners with fewer than 10 counts, 2 sites or 5 years have no trend of their own in either case and are left out.
Goes on where it was stopped: what stands in ``--out`` is not computed again.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
import pandas as pd
from league_data import PANELS, hidden
from league_methods import Task, deviance, log_score
from lowrank_peers import markdown

from fedmiss.errors import FedmissError
from fedmiss.federation.local import LocalFederation
from fedmiss.federation.results import AverageFit
from fedmiss.models.lowrank.choice import default_candidates
from fedmiss.models.lowrank.data import Group, GroupPanel
from fedmiss.models.lowrank.settings import CountSettings
from fedmiss.models.lowrank.structure import FEATURES
from fedmiss.report.trends import overall_trend, yearly_index
from fedmiss.report.years import month_table

SETS = {
    "peaks-greg": "Great Egret, regions",
    "wren": "Pacific Wren, states",
    "penguins-gepe": "Gentoo, publications",
}
QUICK = ("peaks-sneg",)
DRAWS, SEEDS = 60, 3
LEAST = {"counts": 10, "sites": 2, "years": 5}
KNOWN = np.log(2.0) / 1.96  # standard error of a log total that is known within a factor of 2
MODES = ("alone", "together", "minimum 5")


def able(t: pd.DataFrame) -> bool:
    return (
        len(t) >= LEAST["counts"]
        and t["site"].nunique() >= LEAST["sites"]
        and t["year"].nunique() >= LEAST["years"]
    )


def fitted(task: Task, owners: list[str], minimum: int) -> tuple[LocalFederation, AverageFit, np.ndarray]:
    """Default fit of these owners' visits, and replicates (B, owners, L) of the totals of their own sites."""
    groups = []
    for name in owners:
        t = task.train[task.train["owner"] == name]
        who = np.unique(t["observer"], return_inverse=True)[1]
        groups.append(Group.of(name, t["j"].to_numpy(), t["t"].to_numpy(), t["count"].to_numpy(), who))
    panel = GroupPanel.of(
        task.J,
        task.L,
        groups,
        task.calendar,
        site_id=task.sites,
        region=task.region,
        covariates=task.covariates,
    )
    federation = LocalFederation.of_panel(panel, apart=True, minimum=minimum)
    tried = FEATURES[1:]  # how often a site was visited is not told to other organisations
    choice = federation.cross_validate(
        default_candidates(CountSettings(dispersion="negbin")), structure=tried
    )
    fit = federation.fit_average(choice.members)
    federation.own = True
    return federation, fit, federation.replicates(range(DRAWS), seed=0).own


def of_owner(
    task: Task, fit: AverageFit, draws: np.ndarray, mine: pd.DataFrame, test: pd.DataFrame
) -> dict[str, float]:
    """What a fit says to one owner about its own sites, in its own years."""
    sites = np.unique(mine["j"])
    year = task.calendar[1]
    window = (int(mine["year"].min()), int(mine["year"].max()))
    inside = (year >= window[0]) & (year <= window[1])
    months = month_table(task.calendar[1][inside] * 12 + task.calendar[0][inside] - 1)
    total = fit.expected(sites)[:, inside].sum(axis=0)
    row = overall_trend(total, months, draws[:, inside]).iloc[0]
    yearly = yearly_index(total, months, draws[:, inside])
    with np.errstate(divide="ignore", invalid="ignore"):
        se = np.log(yearly["total_hi"] / yearly["total_lo"]) / (2 * 1.96)
    band = fit.interval(sites)
    width = np.log(np.maximum(band.expected_upper, 1e-9) / np.maximum(band.expected_lower, 1e-9))[:, inside]
    j, t, y = (test[c].to_numpy() for c in ("j", "t", "count"))
    place = np.searchsorted(sites, j)
    eta, var = (m[place, t] for m in fit.moments(sites))
    low, high = band.lower[place, t], band.upper[place, t]
    return {
        "slope": float(row["slope"]), "slope_se": float(row["slope_se"]), "years": len(months),
        "years_known": int((se <= KNOWN).sum()), "width": float(width.mean()), "hidden": y.size,
        "deviance": float(deviance(y, fit.expected(sites)[place, t]).mean()) if y.size else np.nan,
        "log_score": float(log_score(fit.law, eta, var, y).mean()) if y.size else np.nan,
        "covered": float(((y >= low) & (y <= high)).mean()) if y.size else np.nan,
    }  # fmt: skip


def rows_of(name: str, seed: int) -> list[dict[str, object]]:
    visits = PANELS[name]()
    away = hidden(visits, "cells", seed)
    table = visits.table
    left = table[~away]
    owners = [o for o in sorted(left["owner"].unique()) if able(left[left["owner"] == o])]
    kept = table["owner"].isin(owners).to_numpy()
    rows: list[dict[str, object]] = []

    def add(mode: str, task: Task, fit: AverageFit, draws: np.ndarray, owner: str) -> None:
        mine, test = (x[x["owner"] == owner] for x in (task.train, task.test))
        test = test[test["j"].isin(mine["j"])]  # sites that the owner still knows
        row = {
            "set": name,
            "seed": seed,
            "owner": owner,
            "mode": mode,
            "counts": len(mine),
            "sites": mine["j"].nunique(),
        }
        rows.append(row | of_owner(task, fit, draws, mine, test))

    everyone = Task.of(table[kept].reset_index(drop=True), away[kept], visits.known)
    for mode, minimum in (("together", 0), ("minimum 5", 5)):
        try:
            federation, fit, draws = fitted(everyone, owners, minimum)
        except FedmissError as error:
            print(f"{name} {mode}: {error}", file=sys.stderr)
            continue
        for i, owner in enumerate(federation.programs):
            add(mode, everyone, fit, draws[:, i], owner)
    for owner in owners:
        own = (table["owner"] == owner).to_numpy()
        task = Task.of(table[own].reset_index(drop=True), away[own], visits.known)
        try:
            _, fit, draws = fitted(task, [owner], 0)
            add("alone", task, fit, draws[:, 0], owner)
        except FedmissError as error:
            print(f"{name} {owner} alone: {error}", file=sys.stderr)
    return rows


def by_owner(rows: pd.DataFrame) -> pd.DataFrame:
    """One row for each owner: means over masks, modes side by side, and in which third by counts the owner is."""
    mean = rows.groupby(["set", "owner", "mode"])[
        ["counts", "slope_se", "years_known", "years", "width", "deviance", "log_score", "slope"]
    ].mean()
    wide = mean.unstack("mode")
    out = pd.DataFrame({"counts": wide["counts"]["together"], "years": wide["years"]["together"]})
    for column in ("slope_se", "years_known", "width", "deviance", "log_score", "slope"):
        for mode in MODES:
            if mode in wide[column]:
                out[f"{column} {mode}"] = wide[column][mode]
    rank = out.groupby("set")["counts"].rank(pct=True, method="first")
    return out.assign(third=np.select([rank <= 1 / 3, rank <= 2 / 3], ["fewest", "middle"], "most"))


def tables(rows: pd.DataFrame) -> str:
    owners = by_owner(rows)
    body = []
    for (name, third), part in owners.groupby(["set", "third"], sort=False):
        ratio = part["slope_se together"] / part["slope_se alone"]
        least = part.get("slope_se minimum 5", ratio * np.nan) / part["slope_se alone"]
        body.append(
            (
                SETS.get(name, name), {"fewest": 0, "middle": 1, "most": 2}[third], third, str(len(part)),
                f"{part['counts'].median():.0f}", f"{ratio.median():.2f}", f"{ratio.max():.2f}", f"{least.median():.2f}",
                f"{(part['width together'] / part['width alone']).median():.2f}",
                f"{part['years_known alone'].mean():.1f} -> {part['years_known together'].mean():.1f}",
                f"{(part['log_score together'] - part['log_score alone']).mean():+.2f}",
            )
        )  # fmt: skip
    body = [
        (b[0], *b[2:])
        for b in sorted(
            body, key=lambda b: (list(SETS.values()).index(b[0]) if b[0] in SETS.values() else 9, b[1])
        )
    ]
    head = [
        "set", "third by counts", "owners", "counts", "slope se, together / alone", "worst owner", "with --minimum 5",
        "width of cells", "years known, alone -> together", "log score",
    ]  # fmt: skip
    inside = (
        rows.assign(n=rows["covered"].fillna(0) * rows["hidden"])
        .groupby(["set", "mode"])[["n", "hidden"]]
        .sum()
    )
    cover = (inside["n"] / inside["hidden"]).unstack()
    covers = [
        [SETS.get(s, s), *(f"{cover.loc[s, m]:.1%}" if m in cover else "" for m in MODES)]
        for s in cover.index
    ]
    return "\n".join(
        ["\nWhat an owner gains\n", markdown(head, body), "\nHidden counts inside their 95 % intervals\n",
         markdown(["set", *MODES], covers)]
    )  # fmt: skip


def figure(rows: pd.DataFrame, path: Path) -> None:
    """Standard error of each owner's own slope, alone and together, against its number of counts."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    owners = by_owner(rows)
    names = [s for s in SETS if s in owners.index.get_level_values(0)] or sorted(set(rows["set"]))
    fig, axes = plt.subplots(
        1, len(names), figsize=(4.2 * len(names), 3.6), layout="constrained", squeeze=False
    )
    for ax, name in zip(axes[0], names, strict=True):
        part = owners.loc[name].dropna(subset=["slope_se alone", "slope_se together"])
        a, b = 100 * part["slope_se alone"], 100 * part["slope_se together"]
        ax.vlines(part["counts"], a, b, color="#999999", lw=1)
        ax.plot(part["counts"], a, "o", mfc="white", mec="#d55e00", label="alone")
        ax.plot(part["counts"], b, "o", color="#0072b2", label="together")
        ax.set(xscale="log", yscale="log", title=SETS.get(name, name), xlabel="counts of the owner")
        for axis, ticks in (
            (ax.xaxis, (10, 20, 50, 100, 200, 500, 1000)),
            (ax.yaxis, (0.2, 0.3, 0.5, 1, 2, 3, 5, 10)),
        ):
            low, high = axis.get_view_interval()
            axis.set_ticks([t for t in ticks if low <= t <= high])
            axis.set_major_formatter("{x:g}")
            axis.set_ticks([], minor=True)
    axes[0, 0].set_ylabel("standard error of the own trend, % a year")
    axes[0, 0].legend(frameon=False)
    fig.savefig(path, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("dividend.csv"))
    parser.add_argument("--figure", type=Path)
    parser.add_argument("--quick", action="store_true", help="one small set, one mask")
    args = parser.parse_args()
    done = pd.read_csv(args.out) if args.out.exists() else pd.DataFrame(columns=["set", "seed"])
    for name in QUICK if args.quick else SETS:
        for seed in range(1 if args.quick else SEEDS):
            if ((done["set"] == name) & (done["seed"] == seed)).any():
                continue
            try:
                rows = pd.DataFrame(rows_of(name, seed))
            except FileNotFoundError as error:
                print(f"{name}: left out, there is no {error.filename} (set FEDMISS_DATA)", file=sys.stderr)
                break
            done = rows if done.empty else pd.concat([done, rows])
            done.to_csv(args.out, index=False)
            print(f"{name} mask {seed}: {rows['owner'].nunique()} owners -> {args.out}", file=sys.stderr)
    print(tables(done))
    if args.figure:
        figure(done, args.figure)


if __name__ == "__main__":
    main()
