"""The seasonal profile by week: each month's estimate, split over its four quarters by what was counted in them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from fedmiss.arrays import F64
from fedmiss.report.years import MONTH_NAMES

if TYPE_CHECKING:
    from fedmiss.report.analysis import Analysis

__all__ = ["MIN_COUNTS", "weekly"]

MIN_YEARS = 5  # least number of years of a range: that of two years may miss the mean of all
MIN_COUNTS = 10  # visits with a count behind a week's estimate, and behind a single year's
_DAYS = ("1-7", "8-14", "15-21", "22-end")
_COLUMNS = ["month_of_year", "week", "days", "n_counted", "total", "low_year", "high_year", "n_years"]


def weekly(a: Analysis) -> pd.DataFrame:
    """Return the profile of the season by week (four a month, as eBird's bar charts).

    The ratio of a week is what was counted in it over what the model expects of the same sites in the same months, so the
    choice of sites does not matter. Within a month the ratios have the mean 1 (weighted by what was expected), so the
    weeks of a month have the month's estimate as their mean. Effort that differs within a month is not corrected for.

    Empty when counts are yearly or stand on one day of the month, as in monthly tables.

    Columns: ``month_of_year``, ``week`` (1 to 4), ``days``, ``n_counted`` (visits), ``total`` (mean of the years; NaN with
    fewer than ``MIN_COUNTS`` visits), ``low_year`` and ``high_year`` (lowest and highest of ``n_years``; NaN for fewer than
    ``MIN_YEARS``).
    """
    empty = pd.DataFrame(columns=_COLUMNS)
    if a.data.weeks is None or a.yearly_counts or not a.years.used.any():
        return empty
    n, counted, expected, month_total = _sums(a, a.data.weeks)
    enough = n.sum(axis=0) >= MIN_COUNTS
    if (enough.sum(axis=1) >= 3).sum() < max(1, len(a.years.season) / 2):
        return empty
    rows = []
    for i, m in enumerate(a.years.season):
        if not counted[:, i].sum() > 0:
            continue
        level = expected[:, i].sum() / counted[:, i].sum()  # makes the mean ratio of the month's weeks 1
        for q in np.flatnonzero(n[:, i].sum(axis=0)):
            ratio = level * counted[:, i, q].sum() / expected[:, i, q].sum()
            years = n[:, i, q] >= MIN_COUNTS
            single = level * month_total[years, i] * counted[years, i, q] / expected[years, i, q]
            single = single if single.size >= MIN_YEARS else single[:0]
            rows.append(
                (
                    m, q + 1, f"{MONTH_NAMES[m - 1]} {_DAYS[q]}", int(n[:, i, q].sum()),
                    ratio * month_total[:, i].mean() if enough[i, q] else np.nan,
                    single.min() if single.size else np.nan, single.max() if single.size else np.nan, single.size,
                )
            )  # fmt: skip
    return pd.DataFrame(rows, columns=_COLUMNS)


def _sums(a: Analysis, weeks: pd.DataFrame) -> tuple[F64, F64, F64, F64]:
    """Return visits, counted, expected (used years, season's months, 4), and the monthly totals (used years, months)."""
    used, season = a.years.year[a.years.used], np.asarray(a.years.season)
    at = weeks["month_index"].to_numpy()
    year, month = (a.data.months[c].to_numpy()[at] for c in ("year", "month_of_year"))
    keep = np.isin(year, used) & np.isin(month, season)
    cell = (
        np.searchsorted(used, year[keep]),
        np.searchsorted(season, month[keep]),
        weeks["quarter"].to_numpy()[keep],
    )
    number = weeks["n_counted"].to_numpy(dtype=np.float64)[keep]
    fitted = a.data.expected[weeks["site_index"].to_numpy()[keep], at[keep]]
    out = []
    for value in (number, weeks["count_sum"].to_numpy(dtype=np.float64)[keep], number * fitted):
        part = np.zeros((used.size, season.size, 4))
        np.add.at(part, cell, value)
        out.append(part)
    total = np.zeros((used.size, season.size))
    at_year, at_month = (a.monthly[c].to_numpy() for c in ("year", "month_of_year"))
    inside = np.isin(at_year, used) & np.isin(at_month, season)
    place = (np.searchsorted(used, at_year[inside]), np.searchsorted(season, at_month[inside]))
    total[place] = a.monthly["total"].to_numpy()[inside]
    return out[0], out[1], out[2], total
