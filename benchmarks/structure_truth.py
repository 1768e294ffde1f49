"""What features of sites are worth on countries with known truth: sites that nobody visited, the area's trend, regions.

    python benchmarks/structure_truth.py sites   [--panels 40]   deviance at hidden sites, with and without features
    python benchmarks/structure_truth.py area    [--panels 100] [--draws 60]   trend of area and visited sites
    python benchmarks/structure_truth.py regions [--panels 100] [--draws 60]   regions that move apart, visits that move

A country has 300 squares on 6 x 5 degrees with a height, a habitat and a place; ``share`` of the variance between the levels
of sites follows height (with an optimum) and habitat, or a smooth surface; trends of sites follow height in ``area``. People
go to 100 squares, more often to low ones, in a tenth of the months of 12 years; counts are negative binomial of size 2.
``chosen`` is what the choice takes by itself (``fedmiss fit --structure auto``), else the named features are used.
"""

from __future__ import annotations

import argparse
import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("FEDMISS_THREADS", "1")

from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from fedmiss.federation.fit_tables import totals_by_region
from fedmiss.federation.hub.structure import try_structure
from fedmiss.federation.local import LocalFederation
from fedmiss.models.lowrank.choice import Choice
from fedmiss.models.lowrank.data import Group, GroupPanel
from fedmiss.models.lowrank.families import POISSON
from fedmiss.models.lowrank.settings import CountSettings
from fedmiss.models.lowrank.structure import FEATURES
from fedmiss.report.trim import TrimSettings, fit_trim
from fedmiss.rng import rng_for

YEARS, SQUARES, VISITED = 12, 300, 100
PLAIN = CountSettings(rank=0, dispersion="negbin")


@dataclass(frozen=True)
class Country:
    """Visits, the true means (J, L), which squares were visited, and what is known of the squares."""

    site: np.ndarray
    month: np.ndarray
    count: np.ndarray
    observer: np.ndarray
    mean: np.ndarray
    visited: np.ndarray
    covariates: dict[str, np.ndarray]
    region: np.ndarray


def country(seed: int, kind: str, *, share: float = 0.5) -> Country:
    """Draw a country; ``kind`` says what the levels of sites follow: covariates, smooth, none, area or regions."""
    rng = rng_for(seed, "structure", kind)
    J, L = SQUARES, 12 * YEARS
    lon, lat = 5 + 6 * rng.random(J), 45 + 5 * rng.random(J)
    height, habitat = rng.normal(size=J), rng.choice(np.array(["farm", "forest", "town"], dtype=object), J)
    if kind == "smooth":
        d2 = (lon[:, None] - lon) ** 2 + (lat[:, None] - lat) ** 2
        signal = np.linalg.cholesky(np.exp(-0.5 * d2 / 1.2**2) + 1e-8 * np.eye(J)) @ rng.normal(size=J)
    else:
        signal = 0.8 * height - 0.4 * height**2 + 0.8 * (habitat == "forest")
    signal = (signal - signal.mean()) / signal.std()
    share = 0.0 if kind in ("none", "regions") else share
    level = np.sqrt(share) * signal + np.sqrt(1 - share) * rng.normal(size=J)
    region = np.where(lon < 8.5, "west", "east").astype(object)
    trend = -0.03 + 0.02 * rng.normal(size=J)
    if kind == "area":
        trend = trend + 0.02 * height
    if kind == "regions":  # the large west falls, the small east rises
        region = np.where(lon < 9.5, "west", "east").astype(object)
        trend = np.where(region == "west", -0.06, 0.04) + 0.02 * rng.normal(size=J)
    t = np.arange(L)
    x = (t - t.mean()) / 12
    mean = np.exp(0.3 + level[:, None] + trend[:, None] * x + 0.4 * np.sin(2 * np.pi * t / 12))
    weight = np.exp(-0.7 * height) if kind == "area" else np.ones(J)
    if kind == "regions":
        visited = np.ones(J, dtype=bool)
        move = np.linspace(0.3, 1.7, L) / 30  # visits move from the west to the east
        chance = np.where((region == "west")[:, None], move[::-1], move)
    else:
        visited = np.isin(np.arange(J), rng.choice(J, VISITED, replace=False, p=weight / weight.sum()))
        chance = np.full((J, L), 0.1)
    site, month = np.nonzero((rng.random((J, L)) < chance) & visited[:, None])
    count = rng.negative_binomial(2.0, 2.0 / (2.0 + mean[site, month])).astype(float)
    covariates = {"height": 800 + 300 * height, "habitat": habitat, "longitude": lon, "latitude": lat}
    return Country(site, month, count, rng.integers(0, 40, site.size), mean, visited, covariates, region)


def federation_of(c: Country) -> LocalFederation:
    """Three groups that share no site."""
    groups = [
        Group.of(f"g{k}", c.site[m], c.month[m], c.count[m], np.unique(c.observer[m], return_inverse=True)[1])
        for k in range(3)
        if (m := c.site % 3 == k).any()
    ]
    L = 12 * YEARS
    calendar = (np.arange(L) % 12 + 1, 2000 + np.arange(L) // 12)
    return LocalFederation.of_panel(
        GroupPanel.of(SQUARES, L, groups, calendar, region=c.region, covariates=c.covariates)
    )


def settings_of(federation: LocalFederation, features: tuple[str, ...] | None, seed: int) -> CountSettings:
    """Settings with these features; None: those that the choice takes."""
    if features is not None:
        return replace(PLAIN, features=features)
    none = Choice(pd.DataFrame(), pd.DataFrame(), PLAIN, "")
    federation.hub, choice = try_structure(
        federation.link, federation.hub, none, folds=5, seed=seed, features=FEATURES
    )
    return choice.best


def slope_of(monthly: np.ndarray) -> np.ndarray:
    """Log slope by year of monthly totals (..., L)."""
    yearly = monthly.reshape(*monthly.shape[:-1], YEARS, 12).mean(axis=-1)
    x = np.arange(YEARS) - (YEARS - 1) / 2
    return np.log(yearly) @ x / (x @ x)


def sites_panel(job: tuple[int, str]) -> dict[str, object]:
    """Deviance of counts drawn at hidden and at visited sites, by features."""
    seed, kind = job
    c, out = country(seed, kind), {"kind": kind}
    rng = rng_for(seed, "counts to predict")
    y = rng.negative_binomial(2.0, 2.0 / (2.0 + c.mean))
    federation = federation_of(c)
    ways = {
        "none": (),
        "covariates": ("covariates",),
        "smooth": ("smooth",),
        "all": FEATURES,
        "chosen": None,
    }
    for name, features in ways.items():
        s = settings_of(federation, features, seed)
        e = federation.fit(s).expected()
        out |= {
            (name, "hidden"): POISSON.deviance(y[~c.visited], e[~c.visited]).mean(),
            (name, "visited"): POISSON.deviance(y[c.visited], e[c.visited]).mean(),
        }
        out[name, "total"] = float(e[~c.visited].sum() / c.mean[~c.visited].sum())
        if features is None:
            out["taken"] = s.features
    return out


def resampled(federation: LocalFederation, s: CountSettings, seed: int, draws: int) -> tuple:
    """The fit, its monthly totals (L,), and those of its replicates (draws, L)."""
    fit = federation.fit(s)
    monthly = totals_by_region(fit, np.full(SQUARES, -1), 0)[0]
    return fit, monthly, federation.replicates(range(draws), seed=seed).totals[:, 0]


def area_panel(job: tuple[int, int]) -> dict[str, tuple[float, float]]:
    """Error and standard error of the slope of the area, with and without features; of the visited sites alone."""
    seed, draws = job
    c = country(seed, "area")
    truth = slope_of(c.mean.sum(axis=0))
    federation = federation_of(c)
    out = {}
    for name, features in {"none": (), "chosen": None}.items():
        fit, monthly, rep = resampled(federation, settings_of(federation, features, seed), seed, draws)
        out[name] = slope_of(monthly) - truth, slope_of(rep).std(ddof=1)
        if name == "none":
            seen = slope_of(fit.expected()[c.visited].sum(axis=0))
            out["visited sites for the area"] = seen - truth, np.nan
    return out


def regions_panel(job: tuple[int, int]) -> dict[str, tuple[float, float]]:
    """Error and standard error of the slope of all sites: one line, lines by region, TRIM's model 3."""
    seed, draws = job
    c = country(seed, "regions")
    truth = slope_of(c.mean.sum(axis=0))
    federation = federation_of(c)
    out = {}
    for name, features in {"one line": (), "region lines": ("regions",), "chosen": None}.items():
        _, monthly, rep = resampled(federation, settings_of(federation, features, seed), seed, draws)
        out[name] = slope_of(monthly) - truth, slope_of(rep).std(ddof=1)
    table = pd.DataFrame({"site": c.site, "year": c.month // 12, "count": c.count})
    table = table.groupby(["site", "year"], as_index=False)["count"].mean()
    fit = fit_trim(table["site"], table["year"], table["count"], TrimSettings(model=3, overdispersion=True))
    total = fit.stratum().imputed
    x = np.arange(total.size) - (total.size - 1) / 2
    out["TRIM, model 3"] = float(np.log(total) @ x / (x @ x)) - truth, np.nan
    return out


def table_of(rows: list[dict[str, tuple[float, ...]]]) -> None:
    """Bias, root mean square error, mean standard error and coverage of every way."""
    print("| way | bias (se) | RMSE | mean se | covers |\n|---|---|---|---|---|")
    for name in rows[0]:
        e, s = (np.array([r[name][i] for r in rows]) for i in (0, 1))
        held = "" if np.isnan(s).all() else f"{100 * np.mean(np.abs(e) < 1.96 * s):.0f} %"
        mean = "" if np.isnan(s).all() else f"{s.mean():.4f}"
        bias = f"{e.mean():+.4f} ({e.std(ddof=1) / len(e) ** 0.5:.4f})"
        print(f"| {name} | {bias} | {np.sqrt((e**2).mean()):.4f} | {mean} | {held} |")


def main() -> None:
    """Run one of the three; deviances are shares of those without features, totals of the true ones."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["sites", "area", "regions"])
    parser.add_argument("--panels", type=int, default=40)
    parser.add_argument("--draws", type=int, default=60)
    parser.add_argument("--workers", type=int, default=2)
    a = parser.parse_args()
    with ProcessPoolExecutor(a.workers) as pool:
        if a.what == "sites":
            print("| levels follow | features | hidden sites (se) | visited sites | hidden total | taken |")
            print("|---|---|---|---|---|---|")
            for kind in ("covariates", "smooth", "none"):
                rows = list(pool.map(sites_panel, [(s, kind) for s in range(a.panels)]))
                taken = [r["taken"] for r in rows]
                said = ", ".join(f"{f} {sum(f in t for t in taken)}" for f in FEATURES)
                for name in ("covariates", "smooth", "all", "chosen"):
                    r = [
                        np.array([row[name, w] / row["none", w] for row in rows])
                        for w in ("hidden", "visited")
                    ]
                    total = np.mean([row[name, "total"] for row in rows])
                    hidden = f"{r[0].mean():.3f} ({r[0].std(ddof=1) / len(rows) ** 0.5:.3f})"
                    more = said if name == "chosen" else ""
                    print(
                        f"| {kind} | {name} | {hidden} | {r[1].mean():.3f} | {total:.2f} | {more} |",
                        flush=True,
                    )
            return
        panel = area_panel if a.what == "area" else regions_panel
        table_of(list(pool.map(panel, [(s, a.draws) for s in range(a.panels)])))


if __name__ == "__main__":
    main()
