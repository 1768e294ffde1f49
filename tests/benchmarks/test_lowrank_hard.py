"""The panels that look like waterbird counts must look like them, and be scored on cells that no fit has seen."""

import sys
from pathlib import Path

import numpy as np
import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def hard():
    sys.path.insert(0, str(BENCHMARKS))
    try:
        import lowrank_hard
    finally:
        sys.path.remove(str(BENCHMARKS))
    return lowrank_hard


def test_every_site_and_time_is_counted_and_no_held_out_cell_is(hard):
    for name, kind in hard.KINDS.items():
        task = hard.simulate(name, 3)
        assert np.unique(task.s).size == kind.J
        assert np.unique(task.t).size == kind.L
        seen, held = task.s * kind.L + task.t, task.hold[0] * kind.L + task.hold[1]
        assert not np.intersect1d(seen, held).size
        assert seen.size + held.size == kind.J * kind.L
        assert task.panel().m == seen.size
        np.testing.assert_array_equal(task.y, hard.simulate(name, 3).y)


def test_counts_have_the_stated_mean_and_zeros(hard):
    """Averaged over cells of similar expectation, held-out counts over their truth are 1 within five standard errors."""
    ratios, zeros = [], []
    for seed in range(40):
        task = hard.simulate("common", seed)
        ratios.append(task.hold[2].sum() / task.truth.sum())
        zeros.append((hard.simulate("monthly", seed).y == 0).mean() if seed < 3 else np.nan)
    ratios = np.array(ratios)
    assert abs(ratios.mean() - 1) < 5 * ratios.std(ddof=1) / np.sqrt(ratios.size)
    assert 0.25 < np.nanmean(zeros) < 0.45


def test_whole_site_years_are_missing(hard):
    task = hard.simulate("site-years", 1)
    gone = np.zeros((task.J, task.L // 12, 12), bool)
    gone[task.hold[0], task.hold[1] // 12, task.hold[1] % 12] = True
    share = gone.mean(axis=2)
    assert np.isin(share, (0.0, 1.0)).mean() > 0.99  # but for cells kept so that every site and month has one


def test_rank_one_soft_impute_path_recovers_a_multiplicative_table(hard):
    rng = np.random.default_rng(0)
    a, b = np.exp(rng.normal(3, 1, 30)), np.exp(rng.normal(0, 0.5, 12))
    s, t = np.divmod(np.arange(360), 12)
    held = rng.random(360) < 0.2
    y = a[s] * b[t]
    path = hard.peers.soft_impute_path(s[~held], t[~held], y[~held], (s[held], t[held]), 30, 12, True)
    errors = [np.sqrt(((np.log1p(p) - np.log1p(y[held])) ** 2).mean()) for p in path]
    assert len(path) == 12
    assert min(errors) < 0.15
