"""TRIM's index beside fedmiss's, from the same counts, for readers who know TRIM."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pandas as pd

from fedmiss.errors import InputError
from fedmiss.report import words
from fedmiss.report.years import base_years

if TYPE_CHECKING:
    from fedmiss.report.analysis import Analysis

__all__ = ["Beside", "trim_beside"]


@dataclass(frozen=True, slots=True)
class Beside:
    """The two indices side by side.

    ``table`` has ``year``, ``index``, ``index_lo``, ``index_hi``, ``trim``, ``trim_se`` (base = 100); ``trend`` is TRIM's
    slope in words, ``numbers`` are the numbers in these words; ``problem`` says why TRIM's model was not fitted.
    """

    table: pd.DataFrame
    trend: str = ""
    problem: str = ""
    numbers: Mapping[str, float] = field(default_factory=dict)


def trim_beside(analysis: Analysis) -> Beside | None:
    """Fit TRIM's model 3 (with months where a year has several) to the mean count of every counted cell.

    Effort and observers do not enter, as in TRIM. Only the season's months and the years that enter the trend are used, so
    that both indices speak of the same. None when the report does not ask for it.
    """
    if not analysis.settings.trim:
        return None
    # TRIM's solver takes half a second to load.
    from fedmiss.report.trim import TrimSettings, fit_trim

    data, months = analysis.data, analysis.data.months
    cells = data.cells[data.cells["n_counted"] > 0]
    at = cells["month_index"].to_numpy()
    year, month = months["year"].to_numpy()[at], months["month_of_year"].to_numpy()[at]
    # The same months and years for both: TRIM would take a lone December for a year.
    keep = pd.Series(year).isin(analysis.years.year[analysis.years.used]) & pd.Series(month).isin(
        analysis.years.season
    )
    base = base_years(analysis.base, analysis.years)
    empty = pd.DataFrame(columns=["year", "index", "index_lo", "index_hi", "trim", "trim_se"])
    try:
        fit = fit_trim(
            cells["site_index"].to_numpy()[keep],
            year[keep],
            # TRIM takes one count a site and time: the mean of the visits, since their number is effort and not birds.
            (cells["count_sum"] / cells["n_counted"]).to_numpy()[keep],
            TrimSettings(model=3, overdispersion=True),
            month=month[keep],
        )
    except InputError as error:
        return Beside(empty, problem=str(error))
    index = fit.index(
        base=[int(chosen) for chosen in analysis.years.year[base] if chosen in fit.times] or None
    )
    both = analysis.yearly[["year", "index", "index_lo", "index_hi"]].merge(
        pd.DataFrame({"year": index["time"], "trim": 100 * index["index"], "trim_se": 100 * index["se"]}),
        on="year",
    )
    row = fit.overall(rule="pecbms" if analysis.settings.rule == "pecbms" else "rtrim").iloc[0]
    per_year = 100 * (row["multiplicative"] - 1)
    half = 196 * row["multiplicative_se"]
    numbers = {
        "trim_percent": per_year,
        "trim_percent_lo": per_year - half,
        "trim_percent_hi": per_year + half,
        "trim_overdispersion": fit.sigma2,
    }
    trend = (
        f"{words.per_year(per_year, per_year - half, per_year + half)}, {row['trend_class']}, "
        f"overdispersion {words.number(fit.sigma2)}"
    )
    return Beside(both, trend, numbers=numbers)
