"""A sum of log abundance over a region's sites tells the birds of each of five: these are whole numbers."""

from __future__ import annotations

from itertools import combinations_with_replacement

import numpy as np
import pytest

from fedmiss.federation import messages as msg
from fedmiss.federation.group import features
from fedmiss.federation.triangle import from_triangle
from fedmiss.models.lowrank.settings import CountSettings
from tests.federation.network import tapped
from tests.federation.owners import dealt

J, YEARS, MOST, DIGITS = 60, 8, 40, 2.0**30  # digits of the field under masks
MODEL = CountSettings(rank=0, features=("regions", "abundance"))


def sets_of(told: float, abundance: np.ndarray) -> set[tuple[int, ...]]:
    """All sets of five numbers of birds whose ``abundance`` has this sum: one, and two pairs."""
    pairs = np.array(list(combinations_with_replacement(range(MOST + 1), 2)))
    sums = abundance[pairs].sum(axis=1)
    order = np.argsort(sums)
    pairs, sums, found = pairs[order], sums[order], set()
    for one in range(MOST + 1):
        rest = told - abundance[one] - sums
        first, last = (np.searchsorted(sums, rest + off) for off in (-3e-9, 3e-9))
        for i in np.flatnonzero(last > first):
            found |= {
                tuple(sorted((one, *pairs[i].tolist(), *pairs[j].tolist()))) for j in range(first[i], last[i])
            }
    return found


@pytest.mark.parametrize("rule", [False, True])
def test_birds_of_five_sites_of_a_region_are_not_told(rule, tmp_path, monkeypatch):
    """In a survey of which each site has a visit each June; the others have 40 sites, five of them in the north."""
    if not rule:
        monkeypatch.setattr(features, "COARSE", 1e-12)
    rng, sites = np.random.default_rng(1), np.arange(J)
    site, month = np.repeat(sites, YEARS), np.tile(12 * np.arange(YEARS) + 5, J)
    y = rng.poisson(np.exp(0.8 * rng.normal(size=J))[site] * rng.gamma(3, 1 / 3, site.size)).astype(float)
    theirs = sites[sites % 3 > 0][:5]
    region = np.where(np.isin(sites, [0, 3, 6, 9, *theirs]), "north", np.where(sites % 2, "south", "west"))
    panel = dealt((J, 12 * YEARS), site, month, y, region=region.astype(object))
    tap, _, _ = tapped(panel, tmp_path, [MODEL], least=5)
    question, answers = [x for x in tap.of(msg.Features) if x[0].kept.size][-1]
    assert question.kept[0] == question.kept[-1] == 1  # the north, and abundance
    products = sum(np.rint(a.products * DIGITS) for a in answers[1:]) / DIGITS
    told = from_triangle(products, int(question.kept.sum()))[0, -1]
    of_all, usual = question.level[-1], question.level[:-1].sum()
    abundance = np.log((np.arange(MOST + 1) + of_all) / (usual + of_all))
    abundance = np.round(abundance / features.COARSE) * features.COARSE
    true = tuple(np.sort(np.bincount(site, y, J)[theirs]).astype(int).tolist())
    found = sets_of(told, abundance)
    assert true in found
    assert len(found) > 1000 if rule else len(found) == 1
