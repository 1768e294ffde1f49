"""Simulated panels: the truth is what was asked for, and the benchmark setting is the one described."""

import numpy as np
import pytest

from fedmiss.errors import ConfigError
from fedmiss.models.lowrank.families import POISSON
from fedmiss.simulate.panels import FAMILIES, KINDS, Panel, simulate_panel


def additive_fit(panel: Panel, rounds: int = 60):
    """Site x month Poisson GLM without interactions, by iterative proportional fitting."""
    J, L = panel.shape
    j, l, y = panel.site_index, panel.month_index, panel.y
    site, month = np.ones(J), np.ones(L)
    per_site, per_month = np.bincount(j, y, J), np.bincount(l, y, L)
    for _ in range(rounds):
        site = per_site / np.bincount(j, month[l], J)
        month = per_month / np.bincount(l, site[j], L)
    return np.maximum(site[panel.test_site] * month[panel.test_month], 1e-3)


def score(panel: Panel, visited: bool):
    rows = panel.test_visited == visited
    truth = panel.expected_at(panel.test_site, panel.test_month)[rows]
    fitted, y = additive_fit(panel)[rows], panel.y_test[rows]
    deviances = (POISSON.deviance(y, mean).mean() for mean in (truth, fitted))
    return truth.mean(), *deviances, fitted.sum() / truth.sum()


@pytest.mark.parametrize(
    ("kind", "visited", "mean", "glm", "bias"),
    [
        ("random", True, 12.9, 5.50, 1.0), ("weak", True, 4.61, 1.36, 1.0),
        ("preferential", True, 21.4, 6.95, 1.0), ("preferential", False, None, 6.13, 1.82),
    ],
)  # fmt: skip
def test_benchmark_setting(kind, visited, mean, glm, bias):
    """Means, deviances and bias of the additive model are those of the setting peers were measured on."""
    got = np.mean([score(simulate_panel(kind=kind, seed=s), visited) for s in (0, 1)], axis=0)
    if mean is not None:
        assert got[0] == pytest.approx(mean, rel=0.06)
    assert 1.02 < got[1] < 1.10
    assert got[2] == pytest.approx(glm, rel=0.25)
    assert got[3] == pytest.approx(bias, rel=0.08)


def test_visits_follow_the_truth():
    """Standardised residuals of visits have mean 0 and variance 1, with effort and observers at work."""
    p = simulate_panel(300, 60, 0.5, seed=4, observer_sd=0.5, effort_sd=0.6, effort_slope=0.8, observers=40)
    eta = p.mu + p.a[p.site_index] + p.b[p.month_index]
    eta = eta + (p.U[p.site_index] * p.V[p.month_index]).sum(axis=1)
    mean = np.exp(eta + p.observer_effect[p.observer] + 0.8 * np.log(p.effort))
    z = (p.y - mean) / np.sqrt(mean)
    n = z.size
    assert abs(z.mean()) < 5 / np.sqrt(n)
    assert abs((z**2).mean() - 1) < 5 * np.sqrt((2 + 1 / mean).mean() / n)
    assert np.allclose(p.expected[p.site_index, p.month_index], np.exp(eta))
    assert np.allclose(p.totals, p.expected.sum(axis=0))


@pytest.mark.parametrize("family", FAMILIES)
def test_variance_of_each_family(family):
    p = simulate_panel(200, 60, 0.2, family=family, seed=2, size=3.0)
    mean = p.expected_at(p.test_site, p.test_month)
    variance = {
        "poisson": mean, "negbin": mean + mean**2 / 3, "gaussian": np.ones_like(mean),
        "bernoulli": mean * (1 - mean),
    }[family]  # fmt: skip
    z2 = (p.y_test - mean) ** 2 / variance
    assert abs(z2.mean() - 1) < 5 * z2.std() / np.sqrt(z2.size)
    z = (p.y_test - mean) / np.sqrt(variance)
    assert abs(z.mean()) < 5 * z.std() / np.sqrt(z.size)
    if family == "bernoulli":
        assert set(np.unique(p.y)) == {0.0, 1.0}


@pytest.mark.parametrize("kind", KINDS)
def test_cells_are_held_out_and_axes_are_covered(kind):
    p = simulate_panel(120, 48, 0.15, kind=kind, seed=3)
    seen = p.site_index.astype(np.int64) * 48 + p.month_index
    held = p.test_site.astype(np.int64) * 48 + p.test_month
    assert np.unique(seen).size == seen.size == round(0.15 * 120 * 48)
    assert np.unique(held).size == held.size
    assert not np.isin(held, seen).any()
    assert np.unique(p.site_index).size == 120
    assert np.unique(p.month_index).size == 48
    if kind == "preferential":
        mean = p.expected_at(p.test_site, p.test_month)
        assert mean[p.test_visited].mean() > 1.5 * mean[~p.test_visited].mean()
    else:
        assert p.test_visited.all()


def test_main_effects_and_interactions_do_not_overlap():
    p = simulate_panel(100, 50, 0.3, rank=5, seed=6)
    assert np.allclose(p.V.mean(axis=0), 0, atol=1e-12)
    assert np.allclose((p.V**2).mean(axis=0), 1)
    assert np.allclose(p.U.mean(axis=0), 0, atol=1e-12)
    assert abs(p.b.mean()) < 1e-12
    assert np.linalg.matrix_rank(p.U @ p.V.T) == 5
    assert simulate_panel(20, 12, 0.5, rank=0).U.shape == (20, 0)


def test_more_visits_than_cells_and_groups_of_observers():
    p = simulate_panel(50, 24, 0.5, visits=20_000, observers=30, groups=7, seed=1)
    assert p.y.size == 20_000
    assert np.unique(p.site_index.astype(np.int64) * 24 + p.month_index).size == 600
    sizes = np.bincount(p.group_of_observer, minlength=7)
    assert sizes.max() - sizes.min() <= 1
    assert (p.group == p.group_of_observer[p.observer]).all()
    share = np.sort(np.bincount(p.observer, minlength=30))[::-1]
    assert share[:3].sum() > 0.25 * share.sum()  # heavy-tailed: a tenth of the observers makes over a quarter


def test_same_seed_same_panel_other_seed_other_panel():
    p, q, r = (simulate_panel(60, 24, 0.3, seed=s) for s in (1, 1, 2))
    for name in ("site_index", "month_index", "y", "y_test", "a", "observer"):
        assert np.array_equal(getattr(p, name), getattr(q, name))
    assert not np.array_equal(p.y, r.y)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"kind": "odd"}, "'odd'"), ({"family": "gamma"}, "'gamma'"), ({"sites": 1}, "sites is 1"),
        ({"observed": 0.0}, "observed is 0.0"), ({"observed": 1.5}, "observed is 1.5"),
        ({"sites": 10, "months": 10, "observed": 0.001}, "observed is 0.001"), ({"rank": 200}, "rank is 200"),
        ({"groups": 101}, "groups is 101"), ({"visits": 3}, "visits is 3"),
        ({"size": 0.0, "family": "negbin"}, "size is 0.0"), ({"observer_sd": -0.1}, "observer_sd is -0.1"),
        ({"effort_sd": 30.0}, "effort_sd is 30.0"), ({"seed": -1}, "seed is -1"),
        ({"test_cells": -1}, "test_cells is -1"),
    ],
)  # fmt: skip
def test_bad_settings_name_the_value(options, words):
    with pytest.raises(ConfigError, match=words):
        simulate_panel(**options)
