"""FedLSA, SCAFFLSA and FedAvg against exact laws: bias, second moments, first orders, extrapolation."""

from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest

from fedmiss.compressors import Dithering, Identity
from fedmiss.core import Bernoulli, FedEM, LocalSteps, Roster, fed_lsa, local_em, run, scafflsa
from fedmiss.core.oracles import draw_rows
from fedmiss.core.testing import check_oracle
from fedmiss.engines import LocalEngine, StudyEngine
from fedmiss.errors import ConfigError, InputError
from fedmiss.experiments.lsa import logistic_data
from fedmiss.models import fedavg
from fedmiss.models.fedavg import RidgeLogistic, richardson_romberg
from fedmiss.models.lsa import LSA, Law, garnet, linear_pools, mean_system
from fedmiss.models.lsa_theory import (
    bias,
    bias_first_order,
    check_stable,
    rounds_to,
    second_moments,
    solution,
)
from fedmiss.rng import uniforms
from tests.core.one_by_one import same_everywhere


def exact(data):
    """Pools of one row each: no noise."""
    return np.array([rows.mean(axis=0, keepdims=True) for rows in data])


def go(make, data, *, H, eta, rounds, b=1, seed=0, compressor=None, init="zero", **settings):
    n, m, p, _ = data.shape
    common = {"model": LSA(p), "compressor": compressor or Identity(), "roster": Roster.of([m] * n)}
    algo, engine = make(H=H, eta=eta, b=b, seed=seed, **common, **settings), LocalEngine(data)
    return run(algo, engine, np.zeros(p), stop=rounds, init=init), engine


def test_the_bias_is_the_fixed_point_of_the_mean_map():
    A, b = mean_system(linear_pools(6, 3, 5, heterogeneity=2.0, seed=1))
    theta, local = solution(A, b)
    np.testing.assert_allclose(A.mean(axis=0) @ theta, b.mean(axis=0), atol=1e-13)
    np.testing.assert_allclose(np.einsum("cij,cj->ci", A, local), b, atol=1e-12)
    for eta, H in ((0.1, 1), (0.05, 7), (0.02, 60)):
        point = theta + bias(A, b, eta, H)
        mapped = np.zeros(3)
        for A_c, b_c in zip(A, b, strict=True):
            x = point.copy()
            for _ in range(H):
                x = x - eta * (A_c @ x - b_c)
            mapped += x / len(A)
        np.testing.assert_allclose(mapped, point, atol=1e-13)
        if H == 1:
            np.testing.assert_allclose(point, theta, atol=1e-13)


def test_the_first_order_of_the_bias_has_order_one():
    A, b = mean_system(linear_pools(6, 3, 5, heterogeneity=2.0, seed=1))
    gaps = []
    for eta in (0.02, 0.01, 0.005):
        full = bias(A, b, eta, 5)
        gaps.append(np.abs(full - bias_first_order(A, b, eta, 5)).max())
        assert gaps[-1] < 0.2 * np.abs(full).max()
    orders = np.log2(np.array(gaps[:-1]) / gaps[1:])
    assert np.abs(orders - 2).max() < 0.1  # what is left is of second order


@pytest.mark.parametrize(
    "compressor", [None, pytest.param(Dithering(), marks=pytest.mark.slow)], ids=["identity", "dithering"]
)
def test_fed_lsa_without_noise_ends_at_its_bias_and_scafflsa_at_the_solution(compressor):
    data = exact(linear_pools(10, 4, 50, seed=2))
    A, b = mean_system(data)
    theta, miss = solution(A, b)[0], bias(A, b, 0.02, 20)
    if compressor is None:
        plain, _ = go(fed_lsa, data, H=20, eta=0.02, rounds=200)
        np.testing.assert_allclose(plain.server.S_hat, theta + miss, atol=1e-13)
        good, engine = go(scafflsa, data, H=20, eta=0.02, rounds=300, alpha=1.0)
        np.testing.assert_allclose(good.server.S_hat, theta, atol=1e-12)
        xi = good.server.V - engine.V
        np.testing.assert_allclose(xi, A @ theta - b, atol=1e-11)  # A_c (theta* - theta*_c)
        np.testing.assert_allclose(xi.sum(axis=0), 0, atol=1e-12)
        return
    settings = {"H": 20, "eta": 0.01, "rounds": 3000}
    settings |= {"compressor": compressor, "participation": Bernoulli(0.5)}
    good, engine = go(scafflsa, data, seed=1, **settings)
    assert ((good.server.S_hat - theta) ** 2).sum() < 1e-20
    np.testing.assert_allclose(good.server.V, engine.V.mean(axis=0), atol=1e-13 * np.abs(engine.V).max())

    def with_memory(*, H, eta, b, **more):
        return FedEM(oracle=LocalSteps(H, eta, b), gamma=0.2, **more)

    memory, _ = go(with_memory, data, **settings)
    miss = bias(A, b, 0.01, 20)
    np.testing.assert_allclose(memory.server.S_hat, theta + miss, atol=1e-10)
    bare, _ = go(fed_lsa, data, **settings)
    assert ((bare.server.S_hat - theta) ** 2).sum() > 3 * (miss @ miss)


def authors_scafflsa(data, eta, H, rounds, seed):
    """The talk's form: th <- th - eta (A th - b - xi), xi_c <- xi_c + (theta - th_c) / (eta H), on the core's draws."""
    n, m, p, _ = data.shape
    theta, xi = np.zeros(p), np.zeros((n, p))
    for k in range(rounds):
        index = draw_rows(uniforms(seed, "worker", k, range(n), H), np.full(n, m), replace=True)
        th = np.repeat(theta[None], n, axis=0)
        for c in range(n):
            for t in range(H):
                row = data[c, index[c, t]]
                th[c] = th[c] - eta * (row[:, :p] @ th[c] - row[:, p] - xi[c])
        theta = th.mean(axis=0)
        xi += (theta - th) / (eta * H)
    return theta, xi


def test_scafflsa_is_the_authors_recursion_iterate_for_iterate():
    data = linear_pools(10, 4, 30, seed=3)
    for rounds in (1, 3, 50):
        result, engine = go(scafflsa, data, H=10, eta=0.05, rounds=rounds, alpha=1.0, seed=4)
        theta, xi = authors_scafflsa(data, 0.05, 10, rounds, 4)
        np.testing.assert_allclose(result.server.S_hat, theta, atol=1e-12)
        np.testing.assert_allclose(result.server.V - engine.V, xi, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("scaffold", [False, True], ids=["fedlsa", "scafflsa"])
def test_exact_second_moments_are_those_of_200_runs(scaffold):
    data = linear_pools(4, 3, 12, seed=5)
    A, b = mean_system(data)
    theta = solution(A, b)[0]
    exactly = second_moments(data, 0.1, 5, 40, scaffold=scaffold)
    make = scafflsa if scaffold else fed_lsa
    error = np.empty((200, 40))
    for seed in range(200):
        algo = make(
            H=5, eta=0.1, model=LSA(3), compressor=Identity(), roster=Roster.of([12] * 4), seed=seed,
            **({"alpha": 1.0} if scaffold else {}),
        )  # fmt: skip
        seen = []
        result = run(
            algo, LocalEngine(data), np.zeros(3), stop=40, init="zero",
            observe=lambda server, down, seen=seen: seen.append(server.S_hat) or {},
        )  # fmt: skip
        error[seed] = ((np.array([*seen[1:], result.server.S_hat]) - theta) ** 2).sum(axis=1)
    z = (error.mean(axis=0) - exactly.mse[1:]) / (error.std(axis=0, ddof=1) / np.sqrt(200))
    assert 0.3 < np.mean(z**2) < 3.0  # 40 correlated rounds
    assert np.abs(z).max() < 5
    assert exactly.mse[0] == pytest.approx(theta @ theta)
    limit = bias(A, b, 0.1, 5)
    late = second_moments(data, 0.1, 5, 400, scaffold=scaffold)
    np.testing.assert_allclose(late.mean[-1] - theta, 0 if scaffold else limit, atol=1e-9)


@pytest.mark.slow
def test_stationary_variance_is_linear_in_eta_and_in_1_over_n():
    pools = linear_pools(1, 3, 40, seed=6)
    variance = [second_moments(pools, eta, 5, int(40 / eta)).variance[-1] for eta in (0.05, 0.025, 0.0125)]
    ratios = np.array(variance[:-1]) / variance[1:]
    assert np.abs(ratios - 2).max() < 0.15
    for scaffold in (False, True):
        many = second_moments(np.repeat(pools, 8, axis=0), 0.0125, 5, 1500, scaffold=scaffold).variance[-1]
        assert 8 * many == pytest.approx(variance[-1], rel=0.05)  # linear speed-up


def test_scafflsa_needs_fewer_rounds_at_high_accuracy():
    data = linear_pools(4, 2, 8, heterogeneity=2.0, seed=8)
    eps, etas, steps = (0.2, 0.05), 2.0 ** -np.arange(1, 12, 2), (1, 8, 64, 512)
    start = np.full(2, 1.0)
    plain = rounds_to(data, eps, etas, steps, scaffold=False, theta_0=start, most=120)
    scaffold = rounds_to(data, eps, etas, steps, scaffold=True, theta_0=start, most=120)
    assert all(T >= 0 for T, _, _ in plain + scaffold)
    assert scaffold[1][0] < plain[1][0]
    for T, eta, H in plain:
        assert second_moments(data, eta, H, T, theta_0=start).mse[T] <= 0.04
    growth = plain[1][0] / plain[0][0], scaffold[1][0] / scaffold[0][0]
    assert growth[1] < growth[0]


def test_every_engine_gives_the_same_bits_and_the_oracle_obeys_its_laws():
    data = linear_pools(5, 3, 9, seed=7)
    settings = {"model": LSA(3), "compressor": Dithering(), "roster": Roster.of([9] * 5), "seed": 3}
    algo = scafflsa(H=4, eta=0.1, b=2, participation=Bernoulli(0.6), **settings)
    same_everywhere(algo, data, np.zeros(3), stop=25, init="zero")
    for steps in ((4, 0.1, 2, True), (3, 0.1, None, True), (3, 0.1, 2, False, False)):
        check_oracle(LocalSteps(*steps), LSA(3), list(data), np.ones(3))


def test_td_on_garnet_problems_is_the_talks_problem():
    """Features on the simplex, a deterministic policy: a mean matrix that is nearly singular, and agents that differ."""
    for seed in range(3):
        level = {}
        for differ in (False, True):
            data = garnet(10, heterogeneous=differ, seed=seed)
            A, b = mean_system(data)
            check_stable(A, 0.1, 10)
            assert all(law.atoms.shape == (60, 8, 9) for law in data)  # two successors of each state
            assert 2e-4 < np.linalg.eigvals(A.mean(axis=0)).real.min() < 1e-2  # 0.0018 in the authors' draw
            level[differ] = float((bias(A, b, 0.1, 1000) ** 2).sum())
        assert level[False] < 1e-8 < 1e-2 < level[True]


def test_draws_of_a_law_have_its_probabilities():
    law = garnet(1, seed=3)[0]
    u = np.arange(0, len(law), 2**16)
    share = np.bincount(law.pick(u), minlength=60) / u.size
    np.testing.assert_allclose(share, law.probability, atol=2.0 / u.size)
    np.testing.assert_array_equal(law[u[:50]], law.atoms[law.pick(u[:50])])
    np.testing.assert_allclose(law[u].mean(axis=0), law.mean(), atol=1e-3)


@pytest.mark.slow
def test_a_run_on_a_law_has_the_mean_of_the_exact_formula():
    """Long runs from the limit: their mean is theta* + bias, by the spread of independent runs."""
    data = garnet(4, seed=2)
    A, b = mean_system(data)
    goal = solution(A, b)[0] + bias(A, b, 0.1, 200)
    means = []
    for s in range(8):
        algo = fed_lsa(
            H=200, eta=0.1, b=1, model=LSA(8), compressor=Identity(), roster=Roster.of([Law.SIZE] * 4), seed=s
        )
        means.append(run(algo, LocalEngine(data), goal, stop=300, init="zero", average_from=0).S_mean)
    off = np.mean(means, axis=0) - goal
    assert np.abs(off / (np.std(means, axis=0, ddof=1) / np.sqrt(8))).max() < 6


def test_unstable_systems_are_refused_with_their_eigenvalue():
    data = linear_pools(3, 2, 4, seed=1)
    A, b = mean_system(data)
    with pytest.raises(ConfigError, match=r"an eigenvalue of mean A_c is -"):
        bias(-A, b, 0.1, 3)
    with pytest.raises(ConfigError, match=r"diverges at eta=5, H=2.*eigenvalue.*lower eta"):
        second_moments(data, 5.0, 2, 3)
    with pytest.raises(ConfigError, match=r"shape \(4, 2, 2\)"):
        second_moments(data[:, :, :, :2], 0.1, 2, 3)


# ---- FedAvg --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def logistic():
    return logistic_data(0)


def limit(model, data, eta, H):
    n, m, _ = data.shape
    algo = fed_lsa(H=H, eta=eta, b=None, model=model, compressor=Identity(), roster=Roster.of([m] * n))
    theta = run(algo, LocalEngine(data), model.minimum(data), stop=int(120 / (eta * H))).server.S_hat
    return theta - model.minimum(data)


def test_derivatives_are_finite_differences(logistic):
    model, data = logistic
    theta, e = np.array([0.3, -0.5, 0.2]), 1e-5
    M = np.array([[1.0, 0.2, 0.0], [0.2, 0.5, -0.3], [0.0, -0.3, 2.0]])
    for i in range(3):
        d = e * np.eye(3)[i]
        g = (model.gradient(theta + d, data[0]) - model.gradient(theta - d, data[0])) / (2 * e)
        np.testing.assert_allclose(g, model.hessian(theta, data[0])[i], atol=1e-8)
        H = (model.hessian(theta + d, data[0]) - model.hessian(theta - d, data[0])) / (2 * e)
        assert (H * M).sum() == pytest.approx(model.third(theta, data[0], M)[i], abs=1e-7)
    assert np.abs(np.mean([model.gradient(model.minimum(data), r) for r in data], axis=0)).max() < 1e-14


@pytest.mark.slow
@pytest.mark.nightly
def test_the_bias_of_fedavg_has_order_1_and_extrapolation_order_2(logistic):
    model, data = logistic
    etas = (0.04, 0.02, 0.01)
    found = [limit(model, data, eta, 5) for eta in etas]
    size = np.array([np.linalg.norm(v) for v in found])
    assert np.abs(np.log2(size[:-1] / size[1:]) - 1.0).max() < 0.1
    for v, eta in zip(found, etas, strict=True):
        first = fedavg.bias_first_order(model, data, eta, 5)
        assert np.linalg.norm(v - first) < 3 * eta * np.linalg.norm(v)
    better = [np.linalg.norm(richardson_romberg(a, b)) for a, b in pairwise(found)]
    assert np.log2(better[0] / better[1]) > 1.8
    assert better[0] < 0.1 * size[0]


@pytest.mark.slow
def test_scaffold_with_exact_gradients_has_no_bias(logistic):
    model, data = logistic
    n, m, _ = data.shape
    algo = scafflsa(
        H=5, eta=0.1, b=None, alpha=1.0, model=model, compressor=Identity(), roster=Roster.of([m] * n)
    )
    S = run(algo, LocalEngine(data), np.zeros(3), stop=600, init="zero").server.S_hat
    np.testing.assert_allclose(S, model.minimum(data), atol=1e-12)


class Additive(RidgeLogistic):
    """One row a worker; the gradient has additive noise drawn from it: minibatches of the rows (x, y, noise)."""

    def s_bar(self, theta, rows):
        return super().s_bar(theta, rows[..., : self.p + 1]) + rows[:, self.p + 1 :].mean(axis=0)


@pytest.mark.mc
def test_the_noise_part_of_the_bias():
    """One asymmetric loss, additive gradient noise of variance 1, H = 1: bias = formula to its order."""
    rng = np.random.default_rng(1)
    z = np.r_[np.ones(500), -np.ones(500)]
    rows = np.zeros((1000, 3))
    rows[:, 0], rows[:, 1], rows[:, 2] = 1.5, np.where(np.arange(1000) % 5 < 4, 1.0, -1.0), rng.permutation(z)
    model, data = Additive(1, 0.05), rows[None]
    base = RidgeLogistic(1, 0.05)
    plain = data[:, :, :2]
    star = base.minimum(plain)
    g = np.array([base.gradient(star, r[None]) for r in plain[0]])[:, 0]
    C = np.array([[np.var(g - rows[:, 2])]])
    eta, means = 0.1, []
    for seed in range(8):
        algo = fed_lsa(
            H=1, eta=eta, b=1, model=model, compressor=Identity(), roster=Roster.of([1000]), seed=seed
        )
        means.append(run(algo, LocalEngine(data), star, stop=15_000, average_from=1000).S_mean[0])
    measured, error = np.mean(means) - star[0], np.std(means, ddof=1) / np.sqrt(6)
    expected = fedavg.bias_first_order(base, plain, eta, 1, noise=C)[0]
    assert abs(measured - expected) < 4 * error + 0.25 * abs(expected)
    assert np.sign(measured) == np.sign(expected)


# ---- FedEM is stochastic approximation -----------------------------------------------------------------------------


class Seen:
    """y ~ N(z, s2_c), z ~ N(theta, tau2): s_bar_c(T(s)) = w_c ybar_c + (1 - w_c) s, w_c the share of information seen."""

    q = 1

    def s_bar(self, theta, rows):
        return rows[:, 1:].mean(axis=0) * rows[0, 0] + (1 - rows[0, 0]) * theta

    def T(self, S):
        return S.copy()


def seen_data(low, high, n=8, seed=0):
    rng = np.random.default_rng(seed)
    w = np.linspace(low, high, n)
    return np.stack([np.column_stack([np.full(5, v), 3 * rng.normal() + rng.normal(size=5)]) for v in w])


@pytest.mark.slow
def test_local_em_steps_have_the_bias_of_lsa_and_control_variates_none():
    data = seen_data(0.2, 0.9)
    w, y = data[:, 0, 0], data[:, :, 1].mean(axis=1)
    root = (w * y).sum() / w.sum()
    settings = {"model": Seen(), "compressor": Identity(), "roster": Roster.of([5] * 8), "H": 10, "eta": 0.5}
    plain = run(fed_lsa(b=None, **settings), LocalEngine(data), np.zeros(1), stop=300).server.S_hat
    exact = bias(w[:, None, None], (w * y)[:, None], 0.5, 10)
    assert abs(exact[0]) > 0.05
    np.testing.assert_allclose(plain - root, exact, atol=1e-12)
    good = run(local_em(alpha=1.0, **settings), LocalEngine(data), np.zeros(1), stop=400).server.S_hat
    np.testing.assert_allclose(good, root, atol=1e-13)


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.parametrize(("low", "high", "pays"), [(0.01, 0.05, True), (0.2, 0.9, False)])
def test_local_em_steps_pay_where_little_is_seen_and_harm_elsewhere(low, high, pays):
    data = seen_data(low, high)
    w, y = data[:, 0, 0], data[:, :, 1].mean(axis=1)
    root = (w * y).sum() / w.sum()
    rounds = []
    for H in (1, 20):
        algo = local_em(
            H=H, eta=1.0, alpha=1.0, model=Seen(), compressor=Identity(), roster=Roster.of([5] * 8)
        )
        result = run(
            algo, LocalEngine(data), np.zeros(1), stop=600,
            observe=lambda server, down: {"gap": abs(server.S_hat[0] - root)},
        )  # fmt: skip
        rounds.append(next((k for k, v in enumerate(result.trace["gap"]) if v < 1e-6), 600))
    assert rounds[1] < 0.1 * rounds[0] if pays else rounds[1] > 3 * rounds[0]


@pytest.mark.parametrize("study", [False, True])
@pytest.mark.parametrize("p", [2, 4])
@pytest.mark.parametrize("make", [scafflsa, lambda H, eta, b, **settings: FedEM(gamma=eta, **settings)])
def test_rows_of_another_system_are_refused_and_their_owner_is_named(make, p, study):
    """The compiled walk read beside them; then it was worker 0 at every organisation, or numpy's words."""
    data = {"club a": linear_pools(1, 3, 9)[0], "club b": linear_pools(1, p, 9)[0]}
    roster = Roster.of({name: 9 for name in data})
    algo = make(H=2, eta=0.02, b=1, model=LSA(3), compressor=Identity(), roster=roster, seed=1)
    engine = StudyEngine(SimpleNamespace(name="club b"), data["club b"]) if study else LocalEngine(data)
    said = rf"worker 'club b': its rows \[A \| b\] have the shape \({p}, {p + 1}\), expected \(3, 4\)"
    with pytest.raises(InputError, match=said):
        engine.start(algo, np.zeros(3), "zero")
