"""The tables of a report, as CSV for people and parquet (checked by schema) for programs."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from fedmiss.report.analysis import Analysis
from fedmiss.report.effort import sensitivity
from fedmiss.report.entries import entry_table
from fedmiss.report.facts import fact_table
from fedmiss.report.findings import Findings
from fedmiss.report.fitted import fitted_years
from fedmiss.report.question import site_years
from fedmiss.report.sections.data import flow_table
from fedmiss.report.sections.model import trials
from fedmiss.report.spreadsheet import harmless
from fedmiss.report.windows import smooth_index, window_trends
from fedmiss.tables import load_schema, write_table

__all__ = ["report_tables", "shared_tables", "write_csv", "write_tables"]


def shared_tables(a: Findings) -> dict[str, pd.DataFrame]:
    """Return file name -> table of what every report states, of sites or of months alone."""
    out = {
        "yearly": a.yearly,
        "monthly": a.monthly,
        "season": a.season,
        "smooth": a.curve,
        "trend": a.trend.to_frame().T,
        "periods": a.periods,
        "changepoints": a.points,
        "windows": window_trends(a),
        "smooth_index": smooth_index(a),
        "regions": a.regions,
        "visited": a.visited,
        "sensitivity": sensitivity(a),
        "draws": a.replicates,
        "fitted": fitted_years(a.data.visited, a.data.months),
        "trials": trials(a),
    }
    return out if a.data.cv is None else out | {"cv": a.data.cv}


def report_tables(a: Analysis) -> dict[str, tuple[str, pd.DataFrame]]:
    """Return file name -> (schema, table) of every table of the report."""
    weeks = {"month_of_year": "int32", "week": "int32", "n_years": "int32", "n_counted": "int64"}
    own = {
        "weeks": a.weeks.astype(weeks),
        "sites": a.sites,
        "site_years": site_years(a),
        "carriers": a.influential,
        "visits": a.visits,
        "entries": entry_table(a.entries),
        "groups": a.data.groups,
        "facts": fact_table(a),
        "flow": flow_table(a),
    }
    schemas = {"visited": "report_regions", "cv": "cv"}
    return {name: (schemas.get(name, f"report_{name}"), t) for name, t in (shared_tables(a) | own).items()}


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
