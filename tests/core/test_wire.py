"""Damaged, short, wrong-size, wrong-round, uninvited messages raise UplinkError with the worker's name."""

from __future__ import annotations

import numpy as np
import pytest

from fedmiss.compressors import Dithering, Identity
from fedmiss.core import FedEM, Roster, Uplink, WorkerState
from fedmiss.core.wire import HEADER, frame, unframe
from fedmiss.errors import UplinkError
from tests.core.toys import Linear, linear_data


@pytest.fixture
def round_4():
    roster = Roster.of({"FR-bretagne": 8, "FR-occitanie": 8})
    algo = FedEM(Linear(), Dithering(), roster, 0.1)
    server = algo.init(np.zeros(3), np.zeros((2, 3)))
    down = algo.broadcast(server)
    _, up = algo.worker_step(WorkerState(np.zeros(3)), down, linear_data()[0], 1)
    return algo, down, up


def collect(algo, down, *ups):
    return algo.collect(down, np.array([0, 1]), ups)


def test_every_flipped_bit_is_seen(round_4):
    algo, down, up = round_4
    for i in range(len(up.payload)):
        for bit in (1, 128):
            bad = bytearray(up.payload)
            bad[i] ^= bit
            with pytest.raises(UplinkError, match="FR-occitanie"):
                collect(algo, down, Uplink(0, "FR-occitanie", bytes(bad)))


def test_every_shorter_message_is_seen(round_4):
    algo, down, up = round_4
    for size in range(len(up.payload)):
        with pytest.raises(UplinkError, match="FR-occitanie"):
            collect(algo, down, Uplink(0, "FR-occitanie", up.payload[:size]))


@pytest.mark.parametrize(
    ("kwargs", "words"),
    [({"k": 5}, "round 5 at round 0"), ({"q": 231}, "sent 231 numbers.*q=3"), ({"kind": 1}, "encoding 1")],
)
def test_messages_of_another_round_size_or_kind_are_named(round_4, kwargs, words):
    algo, down, up = round_4
    settings = {"kind": 3, "k": 0, "q": 3} | kwargs
    message = frame(up.payload[HEADER:], **settings)
    with pytest.raises(UplinkError, match=words) as caught:
        collect(algo, down, Uplink(0, "FR-occitanie", message))
    assert caught.value.fields["worker"] == "FR-occitanie"


def test_a_whole_frame_with_a_wrong_payload_is_named_too():
    algo = FedEM(Linear(), Identity(), Roster.of([8, 8]), 0.1)
    down = algo.broadcast(algo.init(np.zeros(3), np.zeros((2, 3))))
    message = frame(b"12345", kind=1, k=0, q=3)
    with pytest.raises(UplinkError, match="worker '1' at round 0: 5 bytes of float64, expected 24"):
        collect(algo, down, Uplink(0, "1", message))


def test_strangers_and_doubles_are_refused(round_4):
    algo, down, up = round_4
    with pytest.raises(UplinkError, match=r"'nobody'.*without being asked"):
        collect(algo, down, Uplink(0, "nobody", up.payload))
    with pytest.raises(UplinkError, match=r"'FR-occitanie'.*without being asked"):
        algo.collect(down, np.array([0]), [up])
    with pytest.raises(UplinkError, match="twice"):
        collect(algo, down, up, up)


def test_a_frame_comes_back_whole():
    message = frame(b"payload", kind=200, k=2**32 - 1, q=7)
    assert len(message) == HEADER + 7
    assert unframe(message, kind=200, k=2**32 - 1, q=7, worker="w") == b"payload"
    with pytest.raises(UplinkError, match="version 2"):
        unframe(message[:2] + b"\x02" + message[3:], kind=200, k=2**32 - 1, q=7, worker="w")
