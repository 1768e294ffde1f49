"""The slopes of sites follow how many birds these have: the total is of the sites with most birds."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from fedmiss.federation.calls import fit_counts
from fedmiss.federation.group.features import feature_sums
from fedmiss.federation.hub.coefficients import slope_by_abundance
from fedmiss.federation.local import LocalFederation
from fedmiss.federation.triangle import from_triangle
from fedmiss.models.lowrank.data import Group, GroupPanel
from fedmiss.models.lowrank.settings import CountSettings
from fedmiss.models.lowrank.structure import FEATURES
from fedmiss.rng import rng_for

from .test_one_colony import SIZE, YEARS, T, X, slope_of

PLAIN = CountSettings(rank=0, dispersion="negbin", inverse_size=1.0 / SIZE)
SETTINGS = replace(PLAIN, features=("abundance",))
J = 40


def panel(
    rise: float, *, owners: int = 1, level: float = 1.0, seed: int = 0, exact: bool = False
) -> GroupPanel:
    """Counts of sites whose levels differ by ``level``, and whose slopes rise by ``rise`` a year for each unit of them."""
    rng = rng_for(seed, "abundance")
    a = level * rng.standard_normal(J)
    mean = 20.0 * np.exp(a[:, None] + rise * (a - a.mean())[:, None] * T)
    count = mean if exact else rng.poisson(mean * rng.gamma(SIZE, 1.0 / SIZE, mean.shape))
    there = rng.random(mean.shape) < (1.0 if exact else 0.7)
    site, year = np.nonzero(there)
    groups = [
        Group.of(f"g{k}", site[at], year[at], np.asarray(count, float)[site[at], year[at]])
        for k, at in ((k, site % owners == k) for k in range(owners))
    ]
    return GroupPanel.of(J, YEARS, groups, (np.full(YEARS, 6), 2001 + np.arange(YEARS)))


def test_the_feature_is_the_log_ratio_of_the_site_to_the_mean_site_at_its_visits():
    p = panel(0.0, owners=2)
    federation = LocalFederation.of_panel(p)
    federation.ask_features([SETTINGS])
    site, month, count = (
        np.concatenate([getattr(g, name) for g in p.groups]) for name in ("site", "month", "count")
    )
    level = np.bincount(month, count) / np.bincount(month)
    birds, usual, one = np.bincount(site, count, J), np.bincount(site, level[month], J), count.mean()
    for name, program in federation.programs.items():
        at = federation.at[name]
        expected = np.log((birds[at] + one) / (usual[at] + one))
        np.testing.assert_allclose(program.features[:, 0], expected, atol=1e-12)


def test_only_slopes_follow_it():
    fit = fit_counts(panel(0.08), SETTINGS)
    q = fit.state.features
    assert q.used.tolist() == [[False, True]]
    assert q.B[0, 0] == 0.0
    assert q.B[0, 1] > 0.0
    assert not fit_counts(panel(0.08), replace(SETTINGS, slopes=False)).state.features.B.any()


def test_where_large_sites_change_in_another_way_it_says_by_how_much():
    """With expected counts themselves; log abundance is a line in the level, but for the visit more."""
    fit = fit_counts(panel(0.05, exact=True), SETTINGS)
    per_year = slope_by_abundance(fit.state) * (X[1] - X[0])
    assert abs(per_year - 0.05) < 0.01


def test_where_sites_are_alike_it_switches_itself_off():
    fits = [fit_counts(panel(0.0, seed=seed), SETTINGS).state for seed in range(20)]
    slopes = np.array([slope_by_abundance(state) for state in fits]) * (X[1] - X[0])
    # Of noise the square of one coefficient is above twice its variance in 16 %: more than 8 of 20 in 1 of 300.
    assert (slopes != 0.0).sum() <= 8
    assert abs(slopes.mean()) < 0.005


@pytest.mark.parametrize("when", ["late", "early"])
def test_sites_that_were_visited_late_do_not_make_it(when):
    """The counts of a site that was only visited late tell its abundance, which its level explains, and no slope."""
    found = []
    for seed in range(12):
        group = panel(0.0, seed=seed).groups[0]
        thin = (group.month < 8) if when == "late" else (group.month > 3)
        at = (group.site < 10) | ~thin
        group = Group.of("g0", group.site[at], group.month[at], group.count[at])
        late = GroupPanel.of(J, YEARS, [group], panel(0.0).calendar)
        found.append(slope_by_abundance(fit_counts(late, SETTINGS).state) * (X[1] - X[0]))
    assert (np.array(found) != 0.0).sum() <= 6
    assert abs(np.mean(found)) < 0.01


def errors(settings: CountSettings, rise: float, seeds: int) -> np.ndarray:
    """Errors of the slope of the total, over draws of panels with few sites of many birds."""
    out = []
    for seed in range(seeds):
        truth = panel(rise, level=1.5, seed=seed, exact=True)
        mean = np.zeros((J, YEARS))
        group = truth.groups[0]
        mean[group.site, group.month] = group.count
        fit = fit_counts(panel(rise, level=1.5, seed=seed), settings)
        out.append(slope_of(fit.expected().sum(axis=0)) - slope_of(mean.sum(axis=0)))
    return np.array(out)


@pytest.mark.slow
def test_the_trend_of_the_total_is_nearer_the_truth_and_hardly_worse_where_sites_are_alike():
    def rmse(settings, rise):
        return float(np.sqrt((errors(settings, rise, 40) ** 2).mean()))

    assert rmse(SETTINGS, 0.03) < 0.85 * rmse(PLAIN, 0.03)
    assert rmse(SETTINGS, 0.0) < 1.3 * rmse(PLAIN, 0.0)


def test_it_is_taken_with_the_slopes_and_without_a_trial():
    federation = LocalFederation.of_panel(panel(0.05))
    choice = federation.cross_validate([replace(PLAIN, inverse_size=None)], structure=FEATURES)
    assert "abundance" in choice.best.features
    assert not any("birds it has" in trial.what for trial in choice.trials)
    alone = federation.cross_validate([replace(PLAIN, inverse_size=None, slopes=False)], structure=FEATURES)
    assert "abundance" not in alone.best.features


def test_a_level_that_is_told_late_makes_no_slope_that_follows_it():
    """Slopes without any relation to levels, visits around one year on: abundance is then the level and some of the slope.

    The equation of its coefficient is 0 in the mean, and its curvature the variance of its gradient.
    """
    rng, J, tau = np.random.default_rng(8), 20_000, np.array([1.0, 0.5])
    drawn = rng.normal(size=(J, 2)) * np.sqrt(tau)
    middle, known = rng.normal(1.0, 0.3, J), rng.gamma(2.0, 2.0, J)
    H = np.empty((J, 2, 2))
    H[:, 0, 0], H[:, 1, 1] = known, known * (middle**2 + rng.gamma(1.0, 0.2, J))
    H[:, 0, 1] = H[:, 1, 0] = known * middle
    told = drawn + (np.linalg.cholesky(np.linalg.inv(H)) @ rng.normal(size=(J, 2, 1)))[..., 0]
    C = np.linalg.inv(H + np.diag(1.0 / tau))
    F = told[:, :1] + middle[:, None] * told[:, 1:]
    batch = SimpleNamespace(
        F=F, B=np.zeros((1, 1, 2)), of_slopes=np.array([True]), site_mean=(C @ H @ told[..., None])[None, ..., 0],
        site_prior=np.zeros((1, J, 2)), site_cov=C[None], tau=tau[None], major=np.array([-1]),
    )  # fmt: skip
    ((equations,), _) = feature_sums(batch, np.arange(1), 2)
    curvature = from_triangle(equations[4:], 4)[2, 2]  # of effect and constant, then of slope and constant
    assert abs(equations[2]) < 3.0 * np.sqrt(curvature)
    assert curvature > 1000.0
