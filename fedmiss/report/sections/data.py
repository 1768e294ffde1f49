"""Where the data come from, what was dropped on the way, and how they may be used."""

from __future__ import annotations

import pandas as pd

from fedmiss.report.analysis import Analysis
from fedmiss.report.sections import Cell, HtmlTable, Section, cell, table_of
from fedmiss.report.style import Plot
from fedmiss.report.words import count, share

_EFFORT = {
    "duration_minutes": "time spent",
    "distance_km": "distance travelled",
    "n_observers": "size of the party",
    "start_minutes": "time of day",
    "protocol": "protocol",
}
_GROUPS_LISTED = 60


def build(analysis: Analysis, plots: dict[str, Plot]) -> Section:
    """Return the section of the data."""
    coverage, time = analysis.coverage, "year" if analysis.yearly_counts else "month"
    first, last = analysis.data.months[time].iloc[[0, -1]]
    counts = f"{count(coverage.n_counted)} with a count, {count(coverage.n_zeros)} that found none"
    named = f"{analysis.common_name} ({analysis.species})" if analysis.common_name else analysis.species
    facts = [
        ("Species", named),
        (f"{time.capitalize()}s", f"{first} to {last}, {count(coverage.n_months)} in all"),
        ("Sites", f"{count(coverage.n_sites)}, {count(coverage.sites_with_coordinates)} with coordinates"),
        ("Visits", f"{count(coverage.n_visits)}; {counts}"),
        (f"{analysis.settings.unit.capitalize()} counted", count(coverage.birds_counted)),
        (
            f"{analysis.cell.capitalize()}s with a count",
            f"{count(coverage.n_observed)} of {count(coverage.n_cells)} ({share(coverage.share_cells)})",
        ),
        ("Sites counted in two or more years", count(coverage.sites_repeated)),
        ("Effort known", _effort(analysis)),
    ]
    terms = [
        (key.capitalize(), str(term)) for key, term in sorted(analysis.data.panel["terms"].items()) if term
    ]
    manifests = (analysis.data.panel, analysis.data.fit, analysis.data.imputed)
    warnings = [str(warning) for manifest in manifests for warning in manifest["warnings"]]
    return Section(
        "data",
        "Data",
        {
            "facts": facts,
            "terms": terms,
            "flow": _flow(analysis),
            "groups": _groups(analysis),
            "warnings": list(dict.fromkeys(warnings)),
        },
    )


def _effort(analysis: Analysis) -> str:
    known = [
        f"{_EFFORT.get(key, key)} on {share(part)} of visits"
        for key, part in analysis.data.panel["results"]["effort"].items()
        if part
    ]
    return "; ".join(known) or "none recorded"


def _flow(analysis: Analysis) -> HtmlTable | None:
    if not analysis.data.flow:
        return None
    return table_of(
        "From the source to the panel, step by step",
        flow_table(analysis),
        [
            ("Step", lambda r: Cell(r.step)),
            ("Rows", lambda r: Cell("") if pd.isna(r.rows) else cell(count, r.rows)),
            ("Note", lambda r: Cell(r.note)),
        ],
    )


def flow_table(analysis: Analysis) -> pd.DataFrame:
    """Return what each step from the source to the panel dropped (schema ``report_flow``)."""
    table = pd.DataFrame(analysis.data.flow, columns=["step", "rows", "note"])
    return table.astype({"rows": "Int64"}).fillna({"step": "", "note": ""})


def _groups(analysis: Analysis) -> HtmlTable | None:
    table = analysis.data.groups
    if len(table) < 2:
        return None
    return table_of(
        "Groups of observers",
        table.head(_GROUPS_LISTED),
        [
            ("Group", lambda r: Cell(str(r.group))),
            ("Visits", lambda r: cell(count, r.visits)),
            ("With a count", lambda r: cell(count, r.counted)),
            (f"{analysis.cell.capitalize()}s", lambda r: cell(count, r.cells)),
        ],
        f"The first {_GROUPS_LISTED} of {len(table)} groups." if len(table) > _GROUPS_LISTED else "",
    )
