"""Which year a month counts in: a season over the New Year is one year, the one in which it ends."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedmiss.arrays import I64

LONGEST_STEP = 3  # months from one month of a season to the next, within one of a whole year


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
