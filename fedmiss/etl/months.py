"""The months of a panel: from the first to the last, without those that no year visits."""

from __future__ import annotations

import numpy as np
import polars as pl

from fedmiss.errors import listed
from fedmiss.seasons import first_month

STRAY_YEARS = 5  # visits so far from all others stretch the axis,
STRAY_VISITS, STRAY_SHARE = 3, 0.001  # when they are so few, or such a share of all


def panel_months(dates: pl.Series, warnings: list[str], *, yearly: bool) -> pl.DataFrame:
    """Build the month axis, and say what is odd about it."""
    months, gaps, left_out = month_axis(dates)
    unit = "year" if yearly else "month"
    if left_out and months["month_of_year"].n_unique() > 1:  # one month a year: the counts are yearly
        warnings.append(f"no visit in any year in the months {left_out}: they are not part of the panel.")
    if not yearly and (few := _months_amid_winters(dates)):
        warnings.append(few)
    if stray := stray_dates(dates):
        warnings.append(stray)
    if gaps:
        warnings.append(
            f"{len(gaps)} of {months.height} {unit}s {'has' if len(gaps) == 1 else 'have'} no visit "
            f"({listed([gap[:4] if yearly else gap for gap in gaps], 4)}); they are estimated from the others."
        )
    return months


def month_axis(dates: pl.Series) -> tuple[pl.DataFrame, list[str], str]:
    """Build the month axis from first to last month, without the calendar months that no year visits.

    Returns
    -------
    months : the axis; gaps : its months without a visit; left_out : calendar months left out, in words
    """
    # A month that no year visits would be the model's invention in every year: it is no part of the axis.
    present = set(zip(dates.dt.year().to_list(), dates.dt.month().to_list(), strict=True))
    season = {month for _, month in present}
    first, last = min(present), max(present)
    years = range(first[0], last[0] + 1)
    spanned = [(year, month) for year in years for month in range(1, 13) if first <= (year, month) <= last]
    rows = [(year, month) for year, month in spanned if month in season]
    months = pl.DataFrame(
        {
            "month_index": pl.Series(range(len(rows)), dtype=pl.Int32),
            "month": [f"{year:04d}-{month:02d}" for year, month in rows],
            "year": pl.Series([year for year, _ in rows], dtype=pl.Int32),
            "month_of_year": pl.Series([month for _, month in rows], dtype=pl.Int8),
        }
    )
    gaps = [f"{year:04d}-{month:02d}" for year, month in rows if (year, month) not in present]
    names = "Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec".split()
    # A calendar month outside the season matters only when the series spans it.
    left_out = sorted({month for _, month in spanned} - season)
    return months, gaps, ", ".join(names[month - 1] for month in left_out)


def _months_amid_winters(dates: pl.Series) -> str:
    """Say that few years' visits keep a season over the New Year from being one: the fit goes by all months of the axis."""
    year, month = dates.dt.year().to_numpy(), dates.dt.month().to_numpy()
    pairs = np.unique(np.stack([month, year]), axis=1)
    every, n_years = np.unique(pairs[0], return_counts=True)
    usual = every[2 * n_years >= np.unique(year).size]
    if not usual.size or first_month(usual) == 13 or first_month(every) != 13:
        return ""
    rare = ~np.isin(month, usual)
    return (
        f"{rare.sum()} of {month.size} visits, in months that most years do not have, keep the winters of this panel from "
        "being one season each: both calendar years of a winter are fitted as two. Leave them out with --season, as `"
        "fedmiss ingest --season 11-01..02-28`."
    )


def stray_dates(dates: pl.Series) -> str:
    """Say that a few visits, years apart from all others, stretch the month axis; blank when there are none.

    ``1900-01-01`` stands for an unknown date in many databases; one such row makes a panel of 1,500 months.
    """
    at = np.sort((dates.dt.year().cast(pl.Int64) * 12 + dates.dt.month().cast(pl.Int64)).to_numpy())
    steps = np.diff(at)
    if not steps.size or steps.max() < 12 * STRAY_YEARS:
        return ""
    # The largest gap; the smaller side of it is the stray one.
    cut = int(steps.argmax()) + 1
    before = cut <= at.size - cut
    few = cut if before else at.size - cut
    if few > max(STRAY_VISITS, STRAY_SHARE * at.size):
        return ""
    ordered = dates.sort()
    ends = (ordered[0], ordered[cut - 1]) if before else (ordered[cut], ordered[-1])
    stay = f"from {ordered[cut]}" if before else f"up to {ordered[cut - 1]}"
    lie = "lies" if few == 1 else "lie"
    return (
        f"{few} of {at.size:,} visits ({ends[0]}{f' to {ends[1]}' if ends[0] != ends[1] else ''}) {lie} "
        f"{steps.max() // 12} years apart from all others and stretch the panel to {at[-1] - at[0] + 1:,} calendar months. "
        f"If these dates stand for unknown ones, keep only visits {stay} (`fedmiss ingest "
        f"{'--start' if before else '--end'}`)."
    )
