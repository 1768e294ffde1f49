"""One run, several machines: stacked, one by one, backwards, lossy without loss, stopped and resumed: same bits."""

import io

import numpy as np
import pytest

from fedmiss.atomic import read_checked, write_checked
from fedmiss.compressors import Dithering, Identity, Natural, RandK
from fedmiss.core import Bernoulli, FedEM, FixedSize, FullBatch, Minibatch, Roster, Spider, Stop, run
from fedmiss.engines import LocalEngine
from fedmiss.errors import ConfigError, InputError
from tests.core.one_by_one import PlainEngine, equal, same_everywhere
from tests.core.toys import Linear, linear_data, mixture

ORACLES = [FullBatch(), Minibatch(4), Minibatch(4, replace=False), Spider(4, 6), Spider(4, 6, replace=False)]
COMPRESSORS = [Dithering(1, 2.0, 2), RandK(2), Natural(5), Identity(32)]


@pytest.mark.parametrize(
    ("oracle", "compressor"),
    [*((oracle, Dithering(3)) for oracle in ORACLES), *((Spider(4, 6), quant) for quant in COMPRESSORS)],
    ids=str,
)
def test_every_engine_gives_the_same_bits_and_a_resumed_run_too(oracle, compressor, tmp_path):
    model, data, roster, S_0 = mixture(n=6, m=10)
    algo = FedEM(model, compressor, roster, 0.05, 0.2, Bernoulli(0.6), oracle, seed=7)
    stacked = same_everywhere(algo, data, S_0, tmp_path)
    equal(stacked, run(algo, PlainEngine(dict(zip(roster.ids, data, strict=True))), S_0, stop=20))


def test_unequal_workers_give_the_same_bits():
    data = [linear_data(n=1, m=m, seed=m)[0] for m in (3, 9, 5, 12)]
    for oracle in (FullBatch(), Minibatch(3, replace=False), Spider(2, 5)):
        algo = FedEM(
            Linear(), Dithering(), Roster.of([3, 9, 5, 12], "pooled"), 0.1, 0.3, FixedSize(2), oracle, seed=2
        )
        same_everywhere(algo, data, np.zeros(3), stop=25)


def test_what_is_observed_goes_on_after_a_resume(tmp_path):
    model, data, roster, S_0 = mixture(n=6, m=10)
    algo = FedEM(model, Dithering(), roster, 0.05, 0.2, Bernoulli(0.6), Minibatch(4), seed=7)

    def look(server, down):
        return {"first": float(down.theta.pi[0])}

    settings = {"observe": look, "observe_every": 3}
    whole = run(algo, LocalEngine(data), S_0, stop=20, **settings)
    file = tmp_path / "state.npz"
    run(algo, LocalEngine(data), S_0, stop=9, checkpoint=file, **settings)
    resumed = run(algo, LocalEngine(data), S_0, stop=20, checkpoint=file, **settings)
    equal(whole, resumed)
    assert np.array_equal(whole.trace["first"], resumed.trace["first"], equal_nan=True)
    assert np.isnan(whole.trace["first"][1])
    assert (np.diff(resumed.trace["seconds"]) >= 0).all()
    again = run(algo, LocalEngine(data), S_0, stop=20, checkpoint=file, **settings)  # nothing is left to do
    equal(whole, again)


class WithCompanion(Linear):
    """The common part A theta stays on the server: s_bar is the mean of rows, the carry is the rest of S."""

    def s_bar(self, theta, rows):
        return rows.mean(axis=0)

    def carry_start(self, S_hat):
        return {"common": np.zeros(self.q)}

    def advance(self, carry, theta, gamma):
        return {"common": (1 - gamma) * carry["common"] + gamma * (self.A @ theta)}

    def T(self, S, carry):
        return S + carry["common"]

    def h_norm2(self, H, carry, theta):
        whole = H + self.A @ theta - carry["common"]
        return float(whole @ whole)


def test_a_companion_of_S_on_the_server_gives_the_run_of_the_whole_statistic(tmp_path):
    data = linear_data(n=4)
    roster = Roster.of([8] * 4)
    whole = run(FedEM(Linear(), Identity(), roster, 0.3, 0.5), LocalEngine(data), np.zeros(3), stop=60)
    algo = FedEM(WithCompanion(), Identity(), roster, 0.3, 0.5)
    split = run(algo, LocalEngine(data), np.zeros(3), stop=60)
    np.testing.assert_allclose(
        split.server.S_hat + split.server.carry["common"], whole.server.S_hat, rtol=1e-12
    )
    np.testing.assert_allclose(split.trace["h_norm2"], whole.trace["h_norm2"], rtol=1e-9, atol=1e-28)
    file = tmp_path / "state.npz"
    run(algo, LocalEngine(data), np.zeros(3), stop=23, checkpoint=file)
    resumed = run(algo, LocalEngine(data), np.zeros(3), stop=60, checkpoint=file)
    assert np.array_equal(resumed.server.carry["common"], split.server.carry["common"])
    assert np.array_equal(resumed.server.S_hat, split.server.S_hat)
    with pytest.raises(ConfigError, match="VR-FedEM"):
        FedEM(WithCompanion(), Identity(), roster, 0.3, oracle=Spider(2, 3))


def test_a_damaged_checkpoint_is_refused(tmp_path):
    file = tmp_path / "state.npz"
    given = FedEM(Linear(), Dithering(), Roster.of([8] * 5), 0.1), LocalEngine(linear_data()), np.zeros(3)
    run(*given, stop=3, checkpoint=file)
    with np.load(io.BytesIO(read_checked(file))) as whole:
        other = {name.replace("engine.V", "engine.memories"): whole[name] for name in whole.files}
    buffer = io.BytesIO()
    np.savez(buffer, **other)
    write_checked(file, buffer.getvalue())  # of a version that kept the memories under another name
    for damage in (lambda: None, lambda: file.write_bytes(file.read_bytes()[:100])):
        damage()
        with pytest.raises(InputError, match="not a checkpoint"):
            run(*given, stop=3, checkpoint=file)


def test_data_that_do_not_fit_the_roster_are_refused():
    data = linear_data()
    algo = FedEM(Linear(), Identity(), Roster.of([8] * 4), 0.1)
    with pytest.raises(ConfigError, match=r"5 workers with 40 rows.*4 workers with 32"):
        run(algo, LocalEngine(data), np.zeros(3), stop=1)
    named = FedEM(Linear(), Identity(), Roster.of({"FR-occitanie": 8, "FR-bretagne": 8}), 0.1)
    with pytest.raises(ConfigError, match="FR-occitanie"):
        run(named, PlainEngine({"FR-bretagne": data[0]}), np.zeros(3), stop=1)


@pytest.mark.parametrize(
    ("stop", "reason"),
    [
        (Stop(rounds=7), "rounds: 7"),
        (Stop(epochs=2.0), "epochs: 2"),
        (Stop(tol=1e-8, rounds=900), "tol: mean"),
    ],
)
def test_stopping(stop, reason):
    data = linear_data()
    oracle = Minibatch(2) if stop.epochs else FullBatch()
    algo = FedEM(Linear(), Dithering(), Roster.of([8] * 5), 0.2, 0.3, oracle=oracle)
    result = run(algo, LocalEngine(data), np.zeros(3), stop=stop)
    assert result.stop_reason.startswith(reason)
    assert result.converged == reason.startswith("tol")
    if stop.epochs:
        assert result.trace["evaluations"].sum() == 80
    with pytest.raises(ConfigError, match="no end"):
        run(algo, LocalEngine(data), np.zeros(3), stop=Stop())
