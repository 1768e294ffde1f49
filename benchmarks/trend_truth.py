"""Trends and indices of the default model on panels with known truth, hostile designs included.

    python benchmarks/trend_truth.py ratio  [--panels 150]              fitted / true slope, six cells
    python benchmarks/trend_truth.py visits [--panels 200]              how often the report says so
    python benchmarks/trend_truth.py cover  [--panels 200] [--draws 100] [--designs random ...] [--flat sites|total]
                                            [--method default | trim]

``cover`` fits the negative binomial of rank ``--rank``, without cross-validation of the rank; ``default`` tries the prior of
site effects that follows visits, as ``fedmiss fit`` does. ``trim`` is TRIM's model 3 (the site + year Poisson GLM) with
overdispersion, on the mean count of each site and year. It has no term of effort, so it gets counts that were divided by the
true effect of effort, which no user knows.

``ratio``: 100 sites x 96 months, random visits, slope +-0.05 a year; the ratio is averaged over pairs of panels with both
signs. ``cover``: bias and root mean square error of the slope, coverage of the nominal 95 % intervals of slope and yearly
index, how often the report's class is a direction (an increase or a decline), by both conventions of the trend's error:
``long-term``, which holds the scatter of years, and ``trim``; and how often late first visits or early last ones make the
report say so and withhold the class. ``--flat sites`` makes the mean of the sites' slopes zero; ``--flat total`` makes the
slope of the true yearly totals exactly zero in every panel.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("FEDMISS_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from concurrent.futures import ProcessPoolExecutor
from types import SimpleNamespace

import numpy as np
import pandas as pd

from fedmiss.federation.calls import fit_counts
from fedmiss.federation.fit_tables import site_slopes, totals_by_region
from fedmiss.federation.hub.structure import try_structure
from fedmiss.federation.local import LocalFederation
from fedmiss.models.lowrank.choice import Choice
from fedmiss.models.lowrank.data import Group, GroupPanel
from fedmiss.models.lowrank.settings import CountSettings
from fedmiss.report.coverage import visits_by_site
from fedmiss.report.entries import FIRST, LAST, entries, entry_reason
from fedmiss.report.series import MonthlySeries
from fedmiss.report.settings import ReportSettings
from fedmiss.report.trim import TrimSettings, fit_trim
from tests.designs import EFFORT, simulate_design


def panel_of(p, groups=2):
    L = p.year.size
    members = []
    for g in range(groups):
        m = p.observer % groups == g
        who = np.unique(p.observer[m], return_inverse=True)[1]
        x = p.log_effort[m][:, None] if p.log_effort.any() else None
        members.append(Group.of(f"g{g}", p.site[m], p.month[m], p.count[m], who, effort=x))
    return GroupPanel.of(len(p.expected), L, members, (np.arange(L) % 12 + 1, p.year))


def yearly(monthly, year):
    return np.stack([monthly[..., year == y].mean(axis=-1) for y in np.unique(year)], axis=-1)


def slope_of(total):
    x = np.arange(total.shape[-1]) - (total.shape[-1] - 1) / 2
    return np.log(total) @ x / (x @ x)


def log_index(total):
    return (np.log(total) - np.log(total[..., :1]))[..., 1:]


def ratio_cell(job):
    visits, size, rank, seed, sign = job
    p = simulate_design("plain", seed, trend=0.05 * sign, visits=visits, size=size)
    fit = fit_counts(panel_of(p), CountSettings(rank=rank, dispersion="negbin"))
    return slope_of(yearly(totals_by_region(fit, np.full(fit.J, -1), 0)[0], p.year)) / p.slope


def trim_panel(p):
    """TRIM's model 3 on the mean count of every site and year: errors of slope and index with their standard errors."""
    year = p.year[p.month]
    table = pd.DataFrame({"site": p.site, "year": year, "count": p.count / np.exp(EFFORT * p.log_effort)})
    table = table.groupby(["site", "year"], as_index=False)["count"].mean()
    fit = fit_trim(table["site"], table["year"], table["count"], TrimSettings(model=3, overdispersion=True))
    s = fit.stratum()
    total = s.imputed
    logs, cov = np.log(total), s.var_imputed / np.outer(total, total)
    x = np.arange(logs.size) - (logs.size - 1) / 2
    w = x / (x @ x)
    against = np.eye(logs.size)[1:] - np.eye(logs.size)[:1]
    out = {"slope": (logs @ w - p.slope, (w @ cov @ w) ** 0.5), "slope_hat": (logs @ w, 0.0)}
    error = against @ (logs - np.log(p.yearly))
    out["index"] = (error, np.sqrt(np.einsum("ij,jk,ik->i", against, cov, against)))
    out["month"] = (np.full(1, np.nan), np.full(1, np.nan))
    held, said = abs(out["slope"][0]) < 1.96 * out["slope"][1], abs(logs @ w) > 1.96 * out["slope"][1]
    out |= {"trim": (held, said), "long-term": (np.nan, np.nan), "slope_se": np.nan, "year_sd": np.nan}
    out |= {"withheld": np.nan, "caution": np.nan}
    out["level"] = float(total.mean() / p.yearly.mean()), 0.0
    return out


def fitted(p, rank, seed):
    """The federation of a panel, and its fit."""
    federation = LocalFederation.of_panel(panel_of(p))
    choice = Choice(pd.DataFrame(), pd.DataFrame(), CountSettings(rank=rank, dispersion="negbin"), "")
    federation.hub, choice = try_structure(federation.link, federation.hub, choice, folds=5, seed=seed)
    return federation, federation.fit(choice.best)


def design_panel(design, seed, flat):
    """Simulate a panel; visits do not depend on the trend, so that a secant finds the one with a flat total."""
    if flat != "total":
        return simulate_design(design, seed, trend=0.0 if flat else -0.03)
    trend, p = 0.0, simulate_design(design, seed, trend=0.0)
    for _ in range(4):
        trend -= p.slope
        p = simulate_design(design, seed, trend=trend)
    return p


def entries_of(p, fit, draws=None):
    """What the report says of late first and early last visits, and the series that it says it of."""
    months = pd.DataFrame({"year": p.year, "month_of_year": np.arange(p.year.size) % 12 + 1})
    cells = pd.DataFrame(
        {"site_index": p.site, "month_index": p.month, "n_visits": 1, "n_detected": p.count > 0}
    )
    cells = cells.groupby(["site_index", "month_index"], as_index=False).sum()
    data = SimpleNamespace(expected=fit.expected(), cells=cells, fact=lambda name, default: default)
    series = MonthlySeries.of(data.expected.sum(axis=0), months, draws)
    return {e.what: e for e in entries(data, series, ReportSettings())}, series


def said_by_the_report(draws, p, fit):
    """Return (limits hold the truth, a direction is said) by each convention, and whether visits withhold the class."""
    found, series = entries_of(p, fit, draws)
    row = series.trend().iloc[0]
    reason = entry_reason(list(found.values()), row["percent_lo"], row["percent_hi"])
    row = series.trend(refuse=reason).iloc[0]
    truth = 100 * np.expm1(p.slope)
    out = {"year_sd": row["year_sd"], "slope_se": row["slope_se"], "withheld": reason is not None}
    out["caution"] = any(e.clear for e in found.values())
    for name, end in (("long-term", ""), ("trim", "_sampling")):
        held = row[f"percent_lo{end}"] < truth < row[f"percent_hi{end}"]
        out[name] = (held, row[f"trend_class{end}"].split()[-1] in ("increase", "decline"))
    return out


def cover_panel(job):
    design, seed, rank, draws, flat, method = job
    p = design_panel(design, seed, flat)
    if method != "default":
        return trim_panel(p)
    federation, fit = fitted(p, rank, seed)
    B = federation.replicates(range(draws), seed=seed).totals[:, 0]
    monthly = totals_by_region(fit, np.full(fit.J, -1), 0)[0]
    est, rep = yearly(monthly, p.year), yearly(B, p.year)
    out = {"slope": (slope_of(est) - p.slope, slope_of(rep).std(ddof=1))}
    out |= said_by_the_report(B, p, fit)
    out["index"] = (log_index(est) - log_index(p.yearly), log_index(rep).std(axis=0, ddof=1))
    month = np.log(p.expected.sum(axis=0))
    est_m = np.log(totals_by_region(fit, np.full(fit.J, -1), 0)[0])
    out["month"] = (est_m - month, np.log(B).std(axis=0, ddof=1))
    out["level"] = float(np.mean(est) / np.mean(p.yearly)), 0.0
    return out


def visits_panel(job):
    design, seed, rank = job
    p = simulate_design(design, seed)
    fit = fit_counts(panel_of(p), CountSettings(rank=rank, dispersion="negbin"))
    slope, mean = site_slopes(fit, p.year, np.arange(p.year.size) % 12 + 1)
    cells = pd.DataFrame(
        {"site_index": p.site, "month_index": p.month, "n_visits": 1, "n_detected": p.count > 0}
    )
    seen = cells.assign(year=p.year[p.month]).groupby("site_index")["year"].nunique()
    years = seen.reindex(range(fit.J), fill_value=0).to_numpy()
    sites = pd.DataFrame({"slope": slope, "mean_total": mean, "years_counted": years})
    found = {r.compared: (bool(r.clear), r.correlation) for r in visits_by_site(cells, sites).itertuples()}
    late = entries_of(p, fit)[0]
    return found | {
        what: (late[what].clear, late[what].found) if what in late else (False, np.nan)
        for what in (FIRST, LAST)
    }


def report_visits(design, rows):
    said = {what: np.mean([r[what][0] for r in rows]) for what in rows[0]}
    mean = {what: np.nanmean([r[what][1] for r in rows]) for what in rows[0]}
    cells = [f"{100 * s:.0f} % ({mean[what]:+.2f})" for what, s in said.items()]
    print(f"| {design} | {' | '.join(cells)} |", flush=True)


def report_cover(design, rows, flat):
    n = len(rows)
    error, se = (np.array([r["slope"][i] for r in rows]) for i in (0, 1))
    hit, said = ([np.mean([r[c][i] for r in rows]) for c in ("long-term", "trim")] for i in (0, 1))
    ie, ise = (np.array([r["index"][i] for r in rows]) for i in (0, 1))
    me, mse = (np.array([r["month"][i] for r in rows]) for i in (0, 1))
    ih = (np.abs(ie) < 1.96 * ise).mean(axis=1)
    mh = np.where(np.isnan(me), np.nan, np.abs(me) < 1.96 * mse).mean(axis=1)
    level = np.array([r["level"][0] for r in rows])
    cells = [
        f"{design}{f', flat {flat}' if flat else ''}",
        f"{error.mean():+.4f} ({error.std(ddof=1) / n**0.5:.4f})",
        f"{np.sqrt((error**2).mean()):.4f}",
        f"{se.mean():.4f}",
        f"{np.mean([r['slope_se'] for r in rows]):.4f}",
        *(f"{100 * np.mean(x):.0f} %" for x in (*hit, ih, mh)),
        f"{level.mean():.3f}",
        *(f"{100 * x:.1f} %" for x in said),
        *(f"{100 * np.mean([r[what] for r in rows]):.0f} %" for what in ("caution", "withheld")),
    ]
    cells = ["" if "nan" in c else c for c in cells]  # TRIM has no months and one convention
    print(f"| {' | '.join(cells)} |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["ratio", "visits", "cover"])
    parser.add_argument("--panels", type=int, default=200)
    parser.add_argument("--draws", type=int, default=100)
    parser.add_argument("--rank", type=int, default=2)
    parser.add_argument("--flat", choices=["sites", "total"], default="")
    parser.add_argument("--method", choices=["default", "trim"], default="default")
    parser.add_argument(
        "--designs",
        nargs="*",
        default=["random", "preferred", "abandoned", "learning", "handover", "arrivals", "losses"],
    )
    parser.add_argument("--workers", type=int, default=2)
    a = parser.parse_args()
    with ProcessPoolExecutor(a.workers) as pool:
        if a.what == "ratio":
            for size, visits in ((2.0, 600), (2.0, 2000), (np.inf, 600)):
                for rank in (0, 2):
                    jobs = [(visits, size, rank, seed, s) for seed in range(a.panels) for s in (1, -1)]
                    r = np.array(list(pool.map(ratio_cell, jobs, chunksize=4))).reshape(-1, 2).mean(axis=1)
                    error = r.std(ddof=1) / len(r) ** 0.5
                    print(
                        f"| size {size:g}, {visits} visits, rank {rank} | {r.mean():.3f} | {error:.3f} |",
                        flush=True,
                    )
            return
        if a.what == "visits":
            print(
                "| design | visits and birds | visits and trend | first visit and trend | last visit and trend | late first "
                "visits | early last visits |\n|---|---|---|---|---|---|---|"
            )
            for design in a.designs:
                jobs = [(design, seed, a.rank) for seed in range(a.panels)]
                report_visits(design, list(pool.map(visits_panel, jobs, chunksize=2)))
            return
        print(
            "| design | bias of the slope (se) | RMSE | mean se, trim | long-term | covers slope, long-term | trim "
            "| index | month | total / true | direction said, long-term | trim | caution of visits | class withheld |"
        )
        print("|---|---|---|---|---|---|---|---|---|---|---|---|---|---|")
        for design in a.designs:
            jobs = [(design, seed, a.rank, a.draws, a.flat, a.method) for seed in range(a.panels)]
            report_cover(design, list(pool.map(cover_panel, jobs, chunksize=2)), a.flat)


if __name__ == "__main__":
    main()
