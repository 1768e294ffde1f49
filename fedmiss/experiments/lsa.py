"""FedLSA, SCAFFLSA, federated averaging and Richardson-Romberg: the talk's figures, on exact laws."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from fedmiss.arrays import F64
from fedmiss.compressors import Dithering, Identity
from fedmiss.core import (
    Bernoulli,
    Downlink,
    FedEM,
    LocalSteps,
    Result,
    Roster,
    ServerState,
    fed_lsa,
    run,
    scafflsa,
)
from fedmiss.engines import LocalEngine
from fedmiss.experiments.folder import Folder, columns_of
from fedmiss.models.fedavg import RidgeLogistic, bias_first_order, richardson_romberg
from fedmiss.models.lsa import LSA, Law, garnet, linear_pools, mean_system
from fedmiss.models.lsa_theory import bias, rounds_to, solution
from fedmiss.models.lsa_theory import bias_first_order as first_order
from fedmiss.rng import rng_for

HS = (100, 1000, 10_000)
LIMITS = {0.1: (5e-5, 13.0), 0.01: (5e-6, 13.0)}  # of the authors' axes, by eta
Panel = tuple[float, int, int, dict[str, F64], float]  # eta, H, rounds between points, curves, squared bias


def main(folder: Folder) -> None:
    """Six figures: error against rounds (two), bias against H and eta, rounds to eps, extrapolation, compression."""
    _td(folder)
    _bias(folder)
    _accuracy(folder)
    _extrapolation(folder)
    _compressed(folder)
    folder.finish("Federated linear stochastic approximation and averaging", H=list(HS))


def squared_error(
    algo: FedEM, data: F64 | list[Law], theta: F64, start: F64, *, rounds: int, every: int, label: str
) -> tuple[F64, Result]:
    """||theta_k - theta*||^2 of one run from ``start`` at rounds 0, every, 2 every, .., and the run."""

    def observe(server: ServerState, down: Downlink) -> dict[str, float]:
        return {"squared_error": float(((server.S_hat - theta) ** 2).sum())}

    result = run(
        algo, LocalEngine(data), start, stop=rounds, init="zero", observe=observe, observe_every=every, label=label
    )  # fmt: skip
    seen = result.trace["squared_error"]
    return seen[~np.isnan(seen)], result


def _td(folder: Folder) -> None:
    """The talk's figure: agents that are alike, and agents that differ."""
    samples, n_workers = (100_000, 20) if folder.quick else (500_000, 100)
    settings = [(eta, H) for eta in (0.1, 0.01) for H in HS]
    if folder.quick:
        settings = [(0.1, 100), (0.1, 1000)]
    lines = []
    for kind in ("homogeneous", "heterogeneous"):
        data = garnet(n_workers, heterogeneous=kind == "heterogeneous", seed=folder.seed)
        A, b = mean_system(data)
        theta = solution(A, b)[0]
        # The rate at which the start is forgotten: exp(-eta smallest) a step.
        smallest = float(np.linalg.eigvals(A.mean(axis=0)).real.min())
        common: dict[str, Any] = {
            "model": LSA(theta.size), "compressor": Identity(), "roster": Roster.of([Law.SIZE] * n_workers),
            "seed": folder.seed,
        }  # fmt: skip
        columns: dict[str, F64] = {}
        panels = []
        for eta, H in settings:
            rounds = samples // H
            every = max(rounds // 100, 1)
            # Exact, also for noisy draws: the line at which FedLSA's error must level off.
            miss = bias(A, b, eta, H)
            curves: dict[str, F64] = {}
            for name, make, extra in (("FedLSA", fed_lsa, {}), ("SCAFFLSA", scafflsa, {"alpha": 1.0})):
                algo = make(H=H, eta=eta, b=1, **common, **extra)
                label = f"{kind}, H = {H}"
                curves[name], result = squared_error(
                    algo, data, theta, theta + 1.0, rounds=rounds, every=every, label=label
                )
                if (kind, eta, H) == ("heterogeneous", 0.1, 1000):
                    folder.trace(result, result.server.acks.size, run=name)
                columns[f"{name} eta={eta:g} H={H}"] = curves[name]
            points, level = len(curves["FedLSA"]), float(miss @ miss)
            columns[f"rounds eta={eta:g} H={H}"] = float(every) * np.arange(points, dtype=np.float64)
            columns[f"squared bias eta={eta:g} H={H}"] = np.full(points, level)
            panels.append((eta, H, every, curves, level))
            late = {key: float(curve[-len(curve) // 5 :].mean()) for key, curve in curves.items()}
            lines.append(
                f"| {kind} | {eta:g} | {H:,} | {rounds:,} | {level:.2g} | {late['FedLSA']:.2g} | "
                f"{late['SCAFFLSA']:.2g} |"
            )

        def draw(axes: Sequence[Axes], panels: list[Panel] = panels) -> None:
            for ax, (eta, H, every, curves, level) in zip(axes, panels, strict=True):
                for (name, curve), colour in zip(curves.items(), ("C0", "C1"), strict=True):
                    ax.semilogy(np.arange(len(curve)) * every, curve, color=colour, lw=0.9, label=name)
                if level >= LIMITS[eta][0]:
                    ax.axhline(level, color="C2", ls="--", label="FedLSA's squared bias")
                ax.set(title=f"eta = {eta:g}, H = {H:,}", xlabel="rounds", ylim=LIMITS[eta])
                ax.set_ylabel(r"$\|\theta_t - \theta^*\|^2$")

        folder.figure(f"td_{kind}", draw, columns, panels=len(panels), size=(3.2, 3.4), legend=7)
    folder.say(
        "TD learning with linear features on Garnet problems as the authors' program has them (30 states, p = 8), "
        f"N = {n_workers} agents, {samples:,} samples each, from theta* + 1. The smallest eigenvalue of the mean matrix is "
        f"{smallest:.2g}. "
        "Mean squared error over the last fifth:\n\n"
        "| agents | eta | H | rounds | squared bias of FedLSA | FedLSA | SCAFFLSA |\n|---|---|---|---|---|---|---|\n"
        + "\n".join(lines)
    )


def _bias(folder: Folder) -> None:
    data = linear_pools(10, 4, 50, seed=folder.seed)
    A, b = mean_system(data)
    theta = solution(A, b)[0]
    common: dict[str, Any] = {"model": LSA(4), "compressor": Identity(), "roster": Roster.of([50] * 10)}
    etas, Hs = (0.05, 0.02), ((2, 5, 20) if folder.quick else (2, 5, 10, 20, 50))
    seeds, samples = (4, 8_000) if folder.quick else (10, 25_000)
    rows = []
    for eta in etas:
        for H in Hs:
            exact = bias(A, b, eta, H)
            means = np.empty((seeds, theta.size))
            for i in range(seeds):
                algo = fed_lsa(H=H, eta=eta, b=1, seed=1000 * folder.seed + i, **common)
                # Started at the limit, so that the mean over the run has no transient in it.
                start, rounds = theta + exact, max(samples // H, 50)
                means[i] = run(
                    algo, LocalEngine(data), start, stop=rounds, init="zero", average_from=0
                ).S_mean
            mean = means.mean(axis=0) - theta
            # Standard error over independent runs; within a run the iterates are correlated.
            error = means.std(axis=0, ddof=1) / np.sqrt(seeds)
            parts = (mean, error, exact, first_order(A, b, eta, H))
            lengths = [float(np.linalg.norm(part)) for part in parts]
            rows.append((eta, float(H), *lengths, float(np.abs((mean - exact) / error).max())))
    names = ("eta", "H", "measured", "error", "formula", "first_order", "largest_z")
    table = columns_of(names, rows)

    def draw(axes: Sequence[Axes]) -> None:
        grid = np.arange(1, max(Hs) + 1)
        for eta, colour in zip(etas, ("C0", "C3"), strict=True):
            H, measured, error = (table[name][table["eta"] == eta] for name in ("H", "measured", "error"))
            words = f"eta = {eta:g}, long runs"
            axes[0].errorbar(H, measured, 2 * error, fmt="o", ms=4, color=colour, label=words)
            for law, style, label in ((bias, "-", "formula"), (first_order, ":", "first order")):
                lengths = [np.linalg.norm(law(A, b, eta, int(steps))) for steps in grid]
                axes[0].plot(grid, lengths, style, color=colour, label=label)
        axes[0].set(xlabel="H", ylabel="norm of the bias", title="bias of FedLSA, n = 10")

    folder.figure("bias", draw, table, legend=7)
    folder.say(
        f"Bias of FedLSA, mean of {seeds} long runs against the exact formula: largest deviation of an entry "
        f"{table['largest_z'].max():.1f} standard errors ({seeds - 1} degrees of freedom). First order is off by up to "
        f"{100 * np.max(np.abs(table['first_order'] / table['formula'] - 1)):.0f} % at H = {int(max(Hs))}."
    )


def _accuracy(folder: Folder) -> None:
    data = linear_pools(6, 3, 20, heterogeneity=2.0, seed=folder.seed)
    eps = (0.4, 0.2, 0.1) if folder.quick else (0.4, 0.2, 0.1, 0.05, 0.025, 0.0125)
    grid = range(1, 12, 2) if folder.quick else range(1, 14)
    steps = [2**i for i in (range(0, 11, 2) if folder.quick else range(13))]
    etas, most = [2.0**-place for place in grid], 60 if folder.quick else 200
    found = {
        name: rounds_to(data, eps, etas, steps, scaffold=name == "SCAFFLSA", theta_0=np.ones(3), most=most)
        for name in ("FedLSA", "SCAFFLSA")
    }
    columns: dict[str, F64] = {"eps": np.array(eps)}
    for name, rows in found.items():
        columns |= columns_of((f"{name} T", f"{name} eta", f"{name} H"), rows)

    def draw(axes: Sequence[Axes]) -> None:
        for name, colour in (("FedLSA", "C3"), ("SCAFFLSA", "C0")):
            T = np.array(columns[f"{name} T"], dtype=float)
            axes[0].loglog(1 / np.array(eps), np.where(T > 0, T, np.nan), "o-", color=colour, label=name)
        title = "rounds to accuracy, exact second moments"
        axes[0].set(xlabel="1 / eps", ylabel="fewest rounds", title=title)

    folder.figure("accuracy", draw, columns)
    words = {
        name: ", ".join(
            f"{row[0]} (2^{np.log2(row[1]):.0f}, {row[2]})" if row[0] >= 0 else "none" for row in rows
        )
        for name, rows in found.items()
    }
    folder.say(
        "Fewest rounds T (eta, H) with E||theta_T - theta*||^2 <= eps^2, eps = "
        f"{', '.join(f'{target:g}' for target in eps)}: FedLSA "
        f"{words['FedLSA']}; SCAFFLSA {words['SCAFFLSA']}. The gain is in rounds: samples per agent are alike."
    )


def logistic_data(seed: int) -> tuple[RidgeLogistic, F64]:
    """Eight workers of 40 rows whose solutions differ, p = 3."""
    rng = rng_for(seed, "logistic")
    features = rng.standard_normal((8, 40, 3)) * (0.5 + rng.random((8, 1, 3)))
    weights = 1.5 * rng.standard_normal((8, 1, 3))
    chance = 1.0 / (1.0 + np.exp(-(features * weights).sum(axis=-1)))
    labels = np.where(rng.random((8, 40)) < chance, 1.0, -1.0)
    return RidgeLogistic(3, 0.1), np.concatenate([features, labels[..., None]], axis=-1)


def _extrapolation(folder: Folder) -> None:
    model, data = logistic_data(folder.seed)
    star, roster = model.minimum(data), Roster.of([40] * 8)
    etas = (0.08, 0.04, 0.02) if folder.quick else (0.08, 0.04, 0.02, 0.01)
    rows = []
    for H in (5, 20):
        limits = []
        for eta in etas:
            algo = fed_lsa(H=H, eta=eta, b=None, model=model, compressor=Identity(), roster=roster)
            # A time eta H k of 100, started at the minimum, which the limit is near.
            limits.append(run(algo, LocalEngine(data), star, stop=int(100 / (eta * H))).server.S_hat)
        for i, eta in enumerate(etas):
            last = i + 1 == len(etas)
            better = np.full(3, np.nan) if last else richardson_romberg(limits[i], limits[i + 1]) - star
            parts = (limits[i] - star, bias_first_order(model, data, eta, H), better)
            rows.append((H, eta, *(float(np.linalg.norm(part)) for part in parts)))
    table = columns_of(("H", "eta", "bias", "first_order", "extrapolated"), rows)

    def order(name: str, H: int) -> F64:
        """Slope between two steps, of which one is twice the other: log2 of the quotient of the errors is the order."""
        error = table[name][table["H"] == H]
        return np.asarray(np.log2(error[:-1] / error[1:]))

    def draw(axes: Sequence[Axes]) -> None:
        for ax, H in zip(axes, (5, 20), strict=True):
            part = {name: column[table["H"] == H] for name, column in table.items()}
            ax.loglog(part["eta"], part["bias"], "o-", color="C3", label="federated averaging")
            ax.loglog(part["eta"], part["first_order"], ":", color="C3", label="first order")
            words = "extrapolated from eta and eta/2"
            ax.loglog(part["eta"], part["extrapolated"], "o-", color="C0", label=words)
            ax.set(title=f"ridge logistic, H = {H}", xlabel="eta", ylabel="norm of the bias")

    folder.figure("extrapolation", draw, table, panels=2, size=(4.6, 3.8), legend=7)
    folder.say(
        "Richardson-Romberg on ridge logistic regression with exact gradients: the bias has order "
        + "; ".join(
            f"{', '.join(f'{value:.2f}' for value in order('bias', H))} in eta at H = {H}, extrapolated "
            f"{', '.join(f'{value:.1f}' for value in order('extrapolated', H)[:-1])}"
            for H in (5, 20)
        )
        + ". It takes two runs, so twice the work and the bytes."
    )


def _compressed(folder: Folder) -> None:
    # With exact fields all that is left is the compressor's noise, which memories must remove altogether.
    data = linear_pools(10, 4, 50, seed=folder.seed).mean(axis=1, keepdims=True)  # no noise in the data
    A, b = mean_system(data)
    theta, eta, H, rounds = solution(A, b)[0], 0.01, 20, (600 if folder.quick else 3000)
    miss = bias(A, b, eta, H)

    rest: dict[str, Any] = {
        "model": LSA(theta.size), "roster": Roster.of([1] * 10), "compressor": Dithering(1),
        "participation": Bernoulli(0.5), "seed": folder.seed,
    }  # fmt: skip
    algos = {
        "no memory": fed_lsa(H=H, eta=eta, b=1, **rest),
        "memory V": FedEM(gamma=eta * H, oracle=LocalSteps(H, eta, 1), **rest),
        "compressed SCAFFLSA": scafflsa(H=H, eta=eta, b=1, **rest),
    }
    zero, every, label = np.zeros(theta.size), rounds // 100, f"n = 10, H = {H}"
    curves = {
        name: squared_error(algo, data, theta, zero, rounds=rounds, every=every, label=label)[0]
        for name, algo in algos.items()
    }
    at = np.arange(100) * every

    def draw(axes: Sequence[Axes]) -> None:
        for (name, curve), colour in zip(curves.items(), ("0.5", "C3", "C0"), strict=True):
            axes[0].semilogy(at, np.maximum(curve, 1e-32), color=colour, label=name)
        axes[0].axhline(float(miss @ miss), color="C3", ls="--", label="FedLSA's squared bias")
        title = "one-level dithering, p = 0.5, exact fields"
        axes[0].set(xlabel="rounds", ylabel="squared error", title=title)

    folder.figure("compressed", draw, {"round": at, **curves}, legend=7)
    last = {key: float(curve[-10:].mean()) for key, curve in curves.items()}
    folder.say(
        f"Dithered to one level and p = 0.5, without noise in the data, after {rounds:,} rounds: no memory "
        f"{last['no memory']:.2g}; memory V without drift correction {last['memory V']:.4g} (its squared bias is "
        f"{miss @ miss:.4g}); compressed SCAFFLSA {last['compressed SCAFFLSA']:.2g}."
    )
