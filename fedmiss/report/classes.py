"""Intervals from bootstrap replicates, and the class of a trend: by the rule that PECBMS publishes, or as rtrim."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import ndtri, stdtrit

from fedmiss.arrays import F64, Bool
from fedmiss.errors import ConfigError
from fedmiss.report.settings import RULES

NOT_CLASSIFIED = "not classified"

_EPS = 1e-7  # rtrim's guard: a slope of exactly 0 with no error is stable


class TrendClass(NamedTuple):
    """A class, the label as the rule's source prints it, and the limits that decided (per year)."""

    name: str
    label: str
    lo: float
    hi: float


def classify(
    slope: float, se: float, n_years: int, rule: str = "pecbms", quantile: float = 1.96
) -> TrendClass:
    """Name a trend from its slope and standard error.

    ``pecbms``: limits are ``exp(b) -+ 1.96 SE(exp(b))`` with ``SE(exp(b)) = exp(b) se``; where the scatter of years is in
    ``se``, the Student ``quantile`` stands for 1.96. Strong increase when the lower limit is above 1.05, moderate increase
    when it is above 1; strong decline when the upper limit is below 0.95, moderate decline when it is below 1; stable when
    both lie between 0.95 and 1.05; else uncertain.
    Source: pecbms.info, trend interpretation and classification.

    ``rtrim``: limits are ``exp(b -+ q se)``, q the Student quantile with ``n_years - 2`` degrees of freedom;
    the same thresholds, strong before moderate, and within each the stricter level first. Source: rtrim 2.3.0,
    function ``overall``; its label "p<0.01" is printed for a level of 0.001, and so it is here.

    ``trim``: the limits of ``pecbms`` at 0.05 and at 0.01 on rtrim's ladder, as TRIM 3.61 printed its labels.

    Parameters
    ----------
    slope, se : log per year (se >= 0)
    n_years : number of yearly totals that the slope was fitted to
    quantile : of the rule ``pecbms``; the other rules have their own

    Raises
    ------
    ConfigError : for another rule, or a standard error below 0.

    Examples
    --------
    >>> import fedmiss
    >>> fedmiss.report.classify(slope=-0.03, se=0.005, n_years=15).name
    'moderate decline'
    """
    if rule not in (*RULES, "trim"):
        raise ConfigError(f"there is no rule {rule!r} for trend classes; choose pecbms, rtrim or trim.")
    if se < 0:
        raise ConfigError(f"the standard error of the slope is {se:g} (must be 0 or more).")
    if not (np.isfinite(slope) and np.isfinite(se)):
        return TrendClass(NOT_CLASSIFIED, "Unknown (no standard error)", np.nan, np.nan)
    if rule == "pecbms":
        multiplicative = float(np.exp(slope))
        # PECBMS publishes limits that are symmetric on the scale of the
        # yearly ratio (delta method): the lower one may fall below 0.
        half = quantile * multiplicative * se
        lo, hi = multiplicative - half, multiplicative + half
        name = by_limits(lo, hi)
        return TrendClass(name, name.capitalize(), max(lo, 0.0), hi)
    if n_years - 2 <= 0:
        return TrendClass(NOT_CLASSIFIED, "Unknown (df<=0)", np.nan, np.nan)
    if rule == "trim":
        quantiles = np.array([normal_quantile(level) for level in (0.95, 0.99)])
        lo1, lo2 = np.exp(slope) * (1.0 - quantiles * se)
        hi1, hi2 = np.exp(slope) * (1.0 + quantiles * se)
    else:
        quantiles = np.array([student_quantile(level, n_years - 2) for level in (0.95, 0.999)])
        lo1, lo2 = np.exp(slope - quantiles * se)
        # Three years of which one has no birds: a limit beyond what a double can hold.
        hi1, hi2 = np.exp(np.minimum(slope + quantiles * se, 700.0))
    # rtrim's order of tests: the first that holds gives the label.
    ladder = (
        (lo2 > 1.05, "strong increase", "Strong increase (p<0.01)"),
        (hi2 < 0.95, "strong decline", "Strong decrease (p<0.01)"),
        (lo1 > 1.05, "strong increase", "Strong increase (p<0.05)"),
        (hi1 < 0.95, "strong decline", "Strong decrease (p<0.05)"),
        (lo2 > 1.0 + _EPS, "moderate increase", "Moderate increase (p<0.01)"),
        (hi2 < 1.0 - _EPS, "moderate decline", "Moderate decrease (p<0.01)"),
        (lo1 > 1.0 + _EPS, "moderate increase", "Moderate increase (p<0.05)"),
        (hi1 < 1.0 - _EPS, "moderate decline", "Moderate decrease (p<0.05)"),
        (lo1 > 0.95 and hi1 < 1.05, "stable", "Stable"),
        (True, "uncertain", "Uncertain"),
    )
    name, label = next((level, text) for hit, level, text in ladder if hit)
    return TrendClass(name, label, float(lo1), float(hi1))


def by_limits(lo: float, hi: float) -> str:
    """Name a yearly ratio by the limits of its interval, as PECBMS does."""
    if lo > 1.05:
        return "strong increase"
    if lo > 1.0:
        return "moderate increase"
    if hi < 0.95:
        return "strong decline"
    if hi < 1.0:
        return "moderate decline"
    return "stable" if lo > 0.95 and hi < 1.05 else "uncertain"


# -- intervals from replicates, for quantities that are positive ---------------------------------------------


MIN_DRAWS = 20  # below this a standard deviation over replicates is off by more than 16 %
SKEWED = 1.0  # standard error of a logarithm beyond which replicates are skewed on the log scale too


class Interval(NamedTuple):
    """Limits of the same shape as the estimate; ``se_log`` is the standard error of its logarithm."""

    lo: F64
    hi: F64
    se_log: F64


def normal_quantile(level: float) -> float:
    """Return the two-sided standard normal quantile: 1.96 for ``level=0.95``."""
    return float(ndtri(_upper(level)))


def student_quantile(level: float, df: int) -> float:
    """Return the two-sided Student quantile with ``df`` degrees of freedom."""
    return float(stdtrit(df, _upper(level)))


def _upper(level: float) -> float:
    """Chance below the upper limit; a level in percent would give limits of NaN without a word."""
    if not 0 < level < 1:
        raise ConfigError(f"--level is {level:g} (must lie between 0 and 1, as 0.95).")
    return 0.5 + level / 2.0


def interval(estimate: ArrayLike, draws: F64 | None, level: float = 0.95) -> Interval:
    """Give limits on the log scale around the estimate: ``estimate * exp(-+ z * sd(log draws))``.

    On the log scale the limits stay positive (those of rtrim may not) and the few replicates that one can
    afford are used for a standard deviation, which needs fewer of them than a quantile does. The quantiles of the
    replicates, cut at 0, are given instead where this deviation is above ``SKEWED`` and there are ``MIN_DRAWS`` (where
    nothing was found, replicates go down without end and not up), or where the estimate or some replicate is not positive
    (a Gaussian fit on the raw scale can do that).

    Parameters
    ----------
    estimate : (N,) or scalar, any unit
    draws : (B, N), or None; the replicates, in the same unit
    level : nominal coverage

    Returns
    -------
    Interval, NaN everywhere when there are fewer than two draws.

    Raises ConfigError: a level outside 0 and 1.
    """
    est, upper = np.atleast_1d(np.asarray(estimate, dtype=np.float64)), _upper(level)
    nan = np.full(est.shape, np.nan)
    if draws is None or len(draws) < 2:
        return Interval(nan, nan.copy(), nan.copy())
    values = np.asarray(draws, dtype=np.float64).reshape(len(draws), -1)
    # Element by element: a month without birds must not take the log-scale limits from the other months.
    ok = (est > 0) & (values > 0).all(axis=0) & np.isfinite(values).all(axis=0)
    lo, hi, se = nan, nan.copy(), nan.copy()
    if ok.any():
        se[ok] = np.log(values[:, ok]).std(axis=0, ddof=1)
        ok &= (se <= SKEWED) | (len(values) < MIN_DRAWS)  # the quantiles of a handful are too near
        half = normal_quantile(level) * se[ok]
        lo[ok], hi[ok] = est[ok] * np.exp(-half), est[ok] * np.exp(half)
    rest = ~ok & np.isfinite(values).all(axis=0) & np.isfinite(est)
    if rest.any():
        ends = np.maximum(np.quantile(values[:, rest], [1.0 - upper, upper], axis=0), 0.0)
        # Replicates of an estimate of 0 may all lie above it.
        lo[rest], hi[rest] = np.minimum(ends[0], est[rest]), np.maximum(ends[1], est[rest])
    return Interval(lo, hi, se)


def ratio_to_base(total: F64, cov: F64, base: Bool) -> tuple[F64, F64]:
    """Return totals over the mean of the base, and their standard errors by the delta method.

    ``d' V d`` with the derivatives ``d`` of the ratio, so that a single base has ratio 1 and no error. NaN against a base
    of 0.
    Source: rtrim 2.3.0, ``index(method = "formal")``. Differs from it in: nothing.

    Parameters
    ----------
    total : (N,); cov : (N, N); base : (N,) mask, at least one true
    """
    m = base / base.sum()
    reference = float(m @ total) or np.nan
    # d (total_i / ref) / d total_k = [i = k] / ref - total_i m_k / ref^2.
    D = np.eye(total.size) / reference - np.outer(total, m) / reference**2
    se = np.sqrt(np.maximum(np.einsum("ij,jk,ik->i", D, cov, D), 0.0))
    # A base of one year has the ratio 1 by definition: rounding of the delta method must not give it an error.
    ratio = total / reference
    return ratio, np.where((m == 1.0) & np.isfinite(ratio), 0.0, se)
