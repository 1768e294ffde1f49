"""The prior of site effects that follows visits: its equations, where it is taken, and that groups do not matter."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from fedmiss.federation.group.answers import _lift
from fedmiss.federation.hub.visits import ask_visits, try_site_visits
from fedmiss.federation.local import LocalFederation, fit_counts
from fedmiss.models.lowrank.choice import Choice
from fedmiss.models.lowrank.data import Group, GroupPanel
from fedmiss.models.lowrank.settings import CountSettings
from fedmiss.simulate.designs import simulate_design

SETTINGS = CountSettings(rank=0, dispersion="negbin", site_visits=True)


def panel_of(p, by):
    """The visits of a simulated panel, dealt to groups by site or by observer."""
    key = {"site": p.site % 3, "observer": p.observer % 3, "none": np.zeros(p.site.size, int)}[by]
    members = [
        Group.of(
            f"g{g}",
            p.site[key == g],
            p.month[key == g],
            p.count[key == g],
            np.unique(p.observer[key == g], return_inverse=True)[1],
        )
        for g in np.unique(key)
    ]
    L = p.year.size
    return GroupPanel.of(len(p.expected), L, members, (np.arange(L) % 12 + 1, p.year))


def federation_of(p, by="none"):
    federation = LocalFederation.of_panel(panel_of(p, by))
    federation.ask_visits()
    return federation


def test_mean_and_deviation_of_log_visits_are_those_of_all_groups():
    p = simulate_design("preferred", 1)
    z = np.log(np.bincount(p.site, minlength=len(p.expected)) + 0.5)
    for by in (
        "none",
        "site",
        "observer",
    ):  # by observer sites are joint, and their visits are added up first
        np.testing.assert_allclose(federation_of(p, by).hub.log_visits, [z.mean(), z.std()], rtol=1e-9)


def test_the_fit_does_not_depend_on_the_groups():
    p = simulate_design("preferred", 2, sites=40, years=5, visits=800)
    one, sites, observers = (federation_of(p, by).fit(SETTINGS) for by in ("none", "site", "observer"))
    np.testing.assert_allclose(sites.expected(), one.expected(), rtol=1e-9)
    np.testing.assert_allclose(observers.expected(), one.expected(), rtol=1e-9)
    assert one.state is not None
    assert one.state.lift > 0.4


def test_the_sums_of_the_regression_are_those_of_the_marginal_model():
    """Centres y = a + noise of variance 1/H about lift z: weighted least squares with variance tau + 1/H."""
    rng = np.random.default_rng(0)
    n, tau, lift = 50, 0.7, 0.4
    z, H, y = rng.normal(size=n), rng.gamma(2.0, 2.0, n), rng.normal(size=n)
    C = 1.0 / (H + 1.0 / tau)
    P = C * (H * y + lift * z / tau)
    batch = SimpleNamespace(
        P=P[None, :, None], C=C[None, :, None, None], M=(lift * z)[None, :, None], tau=np.array([[tau]]), z=z
    )
    weighted, squares, products = _lift(SimpleNamespace(share=np.ones(n)), batch, 0)
    w = 1.0 / (tau + 1.0 / H)
    np.testing.assert_allclose([weighted, squares, products], [w @ (z * y), w @ z**2, z @ P])


def test_with_no_regression_it_is_the_plain_model():
    p = simulate_design("random", 3, sites=30, years=4, visits=500)
    federation = federation_of(p)
    plain = federation.fit(replace(SETTINGS, site_visits=False))
    again = fit_counts(panel_of(p, "none"), replace(SETTINGS, site_visits=False))
    np.testing.assert_array_equal(plain.expected(), again.expected())
    assert plain.state is not None
    assert plain.state.lift == 0.0


@pytest.mark.parametrize(("design", "taken"), [("preferred", True), ("handover", False)])
def test_it_is_taken_where_visits_follow_the_birds_and_nowhere_else(design, taken):
    p = simulate_design(design, 4)
    federation = LocalFederation.of_panel(panel_of(p, "none"))
    none = Choice(pd.DataFrame(), pd.DataFrame(), replace(SETTINGS, site_visits=False), "")
    hub, choice = try_site_visits(federation.link, federation.hub, none, folds=5, seed=0)
    assert choice.best.site_visits is taken
    assert ("it is used" in choice.advice) is taken
    assert hub.log_visits.size == 2


def test_few_sites_and_equal_visits_are_not_tried():
    p = simulate_design("preferred", 5, sites=12, years=4, visits=300)
    federation = LocalFederation.of_panel(panel_of(p, "none"))
    none = Choice(pd.DataFrame(), pd.DataFrame(), SETTINGS, "unchanged")
    assert try_site_visits(federation.link, federation.hub, none, folds=5, seed=0)[1].advice == "unchanged"
    site, month = np.divmod(np.arange(30 * 24), 24)
    even = GroupPanel.of(
        30,
        24,
        [
            Group.of(
                "g", site.astype(np.int32), month.astype(np.int32), np.ones(site.size), site.astype(np.int32)
            )
        ],
        (np.arange(24) % 12 + 1, 2000 + np.arange(24) // 12),
    )
    federation = LocalFederation.of_panel(even)
    assert ask_visits(federation.link, federation.hub).log_visits.size == 0
    assert try_site_visits(federation.link, federation.hub, none, folds=5, seed=0)[1].advice == "unchanged"


def test_a_group_without_a_site_changes_nothing():
    """A club whose visits are all elsewhere: its sums are zeros, also where the prior follows the number of visits."""
    p = simulate_design("preferred", 2, sites=30, years=4, visits=500)
    panel = panel_of(p, "site")
    none = Group.of("g9", p.site[:0], p.month[:0], p.count[:0], p.observer[:0])
    with_it = GroupPanel.of(panel.J, panel.L, [*panel.groups, none], panel.calendar)
    fits = []
    for one in (panel, with_it):
        federation = LocalFederation.of_panel(one)
        federation.ask_visits()
        fits.append(federation.fit(SETTINGS))
    np.testing.assert_allclose(fits[1].expected(), fits[0].expected(), rtol=1e-9)


def test_a_site_without_a_counted_visit_has_the_prior_of_the_mean_site():
    """The scale is that of the visited sites, and the others stand at 0; both ways of dealing visits say the same."""
    p = simulate_design("preferred", 1)
    seen = ~np.isin(p.site, (3, 17))
    rest = SimpleNamespace(
        **{k: getattr(p, k)[seen] for k in ("site", "month", "count", "observer")},
        year=p.year,
        expected=p.expected,
    )
    visits = np.bincount(rest.site, minlength=len(p.expected))
    want = np.log(visits[visits > 0] + 0.5)
    for by in ("none", "site", "observer"):
        federation = federation_of(rest, by)
        np.testing.assert_allclose(federation.hub.log_visits, [want.mean(), want.std()], rtol=1e-9)
    federation = federation_of(rest)
    (program,) = federation.programs.values()
    z = program._standardised(federation.hub.log_visits)
    assert z[[3, 17]].tolist() == [0.0, 0.0]
    np.testing.assert_allclose(z[visits > 0], (want - want.mean()) / want.std(), rtol=1e-9)
    low = federation.fit(SETTINGS).expected().mean(axis=1)
    assert low[[3, 17]].min() > np.quantile(low, 0.1), "not at the bottom, where the line ends"
