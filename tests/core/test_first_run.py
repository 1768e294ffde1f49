"""The settings proposed for a first run stay in the domain and reach EM: five models, few and many workers, absences."""

import numpy as np
import pytest

from fedmiss.compressors import Dithering, Identity, TopK
from fedmiss.core import Bernoulli, Roster, em, first_run, pooled_s_bar, run
from fedmiss.core.theory import lipschitz
from fedmiss.engines import LocalEngine
from fedmiss.errors import ConfigError
from fedmiss.models.gmm import GMM, GMMParams
from tests.core.toys import Linear, example

NAMES = ("gmm", "poisson_mixture", "missing_mixture", "hmm", "factor_analysis")


def problem(name, n, seed):
    if name == "gmm":
        rng = np.random.default_rng(seed)
        rows = [rng.normal(size=(50, 2)) + 2.0 * rng.choice([-1.0, 1.0], (50, 1)) for _ in range(n)]
        model = GMM(G=2, d=2, covariance="known", Sigma=np.eye(2))
        return model, rows, GMMParams(np.array([0.4, 0.6]), np.array([[-1.0, 0.0], [1.0, 0.5]]), np.eye(2))
    return example(name, n=n, seed=seed)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("n", "p"), [(3, 1.0), *(pytest.param(10, p, marks=pytest.mark.nightly) for p in (1.0, 0.5))]
)
@pytest.mark.parametrize("name", NAMES)
def test_it_reaches_em_without_a_domain_error(name, n, p):
    for seed in range(1 if n == 3 else 4):
        model, rows, theta = problem(name, n, seed)
        roster = Roster.of([len(r) for r in rows])
        S_0 = pooled_s_bar(model, theta, rows, roster)

        def fit(S, model=model, rows=rows, roster=roster):
            return float(roster.weights @ [model.log_likelihood(model.T(S), r) for r in rows])

        best = fit(em(model, rows, roster, S_0, rounds=1000, tol=1e-18)[0])
        who = Bernoulli(p) if p < 1 else None
        algo = first_run(model, rows, roster, S_0, Dithering.of(model.q), participation=who, seed=seed)
        assert 0.02 < algo.gamma <= 1.0
        end = fit(run(algo, LocalEngine(rows), S_0, stop=600).server.S_hat)
        assert best - end < 0.1 * (best - fit(S_0)) + 1e-6, (name, seed)


def test_the_lipschitz_constant_of_a_linear_field_is_its_own():
    """h_c(s) = (A_c - I) s + b_c: a quotient of norms is at most the operator norm, and near it on some pair."""
    data = np.random.default_rng(1).normal(size=(5, 7, 3))
    model, roster = Linear(), Roster.of([7] * 5)
    L = lipschitz(model, data, roster, np.ones(model.q))
    I = np.eye(model.q)
    zero = [model.s_bar(model.T(np.zeros(model.q)), rows) for rows in data]
    norms = [
        np.linalg.norm(np.array([model.s_bar(model.T(e.copy()), rows) - z - e for e in I]).T, 2)
        for rows, z in zip(data, zero, strict=True)
    ]
    bound = np.sqrt(np.mean(np.square(norms)))
    assert 0.5 * bound < L <= bound * (1 + 1e-9)


def test_without_compression_and_absences_the_step_is_ems():
    data = np.random.default_rng(1).normal(size=(5, 7, 3))
    assert first_run(Linear(), data, Roster.of([7] * 5), np.ones(Linear().q), Identity()).gamma == 1.0


def test_a_biased_compressor_is_refused():
    data = np.random.default_rng(1).normal(size=(5, 7, 3))
    with pytest.raises(ConfigError, match="is biased; take an unbiased one"):
        first_run(Linear(), data, Roster.of([7] * 5), np.ones(Linear().q), TopK(1))


@pytest.mark.parametrize("q", [1, 2, 6, 50, 1000, 100_000])
@pytest.mark.parametrize("omega", [0.1, 1.0])
def test_levels_of_a_size_are_the_fewest(q, omega):
    made = Dithering.of(q, omega)
    assert made.omega(q) <= omega
    assert made.levels == 1 or Dithering(made.levels - 1).omega(q) > omega


def test_a_worker_of_nearly_all_rows_gets_the_step_of_one_worker():
    """Pooled weights: the noise of 51 workers of which one holds 95 % of the rows does not average out."""
    rng, sizes = np.random.default_rng(3), [9500] + [10] * 50
    data = [rng.normal(size=(m, 20)) + 3.0 * rng.normal(size=20) for m in sizes]
    model, start, ends = Linear(20, A=np.zeros((20, 20))), np.full(20, 5.0), {}
    for weighting in ("uniform", "pooled"):
        roster = Roster.of(sizes, weighting)
        algo = first_run(model, data, roster, start, Dithering(2))
        end = run(algo, LocalEngine(data), start, stop=150).server.S_hat
        ends[weighting] = np.abs(end - model.root(data, roster.weights)).max()
    assert max(ends.values()) < 1e-3, ends
