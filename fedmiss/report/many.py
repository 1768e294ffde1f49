"""The index page of many species: one row per report, from the strongest decline to the strongest increase."""

from __future__ import annotations

import contextlib
import datetime as dt
import math
import os
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pandas as pd
from markupsafe import Markup

from fedmiss.atomic import atomic_file
from fedmiss.errors import ConfigError, fold, listed
from fedmiss.files import MANIFEST, hash_file, identity, read_manifest, write_manifest
from fedmiss.folders import ALL
from fedmiss.owner import remove_file, replaceable
from fedmiss.report.classes import MIN_DRAWS, NOT_CLASSIFIED
from fedmiss.report.html import assets, environment, inline_svg, write_html
from fedmiss.report.indicator import indicator, indicator_trends
from fedmiss.report.plots import band, base_line
from fedmiss.report.sections import Cell, cell, range_cell
from fedmiss.report.sections.question import in_script
from fedmiss.report.small_pictures import as_float, interval_bar, reach_of, sparkline
from fedmiss.report.species import Species, read_species
from fedmiss.report.style import BLUE, GREY, Plot, axes, lay_out, style
from fedmiss.report.tables import write_csv
from fedmiss.report.words import count, interval_words, marks, number, percent, share, with_limits
from fedmiss.report.years import season_text
from fedmiss.settings import kinds_checked
from fedmiss.tables import is_ours, load_schema, write_table

KIND = "report-index"
Indicators = dict[str, tuple[pd.DataFrame, pd.DataFrame]]  # group -> indicator by year, linear trends
_TABLES = {
    "index": "report_index",
    "trends": "report_species_trends",
    "indicator": "report_indicator",
    "indicator_trends": "report_indicator_trends",
}
_FILES = (
    "index.html",
    "indices.csv",
    "failures.csv",
    *(f"{table}.{name}" for table in _TABLES for name in ("csv", "parquet")),
)
COLUMNS = [
    "Species", "Index", "Trend and interval", "Change per year", "95 % interval", "Class", "Years", "Sites",
    "Visits with a count", "Cells counted", "Total imputed",
]  # fmt: skip


def index_frame(found: Mapping[str, Species]) -> pd.DataFrame:
    """Return one row per folder (schema ``report_index``), sorted by trend, those without a class last."""
    rows = [one.row | {"folder": folder} for folder, one in found.items()]
    frame = pd.DataFrame(rows, columns=load_schema("report_index").names)
    late, slope = frame["trend_class"] == NOT_CLASSIFIED, pd.to_numeric(frame["slope"])
    order = pd.DataFrame({"late": late, "slope": slope, "species": frame["species"]})
    return frame.loc[order.sort_values(["late", "slope", "species"]).index].reset_index(drop=True)


@kinds_checked
def build_index(
    reports: Sequence[str | Path],
    out: str | Path,
    *,
    failures: Mapping[str, str] | None = None,
    groups: Mapping[str, Sequence[str]] | None = None,
    title: str = "Trends of species",
    date: str | None = None,
) -> Path:
    """Write the page ``index.html``, tables of all species, indicators and a manifest into ``out``; return the page.

    Tables, as CSV and parquet: ``index`` (a row per species), ``trends`` (also of each region or category of sites),
    ``indicator`` and ``indicator_trends`` (of all species and of each group); as CSV alone ``indices`` (totals and indices
    of all species and years) and ``failures``.

    ``out`` may be the folder that holds the report folders, so it is added to and never replaced; links are
    relative, so that the whole can be moved or put on a web server.

    Parameters
    ----------
    reports : folders of reports, or of TRIM's results of many species
    failures : species -> what went wrong; shown on the page
    groups : name of a group -> its species, by scientific or common name; each with two species or more gets an indicator

    Raises
    ------
    ConfigError : when ``out`` has an index page that fedmiss did not make, there is nothing to show, or a group is no list
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
    out, failures, groups = Path(out), dict(failures or {}), dict(groups or {})
    if text := [name for name, members in groups.items() if isinstance(members, str)]:
        raise ConfigError(f"the group {text[0]!r} is {groups[text[0]]!r} (must be a list of its species).")
    if ALL in groups:
        raise ConfigError(f"{ALL!r} is the indicator of all species; name the group otherwise.")
    if not reports and not failures:
        raise ConfigError("there is no report to list; make some with `fedmiss report` first.")
    there = read_manifest(out) if (out / MANIFEST).exists() else None
    recorded = there["files"] if there else {}

    def ours(path: Path) -> bool:
        known = path.name in recorded and hash_file(path) == recorded[path.name]["sha256"]
        # else a table of a run that was stopped before its manifest
        return known or (path.suffix == ".parquet" and is_ours(path))

    if there and there["kind"] != KIND:
        raise ConfigError(
            f"{out} holds another thing of fedmiss, and no index of reports; choose another folder."
        )
    for name in _FILES:
        replaceable(out / name, ours)
    places = {Path(report): os.path.relpath(Path(report).resolve(), out.resolve()) for report in reports}
    found = {Path(place).as_posix(): read_species(report) for report, place in places.items()}
    frame = index_frame(found)
    date = date or dt.date.today().isoformat()
    found = {folder: found[folder] for folder in frame["folder"]}
    indicators = _indicators(found, groups)
    html = _render(frame, found, failures, indicators, list(groups), title, date)
    out.mkdir(parents=True, exist_ok=True)
    with atomic_file(out / "index.html", ours=ours) as tmp:
        write_html(html, tmp)
    for name, table in _tables(frame, found, failures, indicators).items():
        if table.empty:
            for file in (out / f"{name}.csv", out / f"{name}.parquet"):
                if file.exists():
                    remove_file(file, ours)
            continue
        if name in _TABLES:
            table = table[load_schema(_TABLES[name]).names]
            write_table(table, out / f"{name}.parquet", _TABLES[name])
        with atomic_file(out / f"{name}.csv", ours=ours) as tmp:
            write_csv(table, tmp)
    members = {key: list(group) for key, group in groups.items()}
    write_manifest(
        out,
        KIND,
        settings={"title": title, "date": date, "groups": members},
        files=[file for file in _FILES if (out / file).exists()],
        inputs={f"{each}/{MANIFEST}": identity(os.path.normpath(out.resolve() / each)) for each in found},
        results={"n_species": len(frame), "n_failed": len(failures)},
        warnings=[f"{name}: {why}" for name, why in sorted(failures.items())],
    )
    return out / "index.html"


def _tables(
    frame: pd.DataFrame, found: Mapping[str, Species], failures: Mapping[str, str], indicators: Indicators
) -> dict[str, pd.DataFrame]:
    """File name -> table of all species; one that has no row is not written."""
    columns, species = ["species", "year", "total", "total_se", "index"], found.values()
    stacks = {
        "indicator": [table.assign(group=name) for name, (table, _) in indicators.items()],
        "indicator_trends": [
            linear.assign(group=name, n_species=int(table["n_species"].max()))
            for name, (table, linear) in indicators.items()
        ],
        "indices": [
            one.yearly[one.yearly["used"]].assign(species=one.row["species"])[columns] for one in species
        ],
    }
    stacked = {name: pd.concat(tables) if tables else pd.DataFrame() for name, tables in stacks.items()}
    # From rows and not from frames: a species without an interval has None, and the column is one of numbers still.
    rows = [row | {"species": one.row["species"]} for one in species for row in one.trends.to_dict("records")]
    failed = pd.DataFrame(sorted(failures.items()), columns=["species", "failure"])
    return {"index": frame, "trends": pd.DataFrame(rows), **stacked, "failures": failed}


def _render(
    frame: pd.DataFrame,
    found: Mapping[str, Species],
    failures: Mapping[str, str],
    indicators: Indicators,
    groups: Sequence[str],
    title: str,
    date: str,
) -> str:
    shown: list[dict[str, object]] = []
    for name, (table, trends) in indicators.items():
        words = _indicator_words(table, trends)
        which = "all species" if name == ALL else name
        plot = _indicator_figure(table, f"Indicator of {which}. {words}", f"indicator-{len(shown)}")
        shown.append({"name": which, "figure": inline_svg(plot), "words": words, "at": plot.name})
    reach = reach_of(frame)
    frame = frame.assign(name=_shown(frame))
    unclassed = [
        (row["name"], f"Not classified: {row['reason']}.")
        for row in frame.to_dict("records")
        if row["trend_class"] == NOT_CLASSIFIED and row["reason"]
    ]
    rows = [_row(row, found[str(row["folder"])].yearly, reach) for row in frame.to_dict("records")]
    summary = "".join([_summary(frame, failures), _units(frame, found), *_unlike(frame, found)])
    return environment().get_template("index/page.html.j2").render(
        title=title, date=date, columns=COLUMNS, rows=rows,
        classes=sorted(set(frame["trend_class"].astype(str))), indicators=shown, reach=f"{reach:.0f}",
        without=[name for name in groups if name not in indicators], failures=sorted(failures.items()),
        unclassed=unclassed, summary=summary, compared=in_script(_compared(frame, found)), **assets("compare"),
    )  # fmt: skip


def _indicators(found: Mapping[str, Species], groups: Mapping[str, Sequence[str]]) -> Indicators:
    """Compute the indicators of all species with yearly totals, and of each group; none of fewer than two species.

    Nor where some years are linked by no species.
    """
    totals: dict[str, pd.Series] = {}
    draws: dict[str, pd.DataFrame] = {}
    names: dict[str, str] = {}
    conventions: dict[str, str] = {}
    each: Counter[str] = Counter()
    called = {(fold(one.row["common_name"] or ""), one.row["species"]) for one in found.values()}
    common = Counter(name for name, _ in called)
    # Not by folder: the interval would change with the place of the index.
    for one in sorted(found.values(), key=lambda one: (one.row["species"], tuple(one.yearly["total"]))):
        used = one.yearly[one.yearly["used"]]
        if len(used) < 2 or not (used["total"] > 0).any():
            continue
        each[one.row["species"]] += 1
        n = each[one.row["species"]]
        key = f"{one.row['species']} {n}" if n > 1 else one.row["species"]
        totals[key], conventions[key] = used.set_index("year")["total"], one.convention
        if one.draws is not None:
            draws[key] = one.draws
        names[fold(one.row["species"])] = key
        # A common name of several species means none of them.
        if one.row["common_name"] and common[name := fold(one.row["common_name"])] == 1:
            names.setdefault(name, key)
    out: Indicators = {}
    for group, species in {ALL: (), **groups}.items():
        wanted = {fold(name) for name in species}
        mine = set(totals) if group == ALL else {names[name] for name in wanted & set(names)}
        if len(mine) < 2:
            continue
        part = {name: totals[name] for name in mine}
        # Without the errors of one species the interval would be too narrow.
        enough = all(len(draws.get(name, ())) >= MIN_DRAWS for name in mine)
        around = {name: draws[name] for name in mine} if enough else {}
        convention = "trim" if {conventions[name] for name in mine} == {"trim"} else "long-term"
        with contextlib.suppress(ConfigError):
            out[group] = indicator(part, around), indicator_trends(part, around, convention=convention)
    return out


def _indicator_figure(table: pd.DataFrame, alt: str, name: str) -> Plot:
    """Draw the indicator of many species with its intervals, and its smooth."""
    # matplotlib takes a second to load; a run that finds its index made needs none.
    from matplotlib.ticker import MaxNLocator

    with style():
        fig, ax = axes(7.0, 2.9)
        known = table["lo"].notna()
        if known.any():
            gaps = np.maximum([table["index"] - table["lo"], table["hi"] - table["index"]], 0)
            ax.errorbar(table["year"], table["index"], gaps, fmt="none", ecolor=GREY, lw=0.8)
        band(ax, table["year"], table["smooth_lo"], table["smooth_hi"])
        curve = table["smooth"].notna().any()
        ax.plot(table["year"], table["index"], color=BLUE, marker="o", ms=4, ls="none" if curve else "-")
        if curve:
            ax.plot(table["year"], table["smooth"], color=BLUE)
        base_line(ax)
        ax.set_ylim(bottom=0)
        ax.set_ylabel(f"indicator ({int(table['year'].iloc[0])} = 100)")
        ax.xaxis.set_major_locator(MaxNLocator(8, integer=True))
        lay_out(fig)
    said = marks(table, "year", lambda r: f"{r.year}: {with_limits(r.index_, r.lo, r.hi)}")
    return Plot(name, "Indicator", "", alt, fig, table, said)


def _indicator_words(table: pd.DataFrame, trends: pd.DataFrame) -> str:
    first, last = table.iloc[0], table.iloc[-1]
    low, high = int(table["n_species"].min()), int(table["n_species"].max())
    several = str(high) if low == high else f"{low} to {high}"
    said = (
        f"Geometric mean of the indices of {several} species, each with the same weight: {number(last['index'])} in "
        f"{int(last['year'])} ({interval_words(last['lo'], last['hi'], number)}), with {int(first['year'])} = 100."
    )
    if table["lo"].isna().all():
        said += " An interval needs bootstrap replicates of every species, and not a few."
    for row in trends.to_dict("records"):
        said += f" From {row['from_year']} to {row['to_year']}: {percent(row['percent_per_year'])} per year"
        if math.isfinite(row["percent_lo"]):
            said += f" ({percent(row['percent_lo'])} to {percent(row['percent_hi'])}), {row['trend_class']}"
        said += "."
    if trends["percent_lo"].notna().any():
        only = trends["convention"].iloc[0] == "trim"
        said += (
            f" Limits of trends hold errors of the totals {'only' if only else 'and the scatter of years'}."
        )
    return said


def _shown(frame: pd.DataFrame) -> list[str]:
    """Return the name of each species on the page: the common name, with the scientific one where several share it."""
    common = frame["common_name"].astype(object).where(frame["common_name"].notna(), "")
    several = frame["species"].groupby(common).nunique() > 1
    return [
        f"{name} ({species})" if name and several[name] else name or species
        for species, name in zip(frame["species"], common, strict=True)
    ]


def _row(row: Mapping[Hashable, Any], yearly: pd.DataFrame, reach: float) -> dict[str, object]:
    used = yearly[yearly["used"]]
    lo, hi, change = (as_float(row[name]) for name in ("percent_lo", "percent_hi", "percent_per_year"))
    years = Cell(f"{row['from_year']} to {row['to_year']}", as_float(row["from_year"]))
    return {
        "name": row["name"],
        "href": quote(f"{row['folder']}/index.html"),
        "cells": [
            cell(percent, change),
            range_cell(lo, hi),
            Cell(str(row["trend_class"])),
            years if len(used) else Cell("none", math.nan),
            *(cell(count, as_float(row[name])) for name in ("n_sites", "n_counted")),
            *(cell(share, as_float(row[name])) for name in ("share_observed", "share_imputed_total")),
        ],
        "last": float(used["index"].iloc[-1]) if len(used) else math.nan,
        "spark": Markup(sparkline(yearly)),
        "bar": Markup(interval_bar(row, reach)),
        "slope": change,
        "kind": str(row["trend_class"]),
    }


def _compared(frame: pd.DataFrame, found: Mapping[str, Species]) -> list[list[list[float]]]:
    """Return the used years of each species with their totals, for another base year."""
    every = (found[str(folder)].yearly for folder in frame["folder"])
    used = [yearly[yearly["used"] & yearly["index"].notna()] for yearly in every]
    return [[one["year"].astype(float).tolist(), one["total"].tolist()] for one in used]


def _units(frame: pd.DataFrame, found: Mapping[str, Species]) -> str:
    """Say what totals are of, where it is not the same for all species."""
    units: dict[str, list[str]] = {}
    for row in frame.to_dict("records"):
        if unit := found[str(row["folder"])].unit:
            units.setdefault(unit, []).append(str(row["name"]))
    if len(units) < 2:
        return ""
    parts = sorted(units.items(), key=lambda item: (-len(item[1]), item[0]))
    few = [f"{unit} of {', '.join(names)}" for unit, names in parts[1:]]
    known = sum(map(len, units.values()))
    most = parts[0][0] if known == len(frame) else f"{parts[0][0]}, or not known"
    return f" Totals are {'; '.join(few)}; of the others {most}. Indicators hold the indices of all of them alike."


def _unlike(frame: pd.DataFrame, found: Mapping[str, Species]) -> Iterator[str]:
    """Say which reports an indicator would join that are not of another species each, in the same months of the year."""
    twice = frame["species"].value_counts()
    for name, n in sorted(twice[twice > 1].items()):
        yield f" {name} has {n} reports here, each with the weight of a species in indicators: leave all but one out."
    seasons: dict[str, list[str]] = {}
    for row in frame.to_dict("records"):
        if season := found[str(row["folder"])].season:
            seasons.setdefault(season_text(season), []).append(str(row["species"]))
    if len(seasons) > 1:
        parts = [f"{season} of {listed(names, 4)}" for season, names in sorted(seasons.items())]
        yield f" Yearly figures are of other months: {'; '.join(parts)}. An indicator of these mixes seasons."


def _summary(frame: pd.DataFrame, failures: Mapping[str, str]) -> str:
    # The last word of a class: strong and moderate ones count together.
    kinds = Counter(str(kind).split()[-1] for kind in frame["trend_class"])
    down, up, stable, uncertain, none = (
        kinds[word] for word in ("decline", "increase", "stable", "uncertain", "classified")
    )
    failed = f" {len(failures)} failed; see below." if failures else ""
    fall, rise = (verb + "s" * (n == 1) for verb, n in (("decline", down), ("increase", up)))
    return (
        f"Of {len(frame)} species: {down} {fall}, {up} {rise}, {stable} {'is' if stable == 1 else 'are'} stable, "
        f"{uncertain} uncertain, {none} without a class.{failed}"
    )
