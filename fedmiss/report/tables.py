"""The tables of a report, as CSV for people and parquet (checked by schema) for programs; with its single numbers."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pandas as pd
from pandas.api.types import is_float_dtype

from fedmiss.report.analysis import Analysis
from fedmiss.report.cautions import PARTS_NAMED, asked
from fedmiss.report.changes import smooth_index, window_trends
from fedmiss.report.coverage import MIN_SITE_YEARS, groups_apart
from fedmiss.report.entries import entry_table
from fedmiss.report.exchange import harmless
from fedmiss.report.findings import Findings
from fedmiss.report.finds import trend_without
from fedmiss.report.fitted import fitted_years, multiplies, sensitivity
from fedmiss.report.prose import averaged_ranks, chosen_rows
from fedmiss.report.question import site_years
from fedmiss.report.sections.data import flow_table
from fedmiss.report.sections.model import trials
from fedmiss.tables import load_schema, write_table


def shared_tables(findings: Findings) -> dict[str, pd.DataFrame]:
    """Return file name -> table of what every report states, of sites or of months alone."""
    out = {
        "yearly": findings.yearly, "monthly": findings.monthly, "season": findings.season, "smooth": findings.curve,
        "trend": findings.trend.to_frame().T.infer_objects(), "periods": findings.periods, "changepoints": findings.points,
        "windows": window_trends(findings), "smooth_index": smooth_index(findings), "regions": findings.regions,
        "visited": findings.visited, "sensitivity": sensitivity(findings), "draws": findings.replicates,
        "fitted": fitted_years(findings.data.visited, findings.months), "trials": trials(findings),
    }  # fmt: skip
    return out if findings.data.cv is None else out | {"cv": findings.data.cv}


def report_tables(analysis: Analysis) -> dict[str, tuple[str, pd.DataFrame]]:
    """Return file name -> (schema, table) of every table of the report."""
    weeks = {"month_of_year": "int32", "week": "int32", "n_years": "int32", "n_counted": "int64"}
    own = {
        "weeks": analysis.weeks.astype(weeks), "sites": analysis.sites, "site_years": site_years(analysis),
        "carriers": analysis.influential, "visits": analysis.visits, "entries": entry_table(analysis.entries),
        "groups": analysis.data.groups, "facts": fact_table(analysis), "flow": flow_table(analysis),
    }  # fmt: skip
    schemas = {"visited": "report_regions", "cv": "cv"}
    return {
        name: (schemas.get(name, f"report_{name}"), value)
        for name, value in (shared_tables(analysis) | own).items()
    }


def write_csv(table: pd.DataFrame, path: Path) -> None:
    """Write a CSV with six significant digits: what a person reads, not what a program computes with."""
    text = harmless(table)
    # as ``float_format`` would, which takes ten times as long
    for column in text.columns[[is_float_dtype(kind) for kind in text.dtypes]]:
        values = text[column].to_numpy(float).tolist()
        text[column] = ["" if math.isnan(value) else f"{value:.6g}" for value in values]
    text.to_csv(path, index=False, lineterminator="\n")


def write_both(table: pd.DataFrame, folder: Path, name: str, schema: str) -> None:
    """Write a table as ``NAME.csv`` for people, and as ``NAME.parquet``."""
    write_csv(table, folder / f"{name}.csv")
    write_table(table, folder / f"{name}.parquet", schema)


def write_tables(analysis: Analysis, folder: Path) -> None:
    """Write every table into ``folder``, in both forms."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, (schema, table) in report_tables(analysis).items():
        clean = table[load_schema(schema).names].reset_index(drop=True)
        clean.attrs = {}  # would enter the parquet metadata
        for column in [column for column in clean.columns if pd.api.types.is_object_dtype(clean[column])]:
            clean[column] = clean[column].infer_objects()
        write_both(clean, folder, name, schema)


# -- single numbers of the page, by name ---------------------------------------------------------------------


_MODEL = (
    "rank", "penalty", "dispersion", "edf", "observer_sd", "smear", "objective", "h_norm", "rounds", "participation",
    "exchanges", "bytes_up", "bytes_down",
)  # fmt: skip


def fact_table(analysis: Analysis) -> pd.DataFrame:
    """Return ``name``, ``value`` of every single number that the page states (schema ``report_facts``).

    A number that the inputs do not know has no row.
    """
    values = (
        _counted(analysis) | _fitted(analysis) | (dict(analysis.beside.numbers) if analysis.beside else {})
    )
    rows = [
        (key, float(value))
        for key, value in values.items()
        if value is not None and math.isfinite(float(value))
    ]
    return pd.DataFrame(rows, columns=["name", "value"])


def _counted(analysis: Analysis) -> dict[str, float | None]:
    coverage = analysis.coverage
    year, base = asked(analysis)
    parts = groups_apart(analysis.data)
    return (
        {
            "sites": coverage.n_sites, "sites_with_coordinates": coverage.sites_with_coordinates,
            "sites_in_two_years": coverage.sites_repeated, "months": coverage.n_months,
            "months_without_count": coverage.months_unseen, "years": analysis.years.year.size,
            "years_used": int(analysis.years.used.sum()), "years_linked": coverage.linked_years,
            "years_sharing_months": coverage.years_sharing_months,
            "median_cells_per_year": coverage.median_cells_per_year, "cells": coverage.n_cells,
            "cells_counted": coverage.n_observed, "share_cells_counted": coverage.share_cells,
            "share_total_imputed": coverage.share_imputed_total, "visits": coverage.n_visits,
            "visits_with_count": coverage.n_counted, "visits_with_zero": coverage.n_zeros,
            "counted": coverage.birds_counted, "observers": analysis.data.fact("n_observers"),
            "groups": len(analysis.data.groups), "years_for_a_class": MIN_SITE_YEARS,
            "year_needs_cells": year.cells, "year_needs_sites": year.sites, "base_needs_cells": base.cells,
            "base_needs_sites": base.sites, "parts_without_common_region": len(parts),
            "visits_that_found": coverage.n_detected,
            "visits_without_number": coverage.n_visits - coverage.n_counted,
            "no_number_percent_per_year": 100 * math.expm1(coverage.uncounted_slope),
            "coarse_map": analysis.settings.coarse_map or None,
        }
        | {f"known_{key}": value for key, value in analysis.data.panel["results"]["effort"].items()}
        | {f"share_of_part_{i + 1}": part[2] for i, part in enumerate(parts[:PARTS_NAMED])}
        | {
            f"finds_only_{each.year}_{name}": value
            for each in analysis.finds_only
            for name, value in zip(("visits", "finds", "share_of_others"), each[1:], strict=True)
        }
        | _without_finds_only(analysis)
    )  # fmt: skip


def _without_finds_only(analysis: Analysis) -> dict[str, float | None]:
    """The trend without the years of finds only, in percent a year."""
    if not analysis.finds_only:
        return {}
    trend = trend_without(analysis.finds_only, analysis.series, analysis.settings)
    names = ("percent_per_year", "percent_lo", "percent_hi")
    return {f"without_finds_only_{name.removesuffix('_per_year')}": trend[name] for name in names}


def _fitted(analysis: Analysis) -> dict[str, float | None]:
    facts = {name: value for name in _MODEL if isinstance(value := analysis.data.fact(name), int | float)}
    facts |= {f"average_rank_{i + 1}": rank for i, rank in enumerate(averaged_ranks(analysis))}
    facts["one_trend"] = analysis.data.one_trend  # 1: all sites share one trend
    facts |= {f"effort_{key}": value for key, value in analysis.data.effort.items()}
    less, more = (
        analysis.data.fact(name) if multiplies(analysis) else None for name in ("learning", "skill")
    )
    facts |= {} if less is None else {"new_observer": math.exp(-less)}
    facts |= {} if more is None else {"later_observers_percent": 100 * math.expm1(more)}
    # The three probabilities of the chain of occupied sites (the guide's model page).
    chain = zip(("first", "gained", "lost"), analysis.data.fact("occupancy", default=[]), strict=False)
    facts |= {f"occupied_{name}": value for name, value in chain}
    ends = zip(("start", "end"), analysis.data.fact("occupied", default=[]), strict=False)
    facts |= {f"sites_occupied_{name}": value for name, value in ends}
    facts |= {f"explained_{key}": value for key, value in analysis.data.fact("explained", default={}).items()}
    cv = analysis.data.cv
    if cv is not None and len(cv) and len(chosen := cv[chosen_rows(analysis)]):
        facts["predicted_over_counted"] = float(np.average(chosen["total_bias"], weights=chosen["n"]))
    span, robust = analysis.curve.attrs.get("span"), analysis.curve.attrs.get("it")
    return facts | {"bootstrap_replicates": analysis.n_draws, "loess_span": span, "loess_iterations": robust}
