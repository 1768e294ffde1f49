"""What a group computes from its single visits: offsets, weights, and the updates of effort, observers, dispersion.

Everything here runs inside a group; what leaves it are the sums that the functions add up over groups.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from scipy.optimize import brentq

from fedmiss.arrays import F64
from fedmiss.models.lowrank.data import Cells, Group, GroupPanel
from fedmiss.models.lowrank.families import mean
from fedmiss.models.lowrank.settings import Auxiliary, CountSettings

__all__ = [
    "fill_cells",
    "pearson",
    "update_effort",
    "update_observers",
    "update_theta",
    "visit_mean",
    "visit_offset",
    "visit_weight",
]


def visit_offset(g: Group, aux: Auxiliary, i: int) -> F64:
    """Offset of every visit of group ``i``: effort and observer."""
    o = g.effort @ aux.kappa if aux.kappa.size else np.zeros(g.count.size)
    return o + aux.observer[i][g.observer] if aux.observer[i].size else o


def visit_mean(g: Group, c: Cells, aux: Auxiliary, i: int, family: str) -> F64:
    """Expected value of every visit of group ``i``."""
    eta = c.eta[c.cell]
    if family != "bernoulli":  # the offset of a Bernoulli visit is inside its own cell's eta
        eta = eta + visit_offset(g, aux, i)
    return mean(np.minimum(eta, 50.0) if family == "poisson" else eta, family)


def visit_weight(mu: F64, theta: float) -> F64:
    """Quasi-score weight of a negative-binomial visit: 1 / (1 + mu / theta)."""
    return 1.0 / (1.0 + mu / theta)


def fill_cells(panel: GroupPanel, cells: Sequence[Cells], aux: Auxiliary, settings: CountSettings) -> None:
    """Recompute (y, E) of every group from its visits at the current auxiliary parameters."""
    plain = not aux.kappa.size and not any(o.size for o in aux.observer)
    for i, (g, c) in enumerate(zip(panel.groups, cells, strict=True)):
        w = g.weight
        if np.isfinite(aux.theta) and c.eta.size == c.nnz:
            shrink = visit_weight(visit_mean(g, c, aux, i, settings.family), aux.theta)
            # Half-way on the log scale: full steps of the weights overshoot when theta is small, and swing.
            if c.shrink.size == shrink.size:
                shrink = np.sqrt(shrink * c.shrink)
            c.shrink = shrink
            w = w * shrink
        c.fill(g, settings.family, None if plain else visit_offset(g, aux, i), w)


def update_effort(
    panel: GroupPanel, cells: Sequence[Cells], aux: Auxiliary, settings: CountSettings
) -> Auxiliary:
    """One damped Newton step of the effort coefficients; K + K^2 numbers per group travel."""
    K = aux.kappa.size
    if K == 0:
        return aux
    grad, H = np.zeros(K), np.zeros((K, K))
    for i, (g, c) in enumerate(zip(panel.groups, cells, strict=True)):
        mu, w = _working(g, c, aux, i, settings)
        grad += g.effort.T @ (w * (g.count - mu))
        H += (g.effort * (w * _variance(mu, settings.family))[:, None]).T @ g.effort
    H[np.diag_indices(K)] += aux.phi * 0.1  # a weak ridge: sd about 3 on the log scale
    step = np.linalg.solve(H, grad - aux.phi * 0.1 * aux.kappa)
    cap = np.inf if settings.family == "gaussian" else 0.5  # a Gaussian step is exact, whatever its unit
    return replace(aux, kappa=aux.kappa + np.clip(step, -cap, cap))


def update_observers(
    panel: GroupPanel, cells: Sequence[Cells], aux: Auxiliary, settings: CountSettings
) -> Auxiliary:
    """One damped Newton step of every observer effect, inside its group, and the EM update of their variance."""
    if not settings.observers:
        return aux
    effects: list[F64] = []
    squares = count = used = 0.0
    ridge = aux.phi * aux.observers
    for i, (g, c) in enumerate(zip(panel.groups, cells, strict=True)):
        mu, w = _working(g, c, aux, i, settings)
        n = aux.observer[i].size
        grad = np.bincount(g.observer, w * (g.count - mu), n)
        curve = np.bincount(g.observer, w * _variance(mu, settings.family), n)
        step = (grad - ridge * aux.observer[i]) / (curve + ridge)
        cap = np.inf if settings.family == "gaussian" else 1.0
        o = aux.observer[i] + np.clip(step, -cap, cap)
        active = np.bincount(g.observer, g.weight, n) > 0
        o[~active] = 0.0
        effects.append(o)
        squares += float((o[active] ** 2).sum() + (aux.phi / (curve[active] + ridge)).sum())
        count += float(active.sum())
        used += float((curve[active] / (curve[active] + ridge)).sum())
    variance = max(squares / max(count, 1.0), 1e-4)  # three numbers per group travel, no observer does
    return replace(aux, observer=tuple(effects), observers=1.0 / variance, edf=aux.kappa.size + used)


def _working(g: Group, c: Cells, aux: Auxiliary, i: int, settings: CountSettings) -> tuple[F64, F64]:
    mu = visit_mean(g, c, aux, i, settings.family)
    w = g.weight if not np.isfinite(aux.theta) else g.weight * visit_weight(mu, aux.theta)
    return mu, w


def _variance(mu: F64, family: str) -> F64:
    if family == "gaussian":
        return np.ones_like(mu)
    return mu if family == "poisson" else mu * (1 - mu)


def update_theta(
    panel: GroupPanel, cells: Sequence[Cells], aux: Auxiliary, settings: CountSettings, edf: float
) -> float:
    """Moment equation of the negative-binomial size: sum (y-mu)^2/(mu+mu^2/theta) = residual df."""
    low, high = np.log(1e-3), np.log(1e6)
    means = [
        visit_mean(g, c, aux, i, settings.family)
        for i, (g, c) in enumerate(zip(panel.groups, cells, strict=True))
    ]
    n = sum(float(g.weight.sum()) for g in panel.groups)
    total = max(n - edf, 0.2 * n)

    def excess(log_theta: float) -> float:
        t = np.exp(log_theta)
        s = 0.0
        for g, mu in zip(panel.groups, means, strict=True):
            s += float((g.weight * (g.count - mu) ** 2 / np.maximum(mu + mu**2 / t, 1e-12)).sum())
        return float(s / total - 1.0)

    if excess(high) <= 0:
        return float("inf")
    if excess(low) >= 0:
        return float(np.exp(low))
    return float(np.exp(brentq(excess, low, high, xtol=1e-10)))


def pearson(panel: GroupPanel, cells: Sequence[Cells], aux: Auxiliary, settings: CountSettings) -> float:
    """Pearson statistic over visits: sum of w (y - mu)^2 / Var."""
    total = 0.0
    for i, (g, c) in enumerate(zip(panel.groups, cells, strict=True)):
        mu = visit_mean(g, c, aux, i, settings.family)
        var = _variance(mu, settings.family)
        if np.isfinite(aux.theta):
            var = mu + mu**2 / aux.theta
        total += float((g.weight * (g.count - mu) ** 2 / np.maximum(var, 1e-12)).sum())
    return total
