"""Coverage of the nominal 95 % intervals of slope, yearly index and monthly totals on panels with known truth.

    python benchmarks/interval_coverage.py [--panels 200] [--draws 100]
                                           [--kind random|preferential|weak] [--family poisson|negbin] [--observer-sd 0.3]

Each panel: 150 sites x 96 months, 10 % of cells visited, 60 observers, most visits by a few of them, in 5 groups. Observers
differ by exp(N(0, sd^2)), so the true monthly total is that of the mean observer, exp(sd^2 / 2) times that of the median
one: a model without observers' effects estimates nothing else.
"""

from __future__ import annotations

import argparse
import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np

from fedmiss.federation.local import bootstrap, fit_counts
from fedmiss.federation.results import totals_by_region
from fedmiss.models.lowrank.data import Group, GroupPanel
from fedmiss.simulate.panels import simulate_panel

J, L = 150, 96
YEAR = 2000 + np.arange(L) // 12
YEARS = np.unique(YEAR)
CENTRED = YEARS - YEARS.mean()


def yearly(monthly):
    return np.stack([monthly[..., YEAR == y].sum(axis=-1) for y in YEARS], axis=-1)


def slope(monthly):
    return np.log(yearly(monthly)) @ CENTRED / (CENTRED @ CENTRED)


def log_index(monthly):
    total = np.log(yearly(monthly))
    return (total - total[..., :1])[..., 1:]


def one(seed, kind, family, draws, observer_sd):
    p = simulate_panel(
        J,
        L,
        0.1,
        kind=kind,
        family=family,
        seed=seed,
        observers=60,
        groups=5,
        observer_sd=observer_sd,
        test_cells=10,
    )
    groups = []
    for k in np.unique(p.group):
        m = p.group == k
        who = np.unique(p.observer[m], return_inverse=True)[1]
        groups.append(Group.of(f"g{k}", p.site_index[m], p.month_index[m], p.y[m], who))
    panel = GroupPanel.of(J, L, groups, (np.arange(L) % 12 + 1, YEAR))
    fit = fit_counts(panel)
    B = bootstrap(panel, fit, draws=draws, seed=seed).totals[:, 0]
    estimate, truth = totals_by_region(fit, np.full(J, -1), 0)[0], p.totals * np.exp(observer_sd**2 / 2)
    out = {}
    for name, f in (("slope", slope), ("yearly index", log_index), ("monthly total", np.log)):
        se = f(B).std(axis=0, ddof=1)
        error = f(estimate) - f(truth)
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
        "| quantity | covered by the 95 % interval | standard error | mean error / sd | sd of errors / mean se |"
    )
    print("|---|---|---|---|---|")
    for name in results[0]:
        hit = np.array([np.mean(r[name][0]) for r in results])
        error, se = (np.array([r[name][i] for r in results]) for i in (1, 2))
        print(
            f"| {name} | {100 * hit.mean():.1f} % | {100 * hit.std(ddof=1) / np.sqrt(a.panels):.1f} % | "
            f"{error.mean() / error.std():.2f} | {error.std() / se.mean():.2f} |"
        )


if __name__ == "__main__":
    main()
