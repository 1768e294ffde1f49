"""Seconds, bytes and memory of the low-rank solver beside its peers. Every part is one table.

    python benchmarks/lowrank_speed.py --part a      the paper's size, Poisson: solver, default fit, cross-validation
    python benchmarks/lowrank_speed.py --part b      10^4 to 10^6 visits (--large adds 10^7): seconds, memory, deviance
    python benchmarks/lowrank_speed.py --part c      Gaussian at equal objective against softImpute-ALS
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

from fedmiss.federation.local import bootstrap, cross_validate, fit_counts
from fedmiss.federation.results import CountFit
from fedmiss.models.lowrank.certificate import fit_certified
from fedmiss.models.lowrank.data import Cells, Group, GroupPanel
from fedmiss.models.lowrank.families import POISSON, family_of
from fedmiss.models.lowrank.settings import CountSettings
from fedmiss.models.lowrank.solver import Fit, Penalty, fit_cells
from fedmiss.simulate.panels import Panel, simulate_panel

PAPER = (9721, 249, 12185)  # sites, months, records


def paper_panel(family: str = "poisson") -> Panel:
    J, L, n = PAPER
    return simulate_panel(J, L, n / (J * L), family=family, observers=2465, test_cells=20_000)


def filled(panel: GroupPanel, family: str) -> list[Cells]:
    """Index and sum the visits of every group, as a fit does first."""
    out = []
    for g in panel.groups:
        c = Cells.index(g, panel.J, panel.L)
        c.fill(g, family_of(family))
        out.append(c)
    return out


def centred(panel: GroupPanel) -> GroupPanel:
    """Subtract the overall mean of the values (the Gaussian problems have no intercept)."""
    mean = float(np.concatenate([g.count for g in panel.groups]).mean())
    groups = [Group.of(g.name, g.site, g.month, g.count - mean, g.observer) for g in panel.groups]
    return GroupPanel.of(panel.J, panel.L, groups, panel.calendar)


def show(header: list[str], rows: list[list[str]]) -> None:
    print(peers.markdown(header, rows), flush=True)


def seconds(cost: peers.Cost) -> list[str]:
    return [f"{cost.cpu:.2f}", f"{cost.wall:.2f}"]


# -- (a) the paper's size ------------------------------------------------------------------------------------------


def solve(panel: GroupPanel, family: str, **options: Any) -> Fit:
    """From visits to parameters: index and sum the cells, then minimise."""
    return fit_cells(filled(panel, family), panel.J, panel.L, family=family, **options)


def part_a(args: argparse.Namespace) -> None:
    """Poisson, 9,721 x 249, 12,185 records, rank 2; ridge 4 is what cross-validation chooses, 1 is harder."""
    many = peers.group_panel(paper_panel())
    rows = []
    for ridge in (4.0, 1.0):
        for name, panel in (("pooled", many.pooled()), (f"{len(many.groups)} groups", many)):
            options: dict[str, Any] = {"penalty": Penalty(ridge, 1.0, 1.0)}
            values = solve(panel, "poisson", tol=0.0, max_sweeps=1000, **options).objective
            best = values[-1]
            steps = int(np.argmax(np.array(values) <= best + 1e-6 * abs(best))) + 1
            for label, stop in (
                ("to 1e-6", {"tol": 0.0, "max_sweeps": steps}),
                ("own stop, tol 1e-7", {"tol": 1e-7}),
            ):
                fit, cost = peers.measure(solve, panel, "poisson", repeat=args.repeat, **options, **stop)
                error = (fit.objective[-1] - best) / abs(best)
                what = f"{fit.sweeps} steps, {error:.0e} above where {len(values)} steps end"
                rows.append([f"penalised, ridge {ridge:g}, {label}, {name}", *seconds(cost), what])
                print(rows[-1], flush=True)
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


# -- (c) Gaussian at equal objective -------------------------------------------------------------------------------


def part_c(args: argparse.Namespace) -> None:
    """Nuclear-norm problem: seconds until the objective is within 1e-5 (relative) of the certified optimum."""
    J, L, n = PAPER
    cases = (
        ("2,000 x 300, 60,000 cells", simulate_panel(2000, 300, 0.1, family="gaussian", test_cells=0)),
        (f"{J:,} x {L}, {n:,} cells", paper_panel("gaussian")),
    )
    rows = []
    for name, p in cases:
        panel = centred(peers.group_panel(p).pooled())
        g, shape = panel.groups[0], (panel.J, panel.L)
        data = (g.site, g.month, g.count, shape)
        constant = 0.5 * float((g.count**2).sum())  # softImpute's objective is ours plus ||x||^2 / 2
        for share in args.share or (0.5, 0.25):
            lam = share * peers.largest_lambda(*data)
            rows.append(
                [
                    f"{name}, lambda {share:g} of the largest",
                    *equal_objective(panel, data, lam, constant, args),
                ]
            )
            print(rows[-1], flush=True)
    show(
        [
            "panel",
            "rank",
            "gap of the reference",
            "fedmiss CPU s (sweeps)",
            "softImpute-ALS CPU s (iterations)",
            "ratio",
            "fedmiss with certificate 1e-5, CPU s",
            "softImpute's own stop: relative error (iterations)",
        ],
        rows,
    )


def equal_objective(
    panel: GroupPanel, data: tuple[Any, ...], lam: float, constant: float, args: argparse.Namespace
) -> list[str]:
    """Time both solvers to the same objective, relative to P + ||x||^2 / 2, which is the positive one."""
    shape = (panel.J, panel.L)
    exact, cert = fit_certified(
        filled(panel, "gaussian"), *shape, penalty=lam, gap=1e-7, max_rank=100, max_sweeps=args.sweeps
    )
    best = cert.primal + constant
    size = np.linalg.norm(exact.theta.U, axis=0)
    rank = max(1, int((size > 1e-3 * size.max()).sum()))
    options: dict[str, Any] = {"rank": rank, "effects": False, "penalty": Penalty(lam), "tol": 0.0}
    values = np.array(solve(panel, "gaussian", max_sweeps=args.sweeps, **options).objective) + constant
    low = values <= best * (1 + 1e-5)
    sweeps = int(np.argmax(low)) + 1 if low.any() else values.size
    _, cost = peers.measure(solve, panel, "gaussian", max_sweeps=sweeps, repeat=args.repeat, **options)
    soft, soft_cost = peers.measure(
        peers.soft_impute_als, *data, lam, rank, tol=0.0, max_iterations=20_000, target=best * (1 + 1e-5)
    )
    (_, own), proof = peers.measure(
        fit_certified,
        filled(panel, "gaussian"),
        *shape,
        penalty=lam,
        gap=1e-5,
        max_rank=100,
        max_sweeps=args.sweeps,
    )
    default = peers.soft_impute_als(*data, lam, rank)
    there = soft.objective[-1] <= best * (1 + 1e-5)
    return [
        str(rank),
        f"{cert.gap:.0e}",
        f"{cost.cpu:.3f} ({sweeps})" if low.any() else f"not in {sweeps} sweeps",
        f"{soft_cost.cpu:.2f} ({len(soft.objective)})"
        if there
        else f"not in {len(soft.objective)} iterations",
        f"{soft_cost.cpu / cost.cpu:.1f}",
        f"{proof.cpu:.2f} (gap {own.gap:.0e})",
        f"{default.objective[-1] / best - 1:.0e} ({len(default.objective)})",
    ]


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


PARTS = {"a": part_a, "b": part_b, "c": part_c, "d": part_d}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--part", choices=PARTS, action="append", help="one or more; default all")
    parser.add_argument(
        "--repeat", type=int, default=3, help="repetitions of a short case; the least time counts"
    )
    parser.add_argument("--large", action="store_true", help="part b: 10^7 visits instead of 10^4 to 10^6")
    parser.add_argument("--sweeps", type=int, default=3000, help="part c: most sweeps of a fit")
    parser.add_argument(
        "--share", type=float, action="append", help="part c: lambda over the largest useful one"
    )
    args = parser.parse_args()
    for name in args.part or PARTS:
        print(f"\n## ({name}) {PARTS[name].__doc__}\n", flush=True)
        PARTS[name](args)


if __name__ == "__main__":
    main()
