"""The paper's own low rank over sites and species beside the community model: algorithm 7, judged on the same cells.

    E[y_js] = psi'(u_j . v_s) on one standard visit, with one value a cell, a ridge on U and V, and nothing else

Its rank and ridge are chosen by left-out cells too, with the quick solver of the same objective; the algorithm of the paper
then makes the fit itself, round by round. Source: Dieuleveut, Fort, Moulines, Robin (NeurIPS 2021), algorithm 7; counts as
its Poisson family, presence as its Bernoulli family.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from fedmiss.arrays import F64
from fedmiss.community.model import Cells, Community, cell_deviance
from fedmiss.compressors import Identity
from fedmiss.errors import DomainError
from fedmiss.federation.algorithm7 import run_algorithm7
from fedmiss.models.lowrank.families import family_of
from fedmiss.models.lowrank.paper import Factors
from fedmiss.models.lowrank.paper_step import fit_observed

ROUNDS = 50
RIDGES = (0.25, 1.0, 4.0)
LEAST = 1e-3  # a mean of 0 would make any bird impossible; the other models have the same floor


@dataclass(frozen=True, slots=True, eq=False)
class Paper:
    """A fit of algorithm 7.

    ``theta``: scores U (J, r) of the sites and loadings V (S, r) of the species; ``ridge`` lambda. ``tried``: rank, ridge
    and mean deviance of left-out cells of every candidate, and ``deviance`` that of the one chosen, beside ``none`` and
    ``chosen`` of the community model on the same cells. ``objective`` after the rounds, ``optimum`` of the quick solver.
    """

    theta: Factors
    ridge: float
    tried: pd.DataFrame
    deviance: float
    none: float
    chosen: float
    objective: float
    optimum: float
    rounds: int


def fit_paper(
    community: Community, *, max_rank: int = 5, seed: int = 0, watch: Callable[[str], None] | None = None
) -> Paper:
    """Fit algorithm 7 to the cells of a community; the folds are those of its ``gains``.

    Parameters
    ----------
    max_rank : most axes that the community model may have; the paper's model has no levels of site and species, so it may
        have two factors more
    """
    tell, family = watch or (lambda text: None), community.fit.settings.family
    values, fold = _values(community.cells), _folds(community)
    # Levels of site and species take up to two factors of a model that has factors only.
    most = min(max_rank + 2, (community.cells.S + 1) // 2)
    tell("algorithm 7: rank")
    scored = {
        (rank, ridge): _left_out(community, values, fold, family, rank, ridge)
        for rank in range(1, most + 1)
        for ridge in RIDGES
    }
    weight = float(community.gains["weight"].sum())
    tried = pd.DataFrame(
        [(rank, lam, deviance / weight) for (rank, lam), deviance in scored.items()],
        columns=["rank", "ridge", "deviance"],
    )
    # Chosen on left-out cells, then fitted to all of them.
    rank, ridge = min(scored, key=lambda k: scored[k])
    tell("algorithm 7")
    panel = values.panel({}, None)
    result, model, rows = run_algorithm7(
        panel, family=family, rank=rank, penalty=ridge, rounds=ROUNDS, compressor=Identity(), seed=seed,
        observe_every=ROUNDS,
    )  # fmt: skip
    optimum = fit_observed(panel, family=family, rank=rank, penalty=ridge)[2]
    none, chosen = (float(np.nansum(community.gains[name])) / weight for name in ("none", "chosen"))
    return Paper(
        result.theta, ridge, tried, scored[rank, ridge] / weight, none, chosen, model.objective(result.theta, rows),
        float(optimum), len(result.trace["k"]),
    )  # fmt: skip


def factor_rows(paper: Paper, sites: np.ndarray, species: np.ndarray) -> pd.DataFrame:
    """The table ``fedmissem``: factors of the sites and of the species, one row each."""
    parts = []
    for of, names, value in (("site", sites, paper.theta.U), ("species", species, paper.theta.V)):
        rows, rank = value.shape
        factor = np.tile(np.arange(1, rank + 1, dtype=np.int32), rows)
        parts.append(
            pd.DataFrame({"of": of, "name": np.repeat(names, rank), "factor": factor, "value": value.ravel()})
        )
    return pd.concat(parts, ignore_index=True)


def _values(cells: Cells) -> Cells:
    """One value a cell, as the paper has it: birds a standard visit, or the share of lists with the species."""
    key = cells.site * cells.S + cells.species
    at, inverse = np.unique(key, return_inverse=True)
    exposure = np.bincount(inverse, cells.weight * cells.effort)
    value = np.bincount(inverse, cells.weight * cells.count) / exposure
    return replace(
        cells, site=at // cells.S, species=at % cells.S, count=value, exposure=None, weight=np.ones(at.size)
    )


def _folds(community: Community) -> F64:
    """Fold of every cell (J, S), -1 for none: those of the community's gains, so that all models are judged on the same."""
    out = np.full((community.cells.J, community.cells.S), -1.0)
    out[community.gains["site"], community.gains["species"]] = community.gains["fold"]
    return out


def _left_out(community: Community, values: Cells, fold: F64, family: str, rank: int, ridge: float) -> float:
    """Deviance of the left-out cells, by the judge of the community model."""
    total, of_cell = 0.0, fold[values.site, values.species]
    gains = community.gains
    for held in range(int(fold.max()) + 1):
        train = values.take(of_cell != held)
        try:
            U, V, _ = fit_observed(train.panel({}, None), family=family, rank=rank, penalty=ridge)
        except DomainError:  # it ran away: no candidate
            return float("inf")
        test = (gains["fold"] == held).to_numpy()
        site, species = gains["site"].to_numpy()[test], gains["species"].to_numpy()[test]
        mean = (
            family_of(family).mean(np.einsum("kr,kr->k", U[site], V[species]))
            * gains["visits"].to_numpy()[test]
        )
        if family == "poisson":
            # A mean of nearly zero where a bird was counted would decide the whole deviance.
            mean = np.maximum(mean, LEAST)
        judged = cell_deviance(gains["count"].to_numpy()[test], mean, community.widest, family)
        total += float(gains["weight"].to_numpy()[test] @ judged)
    return total
