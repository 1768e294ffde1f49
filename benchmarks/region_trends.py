"""Trends of regions on countries with known truth: are they drawn together, and do their intervals hold the truth?

    python benchmarks/region_trends.py [--panels 100] [--draws 60] [--designs A A0 ...] [--ways one lines chosen]

``R`` regions of as many sites, with slopes of their own of standard deviation ``sd_r`` a year around -0.02, slopes of sites
of standard deviation ``sd_s`` around them, levels of regions (0.3) and sites (1); visits at random to a share ``rate`` of
the cells of months and sites, by eight observers of each region (0.2), negative binomial counts of size 2. In A0 and B0
regions are alike; in C one has five sites only.

``one``: one line for all regions; ``lines``: the prior of sites follows regions; ``chosen``: what the choice takes by itself
(``fedmiss fit --structure auto``). Slopes are those of log yearly totals; ``estimate on truth``: the slope of the regression
within countries, 1 where trends are not drawn together.
"""

from __future__ import annotations

import argparse
import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("FEDMISS_THREADS", "1")

from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from fedmiss.federation.fit_tables import totals_by_region
from fedmiss.federation.hub.structure import try_structure
from fedmiss.federation.local import LocalFederation
from fedmiss.models.lowrank.choice import Choice
from fedmiss.models.lowrank.data import Group, GroupPanel
from fedmiss.models.lowrank.settings import CountSettings
from fedmiss.models.lowrank.structure import FEATURES
from fedmiss.report.series import MonthlySeries
from fedmiss.rng import rng_for

FEW, GROUPS, SIZE = 5, 3, 2.0
LIMITS = ("percent_lo", "percent_hi", "percent_lo_sampling", "percent_hi_sampling")


@dataclass(frozen=True)
class Design:
    """Regions, sites of each, years, spreads of slopes of regions and sites, share of cells visited; one of few sites."""

    R: int
    sites: int
    years: int
    sd_r: float
    sd_s: float
    rate: float
    level: float = 0.3
    few: bool = False


DESIGNS = {
    "A": Design(6, 25, 12, 0.045, 0.02, 0.1),
    "B": Design(4, 15, 10, 0.03, 0.02, 0.08),
    "C": Design(6, 25, 12, 0.045, 0.02, 0.1, few=True),
    "D": Design(8, 40, 15, 0.06, 0.03, 0.1),
    "E": Design(5, 20, 12, 0.05, 0.04, 0.04, level=-0.5),
    "A0": Design(6, 25, 12, 0.0, 0.02, 0.1),
    "B0": Design(4, 15, 10, 0.0, 0.02, 0.08),
}


def country(seed: int, d: Design) -> tuple[GroupPanel, np.ndarray, np.ndarray]:
    """Visits in three groups that share no site, true means (J, L), and the regions of sites (J,)."""
    rng = rng_for(seed, "region truth")
    sites = np.full(d.R, d.sites)
    sites[-1] = FEW if d.few else d.sites
    region = np.repeat(np.arange(d.R), sites)
    J, L = region.size, 12 * d.years
    lines = -0.02 + d.sd_r * rng.normal(size=d.R)
    level = d.level + rng.normal(size=J) + (0.3 * rng.normal(size=d.R))[region]
    slope = lines[region] + d.sd_s * rng.normal(size=J)
    t = np.arange(L)
    season = 0.4 * np.sin(2 * np.pi * t / 12)
    mean = np.exp(level[:, None] + slope[:, None] * (t // 12 - (d.years - 1) / 2) + season)
    site, month = np.nonzero(rng.random((J, L)) < d.rate)
    observer = region[site] * 8 + rng.integers(0, 8, site.size)
    mu = mean[site, month] * np.exp(0.2 * rng.normal(size=8 * d.R))[observer]
    count = rng.negative_binomial(SIZE, SIZE / (SIZE + mu)).astype(float)
    groups = [
        Group.of(f"g{k}", site[m], month[m], count[m], np.unique(observer[m], return_inverse=True)[1])
        for k in range(GROUPS)
        if (m := site % GROUPS == k).any()
    ]
    names = np.array([f"region {i}" for i in range(d.R)], dtype=object)[region]
    return GroupPanel.of(J, L, groups, (t % 12 + 1, 2000 + t // 12), region=names), mean, region


def settings_of(federation: LocalFederation, way: str, seed: int) -> CountSettings:
    """Settings of a way of fitting."""
    plain = CountSettings(rank=0, dispersion="negbin")
    if way != "chosen":
        return replace(plain, features=("regions",) if way == "lines" else ())
    none = Choice(pd.DataFrame(), pd.DataFrame(), plain, "")
    federation.hub, choice = try_structure(
        federation.link, federation.hub, none, folds=5, seed=seed, features=FEATURES
    )
    return choice.best


def slope_of(monthly: np.ndarray) -> np.ndarray:
    """Log slope by year of monthly totals (..., L)."""
    yearly = monthly.reshape(*monthly.shape[:-1], -1, 12).mean(axis=-1)
    x = np.arange(yearly.shape[-1]) - (yearly.shape[-1] - 1) / 2
    return np.log(yearly) @ x / (x @ x)


def panel_rows(job: tuple[str, int, int, tuple[str, ...]]) -> dict[str, list[tuple[float, ...]]]:
    """Of every way the trend of the whole and of each region: its number, truth, estimate, limits, sites, lines taken."""
    name, seed, draws, ways = job
    d = DESIGNS[name]
    panel, mean, region = country(seed, d)
    t = np.arange(12 * d.years)
    months = pd.DataFrame({"year": 2000 + t // 12, "month_of_year": t % 12 + 1})
    out = {}
    for way in ways:
        federation = LocalFederation.of_panel(panel)
        settings = settings_of(federation, way, seed)
        total = totals_by_region(federation.fit(settings), region, d.R)
        drawn = federation.replicates(range(draws), seed=seed).totals
        rows = []
        for i in range(d.R + 1):
            here = (region == i - 1) if i else np.ones(region.size, bool)
            trend = MonthlySeries.of(total[i], months, drawn[:, i]).trend().iloc[0]
            limits = [float(np.log1p(trend[limit] / 100)) for limit in LIMITS]
            truth, estimate = (float(slope_of(x)) for x in (mean[here].sum(axis=0), total[i]))
            rows.append((seed, i, truth, estimate, *limits, here.sum(), "regions" in settings.features))
        out[way] = rows
    return out


def line_of(what: str, rows: np.ndarray) -> str:
    """Bias, root mean square error, coverage, width and shrinkage of some trends."""
    seed, _, truth, estimate, low, high, lower, upper, _, taken = rows.T
    error = estimate - truth
    own = [seed == one for one in np.unique(seed)]
    x, y = (np.concatenate([v[at] - v[at].mean() for at in own]) for v in (truth, estimate))
    shrunk = f"{x @ y / (x @ x):.2f}" if x @ x > 0 else ""
    held, narrow = ((a < truth) & (truth < b) for a, b in ((low, high), (lower, upper)))
    return (
        f"{what} | {error.mean():+.4f} | {np.sqrt((error**2).mean()):.4f} | {shrunk} | {100 * held.mean():.0f} % "
        f"| {100 * narrow.mean():.0f} % | {np.mean(high - low):.3f} | {100 * taken.mean():.0f} %"
    )


def main() -> None:
    """Print a row for the whole and for the regions of each design and way."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--panels", type=int, default=100)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--draws", type=int, default=60)
    parser.add_argument("--designs", nargs="*", choices=list(DESIGNS), default=list(DESIGNS))
    parser.add_argument("--ways", nargs="*", choices=["one", "lines", "chosen"], default=["one", "chosen"])
    parser.add_argument("--workers", type=int, default=2)
    a = parser.parse_args()
    print(
        "| design | way | trend of | bias | RMSE | estimate on truth | covers, report | trim | width | lines taken |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|")
    with ProcessPoolExecutor(a.workers) as pool:
        for name in a.designs:
            jobs = [(name, seed, a.draws, tuple(a.ways)) for seed in range(a.first, a.first + a.panels)]
            found = list(pool.map(panel_rows, jobs))
            for way in a.ways:
                rows = np.array([row for one in found for row in one[way]], dtype=float)
                parts = {"all": rows[:, 1] == 0, "a region": rows[:, 1] > 0}
                if DESIGNS[name].few:
                    parts["the region of few sites"] = rows[:, 1] == DESIGNS[name].R
                for what, at in parts.items():
                    print(f"| {name} | {way} | {line_of(what, rows[at])} |", flush=True)


if __name__ == "__main__":
    main()
