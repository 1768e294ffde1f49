"""What the totals of the visits say against a trend: lack of fit, and effort that was not what was recorded.

Effort is recorded with error (a guessed duration), and a power that is estimated from such records is too near 0: by the
factor lambda = 1 - v / w, w the variance of recorded effort within months and v that of its error (attenuation: Fuller,
Measurement Error Models, 1987, section 1.1). Where effort also grew, the part that is not taken out stays in the trend.
"""

from __future__ import annotations

import math

import numpy as np
import pandas as pd

from fedmiss.arrays import F64, I64
from fedmiss.report.findings import Findings
from fedmiss.report.words import number, percent
from fedmiss.tables import load_schema

LEAST_DRIFT = 0.10  # least drift of counted / fitted over the whole period for a warning
LEAST_GAP = 0.20  # least deviation of counted / fitted in one year for a warning
LEVEL_OFF = 0.10  # deviation of fitted / counted of all visits from 1 for a warning
CLEAR_GAP = 3.0  # and in standard errors


def fitted_years(visited: pd.DataFrame | None, months: pd.DataFrame) -> pd.DataFrame:
    """Return one row a year: ``visits``, ``counted`` and ``fitted`` birds, their ``ratio`` and its error ``ratio_se``.

    ``visited``: the fit's table of that name; the result is empty where the fit has none. The error assumes independent
    visits; years with correlated visits deviate more.
    """
    columns = load_schema("report_fitted").names
    if visited is None:
        return pd.DataFrame(columns=columns)
    year: I64 = months["year"].to_numpy(dtype=np.int64)[visited["month_index"].to_numpy()]
    sums = visited.groupby(year)[["weight", "counted", "fitted", "variance"]].sum()
    sums = sums[sums["weight"] > 0]
    # Sums before the quotient: months of few visits weigh little.
    ratio = (sums["counted"] / sums["fitted"]).where(sums["fitted"] > 0)
    error = (np.sqrt(sums["variance"]) / sums["fitted"]).where(sums["fitted"] > 0)
    table = sums.rename(columns={"weight": "visits"}).assign(ratio=ratio, ratio_se=error)
    return table.rename_axis("year").reset_index()[columns]


def lack_of_fit(table: pd.DataFrame, unit: str = "birds") -> str:
    """Return a sentence when the fitted totals miss the counted ones systematically, else nothing.

    Systematic is a drift of counted / fitted of more than 10 % over the period that is twice its standard error, or single
    years that are 20 % and three standard errors away.
    """
    rows = table[(table["ratio"] > 0) & (table["ratio_se"] > 0)]
    if len(rows) < 3:
        return ""
    log_ratio, weight = np.log(rows["ratio"].to_numpy()), rows["ratio_se"].to_numpy() ** -2.0
    year = rows["year"].to_numpy(dtype=float)
    year = year - float(weight @ year / weight.sum())
    # Weighted least squares of log ratio on year; weights are known variances, so the error is (X'WX)^(-1/2).
    spread = float(weight @ year**2)
    slope, error = float(weight @ (year * log_ratio)) / spread, spread**-0.5
    drift = math.expm1(slope * (year[-1] - year[0]))
    if abs(slope) > 2.0 * error and abs(drift) > LEAST_DRIFT:
        way, wrong = ("above", "low") if drift > 0 else ("below", "high")
        return (
            f"The fitted totals do not follow the counts: over the period counted {unit} drift "
            f"{number(100 * abs(drift), 2)} % {way} the fitted ones at the same visits, so the change per year may be too "
            f"{wrong}. See the table of counted and fitted {unit}."
        )
    # An index is told by no level: that of all years together is another sentence's (:func:`level_off`).
    level = float(rows["counted"].sum() / rows["fitted"].sum())
    gap = np.minimum(np.abs(rows["ratio"] - 1.0), np.abs(rows["ratio"] / level - 1.0))
    far = rows[gap > np.maximum(LEAST_GAP, CLEAR_GAP * rows["ratio_se"])]
    if far.empty:
        return ""
    years = ", ".join(far["year"].head(4).astype(str)) + (" and others" if len(far) > 4 else "")
    return (
        f"The fitted totals miss the counts of {years} by more than {100 * LEAST_GAP:.0f} %: do not lean on the index of "
        f"such a year. See the table of counted and fitted {unit}."
    )


def level_off(table: pd.DataFrame, unit: str = "birds", *, scaled: bool = False) -> str:
    """Return a sentence when all visits together are fitted more than 10 % above or below what was counted, else nothing.

    A fit that is ``scaled`` to the counted total stays below it only where sites are in a panel because the species was
    seen there.
    """
    counted, fitted = float(table["counted"].sum()), float(table["fitted"].sum())
    if not (counted > 0 and fitted > 0) or abs(fitted / counted - 1.0) <= LEVEL_OFF:
        return ""
    if scaled and fitted < counted:
        return (
            f"At the visits that were made the fitted total is more than {100 * LEVEL_OFF:.0f} % below the counted one, as "
            "it should be: sites are here because the species was found there, and such sites had luck. "
            f"See the table of counted and fitted {unit}."
        )
    return (
        f"At the visits that were made the fitted total is more than {100 * LEVEL_OFF:.0f} % "
        f"{'below' if fitted < counted else 'above'} the counted one: absolute totals may be off by as much, and their "
        "intervals do not cover that. Index and trend are ratios and suffer less. "
        f"See the table of counted and fitted {unit}."
    )


def no_clear_miss(table: pd.DataFrame) -> str:
    """Say that no miss is clear, in words that years far from 1 do not contradict."""
    if (np.abs(table["ratio"] - 1.0) > LEAST_GAP).any():
        return (
            "Ratios of single years lie more than a fifth away from 1, and no drift over the years is clear: there are too "
            "few counts to tell whether the model misses those years."
        )
    if table["ratio"].notna().sum() < 3:  # no drift was looked for
        return ""
    return "No drift of the ratios over the years was found; a single year can still be fitted badly."


# -- what the trend would be if effort were not what was recorded --------------------------------------------


OFF_BY = 0.5  # standard deviation of the error of recorded effort, on the log scale: half more or less
UNRECORDED = 0.01  # growth of effort a year that nobody recorded
LEAST_RELIABLE = 0.2  # lambda below which nothing could be said of effort
LEAST_WORTH = 1.0  # per cent of the trend a year that effort's growth must be worth for a caution
AS_IS, OFF = "as reported", "recorded effort off by half"
GREW = "effort grew by 1 % a year that nobody recorded"


def _growth(findings: Findings) -> tuple[float, float]:
    """What recorded effort adds to log counts a year, and the variance of that effect within months."""
    visited = findings.data.visited
    if visited is None or not findings.data.effort or "effort" not in visited:
        return 0.0, 0.0
    year = findings.months["year"].to_numpy(dtype=float)[visited["month_index"].to_numpy()]
    inside = (visited["weight"] > 0).to_numpy() & np.isin(year, findings.years.year[findings.years.used])
    year = year[inside]
    if np.unique(year).size < 3:
        return 0.0, 0.0
    weight, effort, square = (
        visited[name].to_numpy(dtype=float)[inside] for name in ("weight", "effort", "effort_square")
    )
    # Means of visits by month: variation within months is kept apart, since error of records lives there.
    effort = effort / weight
    within = float((square - weight * effort**2).sum() / weight.sum())
    # Weighted regression of mean effort on year: its slope is what recorded effort adds a year.
    year = year - weight @ year / weight.sum()
    return float(weight @ (year * effort) / (weight @ year**2)), max(within, 0.0)


def _attenuation(findings: Findings, within: float) -> float:
    """The reliability lambda of recorded effort if it is off by ``OFF_BY``; a power is at most in proportion."""
    powers: F64 = np.array(
        [value for key, value in findings.data.effort.items() if not key.endswith(" unknown")]
    )
    # Error in log effort reaches log counts through the powers; independent errors of the columns add their variances.
    error = float((OFF_BY**2 * powers**2).sum())
    if error <= 0 or within <= 0:
        return 1.0
    most = float(np.abs(powers).max())
    return max(1.0 - error / within, LEAST_RELIABLE, min(most, 1.0))


def multiplies(findings: Findings) -> bool:
    """Whether effort multiplies counts; it adds birds to Gaussian counts as they are, and log odds to presence."""
    family = findings.data.fact("family")
    return bool(family != "bernoulli" and (family != "gaussian" or findings.data.fact("scale") == "log1p"))


def _rows(findings: Findings) -> dict[str, tuple[float, float, float, float]]:
    """By supposition: what recorded effort adds a year, and the trend with its interval, per cent a year."""
    trend = findings.trend
    if not math.isfinite(trend["percent_per_year"]):
        return {}
    growth, within = _growth(findings)
    # The true effect is growth / lambda: the part growth (1 / lambda - 1) is still in the trend.
    shift = -growth * (1.0 / _attenuation(findings, within) - 1.0)
    percents = np.array([trend["percent_per_year"], trend["percent_lo"], trend["percent_hi"]], dtype=float)
    logs = np.log1p(np.maximum(percents / 100.0, -1.0 + 1e-12))  # an interval may end at -100 %
    rows = {AS_IS: logs}
    factor = multiplies(findings)
    if growth and factor:
        off = logs + shift
        rows[OFF] = np.array([off[0], min(off[1], logs[1]), max(off[2], logs[2])])
    rows[GREW] = logs - math.log1p(UNRECORDED)
    adds = 100.0 * math.expm1(growth) if factor else math.nan
    return {name: (adds, *(100.0 * np.expm1(row)).tolist()) for name, row in rows.items()}


def sensitivity(findings: Findings) -> pd.DataFrame:
    """Return the trend as reported, if recorded effort is off by half, and if it grew by 1 % a year unrecorded.

    Schema ``report_sensitivity``. The second row's interval holds the reported trend's too. No rows without a trend.
    """
    columns = load_schema("report_sensitivity").names
    table = pd.DataFrame([(name, *row) for name, row in _rows(findings).items()], columns=columns)
    return table.astype(dict.fromkeys(columns[1:], float))


def effort_caution(findings: Findings) -> list[str]:
    """Say it when recorded effort changed over the years so that an error in it would be an error of the trend."""
    rows = _rows(findings)
    if OFF not in rows:
        return []
    growth, trend, lo, hi = rows[OFF]
    if max(abs(growth), abs(trend - rows[AS_IS][1])) < LEAST_WORTH:
        return []
    interval = f" (95 % interval {percent(lo)} to {percent(hi)})" if math.isfinite(lo) else ""
    return [
        f"Recorded effort {'grew' if growth > 0 else 'fell'}: by itself it changes counts by "
        f"{percent(growth)} a year, which the model takes out as far as effort was recorded "
        f"rightly. If it is off by half, as guessed durations are, the trend may be {percent(trend)} per year{interval}."
    ]
