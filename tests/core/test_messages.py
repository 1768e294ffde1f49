"""Answers that cannot be used count as missing, whatever is wrong with them; V stays the mean of the V_c; causes."""

import numpy as np
import pytest

from fedmiss.compressors import Dithering, Identity
from fedmiss.core import Bernoulli, FedEM, Minibatch, Roster, Spider, run
from fedmiss.engines import LocalEngine
from fedmiss.errors import ConfigError, DomainError, UplinkError
from fedmiss.models.gmm import GMM, GMMParams
from tests.core.one_by_one import PlainEngine, equal
from tests.core.toys import Linear, linear_data, mixture


def V_gap(algo, engine, server):
    return np.abs(server.V - algo.roster.weights @ engine.V).max() / np.abs(engine.V).max()


@pytest.mark.parametrize("oracle", [Minibatch(3), Spider(3, 7)], ids=["fedem", "vr"])
def test_answers_cut_short_are_dropped_listed_and_count_as_missing(oracle):
    rng, hit = np.random.default_rng(0), []

    def tamper(k, slot, answer):
        if rng.random() < 0.2:
            hit.append((k, str(slot)))
            return answer[: rng.integers(8)] if rng.random() < 0.5 else answer + b"xx"
        return answer

    algo = FedEM(Linear(), Dithering(), Roster.of([8] * 6), 0.05, 0.2, Bernoulli(0.7), oracle, seed=3)
    engine = PlainEngine(linear_data(n=6), tamper=tamper)
    result = run(algo, engine, np.zeros(3), stop=120)
    assert len(hit) > 50
    assert sorted((d.k, d.worker) for d in result.dropped) == sorted(hit)
    assert result.trace["dropped"].sum() == len(hit)
    assert all(d.worker in d.reason for d in result.dropped)
    assert V_gap(algo, engine, result.server) < 1e-13


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e200])
def test_poisoned_messages_are_dropped_by_name(bad):
    algo = FedEM(Linear(), Identity(), Roster.of({"a": 8, "b": 8, "c": 8, "d": 8}), 0.2, 0.5)
    poison = bytes(8) + np.array([0.0, bad, 0.0]).tobytes()
    engine = PlainEngine(linear_data(n=4), tamper=lambda k, slot, answer: poison if slot == 2 else answer)
    result = run(algo, engine, np.zeros(3), stop=60)
    assert [d.worker for d in result.dropped] == ["c"] * 60
    assert "finite" in result.dropped[0].reason
    assert V_gap(algo, engine, result.server) < 1e-13
    assert (result.trace["active"] == 3).all()


@pytest.mark.parametrize("compressor", [Dithering(), Identity()], ids=["dithering", "identity"])
@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e200])
def test_a_worker_whose_rows_go_bad_is_left_out_on_every_engine(bad, compressor):
    data = linear_data(n=5)
    data[2, 3, 1] = bad
    algo = FedEM(Linear(), compressor, Roster.of([8] * 5), 0.05, 0.3, Bernoulli(0.8), Minibatch(2), seed=1)
    results = [
        run(algo, engine, np.zeros(3), stop=40, init="zero")
        for engine in (LocalEngine(data), PlainEngine(data))
    ]
    assert {d.worker for d in results[0].dropped} == {"2"}
    assert results[0].dropped == results[1].dropped
    assert np.isfinite(results[0].server.S_hat).all()
    for name in ("S_hat", "V", "acks"):
        assert np.array_equal(getattr(results[0].server, name), getattr(results[1].server, name))
    for name in ("active", "bytes_up", "evaluations", "dropped"):
        assert np.array_equal(results[0].trace[name], results[1].trace[name])


def test_a_first_memory_that_is_not_finite_names_the_worker():
    data = linear_data(n=3)
    data[1, 0, 0] = np.nan
    algo = FedEM(Linear(), Identity(), Roster.of({"x": 8, "y": 8, "z": 8}), 0.1)
    with pytest.raises(ConfigError, match="'y'"):
        run(algo, LocalEngine(data), np.zeros(3), stop=3)


def test_a_run_ends_when_nothing_usable_comes_at_all():
    data = linear_data(n=3)
    algo = FedEM(Linear(), Identity(), Roster.of([8] * 3), 0.1)
    engine = PlainEngine(data, tamper=lambda k, slot, answer: answer[:9])
    with pytest.raises(UplinkError, match="none of the last 21 messages"):
        run(algo, engine, np.zeros(3), stop=1000)


def test_the_bound_drops_what_is_long_beside_the_others_on_every_engine():
    data = linear_data(n=6)
    data[4] *= 1e6
    roster = Roster.of([8] * 6)
    settings = (Linear(), Dithering(64), roster, 0.05, 0.2)
    free = run(FedEM(*settings), PlainEngine(data), np.zeros(3), stop=5, init="zero")
    assert free.dropped == []  # off by default
    algo = FedEM(*settings, bound=100.0)
    both = [
        run(algo, engine, np.zeros(3), stop=5, init="zero")
        for engine in (PlainEngine(data), LocalEngine(data))
    ]
    for result in both:
        assert [d.worker for d in result.dropped] == ["4"] * 5
        assert "bound=100" in result.dropped[0].reason
    equal(*both)
    assert np.abs(both[0].server.S_hat).max() < 100
    with pytest.raises(ConfigError, match=r"bound=0\.5"):
        FedEM(*settings, bound=0.5)


def test_dropped_messages_and_averages_survive_a_checkpoint(tmp_path):
    data = linear_data(n=4)
    data[1, 2] = np.nan
    algo = FedEM(Linear(), Dithering(), Roster.of([8] * 4), 0.1, 0.3, oracle=Minibatch(2), seed=1)
    whole = run(algo, LocalEngine(data), np.zeros(3), stop=30, init="zero", average_from=5)
    file = tmp_path / "state.npz"
    settings = {"init": "zero", "average_from": 5, "checkpoint": file}
    run(algo, LocalEngine(data), np.zeros(3), stop=13, **settings)
    parts = run(algo, LocalEngine(data), np.zeros(3), stop=30, **settings)
    assert whole.dropped == parts.dropped
    assert len(whole.dropped) > 3
    assert np.array_equal(whole.S_mean, parts.S_mean)
    with pytest.raises(ConfigError, match="averages from round 5"):
        run(algo, LocalEngine(data), np.zeros(3), stop=31, init="zero", checkpoint=file)


def test_the_average_is_the_mean_of_the_statistics():
    data = linear_data(n=3)
    algo = FedEM(Linear(), Identity(), Roster.of([8] * 3), 0.2)
    seen = []
    result = run(
        algo, LocalEngine(data), np.zeros(3), stop=12, average_from=4,
        observe=lambda server, down: seen.append(server.S_hat) or {},
    )  # fmt: skip
    np.testing.assert_allclose(result.S_mean, np.mean([*seen[5:], result.server.S_hat], axis=0), rtol=1e-13)


# ---- a message names the cause: the M-step, or parameters in the place of a statistic, and not a worker's data --------


class Broken(GMM):
    """Its M-step gives nan after a number of calls."""

    left = 10

    def T(self, S):
        theta = super().T(S)
        object.__setattr__(self, "left", self.left - 1)
        return theta if self.left >= 0 else GMMParams(theta.pi, theta.mu * np.nan, theta.Sigma)


@pytest.mark.parametrize("left", range(4))
@pytest.mark.parametrize("init", ["h", "zero"])
def test_an_m_step_of_nan_is_named_and_no_worker_is_blamed(left, init):
    _, data, roster, S = mixture(n=3, m=20)
    model = Broken(2, 2, "known", Sigma=np.eye(2))
    object.__setattr__(model, "left", left)
    with pytest.raises(DomainError, match=r"the M-step T\(S\) gave nan") as told:
        run(FedEM(model, Identity(), roster, 0.2), LocalEngine(data), S, stop=6, init=init)
    assert "look at that worker's data" not in str(told.value)


def test_what_is_no_first_statistic_is_named():
    model, data, roster, S = mixture(n=3, m=20)
    algo, engine = FedEM(model, Identity(), roster, 0.2), LocalEngine(data)
    with pytest.raises((DomainError, ConfigError), match="S_0") as told:
        run(algo, engine, np.zeros(model.q), stop=6)
    assert "worker's data" not in str(told.value)
    with pytest.raises(ConfigError, match=r"is a GMMParams .*not from parameters theta: take pooled_s_bar"):
        run(algo, engine, model.T(S), stop=6)
