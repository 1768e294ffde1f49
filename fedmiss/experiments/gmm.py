"""Figure 1: FedEM and VR-FedEM on the synthetic mixture, ||H||^2 and the true ||h(S)||^2 against epochs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from matplotlib.axes import Axes

from fedmiss.arrays import F64
from fedmiss.compressors import Identity
from fedmiss.core import FedEM, Fiem, Minibatch, Result, SemVr, Spider, Stop, Streaming, run
from fedmiss.engines import LocalEngine
from fedmiss.experiments.folder import Band, Folder, band, band_columns, columns_of, plot_band
from fedmiss.experiments.mixture import Mixture, Setting
from fedmiss.progress import progress

GOAL = 1e-10
STEPS = (1e-3, 3e-3, 1e-2, 3e-2, 1e-1)


def main(folder: Folder) -> None:
    """Run the paper's setting (500 epochs, 20 seeds) or a quick one (200 epochs, 3 seeds)."""
    epochs, seeds = (200.0, 3) if folder.quick else (500.0, 20)
    mix = Mixture(seed=folder.seed, far=True)
    settings = {"FedEM": Setting(), "VR-FedEM": Setting(oracle=Spider(5, 20))}
    grid = np.linspace(0.0, epochs, 201)
    curves: dict[str, list[F64]] = {name: [] for name in settings}
    first: dict[str, Result] = {}
    with progress("gmm: seeds", total=seeds) as show:
        for i in range(seeds):
            for name, setting in settings.items():
                result = mix.run(replace(setting, seed=1000 * folder.seed + i), Stop(epochs=epochs))
                first.setdefault(name, result)
                curves[name].append(on_grid(result, mix.total, grid))
            show(i + 1)
    for name, result in first.items():
        folder.trace(result, mix.total, run=name)
    bands = {name: band(values) for name, values in curves.items()}
    _figure1(folder, mix, grid, first, bands, seeds)
    _outer_loops(folder, mix)
    _one_worker(folder)
    _levels(folder, mix, grid, first, bands, seeds)
    _work_to_goal(folder, mix, epochs)
    title = "FedEM and VR-FedEM on a synthetic mixture (figure 1)"
    words = {name: str(setting) for name, setting in settings.items()}
    folder.finish(title, epochs=epochs, seeds=seeds, **words)


def _figure1(
    folder: Folder, mix: Mixture, grid: F64, first: dict[str, Result], bands: dict[str, Band], seeds: int
) -> None:
    """Draw one run of each algorithm, and the mean field of both over the seeds."""

    def draw(axes: Sequence[Axes]) -> None:
        for ax, (name, result) in zip(axes, first.items(), strict=False):
            trace = result.trace
            # An epoch is as many conditional expectations as there are
            # rows, for either algorithm (the paper's unit of work).
            epochs = np.cumsum(trace["evaluations"]) / mix.total
            seen = ~np.isnan(trace["true_h_norm2"])
            ax.semilogy(epochs, trace["h_norm2"], lw=0.5, color="#c33", label="$||H_k||^2$")
            ax.semilogy(epochs[seen], trace["true_h_norm2"][seen], "--", color="#236", label="$||h(S_k)||^2$")
            ax.set(title=f"{name}, one run", xlabel="epochs")
        for (name, values), colour in zip(bands.items(), ("#236", "#c33"), strict=True):
            plot_band(axes[2], grid, values, colour, name)
        axes[2].set(title=f"mean $||h(S)||^2$, {seeds} seeds, 2 s.e.", xlabel="epochs")

    folder.figure("figure1", draw, {"epochs": grid, **band_columns(bands)}, panels=3, size=(4.6, 3.8))


def _levels(
    folder: Folder, mix: Mixture, grid: F64, first: dict[str, Result], bands: dict[str, Band], seeds: int
) -> None:
    """Say how low the mean field of both algorithms goes."""
    epochs = float(grid[-1])
    # The second half: the start is forgotten, and what is left is the level of the noise.
    half = grid > epochs / 2
    level = {name: float(mean[half].mean()) for name, (mean, _, _) in bands.items()}
    last = {name: float(mean[-1]) for name, (mean, _, _) in bands.items()}
    folder.results |= {"mean_second_half": level, "last": last, "epochs": epochs, "seeds": seeds}
    rounds = {name: len(result.trace["k"]) for name, result in first.items()}
    falls = "still falling" if last["FedEM"] < 0.7 * level["FedEM"] else "the level of its noise"
    folder.say(
        f"{epochs:g} epochs of {mix.total:,} conditional expectations, {seeds} seeds. FedEM (b = 20, "
        f"{rounds['FedEM']:,} rounds): ||h(S)||^2 is on average {level['FedEM']:.2g} over the second half and "
        f"{last['FedEM']:.2g} at the end, {falls}. VR-FedEM (b = 5, k_in = 20, {rounds['VR-FedEM']:,} rounds): "
        f"{last['VR-FedEM']:.2g} at the end, "
        f"{last['FedEM'] / max(last['VR-FedEM'], 1e-300):.2g} times lower for the same work."
    )
    error = float(np.linalg.norm(first["VR-FedEM"].server.S_hat - mix.solution()))
    folder.say(
        f"VR-FedEM's last statistic is {error:.1e} away from the fixed point of EM on the pooled rows."
    )


def _outer_loops(folder: Folder, mix: Mixture) -> None:
    """The paper's axis of the VR panel: outer loops of k_in = 20 rounds, until ||h||^2 is 1e-20."""
    loops = 100 if folder.quick else 1000
    setting = Setting(oracle=Spider(5, 20), seed=1000 * folder.seed)
    result = mix.run(setting, Stop(rounds=20 * loops), every=20, label="gmm: outer loops")
    trace, at = result.trace, np.arange(0, 20 * loops, 20)

    loop, H, h = np.arange(loops), trace["h_norm2"][at], trace["true_h_norm2"][at]

    def draw(axes: Sequence[Axes]) -> None:
        axes[0].semilogy(loop, H, lw=0.6, color="#c33", label="$||H_k||^2$")
        axes[0].semilogy(loop, h, "--", color="#236", label="$||h(S_k)||^2$")
        axes[0].set(title="VR-FedEM, one run", xlabel="outer loops")

    columns = {"outer_loop": loop, "H_norm2": H, "h_norm2": h}
    folder.figure("figure1_outer_loops", draw, columns)
    last = float(h[-1])
    folder.results["vr_last_by_outer_loops"] = last
    folder.say(
        f"VR-FedEM by outer loops, the paper's axis: ||h(S)||^2 is {last:.1e} after {loops:,} of them."
    )


def _one_worker(folder: Folder) -> None:
    """SPIDER-EM beside sEM-vr, FIEM and online EM: one worker, nothing compressed."""
    rows, epochs = (500, 20.0) if folder.quick else (2000, 60.0)
    mix = Mixture(n=1, m=rows, seed=folder.seed)
    # The length of inner loops with the least work, (1 + omega) sqrt(m / 2) at omega = 0.
    k_in = int(np.sqrt(mix.total / 2))
    grid = np.linspace(0.0, epochs, 121)
    curves: dict[str, F64] = {}
    for name, oracle in (
        ("SPIDER-EM", Spider(10, k_in)), ("sEM-vr", SemVr(10, k_in)), ("FIEM", Fiem(10)), ("online EM", Streaming(10)),
    ):  # fmt: skip
        # alpha = 0: one worker has nothing to remember, and V stays 0.
        algo = FedEM(mix.model, Identity(), mix.roster, 0.05, 0.0, oracle=oracle, seed=folder.seed)
        result = run(
            algo, LocalEngine(mix.data), mix.S_0, stop=Stop(epochs=epochs), init="zero", observe=mix.true_field,
            observe_every=10, label=f"gmm: {name}",
        )  # fmt: skip
        curves[name] = on_grid(result, mix.total, grid)

    def draw(axes: Sequence[Axes]) -> None:
        for name, curve in curves.items():
            axes[0].semilogy(grid, curve, label=name)
        axes[0].set(title="one worker, gamma = 0.05, b = 10", xlabel="epochs", ylabel="$||h(S)||^2$")

    folder.figure("one_worker", draw, {"epochs": grid, **curves})
    folder.say(
        f"One worker of {mix.total:,} rows, {epochs:g} epochs, gamma = 0.05, b = 10, ||h(S)||^2 at the end: "
        + ", ".join(f"{key} {curve[-1]:.2g}" for key, curve in curves.items())
        + "."
    )


def _work_to_goal(folder: Folder, mix: Mixture, epochs: float) -> None:
    """Count the epochs to ||h||^2 <= 1e-10 for each constant step (inf: not reached), and keep the lowest value seen."""
    rows = []
    for name, oracle in (("FedEM", Minibatch(20)), ("VR-FedEM", Spider(5, 20))):
        for gamma in STEPS:
            setting = Setting(oracle, gamma=gamma, alpha=max(gamma, 1e-2), seed=folder.seed)
            h, done = _field(mix.run(setting, Stop(epochs=epochs)), mix.total)
            hit = np.flatnonzero(h <= GOAL)
            rows.append((name, gamma, float(done[hit[0]]) if hit.size else np.inf, float(np.nanmin(h))))
    folder.table("work_to_1e-10", columns_of(("algorithm", "gamma", "epochs", "lowest"), rows))
    reached = [
        f"{algorithm}, gamma = {gamma:g}: {work:.0f} epochs"
        for algorithm, gamma, work, _ in rows
        if np.isfinite(work)
    ]
    folder.say(
        f"Epochs until ||h(S)||^2 <= {GOAL:g}, within {epochs:g}, for constant steps "
        f"{', '.join(f'{step:g}' for step in STEPS)}: {'; '.join(reached) or 'not reached by any'}. The lowest value of "
        f"FedEM with any of these steps is {min(low for algorithm, _, _, low in rows if algorithm == 'FedEM'):.2g}."
    )
    folder.results["epochs_to_1e-10"] = {f"{algorithm} {gamma:g}": work for algorithm, gamma, work, _ in rows}


def _field(result: Result, total: int) -> tuple[F64, F64]:
    """The true ||h(S)||^2 of each round, nan where it was not observed, and the epochs that were done before it."""
    before = np.concatenate([[0.0], np.cumsum(result.trace["evaluations"])[:-1]]) / total
    return result.trace["true_h_norm2"], before


def on_grid(result: Result, total: int, grid: F64) -> F64:
    """The observed true ||h(S)||^2 at given epochs, interpolated on the log scale."""
    h, before = _field(result, total)
    seen = ~np.isnan(h)
    return np.exp(np.interp(grid, before[seen], np.log(np.maximum(h[seen], 1e-300))))
