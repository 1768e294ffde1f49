"""Trends where one site, or three, hold most of the birds, and change in another way than all others.

    python benchmarks/one_colony.py [--panels 40]

Yearly counts of 20 years, negative binomial, a quarter of the site-years missing; the slopes of the small sites differ by
0.02 a year. Default fits and reports, 100 replicates. True slopes are those of the true
totals; "held": intervals of the default convention.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

os.environ |= {"OPENBLAS_NUM_THREADS": "1", "FEDMISS_THREADS": "1", "FEDMISS_QUIET": "1"}

import numpy as np

from fedmiss import (
    FitSettings,
    IngestSettings,
    ReportSettings,
    build_report,
    fit_panel,
    impute_panel,
    ingest,
    make_panel,
)
from fedmiss.files import read_manifest

YEARS = 20
# large sites, their mean birds and slope, that of the others, size of the negative binomial, sites, share missing
WORLDS = {
    "as the others": (1, 2000, 0.0, 0.0, 5.0, 40, 0.25),
    "declines, scattered counts": (1, 2000, -0.05, 0.0, 5.0, 40, 0.25),
    "declines": (1, 2000, -0.05, 0.0, 30.0, 40, 0.25),
    "grows, the others decline": (1, 2000, 0.05, -0.02, 20.0, 40, 0.25),
    "of eight sites": (1, 200, -0.05, 0.0, 10.0, 8, 0.4),
    "three, as the others": (3, 2000, 0.0, 0.0, 5.0, 40, 0.25),
    "three decline, scattered counts": (3, 2000, -0.05, 0.0, 5.0, 40, 0.25),
    "three grow, the others decline": (3, 2000, 0.03, -0.02, 20.0, 40, 0.25),
}


def one(world: str, seed: int) -> tuple[float, float, bool, str]:
    """True slope of the total, the report's, whether its interval holds, and its class."""
    large, birds, own, others, size, sites, missing = WORLDS[world]
    rng = np.random.default_rng(seed)
    level, slope = np.log(8.0) + rng.normal(0, 0.8, sites), others + rng.normal(0, 0.02, sites)
    level[:large], slope[:large] = np.log(birds), own
    t = np.arange(YEARS) - (YEARS - 1) / 2
    mean = np.exp(level[:, None] + slope[:, None] * t)
    count = rng.poisson(mean * rng.gamma(size, 1.0 / size, mean.shape))
    site, year = np.nonzero(rng.random(mean.shape) > missing)
    true = float(np.polyfit(t, np.log(mean.sum(axis=0)), 1)[0])
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        rows = (f"s{j},{2000 + y},{count[j, y]}" for j, y in zip(site, year, strict=True))
        (work / "counts.csv").write_text("\n".join(["site,year,count", *rows]) + "\n")
        settings = IngestSettings(species=("Tern",), column_map={"auto": ""})
        ingest([work / "counts.csv"], work / "records", settings)
        make_panel(work / "records", work / "panel")
        fit_panel(work / "panel", work / "fit", FitSettings(bootstrap=100))
        impute_panel(work / "panel", work / "fit", work / "imputed")
        build_report(work / "panel", work / "fit", work / "imputed", work / "report", ReportSettings())
        found = read_manifest(work / "report", "report")["results"]
    low, high = (np.log1p(found[f"percent_{end}"] / 100.0) for end in ("lo", "hi"))
    return true, float(found["slope"]), bool(low <= true <= high), str(found["trend_class"])


def main() -> None:
    """Print the table."""
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--panels", type=int, default=40)
    panels = asked.parse_args().panels
    print("| large sites | true slope | bias | RMSE | held, % | classes |\n|---|---|---|---|---|---|")
    with ProcessPoolExecutor() as pool:
        for world in WORLDS:
            true, slope, held, kind = zip(*pool.map(one, [world] * panels, range(panels)), strict=True)
            error = np.subtract(slope, true)
            classes = ", ".join(f"{name} {n}" for name, n in Counter(kind).most_common())
            said = f"{np.mean(true):+.3f} | {error.mean():+.4f} | {np.sqrt((error**2).mean()):.4f}"
            print(f"| {world} | {said} | {100 * np.mean(held):.0f} | {classes} |", flush=True)


if __name__ == "__main__":
    main()
