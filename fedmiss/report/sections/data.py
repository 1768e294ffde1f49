"""Where the data come from, what was dropped on the way, and how they may be used."""

from __future__ import annotations

import pandas as pd

from fedmiss.report.analysis import Analysis
from fedmiss.report.sections import Cell, HtmlTable, Section, cell, table_of
from fedmiss.report.style import Plot
from fedmiss.report.words import count, share

__all__ = ["build", "flow_table"]

_EFFORT = {
    "duration_minutes": "time spent",
    "distance_km": "distance travelled",
    "n_observers": "size of the party",
    "start_minutes": "time of day",
    "protocol": "protocol",
}
_GROUPS_LISTED = 60


def build(a: Analysis, plots: dict[str, Plot]) -> Section:
    """Return the section of the data."""
    c, time = a.coverage, "year" if a.yearly_counts else "month"
    first, last = a.data.months[time].iloc[[0, -1]]
    counts = f"{count(c.n_counted)} with a count, {count(c.n_zeros)} that found none"
    facts = [
        ("Species", f"{a.common_name} ({a.species})" if a.common_name else a.species),
        (f"{time.capitalize()}s", f"{first} to {last}, {count(c.n_months)} in all"),
        ("Sites", f"{count(c.n_sites)}, {count(c.sites_with_coordinates)} with coordinates"),
        ("Visits", f"{count(c.n_visits)}; {counts}"),
        (f"{a.settings.unit.capitalize()} counted", count(c.birds_counted)),
        (
            f"{a.cell.capitalize()}s with a count",
            f"{count(c.n_observed)} of {count(c.n_cells)} ({share(c.share_observed)})",
        ),
        ("Sites counted in two or more years", count(c.sites_repeated)),
        ("Effort known", _effort(a)),
    ]
    terms = {k: v for k, v in a.data.panel.get("terms", {}).items() if v}
    manifests = (a.data.panel, a.data.fit, a.data.imputed)
    return Section(
        "data",
        "Data",
        {
            "facts": facts,
            "terms": [(k.capitalize(), str(v)) for k, v in sorted(terms.items())],
            "flow": _flow(a),
            "groups": _groups(a),
            "warnings": list(dict.fromkeys(str(w) for m in manifests for w in m.get("warnings", []))),
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
    return table_of(
        "From the source to the panel, step by step",
        flow_table(a),
        [
            ("Step", lambda r: Cell(r.step)),
            ("Rows", lambda r: Cell("") if pd.isna(r.rows) else cell(count, r.rows)),
            ("Note", lambda r: Cell(r.note)),
        ],
        "flow",
    )


def flow_table(a: Analysis) -> pd.DataFrame:
    """Return what each step from the source to the panel dropped (schema ``report_flow``)."""
    rows = [(str(r.get("step", "")), r.get("rows"), str(r.get("note", ""))) for r in a.data.flow]
    return pd.DataFrame(rows, columns=["step", "rows", "note"]).astype({"rows": "Int64"})


def _groups(a: Analysis) -> HtmlTable | None:
    table = a.data.groups
    if len(table) < 2:
        return None
    listed = table.head(_GROUPS_LISTED)
    return table_of(
        "Groups of observers",
        listed,
        [
            ("Group", lambda r: Cell(str(r.group))),
            ("Visits", lambda r: cell(count, r.visits)),
            ("With a count", lambda r: cell(count, r.counted)),
            (f"{a.cell.capitalize()}s", lambda r: cell(count, r.cells)),
        ],
        "groups",
        f"The first {len(listed)} of {len(table)} groups." if len(table) > len(listed) else "",
    )
