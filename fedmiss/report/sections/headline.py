"""What was found, in one sentence, and what to know before using it."""

from __future__ import annotations

import math

from fedmiss.report.analysis import Analysis
from fedmiss.report.changes import WINDOWS, window_trends
from fedmiss.report.classes import NOT_CLASSIFIED
from fedmiss.report.findings import Findings
from fedmiss.report.prose import Headline, area, caveats, headline, latest, other_convention, over_the_period
from fedmiss.report.sections import Cell, HtmlTable, Section, range_cell, table_of
from fedmiss.report.style import Plot
from fedmiss.report.words import percent, records

__all__ = ["build", "found"]


def build(a: Analysis, plots: dict[str, Plot]) -> Section:
    """Return the headline with the trend figure, TRIM's index beside it where the report asks for it."""
    return found(a, headline(a), caveats(a), a.beside.problem if a.beside else "")


def found(a: Findings, head: Headline, warnings: list[str], no_trim: str = "") -> Section:
    """Return the section of a page, with its own headline, caveats, and why TRIM's model could not be fitted."""
    return Section(
        "headline",
        "What was found",
        {
            "headline": head,
            "latest": latest(a),
            "area": area(a),
            "other_convention": other_convention(a),
            "whole": over_the_period(a),
            "stretches": _stretches(a),
            "windows": _windows(a),
            "caveats": warnings,
            "no_trim": no_trim,
        },
    )


def _stretches(a: Findings) -> str:
    """Say it when a part of the years has another class than the whole."""
    whole = str(a.trend["trend_class"])
    said = "; ".join(
        f"{r.from_year} to {r.to_year}: {r.trend_class} ({percent(r.percent_per_year)} per year)"
        for r in records(a.periods)
        if r.period != "all years" and r.trend_class not in (whole, NOT_CLASSIFIED)
    )
    return f"Parts of the period differ from the whole: {said}." if said else ""


def _windows(a: Findings) -> HtmlTable | None:
    """Return the table of trends and alerts by window; None where there is no trend."""
    table = window_trends(a)
    if table.empty:
        return None

    def shown(value: float, lo: float) -> Cell:
        """No number without an interval, where intervals were asked for."""
        return Cell(percent(value) if math.isfinite(lo) or not a.n_draws else "n/a", value)

    note = (
        "Change over the window: that of its straight trend, so it can differ from the change between two single "
        "years. Alert: a decline above 25 % or 50 % over the window whose 95 % interval does not include 0."
    ) + ("" if len(table) > len(WINDOWS) else " A window longer than the series has no row.")
    refused = sorted({str(r) for r in table["reason"] if r})
    note += f" No class and no alert where: {'; '.join(refused)}." if refused else ""
    return table_of(
        "Trend and alerts by window",
        table,
        [
            ("Window", lambda r: Cell(f"{r.window} ({r.from_year} to {r.to_year})")),
            ("Change per year", lambda r: shown(r.percent_per_year, r.percent_lo)),
            ("95 % interval", lambda r: range_cell(r.percent_lo, r.percent_hi)),
            ("Class", lambda r: Cell(str(r.trend_class))),
            ("Change over the window", lambda r: shown(r.change_percent, r.percent_lo)),
            ("95 % interval", lambda r: range_cell(r.change_lo, r.change_hi)),
            ("Alert", lambda r: Cell(r.alert or "none")),
        ],
        "windows",
        note,
    )
