"""Small pictures of a table's rows, as SVG: estimate and interval on a common scale, and a line of the index."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from typing import Any

import numpy as np
import pandas as pd

from fedmiss.report.style import BLUE, CLASS_COLOURS, GREY, INK
from fedmiss.report.words import number, percent


def as_float(value: Any) -> float:
    """Return a number of a row, NaN where there is none."""
    return math.nan if value is None else float(value)


def reach_of(frame: pd.DataFrame) -> float:
    """Return the end of the common scale of the intervals, percent per year: the largest estimate and most limits fit."""
    values = frame[["percent_per_year", "percent_lo", "percent_hi"]].astype(float).abs().to_numpy().ravel()
    known = values[np.isfinite(values)]
    return float(np.clip(np.ceil(np.quantile(known, 0.9)), 5, 50)) if known.size else 5.0


def interval_bar(row: Mapping[Hashable, Any], reach: float, width: int = 120, height: int = 18) -> str:
    """Draw estimate and interval on a scale that all species share; an arrow where a limit lies beyond it."""
    mid, lo, hi = (as_float(row[name]) for name in ("percent_per_year", "percent_lo", "percent_hi"))
    if not math.isfinite(mid):
        return ""

    centre, middle, edge = width / 2, height / 2, width - 6

    def x(value: float) -> float:
        return centre + max(-1.0, min(1.0, value / reach)) * (edge - centre)

    def arrow(base: int, tip: int) -> str:
        return f'<path d="M{base} {middle - 4}L{tip} {middle}L{base} {middle + 4}Z" fill="#555"/>'

    parts = [f'<line x1="{centre}" y1="1" x2="{centre}" y2="{height - 1}" stroke="#999" stroke-width=".8"/>']
    if math.isfinite(lo) and math.isfinite(hi):
        ends = f'x1="{x(lo):.1f}" y1="{middle}" x2="{x(hi):.1f}" y2="{middle}"'
        parts.append(f'<line {ends} stroke="#555" stroke-width="2"/>')
        parts += [arrow(6, 1)] if lo < -reach else []
        parts += [arrow(edge, width - 1)] if hi > reach else []
    paint = f'fill="{CLASS_COLOURS[str(row["trend_class"])]}" stroke="#222" stroke-width=".8"'
    return (
        f'<svg viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" '
        f'aria-label="{percent(mid)} per year">{"".join(parts)}'
        f'<circle cx="{x(mid):.1f}" cy="{middle}" r="4.5" {paint}/></svg>'
    )


def sparkline(yearly: pd.DataFrame, width: int = 100, height: int = 28) -> str:
    """Return a small line of the index as SVG, for tables: from 0 up, the base dashed, the last value behind it."""
    used = yearly[yearly["used"] & yearly["index"].notna()]
    if len(used) < 2:
        return ""
    x, y = used["year"].to_numpy(dtype=float), used["index"].to_numpy(dtype=float)
    px = 2 + (x - x[0]) / (x[-1] - x[0]) * (width - 4)
    top = max(float(y.max()), 100.0)
    py = height - 2 - y / top * (height - 4)
    base = height - 2 - 100.0 / top * (height - 4)
    points = " ".join(f"{left:.1f},{up:.1f}" for left, up in zip(px, py, strict=True))
    label = f"index {int(x[0])} to {int(x[-1])}: {number(y[0])} to {number(y[-1])}"
    full, last = width + 44, f"{y[-1]:,.0f}"
    edges = [0.0, *((px[1:] + px[:-1]) / 2), float(width)]
    marks = "".join(
        f'<rect class="h" x="{left:.1f}" y="0" width="{right - left:.1f}" height="{height}">'
        f"<title>{int(year)}: {number(value)}</title></rect>"
        for left, right, year, value in zip(edges[:-1], edges[1:], x, y, strict=True)
    )
    return (
        f'<svg width="{full}" height="{height}" viewBox="0 0 {full} {height}" role="img" aria-label="{label}">'
        f'<path d="M2 {base:.1f}H{width - 2}" stroke="{GREY}" stroke-width="0.8" stroke-dasharray="3 2"/>'
        f'<path d="M2 {height - 1.5}H{width - 2}" stroke="{GREY}" stroke-width="0.6"/>'
        f'<polyline points="{points}" fill="none" stroke="{BLUE}" stroke-width="1.5"/>'
        f'<text x="{width + 3}" y="{min(max(float(py[-1]) + 4, 11), height - 3):.1f}" font-size="11" '
        f'font-family="sans-serif" fill="{INK}">{last}</text>{marks}</svg>'
    )
