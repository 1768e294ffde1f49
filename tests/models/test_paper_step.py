"""The M-step of algorithm 7 ends at a minimum, and a minibatch counts as its setting says."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.optimize import minimize

from fedmiss.models.lowrank import paper_step
from fedmiss.models.lowrank.data import Group, GroupPanel
from fedmiss.models.lowrank.families import family_of
from fedmiss.models.lowrank.paper import FedMissEM
from fedmiss.models.lowrank.paper_step import MStep


def problem(family, rank, seed, J=24, L=11):
    """A start and a statistic psi'(U V') + sparse residuals, as the server holds it."""
    rng, kind = np.random.default_rng(seed), family_of(family)
    U, V = 0.5 * rng.standard_normal((J, rank)), 0.5 * rng.standard_normal((L, rank))
    mean = kind.mean(U @ V.T)
    seen = rng.random((J, L)) < 0.3
    drawn = rng.poisson(mean) if family == "poisson" else rng.random((J, L)) < mean
    sparse = np.where(seen, 0.5 * (drawn - mean), 0.0)
    left, s, right = np.linalg.svd(mean, full_matrices=False)
    return kind, U, V, left * s, right.T, sparse


def dense(kind, U, V, S, penalty):
    """Objective and gradient, with every matrix formed."""
    E = U @ V.T
    D = kind.mean(E) - S
    value = (kind.psi(E) - S * E).sum() + 0.5 * penalty * ((U**2).sum() + (V**2).sum())
    return value, D @ V + penalty * U, D.T @ U + penalty * V


@pytest.mark.parametrize("family", ["poisson", "bernoulli"])
@pytest.mark.parametrize("rank", [1, 2, 4])
@pytest.mark.parametrize("penalty", [0.02, 0.5])
@pytest.mark.parametrize("seed", range(4))
def test_the_gradient_is_zero_to_rounding_and_the_objective_has_not_risen(family, rank, penalty, seed):
    kind, U, V, A, B, sparse = problem(family, rank, seed)
    S = A @ B.T + sparse
    u, v = MStep(kind, penalty, sp.csr_array(sparse), A, B).minimise(U, V)
    value, gu, gv = dense(kind, u, v, S, penalty)

    def terms(U, V):
        mean = kind.mean(U @ V.T)
        return np.hypot(np.linalg.norm(mean @ V), np.linalg.norm(mean.T @ U))

    scale = max(terms(U, V), terms(u, v))
    assert np.hypot(np.linalg.norm(gu), np.linalg.norm(gv)) <= 3e-12 * scale
    assert value <= dense(kind, U, V, S, penalty)[0]


@pytest.mark.parametrize("family", ["poisson", "bernoulli"])
@pytest.mark.parametrize("block", [2_000_000, 60])
def test_one_side_is_what_both_sides_give_for_it(monkeypatch, family, block):
    monkeypatch.setattr(paper_step, "BLOCK", block)
    kind, U, V, A, B, sparse = problem(family, 2, 0)
    step = MStep(kind, 0.1, sp.csr_array(sparse), A, B)
    for side in (0, 1):
        np.testing.assert_allclose(step._slope(U, V, side), step.gradient(U, V)[side], rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(step._curvature(U, V, (side,))[0], step._curvature(U, V)[side], rtol=1e-12)


@pytest.mark.parametrize("family", ["poisson", "bernoulli"])
@pytest.mark.parametrize("seed", range(3))
def test_the_minimum_is_that_of_a_plain_minimiser_of_the_dense_objective(family, seed):
    """Both start at the M-step's answer moved a little, so that they are in one valley."""
    kind, U, V, A, B, sparse = problem(family, 1, seed, J=7, L=5)
    S, shape = A @ B.T + sparse, (U.shape, V.shape)
    u, v = MStep(kind, 0.1, sp.csr_array(sparse), A, B).minimise(U, V)

    def split(x):
        return x[: U.size].reshape(shape[0]), x[U.size :].reshape(shape[1])

    def f(x):
        value, gu, gv = dense(kind, *split(x), S, 0.1)
        return value, np.concatenate([gu.ravel(), gv.ravel()])

    x = np.concatenate([u.ravel(), v.ravel()])
    moved = x + 0.02 * np.random.default_rng(seed).standard_normal(x.size)
    found = minimize(f, moved, jac=True, method="BFGS", options={"gtol": 1e-9})
    p, q = split(found.x)
    assert abs(found.fun - f(x)[0]) <= 1e-9 * (1 + abs(found.fun))
    np.testing.assert_allclose(u @ v.T, p @ q.T, atol=1e-5)


@pytest.mark.parametrize("family", ["gaussian", "poisson", "bernoulli"])
@pytest.mark.parametrize(("batch", "weight"), [(None, "m"), (5, "b"), (10_000, "m")])
def test_a_minibatch_has_the_mean_that_its_setting_says(family, batch, weight):
    """full: the whole statistic; paper: b / m of it. The tolerance is five standard errors of the mean of the draws."""
    rng, cells = np.random.default_rng(1), np.arange(80)
    drawn = {
        "gaussian": rng.standard_normal,
        "poisson": lambda n: rng.poisson(2.0, n),
        "bernoulli": lambda n: rng.random(n) < 0.4,
    }
    held = [rng.permutation(cells)[:n] for n in (23, 41)]
    panel = GroupPanel.of(
        10,
        8,
        [Group.of(f"g{c}", k // 8, k % 8, drawn[family](k.size).astype(float)) for c, k in enumerate(held)],
    )
    model = FedMissEM(panel, family=family, rank=1)
    rng, draws, b = np.random.default_rng(0), 4000, 5
    for name, whole in model.rows(panel).items():
        rows = model.rows(panel, batch)[name]
        m = len(whole)
        full = model.s_bar(model.start, whole)
        got = np.array([model.s_bar(model.start, rows[rng.integers(0, m, b)]) for _ in range(draws)])
        want = full if weight == "m" else full * b / m
        error = got.std(axis=0, ddof=1) / np.sqrt(draws)
        assert (np.abs(got.mean(axis=0) - want) <= 5 * error + 1e-12).all()
        assert m > 2 * b
