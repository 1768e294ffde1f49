"""Where the birds are: the site x month matrix, the map, and the table of sites."""

from __future__ import annotations

from fedmiss.report.analysis import Analysis
from fedmiss.report.cautions import biased_visits
from fedmiss.report.coverage import MIN_FINDS
from fedmiss.report.sections import Cell, Column, HtmlTable, Section, cell, range_cell, table_of
from fedmiss.report.sections.question import askable
from fedmiss.report.style import Plot
from fedmiss.report.words import count, number, percent

SHOWN = 150


def build(analysis: Analysis, plots: dict[str, Plot]) -> Section:
    """Return the section of sites."""
    return Section(
        "places",
        "Sites",
        {
            "sites": _sites(analysis),
            "visits": _visits(analysis),
            "biased": biased_visits(analysis),
            "asked": askable(analysis),
        },
    )


def _sites(analysis: Analysis) -> HtmlTable:
    columns: list[Column] = [("Site", lambda r: Cell(analysis.site_names[r.site_index]))]
    if analysis.sites["region"].notna().any():
        columns.append(("Region", lambda r: Cell(str(r.region) if isinstance(r.region, str) else "")))
    cells = "Cells counted" if analysis.yearly_counts else "Months counted"
    columns += [
        (cells, lambda r: cell(count, r.cells_observed)),
        ("Years counted", lambda r: cell(count, r.years_counted)),
        (f"Mean, {analysis.unit_of_site}", lambda r: cell(number, r.mean_total)),
    ]
    some = f"The {SHOWN} largest of {count(analysis.n_sites)} sites. " if analysis.n_sites > SHOWN else ""
    mean = "mean" if analysis.yearly_counts else "mean (estimate in the mean month of the season)"
    mean = f"Years counted, and {mean}: of the years in the trend. " if analysis.years.used.any() else ""
    trend = f"{analysis.data.alike} share one trend in this model, so it is not repeated here."
    if analysis.n_sites == 1:
        trend = "The trend of the one site is that of the whole."
    if not analysis.data.one_trend:
        trend = (
            "A site counted in fewer than three years has no class: its trend is borrowed from the others."
            if analysis.classified
            else "All sites together have no class, so no site has one."
        )
        if analysis.sites["slope"].isna().any():
            trend += " A site where the species was never found has no trend."
        if analysis.sites["slope_se"].notna().any():
            trend += (
                " Where the counts hardly tell sites apart, the model draws their trends together; the intervals allow for "
                "that."
            )
        columns += [
            ("Change per year", lambda r: cell(percent, r.percent_per_year)),
            ("95 % interval", lambda r: range_cell(r.percent_lo, r.percent_hi)),
            ("Class", lambda r: Cell(str(r.trend_class))),
        ]
    table = analysis.sites.sort_values("mean_total", ascending=False, kind="stable").head(SHOWN)
    return table_of("Sites", table, columns, f"{some}{mean}{trend}")


def _visits(analysis: Analysis) -> HtmlTable | None:
    """How visits go with what was found, where enough sites can be compared."""
    table = analysis.visits[analysis.visits["correlation"].notna()]
    if table.empty:
        return None
    names = {
        "visits and birds": f"number of visits, and {analysis.settings.unit}",
        "visits and trend": "number of visits, and trend",
        "first visit and trend": "time of the first visit, and trend",
        "last visit and trend": "time of the last visit, and trend",
    }
    note = (
        "Rank correlation over sites: 1 when sites with more of the one have more of the other, 0 when they have nothing to "
        "do with each other. "
        f"Numbers are compared at sites visited so often that a mean one would give {MIN_FINDS} finds. "
        "Clear: at least 0.3 either way, and by chance in fewer than 1 of 1,000 panels. None "
        "found is no proof: trends of thinly visited sites are borrowed from the others, and sites given up early tell "
        "little."
    )
    return table_of(
        "Do visits follow what was found?",
        table,
        [
            ("Compared", lambda r: Cell(names[r.compared])),
            ("Sites", lambda r: cell(count, r.n_sites)),
            ("Correlation", lambda r: Cell(number(r.correlation, 2), r.correlation)),
            ("Clear", lambda r: Cell("yes" if r.clear else "no")),
        ],
        note,
    )
