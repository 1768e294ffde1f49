"""Figure 2 of the paper with its own axes: both species, stamps with records, sites in play, sums of counts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import scipy.sparse as sp
from matplotlib.axes import Axes

from fedmiss.arrays import F64, I64
from fedmiss.compressors import Dithering
from fedmiss.core import FedEM, Minibatch, Result, Roster, Stop, run
from fedmiss.engines import LocalEngine
from fedmiss.experiments.folder import Folder, padded
from fedmiss.models.lowrank.data import Group, GroupPanel
from fedmiss.models.lowrank.paper import Factors, FedMissEM, thresholded_svd
from fedmiss.report.loess import loess as smooth
from fedmiss.rng import rng_for

__all__ = [
    "ALPHA", "BATCH", "GAMMA", "GROUPS", "OBSERVERS", "RANK", "SPECIES", "Printed", "figure2", "loess",
    "records_of",
]  # fmt: skip

OBSERVERS, GROUPS = 2_465, 10
SPAN = 0.15  # of LOESS
GAMMA, ALPHA, BATCH, RANK = 1e-4, 1e-3, 100, 2


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


def loess(y: F64, span: float = SPAN) -> F64:
    """LOESS curve over the months."""
    return smooth(np.arange(y.size, dtype=np.float64), y, span)


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
    groups = [
        Group.of(f"g{group:02d}", site[own], month[own], np.maximum(counts[own], 1.0), observer[own])
        for group in range(GROUPS)
        if (own := observer % GROUPS == group).any()
    ]
    return GroupPanel.of(one.sites, per.size, groups, (one.stamps % 12 + 1, one.stamps // 12))


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
        result = _run(panel, starts[first], epochs, folder.seed, f"figure 2: {name}")
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
    _draw(folder, parts, epochs)
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


def _run(panel: GroupPanel, start: Factors, epochs: float, seed: int, label: str) -> Result:
    """Run algorithm 7 from a start."""
    # Any: its T takes a carry, which the protocol Model leaves out.
    model: Any = FedMissEM(panel, family="gaussian", rank=RANK, penalty=0.0, start=start, seed=seed)
    rows = model.rows(panel)
    roster = Roster.of({key: len(row) for key, row in rows.items()})
    # The paper's setting (section 4): gamma = 1e-4, alpha = 1e-3, b = 100, r = 2, lambda = 0.
    algo = FedEM(model, Dithering(1), roster, GAMMA, ALPHA, oracle=Minibatch(BATCH), seed=seed)
    engine = LocalEngine([rows[group] for group in roster.ids])
    return run(algo, engine, np.zeros(model.q), stop=Stop(epochs=epochs), label=label)


def _draw(folder: Folder, parts: dict[str, dict[str, F64]], epochs: float) -> None:
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
    folder.figure("figure2", draw, padded(columns), panels=4, size=(3.6, 3.6), legend=7)


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
