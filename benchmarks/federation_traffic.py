"""Exchanges, bytes and equality of the default job (9 candidates x 5 folds, trials of structure, fit, B = 200 replicates).

    python benchmarks/federation_traffic.py --panel-folder fedmiss-demo/panel

Rows: the demo, whose sites are dealt to one and to three owners, and the paper's size (9,721 x 249) with three owners.
``path`` is the fit of ranks 0 to 2 alone: bytes up of the organisation that sends most. ``equal`` is the largest relative
difference of monthly totals to the pooled fit at ranks 0, 1, 2.
"""

from __future__ import annotations

import argparse

import lowrank_peers as peers  # first: it limits the BLAS threads

# isort: split
import numpy as np

from fedmiss.federation.hub.agree import DataSpec
from fedmiss.federation.hub.job import JobSpec, run_job
from fedmiss.federation.local import LocalFederation
from fedmiss.models.lowrank.choice import default_candidates
from fedmiss.models.lowrank.data import Group, GroupPanel
from fedmiss.models.lowrank.settings import CountSettings
from fedmiss.models.lowrank.structure import FEATURES
from fedmiss.pipeline.panels import open_panel
from fedmiss.simulate.panels import simulate_panel

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
    order = JobSpec(DataSpec(), default_candidates(NEGBIN), bootstrap=draws, structure=FEATURES)
    federation.ask_features(order.candidates, FEATURES)
    run_job(federation.link, order, None, (federation.agreement, federation.hub))
    ledger = federation.link.ledger
    stages = ", ".join(f"{k} {v.exchanges}" for k, v in ledger.stages.items())
    t = ledger.total
    print(
        f"| {name} | {len(federation.programs)} | {t.exchanges} ({stages}) | {t.bytes_up / 1e6:.1f} / "
        f"{t.bytes_down / 1e6:.1f} | {path.link.ledger.total.exchanges} | {most:.2f} | {equal(panel):.0e} |",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--panel-folder", default="fedmiss-demo/panel")
    parser.add_argument("--draws", type=int, default=200)
    args = parser.parse_args()
    demo = open_panel(args.panel_folder).load("poisson")
    paper = simulate_panel(9721, 249, 12185 / (9721 * 249), seed=1, observers=2465)
    print(
        "| panel | groups that answer | exchanges | MB up / down | path: exchanges | path: MB up, one group | equal |"
    )
    print("|---|---|---|---|---|---|---|")
    job("demo, one owner", demo, args.draws)
    job("demo, three owners", dealt(demo), args.draws)
    job("paper size, three owners", dealt(peers.group_panel(paper)), args.draws)


if __name__ == "__main__":
    main()
