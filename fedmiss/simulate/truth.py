"""The truth beside a simulation: written as checked parquet tables, read back to score a fit or an import.

truth_species, truth_sites, truth_months, truth_observers   the parameters
truth_totals                                                true monthly totals over the sites visited
truth_checklists, truth_visits                              what an exact import keeps of the files
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
from scipy.special import expit

from fedmiss.arrays import F64, I64
from fedmiss.errors import InputError
from fedmiss.simulate.checklists import Block, runs
from fedmiss.simulate.world import EFFORT_SLOPE, RANK, World
from fedmiss.tables import load_schema, read_table, write_table

TERMS = {
    "licence": "CC0",
    "citation": "Simulated by fedmiss; no bird was counted.",
    "release": "simulated",
    "terms": "Made-up data, partly in eBird's format: free to use, not to be mistaken for eBird's own.",
}


class TruthWriter:
    """Writes the visits block by block, and the parameters of what was visited at the end; ``stack`` closes its files."""

    def __init__(self, folder: Path, world: World, stack: ExitStack) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.world = folder, world
        self.visited = np.zeros(world.n_sites, dtype=bool)
        self.active = np.zeros(world.n_observers, dtype=bool)
        self.outings = 0
        self.names = pl.Series([bird.scientific for bird in world.species])
        self._writers = {
            name: stack.enter_context(self._open_table(name, 0))
            for name in ("truth_checklists", "truth_visits")
        }

    def write(self, block: Block, kept: I64, visits: tuple[I64, I64, I64]) -> None:
        """Append the kept checklists of a block and what they report."""
        self.visited[block.site] = True
        self.active[block.observer] = True
        self.outings += kept.size
        number = pl.Series(block.number[kept]).cast(pl.String)
        group = pl.Series(7_000_000 + block.outing[kept]).cast(pl.String)
        lists = pl.DataFrame(
            {
                "checklist_id": _prefixed("S", number),
                "group_id": _prefixed("G", group).set(pl.Series(~block.shared[kept]), None),
                "observer_id": observer_ids(self.world, block.observer[kept]),
                "site_id": site_ids(block.site[kept]),
                "date": pl.Series(block.day[kept].astype(np.int32)).cast(pl.Date),
                "complete": block.complete[kept],
                "copies": runs(block.outing)[1].astype(np.int32),  # they stand together in a block
            }
        )
        row, species, count = visits
        reports = pl.DataFrame(
            {
                "checklist_id": lists["checklist_id"].gather(pl.Series(row)),
                "species": self.names.gather(pl.Series(species)),
                "count": pl.Series(count.astype(np.int64)).set(pl.Series(count < 0), None),
            }
        )
        for name, table in (("truth_checklists", lists), ("truth_visits", reports)):
            writer = self._writers[name]
            writer.write_table(table.to_arrow().cast(writer.schema))

    def write_parameters(self) -> None:
        """Write what is true of species, months, observers and of the sites that were visited."""
        world = self.world
        site = np.flatnonzero(self.visited)
        observer = np.flatnonzero(self.active)
        curves = {f"v{factor + 1}": world.V[:, factor] for factor in range(RANK)}
        months, totals = [], []
        with self._open_table("truth_sites", RANK) as table:
            for species, bird in enumerate(world.species):
                name = {"species": bird.scientific}  # one value for every row of a frame
                a, u = world.a[site, species].astype(np.float64), world.u[site, species].astype(np.float64)
                factors = {f"u{factor + 1}": u[:, factor] for factor in range(RANK)}
                rows = pl.DataFrame({**name, "site_id": site_ids(site), "a": a, **factors})
                table.write_table(rows.to_arrow().cast(table.schema))
                months.append(pl.DataFrame({**name, "month": world.months, "b": world.b[species], **curves}))
                # Single precision is six times as fast here; a sum of many is right to about 1e-7.
                a32, u32, V32 = world.a[site, species], world.u[site, species], world.V.astype(np.float32)
                total = np.array([np.exp(a32 + u32 @ value).sum(dtype=np.float64) for value in V32])
                total *= np.exp(world.mu[species] + world.b[species])
                totals.append(pl.DataFrame({**name, "month": world.months, "total": total}))
        self._table("truth_months", pl.concat(months))
        self._table("truth_totals", pl.concat(totals))
        self._table(
            "truth_observers",
            {
                "observer_id": observer_ids(world, observer).to_arrow(),
                "effect": world.observer_effect[observer],
            },
        )
        self._table(
            "truth_species",
            {
                "species": [bird.scientific for bird in world.species],
                "common_name": [bird.common for bird in world.species],
                "link": ["log"] * len(world.species),
                "mu": world.mu,
                "met": world.met,
                "size": [bird.size for bird in world.species],
                "effort_slope": [EFFORT_SLOPE] * len(world.species),
                "x_share": [bird.x_share for bird in world.species],
                "trend": [bird.trend for bird in world.species],
            },
        )

    def _open_table(self, name: str, rank: int) -> Any:
        """Open a table that is written piece by piece, with its factor columns."""
        schema = load_schema(name).arrow()
        for factor in range(rank):
            schema = schema.append(pa.field(f"u{factor + 1}", pa.float64()))
        return pq.ParquetWriter(self.folder / f"{name}.parquet", schema, compression="zstd")

    def _table(self, name: str, table: Any) -> None:
        write_table(table, self.folder / f"{name}.parquet", name)


def _prefixed(letter: str, digits: pl.Series) -> pl.Series:
    return pl.select(pl.lit(letter) + digits).to_series()


def site_ids(site: I64) -> pl.Series:
    """Return the locality ids of site numbers."""
    return _prefixed("L", pl.Series(site + 100_000).cast(pl.String))


def observer_ids(world: World, observer: I64) -> pl.Series:
    """Return the observer ids of observer numbers."""
    return _prefixed("obsr", pl.Series(world.observer_number[observer]).cast(pl.String))


def read_expected(truth: str | Path, species: str, site_ids: Sequence[str], months: Sequence[str]) -> F64:
    """Return the true expected counts of a species at standard effort, to score a fitted matrix.

    Parameters
    ----------
    truth : the ``truth`` folder of a simulation (of eBird files or of a panel)
    species : scientific name
    site_ids, months : the axes wanted (``YYYY-MM``), in their order

    Returns
    -------
    (J, L) float64, link^-1(mu + a_j + b_l + u_j . v_l)

    Raises
    ------
    InputError   the truth does not know the species, a site or a month
    """
    folder = Path(truth)
    level = _rows(folder, "truth_species", species)
    if level.is_empty():
        raise InputError(f"{folder} knows no species {species!r}.", species=species)
    site = _axis(_rows(folder, "truth_sites", species), "site_id", site_ids, folder)
    month = _axis(_rows(folder, "truth_months", species), "month", months, folder)
    rank = len([column for column in site.columns if column.startswith("u")])
    eta = level["mu"][0] + site["a"].to_numpy()[:, None] + month["b"].to_numpy()
    for k in range(1, rank + 1):
        eta += np.outer(site[f"u{k}"], month[f"v{k}"])
    return np.asarray(expit(eta) if level["link"][0] == "logit" else np.exp(eta), dtype=np.float64)


def _rows(folder: Path, name: str, species: str) -> pl.DataFrame:
    table = pl.from_arrow(read_table(folder / f"{name}.parquet", name))
    assert isinstance(table, pl.DataFrame)
    return table.filter(pl.col("species") == species)


def _axis(table: pl.DataFrame, key: str, wanted: Sequence[str], folder: Path) -> pl.DataFrame:
    axis = pl.DataFrame({key: list(wanted)}, schema={key: pl.String})
    joined = axis.join(table, on=key, how="left", maintain_order="left")
    lost = joined.filter(pl.col("species").is_null())
    if lost.height:
        raise InputError(f"{folder} knows no {key} {lost[key][0]!r} ({lost.height} are unknown in all).")
    return joined
