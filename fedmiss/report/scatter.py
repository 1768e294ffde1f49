"""How true years scatter about the line of a trend, each year for itself or in runs, and what that adds to an error.

Good and bad years of birds often come in runs, which a line takes for a trend; 8 to 30 years hardly tell whether they do.
So two ways of scattering are fitted, and averaged by how well they explain the totals: independent years, and years of
which neighbours are correlated by ``RUNS``.
"""

from __future__ import annotations

import numpy as np
from scipy.linalg import eigh
from scipy.special import expit

from fedmiss.arrays import F64, I64
from fedmiss.report.classes import student_quantile

RUNS = 0.7  # correlation of neighbouring years where they come in runs
ODDS = 5.0  # independent years against runs, before the totals are looked at
_NEWTON = 8  # steps from the minimum to the zero of the derivative
_GRID = 200  # points at which the likelihood is evaluated before the best is refined


def scatter_of_years(year: I64, total: F64, values: F64 | None) -> F64:
    """Return the covariance (Y, Y) of true log totals about their line, NaN where it cannot be estimated.

    ``(1 - p) sd_0^2 I + p sd_1^2 R``, with ``R = RUNS^|t - t'|``, the variances of ``year_variance``, and the weight of
    runs ``p = L_1 / (ODDS L_0 + L_1)`` of the largest restricted likelihoods. Every entry of the diagonal is the variance
    of a year.

    ``year``, ``total`` (Y,); ``values`` (B, Y) replicates, at least two, or None.
    """
    unknown = np.full((year.size, year.size), np.nan)
    if values is None or len(values) < 2 or year.size < 3:
        return unknown
    if not ((total > 0).all() and (values > 0).all()):
        return unknown
    t, cov = year.astype(np.float64), np.cov(np.log(values), rowvar=False)
    alone, in_runs = (year_variance(t, np.log(total), cov, rho) for rho in (0.0, RUNS))
    p = expit((alone[1] - in_runs[1]) / 2.0 - np.log(ODDS))
    return np.asarray((1.0 - p) * alone[0] * np.eye(t.size) + p * in_runs[0] * correlation(t, RUNS))


def correlation(year: F64, rho: float) -> F64:
    """Return ``rho^|t - t'|`` (Y, Y), that of a first-order autoregression; a missing year is a longer step."""
    return np.asarray(rho ** np.abs(year[:, None] - year))


def year_variance(year: F64, logs: F64, cov: F64, rho: float = 0.0) -> tuple[float, float]:
    """Estimate the variance of true log totals about a straight line, by restricted maximum likelihood.

    The residuals of the line are those of ``N(X beta, sigma2 R + cov)``, ``R = rho^|t - t'|``; the line is projected out,
    and ``sigma2`` is not below 0. It is 0 when the residuals are no larger than the error of the totals explains; without
    that error, and with ``rho`` 0, it is the residual sum of squares over ``Y - 2``.
    Source: random-effects meta-regression (Thompson and Sharp 1999). Differs from it in: the errors of the totals are
    correlated, and so may years be.

    Parameters
    ----------
    year : (Y,) calendar years
    logs : (Y,) logarithms of the totals
    cov : (Y, Y) covariance of their errors
    rho : correlation of years one apart, 0 <= rho < 1

    Returns
    -------
    sigma2 >= 0, log units squared, and -2 log of its restricted likelihood, but for a constant; both NaN for fewer than
    three years or a value that is not finite.
    """
    n = year.size
    if n < 3 or not (np.isfinite(logs).all() and np.isfinite(cov).all()):
        return float("nan"), float("nan")
    X = np.column_stack([np.ones(n), year - year.mean()])
    # REML: contrasts N'y that no line can move. Their covariance sigma2 A + N'cov N, A = N'R N, is diagonal in the
    # basis V of generalised eigenvectors: V'A V = I.
    N = np.linalg.qr(X, mode="complete")[0][:, 2:]
    A = N.T @ correlation(year, rho) @ N
    lam, V = eigh(N.T @ cov @ N, A)
    lam = np.maximum(lam, 0.0)
    z2 = ((N @ V).T @ logs) ** 2
    volume = float(np.linalg.slogdet(A)[1])

    def loss(grid: F64) -> F64:
        # -2 log likelihood of independent contrasts of variance s + lam, but for a constant.
        d = np.maximum(grid[:, None] + lam, 1e-300)
        return np.asarray((np.log(d) + z2 / d).sum(axis=1) + volume)

    # No variance beyond the largest squared contrast: every term of the likelihood falls there.
    top = float(z2.max())
    if top <= 1e-24:
        return 0.0, 0.0  # a perfect line tells nothing of runs
    grid = np.concatenate([[0.0], top * np.geomspace(1e-8, 1.0, _GRID)])
    losses = loss(grid)
    best = int(losses.argmin())
    if best == 0:
        return 0.0, float(losses[0])
    lower, upper = grid[best - 1], grid[min(best + 1, grid.size - 1)]
    fine = np.linspace(lower, upper, _GRID)
    s = float(fine[loss(fine).argmin()])
    for _ in range(_NEWTON):  # a minimum is known to half the digits; the zero of its derivative to all
        # Newton on the derivative of sum log(s + lam) + z2 / (s + lam).
        d = np.maximum(s + lam, 1e-300)
        slope, bend = (1.0 / d - z2 / d**2).sum(), (2.0 * z2 / d**3 - 1.0 / d**2).sum()
        s = float(np.clip(s - slope / bend, lower, upper)) if bend > 0 else s
    return s, float(loss(np.array([s]))[0])


def contrast_error(weights: F64, sampling: float, scatter: F64, level: float = 0.95) -> tuple[float, float]:
    """Add the scatter of years to the sampling error of ``weights @ log totals``.

    ``se^2 = sampling^2 + weights' scatter weights``, with the Student quantile of ``Y - 2`` degrees of freedom, the number
    of residuals behind the scatter. With independent years and totals known exactly this is ordinary least squares.

    Parameters
    ----------
    weights : (Y,) of the contrast: ``(t - mean t) / sum (t - mean t)^2`` for the slope
    sampling : standard error over the replicates
    scatter : (Y, Y) of ``scatter_of_years``

    Returns
    -------
    se, quantile : the standard error, and the Student quantile that goes with it
    """
    if weights.size < 3:
        return np.nan, np.nan
    se = float(np.sqrt(sampling**2 + float(weights @ scatter @ weights)))
    return se, student_quantile(level, weights.size - 2)
