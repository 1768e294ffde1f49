"""How often a trend's interval holds the slope of the line, where good and bad years come in runs.

    python benchmarks/year_scatter.py [--series 2000] [--years 8 12 20 30] [--errors 0] [--draws 200]

No model is fitted. Log yearly totals are a flat line, a scatter of true years (a first-order autoregression) and an error of
the totals (sd 0.1; ``--errors`` is the correlation of neighbouring ones); replicates of that error give the covariance, as
those of a fit do. Truth is flat, so what the interval does not hold is called an increase or a decline.

Three intervals: the report's; the one that takes years for independent (``alone``); TRIM's convention. A row is a number of
years, a scatter (times the error) and a correlation of neighbouring years: how often each holds 0, and the report's width
over that of ``alone``.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np

from fedmiss.report.classes import student_quantile
from fedmiss.report.scatter import correlation, year_variance
from fedmiss.report.slopes import trend_row

ERROR = 0.1  # sd of the error of a log total
SCATTER = (0.0, 0.5, 1.0, 2.0)  # sd of true years, times that of the error
CORRELATION = (0.0, 0.3, 0.6, 0.8)


def series(n, scatter, rho, errors, draws, rng):
    """Yield years, totals (n,) and replicates (draws, n) of flat series, without end."""
    year = np.arange(2000, 2000 + n)
    true, error = (np.linalg.cholesky(correlation(year.astype(float), r)) for r in (rho, errors))
    while True:
        total = 4 + scatter * ERROR * true @ rng.normal(size=n) + ERROR * error @ rng.normal(size=n)
        noise = ERROR * rng.normal(size=(draws, n)) @ error.T
        yield year, np.exp(total), np.exp(total + noise)


def judged(year, total, values):
    """Return whether the three intervals hold a flat line, and the half widths of the first two (log per year)."""
    row = trend_row(year, total, values, "pecbms", "long-term")
    x, quantile = year - year.mean(), student_quantile(0.95, year.size - 2)
    alone, _ = year_variance(year.astype(float), np.log(total), np.cov(np.log(values), rowvar=False))
    half = quantile * np.hypot(row["slope_se_sampling"], np.sqrt(alone / (x @ x)))
    # PECBMS sets its limits on the scale of the factor: exp(b) (1 -+ half).
    held = abs(np.expm1(-row["slope"])) < half
    return (
        row["percent_lo"] < 0 < row["percent_hi"], held,
        row["percent_lo_sampling"] < 0 < row["percent_hi_sampling"], quantile * row["slope_se"], half,
    )  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--series", type=int, default=2000, help="of each row")
    parser.add_argument("--years", type=int, nargs="+", default=[8, 12, 20, 30])
    parser.add_argument(
        "--errors", type=float, default=0.0, help="correlation of errors of neighbouring years"
    )
    parser.add_argument("--draws", type=int, default=200, help="replicates of each series")
    parser.add_argument("--seed", type=int, default=0)
    a = parser.parse_args()
    print("| years | scatter | correlation | report | alone | trim | width |")
    print("|---|---|---|---|---|---|---|")
    wider = []
    for n in a.years:
        for scatter in SCATTER:
            for rho in CORRELATION if scatter else (0.0,):
                rng = np.random.default_rng((a.seed, n, int(10 * scatter), int(10 * rho)))
                some = series(n, scatter, rho, a.errors, a.draws, rng)
                got = np.mean([judged(*next(some)) for _ in range(a.series)], axis=0)
                width = got[3] / got[4]
                wider += [width] if rho == 0 else []
                held = " | ".join(f"{100 * share:.1f}" for share in got[:3])
                print(f"| {n} | {scatter:g} | {rho:g} | {held} | {width:.2f} |", flush=True)
    worst = 50 / np.sqrt(a.series)
    print(f"standard errors {0.44 * worst:.1f} (at 95) to {worst:.1f} points at most")
    print(f"without runs the report's interval is {np.mean(wider):.3f} times as wide")


if __name__ == "__main__":
    main()
