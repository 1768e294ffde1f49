"""The tables of a community fit: what its folder holds and its page shows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy.special import ndtri

from fedmiss.arrays import F64
from fedmiss.community.model import Community, Effort
from fedmiss.community.outputs import (
    Axes,
    associations,
    axes_of,
    gains_by,
    left_out_scores,
    richness,
    usual_visits,
)
from fedmiss.etl.community import Lists
from fedmiss.federation.results import AverageFit
from fedmiss.models.lowrank.predictive import LEVEL

__all__ = ["Tables", "expected_rows", "score_rows", "tables_of"]

HALF = float(ndtri(0.5 + LEVEL / 2))


@dataclass(frozen=True, slots=True)
class Tables:
    """Everything that the page shows and the folder holds, as tables by the names of their schemas."""

    lists: Lists
    fit: Community
    effort: Effort
    axes: Axes
    species: pd.DataFrame
    sites: pd.DataFrame
    loadings: pd.DataFrame
    responses: pd.DataFrame
    associations: pd.DataFrame
    visits: pd.DataFrame
    usual: float

    @property
    def gain(self) -> float:
        """Share of the deviance of left-out cells that the axes take off."""
        whole = self.species[["deviance_alone", "deviance"]].sum()
        return 1.0 - float(whole["deviance"]) / max(float(whole["deviance_alone"]), 1e-12)

    def named(self, index: int) -> str:
        """Common name of a species, else its scientific name."""
        return self.lists.common[index] or self.lists.species[index]


def tables_of(lists: Lists, c: Community, effort: Effort) -> Tables:
    """All tables of a community but the two long ones, which are written in portions."""
    axes = axes_of(c)
    _, _, found = lists.summed()
    n_lists, seen = lists.visits, found > 0
    birds = np.bincount(lists.found, np.nan_to_num(lists.count), lists.S)
    by_species, by_lists = gains_by(c, n_lists)
    names = np.array(lists.species, dtype=object)
    alone, chosen = by_species["none"].to_numpy(), by_species["chosen"].to_numpy()
    species = pd.DataFrame(
        {
            "species": names, "common_name": [n or None for n in lists.common], "n_sites": seen.sum(axis=0).astype(np.int32),
            "n_lists": found.sum(axis=0).astype(np.int32), "birds": birds.astype(np.int64), "deviance_alone": alone,
            "deviance": chosen, "gain": np.where(alone > 0, 1.0 - chosen / np.where(alone > 0, alone, 1.0), np.nan),
        }
    )  # fmt: skip
    usual = usual_visits(c)
    expected, low, high = richness(c, visits=usual)
    place = lists.sites.to_pandas()
    sites = place.assign(
        n_lists=n_lists.astype(np.int32), found=seen.sum(axis=1).astype(np.int32), richness=expected, richness_lower=low,
        richness_upper=high,
    )  # fmt: skip
    a, b = np.triu_indices(lists.S, 1)
    estimate, lower, upper = associations(c, axes) if c.rank else (np.zeros((lists.S, lists.S)),) * 3
    pairs = pd.DataFrame(
        {
            "species": names[a],
            "other": names[b],
            "correlation": estimate[a, b],
            "lower": lower[a, b],
            "upper": upper[a, b],
        }
    )
    visits = (
        by_lists.rename(columns={"none": "deviance_alone", "chosen": "deviance"})
        .rename_axis("lists")
        .reset_index()
    )
    visits["gain"] = 1.0 - visits["deviance"] / visits["deviance_alone"].where(
        visits["deviance_alone"] > 0, 1.0
    )
    visits = visits.astype({"lists": str, "n_sites": np.int32})[
        ["lists", "n_sites", "deviance_alone", "deviance", "gain"]
    ]
    return Tables(
        lists, c, effort, axes, species, sites, _long(names, axes.loadings, axes.loadings_se), _responses(c, names),
        pairs if c.rank else pairs.iloc[:0], visits, usual,
    )  # fmt: skip


def _long(names: np.ndarray, value: F64, error: F64) -> pd.DataFrame:
    S, r = value.shape
    return pd.DataFrame(
        {
            "species": np.repeat(names, r), "axis": np.tile(np.arange(1, r + 1, dtype=np.int32), S),
            "loading": value.ravel(),
            "lower": (value - HALF * error).ravel(), "upper": (value + HALF * error).ravel(),
        }
    )  # fmt: skip


def _responses(c: Community, names: np.ndarray) -> pd.DataFrame:
    q, k = c.fit.posterior, len(c.responses)
    assert q is not None
    value, at = q.T[:, 1 : 1 + k], np.arange(1, 1 + k)
    table = _long(names, value, np.sqrt(q.D[:, at, at]))
    table.insert(1, "covariate", np.tile(np.array(c.responses, dtype=object), len(names)))
    return table.drop(columns="axis").rename(columns={"loading": "response"})


def expected_rows(t: Tables) -> dict[str, object]:
    """Expected counts (J S rows) on one standard visit."""
    fit, c = AverageFit((t.fit.fit,)), t.fit.cells
    band = fit.interval()
    n = c.weight if c.exposure is None else c.exposure
    visits = np.bincount(c.site * c.S + c.species, n, c.J * c.S)
    return {
        "site_id": np.repeat(t.sites["site_id"].to_numpy(), c.S),
        "species": np.tile(np.array(t.lists.species, dtype=object), c.J), "expected": fit.expected().ravel(),
        "lower": band.expected_lower.ravel(), "upper": band.expected_upper.ravel(), "visits": visits,
    }  # fmt: skip


def score_rows(t: Tables) -> Iterator[dict[str, object]]:
    """Scores by all species, then by all but each: one table of J r rows each."""
    ids, (J, r) = t.sites["site_id"].to_numpy(), t.axes.scores.shape
    common = {"site_id": np.repeat(ids, r), "axis": np.tile(np.arange(1, r + 1, dtype=np.int32), J)}
    none = np.full(J * r, None, dtype=object)
    yield {"without": none, **common, "score": t.axes.scores.ravel(), "score_se": t.axes.scores_se.ravel()}
    for name, scores in zip(t.lists.species, left_out_scores(t.fit, t.axes), strict=True):
        without = np.full(J * r, name, dtype=object)
        yield {"without": without, **common, "score": scores.ravel(), "score_se": np.full(J * r, np.nan)}
