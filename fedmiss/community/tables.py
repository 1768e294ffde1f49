"""The tables of a community fit: what its folder holds and its page shows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy.special import ndtri

from fedmiss.arrays import F64, I64
from fedmiss.community.model import Community, Effort
from fedmiss.community.outputs import (
    STEPS,
    Axes,
    associations,
    axes_of,
    gains_by,
    left_out_scores,
    richness,
    steps_of,
    usual_visits,
)
from fedmiss.community.paper import Paper
from fedmiss.community.season import QUARTERS, Season, none_of
from fedmiss.etl.community import Lists
from fedmiss.federation.results import AverageFit
from fedmiss.models.lowrank.predictive import LEVEL

__all__ = [
    "Tables",
    "expected_rows",
    "loading_rows",
    "numbers_of",
    "pair_rows",
    "response_rows",
    "score_rows",
    "season_rows",
    "species_rows",
    "tables_of",
    "visit_rows",
]

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
    season: Season
    paper: Paper | None = None

    @property
    def gain(self) -> float:
        """Share of the deviance of left-out cells that the axes take off."""
        whole = self.species[["deviance_alone", "deviance"]].sum()
        return 1.0 - float(whole["deviance"]) / max(float(whole["deviance_alone"]), 1e-12)

    def named(self, index: int) -> str:
        """Common name of a species, else its scientific name."""
        return self.lists.common[index] or self.lists.species[index]


def tables_of(
    lists: Lists, c: Community, effort: Effort, sums: F64 | None = None, season: Season | None = None
) -> Tables:
    """All tables of a community but the two long ones, which are written in portions.

    ``sums``: those of :func:`~fedmiss.community.outputs.site_sums` over all sites, where not all of them are here.
    """
    axes, usual = axes_of(c, sums), usual_visits(c, sums)
    _, _, found = lists.summed()
    expected, low, high = richness(c, visits=usual)
    place = lists.sites.to_pandas()
    sites = place.assign(
        n_lists=lists.visits.astype(np.int32), found=(found > 0).sum(axis=1).astype(np.int32), richness=expected,
        richness_lower=low, richness_upper=high,
    )  # fmt: skip
    names = np.array(lists.species, dtype=object)
    by_species, by_lists = gains_by(c, lists.visits)
    n_sites = np.bincount(steps_of(lists.visits), minlength=len(STEPS))
    return Tables(
        lists, c, effort, axes, species_rows(lists.species, lists.common, numbers_of(lists, c), by_species), sites,
        loading_rows(names, axes), response_rows(c, names), pair_rows(c, axes, lists.species),
        visit_rows(n_sites, by_lists), usual, season or none_of(lists),
    )  # fmt: skip


def numbers_of(lists: Lists, c: Community) -> F64:
    """Numbers (S, 4) of the species: sites and lists with it, birds, expected birds of one standard visit to every site."""
    _, _, found = lists.summed()
    birds = np.bincount(lists.found, np.nan_to_num(lists.count), lists.S)
    return np.stack([(found > 0).sum(axis=0), found.sum(axis=0), birds, c.fit.expected().sum(axis=0)], axis=1)


def species_rows(species: Sequence[str], common: Sequence[str], numbers: F64, gains: F64) -> pd.DataFrame:
    """The table of species: ``numbers`` as of :func:`numbers_of`, ``gains`` (S, 2) deviance of left-out cells."""
    alone, chosen = gains.T
    n_sites, n_lists, birds, expected = numbers.T
    return pd.DataFrame(
        {
            "species": np.array(species, dtype=object), "common_name": [n or None for n in common],
            "n_sites": np.rint(n_sites).astype(np.int32), "n_lists": np.rint(n_lists).astype(np.int32),
            "birds": np.rint(birds).astype(np.int64), "expected": expected, "deviance_alone": alone, "deviance": chosen,
            "gain": np.where(alone > 0, 1.0 - chosen / np.where(alone > 0, alone, 1.0), np.nan),
        }
    )  # fmt: skip


def pair_rows(c: Community, axes: Axes, species: Sequence[str]) -> pd.DataFrame:
    """The table of associations: every pair once; none without axes."""
    names, S = np.array(species, dtype=object), len(species)
    a, b = np.triu_indices(S if c.rank else 0, 1)
    estimate, lower, upper = associations(c, axes) if c.rank else (np.zeros((0, 0)),) * 3
    return pd.DataFrame(
        {
            "species": names[a], "other": names[b], "correlation": estimate[a, b], "lower": lower[a, b],
            "upper": upper[a, b],
        }
    )  # fmt: skip


def visit_rows(n_sites: I64, gains: F64) -> pd.DataFrame:
    """The table of gains by the number of lists of a site; ``n_sites`` (4,) of each step."""
    alone, chosen = gains.T
    table = pd.DataFrame(
        {
            "lists": list(STEPS), "n_sites": n_sites.astype(np.int32), "deviance_alone": alone, "deviance": chosen,
            "gain": 1.0 - chosen / np.where(alone > 0, alone, 1.0),
        }
    )  # fmt: skip
    kept: pd.DataFrame = table[alone > 0].reset_index(drop=True)
    return kept


def loading_rows(names: np.ndarray, axes: Axes) -> pd.DataFrame:
    """The table of loadings."""
    return _long(names, axes.loadings, axes.loadings_se)


def _long(names: np.ndarray, value: F64, error: F64) -> pd.DataFrame:
    S, r = value.shape
    return pd.DataFrame(
        {
            "species": np.repeat(names, r), "axis": np.tile(np.arange(1, r + 1, dtype=np.int32), S),
            "loading": value.ravel(),
            "lower": (value - HALF * error).ravel(), "upper": (value + HALF * error).ravel(),
        }
    )  # fmt: skip


def response_rows(c: Community, names: np.ndarray) -> pd.DataFrame:
    """The table of responses to covariates."""
    q, k = c.fit.posterior, len(c.responses)
    assert q is not None
    value, at = q.T[:, 1 : 1 + k], np.arange(1, 1 + k)
    table = _long(names, value, np.sqrt(q.D[:, at, at]))
    table.insert(1, "covariate", np.tile(np.array(c.responses, dtype=object), len(names)))
    return table.drop(columns="axis").rename(columns={"loading": "response"})


def season_rows(t: Tables) -> pd.DataFrame:
    """The table of seasons: a factor for every species and quarter."""
    k = len(QUARTERS)
    return pd.DataFrame(
        {
            "species": np.repeat(np.array(t.lists.species, dtype=object), k), "quarter": list(QUARTERS) * t.lists.S,
            "factor": t.season.factor.ravel(),
        }
    )  # fmt: skip


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
