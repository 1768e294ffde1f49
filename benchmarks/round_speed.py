"""Nanoseconds a cell, fit and round of the main loop: for any p, compiled for one p, and eight fits side by side.

    python benchmarks/round_speed.py

``p`` coefficients a site: effect, slope, factors. Eight or five fits over 249 months, one thread, the best of nine, with
the same bits.
"""

from __future__ import annotations

import time

import numpy as np

from fedmiss.federation.group import kernels, lane_kernels
from fedmiss.models.lowrank.families import POISSON, Family

L, FITS = 249, 8


def arrays(
    sites: int,
    cells: float,
    p: int,
    *,
    fits: int = FITS,
    family: Family = POISSON,
    size: float = 0.5,
    seed: int = 0,
) -> list[object]:
    """What the loop takes after the width: sites with ``cells`` observed months on average, a few of no weight.

    ``size`` of the negative binomial, infinite for none.
    """
    rng = np.random.default_rng(seed)
    n = rng.poisson(cells, sites)
    ptr = np.r_[0, np.cumsum(n)].astype(np.int64)
    col = np.concatenate([np.sort(rng.choice(L, k, replace=False)) for k in n]).astype(np.int32)
    shape = (fits, col.size)

    def covariance(rows: int) -> np.ndarray:
        A = rng.normal(0, 0.1, (fits, rows, p, p))
        return A @ A.transpose(0, 1, 3, 2)

    E = rng.random(shape) * (rng.random(shape) > 0.05)
    y = E * rng.random(shape) if family.code == 2 else rng.poisson(3, shape) * (E > 0)
    major = rng.integers(-1, sites, fits) if p > 1 else np.full(fits, -1)
    return [
        1, ptr, col, y.astype(float), E, np.zeros((1, 1)), False, np.ones(fits),
        rng.normal(0, 0.3, (fits, L, p)), covariance(L), np.ones((fits, p)), major, np.ones(fits), np.full(fits, 1 / size),
        family.max_step, np.zeros((fits, sites, p)), rng.normal(0, 0.3, (fits, sites, p)), covariance(sites),
        np.zeros(shape), family.code,
    ]  # fmt: skip


def once(
    loop: object, given: list[object], p: int, *, together: bool = False
) -> tuple[float, list[np.ndarray]]:
    """Seconds of one round, and all that it changes."""
    mine = [x.copy() if isinstance(x, np.ndarray) else x for x in given]
    fits = len(mine[3])
    month, stats = np.zeros((fits, L, p * (p + 3) // 2)), np.zeros((fits, 5 + 3 * p))
    tasks, width = (-(-fits // lane_kernels.LANES), lane_kernels.LANES) if together else (fits, p)
    began = time.perf_counter()
    loop(0, tasks, np.arange(fits), width, *mine, month, stats)
    return time.perf_counter() - began, [month, stats, *mine[16:19]]


def main() -> None:
    """Print the table."""
    print(
        "| cells a site | fits | p | any p, ns | one p, ns | side by side, ns | ratio to one p |\n"
        "|---|---|---|---|---|---|---|"
    )
    for sites, cells, fits in ((400, 75.0, 8), (400, 75.0, 5), (9000, 1.25, 8)):
        for p in (1, 2, 3, 4, 5, 6, 7):
            given = arrays(sites, cells, p, fits=fits)
            loops = (
                (kernels._round, False), (kernels._of_width(p), False),
                (lane_kernels.side_by_side(p, POISSON.code), True),
            )  # fmt: skip
            results = [once(loop, given, p, together=together)[1] for loop, together in loops]
            assert all(np.array_equal(*x) for r in results[1:] for x in zip(results[0], r, strict=True)), (
                "other bits"
            )
            best = [
                min(once(loop, given, p, together=together)[0] for _ in range(9)) for loop, together in loops
            ]
            ns = [t / given[3].size * 1e9 for t in best]
            print(
                f"| {cells:g} | {fits} | {p} | "
                + " | ".join(f"{t:.0f}" for t in ns)
                + f" | {ns[1] / ns[2]:.1f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
