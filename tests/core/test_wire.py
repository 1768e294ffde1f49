"""Damaged, short, wrong-size, wrong-round, uninvited messages are dropped and listed by the worker's name."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from fedmiss.compressors import Dithering, Identity
from fedmiss.core import Bernoulli, FedEM, Roster, Uplink, WorkerState
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


def dropped(algo, down, *ups, active=(0, 1)):
    """The single message dropped: nothing else may have got through."""
    replies = algo.collect(down, np.array(active), ups)
    assert replies.slots.size == 0
    assert replies.Q.shape == (0, 3)
    assert replies.evaluations == 0
    assert replies.bytes_up == sum(len(up.payload) for up in ups)
    (entry,) = replies.dropped
    assert (entry.k, entry.worker in entry.reason) == (down.k, True)
    return entry


def test_every_flipped_bit_is_seen(round_4):
    algo, down, up = round_4
    for i in range(len(up.payload)):
        for bit in (1, 128):
            bad = bytearray(up.payload)
            bad[i] ^= bit
            assert dropped(algo, down, Uplink(0, "FR-occitanie", bytes(bad))).worker == "FR-occitanie"


def test_every_shorter_message_is_seen(round_4):
    algo, down, up = round_4
    for size in range(len(up.payload)):
        assert dropped(algo, down, Uplink(0, "FR-occitanie", up.payload[:size])).worker == "FR-occitanie"


@pytest.mark.parametrize(
    ("kwargs", "words"),
    [({"k": 5}, "round 5 at round 0"), ({"q": 231}, "sent 231 numbers.*q=3"), ({"kind": 1}, "encoding 1")],
)
def test_messages_of_another_round_size_or_kind_are_named(round_4, kwargs, words):
    algo, down, up = round_4
    settings = {"kind": 3, "k": 0, "q": 3} | kwargs
    for context in (b"", algo.context("FR-occitanie")):
        message = frame(up.payload[HEADER:], **settings, context=context)
        entry = dropped(algo, down, Uplink(0, "FR-occitanie", message))
        assert entry.worker == "FR-occitanie"
        assert re.search(words, entry.reason)


def test_a_whole_frame_with_a_wrong_payload_is_named_too():
    algo = FedEM(Linear(), Identity(), Roster.of([8, 8]), 0.1)
    down = algo.broadcast(algo.init(np.zeros(3), np.zeros((2, 3))))
    message = frame(b"12345", kind=1, k=0, q=3, context=algo.context("1"))
    reason = dropped(algo, down, Uplink(0, "1", message)).reason
    assert "worker '1' at round 0: 5 bytes of float64, expected 24" in reason


def test_strangers_and_doubles_are_refused(round_4):
    algo, down, up = round_4
    assert "without being asked" in dropped(algo, down, Uplink(0, "nobody", up.payload)).reason
    assert "without being asked" in dropped(algo, down, up, active=[0]).reason
    other = Uplink(0, up.worker, up.payload[:-1] + b"\x00")
    assert "twice" in dropped(algo, down, up, other).reason  # which of the two is in V_c is not known
    again = algo.collect(down, np.array([0, 1]), [up, up])  # the network may repeat a message
    assert again.slots.tolist() == [1]
    assert again.dropped == ()


def test_a_message_of_another_job_or_other_settings_or_another_worker_is_dropped(round_4):
    algo, down, up = round_4
    rows, state = linear_data()[0], WorkerState(np.zeros(3))
    for other in (
        replace(algo, job="next"),
        replace(algo, seed=1),
        replace(algo, participation=Bernoulli(0.5)),
    ):
        _, alien = other.worker_step(state, down, rows, 1)
        assert "another job or other settings" in dropped(algo, down, alien).reason
    assert "checksum" in dropped(algo, down, Uplink(0, "FR-bretagne", up.payload)).reason


def test_a_forged_count_of_evaluations_does_not_pass(round_4):
    algo, down, up = round_4
    whole = algo.collect(down, np.array([0, 1]), [up])
    assert whole.evaluations == up.evaluations == 8
    for claim in (10**12, -1, 7):
        entry = dropped(algo, down, replace(up, evaluations=claim))
        assert f"claims {claim}" in entry.reason
    assert (
        algo.collect(down, np.array([0, 1]), [replace(up, evaluations=0)]).evaluations == 8
    )  # from the frame
    code = frame(up.payload[HEADER:], kind=3, k=0, q=3, work=9, context=algo.context(up.worker))
    assert "claims 0" in dropped(algo, down, Uplink(0, up.worker, code)).reason


def test_a_frame_comes_back_whole():
    message = frame(b"payload", kind=200, k=2**32 - 1, q=7)
    assert len(message) == HEADER + 7
    assert unframe(message, kind=200, k=2**32 - 1, q=7, worker="w") == b"payload"
    with pytest.raises(UplinkError, match="version 2"):
        unframe(message[:2] + b"\x02" + message[3:], kind=200, k=2**32 - 1, q=7, worker="w")
