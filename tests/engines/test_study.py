"""The core's algorithms between organisations: the bits of one process at each of them; masks, kills, and departures."""

from functools import partial

import numpy as np
import pytest

from fedmiss.compressors import Dithering, Identity
from fedmiss.core import Bernoulli, FedEM, FixedSize, Remembered, Roster, Spider, Stop, run
from fedmiss.engines import LocalEngine, StudyEngine
from fedmiss.errors import ConfigError, EngineError
from fedmiss.models.lowrank.paper import FedMissEM
from fedmiss.models.saem.algorithm import fed_saem
from fedmiss.models.saem.months import GaussMonths, first_statistics, simulate_months
from tests.core.toys import mixture
from tests.federation.network import Kill, Places, together
from tests.models.panels import simulate


class Study(Places):
    def run(self, name, algo, rows, start, *, masked=False, **more):
        circle = self.circle(name)
        try:
            return run(algo, StudyEngine(circle, rows, masked=masked), start, **more)
        finally:
            circle.close()

    def all(self, algo, data, start, **more):
        algos = algo if isinstance(algo, dict) else dict.fromkeys(data, algo)
        return together({n: (lambda n=n: self.run(n, algos[n], data[n], start, **more)) for n in data})


def named(model, data, oracle=None, **more):
    ids = [f"club-{c}" for c in range(len(data))]
    rows = dict(zip(ids, data, strict=True))
    values = {"gamma": 0.2, "participation": Bernoulli(0.7), "seed": 3} | more
    if oracle is not None:
        values["oracle"] = oracle
    return FedEM(
        model, values.pop("quant", Dithering(4)), Roster.of({n: len(r) for n, r in rows.items()}), **values
    ), rows


def jobs():
    model, data, _, start = mixture(n=3)
    yield "mixture", *named(model, list(data)), start
    yield "vr", *named(model, list(data), Spider(8, 5)), start
    panel, _ = simulate(J=20, L=12, n=250, family="gaussian", groups=3)
    paper = FedMissEM(panel, family="gaussian", rank=2, penalty=0.3, seed=0)
    rows = paper.rows(panel)
    algo = FedEM(paper, Dithering(4), Roster.of({n: len(r) for n, r in rows.items()}), gamma=0.2, seed=3)
    yield "fedmissem", algo, rows, np.zeros(paper.q)
    months, given = GaussMonths(4), simulate_months(3, 10, 4, counts=False)
    clubs = {f"club-{c}": rows for c, rows in enumerate(given)}
    saem = fed_saem(months, Roster.of(dict.fromkeys(clubs, 10)), Dithering(4), how="server", seed=2)
    yield "saem", saem, clubs, first_statistics(months, given).mean(axis=0)


@pytest.mark.parametrize("init", ["zero", "h"])
@pytest.mark.parametrize("job", list(jobs()), ids=lambda job: job[0])
def test_every_organisation_has_the_bits_of_one_process(job, init, tmp_path):
    _, algo, data, start = job
    if not algo.rule.remembers and init == "h":
        init = "zero"
    local = run(algo, LocalEngine(data), start, stop=Stop(rounds=25), init=init)
    for result in Study(data, tmp_path).all(algo, data, start, stop=Stop(rounds=25), init=init).values():
        np.testing.assert_array_equal(result.server.S_hat, local.server.S_hat)
        np.testing.assert_array_equal(result.server.V, local.server.V)
        np.testing.assert_array_equal(result.trace["bytes_up"], local.trace["bytes_up"])


@pytest.mark.parametrize("init", ["zero", "h"])
def test_under_masks_only_sums_are_seen_and_the_answer_is_the_same(init, tmp_path):
    model, data, _, start = mixture(n=3)
    algo, rows = named(model, list(data), quant=Identity(), participation=Bernoulli(1.0))
    local = run(algo, LocalEngine(rows), start, stop=Stop(rounds=40), init=init)
    study = Study(rows, tmp_path, masked=True)
    got = study.all(algo, rows, start, stop=Stop(rounds=40), init=init, masked=True)
    for result in got.values():
        np.testing.assert_allclose(result.server.S_hat, local.server.S_hat, rtol=1e-8, atol=1e-8)
        np.testing.assert_allclose(result.trace["evaluations"], local.trace["evaluations"])
        # an answer has q numbers, and how many evaluations they cost
        np.testing.assert_array_equal(result.trace["bytes_up"], len(rows) * 8 * (model.q + 1))
        np.testing.assert_array_equal(result.server.S_hat, got["club-0"].server.S_hat)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({}, "no sum is formed over a changing set"),
        ({"participation": Remembered(FixedSize(2)), "memory": "statistic"}, "over a changing set"),
        ({"participation": Bernoulli(1.0), "bound": 9.0}, "bound compares messages"),
    ],
    ids=["bernoulli", "remembered", "bound"],
)
def test_masked_sums_are_formed_over_all_or_not_at_all(more, words, tmp_path):
    model, data, _, start = mixture(n=3)
    algo, rows = named(model, list(data), **more)
    for error in Study(rows, tmp_path, masked=True).all(algo, rows, start, stop=3, masked=True).values():
        assert isinstance(error, ConfigError)
        assert words in str(error)


def test_no_copy_ends_a_run_by_its_own_clock(tmp_path):
    """One ended a round before the others, and all were told to compare their versions."""
    model, data, _, start = mixture(n=3)
    algo, rows = named(model, list(data))
    for error in Study(rows, tmp_path).all(algo, rows, start, stop=Stop(rounds=9, seconds=30.0)).values():
        assert isinstance(error, ConfigError)
        assert "seconds is 30; of a run with a copy at each organisation" in str(error)


def test_a_checkpoint_is_refused_before_the_first_round(tmp_path):
    """It was refused where the first one was to be written: after all rounds of a short run."""
    model, data, _, start = mixture(n=3)
    algo, rows = named(model, list(data))
    study = Study(rows, tmp_path)
    for error in study.all(algo, rows, start, stop=2, checkpoint=tmp_path / "run.npz").values():
        assert isinstance(error, ConfigError)
        assert "it writes no checkpoint. Leave checkpoint out" in str(error)
    assert not study.circle("club-0").replaying, "no exchange but that of keys"


def test_many_rows_are_counted_under_masks(tmp_path, monkeypatch):
    """A round of ten million evaluations: as a number with 40 digits after the point it would not fit."""
    model, data, _, start = mixture(n=3)
    algo, rows = named(model, list(data), quant=Identity(), participation=Bernoulli(1.0))
    one = FedEM.answers
    monkeypatch.setattr(FedEM, "answers", lambda *given: (*one(*given)[:3], 10_000_001))
    for result in Study(rows, tmp_path, masked=True).all(algo, rows, start, stop=2, masked=True).values():
        np.testing.assert_array_equal(result.trace["evaluations"], 30_000_003)


def test_sums_of_a_circle_are_exact_and_refuse_another_shape(tmp_path):
    names = ("a", "b", "c")
    x = {n: np.random.default_rng(i).normal(size=(3, 4)) for i, n in enumerate(names)}
    for masked in (False, True):
        study = Study(names, tmp_path / str(masked), masked=masked)
        got = together({n: (lambda n=n, study=study: study.circle(n).add_up([], x[n])) for n in names})
        for total in got.values():
            np.testing.assert_allclose(total, sum(x.values()), atol=3 * 2.0**-32)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(
    ("odd", "bits", "words"),
    [
        (np.ones((2, 4)), 32, "a sum of 2x4 numbers to 32 binary digits instead of a sum of 3x4"),
        (np.ones((4, 3)), 32, "a sum of 4x3 numbers"),
        (np.ones((3, 4)), 20, "to 20 binary digits"),
        (1.0, 32, "a sum of 1 numbers"),
    ],
    ids=["fewer", "transposed", "other digits", "scalar"],
)
def test_arrays_of_another_shape_or_scale_are_not_added_up(odd, bits, words, masked, tmp_path):
    """Numbers of other cells came into one sum, and other digits made it 2^12 times too large, without a word."""
    study = Study(("a", "b", "c"), tmp_path, masked=masked)
    give = {"a": (np.ones((3, 4)), 32), "b": (np.ones((3, 4)), 32), "c": (odd, bits)}
    got = together({n: (lambda n=n: study.circle(n).add_up([], *give[n])) for n in give})
    for name, error in got.items():
        assert isinstance(error, EngineError)
        assert "the copy of c of the job asks something else" in str(error)
        assert words in str(error) or name == "c"
        assert "the study's own package" in str(error)


@pytest.mark.parametrize(
    ("odd", "words"),
    [
        (np.array([1 + 2j]), "complex128"),
        (np.ma.array([1.0, 7.0], mask=[0, 1]), "numbers that are masked out"),
    ],
)
def test_what_is_no_real_number_is_not_added_up(odd, words, tmp_path):
    """Imaginary parts were dropped, and numbers behind a mask of numpy were sent as if they were not masked."""
    study = Study(("a", "b", "c"), tmp_path)
    for error in together({n: (lambda n=n: study.circle(n).add_up([], odd)) for n in study.names}).values():
        assert isinstance(error, ConfigError)
        assert words in str(error)


def test_a_copy_with_other_settings_is_named(tmp_path):
    model, data, _, start = mixture(n=3)
    algo, rows = named(model, list(data))
    other, _ = named(model, list(data), gamma=0.1)
    study = Study(rows, tmp_path)
    got = study.all(
        {"club-0": algo, "club-1": other, "club-2": algo}, rows, start, stop=Stop(rounds=5), init="zero"
    )
    for error in got.values():
        assert isinstance(error, EngineError)
        assert "the copy of club-1 of the job asks something else" in str(error)


def test_a_kill_changes_no_bit_and_the_roster_comes_from_all(tmp_path):
    model, data, _, start = mixture(n=3)
    algo, rows = named(model, list(data))
    local = run(algo, LocalEngine(rows), start, stop=Stop(rounds=30))
    study, left = Study(rows, tmp_path), [3]

    def club(name, circle):
        roster = StudyEngine.roster(circle, len(rows[name]))
        assert roster.ids == algo.roster.ids
        np.testing.assert_array_equal(roster.sizes, algo.roster.sizes)
        engine = StudyEngine(circle, rows[name])
        genuine = engine.round

        def dying(*given):
            if left[0] and name == "club-1" and given[1].k == 10 * left[0] - 5:
                left[0] -= 1
                raise Kill
            return genuine(*given)

        engine.round = dying
        return run(algo, engine, start, stop=Stop(rounds=30))

    got = together({n: (lambda n=n: study.until_done(n, partial(club, n))) for n in rows})
    assert left[0] < 3
    for result in got.values():
        np.testing.assert_array_equal(result.server.S_hat, local.server.S_hat)
