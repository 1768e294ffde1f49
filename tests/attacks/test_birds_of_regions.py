"""What the page on privacy gives up: birds of a region's few sites, which a member finds by sites of its own making."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations_with_replacement

import numpy as np
import pytest

from fedmiss.federation import messages as msg
from fedmiss.federation.group.program import GroupProgram
from fedmiss.federation.group.visits import Visits
from fedmiss.models.lowrank.settings import CountSettings
from tests.federation.network import Tapped, clubs_of, tapped
from tests.federation.owners import dealt

J, YEARS, MOST = 60, 8, 40
DIGITS, WITHIN = 2.0**30, 3e-8  # of the field under masks
MODEL = CountSettings(rank=0, slopes=False)


def made_up(like: Visits) -> Visits:
    """Sites with 0, 1, .. birds in all and a visit each year; in a Poisson fit without slopes only their sum counts."""
    birds = np.arange(MOST + 1)
    each = birds[:, None] // YEARS + (np.arange(YEARS) < birds[:, None] % YEARS)
    site, n = np.repeat(birds, YEARS).astype(np.int32), each.size
    return replace(
        like.take(np.zeros(n, np.int64)), site=site, month=np.tile(np.unique(like.month), MOST + 1),
        count=each.ravel().astype(float), detected=each.ravel() > 0, observer=np.zeros(n, np.int32),
        site_id=birds.astype(str).astype(object), region=np.full(MOST + 1, "", dtype=object),
    )  # fmt: skip


def expected_of(tap: Tapped, like: Visits, end: msg.Totals) -> np.ndarray:
    """What is expected (MOST + 1, L) of the sites made up, after all questions of the job."""
    program = GroupProgram(
        "member", made_up(like), secret=b"", jointly=True, parts=[np.array([b]) for b in range(MOST + 1)]
    )
    for question in tap.asked[: next(i for i, q in enumerate(tap.asked) if q is end) + 1]:
        program.reply(question)
    return program.own_totals[end.batch, 0]


def sets_of(told: np.ndarray, expected: np.ndarray, have: int) -> set[tuple[int, ...]]:
    """All sets of so many numbers of birds that are expected to have these sums (L,): two halves."""
    numbers = range(MOST + 1)
    one, two = (np.array([*combinations_with_replacement(numbers, k)]) for k in (have // 2, have - have // 2))
    sums, rest = expected[one].sum(axis=1), told - expected[two].sum(axis=1)
    order = np.argsort(sums[:, 0])
    one, sums = one[order], sums[order]
    first, last = (np.searchsorted(sums[:, 0], rest[:, 0] + off) for off in (-WITHIN, WITHIN))
    found: set[tuple[int, ...]] = set()
    for i in np.flatnonzero(last > first):
        near = slice(first[i], last[i])
        right = (np.abs(sums[near] - rest[i]) <= WITHIN).all(axis=1)
        found |= {tuple(sorted((*two[i].tolist(), *half))) for half in one[near][right].tolist()}
    return found


@pytest.mark.parametrize("have", [5, 8])
def test_birds_of_a_region_s_few_sites_are_told(have, tmp_path):
    """In a survey of which each site has a visit each June; of the others' 40 sites these are in the north."""
    rng, sites = np.random.default_rng(have), np.arange(J)
    site, month = np.repeat(sites, YEARS), np.tile(12 * np.arange(YEARS) + 5, J)
    y = rng.poisson(np.exp(0.8 * rng.normal(size=J))[site] * rng.gamma(3, 1 / 3, site.size)).astype(float)
    theirs = sites[sites % 3 > 0][:have]
    region = np.where(
        np.isin(sites, [0, 3, 6, 9, 12, *theirs]), "north", np.where(sites % 2, "south", "west")
    )
    clubs = clubs_of(dealt((J, 12 * YEARS), site, month, y, region=region.astype(object)), tmp_path)
    like = clubs["owner-0"].visits
    tap, _, result = tapped(clubs, tmp_path, [MODEL], least=5)
    end, answers = next((q, a) for q, a in tap.of(msg.Totals) if not q.drawn)
    at = 1 + list(result.facts.regions).index("north")
    told = sum(np.rint(a.totals[0, at] * DIGITS) for a in answers[1:]) / DIGITS
    found = sets_of(told, expected_of(tap, like, end), have)
    assert found == {tuple(np.sort(np.bincount(site, y, J)[theirs]).astype(int).tolist())}
