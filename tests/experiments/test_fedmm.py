"""Dictionary learning as majorization, and what is lost when parameters are added up instead of surrogates."""

import numpy as np
import pytest

from fedmiss.compressors import Dithering, Identity
from fedmiss.core import Bernoulli, FedEM, Roster, em, pooled_s_bar, run
from fedmiss.core.rules import FedMM
from fedmiss.engines import LocalEngine
from fedmiss.experiments.fedmm import Dictionary, Parameters, workers


def start(seed, model):
    return np.random.default_rng(seed).normal(size=(model.d, model.K))


def test_codes_are_the_lasso_and_the_surrogate_lies_above_the_objective():
    model, rows = Dictionary(), workers("homogeneous", 1)[0]
    theta = start(0, model)
    h = model.codes(theta, rows)
    slope = (h @ theta.T - rows) @ theta  # -lasso sign(h) where h is not 0, at most lasso elsewhere
    assert np.abs(slope + model.lasso * np.sign(h))[h != 0].max() < 5e-3
    assert np.abs(slope[h == 0]).max() < model.lasso + 5e-3
    S, constant = (
        model.s_bar(theta, rows),
        0.5 * (rows**2).sum(axis=1).mean() + model.lasso * np.abs(h).sum(axis=1).mean(),
    )

    def surrogate(at):
        A, B = S[: model.K**2].reshape(model.K, model.K), S[model.K**2 :].reshape(model.d, model.K)
        return constant + 0.5 * np.trace(at @ A @ at.T) - (at * B).sum() + 0.5 * model.ridge * (at**2).sum()

    assert surrogate(theta) == pytest.approx(model.objective(theta, rows), rel=1e-9)
    for seed in range(5):
        other = theta + 0.3 * start(seed, model)
        assert surrogate(other) >= model.objective(other, rows) - 1e-6
        assert surrogate(model.T(S)) <= surrogate(other)
    values = [model.objective(theta, rows)]
    for _ in range(20):
        theta = model.T(model.s_bar(theta, rows))
        values.append(model.objective(theta, rows))
    assert (np.diff(values) < 1e-7).all()


def test_a_projection_is_the_nearest_surrogate():
    model = Dictionary(3, 2)
    S = np.random.default_rng(3).normal(size=model.q)
    P = model.project(S)
    A = P[:4].reshape(2, 2)
    np.testing.assert_allclose(A, A.T)
    assert np.linalg.eigvalsh(A)[0] > -1e-12
    np.testing.assert_allclose(model.project(P), P, atol=1e-12)
    inside = model.s_bar(start(1, model), np.random.default_rng(4).normal(size=(9, 3)))
    np.testing.assert_allclose(model.project(inside), inside, atol=1e-12)
    assert np.linalg.norm(P - S) <= np.linalg.norm(inside - S)


@pytest.mark.nightly
def test_surrogates_reach_mm_on_all_rows_and_parameters_only_where_workers_are_alike():
    """Nothing compressed, all there: the gap of parameters is a bias, not noise."""
    gaps = {}
    for kind in ("homogeneous", "heterogeneous"):
        model, data = Dictionary(), workers(kind, 2)
        roster, every_row = Roster.of([60] * 10), np.concatenate(data)
        theta = start(5, model)
        S_0 = pooled_s_bar(model, theta, data, roster)
        best = model.objective(model.T(em(model, data, roster, S_0, rounds=600, tol=1e-14)[0]), every_row)
        for way, its, first in (("S", model, S_0), ("theta", Parameters(model), model.T(S_0).ravel())):
            algo = FedEM(its, Identity(), roster, 0.5, memory=FedMM() if way == "S" else "field")
            end = run(algo, LocalEngine(data), first, stop=500).theta
            gaps[kind, way] = model.objective(end, every_row) - best
    assert abs(gaps["heterogeneous", "S"]) < 0.02
    assert gaps["heterogeneous", "theta"] > 0.1
    assert gaps["heterogeneous", "theta"] > 3 * gaps["homogeneous", "theta"]


@pytest.mark.slow
def test_fedmm_with_quantized_and_missing_messages_comes_to_the_same_objective():
    model, data = Dictionary(), workers("heterogeneous", 4)
    roster, every_row = Roster.of([60] * 10), np.concatenate(data)
    S_0 = pooled_s_bar(model, start(6, model), data, roster)
    best = model.objective(model.T(em(model, data, roster, S_0, rounds=600, tol=1e-14)[0]), every_row)
    algo = FedEM(model, Dithering(4), roster, 0.1, participation=Bernoulli(0.5), memory=FedMM(), seed=1)
    end = run(algo, LocalEngine(data), S_0, stop=600).theta
    assert abs(model.objective(end, every_row) - best) < 0.03
