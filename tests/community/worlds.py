"""Made-up communities with a known truth, and their checklists as a table."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl

import fedmiss
from fedmiss.community.model import Cells, Effort, cells_of
from fedmiss.etl.community import Lists
from fedmiss.etl.filters import parse_map

SIZE = 2.0
MAP = (
    "site=site,date=date,species=species,count=count,visit=checklist,observer=observer,duration=minutes,complete=complete,"
    "latitude=latitude,longitude=longitude"
)


@dataclass(frozen=True, eq=False)
class World:
    """Log means (J, S), a covariate x (J,), responses (S,), factors (J, r), loadings (S, r), visits (J,)."""

    eta: np.ndarray
    x: np.ndarray
    responses: np.ndarray
    U: np.ndarray
    W: np.ndarray
    visits: np.ndarray
    rng: np.random.Generator

    def cells(self, hide: float = 0.0) -> tuple[Cells, np.ndarray, np.ndarray]:
        """Cells that sum the visits; all counts (J, S); which of them are hidden."""
        J, S = self.eta.shape
        y = np.zeros((J, S))
        for v in range(int(self.visits.max())):
            mean = np.exp(self.eta)
            y += self.rng.poisson(self.rng.gamma(SIZE, mean / SIZE)) * (v < self.visits)[:, None]
        hidden = self.rng.random((J, S)) < hide
        j, s = np.nonzero(~hidden)
        return Cells(J, S, j, s, y[j, s], self.visits[j].astype(float), np.ones(j.size)), y, hidden


def world(
    seed: int, J: int = 120, S: int = 30, rank: int = 2, *, covariate: bool = False, most: int = 6
) -> World:
    rng = np.random.default_rng([seed, J, S, rank])
    x, U, W = rng.normal(size=J), rng.normal(size=(J, rank)), rng.normal(0, 0.8, (S, rank))
    responses = rng.normal(0, 0.6, S) if covariate else np.zeros(S)
    eta = rng.normal(0.0, 1.0, S) + rng.normal(0, 0.3, J)[:, None] + np.outer(x, responses) + U @ W.T
    return World(eta, x, responses, U, W, rng.integers(1, most + 1, J), rng)


def cells_with(y: np.ndarray, visits: np.ndarray | float) -> Cells:
    """Cells of a whole table of counts (J, S) of so many visits to each site."""
    j, s = np.indices(y.shape).reshape(2, -1)
    n = np.broadcast_to(visits, len(y))[j].astype(float)
    return Cells(*y.shape, j, s, y[j, s].astype(float), n, np.ones(j.size))


def seasonal(seed, amplitude):
    """Lists of 80 sites, each visited in some quarters only, of 12 species that differ between quarters; the truth."""
    rng = np.random.default_rng(seed)
    J, S, m = 80, 12, 400
    factor = np.exp(amplitude * rng.normal(size=(S, 4)))
    factor /= factor.mean(axis=1, keepdims=True)
    eta = rng.normal(0, 1, S) + rng.normal(0, 0.5, (J, 1))
    site = np.sort(rng.integers(0, J, m))
    when = rng.dirichlet(np.full(4, 0.6), J)
    quarter = np.array([rng.choice(4, p=when[j]) for j in site])
    mean = np.exp(eta[site]) * factor[:, quarter].T
    y = rng.poisson(rng.gamma(SIZE, mean / SIZE))
    row, species = np.nonzero(y)
    names = tuple(f"Avis species{s:02d}" for s in range(S))
    sites = pl.DataFrame({"site_id": [f"s{j:02d}" for j in range(J)]})
    lists = Lists(
        names, names, sites, site.astype(np.int32), np.full((m, 3), np.nan), (1 + 3 * quarter).astype(np.int32),
        row.astype(np.int32), species.astype(np.int32), y[row, species].astype(float), np.zeros((0, 2), np.int32), (), (),
    )  # fmt: skip
    effort = Effort(np.ones(m))
    return lists, effort, cells_of(lists, effort, "counts"), factor, eta


def lists_of(w: World, path: Path) -> pd.DataFrame:
    """Write one complete checklist for every visit, with what was found on it."""
    rows, n = [], 0
    for j in range(len(w.x)):
        for v in range(int(w.visits[j])):
            y = w.rng.poisson(w.rng.gamma(SIZE, np.exp(w.eta[j]) / SIZE))
            day = f"{2015 + v % 3}-05-{1 + (7 * v) % 28:02d}"
            where = (round(46.5 + 2 * (j % 11) / 11, 3), round(7 + 3 * (j // 11) / 11, 3))
            for s in np.flatnonzero(y):
                rows.append(
                    (f"c{n}", f"s{j:03d}", *where, day, f"o{n % 9}", 60, 1, f"Avis species{s:02d}", str(y[s]))
                )
            n += 1
    columns = "checklist site latitude longitude date observer minutes complete species count".split()
    table = pd.DataFrame(rows, columns=columns)
    table.to_csv(path, index=False)
    return table


def records_of(table: pd.DataFrame, folder: Path, **settings: object) -> Path:
    table.to_csv(folder / "lists.csv", index=False)
    fedmiss.ingest(
        [folder / "lists.csv"],
        folder / "records",
        fedmiss.IngestSettings(column_map=parse_map(MAP), **settings),
    )
    return folder / "records"
