"""The values of figures in words, mark by mark: what a page shows where a reader points."""

from __future__ import annotations

import numpy as np
import pandas as pd

from fedmiss.report.findings import Findings
from fedmiss.report.sections import records
from fedmiss.report.words import count, number, share
from fedmiss.report.years import MONTH_NAMES

__all__ = ["indicator_marks", "monthly_marks", "season_marks", "smoothed_marks", "trend_marks"]

Marks = list[tuple[float, str]]


def _with_limits(value: float, lo: float, hi: float) -> str:
    known = np.isfinite(lo) and np.isfinite(hi) and not np.isclose(lo, hi)  # the base has no interval
    return number(value) + (f" ({number(lo)} to {number(hi)})" if known else "")


def trend_marks(table: pd.DataFrame) -> Marks:
    """Index of each year, and what it rests on."""
    marks = []
    for r in records(table.rename(columns={"index": "index_"})):
        index = f"index {_with_limits(r.index_, r.index_lo, r.index_hi)}" if r.used else "no index"
        rests = f"{share(r.imputed_share)} imputed" if "cells" in table else f"{count(r.visits)} visits"
        marks.append((float(r.year), f"{r.year}: {index}; {rests}"))
    return marks


def smoothed_marks(table: pd.DataFrame) -> Marks:
    """Smoothed index of each year beside its index."""
    return [
        (
            float(r.year),
            f"{r.year}: smoothed {_with_limits(r.smooth, r.smooth_lo, r.smooth_hi)}; index {number(r.index_)}",
        )
        for r in records(table.rename(columns={"index": "index_"}))
    ]


def monthly_marks(a: Findings) -> Marks:
    """Total of each month."""
    return [(float(r.time), f"{r.month}: {number(r.total)} {a.unit}") for r in records(a.curve)]


def season_marks(table: pd.DataFrame, unit: str) -> Marks:
    """Mean total of each month of the year."""
    return [
        (
            float(r.month_of_year),
            f"{MONTH_NAMES[r.month_of_year - 1]}: {_with_limits(r.total, r.lo, r.hi)} {unit}",
        )
        for r in records(table)
    ]


def indicator_marks(table: pd.DataFrame) -> Marks:
    """Indicator of each year."""
    return [
        (float(r.year), f"{r.year}: {_with_limits(r.index_, r.lo, r.hi)}")
        for r in records(table.rename(columns={"index": "index_"}))
    ]
