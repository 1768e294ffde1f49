"""Annealing of variances: how fast they fall, where they end, and what a resume gives."""

from __future__ import annotations

import numpy as np
import pytest

from fedmiss.compressors import Identity, TopK
from fedmiss.core import Bernoulli, FullBatch, Remembered, Roster, SaemSteps, em, run
from fedmiss.core.testing import check_model
from fedmiss.engines import LocalEngine, LossyEngine, PlainEngine
from fedmiss.errors import ConfigError
from fedmiss.models.saem import GaussMonths, Months, first_statistics, simulate_months
from fedmiss.models.saem_anneal import Annealed
from fedmiss.models.saem_chains import fed_saem
from fedmiss.models.saem_counts import Counts, simulate_counts


def variances(theta):
    return np.concatenate([np.atleast_1d(getattr(theta, v, [])) for v in ("tau2", "s2", "tau2_o")])


def path(algo, data, S_0, rounds, **settings):
    seen = []

    def observe(server, down):
        seen.append(variances(down.theta))
        return {}

    result = run(algo, LocalEngine(data), S_0, stop=rounds, observe=observe, **settings)
    return np.array([*seen, variances(result.theta)]), result


@pytest.mark.slow
def test_a_variance_of_model_a_falls_by_at_most_three_percent_and_ends_where_it_would():
    data, model, roster = simulate_months(4, 30, 6, counts=False), GaussMonths(6), Roster.of([30] * 4)
    S_0 = first_statistics(model, data).mean(axis=0)
    S_0[6:] += 25.0  # variances start far too large, so that EM wants to fall fast
    settings = {"how": "server", "estep": FullBatch(), "steps": SaemSteps(40, 0.0)}
    free, _ = path(fed_saem(model, roster, Identity(), **settings), data, S_0, 2000, init="zero")
    slow, result = path(
        fed_saem(model, roster, Identity(), anneal=0.97, **settings), data, S_0, 2000, init="zero"
    )
    share = slow[1:40] / slow[:39]
    assert (share >= 0.97 - 1e-12).all()
    assert (share < 0.97 + 1e-12).any()
    assert (free[1:40] / free[:39]).min() < 0.9
    assert (slow[40] / slow[39]).min() < 0.97  # the bound ends with the first phase
    exact = em(model, data, roster, S_0, rounds=4000, tol=1e-28)[0]
    np.testing.assert_allclose(result.server.S_hat, exact, rtol=1e-9)
    np.testing.assert_allclose(slow[-1], free[-1], rtol=1e-9)


@pytest.mark.parametrize("how", ["server", "memory"])
def test_model_c_keeps_the_law_and_its_bits_on_every_engine_and_after_a_resume(how, tmp_path):
    data = simulate_counts(4, 8, 5, observers=3, seed=9)
    model, roster = Counts(5, observers=True), Roster.of([len(r) for r in data], "pooled")
    V = first_statistics(model, data)
    compressor, who = (
        (Identity(), Bernoulli(0.6)) if how == "server" else (TopK(12), Remembered(Bernoulli(0.6)))
    )
    algo = fed_saem(
        model,
        roster,
        compressor,
        how=how,
        participation=who,
        steps=SaemSteps(12, cap=0.2),
        seed=4,
        anneal=0.97,
    )
    settings, S_0 = {"init": V if how == "memory" else "zero"}, roster.weights @ V
    seen, whole = path(algo, data, S_0, 16, **settings)
    assert (seen[1:12] / seen[:11] >= 0.97 - 1e-12).all()
    for engine in (PlainEngine(data, backwards=True), LossyEngine(data)):
        other = run(algo, engine, S_0, stop=16, **settings)
        assert np.array_equal(whole.server.S_hat, other.server.S_hat)
    file = tmp_path / "annealed.npz"
    run(algo, LocalEngine(data), S_0, stop=7, checkpoint=file, **settings)
    resumed = run(algo, LocalEngine(data), S_0, stop=16, checkpoint=file, **settings)
    assert np.array_equal(whole.server.S_hat, resumed.server.S_hat)
    assert np.array_equal(variances(whole.theta), variances(resumed.theta))


def test_it_is_off_by_default_and_a_part_of_the_settings():
    data, model, roster = simulate_months(3, 10, 4, counts=False), GaussMonths(4), Roster.of([10] * 3)
    off, on, faster = (fed_saem(model, roster, Identity(), how="server", anneal=a) for a in (None, 0.97, 0.9))
    assert off.model is model
    assert len({algo.identity for algo in (off, on, faster)}) == 3
    check_model(on.model, data[0], Months(np.zeros(4), np.ones(4)))


def test_impossible_annealing_is_refused():
    for settings in ({"rate": 1.0}, {"rate": 0.0}, {"rounds": -1}):
        with pytest.raises(ConfigError, match="annealing"):
            Annealed(GaussMonths(3), **settings)
