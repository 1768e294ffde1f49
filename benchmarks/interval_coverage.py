"""Coverage of the nominal 95 % intervals of slope, yearly index and monthly totals on panels with known truth.

    python benchmarks/interval_coverage.py [--panels 200] [--draws 100] [--kind random|preferential|weak|newcomers]
                                           [--family poisson|negbin] [--observer-sd 0.3]

Each panel: 150 sites x 96 months, 10 % of cells visited, 60 observers, most visits by a few of them, in 5 groups. Observers
differ by exp(N(0, sd^2)), so the true monthly total is that of the mean observer, exp(sd^2 / 2) times that of the median
one: a model without observers' effects estimates nothing else. ``newcomers``: of each of the many later observers a few
visits only, and a fit with effects of observers.
"""

from __future__ import annotations

import argparse

import lowrank_peers as peers  # first: it limits the BLAS threads

# isort: split
import numpy as np

from fedmiss.federation.calls import bootstrap, fit_counts
from fedmiss.federation.fit_tables import totals_by_region
from fedmiss.models.lowrank.data import Group, GroupPanel
from fedmiss.models.lowrank.settings import CountSettings
from fedmiss.simulate.panels import simulate_panel

J, L = 150, 96
YEAR = 2000 + np.arange(L) // 12
YEARS = np.unique(YEAR)
CENTRED = YEARS - YEARS.mean()


CALENDAR = (np.arange(L) % 12 + 1, YEAR)


def yearly(monthly):
    return np.stack([monthly[..., YEAR == y].sum(axis=-1) for y in YEARS], axis=-1)


def slope(monthly):
    return np.log(yearly(monthly)) @ CENTRED / (CENTRED @ CENTRED)


def log_index(monthly):
    total = np.log(yearly(monthly))
    return (total - total[..., :1])[..., 1:]


def log_total(monthly):
    return np.log(monthly.sum(axis=-1, keepdims=True))


QUANTITIES = {"slope": slope, "yearly index": log_index, "monthly total": np.log, "total": log_total}


def simulated(seed, kind, family, observer_sd):
    """A panel, the true monthly totals of the mean observer, and what to fit."""
    if kind == "newcomers":
        return newcomers(seed, family, observer_sd)
    p = simulate_panel(
        J, L, 0.1, kind=kind, family=family, seed=seed, observers=60, groups=5, observer_sd=observer_sd, test_cells=10
    )  # fmt: skip
    return peers.group_panel(p), p.totals * np.exp(observer_sd**2 / 2), CountSettings()


def newcomers(seed, family, observer_sd):
    """Forty regulars with 200 visits a year, and people who come one to five times: 20 visits in year 1, 800 in the last."""
    rng = np.random.default_rng(seed)
    often = [rng.integers(1, 6, round(20 * 40 ** (y / (YEARS.size - 1)) / 3)) for y in range(YEARS.size)]
    new = np.repeat(np.arange(YEARS.size), [v.sum() for v in often])
    year = np.r_[np.repeat(np.arange(YEARS.size), 200), new]
    each = np.concatenate(often)
    observer = np.r_[rng.integers(0, 40, 200 * YEARS.size), 40 + np.repeat(np.arange(each.size), each)]
    site, month = rng.integers(0, J, year.size), 12 * year + rng.integers(0, 12, year.size)
    true = np.exp(-0.5 + 0.7 * rng.standard_normal(J)[:, None] + 0.5 * np.cos(2 * np.pi * np.arange(L) / 12))
    mean = true[site, month] * np.exp(observer_sd * rng.standard_normal(40 + each.size)[observer])
    if family == "negbin":
        mean = mean * rng.gamma(1.5, 1 / 1.5, mean.size)
    panel = GroupPanel.of(
        J, L, [Group.of("g", site, month, rng.poisson(mean).astype(float), observer)], CALENDAR
    )
    settings = CountSettings(rank=0, observers=True, dispersion="negbin" if family == "negbin" else "quasi")
    return panel, true.sum(axis=0) * np.exp(observer_sd**2 / 2), settings


def one(seed, kind, family, draws, observer_sd):
    panel, true, settings = simulated(seed, kind, family, observer_sd)
    fit = fit_counts(panel, settings)
    B = bootstrap(panel, fit, draws=draws, seed=seed).totals[:, 0]
    estimate = totals_by_region(fit, np.full(J, -1), 0)[0]
    out = {}
    for name, f in QUANTITIES.items():
        se = f(B).std(axis=0, ddof=1)
        error = f(estimate) - f(true)
        out[name] = np.abs(error) < 1.96 * se, error, se
    return out


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--panels", type=int, default=200)
    parser.add_argument("--draws", type=int, default=100)
    parser.add_argument("--kind", default="random")
    parser.add_argument("--family", default="poisson")
    parser.add_argument("--observer-sd", type=float, default=0.3)
    a = parser.parse_args()
    results = [one(seed, a.kind, a.family, a.draws, a.observer_sd) for seed in range(a.panels)]
    print(f"{a.kind}, {a.family}, observer sd {a.observer_sd:g}, {a.panels} panels, {a.draws} draws")
    print(
        "| quantity | covered by the 95 % interval | standard error | mean error | mean / sd | sd of errors / mean se |"
    )
    print("|---|---|---|---|---|---|")
    for name in results[0]:
        hit = np.array([np.mean(r[name][0]) for r in results])
        error, se = (np.array([r[name][i] for r in results]) for i in (1, 2))
        print(
            f"| {name} | {100 * hit.mean():.1f} % | {100 * hit.std(ddof=1) / np.sqrt(a.panels):.1f} % | "
            f"{error.mean():+.4f} | {error.mean() / error.std():.2f} | {error.std() / se.mean():.2f} |"
        )


if __name__ == "__main__":
    main()
