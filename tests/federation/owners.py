"""Panels split among owners: sites of their own, sites of several, and the weights of a pooled reference."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd

from fedmiss.federation.group.folds import replicate_weights
from fedmiss.federation.hub.structure import try_structure
from fedmiss.federation.local import LocalFederation
from fedmiss.models.lowrank.choice import Choice
from fedmiss.models.lowrank.data import Group, GroupPanel
from fedmiss.models.lowrank.settings import CountSettings
from fedmiss.rng import rng_for
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


def dealt(shape, site, month, count, owner=None, *, region=None, covariates=None, **columns) -> GroupPanel:
    """Visits of three organisations: in turn at the sites (J, L), or as ``owner`` says; columns beside the counts."""
    J, L = shape
    columns = {"site": site, "month": month, "count": count} | columns
    parts = [(site % 3 if owner is None else owner) == k for k in range(3)]
    groups = [Group.of(f"owner-{k}", **{n: x[at] for n, x in columns.items()}) for k, at in enumerate(parts)]
    ids = np.array([f"S{j}" for j in range(J)], dtype=object)
    return GroupPanel.of(J, L, groups, calendar(L), ids, region, covariates=covariates)


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
                apart.programs[g.name].secret, seed, number, spread, apart.programs[g.name].visits.who,
                whole[used.site[mine]], used.observer[mine] - start[k], used.weight[mine],
            )  # fmt: skip
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


PLAIN = CountSettings(rank=0, dispersion="negbin")
COVARIATES = replace(PLAIN, features=("covariates",))


def panel_of(p, by, covariates=None):
    """The visits of a simulated panel, dealt to groups by site or by observer."""
    key = {"site": p.site % 3, "observer": p.observer % 3, "none": np.zeros(p.site.size, int)}[by]
    members = [
        Group.of(f"g{g}", p.site[m], p.month[m], p.count[m], np.unique(p.observer[m], return_inverse=True)[1])
        for g in np.unique(key)
        for m in [key == g]
    ]
    L = p.year.size
    return GroupPanel.of(len(p.expected), L, members, (np.arange(L) % 12 + 1, p.year), covariates=covariates)


def tried(federation, features):
    """Choice after the trial of features, from a rank of 0."""
    none = Choice(pd.DataFrame(), pd.DataFrame(), PLAIN, "")
    federation.hub, choice = try_structure(
        federation.link, federation.hub, none, folds=5, by="cell", seed=0, features=features
    )
    return choice


def country(seed, *, J=120, years=6, share=0.5, hidden=0.25):
    """Sites of which ``share`` of the variance follows an elevation and a habitat; some are never visited.

    Returns the columns of visits, the true means (J, L), the hidden sites, and the covariates.
    """
    rng = rng_for(seed, "country")
    L = 12 * years
    height, habitat = rng.normal(size=J), rng.choice(np.array(["farm", "forest", "town"], dtype=object), J)
    e = 0.8 * height - 0.4 * height**2 + 0.8 * (habitat == "forest")
    e = (e - e.mean()) / e.std()
    a = np.sqrt(share) * e + np.sqrt(1 - share) * rng.normal(size=J)
    t = np.arange(L)
    mean = np.exp(0.5 + a[:, None] + 0.5 * np.sin(2 * np.pi * t / 12) - 0.03 * t / 12)
    gone = np.arange(J) < hidden * J
    site, month = np.nonzero((rng.random((J, L)) < 0.15) & ~gone[:, None])
    count = rng.negative_binomial(2.0, 2.0 / (2.0 + mean[site, month])).astype(float)
    observer = rng.integers(0, 12, site.size)
    visits = SimpleNamespace(
        site=site, month=month, count=count, observer=observer, year=2000 + t // 12, expected=mean
    )
    return visits, gone, {"elevation": 800 + 300 * height, "habitat": habitat}
