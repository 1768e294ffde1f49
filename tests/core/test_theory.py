"""The theorems' step sizes against the formulas written out, and the estimate of their constants where it is known."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fedmiss.core import Roster
from fedmiss.core.bounds import bound_fedem
from fedmiss.core.theory import (
    Constants,
    estimate_constants,
    gamma_max,
    gamma_star,
    gamma_vr,
    k_in_best,
    minibatch_vr,
    omega_p,
)
from fedmiss.errors import ConfigError
from fedmiss.models.gmm import GMM, GMMParams
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
    assert best == pytest.approx(math.sqrt(0.7 * 16 / (10_000 * 2.0 * 16 * 0.4)), rel=1e-12)
    # it minimises W_gap / (gamma k) + gamma L_W (1 + 5 omega) sigma2 / n, the bracket of the bound
    bracket = [
        bound_fedem(C, gamma=g, **kw) * 0.5 * (1 - g * 2.0 / 0.5) for g in (0.8 * best, best, 1.2 * best)
    ]
    assert bracket[1] == min(bracket)
    assert gamma_star(C, n=16, omega=3.0, k_max=1) == gamma_max(C, n=16, omega=3.0)
    with pytest.raises(ConfigError, match=r"gamma=0\.5 is above gamma_max"):
        bound_fedem(C, gamma=0.5, **kw)


def test_theorem_3():
    root = math.sqrt(3 + 31 / 8)
    expected = 0.25 / (1 + 4 * 2**0.5 * 1.5 * (2.5 / 4) * 4 * root)
    assert gamma_vr(C, n=16, omega=3.0) == pytest.approx(expected, rel=1e-12)
    # no compression, one worker: SPIDER-EM's step
    assert gamma_vr(C, n=1, omega=0.0) == pytest.approx(
        0.25 / (1 + 4 * 2**0.5 * 1.5 * 2.5 * math.sqrt(1 / 8)), rel=1e-12
    )
    assert minibatch_vr(20, 0.0) == 20
    assert minibatch_vr(20, 1.0) == 5
    assert k_in_best(200, 1.0) == 20


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
