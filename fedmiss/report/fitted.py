"""Counted and fitted totals of the visits by year, to see whether the model agrees with its data."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd

from fedmiss.arrays import I64
from fedmiss.report.words import number

__all__ = ["fitted_years", "lack_of_fit", "no_clear_miss"]

LEAST_DRIFT = 0.10  # least drift of counted / fitted over the whole period for a warning
LEAST_GAP = 0.20  # least deviation of counted / fitted in one year for a warning
CLEAR = 3.0  # and in standard errors

_COLUMNS = ["year", "visits", "counted", "fitted", "ratio", "ratio_se"]


def fitted_years(visited: pd.DataFrame | None, months: pd.DataFrame) -> pd.DataFrame:
    """Return one row a year: ``visits``, ``counted`` and ``fitted`` birds, their ``ratio`` and its error ``ratio_se``.

    ``visited``: the fit's table of that name; the result is empty where the fit has none. The error assumes independent
    visits; years with correlated visits deviate more.
    """
    if visited is None:
        return pd.DataFrame(columns=_COLUMNS)
    year: I64 = months["year"].to_numpy(dtype=np.int64)[visited["month_index"].to_numpy()]
    sums = visited.groupby(year)[["weight", "counted", "fitted", "variance"]].sum()
    sums = sums[sums["weight"] > 0]
    ratio = (sums["counted"] / sums["fitted"]).where(sums["fitted"] > 0)
    error = (np.sqrt(sums["variance"]) / sums["fitted"]).where(sums["fitted"] > 0)
    return pd.DataFrame(
        {
            "year": sums.index.to_numpy(),
            "visits": sums["weight"].to_numpy(),
            "counted": sums["counted"].to_numpy(),
            "fitted": sums["fitted"].to_numpy(),
            "ratio": ratio.to_numpy(),
            "ratio_se": error.to_numpy(),
        }
    )


def lack_of_fit(table: pd.DataFrame) -> str:
    """Return a sentence when the fitted totals miss the counted ones systematically, else nothing.

    Systematic is a drift of counted / fitted of more than 10 % over the period that is twice its standard error, or single
    years that are 20 % and three standard errors away.
    """
    t = table[(table["ratio"] > 0) & (table["ratio_se"] > 0)]
    if len(t) < 3:
        return ""
    log_ratio, weight = np.log(t["ratio"].to_numpy()), t["ratio_se"].to_numpy() ** -2.0
    x = t["year"].to_numpy(dtype=float)
    x = x - float(weight @ x / weight.sum())
    slope, error = float(weight @ (x * log_ratio)) / float(weight @ x**2), float(weight @ x**2) ** -0.5
    drift = math.expm1(slope * (x[-1] - x[0]))
    if abs(slope) > 2.0 * error and abs(drift) > LEAST_DRIFT:
        way = "above" if drift > 0 else "below"
        return (
            "The fitted totals do not follow the counts: over the period counted birds drift "
            f"{number(100 * abs(drift), 2)} % {way} the fitted ones at the same visits, so the trend may be too flat. See "
            "the table of counted and fitted birds."
        )
    far = t[np.abs(t["ratio"] - 1.0) > np.maximum(LEAST_GAP, CLEAR * t["ratio_se"])]
    if far.empty:
        return ""
    years = ", ".join(str(int(y)) for y in far["year"].head(4)) + (" and others" if len(far) > 4 else "")
    return (
        f"The fitted totals miss the counts of {years} by more than {100 * LEAST_GAP:.0f} %: do not lean on the index of "
        "such a year. See the table of counted and fitted birds."
    )


def no_clear_miss(table: pd.DataFrame) -> str:
    """Say that no miss is clear, in words that years far from 1 do not contradict."""
    if (np.abs(table["ratio"] - 1.0) > LEAST_GAP).any():
        return (
            "Ratios of single years lie more than a fifth away from 1, and no drift over the years is clear: there are too "
            "few counts to tell whether the model misses those years."
        )
    return "No drift of the ratios over the years was found; a single year can still be fitted badly."
