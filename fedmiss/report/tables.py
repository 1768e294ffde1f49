"""The tables of a report, as CSV for people and parquet (checked by schema) for programs."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from fedmiss.report.analysis import Analysis
from fedmiss.report.effort import sensitivity
from fedmiss.report.entries import entry_table
from fedmiss.report.facts import fact_table
from fedmiss.report.fitted import fitted_years
from fedmiss.report.question import site_years
from fedmiss.report.sections.model import trials
from fedmiss.report.spreadsheet import harmless
from fedmiss.report.windows import smooth_index, window_trends
from fedmiss.tables import load_schema, write_table

__all__ = ["report_tables", "write_csv", "write_tables"]


def report_tables(a: Analysis) -> dict[str, tuple[str, pd.DataFrame]]:
    """Return file name -> (schema, table) of every table of the report."""
    out = {
        "yearly": ("report_yearly", a.yearly),
        "monthly": ("report_monthly", a.monthly),
        "season": ("report_season", a.season),
        "weeks": ("report_weeks", _whole(a.weeks)),
        "smooth": ("report_smooth", a.curve),
        "trend": ("report_trend", a.trend.to_frame().T),
        "periods": ("report_periods", a.periods),
        "changepoints": ("report_changepoints", a.points),
        "windows": ("report_windows", window_trends(a)),
        "smooth_index": ("report_smooth_index", smooth_index(a)),
        "regions": ("report_regions", a.regions),
        "visited": ("report_regions", a.visited),
        "sites": ("report_sites", a.sites),
        "site_years": ("report_site_years", site_years(a)),
        "carriers": ("report_carriers", a.influential),
        "sensitivity": ("report_sensitivity", sensitivity(a)),
        "visits": ("report_visits", a.visits),
        "entries": ("report_entries", entry_table(a.entries)),
        "groups": ("report_groups", a.data.groups),
        "draws": ("report_draws", a.replicates),
        "facts": ("report_facts", fact_table(a)),
        "fitted": ("report_fitted", fitted_years(a.data.visited, a.data.months)),
    }
    rows = [(str(r.get("step", "")), r.get("rows"), str(r.get("note", ""))) for r in a.data.flow]
    frame = pd.DataFrame(rows, columns=["step", "rows", "note"])
    out["flow"] = ("report_flow", frame.astype({"rows": "Int64"}))
    out["trials"] = ("report_trials", trials(a))
    if a.data.cv is not None:
        out["cv"] = ("cv", a.data.cv)
    return out


def _whole(weeks: pd.DataFrame) -> pd.DataFrame:
    return weeks.astype({"month_of_year": "int32", "week": "int32", "n_years": "int32", "n_counted": "int64"})


def write_csv(table: pd.DataFrame, path: Path) -> None:
    """Write a CSV with six significant digits: what a person reads, not what a program computes with."""
    harmless(table).to_csv(path, index=False, float_format="%.6g", lineterminator="\n")


def write_tables(a: Analysis, folder: Path) -> None:
    """Write every table into ``folder`` as ``NAME.csv`` and ``NAME.parquet``."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, (schema, table) in report_tables(a).items():
        columns = [c["name"] for c in load_schema(schema).columns]
        clean = table[columns].reset_index(drop=True)
        clean.attrs = {}  # would enter the parquet metadata
        for column in [c for c in clean.columns if pd.api.types.is_object_dtype(clean[c])]:
            clean[column] = clean[column].infer_objects()
        write_csv(clean, folder / f"{name}.csv")
        write_table(clean, folder / f"{name}.parquet", schema)
