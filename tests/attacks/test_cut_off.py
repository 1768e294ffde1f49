"""A number is cut off at 2.5 deviations: where a member has most sites, at one value, all but two of the others' may be."""

from __future__ import annotations

import numpy as np
import pytest

from fedmiss.federation import messages as msg
from fedmiss.federation.group import features
from fedmiss.federation.triangle import from_triangle
from fedmiss.models.lowrank.settings import CountSettings
from tests.federation.network import tapped
from tests.federation.owners import dealt

L, OWN, OTHERS, DIGITS = 24, 1500, 30, 2.0**24
MODEL = CountSettings(rank=0, features=("covariates",), slopes=False)


@pytest.mark.parametrize("rule", [False, True])
def test_sums_over_two_sites_that_are_not_cut_off_are_not_told(rule, tmp_path, monkeypatch):
    """The member's sites have no forest, but for eight; of the others' two have none, one of each organisation."""
    rng, J = np.random.default_rng(1), OWN + OTHERS
    owner = np.r_[np.zeros(OWN, int), 1 + np.arange(OTHERS) % 2]
    forest = np.r_[np.zeros(OWN), rng.integers(40, 101, OTHERS)].astype(float)
    forest[:8], forest[OWN : OWN + 2] = 60.0 + np.arange(8), 0.0
    level = 1 + 0.8 * rng.normal(size=(J, 1)) + 0.3 * np.sin(2 * np.pi * np.arange(L) / 12)
    seen = (owner > 0)[:, None] & (rng.random((J, L)) < 0.9)
    seen[np.arange(OWN), rng.integers(0, L, OWN)] = True
    site, month = np.nonzero(seen)
    y = rng.poisson(np.exp(level) * rng.gamma(3, 1 / 3, (J, L)))[seen].astype(float)
    panel = dealt((J, L), site, month, y, owner[site], covariates={"forest": forest})
    if not rule:
        monkeypatch.setattr(features, "_few_of_a_number", lambda *of: False)
    tap, programs, _ = tapped(panel, tmp_path, [MODEL], least=5)
    asked = [(q, answers) for q, answers in tap.of(msg.Features) if q.kept.size]
    assert asked[0][0].kept[0] == 1
    if rule:
        assert not asked[-1][0].kept.any()
        return
    q, k = asked[-1][0], int(asked[-1][0].kept.sum())
    assert q.kept[0] == 1
    centre = next(q.centre for q in tap.asked if isinstance(q, msg.Open))[0]
    (two, *rest), apart = np.unique(np.clip((forest[OWN:] - q.mean[0]) / q.deviation[0], -2.5, 2.5)), []
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
