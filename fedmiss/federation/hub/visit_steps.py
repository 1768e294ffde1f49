"""The hub's steps of what is estimated on visits: effort, what observers have in common, their variance, and dispersion."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from fedmiss.arrays import F64
from fedmiss.federation.hub.dispersion import inverse_size_of, pearson_at
from fedmiss.federation.hub.priors import (
    EFFORT_SD,
    LEARNING_SD,
    LEVEL_SD,
    OBSERVER_SD,
    STRIDE,
    left_out,
    shrunk,
)
from fedmiss.federation.hub.state import MonthState, Panel
from fedmiss.federation.hub.values import evolve
from fedmiss.models.lowrank.families import FAMILIES
from fedmiss.models.lowrank.settings import CountSettings

# Rounds of a rank in which level and observers move together, and how far apart they may come later. Not each round for
# good: a group that has few observers tells no sums of them, and their part of the mean would move for ever. Not left alone
# either: where months take short steps the level's prior pulls it away from the observers, up to their standard deviation.
TOGETHER, APART = 20, 0.1


def effort_step(
    old: MonthState, state: MonthState, sums: F64, panel: Panel, settings: CountSettings
) -> MonthState:
    """One damped Newton step of the effort coefficients; ``sums`` as in ``messages.Months.effort``, at ``old``.

    Where no visit is near the standard one, a coefficient of effort and the level say nearly the same, and in turns would
    creep: the level goes along, so that what the mean visit is expected to count stays. So does the months' line with how
    late observers come.
    """
    kappa, mu, unit = state.kappa, state.mu, np.asarray(state.unit)
    phi, q = np.asarray(state.phi), kappa.shape[-1] + 1 + settings.learning
    score, H = sums[..., :q], sums[..., q:].reshape(*sums.shape[:-1], q, q)
    # m = X'W1 / 1'W1, the mean effort; W the weights of the family.
    mean = H[..., :-1, -1] / np.maximum(H[..., -1, -1:], 1e-300)
    sd = np.r_[np.full(panel.K, EFFORT_SD), LEARNING_SD, np.inf][: q - 1]  # the line's prior means go along
    # Priors N(0, sd^2) of the coefficients and N(origin, LEVEL_SD^2) of the level, times phi, as the sums are not over phi.
    weak, level = phi[..., None] / (sd * unit[..., None]) ** 2, phi / (LEVEL_SD * unit) ** 2
    pull = score[..., :-1].copy()
    pull[..., : kappa.shape[-1]] -= weak[..., : kappa.shape[-1]] * kappa
    pull -= mean * (score[..., -1] + level * (state.origin - mu))[..., None]
    # IRLS along (step, -m step): (X'WX - m 1'WX + level mm' + weak) step = X'r - weak kappa - m (1'r + level (origin - mu)).
    A = H[..., :-1, :-1] - mean[..., :, None] * (
        H[..., -1:, :-1] - level[..., None, None] * mean[..., None, :]
    )
    A[..., np.arange(q - 1), np.arange(q - 1)] += weak
    cap = FAMILIES[settings.family].effort_cap
    if not settings.learning:
        step = np.clip(np.linalg.solve(A, pull[..., None])[..., 0], -cap, cap)
        return evolve(state, kappa=kappa + step, mu=mu - (mean * step).sum(axis=-1))
    # The line is eliminated as the level was: its own step is the months', whose pull to their prior means is in balance
    # with what visits say of it at the end.
    x = panel.years - panel.years.mean()
    pull[..., -1] -= phi * (x * (old.T - old.prior)[..., 0] / old.widths[..., 0]).sum(axis=-1)
    if state.series is None:  # prior means that follow no series stay where they are, and hold the line
        A[..., -1, -1] += phi * (x**2 / old.widths[..., 0]).sum(axis=-1)
    along = A[..., :-1, -1] / np.maximum(A[..., -1, -1:], 1e-300)
    A, pull = A[..., :-1, :-1] - along[..., None] * A[..., -1:, :-1], pull[..., :-1] - along * pull[..., -1:]
    step = np.clip(np.linalg.solve(A, pull[..., None])[..., 0], -cap, cap)
    line = -(along * step).sum(axis=-1)
    T, prior = state.T.copy(), state.prior.copy()
    for column in (T, prior) if state.series else (T,):
        column[..., 0] += line[..., None] * x
    level = (mean * np.concatenate([step, line[..., None]], axis=-1)).sum(axis=-1)
    return evolve(state, kappa=kappa + step, mu=mu - level, T=T, prior=prior)


def common_step(state: MonthState, sums: F64, *, learning: bool) -> MonthState:
    """Move what observers have in common to the level, and to how late they come; ``sums``: ``messages.Months.observers``.

    No count tells (mu + d, o - d) from (mu, o), nor (kappa + e, o - e z) with z how late an observer's visits are: only
    their priors do, and in turns they would creep along it.
    """
    _, number, _, about, z_about, z, z_square = np.moveaxis(sums, -1, 0)
    unit, kappa = np.asarray(state.unit), state.kappa
    level, late = 1.0 / (LEVEL_SD * unit) ** 2, 1.0 / (LEARNING_SD[1] * unit) ** 2
    # Newton's step, of a quadratic: the sum of ridge (o - d - e z)^2 / 2, level (mu + d - origin)^2 / 2 and
    # late (kappa + e)^2 / 2.
    pull = np.stack([state.ridge * about + level * (state.origin - state.mu), state.ridge * z_about], axis=-1)
    if learning:
        pull[..., 1] -= late * kappa[..., -1]
    cross = state.ridge * z
    A = np.stack([state.ridge * number + level, cross, cross, state.ridge * z_square + late], axis=-1)
    common = np.linalg.solve(A.reshape(*A.shape[:-1], 2, 2), pull[..., None])[..., 0]
    due = (np.asarray(state.k) <= TOGETHER) | (np.abs(common[..., 0]) > APART * unit)
    common = np.where((due & (number > 0))[..., None], common, 0.0)
    changed: dict[str, Any] = {"mu": state.mu + common[..., 0], "common": common}
    if learning:
        changed["kappa"] = np.concatenate([kappa[..., :-1], kappa[..., -1:] + common[..., 1:]], axis=-1)
    return evolve(state, **changed)


def visit_step(
    state: MonthState, sums: dict[str, F64], nodes: F64, settings: CountSettings, *, observers: bool
) -> MonthState:
    """Dispersion (moment equation), and observers' variance (EM) where it is their turn."""
    family = FAMILIES[settings.family]
    K = state.kappa.shape[-1]
    ridge, used = np.asarray(state.ridge), state.edf_observers
    if observers:
        squares, number, used, about, z_about, z, z_square = np.moveaxis(sums["observers"], -1, 0)
        d, e = np.moveaxis(state.common, -1, 0)  # of o - d - e z
        squares = squares + number * d**2 + z_square * e**2 + 2.0 * (d * e * z - d * about - e * z_about)
        # MacKay's fixed point, var sum (1 - C / var) = sum o^2: that of EM, in a third of its rounds where observers are
        # alike. The half-normal prior of the standard deviation adds var^2 / scale^2 on the left, against flocks.
        # ``squares`` holds o^2 + C of every observer; (number - used) / ridge is the sum of C.
        least = np.maximum(1e-4 * used, 1e-12) * np.asarray(state.unit) ** 2
        effects = np.maximum(squares - (number - used) / ridge, least)
        width = (OBSERVER_SD * np.asarray(state.unit)) ** 2
        variance = shrunk(np.maximum(used, 1e-12), effects, width)
        kept = left_out(ridge, state.unit)
        ridge = np.where(kept, ridge, np.clip(1.0 / variance, ridge / STRIDE, ridge * STRIDE))
    # Pearson statistic over residual degrees of freedom; a fit with as many terms as visits keeps a fifth of them.
    free = np.maximum(state.weight - state.edf - (K + used), 0.2 * np.asarray(state.weight))
    statistic = sums["dispersion"] / free[..., None]
    inverse_size, phi = np.asarray(state.inverse_size), np.asarray(state.phi)
    held = (
        settings.inverse_size is not None
    )  # then phi is 1: the Pearson ratio of a size too large is few cells' doing
    # Moment equation: sum w (y - mu)^2 / (mu + mu^2 / size) = free.
    if settings.dispersion == "negbin" and not held:
        inverse_size = _each(inverse_size_of, nodes, statistic, inverse_size)
    if settings.dispersion != "none" and family.dispersed and not held:
        least_phi = family.least_phi * np.asarray(state.unit) ** 2
        phi = np.maximum(_each(pearson_at, nodes, statistic, inverse_size), least_phi)
    changed: dict[str, Any] = {
        "ridge": ridge, "edf_observers": used, "inverse_size": inverse_size, "phi": phi,
        "refill": np.ones_like(state.refill),
    }  # fmt: skip
    return evolve(state, **changed)


def _each(solve: Callable[[F64, F64, float], float], nodes: F64, statistic: F64, at: F64) -> F64:
    """Solve the table (..., m) of every fit by itself."""
    m = nodes.shape[-1]
    rows = zip(nodes.reshape(-1, m), statistic.reshape(-1, m), np.ravel(at), strict=True)
    return np.reshape([solve(*row) for row in rows], np.shape(at))
