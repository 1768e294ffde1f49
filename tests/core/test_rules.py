"""Rules of the server as plug-ins: EF21, MARINA and FedMM, with the rates and fixed points that they promise."""

from dataclasses import replace

import numpy as np
import pytest

from fedmiss.compressors import Identity, RandK, TopK
from fedmiss.core import Bernoulli, FedEM, Remembered, Roster, run
from fedmiss.core.rules import EF21, FedMM, Marina, ef21_step, marina_step
from fedmiss.engines import LocalEngine
from fedmiss.errors import ConfigError, DomainError
from tests.core.one_by_one import same_everywhere

N, Q = 6, 8


class Quadratic:
    """h_c(s) = b_c - A_c s, with symmetric A_c that differ: minus the gradient of f_c."""

    q = Q

    def s_bar(self, theta, rows):
        A, b = rows[0, :, :-1], rows[0, :, -1]
        return theta + b - A @ theta

    def T(self, S):
        return S


def problem(seed):
    """(data, root, objective above its minimum, mu, L, root mean square of L_c): workers pull far apart."""
    rng = np.random.default_rng(seed)
    B = rng.normal(size=(N, Q, Q))
    A = B @ B.transpose(0, 2, 1) / Q + 0.2 * np.eye(Q)
    A /= np.linalg.eigvalsh(A).max()
    b = 5.0 * rng.normal(size=(N, Q))
    mean = A.mean(0)
    root = np.linalg.solve(mean, b.mean(0))
    eig = np.linalg.eigvalsh(mean)
    L_mean = np.sqrt((np.linalg.eigvalsh(A)[:, -1] ** 2).mean())
    data = np.concatenate([A, b[:, :, None]], axis=2)[:, None]
    return data, root, lambda S: 0.5 * (S - root) @ mean @ (S - root), eig[0], eig[-1], L_mean


def fields(data, S):
    return np.array([rows[0, :, -1] - rows[0, :, :-1] @ S for rows in data])


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("k", [1, 3])
def test_ef21_falls_at_the_proved_rate_under_top_k(k, seed):
    data, _root, gap, mu, L, L_mean = problem(seed)
    gamma, _theta = ef21_step(TopK(k), Q, L=L, L_mean=L_mean, mu=mu)
    algo = FedEM(Quadratic(), TopK(k), Roster.of([1] * N), gamma, 1.0, memory=EF21())
    engine = LocalEngine(data)
    result = run(algo, engine, np.zeros(Q), stop=500, observe=lambda server, down: {"gap": gap(server.S_hat)})
    psi = result.trace["gap"]
    # V_0 = h_c(S_0): the memories' error is 0 at the start, so the bound is that of the objective alone
    assert (psi <= psi[0] * (1 - gamma * mu) ** np.arange(500) + 1e-24).all()
    np.testing.assert_allclose(result.server.V, engine.V.mean(0), atol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_ef21_reaches_the_root_though_workers_differ_and_are_absent(seed):
    data, root, _, _, _, _ = problem(seed)
    settings = {"participation": Remembered(Bernoulli(0.5)), "memory": EF21(), "seed": seed}
    algo = FedEM(Quadratic(), TopK(2), Roster.of([1] * N), 0.2, 1.0, **settings)
    S = run(algo, LocalEngine(data), np.zeros(Q), stop=1200).server.S_hat
    assert np.abs(S - root).max() < 1e-8 * np.abs(root).max()
    naive = replace(algo, memory="none")
    S = run(naive, LocalEngine(data), np.zeros(Q), stop=1200).server.S_hat
    assert np.abs(S - root).max() > 1e-2 * np.abs(root).max()


def marina(seed, p=0.25, k=2, gamma=None):
    data, root, gap, mu, _, L_mean = problem(seed)
    quant = RandK(k)
    gamma = marina_step(p, omega=quant.omega(Q), n=N, L=L_mean, mu=mu) if gamma is None else gamma
    m = Marina(p, Identity(), seed)
    algo = FedEM(Quadratic(), quant, Roster.of([1] * N), gamma, 1.0, memory=m, oracle=m, seed=seed)
    return algo, data, root, gap, gamma * mu


@pytest.mark.slow
def test_marina_falls_at_the_proved_rate_in_the_mean():
    """A bound of an expectation, of one problem over 12 runs: the mean stays below it."""
    algo, data, _root, gap, rate = marina(0)
    rounds, seen = 120, []
    for seed in range(12):
        m = Marina(0.25, Identity(), seed)
        mine = replace(algo, memory=m, oracle=m, seed=seed)
        result = run(
            mine, LocalEngine(data), np.zeros(Q), stop=rounds, observe=lambda server, down: {"gap": gap(server.S_hat)}
        )  # fmt: skip
        seen.append(result.trace["gap"])
    bound = gap(np.zeros(Q)) * (1 - rate) ** np.arange(rounds)
    assert (np.mean(seen, axis=0) <= bound * (1 + 1e-9) + 1e-24).all()


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_marina_has_no_bias_and_the_same_bits_on_each_engine(seed, tmp_path):
    algo, data, root, _, _ = marina(seed)
    engine = LocalEngine(data)
    whole = run(algo, engine, np.zeros(Q), stop=800).server
    np.testing.assert_allclose(whole.V, engine.V.mean(0), atol=1e-9)
    assert np.abs(whole.S_hat - root).max() < 1e-8 * np.abs(root).max()
    same_everywhere(algo, data, np.zeros(Q), tmp_path, stop=40)


class Variance:
    """Statistic (z, z^2) of which T needs a positive variance; its project gives the nearest such statistic nearby."""

    q = 2

    def s_bar(self, theta, rows):
        return rows.mean(axis=0)

    def T(self, S):
        if not S[1] - S[0] ** 2 > 0:
            raise DomainError(f"variance {S[1] - S[0] ** 2:g}")
        return S.copy()

    def project(self, S):
        return np.array([S[0], max(S[1], S[0] ** 2 + 0.05)])


@pytest.mark.parametrize("seed", range(4))
def test_fedmm_stays_in_the_domain_and_keeps_fedems_fixed_point(seed):
    rng = np.random.default_rng(seed)
    z = rng.normal(size=(5, 1, 1)) + 0.4 * rng.normal(size=(5, 30, 1))
    data = np.concatenate([z, z**2], axis=2)
    # far start, memories of zero, a compressor that keeps one of two numbers: FedEM leaves the domain
    settings = {"seed": seed, "participation": Bernoulli(0.5)}
    fedem = FedEM(Variance(), RandK(1), Roster.of([30] * 5), 0.3, **settings)

    def observe(server, down):
        return {"variance": server.S_hat[1] - server.S_hat[0] ** 2}

    fedmm = replace(fedem, memory=FedMM())
    result = run(fedmm, LocalEngine(data), np.array([3.0, 9.2]), stop=400, init="zero", observe=observe)
    assert result.trace["variance"].min() > 0
    np.testing.assert_allclose(result.server.S_hat, data.mean(axis=(0, 1)), atol=1e-8)
    inside = np.array([0.0, 5.0])  # nothing to project on the way: FedEM to the bit
    gentle = replace(fedem, gamma=0.02, compressor=Identity(), participation=Remembered(Bernoulli(1.0)))
    a = run(gentle, LocalEngine(data), inside, stop=50).server.S_hat
    b = run(replace(gentle, memory=FedMM()), LocalEngine(data), inside, stop=50).server.S_hat
    assert np.array_equal(a, b)


def test_rules_refuse_settings_that_they_cannot_use():
    roster = Roster.of([1] * N)
    with pytest.raises(ConfigError, match="alpha=1"):
        FedEM(Quadratic(), Identity(), roster, 0.1, 0.5, memory=EF21())
    with pytest.raises(ConfigError, match="Remembered"):
        FedEM(Quadratic(), Identity(), roster, 0.1, 1.0, Bernoulli(0.5), memory=EF21())
    m = Marina(0.5, Identity())
    with pytest.raises(ConfigError, match="MARINA needs"):
        FedEM(Quadratic(), RandK(2), roster, 0.1, 1.0, memory=m)
    algo = FedEM(Quadratic(), Identity(), roster, 0.1, memory=FedMM())
    with pytest.raises(ConfigError, match="project"):
        run(algo, LocalEngine(problem(0)[0]), np.zeros(Q), stop=1)
    with pytest.raises(ConfigError, match="unknown"):
        FedEM(Quadratic(), Identity(), roster, 0.1, memory="some")
