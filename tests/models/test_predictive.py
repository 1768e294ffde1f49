"""Predictive laws: their intervals against draws, and against closed forms."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from fedmiss.models.lowrank.families import FAMILIES
from fedmiss.models.lowrank.predictive import CountLaw, PresenceLaw, ValueLaw

LAWS = [
    CountLaw(),
    CountLaw(0.5),
    CountLaw(3.0),
    CountLaw(20.0),
    CountLaw(phi=5.0),
    CountLaw(0.5, observers=0.3),
    CountLaw(phi=30.0),
]


@pytest.mark.parametrize("law", LAWS, ids=repr)
def test_an_interval_holds_what_is_drawn(law):
    """At least 95 % of draws are inside, and each tail has at most 2.5 %, to five standard errors and the grid's step."""
    rng = np.random.default_rng(7)
    n = 40_000
    cells = np.array([(eta, var) for eta in (-5.0, -1.3, 0.7, 3.1, 6.0) for var in (0.0, 0.04, 0.6, 2.5)])
    for (eta, var), low, high in zip(cells, *law.interval(*cells.T), strict=True):
        y = law.draw(eta + np.sqrt(var) * rng.standard_normal(n), rng)
        for outside in ((y < low).mean(), (y > high).mean()):
            assert outside <= 0.025 + 5 * np.sqrt(0.025 * 0.975 / n) + 0.002, (eta, var, low, high)
        # no wider than needed: one step of 4 % inside, or one bird, more than 2.5 % are cut off
        if high > 3:
            assert (y > np.floor(high * 0.92) - 1).mean() > 0.025 - 5 * np.sqrt(0.025 / n), (eta, var, high)


def test_without_errors_the_interval_is_that_of_the_negative_binomial():
    """Known mean: quantiles of scipy's negative binomial, to the grid's step."""
    for size in (0.7, 2.0, 9.0):
        mean = np.array([0.3, 2.0, 20.0, 300.0])
        law = stats.nbinom(size, size / (size + mean))
        for got, share in zip(
            CountLaw(1 / size).interval(np.log(mean), np.zeros(4)), (0.025, 0.975), strict=True
        ):
            want = law.ppf(share)
            assert (np.abs(got - want) <= 1 + 0.03 * want).all(), (size, share)


def test_the_shape_and_the_neighbours_do_not_matter():
    """A cell's interval is a function of its own moments, up to the interpolation of the grid."""
    rng = np.random.default_rng(0)
    eta, var = rng.normal(1.0, 2.0, (8, 7)), rng.gamma(1.0, 0.3, (8, 7))
    low, high = CountLaw(0.4).interval(eta, var)
    assert low.shape == high.shape == eta.shape
    alone = [CountLaw(0.4).interval(eta[i : i + 1, 2], var[i : i + 1, 2]) for i in range(8)]
    assert np.array_equal(low[:, 2], [a[0][0] for a in alone])
    assert np.array_equal(high[:, 2], [a[1][0] for a in alone])
    assert (low <= high).all()
    assert (low >= 0).all()


def test_wider_errors_give_wider_intervals():
    """Monotone in the error of the expected count, and in the scatter."""
    eta = np.full(5, 3.0)
    high = CountLaw(0.5).interval(eta, np.array([0.0, 0.1, 0.5, 1.0, 3.0]))[1]
    assert (np.diff(high) > 0).all()
    assert CountLaw(1.0).interval(eta[:1], np.zeros(1))[1] > CountLaw(0.1).interval(eta[:1], np.zeros(1))[1]


def test_values_and_presences():
    """Closed forms."""
    low, high = ValueLaw(0.5, 0.25).interval(np.array([2.0]), np.array([0.25]))
    assert np.allclose([low[0], high[0]], [2 - 1.959963984540054, 2 + 1.959963984540054])
    p = PresenceLaw()
    low, high = p.interval(np.array([-5.0, 0.0, 5.0]), np.zeros(3))
    assert low.tolist() == [0, 0, 1]
    assert high.tolist() == [0, 1, 1]


@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_every_family_has_a_law(name):
    """The mean of draws is the family's mean."""
    family = FAMILIES[name]
    law = family.law(phi=1.0, inverse_size=0.0, observers=0.0)
    y = law.draw(np.full(200_000, 0.4), np.random.default_rng(1))
    assert abs(y.mean() - family.mean(np.array(0.4))) < 5 * y.std() / np.sqrt(y.size)
