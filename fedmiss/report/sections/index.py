"""Indices, trends of periods and regions, change points, and the monthly series."""

from __future__ import annotations

import math
from typing import Any

from fedmiss.report.changes import MIN_SEGMENT, SUPPORTED
from fedmiss.report.findings import Findings
from fedmiss.report.sections import (
    Cell,
    Column,
    HtmlTable,
    Section,
    cell,
    range_cell,
    reasons,
    table_of,
    trend_columns,
)
from fedmiss.report.style import Plot
from fedmiss.report.words import count, number, records, share

_REGIONS_LISTED = 60


def build(findings: Findings, plots: dict[str, Plot]) -> Section:
    """Return the section of indices."""
    return Section(
        "index",
        "Indices and trends",
        {
            "yearly": _yearly(findings),
            "periods": _periods(findings),
            "bends": " ".join(_bend(point) for point in records(findings.points)),
            "searched": int(findings.years.used.sum()) >= 2 * MIN_SEGMENT,
            "figure": plots.get("monthly") if "weeks" in plots or "season" not in plots else None,
            "regions": _regions(findings),
        },
    )


def _yearly(findings: Findings) -> HtmlTable:
    by_cell, base = "cells" in findings.yearly, str(findings.trend["base"])

    def year(row: Any) -> Cell:
        few = " (too few counts)" if findings.found else " (none found)"
        # of a joint year without visits nobody knows whether there were none, or too few to be told
        none = " (no count)" if by_cell else " (left out)"
        few = few if (row.cells_observed if by_cell else row.visits) else none
        return Cell(
            f"{row.year}{'' if row.used else few if row.complete else ' (incomplete)'}", float(row.year)
        )

    def interval(row: Any) -> Cell:
        if math.isclose(row.index_lo, row.index_hi):
            return Cell("base", 100.0)
        return range_cell(row.index_lo, row.index_hi, number)

    rests: list[Column] = [("Visits", lambda r: cell(count, r.visits))]
    if by_cell:
        rests = [
            (
                f"{findings.cell.capitalize()}s counted",
                lambda r: Cell(f"{count(r.cells_observed)} of {count(r.cells)}", float(r.cells_observed)),
            ),
            ("Total imputed", lambda r: cell(share, r.imputed_share)),
        ]
    over = "" if findings.yearly_counts else "mean over the months of the season of the "
    note = f"Total: {over}total over all sites, at standard effort."
    if not findings.yearly["complete"].all():
        # its months may be those with many birds, or with few
        note += " That of an incomplete year is of the months it has: compare it with no other year."
    return table_of(
        "Yearly totals and indices",
        findings.yearly,
        [
            ("Year", year),
            (f"Total, {findings.unit}", lambda r: cell(number, r.total if findings.found else math.nan)),
            ("95 % interval", lambda r: range_cell(r.total_lo, r.total_hi, number)),
            (f"Index, {base} = 100" if base else "Index", lambda r: cell(number, r.index_)),
            ("95 % interval", interval),
            *rests,
        ],
        note,
    )


def _years(row: Any) -> Cell:
    if not row.n_years:
        return Cell("none", math.nan)
    years = f"{row.from_year}" if row.from_year == row.to_year else f"{row.from_year} to {row.to_year}"
    return Cell(years, float(row.from_year))


def _periods(findings: Findings) -> HtmlTable | None:
    if findings.periods.empty:
        return None
    rule = {"pecbms": "PECBMS", "rtrim": "rtrim"}[findings.settings.rule]
    own = " by TRIM's convention" if findings.settings.convention == "trim" else ""
    note = f"Classes by the rule of {rule}{own}; those by the other convention are in the file."
    if len(findings.periods) > 1:
        note += " The bends were found in the same totals, so the intervals between them are too narrow."
    if refused := reasons(findings.periods):
        note += f" No class where: {refused}."
    columns = [("Period", lambda r: Cell(str(r.period))), ("Years", _years), *trend_columns(findings)]
    return table_of("Trend by period", findings.periods, columns, note)


def _bend(row: Any) -> str:
    if not math.isfinite(row.support):
        return f"The trend bends in {row.year}."
    # A bend that most replicates do not find is no finding.
    bends = "bends" if row.support >= SUPPORTED else "may bend"
    near = f"a bend within two years of it is found in {share(row.support)} of the replicates"
    return f"The trend {bends} in {row.year}; {near}."


_DRAWN = "The model has one line for all regions and draws their trends to it"


def _regions(findings: Findings) -> HtmlTable | None:
    """The largest regions; where all share one trend, with their sites and shares alone: it would repeat one number."""
    if len(findings.regions) < 2 or not findings.found:
        return None
    table = findings.regions.sort_values("share", ascending=False).head(_REGIONS_LISTED)
    columns: list[Column] = [("Region", lambda r: Cell(str(r.region)))]
    if (table["n_sites"] > 0).all():
        columns.append(("Sites", lambda r: cell(count, r.n_sites)))
    columns.append(("Share of total", lambda r: cell(share, r.share)))
    apart = (
        "Sites without a region are in none of them. " if findings.regions["share"].sum() < 1 - 1e-6 else ""
    )
    if findings.data.one_trend:
        who = findings.data.alike if findings.data.fact("large_site") else "All regions"
        note = apart + f"{who} share one trend in this model, so it is not repeated here."
        return table_of("Regions", table, columns, note)
    columns += [("Years", _years), *trend_columns(findings)]
    some = f"The {_REGIONS_LISTED} largest of {len(findings.regions)} regions. "
    note = some if len(findings.regions) > _REGIONS_LISTED else ""
    note += "Each trend is of the months and years that were counted in the region. "
    own = findings.data.fact("slopes", default=False) and "regions" in findings.data.fact(
        "features", default=[]
    )
    # without a block of regions all have one line, and trends of their sites are drawn to it however many counts there are
    drawn = "Where the counts hardly tell regions apart, the model draws their trends together"
    drawn, held = (
        (drawn, "; the intervals allow for that")
        if own
        else (_DRAWN, ", and the intervals do not cover that")
    )
    note += f"{drawn}{held if findings.regions['percent_lo'].notna().any() else ''}. "
    note += apart
    if table["reason"].nunique() > 1:
        columns.append(("Why no class", lambda r: Cell(str(r.reason))))
    elif reason := str(table["reason"].iloc[0]):  # one reason for all is a note
        note += f"No class: {reason}."
    return table_of("Trend by region", table, columns, note.strip())
