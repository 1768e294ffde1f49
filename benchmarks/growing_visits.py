"""Slope and level of panels in which ever more people go out, by law of the counts, with slopes of sites and without.

    python benchmarks/growing_visits.py [--panels 160]

400 sites of unequal popularity, 12 years, 6,000 visits, sixteen times as many in the last month as in the first, and no
trend. Counts are Poisson, negative binomial (size 1/2), or zero-inflated: one visit in five meets birds. Fits of rank 0.
"""

from __future__ import annotations

import argparse
import os
from concurrent.futures import ProcessPoolExecutor
from functools import partial

os.environ |= {"OPENBLAS_NUM_THREADS": "1", "FEDMISS_THREADS": "1"}

import numpy as np
from trend_truth import slope_of, yearly

from fedmiss.federation.calls import fit_counts
from fedmiss.models.lowrank.data import Group, GroupPanel
from fedmiss.models.lowrank.settings import CountSettings

J, L, VISITS = 400, 144, 6000
LAWS = ("poisson", "negbin", "zero-inflated")


def error(seed: int, law: str, slopes: bool) -> np.ndarray:
    """Log of fitted over true total, by year."""
    rng = np.random.default_rng(seed)
    popular, growth = np.exp(1.2 * rng.standard_normal(J)), 16 ** (np.arange(L) / L)
    month = rng.choice(L, VISITS, p=growth / growth.sum())
    site = rng.choice(J, VISITS, p=popular / popular.sum())
    season = 0.4 * np.cos(2 * np.pi * np.arange(L) / 12) + 0.1 * rng.standard_normal(L)
    true = np.exp(rng.standard_normal(J)[:, None] + season)
    mean, met = true[site, month], np.ones(VISITS)
    if law == "negbin":
        mean = mean * rng.standard_gamma(0.5, VISITS) / 0.5
    elif law == "zero-inflated":
        met = rng.random(VISITS) < 0.2
        mean = mean / 0.2 * rng.standard_gamma(1.0, VISITS)
    count = (rng.poisson(mean) * met).astype(float)
    kept = np.unique(site)
    at = np.searchsorted(kept, site).astype(np.int32)
    group = Group.of("all", at, month.astype(np.int32), count, np.zeros(VISITS, int))
    year = np.arange(L) // 12
    panel = GroupPanel.of(kept.size, L, [group], (np.arange(L) % 12 + 1, 2000 + year))
    dispersion = "quasi" if law == "poisson" else "negbin"
    fit = fit_counts(panel, CountSettings(rank=0, dispersion=dispersion, slopes=slopes))
    fitted, expected = (yearly(x.sum(axis=0), year) for x in (fit.expected(), true[kept]))
    return np.asarray(np.log(fitted / expected))


def main() -> None:
    """Print the table."""
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--panels", type=int, default=160)
    panels = asked.parse_args().panels
    print(
        "| counts | slopes of sites | slope a year (se) | RMSE | log total: first year, last year |\n|---|---|---|---|---|"
    )
    with ProcessPoolExecutor() as pool:
        for law in LAWS:
            for slopes in (True, False):
                log = np.array(
                    list(pool.map(partial(error, law=law, slopes=slopes), range(panels), chunksize=4))
                )
                slope = slope_of(np.exp(log))
                said = f"{slope.mean():+.4f} ({slope.std() / panels**0.5:.4f}) | {np.sqrt((slope**2).mean()):.4f}"
                ends = f"{log[:, 0].mean():+.2f}, {log[:, -1].mean():+.2f}"
                print(f"| {law} | {'yes' if slopes else 'no'} | {said} | {ends} |", flush=True)


if __name__ == "__main__":
    main()
