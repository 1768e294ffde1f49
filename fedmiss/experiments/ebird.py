"""Figure 2 of the paper at its full size, on simulated counts: what algorithm 7 gives after its 150 epochs.

And with its own axes: both species, stamps with records, sites in play, sums of counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import scipy.sparse as sp
from matplotlib.axes import Axes

from fedmiss.arrays import F64, I32, I64
from fedmiss.compressors import Dithering
from fedmiss.core import Result
from fedmiss.experiments.folder import Folder
from fedmiss.federation.algorithm7 import run_algorithm7
from fedmiss.federation.calls import fit_counts
from fedmiss.models.lowrank.data import Group, GroupPanel
from fedmiss.models.lowrank.paper import Factors, FedMissEM, thresholded_svd
from fedmiss.models.lowrank.paper_step import fit_observed
from fedmiss.models.lowrank.settings import CountSettings
from fedmiss.report.loess import loess as smooth
from fedmiss.rng import rng_for
from fedmiss.simulate.panels import simulate_panel

SITES, MONTHS, RECORDS = 9_721, 525, 12_185
OBSERVERS, GROUPS = 2_465, 10
SPAN = 0.15  # of LOESS
GAMMA, ALPHA, BATCH, RANK = 1e-4, 1e-3, 100, 2
Index = I32 | I64


@dataclass(frozen=True)
class _Run:
    """Algorithm 7 on a panel, with the optimum of the same objective, solved directly."""

    result: Result
    panel: GroupPanel
    total: int
    first: float
    last: float
    optimum: float

    @property
    def share(self) -> float:
        """Share of the way from the start to the optimum."""
        return (self.first - self.last) / (self.first - self.optimum)


def _panel(
    J: int, stamps: I64, group: Index, site: Index, month: Index, count: F64, observer: Index
) -> GroupPanel:
    """Visits as a panel of their groups; ``stamps`` (L,) are 12 year + month - 1, and cells are visited once."""
    groups = []
    for name in np.unique(group):
        own = group == name
        who = np.unique(observer[own], return_inverse=True)[1]
        groups.append(Group.of(f"g{int(name):02d}", site[own], month[own], count[own], who))
    return GroupPanel.of(J, stamps.size, groups, (stamps % 12 + 1, stamps // 12))


def _algorithm7(
    folder: Folder, panel: GroupPanel, epochs: float, **settings: Any
) -> tuple[Result, FedMissEM, list[F64]]:
    """Run algorithm 7 with the paper's setting (section 4): gamma = 1e-4, alpha = 1e-3, b = 100, r = 2, lambda = 0."""
    return run_algorithm7(
        panel, family="gaussian", rank=RANK, penalty=0.0, epochs=epochs, gamma=GAMMA, alpha=ALPHA,
        compressor=Dithering(levels=1), batch=BATCH, seed=folder.seed, **settings,
    )  # fmt: skip


def _run(folder: Folder, panel: GroupPanel, epochs: float) -> _Run:
    result, model, rows = _algorithm7(folder, panel, epochs, observe_every=5 if folder.quick else 50)
    # fit_observed has the sum over groups, algorithm 7 the mean: F is 1/n of it (lambda = 0).
    optimum = fit_observed(panel, family="gaussian", rank=RANK)[2] / GROUPS
    first, last = float(result.trace["objective"][0]), model.objective(result.theta, rows)
    return _Run(result, panel, sum(len(row) for row in rows), first, last, optimum)


def main(folder: Folder) -> None:
    """Run algorithm 7 with the paper's settings, and beside it the same objective's optimum and the default model."""
    J, L, n, epochs = (400, 120, 2_000, 20.0) if folder.quick else (SITES, MONTHS, RECORDS, 150.0)
    observers = 200 if folder.quick else OBSERVERS
    simulated = simulate_panel(
        J, L, n / J / L, seed=folder.seed, observers=observers, groups=GROUPS, test_cells=1_000
    )
    cells = simulated.site_index, simulated.month_index, simulated.y
    panel = _panel(J, 12 * 1977 + np.arange(L), simulated.group, *cells, simulated.observer)
    run = _run(folder, panel, epochs)
    folder.trace(run.result, run.total)
    ours = fit_counts(panel, CountSettings(rank=RANK, seed=folder.seed))
    totals = {
        "truth": simulated.totals,
        "algorithm7": (run.result.theta.U @ run.result.theta.V.T).sum(axis=0),
        "default": ours.expected().sum(axis=0),
    }
    _figure(folder, run, totals, epochs)
    folder.say(
        f"Simulated counts: {J:,} sites, {L} months, {run.total:,} visited cells "
        f"({100 * run.total / (J * L):.2f} % of all), {observers:,} observers in {GROUPS} groups. "
        f"Algorithm 7, Gaussian on raw counts, r = {RANK}, lambda = 0, "
        f"gamma = {GAMMA:g}, alpha = {ALPHA:g}, b = {BATCH}, dithering with one level: {len(run.result.trace['k']):,} "
        f"rounds, {run.result.trace['seconds'][-1]:.0f} s, {run.result.trace['bytes_up'].sum() / 1e6:.2f} MB up."
    )
    _write(folder, run, totals)
    figure2(folder)
    folder.finish("FedMissEM at the paper's size", epochs=epochs, gamma=GAMMA, alpha=ALPHA, batch=BATCH)


def _figure(folder: Folder, run: _Run, totals: dict[str, F64], epochs: float) -> None:
    """Draw the totals with their LOESS, the missing cells, and how far the objective came."""
    J, month = run.panel.J, np.arange(run.panel.L)
    visited = np.bincount(np.concatenate([group.month for group in run.panel.groups]), minlength=run.panel.L)
    missing = (J - visited).astype(float)

    def draw(axes: Sequence[Axes]) -> None:
        names = ("truth", f"algorithm 7, {epochs:g} epochs", "fedmiss default")
        for total, colour, words in zip(totals.values(), ("0.4", "C1", "C0"), names, strict=True):
            axes[0].plot(month, total, ".", color=colour, ms=2, alpha=0.5)
            axes[0].plot(month, loess(total), color=colour, label=words)
        axes[0].set(
            xlabel="month", ylabel="birds, all sites", title="total over sites, with LOESS", ylim=(0, None)
        )
        axes[1].plot(month, missing, ".", color="0.5", ms=3)
        axes[1].plot(month, loess(missing), color="C3")
        axes[1].set(xlabel="month", ylabel="sites without a count", title="missing cells per month")
        seen = run.result.trace["objective"]
        known = np.flatnonzero(~np.isnan(seen))
        epoch = np.cumsum(run.result.trace["evaluations"]) / run.total
        axes[2].plot(epoch[known], seen[known], color="C1", label="algorithm 7")
        axes[2].axhline(run.optimum, color="0.4", ls="--", label="optimum (solved directly)")
        axes[2].set(xlabel="epochs", ylabel="objective F", title="how far from converged")

    smooths = {
        "algorithm7_loess": loess(totals["algorithm7"]), "truth_loess": loess(totals["truth"]),
        "missing_loess": loess(missing),
    }  # fmt: skip
    columns = {"month": month, **totals, "missing_cells": missing, **smooths}
    folder.figure("ebird", draw, columns, panels=3)


def _write(folder: Folder, run: _Run, totals: dict[str, F64]) -> None:
    """Write how far the objective came, and the errors of the totals."""
    error = {
        # Root mean square error of the logarithm of monthly totals: a factor, whatever the number of birds.
        name: float(np.sqrt(np.mean(np.log(np.maximum(totals[key], 1e-9) / totals["truth"]) ** 2)))
        for name, key in (("algorithm 7", "algorithm7"), ("default", "default"))
    }
    trace = run.result.trace
    folder.results |= {
        "rounds": len(trace["k"]), "seconds": float(trace["seconds"][-1]),
        "objective_start": run.first, "objective_end": run.last, "objective_optimum": run.optimum,
        "share_of_the_way": run.share, "bytes_up": int(trace["bytes_up"].sum()),
        "log_error_of_monthly_totals": error,
    }  # fmt: skip
    folder.say(
        f"It has not converged: the objective went from {run.first:.6g} to {run.last:.6g}, which is "
        f"{100 * run.share:.2g} % of the way to {run.optimum:.6g}, the value that "
        f"a direct solver reaches on the same objective. With lambda = 0 "
        f"and {RANK * (run.panel.J + run.panel.L):,} parameters for {run.total:,} counts, that optimum would fit the noise: "
        "stopping early is what keeps the paper's curve tame, and near its start (the overall mean in every cell)."
    )
    folder.say(
        "Root mean square error of the log monthly totals: "
        + ", ".join(f"{value:.3f} ({name})" for name, value in error.items())
        + ". The default model of fedmiss (site and month effects, variances estimated) is fitted to the same counts."
    )


# ---- figure 2 with its own axes --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Printed:
    """What the paper says of one species, and what its two panels print.

    ``ticks`` are the dates under the panel, ``step`` stamps apart: evenly spaced in stamps and not in time, so months
    without a record are no stamps. ``counts`` and ``missing`` are the first and last ticks of the two axes.
    """

    records: int
    sites: int
    ticks: tuple[str, ...]
    step: int
    counts: tuple[float, float]
    missing: tuple[float, float]
    flock: float  # birds a record, chosen for the axis of counts

    @property
    def stamps(self) -> I64:
        """Months with records, as 12 year + month - 1: between two ticks as evenly as may be, and five after the last."""
        at = [12 * int(tick[:4]) + int(tick[5:]) - 1 for tick in self.ticks]
        parts = [
            np.linspace(start, end, self.step, endpoint=False).astype(np.int64) for start, end in pairwise(at)
        ]
        return np.concatenate([*parts, np.arange(at[-1], at[-1] + 5)])

    def per_stamp(self) -> I64:
        """Records of each stamp: a power of time that ends at the lower end of the axis of missing cells."""
        n_stamps = self.stamps.size
        most = self.sites - self.missing[0]
        share = (np.arange(n_stamps) + 0.5) / n_stamps
        # The exponent makes the records add up to the printed number: the mean of most t^k over (0, 1) is most / (k + 1).
        per = np.round(most * share ** (most * n_stamps / self.records - 1.0))
        return np.maximum(per, 1).astype(np.int64)


SPECIES = {
    "Common Buzzard": Printed(
        5_980, 600,
        ("2000-02", "2003-07", "2006-05", "2009-03", "2011-10", "2014-05", "2016-12", "2019-07"),
        31, (0, 200), (520, 600), 1.3,
    ),
    "Mallard": Printed(
        12_185, 950,
        ("2001-05", "2010-03", "2011-12", "2013-06", "2014-12", "2016-06", "2017-12", "2019-06"),
        18, (0, 6000), (800, 950), 24.0,
    ),
}  # fmt: skip


def loess(y: F64) -> F64:
    """LOESS curve over the months."""
    return smooth(np.arange(y.size, dtype=np.float64), y, SPAN)


def records_of(one: Printed, seed: int) -> GroupPanel:
    """Records that fill the printed axes: stamps, records a stamp, sites; flocks and visits vary by site."""
    rng = rng_for(seed, "figure-2", str(one.records))
    per = one.per_stamp()
    often = rng.lognormal(0.0, 1.0, one.sites)
    # exp of N(-s^2/2, s^2) has mean 1: flocks differ, and their mean is as asked.
    flock = one.flock * rng.lognormal(-0.5 * 0.8**2, 0.8, one.sites)
    # Smallest exponential over weight first: a weighted draw of sites without replacement.
    site = np.concatenate([np.argsort(rng.exponential(1.0, one.sites) / often)[:visits] for visits in per])
    month = np.repeat(np.arange(per.size), per)
    season = 1.0 + 0.3 * np.cos(2 * np.pi * (one.stamps % 12) / 12)
    counts = rng.poisson(np.maximum(flock[site] * season[month] * rng.gamma(2.0, 0.5, site.size), 0.2)) + 0.0
    observer = rng.integers(0, OBSERVERS, site.size)
    return _panel(one.sites, one.stamps, observer % GROUPS, site, month, np.maximum(counts, 1.0), observer)


def figure2(folder: Folder) -> None:
    """Run algorithm 7, and compare three starts: one of them gives the axes that the paper prints."""
    epochs = 3.0 if folder.quick else 150.0
    parts: dict[str, dict[str, F64]] = {}
    lines = []
    for name, one in SPECIES.items():
        panel = records_of(one, folder.seed)
        nothing, means = np.zeros(panel.L), _month_means(panel)
        first = "sums of counts, zeros elsewhere"
        starts = {
            first: _start(panel, nothing, 1.0),
            "mean over groups, zeros elsewhere": _start(panel, nothing, 1.0 / GROUPS),
            "counts, month means elsewhere": _start(panel, means, 1.0),
        }
        result = _algorithm7(folder, panel, epochs, start=starts[first], observe_every=1_000_000)[0]
        last = (result.theta.U @ result.theta.V.T).sum(axis=0)
        totals = {words: (start.U @ start.V.T).sum(axis=0) for words, start in starts.items()}
        per = np.bincount(np.concatenate([group.month for group in panel.groups]), minlength=panel.L)
        missing = (one.sites - per).astype(float)
        parts[name] = {
            "stamp": one.stamps.astype(float), "total": last, "loess": loess(last), "missing": missing,
            "missing loess": loess(missing), **totals,
        }  # fmt: skip
        moved = float(np.abs(last - totals[first]).sum() / np.abs(last).sum())
        top = ", ".join(f"{total.max():,.0f} from {words}" for words, total in totals.items())
        lines.append(
            f"{name}: {int(per.sum()):,} records at {one.sites} sites in {panel.L} months with records leave "
            f"{missing.min():.0f} to {missing.max():.0f} cells without one (ticks {one.missing[0]} to {one.missing[1]}); "
            f"largest monthly sum {last.max():,.0f} after {len(result.trace['k']):,} rounds, which moved the sums by "
            f"{100 * moved:.2g} % (ticks {one.counts[0]:,} to {one.counts[1]:,}); at the start {top}."
        )
    _draw_figure2(folder, parts, epochs)
    folder.say(
        "Figure 2 beside the paper's, on simulated records that have its dates, records, and sites in play (the printed "
        "axes say them). " + " ".join(lines)
    )
    folder.say(
        "What the run tells: the printed axes are those of sums of the counts themselves, with zeros in the cells without "
        "one. Month means elsewhere would give sums several times above the axis, a mean over the ten groups a tenth of it. "
        f"And with gamma = {GAMMA:g} the statistic keeps a share (1 - gamma)^rounds of its start, so the curve is that of "
        "the recording and not of the birds: it rises because records do. What cannot be had: the real records."
    )


def _draw_figure2(folder: Folder, parts: dict[str, dict[str, F64]], epochs: float) -> None:
    def draw(axes: Sequence[Axes]) -> None:
        for i, (name, part) in enumerate(parts.items()):
            one, left, right = SPECIES[name], axes[2 * i], axes[2 * i + 1]
            at = np.arange(part["stamp"].size)
            words, ticks = f"algorithm 7, {epochs:g} epochs", np.linspace(*one.counts, 5 if i == 0 else 4)
            left.plot(at, part["total"], "x", ms=3, color="C0", alpha=0.7, label=words)
            left.plot(at, part["loess"], ":", color="C0")
            left.set(title=name, ylabel="sum of estimated counts", yticks=ticks)
            right.plot(at, part["missing"], "^", ms=2, color="C3")
            right.plot(at, part["missing loess"], ":", color="C3")
            right.set(title=name, ylabel="cells without a record")
            for ax in (left, right):
                ax.set_xticks(np.arange(len(one.ticks)) * one.step, one.ticks, rotation=60, fontsize=7)

    columns = {f"{name} {key}": value for name, part in parts.items() for key, value in part.items()}
    folder.figure("figure2", draw, columns, panels=4, size=(3.6, 3.6), legend=7)


def _month_means(panel: GroupPanel) -> F64:
    """(L,) mean count of each month over all visits, the overall mean where there is none."""
    month = np.concatenate([group.month for group in panel.groups])
    counts = np.concatenate([group.count for group in panel.groups]).astype(np.float64)
    visits = np.bincount(month, minlength=panel.L)
    return np.where(visits > 0, np.bincount(month, counts, panel.L) / np.maximum(visits, 1), counts.mean())


def _start(panel: GroupPanel, fill: F64, share: float) -> Factors:
    """T(S_0), S_0 ``share`` of the sum of the counts, and ``fill`` (L,) in the cells without one."""
    S = sp.csr_array((panel.J, panel.L))
    for group in panel.groups:
        # ``fill`` is added as a low-rank part below, so here it is taken off the cells with a count.
        values = share * (group.count.astype(np.float64) - fill[group.month])
        S = S + sp.coo_array((values, (group.site, group.month)), shape=(panel.J, panel.L)).tocsr()
    return thresholded_svd(np.ones((panel.J, 1)), fill[:, None], sp.csr_array(S), RANK, 0.0)
