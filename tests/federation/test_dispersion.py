"""The moment equation from a table: the same root and the same statistic as with all visits in one place."""

import numpy as np
import pytest
from scipy.optimize import brentq

from fedmiss.federation.calls import fit_counts
from fedmiss.federation.hub.dispersion import HIGH, LOW, inverse_size_of, pearson_at, table_nodes
from fedmiss.models.lowrank.settings import CountSettings
from tests.models.panels import simulate


def visits(size, n=400, seed=0):
    rng = np.random.default_rng(seed)
    mu = np.exp(rng.normal(1.0, 1.5, n))
    return mu, rng.poisson(mu * rng.gamma(size, 1 / size, n) if np.isfinite(size) else mu)


def statistic(mu, y, inverse):
    return ((y - mu) ** 2 / (mu + mu**2 * inverse)).sum()


def root(mu, y, free):
    value = brentq(lambda t: statistic(mu, y, np.exp(-t)) / free - 1, LOW, HIGH, xtol=1e-13)
    return np.exp(-value)


@pytest.mark.parametrize("size", [0.05, 0.5, 3.0, 50.0])
@pytest.mark.parametrize("start", [0.0, 1e-3, 30.0])
def test_updates_end_at_the_root_and_the_statistic_of_all_visits(size, start):
    mu, y = visits(size)
    free, last = mu.size - 10.0, start
    exact = root(mu, y, free)
    for _ in range(40):
        nodes = table_nodes("negbin", last)
        table = np.array([statistic(mu, y, v) for v in nodes])
        new = inverse_size_of(nodes, table / free, last)
        if last > 0 and new > 0:
            assert abs(np.log(new / last)) <= 0.5 + 1e-9  # no further than the table reaches
        last = new
    # the last value is a node: nothing is interpolated at the end
    assert last == pytest.approx(exact, rel=1e-9)
    assert pearson_at(table_nodes("negbin", last), table, last) == pytest.approx(
        statistic(mu, y, exact), rel=1e-9
    )


def test_near_the_root_one_update_is_nearly_enough():
    mu, y = visits(2.0)
    exact = root(mu, y, mu.size - 10.0)
    nodes = table_nodes("negbin", 1.4 * exact)
    assert len(nodes) <= 10  # two numbers a visit would give it away: tables are short
    found = inverse_size_of(
        nodes, np.array([statistic(mu, y, v) for v in nodes]) / (mu.size - 10.0), 1.4 * exact
    )
    assert found == pytest.approx(exact, rel=1e-4)


def test_the_poisson_limit_and_the_way_to_it():
    mu, y = visits(np.inf)
    even = np.round(mu)  # less scattered than Poisson counts
    nodes = table_nodes("negbin", 0.0)
    assert inverse_size_of(nodes, np.array([statistic(mu, even, v) for v in nodes]) / 390, 0.0) == 0.0
    assert pearson_at(nodes, np.array([statistic(mu, y, v) for v in nodes]), 0.0) == statistic(mu, y, 0.0)


def test_a_held_size_is_held():
    panel, _ = simulate(n=300)
    settings = CountSettings(rank=0, dispersion="negbin", inverse_size=0.37)
    assert fit_counts(panel, settings).aux.size == pytest.approx(1 / 0.37)
