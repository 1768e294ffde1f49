"""Laws of every family, of its twin in compiled loops, and of its observations."""

import functools
from dataclasses import replace

import numpy as np
import pytest
from numba import njit
from scipy import stats

from fedmiss.errors import ConfigError
from fedmiss.models.lowrank import family_kernels as compiled
from fedmiss.models.lowrank.families import COMPILED, FAMILIES, GAUSSIAN, SCALES
from fedmiss.models.lowrank.predictive import CountLaw, LogCountLaw, PresenceLaw, ValueLaw

ETA = np.linspace(-4.0, 4.0, 32)


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
def test_mean_variance_and_deviance_belong_to_the_log_partition(family):
    h, mu = 1e-5, family.mean(ETA)
    np.testing.assert_allclose(
        mu, (family.psi(ETA + h) - family.psi(ETA - h)) / (2 * h), rtol=1e-6, atol=1e-9
    )
    np.testing.assert_allclose(
        family.variance(mu), (family.mean(ETA + h) - family.mean(ETA - h)) / (2 * h), rtol=1e-6
    )
    np.testing.assert_allclose([family.link(float(m)) for m in mu], ETA, rtol=1e-9, atol=1e-12)
    for y in (0.0, 1.0):
        slope = (family.deviance(y, mu + h * mu) - family.deviance(y, mu - h * mu)) / (2 * h * mu)
        np.testing.assert_allclose(slope, -2 * (y - mu) / family.variance(mu), rtol=1e-6, atol=1e-9)
    assert bool((family.unit(2.0) > 0) & (family.log_error(mu, mu) == 0).all())


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
def test_compiled_loops_have_the_same_family(family):
    code, call = family.code, functools.cache(lambda loop: njit(lambda given, code: loop(*given, code)))
    for eta, mu in zip(ETA, family.mean(ETA), strict=True):
        v = float(family.variance(mu))
        same = {
            compiled.mean: ((eta,), mu),
            compiled.variance: ((mu,), v),
            compiled.curvature: ((2.5 * mu, 2.5), 2.5 * v),
            compiled.predictor: ((eta, 0.7), float(family.marginal(eta, np.float64(0.7)))),
        }
        for loop, (arguments, value) in same.items():
            # parts have no entry from Python
            assert call(loop)(arguments, code) == pytest.approx(value, rel=1e-9, abs=1e-12), (
                loop.py_func.__name__
            )


def test_a_code_without_compiled_branches_is_refused():
    new = max(COMPILED) + 1
    with pytest.raises(ConfigError, match=f"family gamma has the code {new}"):
        replace(GAUSSIAN, name="gamma", code=new)


# ---- predictive laws: their intervals against draws, and against closed forms -----------------------------------------

LAWS = [
    CountLaw(), *map(CountLaw, (0.5, 3.0, 20.0)), CountLaw(phi=5.0), CountLaw(phi=30.0),
    CountLaw(0.5, observers=0.3),
]  # fmt: skip


@pytest.mark.slow
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


@pytest.mark.parametrize("smear", [0.8, 1.5, 20.0])
@pytest.mark.parametrize("eta", [1.0, 2.0, 5.0])
def test_drawn_counts_of_a_logarithm_have_the_calibrated_mean_and_lie_within_their_limits(eta, smear):
    law = LogCountLaw(ValueLaw(0.5, 0.25), smear)
    rng, at = np.random.default_rng(0), np.full(200_000, eta)
    drawn = law.draw(at, rng)
    mean = SCALES["log1p"].counts(np.exp(eta), smear)
    assert drawn.mean() == pytest.approx(mean, abs=4 * drawn.std() / np.sqrt(drawn.size))
    assert (drawn == np.rint(drawn)).all()
    low, high = law.interval(at[:1], np.zeros(1))
    # Where small counts or zeros are likely, whole numbers hold more than they say.
    assert low[0] <= mean <= high[0]
    assert 0.945 < np.mean((drawn >= low) & (drawn <= high)) < (0.955 if low[0] > 5 else 0.99)


@pytest.mark.parametrize(
    ("eta", "smear", "phi"), [(-2.0, 20.0, 0.5), (-1.0, 20.0, 0.02), (0.0, 1.0, 0.0), (0.5, 0.5, 0.3)]
)
def test_next_to_nothing_of_a_logarithm_is_no_flock(eta, smear, phi):
    law, at = LogCountLaw(ValueLaw(phi, 0.0), smear), np.full(1000, eta)
    drawn = law.draw(at, np.random.default_rng(0))
    assert np.isfinite(drawn).all()
    assert (law.times(at, 0.0 * at) <= 10 * law.ratio).all()
    assert all(np.isfinite(limit).all() for limit in law.interval(at, 0.0 * at))
