"""Panels that mislead must mislead as they say, and their truth must be the truth."""

import numpy as np
import pytest

from fedmiss.errors import ConfigError
from tests.designs import DESIGNS, simulate_design


@pytest.mark.parametrize("design", DESIGNS)
def test_the_same_seed_is_the_same_panel_and_all_visits_lie_on_it(design):
    one, two = (simulate_design(design, 4, visits=300) for _ in range(2))
    for name in ("site", "month", "observer", "log_effort", "count", "expected"):
        np.testing.assert_array_equal(getattr(one, name), getattr(two, name))
    assert one.expected.shape == (100, 96)
    assert one.count.size == one.site.size == one.observer.size == 300
    assert (np.diff(one.month) >= 0).all()
    assert one.site.max() < 100
    assert one.month.max() < 96
    assert not np.array_equal(one.count, simulate_design(design, 5, visits=300).count)


def test_the_plain_slope_is_the_one_that_was_asked_for():
    """Without site slopes and site-years the yearly totals are a straight line on the log scale."""
    for trend in (-0.05, 0.0, 0.05):
        p = simulate_design("plain", 1, trend=trend, visits=50)
        assert p.slope == pytest.approx(trend, abs=1e-12)
        np.testing.assert_allclose(np.diff(np.log(p.yearly)), trend, atol=1e-12)


def test_counts_have_the_stated_mean():
    """Counts over their expectation: one, within five standard errors, in a design where visits differ in nothing else."""
    p = simulate_design("plain", 2, visits=40_000, size=np.inf)
    mean = p.expected[p.site, p.month]
    assert abs(p.count.sum() - mean.sum()) < 5 * np.sqrt(mean.sum())


def site_means(p):
    """Log mean expectation of every site, its fitted slope, its number of visits, and its last visited year."""
    log = np.log(np.stack([p.expected[:, p.year == y].mean(axis=1) for y in np.unique(p.year)], axis=1))
    x = np.arange(log.shape[1]) - (log.shape[1] - 1) / 2
    visits = np.bincount(p.site, minlength=len(log))
    last = np.array([p.year[p.month[p.site == j]].max() if visits[j] else np.nan for j in range(len(log))])
    return log.mean(axis=1), log @ x / (x @ x), visits, last


def test_preferred_sites_are_visited_more():
    level, _, visits, _ = site_means(simulate_design("preferred", 3))
    plain = site_means(simulate_design("random", 3))
    assert np.corrcoef(level, np.log(visits + 0.5))[0, 1] > 0.4
    assert abs(np.corrcoef(plain[0], np.log(plain[2] + 0.5))[0, 1]) < 0.3


def test_declining_sites_are_abandoned_first():
    gaps = []
    for design in ("abandoned", "preferred"):
        by_seed = []
        for seed in range(10):
            _, slope, _, last = site_means(simulate_design(design, seed))
            gone = last < 2016
            by_seed.append(slope[gone].mean() - slope[last >= 2016].mean())
        gaps.append(np.mean(by_seed))
    assert gaps[0] < -0.02
    assert abs(gaps[1]) < 0.015


def test_new_observers_find_fewer_birds():
    """Counts over their expectation, of visits of who came later against who was there from the beginning."""
    ratio = {}
    for design in ("learning", "random"):
        late, early = [], []
        for seed in range(20):
            p = simulate_design(design, seed, size=np.inf)
            mean = p.expected[p.site, p.month] * np.exp(0.7 * p.log_effort)
            new = ~np.isin(p.observer, np.unique(p.observer[p.year[p.month] == 2010]))
            late.append(p.count[new].sum() / mean[new].sum())
            early.append(p.count[~new].sum() / mean[~new].sum())
        ratio[design] = np.mean(late) / np.mean(early)
    assert ratio["learning"] < 0.95
    assert ratio["learning"] < ratio["random"] - 0.05


def test_handover_changes_the_observer_of_a_site_once():
    p = simulate_design("handover", 6)
    for j in np.unique(p.site):
        who = p.observer[p.site == j]
        assert (np.diff(who) != 0).sum() <= 1


def test_another_design_is_refused():
    with pytest.raises(ConfigError, match="no design 'odd'"):
        simulate_design("odd", 0)
