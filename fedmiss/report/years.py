"""From months to years: which months make a year, which years can be compared; and from months to weeks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from fedmiss.arrays import F64, I64, Bool
from fedmiss.errors import ConfigError, listed
from fedmiss.report.settings import base_range
from fedmiss.seasons import first_month
from fedmiss.tables import load_schema

if TYPE_CHECKING:
    from fedmiss.report.analysis import Analysis

MONTH_NAMES = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


@dataclass(frozen=True, slots=True)
class Years:
    """The year axis of a monthly panel.

    ``year`` (Y,), ``of_month`` (L,) the year that each month counts in, ``season`` the months of the year that are
    compared, ``W`` (Y, L) the weights of a mean over the season's months, ``n_months`` (Y,) how many of them the panel
    has, ``complete`` (Y,) whether all, ``used`` (Y,) whether the year enters trends (complete, and something was counted
    in it).
    """

    year: I64
    of_month: I64
    season: tuple[int, ...]
    W: F64
    n_months: I64
    complete: Bool
    used: Bool


def make_years(months: pd.DataFrame, n_observed: ArrayLike | None = None) -> Years:
    """Lay out the years of a month axis.

    The season is every month of the year that at least half of the panel's years have (and, when ``n_observed``
    is known, that was counted in at least half of the years with counts: a July counted once in twenty years is
    not compared). A year that lacks a month of the season (usually the first or the last one) is not
    complete: its mean would mix a different season into the trend. The value of a year is
    the mean over its months, not the sum, so that a panel of January to June and one of twelve months are read in
    the same unit. A season over the New Year counts in the year in which it ends: two halves of two winters are not one.

    Parameters
    ----------
    months : months.parquet as a frame: columns ``year`` and ``month_of_year``, L rows
    n_observed : (L,) number of cells with a count in each month, or None when not known; with a minus in years that have too
        few to be used
    """
    year_of = months["year"].to_numpy(dtype=np.int64, copy=True)
    moy = months["month_of_year"].to_numpy(dtype=np.int64)
    year = np.unique(year_of)
    have = np.zeros((year.size, 13), dtype=bool)
    have[np.searchsorted(year, year_of), moy] = True
    # Column 0 stands for no month: months of the year are numbered from 1.
    usual = (2 * have.sum(axis=0) >= year.size) & have.any(axis=0)
    if n_observed is not None:
        seen = np.zeros_like(have)
        counted = np.nan_to_num(n_observed) != 0
        seen[np.searchsorted(year, year_of[counted]), moy[counted]] = True
        # Where no month passes, the calendar alone decides: a thin panel keeps a season.
        often = usual & (2 * seen.sum(axis=0) >= seen.any(axis=1).sum()) & seen.any(axis=0)
        usual = often if often.any() else usual
    season = tuple(int(month) for month in np.flatnonzero(usual))
    in_season = np.isin(moy, season)
    year_of += moy >= first_month(season)
    year = np.unique(year_of)
    # Rows of W are means over the season's months, so that a year's total is W @ monthly totals.
    member = (year_of[None, :] == year[:, None]) & in_season[None, :]
    n_months = member.sum(axis=1)
    weights = member / np.maximum(n_months, 1)[:, None]
    # Complete is a matter of the calendar, used one of the counts.
    complete = n_months == len(season)
    used = complete.copy()
    if n_observed is not None:
        used &= (member & (np.asarray(n_observed)[None, :] > 0)).any(axis=1)
    return Years(year, year_of, season, weights, n_months.astype(np.int64), complete, used)


def month_table(stamps: I64) -> pd.DataFrame:
    """The table of months of an axis given as 12 year + month - 1, (L,)."""
    year, month = stamps // 12, stamps % 12 + 1
    return pd.DataFrame(
        {
            "month_index": np.arange(stamps.size, dtype=np.int32),
            "month": [
                f"{one_year:04d}-{one_month:02d}" for one_year, one_month in zip(year, month, strict=True)
            ],
            "year": year.astype(np.int32),
            "month_of_year": month.astype(np.int32),
        }
    )


def decimal_year(months: pd.DataFrame) -> F64:
    """Return the middle of each month as a decimal year, (L,)."""
    year = months["year"].to_numpy(dtype=np.float64)
    return np.asarray(year + (months["month_of_year"].to_numpy(dtype=np.float64) - 0.5) / 12.0)


def base_years(base: str | int | None, years: Years) -> Bool:
    """Return the mask over ``years.year`` of the base period: ``"2010"``, ``"2005-2010"``, or the first used year.

    Raises ConfigError when the base is not a year or a range of years, or has no usable year of the panel.
    """
    usable = years.year[years.used]
    if base is None:
        if usable.size == 0:
            return np.zeros(years.year.size, dtype=bool)
        return np.asarray(years.year == usable[0])
    first, last = base_range(base)
    mask = (years.year >= first) & (years.year <= last) & years.used
    if not mask.any():
        known = listed([str(year) for year in usable], 80) or "none"
        raise ConfigError(
            f"the base {base} has no year that can be used; complete years with enough counts are: {known}. "
            "Choose another with --base."
        )
    return np.asarray(mask)


def season_text(season: tuple[int, ...]) -> str:
    """Return the season in words: ``"all months"``, ``"Jan to Jun"``, over the New Year ``"Nov to Feb"``."""
    if len(season) == 12:
        return "all months"
    if not season:
        return "no month"
    begins = first_month(season)
    season = (*(month for month in season if month >= begins), *(month for month in season if month < begins))
    runs = [[season[0], season[0]]]
    for month in season[1:]:
        if month % 12 == (runs[-1][1] + 1) % 12:
            runs[-1][1] = month
        else:
            runs.append([month, month])
    words = [
        MONTH_NAMES[first - 1] if first == last else f"{MONTH_NAMES[first - 1]} to {MONTH_NAMES[last - 1]}"
        for first, last in runs
    ]
    return ", ".join(words)


# -- the season by week: each month's estimate, split over its quarters by what was counted in them ----------


MIN_YEARS = 5  # least number of years of a range: that of two years may miss the mean of all
MIN_COUNTS = 10  # visits with a count behind a week's estimate, and behind a single year's
_DAYS = ("1-7", "8-14", "15-21", "22-end")


def weekly(analysis: Analysis) -> pd.DataFrame:
    """Return the profile of the season by week (four a month, as eBird's bar charts).

    The ratio of a week is what was counted in it over what the model expects of the same sites in the same months, so the
    choice of sites does not matter. Within a month the ratios have the mean 1 (weighted by what was expected), so the
    weeks of a month have the month's estimate as their mean. Effort that differs between months and years is that of the
    fit; what differs within a month is not corrected for.

    Empty when counts are yearly or stand on one day of the month, as in monthly tables. Schema ``report_weeks``: its total
    is NaN with fewer than ``MIN_COUNTS`` visits, its lowest and highest year for fewer than ``MIN_YEARS``.
    """
    empty = pd.DataFrame(columns=load_schema("report_weeks").names)
    if analysis.data.weeks is None or analysis.yearly_counts or not analysis.years.used.any():
        return empty
    n_visits, counted, expected, month_total = _sums(analysis, analysis.data.weeks)
    enough = n_visits.sum(axis=0) >= MIN_COUNTS
    if (enough.sum(axis=1) >= 3).sum() < max(1, len(analysis.years.season) / 2):
        return empty
    rows = []
    for i, month in enumerate(analysis.years.season):
        if not counted[:, i].sum() > 0:
            continue
        level = expected[:, i].sum() / counted[:, i].sum()  # makes the mean ratio of the month's weeks 1
        for quarter in np.flatnonzero(n_visits[:, i].sum(axis=0)):
            ratio = level * counted[:, i, quarter].sum() / expected[:, i, quarter].sum()
            years = n_visits[:, i, quarter] >= MIN_COUNTS
            single = level * month_total[years, i] * counted[years, i, quarter] / expected[years, i, quarter]
            single = single if single.size >= MIN_YEARS else single[:0]
            rows.append(
                (
                    month, quarter + 1, f"{MONTH_NAMES[month - 1]} {_DAYS[quarter]}", int(n_visits[:, i, quarter].sum()),
                    ratio * month_total[:, i].mean() if enough[i, quarter] else np.nan,
                    single.min() if single.size else np.nan, single.max() if single.size else np.nan, single.size,
                )
            )  # fmt: skip
    return pd.DataFrame(rows, columns=empty.columns)


def _sums(analysis: Analysis, weeks: pd.DataFrame) -> tuple[F64, F64, F64, F64]:
    """Return visits, counted, expected (used years, season's months, 4), and the monthly totals (used years, months)."""
    used, season = analysis.years.year[analysis.years.used], np.asarray(analysis.years.season)
    at = weeks["month_index"].to_numpy()
    year, month = analysis.years.of_month[at], analysis.data.months["month_of_year"].to_numpy()[at]
    keep = np.isin(year, used) & np.isin(month, season)
    cell = (
        np.searchsorted(used, year[keep]),
        np.searchsorted(season, month[keep]),
        weeks["quarter"].to_numpy()[keep],
    )
    number = weeks["n_counted"].to_numpy(dtype=np.float64)[keep]
    fitted = number * analysis.data.expected[weeks["site_index"].to_numpy()[keep], at[keep]]
    out = []
    # Visits, birds counted, and birds expected of them: the cell's expected count at the effort of the month's visits.
    standard: F64 = np.bincount(at[keep], fitted, len(analysis.data.months)).astype(np.float64)
    fitted = fitted * _at_effort(analysis, standard)[at[keep]]
    for value in (number, weeks["count_sum"].to_numpy(dtype=np.float64)[keep], fitted):
        part = np.zeros((used.size, season.size, 4))
        np.add.at(part, cell, value)
        out.append(part)
    total = np.zeros((used.size, season.size))
    at_year, at_month = analysis.years.of_month, analysis.monthly["month_of_year"].to_numpy()
    inside = np.isin(at_year, used) & np.isin(at_month, season)
    place = (np.searchsorted(used, at_year[inside]), np.searchsorted(season, at_month[inside]))
    total[place] = analysis.monthly["total"].to_numpy()[inside]
    return out[0], out[1], out[2], total


def _at_effort(analysis: Analysis, standard: F64) -> F64:
    """What each month's visits expect (L,) at their own effort over that at ``standard`` effort (L,) birds; 1 where unknown.

    Longer visits count more: without it the lowest and the highest year would be those of the shortest and longest visits.
    """
    out = np.ones(standard.size)
    if (visited := analysis.data.visited) is not None:
        own = np.bincount(visited["month_index"], visited["fitted"], standard.size)
        np.divide(own, standard, out=out, where=(own > 0) & (standard > 0))
    return out
