"""LOESS curves of monthly series, with the span chosen by leaving out whole years."""

from __future__ import annotations

import numpy as np

from fedmiss.arrays import F64, I64
from fedmiss.errors import ConfigError

__all__ = ["SPANS", "choose_span", "loess"]

SPANS = (0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.65, 0.8)


def loess(x: F64, y: F64, span: float, it: int = 3, at: F64 | None = None) -> F64:
    """Return a local linear smooth of ``y`` at ``x`` (or at ``at``): statsmodels' lowess.

    Tricube weights over the nearest ``span * L`` points, ``it`` robustifying iterations with bisquare weights.
    Source: Cleveland (1979); statsmodels 0.14 ``lowess``. Differs from it in: nothing.

    Parameters
    ----------
    x, y : (L,) finite; ``x`` increasing, in years
    span : share of the points in each local fit, 0 < span <= 1
    it : robustifying iterations; 0 for least squares
    at : (N,) where to evaluate; within the range of ``x``
    """
    # statsmodels takes a second to load, and only curves need it.
    from statsmodels.nonparametric.smoothers_lowess import lowess

    if not 0.0 < span <= 1.0:
        raise ConfigError(f"the LOESS span is {span:g}; it must lie above 0 and not above 1.", span=span)
    if np.ptp(y) == 0.0:  # constant: lowess would divide by a zero scale in its robust step
        return np.full(x.size if at is None else at.size, y[0])
    frac = max(span, min(1.0, 4.0 / x.size))  # a local line needs more than two points
    if at is None:
        return np.asarray(lowess(y, x, frac=frac, it=it, is_sorted=True, return_sorted=False))
    return np.asarray(lowess(y, x, frac=frac, it=it, xvals=at))


def choose_span(
    x: F64, y: F64, block: I64, it: int = 3, spans: tuple[float, ...] = SPANS, least: float = 0.0
) -> tuple[float, F64]:
    """Choose the span that predicts left-out years best, and the smoothest of those that do so equally well.

    Months of a year are alike, so leaving out single months would reward a curve that follows the season.
    Whole years (``block``) are left out instead, the first and the last excepted: a local fit there would
    extrapolate. Of the spans whose mean squared error is within one standard error of the smallest (the
    standard error of the paired difference over years), the largest is taken (Breiman et al. 1984).

    Parameters
    ----------
    x, y : (L,)
    block : (L,) the year of each point
    least : no span below this, so that a window holds several seasons

    Returns
    -------
    span, errors : the chosen span, and the mean squared error of each of ``spans`` (NaN where not tried)
    """
    years = np.unique(block)
    errors = np.full(len(spans), np.nan)
    tried = [i for i, s in enumerate(spans) if s >= least] or [len(spans) - 1]
    if years.size < 4:
        return max(spans), errors
    inner = years[1:-1]
    if inner.size > 12:  # enough to choose; keeps long panels quick
        inner = inner[np.linspace(0, inner.size - 1, 12).round().astype(int)]
    by_year = np.full((len(spans), inner.size), np.nan)
    for i in tried:
        for j, year in enumerate(inner):
            out = block == year
            fitted = loess(x[~out], y[~out], spans[i], it, at=x[out])
            by_year[i, j] = np.mean((y[out] - fitted) ** 2)
    good = np.isfinite(by_year).all(axis=1)
    if not good.any():
        return max(spans), errors
    errors[good] = by_year[good].mean(axis=1)
    best = int(np.nanargmin(errors))
    extra = by_year - by_year[best]
    slack = extra.std(axis=1, ddof=1) / np.sqrt(inner.size) if inner.size > 1 else np.zeros(len(spans))
    fine = good & (extra.mean(axis=1) <= slack + 1e-12)
    return float(max(s for s, ok in zip(spans, fine, strict=True) if ok)), errors
