"""Seasons as third dimension: how much commoner each species is in each quarter of the year, within sites.

    log E[y_jsk] = log e_jk + eta_js + log f_sk,   mean over the quarters k of f_sk = 1

A site that was only visited in winter says little of a summer visitor. So the effort of a cell of site and species is the
sum over quarters of effort times f, where left-out cells are predicted clearly better so; else f is 1.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from fedmiss.arrays import F64
from fedmiss.community.model import Cells, Effort, cell_deviance, clear_gain
from fedmiss.etl.community import Lists
from fedmiss.federation.local import LocalFederation
from fedmiss.models.lowrank.settings import CountSettings
from fedmiss.rng import rng_for

QUARTERS = ("December to February", "March to May", "June to August", "September to November")
BIRDS = 5.0  # what a prior that all quarters are alike weighs
STEPS = 30


@dataclass(frozen=True, slots=True, eq=False)
class Season:
    """``factor`` (S, 4) by species and quarter; 1 where it does not pay. ``taken`` whether it does, and the ``gain``.

    ``gain``: share of the deviance of left-out cells that it takes off, None where it was not tried.
    """

    factor: F64
    taken: bool
    gain: float | None


def none_of(lists: Lists) -> Season:
    """No quarter differs from another."""
    return Season(np.ones((lists.S, len(QUARTERS))), False, None)


def season_of(lists: Lists, effort: Effort, cells: Cells, *, folds: int, seed: int) -> tuple[Season, Cells]:
    """Estimate what the quarter does to each species, and judge it on left-out cells; the cells with that in their effort.

    ``cells``: of counts, one for each site and species with a complete list.
    """
    none = none_of(lists)
    # December is 0 modulo 12: it opens the quarter of January and February.
    quarter = lists.month % 12 // 3
    if np.unique(quarter).size < 2 or cells.exposure is None:
        return none, cells
    parts = [lists.summed(effort.weight, quarter == of_year) for of_year in range(len(QUARTERS))]
    birds, exposure = (np.stack([part[axis] for part in parts], axis=2) for axis in (0, 1))
    fold = rng_for(seed, "season folds").integers(0, folds, cells.count.size)
    settings = CountSettings(rank=0, dispersion="negbin", season=False, slopes=False, seed=seed)
    score = np.zeros((2, 2, folds))  # deviance and error of log(1 + count); without and with; by fold
    widest = 0.0
    for held in range(folds):
        out = fold == held
        seen = np.ones((lists.J, lists.S), bool)
        seen[cells.site[out], cells.species[out]] = False
        # Factors from the other folds only, or the left-out counts would choose their own correction.
        factor = _factors(birds * seen[:, :, None], exposure * seen[:, :, None])
        for i, one in enumerate((cells, _with(cells, exposure, factor))):
            federation = LocalFederation.of_panel(one.take(~out).panel({}, None))
            fit = federation.fit(settings)
            # Both models are judged under one dispersion, that of the first fit: deviances under two are no difference.
            widest = widest or federation.members[0].state.inverse_size
            mean = fit.expected()[cells.site[out], cells.species[out]] * one.effort[out]
            score[0, i, held] = cell_deviance(
                one.count[out], np.maximum(mean, 1e-3), widest, "poisson"
            ).mean()
            score[1, i, held] = np.sqrt(np.mean((np.log1p(one.count[out]) - np.log1p(mean)) ** 2))
    gain = 1.0 - float(score[0, 1].mean() / score[0, 0].mean())
    if not clear_gain(score[:, 1] - score[:, 0]):
        return replace(none, gain=gain), cells
    factor = _factors(birds, exposure)
    return Season(factor, True, gain), _with(cells, exposure, factor)


def _with(cells: Cells, exposure: F64, factor: F64) -> Cells:
    """The cells with the quarters in their effort; never none, since a list was there."""
    whole = np.einsum("jsk,sk->js", exposure, factor)[cells.site, cells.species]
    return replace(cells, exposure=np.maximum(whole, 1e-6))


def _factors(birds: F64, exposure: F64) -> F64:
    """Factors (S, K) of birds and effort (J, S, K): of each species within sites, those of the sites in equal terms.

    Turn by turn the rate of each site given the factors, and the factors given the rates: the likelihood of a Poisson model
    of site and quarter, its counts weighed as those of a negative binomial of size 1, since else one flock decides.
    """
    factor = np.ones(birds.shape[1:])
    for _ in range(STEPS):
        whole = np.maximum(np.einsum("jsk,sk->js", exposure, factor), 1e-12)
        rate = birds.sum(axis=2) / whole
        mean = rate[:, :, None] * exposure * factor
        weight = 1.0 / (1.0 + mean)
        # Counted over expected, both plus BIRDS: a quarter of few birds stays near its last factor, and from 1 near 1.
        turn = ((weight * birds).sum(axis=0) + BIRDS) / ((weight * mean).sum(axis=0) + BIRDS)
        factor = factor * turn
        # The mean over quarters is fixed: the level belongs to the rates.
        factor /= factor.mean(axis=1, keepdims=True)
    return factor
