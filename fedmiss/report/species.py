"""One species among many: its page of TRIM's results, and what its folder says for tables and pages of all."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from fedmiss.atomic import read_json
from fedmiss.errors import InputError
from fedmiss.files import read_manifest
from fedmiss.report.classes import classify
from fedmiss.report.html import assets, environment, inline_svg, write_html
from fedmiss.report.indicator import TREND
from fedmiss.report.plots import plot_trim
from fedmiss.report.style import Plot, figure, style
from fedmiss.report.trim.files import Shown, describe
from fedmiss.report.trim.fit import TrimFit
from fedmiss.report.words import percent
from fedmiss.tables import load_schema, read_table

_DRAWS = 1000  # around the totals of TRIM


class Species(NamedTuple):
    """What is known of one species.

    ``row`` has the columns of ``report_index``; ``yearly`` ``year``, ``total``, ``total_se``, ``index`` (base = 100) and
    ``used``; ``draws`` (B, years) of the totals, or None; ``trends`` the rows of ``report_species_trends`` without the name;
    ``unit`` what a total counts, as birds or sites with a find, blank where nobody knows; ``season`` the calendar months of
    its yearly figures, none where they are of yearly counts or nobody knows; ``convention`` whose error its trend has.
    """

    row: dict[str, Any]
    yearly: pd.DataFrame
    draws: pd.DataFrame | None
    trends: pd.DataFrame
    unit: str = ""
    season: tuple[int, ...] = ()
    convention: str = "long-term"


def read_species(folder: Path) -> Species:
    """Read a folder of ``fedmiss report``, or one of TRIM's results of many species.

    Raises InputError: another kind of folder, or a damaged one.
    """
    if read_manifest(folder)["kind"] == "trim":
        return _of_trim(folder, read_manifest(folder, "trim", verify="trim.json")["results"])
    results = read_manifest(folder, "report", verify="tables/*.parquet")[
        "results"
    ]  # the page may have been edited
    row = {name: results.get(name) for name in load_schema("report_index").names}
    tables = folder / "tables"
    yearly = read_table(tables / "yearly.parquet", "report_yearly").to_pandas()
    table = read_table(tables / "draws.parquet", "report_draws").to_pandas()
    whole = {"stratum": "all", **{name: row[name] for name in ("n_sites", *TREND)}}
    trends = pd.DataFrame([whole])
    if (tables / "regions.parquet").exists():
        regions = read_table(tables / "regions.parquet", "report_regions").to_pandas()
        regions = regions.rename(columns={"region": "stratum"})[["stratum", "n_sites", *TREND]]
        trends = pd.DataFrame([whole, *regions.to_dict("records")])
    return Species(
        row,
        yearly[["year", "total", "total_se", "index", "used"]],
        table.pivot(index="draw", columns="year", values="total") if len(table) else None,
        trends,
        results.get("unit", ""),
        _season(tables / "season.parquet", yearly=results.get("yearly_counts")),
        results.get("convention", "long-term"),
    )


def _season(path: Path, *, yearly: bool | None) -> tuple[int, ...]:
    if yearly:
        return ()
    months = read_table(path, "report_season").to_pandas()["month_of_year"] if path.exists() else []
    season = tuple(int(month) for month in months)
    # a report of before 0.3 does not say whether its counts are yearly, which an import puts into June
    return () if yearly is None and season == (6,) else season


def _of_trim(folder: Path, results: Mapping[str, Any]) -> Species:
    if "log_covariance" not in results:
        why = (
            "is of an older fedmiss"
            if "species" in results
            else "has TRIM's results of one table, not of a species"
        )
        raise InputError(f"{folder} {why}: make it with `fedmiss trim --all-species`.")
    found = read_json(folder / "trim.json")
    rule, whole = str(results["rule"]), found["strata"]["all"]["imputed"]
    rows = [
        {"stratum": name, "n_sites": found["sites_of_strata"][name], **_trend(of["imputed"], rule)}
        for name, of in found["strata"].items()
    ]
    index = pd.DataFrame(whole["index"])["index"].astype(float)
    yearly = pd.DataFrame(whole["totals"]).rename(columns={"time": "year", "se": "total_se"})
    yearly = yearly[["year", "total", "total_se"]].astype({"year": int}).assign(index=100 * index, used=True)
    # A key of its own for each species, so that its draws do not depend on the others'.
    rng = np.random.default_rng(zlib.crc32(str(results["species"]).encode()))
    values, vectors = np.linalg.eigh(np.array(results["log_covariance"]))
    # The symmetric root, which is the same whatever signs a library gives its vectors.
    root = vectors * np.sqrt(np.maximum(values, 0.0)) @ vectors.T
    noise = rng.standard_normal((_DRAWS, len(yearly))) @ root
    draws = pd.DataFrame(yearly["total"].to_numpy(float) * np.exp(noise), columns=list(yearly["year"]))
    same = ("species", "common_name", "n_counted", "share_observed", "share_imputed_total")
    row = {name: results[name] for name in same} | {name: rows[0][name] for name in TREND}
    row |= {"n_years": len(yearly), "reason": "", "n_sites": found["sites"]}
    return Species(row, yearly, draws, pd.DataFrame(rows), convention="trim")


def _trend(which: Mapping[str, Any], rule: str) -> dict[str, Any]:
    overall, years = which["overall"], [int(total["time"]) for total in which["totals"]]
    kind = classify(overall["slope"], overall["slope_se"], len(years), rule)
    return {
        "from_year": years[0], "to_year": years[-1], "slope": overall["slope"],
        "slope_se": overall["slope_se"], "percent_per_year": 100 * (overall["multiplicative"] - 1),
        "percent_lo": 100 * (kind.lo - 1), "percent_hi": 100 * (kind.hi - 1), "trend_class": kind.name,
    }  # fmt: skip


# -- TRIM's results of one species as a page -----------------------------------------------------------------


def log_covariance(fit: TrimFit) -> list[list[float]]:
    """Return the covariance of the log totals by year, 0 where a total is; an indicator draws from it.

    Years err together: the first one is in the index of every other, and sites are counted in several years.
    """
    total = fit.total_imputed
    scale = np.divide(1.0, total, out=np.zeros_like(total), where=total > 0)
    return [[float(f"{value:.6g}") for value in row] for row in fit.var_imputed * np.outer(scale, scale)]


def headline(fit: TrimFit, shown: Shown) -> str:
    """Say the trend of all sites: its class, the change per year, and its standard error."""
    row = fit.overall(rule=shown.rule).iloc[0]
    words = f"{row['trend_class']}, {percent(100 * (row['multiplicative'] - 1))} per year"
    if np.isfinite(row["slope_se"]):
        words += f" (standard error {100 * row['multiplicative_se']:.2g} %)"
    return words[0].upper() + words[1:]


def write_page(fit: TrimFit, folder: Path, species: str, shown: Shown, notes: Sequence[str]) -> Path:
    """Write ``index.html`` into the folder of a fit's files; one file, no request."""
    index = fit.index(base=shown.base)
    words = headline(fit, shown)
    with style():
        fig = figure(7.0, 2.9)
        plot_trim(fit, fig.subplots(), shown.base)
    alt = f"Index of {species}, {index['time'].iloc[0]} to {index['time'].iloc[-1]}: {words}."
    strata = [
        {"name": name, "n_sites": fit.n_sites(name), **fit.overall(rule=shown.rule, stratum=name).iloc[0]}
        for name in fit.strata
    ]
    html = environment().get_template("index/trim.html.j2").render(
        title=species,
        words=words,
        base=fit.times[0] if shown.base is None else shown.base,
        plot=inline_svg(Plot("index", "Index", "", alt, fig, pd.DataFrame())),
        strata=strata if len(strata) > 1 else [],
        text=describe(fit, shown),
        notes=notes,
        files=sorted(path.name for path in folder.iterdir()),
        **assets(),
    )  # fmt: skip
    path = folder / "index.html"
    write_html(html, path)
    return path
