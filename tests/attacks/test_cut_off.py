"""A number is cut off at 2.5 deviations: where a member has most sites, at one value, all but two of the others' may be."""

from __future__ import annotations

from itertools import combinations_with_replacement

import numpy as np
import pytest

from fedmiss.federation import messages as msg
from fedmiss.federation.group import features
from fedmiss.federation.triangle import from_triangle
from fedmiss.models.lowrank.settings import CountSettings
from tests.federation.network import Tapped, tapped
from tests.federation.owners import dealt

L, OWN, OTHERS, DIGITS = 24, 1500, 30, 2.0**24
MODEL = CountSettings(rank=0, features=("covariates",), slopes=False)


def job_of(own: list[int], theirs: list[int], folder) -> tuple[np.ndarray, Tapped, dict]:
    """Forest of the others' sites, and a job: the member's sites have none, but for ``own``; ``theirs`` are the lowest."""
    rng, J = np.random.default_rng(1), OWN + OTHERS
    owner = np.r_[np.zeros(OWN, int), 1 + np.arange(OTHERS) % 2]
    forest = np.r_[np.zeros(OWN), rng.integers(40, 101, OTHERS)].astype(float)
    forest[: len(own)], forest[OWN : OWN + len(theirs)] = own, theirs
    level = 1 + 0.8 * rng.normal(size=(J, 1)) + 0.3 * np.sin(2 * np.pi * np.arange(L) / 12)
    seen = (owner > 0)[:, None] & (rng.random((J, L)) < 0.9)
    seen[np.arange(OWN), rng.integers(0, L, OWN)] = True
    site, month = np.nonzero(seen)
    y = rng.poisson(np.exp(level) * rng.gamma(3, 1 / 3, (J, L)))[seen].astype(float)
    panel = dealt((J, L), site, month, y, owner[site], covariates={"forest": forest})
    tap, programs, _ = tapped(panel, folder, [MODEL], least=5)
    return forest[OWN:], tap, programs


@pytest.mark.parametrize("rule", [False, True])
def test_sums_over_two_sites_that_are_not_cut_off_are_not_told(rule, tmp_path, monkeypatch):
    """Of the others' sites two have no forest, one of each organisation."""
    if not rule:
        monkeypatch.setattr(features, "_few_of_a_number", lambda *of: False)
    forest, tap, programs = job_of([*range(60, 68)], [0, 0], tmp_path)
    asked = [(q, answers) for q, answers in tap.of(msg.Features) if q.kept.size]
    assert asked[0][0].kept[0] == 1
    if rule:
        assert not asked[-1][0].kept.any()
        return
    q, k = asked[-1][0], int(asked[-1][0].kept.sum())
    assert q.kept[0] == 1
    centre = next(q.centre for q in tap.asked if isinstance(q, msg.Open))[0]
    (two, *rest), apart = np.unique(np.clip((forest - q.mean[0]) / q.deviation[0], -2.5, 2.5)), []
    assert rest == [2.5]
    step, answers = tap.of(msg.Solve)[-1]
    told = sum(np.rint(a.features[0] * DIGITS) for a in answers[1:]) / DIGITS
    curvature = from_triangle(told[k + 1 :], k + 1)
    # sums over two sites and over the rest, from those with and without the feature
    found = np.linalg.solve(
        np.array([[1.0, 1.0], [two - centre, 2.5 - centre]]),
        np.array([[curvature[-1, -1], told[k]], [curvature[0, -1], told[0]]]),
    )[0]
    for name in ("owner-1", "owner-2"):
        batch, tau = programs[name].batches[step.batch], step.tau[0, 0]
        j = list(programs[name].visits.site_id).index(f"S{OWN + int(name[-1]) - 1}")
        away = batch.site_mean[0, j, 0] - batch.site_prior[0, j, 0]
        apart.append([1 / tau - batch.site_cov[0, j, 0, 0] / tau**2, away / tau])
    np.testing.assert_allclose(found, np.sum(apart, axis=0), rtol=5e-3)  # prior means move after the step


@pytest.mark.parametrize("rule", [False, True])
def test_whole_percents_of_six_sites_that_are_not_cut_off_are_not_told(rule, tmp_path, monkeypatch):
    """Of 177,100 sets of six below 20 one has the sums; without those of the square more than one."""
    if not rule:
        monkeypatch.setattr(features, "_few_of_a_number", lambda *of: False)
    theirs = [7, 15, 1, 2, 6, 6]
    _, tap, _ = job_of([3 + k % 9 for k in range(30)], theirs, tmp_path)
    q, answers = [x for x in tap.of(msg.Features) if x[0].kept.size][-1]
    assert q.kept.tolist() == [1, 0 if rule else 1]

    def powers(values: np.ndarray) -> np.ndarray:
        z = np.clip((values - q.mean[0]) / q.deviation[0], -2.5, 2.5)
        h = (z**2 - 1) / np.sqrt(2)
        return np.stack([z, z * z, z * h, h * h]).sum(axis=-1)

    k = 1 if rule else 2
    G = from_triangle(sum(np.rint(a.products * DIGITS) for a in answers[1:]) / DIGITS, k)
    sums = np.r_[sum(a.sums[0] for a in answers[1:]), G[0], G[-1, -1]][: 2 * k]
    sets = np.array(list(combinations_with_replacement(range(20), len(theirs))))
    cut_off = powers(np.full(OTHERS - len(theirs), 100.0))[: 2 * k]
    lacking = powers(sets.astype(float))[: 2 * k].T - (sums - cut_off)
    found = sets[(np.abs(lacking) < 1e-5).all(axis=1)].tolist()
    assert sorted(theirs) in found
    assert len(found) > 10 if rule else len(found) == 1
