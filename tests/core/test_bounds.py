"""The bounds agree with each other, with a worked value, and with runs of a model whose constants are known."""

from __future__ import annotations

import math
import warnings
from dataclasses import replace

import numpy as np
import pytest

from fedmiss.compressors import Dithering, Identity
from fedmiss.core import Bernoulli, Constants, FedEM, Minibatch, Roster, Spider, gamma_vr, run
from fedmiss.core.bounds import (
    bound_corollary_2,
    bound_memories,
    bound_uncompressed,
    bound_vr,
    bound_vr_general,
    check_step,
    evaluations_vr,
    gamma_limit,
    regime_fedem,
    regime_vr,
    rounds_fedem,
    rounds_vr,
)
from fedmiss.engines import LocalEngine
from fedmiss.errors import ConfigError
from tests.core.one_by_one import PlainEngine
from tests.core.toys import linear_data

C = Constants(v_min=0.5, v_max=3.0, L_W=2.0, L=1.5, L_rows=2.5, sigma2=0.7, W_gap=2.0)


class Half:
    """s_bar = mean of rows + theta / 2, T = identity: W = ||s - root||^2 / 4, v = 1, L_W = 1/2."""

    q = 3

    def s_bar(self, theta, rows):
        return rows.mean(axis=0) + 0.5 * theta

    def T(self, S):
        return S.copy()


def test_runs_obey_equation_9_up_to_its_end():
    data = linear_data(n=4, m=40)
    root, b = 2 * data.mean(axis=(0, 1)), 4
    S_0, k_max = root + 1.0, 60
    sigma2 = float(np.mean([rows.var(axis=0).sum() for rows in data])) / b
    c = Constants(1.0, 1.0, 0.5, 0.5, 0.5, sigma2, 0.25 * 3.0)
    assert gamma_limit(c) == 4.0
    for gamma in (0.1, 0.5, 1.0):
        h = []
        for seed in range(20):
            seen = []
            algo = FedEM(Half(), Identity(), Roster.of([40] * 4), gamma, 0.5, oracle=Minibatch(b), seed=seed)
            run(
                algo, LocalEngine(data), S_0, stop=k_max,
                observe=lambda s, d, seen=seen: seen.append(((0.5 * (s.S_hat - root)) ** 2).sum()) or {},
            )  # fmt: skip
            h.append(np.mean(seen))
        error = np.std(h, ddof=1) / np.sqrt(len(h))
        assert np.mean(h) - 4 * error <= bound_uncompressed(c, gamma=gamma, n=4, k_max=k_max)
        assert bound_uncompressed(c, gamma=gamma, n=4, k_max=k_max) < 12 * np.mean(
            h
        )  # and the bound is not empty
    with pytest.raises(ConfigError, match=r"\(0, 4\)"):
        bound_uncompressed(c, gamma=4.0, n=4, k_max=k_max)


def test_rounds_are_the_inverse_of_the_bounds():
    for omega, p, eps in ((0.0, 1.0, 1e-2), (3.0, 1.0, 1e-3), (3.0, 0.5, 10.0)):
        k = rounds_fedem(C, n=16, omega=omega, eps=eps, p=p)
        assert bound_corollary_2(C, n=16, omega=omega, k_max=k, p=p) <= eps * (1 + 1e-9)
        if k > 1:
            assert bound_corollary_2(C, n=16, omega=omega, k_max=k - 1, p=p) > eps
    k = rounds_vr(C, n=16, omega=3.0, eps=1e-3)
    assert bound_vr(C, n=16, omega=3.0, k_in=1, k_out=k)[1] <= 1e-3 * (1 + 1e-9)
    assert bound_vr(C, n=16, omega=3.0, k_in=1, k_out=k - 1)[1] > 1e-3
    assert evaluations_vr(C, n=16, m=200, omega=3.0, eps=1e-3, k_in=64) == math.ceil(k / 64) * (
        16 * 200 + 2 * 4 * 16 * 64
    )


def test_theorem_3_is_proposition_25_at_its_own_settings():
    for omega, k_in in ((0.0, 10), (3.0, 32), (1.0, 8)):
        gamma, b = gamma_vr(C, n=16, omega=omega), int(k_in / (1 + omega) ** 2)
        general = bound_vr_general(
            C, gamma=gamma, n=16, omega=omega, alpha=1 / (1 + omega), b=b, k_in=k_in, k_out=7
        )
        first, second = bound_vr(C, n=16, omega=omega, k_in=k_in, k_out=7)
        assert general == pytest.approx(first, rel=1e-12)
        assert second == pytest.approx(2 * (1 + (gamma * 2.5 * (1 + omega)) ** 2 / 16) * first)
    with pytest.raises(ConfigError, match="proposition 25"):
        bound_vr_general(C, gamma=9.0, n=16, omega=1.0, alpha=0.5, b=2, k_in=8, k_out=7)
    with pytest.raises(ConfigError, match="alpha"):
        bound_vr_general(C, gamma=0.01, n=16, omega=1.0, alpha=0.9, b=2, k_in=8, k_out=7)


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
            engine, seen = PlainEngine(data), []
            algo = FedEM(
                Half(),
                compressor,
                Roster.of([40] * 4),
                gamma,
                1 / (1 + omega),
                oracle=Spider(b, k_in),
                seed=seed,
            )

            def observe(server, down, engine=engine, algo=algo, seen=seen):
                V = engine.V
                seen.append(((V - (fields - 0.5 * server.S_hat)) ** 2).sum(axis=1).mean())
                return {}

            run(algo, engine, S_0, stop=k_in * k_out, init=init, observe=observe)
            G.append(seen)
        start = float(np.mean([g[0] for g in G]))
        assert (start < 1e-20) == (init == "h")
        means[k_out] = float(np.mean(G))
        bound = bound_memories(c, n=4, omega=omega, k_in=k_in, k_out=k_out, G_0=start)
        assert 0 < means[k_out] <= bound < 200 * means[k_out]
    assert means[4] / means[16] == pytest.approx(4.0, rel=0.15)
    with pytest.raises(ConfigError, match="G_0=-1"):
        bound_memories(c, n=4, omega=omega, k_in=k_in, k_out=4, G_0=-1.0)


def test_proposition_26_is_theorem_3_carried_to_the_memories():
    """E[G] <= 2 (1 + omega) G_0 / k + 8 gamma^2 L^2 (1 + omega)^2 E||H||^2, the last line of its proof, with eq. (11)."""
    for omega in (0.0, 1.0, 5.0):
        gamma = gamma_vr(C, n=16, omega=omega)
        first, _ = bound_vr(C, n=16, omega=omega, k_in=9, k_out=5)
        expected = 2 * (1 + omega) * 0.3 / 45 + 8 * (gamma * C.L_rows * (1 + omega)) ** 2 * first
        assert bound_memories(C, n=16, omega=omega, k_in=9, k_out=5, G_0=0.3) == pytest.approx(
            expected, rel=1e-12
        )


def test_the_four_regimes_of_fedem_grow_as_the_table_says():
    noisy, quiet = replace(C, sigma2=1e6), replace(C, sigma2=0.0)
    w = (100.0, 200.0)
    many, few = 10**9, 10
    for c, n, kind, ratio in (
        (noisy, many, ("high", "free"), 2.0), (noisy, few, ("high", "compressed"), 2.0),
        (quiet, many, ("low", "free"), 1.0), (quiet, few, ("low", "compressed"), 2**1.5),
    ):  # fmt: skip
        regimes = [regime_fedem(c, n=n, omega=omega, eps=1e-6) for omega in w]
        assert {(r.noise, r.step) for r in regimes} == {kind}
        assert regimes[1].increase / regimes[0].increase == pytest.approx(ratio, rel=0.02)


def test_the_two_regimes_of_vr_fedem():
    few = [regime_vr(C, n=16, omega=omega) for omega in (100.0, 200.0)]
    assert few[0].step == "compressed"
    assert few[1].increase / few[0].increase == pytest.approx(2**1.5, rel=0.02)
    many = regime_vr(C, n=10**12, omega=100.0)
    assert many.step == "free"
    assert many.increase == pytest.approx(1.0, abs=0.05)
    assert many.n_over_omega3 == 10**6


def test_steps_outside_theory_are_warned_of_with_the_bound():
    settings = (Half(), Dithering(), Roster.of([8] * 4))
    for algo, words in (
        (FedEM(*settings, 0.9, participation=Bernoulli(0.5)), "theorem 4"),
        (FedEM(*settings, 0.9, oracle=Spider(2, 4)), "theorem 3"),
        (FedEM(Half(), Identity(), Roster.of([8] * 4), 0.9), r"0\.5, the largest step of eq\. \(9\)"),
    ):
        with pytest.warns(UserWarning, match=words):
            limit = check_step(algo, C)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert check_step(replace(algo, gamma=limit), C) == limit
