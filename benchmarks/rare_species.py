"""Rare species with every site in the panel: does the default fit end well, and does the slope's interval hold the truth?

    python benchmarks/rare_species.py [--panels 100] [--first 0] [--bootstrap 0] [--cells 0 1 2 3 4] [--out rare.csv]

A panel is the design ``random`` of `tests/designs.py` (site slopes, site-years, growing effort, observers) in
which most sites never have a bird, as in ``fedmiss panel --sites all``. The fit is the default of ``fedmiss fit``:
cross-validation of ranks and distributions, the prior that follows visits, the average of near ranks, and with
``--bootstrap`` the replicates. ``--bootstrap 0`` counts tracebacks, numbers that are not finite, and fits that did not
converge; with replicates the slope of the yearly totals is compared with its truth. ``--out`` keeps a line for every panel,
and a panel that has a line is not run again.
"""

from __future__ import annotations

import argparse
import csv
import os
import sys
import traceback
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("FEDMISS_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace

import numpy as np
from trend_truth import panel_of, slope_of, yearly

from fedmiss.errors import FedmissError
from fedmiss.federation.fit_tables import totals_by_region
from fedmiss.federation.local import LocalFederation
from fedmiss.models.lowrank.choice import default_candidates
from fedmiss.models.lowrank.settings import CountSettings
from fedmiss.models.lowrank.structure import FEATURES
from fedmiss.rng import rng_for
from tests.designs import TrendPanel, simulate_design

# visits, sites, share of the sites that are occupied
CELLS = ((100, 40, 0.40), (170, 57, 0.30), (600, 80, 0.10), (1200, 80, 0.05), (3000, 96, 0.25))
FIELDS = "visits sites occupied seed draws birds positive end mu most_tau level error se".split()


def rare_panel(visits: int, sites: int, occupied: float, seed: int) -> TrendPanel:
    """A panel of which only a share of the sites ever has birds; at least two have, and one bird is counted."""
    rng = rng_for(seed, "rare", visits)
    for attempt in range(100):
        p = simulate_design("random", 1000 * seed + attempt, visits=visits, sites=sites)
        with_birds = np.zeros(sites, bool)
        with_birds[rng.permutation(sites)[: max(2, round(occupied * sites))]] = True
        count = p.count * with_birds[p.site]
        if count.any():
            return replace(p, count=count, expected=p.expected * with_birds[:, None])
    raise ValueError(f"no bird in 100 panels of {visits} visits, {occupied:.0%} of {sites} sites occupied")


def fit_default(p: TrendPanel, seed: int, draws: int = 0):
    """The default fit of a panel: the average of fits, and the yearly totals of the replicates."""
    federation = LocalFederation.of_panel(panel_of(p))
    choice = federation.cross_validate(default_candidates(CountSettings()), seed=seed, structure=FEATURES)
    fit = federation.fit_average(choice.members)
    return fit, choice, federation.replicates(range(draws), seed=seed).totals[:, 0] if draws else None


def fit_panel(job: tuple[int, int, int]) -> dict[str, object]:
    """One row of the table; ``end`` says how the fit ended."""
    cell, seed, draws = job
    visits, sites, occupied = CELLS[cell]
    p = rare_panel(visits, sites, occupied, seed)
    row: dict[str, object] = dict.fromkeys(FIELDS, "")
    row |= {"visits": visits, "sites": sites, "occupied": occupied, "seed": seed, "draws": draws}
    row |= {"birds": int(p.count.sum()), "positive": int((p.count > 0).sum())}
    try:
        fit, choice, monthly = fit_default(p, seed, draws)
    except FedmissError as error:
        return row | {"end": f"refused: {error}"}
    except Exception as error:  # a traceback is what is counted here
        where = traceback.extract_tb(error.__traceback__)[-1]
        return row | {"end": f"traceback: {type(error).__name__} at {where.name}"}
    row["mu"] = f"{min(f.posterior.mu for f in fit.fits):.3f}"
    row["most_tau"] = f"{max(f.posterior.tau.max() for f in fit.fits):.3f}"
    total = totals_by_region(fit, np.full(fit.J, -1), 0)[0]
    scores = choice.summary[["deviance", "log_rmse"]].to_numpy(dtype=float)
    finite = np.isfinite(total).all() and (total > 0).all() and np.isfinite(scores).all()
    if not finite or (monthly is not None and not np.isfinite(monthly).all()):
        return row | {"end": "nan"}
    row["level"] = f"{total.sum() / p.expected.sum():.3f}"
    row["error"] = f"{slope_of(yearly(total, p.year)) - p.slope:.5f}"
    if monthly is not None:
        row["se"] = f"{slope_of(yearly(monthly, p.year)).std(ddof=1):.5f}"
    late = [f for f in fit.fits if not f.fit.converged]
    return row | {"end": "not converged" if late else "converged"}


def report(rows: list[dict[str, str]]) -> None:
    """Print the table of cells, and the ways to end that are not ``converged``."""
    head = "visits, sites, occupied, panels, birds, traceback, refused, nan, not converged, total / true, bias (se), RMSE"
    columns = [*head.split(", "), "mean se", "covered"]
    print(f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}")
    for visits, sites, occupied in CELLS:
        mine = [r for r in rows if (int(r["visits"]), int(r["sites"])) == (visits, sites)]
        if not mine:
            continue
        ends = [
            sum(r["end"].startswith(e) for r in mine) for e in ("traceback", "refused", "nan", "not conv")
        ]
        error = np.array([float(r["error"]) for r in mine if r["error"]])
        with_se = [(float(r["error"]), float(r["se"])) for r in mine if r["se"]]
        covered = f"{sum(abs(e) < 1.96 * s for e, s in with_se)} of {len(with_se)}" if with_se else ""
        mean_se = f"{np.mean([s for _, s in with_se]):.3f}" if with_se else ""
        bias = rmse = ""
        if error.size > 1:
            bias = f"{error.mean():+.3f} ({error.std(ddof=1) / error.size**0.5:.3f})"
            rmse = f"{np.sqrt((error**2).mean()):.3f}"
        birds = np.median([int(r["birds"]) for r in mine])
        level = np.median([float(r["level"]) for r in mine if r["level"]] or [np.nan])
        shape = [visits, sites, f"{occupied:.0%}", len(mine), f"{birds:.0f}"]
        cells = [*shape, *ends, f"{level:.2f}", bias, rmse, mean_se, covered]
        print(f"| {' | '.join(str(c) for c in cells)} |")
    for r in rows:
        if r["end"] != "converged":
            print(f"{r['visits']} visits, {r['sites']} sites, seed {r['seed']}: {r['end']}")


def main() -> None:
    """Run the panels that the table lacks, then print it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--panels", type=int, default=100, help="panels of each cell")
    parser.add_argument("--first", type=int, default=0, help="first seed")
    parser.add_argument("--bootstrap", type=int, default=0, help="replicates of each panel")
    parser.add_argument("--cells", type=int, nargs="*", default=list(range(len(CELLS))))
    parser.add_argument("--out", type=Path, default=Path("rare_species.csv"))
    parser.add_argument("--workers", type=int, default=2)
    a = parser.parse_args()
    rows = list(csv.DictReader(a.out.open())) if a.out.exists() else []
    done = {(int(r["visits"]), int(r["sites"]), int(r["seed"]), int(r["draws"])) for r in rows}
    jobs = [
        (cell, seed, a.bootstrap)
        for seed in range(a.first, a.first + a.panels)
        for cell in a.cells
        if (*CELLS[cell][:2], seed, a.bootstrap) not in done
    ]
    with a.out.open("a", newline="") as file, ProcessPoolExecutor(a.workers) as pool:
        table = csv.DictWriter(file, FIELDS)
        if not rows:
            table.writeheader()
        for row in pool.map(fit_panel, jobs):
            table.writerow(row)
            file.flush()
    report([r for r in csv.DictReader(a.out.open()) if int(r["draws"]) == a.bootstrap])


if __name__ == "__main__":
    main()
