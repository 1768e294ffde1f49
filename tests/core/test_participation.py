"""Who answers: the rates are those promised, draws depend on seed and round only, schedules and steps are followed."""

import math
from dataclasses import replace

import numpy as np
import pytest

from fedmiss.compressors import Dithering, Identity
from fedmiss.core import Bernoulli, Decreasing, FedEM, FixedSize, Full, Given, Piecewise, Roster, Stop, run
from fedmiss.engines import LocalEngine
from fedmiss.errors import ConfigError
from tests.core.toys import Linear, linear_data


@pytest.mark.parametrize(
    "who",
    [Full(), Bernoulli(0.3), Bernoulli([0.1, 0.5, 0.9, 1.0, 0.2, 0.7]), FixedSize(2)],
    ids=lambda w: type(w).__name__,
)
def test_every_worker_answers_at_its_rate(who):
    rounds, n = 1000, 6
    seen = np.zeros(n)
    for k in range(rounds):
        slots = who.active(3, k, n)
        assert (np.diff(slots) > 0).all()
        assert np.array_equal(slots, who.active(3, k, n))
        seen[slots] += 1
    p = who.prob(n)
    error = np.sqrt(np.maximum(p * (1 - p), 1e-12) / rounds)
    assert (np.abs(seen / rounds - p) < 5 * error).all()
    if not isinstance(who, Full):
        other = [tuple(who.active(4, k, n)) for k in range(20)]
        assert other != [tuple(who.active(3, k, n)) for k in range(20)]


def test_a_given_schedule_is_followed_and_weighted_by_its_shares():
    who = Given([[0, 2], [1], [2, 0, 2]])
    assert who.prob(3).tolist() == pytest.approx([2 / 3, 1 / 3, 2 / 3])
    assert [who.active(0, k, 3).tolist() for k in range(4)] == [[0, 2], [1], [0, 2], [0, 2]]
    data = linear_data(n=3)
    algo = FedEM(Linear(), Identity(), Roster.of([8] * 3), 0.05, 0.5, who)
    result = run(algo, LocalEngine(data), np.zeros(3), stop=1500)
    assert np.abs(result.server.S_hat - Linear().root(data)).max() < 1e-8
    for slot in (3, -1):  # -1 was the last worker in the probabilities
        with pytest.raises(ConfigError, match=f"names slot {slot} but"):
            Given([[0, slot], [1, 2]]).prob(3)
    with pytest.raises(ConfigError, match=r"probability 0\.0"):
        Given([[0]]).prob(2)


def test_steps_may_change_from_round_to_round():
    data = linear_data()
    roster = Roster.of([8] * 5)
    gamma = Piecewise((0, 3), (0.5, 0.1))
    result = run(FedEM(Linear(), Identity(), roster, gamma), LocalEngine(data), np.zeros(3), stop=6)
    assert result.trace["gamma"].tolist() == [0.5] * 3 + [0.1] * 3
    falling = Decreasing(0.4, k0=10, power=0.5)
    result = run(FedEM(Linear(), Identity(), roster, falling), LocalEngine(data), np.zeros(3), stop=31)
    assert result.trace["gamma"][[0, 30]].tolist() == [0.4, 0.2]


def test_rosters():
    roster = Roster.of({"b": 3, "a": 1}, "pooled")
    assert roster.ids == ("a", "b")
    assert roster.weights.tolist() == [0.25, 0.75]
    assert Roster.of([1] * 11).ids[:3] == ("00", "01", "02")
    for bad, words in (({}, "0 workers"), ({"x": 0}, "'x' holds 0 rows")):
        with pytest.raises(ConfigError, match=words):
            Roster.of(bad)
    with pytest.raises(ConfigError, match="'mean'"):
        Roster.of([1], "mean")


@pytest.mark.parametrize(
    ("gamma", "words"),
    [
        (lambda k: 0.1 - 0.05 * k, r"gamma=0\.0 at round 2"), (lambda k: math.nan, r"gamma=nan at round 0"),
        (lambda k: math.inf if k == 3 else 0.1, r"gamma=inf at round 3"),
        (lambda k: 0.5 * (k + 1), r"gamma=1\.5 at round 2"), (lambda k: "fast", r"gamma='fast' at round 0"),
    ],
)  # fmt: skip
def test_a_schedule_is_checked_in_every_round(gamma, words):
    with pytest.raises(ConfigError, match=words):
        run(
            FedEM(Linear(), Identity(), Roster.of([8] * 5), gamma, 0.3),
            LocalEngine(linear_data()),
            np.zeros(3),
            stop=9,
        )


def test_impossible_schedules_are_refused():
    for make in (
        lambda: Decreasing(-0.1), lambda: Decreasing(0.1, k0=0.0), lambda: Decreasing(0.1, power=-1.0),
        lambda: Piecewise((1,), (0.1,)), lambda: Piecewise((0, 5), (0.1,)), lambda: Piecewise((0, 5), (0.1, 0.0)),
        lambda: Piecewise((0, 5, 3), (0.1, 0.2, 0.3)), lambda: Piecewise((), ()),
    ):  # fmt: skip
        with pytest.raises(ConfigError):
            make()


def test_ends_that_never_come_and_columns_that_are_taken_are_refused():
    algo = FedEM(Linear(), Identity(), Roster.of([8] * 5), 0.1)

    def go(stop=3, **more):
        return run(algo, LocalEngine(linear_data()), np.zeros(3), stop=stop, **more)

    assert go(np.int64(2)).server.k == 2
    for wrong in (
        {"tol": np.nan},
        {"epochs": np.nan},
        {"seconds": -1},
        {"rounds": -1},
        {"tol": 1.0, "window": 0},
    ):
        with pytest.raises(ConfigError, match="must be"):
            Stop(**wrong)
    for wrong in ({"observe_every": 0}, {"checkpoint_every": 0}):
        with pytest.raises(ConfigError, match="at least 1 round"):
            go(**wrong)
    with pytest.raises(ConfigError, match="'h_norm2', a column that the trace has"):
        go(observe=lambda server, down: {"h_norm2": 1.0})
    for seed in (1.5, -1, None):
        with pytest.raises(ConfigError, match=r"seed is .* whole number"):
            run(
                replace(algo, compressor=Dithering(), seed=seed),
                LocalEngine(linear_data()),
                np.zeros(3),
                stop=2,
            )
