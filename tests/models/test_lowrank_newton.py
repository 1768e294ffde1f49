"""The reduced Hessian and the trust-region step against dense linear algebra."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fedmiss.models.lowrank.certificate import certify
from fedmiss.models.lowrank.data import Group, GroupPanel
from fedmiss.models.lowrank.newton import Curvature
from fedmiss.models.lowrank.solver import Penalty, Theta, fit_cells, objective, set_eta

from .panels import cells_of, simulate

FAMILIES = ("gaussian", "poisson", "bernoulli")
J, L, R = 6, 5, 2
PEN = Penalty(0.7, 0.3, 0.2)


def unpack(x, effects):
    """Flat (mu, months, sites), each row effect first, as parameters."""
    p = R + int(effects)
    T, P = x[1 : 1 + L * p].reshape(L, p), x[1 + L * p :].reshape(J, p)
    if effects:
        return Theta(x[0], P[:, 0], T[:, 0], P[:, 1:].copy(), T[:, 1:].copy())
    return Theta(0.0, np.zeros(J), np.zeros(L), P.copy(), T.copy())


def dense(cells, family, x, effects):
    """Gradient and Hessian of the objective at x by central differences (errors about 1e-6)."""
    h, n = 1e-3, x.size
    move = h * np.eye(n)

    def f(x):
        return objective(cells, unpack(x, effects), PEN, family)

    g = np.array([8 * (f(x + d) - f(x - d)) - (f(x + 2 * d) - f(x - 2 * d)) for d in move]) / (12 * h)
    H = np.array([[f(x + d + e) - f(x + d - e) - f(x - d + e) + f(x - d - e) for e in move] for d in move])
    return g, H / (4 * h * h)


def curvature(family, effects, groups=2, seed=0, pen=PEN):
    panel, _ = simulate(J=J, L=L, n=40, family=family, groups=groups, seed=seed)
    cells = cells_of(panel, family)
    p = R + int(effects)
    x = 0.4 * np.random.default_rng(seed).normal(size=1 + (J + L) * p)
    theta = unpack(x, effects)
    set_eta(cells, theta)
    sites = np.column_stack([theta.a, theta.U]) if effects else theta.U
    months = np.column_stack([theta.b, theta.V]) if effects else theta.V
    one = int(effects)
    ridges = np.r_[[pen.sites] * one, [pen.factors] * R], np.r_[[pen.months] * one, [pen.factors] * R]
    return cells, x, Curvature(cells, sites, months, *ridges, family, effects=effects)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("effects", [True, False])
def test_products_are_those_of_the_schur_complement(family, effects):
    cells, x, curve = curvature(family, effects)
    g, H = dense(cells, family, x, effects)
    first, t = (0 if effects else 1), 1 + L * (R + int(effects))
    tt, ts, ss = H[first:t, first:t], H[first:t, t:], H[t:, t:]
    S = tt - ts @ np.linalg.solve(ss, ts.T)
    b = -(g[first:t] - ts @ np.linalg.solve(ss, g[t:]))
    got = np.r_[curve.b_mu, curve.b.ravel()][first:]
    np.testing.assert_allclose(got, b, atol=2e-4 * np.abs(b).max())
    rng = np.random.default_rng(1)
    for _ in range(3):
        d = rng.normal(size=t - first)
        mu, D = (d[0], d[1:]) if effects else (0.0, d)
        out, total = curve.times(D.reshape(L, -1).copy(), float(mu))
        got = np.r_[total, out.ravel()][first:]
        np.testing.assert_allclose(got, S @ d, atol=2e-4 * np.abs(S @ d).max())


@pytest.mark.parametrize("effects", [True, False])
@pytest.mark.parametrize("factors", [0.1, 30.0])  # with negative curvature and without
def test_step_stays_in_the_region_and_lowers_the_model_by_what_it_promises(effects, factors):
    _, _, curve = curvature("bernoulli", effects, seed=3, pen=replace(PEN, factors=factors))
    free = curve.step(1e6, tol=1e-10, most=500)
    assert free.cut == (factors < 1.0)
    for radius in (1e-3, 0.1 * curve.slope(), 0.7 * free.length, 1e6):
        step = curve.step(radius, tol=1e-10, most=500)
        HD, Hm = curve.times(step.months, step.mu)
        linear = float((curve.b * step.months).sum()) + curve.b_mu * step.mu
        model = linear - 0.5 * (float((step.months * HD).sum()) + (step.mu * Hm if effects else 0.0))
        assert step.promise == pytest.approx(model, rel=1e-6)
        lower = np.tril(curve.M)  # Cholesky factors of the preconditioner, pivots inverted
        k = np.arange(lower.shape[1])
        lower[:, k, k] = 1.0 / lower[:, k, k]
        half = np.einsum("lba,lb->la", lower, step.months)
        norm = np.sqrt((half**2).sum() + curve.mu_weight * step.mu**2)
        assert step.length == pytest.approx(norm, rel=1e-6)
        assert step.length <= radius * (1 + 1e-12)
        assert step.cut == (step.length == radius)
        assert 0.0 < step.promise <= free.promise * (1 + 1e-9) or free.cut


def test_groups_add_up_to_the_pooled_curvature():
    panel, _ = simulate(J=J, L=L, n=60, groups=4, observers=12)
    rng = np.random.default_rng(0)
    P, T, D = rng.normal(size=(J, 3)), rng.normal(size=(L, 3)), rng.normal(size=(L, 3))
    theta = Theta(0.0, P[:, 0], T[:, 0], P[:, 1:].copy(), T[:, 1:].copy())
    out = []
    for p in (panel, panel.pooled()):
        cells = cells_of(p, "poisson")
        set_eta(cells, theta)
        curve = Curvature(cells, P, T, np.ones(3), np.ones(3), "poisson", effects=True)
        out.append((curve.times(D, 0.5)[0], curve.b, curve.step(1.0).months))
    for a, b in zip(*out, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_sparse_panel_is_solved_to_a_stationary_point(family):
    panel, _ = simulate(
        J=300, L=40, n=400, family=family, seed=2
    )  # about one cell a site: alternation would creep
    cells = cells_of(panel, family)
    fit = fit_cells(cells, 300, 40, family=family, rank=2, penalty=PEN, tol=1e-12, max_sweeps=300)
    assert fit.converged
    assert "Newton" in fit.stop_reason
    assert (np.diff(fit.objective) <= 0).all()
    assert certify(cells, fit.theta, PEN, family, effects=True).gradient < 1e-3
    # no direction nearby is lower: a minimum, not the saddle at U V' = 0
    rng = np.random.default_rng(0)
    best = objective(cells, fit.theta, PEN, family)
    for _ in range(20):
        near = replace(
            fit.theta,
            U=fit.theta.U + 1e-3 * rng.normal(size=(300, 2)),
            V=fit.theta.V + 1e-3 * rng.normal(size=(40, 2)),
        )
        assert objective(cells, near, PEN, family) > best


def test_every_step_ends_where_the_objective_says():
    """No step uphill is hidden: the parameters after k steps have the k-th value, and values never rise."""
    panel, _ = simulate(J=300, L=40, n=400, seed=2)
    cells = cells_of(panel, "poisson")
    last = np.inf
    for k in range(4, 30, 2):
        fit = fit_cells(cells, 300, 40, family="poisson", rank=2, penalty=PEN, tol=0.0, max_sweeps=k)
        value = objective(cells, fit.theta, PEN, "poisson")
        assert value == pytest.approx(fit.objective[-1], rel=1e-12)
        assert value <= last + 1e-14 * abs(last)
        last = value


def test_a_start_that_a_large_ridge_emptied_is_no_trap():
    panel, _ = simulate(J=60, L=36, n=2500, scale=0.8)
    cells = cells_of(panel, "poisson")
    empty = fit_cells(cells, 60, 36, rank=2, penalty=Penalty(1e5, 1.0, 1.0))
    assert np.abs(empty.theta.U @ empty.theta.V.T).max() < 1e-6
    cold = fit_cells(cells, 60, 36, rank=2, penalty=Penalty(1.0, 1.0, 1.0))
    warm = fit_cells(cells, 60, 36, rank=2, penalty=Penalty(1.0, 1.0, 1.0), start=empty.theta)
    assert warm.objective[-1] == pytest.approx(cold.objective[-1], rel=1e-3)  # other local minima are near


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.parametrize(
    ("family", "n", "ridge", "effects"),
    [
        ("bernoulli", 3000, 0.0, True), ("bernoulli", 3000, 0.0, False), ("gaussian", 400, 0.0, False),
        ("poisson", 400, 1e-3, True),
    ],
)  # fmt: skip
def test_convergence_is_not_claimed_where_more_can_be_had(family, n, ridge, effects):
    panel, _ = simulate(J=300, L=40, n=n, family=family, seed=3)
    cells = cells_of(panel, family)
    options = {
        "family": family,
        "rank": 2,
        "penalty": Penalty(ridge, ridge, ridge),
        "effects": effects,
        "max_sweeps": 150,
    }
    fit = fit_cells(cells, 300, 40, tol=1e-8, **options)
    on = fit_cells(cells, 300, 40, tol=0.0, start=fit.theta, **options)
    left = (fit.objective[-1] - on.objective[-1]) / (abs(fit.objective[-1]) + 1.0)
    assert not fit.converged or left < 1e-6


def test_sites_that_still_move_count_for_the_stop():
    panel = GroupPanel.of(
        6, 1, [Group.of("a", np.arange(6), np.zeros(6, int), [1.0, 0.0, 1.0, 1.0, 0.0, 1.0])]
    )
    fit = fit_cells(cells_of(panel, "poisson"), 6, 1, rank=0, tol=1e-8)
    assert fit.objective[-1] == pytest.approx(
        4.0, rel=1e-6
    )  # sum of y - y log y; the empty sites' rates go to zero


def test_certain_detections_do_not_end_in_a_division_by_zero():
    month = np.tile(np.arange(6), 4)
    panel = GroupPanel.of(
        4, 6, [Group.of("a", np.repeat(np.arange(4), 6), month, (month != 2).astype(float))]
    )
    for rank in (1, 2):
        fit = fit_cells(cells_of(panel, "bernoulli"), 4, 6, family="bernoulli", rank=rank)
        assert fit.objective[-1] < 1e-3  # separated: the loss goes to zero


def test_cells_held_out_are_finite_however_far_their_predictor():
    panel, _ = simulate(J=6, L=5, n=40)
    cells = cells_of(panel, "poisson")
    for c in cells:
        c.E[:3] = c.y[:3] = 0.0
    far = Theta(800.0, np.zeros(6), np.zeros(5), np.zeros((6, 0)), np.zeros((5, 0)))
    assert np.isfinite(objective(cells, far, PEN, "poisson"))
