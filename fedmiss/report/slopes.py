"""The slope of log yearly totals, the scatter of true totals about their line, both errors of the slope, and its class.

Two conventions. ``long-term`` asks how well the counted years estimate the trend of a longer period: the ups and
downs of single years are part of the error, as in poptrend and bbsBayes2. ``trim`` asks how well the slope through the
true totals of just these years is known: only the error of the totals counts, as in TRIM and rtrim.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from fedmiss.arrays import F64, I64
from fedmiss.errors import ConfigError
from fedmiss.report.classes import classify, student_quantile
from fedmiss.report.settings import CONVENTIONS

_NEWTON = 8  # steps from the minimum to the zero of the derivative
_GRID = 200  # points at which the likelihood is evaluated before the best is refined


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

    Raises
    ------
    ConfigError : a convention that does not exist
    """
    if convention not in CONVENTIONS:
        raise ConfigError(
            f"--convention is {convention!r}; it must be long-term or trim.", convention=convention
        )
    n = int(year.size)
    slope = float(log_slope(year, total))
    sampling = np.nan
    if values is not None and len(values) >= 2:
        sampling = float(np.std(log_slope(year, values), ddof=1))
    # Both errors are always reported; the convention says which one decides.
    sigma2 = scatter_of_years(year, total, values)
    narrow = classify(slope, sampling, n, rule)
    se, verdict = sampling, narrow
    if convention != "trim":
        centred = year - year.mean() if n > 1 else np.ones(n)
        se, quantile = contrast_error(centred / (centred @ centred), sampling, sigma2, n)
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


def year_variance(year: F64, logs: F64, cov: F64) -> float:
    """Estimate the variance of true log totals about a straight line, by restricted maximum likelihood.

    The residuals of the line are those of ``N(X beta, sigma2 I + cov)``; the line is projected out, and ``sigma2`` is
    not below 0. It is 0 when the residuals are no larger than the error of the totals explains; without that error it is
    the residual sum of squares over ``Y - 2``.
    Source: random-effects meta-regression (Thompson and Sharp 1999). Differs from it in: the errors of the totals are
    correlated.

    Parameters
    ----------
    year : (Y,) calendar years
    logs : (Y,) logarithms of the totals
    cov : (Y, Y) covariance of their errors

    Returns
    -------
    sigma2 >= 0, log units squared; NaN for fewer than three years or a value that is not finite.

    Examples
    --------
    >>> year = np.arange(5.0)
    >>> wave = np.array([1.0, -1.0, 0.0, -1.0, 1.0])
    >>> year_variance(year, 0.2 * year + wave, np.zeros((5, 5))) > 0
    True
    >>> year_variance(year, 0.2 * year + wave, 9.0 * np.eye(5))
    0.0
    """
    n = year.size
    if n < 3 or not (np.isfinite(logs).all() and np.isfinite(cov).all()):
        return float("nan")
    X = np.column_stack([np.ones(n), year - year.mean()])
    # REML: contrasts N'y that no line can move. Their covariance
    # sigma2 I + N'cov N is diagonal in the basis of its eigenvectors.
    N = np.linalg.qr(X, mode="complete")[0][:, 2:]
    lam, V = np.linalg.eigh(N.T @ cov @ N)
    lam = np.maximum(lam, 0.0)
    z2 = ((N @ V).T @ logs) ** 2
    # No variance beyond the largest squared contrast: every term of the likelihood falls there.
    top = float(z2.max())
    if top <= 1e-24:
        return 0.0

    def least(grid: F64) -> int:
        # -2 log likelihood of independent contrasts of variance s + lam, but for a constant.
        d = np.maximum(grid[:, None] + lam, 1e-300)
        return int((np.log(d) + z2 / d).sum(axis=1).argmin())

    grid = np.concatenate([[0.0], top * np.geomspace(1e-8, 1.0, _GRID)])  # beyond top the likelihood falls
    best = least(grid)
    if best == 0:
        return 0.0
    lower, upper = grid[best - 1], grid[min(best + 1, grid.size - 1)]
    fine = np.linspace(lower, upper, _GRID)
    s = float(fine[least(fine)])
    for _ in range(_NEWTON):  # a minimum is known to half the digits; the zero of its derivative to all
        # Newton on the derivative of sum log(s + lam) + z2 / (s + lam).
        d = np.maximum(s + lam, 1e-300)
        slope, bend = (1.0 / d - z2 / d**2).sum(), (2.0 * z2 / d**3 - 1.0 / d**2).sum()
        s = float(np.clip(s - slope / bend, lower, upper)) if bend > 0 else s
    return s


def contrast_error(
    weights: F64, sampling: float, sigma2: float, n_years: int, level: float = 0.95
) -> tuple[float, float]:
    """Add the scatter of years to the sampling error of ``weights @ log totals``.

    ``se^2 = sampling^2 + sigma2 sum(weights^2)``, with the Student quantile of ``n_years - 2`` degrees of freedom, the
    number of residuals behind sigma2. With totals known exactly this is ordinary least squares.

    Parameters
    ----------
    weights : (Y,) of the contrast: ``(t - mean t) / sum (t - mean t)^2`` for the slope
    sampling : standard error over the replicates

    Returns
    -------
    se, quantile : the standard error, and the Student quantile that goes with it
    """
    if n_years < 3:
        return np.nan, np.nan
    se = float(np.sqrt(sampling**2 + sigma2 * float(weights @ weights)))
    return se, student_quantile(level, n_years - 2)
