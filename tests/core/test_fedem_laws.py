"""The laws of FedEM: worked rounds, V is the mean, reduction to EM, unbiased H, heterogeneity forgotten."""

import numpy as np
import pytest

from fedmiss.compressors import Dithering, Identity, Natural, RandK
from fedmiss.core import (
    Bernoulli,
    FedEM,
    FixedSize,
    Full,
    FullBatch,
    Minibatch,
    Replies,
    Roster,
    Spider,
    em,
    naive_fedem,
    revise,
    run,
    spider_em,
    vr_fedem,
)
from fedmiss.core.fedem import theta_bytes
from fedmiss.core.messages import HEADER
from fedmiss.engines import LocalEngine
from fedmiss.errors import ConfigError
from fedmiss.models.gmm import GMMParams
from fedmiss.rng import uniforms
from tests.core.one_by_one import LossyEngine, PlainEngine
from tests.core.toys import Linear, linear_data, mixture
from tests.oracles.reference import fedem_trajectory


class Scale:
    """Quant(x) = 2 x: wrong as a compressor, but every use of the decoded vector shows in the arithmetic."""

    def draws(self, q):
        return 0

    def omega(self, q):
        return 0.0

    def encode(self, x, u):
        return (2 * x).tobytes()

    def decode(self, payload, q):
        return np.frombuffer(payload).copy()

    def compress_batch(self, X, U):
        return 2 * X, np.full(len(X), 8 * X.shape[1])


# ---- 1. worked rounds ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", [PlainEngine, LocalEngine])
def test_a_worked_round_of_five_workers_of_which_one_answers(engine):
    data = linear_data(n=5)
    model = Linear()
    algo = FedEM(model, Scale(), Roster.of([8] * 5), 0.25, 0.5, Bernoulli(0.4))
    S = np.array([1.0, -2.0, 0.5])
    V_i = np.arange(15.0).reshape(5, 3) / 7
    server = algo.init(S, V_i)
    engine = engine(data)
    engine.start(algo, S, V_i)
    down = algo.broadcast(server)
    new, info = algo.server_step(server, down, engine.round(algo, server, down, np.array([3])))

    D = data[3].mean(axis=0) + model.A @ S - S - V_i[3]  # Delta_3
    V = V_i.mean(axis=0)
    H = V + 2 * D / (5 * 0.4)  # 1/(n p), not 1/|A|
    np.testing.assert_allclose(new.S_hat, S + 0.25 * H, rtol=1e-13)
    np.testing.assert_allclose(new.V, V + 0.5 / 5 * 2 * D, rtol=1e-13)  # alpha/n, without 1/p
    np.testing.assert_allclose(engine.V[3], V_i[3] + 0.5 * 2 * D, rtol=1e-13)
    idle = [0, 1, 2, 4]  # they keep their bits
    assert np.array_equal(engine.V[idle], V_i[idle])
    assert info.h_norm2 == pytest.approx(float(H @ H), rel=1e-12)
    assert (info.active, info.bytes_up) == (1, 24 + HEADER)
    assert new.k == 1
    assert new.acks.tolist() == [-1, -1, -1, 0, -1]


def test_unequal_probabilities_and_weights_enter_each_where_they_belong():
    data = [rows for rows in linear_data(n=3)]
    data[1] = data[1][:2]
    roster = Roster.of([8, 2, 8], weighting="pooled")
    p = np.array([0.5, 0.9, 0.2])
    algo = FedEM(Linear(), Identity(), roster, 1.0, 0.5, Bernoulli(p))
    server = algo.init(np.zeros(3), np.zeros((3, 3)))
    Q = np.random.default_rng(0).normal(size=(2, 3))
    new, _ = algo.server_step(server, algo.broadcast(server), Replies(np.array([0, 1]), Q, 0, 0))
    w = np.array([8, 2, 8]) / 18
    np.testing.assert_allclose(new.S_hat, w[0] / p[0] * Q[0] + w[1] / p[1] * Q[1], rtol=1e-13)
    np.testing.assert_allclose(new.V, 0.5 * (w[0] * Q[0] + w[1] * Q[1]), rtol=1e-13)


def test_a_trajectory_follows_algorithm_1_line_by_line():
    data = linear_data(n=4)
    model, n, q = Linear(), 4, 3
    who, comp = Bernoulli(0.5), Dithering(levels=2)
    algo = FedEM(model, comp, Roster.of([8] * n), 0.2, 0.4, who, seed=5)
    V_0 = np.random.default_rng(2).normal(size=(n, q))

    def quantize(x, k, c):
        u = uniforms(5, "worker", k, [c], q)[0]
        return comp.decode(comp.encode(x, u), q)

    active = [who.active(5, k, n) for k in range(25)]
    expected = fedem_trajectory(
        model.s_bar, model.T, data, np.ones(q), V_0, 0.2, 0.4, 0.5, 25, quantize, active.__getitem__
    )
    engine = LocalEngine(data)
    result = run(algo, engine, np.ones(q), stop=25, init=V_0)
    np.testing.assert_allclose(result.server.S_hat, expected[-1][0], rtol=1e-11)
    np.testing.assert_allclose(result.server.V, expected[-1][1], rtol=1e-11)
    np.testing.assert_allclose(engine.V, expected[-1][2], rtol=1e-11)


# ---- 2. V is the mean ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("oracle", [Minibatch(3), Spider(3, 7)], ids=["fedem", "vr"])
@pytest.mark.parametrize("compressor", [Dithering(), Identity(32), RandK(1), Natural(4)], ids=str)
@pytest.mark.parametrize("weighting", ["uniform", "pooled"])
def test_V_is_the_mean_when_messages_are_lost(oracle, compressor, weighting):
    sizes = [8, 3, 8, 20, 5, 8, 8]
    data = [rows[:m] for rows, m in zip(linear_data(n=7, m=20), sizes, strict=True)]
    roster = Roster.of(sizes, weighting)
    algo = FedEM(Linear(), compressor, roster, 0.05, 0.2, Bernoulli(0.5), oracle, seed=3)
    engine = LossyEngine(data, loss=0.2, seed=1)
    server = engine.start(algo, np.zeros(3), np.random.default_rng(0).normal(size=(7, 3)))
    for k in range(60):
        down = algo.broadcast(server)
        replies = engine.round(algo, server, down, algo.participation.active(3, k, 7))
        server, _ = algo.server_step(server, down, replies)
        V_i = engine.V
        np.testing.assert_allclose(server.V, roster.weights @ V_i, rtol=0, atol=1e-12 * np.abs(V_i).max())
    assert engine.losses > 15


# ---- 3. reduction to EM --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("alpha", [0.0, 0.3, 1.0])
def test_one_worker_uncompressed_full_batch_unit_step_is_em_for_any_memory(alpha):
    model, data, _, S_0 = mixture(n=1, m=200)
    roster = Roster.of([200])
    algo = FedEM(model, Identity(), roster, 1.0, alpha)
    V_0 = 0.01 * np.random.default_rng(1).normal(size=(1, model.q))
    result = run(algo, LocalEngine(data), S_0, stop=30, init=V_0)
    expected, h_norm2 = em(model, data, roster, S_0, rounds=30)
    np.testing.assert_allclose(result.server.S_hat, expected, rtol=1e-10)
    np.testing.assert_allclose(result.trace["h_norm2"], h_norm2, rtol=1e-6, atol=1e-25)


def test_equal_shards_give_the_pooled_fit_and_pooled_weights_do_for_unequal_ones():
    model, data, _, S_0 = mixture(n=4, m=30)
    rows = data.reshape(1, -1, 2)
    whole = em(model, rows, Roster.of([120]), S_0, rounds=25)[0]
    equal = run(FedEM(model, Identity(), Roster.of([30] * 4), 1.0, 0.5), LocalEngine(data), S_0, stop=25)
    np.testing.assert_allclose(equal.server.S_hat, whole, rtol=1e-10)
    parts = np.split(rows[0], [10, 35, 80])
    pooled = FedEM(model, Identity(), Roster.of([len(r) for r in parts], "pooled"), 1.0, 0.5)
    np.testing.assert_allclose(run(pooled, LocalEngine(parts), S_0, stop=25).server.S_hat, whole, rtol=1e-10)
    uniform = FedEM(model, Identity(), Roster.of([len(r) for r in parts]), 1.0, 0.5)
    other = run(uniform, LocalEngine(parts), S_0, stop=25).server.S_hat
    assert np.abs(other - whole).max() > 1e-3  # 1/n is another objective when sizes differ


# ---- 4. H is unbiased ----------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    "participation", [Bernoulli(0.4), FixedSize(2), Bernoulli([0.2, 0.9, 0.5, 1.0, 0.7])]
)
def test_H_is_unbiased_over_absences_minibatches_and_quantization(participation):
    data = linear_data(n=5)
    model, S = Linear(), np.array([0.5, -1.0, 2.0])
    V_i = np.random.default_rng(3).normal(size=(5, 3))  # not h_c(S): there every message would be 0
    h = data.mean(axis=(0, 1)) + model.A @ S - S
    H = np.empty((4000, 3))
    for i in range(len(H)):
        algo = FedEM(model, Dithering(), Roster.of([8] * 5), 0.5, 0.3, participation, Minibatch(2), seed=i)
        engine = LocalEngine(data)
        server = engine.start(algo, S, V_i)
        down = algo.broadcast(server)
        new, _ = algo.server_step(
            server, down, engine.round(algo, server, down, participation.active(i, 0, 5))
        )
        H[i] = (new.S_hat - S) / 0.5
    z = (H.mean(axis=0) - h) / (H.std(axis=0, ddof=1) / np.sqrt(len(H)))
    assert np.abs(z).max() < 5


# ---- 5. heterogeneity is forgotten ---------------------------------------------------------------------------------


@pytest.mark.parametrize("compressor", [Dithering(), RandK(1), Natural(2)], ids=lambda c: type(c).__name__)
def test_a_fixed_point_with_its_memories_does_not_move(compressor):
    data = linear_data(n=6)
    model = Linear()
    S = model.root(data)
    algo = FedEM(model, compressor, Roster.of([8] * 6), 0.5, 0.3, Bernoulli(0.5), seed=2)
    result = run(algo, LocalEngine(data), S, stop=40, init="h")
    np.testing.assert_allclose(result.server.S_hat, S, atol=1e-13 * np.abs(S).max() * 40)


# ---- 6. VR-FedEM ---------------------------------------------------------------------------------------------------


def test_spider_em_asks_for_one_worker_and_no_compression():
    model, _data, roster, _ = mixture()
    with pytest.raises(ConfigError, match="n=5"):
        spider_em(b=2, k_in=3, model=model, compressor=Identity(), roster=roster, gamma=0.1)
    with pytest.raises(ConfigError, match=r"omega=1\.4"):
        spider_em(b=2, k_in=3, model=model, compressor=Dithering(), roster=Roster.of([200]), gamma=0.1)


def test_absent_workers_move_from_their_own_last_point():
    """With data = identical rows every minibatch is exact, so S_c must be s_bar_c(theta_k) whatever was missed."""
    n = 6
    data = np.repeat(linear_data(n=n)[:, :1], 5, axis=1)
    model = Linear()
    algo = vr_fedem(
        b=2, k_in=9, model=model, compressor=Identity(), roster=Roster.of([5] * n), gamma=0.3, alpha=0.0,
        participation=Bernoulli(0.4), seed=4,
    )  # fmt: skip
    plain = FedEM(model, Identity(), algo.roster, 0.3, 0.0, Bernoulli(0.4), FullBatch(), seed=4)
    a = run(algo, LocalEngine(data), np.ones(3), stop=60, init="zero")
    b = run(plain, LocalEngine(data), np.ones(3), stop=60, init="zero")
    np.testing.assert_allclose(a.server.S_hat, b.server.S_hat, rtol=1e-9)


# ---- odds and ends -------------------------------------------------------------------------------------------------


def test_alpha_defaults_to_one_over_one_plus_omega_and_steps_are_checked():
    roster = Roster.of([4, 4])
    assert FedEM(Linear(), RandK(1), roster, 0.1).alpha == pytest.approx(1 / 3)
    with pytest.raises(ConfigError, match=r"gamma=1\.5"):
        FedEM(Linear(), Identity(), roster, 1.5)
    with pytest.raises(ConfigError, match=r"alpha=-0\.1"):
        FedEM(Linear(), Identity(), roster, 0.5, -0.1)
    with pytest.raises(ConfigError, match=r"0\.0 is not in \(0, 1\]"):
        FedEM(Linear(), Identity(), roster, 0.5, participation=Bernoulli([0.0, 0.5]))
    with pytest.raises(ConfigError, match="size=3 of 2"):
        FedEM(Linear(), Identity(), roster, 0.5, participation=FixedSize(3))


def test_a_round_without_answers_moves_by_V_alone():
    algo = FedEM(Linear(), Identity(), Roster.of([8] * 3), 0.5, participation=Full())
    server = algo.init(np.zeros(3), np.ones((3, 3)))
    nothing = Replies(np.empty(0, dtype=np.int64), np.empty((0, 3)), 0, 0)
    new, info = algo.server_step(server, algo.broadcast(server), nothing)
    assert new.S_hat.tolist() == [0.5, 0.5, 0.5]
    assert (new.V == server.V).all()
    assert (info.active, info.h_norm2) == (0, 3.0)


@pytest.mark.parametrize("engine", [LocalEngine, PlainEngine])
def test_naive_fedem_has_zero_memories_whatever_the_start(engine):
    algo = naive_fedem(FedEM(Linear(), Dithering(), Roster.of([8] * 5), 0.1, 0.3))
    runs = [run(algo, engine(linear_data()), np.zeros(3), stop=20, init=init) for init in ("h", "zero")]
    assert np.array_equal(runs[0].server.S_hat, runs[1].server.S_hat)
    assert not runs[0].server.V.any()
    with pytest.raises(ConfigError, match="memories of 0"):
        run(algo, engine(linear_data()), np.zeros(3), stop=1, init=np.ones((5, 3)))


def test_bytes_down_are_statistic_parameter_and_header_of_each_that_answered():
    model, data, roster, S_0 = mixture(n=3, m=10)
    result = run(FedEM(model, Dithering(), roster, 0.1, 0.3), LocalEngine(data), S_0, stop=2)
    theta = 8 * (2 + 2 * 2 + 2 * 2)  # pi, mu, Sigma
    assert result.trace["bytes_down"].tolist() == [3 * (HEADER + 8 * model.q + theta)] * 2


def test_a_parameter_is_counted_whatever_it_is_made_of():
    theta = {"a": [np.ones(3), (2, 0.5)], "b": GMMParams(np.ones(2), np.ones((2, 1)), np.eye(1))}
    assert theta_bytes(theta) == 8 * (3 + 2 + 2 + 2 + 1)


# ---- workers leave and join: the run ends at the root of those who are in the roster at the end ----------------------


def roster_of(names):
    return Roster.of(dict.fromkeys(names, 8))


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, *(pytest.param(k, marks=pytest.mark.nightly) for k in (1, 2))])
def test_one_leaves_at_200_and_one_joins_at_400(seed):
    rows = dict(zip([f"w{c:02d}" for c in range(13)], linear_data(n=13, seed=seed), strict=True))
    twelve = sorted(rows)[:12]
    eleven, model = twelve[:3] + twelve[4:], Linear()
    stages = [(twelve, 200), (eleven, 200), ([*eleven, "w12"], 3000)]
    algo = FedEM(model, Dithering(8), roster_of(twelve), 0.2, participation=Bernoulli(0.8), seed=seed)
    S_hat, V, engine = np.zeros(3), "h", None
    for names, rounds in stages:
        if engine is not None:
            algo, V = revise(algo, result.server, engine.V, roster_of(names), rows)  # noqa: F821
            S_hat = result.server.S_hat  # noqa: F821
        engine = LocalEngine({n: rows[n] for n in names})
        result = run(algo, engine, S_hat, stop=rounds, init=V)
        mean = np.average(engine.V, axis=0, weights=algo.roster.weights)
        np.testing.assert_allclose(result.server.V, mean, atol=1e-10)  # of those who are in the roster
    root = model.root([rows[n] for n in sorted(stages[-1][0])])
    np.testing.assert_allclose(result.server.S_hat, root, atol=1e-10)
    others = model.root([rows[n] for n in twelve])
    assert np.abs(root - others).max() > 1e-3


def test_who_joins_starts_at_its_own_field_and_repetitions_stay_independent():
    """V_c = h_c(S_k), with a compressed downlink too; the revised run of seed 0 has not the draws of a run of seed 1."""
    rows = dict(zip("abcdef", linear_data(n=6), strict=True))
    old, who, model = roster_of("abcde"), Bernoulli(0.5), Linear()
    algo = FedEM(model, Dithering(2), old, 0.2, participation=who, seed=0, downlink=Dithering())
    engine = LocalEngine({name: rows[name] for name in old.ids})
    server = run(algo, engine, np.ones(3), stop=6).server
    new, V = revise(algo, server, engine.V, roster_of("abcdef"), {"f": rows["f"]})
    np.testing.assert_allclose(V[5], model.s_bar(server.S_hat, rows["f"]) - server.S_hat, rtol=1e-12)
    present = np.array(
        [[k in who.active(seed, r, 6) for k in range(6)] for seed in (new.seed, 1) for r in range(200)]
    )
    assert 0.4 < (present[:200] == present[200:]).mean() < 0.6


def test_rows_of_who_is_new_are_asked_for():
    data = linear_data(n=2)
    algo = FedEM(Linear(), Dithering(8), roster_of("ab"), 0.2)
    engine = LocalEngine(dict(zip("ab", data, strict=True)))
    result = run(algo, engine, np.zeros(3), stop=5)
    with pytest.raises(ConfigError, match="worker 'c' is new"):
        revise(algo, result.server, engine.V, roster_of("ac"), {})
    with pytest.raises(ConfigError, match="one memory for each worker"):
        revise(algo, result.server, engine.V[:1], roster_of("ab"), {})
