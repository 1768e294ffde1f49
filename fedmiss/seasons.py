"""Which year a month counts in: a season over the New Year is one year, the one in which it ends. Which months are odd."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from fedmiss.arrays import I64

LONGEST_STEP = 3  # months from one month of a season to the next, within one of a whole year
# A few lie apart from all others so far away, where the others have gaps of half of it at most: no scheme pauses so long.
STRAY_YEARS = 40
STRAY_ROWS, STRAY_SHARE = 3, 0.001  # so many are few, or such a share of all
ONE_YEARS, ONE_OF = 6, 100  # one alone among so many lies apart from there on


def first_month(season: Sequence[int] | I64) -> int:
    """Return the month in which a season over the New Year begins, else 13.

    It has December and January, and lacks three months in a row: a year without its November alone is no winter.
    """
    gaps = np.diff(season)
    if not {1, 12} <= set(season) or gaps.max() <= LONGEST_STEP:
        return 13
    return int(season[int(gaps.argmax()) + 1])


def along_season(month_of_year: ArrayLike) -> I64:
    """Return where the months of a season (L,) stand on an axis: over the New Year November at -1, before January at 1."""
    month = np.asarray(month_of_year, dtype=np.int64)
    return month - 12 * (month >= first_month(np.unique(month)))


def season_years(year: I64, month_of_year: I64) -> I64:
    """Return the year (L,) in which each month of an axis counts, whose season is all of its months of the year."""
    return year + (month_of_year >= first_month(np.unique(month_of_year)))


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


def stray(months: I64, ahead: int = 0) -> list[tuple[slice, str]]:
    """Find which of some months, given in order as 12 year + month - 1, are after this year, or few and far from the others.

    Such a year is mostly mistyped (2109 for 2019) or stands for an unknown one (1900). Those at either end have an entry
    each, in order: their place, and how they lie, in words. ``ahead``: so many years after this one are usual.
    """
    now = dt.date.today().year
    later = int(np.searchsorted(months, 12 * (now + 1 + ahead)))
    steps = np.diff(months[:later])
    first = _apart(steps)
    last = _apart(steps[first:][::-1])
    out = []
    if first:
        out.append((slice(first), f"{steps[first - 1] // 12} years apart from all others"))
    if last:
        out.append((slice(later - last, later), f"{steps[-last] // 12} years apart from all others"))
    if later < months.size:
        out.append((slice(later, None), f"after {now}, this year"))
    return out


def _apart(steps: I64) -> int:
    """Return how many at the beginning of some months, given by the steps between them, are few and far from the others."""
    size = steps.size + 1
    most = min(int(max(STRAY_ROWS, STRAY_SHARE * size)), size // 3)
    # The largest step after each one that may be the gap.
    rest = np.maximum.accumulate(steps[:0:-1])[::-1][:most]
    least = np.full(most, 12 * STRAY_YEARS)
    if size >= ONE_OF:
        least[0] = 12 * ONE_YEARS
    return int(np.flatnonzero(steps[:most] >= np.maximum(least, 2 * rest)).max(initial=-1)) + 1
