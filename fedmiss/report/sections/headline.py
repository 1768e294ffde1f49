"""What was found, in one sentence, and what to know before using it."""

from __future__ import annotations

import pandas as pd

from fedmiss.report.analysis import Analysis
from fedmiss.report.changes import SUPPORTED, WINDOWS, window_trends
from fedmiss.report.classes import NOT_CLASSIFIED
from fedmiss.report.findings import Findings
from fedmiss.report.prose import Headline, area, caveats, headline, latest, other_convention, over_the_period
from fedmiss.report.sections import (
    Cell,
    HtmlTable,
    Section,
    change_cell,
    range_cell,
    reasons,
    table_of,
    trend_columns,
)
from fedmiss.report.style import Plot
from fedmiss.report.words import percent, records


def build(analysis: Analysis, plots: dict[str, Plot]) -> Section:
    """Return the headline with the trend figure, TRIM's index beside it where the report asks for it."""
    return found(
        analysis, headline(analysis), caveats(analysis), analysis.beside.problem if analysis.beside else ""
    )


def found(findings: Findings, head: Headline, warnings: list[str], no_trim: str = "") -> Section:
    """Return the section of a page, with its own headline, caveats, and why TRIM's model could not be fitted."""
    windows = window_trends(findings)
    return Section(
        "headline",
        "What was found",
        {
            "headline": head,
            "latest": latest(findings),
            "area": area(findings),
            "other_convention": other_convention(findings),
            "whole": over_the_period(windows),
            "stretches": _stretches(findings),
            "windows": _windows(findings, windows),
            "caveats": warnings,
            "no_trim": no_trim,
        },
    )


def _stretches(findings: Findings) -> str:
    """Say it when a part of the years has another class than the whole, and an interval that excludes the trend of it.

    A part that begins or ends at a bend that most replicates do not find is no finding: its section has it.
    """
    whole, change = str(findings.trend["trend_class"]), float(findings.trend["percent_per_year"])
    unsure = set(findings.points.loc[findings.points["support"] < SUPPORTED, "year"])
    said = "; ".join(
        f"{period.from_year} to {period.to_year}: {period.trend_class} ({percent(period.percent_per_year)} per year)"
        for period in records(findings.periods)
        if period.period != "all years"
        and not unsure & {period.from_year, period.to_year}
        and period.trend_class not in (whole, NOT_CLASSIFIED)
        and not period.percent_lo <= change <= period.percent_hi
    )
    return f"Parts of the period differ from the whole: {said}." if said else ""


def _windows(findings: Findings, table: pd.DataFrame) -> HtmlTable | None:
    """Return the table of trends and alerts by window; None where there is no trend."""
    if table.empty:
        return None
    note = (
        "Change over the window: that of its straight trend, so it can differ from the change between two single "
        "years. Alert: a decline above 25 % or 50 % over the window whose 95 % interval does not include 0."
    )
    first, last = int(table["from_year"].iloc[0]), int(table["to_year"].iloc[0])
    shorter = sum(window < last - first for window in WINDOWS)
    note += "" if shorter == len(WINDOWS) else " A window as long as the series, or longer, has no row."
    if len(table) - 1 < shorter:
        note += " A window that lacks more than a fifth of its years at its beginning has no row."
    if refused := reasons(table):
        note += f" No class and no alert where: {refused}."
    return table_of(
        "Trend and alerts by window",
        table,
        [
            ("Window", lambda r: Cell(f"{r.window} ({r.from_year} to {r.to_year})")),
            *trend_columns(findings),
            ("Change over the window", lambda r: change_cell(findings, r.change_percent, r.percent_lo)),
            ("95 % interval", lambda r: range_cell(r.change_lo, r.change_hi)),
            ("Alert", lambda r: Cell(r.alert or "none")),
        ],
        note,
    )
