"""The talk's study: equal or very different workers, with and without the memories V."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes

from fedmiss.arrays import F64
from fedmiss.core import Downlink, FullBatch, Minibatch, ServerState, Spider, Stop, naive_fedem, run
from fedmiss.engines import LocalEngine
from fedmiss.experiments.folder import Folder
from fedmiss.experiments.mixture import Mixture, Setting


def main(folder: Folder) -> None:
    """Run exact local statistics, gamma = 5e-2, alpha = 0.2, p = 0.5, for 8,000 rounds (3,000 when quick)."""
    rounds = 3000 if folder.quick else 8000
    curves, floor = {}, {}
    for kind in ("homogeneous", "heterogeneous"):
        mix = Mixture(seed=folder.seed, sort=kind == "heterogeneous")
        for memory in (True, False):
            name = f"{kind}, {'with' if memory else 'without'} V"
            # alpha = 0 from V = 0 is naive federated EM: nothing is remembered, and the same step otherwise.
            alpha, init = (0.2, "h") if memory else (0.0, "zero")
            setting = Setting(FullBatch(), 5e-2, alpha, 0.5, init, folder.seed)
            result = mix.run(setting, Stop(rounds=rounds), every=20, label=name)
            h = result.trace["true_h_norm2"]
            curves[name] = h[~np.isnan(h)]
            floor[name] = float(np.mean(curves[name][-len(curves[name]) // 4 :]))
            folder.trace(result, mix.total, run=name)
    at = np.arange(0, rounds, 20)

    def draw(axes: Sequence[Axes]) -> None:
        for (name, curve), style in zip(curves.items(), ("C0-", "C0--", "C3-", "C3--"), strict=True):
            axes[0].semilogy(at, np.maximum(curve, 1e-34), style, label=name)
        title = "exact local statistics, quantized, p = 0.5"
        axes[0].set(xlabel="rounds", ylabel="$||h(S)||^2$", title=title)

    folder.figure("heterogeneity", draw, {"round": at, **curves})
    folder.results |= {"mean_last_quarter": floor, "rounds": rounds}
    names = list(floor)
    folder.say(
        f"Mean of ||h(S)||^2 over the last quarter of {rounds:,} rounds. Without V: {floor[names[1]]:.2g} "
        f"(homogeneous), {floor[names[3]]:.2g} (heterogeneous, {floor[names[3]] / floor[names[1]]:.3g} times more): "
        "the increments do not vanish at the solution, and neither does their compression error. With V: "
        f"{floor[names[0]]:.2g} and {floor[names[2]]:.2g}."
    )
    _weights(folder)
    title = "Equal and different workers, with and without the memories V"
    folder.finish(title, rounds=rounds, gamma=5e-2, alpha=0.2, p=0.5, n=100, m=100)


def _weights(folder: Folder) -> None:
    """The talk's figure: the weight of the first component against epochs, FedEM, naive and VR-FedEM."""
    epochs = 200.0 if folder.quick else 300.0
    columns: dict[str, F64] = {}
    levels: dict[tuple[str, str], float] = {}
    exact = {}
    for kind in ("homogeneous", "heterogeneous"):
        mix = Mixture(seed=folder.seed, sort=kind == "heterogeneous")
        exact[kind] = float(mix.model.T(mix.solution()).pi[0])
        for name, oracle in (("FedEM", Minibatch(20)), ("naive", Minibatch(20)), ("VR-FedEM", Spider(5, 20))):
            algo = mix.algo(Setting(oracle, gamma=5e-2, alpha=5e-2, p=0.75, seed=folder.seed))
            if name == "naive":
                algo = naive_fedem(algo)

            def observe(server: ServerState, down: Downlink) -> dict[str, float]:
                return {"weight": float(down.theta.pi[0])}

            label = f"{kind}, {name}"
            result = run(
                algo, LocalEngine(mix.data), mix.S_0, stop=Stop(epochs=epochs), observe=observe, label=label
            )
            trace = result.trace
            # Some 400 points of each run are enough for a curve.
            keep = np.arange(0, len(trace["k"]), max(len(trace["k"]) // 400, 1))
            columns[f"{label} epochs"] = (np.cumsum(trace["evaluations"]) / mix.total)[keep]
            columns[f"{label} weight"] = trace["weight"][keep]
            # Against EM on the pooled rows, in the second half, when the start is forgotten.
            late = trace["weight"][len(trace["k"]) // 2 :]
            levels[kind, name] = float(np.sqrt(np.mean((late - exact[kind]) ** 2)))

    def draw(axes: Sequence[Axes]) -> None:
        for ax, kind in zip(axes, exact, strict=True):
            for name, colour in (("naive", "0.6"), ("FedEM", "C3"), ("VR-FedEM", "C0")):
                epoch, weight = (columns[f"{kind}, {name} {what}"] for what in ("epochs", "weight"))
                ax.plot(epoch, weight, color=colour, lw=0.9, label=name)
            ax.axhline(exact[kind], color="k", ls=":", lw=0.8, label="EM on the pooled rows")
            ax.set(title=kind, xlabel="epochs", ylabel="weight of the first component")

    folder.figure("weights", draw, columns, panels=2, size=(4.6, 3.6), legend=7)
    folder.results["weight_error_second_half"] = {
        f"{kind}, {name}": level for (kind, name), level in levels.items()
    }
    folder.say(
        f"Weight of the first component over {epochs:g} epochs (gamma = 5e-2, p = 0.75), root mean square distance to "
        "EM's over the second half: "
        + "; ".join(f"{name} {level:.2g} ({kind})" for (kind, name), level in levels.items())
        + "."
    )
