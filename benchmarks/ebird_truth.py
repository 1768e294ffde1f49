"""The trend of simulated eBird files through the whole chain, against the truth that made them.

    python benchmarks/ebird_truth.py [--seeds 10] [--records 200000] [--sites seen|all] [--draws 100]

Each seed: the files of an eBird download are simulated, imported, made a panel and fitted with the defaults. The slope of
the fitted yearly totals, its interval and its class are those of the report, in both conventions of the trend's error; the
true slope is that of the simulated expectation over the same sites, years and months.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np

from fedmiss.pipeline.chain import run_recipe
from fedmiss.pipeline.recipe import read_recipe
from fedmiss.pipeline.results import open_fit
from fedmiss.report.trends import overall_trend
from fedmiss.simulate.ebird import EbirdSettings, simulate_ebird
from fedmiss.simulate.truth import read_expected

RECIPE = """
species = "American Wigeon"
[ingest]
files = "sim/ebd_sim.txt"
sampling = "sim/ebd_sim_sampling.txt"
complete = true
[panel]
sites = "{sites}"
[fit]
bootstrap = {draws}
"""


def beside_truth(place, truth):
    """The fit in a species' folder, its trend, the true slope over the same sites and months, and whether it is held.

    By the report's convention of the trend's error, and by TRIM's.
    """
    fitted = open_fit(place / "panel", place / "fit")
    sites, months = list(fitted.panel.sites["site_id"]), fitted.panel.months
    expected = read_expected(truth, fitted.panel.facts.species, sites, list(months["month"]))
    row = overall_trend(fitted.expected.sum(axis=0), months, fitted.draws).iloc[0]
    true = overall_trend(expected.sum(axis=0), months, None).iloc[0]["slope"]
    ends = [[np.log1p(row[f"percent_{end}{c}"] / 100) for end in ("lo", "hi")] for c in ("", "_sampling")]
    return fitted, row, true, [low < true < high for low, high in ends]


def one(folder, seed, records, sites, draws):
    simulate_ebird(folder / "sim", EbirdSettings(records=records, seed=seed))
    (folder / "trend.toml").write_text(RECIPE.format(sites=sites, draws=draws), encoding="utf-8")
    (result,) = run_recipe(read_recipe(folder / "trend.toml"), jobs=1)
    if result.page is None:
        raise SystemExit(f"seed {seed}: {result.error}")
    fitted, row, true, held = beside_truth(result.page.parents[1], folder / "sim" / "truth")
    members = [m["rank"] for m in fitted.manifest["results"]["members"]]
    print(
        f"| {seed} | {len(fitted.panel.sites)} | {true:+.4f} | {row['slope']:+.4f} | {row['slope_se']:.4f} | "
        f"{row['slope_se_sampling']:.4f} | {held[0]} | {held[1]} | {row['trend_class']} | "
        f"{fitted.manifest['results']['model']} {members} |",
        flush=True,
    )
    return row["slope"] - true, row["slope_se"], row["slope_se_sampling"], *held


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--records", type=int, default=200_000)
    parser.add_argument("--sites", choices=["seen", "all"], default="seen")
    parser.add_argument("--draws", type=int, default=100)
    a = parser.parse_args()
    print("| seed | sites | true slope | fitted | se | se, trim | held | held, trim | class | model, ranks |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    rows = []
    for seed in range(1, a.seeds + 1):
        with tempfile.TemporaryDirectory() as folder:
            rows.append(one(Path(folder), seed, a.records, a.sites, a.draws))
    error, se, trim, long, short = np.array(rows, dtype=float).T
    print(
        f"mean bias {error.mean():+.4f}, root mean square {np.sqrt((error**2).mean()):.4f}; mean standard error "
        f"{se.mean():.4f} (trim {trim.mean():.4f}); held in {long.sum():.0f} (trim {short.sum():.0f}) of {len(rows)}"
    )


if __name__ == "__main__":
    main()
