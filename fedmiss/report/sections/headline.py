"""What was found, in one sentence, and what to know before using it."""

from __future__ import annotations

import math

from fedmiss.report.analysis import Analysis
from fedmiss.report.classes import NOT_CLASSIFIED
from fedmiss.report.findings import Findings
from fedmiss.report.prose import area, caveats, headline, latest, other_convention, over_the_period
from fedmiss.report.sections import Cell, HtmlTable, Section, range_cell, records
from fedmiss.report.style import Plot
from fedmiss.report.windows import WINDOWS, window_trends
from fedmiss.report.words import percent

__all__ = ["build", "stretches", "windows"]


def build(a: Analysis, plots: dict[str, Plot]) -> Section:
    """Return the headline with the trend figure."""
    return Section(
        "headline",
        "What was found",
        {
            "headline": headline(a),
            "latest": latest(a),
            "area": area(a),
            "other_convention": other_convention(a),
            "whole": over_the_period(a),
            "rule": a.settings.rule,
            "stretches": stretches(a),
            "windows": windows(a),
            "caveats": caveats(a),
            "figure": plots["trend"],
            "smoothed": plots.get("smoothed"),
            "beside": plots.get("beside"),
            "no_trim": both.problem if (both := a.beside) else "",
        },
    )


def stretches(a: Findings) -> str:
    """Say it when a part of the years has another class than the whole."""
    whole = str(a.trend["trend_class"])
    other = [
        r
        for r in records(a.periods)
        if r.period != "all years" and r.trend_class not in (whole, NOT_CLASSIFIED)
    ]
    if not other:
        return ""
    said = "; ".join(
        f"{r.from_year} to {r.to_year}: {r.trend_class} ({percent(r.percent_per_year)} per year)"
        for r in other
    )
    return f"Parts of the period differ from the whole: {said}."


def windows(a: Findings) -> HtmlTable | None:
    """Return the table of trends and alerts by window; None where there is no trend."""
    table = window_trends(a)
    if table.empty:
        return None
    rows = []
    for r in records(table):
        shown = (
            math.isfinite(r.percent_lo) or not a.n_draws
        )  # no number without an interval, where intervals were asked for
        rows.append(
            [
                Cell(f"{r.window} ({r.from_year} to {r.to_year})"),
                Cell(percent(r.percent_per_year) if shown else "n/a", r.percent_per_year),
                range_cell(r.percent_lo, r.percent_hi),
                Cell(str(r.trend_class)),
                Cell(percent(r.change_percent) if shown else "n/a", r.change_percent),
                range_cell(r.change_lo, r.change_hi),
                Cell(r.alert or "none"),
            ]
        )
    note = (
        "Change over the window: that of its straight trend, so it can differ from the change between two single "
        "years. Alert: a "
        "decline above 25 % or 50 % over the window whose 95 % interval does not include 0."
    ) + ("" if len(table) > len(WINDOWS) else " A window longer than the series has no row.")
    refused = sorted({str(r) for r in table["reason"] if r})
    note += f" No class and no alert where: {'; '.join(refused)}." if refused else ""
    columns = [
        "Window",
        "Change per year",
        "95 % interval",
        "Class",
        "Change over the window",
        "95 % interval",
        "Alert",
    ]
    return HtmlTable("Trend and alerts by window", columns, rows, "windows", note)
