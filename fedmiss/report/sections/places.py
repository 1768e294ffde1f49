"""Where the birds are: the site x month matrix, the map, and the table of sites."""

from __future__ import annotations

import math

from fedmiss.report.analysis import Analysis
from fedmiss.report.cautions import biased_visits
from fedmiss.report.sections import Cell, HtmlTable, Section, range_cell, records
from fedmiss.report.sections.question import askable
from fedmiss.report.style import Plot
from fedmiss.report.words import count, number, percent

__all__ = ["build"]

SHOWN = 150


def build(a: Analysis, plots: dict[str, Plot]) -> Section:
    """Return the section of sites."""
    return Section(
        "places",
        "Sites",
        {
            "heatmap": plots.get("heatmap"),
            "map": plots.get("map"),
            "sites": _sites(a),
            "visits": _visits(a),
            "biased": biased_visits(a),
            "n_sites": count(a.coverage.n_sites),
            "asked": askable(a),
            "one_month": len(a.years.season) == 1,
        },
    )


def _sites(a: Analysis) -> HtmlTable:
    table = a.sites.sort_values("mean_total", ascending=False, kind="stable").head(SHOWN)
    regions = bool(a.sites["region"].notna().any())
    rows = []
    for r in records(table):
        name = r.site_name if isinstance(r.site_name, str) and r.site_name else r.site_id
        title = f"site {r.site_index}" if a.settings.coarse_map else str(name)
        lo, hi = _limits(r.slope, r.slope_se)
        where = [Cell(str(r.region) if isinstance(r.region, str) else "")] if regions else []
        row = [
            Cell(title),
            *where,
            Cell(count(r.cells_observed), float(r.cells_observed)),
            Cell(count(r.years_counted), float(r.years_counted)),
            Cell(number(r.mean_total), r.mean_total),
        ]
        own = [
            Cell(percent(r.percent_per_year), r.percent_per_year),
            range_cell(lo, hi),
            Cell(str(r.trend_class)),
        ]
        rows.append(row if a.data.one_trend else row + own)
    some = f"The {SHOWN} largest of {count(len(a.sites))} sites. " if len(a.sites) > SHOWN else ""
    mean = "mean of the years." if a.yearly_counts else "estimate in the mean month of the season, all years."
    note = f"{some}Mean: {mean} All sites share one trend in this model, so it is not repeated here."
    note = (
        note
        if a.data.one_trend
        else (
            f"{some}Mean: {mean} A site counted in fewer than three "
            "years has no class: its trend is borrowed from the others."
        )
    )
    columns = [
        "Site",
        *(["Region"] if regions else []),
        "Cells counted" if a.yearly_counts else "Months counted",
        "Years counted",
        f"Mean, {a.unit}",
    ]
    columns += [] if a.data.one_trend else ["Change per year", "95 % interval", "Class"]
    return HtmlTable("Sites", columns, rows, "sites", note)


def _visits(a: Analysis) -> HtmlTable | None:
    """How visits go with what was found, where enough sites can be compared."""
    table = a.visits[a.visits["correlation"].notna()]
    if table.empty:
        return None
    names = {
        "visits and birds": f"number of visits, and {a.settings.unit}",
        "visits and trend": "number of visits, and trend",
        "first visit and trend": "time of the first visit, and trend",
        "last visit and trend": "time of the last visit, and trend",
    }
    rows = [
        [
            Cell(names[r.compared]),
            Cell(count(r.n_sites), float(r.n_sites)),
            Cell(number(r.correlation, 2), r.correlation),
            Cell("yes" if r.clear else "no"),
        ]
        for r in records(table)
    ]
    note = (
        "Rank correlation over sites: 1 when sites with more of the one have more of the other, 0 when they have nothing to "
        "do with each other. Clear: at least 0.3 either way, and by chance in fewer than 1 of 1,000 panels. None "
        "found is no proof: trends of thinly visited sites are borrowed from the others, and sites given up early tell "
        "little."
    )
    return HtmlTable(
        "Do visits follow what was found?",
        ["Compared", "Sites", "Correlation", "Clear"],
        rows,
        "visits",
        note,
    )


def _limits(slope: float, se: float) -> tuple[float, float]:
    if not (math.isfinite(slope) and math.isfinite(se)):
        return math.nan, math.nan
    return 100.0 * (math.exp(slope - 1.96 * se) - 1.0), 100.0 * (math.exp(slope + 1.96 * se) - 1.0)
