"""A run outlives damaged and poisoned messages, stale broadcasts and a server that goes back; V stays mean V_c."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fedmiss.compressors import Dithering, Identity
from fedmiss.core import Bernoulli, FedEM, Minibatch, Roster, Spider, Uplink, WorkerState, run
from fedmiss.core.wire import frame
from fedmiss.engines import LocalEngine, LossyEngine, PlainEngine
from fedmiss.errors import ConfigError, UplinkError
from tests.core.toys import Linear, linear_data


def V_gap(algo, engine, server):
    V_i = engine.settled(algo, server)
    return np.abs(server.V - algo.roster.weights @ V_i).max() / np.abs(V_i).max()


# ---- damaged and poisoned messages ---------------------------------------------------------------------------------


@pytest.mark.parametrize("oracle", [Minibatch(3), Spider(3, 7)], ids=["fedem", "vr"])
def test_damaged_messages_are_dropped_listed_and_count_as_missing(oracle):
    data = linear_data(n=6)
    rng = np.random.default_rng(0)
    hit = []

    def tamper(up):
        if rng.random() < 0.2:
            hit.append((up.k, up.worker))
            bad = bytearray(up.payload)
            bad[rng.integers(len(bad))] ^= 1 << rng.integers(8)
            return replace(
                up, payload=bytes(bad[: rng.integers(len(bad) + 1)]) if rng.random() < 0.5 else bytes(bad)
            )
        return up

    algo = FedEM(Linear(), Dithering(), Roster.of([8] * 6), 0.05, 0.2, Bernoulli(0.7), oracle, seed=3)
    engine = PlainEngine(data, tamper=tamper)
    result = run(algo, engine, np.zeros(3), stop=120)
    assert len(hit) > 50
    assert sorted((d.k, d.worker) for d in result.dropped) == sorted(hit)
    assert result.trace["dropped"].sum() == len(hit)
    assert all(d.worker in d.reason for d in result.dropped)
    assert V_gap(algo, engine, result.server) < 1e-13


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e200])
def test_poisoned_messages_are_dropped_by_name(bad):
    data = linear_data(n=4)
    algo = FedEM(Linear(), Identity(), Roster.of({"a": 8, "b": 8, "c": 8, "d": 8}), 0.2, 0.5)

    def poison(up):
        x = np.zeros(3)
        x[1] = bad
        return (
            replace(up, payload=frame(x.tobytes(), kind=1, k=up.k, q=3, context=algo.context("c")))
            if up.worker == "c"
            else up
        )

    engine = PlainEngine(data, tamper=poison)
    result = run(algo, engine, np.zeros(3), stop=60)
    assert {d.worker for d in result.dropped} == {"c"}
    assert len(result.dropped) == 60
    assert "finite" in result.dropped[0].reason
    assert np.isfinite(result.server.S_hat).all()
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
    for name in ("active", "bytes_up", "dropped"):
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
    engine = PlainEngine(data, tamper=lambda up: replace(up, payload=up.payload[:9]))
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
    assert np.array_equal(both[0].server.V, both[1].server.V)
    assert np.abs(both[0].server.S_hat).max() < 100
    with pytest.raises(ConfigError, match=r"bound=0\.5"):
        FedEM(*settings, bound=0.5)


# ---- a server that goes back, a broadcast that comes late ----------------------------------------------------------


def rounds(algo, engine, server, count):
    for _ in range(count):
        down = algo.broadcast(server)
        replies = engine.round(
            algo, server, down, algo.participation.active(algo.seed, server.k, algo.roster.n)
        )
        server, _ = algo.server_step(server, down, replies)
    return server


@pytest.mark.parametrize("back", [1, 2, 20])
@pytest.mark.parametrize("oracle", [Minibatch(2), Spider(2, 6)], ids=["fedem", "vr"])
def test_a_server_restored_from_its_checkpoint_repeats_the_run(back, oracle):
    data = linear_data(n=5)
    algo = FedEM(Linear(), Dithering(), Roster.of([8] * 5), 0.1, 0.3, Bernoulli(0.6), oracle, seed=2)
    engine = PlainEngine(data)
    server = rounds(algo, engine, engine.start(algo, np.zeros(3), "h"), 30)
    server = replace(server, saved=server.k)  # what run() says after it wrote a checkpoint
    checkpoint = server
    once = rounds(algo, engine, server, back)
    assert V_gap(algo, engine, once) < 1e-13
    again = rounds(algo, engine, replace(checkpoint, life=checkpoint.life + 1), back)
    assert np.array_equal(once.S_hat, again.S_hat)
    assert np.array_equal(once.V, again.V)
    assert np.array_equal(once.acks, again.acks)
    assert V_gap(algo, engine, again) < 1e-13
    more = rounds(algo, engine, again, 15)
    assert V_gap(algo, engine, more) < 1e-13
    assert more.acks.max() == more.k - 1 or more.acks.max() >= 30 + back


@pytest.mark.parametrize("back", [1, 2])
def test_a_server_one_or_two_rounds_back_is_followed_without_a_checkpoint(back):
    """It asks again for rounds that were answered: the older one is refused, then the workers go back with it."""
    data = linear_data(n=5)
    algo = FedEM(Linear(), Dithering(), Roster.of([8] * 5), 0.1, 0.3, seed=2)
    engine = PlainEngine(data)
    server = rounds(algo, engine, engine.start(algo, np.zeros(3), "h"), 10)
    rounds(algo, engine, server, back)
    server = rounds(algo, engine, server, 12)
    assert V_gap(algo, engine, server) < 1e-13
    assert (server.acks == server.k - 1).all()


@pytest.mark.parametrize("life", [0, 1])
def test_a_server_that_forgot_more_than_its_workers_can_go_back_is_refused(life):
    data = linear_data(n=4)
    algo = FedEM(Linear(), Identity(), Roster.of([8] * 4), 0.1, 0.3)
    engine = PlainEngine(data)
    old = engine.start(algo, np.zeros(3), "h")
    rounds(algo, engine, old, 20)
    before = [w.V_i.copy() for w in engine.workers]
    down = algo.broadcast(replace(old, life=life))
    replies = engine.round(algo, replace(old, life=life), down, np.arange(4))
    assert len(replies.slots) == 0
    assert [d.worker for d in replies.dropped] == ["0", "1", "2", "3"]
    assert (
        "stale" in replies.dropped[0].reason
        if life == 0
        else "latest checkpoint" in replies.dropped[0].reason
    )
    assert all(np.array_equal(w.V_i, V) for w, V in zip(engine.workers, before, strict=True))


def test_stale_broadcasts_are_refused_and_repeated_ones_answered_alike():
    data = linear_data(n=1)
    algo = FedEM(Linear(), Dithering(), Roster.of([8]), 0.1, 0.3, oracle=Spider(2, 3), seed=1)
    server, worker = algo.init(np.ones(3), np.zeros((1, 3))), WorkerState(np.zeros(3))
    downs = []
    for _ in range(7):
        down = algo.broadcast(server).to(int(server.acks[0]))
        worker, up = algo.worker_step(worker, down, data[0], 0)
        _, twice = algo.worker_step(worker, down, data[0], 0)
        assert twice.payload == up.payload
        downs.append(down)
        server, _ = algo.server_step(server, down, algo.collect(down, np.array([0]), [up]))
    for down in downs[:-1]:
        with pytest.raises(UplinkError, match="stale"):
            algo.worker_step(worker, down, data[0], 0)
    skipped = algo.broadcast(server).to(99)  # counts a message that this worker never sent
    with pytest.raises(UplinkError, match="message of round 99"):
        algo.worker_step(worker, skipped, data[0], 0)


def test_a_worker_of_a_lossy_network_follows_its_server_back():
    data = linear_data(n=6)
    algo = FedEM(Linear(), Dithering(), Roster.of([8] * 6), 0.05, 0.2, Bernoulli(0.5), seed=4)
    engine = LossyEngine(data, loss=0.2, delay=0.1, seed=2)
    server = rounds(algo, engine, engine.start(algo, np.zeros(3), "h"), 10)
    for life in range(1, 6):
        server = replace(server, saved=server.k)
        rounds(algo, engine, server, 3 * life)  # then the server dies
        server = rounds(algo, engine, replace(server, life=life), 4)
        assert V_gap(algo, engine, server) < 1e-12


def test_a_killed_run_resumes_with_a_new_life(tmp_path):
    data = linear_data()
    algo = FedEM(Linear(), Dithering(), Roster.of([8] * 5), 0.1, 0.3, seed=1)
    file = tmp_path / "state.npz"
    first = run(algo, LocalEngine(data), np.zeros(3), stop=4, checkpoint=file)
    second = run(algo, LocalEngine(data), np.zeros(3), stop=6, checkpoint=file)
    assert second.server.life > first.server.life
    assert second.server.saved == 4


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


def test_small_messages_share_a_header_and_lose_nothing_else():
    data = linear_data(n=40)
    algo = FedEM(Linear(), Dithering(), Roster.of([8] * 40), 0.05, 0.2, Bernoulli(0.5), seed=3)
    alone = run(algo, PlainEngine(data), np.zeros(3), stop=10)
    batch = run(algo, PlainEngine(data, together=True), np.zeros(3), stop=10)
    assert np.array_equal(alone.server.S_hat, batch.server.S_hat)
    assert np.array_equal(alone.server.V, batch.server.V)
    assert np.array_equal(alone.trace["evaluations"], batch.trace["evaluations"])
    saved = alone.trace["bytes_up"] - batch.trace["bytes_up"]
    assert (saved == 13 * alone.trace["active"] - 17).all()  # 16 bytes each, instead of 3 each and 17 once


def test_a_damaged_batch_is_dropped_and_the_run_goes_on():
    from fedmiss.core.arrivals import open_batch, pack_batch

    data = linear_data(n=5)
    algo = FedEM(Linear(), Dithering(), Roster.of([8] * 5), 0.05, 0.2)
    engine = PlainEngine(data)
    server = engine.start(algo, np.zeros(3), "h")
    down = algo.broadcast(server)
    ups, _ = engine.answers(algo, server, down, np.arange(5))
    message = pack_batch(algo, 0, ups)
    assert [up.payload for up in open_batch(algo, down, message, "host")[0]] == [up.payload for up in ups]
    for i in range(len(message)):
        bad = bytearray(message)
        bad[i] ^= 4
        for damaged in (bytes(bad), message[:i]):
            parts, dropped = open_batch(algo, down, damaged, "host")
            assert parts == []
            assert dropped[0].worker == "host"
    _, dropped = open_batch(algo, replace(down, k=1), message, "host")
    assert "round 0" in dropped[0].reason
    assert Uplink(0, "x", b"").evaluations == 0
