"""One worker step for every method: local steps, biased compressors, error feedback, coordinates, random E-steps."""

import math
from dataclasses import dataclass

import numpy as np
import pytest

from fedmiss.compressors import Dithering, Identity, TopK
from fedmiss.core import (
    Bernoulli,
    Decreasing,
    FedEM,
    FullBatch,
    LocalSteps,
    Minibatch,
    Remembered,
    Roster,
    SaemSteps,
    Spider,
    fed_lsa,
    local_em,
    run,
    scafflsa,
)
from fedmiss.core.oracles import NoMemory
from fedmiss.core.testing import check_compressor, check_oracle
from fedmiss.engines import LocalEngine
from fedmiss.errors import ConfigError, DomainError
from tests.core.one_by_one import LossyEngine, PlainEngine, equal, same_everywhere
from tests.core.toys import Linear, linear_data, mixture

N8 = Roster.of([8] * 5)


class Heterogeneous(Linear):
    """Each worker has its own slope: s_bar_c(theta) = mean of rows + B_c theta."""

    def s_bar(self, theta, rows):
        slope = 0.5 + 0.4 * np.tanh(rows[:, 0].mean() / 3)
        return rows.mean(axis=0) + slope * theta


# ---- local steps ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("b", [None, 3])
@pytest.mark.parametrize("correct", [True, False])
def test_one_local_step_is_fedem_to_the_bit(b, correct):
    data = linear_data()
    settings = {"model": Linear(), "compressor": Dithering(), "roster": N8, "alpha": 0.3, "seed": 4}
    settings["participation"] = Bernoulli(0.6)
    plain = FedEM(gamma=0.2, oracle=FullBatch() if b is None else Minibatch(b), **settings)
    local = local_em(H=1, eta=0.2, b=b, correct=correct, **settings)
    for engine in (LocalEngine, PlainEngine):
        equal(run(plain, engine(data), np.zeros(3), stop=40), run(local, engine(data), np.zeros(3), stop=40))


@pytest.mark.parametrize("correct", [True, False])
def test_local_steps_follow_section_1_line_by_line(correct):
    data = linear_data(n=4, seed=5)
    model, eta, H, n = Heterogeneous(), 0.1, 6, 4
    settings = {"model": model, "compressor": Identity(), "roster": Roster.of([8] * n)}
    algo = local_em(H=H, eta=eta, correct=correct, alpha=0.4, **settings)
    V_c = np.random.default_rng(0).normal(size=(n, 3))
    result = run(algo, LocalEngine(data), np.ones(3), stop=15, init=V_c)
    S, V, V_c = np.ones(3), V_c.mean(axis=0), V_c.copy()
    for _ in range(15):
        Q = np.empty((n, 3))
        for c in range(n):
            x = S.copy()
            for _ in range(H):
                x = x + eta * (model.s_bar(x, data[c]) - x + (V - V_c[c] if correct else 0))
            G = (x - S) / (eta * H)
            Q[c] = G - (V if correct else V_c[c])
        S = S + eta * H * (V + Q.mean(axis=0))
        V = V + 0.4 * Q.mean(axis=0)
        V_c += 0.4 * Q
    np.testing.assert_allclose(result.server.S_hat, S, rtol=1e-12)
    np.testing.assert_allclose(result.server.V, V, rtol=1e-11)


def test_a_broadcast_with_V_is_paid_for():
    data = linear_data()
    settings = {"model": Linear(), "compressor": Identity(), "roster": N8}
    algos = [make(H=3, eta=0.1, b=2, **settings) for make in (fed_lsa, scafflsa)]
    runs = [run(algo, LocalEngine(data), np.zeros(3), stop=1, init="zero") for algo in algos]
    assert runs[1].trace["bytes_down"][0] - runs[0].trace["bytes_down"][0] == 5 * 8 * 3


def test_impossible_local_steps_are_refused():
    settings = {"model": Linear(), "compressor": Identity(), "roster": N8}
    for make, words in (
        (lambda: local_em(H=0, eta=0.1, **settings), "H=0"),
        (lambda: local_em(H=2, eta=-0.1, **settings), "eta=-0.1"),
        (lambda: local_em(H=2, eta=math.inf, **settings), "eta=inf"),
        (lambda: local_em(H=2, eta=0.1, b=0, **settings), "b=0"),
        (lambda: FedEM(oracle=LocalSteps(4, 0.1), gamma=0.1, **settings), "gamma=0.1 at round 0"),
    ):
        with pytest.raises(ConfigError, match=words):
            make()
    local_em(H=100, eta=0.1, **settings)  # eta H may exceed 1
    local_em(H=4, eta=Decreasing(0.1), **settings)


def test_T_leaving_its_domain_names_worker_round_and_step():
    model, data, roster, S_0 = mixture(n=3, m=10)
    algo = local_em(H=9, eta=3.0, model=model, compressor=Identity(), roster=roster)
    for engine in (LocalEngine, PlainEngine):
        with pytest.raises(
            DomainError, match=r"worker '\d', round \d+ at local step \d of 9: .*Lower eta or H"
        ):
            run(algo, engine(data), S_0, stop=50, init="zero")


# ---- biased compressors --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("k", "q"), [(1, 7), (3, 10), (10, 10), (30, 10), (2, 300)])
def test_top_k_leaves_at_most_1_minus_delta(k, q):
    assert check_compressor(TopK(k), q, draws=5)["delta"] == min(k / q, 1)


def test_top_k_keeps_the_largest_ties_by_position():
    x = np.array([1.0, -3.0, 2.0, 3.0, -2.0])
    assert TopK(3).compress_batch(x[None], np.empty((1, 0)))[0][0].tolist() == [0, -3, 2, 3, 0]
    left = TopK(2).compress_batch(np.full((1, 6), -0.5), np.empty((1, 0)))[0][0]
    assert left.tolist() == [-0.5, -0.5, 0, 0, 0, 0]
    assert ((left + 0.5) ** 2).sum() == pytest.approx((1 - TopK(2).delta(6)) * 6 * 0.25)  # attained


class Cheat(TopK):
    def delta(self, q):
        return 1.5 * self.k / q


def test_a_delta_that_lies_is_caught():
    with pytest.raises(AssertionError, match="1 - delta"):
        check_compressor(Cheat(2), 10, draws=3)


def test_top_k_with_1_over_p_or_another_alpha_is_refused():
    for settings in (
        {"participation": Bernoulli(0.5)},
        {"alpha": 0.5},
        {"participation": Bernoulli(0.5), "memory": "error"},
    ):
        with pytest.raises(ConfigError, match=r"Remembered.*|alpha=1"):
            FedEM(Linear(), TopK(1), N8, 0.1, **settings)
    assert FedEM(Linear(), TopK(1), N8, 0.1, participation=Remembered(Bernoulli(0.5))).alpha == 1.0
    with pytest.raises(ConfigError, match="biased"):
        TopK(2).omega(10)


def test_ef21_follows_its_recursion():
    """g_c <- g_c + C(grad_c - g_c), S <- S + gamma mean g_c (Richtarik et al. 2021), V_c in the place of g_c."""
    data, model = linear_data(), Linear()
    who = Remembered(Bernoulli(0.5))
    algo = FedEM(model, TopK(1), N8, 0.1, participation=who, seed=3)
    result = run(algo, LocalEngine(data), np.zeros(3), stop=20, init="zero")
    S, g = np.zeros(3), np.zeros((5, 3))
    for k in range(20):
        for c in who.active(3, k, 5):
            gap = model.s_bar(S, data[c]) - S - g[c]
            top = np.argmax(np.abs(gap))
            g[c, top] += gap[top]
        S = S + 0.1 * g.mean(axis=0)
    np.testing.assert_allclose(result.server.S_hat, S, rtol=1e-12)
    assert (result.trace["bytes_up"] == result.trace["active"] * (16 + 8 + 2)).all()


@pytest.mark.parametrize("memory", ["error", "statistic"])
def test_every_engine_gives_the_same_bits_and_a_resumed_run_too(memory, tmp_path):
    data = linear_data(n=5)
    algo = FedEM(
        Linear(), TopK(1), N8, SaemSteps(5), memory=memory, participation=Remembered(Bernoulli(0.6)),
        oracle=Minibatch(3), seed=8,
    )  # fmt: skip
    same_everywhere(algo, data, np.zeros(3), tmp_path, stop=30)


def test_error_feedback_loses_nothing_on_a_lossy_network():
    """What arrived and what is still held sum to all that was ever to be sent, e_c unchanged by a lost message."""
    data = linear_data()
    model = Linear()
    algo = FedEM(model, TopK(1), N8, 0.1, memory="error", participation=Remembered(Bernoulli(0.7)), seed=2)
    engine = LossyEngine(data, loss=0.3, seed=5)
    server = engine.start(algo, np.zeros(3), "zero")
    meant = np.zeros(3)
    for _ in range(80):
        down = algo.broadcast(server)
        active = algo.participation.active(2, server.k, 5)
        replies = engine.round(algo, server, down, active)
        for c in replies.slots:
            meant += 0.1 * (model.s_bar(down.theta, data[c]) - down.S_hat) / 5
        server, _ = algo.server_step(server, down, replies)
        held = engine.V.mean(axis=0)
        np.testing.assert_allclose(server.S_hat + held, meant, atol=1e-12)
    assert engine.losses > 20


def test_statistic_memory_counts_silent_workers_with_what_they_said_last():
    data = linear_data()
    model = Linear()
    who = Remembered(Bernoulli(0.5))
    algo = FedEM(model, Identity(), N8, 1.0, memory="statistic", participation=who, seed=6)
    engine = LocalEngine(data)
    result = run(algo, engine, np.ones(3), stop=12)
    S, G = np.ones(3), np.array([model.s_bar(np.ones(3), rows) for rows in data])
    for k in range(12):
        for c in who.active(6, k, 5):
            G[c] = model.s_bar(S, data[c])
        S = G.mean(axis=0)
    np.testing.assert_allclose(result.server.S_hat, S, rtol=1e-13)
    np.testing.assert_allclose(engine.V, G, rtol=1e-13)


# ---- coordinates, random E-steps -----------------------------------------------------------------------------------


class Turned(Linear):
    """Messages are compressed in a basis that depends on theta."""

    def _basis(self, theta):
        return np.linalg.qr(np.eye(3) + 0.3 * np.outer(theta, theta) / (1 + theta @ theta))[0]

    def to_wire(self, theta, D):
        return (D[..., None, :] * self._basis(theta)).sum(axis=-1)

    def from_wire(self, theta, Q):
        return (Q[..., None, :] * self._basis(theta).T).sum(axis=-1)


@pytest.mark.parametrize("memory", ["field", "error", "statistic"])
def test_coordinates_surround_the_compressor_only(memory):
    data = linear_data()
    settings = {"roster": N8, "gamma": 0.2, "memory": memory, "alpha": 1.0}
    a = run(FedEM(Linear(), Identity(), **settings), LocalEngine(data), np.zeros(3), stop=30)
    b = run(FedEM(Turned(), Identity(), **settings), LocalEngine(data), np.zeros(3), stop=30)
    np.testing.assert_allclose(a.server.S_hat, b.server.S_hat, rtol=1e-12)
    np.testing.assert_allclose(a.server.V, b.server.V, atol=1e-12)
    algo = FedEM(Turned(), TopK(1), **settings)
    c = same_everywhere(algo, data, np.zeros(3), stop=30)
    plain = run(FedEM(Linear(), TopK(1), **settings), LocalEngine(data), np.zeros(3), stop=30)
    assert not np.allclose(c.server.S_hat, plain.server.S_hat)


@dataclass(frozen=True, slots=True)
class Geometric(NoMemory):
    """A random number of rows, which no fixed number of uniforms can draw."""

    wants_own = True
    draws = 0

    def one(self, model, memory, down, rows, u, own):
        rng = own.rng()
        picked = rng.integers(0, len(rows), size=1 + rng.geometric(0.3))
        return model.s_bar(down.theta, rows[picked]), None, len(rows)


def test_an_e_step_with_its_own_generator_has_the_same_bits_everywhere(tmp_path):
    data = linear_data()
    algo = FedEM(Linear(), Dithering(), N8, 0.1, 0.3, Bernoulli(0.6), Geometric(), seed=5)
    same_everywhere(algo, data, np.zeros(3), tmp_path, stop=25)
    check_oracle(Geometric(), Linear(), linear_data(n=4), np.ones(3), unbiased=2000)


MINI, LOCAL = (Minibatch(3), Minibatch(3, replace=False)), (LocalSteps(3, 0.1, 2, True), LocalSteps(2, 0.1))


@pytest.mark.parametrize("oracle", [FullBatch(), *MINI, Spider(3, 4), *LOCAL], ids=str)
def test_every_oracle_obeys_the_laws(oracle):
    unbiased = 2000 if isinstance(oracle, Minibatch) else 0
    check_oracle(oracle, Heterogeneous(), linear_data(n=4), np.ones(3), unbiased=unbiased)


@dataclass(frozen=True, slots=True)
class Wrong(NoMemory):
    biased: bool
    draws = 2

    def one(self, model, memory, down, rows, u):
        index = (u * len(rows)).astype(int)
        if self.biased:
            index = np.minimum(index, 2)
        return model.s_bar(down.theta, rows[index]), None, 2


def test_the_checker_of_oracles_finds_a_bias():
    given = (Linear(), linear_data(n=3), np.ones(3))
    check_oracle(Wrong(biased=False), *given, unbiased=1500)
    with pytest.raises(AssertionError, match="standard errors"):
        check_oracle(Wrong(biased=True), *given, unbiased=1500)


# ---- compressed broadcasts -----------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("oracle", [FullBatch(), Spider(8, 5, replace=False)], ids=["fedem", "vr"])
def test_broadcasts_compressed_too_still_lead_to_the_root(oracle, tmp_path):
    data = linear_data(n=6)
    model, roster = Linear(), Roster.of([8] * 6)
    settings = {"model": model, "compressor": Dithering(), "roster": roster, "gamma": 0.05}
    settings |= {"oracle": oracle, "seed": 3, "participation": Bernoulli(0.7)}
    algo = FedEM(downlink=Dithering(), **settings)
    result = run(algo, LocalEngine(data), np.zeros(3), stop=4000)
    np.testing.assert_allclose(result.server.S_hat, model.root(data), atol=1e-10)
    np.testing.assert_allclose(result.server.shadow, model.root(data), atol=1e-10)
    plain = run(FedEM(**settings), LocalEngine(data), np.zeros(3), stop=200)
    same_everywhere(algo, data, np.zeros(3), tmp_path, stop=200)
    assert result.trace["bytes_down"][:200].sum() < 0.8 * plain.trace["bytes_down"].sum()


def test_a_downlink_of_whole_numbers_is_fedem_and_other_memories_are_refused():
    """With C = identity E_k = S_k, so the iterates are FedEM's; other memories have no place for it."""
    data = linear_data()
    settings = {"model": Linear(), "compressor": Dithering(), "roster": N8, "gamma": 0.1, "seed": 1}
    a = run(FedEM(**settings), LocalEngine(data), np.zeros(3), stop=30)
    b = run(FedEM(downlink=Identity(), **settings), LocalEngine(data), np.zeros(3), stop=30)
    np.testing.assert_allclose(a.server.S_hat, b.server.S_hat, rtol=1e-12)
    for bad in ({"memory": "error"}, {"downlink": TopK(1)}):
        with pytest.raises(ConfigError, match="compressed downlink"):
            FedEM(**(settings | {"downlink": Identity()} | bad))
