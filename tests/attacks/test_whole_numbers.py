"""Sums of the first four powers of a number are told: of a few sites that have whole numbers one set of these has them."""

from __future__ import annotations

from itertools import combinations_with_replacement

import numpy as np
import pytest

from fedmiss.federation import messages as msg
from fedmiss.federation.group import covariates, features
from fedmiss.federation.triangle import from_triangle
from tests.attacks.test_features import job_of, panel_of

MOST, HAVE, DIGITS = (
    100,
    6,
    2.0**30,
)  # whole percents, at six sites of the two others; digits of the field under masks


def powers(values: np.ndarray, question: msg.Features) -> np.ndarray:
    """Sums (4, n) over sites: of values (n, sites), their squares, the two features' product and the second's square."""
    z = np.clip((values - question.mean[0]) / question.deviation[0], -2.5, 2.5)
    h = (z**2 - 1) / np.sqrt(2)
    return np.stack([values, values**2, z * h, h * h]).sum(axis=2)


def sets_of(sums: np.ndarray, question: msg.Features) -> list[tuple[int, ...]]:
    """All sets of whole percents with these sums: two halves that have the sum and the sum of squares together."""
    half = np.array(list(combinations_with_replacement(range(MOST + 1), HAVE // 2)))
    mine = powers(half, question)
    lacking = sums[:, None] - mine
    key, wanted = (np.rint(x[0]) * 1e7 + np.rint(x[1]) for x in (mine, lacking))
    order = np.argsort(key)
    first, last = (np.searchsorted(key[order], wanted, side) for side in ("left", "right"))
    one = np.repeat(np.arange(len(half)), last - first)
    other = order[
        np.arange(one.size) - np.repeat(np.cumsum(last - first) - (last - first), last - first) + first[one]
    ]
    right = (np.abs(mine[2:, other] - lacking[2:, one]) < 1e-6).all(axis=0)
    return sorted(
        {tuple(sorted((*half[i], *half[j]))) for i, j in zip(one[right], other[right], strict=True)}
    )


@pytest.mark.parametrize("rule", [False, True])
def test_whole_percents_of_six_sites_of_the_others_are_not_told(rule, tmp_path, monkeypatch):
    """1.7 billion sets of six: one has their sums."""
    if not rule:
        for room in (covariates, features):
            monkeypatch.setattr(room, "SITES_OF_A_NUMBER", 0)
    rng, sites = np.random.default_rng(36), np.arange(30)
    theirs = rng.permutation(sites[sites % 3 > 0])[:HAVE]
    cover = np.where(sites % 3 > 0, np.nan, rng.integers(0, MOST + 1, 30))
    cover[theirs] = rng.integers(0, MOST + 1, HAVE)
    tap = job_of(panel_of(30, {"cover": cover}), tmp_path, "covariates")
    told = [(q, a) for q, a in tap.of(msg.Covariates) if q.unit.size]
    if rule:
        assert not told
        return
    (scale, answers), (kept, found) = told[-1], [x for x in tap.of(msg.Features) if x[0].kept.size][-1]
    plain = (
        sum(np.rint(a.sums[0, 1:3] * DIGITS) for a in answers[1:])
        / DIGITS
        * scale.unit[0] ** np.array([1, 2])
    )
    products = from_triangle(sum(np.rint(a.products * DIGITS) for a in found[1:]) / DIGITS, 2)
    assert sets_of(np.r_[plain, products[0, 1], products[1, 1]], kept) == [
        tuple(np.sort(cover[theirs]).astype(int))
    ]


@pytest.mark.parametrize(
    ("mine", "theirs", "asked"),
    [((0, 1), (0, 1), True), ((1, 2), (1, 2), False), ((0, 1), (0, 7, 30), False)],
)
def test_a_number_of_0_and_1_needs_no_more_sites_than_a_category(mine, theirs, asked, tmp_path):
    """At 8 sites of the others: how many have 1 is all that its powers tell. What is told of these is what they have."""
    rng, sites = np.random.default_rng(2), np.arange(150)
    x = np.where(sites % 3 == 0, rng.choice(mine, 150), np.nan)
    x[[1, 4, 7, 10, 2, 5, 8, 11]] = np.resize(theirs, 8)
    tap = job_of(panel_of(150, {"wet": x}), tmp_path, "covariates")
    assert any(q.unit.size for q, _ in tap.of(msg.Covariates)) == asked
