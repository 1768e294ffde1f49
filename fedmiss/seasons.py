"""Which year a month counts in: a season over the New Year is one year, the one in which it ends. Which months are odd."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence

import numpy as np

from fedmiss.arrays import I64

LONGEST_STEP = 3  # months from one month of a season to the next, within one of a whole year
STRAY_YEARS = 5  # so far from all others a few lie apart, where the others have gaps of half of it at most;
STRAY_ROWS, STRAY_SHARE = 3, 0.001  # so many are few, or such a share of all


def first_month(season: Sequence[int] | I64) -> int:
    """Return the month in which a season over the New Year begins, else 13.

    It has December and January, and lacks three months in a row: a year without its November alone is no winter.
    """
    gaps = np.diff(season)
    if not {1, 12} <= set(season) or gaps.max() <= LONGEST_STEP:
        return 13
    return int(season[int(gaps.argmax()) + 1])


def season_years(year: I64, month_of_year: I64) -> I64:
    """Return the year (L,) in which each month of an axis counts, whose season is all of its months of the year."""
    out: I64 = year + (month_of_year >= first_month(np.unique(month_of_year)))
    return out


def years_of(months: I64) -> I64:
    """Return the same of months that are given as 12 year + month - 1, (L,)."""
    return season_years(months // 12, months % 12 + 1)


def amid_winters(visited: I64, axis: I64) -> I64:
    """Find the calendar months of an axis that few years visit and that keep its winters from being one season each.

    ``visited`` and ``axis`` are months as 12 year + month - 1. None where winters are one season, or no season is a winter.
    """
    visited, every = np.unique(visited), np.unique(axis % 12) + 1
    held, n_years = np.unique(visited % 12 + 1, return_counts=True)
    usual = held[2 * n_years >= np.unique(visited // 12).size]
    split = usual.size > 0 and first_month(usual) != 13 and first_month(every) == 13
    return np.asarray(np.setdiff1d(every, usual) if split else every[:0])


def stray(months: I64) -> tuple[slice, str]:
    """Find which of some months, given in order as 12 year + month - 1, are after this year, or few and far from the others.

    Such a year is mostly mistyped (2109 for 2019) or stands for an unknown one (1900). Returns their place, and how they
    lie, in words; an empty place where there are none.
    """
    now = dt.date.today().year
    later = int(np.searchsorted(months, 12 * (now + 1)))
    if later < months.size:
        return slice(later, None), f"after {now}, this year"
    steps = np.diff(months)
    if not steps.size:
        return slice(0), ""
    # The largest gap; the smaller side of it is the stray one.
    cut = int(steps.argmax()) + 1
    place, rest = slice(cut, None), steps[: cut - 1]
    if cut <= months.size - cut:
        place, rest = slice(cut), steps[cut:]
    few, gap = months[place].size, int(steps.max())
    apart = gap >= max(12 * STRAY_YEARS, 2 * int(rest.max(initial=0))) and 3 * few <= months.size
    if not apart or few > max(STRAY_ROWS, STRAY_SHARE * months.size):
        return slice(0), ""
    return place, f"{gap // 12} years apart from all others"
