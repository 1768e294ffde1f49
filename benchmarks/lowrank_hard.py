"""Held-out accuracy on panels like real waterbird counts: zeros, bursts, few sites, whole site-years missing.

    python benchmarks/lowrank_hard.py                                  all simulated panels, 4 seeds, markdown tables
    python benchmarks/lowrank_hard.py --panel monthly --seeds 10 --first 100
    python benchmarks/lowrank_hard.py --everglades flights.csv         real counts as well (CC0, weecology)

Simulated panels (truth known: deviance and log error are scored on fresh counts of the held-out cells, the total on the
expected counts). All have site effects of log-sd 1.5 to 2, sites with seasons (phase, amplitude) and trends of their own,
first-order autocorrelated deviations, counts that are Poisson around a gamma multiplier with rare bursts, and
zeros by site and season:
    monthly        60 x 240 months, a quarter of the cells missing at random
    site-years     the same, a third of the site-years missing whole
    short          60 x 60 months, 40 % missing at random
    wide           200 x 24 months, half missing at random
    yearly         100 x 20 years of midwinter counts, 40 % missing in runs
    common         55 x 8 years, Poisson-like breeding counts (dispersion about 2), a third missing
    additive       55 x 8 years, as ``common`` but without interactions: rank 0 is right

Real panels from great egret flights: ``egret-months`` (visits by month) and ``egret-years`` (the yearly maximum of each
colony), cells held out at random, or site x 3-year blocks (``-blocks``).

Every method sees the same cells; expected counts are floored at 0.001. "best peer" columns are never chosen with hindsight.
"""

from __future__ import annotations

import argparse
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import lowrank_peers as peers  # first: it limits the BLAS threads

# isort: split
import numpy as np
import pandas as pd

from fedmiss.federation.calls import cross_validate, fit_counts
from fedmiss.models.lowrank.choice import model_name
from fedmiss.models.lowrank.data import Group, GroupPanel
from fedmiss.models.lowrank.families import POISSON
from fedmiss.pipeline.plans import base_settings, candidates
from fedmiss.pipeline.settings import FitSettings

FLOOR = 1e-3


@dataclass(frozen=True)
class Kind:
    """Strengths of a simulated panel, on the log scale; see :func:`simulate`."""

    J: int
    L: int
    period: int
    missing: float
    by: str
    level: float = 3.5
    site_sd: float = 1.7
    season: float = 1.0
    own_season: float = 0.8
    own_trend: float = 0.4
    ar_sd: float = 0.5
    size: float = 0.6
    burst: float = 0.02
    zeros: float = 0.12


KINDS = {
    "monthly": Kind(60, 240, 12, 0.25, "cells"),
    "site-years": Kind(60, 240, 12, 0.33, "years"),
    "short": Kind(60, 60, 12, 0.4, "cells", size=0.4),
    "wide": Kind(200, 24, 12, 0.5, "cells", site_sd=1.5),
    "yearly": Kind(100, 20, 1, 0.4, "runs", level=4.0, site_sd=2.0, zeros=0.1, size=0.8),
    "common": Kind(55, 8, 1, 0.33, "cells", 1.5, 1.0, own_trend=0.4, ar_sd=0.15, size=8.0, burst=0.0, zeros=0.0),
    "additive": Kind(55, 8, 1, 0.33, "cells", 1.5, 1.0, own_trend=0.0, ar_sd=0.0, size=8.0, burst=0.0, zeros=0.0),
}  # fmt: skip


@dataclass(frozen=True)
class Task:
    """Counted visits (site, month, count) with observers, and the held-out visits; ``truth`` is None for real counts."""

    J: int
    L: int
    period: int
    s: np.ndarray
    t: np.ndarray
    y: np.ndarray
    who: np.ndarray
    hold: tuple[np.ndarray, np.ndarray, np.ndarray]
    truth: np.ndarray | None

    def panel(self) -> GroupPanel:
        """Make three groups by observer, with the calendar."""
        calendar = np.arange(self.L) % self.period + 1, 2000 + np.arange(self.L) // self.period
        groups = [
            Group.of(f"g{k}", self.s[m], self.t[m], self.y[m], np.unique(self.who[m], return_inverse=True)[1])
            for k in range(3)
            if (m := self.who % 3 == k).any()
        ]
        return GroupPanel.of(self.J, self.L, groups, calendar)


def simulate(name: str, seed: int) -> Task:
    """Simulate a hard panel.

    eta_jl = level + a_j + season_l + own season of j + own trend of j + AR(1); the count is Poisson around
    exp(eta) (gamma of mean 1 and shape ``size``) (8 with chance ``burst``), or zero with a chance that differs by site and
    is higher out of season.
    """
    k = KINDS[name]
    rng = np.random.default_rng([seed, sorted(KINDS).index(name)])
    t = np.arange(k.L)
    phase = 2 * np.pi * t / 12
    a = k.site_sd * rng.normal(size=k.J)
    eta = k.level + a[:, None] + np.zeros(k.L)
    drift = np.cumsum(rng.normal(size=k.L)) / np.sqrt(k.L)
    eta = eta + 0.4 * (drift - drift.mean())
    wave = np.zeros((k.J, k.L))
    if k.period == 12:
        shift, amplitude = 0.7 * rng.normal(size=k.J), np.exp(0.3 * rng.normal(size=k.J))
        wave = k.season * amplitude[:, None] * np.cos(phase + k.own_season * shift[:, None])
    eta = eta + wave
    eta = eta + k.own_trend * rng.normal(size=k.J)[:, None] * np.linspace(-1.7, 1.7, k.L)
    e = rng.normal(size=(k.J, k.L))
    for i in range(1, k.L):
        e[:, i] = 0.6 * e[:, i - 1] + 0.8 * e[:, i]
    rate = np.exp(eta + k.ar_sd * e)
    absent = k.zeros * np.exp(0.8 * rng.normal(size=k.J))[:, None] * np.exp(-wave)
    absent = np.clip(absent, 0.0, 0.9) if k.zeros else np.zeros((k.J, k.L))
    burst = np.where(rng.random((k.J, k.L)) < k.burst, 8.0, 1.0)
    present = rng.random((k.J, k.L)) >= absent
    y = rng.poisson(rate * rng.gamma(k.size, 1 / k.size, (k.J, k.L)) * burst * present).astype(float)
    # What can be known: the mean given season, trend and zeros; the AR(1) part is noise with a known mean
    truth = np.exp(eta + k.ar_sd**2 / 2) * (1 + 7 * k.burst) * (1 - absent)
    gone = _missing(rng, k)
    s, t = np.nonzero(~gone)
    hs, ht = np.nonzero(gone)
    who = rng.integers(0, 30, s.size)
    return Task(k.J, k.L, k.period, s, t, y[s, t], who, (hs, ht, y[hs, ht]), truth[hs, ht])


def _missing(rng: np.random.Generator, k: Kind) -> np.ndarray:
    shape = (k.J, k.L)
    if k.by == "cells":
        gone = rng.random(shape) < k.missing
    elif k.by == "years":
        gone = np.repeat(rng.random((k.J, -(-k.L // k.period))) < k.missing, k.period, axis=1)[:, : k.L]
    else:  # each site is counted for one run of years, with gaps
        length = np.maximum((k.L * rng.uniform(0.3, 1.2, k.J)).astype(int), 3)
        start = (rng.random(k.J) * np.maximum(k.L - length, 1)).astype(int)
        t = np.arange(k.L)
        gone = (t < start[:, None]) | (t >= (start + length)[:, None]) | (rng.random(shape) < k.missing / 4)
    for j in range(k.J):  # a site of a panel has been counted
        if gone[j].all():
            gone[j, rng.integers(k.L)] = False
    for i in range(k.L):
        if gone[:, i].all():
            gone[rng.integers(k.J), i] = False
    return gone


def everglades(path: Path, name: str, seed: int) -> Task:
    """Great egret flights as a panel, a fifth of the cells held out."""
    d = pd.read_csv(path, parse_dates=["date"])
    d = d[d["count"].notna()]
    year, month = d["date"].dt.year - 2004, d["date"].dt.month
    if name.startswith("egret-months"):
        d = d.assign(t=year * 6 + month - 1)[month <= 6]
        period = 6
    else:
        d = (
            d.assign(t=year)
            .groupby(["site", "t"], as_index=False)
            .agg(count=("count", "max"), observer=("observer", "first"))
        )
        period = 1
    d = d[d.groupby("site")["t"].transform("nunique") >= 3]
    rng = np.random.default_rng([seed, 77])
    s, t = np.unique(d["site"], return_inverse=True)[1], d["t"].to_numpy(int)
    who = np.unique(d["observer"], return_inverse=True)[1]
    J, L = int(s.max()) + 1, int(t.max()) + 1
    block = t // (3 * period) if name.endswith("blocks") else t
    held = (rng.random((J, L)) < 0.2)[s, block]
    held &= np.isin(s, s[~held])
    y = d["count"].to_numpy(float)
    return Task(J, L, period, s[~held], t[~held], y[~held], who[~held], (s[held], t[held], y[held]), None)


REAL = ("egret-months", "egret-months-blocks", "egret-years", "egret-years-blocks")


def soft_impute(task: Task, seed: int) -> np.ndarray:
    """softImpute on log(1 + count), variant and lambda chosen on 10 % of the cells by deviance; held-out predictions."""
    key = task.s * task.L + task.t
    cells, inverse = np.unique(key, return_inverse=True)
    y = np.bincount(inverse, task.y) / np.bincount(inverse)
    s, t = cells // task.L, cells % task.L
    aside = np.random.default_rng([seed, 10]).random(y.size) < 0.1
    tried = peers.soft_impute_tried(s, t, y, task.hold[:2], (task.J, task.L), aside)
    return min(tried, key=lambda v: v[0])[1]


def score(task: Task, name: str, seed: int, each: bool, average: bool) -> list[dict[str, object]]:
    """Score every method on one panel."""
    hs, ht, y = task.hold
    alpha, beta = peers.additive_glm(task.s, task.t, task.y, task.J, task.L)
    expected: dict[str, np.ndarray] = {
        "mean": np.full(y.size, task.y.mean()),
        "TRIM": alpha[hs] * beta[ht],
        "softImpute": soft_impute(task, seed),
    }
    if task.truth is not None:
        expected["truth"] = task.truth
    panel = task.panel()
    grid = candidates(FitSettings(), base_settings(FitSettings()))
    choice = cross_validate(panel, grid, seed=seed)
    short = {"quasi-Poisson": "quasi", "negative binomial": "negbin", "Gaussian on log1p": "log1p"}
    for c in dict.fromkeys([*(grid if each else []), choice.best]):
        label = f"{short.get(model_name(c), model_name(c))} {c.rank}"
        mu = fit_counts(panel, c).expected()[hs, ht]
        if each:
            expected[label] = mu
        if c == choice.best:
            chosen = label
    members = [np.maximum(fit_counts(panel, c).expected()[hs, ht], FLOOR) for c in choice.members]
    expected["default"] = np.mean(members, axis=0)
    if average:
        expected["winner"] = members[0]
        expected["geometric"] = np.exp(np.mean(np.log(members), axis=0))
        expected["geometric"] *= expected["default"].sum() / expected["geometric"].sum()
    rows: list[dict[str, object]] = []
    base = task.truth if task.truth is not None else y
    for method, values in expected.items():
        mu = np.maximum(values, FLOOR)
        rows.append({
            "panel": name,
            "seed": seed,
            "method": method,
            "deviance": float(POISSON.deviance(y, mu).mean()),
            "log_rmse": float(np.sqrt(((np.log1p(y) - np.log1p(mu)) ** 2).mean())),
            "total": float(mu.sum() / base.sum()),
            "zeros": float((task.y == 0).mean()),
            "chosen": chosen if method == "default" else "",
        })  # fmt: skip
    return rows


def print_tables(rows: list[dict[str, object]]) -> None:
    """Print one table per score; totals as the geometric mean, with the mean absolute log error in brackets."""
    d = pd.DataFrame(rows)
    methods = list(dict.fromkeys(d["method"]))
    for key, title in (
        (
            "deviance",
            "Held-out Poisson deviance per cell, over that of TRIM (geometric mean over seeds; TRIM: itself)",
        ),
        ("log_rmse", "Root mean square error of log(1 + count)"),
        ("total", "Predicted over true total (geometric mean; in brackets the mean absolute log error)"),
    ):
        lines = []
        for panel, g in d.groupby("panel", sort=False):
            wide = g.pivot(index="seed", columns="method", values=key).reindex(columns=methods)
            log = np.log(np.maximum(wide, 1e-12))
            line = [f"{panel} ({len(wide)})"]
            for m in methods:
                if wide[m].isna().all():
                    line.append("")
                elif key == "deviance":
                    ratio = np.exp((log[m] - log["TRIM"]).mean())
                    line.append(f"{np.exp(log[m].mean()):.3g}" if m == "TRIM" else f"{ratio:.3f}")
                elif key == "log_rmse":
                    line.append(f"{wide[m].mean():.2f}")
                else:
                    line.append(f"{np.exp(log[m].mean()):.2f} ({log[m].abs().mean():.2f})")
            lines.append(line)
        print(f"\n{title}\n\n{peers.markdown(['panel (seeds)', *methods], lines)}")
    print("\nWhat cross-validation chose (number of panels)\n")
    for (panel, pick), n in sorted(Counter((r["panel"], r["chosen"]) for r in rows if r["chosen"]).items()):
        print(f"- {panel}: {pick} ({n})")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--panel", choices=(*KINDS, *REAL), action="append", help="one or more; default all")
    parser.add_argument("--seeds", type=int, default=4, help="number of seeds")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument(
        "--each", action="store_true", help="score every candidate of the default, not only the chosen one"
    )
    parser.add_argument("--average", action="store_true", help="also the one winner, and the geometric mean")
    parser.add_argument("--everglades", type=Path, help="CSV of the great egret flights")
    parser.add_argument("--out", type=Path, help="CSV with one row per panel, seed and method")
    parser.add_argument(
        "--read", type=Path, action="append", help="print the tables of such files, measure nothing"
    )
    args = parser.parse_args()
    if args.read:
        read = pd.concat([pd.read_csv(p) for p in args.read]).fillna({"chosen": ""})
        print_tables(read.to_dict("records"))
        return
    rows: list[dict[str, object]] = []
    for name in args.panel or [*KINDS, *(REAL if args.everglades else ())]:
        if name in REAL and not args.everglades:
            parser.error(f"--panel {name} needs --everglades")
        for seed in range(args.first, args.first + args.seeds):
            task = everglades(args.everglades, name, seed) if name in REAL else simulate(name, seed)
            new, cost = peers.measure(score, task, name, seed, args.each, args.average)
            rows += new
            pick = next(r["chosen"] for r in new if r["chosen"])
            print(
                f"{name}, seed {seed}: {cost.cpu:.1f} CPU s; zeros {new[0]['zeros']:.2f}; {pick}", flush=True
            )
            if args.out:
                peers.write_rows(args.out, rows)
    print_tables(rows)


if __name__ == "__main__":
    main()
