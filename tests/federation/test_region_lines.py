"""Lines of regions: the posterior of their variance, when they are taken, and whether intervals of their trends hold."""

from dataclasses import replace

import numpy as np
import pytest

from fedmiss.federation.fit_tables import totals_by_region
from fedmiss.federation.hub.coefficients import Coefficients
from fedmiss.federation.hub.few import drawn_variance
from fedmiss.federation.hub.structure import MANY_REGIONS, _clear
from fedmiss.federation.local import LocalFederation
from fedmiss.models.lowrank.choice import Trial
from fedmiss.models.lowrank.data import Group, GroupPanel
from fedmiss.models.lowrank.settings import CountSettings
from fedmiss.models.lowrank.structure import FEATURES
from fedmiss.rng import rng_for
from tests.federation.owners import tried

LINES = CountSettings(rank=0, dispersion="negbin", features=("regions",))
R, YEARS = 6, 12


def country(seed, spread, *, groups=3, rate=0.05, sites=20):
    """Regions whose slopes differ by ``spread`` a year; the panel, the true means (J, L), the region of each site."""
    rng = rng_for(seed, "regions that differ")
    region, L = np.repeat(np.arange(R), sites), 12 * YEARS
    J, t = region.size, np.arange(L)
    slope = -0.02 + spread * rng.normal(size=R)[region] + 0.02 * rng.normal(size=J)
    season = 0.4 * np.sin(2 * np.pi * t / 12)
    mean = np.exp(0.3 + rng.normal(size=(J, 1)) + slope[:, None] * (t // 12 - 5.5) + season)
    site, month = np.nonzero(rng.random((J, L)) < rate)
    mu, observer = mean[site, month], region[site] * 8 + rng.integers(0, 8, site.size)
    count = rng.negative_binomial(2.0, 2.0 / (2.0 + mu)).astype(float)
    members = [
        Group.of(f"g{k}", site[m], month[m], count[m], np.unique(observer[m], return_inverse=True)[1])
        for k in range(groups)
        if (m := site % groups == k).any()
    ]
    names = np.array([f"r{i}" for i in range(R)], dtype=object)[region]
    return GroupPanel.of(J, L, members, (t % 12 + 1, 2000 + t // 12), region=names), mean, region


def slope_of(monthly):
    """Slope of log yearly totals (..., 12 years)."""
    x = np.arange(YEARS) - (YEARS - 1) / 2
    return np.log(monthly.reshape(*monthly.shape[:-1], YEARS, 12).mean(axis=-1)) @ x / (x @ x)


@pytest.mark.parametrize("seed", range(4))
def test_the_variance_of_a_few_coefficients_is_drawn_from_its_posterior(seed):
    """Against the integral: prior of the standard deviation times the density of estimates N(0, V + rho I)."""
    rng = rng_for(seed, "few")
    k, unit, scale, rho = int(rng.integers(2, 7)), float(rng.uniform(0.5, 2.0)), 0.3, 0.03
    A = rng.normal(size=(k, k + 3))
    V = 0.02 * unit**2 * A @ A.T / (k + 3)  # of the estimates
    estimates = rng.multivariate_normal(np.zeros(k), V + (0.1 * unit) ** 2 * np.eye(k))
    cov = np.linalg.inv(np.linalg.inv(V) + np.eye(k) / rho)
    mean = cov @ np.linalg.inv(V) @ estimates
    sd = np.linspace(1e-3, 2.0, 4000) * unit
    total = V + sd[:, None, None] ** 2 * np.eye(k)
    square = np.einsum("a,nab,b->n", estimates, np.linalg.inv(total), estimates)
    log = -0.5 * (square + np.linalg.slogdet(total)[1] + (sd / unit / scale) ** 2)
    cdf = np.cumsum(np.exp(log - log.max()))
    for level in (0.1, 0.5, 0.9):
        exact = np.interp(level, cdf / cdf[-1], sd)
        assert drawn_variance(cov, mean, rho, scale, unit, level) ** 0.5 == pytest.approx(exact, rel=0.05)


def of_two_blocks(rho):
    """Coefficients of visits (of the effect only) and of three regions, under a variance of regions that has moved since."""
    rng = rng_for(5, "blocks")
    information = np.array([x @ x.T for x in rng.normal(size=(2, 4, 9))])
    under = np.array([[0.3, 0.1], [0.2, 0.02]])
    block = np.array([0, 1, 1, 1])
    cov, aim = np.zeros((2, 4, 4)), np.zeros((4, 2))
    score = rng.normal(size=(4, 2))
    for c, at in enumerate((np.arange(4), np.arange(1, 4))):
        prior = np.diag(1.0 / under[block[at], c])
        cov[c][np.ix_(at, at)] = np.linalg.inv(information[c][np.ix_(at, at)] + prior)
        aim[at, c] = cov[c][np.ix_(at, at)] @ score[at, c]
    zero = np.zeros((4, 2))
    one = Coefficients(
        ("visits", "regions"), np.arange(4), block, aim, zero, under * rho, cov, aim, under, 1.0
    )
    return one, information, score


@pytest.mark.parametrize("rho", [1.0, 0.3])
def test_a_replicate_starts_at_what_the_data_say_under_its_own_variance(rho):
    """Whatever the variance has become since the covariance was computed; another block speaks of the effect only."""
    one, information, score = of_two_blocks(rho)
    drawn = [one.drawn(rng_for(seed, "own")) for seed in range(40)]
    assert len({tuple(d.rho[1]) for d in drawn}) == len(drawn)
    for d in drawn:
        np.testing.assert_array_equal(d.rho[0], one.rho[0])
        # of the slope: only regions speak of it
        A = information[1][1:, 1:] + np.eye(3) / d.rho[1, 1]
        np.testing.assert_allclose(A @ d.B[1:, 1], score[1:, 1] + d.prior[1:, 1] / d.rho[1, 1], rtol=1e-8)
        assert d.B[0, 1] == d.prior[0, 1] == 0.0


@pytest.mark.parametrize("seed", range(2))
def test_lines_of_regions_and_what_is_drawn_of_them_do_not_depend_on_the_groups(seed):
    one, three = (
        LocalFederation.of_panel(country(seed, 0.04, groups=groups, sites=8)[0]).fit(LINES)
        for groups in (1, 3)
    )
    np.testing.assert_allclose(three.expected(), one.expected(), rtol=1e-7)
    drawn = [fit.state.features.drawn(rng_for(seed, "own")) for fit in (one, three)]
    for name in ("rho", "prior", "B"):
        np.testing.assert_allclose(getattr(drawn[1], name), getattr(drawn[0], name), rtol=1e-6, atol=1e-9)


def test_lines_of_regions_are_kept_unless_they_predict_clearly_worse():
    panel, *_ = country(0, 0.04, sites=8)
    hub = LocalFederation.of_panel(panel).hub
    for gain, kept in ((0.0, True), (-0.019, True), (-0.021, False), (0.02, True)):
        assert _clear(Trial("regions", "sites", gain, 0.01), hub) is kept
        assert _clear(Trial("covariates", "sites", gain, 0.01), hub) is (gain > 0.005)
    # one fold of five that went wrong: never two errors
    assert not _clear(Trial("regions", "sites", -0.5, 0.5), hub)
    many = replace(hub, regions=tuple(map(str, range(MANY_REGIONS + 1))))
    assert not _clear(Trial("regions", "sites", 0.0, 0.01), many)


@pytest.mark.slow
@pytest.mark.parametrize("spread", [0.045, 0.03])
def test_the_choice_takes_lines_of_regions_that_differ(spread):
    """They were left out of every third country, since sites left out, whose levels scatter, hardly tell them."""
    for seed in range(6):
        federation = LocalFederation.of_panel(country(seed, spread)[0])
        assert "regions" in tried(federation, FEATURES).best.features


@pytest.mark.slow
@pytest.mark.parametrize("spread", [0.045, 0.02, 0.0])
def test_intervals_of_trends_of_regions_hold_the_truth(spread):
    """Whether regions differ much, little or not at all; and of the whole as well."""
    z = []
    for seed in range(10):
        panel, mean, region = country(seed, spread)
        federation = LocalFederation.of_panel(panel)
        total = totals_by_region(federation.fit(LINES), region, R)
        drawn = federation.replicates(range(40), seed=seed).totals
        truth = slope_of(np.array([mean.sum(axis=0), *(mean[region == i].sum(axis=0) for i in range(R))]))
        z.append((slope_of(total) - truth) / slope_of(drawn).std(axis=0, ddof=1))
    held = np.abs(z) < 1.96
    assert held[:, 1:].mean() >= 0.925
    assert held[:, 0].mean() >= 0.8
