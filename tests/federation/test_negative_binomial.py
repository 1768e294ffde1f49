"""Negative binomial counts: scores and dispersion are expectations under the posterior, so levels and slopes are right."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose

from fedmiss import SiteMonthImputer
from fedmiss.federation.group import kernels
from fedmiss.federation.hub.dispersion import degrees_of_freedom
from fedmiss.federation.local import fit_counts
from fedmiss.models.lowrank.data import Group, GroupPanel
from fedmiss.models.lowrank.family_kernels import expected_weights
from fedmiss.models.lowrank.settings import CountSettings

SIZE = 0.5


def expected(f, eta, var):
    """E f(m), log m ~ N(eta - var / 2, var), by many nodes."""
    x, w = np.polynomial.hermite_e.hermegauss(80)
    return (f(np.exp(eta - var / 2 + np.sqrt(var) * x)) @ w) / w.sum()


@pytest.mark.parametrize("eta", [-900.0, -4.0, -1.0, 0.0, 2.0, 5.0])
@pytest.mark.parametrize("var", [0.0, 0.1, 0.5, 1.5])
@pytest.mark.parametrize("inverse_size", [0.1, 2.0, 10.0])
def test_weights_are_those_of_the_expected_score(eta, var, inverse_size):
    given = expected_weights(eta, var, inverse_size)
    near = 0.003 if var < 0.2 else 0.03 if var < 1 else 0.2
    mean = expected(lambda m: m, eta, var)
    exact = (
        expected(lambda m: 1 / (1 + m * inverse_size), eta, var),
        expected(lambda m: m / (1 + m * inverse_size), eta, var) / max(mean, 1e-300),
        expected(lambda m: m / (1 + m * inverse_size) ** 2, eta, var) / max(mean, 1e-300),
    )
    if eta > -700:
        assert_allclose(given, exact, rtol=near)
    else:
        assert_allclose(given, 1.0)
    if var == 0.0:
        weight = 1 / (1 + np.exp(eta) * inverse_size)
        assert_allclose(given, [weight, weight, weight**2], rtol=1e-12)


def test_dispersion_is_the_expected_statistic():
    """One row a cell; at 0 Pearson's statistic at the mean, elsewhere the expectation, by many nodes."""
    rng = np.random.default_rng(2)
    n = 40
    eta, var, count = rng.normal(0, 1, n), rng.uniform(0, 0.3, n), rng.poisson(2.0, n).astype(float)
    nodes, out = np.array([[0.0, 0.5, 2.0]]), np.zeros((1, 1, 3))
    ptr, one = np.arange(n + 1), np.ones((1, n))
    kernels.dispersion_sums(
        0, 1, 1, np.zeros(1, np.int64), ptr, one, count[None], count[None] ** 2, np.zeros((1, 1)), False, eta[None],
        var[None], 1, nodes, out,
    )  # fmt: skip
    mu = np.exp(eta)
    assert_allclose(out[0, 0, 0], ((count - mu) ** 2 / mu).sum(), rtol=1e-12)
    for q in (1, 2):
        t = nodes[0, q]
        cells = [
            expected(lambda m, y=y, t=t: (y - m) ** 2 / (m + m * m * t), e, v)
            for y, e, v in zip(count, eta, var, strict=True)
        ]
        assert_allclose(out[0, 0, q], sum(cells), rtol=0.01)


def growing(seed):
    """Panel without a trend, visits eightfold in six years; the true total of each year."""
    rng = np.random.default_rng(seed)
    J, L, visits = 200, 72, 3000
    popular, growth = np.exp(rng.standard_normal(J)), 8 ** (np.arange(L) / L)
    month, site = (
        rng.choice(L, visits, p=growth / growth.sum()),
        rng.choice(J, visits, p=popular / popular.sum()),
    )
    true = np.exp(rng.standard_normal(J)[:, None] + 0.4 * np.cos(2 * np.pi * np.arange(L) / 12))
    count = rng.poisson(true[site, month] * rng.standard_gamma(SIZE, visits) / SIZE).astype(float)
    kept, year = np.unique(site), np.arange(L) // 12
    group = Group.of(
        "all",
        np.searchsorted(kept, site).astype(np.int32),
        month.astype(np.int32),
        count,
        np.zeros(visits, int),
    )
    panel = GroupPanel.of(kept.size, L, [group], (np.arange(L) % 12 + 1, 2000 + year))
    return panel, true[kept].reshape(kept.size, -1, 12).sum(axis=(0, 2))


def test_level_slope_and_size_are_right_where_visits_grow():
    """Totals were 8 to 12 % too low and slopes 0.003 a year too high with weights at the fitted mean alone."""
    ratios, sizes = [], []
    for seed in range(24):
        panel, true = growing(seed)
        fit = fit_counts(panel, CountSettings(rank=0, dispersion="negbin", calibrate=False))
        ratios.append(fit.expected().reshape(panel.J, -1, 12).sum(axis=(0, 2)) / true)
        sizes.append(fit.state.inverse_size)
    ratio = np.array(ratios)
    year = np.arange(ratio.shape[1]) - (ratio.shape[1] - 1) / 2
    level, slope = ratio.mean(axis=1), ratio @ year / (year @ year)
    for value, least in ((level - 1, 0.01), (slope, 0.0005)):
        error = value.std(ddof=1) / len(value) ** 0.5
        assert abs(value.mean()) < 3 * error + least
    error = np.std(sizes, ddof=1) / len(sizes) ** 0.5
    assert abs(np.mean(sizes) - 1 / SIZE) < 3 * error + 0.05 / SIZE


def test_sparse_bursts_do_not_drive_the_size_away():
    """Three visits a site, 1 / size 5: without a bound the expected statistic made it 1,000, and sites alike."""
    J, L, visits = 100, 36, 300
    for seed in range(8):
        rng = np.random.default_rng(seed)
        month, site = rng.integers(0, L, visits), rng.integers(0, J, visits)
        true = 3 * np.exp(1.5 * rng.standard_normal(J)[:, None] + 0.4 * np.cos(2 * np.pi * np.arange(L) / 12))
        count = rng.poisson(true[site, month] * rng.standard_gamma(0.2, visits) / 0.2).astype(float)
        kept, at = np.unique(site, return_inverse=True)
        group = Group.of("all", at.astype(np.int32), month.astype(np.int32), count, np.zeros(visits, int))
        panel = GroupPanel.of(kept.size, L, [group], (np.arange(L) % 12 + 1, 2000 + np.arange(L) // 12))
        fit = fit_counts(panel, CountSettings(rank=0, dispersion="negbin"))
        assert fit.fit.converged
        assert fit.state.inverse_size < 10
        assert fit.state.tau[0] > 0.5  # sites differ by a variance of 2.25
        assert 0.8 < fit.smear < 1.25


def test_degrees_of_freedom_of_an_expected_statistic_hold_sites_and_months():
    fit = fit_counts(growing(0)[0], CountSettings(rank=0, dispersion="negbin"))
    poisson, expected = degrees_of_freedom(fit.state, 2.0, np.array([0.0, 1.0]), least=0.05)
    assert poisson == fit.state.weight - fit.state.edf - 2.0
    assert expected == fit.state.weight - 1.0 - 2.0  # the level
    assert fit.state.edf > 50


def test_new_rows_are_filled_without_bias():
    """Rows of the law that was fitted: what is filled in has the level of the truth."""
    ratios = []
    for seed in range(10):
        rng = np.random.default_rng(seed)
        month = 0.5 * np.cos(2 * np.pi * np.arange(24) / 12)
        true = 3 * np.exp(rng.standard_normal((160, 1)) + month)
        X = rng.poisson(true * rng.standard_gamma(SIZE, true.shape) / SIZE).astype(float)
        hole = rng.random(X.shape) < 0.6
        X[hole] = np.nan
        filled = SiteMonthImputer(rank=0).fit(X[:80]).transform(X[80:])
        ratios.append(filled[hole[80:]].sum() / true[80:][hole[80:]].sum())
    error = np.std(ratios, ddof=1) / len(ratios) ** 0.5
    assert abs(np.mean(ratios) - 1) < 3 * error + 0.03
