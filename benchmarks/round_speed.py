"""Nanoseconds a cell, fit and round of the main loop, for any p and compiled for one p; and that their bits are equal.

    python benchmarks/round_speed.py

``p`` coefficients a site: effect, slope, factors. Eight fits side by side over 249 months, one thread, the best of nine.
"""

from __future__ import annotations

import time

import numpy as np

from fedmiss.federation.group import kernels
from fedmiss.models.lowrank.families import POISSON

L, FITS = 249, 8


def arrays(sites: int, cells: float, p: int, seed: int = 0) -> list[object]:
    """What the loop takes after the width, for sites with ``cells`` observed months on average."""
    rng = np.random.default_rng(seed)
    n = rng.poisson(cells, sites)
    ptr = np.r_[0, np.cumsum(n)].astype(np.int64)
    col = np.concatenate([np.sort(rng.choice(L, k, replace=False)) for k in n]).astype(np.int32)
    shape = (FITS, col.size)

    def covariance(rows: int) -> np.ndarray:
        A = rng.normal(0, 0.1, (FITS, rows, p, p))
        return A @ A.transpose(0, 1, 3, 2)

    return [
        1, ptr, col, rng.poisson(3, shape).astype(float), rng.random(shape), np.zeros((1, 1)), False, np.ones(FITS),
        rng.normal(0, 0.3, (FITS, L, p)), covariance(L), np.ones((FITS, p)), np.ones(FITS), POISSON.max_step,
        np.zeros((FITS, sites, p)), rng.normal(0, 0.3, (FITS, sites, p)), covariance(sites), np.zeros(shape), POISSON.code,
    ]  # fmt: skip


def once(loop: object, given: list[object], p: int) -> tuple[float, list[np.ndarray]]:
    """Seconds of one round, and all that it changes."""
    mine = [x.copy() if isinstance(x, np.ndarray) else x for x in given]
    month, stats = np.zeros((FITS, L, p * (p + 3) // 2)), np.zeros((FITS, 4 + 3 * p))
    began = time.perf_counter()
    loop(0, FITS, np.arange(FITS), p, *mine, month, stats)
    return time.perf_counter() - began, [month, stats, *mine[14:17]]


def main() -> None:
    """Print the table."""
    print("| cells a site | p | any p, ns | one p, ns | ratio |\n|---|---|---|---|---|")
    for sites, cells in ((400, 75.0), (9000, 1.25)):
        for p in (1, 2, 3, 4, 5):
            given = arrays(sites, cells, p)
            loops = (kernels._round, kernels._of_width(p))
            results = [once(loop, given, p)[1] for loop in loops]
            assert all(np.array_equal(a, b) for a, b in zip(*results, strict=True)), "other bits"
            best = [min(once(loop, given, p)[0] for _ in range(9)) for loop in loops]
            any_p, one_p = (t / (FITS * given[2].size) * 1e9 for t in best)
            print(f"| {cells:g} | {p} | {any_p:.0f} | {one_p:.0f} | {any_p / one_p:.1f} |", flush=True)


if __name__ == "__main__":
    main()
