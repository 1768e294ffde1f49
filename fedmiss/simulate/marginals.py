"""How close a simulated file comes to real extracts: the marginals, beside the values they were calibrated on."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedmiss.arrays import F64, I64, distinct, pairs
from fedmiss.simulate.checklists import Block
from fedmiss.simulate.world import MONTH_SHARE, World

_KEEP = 2_000_000  # checklists whose (observer, site, month) are kept to count distinct pairs
_QUANTILES = (0.25, 0.5, 0.75, 0.9, 0.99, 1.0)

# Measured on real extracts: quantiles 25/50/75/90/99/max, or one number.
TARGETS: dict[str, tuple[float, ...]] = {
    "checklists per observer": (1, 2, 6, 17, 325, 6360),
    "visits per site": (1, 1, 3, 11, 161, 1021),
    "sites per observer": (1, 1, 2, 5, 27, 104),
    "months per observer": (1, 1, 2, 4, 31, 79),
    "counts of species 1": (2, 6, 20, 52, 250, 1200),
    "counts of species 2": (1, 1, 2, 2, 6, 16),
    "share of complete checklists with species 1": (0.08,),
    "share of complete checklists with species 2": (0.03,),
    "share of X in records of species 1": (0.12,),
    "share of X in records of species 2": (0.03,),
    "share of checklists that are shared copies": (0.20,),
    "share of checklists by the top tenth of observers": (0.70,),
    "share of checklists by month, January to December": tuple(np.round(MONTH_SHARE, 3).tolist()),
    "growth of checklists over ten years": (4.0,),
}


class Marginals:
    """Counts, block by block."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.records = self.checklists = self.outings = self.complete = 0
        self.per_observer = np.zeros(world.n_observers, dtype=np.int64)
        self.per_site = np.zeros(world.n_sites, dtype=np.int64)
        self.per_month = np.zeros(world.months.size, dtype=np.int64)
        self._triples: list[tuple[I64, I64, I64]] = []
        self._kept = 0
        self._counts: list[list[I64]] = [[], []]
        self._seen = [0, 0]

    def add(self, block: Block) -> None:
        """Add one block."""
        self.records += block.count.size
        self.checklists += block.outing.size
        self.outings += np.unique(block.outing).size
        self.complete += int(block.complete.sum())
        self.per_observer += np.bincount(block.observer, minlength=self.per_observer.size)
        self.per_site += np.bincount(block.site, minlength=self.per_site.size)
        self.per_month += np.bincount(block.month, minlength=self.per_month.size)
        # Distinct pairs need the visits themselves; so many are enough for quantiles.
        if self._kept < _KEEP:
            self._kept += block.outing.size
            self._triples.append((block.observer, block.site, block.month))
        for species in range(min(2, len(self.world.species))):
            mine = block.species == species
            self._counts[species].append(block.count[mine])
            lists = np.unique(block.checklist[mine])
            self._seen[species] += int(block.complete[lists].sum())

    def table(self) -> list[dict[str, Any]]:
        """Return rows of {"what", "real", "simulated"}; quantiles are 25/50/75/90/99 % and the maximum."""
        observer, site, at = (np.concatenate(triple) for triple in zip(*self._triples, strict=True))
        got: dict[str, Any] = {
            "checklists per observer": _quantiles(self.per_observer[self.per_observer > 0]),
            "visits per site": _quantiles(self.per_site[self.per_site > 0]),
            "sites per observer": _quantiles(_distinct(observer, site)),
            "months per observer": _quantiles(_distinct(observer, at)),
        }
        for species in range(min(2, len(self.world.species))):
            counts = np.concatenate(self._counts[species])
            if (counts > 0).any():
                got[f"counts of species {species + 1}"] = _quantiles(counts[counts > 0])
                got[f"share of X in records of species {species + 1}"] = (float((counts < 0).mean()),)
            share = self._seen[species] / max(self.complete, 1)
            got[f"share of complete checklists with species {species + 1}"] = (share,)
        got["share of checklists that are shared copies"] = (1 - self.outings / self.checklists,)
        busy = np.sort(self.per_observer[self.per_observer > 0])[::-1]
        top = busy[: max(round(busy.size / 10), 1)].sum() / busy.sum()
        got["share of checklists by the top tenth of observers"] = (float(top),)
        labels = self.world.months
        year, month = (np.array([int(label[part]) for label in labels]) for part in (slice(4), slice(5, 7)))
        by_month = np.bincount(month, self.per_month, 13)[1:]
        got["share of checklists by month, January to December"] = tuple(by_month / by_month.sum())
        whole = np.bincount(year) == 12
        per_year = np.bincount(year, self.per_month)[whole]
        if per_year.size >= 3 and per_year.min() > 0:
            # Growth over ten years from a line through the logarithms of whole years.
            slope = np.polyfit(np.arange(per_year.size), np.log(per_year), 1)[0]
            got["growth of checklists over ten years"] = (float(np.exp(10 * slope)),)
        return [
            {"what": what, "real": list(real), "simulated": [round(float(value), 4) for value in got[what]]}
            for what, real in TARGETS.items()
            if what in got
        ]


def _quantiles(values: I64) -> F64:
    return np.asarray(np.quantile(values, _QUANTILES))


def _distinct(observer: I64, other: I64) -> I64:
    """Return how many different values of ``other`` each observer has."""
    pair, width = pairs(observer, other)
    per = np.bincount(distinct(pair) // width)
    return np.asarray(per[per > 0])
