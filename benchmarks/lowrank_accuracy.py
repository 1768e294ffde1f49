"""Held-out accuracy of the low-rank count model beside its peers, on simulated panels whose truth is known.

    python benchmarks/lowrank_accuracy.py                      all panels, 5 seeds, markdown tables
    python benchmarks/lowrank_accuracy.py --panel weak --seeds 2 --out weak.csv

Panels (fedmiss.simulate.panels, 10 % of the cells seen once):
    random, preferential, weak   1,000 x 200, Poisson; the preferential one is scored on visited and on never-visited
                                 cells apart
    sparse                       500 x 100 (5,000 cells), kind random
    zero-inflated                1,000 x 200, negative binomial of size 1, cells set to zero until 35 % are zero

Columns:
    truth          the true expected counts
    mean           the mean of the observed counts
    GLM            site + time Poisson GLM by iterative proportional fitting (rtrim's model 3)
    softImpute     on log(1 + count), raw or after site and month means, lambda on a warm-started path; the back-transform
                   has the factor that makes the observed total right. "chosen": variant and lambda by 10 % of the cells set
                   aside; "oracle": the best of all on the cells that score it, which no user could choose
    default        fedmiss, what ``fedmiss fit`` does: variational EM, model and rank by 5-fold cross-validation

Expected counts are floored at 0.001 for every method (one that bets on exactly zero would have an infinite deviance).
"""

from __future__ import annotations

import argparse
import csv
from collections import Counter
from dataclasses import replace
from pathlib import Path

import lowrank_peers as peers  # first: it limits the BLAS threads

# isort: split
import numpy as np

from fedmiss.federation.local import LocalFederation
from fedmiss.models.lowrank.choice import model_name
from fedmiss.models.lowrank.data import GroupPanel
from fedmiss.models.lowrank.families import POISSON
from fedmiss.models.lowrank.structure import FEATURES
from fedmiss.pipeline.plans import base_settings, candidates
from fedmiss.pipeline.settings import FitSettings
from fedmiss.simulate.panels import Panel, simulate_panel

PANELS = ("random", "preferential", "weak", "sparse", "zero-inflated")
METHODS = ("truth", "mean", "GLM", "softImpute chosen", "softImpute oracle", "default")
ZEROS = 0.35
FLOOR = 1e-3


def make_panel(name: str, seed: int) -> tuple[Panel, float]:
    """Return a panel and the factor that its zero inflation puts on the expected counts."""
    if name == "sparse":
        return simulate_panel(500, 100, 0.1, seed=seed), 1.0
    if name != "zero-inflated":
        return simulate_panel(1000, 200, 0.1, kind=name, seed=seed), 1.0
    p = simulate_panel(1000, 200, 0.1, kind="random", family="negbin", size=1.0, seed=seed)
    already = float((p.y == 0).mean())
    share = max(0.0, (ZEROS - already) / (1 - already))
    rng = np.random.default_rng([seed, 35])
    y, fresh = p.y * (rng.random(p.y.size) >= share), p.y_test * (rng.random(p.y_test.size) >= share)
    return replace(p, y=y, y_test=fresh), 1.0 - share


def soft_impute(p: Panel) -> list[np.ndarray]:
    """Fit both variants along the lambda path: counts expected on the test cells, by choice and then the whole path."""
    order = np.lexsort((p.month_index, p.site_index))
    s, t, y = p.site_index[order], p.month_index[order], p.y[order]
    aside = np.random.default_rng([p.seed, 10]).random(y.size) < 0.1
    tried = peers.soft_impute_tried(s, t, y, (p.test_site, p.test_month), p.shape, aside)
    chosen = min(tried, key=lambda v: v[0])[1]
    return [chosen, *(final for _, final in tried)]


def predictions(
    p: Panel, panel: GroupPanel, factor: float
) -> tuple[dict[str, list[np.ndarray]], dict[str, str]]:
    """Return the expected counts of every method on the test cells, and what fedmiss chose."""
    s, t, y, (J, L) = p.site_index, p.month_index, p.y, p.shape
    alpha, beta = peers.additive_glm(s, t, y, J, L)
    soft = soft_impute(p)
    out = {
        "truth": [p.expected_at(p.test_site, p.test_month) * factor],
        "mean": [np.full(p.test_site.size, y.mean())],
        "GLM": [alpha[p.test_site] * beta[p.test_month]],
        "softImpute chosen": soft[:1],
        "softImpute oracle": soft[1:],
    }
    grid = candidates(FitSettings(), base_settings(FitSettings()))
    federation = LocalFederation.of_panel(panel)
    best = federation.cross_validate(grid, seed=p.seed, structure=FEATURES).best
    chosen = {"default": f"{model_name(best)} rank {best.rank}{''.join(f' {f}' for f in best.features)}"}
    out["default"] = [federation.fit(best).expected()[p.test_site, p.test_month]]
    return out, chosen


def score(name: str, seed: int) -> list[dict[str, object]]:
    """Score every method on one panel; one row per method and kind of cells."""
    p, factor = make_panel(name, seed)
    panel = peers.group_panel(p)
    expected, chosen = predictions(p, panel, factor)
    truth = expected["truth"][0]
    parts = {"": np.ones(truth.size, dtype=bool)}
    if name == "preferential":
        parts = {" visited": p.test_visited, " never visited": ~p.test_visited}
    rows: list[dict[str, object]] = []
    for part, cells in parts.items():
        y = p.y_test[cells]
        for method in METHODS:
            tries = [np.maximum(e[cells], FLOOR) for e in expected[method]]
            mu = min(tries, key=lambda e: float(POISSON.deviance(y, e).mean()))
            rows.append({
                "panel": name + part,
                "seed": seed,
                "method": method,
                "deviance": float(POISSON.deviance(y, mu).mean()),
                "log_rmse": float(np.sqrt(((np.log1p(y) - np.log1p(mu)) ** 2).mean())),
                "total": float(mu.sum() / truth[cells].sum()),
                "chosen": chosen.get(method, ""),
            })  # fmt: skip
    return rows


def table(rows: list[dict[str, object]], key: str, digits: int) -> str:
    """Lay out the mean over seeds of one score; ± is the standard error of that mean."""
    lines = []
    for panel in dict.fromkeys(str(r["panel"]) for r in rows):
        line = [f"{panel} ({len({r['seed'] for r in rows if r['panel'] == panel})})"]
        for method in METHODS:
            values = np.array([r[key] for r in rows if r["panel"] == panel and r["method"] == method])
            error = f" ± {values.std(ddof=1) / np.sqrt(values.size):.{digits}f}" if values.size > 1 else ""
            line.append(
                f"{values.mean():.{digits}f}{error}" if values.mean() < 1000 else f"{values.mean():.0e}"
            )
        lines.append(line)
    return peers.markdown(["panel (seeds)", *METHODS], lines)


def print_tables(rows: list[dict[str, object]]) -> None:
    """Print one table per score, and what fedmiss chose how often."""
    for key, title, digits in (
        ("deviance", "Held-out Poisson deviance per cell", 2),
        ("log_rmse", "Root mean square error of log(1 + count)", 2),
        ("total", "Predicted total over the true one", 2),
    ):
        print(f"\n{title} (mean over the seeds ± standard error)\n\n{table(rows, key, digits)}")
    print("\nWhat cross-validation chose (number of panels)\n")
    for (panel, method, pick), n in sorted(
        Counter((r["panel"], r["method"], r["chosen"]) for r in rows).items()
    ):
        if pick:
            print(f"- {panel}, {method}: {pick} ({n})")


def _typed(row: dict[str, str]) -> dict[str, object]:
    numbers = {k: float(row[k]) for k in ("deviance", "log_rmse", "total")}
    return {**row, "seed": int(row["seed"]), **numbers}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--panel", choices=PANELS, action="append", help="one or more; default all")
    parser.add_argument("--seeds", type=int, default=5, help="number of seeds, from 0")
    parser.add_argument("--out", type=Path, help="CSV with one row per panel, seed and method")
    parser.add_argument(
        "--read", type=Path, action="append", help="print the tables of such CSV files, measure nothing"
    )
    args = parser.parse_args()
    if args.read:
        print_tables([_typed(r) for path in args.read for r in csv.DictReader(path.open())])
        return
    rows: list[dict[str, object]] = []
    for seed in range(args.seeds):
        for name in args.panel or PANELS:
            new, cost = peers.measure(score, name, seed)
            rows += new
            picks = "; ".join(
                f"{r['method']}: {r['chosen']}" for r in new if r["chosen"] and r["panel"] == new[0]["panel"]
            )
            print(f"{name}, seed {seed}: {cost.cpu:.0f} CPU s; {picks}", flush=True)
            if args.out:
                peers.write_rows(args.out, rows)
    print_tables(rows)
    print(f"\npeak memory {peers.peak_mib():.0f} MiB")


if __name__ == "__main__":
    main()
