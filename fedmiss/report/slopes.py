"""The slope of log yearly totals, its errors by both conventions, and its class."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from fedmiss.arrays import F64, I64
from fedmiss.report.classes import classify
from fedmiss.report.scatter import contrast_error, year_variance

__all__ = ["log_slope", "scatter_of_years", "trend_row"]


def log_slope(year: ArrayLike, total: F64) -> F64:
    """Return the least-squares slope of log(total) on year; ``total`` is (Y,) or (B, Y), the slope scalar or (B,).

    NaN where a total is not positive, or for fewer than two years. Source: the overall slope of TRIM (Pannekoek
    and van Strien 2001). Differs from it in: the abscissa is the calendar year, so a missing year leaves a gap
    instead of pulling the next one nearer.
    """
    x = np.asarray(year, dtype=np.float64)
    y = np.asarray(total, dtype=np.float64)
    if x.size < 2:
        return np.full(y.shape[:-1], np.nan)
    centred = x - x.mean()
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.where(y > 0, np.log(np.where(y > 0, y, 1.0)), np.nan)
    return np.asarray(logs @ centred / (centred @ centred))


def trend_row(
    year: I64, total: F64, values: F64 | None, rule: str, convention: str
) -> dict[str, float | int | str]:
    """Return the columns of ``overall_trend`` that describe the slope through yearly totals (Y,), replicates (B, Y)."""
    n = int(year.size)
    slope = float(log_slope(year, total))
    sampling = np.nan
    if values is not None and len(values) >= 2:
        sampling = float(np.std(log_slope(year, values), ddof=1))
    sigma2 = scatter_of_years(year, total, values)
    narrow = classify(slope, sampling, n, rule)
    if convention == "trim":
        se, verdict = sampling, narrow
    else:
        x = year - year.mean() if n else np.empty(0)
        se, quantile = contrast_error(x / (x @ x) if n > 1 else x, sampling, sigma2, n)
        verdict = classify(slope, se, n, rule, quantile)
    factor = float(np.exp(slope))
    return {
        "from_year": int(year[0]) if n else -1,
        "to_year": int(year[-1]) if n else -1,
        "n_years": n,
        "slope": slope,
        "slope_se": se,
        "multiplicative": factor,
        "lo": verdict.lo,
        "hi": verdict.hi,
        "percent_per_year": 100.0 * (factor - 1.0),
        "percent_lo": 100.0 * (verdict.lo - 1.0),
        "percent_hi": 100.0 * (verdict.hi - 1.0),
        "trend_class": verdict.name,
        "label": verdict.label,
        "convention": convention,
        "year_sd": float(np.sqrt(sigma2)),
        "slope_se_sampling": sampling,
        "percent_lo_sampling": 100.0 * (narrow.lo - 1.0),
        "percent_hi_sampling": 100.0 * (narrow.hi - 1.0),
        "trend_class_sampling": narrow.name,
    }


def scatter_of_years(year: I64, total: F64, values: F64 | None) -> float:
    """Return the variance of true log totals about their line, NaN where it cannot be estimated (see ``year_variance``).

    Parameters
    ----------
    year, total : (Y,); values : (B, Y) replicates, at least two, or None
    """
    if values is None or len(values) < 2 or year.size < 3:
        return float("nan")
    if not ((total > 0).all() and (values > 0).all()):
        return float("nan")
    return year_variance(year.astype(np.float64), np.log(total), np.cov(np.log(values), rowvar=False))
