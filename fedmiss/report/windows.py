"""Windows that end in the last year (25, 10, 5 years and all) with alerts, and the smoothed yearly index.

Both come from the :class:`MonthlySeries` of the analysis: an interval that changes there changes here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from fedmiss.arrays import F64
from fedmiss.report.intervals import interval
from fedmiss.report.loess import loess
from fedmiss.report.years import base_years

if TYPE_CHECKING:
    from fedmiss.report.findings import Findings

__all__ = ["ALERTS", "WINDOWS", "alert_of", "smooth_index", "window_trends"]

WINDOWS = (25, 10, 5)
ALERTS = ((-50.0, "decline above 50 %"), (-25.0, "decline above 25 %"))
_COLUMNS = [
    "window", "from_year", "to_year", "n_years", "percent_per_year", "percent_lo", "percent_hi", "trend_class",
    "percent_lo_sampling", "percent_hi_sampling", "trend_class_sampling", "change_percent", "change_lo", "change_hi",
    "alert", "reason",
]  # fmt: skip
_SPAN_YEARS = 10  # a local line over about ten years, as the smooths of monitoring schemes


def alert_of(change: float, high: float) -> str:
    """Return the alert of a change over a window: its size decides, and its interval must not include 0.

    Source: British Trust for Ornithology, BirdTrends: alerts above 25 and 50 per cent, significant at 5 %.

    Parameters
    ----------
    change, high : percent over the window, and the upper limit of its 95 % interval
    """
    if not (np.isfinite(change) and np.isfinite(high)) or high >= 0.0:
        return ""
    return next((name for limit, name in ALERTS if change <= limit), "")


def _whole(percent: float, steps: int) -> float:
    """Turn a change per year into the change over the window, both in percent."""
    return float(100.0 * ((1.0 + float(percent) / 100.0) ** steps - 1.0))


def window_trends(a: Findings) -> pd.DataFrame:
    """Return the trend of all years and of the last 25, 10 and 5, longest first, each with its alert.

    A window of N years goes from the year N years before the last one to the last one, and is left out when the series
    is shorter. The change over a window is that of its straight trend, so it agrees with the change per year.

    Columns: ``window``, ``from_year``, ``to_year``, ``n_years``, ``percent_per_year``, ``percent_lo``, ``percent_hi``,
    ``trend_class``, ``percent_lo_sampling``, ``percent_hi_sampling``, ``trend_class_sampling`` (TRIM's convention),
    ``change_percent``, ``change_lo``, ``change_hi`` (over the window), ``alert``, ``reason``.
    """
    used = a.years.year[a.years.used]
    if used.size < 2:
        return pd.DataFrame(columns=_COLUMNS)
    last = int(used[-1])
    spans = [("all years", int(used[0]))]
    spans += [(f"{n} years", last - n) for n in WINDOWS if last - n > int(used[0])]
    rows = []
    refuse = "; ".join(a.thin) or None
    for name, first in spans:
        years = None if name == "all years" else (first, last)
        row = (
            a.trend
            if years is None
            else a.series.trend(
                rule=a.settings.rule, years=years, refuse=refuse, convention=a.settings.convention
            ).iloc[0]
        )
        steps = int(row["to_year"]) - int(row["from_year"])
        change, lo, hi = (_whole(row[k], steps) for k in ("percent_per_year", "percent_lo", "percent_hi"))
        kept = {k: row[k] for k in _COLUMNS if k in row.index and not k.startswith("change")}
        rows.append(
            kept
            | {"window": name, "change_percent": change, "change_lo": lo, "change_hi": hi}
            | {"alert": "" if row["reason"] else alert_of(change, hi)}
        )
    return pd.DataFrame(rows, columns=_COLUMNS)


def smooth_index(a: Findings) -> pd.DataFrame:
    """Return a LOESS curve through the logarithms of the yearly index, with the band of its replicates.

    Every replicate is smoothed the same way and set against the same base total. Empty for fewer than five used years or
    a total that is not positive.

    Columns: ``year``, ``index``, ``smooth``, ``smooth_lo``, ``smooth_hi`` (base = 100).
    """
    columns = ["year", "index", "smooth", "smooth_lo", "smooth_hi"]
    year, t, draws = a.series.within(a.years.used)
    base = base_years(a.base, a.years)
    if year.size < 5 or not (t > 0).all() or not base.any():
        return pd.DataFrame(columns=columns)
    x = year.astype(np.float64)
    span = float(np.clip(_SPAN_YEARS / year.size, 0.3, 1.0))
    level = a.series.yearly[base].mean()

    def curve(values: F64) -> F64:
        return np.exp(loess(x, np.log(values), span, it=0))

    smooth = curve(t)
    bands = None
    if draws is not None and (draws > 0).all():
        bands = curve(draws)
    limits = interval(smooth, bands)
    scale = 100.0 / level
    return pd.DataFrame(
        {
            "year": year,
            "index": scale * t,
            "smooth": scale * smooth,
            "smooth_lo": scale * limits.lo,
            "smooth_hi": scale * limits.hi,
        }
    )
