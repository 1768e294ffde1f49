"""Differences on a lattice: what all know is the sum of what each has sent, without bias, and never wraps."""

import numpy as np
import pytest

from fedmiss.federation import messages as msg
from fedmiss.federation.differences import HEADROOM, RANGE, Differences

from .network import Kill, clubs_of, order, run, same_bits
from .owners import largest, owned
from .rounds import solve

L, D = 6, 5  # two coefficients of a month: gradient, and curvature


def months(x):
    x = np.asarray(x, float)
    n = len(x)
    return msg.Months(x, np.zeros((n, 10)), *(np.zeros((n, 0)) for _ in range(6)))


class Ends:
    """Several organisations without masks: each sees what each sends."""

    def __init__(self, names):
        self.ends = {n: Differences(len(names), n.encode(), None) for n in names}
        self.exchange = 0

    def go(self, sums, begin=0, fits=(0,)):
        """One exchange about ``sums``, name -> (n, L, D); the numbers that travelled, and the sum that each end has."""
        asks = [solve(fits=fits, begin=begin, L=L, f=2)]
        sent = {n: e.shrink(asks, [months(sums[n])], self.exchange)[0] for n, e in self.ends.items()}
        self.exchange += 1
        seen = []
        for end in self.ends.values():
            (got,) = end.expand(asks, [sent])
            seen.append(sum(a.months for a in got.values()))
        for other in seen:
            np.testing.assert_array_equal(seen[0], other)  # the same bits everywhere
        return {n: a.months for n, a in sent.items()}, seen[0]


def walk(rng, names, steps, size=0.1):
    """Sums that move less and less."""
    at = {n: rng.normal(0, 10, (1, L, D)) for n in names}
    for k in range(steps):
        yield {n: x.copy() for n, x in at.items()}
        for x in at.values():
            x += size * 0.6**k * rng.normal(size=x.shape)


def test_what_all_know_is_the_sum_of_what_each_has_sent_and_follows_the_sums():
    rng, names = np.random.default_rng(3), ["a", "b", "c"]
    ends, moved = Ends(names), []
    for k, sums in enumerate(walk(rng, names, 12)):
        sent, seen = ends.go(sums, begin=int(k == 0))
        own = sum(e.memories[0, 0].own for e in ends.ends.values())
        np.testing.assert_allclose(own, seen[0], rtol=1e-12, atol=1e-12)  # V = sum of V_c
        true = sum(sums.values())
        moved.append(float((np.abs(seen - true).max(axis=-1) / np.abs(true).max(axis=-1)).max()))
        assert (next(iter(sent.values())).dtype == np.int32) == (k > 0)
    assert moved[0] == 0.0
    # Each of the three is off by less than the lattice's width: twice 64 / (2^31 / 3) of the sums at most.
    assert max(moved) < 3 * 2 * HEADROOM / (RANGE // 3)
    assert moved[-1] < 0.01 * moved[1]  # the lattice becomes finer as the sums come to rest


def test_dither_has_no_bias_and_rounds_to_a_neighbour():
    rng, names = np.random.default_rng(5), ["a", "b", "c"]
    first = {n: rng.normal(0, 10, (1, L, D)) for n in names}
    second = {n: x + 0.1 * rng.normal(size=x.shape) for n, x in first.items()}
    want, errors = second["a"][0], []
    for i in range(400):
        end = Differences(3, f"secret {i}".encode(), None)
        for k, x in enumerate((first, second)):
            asks = [solve(begin=int(k == 0), L=L, f=2)]
            (sent,) = end.shrink(asks, [months(x["a"])], k)
            delta = end.memories[0, 0].delta(3) if k else 1.0
            end.expand(asks, [{"a": sent, **{n: months(first[n]) for n in "bc"}}])
        errors.append((end.memories[0, 0].own - want) / delta)
    errors = np.array(errors)
    assert np.abs(errors).max() <= 1.0
    z = errors.mean(axis=0) / (errors.std(axis=0) / np.sqrt(len(errors)))
    assert np.abs(z).max() < 4.5  # of 30 numbers


@pytest.mark.parametrize("workers", [3, 20, 1000])
def test_a_jump_does_not_wrap_and_arrives_later(workers):
    names = [f"n{i}" for i in range(3)]
    ends = Ends(names)
    for e in ends.ends.values():
        e.workers = workers
    flat = {n: np.ones((1, L, D)) for n in names}
    ends.go(flat, begin=1)
    ends.go({n: x + 1e-7 for n, x in flat.items()})  # hardly a move: the range becomes small
    jump = {n: np.full((1, L, D), 1.0 if n == "n0" else 50.0) for n in names}
    for k in range(8):
        sent, seen = ends.go(jump)
        assert all(np.abs(x.astype(np.int64)).max() <= RANGE // workers for x in sent.values())
        if k == 0:
            assert largest(seen, sum(jump.values())) > 0.1  # not all of it at once
    np.testing.assert_allclose(seen, sum(jump.values()), rtol=1e-6)


def test_a_jump_of_one_does_not_tell_the_difference_of_the_only_other():
    """A member takes its own part off, and knew what a number at the limit is."""
    names, ends = ["a", "b", "c"], Ends(["a", "b", "c"])
    flat = {n: np.ones((1, L, D)) for n in names}
    ends.go(flat, begin=1)
    ends.go({n: x + 1e-7 for n, x in flat.items()})
    sent, _ = ends.go({n: np.full((1, L, D), 50.0 if n == "a" else 1.0 + 2e-7) for n in names})
    limit = RANGE // 3
    assert (sent["a"] >= limit // 2).all()
    assert (sent["a"] <= limit).all()
    assert sent["a"].std() > 5 * np.abs(sent["b"]).max()


def test_a_fit_that_begins_anew_is_sent_whole():
    names = ["a", "b", "c"]
    ends = Ends(names)
    ends.go({n: np.ones((1, L, D)) for n in names}, begin=1)
    for begin in (1, 2):
        sent, _ = ends.go({n: np.full((1, L, D), 7.0) for n in names}, begin=begin)
        assert all(x.dtype == np.float64 for x in sent.values())


@pytest.fixture(scope="module")
def panel():
    return owned(3, n=700, J=40, L=24, size=2.0, seed=5)


@pytest.fixture(scope="module")
def compressed(panel, tmp_path_factory):
    folder = tmp_path_factory.mktemp("compressed")
    return run(clubs_of(panel, folder), compress=True), folder


def test_a_compressed_study_ends_where_an_uncompressed_one_does(panel, compressed, tmp_path):
    got, folder = compressed
    whole = run(clubs_of(panel, tmp_path))
    for joint in got.values():
        same_bits(got["owner-0"], joint)
    here, there = got["owner-0"], whole["owner-0"]
    assert largest(here.totals[0], there.totals[0]) < 1e-6
    assert largest(here.draws[:, 0], there.draws[:, 0]) < 1e-5
    assert here.members[0].state.rounds == there.members[0].state.rounds
    small, large = ((f / "owner-0.journal").stat().st_size for f in (folder, tmp_path))
    assert small < 0.85 * large  # L = 24 months only: at 249 it is less


@pytest.mark.slow
def test_a_killed_study_goes_on_with_the_same_differences(panel, compressed, monkeypatch):
    folder = compressed[1]
    clubs = clubs_of(panel, folder / "again")
    again = run(clubs, compress=True)
    shrink, seen = Differences.shrink, []

    def killing(self, questions, answers, exchange):
        seen.append(exchange)
        if exchange == 30:
            raise Kill
        return shrink(self, questions, answers, exchange)

    dead = clubs_of(panel, folder / "killed")
    for name, club in dead.items():  # the same keys, so the same job
        club.private, club.roster = clubs[name].private, clubs[name].roster
    with monkeypatch.context() as m:
        m.setattr(Differences, "shrink", killing)
        assert any(isinstance(x, Kill) for x in run(dead, compress=True, what=order()).values())
    assert max(seen) == 30
    for joint in run(dead, compress=True).values():
        same_bits(again["owner-0"], joint)


def test_who_sends_another_kind_of_number_is_named(panel, tmp_path):
    clubs = clubs_of(panel, tmp_path)
    odd = clubs["owner-1"]
    whole = odd.run
    odd.run = lambda gather, what=None, *, compress=False, **more: whole(gather, what, compress=False, **more)
    got = run(clubs, compress=True)
    assert "owner-1" in str(got["owner-0"]), got["owner-0"]
    assert "Give all sides the same settings" in str(got["owner-0"])


def test_replicates_begin_and_copies_begin_from_the_memory_of_the_fit():
    names = ["a", "b", "c"]
    ends = Ends(names)
    ends.go({n: np.ones((1, L, D)) for n in names}, begin=1)
    opened = msg.Open(
        1, "poisson", "raw", False, False, False, 2, "replicate", "cell", 0, 0, np.arange(4), np.zeros(3), 0,
        np.zeros(0), np.zeros(0), np.zeros(0), False, np.zeros(0),
    )  # fmt: skip
    end = ends.ends["a"]
    end.expand([opened], [{}])
    assert {k for k in end.memories if k[0] == 1} == {(1, i) for i in range(4)}
    end.expand([msg.Keep(0, np.array([0]), 9), msg.Close(np.array([1]))], [{}, {}])
    assert set(end.memories) == {(0, 0), (9, 0)}
    kept, path = end.memories[9, 0], end.memories[0, 0]
    assert kept.whole is not path.whole  # each goes on by itself
    np.testing.assert_array_equal(kept.own, path.own)


def test_a_copy_of_a_fit_that_goes_on_in_the_same_exchange_is_sent_whole():
    """Own sums are those of the round that is under way, the others' those of the last one: together they are no memory."""
    names = ["a", "b", "c"]
    ends = Ends(names)
    ends.go({n: np.ones((1, L, D)) for n in names}, begin=1)
    asks = [msg.Keep(0, np.array([0]), 9), solve(fits=(0,), begin=0, L=L, f=2)]
    done = msg.Done(0, 0, np.zeros(4), 0.0)
    sent = {n: e.shrink(asks, [done, months(2 * np.ones((1, L, D)))], 1)[1] for n, e in ends.ends.items()}
    for end in ends.ends.values():
        end.expand(asks, [{}, sent])
        assert set(end.memories) == {(0, 0)}
