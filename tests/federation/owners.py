"""Panels split among owners: sites of their own, sites of several, and the weights of a pooled reference."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fedmiss.federation.group.folds import replicate_weights
from fedmiss.federation.local import LocalFederation
from fedmiss.models.lowrank.data import Group, GroupPanel
from tests.models.panels import calendar, truth


def owned(
    owners=3, *, J=45, L=36, n=900, shared=0.0, seed=0, observers=30, size=None, effort=False, scale=0.6
) -> GroupPanel:
    """Visits of ``owners`` groups: every site has one owner, but for a share of sites that all of them visit."""
    rng = np.random.default_rng(seed)
    eta = truth(J, L, seed, scale)
    site, month = rng.integers(0, J, n), rng.integers(0, L, n)
    home = rng.integers(0, owners, J)
    common = rng.random(J) < shared
    who = np.where(common[site], rng.integers(0, owners, n), home[site])
    x = rng.normal(0, 0.4, (n, 1)) if effort else np.zeros((n, 0))
    mu = np.exp(eta[site, month] + (0.5 * x[:, 0] if effort else 0.0))
    if size is not None:
        mu = mu * rng.gamma(size, 1 / size, n)
    y = rng.poisson(mu).astype(float)
    observer = rng.integers(0, observers, n)
    groups = []
    for k in range(owners):
        m = who == k
        local = np.unique(observer[m], return_inverse=True)[1]
        groups.append(Group.of(f"owner-{k}", site[m], month[m], y[m], local, x[m]))
    ids = np.array([f"L{7 * j + 1000}" for j in range(J)], dtype=object)
    region = np.array([f"R{j % 3}" for j in range(J)], dtype=object)
    return GroupPanel.of(J, L, groups, calendar(L), ids, region)


def pooled(panel: GroupPanel) -> LocalFederation:
    """All visits in one group, with the weights of replicates that their owners would draw.

    Weights are keyed by owner and observer: each visit carries its owner's number in a covariate-free copy of the panel.
    """
    apart = LocalFederation.of_panel(panel)
    start = np.cumsum([0] + [g.n_observers for g in panel.groups])
    whole = LocalFederation.of_panel(panel.pooled()).programs["all"].place

    def weigh(name, seed, number, spread, used):
        out = np.empty(used.site.size)
        for k, g in enumerate(panel.groups):
            mine = (used.observer >= start[k]) & (used.observer < start[k + 1])
            out[mine] = replicate_weights(
                apart.programs[g.name].secret,
                seed,
                number,
                spread,
                apart.programs[g.name].visits.who,
                whole[used.site[mine]],
                used.observer[mine] - start[k],
                used.weight[mine],
            )
        return out

    return LocalFederation.of_panel(panel.pooled(), weigh=weigh)


def largest(a, b) -> float:
    """Largest relative difference."""
    return float(np.abs(np.asarray(a) / np.asarray(b) - 1).max())


def renumbered(panel: GroupPanel, order) -> GroupPanel:
    """The same panel with its sites in another order."""
    at = np.argsort(order)
    groups = [
        Group.of(g.name, at[g.site], g.month, g.count, g.observer, g.effort, g.weight) for g in panel.groups
    ]
    return replace(panel, groups=tuple(groups), site_id=panel.site_id[order], region=panel.region[order])
