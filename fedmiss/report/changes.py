"""Change points of the yearly series, and the trend of each period."""

from __future__ import annotations

from itertools import combinations, pairwise

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from fedmiss.arrays import F64, I64
from fedmiss.report.series import MonthlySeries
from fedmiss.report.slopes import trend_row

__all__ = ["change_points", "find_change_points", "period_trends", "periods"]

MAX_POINTS = 2
MIN_SEGMENT = 4  # years on each side of a change point


def _design(x: F64, knots: tuple[float, ...]) -> F64:
    return np.column_stack([np.ones_like(x), x - x[0], *(np.maximum(x - k, 0.0) for k in knots)])


def _candidates(year: I64, max_points: int) -> list[tuple[float, ...]]:
    inner = [float(y) for y in year[MIN_SEGMENT - 1 : -(MIN_SEGMENT - 1) or None]]
    sets: list[tuple[float, ...]] = [()]
    for n in range(1, max_points + 1):
        sets += [c for c in combinations(inner, n) if all(b - a >= MIN_SEGMENT - 1 for a, b in pairwise(c))]
    return sets


def _best(year: I64, logs: F64, max_points: int) -> list[tuple[float, ...]]:
    """Return the knots with the smallest BIC for each row of ``logs`` (B, Y).

    A continuous line that bends at the knots; a knot costs two parameters, its slope and its place.
    """
    x = year.astype(np.float64)
    n = x.size
    sets = _candidates(year, max_points)
    scores = np.empty((len(sets), logs.shape[0]))
    for i, knots in enumerate(sets):
        Q, _ = np.linalg.qr(_design(x, knots))
        rss = ((logs - (logs @ Q) @ Q.T) ** 2).sum(axis=1)
        scores[i] = n * np.log(np.maximum(rss / n, 1e-12)) + (2 + 2 * len(knots)) * np.log(n)
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

    All continuous piecewise-linear curves with up to ``max_points`` bends, at least 4 years on each side, are
    compared by BIC; so year-to-year noise, and not the sampling error alone, decides (TRIM's stepwise Wald test
    uses the sampling error alone and finds bends in every fluctuating series). The replicates measure how certain a
    bend is: ``support`` is the share of them in which a bend within two years of this one is chosen.

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
    year, t, draws = series.within(series.years.used)
    rows = []
    if year.size >= 2 * MIN_SEGMENT and (t > 0).all():
        knots = _best(year, np.log(t)[None, :], max_points)[0]
        chosen: list[tuple[float, ...]] = []
        if draws is not None and (draws > 0).all():
            chosen = _best(year, np.log(draws), max_points)
        coef = np.linalg.lstsq(_design(year.astype(np.float64), knots), np.log(t), rcond=None)[0]
        slopes = np.cumsum(coef[1:])
        for i, k in enumerate(knots):
            near = [any(abs(c - k) <= 2 for c in other) for other in chosen]
            support = float(np.mean(near)) if chosen else np.nan
            rows.append((int(k), support, float(slopes[i]), float(slopes[i + 1])))
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
        edges = [int(used[0]), *(int(y) for y in points["year"]), int(used[-1])]
        spans += [(f"{a} to {b}", a, b) for a, b in pairwise(edges)]
    rows = []
    for name, first, last in spans:
        row = series.trend(rule=rule, years=(first, last), refuse=refuse, convention=convention)
        rows.append(row.loc[:, :"reason"].assign(period=name))
    frame = pd.concat(rows, ignore_index=True)
    return frame[["period", *(c for c in frame.columns if c != "period")]]
