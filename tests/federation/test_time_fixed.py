"""``--time fixed``: the plain site and time model over groups, against TRIM's model 3, a GLM, and its own identities."""

import numpy as np
import pytest
from statsmodels.genmod.families import Poisson
from statsmodels.genmod.generalized_linear_model import GLM

from fedmiss.errors import ConfigError, InputError
from fedmiss.federation.calls import bootstrap, fit_counts
from fedmiss.federation.local import LocalFederation
from fedmiss.models.lowrank.data import Group, GroupPanel
from fedmiss.models.lowrank.settings import CountSettings
from fedmiss.pipeline.plans import check_fixed
from fedmiss.pipeline.settings import FitSettings
from fedmiss.report.trim import TrimSettings, fit_trim

FIXED = CountSettings(time="fixed", rank=0, season=False, slopes=False)
YEARS = 9


def table(seed=0, sites=30, seen=0.5):
    """Counts of sites in years, in rows (site, year, count); the last two sites have no bird."""
    rng = np.random.default_rng(seed)
    a, b = rng.normal(1.5, 1.0, sites), rng.normal(0.0, 0.4, YEARS)
    at = np.argwhere(rng.random((sites, YEARS)) < seen)
    y = rng.poisson(np.exp(a[at[:, 0]] + b[at[:, 1]])).astype(float)
    y[at[:, 0] >= sites - 2] = 0.0
    return at[:, 0], at[:, 1], y


def panel(site, year, y, sites=30, groups=1):
    """A panel of yearly counts; each site belongs to one group."""
    members = [
        Group.of(f"g{g}", site[m], year[m], y[m], np.unique(site[m], return_inverse=True)[1])
        for g in range(groups)
        for m in [site % groups == g]
    ]
    return GroupPanel.of(sites, YEARS, members, (np.full(YEARS, 6), 2000 + np.arange(YEARS)))


def test_totals_and_indices_are_those_of_trims_model_3():
    site, year, y = table()
    fit = fit_counts(panel(site, year, y, groups=3), FIXED)
    trim = fit_trim(site, 2000 + year, y, TrimSettings(model=3))
    total, other = fit.expected().sum(axis=0), trim.stratum().model
    np.testing.assert_allclose(total, other, rtol=1e-10)
    np.testing.assert_allclose(total / total[0], other / other[0], rtol=1e-10)
    np.testing.assert_allclose(fit.expected()[28:], 0.0, atol=1e-12)  # sites without a bird are dropped


def test_it_is_the_glm_with_site_and_time_factors():
    site, year, y = table(3)
    mine = site < 28
    X = np.column_stack([site[mine][:, None] == np.arange(28), year[mine][:, None] == np.arange(1, YEARS)])
    glm = GLM(y[mine], X.astype(float), family=Poisson()).fit(tol=1e-12)
    fit = fit_counts(panel(site, year, y), FIXED)
    mu = fit.expected()[site[mine], year[mine]]
    np.testing.assert_allclose(mu, glm.mu, rtol=1e-8)
    assert fit.edf == 28 + YEARS - 1
    # 0 / 0 where there is no bird
    assert fit.dispersion == pytest.approx(glm.pearson_chi2 / (y.size - fit.edf))


def test_several_counts_of_a_cell_count_as_often():
    site, year, y = table(5)
    rng = np.random.default_rng(8)
    again = rng.random(y.size) < 0.4
    s, t = np.r_[site, site[again]], np.r_[year, year[again]]
    c = np.r_[y, rng.poisson(y[again]).astype(float)]
    fit = fit_counts(panel(s, t, c, groups=2), FIXED)
    # the equations of the model: fitted and counted birds agree at every site and in every year
    n = np.zeros((30, YEARS))
    np.add.at(n, (s, t), 1.0)
    mu = n * fit.expected()
    np.testing.assert_allclose(mu.sum(axis=0), np.bincount(t, c, YEARS), rtol=1e-9)
    np.testing.assert_allclose(mu.sum(axis=1), np.bincount(s, c, 30), rtol=1e-9, atol=1e-12)
    assert fit.state is not None
    np.testing.assert_allclose(fit.state.visited[:, 2], fit.state.visited[:, 1], rtol=1e-9)


def test_groups_do_not_matter():
    site, year, y = table(7)
    one, four = (fit_counts(panel(site, year, y, groups=g), FIXED) for g in (1, 4))
    np.testing.assert_allclose(one.expected(), four.expected(), rtol=1e-10, atol=1e-12)
    B = bootstrap(panel(site, year, y, groups=4), four, draws=40, seed=1).totals[:, 0]
    spread = np.log(B).std(axis=0, ddof=1)
    assert (spread > 0).all()
    assert np.abs(np.log(B.mean(axis=0)) - np.log(four.expected().sum(axis=0))).max() < 4 * spread.max()


def test_a_year_without_a_bird_is_refused_by_name():
    site, year, y = table(2)
    y[year == 4] = 0.0
    with pytest.raises(InputError, match=r"no bird was counted in 2004: .*--time smooth"):
        fit_counts(panel(site, year, y), FIXED)
    keep = year != 4
    with pytest.raises(InputError, match="2004"):
        fit_counts(panel(site[keep], year[keep], y[keep]), FIXED)


def test_years_that_no_site_links_are_refused():
    site = np.array([0, 0, 1, 1, 2, 2, 3, 3, 3])
    year = np.array([0, 1, 2, 3, 4, 5, 6, 7, 8])
    with pytest.raises(InputError, match="do not determine all parameters"):
        fit_counts(panel(site, year, np.full(9, 3.0), sites=4), FIXED)


@pytest.mark.parametrize(
    ("other", "named"),
    [
        ({"model": "negbin"}, "--model"), ({"rank": "2"}, "--rank"), ({"effort": "duration"}, "--effort"),
        ({"observers": True}, "--observers"), ({"minimum": 5}, "--minimum"),
    ],
)  # fmt: skip
def test_what_the_model_does_not_have_is_refused(other, named):
    with pytest.raises(ConfigError, match=f"leave out {named}"):
        check_fixed(FitSettings(time="fixed", **other))


def test_a_least_number_of_sites_forbids_it_at_the_group_too():
    site, year, y = table(1)
    federation = LocalFederation.of_panel(panel(site, year, y), minimum=3)
    with pytest.raises(ConfigError, match="no least number can be kept"):
        federation.fit(FIXED)
