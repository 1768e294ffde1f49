"""The tables of a community fit: what its folder holds and its page shows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd
from scipy.special import ndtri

from fedmiss.arrays import F64, I64
from fedmiss.community.associations import drawn_of
from fedmiss.community.model import Community, Effort
from fedmiss.community.outputs import (
    STEPS,
    Axes,
    axes_of,
    gains_by,
    left_out_scores,
    richness,
    site_sums,
    steps_of,
    usual_visits,
)
from fedmiss.community.paper import Paper
from fedmiss.community.season import QUARTERS, Season, none_of
from fedmiss.etl.community import Lists
from fedmiss.federation.results import AverageFit
from fedmiss.models.lowrank.predictive import LEVEL

HALF = float(ndtri(0.5 + LEVEL / 2))


@dataclass(frozen=True)
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
        """Share of the deviance of left-out cells that the axes take off; NaN where no cell could be left out."""
        whole = self.species[["deviance_alone", "deviance"]].sum()
        alone = float(whole["deviance_alone"])
        return 1.0 - float(whole["deviance"]) / alone if alone > 0 else float("nan")

    @cached_property  # read for each row of a table
    def names(self) -> dict[str, str]:
        """Name of each species on the page, by its scientific name: its common name, with both where several have it."""
        shared = Counter(self.lists.common)
        return {
            name: (f"{common} ({name})" if shared[common] > 1 else common) if common else name
            for name, common in zip(self.lists.species, self.lists.common, strict=True)
        }

    def at(self, species: Iterable[int]) -> list[str]:
        """Names of the species with these numbers."""
        names = list(self.names.values())
        return [names[number] for number in species]


def tables_of(
    lists: Lists,
    community: Community,
    effort: Effort,
    sums: F64 | None = None,
    season: Season | None = None,
    watch: Callable[[float], None] | None = None,
) -> Tables:
    """All tables of a community but the two long ones, which are written in portions.

    ``sums``: those of :func:`~fedmiss.community.outputs.site_sums` over all sites, where not all of them are here;
    ``watch`` hears which part of the associations is done.
    """
    if sums is None:
        # Of the lists, not of the cells: these hold the quarters of the year, in which some species is always commoner.
        sums = site_sums(community, np.bincount(lists.site, effort.weight, lists.J).astype(float))
    axes, usual = axes_of(community, sums), usual_visits(community, sums)
    _, _, found = lists.summed()
    expected, low, high = richness(community, visits=usual, sums=sums)
    place = lists.sites.to_pandas()
    sites = place.assign(
        n_lists=lists.visits.astype(np.int32), found=(found > 0).sum(axis=1).astype(np.int32), richness=expected,
        richness_lower=low, richness_upper=high,
    )  # fmt: skip
    names = np.array(lists.species, dtype=object)
    pairs, half = (
        drawn_of(community, axes, watch)
        if community.rank
        else ((np.zeros((0, 0)),) * 3, np.zeros_like(axes.loadings))
    )
    by_species, by_lists = gains_by(community, lists.visits)
    n_sites = np.bincount(steps_of(lists.visits), minlength=len(STEPS))
    return Tables(
        lists, community, effort, axes,
        species_rows(lists.species, lists.common, numbers_of(lists, community), by_species), sites,
        loading_rows(names, axes.loadings, np.maximum(half / HALF, axes.loadings_se)), response_rows(community, axes, names),
        pair_rows(names, *pairs),
        visit_rows(n_sites, by_lists), usual, season or none_of(lists),
    )  # fmt: skip


def numbers_of(lists: Lists, community: Community) -> F64:
    """Numbers (S, 4) of the species: sites and lists with it, birds, expected birds of one standard visit to every site."""
    _, _, found = lists.summed()
    birds = np.bincount(lists.found, np.nan_to_num(lists.count), lists.S)
    return np.stack(
        [(found > 0).sum(axis=0), found.sum(axis=0), birds, community.fit.expected().sum(axis=0)], axis=1
    )


def species_rows(species: Sequence[str], common: Sequence[str], numbers: F64, gains: F64) -> pd.DataFrame:
    """The table of species: ``numbers`` as of :func:`numbers_of`, ``gains`` (S, 2) deviance of left-out cells."""
    alone, chosen = gains.T
    n_sites, n_lists, birds, expected = numbers.T
    return pd.DataFrame(
        {
            "species": np.array(species, dtype=object), "common_name": [name or None for name in common],
            "n_sites": np.rint(n_sites).astype(np.int32), "n_lists": np.rint(n_lists).astype(np.int32),
            "birds": np.rint(birds).astype(np.int64), "expected": expected, "deviance_alone": alone, "deviance": chosen,
            "gain": np.where(alone > 0, 1.0 - chosen / np.where(alone > 0, alone, 1.0), np.nan),
        }
    )  # fmt: skip


def pair_rows(names: np.ndarray, estimate: F64, lower: F64, upper: F64) -> pd.DataFrame:
    """The table of associations (S, S): every pair once; none without axes."""
    first, second = np.triu_indices(len(estimate), 1)
    return pd.DataFrame(
        {
            "species": names[first], "other": names[second], "correlation": estimate[first, second],
            "lower": lower[first, second],
            "upper": upper[first, second],
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


def loading_rows(names: np.ndarray, value: F64, error: F64) -> pd.DataFrame:
    """The table of loadings (S, r), with their errors."""
    n_species, rank = value.shape
    return pd.DataFrame(
        {
            "species": np.repeat(names, rank), "axis": np.tile(np.arange(1, rank + 1, dtype=np.int32), n_species),
            "loading": value.ravel(),
            "lower": (value - HALF * error).ravel(), "upper": (value + HALF * error).ravel(),
        }
    )  # fmt: skip


def response_rows(community: Community, axes: Axes, names: np.ndarray) -> pd.DataFrame:
    """The table of responses to covariates; those to values of a category beside their mean.

    Responses b_s + d w_s at scores u - d x, and b_s + d at levels a - d x, are as good: among so many sites a
    covariate x goes with scores and levels by chance, by a d of variance 1 / sites and tau / sites: the posterior given
    these lacks it.
    """
    posterior, n_responses = community.posterior, len(community.responses)
    # Of the values of a category one is 1 at every site: only what they differ by is known.
    of = np.array(community.categories or [""] * n_responses, dtype=object)
    same = (of[:, None] == of) & (of != "")
    n_values = same.sum(axis=1)
    turn = np.eye(n_responses) - np.where(n_values > 1, same / np.maximum(n_values, 1), 0.0)
    part = slice(1, 1 + n_responses)
    variance = np.einsum("ak,skl,al->sa", turn, posterior.D[:, part, part], turn)
    # numbers are in standard deviations; of k values with as many sites each a mean beside the others' has k - 1 times that
    by_chance = (axes.loadings**2).sum(axis=1) + posterior.tau[0]
    variance = variance + np.outer(by_chance, np.maximum(n_values - 1, 1)) / max(axes.sites, 1)
    table = loading_rows(names, posterior.T[:, part] @ turn.T, np.sqrt(variance))
    table.insert(1, "covariate", np.tile(np.array(community.responses, dtype=object), len(names)))
    return table.drop(columns="axis").rename(columns={"loading": "response"})


def season_rows(tables: Tables) -> pd.DataFrame:
    """The table of seasons: a factor for every species and quarter."""
    n_quarters = len(QUARTERS)
    return pd.DataFrame(
        {
            "species": np.repeat(np.array(tables.lists.species, dtype=object), n_quarters),
            "quarter": list(QUARTERS) * tables.lists.S,
            "factor": tables.season.factor.ravel(),
        }
    )  # fmt: skip


def expected_rows(tables: Tables) -> dict[str, object]:
    """Expected counts (J S rows) on one standard visit."""
    fit, cells = AverageFit((tables.fit.fit,)), tables.fit.cells
    band = fit.interval()
    return {
        "site_id": np.repeat(tables.sites["site_id"].to_numpy(), cells.S),
        "species": np.tile(np.array(tables.lists.species, dtype=object), cells.J), "expected": fit.expected().ravel(),
        "lower": band.expected_lower.ravel(), "upper": band.expected_upper.ravel(),
        "visits": cells.visited().ravel(),
    }  # fmt: skip


def score_rows(tables: Tables) -> Iterator[dict[str, object]]:
    """Scores by all species, then by all but each: one table of J r rows each."""
    ids, (n_sites, rank) = tables.sites["site_id"].to_numpy(), tables.axes.scores.shape
    common = {
        "site_id": np.repeat(ids, rank),
        "axis": np.tile(np.arange(1, rank + 1, dtype=np.int32), n_sites),
    }
    rows = n_sites * rank
    axes = tables.axes
    yield {
        "without": np.full(rows, None, dtype=object),
        **common,
        "score": axes.scores.ravel(),
        "score_se": axes.scores_se.ravel(),
    }
    # One block a species: what the panel of that species takes must not hold its own counts.
    for name, scores in zip(tables.lists.species, left_out_scores(tables.fit, axes), strict=True):
        yield {
            "without": np.full(rows, name, dtype=object),
            **common,
            "score": scores.ravel(),
            "score_se": np.full(rows, np.nan),
        }
