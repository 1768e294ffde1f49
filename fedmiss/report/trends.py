"""Totals, indices, seasonal profile, smooth and overall trend, from monthly totals and their replicates.

Every function takes the monthly totals ``monthly`` (L,) in birds, the month axis ``months`` (a frame with the
columns of schema ``months``), and ``draws`` (B, L), bootstrap replicates of the totals, or None when there are
none: then every limit is NaN and no class is given. ``n_observed`` (L,) is the number of cells with a count in
each month; years without any are left out of trends. All return pandas frames; ``attrs`` says how.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from fedmiss.arrays import F64, I64, Bool
from fedmiss.errors import ConfigError
from fedmiss.report.classes import NOT_CLASSIFIED, classify
from fedmiss.report.intervals import MIN_DRAWS, interval
from fedmiss.report.loess import choose_span, loess
from fedmiss.report.scatter import check_convention, contrast_error, year_variance
from fedmiss.report.years import Years, base_years, decimal_year, make_years

__all__ = [
    "MIN_YEARS",
    "log_slope",
    "monthly_totals",
    "overall_trend",
    "scatter_of_years",
    "seasonal",
    "smooth",
    "yearly_covariance",
    "yearly_index",
    "yearly_series",
]

MIN_YEARS = 5  # fewer complete years than this: a slope is reported, a class is refused


def _checked(monthly: Any, months: pd.DataFrame, draws: Any) -> tuple[F64, F64 | None]:
    totals = np.asarray(monthly, dtype=np.float64)
    if totals.shape != (len(months),):
        raise ConfigError(
            f"there are {totals.size} monthly totals for {len(months)} months; give one for each month.",
            n_totals=totals.size,
        )
    if draws is None:
        return totals, None
    values = np.asarray(draws, dtype=np.float64)
    if values.ndim != 2 or values.shape[1] != totals.size:
        raise ConfigError(
            f"the draws have the shape {values.shape}; they must be (B, {totals.size}), one column a month.",
            shape=values.shape,
        )
    return totals, values


def yearly_series(
    monthly: Any, months: pd.DataFrame, draws: Any = None, n_observed: Any = None
) -> tuple[Years, F64, F64 | None]:
    """Return the year axis, the yearly means (Y,) in birds, and their replicates (B, Y) or None."""
    totals, values = _checked(monthly, months, draws)
    years = make_years(months, n_observed)
    return years, years.W @ totals, None if values is None else values @ years.W.T


def monthly_totals(
    monthly: Any, months: pd.DataFrame, draws: Any = None, *, level: float = 0.95
) -> pd.DataFrame:
    """Return the total over sites of each month with its interval.

    Columns: ``month_index``, ``month``, ``year``, ``month_of_year``, ``total``, ``lo``, ``hi`` (birds at standard
    effort, summed over sites), ``se_log``.

    Examples
    --------
    >>> import numpy as np, pandas as pd, fedmiss
    >>> year, month = np.divmod(np.arange(72), 12)
    >>> months = pd.DataFrame({"year": 2015 + year, "month_of_year": month + 1})
    >>> months["month"] = [f"{y}-{m:02d}" for y, m in months.to_numpy()]
    >>> months["month_index"] = np.arange(72)
    >>> totals = 100 * 0.95**year  # five per cent fewer every year
    >>> fedmiss.monthly_totals(totals, months)["total"].iloc[-1].round(2).item()
    77.38
    """
    totals, values = _checked(monthly, months, draws)
    limits = interval(totals, values, level)
    frame = months[["month_index", "month", "year", "month_of_year"]].reset_index(drop=True)
    return frame.assign(total=totals, lo=limits.lo, hi=limits.hi, se_log=limits.se_log)


def yearly_index(
    monthly: Any,
    months: pd.DataFrame,
    draws: Any = None,
    *,
    base: str | int | None = None,
    n_observed: Any = None,
    level: float = 0.95,
) -> pd.DataFrame:
    """Return yearly totals and the index: total of the year as a percentage of the base period.

    The total of a year is the mean over the months of the season of the total over sites (birds on an average
    month of the season). The index of the base period is 100; its interval in a single base year is a point, as
    in rtrim, and those of other years are of the ratio to the base, which uses the covariance of the two.

    Columns: ``year``, ``n_months``, ``complete``, ``used``, ``total``, ``total_lo``, ``total_hi``, ``total_se``
    (birds), ``index``, ``index_lo``, ``index_hi`` (percent of the base), ``index_se_log``. Years that are not
    ``used`` have a total (of the months they have) and no index.
    ``attrs``: ``base`` (list of years), ``season``.

    Examples
    --------
    >>> import numpy as np, pandas as pd, fedmiss
    >>> year, month = np.divmod(np.arange(72), 12)
    >>> months = pd.DataFrame({"year": 2015 + year, "month_of_year": month + 1})
    >>> months["month"] = [f"{y}-{m:02d}" for y, m in months.to_numpy()]
    >>> months["month_index"] = np.arange(72)
    >>> totals = 100 * 0.95**year  # five per cent fewer every year
    >>> fedmiss.yearly_index(totals, months)["index"].round(1).to_list()
    [100.0, 95.0, 90.3, 85.7, 81.5, 77.4]
    """
    years, total, values = yearly_series(monthly, months, draws, n_observed)
    mask = base_years(base, years)
    limits = interval(total, values, level)
    index = np.full(total.size, np.nan)
    ratio_draws: F64 | None = None
    if mask.any() and total[mask].mean() > 0:
        index = 100.0 * total / total[mask].mean()
        if values is not None:
            reference = values[:, mask].mean(axis=1, keepdims=True)
            with np.errstate(divide="ignore", invalid="ignore"):
                ratio_draws = 100.0 * values / reference
    index[~years.used] = np.nan
    band = interval(index, ratio_draws, level)
    frame = pd.DataFrame(
        {
            "year": years.year,
            "n_months": years.n_months,
            "complete": years.complete,
            "used": years.used,
            "total": total,
            "total_lo": limits.lo,
            "total_hi": limits.hi,
            "total_se": np.full(total.size, np.nan)
            if values is None or len(values) < 2
            else values.std(axis=0, ddof=1),
            "index": index,
            "index_lo": np.where(years.used, band.lo, np.nan),
            "index_hi": np.where(years.used, band.hi, np.nan),
            "index_se_log": np.where(years.used, band.se_log, np.nan),
        }
    )
    frame.attrs.update(base=[int(y) for y in years.year[mask]], season=list(years.season), level=level)
    return frame


def yearly_covariance(
    monthly: Any, months: pd.DataFrame, draws: Any, n_observed: Any = None
) -> tuple[I64, F64, F64]:
    """Return the used years (Y,), their totals (Y,) and the covariance (Y, Y) of the totals over the replicates.

    The covariance is on the delta-method scale, ``diag(total) cov(log replicates) diag(total)``, so that a
    standard error divided by its total is the standard error of the logarithm that every interval of the report
    uses; where a replicate is not positive it is the plain covariance.
    """
    years, total, values = yearly_series(monthly, months, draws, n_observed)
    if values is None or len(values) < 2:
        raise ConfigError(
            "covariances need bootstrap replicates (fit/draws.parquet); fit with --bootstrap 200."
        )
    t, v = total[years.used], values[:, years.used]
    if (v > 0).all() and (t > 0).all():
        cov = np.atleast_2d(np.cov(np.log(v), rowvar=False)) * np.outer(t, t)
    else:
        cov = np.atleast_2d(np.cov(v, rowvar=False))
    return years.year[years.used], t, cov


def log_slope(year: Any, total: F64) -> F64:
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


def _trend_row(year: I64, total: F64, values: F64 | None, rule: str, convention: str) -> dict[str, Any]:
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
    """Return the variance of true log totals about their line, NaN where it cannot be told (see ``year_variance``).

    Parameters
    ----------
    year, total : (Y,); values : (B, Y) replicates, at least two, or None
    """
    if values is None or len(values) < 2 or year.size < 3:
        return float("nan")
    if not ((total > 0).all() and (values > 0).all()):
        return float("nan")
    return year_variance(year.astype(np.float64), np.log(total), np.cov(np.log(values), rowvar=False))


def overall_trend(
    monthly: Any,
    months: pd.DataFrame,
    draws: Any = None,
    *,
    base: str | int | None = None,
    rule: str = "pecbms",
    n_observed: Any = None,
    years: tuple[int, int] | None = None,
    refuse: str | None = None,
    convention: str = "long-term",
    level: float = 0.95,
) -> pd.DataFrame:
    """Return the overall multiplicative trend per year, its class, and the change since the base period: one row.

    The slope is that of log yearly totals on the year. ``slope_se_sampling`` is its standard deviation over the
    replicates, which equals TRIM's sandwich ``(X'X)^-1 X' cov(log totals) X (X'X)^-1`` with the replicates'
    covariance. ``slope_se`` also holds the scatter of the years about their line (``year_sd``, see
    ``scatter.year_variance``), unless ``convention`` is ``trim``. ``lo`` and ``hi`` are the limits by which the ``rule``
    decides (see ``classify``). The slope does not depend on the base; ``change_percent`` does.

    A class is refused, with the ``reason``, for fewer than 5 complete years, fewer than 20 replicates, a total that
    is not positive, or for the reason given as ``refuse``.

    Columns: ``from_year``, ``to_year``, ``n_years``, ``slope``, ``slope_se`` (log per year), ``multiplicative``,
    ``lo``, ``hi`` (factor per year), ``percent_per_year``, ``percent_lo``, ``percent_hi``, ``trend_class``,
    ``label``, ``convention``, ``year_sd`` (log), ``slope_se_sampling``, ``percent_lo_sampling``,
    ``percent_hi_sampling``, ``trend_class_sampling`` (by TRIM's convention), ``rule``, ``reason``, ``change_percent``,
    ``change_lo``, ``change_hi``, ``change_lo_sampling``, ``change_hi_sampling`` (percent, last used year against the
    base period), ``base``.

    Examples
    --------
    >>> import numpy as np, pandas as pd, fedmiss
    >>> year, month = np.divmod(np.arange(72), 12)
    >>> months = pd.DataFrame({"year": 2015 + year, "month_of_year": month + 1})
    >>> months["month"] = [f"{y}-{m:02d}" for y, m in months.to_numpy()]
    >>> months["month_index"] = np.arange(72)
    >>> totals = 100 * 0.95**year  # five per cent fewer every year
    >>> round(float(fedmiss.overall_trend(totals, months)["percent_per_year"].iloc[0]), 6)
    -5.0
    """
    check_convention(convention)
    axis, total, values = yearly_series(monthly, months, draws, n_observed)
    mask = axis.used if years is None else axis.used & (axis.year >= years[0]) & (axis.year <= years[1])
    row = _trend_row(
        axis.year[mask], total[mask], None if values is None else values[:, mask], rule, convention
    )
    reason = refuse or ""
    if not reason:
        reason = _reason(int(mask.sum()), total[mask], 0 if values is None else len(values))
    if reason:
        row["trend_class"] = row["trend_class_sampling"] = NOT_CLASSIFIED
    row |= {"rule": rule, "reason": reason}
    row |= _change(axis, total, values, base, convention, level)
    return pd.DataFrame([row])


def _reason(n_years: int, total: F64, n_draws: int) -> str:
    if n_years < MIN_YEARS:
        return f"there are {n_years} complete years with counts; a class needs {MIN_YEARS}"
    if not (total > 0).all():
        return "the total of some year is not positive"
    if n_draws == 0:
        return "no bootstrap replicates were made, so no interval is available"
    if n_draws < MIN_DRAWS:
        return f"there are {n_draws} bootstrap replicates; an interval needs {MIN_DRAWS}"
    return ""


def _change(
    axis: Years, total: F64, values: F64 | None, base: str | int | None, convention: str, level: float
) -> dict[str, Any]:
    """Change of the last used year against the base period, in percent; the scatter of both is in its limits."""
    mask = base_years(base, axis)
    names = ("change_percent", "change_lo", "change_hi", "change_lo_sampling", "change_hi_sampling")
    out = dict.fromkeys(names, np.nan) | {"base": _base_text(axis, mask)}
    if not mask.any() or total[mask].mean() <= 0:
        return out
    used = np.flatnonzero(axis.used)
    last = int(used[-1])
    ratio = total[last] / total[mask].mean()
    draws = None
    if values is not None:
        with np.errstate(divide="ignore", invalid="ignore"):
            draws = (values[:, last] / values[:, mask].mean(axis=1))[:, None]
    band = interval(ratio, draws, level)
    lo, hi = float(band.lo[0]), float(band.hi[0])
    out |= {"change_lo_sampling": 100.0 * (lo - 1.0), "change_hi_sampling": 100.0 * (hi - 1.0)}
    if convention != "trim":
        weights = -mask[used].astype(np.float64) / mask.sum()
        weights[-1] += 1.0
        sigma2 = scatter_of_years(axis.year[used], total[used], None if values is None else values[:, used])
        se, quantile = contrast_error(weights, float(band.se_log[0]), sigma2, used.size, level)
        lo, hi = ratio * np.exp(-quantile * se), ratio * np.exp(quantile * se)
    out |= {
        "change_percent": 100.0 * (ratio - 1.0),
        "change_lo": 100.0 * (lo - 1.0),
        "change_hi": 100.0 * (hi - 1.0),
    }
    return out


def _base_text(axis: Years, mask: Bool) -> str:
    chosen = axis.year[mask]
    if chosen.size == 0:
        return ""
    return str(chosen[0]) if chosen.size == 1 else f"{chosen[0]}-{chosen[-1]}"


def seasonal(
    monthly: Any, months: pd.DataFrame, draws: Any = None, *, n_observed: Any = None, level: float = 0.95
) -> pd.DataFrame:
    """Return the seasonal profile: the mean total of each month of the year, over the used years.

    Columns: ``month_of_year``, ``n_years``, ``total``, ``lo``, ``hi`` (birds, mean over years), ``relative``,
    ``relative_lo``, ``relative_hi`` (1 = the mean of the season's months).

    Examples
    --------
    >>> import numpy as np, pandas as pd, fedmiss
    >>> year, month = np.divmod(np.arange(72), 12)
    >>> months = pd.DataFrame({"year": 2015 + year, "month_of_year": month + 1})
    >>> months["month"] = [f"{y}-{m:02d}" for y, m in months.to_numpy()]
    >>> months["month_index"] = np.arange(72)
    >>> totals = 100 * 0.95**year  # five per cent fewer every year
    >>> season = fedmiss.seasonal(totals * (1 + (month == 4)), months)
    >>> int(season["total"].to_numpy().argmax()) + 1  # the month with most
    5
    """
    totals, values = _checked(monthly, months, draws)
    axis = make_years(months, n_observed)
    keep = np.isin(months["year"].to_numpy(), axis.year[axis.used])
    moy = months["month_of_year"].to_numpy()
    season = np.asarray(axis.season, dtype=np.int64)
    member = (moy[None, :] == season[:, None]) & keep[None, :]
    M = member / np.maximum(member.sum(axis=1), 1)[:, None]
    profile = M @ totals
    by_draw = None if values is None else values @ M.T
    mean = profile.mean() if profile.size else np.nan
    relative = profile / mean if profile.size and mean > 0 else np.full(profile.size, np.nan)
    relative_draws = None
    if by_draw is not None and by_draw.size:
        with np.errstate(divide="ignore", invalid="ignore"):
            relative_draws = by_draw / by_draw.mean(axis=1, keepdims=True)
    a, b = interval(profile, by_draw, level), interval(relative, relative_draws, level)
    return pd.DataFrame(
        {
            "month_of_year": season,
            "n_years": member.sum(axis=1),
            "total": profile,
            "lo": a.lo,
            "hi": a.hi,
            "relative": relative,
            "relative_lo": b.lo,
            "relative_hi": b.hi,
        }
    )


def _without_season(y: F64, month_of_year: I64) -> F64:
    """Divide by the mean of each month of the year: what is left is course and noise, by which a span is chosen."""
    mean = np.bincount(month_of_year, weights=y, minlength=13) / np.maximum(
        np.bincount(month_of_year, minlength=13), 1
    )
    divisor = mean[month_of_year]
    return np.asarray(y / divisor) if (divisor > 0).all() else y


def smooth(
    monthly: Any,
    months: pd.DataFrame,
    draws: Any = None,
    *,
    n_missing: Any = None,
    n_observed: Any = None,
    span: float | None = None,
    it: int = 3,
    level: float = 0.95,
) -> pd.DataFrame:
    """Return the LOESS curve of the monthly totals, and that of the number of missing cells beside it.

    ``span=None`` chooses the span by leaving out whole years of the seasonally adjusted series, and never one that
    holds less than four seasons (see ``loess.choose_span``). The curve of every
    replicate is fitted with the same span; the band is the interval of the curve, not of the months. Months of
    years that lack a part of the season are not smoothed (NaN).

    Columns: ``month_index``, ``month``, ``time`` (decimal year), ``total``, ``smooth``, ``smooth_lo``,
    ``smooth_hi`` (birds), ``missing``, ``missing_smooth`` (cells; NaN without ``n_missing``).
    ``attrs``: ``span``, ``it``, ``span_chosen`` (bool).
    """
    totals, values = _checked(monthly, months, draws)
    x = decimal_year(months)
    chosen = span is None
    # A year that lacks months (often the last) would bend the end of the curve with its season, so it is left out.
    axis = make_years(months, n_observed)
    keep = (axis.W[axis.complete] > 0).any(axis=0) if axis.complete.any() else np.ones(x.size, dtype=bool)
    xs, ys = x[keep], totals[keep]
    if span is None:
        span, _ = choose_span(
            xs,
            _without_season(ys, months["month_of_year"].to_numpy(dtype=np.int64)[keep]),
            months["year"].to_numpy(dtype=np.int64)[keep],
            it,
            least=min(0.8, 4.0 * len(axis.season) / max(xs.size, 1)),
        )
    curve = loess(xs, ys, span, it)
    curves = None if values is None else np.stack([loess(xs, row[keep], span, it) for row in values])
    if (ys >= 0).all():
        curve = np.maximum(curve, 0.0)  # a local line may dip below zero beside a peak; birds cannot
    band = interval(curve, curves, level)
    columns = {"smooth": curve, "smooth_lo": band.lo, "smooth_hi": band.hi}
    if n_missing is not None:
        columns["missing_smooth"] = loess(xs, np.asarray(n_missing, dtype=np.float64)[keep], span, it)
    frame = months[["month_index", "month"]].reset_index(drop=True).assign(time=x, total=totals)
    for name in ("smooth", "smooth_lo", "smooth_hi", "missing", "missing_smooth"):
        frame[name] = np.nan
    for name, value in columns.items():
        frame.loc[keep, name] = value
    if n_missing is not None:
        frame["missing"] = np.asarray(n_missing, dtype=np.float64)
    frame.attrs.update(span=span, it=it, span_chosen=chosen)
    return frame
