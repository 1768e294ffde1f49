"""Small panels for the tests of the low-rank models."""

from types import SimpleNamespace

import numpy as np

from fedmiss.models.lowrank.data import Group, GroupPanel, index_cells


def calendar(L):
    return np.arange(L) % 12 + 1, 2000 + np.arange(L) // 12


def truth(J, L, seed, scale=0.6, level=1.0):
    rng = np.random.default_rng(seed)
    t = np.arange(L)
    V = np.column_stack([np.sin(2 * np.pi * t / 12), (t - t.mean()) / max(t.std(), 1)])
    eta = level + rng.normal(0, 0.7, J)[:, None] + 0.4 * np.cos(2 * np.pi * t / 12)
    return eta + scale * rng.normal(0, 1, (J, 2)) @ V.T


def simulate(J=40, L=24, n=400, family="poisson", groups=4, seed=0, observers=20, scale=0.6, level=1.0):
    """A panel of ``n`` visits; several visits may fall into one cell. Returns the panel and the true eta."""
    rng = np.random.default_rng(seed + 1)
    eta = truth(J, L, seed, scale, level)
    s, t = rng.integers(0, J, n), rng.integers(0, L, n)
    e = eta[s, t]
    y = {
        "poisson": lambda: rng.poisson(np.exp(e)),
        "gaussian": lambda: e + rng.normal(0, 0.5, n),
        "bernoulli": lambda: rng.random(n) < 1 / (1 + np.exp(-(e - level))),
    }[family]().astype(float)
    who = rng.integers(0, observers, n)
    return split(J, L, s, t, y, who, who % groups), eta


def split(J, L, s, t, y, who, group):
    parts = []
    for g in np.unique(group):
        m = group == g
        parts.append(Group.of(f"g{g:02d}", s[m], t[m], y[m], np.unique(who[m], return_inverse=True)[1]))
    return GroupPanel.of(J, L, parts, calendar(L))


def cells_of(panel, family):
    """Sums of counts and weights of every group by observed cell, as compressed sparse rows."""
    out = []
    for g in panel.groups:
        ptr, cell, first = index_cells(g.site, g.month, panel.J, panel.L)
        n = first.size
        y, E = np.bincount(cell, g.weight * g.count, n), np.bincount(cell, g.weight, n)
        out.append(SimpleNamespace(ptr=ptr, row=g.site[first], col=g.month[first], nnz=n, y=y, E=E))
    return out
