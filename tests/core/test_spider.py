"""VR-FedEM with one worker is SPIDER-EM, to the bit, on the same minibatches."""

from __future__ import annotations

import numpy as np
import pytest

from fedmiss.compressors import Identity
from fedmiss.core import Roster, run, spider_em
from fedmiss.core.oracles import draw_rows
from fedmiss.engines import LocalEngine
from fedmiss.errors import ConfigError
from fedmiss.rng import uniforms
from tests.core.one_by_one import PlainEngine
from tests.core.toys import mixture
from tests.oracles.reference import spider_em as spider_oracle


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
        got = run(algo, engine(data), S_0, stop=k, init="zero").server.S_hat
        assert np.array_equal(got, expected[k - 1])


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
