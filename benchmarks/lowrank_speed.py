"""Seconds, bytes and memory of the count model beside its peers. Every part is one table.

    python benchmarks/lowrank_speed.py --part a      the paper's size, Poisson: default fit, cross-validation
    python benchmarks/lowrank_speed.py --part b      10^4 to 10^6 visits (--large adds 10^7): seconds, memory, deviance
    python benchmarks/lowrank_speed.py --part d      bootstrap, 200 draws at the paper's size

CPU seconds are those of the process (all threads); short cases are repeated and the least is kept. Compilation is not
counted: the code has run before it is timed, or the case is repeated. Memory of part b is the peak of a process of its own.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import lowrank_peers as peers  # first: it limits the BLAS threads

# isort: split
import numpy as np

from fedmiss.federation.calls import bootstrap, cross_validate, fit_counts
from fedmiss.federation.results import CountFit
from fedmiss.models.lowrank.data import Group, GroupPanel
from fedmiss.models.lowrank.families import POISSON
from fedmiss.models.lowrank.settings import CountSettings
from fedmiss.simulate.panels import Panel, simulate_panel

PAPER = (9721, 249, 12185)  # sites, months, records


def paper_panel(family: str = "poisson") -> Panel:
    J, L, n = PAPER
    return simulate_panel(J, L, n / (J * L), family=family, observers=2465, test_cells=20_000)


def show(header: list[str], rows: list[list[str]]) -> None:
    print(peers.markdown(header, rows), flush=True)


def seconds(cost: peers.Cost) -> list[str]:
    return [f"{cost.cpu:.2f}", f"{cost.wall:.2f}"]


# -- (a) the paper's size ------------------------------------------------------------------------------------------


def part_a(args: argparse.Namespace) -> None:
    """Poisson, 9,721 x 249, 12,185 records."""
    many = peers.group_panel(paper_panel())
    rows = []
    for name, panel in (("pooled", many.pooled()), (f"{len(many.groups)} groups", many)):
        counts, cost = peers.measure(fit_counts, panel, CountSettings(rank=2), repeat=args.repeat)
        rows.append([f"default (variational), {name}", *seconds(cost), f"{counts.fit.sweeps} rounds"])
        print(rows[-1], flush=True)
    choice, cost = peers.measure(cross_validate, many, [CountSettings(rank=r) for r in range(5)])
    rows.append(["5-fold CV, ranks 0 to 4, 10 groups", *seconds(cost), f"rank {choice.best.rank}"])
    show(["9,721 x 249, 12,185 records", "CPU s", "wall s", "result"], rows)
    print(f"\npeak memory {peers.peak_mib():.0f} MiB")


# -- (b) large panels ----------------------------------------------------------------------------------------------


def _save_panel(path: str, sites: int, observed: float, visits: int | None) -> None:
    p = simulate_panel(sites, 300, observed, observers=1000, visits=visits, test_cells=100_000)
    np.savez(path, shape=p.shape, site=p.site_index, month=p.month_index, y=p.y, group=p.group, observer=p.observer,
             test_site=p.test_site, test_month=p.test_month, y_test=p.y_test,
             truth=p.expected_at(p.test_site, p.test_month))  # fmt: skip


def _read_panel(path: str) -> tuple[GroupPanel, dict[str, np.ndarray]]:
    with np.load(path) as saved:
        J, L = saved["shape"]
        group, site, month, y, who = (saved[k] for k in ("group", "site", "month", "y", "observer"))
        groups = []
        for k in range(int(group.max()) + 1):
            mine = group == k
            groups.append(Group.of(f"g{k:02d}", site[mine], month[mine], y[mine], who[mine]))
        test = {k: saved[k] for k in ("test_site", "test_month", "y_test", "truth")}
    calendar = (np.arange(L) % 12 + 1, 2000 + np.arange(L) // 12)
    return GroupPanel.of(int(J), int(L), groups, calendar), test


def _test_deviance(fit: CountFit, test: dict[str, np.ndarray]) -> float:
    order = np.argsort(test["test_site"], kind="stable")
    out = np.empty(order.size)
    for block in np.array_split(order, max(1, fit.J // 2000)):  # never the whole J x L matrix
        sites, place = np.unique(test["test_site"][block], return_inverse=True)
        out[block] = fit.expected(sites)[place, test["test_month"][block]]
    return float(POISSON.deviance(test["y_test"], out).mean())


def _fit_saved(path: str, settings: CountSettings, repeat: int) -> dict[str, Any]:
    small = peers.group_panel(simulate_panel(1200, 300, 0.3))  # compiles; large enough to start the threads
    fit_counts(small, settings)
    panel, test = _read_panel(path)
    before = peers.peak_mib()
    fit, cost = peers.measure(fit_counts, panel, settings, repeat=repeat)
    peak = peers.peak_mib()
    return {"cost": cost, "rounds": fit.fit.sweeps, "converged": fit.fit.converged, "peak": peak, "before": before,
            "m": panel.m, "deviance": _test_deviance(fit, test),
            "truth": float(POISSON.deviance(test["y_test"], test["truth"]).mean())}  # fmt: skip


def _peers_saved(path: str) -> list[list[str]]:
    panel, test = _read_panel(path)
    g = panel.pooled().groups[0]
    rows = []
    (alpha, beta), cost = peers.measure(peers.additive_glm, g.site, g.month, g.count, panel.J, panel.L)
    mu = np.maximum(alpha[test["test_site"]] * beta[test["test_month"]], 1e-3)
    score = f"{POISSON.deviance(test['y_test'], mu).mean():.3f}"
    rows.append(["site + time GLM (fitting of margins)", f"{panel.m:,}", *seconds(cost), "", "", score])
    x = np.log1p(g.count)
    x0, shape = float(x.mean()), (panel.J, panel.L)
    peers.soft_impute_als(g.site[:9], g.month[:9], x[:9], shape, 1.0, 2, max_iterations=1)
    lam = 0.02 * peers.largest_lambda(g.site, g.month, x - x0, shape)
    for rank in (4, 10):
        fit, cost = peers.measure(peers.soft_impute_als, g.site, g.month, x - x0, shape, lam, rank)
        smear = (1 + g.count).sum() / np.exp(x0 + fit.at(g.site, g.month)).sum()
        mu = np.maximum(smear * np.exp(x0 + fit.at(test["test_site"], test["test_month"])) - 1, 1e-3)
        score = f"{POISSON.deviance(test['y_test'], mu).mean():.3f}"
        rows.append([f"softImpute log1p, rank {rank}, one lambda", f"{panel.m:,}", *seconds(cost),
                     f"{len(fit.objective)}", "", score])  # fmt: skip
    return rows


def part_b(args: argparse.Namespace) -> None:
    """Cost by number of visits; a third of the cells seen (10,000 sites at 10^6 visits), 10 groups."""
    cases: list[tuple[str, int, float, int | None]] = [
        ("100 x 300", 100, 1 / 3, None), ("1,000 x 300", 1000, 1 / 3, None), ("10,000 x 300", 10_000, 1 / 3, None),
    ]  # fmt: skip
    fits = [
        ("default, rank 2", CountSettings(rank=2)),
        ("default, rank 4", CountSettings(rank=4)),
    ]
    if args.large:
        fits = fits[:1]
        cases = [
            ("100,000 x 300", 100_000, 1 / 3, None),
            ("10,000 x 300, 0.8 of the cells", 10_000, 0.8, 10_000_000),
        ]
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for name, sites, observed, visits in cases:
            path = str(Path(folder) / f"{sites}-{observed:.2f}.npz")
            peers.in_own_process(_save_panel, path, sites, observed, visits)
            for label, settings in fits:
                repeat = 1 if args.large else min(args.repeat, 3)
                r = peers.in_own_process(_fit_saved, path, settings, repeat)
                rows.append([f"{name}: {label}", f"{r['m']:,}", *seconds(r["cost"]), str(r["rounds"]),
                             f"{r['peak']:.0f}", f"{r['deviance']:.3f} ({r['truth']:.3f})",
                             f"{1e6 * r['cost'].cpu / r['m']:.2f}"])  # fmt: skip
                print(rows[-1], flush=True)
            if sites == 10_000 and not args.large:
                rows += [[*r, ""] for r in peers.in_own_process(_peers_saved, path)]
    show(
        [
            "panel",
            "visits",
            "CPU s",
            "wall s",
            "rounds",
            "peak MiB",
            "held-out deviance (truth)",
            "CPU µs per visit",
        ],
        rows,
    )


# -- (d) bootstrap -------------------------------------------------------------------------------------------------


def part_d(args: argparse.Namespace) -> None:
    """200 replicates of the default fit at the paper's size, 10 groups."""
    panel = peers.group_panel(paper_panel())
    assert panel.calendar is not None
    fit, first = peers.measure(fit_counts, panel, CountSettings(rank=2), repeat=args.repeat)
    bootstrap(panel, fit, draws=1)
    draws, cost = peers.measure(bootstrap, panel, fit, draws=200)
    spread = draws.totals[:, 0, :].std(axis=0) / draws.totals[:, 0, :].mean(axis=0)
    show(["9,721 x 249, 12,185 records, rank 2", "CPU s", "wall s", "result"], [
        ["the fit", *seconds(first), f"{fit.fit.sweeps} rounds"],
        ["200 replicates", *seconds(cost), f"relative sd of a month's total: median {np.median(spread):.2f}"],
    ])  # fmt: skip
    print(f"\npeak memory {peers.peak_mib():.0f} MiB")


PARTS = {"a": part_a, "b": part_b, "d": part_d}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--part", choices=PARTS, action="append", help="one or more; default all")
    parser.add_argument(
        "--repeat", type=int, default=3, help="repetitions of a short case; the least time counts"
    )
    parser.add_argument("--large", action="store_true", help="part b: 10^7 visits instead of 10^4 to 10^6")
    args = parser.parse_args()
    for name in args.part or PARTS:
        print(f"\n## ({name}) {PARTS[name].__doc__}\n", flush=True)
        PARTS[name](args)


if __name__ == "__main__":
    main()
