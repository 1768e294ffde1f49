"""Trends of sites: which months make a year."""

from __future__ import annotations

import numpy as np

from fedmiss.federation.local import LocalFederation
from fedmiss.federation.results import site_slopes
from fedmiss.models.lowrank.data import Group, GroupPanel
from fedmiss.models.lowrank.settings import CountSettings

WINTERS = np.array([8, 60, 8, 60, 8, 60])  # birds: years of the calendar are all alike


def test_a_winter_is_one_year_of_the_trends_of_sites_and_of_their_spread():
    """November to February: a year of the calendar has the end of one and the beginning of the next."""
    J, L = 20, 4 * WINTERS.size
    stamp = 12 * 2001 + np.array([12 * k + m for k in range(WINTERS.size) for m in (10, 11, 12, 13)])
    site, month = (np.tile(a.ravel(), 3) for a in np.indices((J, L)))
    count = np.random.default_rng(0).poisson(WINTERS[month // 4])
    groups = [
        Group.of(name, site[at], month[at], count[at]) for name, at in (("a", site < 9), ("b", site >= 9))
    ]
    calendar = stamp % 12 + 1, stamp // 12
    federation = LocalFederation.of_panel(GroupPanel.of(J, L, groups, calendar))
    fit = federation.fit(CountSettings(rank=0))
    slopes, mean = site_slopes(fit, calendar[1], calendar[0])
    yearly = fit.expected().reshape(J, WINTERS.size, 4).sum(axis=2)
    np.testing.assert_allclose(slopes, np.polyfit(range(WINTERS.size), np.log(yearly).T, 1)[0])
    np.testing.assert_allclose(mean, yearly.mean(axis=1))
    drawn = federation.replicates(range(8), seed=0).slopes
    np.testing.assert_allclose(drawn.mean(), slopes.mean(), atol=0.03)
