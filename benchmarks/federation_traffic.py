"""Exchanges, bytes and equality of the default job (9 candidates x 5 folds, final fit, B = 200 replicates).

    python benchmarks/federation_traffic.py --panel-folder fedmiss-demo/panel

Rows: the demo's ten groups of one person (joint sums by site), the demo's sites dealt to three owners, and the paper's size
(9,721 x 249) with three owners. ``path`` is the fit of ranks 0 to 2 alone: bytes up of the organisation that sends most.
``equal`` is the largest relative difference of monthly totals to the pooled fit at ranks 0, 1, 2. The second table says by
how much totals move when shared sites are treated as their owners' own (--no-joint).
"""

from __future__ import annotations

import argparse
import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
from federation_speed import panel_of

from fedmiss.federation.hub.bootstrap import totals_of
from fedmiss.federation.local import LocalFederation
from fedmiss.models.lowrank.choice import default_candidates
from fedmiss.models.lowrank.data import Group, GroupPanel
from fedmiss.models.lowrank.settings import CountSettings

NEGBIN = CountSettings(dispersion="negbin")


def dealt(panel: GroupPanel, owners: int = 3) -> GroupPanel:
    """The same visits, every site with one owner."""
    whole = panel.pooled().groups[0]
    groups = []
    for k in range(owners):
        m = whole.site % owners == k
        who = np.unique(whole.observer[m], return_inverse=True)[1]
        groups.append(Group.of(f"owner-{k}", whole.site[m], whole.month[m], whole.count[m], who))
    return GroupPanel.of(panel.J, panel.L, groups, panel.calendar, panel.site_id, panel.region)


def partly_shared(share: float) -> GroupPanel:
    """300 sites x 96 months, 6,000 visits of three owners, a share of the sites visited by all of them."""
    rng = np.random.default_rng(1)
    J, L, n = 300, 96, 6000
    t = np.arange(L)
    eta = 1 + rng.normal(0, 0.7, J)[:, None] + 0.4 * np.cos(2 * np.pi * t / 12)
    eta = eta + 0.6 * rng.normal(0, 1, J)[:, None] * np.sin(2 * np.pi * t / 12)
    site, month = rng.integers(0, J, n), rng.integers(0, L, n)
    common, home = rng.random(J) < share, rng.integers(0, 3, J)
    who = np.where(common[site], rng.integers(0, 3, n), home[site])
    y = rng.poisson(np.exp(eta[site, month]) * rng.gamma(2, 0.5, n)).astype(float)
    groups = [Group.of(f"owner-{k}", site[who == k], month[who == k], y[who == k]) for k in range(3)]
    return GroupPanel.of(J, L, groups, (t % 12 + 1, 2000 + t // 12))


def equal(panel: GroupPanel) -> float:
    """Largest relative difference of monthly totals to the pooled fit, ranks 0 to 2."""
    worst = 0.0
    for rank in (0, 1, 2):
        s = CountSettings(rank=rank, dispersion="negbin")
        a, b = (LocalFederation.of_panel(p).fit(s).expected().sum(axis=0) for p in (panel, panel.pooled()))
        worst = max(worst, float(np.abs(a / b - 1).max()))
    return worst


def job(name: str, panel: GroupPanel, draws: int) -> None:
    path = LocalFederation.of_panel(panel)
    path.fit(CountSettings(rank=2, dispersion="negbin"))
    most = max(line.bytes_up for line in path.link.ledger.groups.values()) / 1e6
    federation = LocalFederation.of_panel(panel)
    best = federation.cross_validate(default_candidates(NEGBIN)).best
    federation.fit(best)
    size = federation.lockstep_size()
    for first in range(0, draws, size):
        federation.replicates(range(first, min(first + size, draws)), seed=0)
    ledger = federation.link.ledger
    stages = ", ".join(f"{k} {v.exchanges}" for k, v in ledger.stages.items())
    t = ledger.total
    print(
        f"| {name} | {federation.hub.n_joint} of {panel.J} | {t.exchanges} ({stages}) | {t.bytes_up / 1e6:.1f} / "
        f"{t.bytes_down / 1e6:.1f} | {path.link.ledger.total.exchanges} | {most:.2f} | {equal(panel):.0e} |",
        flush=True,
    )


def moved(name: str, panel: GroupPanel, rank: int) -> None:
    totals = []
    for joint in (True, False):
        f = LocalFederation.of_panel(panel, joint=joint)
        f.fit(CountSettings(rank=rank, dispersion="negbin"))
        totals.append(totals_of(f.link, f.hub, [(m.batch, [m.state]) for m in f.members])[0][0][0])
    d, total = totals[1] / totals[0] - 1, totals[1].sum() / totals[0].sum() - 1
    print(f"| {name} | {rank} | {np.sqrt((d**2).mean()):.3f} | {np.abs(d).max():.3f} | {total:+.3f} |")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--panel-folder", default="fedmiss-demo/panel")
    parser.add_argument("--draws", type=int, default=200)
    args = parser.parse_args()
    demo = panel_of("demo", args.panel_folder)
    print(
        "| panel | joint sites | exchanges | MB up / down | path: exchanges | path: MB up, one group | equal |"
    )
    print("|---|---|---|---|---|---|---|")
    job("demo, ten groups of one person", demo, args.draws)
    job("demo, three owners", dealt(demo), args.draws)
    job("paper size, three owners", dealt(panel_of("paper", "")), args.draws)
    print("\n| shared sites as own | rank | rms of monthly totals | largest | total |\n|---|---|---|---|---|")
    for rank in (0, 1):
        moved("demo, 180 of 209 shared by up to ten groups", demo, rank)
    for share in (0.1, 0.3, 1.0):
        moved(f"simulated, {share:.0%} shared by three", partly_shared(share), 1)


if __name__ == "__main__":
    main()
