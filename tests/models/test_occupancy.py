"""The chain of occupied and empty years: its posterior, its sums, its draws, and intervals of cells that may be empty."""

from itertools import product

import numpy as np
import pytest
from scipy import stats

from fedmiss.federation.group.presence import chain_posterior
from fedmiss.models.lowrank import occupancy
from fedmiss.models.lowrank.occupancy import SURE, ChainPosterior, log_yearly, log_zero
from fedmiss.models.lowrank.predictive import CountLaw


def enumerated(evidence, chain):
    """States (2^Y, Y) of one site and their posterior probabilities, by summing over all of them."""
    first, gain, lose = chain
    states = np.array(list(product([0, 1], repeat=evidence.size)))
    p = np.where(states[:, 0], first, 1 - first)
    for y in range(1, evidence.size):
        up = np.where(states[:, y - 1], 1 - lose, gain)
        p = p * np.where(states[:, y], up, 1 - up)
    p = p * np.exp((states * np.minimum(evidence, 60.0)).sum(axis=1))
    return states, p / p.sum()


@pytest.mark.parametrize("seed", range(5))
def test_the_posterior_is_that_of_all_paths_enumerated(seed):
    rng = np.random.default_rng(seed)
    J, Y, chain = 6, 7, rng.uniform(0.05, 0.9, 3)
    evidence = np.where(rng.random((J, Y)) < 0.3, SURE, -rng.exponential(2.0, (J, Y)))
    evidence[rng.random((J, Y)) < 0.3] = 0.0  # nobody went
    share = rng.uniform(0.2, 1.0, J)
    post, present = chain_posterior(evidence, chain)
    np.testing.assert_array_equal(post.present, present)
    sums = np.zeros(6)
    for j in range(J):
        states, p = enumerated(evidence[j], chain)
        np.testing.assert_allclose(post.present[j], p @ states, atol=1e-12)
        before, now = states[:, :-1], states[:, 1:]
        parts = [states[:, 0], np.ones(len(p)), before.sum(1), (before * (1 - now)).sum(1)]
        parts += [(1 - before).sum(1), ((1 - before) * now).sum(1)]
        sums += share[j] * np.array([p @ x for x in parts])
    np.testing.assert_allclose(post.sums(share, present), sums, rtol=1e-10)


def test_draws_have_the_chain_s_probabilities():
    rng = np.random.default_rng(1)
    evidence = np.tile(np.array([[SURE, -1.0, 0.0, -3.0, 0.0]]), (20_000, 1))
    post, _ = chain_posterior(evidence, np.array([0.5, 0.1, 0.3]))
    z = post.draw(rng.random(evidence.shape))
    error = np.sqrt(post.present[0] * (1 - post.present[0]) / len(z))
    assert (np.abs(z.mean(axis=0) - post.present[0]) <= 4 * error).all()
    stayed = z[z[:, 1] > 0, 2].mean()
    assert stayed == pytest.approx(post.stayed[0, 2], abs=4 * 0.5 / np.sqrt((z[:, 1] > 0).sum()))


def test_a_site_of_several_groups_has_their_mean_and_others_their_own():
    a, b = (ChainPosterior(np.full((2, 3), v), np.full((2, 3), v + 0.1)) for v in (0.2, 0.6))
    both = ChainPosterior.mean_of([a, b], [np.array([0, 1]), np.array([1, 2])], 3)
    np.testing.assert_allclose(both.came[:, 0], [0.2, 0.4, 0.6])
    np.testing.assert_allclose(both.stayed[:, 0], [0.3, 0.5, 0.7])


@pytest.mark.parametrize(("mu", "size"), [(0.3, 2.0), (4.0, 0.7)])
def test_the_probability_of_a_zero_is_that_of_the_law(mu, size):
    exact = stats.nbinom.logpmf(0, size, size / (size + mu))
    assert log_zero(np.array([mu]), 1 / size, 1.0)[0] == pytest.approx(exact)
    assert log_zero(np.array([mu]), 0.0, 1.0)[0] == pytest.approx(-mu)
    phi = 1 + mu / size  # the negative binomial with this variance
    assert log_zero(np.array([mu]), 0.0, phi)[0] == pytest.approx(exact)


@pytest.mark.slow
def test_intervals_are_quantiles_of_the_mixture():
    rng, law, n = np.random.default_rng(2), CountLaw(inverse_size=0.5), 400_000
    for eta, sd, q in ((2.0, 0.3, 0.4), (0.5, 0.6, 0.9), (3.0, 0.1, 0.02), (1.0, 0.2, 0.99)):
        draws = eta + sd * rng.standard_normal(n)
        here = rng.random(n) < q
        one = np.full((1, 1), eta), np.full((1, 1), sd**2), np.full((1, 1), q)
        low, high, mean_low, mean_high = occupancy.zero_inflated(law, np.exp, *one, 0.95)
        counts = np.where(here, law.draw(draws, rng), 0.0)
        for limit, a in ((low, 0.025), (high, 0.975)):
            around = [np.mean(counts < limit[0, 0] - 0.5), np.mean(counts < limit[0, 0] + 0.5)]
            assert around[0] - 0.004 <= a <= around[1] + 0.004, (eta, sd, q, limit)
        means = np.where(here, np.exp(draws), 0.0)
        for limit, a in ((mean_low, 0.025), (mean_high, 0.975)):
            assert np.mean(means <= limit[0, 0]) == pytest.approx(max(a, 1 - q), abs=0.004)


@pytest.mark.parametrize(
    "inverse_size", [0.5, *(pytest.param(x, marks=pytest.mark.slow) for x in (0.0, 3.0))]
)
def test_intervals_of_the_mixture_hold_their_level_whatever_the_probability_of_presence(inverse_size):
    """At most 2.5 % of counts lie below and above, but for five standard errors of 50,000 draws."""
    law, rng, n = CountLaw(inverse_size=inverse_size), np.random.default_rng(2), 50_000
    eta, var = np.meshgrid([-2.0, 0.5, 3.0], [0.01, 0.3, 2.0])
    draws = law.draw(eta + np.sqrt(var) * rng.standard_normal((n, 3, 3)), rng)
    for q in (0.03, 0.3, 0.7, 0.97, 0.99, 0.9999):
        low, high, *_ = occupancy.zero_inflated(law, np.exp, eta, var, np.full((3, 3), q), 0.95)
        counts = np.where(rng.random((n, 3, 3)) < q, draws, 0.0)
        for outside in (counts < low, counts > high):
            assert (np.mean(outside, axis=0) <= 0.0285).all(), (q, np.mean(outside, axis=0))


def test_the_logarithm_of_an_empty_year_is_bounded_where_sites_may_be_empty():
    yearly = np.array([[10.0, 10.0, 1e-4]])
    assert log_yearly(yearly, empty=False)[0, 2] == pytest.approx(np.log(1e-4))
    assert log_yearly(yearly, empty=True)[0, 2] == pytest.approx(np.log(0.02 * yearly.mean()))
