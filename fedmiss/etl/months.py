"""The months of a panel: from the first to the last, without those that no year visits."""

from __future__ import annotations

import numpy as np
import polars as pl

from fedmiss.errors import listed
from fedmiss.seasons import amid_winters, stray


def panel_months(dates: pl.Series, warnings: list[str], *, yearly: bool) -> pl.DataFrame:
    """Build the month axis, and say what is odd about it."""
    months, gaps, left_out = month_axis(dates)
    unit = "year" if yearly else "month"
    if left_out and months["month_of_year"].n_unique() > 1:  # one month a year: the counts are yearly
        warnings.append(f"no visit in any year in the months {left_out}: they are not part of the panel.")
    if not yearly and (few := _months_amid_winters(dates)):
        warnings.append(few)
    warnings += _stray_dates(dates)
    if gaps:
        have, they = ("has", "it is") if len(gaps) == 1 else ("have", "they are")
        warnings.append(
            f"{len(gaps)} of {months.height} {unit}s {have} no visit "
            f"({listed([gap[:4] if yearly else gap for gap in gaps], 4)}); {they} estimated from the others."
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
    at = (12 * dates.dt.year().cast(pl.Int64) + dates.dt.month().cast(pl.Int64) - 1).to_numpy()
    rare = np.isin(at % 12 + 1, amid_winters(at, at))
    if not rare.any():
        return ""
    return (
        f"{rare.sum()} of {rare.size} visits, in months that most years do not have, keep the winters of this panel from "
        "being one season each: both calendar years of a winter are fitted as two. Leave them out with --season, as `"
        "fedmiss ingest --season 11-01..02-28`."
    )


def _stray_dates(dates: pl.Series) -> list[str]:
    """Say that visits after this year, or a few that lie years apart from all others, stretch the month axis.

    ``1900-01-01`` stands for an unknown date in many databases; one such row makes a panel of 1,500 months.
    """
    ordered = dates.sort()
    at = (12 * ordered.dt.year().cast(pl.Int64) + ordered.dt.month().cast(pl.Int64) - 1).to_numpy()
    found, usual = stray(at), np.ones(at.size, dtype=np.bool_)
    for place, _ in found:
        usual[place] = False
    rest = np.flatnonzero(usual)
    out = []
    for place, how in found:
        odd, stretches, stay = ordered[place], "", ""
        one = odd.len() == 1
        if rest.size:
            first, last = int(rest[0]), int(rest[-1])
            before = odd[0] < ordered[first]
            span = at[last] - at[place][0] if before else at[place][-1] - at[first]
            stretches = f", and {'stretches' if one else 'stretch'} the panel to {span + 1:,} calendar months"
            edge = f"from {ordered[first]}" if before else f"up to {ordered[last]}"
            stay = f", or keep only visits {edge} (`fedmiss ingest {'--start' if before else '--end'}`)"
        out.append(
            f"{odd.len():,} of {at.size:,} visits ({odd[0]}{f' to {odd[-1]}' if odd[0] != odd[-1] else ''}) "
            f"{'lies' if one else 'lie'} {how}{stretches}. If "
            f"{'this date is' if one else 'these dates are'} mistyped, or "
            f"{'stands for an unknown one' if one else 'stand for unknown ones'}, correct {'it' if one else 'them'}{stay}."
        )
    return out
