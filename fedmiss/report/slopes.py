"""The slope of log yearly totals, both errors of the slope, and its class.

Two conventions. ``long-term`` asks how well the counted years estimate the trend of a longer period: the ups and
downs of the years are part of the error (``scatter.scatter_of_years``), as in poptrend and bbsBayes2. ``trim`` asks how
well the slope through the true totals of just these years is known: only the error of the totals counts, as in TRIM and
rtrim.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from fedmiss.arrays import F64, I64
from fedmiss.errors import ConfigError
from fedmiss.report.classes import classify
from fedmiss.report.scatter import contrast_error, scatter_of_years
from fedmiss.report.settings import CONVENTIONS


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
    # Weights sum to zero, so the level of the logs drops out and no intercept is needed.
    return np.asarray(logs @ centred / (centred @ centred))


def trend_row(
    year: I64, total: F64, values: F64 | None, rule: str, convention: str
) -> dict[str, float | int | str]:
    """Return the columns of ``overall_trend`` that describe the slope through yearly totals (Y,), replicates (B, Y).

    Raises ConfigError: a convention that does not exist.
    """
    if convention not in CONVENTIONS:
        raise ConfigError(f"--convention is {convention!r}; it must be long-term or trim.")
    n = int(year.size)
    slope = float(log_slope(year, total))
    sampling = np.nan
    if values is not None and len(values) >= 2:
        sampling = float(np.std(log_slope(year, values), ddof=1))
    # Both errors are always reported; the convention says which one decides.
    scatter = scatter_of_years(year, total, values)
    narrow = classify(slope, sampling, n, rule)
    se, verdict = sampling, narrow
    if convention != "trim":
        centred = year - year.mean() if n > 1 else np.ones(n)
        se, quantile = contrast_error(centred / (centred @ centred), sampling, scatter)
        verdict = classify(slope, se, n, rule, quantile)
    factor = float(np.exp(slope))
    return {
        "from_year": int(year[0]) if n else -1, "to_year": int(year[-1]) if n else -1, "n_years": n,
        "slope": slope, "slope_se": se, "multiplicative": factor, "lo": verdict.lo, "hi": verdict.hi,
        "percent_per_year": 100.0 * (factor - 1.0), "percent_lo": 100.0 * (verdict.lo - 1.0),
        "percent_hi": 100.0 * (verdict.hi - 1.0), "trend_class": verdict.name, "label": verdict.label,
        "convention": convention, "year_sd": float(np.sqrt(scatter[0, 0])) if n else np.nan,
        "slope_se_sampling": sampling, "percent_lo_sampling": 100.0 * (narrow.lo - 1.0),
        "percent_hi_sampling": 100.0 * (narrow.hi - 1.0), "trend_class_sampling": narrow.name,
    }  # fmt: skip
