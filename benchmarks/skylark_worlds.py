"""Who is nearer the truth on rtrim's skylarks: fedmiss or TRIM, in four worlds that look like them.

    FEDMISS_DATA=... python benchmarks/skylark_worlds.py [--panels 100]

The sites, years and gaps are those of rtrim's panel (55 sites, 8 years, 202 counts; it is read from FEDMISS_DATA and not
shipped). Truth is made from TRIM's model 3 of it: site effects, year effects, and counts that scatter as much as TRIM says.

=============  ========================================================================================
TRIM's model   every site changes by the same factor from year to year
slopes         sites have slopes of their own, sd 0.1 a year
large rise     the more birds a site has, the better its slope: 0.07 a year for each sd of the log effect
AR(1)          sites have deviations of sd 0.3 in every year, with correlation 0.5 from year to year
=============  ========================================================================================

Errors are of the least-squares slope of the log total over all 55 sites, and of the log index of the second year (1985, the
year of the great fall), against those of the true expected totals.
"""

from __future__ import annotations

import argparse
import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("FEDMISS_THREADS", "1")

from concurrent.futures import ProcessPoolExecutor

import numpy as np
import pandas as pd
from league_data import data_folder
from trend_truth import slope_of

from fedmiss.federation.fit_tables import totals_by_region
from fedmiss.federation.local import LocalFederation
from fedmiss.models.lowrank.choice import default_candidates
from fedmiss.models.lowrank.data import Group, GroupPanel
from fedmiss.models.lowrank.settings import CountSettings
from fedmiss.models.lowrank.structure import FEATURES
from fedmiss.report.trim import TrimSettings, fit_trim

WORLDS = ("TRIM's model", "slopes", "large rise", "AR(1)")


def skylarks() -> tuple[pd.DataFrame, np.ndarray, float]:
    """Counts that were made; expectation of TRIM's model 3 (J, Y); its overdispersion."""
    table = pd.read_csv(data_folder() / "trim" / "skylark2.csv").dropna(subset=["count"])
    fit = fit_trim(table["site"], table["year"], table["count"], TrimSettings(model=3, overdispersion=True))
    site = np.unique(table["site"], return_inverse=True)[1]
    year = table["year"].to_numpy() - table["year"].min()
    mean = np.ones((site.max() + 1, year.max() + 1))
    seen = np.zeros_like(mean)
    seen[site, year] = table["count"]
    there = np.zeros_like(mean, dtype=bool)
    there[site, year] = True
    for _ in range(500):  # the Poisson model of sites and years: margins of what was counted
        mean *= (seen.sum(axis=1) / np.where(there, mean, 0.0).sum(axis=1))[:, None]
        mean *= (seen.sum(axis=0) / np.where(there, mean, 0.0).sum(axis=0))[None, :]
    return pd.DataFrame({"site": site, "year": year}), mean, max(float(fit.sigma2), 1.01)


def truth_of(world: str, mean: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """True expectations (J, Y)."""
    J, Y = mean.shape
    x = np.arange(Y) - (Y - 1) / 2
    log = np.log(mean.mean(axis=1))
    if world == "slopes":
        return mean * np.exp(0.1 * rng.standard_normal(J)[:, None] * x)
    if world == "large rise":
        return mean * np.exp(0.07 * ((log - log.mean()) / log.std())[:, None] * x)
    if world == "AR(1)":
        e = 0.3 * rng.standard_normal((J, Y))
        for t in range(1, Y):
            e[:, t] = 0.5 * e[:, t - 1] + np.sqrt(0.75) * e[:, t]
        return mean * np.exp(e)
    return mean


def panel(job: tuple[str, int]) -> list[float]:
    """Errors of the slope and of the log index of the second year: fedmiss, then TRIM."""
    world, seed = job
    rng = np.random.default_rng(seed)
    at, mean, over = skylarks()
    mu = truth_of(world, mean, rng)
    m = mu[at["site"], at["year"]]
    count = rng.poisson(rng.gamma(m / (over - 1.0), over - 1.0)).astype(float)
    J, Y = mean.shape
    group = Group.of(
        "all",
        at["site"].to_numpy(np.int32),
        at["year"].to_numpy(np.int32),
        count,
        at["site"].to_numpy(np.int32),
    )
    calendar = np.full(Y, 6, dtype=np.int64), 1984 + np.arange(Y)
    federation = LocalFederation.of_panel(GroupPanel.of(J, Y, [group], calendar))
    choice = federation.cross_validate(default_candidates(CountSettings()), seed=seed, structure=FEATURES)
    fit = federation.fit_average(choice.members)
    ours = totals_by_region(fit, np.full(J, -1), 0)[0]
    theirs = (
        fit_trim(at["site"], at["year"], count, TrimSettings(model=3, overdispersion=True)).stratum().imputed
    )
    truth = mu.sum(axis=0)
    return [
        e
        for total in (ours, theirs)
        for e in (
            slope_of(total) - slope_of(truth),
            np.log(total[1] / total[0]) - np.log(truth[1] / truth[0]),
        )
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--panels", type=int, default=100)
    parser.add_argument("--workers", type=int, default=2)
    a = parser.parse_args()
    print(
        "| world | "
        + " | ".join(
            f"{of}, {who}: bias (se) | RMSE" for who in ("fedmiss", "TRIM") for of in ("slope", "1985")
        )
    )
    print("|---|---|---|---|---|---|---|---|---|")
    with ProcessPoolExecutor(a.workers) as pool:
        for world in WORLDS:
            errors = np.array(list(pool.map(panel, [(world, seed) for seed in range(a.panels)], chunksize=2)))
            cells = [
                f"{e.mean():+.4f} ({e.std(ddof=1) / len(e) ** 0.5:.4f}) | {np.sqrt((e**2).mean()):.4f}"
                for e in errors.T
            ]
            print(f"| {world} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
