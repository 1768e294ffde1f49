"""The multi-species indicator: geometric mean of species' indices, smoothed, with intervals and classes of change.

Source: Soldaat et al. (2017), Ecological Indicators 81, 340-347, whose program is the MSI-tool of Statistics Netherlands;
classes of a smooth by Soldaat et al. (2007), J. Ornithol. 148, 351-357. Differs in: replicates of a fit, where there
are some, stand for normal draws around its index; these have TRIM's covariance of years (there each year is drawn by itself,
so that the smooth is too sure and the slope is not sure enough); the indicator itself is of the indices and no mean over
draws; a species without a total in some years keeps its change over them (in the MSI-tool it is lost); change to the last
year is a ratio of the smooth (the MSI-tool divides its logarithms); no species is left out for large errors.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from fedmiss.arrays import F64, I64
from fedmiss.errors import ConfigError
from fedmiss.report.classes import by_limits, interval
from fedmiss.report.slopes import trend_row
from fedmiss.settings import kinds_checked

FLOOR = 0.01  # a total below this share of the species' mean counts as this share: a zero has no logarithm
STEP = 10.0  # a species' index changes at most by this factor from one year to the next
SPAN = 0.75  # share of the years in each local fit of the smooth
LAST = 10  # years of the trend of the last years
TREND = "from_year to_year slope slope_se percent_per_year percent_lo percent_hi trend_class".split()
_SAMPLING = "slope_se_sampling percent_lo_sampling percent_hi_sampling trend_class_sampling".split()
_Z = 1.96


@kinds_checked
def indicator(
    totals: Mapping[str, pd.Series],
    draws: Mapping[str, pd.DataFrame],
    *,
    base: int | None = None,
    span: float = SPAN,
) -> pd.DataFrame:
    """Return the geometric mean over species of their yearly index: its interval, smooth, and classes of change.

    The chain of mean changes: from one year to the next, the mean over the species that have both of the change of log
    total, at most a factor of ``STEP`` for each. With every species in every year this is the mean of the logarithms. Over
    years that a species lacks its logarithm is a straight line; what it did in these years is in no interval. Every species
    has the same weight. The interval says how well the mean of these species is known, not how other species fare.
    Replicates of one number stand together: in fits of the same records they weigh an observer alike, so that what he finds
    more or fewer of all species is in the interval. The smooth is a local quadratic of the log indicator of each draw; its
    limits are mean -+ 1.96 standard deviations. Source: see the head of this module.

    Parameters
    ----------
    totals : species -> yearly totals, indexed by year (used years only; a blank total is that of a year not used)
    draws : species -> replicates (B, years), columns years; species without them add no error
    base : year of 100 (default: the first)
    span : share of the years in each local fit of the smooth

    Returns
    -------
    Frame: ``year``, ``n_species``, ``index``, ``lo``, ``hi``, ``smooth``, ``smooth_lo``, ``smooth_hi`` (base = 100; NaN
    limits without replicates, NaN smooth for fewer than five years), and ``change_class``: of the change of the smooth from
    the year to the last one, as a yearly ratio (blank without limits)

    Raises
    ------
    ConfigError : no species, a base that no species has, years that no species links, totals that are not finite, not by
        year or nowhere above 0, replicates that are not finite or of a species without totals

    Examples
    --------
    >>> import pandas as pd, fedmiss
    >>> totals = {"wren": pd.Series([10.0, 40.0], [2001, 2002]), "crow": pd.Series([8.0, 8.0], [2001, 2002])}
    >>> fedmiss.report.indicator.indicator(totals, {})["index"].round(6).to_list()  # the geometric mean of 4 and 1 is 2
    [100.0, 200.0]
    """
    years, seen, log, sims = _simulate(totals, draws, base)
    value = np.exp(log)
    limits = interval(value, None if sims is None else np.exp(sims))
    table = {
        "year": years,
        "n_species": seen,
        "index": 100 * value,
        "lo": 100 * limits.lo,
        "hi": 100 * limits.hi,
    }
    nan = np.full(years.size, np.nan)
    smooth = {"smooth": nan, "smooth_lo": nan.copy(), "smooth_hi": nan.copy()}
    kinds = [""] * years.size
    if years.size >= 5:
        S = quadratic_smoother(years.astype(np.float64), span)
        smooth["smooth"] = 100 * np.exp(S @ log)
        if sims is not None:
            curves = sims @ S.T
            half = _Z * curves.std(axis=0, ddof=1)
            smooth["smooth_lo"], smooth["smooth_hi"] = (
                100 * np.exp(S @ log + sign * half) for sign in (-1, 1)
            )
            kinds = _changes(years, S @ log, curves)
    return pd.DataFrame(table | smooth | {"change_class": kinds})


def _changes(years: I64, smooth: F64, curves: F64) -> list[str]:
    """Name the change from each year to the last: ratio of the smooth -+ 1.96 standard errors, as a yearly ratio."""
    # Delta method on the ratio; replicates are of the whole series, so errors of the two years may cancel.
    ratio = np.exp(smooth[-1] - smooth)
    half = _Z * ratio * (curves[:, -1:] - curves).std(axis=0, ddof=1)
    kinds = []
    for year in range(years.size - 1):
        # A change over several years is classified as a ratio a year, its root.
        ends = np.maximum([ratio[year] - half[year], ratio[year] + half[year]], 0.0) ** (
            1.0 / (years[-1] - years[year])
        )
        kinds.append(by_limits(float(ends[0]), float(ends[1])))
    return [*kinds, ""]


@kinds_checked
def indicator_trends(
    totals: Mapping[str, pd.Series],
    draws: Mapping[str, pd.DataFrame],
    *,
    base: int | None = None,
    last: int = LAST,
    convention: str = "long-term",
) -> pd.DataFrame:
    """Return the linear trends of an indicator: of all years, and of the last ones; one row each.

    Slope of log indicator on year, with both errors of :func:`fedmiss.report.overall_trend`: the standard deviation over
    draws alone, as in the MSI-tool, calls a flat indicator whose years scatter a decline or an increase in most cases.

    Parameters
    ----------
    totals, draws, base : as for :func:`indicator`
    last : years of the second row, by the calendar, where there are more
    convention : whose error decides, ``long-term`` (with the scatter of years) or ``trim``

    Returns
    -------
    Frame: ``from_year``, ``to_year``, ``slope``, ``slope_se`` (log per year), ``percent_per_year``, ``percent_lo``,
    ``percent_hi`` (95 %), ``trend_class`` (rule of PECBMS), ``convention``, and error, limits and class by draws alone,
    whose names end in ``_sampling``

    Examples
    --------
    >>> import pandas as pd, fedmiss
    >>> years = range(2001, 2013)
    >>> wren = pd.Series([10 * 1.1**k for k in range(12)], years)
    >>> fedmiss.report.indicator_trends({"wren": wren}, {})["percent_per_year"].round(6).to_list()
    [10.0, 10.0]
    """
    if last < 2:
        raise ConfigError(f"last is {last}; a trend needs 2 years or more.")
    years, _, log, sims = _simulate(totals, draws, base)
    rows = []
    # By the calendar: of an indicator with gaps the last ten values are of more than ten years.
    for length in dict.fromkeys((years.size, int((years > years[-1] - last).sum()))):
        if length >= 2:
            drawn = None if sims is None else np.exp(sims[:, -length:])
            rows.append(trend_row(years[-length:], np.exp(log[-length:]), drawn, "pecbms", convention))
    return pd.DataFrame(rows, columns=[*TREND, "convention", *_SAMPLING])


def _simulate(
    totals: Mapping[str, pd.Series], draws: Mapping[str, pd.DataFrame], base: int | None
) -> tuple[I64, I64, F64, F64 | None]:
    """Return years (Y,), species with a total (Y,), log indicator against the base (Y,), and of the draws (B, Y)."""
    if not len(totals):  # a data frame has no truth value
        raise ConfigError("an indicator needs a species with yearly totals; there is none.")
    if strange := sorted(set(draws) - set(totals)):
        raise ConfigError(
            f"there are replicates of {strange[0]!r}, and no totals: without its own a species would have no error."
        )
    names = sorted(totals)
    totals = {name: _yearly(name, totals[name]) for name in names}
    own = {name: totals[name].index.to_numpy(dtype=np.int64) for name in names}
    years: I64 = np.unique(np.concatenate(list(own.values())))
    base = int(years[0]) if base is None else base
    if base not in years:
        raise ConfigError(f"the base {base} is not among the years {years[0]} to {years[-1]} of the species.")
    seen = np.stack([np.isin(years, own[name]) for name in names])
    logs = np.stack(
        [_along(_log(totals[name].to_numpy(dtype=np.float64)), own[name], years) for name in names]
    )
    # Without a common species the step between two years would be a mean of nothing.
    if not np.isfinite(np.diff(logs)).any(axis=0).all():
        raise ConfigError("some years are linked by no species to the others, so their ratio is not known.")
    at = int(np.searchsorted(years, base))
    n_draws = min((len(draw) for draw in draws.values()), default=0)
    sims = None
    if n_draws >= 2:
        many = np.repeat(logs[None], n_draws, axis=0)
        for i, name in enumerate(names):
            if name in draws:
                # In the order of the totals' years, whatever the order of columns.
                table = draws[name].set_axis([_year(label) for label in draws[name].columns], axis=1)
                wanted = list(totals[name].index)
                if lacking := [year for year in wanted if year not in table.columns]:
                    raise ConfigError(f"the replicates of {name!r} have no year {lacking[0]}.")
                part = table.loc[:, wanted].to_numpy(dtype=np.float64)
                part = part[:n_draws]
                if not np.isfinite(part).all():
                    raise ConfigError(f"the replicates of {name!r} hold numbers that are not finite.")
                many[:, i] = _along(_log(part), own[name], years)
        sims = _chain(many, at)
    return years, seen.sum(axis=0), _chain(logs, at), sims


def _year(label: Any) -> Any:
    """Return a year that is a text, as a file gives it, as a number."""
    return int(label) if isinstance(label, str) and label.strip().isdecimal() else label


def _yearly(name: str, series: pd.Series) -> pd.Series:
    """Return the totals of a species by year, in order; years whose total is blank are left out."""
    series = series.dropna().astype(np.float64)
    if not len(series):
        raise ConfigError(f"{name!r} has no yearly total; leave the species out.")
    if not np.isfinite(series.to_numpy()).all():
        raise ConfigError(f"the totals of {name!r} hold numbers that are not finite.")
    if not (series > 0).any():
        raise ConfigError(f"{name!r} has no total above 0, so its index is not known; leave the species out.")
    series.index = pd.Index([_year(label) for label in series.index])
    if not all(
        isinstance(year, int | np.integer | float) and float(year).is_integer() for year in series.index
    ):
        raise ConfigError(f"the totals of {name!r} are not by year: {series.index[0]!r} is none.")
    if (twice := series.index.duplicated()).any():
        raise ConfigError(f"{name!r} has two totals of {series.index[twice][0]}; give each year one.")
    return series.sort_index()


def _along(log: F64, own: I64, years: I64) -> F64:
    """Put (..., own years) on the axis of all years: straight lines over gaps, NaN before the first year and after the last.

    A step into a gap has no other end. So the change over the gap would be lost, and the ups and downs of the years beside
    it would stay in all later years.
    """
    at = np.stack([np.interp(years, own, unit, left=np.nan, right=np.nan) for unit in np.eye(own.size)])
    return np.asarray(log @ at)


def _chain(logs: F64, base: int) -> F64:
    """Add up the mean changes over species of (..., S, Y) logs; (..., Y), 0 in the base."""
    # Clipped like the MSI-tool does, or one species that appears or vanishes would carry the indicator.
    step = np.clip(np.diff(logs, axis=-1), -np.log(STEP), np.log(STEP))
    # Only species with both years have a change: a species that begins or ends moves no step it has no part in.
    mean = np.nanmean(step, axis=-2)
    out = np.concatenate([np.zeros((*mean.shape[:-1], 1)), np.cumsum(mean, axis=-1)], axis=-1)
    # Against the base, so that it has no error, as every index.
    return np.asarray(out - out[..., base : base + 1])


def _log(total: F64) -> F64:
    mean = total.mean(axis=-1, keepdims=True)
    return np.asarray(np.log(np.maximum(total, np.maximum(FLOOR * mean, 1e-300))))


def quadratic_smoother(x: F64, span: float = SPAN) -> F64:
    """Return the matrix (Y, Y) of a local quadratic smooth: tricube weights over the nearest ``span`` of the points.

    Source: Cleveland (1979) with degree 2 and no robustifying, as R's ``loess(y ~ x, span, degree = 2)``, here without
    its interpolation between vertices.
    """
    if not 0.0 < span <= 1.0:
        raise ConfigError(f"the span is {span:g}; it must lie above 0 and not above 1.")
    n = x.size
    q = min(n, max(int(n * span + 1e-5), 4))
    out = np.zeros((n, n))
    for i, at in enumerate(x):
        far = np.abs(x - at)
        # Bandwidth: the distance of the q-th nearest point, which itself gets the weight 0.
        h = np.sort(far)[q - 1]
        w = np.sqrt(np.clip(1 - (far / h) ** 3, 0, None) ** 3)
        X = np.vander(x - at, 3, increasing=True)
        # Row of the smoother: intercept of the weighted fit at this point, as a linear map of the values.
        out[i] = np.linalg.pinv(w[:, None] * X)[0] * w
    return out
