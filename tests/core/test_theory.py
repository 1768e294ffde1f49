"""The theorems' step sizes against the formulas written out, and the estimate of their constants where it is known."""

import math

import numpy as np
import pytest

from fedmiss.compressors import Dithering, Identity
from fedmiss.core import FedEM, Minibatch, Roster, Spider, run
from fedmiss.core.theory import Constants, estimate_constants, gamma_max, gamma_star, gamma_vr, omega_p
from fedmiss.engines import LocalEngine
from fedmiss.errors import ConfigError
from fedmiss.models.gmm import GMM, GMMParams
from tests.core.one_by_one import PlainEngine
from tests.core.toys import Linear, linear_data

C = Constants(v_min=0.5, v_max=3.0, L_W=2.0, L=1.5, L_rows=2.5, sigma2=0.4, W_gap=0.7)


def test_theorem_1_and_4():
    # n = 16, omega = 3: sqrt(n) / (2 sqrt 2 L (1 + omega) sqrt omega) = 4 / (2 * 1.41421 * 1.5 * 4 * 1.73205)
    assert gamma_max(C, n=16, omega=3.0) == pytest.approx(
        min(0.125, 4 / (2 * 2**0.5 * 1.5 * 4 * 3**0.5)), rel=1e-12
    )
    # p = 1/2: omega_p = 3 + (1/2)(4)/(1/2) = 7
    assert omega_p(3.0, 0.5) == 7.0
    assert gamma_max(C, n=16, omega=3.0, p=0.5) == pytest.approx(
        0.5 * 4 / (2 * 2**0.5 * 1.5 * 4 * 7**0.5), rel=1e-12
    )
    assert gamma_max(C, n=16, omega=0.0) == 0.125  # v_min / (2 L_W): nothing else limits it
    assert gamma_max(C, n=10**9, omega=3.0) == 0.125


def test_corollary_2_minimises_the_bound_and_is_capped():
    kw = {"n": 16, "omega": 3.0, "k_max": 10_000}
    best = gamma_star(C, **kw)
    # it minimises W_gap / (gamma k) + gamma L_W (1 + 5 omega) sigma2 / n, the bracket of the bound
    bracket = [0.7 / (g * 10_000) + g * 2.0 * 16 * 0.4 / 16 for g in (0.8 * best, best, 1.2 * best)]
    assert bracket[1] == min(bracket)
    assert gamma_star(C, n=16, omega=3.0, k_max=1) == gamma_max(C, n=16, omega=3.0)


def test_gamma_star_at_partial_participation_is_corollary_2_with_theorem_4s_factor():
    for p in (0.2, 0.5, 1.0):
        factor = 1 + 5 * (3.0 + (1 - p) / p * 4.0)
        expected = math.sqrt(0.7 * 16 / (10**6 * 2.0 * factor * 0.4))
        assert expected < gamma_max(C, n=16, omega=3.0, p=p)
        assert gamma_star(C, n=16, omega=3.0, k_max=10**6, p=p) == pytest.approx(expected, rel=1e-12)


def test_theorem_3():
    root = math.sqrt(3 + 31 / 8)
    expected = 0.25 / (1 + 4 * 2**0.5 * 1.5 * (2.5 / 4) * 4 * root)
    assert gamma_vr(C, n=16, omega=3.0) == pytest.approx(expected, rel=1e-12)
    # no compression, one worker: SPIDER-EM's step
    assert gamma_vr(C, n=1, omega=0.0) == pytest.approx(
        0.25 / (1 + 4 * 2**0.5 * 1.5 * 2.5 * math.sqrt(1 / 8)), rel=1e-12
    )


HALF = Linear(A=0.5 * np.eye(3))  # W = ||s - root||^2 / 4, v = 1, L_W = 1/2


@pytest.mark.slow
def test_runs_obey_equation_9():
    """E||h(S_K)||^2 <= [W_gap / (gamma k) + gamma L_W sigma2 / (2 n)] / (v_min (1 - gamma L_W / (2 v_min)))."""
    data = linear_data(n=4, m=40)
    root, b = 2 * data.mean(axis=(0, 1)), 4
    S_0, k_max = root + 1.0, 60
    sigma2 = float(np.mean([rows.var(axis=0).sum() for rows in data])) / b
    c = Constants(1.0, 1.0, 0.5, 0.5, 0.5, sigma2, 0.25 * 3.0)
    for gamma in (0.1, 0.5, 1.0):
        h = []
        for seed in range(20):
            algo = FedEM(HALF, Identity(), Roster.of([40] * 4), gamma, 0.5, oracle=Minibatch(b), seed=seed)
            result = run(
                algo, LocalEngine(data), S_0, stop=k_max,
                observe=lambda server, down: {"field": ((0.5 * (server.S_hat - root)) ** 2).sum()},
            )  # fmt: skip
            h.append(result.trace["field"].mean())
        error = np.std(h, ddof=1) / np.sqrt(len(h))
        noise = 0.5 * gamma * c.L_W * c.sigma2 / 4
        bound = (c.W_gap / (gamma * k_max) + noise) / (c.v_min * (1 - 0.5 * gamma * c.L_W / c.v_min))
        assert np.mean(h) - 4 * error <= bound < 12 * np.mean(h)  # and the bound is not empty


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize("init", ["h", "zero"])
def test_memories_of_vr_fedem_approach_the_local_fields_as_proposition_26_says(init):
    """The mean of G over the rounds of 10 runs is below the bound, which is not empty; and 1/rounds is the true order."""
    data = linear_data(n=4, m=40)
    root, compressor = 2 * data.mean(axis=(0, 1)), Dithering()
    S_0, omega, k_in = root + 1.0, compressor.omega(3), 12
    fields = data.mean(axis=1)  # h_i(s) = mean of rows - s / 2
    c = Constants(1.0, 1.0, 0.5, 0.5, 0.5, 0.0, 0.25 * 3.0)
    gamma, b = gamma_vr(c, n=4, omega=omega), int(np.ceil(k_in / (1 + omega) ** 2))
    means = {}
    for k_out in (4, 16):
        G = []
        for seed in range(10):
            engine = PlainEngine(data)
            settings = {"alpha": 1 / (1 + omega), "oracle": Spider(b, k_in), "seed": seed}
            algo = FedEM(HALF, compressor, Roster.of([40] * 4), gamma, **settings)

            def observe(server, down, engine=engine):
                return {"G": ((engine.V - (fields - 0.5 * server.S_hat)) ** 2).sum(axis=1).mean()}

            G.append(run(algo, engine, S_0, stop=k_in * k_out, init=init, observe=observe).trace["G"])
        start = float(np.mean([g[0] for g in G]))
        assert (start < 1e-20) == (init == "h")
        means[k_out] = float(np.mean(G))
        moved = 16 * gamma * ((1 + omega) * c.L_rows) ** 2 * c.W_gap / c.v_min
        bound = (2 * (1 + omega) * start + moved) / (k_in * k_out)
        assert 0 < means[k_out] <= bound < 200 * means[k_out]
    assert means[4] / means[16] == pytest.approx(4.0, rel=0.15)


class LinearGaussian(Linear):
    """phi = identity makes B = I: v_min = v_max = 1, and L = |A - I| for every worker and every row."""

    def phi(self, theta):
        return theta

    def log_likelihood(self, theta, rows):
        return -0.5 * float(((rows - theta) ** 2).sum(axis=1).mean())


def test_constants_of_a_linear_model_are_found():
    data = linear_data(n=6, m=10)
    model = LinearGaussian()
    c = estimate_constants(model, data, Roster.of([10] * 6), np.zeros(3), b=5)
    M = np.eye(3) - model.A
    low, high = np.linalg.svd(M)[1][[-1, 0]]
    assert c.v_min == pytest.approx(1, abs=1e-6)
    assert c.v_max == pytest.approx(1, abs=1e-6)
    for L in (c.L, c.L_rows, c.L_W):
        assert low - 1e-9 <= L <= high + 1e-9
    assert c.sigma2 == pytest.approx(np.mean([data[i].var(axis=0).sum() for i in range(6)]) / 5, rel=1e-9)


class Shrunk(LinearGaussian):
    """Complete data y ~ N(theta, I), R = |theta|^2: T(s) = s / 3, W(s) = |s / 3|^2 + mean |y - s / 3|^2 / 2."""

    def s_bar(self, theta, rows):
        return rows.mean(axis=0)

    def T(self, S):
        return S / 3.0

    def penalty(self, theta):
        return float(theta @ theta)


def test_the_gap_of_a_penalised_model_has_its_penalty_in_it():
    """From theta = 0 to theta = y / 3, y the mean of all rows: W falls by |y|^2 / 6."""
    data = linear_data(n=6, m=10)
    c = estimate_constants(Shrunk(), data, Roster.of([10] * 6), np.zeros(3))
    assert c.W_gap == pytest.approx((data.mean(axis=(0, 1)) ** 2).sum() / 6, rel=1e-9)


def test_the_constant_of_workers_is_weighted_as_they_are():
    """One worker of slope 1 with 96 of 100 rows, four of slope 0: L^2 is 0.96, not 0.2."""

    class Steep(LinearGaussian):
        def s_bar(self, theta, rows):  # h_c(s) = mean - s, or mean
            return rows.mean(axis=0) + theta * (rows[0, 0] < 100)

    sizes = [96, 1, 1, 1, 1]
    data = [np.full((m, 3), 200.0 if m > 1 else 50.0) for m in sizes]
    c = estimate_constants(Steep(), data, Roster.of(sizes, "pooled"), np.ones(3), rounds=6)
    assert c.L == pytest.approx(0.96**0.5, rel=1e-9)


def test_B_of_a_mixture_turns_the_mean_field_into_the_gradient():
    """Assumption A4: the gradient of W = F o T is -B h, with B the Jacobian of phi o T."""
    rng = np.random.default_rng(0)
    rows = np.concatenate([rng.normal(size=(40, 2)) - 1.5, rng.normal(size=(60, 2)) + 1.0])
    model = GMM(2, 2, "known", Sigma=np.eye(2))
    S = model.s_bar(GMMParams(np.array([0.5, 0.5]), np.array([[-1.0, 0.0], [1.0, 0.3]]), np.eye(2)), rows)
    h = model.s_bar(model.T(S), rows) - S
    e = 1e-5
    for direction in (h, np.r_[0.0, 0.0, 1.0, 0, 0, 0], np.r_[1.0, -1.0, 0, 0, 0, 0]):
        up, down = model.T(S + e * direction), model.T(S - e * direction)
        slope = -(model.log_likelihood(up, rows) - model.log_likelihood(down, rows)) / (2 * e)
        B_direction = (model.phi(up) - model.phi(down)) / (2 * e)
        assert slope == pytest.approx(-(B_direction @ h), rel=1e-4, abs=1e-9)


def test_models_without_phi_are_told_so():
    with pytest.raises(ConfigError, match="phi"):
        estimate_constants(Linear(), linear_data(), Roster.of([8] * 5), np.zeros(3))
