"""Broadcasts and worker states as bytes: whole, or refused with a reason; never unpickled."""

from __future__ import annotations

import pickle
from dataclasses import replace

import numpy as np
import pytest

from fedmiss.compressors import Dithering
from fedmiss.core import Bernoulli, FedEM, Roster, Spider, WorkerState
from fedmiss.core.codec import decode_value, encode_value
from fedmiss.core.letters import pack_downlink, pack_worker, unpack_downlink, unpack_worker
from fedmiss.errors import UplinkError
from tests.core.toys import mixture


@pytest.fixture
def setting():
    model, data, roster, S_0 = mixture(n=3, m=20)
    algo = FedEM(model, Dithering(), roster, 0.1, 0.3, oracle=Spider(4, 5), seed=2, job="owls-2020")
    return algo, data, algo.init(S_0, np.zeros((3, model.q)))


def same(a, b):
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and np.array_equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, (tuple, list)):
        return type(a) is type(b) and len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    if hasattr(a, "__dataclass_fields__"):
        return type(a) is type(b) and all(same(getattr(a, n), getattr(b, n)) for n in a.__dataclass_fields__)
    return a == b


def test_a_worker_that_lives_through_bytes_gives_the_bits_of_one_in_memory(setting):
    algo, data, server = setting
    one = other = WorkerState(np.zeros(algo.model.q))
    for k in range(12):
        if k == 6:
            server = replace(server, saved=6)
        down = algo.broadcast(server).to(int(server.acks[1]))
        read = unpack_downlink(algo, pack_downlink(algo, down))
        assert same(read, down)
        one, up = algo.worker_step(one, down, data[1], 1)
        other, up_2 = algo.worker_step(
            unpack_worker(algo, pack_worker(algo, other, "1"), "1"), read, data[1], 1
        )
        assert up.payload == up_2.payload
        assert same(one, other)
        server, _ = algo.server_step(server, down, algo.collect(down, np.array([1]), [up]))
    assert one.base is not None


def test_every_damaged_bit_and_every_cut_is_seen(setting):
    algo, data, server = setting
    down = pack_downlink(algo, algo.broadcast(server))
    worker, _ = algo.worker_step(WorkerState(np.zeros(algo.model.q)), algo.broadcast(server), data[0], 0)
    state = pack_worker(algo, worker, "0")
    for whole, read in ((down, unpack_downlink), (state, lambda a, b: unpack_worker(a, b, "0"))):
        for i in range(len(whole)):
            bad = bytearray(whole)
            bad[i] ^= 1 << (i % 8)
            for message in (bytes(bad), whole[:i]):
                with pytest.raises(UplinkError):
                    read(algo, message)


def test_another_job_other_settings_another_version_are_told_apart(setting):
    algo, _, server = setting
    message = pack_downlink(algo, algo.broadcast(server))
    with pytest.raises(UplinkError, match="another job than 'larks'"):
        unpack_downlink(replace(algo, job="larks"), message)
    for other in (
        replace(algo, seed=3), replace(algo, gamma=0.2), replace(algo, participation=Bernoulli(0.5)),
        replace(algo, oracle=Spider(4, 6)), replace(algo, compressor=Dithering(2)),
        replace(algo, roster=Roster.of({"x": 20, "y": 20, "z": 20})),
    ):  # fmt: skip
        with pytest.raises(UplinkError, match="other settings"):
            unpack_downlink(other, message)
    with pytest.raises(UplinkError, match="protocol version 9"):
        unpack_downlink(algo, message[:2] + b"\x09" + message[3:])
    state = pack_worker(algo, WorkerState(np.zeros(algo.model.q)), "0")
    with pytest.raises(UplinkError, match="not a broadcast"):
        unpack_downlink(algo, state)
    with pytest.raises(UplinkError, match="of worker '0', not of '1'"):
        unpack_worker(algo, state, "1")


def test_a_broadcast_of_nan_is_refused(setting):
    algo, _, server = setting
    down = replace(algo.broadcast(server), S_hat=np.full(algo.model.q, np.nan))
    with pytest.raises(UplinkError, match="S_hat"):
        unpack_downlink(algo, pack_downlink(algo, down))


def test_values_come_back_and_others_are_refused():
    values = [
        None, True, False, -3, 2.5, float("inf"), "ü", b"\x00", (1, [2.0, None], {"a": np.arange(3)}),
        np.zeros((2, 0)), np.array(1.5), np.array([True, False]), np.arange(4, dtype=np.uint8),
    ]  # fmt: skip
    for value in values:
        assert same(value, decode_value(encode_value(value)))
    for bad in (object(), np.array(["x"]), {1, 2}):
        with pytest.raises(TypeError):
            encode_value(bad)
    deep = []
    for _ in range(40):
        deep = [deep]
    with pytest.raises(TypeError, match="deep"):
        encode_value(deep)


def test_hostile_bytes_make_nothing_but_errors():
    rng = np.random.default_rng(0)
    with pytest.raises(UplinkError):
        decode_value(pickle.dumps({"a": 1}))
    with pytest.raises(UplinkError, match="not among"):
        decode_value(b"c" + b"\x05\x00\x00\x00" + b"Popen" + b"d\x00\x00\x00\x00")
    whole = encode_value((1, {"a": np.arange(5.0), "b": [None, "x", 2.0]}, b"abc"))
    for _ in range(3000):
        bad = bytearray(whole)
        for _ in range(rng.integers(1, 4)):
            bad[rng.integers(len(bad))] = rng.integers(256)
        try:
            decode_value(bytes(bad))
        except UplinkError:
            continue
