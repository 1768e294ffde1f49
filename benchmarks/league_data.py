"""Real panels of the league, and the masks that hide a part of them.

Not a script: ``league.py`` and ``dividend.py`` import it. The Everglades survey's yearly counts ship with fedmiss; the other
sets are read from the folder that FEDMISS_DATA names, and are left out, with a line, where it has none.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from fedmiss.resources import resource

HIDDEN = 0.2  # share of cells, sites, observers that a mask hides


@dataclass(frozen=True, eq=False)
class Visits:
    """Counts of one species.

    ``table``: site, year, month (1 where counts are yearly), count, observer, owner; ``observed``: whether observers are
    known; ``owned``: whether owners are; ``known``: what is known of the sites (longitude, latitude, region, habitat).
    """

    name: str
    table: pd.DataFrame
    observed: bool = False
    owned: bool = False
    known: pd.DataFrame | None = None

    @property
    def yearly(self) -> bool:
        return self.table["month"].nunique() == 1


def data_folder() -> Path:
    return Path(os.environ.get("FEDMISS_DATA", "shared/data"))


def _table(site, year, month, count, observer=None, owner=None) -> pd.DataFrame:
    n = len(site)
    return pd.DataFrame(
        {
            "site": np.asarray(site).astype(str), "year": np.asarray(year, dtype=int), "month": np.asarray(month, dtype=int),
            "count": np.asarray(count, dtype=float),
            "observer": np.zeros(n).astype(str) if observer is None else np.asarray(observer).astype(str),
            "owner": np.zeros(n).astype(str) if owner is None else np.asarray(owner).astype(str),
        }
    )  # fmt: skip


def _known(site, columns: pd.DataFrame) -> pd.DataFrame:
    """Columns by site: means of numbers, the first text."""
    by = columns.groupby(np.asarray(site).astype(str))
    return pd.DataFrame({c: by[c].mean() if columns[c].dtype.kind == "f" else by[c].first() for c in columns})


def _seen_often(t: pd.DataFrame, least: int = 2) -> pd.DataFrame:
    """Sites with at least ``least`` counts: one count cannot be hidden and predicted."""
    return t[t.groupby("site")["site"].transform("size") >= least].reset_index(drop=True)


def everglades_flights(species: str) -> Callable[[], Visits]:
    """Nesting birds on aerial surveys, January to June: zero where a flight counted other birds at the colony."""

    def load() -> Visits:
        f = pd.read_csv(data_folder() / "everglades" / "flight_surveys.csv")
        f = f[f["colony"].notna()]
        f["date"] = pd.to_datetime(f["date"])
        f = f[f["date"].dt.month <= 6]
        flights = f.groupby(["colony", "date", "team"], as_index=False).size().drop(columns="size")
        mine = f[(f["species"] == species) & (f["behavior"] == "nesting")]
        mine = mine.groupby(["colony", "date", "team"], as_index=False)["count"].sum()
        t = flights.merge(mine, how="left").fillna({"count": 0.0})
        t = t[t.groupby("colony")["count"].transform("sum") > 0]
        table = _table(t["colony"], t["date"].dt.year, t["date"].dt.month, t["count"], t["team"])
        known = _known(f["colony"], f[["longitude", "latitude"]])
        return Visits(f"Everglades flights, {species}", _seen_often(table), observed=True, known=known)

    return load


def everglades_peaks(species: str) -> Callable[[], Visits]:
    """Yearly peak numbers of nests by colony, the embedded data; only colonies with birds. Owner: the region's agency."""

    def load() -> Visits:
        texts = {"site": str, "region": str}
        t = pd.read_csv(str(resource("demo_data", "everglades_peak_counts.csv")), dtype=texts)
        t = t[(t["species"] == species) & (t["count"] > 0)]
        table = _table(t["site"], t["year"], np.ones(len(t)), t["count"], owner=t["region"])
        known = _known(t["site"], t[["longitude", "latitude", "region"]])
        return Visits(f"Everglades peaks, {species}", _seen_often(table), owned=True, known=known)

    return load


def bbs_wren() -> Visits:
    """Pacific Wren on routes of the Breeding Bird Survey; only runs with a bird. Owner: state or province."""
    t = pd.read_csv(data_folder() / "bbs" / "pacific_wren.csv")
    table = _table(t["route_id"], t["year"], np.ones(len(t)), t["count"], t["obs_n"], t["state"])
    known = _known(t["route_id"], t[["longitude", "latitude"]].assign(region=t["bcr"].astype(str)))
    return Visits("BBS Pacific Wren", _seen_often(table), observed=True, owned=True, known=known)


def penguins(species: str) -> Callable[[], Visits]:
    """Nest counts at Antarctic colonies since 1980. Owner: the publication."""

    def load() -> Visits:
        t = pd.read_csv(data_folder() / "penguins" / "nests.csv")
        t = t[(t["species_id"] == species) & t["count"].notna() & (t["season"] >= 1980)]
        table = _table(t["site_id"], t["season"], np.ones(len(t)), t["count"].round(), owner=t["source"])
        known = _known(t["site_id"], t[["longitude", "latitude", "region"]])
        return Visits(f"penguins, {species}", _seen_often(table), owned=True, known=known)

    return load


def skylark() -> Visits:
    """rtrim's skylarks: 55 sites, 8 years."""
    t = pd.read_csv(data_folder() / "trim" / "skylark2.csv").dropna(subset=["count"])
    known = _known(t["site"], t[["habitat"]].assign(deposition=t["deposition"].astype(float)))
    return Visits(
        "skylark", _seen_often(_table(t["site"], t["year"], np.ones(len(t)), t["count"])), known=known
    )


PANELS: dict[str, Callable[[], Visits]] = {
    **{f"flights-{s}": everglades_flights(s) for s in ("greg", "whib", "gbhe")},
    **{f"peaks-{s}": everglades_peaks(s) for s in ("greg", "sneg", "wost")},
    "wren": bbs_wren,
    **{f"penguins-{s.lower()}": penguins(s) for s in ("ADPE", "CHPE", "GEPE")},
    "skylark": skylark,
}  # fmt: skip


def _pick(values: pd.Series, rng: np.random.Generator, share: float = HIDDEN) -> np.ndarray:
    names = np.unique(values)
    return values.isin(rng.permutation(names)[: max(1, round(share * names.size))]).to_numpy()


def _cells(v: Visits, rng: np.random.Generator) -> np.ndarray:
    t = v.table
    return _pick(t["site"] + "|" + t["year"].astype(str) + "|" + t["month"].astype(str), rng)


def _sites(v: Visits, rng: np.random.Generator) -> np.ndarray:
    return _pick(v.table["site"], rng)


def _last(v: Visits, rng: np.random.Generator) -> np.ndarray:
    years = np.sort(v.table["year"].unique())[-3:]
    return _pick(v.table["site"], rng, 0.5) & v.table["year"].isin(years).to_numpy()


def _one_of(column: str) -> Callable[[Visits, np.random.Generator], np.ndarray]:
    def mask(v: Visits, rng: np.random.Generator) -> np.ndarray:
        n = v.table[column].value_counts()
        able = np.sort(n.index[(n >= 5) & (n <= 0.5 * n.sum())].to_numpy())
        if not able.size:
            return np.zeros(len(v.table), dtype=bool)
        return (v.table[column] == rng.choice(able)).to_numpy()

    return mask


MASKS: dict[str, Callable[[Visits, np.random.Generator], np.ndarray]] = {
    "cells": _cells,
    "sites": _sites,
    "last years": _last,
    "observer": _one_of("observer"),
    "owner": _one_of("owner"),
}


def masks_of(v: Visits) -> list[str]:
    """Masks that this panel can have."""
    return [m for m in MASKS if (m != "observer" or v.observed) and (m != "owner" or v.owned)]


def hidden(v: Visits, mask: str, seed: int) -> np.ndarray:
    """(visits,) which visits the mask hides; some visits of every year stay."""
    rng = np.random.default_rng([seed, sorted(MASKS).index(mask)])
    away = MASKS[mask](v, rng)
    t = v.table
    whole = t.assign(away=away).groupby(["year", "month"])["away"].transform("all").to_numpy()
    return away & ~whole  # a time without any count cannot be predicted by the methods compared
