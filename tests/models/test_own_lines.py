"""Sites' own lines beyond their visits: a damped trend, whose mean and variance are those of its draws."""

import numpy as np
import pytest

from fedmiss.models.lowrank.own_lines import DAMPING, OwnLines
from fedmiss.models.lowrank.theta import moments, moments_at

YEAR = np.repeat(np.arange(12), 3)


def lines_of(first, last, mean=0.0, unit=0.4) -> OwnLines:
    first, last = np.asarray(first), np.asarray(last)
    return OwnLines(first, last, np.full(first.size, mean), YEAR, unit, np.zeros(first.size))


def test_between_its_visits_a_line_is_straight_and_a_site_without_visits_keeps_its_prior():
    lines = lines_of([2, -1, 0], [6, -1, 11])
    assert not lines.bend()[0, 2:7].any()
    assert not lines.bend()[1:].any()
    assert not lines.variance()[1:].any()


def test_each_further_year_goes_a_fixed_share_of_the_one_before_and_all_together_a_bounded_way():
    lines = lines_of([4, 0], [4, 0])
    x = lines.unit * np.arange(12) + lines.bend()  # x of the site's own slope
    steps = np.diff(x, axis=1)
    np.testing.assert_allclose(steps[1], lines.unit * DAMPING ** np.arange(1, 12))
    np.testing.assert_allclose(steps[0, :4], steps[0, 4:8][::-1])  # backwards as forwards
    assert x[1, -1] - x[1, 0] < lines.unit * DAMPING / (1 - DAMPING)


def test_draws_of_later_slopes_have_the_variance_that_is_added():
    lines, n = lines_of([5], [6]), 40_000
    many = OwnLines(
        np.repeat(lines.first, n), np.repeat(lines.last, n), np.zeros(n), YEAR, lines.unit, np.zeros(n)
    )
    paths = many.path(np.random.default_rng(1).standard_normal((n, 12)))
    said = lines.variance()[0]
    assert said[5] == said[6] == 0
    assert not paths[:, 5:7].any()
    away = said > 0
    # A variance of n normal draws has a relative standard error of sqrt(2 / n).
    np.testing.assert_allclose(paths.var(axis=0)[away], said[away], rtol=5 * np.sqrt(2 / n))
    np.testing.assert_allclose(paths.mean(axis=0), 0.0, atol=5 * np.sqrt(said.max() / n))
    # The slopes of years are one process: a path of two years has the slope of the first in it.
    step = np.diff(paths[:, 6:9], axis=1)
    assert np.corrcoef(step.T)[0, 1] > 0.5


@pytest.mark.parametrize("p", [2, 4])
def test_moments_are_those_of_the_bent_predictor(p):
    rng = np.random.default_rng(2)
    J, L = 9, YEAR.size
    P, T = rng.normal(size=(J, p)), rng.normal(size=(L, p))
    C, D = (A @ A.transpose(0, 2, 1) for A in (rng.normal(0, 0.3, (n, p, p)) for n in (J, L)))
    lines = lines_of(rng.integers(0, 4, J), rng.integers(5, 9, J), mean=0.3)
    T[:, 1] = lines.unit * (YEAR - 5.5)
    D[:, 1] = D[:, :, 1] = 0.0
    tau = rng.random(p)
    eta, var = (
        a + b for a, b in zip(moments(0.1, P, C, T, D), lines.moved(P, C, T, tau, slice(None)), strict=True)
    )
    for j in range(J):
        bent = T.copy()
        bent[:, 1] += lines.bend()[j, YEAR]
        straight = lines.mean[j] * lines.bend()[j, YEAR]  # the common part of the slope does not bend
        mean, other = moments(0.1, P[j : j + 1], C[j : j + 1], bent, D)
        np.testing.assert_allclose(eta[j], mean[0] - straight, atol=1e-12)
        np.testing.assert_allclose(var[j], other[0] + tau[1] * lines.variance()[j, YEAR], atol=1e-12)
    site, month = np.repeat(np.arange(J), L), np.tile(np.arange(L), J)
    one = moments_at(0.1, P[site], C[site], T[month], D[month])
    more = lines.moved_at(P[site], C[site], T[month], tau, site, month)
    np.testing.assert_allclose(np.stack(one) + more, np.stack([eta.ravel(), var.ravel()]), atol=1e-12)
    assert np.array_equal(lines.beyond(site, month), lines.bend()[:, YEAR].ravel() != 0)


def test_lines_of_groups_are_joined_by_the_visits_of_all():
    one, other = lines_of([3, -1], [5, -1], mean=0.2), lines_of([1, -1], [4, -1], mean=0.4)
    whole = OwnLines.joined([one, other], [np.array([0, 2]), np.array([0, 1])], 4)
    assert whole.first.tolist() == [1, -1, -1, -1]
    assert whole.last.tolist() == [5, -1, -1, -1]
    np.testing.assert_allclose(whole.mean, [0.3, 0.4, 0.2, 0.0])
