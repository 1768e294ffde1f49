"""The index page of many species: one row per report, from the strongest decline to the strongest increase."""

from __future__ import annotations

import datetime as dt
import math
import os
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pandas as pd
from markupsafe import Markup

from fedmiss.errors import ConfigError
from fedmiss.files import (
    MANIFEST,
    atomic_file,
    hash_file,
    identity,
    read_manifest,
    replaceable,
    write_manifest,
)
from fedmiss.report.classes import NOT_CLASSIFIED
from fedmiss.report.html import assets, environment, inline_svg
from fedmiss.report.indicator import indicator
from fedmiss.report.sections import Cell
from fedmiss.report.style import BLUE, CLASS_COLOURS, GREY, INK
from fedmiss.report.tables import write_csv
from fedmiss.report.words import count, number, percent, share
from fedmiss.tables import is_ours, load_schema, read_table, write_table

__all__ = ["build_index", "index_frame", "sparkline"]

KIND = "report-index"
_FILES = ("index.html", "index.csv", "index.parquet", "indicator.csv", "indicator.parquet")
COLUMNS = [
    "Species", "Index", "Trend and interval", "Change per year", "95 % interval", "Class", "Years", "Sites",
    "Visits with a count", "Cells counted", "Total imputed",
]  # fmt: skip


def index_frame(reports: Sequence[str | Path], out: str | Path) -> pd.DataFrame:
    """Return one row per report folder (schema ``report_index``), sorted by trend, those without a class last."""
    rows = []
    for report in reports:
        results = read_manifest(report, "report")["results"]
        row = {c["name"]: results.get(c["name"]) for c in load_schema("report_index").columns}
        rows.append(
            row | {"folder": Path(os.path.relpath(Path(report).resolve(), Path(out).resolve())).as_posix()}
        )
    frame = pd.DataFrame(rows, columns=[c["name"] for c in load_schema("report_index").columns])
    order = frame.assign(_late=frame["trend_class"] == NOT_CLASSIFIED, _slope=pd.to_numeric(frame["slope"]))
    return order.sort_values(["_late", "_slope", "species"], ignore_index=True).drop(
        columns=["_late", "_slope"]
    )


def build_index(
    reports: Sequence[str | Path],
    out: str | Path,
    *,
    failures: Mapping[str, str] | None = None,
    title: str = "Trends of species",
    date: str | None = None,
) -> Path:
    """Write ``index.html``, ``index.csv``, ``index.parquet``, the indicator and a manifest into ``out``; return the page.

    ``out`` may be the folder that holds the report folders, so it is added to and never replaced; links are
    relative, so that the whole can be moved or put on a web server.

    Parameters
    ----------
    reports : report folders
    failures : species -> what went wrong; shown on the page

    Raises
    ------
    ConfigError : when ``out`` has an index page that fedmiss did not make, or there is nothing to show
    InputError : when a folder is not a report

    Examples
    --------
    >>> import fedmiss
    >>> p = fedmiss.simulate_panel(20, 24, 0.5, seed=1, groups=2)
    >>> panel = fedmiss.simulate.write_panel(p, "panel")
    >>> settings = fedmiss.FitSettings(rank=0, bootstrap=0)
    >>> fit = fedmiss.fit_panel(panel, "fit", settings)
    >>> imputed = fedmiss.impute_panel(panel, fit, "imputed")
    >>> page = fedmiss.build_report(panel, fit, imputed, "all/wren")
    >>> fedmiss.report.build_index(["all/wren"], "all").name
    'index.html'
    """
    out, failures = Path(out), dict(failures or {})
    if not reports and not failures:
        raise ConfigError("there is no report to list; make some with `fedmiss report` first.")
    listed = read_manifest(out)["files"] if (out / MANIFEST).exists() else {}

    def ours(path: Path) -> bool:
        known = path.name in listed and hash_file(path) == listed[path.name]["sha256"]
        return known or (
            path.suffix == ".parquet" and is_ours(path)
        )  # of a run that was stopped before its manifest

    if (out / MANIFEST).exists() and read_manifest(out)["kind"] != KIND:
        raise ConfigError(
            f"{out} holds another thing of fedmiss, and no index of reports; choose another folder."
        )
    for name in _FILES:
        replaceable(out / name, ours)
    frame = index_frame(reports, out)
    date = date or dt.date.today().isoformat()
    whole = _indicator(frame, out)
    out.mkdir(parents=True, exist_ok=True)
    if whole is not None:
        with atomic_file(out / "indicator.csv", ours=ours) as tmp:
            write_csv(whole, tmp)
        write_table(whole, out / "indicator.parquet", "report_indicator")
    html = _render(frame, out, failures, whole, title, date)
    out.mkdir(parents=True, exist_ok=True)
    with atomic_file(out / "index.html", ours=ours) as tmp:
        tmp.write_text(html, encoding="utf-8")
    with atomic_file(out / "index.csv", ours=ours) as tmp:
        write_csv(frame, tmp)
    write_table(frame, out / "index.parquet", "report_index")
    write_manifest(
        out,
        KIND,
        settings={"title": title, "date": date},
        files=[n for n in _FILES if (out / n).exists()],
        inputs={f"{f}/{MANIFEST}": identity(_folder(out, f)) for f in frame["folder"]},
        results={"n_species": len(frame), "n_failed": len(failures)},
        warnings=[f"{name}: {why}" for name, why in sorted(failures.items())],
    )
    return out / "index.html"


def _render(
    frame: pd.DataFrame,
    out: Path,
    failures: Mapping[str, str],
    whole: pd.DataFrame | None,
    title: str,
    date: str,
) -> str:
    # matplotlib takes a second to load; a run that finds its index made needs none.
    from fedmiss.report.figures import indicator_figure

    words = "" if whole is None else _indicator_words(whole)
    plot = None if whole is None else indicator_figure(whole, f"Indicator of {len(frame)} species. {words}")
    reach = _reach(frame)
    return environment().get_template("index/page.html.j2").render(
        title=title, date=date, columns=COLUMNS, rows=[_row(r, out, reach) for r in frame.to_dict("records")],
        classes=sorted(set(frame["trend_class"].astype(str))), indicator=plot and inline_svg(plot),
        indicator_words=words, reach=f"{reach:.0f}", failures=sorted(failures.items()),
        summary=_summary(frame, failures), **assets(),
    )  # fmt: skip


def _folder(out: Path, folder: object) -> Path:
    """Return a report's folder from its place relative to ``out``, which need not exist yet."""
    return Path(os.path.normpath(out.resolve() / str(folder)))


def _float(value: Any) -> float:
    return math.nan if value is None else float(value)


def _reach(frame: pd.DataFrame) -> float:
    """Return the end of the common scale of the intervals, percent per year: the largest estimate and most limits fit."""
    values = frame[["percent_per_year", "percent_lo", "percent_hi"]].astype(float).abs().to_numpy().ravel()
    known = values[np.isfinite(values)]
    return float(np.clip(np.ceil(np.quantile(known, 0.9)), 5, 50)) if known.size else 5.0


def _bar(r: Mapping[Hashable, Any], reach: float, width: int = 120, height: int = 18) -> str:
    """Draw estimate and interval on a scale that all species share; an arrow where a limit lies beyond it."""
    mid, lo, hi = (_float(r[k]) for k in ("percent_per_year", "percent_lo", "percent_hi"))
    if not math.isfinite(mid):
        return ""

    def x(v: float) -> float:
        return width / 2 + max(-1.0, min(1.0, v / reach)) * (width / 2 - 6)

    y = height / 2
    colour = CLASS_COLOURS.get(str(r["trend_class"]), "#bbbbbb")
    parts = [
        f'<line x1="{width / 2}" y1="1" x2="{width / 2}" y2="{height - 1}" stroke="#999" stroke-width=".8"/>'
    ]
    if math.isfinite(lo) and math.isfinite(hi):
        parts.append(
            f'<line x1="{x(lo):.1f}" y1="{y}" x2="{x(hi):.1f}" y2="{y}" stroke="#555" stroke-width="2"/>'
        )
        if lo < -reach:
            parts.append(f'<path d="M6 {y - 4}L1 {y}L6 {y + 4}Z" fill="#555"/>')
        if hi > reach:
            parts.append(f'<path d="M{width - 6} {y - 4}L{width - 1} {y}L{width - 6} {y + 4}Z" fill="#555"/>')
    parts.append(
        f'<circle cx="{x(mid):.1f}" cy="{y}" r="4.5" fill="{colour}" stroke="#222" stroke-width=".8"/>'
    )
    return (
        f'<svg viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" '
        f'aria-label="{percent(mid)} per year">{"".join(parts)}</svg>'
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
    points = " ".join(f"{u:.1f},{v:.1f}" for u, v in zip(px, py, strict=True))
    label = f"index {int(x[0])} to {int(x[-1])}: {number(y[0])} to {number(y[-1])}"
    full, last = width + 44, f"{y[-1]:,.0f}"
    return (
        f'<svg width="{full}" height="{height}" viewBox="0 0 {full} {height}" role="img" aria-label="{label}">'
        f'<path d="M2 {base:.1f}H{width - 2}" stroke="{GREY}" stroke-width="0.8" stroke-dasharray="3 2"/>'
        f'<path d="M2 {height - 1.5}H{width - 2}" stroke="{GREY}" stroke-width="0.6"/>'
        f'<polyline points="{points}" fill="none" stroke="{BLUE}" stroke-width="1.5"/>'
        f'<text x="{width + 3}" y="{min(max(float(py[-1]) + 4, 11), height - 3):.1f}" font-size="11" '
        f'font-family="sans-serif" fill="{INK}">{last}</text></svg>'
    )


def _indicator(frame: pd.DataFrame, out: Path) -> pd.DataFrame | None:
    """Compute the indicator of all species whose report has yearly totals; None for fewer than two, or without links."""
    totals, draws = {}, {}
    for r in frame.to_dict("records"):
        tables = _folder(out, r["folder"]) / "tables"
        yearly = read_table(tables / "yearly.parquet", "report_yearly").to_pandas()
        used = yearly[yearly["used"]]
        if len(used) < 2 or not (used["total"] > 0).any():
            continue
        name = str(r["folder"])
        totals[name] = used.set_index("year")["total"]
        table = read_table(tables / "draws.parquet", "report_draws").to_pandas()
        if len(table):
            draws[name] = table.pivot(index="draw", columns="year", values="total")
    if len(totals) < 2:
        return None
    try:
        return indicator(totals, draws)
    except ConfigError:  # some years are linked by no species: the page says nothing of an indicator
        return None


def _indicator_words(table: pd.DataFrame) -> str:
    first, last = table.iloc[0], table.iloc[-1]
    known = math.isfinite(last["lo"])
    limits = (
        f" (95 % interval {number(last['lo'])} to {number(last['hi'])})"
        if known
        else " (no interval available)"
    )
    low, high = int(table["n_species"].min()), int(table["n_species"].max())
    n = str(high) if low == high else f"{low} to {high}"
    return (
        f"Geometric mean of the indices of {n} species, each with the same weight: {number(last['index'])} in "
        f"{int(last['year'])}{limits}, with {int(first['year'])} = 100."
    )


def _row(r: Mapping[Hashable, Any], out: Path, reach: float) -> dict[str, object]:
    yearly = read_table(_folder(out, r["folder"]) / "tables" / "yearly.parquet", "report_yearly").to_pandas()
    used = yearly[yearly["used"]]
    lo, hi = _float(r["percent_lo"]), _float(r["percent_hi"])
    cells = [
        Cell(percent(_float(r["percent_per_year"])), _float(r["percent_per_year"])),
        Cell(f"{percent(lo)} to {percent(hi)}" if math.isfinite(lo) else "n/a", lo),
        Cell(str(r["trend_class"])),
        Cell(f"{r['from_year']} to {r['to_year']}", _float(r["from_year"]))
        if len(used)
        else Cell("none", math.nan),
        Cell(count(_float(r["n_sites"])), _float(r["n_sites"])),
        Cell(count(_float(r["n_counted"])), _float(r["n_counted"])),
        Cell(share(_float(r["share_observed"])), _float(r["share_observed"])),
        Cell(share(_float(r["share_imputed_total"])), _float(r["share_imputed_total"])),
    ]
    return {
        "name": r["common_name"] or r["species"],
        "href": quote(f"{r['folder']}/index.html"),
        "cells": cells,
        "last": float(used["index"].iloc[-1]) if len(used) else math.nan,
        "spark": Markup(sparkline(yearly)),
        "bar": Markup(_bar(r, reach)),
        "slope": _float(r["percent_per_year"]),
        "kind": str(r["trend_class"]),
    }


def _summary(frame: pd.DataFrame, failures: Mapping[str, str]) -> str:
    counts = frame["trend_class"].value_counts()
    down = int(sum(counts.get(c, 0) for c in ("strong decline", "moderate decline")))
    up = int(sum(counts.get(c, 0) for c in ("strong increase", "moderate increase")))
    parts = [
        f"{down} decline, {up} increase, {int(counts.get('stable', 0))} "
        f"{'is' if counts.get('stable', 0) == 1 else 'are'} stable",
        f"{int(counts.get('uncertain', 0))} uncertain",
        f"{int(counts.get(NOT_CLASSIFIED, 0))} without a class",
    ]
    failed = f" {len(failures)} failed; see below." if failures else ""
    return f"Of {len(frame)} species: {', '.join(parts)}.{failed}"
