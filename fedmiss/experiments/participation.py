"""The talk's study: FedEM when only a share p of the workers answers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes

from fedmiss.core import Stop
from fedmiss.experiments.folder import Folder, band, band_columns, plot_band
from fedmiss.experiments.mixture import Mixture, Setting

SHARES = (0.25, 0.5, 0.75, 1.0)


def main(folder: Folder) -> None:
    """Run the mixture at b = 20, gamma = alpha = 1e-2 for several p: 5,000 rounds, 12 seeds (quick: 1,500 and 3)."""
    rounds, seeds = (1500, 3) if folder.quick else (5000, 12)
    mix = Mixture(seed=folder.seed)
    at = np.arange(0, rounds, 25)
    bands, work = {}, {}
    for share in SHARES:
        values = []
        for i in range(seeds):
            setting = Setting(p=share, seed=1000 * folder.seed + i)
            label = f"p = {share:g}, seed {i + 1} of {seeds}"
            result = mix.run(setting, Stop(rounds=rounds), every=25, label=label)
            values.append(result.trace["true_h_norm2"][at])
            if i == 0:
                folder.trace(result, mix.total, run=f"p = {share:g}")
                work[share] = float(result.trace["evaluations"].sum() / mix.total)
        bands[share] = band(values)

    def draw(axes: Sequence[Axes]) -> None:
        for i, (share, values) in enumerate(bands.items()):
            # Work grows with p: the same rounds cost fewer conditional expectations where fewer answer.
            for ax, axis_values in zip(axes, (at, at * work[share] / rounds), strict=True):
                plot_band(ax, axis_values, values, f"C{i}", f"p = {share:g}")
        for ax, words in zip(axes, ("rounds", "epochs"), strict=True):
            ax.set(xlabel=words, ylabel="mean $||h(S)||^2$", title=f"FedEM, {seeds} seeds, 2 s.e.")

    columns = band_columns({f"p={key:g}": values for key, values in bands.items()})
    folder.figure("participation", draw, {"round": at, **columns}, panels=2)
    late = at >= 0.75 * rounds
    level = {share: float(bands[share][0][late].mean()) for share in SHARES}
    # A curve that still falls says nothing of the limiting variance.
    falling = ""
    if level[1.0] < 0.5 * float(bands[1.0][0][at >= 0.5 * rounds].mean()):
        falling = "The curves are still falling at the end: this ratio is of the start, not of the limit."
    folder.results |= {
        "mean_last_quarter": {f"{key:g}": value for key, value in level.items()},
        "epochs": {f"{key:g}": value for key, value in work.items()},
    }
    folder.say(
        f"FedEM, b = 20, gamma = alpha = 1e-2, {rounds:,} rounds, {seeds} seeds. Mean ||h(S)||^2 over the last "
        "quarter: " + ", ".join(f"{value:.2g} at p = {key:g}" for key, value in level.items()) + ". "
        f"The level at p = 0.25 is {level[0.25] / level[1.0]:.3g} times that at p = 1 (theorem 4 lets the limiting "
        "variance grow like 1/p). " + falling
    )
    folder.say(
        "The same rounds cost "
        + ", ".join(f"{value:.0f} epochs at p = {key:g}" for key, value in work.items())
        + ": fewer answers a round make each round cheaper, not the way much longer."
    )
    folder.finish("FedEM with partial participation", rounds=rounds, seeds=seeds, p=list(SHARES))
