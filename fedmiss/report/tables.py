"""The tables of a report, as CSV for people and parquet (checked by schema) for programs; with its single numbers."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pandas as pd

from fedmiss.report.analysis import Analysis
from fedmiss.report.cautions import PARTS_NAMED, asked, parts_by_share
from fedmiss.report.changes import smooth_index, window_trends
from fedmiss.report.coverage import MIN_SITE_YEARS
from fedmiss.report.entries import entry_table
from fedmiss.report.exchange import harmless
from fedmiss.report.findings import Findings
from fedmiss.report.fitted import fitted_years, sensitivity
from fedmiss.report.prose import averaged_ranks, chosen_rows
from fedmiss.report.question import site_years
from fedmiss.report.sections.data import flow_table
from fedmiss.report.sections.model import trials
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


# -- single numbers of the page, by name ---------------------------------------------------------------------


_MODEL = (
    "rank", "penalty", "dispersion", "edf", "observer_sd", "smear", "objective", "h_norm", "rounds", "participation",
    "exchanges", "bytes_up", "bytes_down",
)  # fmt: skip


def fact_table(a: Analysis) -> pd.DataFrame:
    """Return ``name``, ``value`` of every single number that the page states (schema ``report_facts``).

    A number that the inputs do not know has no row.
    """
    values = _counted(a) | _fitted(a) | (dict(a.beside.numbers) if a.beside else {})
    rows = [(k, float(v)) for k, v in values.items() if v is not None and math.isfinite(float(v))]
    return pd.DataFrame(rows, columns=["name", "value"])


def _counted(a: Analysis) -> dict[str, float | None]:
    c = a.coverage
    effort = a.data.panel.get("results", {}).get("effort")
    known = effort if isinstance(effort, dict) else {}
    year, base = asked(a)
    parts = parts_by_share(a)
    return (
        {
            "sites": c.n_sites,
            "sites_with_coordinates": c.sites_with_coordinates,
            "sites_in_two_years": c.sites_repeated,
            "months": c.n_months,
            "months_without_count": c.months_unseen,
            "years": a.years.year.size,
            "years_used": int(a.years.used.sum()),
            "years_linked": c.linked_years,
            "years_sharing_months": c.years_sharing_months,
            "median_cells_per_year": c.median_cells_per_year,
            "cells": c.n_cells,
            "cells_counted": c.n_observed,
            "share_cells_counted": c.share_observed,
            "share_total_imputed": c.share_imputed_total,
            "visits": c.n_visits,
            "visits_with_count": c.n_counted,
            "visits_with_zero": c.n_zeros,
            "counted": c.birds_counted,
            "observers": a.data.fact("n_observers"),
            "groups": len(a.data.groups),
            "years_for_a_class": MIN_SITE_YEARS,
            "year_needs_cells": year.cells,
            "year_needs_sites": year.sites,
            "base_needs_cells": base.cells,
            "base_needs_sites": base.sites,
            "parts_without_common_region": len(parts),
            "visits_that_found": c.n_detected,
            "coarse_map": a.settings.coarse_map or None,
        }
        | {f"known_{k}": v for k, v in known.items()}
        | {f"share_of_part_{i + 1}": part[2] for i, part in enumerate(parts[:PARTS_NAMED])}
    )


def _fitted(a: Analysis) -> dict[str, float | None]:
    facts = {k: v for k in _MODEL if isinstance(v := a.data.fact(k), int | float)}
    facts |= {f"average_rank_{i + 1}": r for i, r in enumerate(averaged_ranks(a))}
    facts["one_trend"] = a.data.one_trend  # 1: all sites share one trend
    facts |= {f"effort_{k}": v for k, v in (a.data.effort or {}).items()}
    less = a.data.fact("learning")
    facts |= {} if less is None else {"new_observer": math.exp(-less)}
    chain = zip(("first", "gained", "lost"), a.data.fact("occupancy", default=[]), strict=False)
    facts |= {f"occupied_{name}": v for name, v in chain}
    ends = zip(("start", "end"), a.data.fact("occupied", default=[]), strict=False)
    facts |= {f"sites_occupied_{name}": v for name, v in ends}
    facts |= {f"explained_{k}": v for k, v in a.data.fact("explained", default={}).items()}
    cv = a.data.cv
    if cv is not None and len(cv) and len(chosen := cv[chosen_rows(a)]):
        facts["predicted_over_counted"] = float(np.average(chosen["total_bias"], weights=chosen["n"]))
    span, robust = a.curve.attrs.get("span"), a.curve.attrs.get("it")
    return facts | {"bootstrap_replicates": a.n_draws, "loess_span": span, "loess_iterations": robust}
