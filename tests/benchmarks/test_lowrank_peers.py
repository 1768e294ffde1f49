"""The peers that the benchmarks compare with must be right, or beating them says nothing."""

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest

from fedmiss.models.lowrank.data import Group, GroupPanel
from fedmiss.models.lowrank.paper_step import fit_observed
from fedmiss.report.trim import fit_trim

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def peers():
    spec = importlib.util.spec_from_file_location("lowrank_peers", BENCHMARKS / "lowrank_peers.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["lowrank_peers"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    yield module
    del sys.modules["lowrank_peers"]


def masked(seed, J=40, L=25, share=0.4):
    rng = np.random.default_rng(seed)
    row, col = np.nonzero(rng.random((J, L)) < share)
    x = (rng.normal(size=(J, 2)) @ rng.normal(size=(2, L)))[row, col] + 0.3 * rng.normal(size=row.size)
    return row.astype(np.int32), col.astype(np.int32), x, (J, L)


def test_additive_glm_solves_the_likelihood_equations_and_agrees_with_trim(peers):
    rng = np.random.default_rng(0)
    J, L = 30, 12
    site, month = np.nonzero(rng.random((J, L)) < 0.5)
    y = rng.poisson(np.exp(rng.normal(1, 0.5, J)[site] + rng.normal(0, 0.5, L)[month])).astype(float)
    alpha, beta = peers.additive_glm(site, month, y, J, L)
    mu = alpha[site] * beta[month]
    assert np.allclose(np.bincount(site, mu, J), np.bincount(site, y, J), rtol=1e-6)
    assert np.allclose(np.bincount(month, mu, L), np.bincount(month, y, L), rtol=1e-6)
    trim = fit_trim(site, month, y)
    assert np.allclose(trim.mu, np.outer(alpha, beta)[list(trim.sites)], rtol=1e-6)


def test_soft_impute_of_a_complete_matrix_is_the_thresholded_svd(peers):
    rng = np.random.default_rng(1)
    X, lam = rng.normal(size=(20, 12)), 2.0
    row, col = (v.ravel() for v in np.indices(X.shape))
    fit = peers.soft_impute_als(row, col, X.ravel(), X.shape, lam, 12, tol=0.0, max_iterations=1000)
    U, s, Vt = np.linalg.svd(X, full_matrices=False)
    want = (U * np.maximum(s - lam, 0)) @ Vt
    assert np.allclose((fit.U * fit.d) @ fit.V.T, want, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
def test_soft_impute_never_rises_and_reaches_the_optimum(peers, seed):
    row, col, x, shape = masked(seed)
    lam = 0.2 * peers.largest_lambda(row, col, x, shape)
    fit = peers.soft_impute_als(row, col, x, shape, lam, 15, tol=0.0, max_iterations=5000)
    steps = np.diff(fit.objective)
    assert steps.max() <= 1e-9 * abs(fit.objective[0])
    panel = GroupPanel.of(*shape, [Group.of("a", row, col, x)])
    best = fit_observed(panel, family="gaussian", rank=15, penalty=lam)[2]
    optimum = best + 0.5 * (x**2).sum()  # softImpute's objective counts ||x||^2 / 2 too
    assert fit.objective[-1] == pytest.approx(optimum, rel=1e-6)


def test_soft_impute_stops_at_the_target_or_by_its_own_rule(peers):
    row, col, x, shape = masked(2)
    lam = 0.2 * peers.largest_lambda(row, col, x, shape)
    free = peers.soft_impute_als(row, col, x, shape, lam, 5, tol=0.0, max_iterations=50)
    early = peers.soft_impute_als(
        row, col, x, shape, lam, 5, tol=0.0, max_iterations=50, target=free.objective[9]
    )
    assert len(early.objective) == 10
    assert peers.soft_impute_als(row, col, x, shape, lam, 5, tol=1e-3).stopped_itself
