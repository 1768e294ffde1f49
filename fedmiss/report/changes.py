"""Parts of the years: change points and the trend between them; windows that end in the last year, with alerts.

Also the smoothed yearly index, whose course the windows follow.
"""

from __future__ import annotations

from itertools import combinations, pairwise
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from fedmiss.arrays import F64, I64
from fedmiss.report.classes import interval
from fedmiss.report.loess import loess
from fedmiss.report.series import MonthlySeries
from fedmiss.report.slopes import trend_row
from fedmiss.report.years import base_years
from fedmiss.tables import load_schema

if TYPE_CHECKING:
    from fedmiss.report.findings import Findings

MAX_POINTS = 2
MIN_SEGMENT = 4  # totals on each side of a change point, its own among them
# What a bend must gain in -2 log likelihood, so that one in twenty straight lines with independent years has any: 7.5 to 8.1
# in simulated series of 8 to 60 years. BIC's 2 log Y is less in short series, where one line in six got a bend.
BEND_COST = 7.8
SUPPORTED = 0.5  # share of the replicates that makes a change point a finding


def _design(x: F64, knots: tuple[float, ...]) -> F64:
    # Hinges: continuous at every knot, where only the slope changes.
    return np.column_stack([np.ones_like(x), x - x[0], *(np.maximum(x - knot, 0.0) for knot in knots)])


def _candidates(year: I64, max_points: int) -> list[tuple[float, ...]]:
    # By their place: a stretch over a gap of years holds as many totals.
    inner = range(MIN_SEGMENT - 1, year.size - MIN_SEGMENT + 1)
    sets: list[tuple[float, ...]] = [()]
    for size in range(1, max_points + 1):
        sets += [
            tuple(float(year[place]) for place in knots)
            for knots in combinations(inner, size)
            if all(end - start >= MIN_SEGMENT - 1 for start, end in pairwise(knots))
        ]
    return sets


def _best(year: I64, logs: F64, max_points: int) -> list[tuple[float, ...]]:
    """Return the best knots for each row of ``logs`` (B, Y): a continuous line that bends there, each bend at its cost."""
    x = year.astype(np.float64)
    n = x.size
    sets = _candidates(year, max_points)
    scores = np.empty((len(sets), logs.shape[0]))
    for i, knots in enumerate(sets):
        # One QR for all series: residuals of every replicate are a matrix product.
        Q, _ = np.linalg.qr(_design(x, knots))
        rss = ((logs - (logs @ Q) @ Q.T) ** 2).sum(axis=1)
        # -2 log likelihood of normal residuals, but for a constant
        scores[i] = n * np.log(np.maximum(rss / n, 1e-12)) + BEND_COST * len(knots)
    return [sets[int(i)] for i in scores.argmin(axis=0)]


def change_points(
    monthly: ArrayLike,
    months: pd.DataFrame,
    draws: ArrayLike | None = None,
    *,
    n_observed: ArrayLike | None = None,
    max_points: int = MAX_POINTS,
) -> pd.DataFrame:
    """Find years in which the trend of log yearly totals bends.

    All continuous piecewise-linear curves with up to ``max_points`` bends, at least 4 totals on each side, are
    compared by likelihood; so year-to-year noise, and not the sampling error alone, decides (TRIM's stepwise Wald test
    uses the sampling error alone and finds bends in every fluctuating series). A bend has to gain so much that one in
    twenty straight lines with independent years has any; good and bad years in runs look like bends more often. The
    replicates measure how certain a bend is: ``support`` is the share of them in which a bend within two years of this one
    is chosen.

    Returns
    -------
    Frame, one row per bend (none is a result): ``year``, ``support`` (share of replicates, NaN without),
    ``slope_before``, ``slope_after`` (log per year).

    Examples
    --------
    >>> import numpy as np, fedmiss
    >>> months = fedmiss.report.years.month_table(12 * 2015 + np.arange(72))
    >>> totals = 100 * 0.95 ** (months["year"] - 2015)  # five per cent fewer every year
    >>> len(fedmiss.report.change_points(totals, months))  # a straight line has none
    0
    """
    return find_change_points(MonthlySeries.of(monthly, months, draws, n_observed), max_points)


def find_change_points(series: MonthlySeries, max_points: int = MAX_POINTS) -> pd.DataFrame:
    """Find the change points of a series; see ``change_points``."""
    year, total, draws = series.within(series.years.used)
    rows = []
    if year.size >= 2 * MIN_SEGMENT and (total > 0).all():
        knots = _best(year, np.log(total)[None, :], max_points)[0]
        chosen: list[tuple[float, ...]] = []
        if draws is not None and (draws > 0).all():
            # A replicate adds the error of the totals to the scatter of the years: does the bend survive it?
            chosen = _best(year, np.log(draws), max_points)
        coef = np.linalg.lstsq(_design(year.astype(np.float64), knots), np.log(total), rcond=None)[0]
        # Coefficients of hinges are changes of slope: their running sum is the slope of each stretch.
        slopes = np.cumsum(coef[1:])
        for i, knot in enumerate(knots):
            near = [any(abs(found - knot) <= 2 for found in other) for other in chosen]
            support = float(np.mean(near)) if chosen else np.nan
            rows.append((int(knot), support, float(slopes[i]), float(slopes[i + 1])))
    columns = ["year", "support", "slope_before", "slope_after"]
    kinds = {"year": "int64", **dict.fromkeys(columns[1:], "float64")}
    return pd.DataFrame(rows, columns=columns).astype(kinds)


def period_trends(
    monthly: ArrayLike,
    months: pd.DataFrame,
    draws: ArrayLike | None = None,
    *,
    rule: str = "pecbms",
    n_observed: ArrayLike | None = None,
    points: pd.DataFrame | None = None,
    refuse: str | None = None,
    convention: str = "long-term",
) -> pd.DataFrame:
    """Return the trend of the whole period and between change points.

    Columns: ``period`` and those of ``overall_trend`` up to ``reason``. A period with fewer than 5 complete years
    has a slope and no class.

    Examples
    --------
    >>> import numpy as np, fedmiss
    >>> months = fedmiss.report.years.month_table(12 * 2015 + np.arange(72))
    >>> totals = 100 * 0.95 ** (months["year"] - 2015)  # five per cent fewer every year
    >>> fedmiss.report.period_trends(totals, months)["period"].to_list()
    ['all years']
    """
    series = MonthlySeries.of(monthly, months, draws, n_observed)
    return periods(series, points, rule=rule, refuse=refuse, convention=convention)


def periods(
    series: MonthlySeries, points: pd.DataFrame | None, *, rule: str, refuse: str | None, convention: str
) -> pd.DataFrame:
    """Return the trend of all years of a series and between its change points; see ``period_trends``."""
    used = series.years.year[series.years.used]
    if used.size < 2:
        names = trend_row(used[:0], np.empty(0), None, rule, convention)
        return pd.DataFrame(columns=["period", *names, "rule", "reason"])
    spans: list[tuple[str, int, int]] = [("all years", int(used[0]), int(used[-1]))]
    if points is not None and len(points):
        edges = [int(used[0]), *(int(each) for each in points["year"]), int(used[-1])]
        spans += [(f"{start} to {end}", start, end) for start, end in pairwise(edges)]
    rows = []
    for name, first, last in spans:
        row = series.trend(rule=rule, years=(first, last), refuse=refuse, convention=convention)
        rows.append(row.loc[:, :"reason"].assign(period=name))
    frame = pd.concat(rows, ignore_index=True)
    return frame[["period", *(column for column in frame.columns if column != "period")]]


# -- windows that end in the last year, and the smoothed index -----------------------------------------------


WINDOWS = (25, 10, 5)
LACKING = 0.2  # part of a window that may lie before its first used year
ALERTS = ((-50.0, "decline above 50 %"), (-25.0, "decline above 25 %"))
_SPAN_YEARS = 10  # a local line over about ten years, as the smooths of monitoring schemes


def alert_of(change: float, high: float) -> str:
    """Return the alert of a change over a window: its size decides, and its interval must not include 0.

    Source: British Trust for Ornithology, BirdTrends: alerts above 25 and 50 per cent, significant at 5 %.

    ``change``, ``high``: percent over the window, and the upper limit of its 95 % interval.
    """
    if not (np.isfinite(change) and np.isfinite(high)) or high >= 0.0:
        return ""
    return next((name for limit, name in ALERTS if change <= limit), "")


def over_window(percent: float, steps: int) -> float:
    """Turn a change per year into the change over the window, both in percent; NaN over no step."""
    if steps < 1:
        return float("nan")
    return float(100.0 * ((1.0 + float(percent) / 100.0) ** steps - 1.0))


def windows_of(used: I64) -> dict[int, int]:
    """Return the windows of a series with these years (Y,): how many steps, longest first -> the calendar year it begins in.

    Windows shorter than the series. Where years lack at its beginning a window has fewer steps; where they are more than
    ``LACKING`` of them it is left out: a change of three years is none of ten.

    Examples
    --------
    >>> windows_of(np.arange(2000, 2025))
    {10: 2014, 5: 2019}
    >>> windows_of(np.array([2000, 2001, 2020, 2021, 2022, 2023, 2024]))
    {5: 2019}
    """
    starts = {window: int(used[-1]) - window for window in WINDOWS if used[-1] - window > used[0]}
    return {
        window: start
        for window, start in starts.items()
        if used[np.searchsorted(used, start)] - start <= LACKING * window
    }


def window_trends(findings: Findings) -> pd.DataFrame:
    """Return the trend of all years and of the last 25, 10 and 5, longest first, each with its alert.

    A window of N years goes from the year N years before the last one to the last one (see ``windows_of``). The change over
    a window is that of its straight trend, so it agrees with the change per year.
    Schema ``report_windows``.
    """
    used = findings.years.year[findings.years.used]
    columns = load_schema("report_windows").names
    if used.size < 2:
        return pd.DataFrame(columns=columns)
    last = int(used[-1])
    trends = {"all years": findings.trend}
    for window, start in windows_of(used).items():
        trends[f"{window} years"] = findings.whole.trend(findings.settings, years=(start, last))
    rows = []
    for name, trend in trends.items():
        steps = int(trend["to_year"]) - int(trend["from_year"])
        change, lo, hi = (
            over_window(trend[name], steps) for name in ("percent_per_year", "percent_lo", "percent_hi")
        )
        row = trend.to_dict() | {"window": name, "change_percent": change, "change_lo": lo, "change_hi": hi}
        rows.append(row | {"alert": "" if trend["reason"] else alert_of(change, hi)})
    return pd.DataFrame(rows, columns=columns)


def smooth_index(findings: Findings) -> pd.DataFrame:
    """Return a LOESS curve through the logarithms of the yearly index, with the band of its replicates.

    Every replicate is smoothed the same way and set against its own base, so the error of the base is in the band. Empty for
    fewer than five used years or a total that is not positive. Schema ``report_smooth_index``; base = 100.
    """
    year, total, draws = findings.series.within(findings.years.used)
    base = base_years(findings.base, findings.years)
    if year.size < 5 or not (total > 0).all() or not base.any():
        return pd.DataFrame(columns=load_schema("report_smooth_index").names)
    x = year.astype(np.float64)
    span = float(np.clip(_SPAN_YEARS / year.size, 0.3, 1.0))
    base = base[findings.years.used]

    def curve(values: F64) -> F64:
        level = values[..., base].mean(axis=-1, keepdims=True)
        return np.asarray(100.0 * np.exp(loess(x, np.log(values), span, it=0)) / level)

    smooth = curve(total)
    limits = interval(smooth, curve(draws) if draws is not None and (draws > 0).all() else None)
    return pd.DataFrame(
        {
            "year": year,
            "index": 100.0 * total / total[base].mean(),
            "smooth": smooth,
            "smooth_lo": limits.lo,
            "smooth_hi": limits.hi,
        }
    )
