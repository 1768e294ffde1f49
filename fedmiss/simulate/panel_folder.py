"""Write a simulated panel as the folder that ``fedmiss fit`` reads, with its truth beside it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import polars as pl

from fedmiss.errors import ConfigError
from fedmiss.files import atomic_folder, write_manifest
from fedmiss.folders import PanelFacts
from fedmiss.rng import rng_for
from fedmiss.settings import kinds_checked
from fedmiss.simulate.panels import KINDS, Panel
from fedmiss.simulate.truth import TERMS
from fedmiss.simulate.world import month_labels
from fedmiss.tables import write_table

SPECIES_NAME = "Avis simulata"


@kinds_checked
def write_panel(
    panel: Panel,
    out: str | Path,
    *,
    start: str = "2000-01",
    settings: dict[str, object] | None = None,
    overwrite: bool = False,
) -> Path:
    """Write a panel folder: axes, visits and cells per group, a manifest, and ``truth/``.

    Parameters
    ----------
    panel : a panel of counts or detections
    out : folder to make
    start : label of the first month, YYYY-MM
    settings : the arguments of :func:`simulate_panel`, kept in the manifest so that the panel can be made again

    Raises
    ------
    ConfigError   the panel is Gaussian (a visit's count is a whole number), or ``start`` is no month

    Examples
    --------
    >>> import fedmiss
    >>> p = fedmiss.simulate_panel(20, 24, 0.5, seed=1, groups=2)
    >>> panel = fedmiss.simulate.write_panel(p, "panel")
    >>> sorted(f.name for f in panel.iterdir())
    ['groups', 'manifest.json', 'months.parquet', 'sites.parquet', 'truth']
    """
    if panel.family == "gaussian":
        raise ConfigError(
            "a panel folder holds whole counts, so a gaussian panel cannot be written; "
            f"choose another family, or use simulate_panel from Python (kind {panel.kind})."
        )
    L = panel.shape[1]
    first = month_labels(start, start)[0]
    stamps = first + np.arange(L)
    labels = stamps.astype(str)
    sites = _sites(panel)
    months = pl.DataFrame(
        {
            "month_index": np.arange(L, dtype=np.int32),
            "month": labels,
            "year": (stamps.astype("datetime64[Y]").astype(np.int64) + 1970).astype(np.int32),
            "month_of_year": (stamps.astype(np.int64) % 12 + 1).astype(np.int8),
        }
    )
    visits = _visits(panel, stamps)
    with atomic_folder(out, "panel", overwrite=overwrite) as tmp:
        write_table(sites, tmp / "sites.parquet", "sites")
        write_table(months, tmp / "months.parquet", "months")
        groups = {}
        width = max(2, len(str(int(panel.group_of_observer.max()) + 1)))
        for (group,), rows in visits.group_by("group", maintain_order=True):
            name = f"g{int(str(group)) + 1:0{width}d}"
            groups[name] = _write_group(tmp / "groups" / name, rows.drop("group"))
        _write_truth(panel, tmp / "truth", sites["site_id"], labels)
        write_manifest(
            tmp,
            "panel",
            settings={"simulated": panel.kind, "seed": panel.seed, "start": start, **(settings or {})},
            inputs={},
            results=_facts(panel, visits, labels, dict(sorted(groups.items()))).as_results(),
            flow=[{"step": "visits simulated", "rows": visits.height, "note": f"kind {panel.kind}"}],
            terms=TERMS,
        )
    return Path(out)


def _facts(
    panel: Panel, visits: pl.DataFrame, labels: npt.NDArray[np.str_], groups: dict[str, dict[str, int]]
) -> PanelFacts:
    return PanelFacts(
        species=SPECIES_NAME,
        common_name="Simulated Bird",
        n_sites=panel.shape[0],
        n_months=panel.shape[1],
        first_month=str(labels[0]),
        last_month=str(labels[-1]),
        n_observers=int(np.unique(panel.observer).size),
        n_visits=visits.height,
        n_counted=visits.height,
        n_detected=int(visits["detected"].sum()),
        n_zeros=int((visits["count"] == 0).sum()),
        n_cells_observed=visits.select("site_index", "month_index").n_unique(),
        birds=int(visits["count"].sum()),
        effort={"duration_minutes": 1.0, "distance_km": 0.0, "n_observers": 1.0, "start_minutes": 0.0},
        groups=groups,
    )


def _sites(panel: Panel) -> pl.DataFrame:
    J = panel.shape[0]
    rng = rng_for(panel.seed, "panel", "map")
    index = np.arange(J, dtype=np.int32)
    latitude, longitude = 38 + 3.6 * rng.random(J), -119 + 4.6 * rng.random(J)
    return pl.DataFrame(
        {
            "site_index": index,
            "site_id": [f"site-{site:06d}" for site in index],
            "site_name": [f"Simulated site {site}" for site in index],
            "latitude": latitude.round(5),
            "longitude": longitude.round(5),
            "region": [
                f"{'NS'[int(north < 39.8)]}{'EW'[int(east < -116.7)]}"
                for north, east in zip(latitude, longitude, strict=True)
            ],
        }
    )


def _visits(panel: Panel, stamps: np.ndarray[tuple[int], np.dtype[np.datetime64]]) -> pl.DataFrame:
    n_visits = panel.y.size
    # A day that every month has.
    day = rng_for(panel.seed, "panel", "days").integers(0, 28, n_visits)
    dates = (stamps[panel.month_index].astype("datetime64[D]").astype(np.int64) + day).astype(np.int32)
    count = panel.y.astype(np.int64)
    number = pl.Series(np.arange(n_visits)).cast(pl.String).str.zfill(8)
    return pl.DataFrame(
        {
            "checklist_id": pl.select(pl.lit("visit-") + number).to_series(),
            "observer_id": _observer_ids(panel).gather(pl.Series(panel.observer)),
            "site_index": panel.site_index,
            "month_index": panel.month_index,
            "date": pl.Series(dates).cast(pl.Date),
            "count": count,
            "detected": count > 0,
            "start_minutes": pl.Series([None] * n_visits, dtype=pl.Int16),
            "duration_minutes": 60 * panel.effort,
            "distance_km": pl.Series([None] * n_visits, dtype=pl.Float64),
            "n_observers": np.ones(n_visits, dtype=np.int32),
            "protocol": pl.Series(["Stationary"]).gather(np.zeros(n_visits, dtype=np.int64)),
            "group": panel.group,
        }
    ).sort("group", "site_index", "month_index", "date", "checklist_id")


def _observer_ids(panel: Panel) -> pl.Series:
    digits = len(str(panel.observer_effect.size - 1))
    return pl.Series([f"observer-{i:0{digits}d}" for i in range(panel.observer_effect.size)])


def _write_group(folder: Path, rows: pl.DataFrame) -> dict[str, int]:
    cells = rows.group_by("site_index", "month_index", maintain_order=True).agg(
        pl.len().cast(pl.Int32).alias("n_visits"),
        pl.len().cast(pl.Int32).alias("n_counted"),
        pl.col("detected").sum().cast(pl.Int32).alias("n_detected"),
        pl.col("count").sum().alias("count_sum"),
    )
    write_table(rows, folder / "visits.parquet", "visits")
    write_table(cells, folder / "cells.parquet", "cells")
    return {
        "n_visits": rows.height,
        "n_observers": rows["observer_id"].n_unique(),
        "n_cells": cells.height,
        "n_counted": rows.height,
    }


def _write_truth(
    panel: Panel, folder: Path, site_ids: pl.Series, labels: np.ndarray[tuple[int], np.dtype[np.str_]]
) -> None:
    rank = range(panel.U.shape[1])
    name = {"species": SPECIES_NAME}  # one value for every row of a frame
    u, v = (
        {f"{x}{factor + 1}": X[:, factor] for factor in rank} for x, X in (("u", panel.U), ("v", panel.V))
    )
    tables = {
        "truth_sites": pl.DataFrame({**name, "site_id": site_ids, "a": panel.a, **u}),
        "truth_months": pl.DataFrame({**name, "month": labels, "b": panel.b, **v}),
        "truth_totals": pl.DataFrame({**name, "month": labels, "total": panel.totals}),
        "truth_test": {
            "site_index": panel.test_site,
            "month_index": panel.test_month,
            "as_visited": panel.test_visited,
            "expected": panel.expected_at(panel.test_site, panel.test_month),
            "count": panel.y_test.astype(np.int64),
        },
        "truth_observers": {"observer_id": _observer_ids(panel).to_list(), "effect": panel.observer_effect},
        "truth_species": {
            "species": [SPECIES_NAME],
            "common_name": ["Simulated Bird"],
            "link": ["logit" if panel.family == "bernoulli" else "log"],
            "mu": [panel.mu],
            "met": [1.0],
            "size": [panel.size if panel.family == "negbin" else None],
            "effort_slope": [panel.effort_slope],
            "x_share": [0.0],
            "trend": [KINDS[panel.kind].trend],
        },
    }
    for table, rows in tables.items():
        write_table(rows, folder / f"{table}.parquet", table)
