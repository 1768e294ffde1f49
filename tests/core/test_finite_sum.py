"""Oracles of a finite sum: VR-FedEM with one worker is SPIDER-EM to the bit, and those beside it; how rows are drawn."""

import numpy as np
import pytest

from fedmiss.compressors import Dithering, Identity
from fedmiss.core import Bernoulli, FedEM, Fiem, Minibatch, Roster, SemVr, Streaming, em, run, spider_em
from fedmiss.core.oracles import draw_rows
from fedmiss.core.testing import check_oracle
from fedmiss.engines import LocalEngine
from fedmiss.errors import ConfigError
from fedmiss.rng import uniforms
from tests.core.one_by_one import PlainEngine, same_everywhere
from tests.core.toys import Linear, linear_data, mixture
from tests.oracles.reference import spider_em as spider_oracle


@pytest.mark.parametrize("oracle", [Streaming(3), SemVr(3, 4), Fiem(2)], ids=str)
def test_they_obey_the_laws_and_resume(oracle, tmp_path):
    model, data, roster, S_0 = mixture(n=4, m=10)
    check_oracle(oracle, model, list(data), S_0)
    algo = FedEM(model, Dithering(), roster, 0.05, 0.2, Bernoulli(0.6), oracle, seed=7)
    same_everywhere(algo, data, S_0, tmp_path)


@pytest.mark.slow
def test_variance_reduction_converges_where_minibatches_stall():
    model, data, roster, S_0 = mixture(n=1, m=60)
    solution = em(model, data, roster, S_0, rounds=5000, tol=1e-28)[0]

    def miss(oracle):
        algo = FedEM(model, Identity(), roster, 0.1, 0.0, oracle=oracle, seed=1)
        S_hat = run(algo, LocalEngine(data), S_0, stop=3000, init="zero").server.S_hat
        return np.abs(S_hat - solution).max()

    assert miss(SemVr(4, 10)) < 1e-8
    assert miss(Fiem(4)) < 1e-8
    assert miss(Minibatch(4)) > 1e-3


def test_fiem_is_its_recursion_line_by_line():
    """Table renewed on I, then mean + s_J - table_J, on the core's draws."""
    data, model = linear_data(n=1, m=9), Linear()
    algo = FedEM(model, Identity(), Roster.of([9]), 0.2, 0.0, oracle=Fiem(1), seed=3)
    found = run(algo, LocalEngine(data), np.ones(3), stop=25, init="zero").server.S_hat
    S, table = np.ones(3), np.array([y + model.A @ np.ones(3) for y in data[0]])
    for k in range(25):
        if k == 0:
            estimate = table.mean(axis=0)
        else:
            i, j = draw_rows(uniforms(3, "worker", k, [0], 2), np.array([9]), replace=True)[0]
            table[i] = data[0, i] + model.A @ S
            estimate = table.mean(axis=0) + data[0, j] + model.A @ S - table[j]
        S = S + 0.2 * (estimate - S)
    np.testing.assert_allclose(found, S, rtol=1e-12)


def test_a_stream_reads_every_row_once_whoever_is_absent():
    rows = np.arange(12.0).reshape(1, 12, 1) * np.ones((3, 1, 1))

    class Seen(Linear):
        def s_bar(self, theta, rows):
            seen.append(rows[:, 0].tolist())
            return rows.mean(axis=0)

    seen = []
    algo = FedEM(Seen(1), Identity(), Roster.of([12] * 3), 0.1, 0.5, Bernoulli(0.5), Streaming(4), seed=2)
    result = run(algo, PlainEngine(rows), np.zeros(1), stop=40, init="zero")
    answers = int(result.trace["active"].sum())
    assert len(seen) == answers
    for block in ([0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]):
        assert abs(seen.count(block) - answers / 3) <= 3


@pytest.mark.parametrize("replace", [True, False])
@pytest.mark.parametrize("engine", [LocalEngine, PlainEngine])
def test_vr_fedem_with_one_worker_is_spider_em(replace, engine):
    model, data, _, S_0 = mixture(n=1, m=60)
    algo = spider_em(
        b=5, k_in=6, replace=replace, model=model, compressor=Identity(), roster=Roster.of([60]), gamma=0.2, alpha=0.0,
        seed=3,
    )  # fmt: skip
    batches = [
        draw_rows(uniforms(3, "worker", k, [0], 5), np.array([60]), replace=replace)[0] for k in range(30)
    ]
    expected = spider_oracle(model.s_bar, model.T, data[0], S_0, 0.2, batches, 6)
    for k in (1, 7, 30):
        result = run(algo, engine(data), S_0, stop=k, init="zero")
        assert np.array_equal(result.server.S_hat, expected[k - 1])
    # all rows, then minibatches at two points
    assert result.trace["evaluations"].tolist() == 5 * [60, *[2 * 5] * 5]


def test_rows_are_drawn_uniformly_and_without_replacement_never_twice():
    u = np.random.default_rng(0).random((20000, 3))
    sizes = np.full(20000, 7)
    for replace in (True, False):
        rows = draw_rows(u, sizes, replace=replace)
        assert rows.min() >= 0
        assert rows.max() <= 6
        counts = np.array([np.bincount(rows[:, j], minlength=7) for j in range(3)])
        z = (counts - 20000 / 7) / np.sqrt(20000 / 7 * 6 / 7)
        assert np.abs(z).max() < 5
        twice = (rows[:, 0] == rows[:, 1]).mean()
        assert twice == (pytest.approx(1 / 7, abs=5 * np.sqrt(6 / 49 / 20000)) if replace else 0)


def test_workers_of_unequal_size_draw_within_their_own_rows():
    u = np.random.default_rng(1).random((500, 4))
    sizes = np.random.default_rng(2).integers(4, 30, 500)
    for replace in (True, False):
        rows = draw_rows(u, sizes, replace=replace)
        assert (rows < sizes[:, None]).all()
    with pytest.raises(ConfigError, match=r"b=4 without replacement.*holds 3"):
        draw_rows(u, np.full(500, 3), replace=False)
