"""Intervals from bootstrap replicates, for quantities that are positive."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import ndtri, stdtrit

from fedmiss.arrays import F64, Bool

__all__ = ["MIN_DRAWS", "Interval", "interval", "normal_quantile", "ratio_to_base", "student_quantile"]

MIN_DRAWS = 20  # below this a standard deviation over replicates is off by more than 16 %


class Interval(NamedTuple):
    """Limits of the same shape as the estimate; ``se_log`` is the standard error of its logarithm."""

    lo: F64
    hi: F64
    se_log: F64


def normal_quantile(level: float) -> float:
    """Return the two-sided standard normal quantile: 1.96 for ``level=0.95``."""
    return float(ndtri(0.5 + level / 2.0))


def student_quantile(level: float, df: int) -> float:
    """Return the two-sided Student quantile with ``df`` degrees of freedom."""
    return float(stdtrit(df, 0.5 + level / 2.0))


def interval(estimate: ArrayLike, draws: F64 | None, level: float = 0.95) -> Interval:
    """Give limits on the log scale around the estimate: ``estimate * exp(-+ z * sd(log draws))``.

    On the log scale the limits stay positive (those of rtrim may not) and the few replicates that one can
    afford are used for a standard deviation, which needs fewer of them than a quantile does. Where the
    estimate or some replicate is not positive (a Gaussian fit on the raw scale can do that), the quantiles of
    the replicates are given instead, cut at 0.

    Parameters
    ----------
    estimate : (N,) or scalar, any unit
    draws : (B, N), or None; the replicates, in the same unit
    level : nominal coverage

    Returns
    -------
    Interval, NaN everywhere when there are fewer than two draws.
    """
    est = np.atleast_1d(np.asarray(estimate, dtype=np.float64))
    nan = np.full(est.shape, np.nan)
    if draws is None or len(draws) < 2:
        return Interval(nan, nan.copy(), nan.copy())
    values = np.asarray(draws, dtype=np.float64).reshape(len(draws), -1)
    ok = (est > 0) & (values > 0).all(axis=0) & np.isfinite(values).all(axis=0)
    lo, hi, se = nan, nan.copy(), nan.copy()
    if ok.any():
        se[ok] = np.log(values[:, ok]).std(axis=0, ddof=1)
        half = normal_quantile(level) * se[ok]
        lo[ok], hi[ok] = est[ok] * np.exp(-half), est[ok] * np.exp(half)
    rest = ~ok & np.isfinite(values).all(axis=0) & np.isfinite(est)
    if rest.any():
        tail = (1.0 - level) / 2.0
        lo[rest], hi[rest] = np.maximum(np.quantile(values[:, rest], [tail, 1.0 - tail], axis=0), 0.0)
    return Interval(lo, hi, se)


def ratio_to_base(total: F64, cov: F64, base: Bool) -> tuple[F64, F64]:
    """Return totals over the mean of the base, and their standard errors by the delta method.

    ``d' V d`` with the derivatives ``d`` of the ratio, so that a single base has ratio 1 and no error.
    Source: rtrim 2.3.0, ``index(method = "formal")``. Differs from it in: nothing.

    Parameters
    ----------
    total : (N,); cov : (N, N); base : (N,) mask, at least one true
    """
    m = base / base.sum()
    reference = float(m @ total)
    D = np.eye(total.size) / reference - np.outer(total, m) / reference**2
    se = np.sqrt(np.maximum(np.einsum("ij,jk,ik->i", D, cov, D), 0.0))
    return total / reference, np.where(m == 1.0, 0.0, se)
