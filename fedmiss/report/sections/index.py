"""Indices, trends of periods and regions, change points, and the monthly series."""

from __future__ import annotations

import math
from typing import Any

import pandas as pd

from fedmiss.report.changes import MIN_SEGMENT
from fedmiss.report.findings import Findings
from fedmiss.report.sections import Cell, HtmlTable, Section, range_cell, records
from fedmiss.report.style import Plot
from fedmiss.report.words import count, number, percent, share

__all__ = ["build"]


def build(a: Findings, plots: dict[str, Plot]) -> Section:
    """Return the section of indices."""
    return Section(
        "index",
        "Indices and trends",
        {
            "yearly": _yearly(a),
            "periods": _periods(a),
            "points": _points(a),
            "searched": int(a.years.used.sum()) >= 2 * MIN_SEGMENT,
            "figure": plots.get("monthly") if "weeks" in plots or "season" not in plots else None,
            "regions_figure": plots.get("regions"),
            "regions": _regions(a),
        },
    )


def _yearly(a: Findings) -> HtmlTable:
    rows, by_cell = [], "cells" in a.yearly
    for r in records(a.yearly.rename(columns={"index": "index_"})):
        few = (
            " (no count)"
            if not (r.cells_observed if by_cell else r.visits)
            else " (too few counts)"
            if a.found
            else " (none found)"
        )
        flag = "" if r.used else (" (incomplete)" if not r.complete else few)
        rows.append(
            [
                Cell(f"{r.year}{flag}", float(r.year)),
                Cell(number(r.total), r.total),
                range_cell(r.total_lo, r.total_hi, number),
                Cell(number(r.index_), r.index_),
                Cell("base", 100.0)
                if math.isclose(r.index_lo, r.index_hi)
                else range_cell(r.index_lo, r.index_hi, number),
                *(
                    [
                        Cell(f"{count(r.cells_observed)} of {count(r.cells)}", float(r.cells_observed)),
                        Cell(share(r.imputed_share), r.imputed_share),
                    ]
                    if by_cell
                    else [Cell(count(r.visits), float(r.visits))]
                ),
            ]
        )
    base = str(a.trend["base"])
    columns = [
        "Year",
        f"Total, {a.unit}",
        "95 % interval",
        f"Index, {base} = 100" if base else "Index",
        "95 % interval",
        *([f"{a.cell.capitalize()}s counted", "Total imputed"] if by_cell else ["Visits"]),
    ]
    over = "" if a.yearly_counts else "mean over the months of the season of the "
    note = f"Total: {over}total over all sites, at standard effort."
    return HtmlTable("Yearly totals and indices", columns, rows, "yearly", note)


def _years(r: Any) -> Cell:
    if not r.n_years:
        return Cell("none", math.nan)
    return Cell(f"{r.from_year} to {r.to_year}", float(r.from_year))


def _trend_cells(r: Any, n_draws: int) -> list[Cell]:
    # no number without an interval, where intervals were asked for
    shown = not n_draws or math.isfinite(r.percent_lo)
    return [
        _years(r),
        Cell(percent(r.percent_per_year) if shown else "n/a", r.percent_per_year),
        range_cell(r.percent_lo, r.percent_hi),
        Cell(str(r.trend_class)),
    ]


def _periods(a: Findings) -> HtmlTable | None:
    if a.periods.empty:
        return None
    rows = [[Cell(str(r.period)), *_trend_cells(r, a.n_draws)] for r in records(a.periods)]
    refused = sorted({str(r) for r in a.periods["reason"] if r})
    rules = {"pecbms": "PECBMS", "rtrim": "rtrim"}
    own = " by TRIM's convention" if a.settings.convention == "trim" else ""
    note = (
        f"Classes by the rule of {rules[a.settings.rule]}{own}; those by the other convention are in the file."
        + (f" No class where: {'; '.join(refused)}." if refused else "")
    )
    return HtmlTable(
        "Trend by period",
        ["Period", "Years", "Change per year", "95 % interval", "Class"],
        rows,
        "periods",
        note,
    )


def _points(a: Findings) -> list[str]:
    out = []
    for r in records(a.points):
        firm = (
            f"; a bend within two years of it is found in {share(r.support)} of the replicates"
            if math.isfinite(r.support)
            else ""
        )
        out.append(f"{r.year}{firm}")
    return out


def _region_shares(a: Findings) -> HtmlTable:
    """Where all regions share one trend, a row of trends would repeat one number: give the sites and the share."""
    table = a.regions.sort_values("share", ascending=False).head(60)
    known = bool((table["n_sites"] > 0).all())
    rows = [[Cell(str(r.region)), *_n_sites(r, known), Cell(share(r.share), r.share)] for r in records(table)]
    note = "All regions share one trend in this model, so it is not repeated here."
    columns = ["Region", *(["Sites"] if known else []), "Share of total"]
    return HtmlTable("Regions", columns, rows, "regions", note)


def _n_sites(r: Any, known: bool) -> list[Cell]:
    return [Cell(count(r.n_sites), float(r.n_sites))] if known else []


def _regions(a: Findings) -> HtmlTable | None:
    if len(a.regions) < 2 or not a.found:
        return None
    if a.data.one_trend:
        return _region_shares(a)
    table: pd.DataFrame = a.regions.sort_values("share", ascending=False).head(60)
    known = bool((table["n_sites"] > 0).all())
    alike = table["reason"].nunique() == 1  # one reason for all is a note, several are a column
    rows = [
        [
            Cell(str(r.region)),
            *_n_sites(r, known),
            Cell(share(r.share), r.share),
            *_trend_cells(r, a.n_draws),
            *([] if alike else [Cell(str(r.reason))]),
        ]
        for r in records(table)
    ]
    note = f"The 60 largest of {len(a.regions)} regions. " if len(a.regions) > 60 else ""
    if alike and (reason := str(table["reason"].iloc[0])):
        note += f"No class: {reason}."
    columns = [
        "Region",
        *(["Sites"] if known else []),
        "Share of total",
        "Years",
        "Change per year",
        "95 % interval",
        "Class",
    ]
    return HtmlTable("Trend by region", columns + ([] if alike else ["Why no class"]), rows, "regions", note)
