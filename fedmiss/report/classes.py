"""The classes of a trend: the rule that PECBMS publishes, and the one that rtrim computes."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fedmiss.errors import ConfigError
from fedmiss.report.intervals import normal_quantile, student_quantile
from fedmiss.report.settings import RULES

__all__ = ["CLASSES", "NOT_CLASSIFIED", "TrendClass", "by_limits", "classify"]

CLASSES = (
    "strong increase",
    "moderate increase",
    "stable",
    "moderate decline",
    "strong decline",
    "uncertain",
)
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
    ``se``, the Student ``quantile`` stands for 1.96. Strong increase when
    the lower limit is above 1.05, moderate increase when it is above 1; strong decline when the upper limit is
    below 0.95, moderate decline when it is below 1; stable when both lie between 0.95 and 1.05; else uncertain.
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
    ConfigError : for another rule.

    Examples
    --------
    >>> import fedmiss
    >>> fedmiss.report.classify(slope=-0.03, se=0.005, n_years=15).name
    'moderate decline'
    """
    if rule not in (*RULES, "trim"):
        raise ConfigError(
            f"there is no rule {rule!r} for trend classes; choose pecbms, rtrim or trim.", rule=rule
        )
    if not (np.isfinite(slope) and np.isfinite(se)):
        return TrendClass(NOT_CLASSIFIED, "Unknown (no standard error)", np.nan, np.nan)
    if rule == "pecbms":
        multiplicative = float(np.exp(slope))
        half = quantile * multiplicative * se
        lo, hi = multiplicative - half, multiplicative + half
        name = by_limits(lo, hi)
        return TrendClass(name, name.capitalize(), max(lo, 0.0), hi)
    if n_years - 2 <= 0:
        return TrendClass(NOT_CLASSIFIED, "Unknown (df<=0)", np.nan, np.nan)
    if rule == "trim":
        q = np.array([normal_quantile(level) for level in (0.95, 0.99)])
        lo1, lo2 = np.exp(slope) * (1.0 - q * se)
        hi1, hi2 = np.exp(slope) * (1.0 + q * se)
    else:
        q = np.array([student_quantile(level, n_years - 2) for level in (0.95, 0.999)])
        lo1, lo2 = np.exp(slope - q * se)
        hi1, hi2 = np.exp(slope + q * se)
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
    name, label = next((n, text) for hit, n, text in ladder if hit)
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
