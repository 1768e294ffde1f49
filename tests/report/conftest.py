"""Folders of the shapes that panel, fit and impute write, made by code with a known truth."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from fedmiss.files import imputed_from, panel_tables, read_manifest, write_manifest
from fedmiss.report.analysis import Analysis, analyse
from fedmiss.report.build import build_report, write_report
from fedmiss.report.inputs import read_inputs
from fedmiss.report.settings import ReportSettings
from fedmiss.report.years import month_table
from fedmiss.rng import rng_for
from fedmiss.tables import write_table

DATE = "2026-01-02"


@dataclass(frozen=True)
class World:
    """What the folders are made of."""

    n_sites: int = 40
    first: int = 2008
    n_years: int = 14
    season: tuple[int, ...] = tuple(range(1, 13))
    last_months: int = 12  # months of the season in the last year
    slope: float = -0.04
    seen: float = 0.25
    zeros: bool = True
    n_draws: int = 60
    coordinates: float = 1.0
    regions: int = 3
    trace: bool = True
    cv: bool = True
    effort: bool = True
    rank: int = 2
    occupied: bool = False  # whether the model knows empty sites
    finds_only: int = 0  # the year of which visits without a find were not reported
    late: float = 0.0  # share of the sites that nobody visited in the first half of the years


def axis(n_years=15, season=tuple(range(1, 13)), first=2000, last=12) -> pd.DataFrame:
    """The months of the season in each year, ``last`` of them in the last one."""
    years = [season[: last if i == n_years - 1 else None] for i in range(n_years)]
    return month_table(np.array([12 * (first + i) + m - 1 for i, year in enumerate(years) for m in year]))


def make_folders(root: Path, w: World, seed: int = 0) -> dict[str, Path]:
    """Write panel/, fit/ and imputed/ under ``root``; return their paths."""
    rng = rng_for(seed, "report-world")
    months = axis(w.n_years, w.season, w.first, w.last_months)
    J, L = w.n_sites, len(months)
    a = rng.normal(0.5, 1.2, J)
    b = w.slope * (months["year"] - w.first) + 0.8 * np.sin(2 * np.pi * months["month_of_year"] / 12)
    expected = np.exp(a[:, None] + b.to_numpy()[None, :])
    seen = rng.random((J, L)) < w.seen
    seen[: int(w.late * J), months["year"] < w.first + w.n_years // 2] = False
    counts = rng.poisson(expected)
    seen &= (counts > 0) | (months["year"] != w.finds_only).to_numpy()
    if not w.zeros:
        counts = np.maximum(counts, 1)
    panel, fit, imputed = root / "panel", root / "fit", root / "imputed"
    known = rng.random(J) < w.coordinates
    region = np.array([f"XX-{i % w.regions:02d}" if w.regions else None for i in range(J)], dtype=object)
    sites = pd.DataFrame(
        {
            "site_index": np.arange(J),
            "site_id": [f"L{j:05d}" for j in range(J)],
            "site_name": [f"Pond <{j}> & reeds" for j in range(J)],
            "latitude": np.where(known, 25 + rng.random(J), np.nan),
            "longitude": np.where(known, -81 + rng.random(J), np.nan),
            "region": region,
        }
    )
    write_table(sites, panel / "sites.parquet", "sites")
    write_table(months, panel / "months.parquet", "months")
    site, month = np.nonzero(seen)
    cells = pd.DataFrame({"site_index": site, "month_index": month, "n_visits": 1, "n_counted": 1})
    cells = cells.assign(n_detected=(counts[seen] > 0).astype(int), count_sum=counts[seen])
    groups = {}
    for g, part in cells.groupby(site % 3):
        write_table(part, panel / "groups" / f"g{g + 1:02d}" / "cells.parquet", "cells")
        groups[f"g{g + 1:02d}"] = {"n_visits": len(part)}
    terms = {
        "licence": "CC0 1.0", "citation": "Made by a test & its <generator>", "release": "v1",
        "terms": "none",
    }  # fmt: skip
    flow = [
        {"step": "records read", "rows": 1000, "note": ""},
        {"step": "no date", "rows": -3, "note": "dropped"},
    ]
    results = {
        "species": "Ardea testa", "common_name": "Test Egret", "n_observers": 94, "groups": groups,
        "effort": {"duration_minutes": 0.9, "distance_km": 0.8} if w.effort else {"duration_minutes": 0.0},
    }  # fmt: skip
    write_manifest(
        panel, "panel", settings={"groups": 3}, inputs={}, results=results, flow=flow, terms=terms, warnings=["a warning"]
    )  # fmt: skip
    _write_fit(fit, w, expected, months, region, rng, terms, flow, panel_tables(read_manifest(panel)))
    write_table(
        {
            "site_index": np.repeat(np.arange(J), L), "month_index": np.tile(np.arange(L), J),
            "site_id": np.repeat([f"S{j}" for j in range(J)], L),
            "month": np.tile([f"month {i}" for i in range(L)], J), "expected": expected.ravel(),
            **{name: expected.ravel() for name in ("expected_lower", "expected_upper", "lower", "upper")},
            "occupied": pa.nulls(expected.size, pa.float64()), "observed": seen.ravel(),
            "n_counted": seen.ravel().astype(int),
        },
        imputed / "imputed.parquet",
        "imputed",
    )  # fmt: skip
    known = {"occupied": [0.8 * J, 0.6 * J]} if w.occupied else {}
    made_from = imputed_from(read_manifest(fit))
    write_manifest(imputed, "imputed", settings={}, inputs=made_from, flow=flow, terms=terms, results=known)
    return {"panel": panel, "fit": fit, "imputed": imputed}


def _write_fit(fit, w, expected, months, region, rng, terms, flow, inputs):
    J, L = expected.shape
    if w.trace:
        k = np.arange(1, 31)
        write_table(
            {
                "round": k, "h_norm2": 10.0 * 0.5**k, "objective": 100 + 0.7**k,
                "active": np.full(30, 3), "bytes_up": np.full(30, 2000), "bytes_down": np.full(30, 900),
                "epochs": k.astype(float), "seconds": 0.01 * k,
            },
            fit / "trace.parquet", "trace",
        )  # fmt: skip
    if w.cv:
        grid = [
            (r, p, f) for r in (0, 1, 2) for p in ("Poisson", "negative binomial", "Gaussian") for f in (0, 1)
        ]
        write_table(
            {
                "candidate": np.arange(len(grid)) // 2, "model": [g[1] for g in grid],
                "rank": [g[0] for g in grid],
                "penalty": np.full(len(grid), np.nan), "fold": [g[2] for g in grid],
                "n": np.full(len(grid), 500), "deviance": [2 - 0.2 * g[0] + (g[1] != "Poisson") for g in grid],
                "log_rmse": np.full(len(grid), 0.7), "total_bias": np.full(len(grid), 1.02),
            },
            fit / "cv.parquet", "cv",
        )  # fmt: skip
    if w.n_draws:
        parts = []
        shock = rng.normal(0, 0.05, (w.n_draws, 1)) + rng.normal(0, 0.08, (w.n_draws, L))
        tilt = rng.normal(0, 0.006, (w.n_draws, 1)) * (months["year"].to_numpy() - months["year"].mean())
        names = ["all", *sorted({r for r in region if r is not None})]
        for name in names:
            total = expected.sum(axis=0) if name == "all" else expected[region == name].sum(axis=0)
            draws = total * np.exp(shock + tilt)
            parts.append(
                pd.DataFrame(
                    {
                        "draw": np.repeat(np.arange(w.n_draws), L), "region": name,
                        "month_index": np.tile(np.arange(L), w.n_draws), "total": draws.ravel(),
                    }
                )
            )  # fmt: skip
        write_table(pd.concat(parts, ignore_index=True), fit / "draws.parquet", "draws")
        write_table(
            {
                "site_index": np.arange(J), "slope": w.slope + rng.normal(0, 0.05, J),
                "slope_se": np.full(J, 0.01), "mean_total": expected.mean(axis=1),
            },
            fit / "site_trends.parquet",
            "site_trends",
        )  # fmt: skip
    write_manifest(
        fit, "fit", settings={"seed": 0}, inputs=inputs, flow=flow, terms=terms,
        results={
            "family": "poisson", "scale": "raw", "method": "fast", "rank": w.rank, "penalty": None, "mu": 0.1,
            "dispersion": 1.4,
            "objective": 123.4, "h_norm": 1e-7, "converged": True, "stop_reason": "the mean field is below its tolerance",
            "rounds": 30, "effort": {"duration": 0.4} if w.effort else {}, "model": "Poisson", "bytes_up": 60000,
            "bytes_down": 27000, "n_groups": 3, "participation": 1.0, "compressor": "dithering",
            "occupancy": [0.8, 0.05, 0.1] if w.occupied else [],
        },
    )  # fmt: skip


def analysed(inputs, **settings) -> Analysis:
    """The analysis of three folders, or of what was read from them."""
    data = read_inputs(**inputs) if isinstance(inputs, dict) else inputs
    return analyse(data, ReportSettings(date=DATE, **settings))


def page_of(analysis: Analysis, root: Path) -> Path:
    """Write the report of an analysis into a folder of ``root``; return its page."""
    (root / "report").mkdir()
    write_report(analysis, root / "report")
    return root / "report" / "index.html"


@pytest.fixture(scope="session")
def folders(tmp_path_factory):
    """A year-round panel with draws, regions, cross-validation and a trace."""
    return make_folders(tmp_path_factory.mktemp("full"), World())


@pytest.fixture(scope="session")
def full(folders):
    """The analysis of the full folders, for tests that read it."""
    return analysed(folders)


@pytest.fixture(scope="session")
def small(tmp_path_factory):
    """A quick one: three months a year, no regions, no cross-validation."""
    world = World(
        n_sites=15, n_years=9, season=(4, 5, 6), last_months=3, n_draws=40, seen=0.5, regions=0, trace=False, cv=False
    )  # fmt: skip
    return make_folders(tmp_path_factory.mktemp("small"), world)


@pytest.fixture(scope="session")
def bare(tmp_path_factory):
    """January to June, no zeros, no draws, few coordinates, last year cut short: what a colony survey gives."""
    world = World(
        season=tuple(range(1, 7)), last_months=3, zeros=False, n_draws=0, coordinates=0.4, regions=0,
        trace=False, cv=False, effort=False, seen=0.1,
    )  # fmt: skip
    return make_folders(tmp_path_factory.mktemp("bare"), world)


def made_report(folders, tmp_path_factory, **settings):
    out = tmp_path_factory.mktemp("reports") / "report"
    return build_report(**folders, out=out, settings=ReportSettings(date=DATE, **settings)).parent


@pytest.fixture(scope="session")
def report(folders, tmp_path_factory):
    """The report of the full folders."""
    return made_report(folders, tmp_path_factory)


@pytest.fixture(scope="session")
def german_report(folders, tmp_path_factory):
    return made_report(folders, tmp_path_factory, language="de")


@pytest.fixture(scope="session")
def bare_report(bare, tmp_path_factory):
    """The report of the bare folders."""
    return made_report(bare, tmp_path_factory)
