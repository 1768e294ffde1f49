"""Where the data come from, what was dropped on the way, and how they may be used."""

from __future__ import annotations

from fedmiss.report.analysis import Analysis
from fedmiss.report.sections import Cell, HtmlTable, Section, records
from fedmiss.report.style import Plot
from fedmiss.report.words import count, share

__all__ = ["build"]

_EFFORT = {
    "duration_minutes": "time spent",
    "distance_km": "distance travelled",
    "n_observers": "size of the party",
    "start_minutes": "time of day",
    "protocol": "protocol",
}


def build(a: Analysis, plots: dict[str, Plot]) -> Section:
    """Return the section of the data."""
    c = a.coverage
    terms = {k: v for k, v in a.data.panel.get("terms", {}).items() if v}
    facts = [
        ("Species", f"{a.common_name} ({a.species})" if a.common_name else a.species),
        (
            "Years" if a.yearly_counts else "Months",
            f"{a.data.months['year' if a.yearly_counts else 'month'].iloc[0]} to "
            f"{a.data.months['year' if a.yearly_counts else 'month'].iloc[-1]}, {count(c.n_months)} in all",
        ),
        ("Sites", f"{count(c.n_sites)}, {count(c.sites_with_coordinates)} with coordinates"),
        (
            "Visits",
            f"{count(c.n_visits)}; {count(c.n_counted)} with a count, {count(c.n_zeros)} that found none",
        ),
        (f"{a.settings.unit.capitalize()} counted", count(c.birds_counted)),
        (
            f"{a.cell.capitalize()}s with a count",
            f"{count(c.n_observed)} of {count(c.n_cells)} ({share(c.share_observed)})",
        ),
        ("Sites counted in two or more years", count(c.sites_repeated)),
        ("Effort known", _effort(a)),
    ]
    return Section(
        "data",
        "Data",
        {
            "facts": facts,
            "terms": [(k.capitalize(), str(v)) for k, v in sorted(terms.items())],
            "flow": _flow(a),
            "groups": _groups(a),
            "warnings": _warnings(a),
        },
    )


def _effort(a: Analysis) -> str:
    effort = a.data.panel.get("results", {}).get("effort")
    if not isinstance(effort, dict):
        return "the panel does not say"
    known = [
        f"{_EFFORT.get(k, k)} on {share(float(v))} of visits" for k, v in effort.items() if v and float(v) > 0
    ]
    return "; ".join(known) if known else "none recorded"


def _flow(a: Analysis) -> HtmlTable | None:
    if not a.data.flow:
        return None
    rows = [
        [Cell(str(r.get("step", ""))), _rows(r.get("rows")), Cell(str(r.get("note", "")))]
        for r in a.data.flow
    ]
    return HtmlTable("From the source to the panel, step by step", ["Step", "Rows", "Note"], rows, "flow")


def _rows(value: object) -> Cell:
    return Cell(count(float(value)), float(value)) if isinstance(value, int | float) else Cell("")


def _groups(a: Analysis) -> HtmlTable | None:
    table = a.data.groups
    if len(table) < 2:
        return None
    rows = [
        [
            Cell(str(r.group)),
            Cell(count(r.visits), float(r.visits)),
            Cell(count(r.counted), float(r.counted)),
            Cell(count(r.cells), float(r.cells)),
        ]
        for r in records(table.head(60))
    ]
    note = f"The first 60 of {len(table)} groups." if len(table) > 60 else ""
    return HtmlTable(
        "Groups of observers",
        ["Group", "Visits", "With a count", f"{a.cell.capitalize()}s"],
        rows,
        "groups",
        note,
    )


def _warnings(a: Analysis) -> list[str]:
    seen: list[str] = []
    for manifest in (a.data.panel, a.data.fit, a.data.imputed):
        seen += [str(w) for w in manifest.get("warnings", []) if str(w) not in seen]
    return seen
