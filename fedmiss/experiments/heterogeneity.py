"""The talk's study: equal or very different workers, with and without the memories V."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedmiss.core import FullBatch, Stop
from fedmiss.experiments.folder import experiment_folder
from fedmiss.experiments.mixture import Mixture, Setting

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["main"]


def main(out: Path, *, quick: bool, seed: int, data: Path | None, overwrite: bool) -> Path:
    """Run exact local statistics, gamma = 5e-2, alpha = 0.2, p = 0.5, for 8,000 rounds (1,500 when quick)."""
    rounds = 1500 if quick else 8000
    with experiment_folder(out, "heterogeneity", quick=quick, overwrite=overwrite) as folder:
        curves, floor = {}, {}
        for kind in ("homogeneous", "heterogeneous"):
            mix = Mixture(seed=seed, sort=kind == "heterogeneous")
            for memory in (True, False):
                name = f"{kind}, {'with' if memory else 'without'} V"
                s = Setting(FullBatch(), 5e-2, 0.2 if memory else 0.0, 0.5, "h" if memory else "zero", seed)
                result = mix.run(s, Stop(rounds=rounds), every=20, label=name)
                h = result.trace["true_h_norm2"]
                curves[name] = h[~np.isnan(h)]
                floor[name] = float(np.mean(curves[name][-len(curves[name]) // 4 :]))
                folder.trace(result, mix.total, run=name)
        at = np.arange(0, rounds, 20)

        def draw(axes: Sequence[Axes]) -> None:
            for (name, h), style in zip(curves.items(), ("C0-", "C0--", "C3-", "C3--"), strict=True):
                axes[0].semilogy(at, np.maximum(h, 1e-34), style, label=name)
            axes[0].set(
                xlabel="rounds", ylabel="$||h(S)||^2$", title="exact local statistics, quantized, p = 0.5"
            )
            axes[0].legend()

        folder.figure("heterogeneity", draw, {"round": at, **curves})
        folder.results |= {"mean_last_quarter": floor, "rounds": rounds}
        names = list(floor)
        folder.say(
            f"Mean of ||h(S)||^2 over the last quarter of {rounds:,} rounds. Without V: {floor[names[1]]:.2g} "
            f"(homogeneous), {floor[names[3]]:.2g} (heterogeneous, {floor[names[3]] / floor[names[1]]:.3g} times more): "
            "the increments do not vanish at the solution, and neither does their compression error. With V: "
            f"{floor[names[0]]:.2g} and {floor[names[2]]:.2g}."
        )
        folder.finish(
            "Equal and different workers, with and without the memories V",
            {
                "quick": quick,
                "seed": seed,
                "rounds": rounds,
                "gamma": 5e-2,
                "alpha": 0.2,
                "p": 0.5,
                "n": 100,
                "m": 100,
            },
            {},
        )
    return out
