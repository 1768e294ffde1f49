"""Levels of sites follow when, and with how much effort, these were visited.

People who give up poor sites and take up good ones make no trend, and those who stay longer at good ones no power of effort.
"""

from dataclasses import replace

import numpy as np
import pytest

from fedmiss.errors import ConfigError
from fedmiss.federation.calls import fit_counts
from fedmiss.federation.group.covariates import differs
from fedmiss.federation.group.features import _times, _too_many
from fedmiss.federation.local import LocalFederation
from fedmiss.models.lowrank.data import Group, GroupPanel
from fedmiss.models.lowrank.settings import CountSettings
from fedmiss.models.lowrank.structure import FEATURES
from fedmiss.rng import rng_for

from .test_one_colony import SIZE, YEARS, slope_of

PLAIN = CountSettings(rank=0, dispersion="negbin", inverse_size=1.0 / SIZE)
SETTINGS = replace(PLAIN, features=("times",))
J = 50


def panel(
    *, chosen: bool, owners: int = 1, seed: int = 0, exact: bool = False, years: int = YEARS
) -> GroupPanel:
    """Counts without a trend; a fifth of the site-years is missing, two of five sites were given up, two taken up.

    ``chosen``: the poorest sites were given up and the best taken up, else any.
    """
    rng = rng_for(seed, "times")
    a = rng.standard_normal(J)
    mean = np.repeat(5.0 * np.exp(a)[:, None], years, axis=1)
    count = mean if exact else rng.poisson(mean * rng.gamma(SIZE, 1.0 / SIZE, mean.shape))
    place, turn = (a.argsort() if chosen else rng.permutation(J)).argsort() / J, rng.integers(3, 9, J)
    start, end = np.where(place >= 0.6, turn, 0), np.where(place < 0.4, turn, years)
    t = np.arange(years)
    there = (rng.random(mean.shape) < 0.8) & (t >= start[:, None]) & (t < end[:, None])
    site, year = np.nonzero(there)
    groups = [
        Group.of(f"g{k}", site[at], year[at], np.asarray(count, float)[site[at], year[at]])
        for k, at in ((k, site % owners == k) for k in range(owners))
    ]
    return GroupPanel.of(J, years, groups, (np.full(years, 6), 2001 + np.arange(years)))


def trend(panel: GroupPanel, settings: CountSettings) -> float:
    return float(slope_of(fit_counts(panel, settings).expected().sum(axis=0)))


def test_the_feature_is_the_mean_year_of_the_visits():
    p = panel(chosen=True, owners=2)
    federation = LocalFederation.of_panel(p)
    federation.ask_features([SETTINGS])
    site, month = (np.concatenate([getattr(g, name) for g in p.groups]) for name in ("site", "month"))
    mean = np.bincount(site, month, J) / np.maximum(np.bincount(site, minlength=J), 1)
    expected = np.where(np.bincount(site, minlength=J) > 0, (mean - 5.5) * np.sqrt(12.0) / 11.0, 0.0)
    for name, program in federation.programs.items():
        np.testing.assert_allclose(program.features[:, 0], expected[federation.at[name]], atol=1e-9)


def test_poor_sites_given_up_and_good_ones_taken_up_make_no_trend():
    """With expected counts themselves: the truth is 0, and without the feature 3 to 5 % a year."""
    p = panel(chosen=True, exact=True)
    assert trend(p, PLAIN) > 0.02
    assert abs(trend(p, SETTINGS)) < 0.006


def test_only_levels_follow_it():
    q = fit_counts(panel(chosen=True), SETTINGS).state.features
    assert q.used.tolist() == [[True, False]]
    assert q.B[0, 0] > 0.0
    assert q.B[0, 1] == 0.0


def test_where_times_have_nothing_to_do_with_levels_it_switches_itself_off():
    found = np.array(
        [fit_counts(panel(chosen=False, seed=seed), SETTINGS).state.features.B[0, 0] for seed in range(10)]
    )
    # Of noise the square of one coefficient is above twice its variance in 16 %: more than 5 of 10 in 1 of 300.
    assert (np.abs(found) > 0.01).sum() <= 5
    assert abs(found.mean()) < 0.15


def test_it_is_taken_without_a_trial():
    federation = LocalFederation.of_panel(panel(chosen=True))
    choice = federation.cross_validate([replace(PLAIN, inverse_size=None)], structure=FEATURES)
    assert "times" in choice.best.features
    assert not any("in which years" in trial.what for trial in choice.trials)


def test_a_panel_of_one_year_has_none():
    group = Group.of("g0", np.arange(J), np.arange(J) % 3, np.ones(J))
    months = GroupPanel.of(J, 3, [group], (np.arange(3) + 4, np.full(3, 2001)))
    with pytest.raises(ConfigError, match="mean year"):
        fit_counts(months, SETTINGS)


@pytest.mark.parametrize(("differ", "told"), [(5.0, True), (2.0, False)])
def test_where_few_sites_of_the_others_have_other_years_it_is_not_told(differ, told):
    """Most sites are counted in all years: the sums would be those of the few that are not."""
    out = _too_many([""], np.array(["times"]), np.array([differ, 30.0]))
    assert out.tolist() == [not told]


def test_sites_that_are_visited_in_all_years_have_one_mean_year_however_often():
    """Last digits made each of them differ, so few others that do were not seen as few."""
    rng = rng_for(0, "often")
    site, year = (x.ravel() for x in np.indices((J, YEARS)))
    there = rng.permutation(np.repeat(np.arange(site.size), rng.integers(1, 4, J)[site]))
    there = there[(site[there] > 1) | (year[there] > 3)]  # two sites were taken up late
    group = Group.of("g0", site[there], year[there], np.ones(there.size))
    federation = LocalFederation.of_panel(
        GroupPanel.of(J, YEARS, [group], (np.full(YEARS, 6), 2001 + np.arange(YEARS)))
    )
    federation.ask_features([SETTINGS])
    (program,) = federation.programs.values()
    program.jointly = True
    assert np.flatnonzero(differs(program, _times(program))).tolist() == [0, 1]


def longer_at_good_sites(owners: int = 1) -> GroupPanel:
    """Counts without a trend that grow with the root of the hours; these are more at good sites, and grow by 8 % a year."""
    rng = rng_for(0, "effort")
    a = rng.standard_normal(J)
    site, year = np.nonzero(rng.random((J, YEARS)) < 0.6)
    hours = 0.08 * (year - 5.5) + 0.5 * a[site] + 0.3 * rng.standard_normal(site.size)
    count = 5.0 * np.exp(a[site] + 0.5 * hours)
    groups = [
        Group.of(f"g{k}", site[at], year[at], count[at], effort=hours[at, None])
        for k, at in ((k, site % owners == k) for k in range(owners))
    ]
    return GroupPanel.of(J, YEARS, groups, (np.full(YEARS, 6), 2001 + np.arange(YEARS)))


def test_people_who_stay_longer_at_good_sites_make_no_power_of_effort():
    p = longer_at_good_sites()
    plain, fit = fit_counts(p, PLAIN), fit_counts(p, replace(PLAIN, features=("effort",)))
    assert plain.state.kappa[0] > 0.7
    assert abs(fit.state.kappa[0] - 0.5) < 0.1
    assert slope_of(plain.expected().sum(axis=0)) < -0.03
    assert abs(slope_of(fit.expected().sum(axis=0))) < 0.015


def test_the_fit_does_not_depend_on_the_groups():
    settings = replace(PLAIN, features=("times", "effort"))
    one, three = (fit_counts(longer_at_good_sites(owners), settings).expected() for owners in (1, 3))
    np.testing.assert_allclose(three, one, rtol=1e-6)


@pytest.mark.parametrize("unit", [0.0, 1.4, -2.0])
def test_a_site_that_nobody_visited_is_as_one_of_mean_effort(unit):
    """It was as one whose visits take an hour: where all take four, a twentieth of the others' birds stood there."""
    p, extra = longer_at_good_sites(), 3
    (g,) = p.groups
    group = Group.of("g0", g.site, g.month, g.count, effort=g.effort + unit)
    wide = GroupPanel.of(J + extra, YEARS, [group], p.calendar)
    mean = fit_counts(wide, replace(PLAIN, features=("effort",))).expected().mean(axis=1)
    assert 0.5 < mean[J:].mean() / mean[:J].mean() < 1.2


def test_levels_follow_neither_where_one_site_in_ten_was_never_visited():
    p = longer_at_good_sites()
    wide = GroupPanel.of(J + 10, YEARS, list(p.groups), p.calendar)
    models = [replace(PLAIN, inverse_size=None)]
    for panel_, taken in ((p, True), (wide, False)):
        choice = LocalFederation.of_panel(panel_).cross_validate(models, folds=2, structure=FEATURES)
        assert ("effort" in choice.best.features) is taken


@pytest.mark.mc
@pytest.mark.slow
def test_the_error_is_less_than_half_and_hardly_more_where_times_say_nothing():
    def rmse(settings, chosen):
        return np.sqrt(np.mean([trend(panel(chosen=chosen, seed=s), settings) ** 2 for s in range(40)]))

    assert rmse(SETTINGS, True) < 0.5 * rmse(PLAIN, True)
    assert rmse(SETTINGS, False) < 1.15 * rmse(PLAIN, False)
