"""Independent Laplace proposals keep the posterior, are accepted nearly always, and forget where they were."""

from __future__ import annotations

import numpy as np
import pytest

from fedmiss.compressors import Identity
from fedmiss.core import Roster, SaemSteps, em, run
from fedmiss.engines import LocalEngine
from fedmiss.errors import ConfigError
from fedmiss.models.saem.algorithm import fed_saem
from fedmiss.models.saem.chains import Chains, Langevin, Laplace
from fedmiss.models.saem.counts import Counts, simulate_counts
from fedmiss.models.saem.months import PoissonMonths, first_statistics, simulate_months
from tests.core.one_by_one import PlainEngine


@pytest.fixture(scope="module")
def months():
    counts = simulate_months(3, 20, 6, seed=1)
    counts[0, 0] = 500.0
    counts[1, 1] = 0.0
    model = PoissonMonths(6)
    theta = model.T(first_statistics(model, counts).mean(axis=0))
    return model, theta, counts.reshape(-1, 6)


@pytest.mark.slow
def test_moments_are_those_of_quadrature_for_counts_of_0_and_of_500(months):
    model, theta, rows = months
    rng, M, state, shares = np.random.default_rng(0), 40, model.latent_start(rows, 40), []
    mean = np.zeros((M, model.q))
    for k in range(220):
        state, share = model.move(theta, rows, state, Laplace(), rng)
        shares.append(share)
        if k >= 20:
            mean += model.unit_totals(rows, state).mean(axis=1) / 200
    z = (mean.mean(axis=0) - model.s_bar(theta, rows)) / (mean.std(axis=0, ddof=1) / np.sqrt(M))
    assert np.abs(z).max() < 4
    assert np.mean(shares) > 0.9


def test_a_step_leaves_little_of_langevins_correlation(months):
    model, theta, rows = months
    left = {}
    for kernel in (Laplace(), Langevin()):
        rng, state, seen = np.random.default_rng(1), model.latent_start(rows, 30), []
        for k in range(120):
            state, _ = model.move(theta, rows, state, kernel, rng)
            if k >= 20:
                seen.append(state["z"])
        z = np.array(seen) - np.mean(seen, axis=(0, 1))
        left[type(kernel)] = float((z[1:] * z[:-1]).mean() / (z * z).mean())
    assert left[Langevin] > 0.7
    assert left[Laplace] < 0.2


def test_gibbs_and_laplace_of_model_c_agree_with_nested_quadrature():
    rows = simulate_counts(1, 10, 6, seed=6)[0]
    model = Counts(6)
    theta = model.T(model.statistic(rows, model.latent_start(rows, 1)))
    rng, M = np.random.default_rng(1), 60
    state, mean = model.latent_start(rows, M), np.zeros((M, model.q))
    for k in range(300):
        state, _ = model.move(theta, rows, state, Laplace(), rng)
        if k >= 100:
            mean += model.unit_totals(rows, state).sum(axis=1) / len(rows) / 200
    error = mean.std(axis=0, ddof=1) / np.sqrt(M)
    moving = error > 1e-12
    z = (mean.mean(axis=0) - model.s_bar(theta, rows))[moving] / error[moving]
    assert np.abs(z).max() < 4.5


@pytest.mark.slow
def test_one_step_a_round_is_enough_for_saem_and_engines_agree():
    counts = simulate_months(4, 20, 5, seed=3)
    model, roster = PoissonMonths(5), Roster.of([20] * 4)
    S = first_statistics(model, counts).mean(axis=0)
    truth = model.T(em(model, counts, roster, S, rounds=400, tol=1e-20)[0])
    algo = fed_saem(
        model, roster, Identity(), how="server", estep=Chains(1, 2, Laplace()), steps=SaemSteps(50, 0.7)
    )
    found = run(algo, LocalEngine(counts), S, stop=300, init="zero")
    other = run(algo, PlainEngine(counts, backwards=True), S, stop=300, init="zero")
    assert np.array_equal(found.server.S_hat, other.server.S_hat)
    assert np.sqrt(np.mean((found.theta.beta - truth.beta) ** 2)) < 0.02
    with pytest.raises(ConfigError, match="df=2"):
        Laplace(2.0)
