"""Indicators of species that the same observers count: how often their intervals hold the truth.

    python benchmarks/indicator_truth.py [--worlds 60] [--species 8] [--alike 0.5] [--sd 0.2]

1,000 visits to 80 sites in 8 years by the 16 observers of the design ``random`` (``tests/designs.py``); each
species has levels, slopes and site-years of its own and negative binomial counts of size 2. Observers find more or fewer by
exp(N(0, sd^2)), of which the share ``alike`` is the same for all species. A fit of rank 0 and 60 replicates each.
"""

from __future__ import annotations

import argparse
import os
import sys
from dataclasses import replace
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("FEDMISS_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
import pandas as pd

from fedmiss.federation.fit_tables import totals_by_region
from fedmiss.federation.group.panel import stamps_of, visits_of
from fedmiss.federation.hub.agree import DataSpec
from fedmiss.federation.local import LocalFederation
from fedmiss.models.lowrank.data import Group, GroupPanel
from fedmiss.models.lowrank.settings import CountSettings
from fedmiss.report.indicator import indicator, indicator_trends
from tests.designs import _autoregressive, _observers, _visits

J, YEARS, MONTHS, VISITS = 80, 8, 4, 1000
YEAR, MONTH = np.repeat(np.arange(YEARS), MONTHS), np.tile(np.arange(4, 4 + MONTHS), YEARS)


def yearly(monthly: np.ndarray) -> np.ndarray:
    return monthly.reshape(*monthly.shape[:-1], YEARS, MONTHS).mean(axis=-1)


def world(seed: int, species: int, alike: float, sd: float) -> tuple[float, float, float]:
    """Whether index (share of the years) and trend of the indicator are held; the error of its slope."""
    rng = np.random.default_rng([seed, 11])
    zero = np.zeros(J)
    site, month = _visits(
        rng, "random", rng.normal(size=J), zero, YEAR, VISITS, np.ones((J, YEARS), dtype=bool)
    )
    who, _ = _observers(rng, "random", site, YEAR[month], YEARS)
    common, years = sd * rng.normal(size=16), 2010 + np.arange(YEARS)
    totals, draws, true = {}, {}, {}
    for k in range(species):
        level, slope = rng.normal(size=J), -0.03 + 0.02 * rng.normal() + 0.05 * rng.normal(size=J)
        x = np.arange(YEARS) - (YEARS - 1) / 2
        eta = 0.7 + level[:, None] + slope[:, None] * x[YEAR] + 0.3 * np.sin(MONTH)
        eta += _autoregressive(rng, J, YEARS, sd=0.2, rho=0.5)[:, YEAR]
        found = np.sqrt(alike) * common + np.sqrt(1 - alike) * sd * rng.normal(size=16)
        y = rng.poisson(np.exp(eta[site, month] + found[who]) * rng.gamma(2, 0.5, VISITS)).astype(float)
        groups = [
            Group.of(f"g{g}", site[m], month[m], y[m], np.unique(who[m], return_inverse=True)[1])
            for g in range(2)
            if (m := who % 2 == g).any()
        ]
        name = f"s{k}"
        panel = GroupPanel.of(J, YEARS * MONTHS, groups, (MONTH, 2010 + YEAR))
        # As of panels of the same records: one secret, under which an observer has the same draw for every species.
        held, at = visits_of(panel)
        held = {group: replace(visits, species=name) for group, visits in held.items()}
        plan = DataSpec(species=name, months=stamps_of(panel))
        federation = LocalFederation(held, at, J, plan, secrets={group: group.encode() for group in held})
        fit = federation.fit(CountSettings(rank=0, dispersion="negbin"))
        rows = federation.replicates(range(60), seed=1).totals[:, 0]
        totals[name] = pd.Series(yearly(totals_by_region(fit, np.full(J, -1), 0)[0]), years)
        draws[name] = pd.DataFrame(yearly(rows), columns=years)
        true[name] = pd.Series(yearly(np.exp(eta).sum(axis=0)), years)
    got, truth = indicator(totals, draws), indicator(true, {})["index"]
    trend, slope = indicator_trends(totals, draws).iloc[0], indicator_trends(true, {}).iloc[0]
    held = ((got["lo"] < truth) & (truth < got["hi"]))[1:].mean()
    within = trend["percent_lo_sampling"] < slope["percent_per_year"] < trend["percent_hi_sampling"]
    return held, within, trend["slope"] - slope["slope"]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--worlds", type=int, default=60)
    parser.add_argument("--species", type=int, default=8)
    parser.add_argument("--alike", type=float, default=0.5)
    parser.add_argument("--sd", type=float, default=0.2)
    a = parser.parse_args()
    held, within, error = np.array(
        [world(seed, a.species, a.alike, a.sd) for seed in range(a.worlds)], float
    ).T
    print(
        f"{a.worlds} worlds of {a.species} species, sd {a.sd:g}, {a.alike:g} alike: trend held in "
        f"{100 * within.mean():.0f} %, "
        f"index {100 * held.mean():.0f} %; slope: bias {error.mean():+.4f}, rmse {np.sqrt((error**2).mean()):.4f}"
    )


if __name__ == "__main__":
    main()
