from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fedmiss.errors import ConfigError, InputError
from fedmiss.federation.local import fit_counts
from fedmiss.models.lowrank.certificate import certify, fit_certified
from fedmiss.models.lowrank.data import Group, GroupPanel
from fedmiss.models.lowrank.families import family_of
from fedmiss.models.lowrank.settings import CountSettings
from fedmiss.models.lowrank.solver import Penalty, Theta, _Phase, balance, fit_cells, objective, set_eta

from .panels import cells_of, simulate, split

FAMILIES = ("gaussian", "poisson", "bernoulli")


def random_theta(J, L, r, seed=0):
    rng = np.random.default_rng(seed)
    return Theta(0.3, *(0.3 * rng.normal(size=s) for s in ((J,), (L,), (J, r), (L, r))))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("effects", [True, False])
def test_objective_never_rises(family, effects):
    panel, _ = simulate(family=family)
    cells = cells_of(panel, family)
    fit = fit_cells(
        cells,
        panel.J,
        panel.L,
        family=family,
        rank=2,
        penalty=Penalty(0.5, 0.2, 0.2),
        effects=effects,
        tol=1e-9,
        max_sweeps=5000,
    )
    values = np.array(fit.objective)
    assert fit.converged
    assert (np.diff(values) <= 1e-10 * np.abs(values[1:])).all()
    assert values[0] - values[-1] > 1.0  # it had some way to go
    exact = objective(cells, fit.theta, Penalty(0.5, 0.2, 0.2), family)
    assert exact == pytest.approx(values[-1], rel=1e-10)  # the cached predictor has not drifted


@pytest.mark.parametrize("family", FAMILIES)
def test_normal_equations_are_the_derivatives_of_the_objective(family):
    panel, _ = simulate(J=7, L=5, n=40, family=family, groups=2)
    cells = cells_of(panel, family)
    theta = random_theta(7, 5, 2)
    set_eta(cells, theta)
    site = _Phase(cells, 7, family_of(family), by_site=True).sums(np.column_stack([np.ones(5), theta.V]))
    month = _Phase(cells, 5, family_of(family), by_site=False).sums(np.column_stack([np.ones(7), theta.U]))
    h = 1e-5

    def value(**change):
        return objective(cells, replace(theta, **change), Penalty(), family)

    for j in range(7):
        step = h * np.eye(7)[j]
        assert -site[0][j, 0] == pytest.approx(
            (value(a=theta.a + step) - value(a=theta.a - step)) / (2 * h), abs=1e-5
        )
        second = (value(a=theta.a + step) - 2 * value() + value(a=theta.a - step)) / h**2
        assert site[1][j, 0, 0] == pytest.approx(second, abs=1e-3 * (1 + abs(second)))
        dU = np.zeros((7, 2))
        dU[j, 1] = h
        assert -site[0][j, 2] == pytest.approx(
            (value(U=theta.U + dU) - value(U=theta.U - dU)) / (2 * h), abs=1e-5
        )
    for k in range(5):
        dV = np.zeros((5, 2))
        dV[k, 0] = h
        assert -month[0][k, 1] == pytest.approx(
            (value(V=theta.V + dV) - value(V=theta.V - dV)) / (2 * h), abs=1e-5
        )


def test_full_gaussian_panel_is_the_thresholded_svd():
    rng = np.random.default_rng(3)
    Y = rng.normal(size=(3, 2)) + 1.0
    s, t = np.divmod(np.arange(6), 2)
    cells = cells_of(GroupPanel.of(3, 2, [Group.of("a", s, t, Y.ravel())]), "gaussian")
    for lam in (0.0, 0.4, 10.0):
        fit = fit_cells(
            cells,
            3,
            2,
            family="gaussian",
            rank=2,
            penalty=Penalty(lam),
            effects=False,
            tol=1e-15,
            max_sweeps=4000,
        )
        P, sv, Qt = np.linalg.svd(Y, full_matrices=False)
        np.testing.assert_allclose(fit.theta.U @ fit.theta.V.T, (P * np.maximum(sv - lam, 0)) @ Qt, atol=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
def test_ten_groups_give_the_pooled_fit(family):
    panel, _ = simulate(family=family, groups=10, observers=40, n=500)
    pooled = panel.pooled()
    pen = Penalty(1.0, 0.5, 0.5)
    a, b = (
        fit_cells(cells_of(p, family), p.J, p.L, family=family, rank=2, penalty=pen, tol=0.0, max_sweeps=80)
        for p in (panel, pooled)
    )
    every = slice(None)
    np.testing.assert_allclose(a.theta.eta(every), b.theta.eta(every), atol=1e-8)


def test_order_of_groups_and_names_of_observers_do_not_matter():
    panel, _ = simulate(groups=4)
    turned = GroupPanel.of(panel.J, panel.L, list(reversed(panel.groups)), panel.calendar)
    renamed = replace(
        panel, groups=tuple(replace(g, observer=g.n_observers - 1 - g.observer) for g in panel.groups)
    )
    settings = CountSettings(rank=1, observers=True)
    first = fit_counts(panel, settings).expected()
    np.testing.assert_array_equal(fit_counts(turned, settings).expected(), first)
    np.testing.assert_allclose(fit_counts(renamed, settings).expected(), first, rtol=1e-7)


def test_splitting_a_group_changes_nothing():
    rng = np.random.default_rng(0)
    s, t, y = rng.integers(0, 20, 200), rng.integers(0, 12, 200), rng.poisson(3.0, 200).astype(float)
    who = rng.integers(0, 8, 200)
    fits = [
        fit_counts(split(20, 12, s, t, y, who, group), CountSettings(rank=1)).expected()
        for group in (who % 2, who % 4)
    ]
    np.testing.assert_allclose(fits[0], fits[1], rtol=1e-8)


def test_rank_zero_without_penalty_is_the_site_and_month_glm():
    import statsmodels.api as sm

    panel, _ = simulate(J=12, L=8, n=150, level=1.5)
    cells = cells_of(panel, "poisson")
    fit = fit_cells(
        cells, 12, 8, family="poisson", rank=0, penalty=Penalty(0.0, 0.0, 0.0), tol=1e-14, max_sweeps=2000
    )
    g = panel.pooled().groups[0]
    X = np.zeros((g.count.size, 12 + 8))
    X[np.arange(g.count.size), g.site] = 1
    X[np.arange(g.count.size), 12 + g.month] = 1
    glm = sm.GLM(g.count, X[:, :-1], family=sm.families.Poisson()).fit(tol=1e-12)
    np.testing.assert_allclose(
        np.exp(fit.theta.eta(slice(None)))[g.site, g.month], glm.fittedvalues, rtol=1e-6
    )


@pytest.mark.parametrize("family", FAMILIES)
def test_duality_gap_is_a_bound_and_closes(family):
    panel, _ = simulate(family=family, n=300)
    cells = cells_of(panel, family)
    lam = 2.0
    fit, cert = fit_certified(cells, panel.J, panel.L, family=family, penalty=lam, gap=1e-7)
    assert fit.converged
    assert 0 <= cert.gap <= 1e-7 or abs(cert.primal - cert.dual) < 1e-9
    assert cert.spectral <= lam * (1 + 1e-3)
    best = cert.primal
    for seed in range(5):  # any other point lies above the dual bound, and its own bound below the optimum
        other = certify(
            cells, replace(random_theta(panel.J, panel.L, 2, seed), mu=0.0, a=np.zeros(panel.J), b=np.zeros(panel.L)),
            Penalty(lam), family, effects=False,
        )  # fmt: skip
        assert other.primal >= best - 1e-9
        assert other.dual <= best + 1e-9


def test_balance_keeps_the_product_and_lowers_the_ridge():
    rng = np.random.default_rng(0)
    U, V = rng.normal(size=(9, 3)), 5 * rng.normal(size=(6, 3))
    u, v = balance(U, V)
    np.testing.assert_allclose(u @ v.T, U @ V.T, atol=1e-12)
    np.testing.assert_allclose(u.T @ u, v.T @ v, atol=1e-10)
    assert (u**2).sum() + (v**2).sum() == pytest.approx(2 * np.linalg.svd(U @ V.T)[1].sum())


def test_empty_rows_columns_and_zero_sites_have_defined_answers():
    s, t, y = np.array([0, 0, 1, 1, 3]), np.array([0, 1, 0, 1, 0]), np.array([3.0, 5.0, 0.0, 0.0, 2.0])
    panel = GroupPanel.of(5, 4, [Group.of("a", s, t, y)], (np.array([1, 2, 3, 4]), np.array([2000] * 4)))
    expected = fit_counts(panel, CountSettings(rank=2)).expected()
    assert np.isfinite(expected).all()
    assert (expected >= 0).all()
    assert expected[1].max() < expected[0].min()  # the site of zeros stays below the site of birds


@pytest.mark.slow
def test_one_enormous_count_is_fitted_without_overflow():
    panel, _ = simulate()
    g = panel.groups[0]
    count = g.count.copy()
    count[0] = 1e9
    panel = replace(panel, groups=(replace(g, count=count), *panel.groups[1:]))
    fit = fit_counts(panel, CountSettings(rank=2))
    assert np.isfinite(fit.expected()).all()


def test_separation_in_bernoulli_stays_finite():
    s, t = np.divmod(np.arange(40), 8)
    y = (s > 1).astype(float)  # sites 0, 1 never, sites 2-4 always
    panel = GroupPanel.of(5, 8, [Group.of("a", s, t, y)])
    fit = fit_counts(panel, CountSettings(family="bernoulli", rank=1))
    p = fit.expected()
    assert (p[:2] < 0.3).all()
    assert (p[2:] > 0.7).all()


def test_bad_counts_are_told():
    with pytest.raises(InputError, match=r"visit 1: the count is nan"):
        Group.of("a", [0, 1], [0, 0], [1.0, np.nan])
    panel = GroupPanel.of(2, 1, [Group.of("north", [0, 1], [0, 0], [1.0, -2.0])])
    with pytest.raises(ConfigError, match=r"'north' has the count -2"):
        fit_counts(panel, CountSettings(rank=0))
    with pytest.raises(InputError, match=r"site index 5 is outside 0\.\.1"):
        fit_counts(GroupPanel.of(2, 1, [Group.of("a", [0, 5], [0, 0], [1.0, 2.0])]), CountSettings(rank=0))
    with pytest.raises(InputError, match="nothing to fit"):
        GroupPanel.of(2, 1, [Group.of("a", [], [], [])])
