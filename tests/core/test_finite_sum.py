"""Oracles beside SPIDER's, and the exchange before a run."""

from __future__ import annotations

import numpy as np
import pytest

from fedmiss.compressors import Blocks, Dithering, Identity, TopK
from fedmiss.core import Bernoulli, FedEM, Fiem, Minibatch, Roster, SemVr, Streaming, em, run
from fedmiss.core.testing import check_compressor, check_oracle
from fedmiss.engines import LocalEngine
from fedmiss.errors import ConfigError, UplinkError
from tests.core.one_by_one import PlainEngine, same_everywhere
from tests.core.toys import Linear, linear_data, mixture


@pytest.mark.parametrize("oracle", [Streaming(3), SemVr(3, 4), Fiem(2)], ids=str)
def test_they_obey_the_laws_and_resume(oracle, tmp_path):
    model, data, roster, S_0 = mixture(n=4, m=10)
    check_oracle(oracle, model, list(data), S_0)
    algo = FedEM(model, Dithering(), roster, 0.05, 0.2, Bernoulli(0.6), oracle, seed=7)
    same_everywhere(algo, data, S_0, tmp_path)


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
    from fedmiss.core.oracles import draw_rows
    from fedmiss.rng import uniforms

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


def test_blocks_of_free_lengths():
    c = Blocks((1, 9, 4), Dithering(1))
    out = check_compressor(c, 14, draws=1500)
    assert out["omega"] == pytest.approx(2.0, rel=1e-6)  # sqrt(9) - 1
    equal, free = Dithering(1, 2.0, 7), Blocks((7, 7), Dithering(1))
    x, u = np.random.default_rng(0).normal(size=14), np.random.default_rng(1).random(14)
    np.testing.assert_array_equal(equal.decode(equal.encode(x, u), 14), free.decode(free.encode(x, u), 14))
    code = free.encode(x, u)
    for bad in (code[:-1], code + b"\x00", code[:1], b""):
        with pytest.raises(UplinkError):
            free.decode(bad, 14)
    for make, words in (
        (lambda: Blocks(()), "lengths"),
        (lambda: Blocks((2,), TopK(1)), "biased"),
        (lambda: c.omega(13), "q=13"),
    ):
        with pytest.raises(ConfigError, match=words):
            make()
