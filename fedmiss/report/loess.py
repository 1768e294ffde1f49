"""LOESS curves of monthly series, with the span chosen by leaving out whole years."""

from __future__ import annotations

import numpy as np

from fedmiss.arrays import F64, I64
from fedmiss.errors import ConfigError

SPANS = (0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.65, 0.8)
_NO_WEIGHT = 1e-12  # a local line needs two points that weigh more


def loess(x: F64, y: F64, span: float, it: int = 3, at: F64 | None = None) -> F64:
    """Return a local linear smooth of ``y`` at ``x`` (or at ``at``).

    Tricube weights over the nearest ``span * L`` points, ``it`` robustifying iterations with bisquare weights. All rows of
    ``y`` share the tricube weights, so that the five sums of every local line are matrix products.
    Source: Cleveland (1979); statsmodels 0.14 ``lowess``. Differs from it in: nothing but rounding.

    Parameters
    ----------
    x : (L,) finite and increasing, in years
    y : (L,), or (B, L) for B series at the same ``x``; finite
    span : share of the points in each local fit, 0 < span <= 1
    it : robustifying iterations; 0 for least squares
    at : (N,) where to evaluate, increasing; within the range of ``x``

    Returns
    -------
    curve : (N,) or (B, N); NaN at a place of ``at`` that fewer than two points are left for

    Raises ConfigError: a span out of its limits.
    """
    if not 0.0 < span <= 1.0:
        raise ConfigError(f"the LOESS span is {span:g}; it must lie above 0 and not above 1.")
    rows = np.atleast_2d(y)
    frac = max(span, min(1.0, 4.0 / x.size))  # a local line needs more than two points
    nearest = min(max(int(frac * x.size + 1e-10), 2), x.size)
    flat = np.ptp(rows, axis=1) == 0.0  # its residuals are rounding errors, which no weight should follow
    curve = np.broadcast_to(rows[:, :1], (len(rows), x.size if at is None else at.size)).copy()
    if not flat.all():
        curve[~flat] = _robust(x, rows[~flat], nearest, it, at)
    return curve.reshape(np.shape(y)[:-1] + curve.shape[1:])


def _robust(x: F64, y: F64, nearest: int, it: int, at: F64 | None) -> F64:
    # Cleveland's steps: a local fit, weights from its residuals, and again; the places to evaluate come last.
    sums, robust = _local_sums(x, x, nearest), np.ones((1, x.size))
    for _ in range(it):
        robust = _bisquare(np.abs(y - _lines(sums, robust, y, y)))
    if at is None:
        return _lines(sums, robust, y, y)
    return _lines(_local_sums(x, at, nearest), robust, y, np.full((len(y), at.size), np.nan))


def _local_sums(x: F64, at: F64, nearest: int) -> tuple[F64, F64, F64]:
    """Tricube weights (L, N) of the nearest points, alone, times the distance, and times its square."""
    # The window of the nearest points moves on by one where a place
    # lies past the middle of its first point and the next one after.
    left = np.searchsorted((x[: x.size - nearest] + x[nearest:]) / 2.0, at)
    radius = np.maximum(at - x[left], x[left + nearest - 1] - at)
    distance = x[:, None] - at
    apart = np.minimum(np.abs(distance) / radius, 1.0)
    near = 1.0 - apart * apart * apart  # products: a power of an array is ten times slower
    weight = near * near * near
    return weight, weight * distance, weight * distance * distance


def _lines(sums: tuple[F64, F64, F64], robust: F64, y: F64, otherwise: F64) -> F64:
    """The local lines of y (B, L) with robustness weights (B or 1, L), (B, N); ``otherwise`` where two points lack."""
    weight, first, second = sums
    weighed = robust * y
    enough = (robust > _NO_WEIGHT).astype(np.float64) @ (weight > _NO_WEIGHT) >= 2
    with np.errstate(divide="ignore", invalid="ignore"):
        total = robust @ weight
        centre = robust @ first / total  # mean distance of the points from the place
        spread = np.maximum(robust @ second / total - centre**2, 1e-12)
        level = weighed @ weight / total
        # Weighted least squares about the weighted mean: cov(distance, y) / var(distance), read off at distance 0.
        slope = (weighed @ first / total - centre * level) / spread
        return np.where(enough, level - slope * centre, otherwise)


def _bisquare(residual: F64) -> F64:
    """Cleveland's robustness weights: 1 for no residual, 0 from six median residuals on."""
    # Where more than half of the residuals are 0, all points off the curve lose their weight, as in statsmodels.
    scale = 6.0 * np.median(residual, axis=1, keepdims=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        size = np.where(scale > 0, residual / scale, residual > 0)
    return (1.0 - np.minimum(size, 1.0) ** 2) ** 2


def choose_span(x: F64, y: F64, block: I64, it: int = 3, least: float = 0.0) -> float:
    """Choose the span that predicts left-out years best, and the smoothest of those that do so equally well.

    Months of a year are alike, so leaving out single months would reward a curve that follows the season.
    Whole years (``block``) are left out instead, the first and the last excepted: a local fit there would
    extrapolate. Of the spans whose mean squared error is within one standard error of the smallest (the
    standard error of the paired difference over years), the largest is taken (Breiman et al. 1984).

    Parameters
    ----------
    x, y : (L,)
    block : (L,) the year of each point
    it : robustifying iterations
    least : no span below this, so that a window holds several seasons

    Returns
    -------
    span : one of ``SPANS``
    """
    years = np.unique(block)
    spans = [span for span in SPANS if span >= least] or [SPANS[-1]]
    if years.size < 4:
        return SPANS[-1]
    # A span is judged inside the series, where the left-out year has neighbours on both sides.
    inner = years[1:-1]
    if inner.size > 12:  # enough to choose; keeps long panels quick
        inner = inner[np.linspace(0, inner.size - 1, 12).round().astype(int)]
    # NaN where a left-out year cannot be predicted: such a span is no candidate.
    by_year = np.empty((len(spans), inner.size))
    for i, span in enumerate(spans):
        for j, year in enumerate(inner):
            out = block == year
            fitted = loess(x[~out], y[~out], span, it, at=x[out])
            by_year[i, j] = np.mean((y[out] - fitted) ** 2)
    errors = by_year.mean(axis=1)
    if np.isnan(errors).all():
        return SPANS[-1]
    extra = by_year - by_year[np.nanargmin(errors)]
    # The one-standard-error rule, with the error of the difference: years that are hard for all spans do not blur it.
    slack = extra.std(axis=1, ddof=1) / np.sqrt(inner.size)
    return max(span for span, ok in zip(spans, extra.mean(axis=1) <= slack + 1e-12, strict=True) if ok)
