"""The index page of many species: one row per report, from the strongest decline to the strongest increase."""

from __future__ import annotations

import datetime as dt
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pandas as pd
from markupsafe import Markup

from fedmiss.errors import ConfigError
from fedmiss.files import MANIFEST, atomic_file, hash_file, read_manifest, write_manifest
from fedmiss.report.classes import NOT_CLASSIFIED
from fedmiss.report.figures import sparkline
from fedmiss.report.html import assets, environment
from fedmiss.report.sections import Cell
from fedmiss.report.tables import write_csv
from fedmiss.report.words import count, percent, share
from fedmiss.tables import load_schema, read_table, write_table

__all__ = ["build_index", "index_frame"]

KIND = "report-index"
COLUMNS = [
    "Species", "Index", "Change per year", "95 % interval", "Class", "Years", "Sites", "Visits with a count",
    "Site-months counted", "Total imputed",
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
    """Write ``index.html``, ``index.csv``, ``index.parquet`` and a manifest into ``out``; return the page's path.

    ``out`` may be the folder that holds the report folders, so it is added to and never replaced; links are
    relative, so that the whole can be moved or put on a web server.

    Parameters
    ----------
    reports : report folders
    failures : species -> what went wrong; shown on the page, so that a failed species is not a silent one

    Raises
    ------
    ConfigError : when ``out`` has an index page that fedmiss did not make, or there is nothing to show
    InputError : when a folder is not a report
    """
    out, failures = Path(out), dict(failures or {})
    if not reports and not failures:
        raise ConfigError("there is no report to list; make some with `fedmiss report` first.")
    if (out / "index.html").exists():
        ours = (out / MANIFEST).exists() and read_manifest(out).get("kind") == KIND
        if not ours:
            raise ConfigError(
                f"{out}/index.html exists and is not an index made by fedmiss; choose another folder."
            )
    frame = index_frame(reports, out)
    date = date or dt.date.today().isoformat()
    html = (
        environment()
        .get_template("index/page.html.j2")
        .render(
            title=title,
            date=date,
            columns=COLUMNS,
            rows=[_row(r, out) for r in frame.to_dict("records")],
            failures=sorted(failures.items()),
            summary=_summary(frame, failures),
            **assets(),
        )
    )
    out.mkdir(parents=True, exist_ok=True)
    with atomic_file(out / "index.html") as tmp:
        tmp.write_text(html, encoding="utf-8")
    with atomic_file(out / "index.csv") as tmp:
        write_csv(frame, tmp)
    write_table(frame, out / "index.parquet", "report_index")
    write_manifest(
        out,
        KIND,
        settings={"title": title, "date": date},
        inputs={f"{f}/{MANIFEST}": hash_file(_folder(out, f) / MANIFEST) for f in frame["folder"]},
        results={"n_species": len(frame), "n_failed": len(failures)},
        warnings=[f"{name}: {why}" for name, why in sorted(failures.items())],
    )
    return out / "index.html"


def _folder(out: Path, folder: Any) -> Path:
    """Return a report's folder from its place relative to ``out``, which need not exist yet."""
    return Path(os.path.normpath(out.resolve() / str(folder)))


def _float(value: Any) -> float:
    return math.nan if value is None else float(value)


def _row(r: Mapping[Any, Any], out: Path) -> dict[str, Any]:
    yearly = read_table(_folder(out, r["folder"]) / "tables" / "yearly.parquet", "report_yearly").to_pandas()
    used = yearly[yearly["used"]]
    lo, hi = _float(r["percent_lo"]), _float(r["percent_hi"])
    cells = [
        Cell(percent(_float(r["percent_per_year"])), _float(r["percent_per_year"])),
        Cell(f"{percent(lo)} to {percent(hi)}" if math.isfinite(lo) else "n/a", lo),
        Cell(str(r["trend_class"])),
        Cell(f"{r['from_year']} to {r['to_year']}", _float(r["from_year"])),
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
