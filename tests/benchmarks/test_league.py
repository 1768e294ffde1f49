"""The league: masks hide what they say, scores are those of known laws, and the Gaussian model obeys its laws."""

import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from fedimpute_scenarios import SCENARIOS, MissingNormal, Normal, gaps
from league_data import MASKS, Visits, hidden
from league_methods import METHODS, Task, _of_points, deviance, log_score, panel_of, predicted

from fedmiss.core.testing import check_model
from fedmiss.federation.local import LocalFederation
from fedmiss.models.lowrank.data import Group, GroupPanel
from fedmiss.models.lowrank.settings import CountSettings


@pytest.fixture(scope="module")
def visits():
    rng = np.random.default_rng(0)
    site, year = (x.ravel() for x in np.meshgrid(np.arange(25), np.arange(2001, 2013), indexing="ij"))
    mean = np.exp(1.5 + rng.normal(0, 0.8, 25)[site] + 0.03 * (year - 2006))
    table = pd.DataFrame(
        {
            "site": site.astype(str), "year": year, "month": 1, "count": rng.poisson(mean).astype(float),
            "observer": (site % 7).astype(str), "owner": (site % 3).astype(str),
        }
    )  # fmt: skip
    return Visits("made up", table, observed=True, owned=True)


@pytest.mark.parametrize("mask", MASKS)
def test_masks_hide_what_they_say_and_leave_every_year(visits, mask):
    away = hidden(visits, mask, 1)
    t = visits.table
    assert away.any()
    assert not t.assign(away=away).groupby("year")["away"].all().any()
    assert np.array_equal(away, hidden(visits, mask, 1))
    if mask == "cells":
        assert abs(away.mean() - 0.2) < 0.01
    if mask == "last years":
        assert set(t["year"][away]) == {2010, 2011, 2012}
    for column, name in (("sites", "site"), ("observer", "observer"), ("owner", "owner")):
        if mask == column:
            parts = t.assign(away=away).groupby(name)["away"].mean()
            assert set(parts) == {0.0, 1.0}, "whole, or not at all"
            assert parts.sum() == (5 if mask == "sites" else 1)


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_every_method_predicts_all_hidden_counts(visits, name):
    away = hidden(visits, "cells", 0)
    task = Task.of(visits.table, away)
    p = METHODS[name](task)
    y = task.test["count"].to_numpy()
    for part in (p.expected, p.lower, p.upper, p.log_score):
        assert part.shape == y.shape
        assert np.isfinite(part).all()
    assert (p.lower <= p.upper).all()
    assert deviance(y, p.expected).mean() < deviance(y, np.full(y.size, y.mean())).mean()


def test_log_scores_are_log_probabilities(visits):
    """They sum to one over all counts, and without errors are those of the negative binomial."""
    t = visits.table
    panel = GroupPanel.of(25, 12, [Group.of("a", t["site"].astype(int), t["year"] - 2001, t["count"])])
    fit = LocalFederation.of_panel(panel).fit_average([CountSettings(rank=0, dispersion="negbin")])
    eta, var = np.full(400, 1.3), np.full(400, 0.2)
    # nodes of a quadrature
    assert np.exp(log_score(fit.law, eta, var, np.arange(400.0))).sum() == pytest.approx(1.0, abs=1e-5)
    size = fit.fits[0].aux.size
    p = size / (size + np.exp(1.3)) if np.isfinite(size) else None
    known = stats.nbinom(size, p) if p is not None else stats.poisson(np.exp(1.3))
    np.testing.assert_allclose(
        log_score(fit.law, eta[:20], np.zeros(20), np.arange(20.0)), known.logpmf(np.arange(20)), atol=1e-5
    )


def test_the_size_of_the_others_is_that_of_their_residuals():
    rng = np.random.default_rng(3)
    mean = np.exp(rng.normal(2, 0.7, 4000))
    y = rng.negative_binomial(2.0, 2.0 / (2.0 + mean)).astype(float)
    frame = pd.DataFrame({"count": y})
    task = Task(frame, frame, 1, 1, (np.ones(1), np.ones(1)), np.array(["a"]))
    p = _of_points(task, mean, mean)
    assert abs(((y >= p.lower) & (y <= p.upper)).mean() - 0.96) < 0.02


def test_hidden_counts_of_the_model_are_covered(visits):
    away = hidden(visits, "cells", 2)
    task = Task.of(visits.table, away)
    t = task.train
    panel = GroupPanel.of(task.J, task.L, [Group.of("a", t["j"], t["t"], t["count"])], task.calendar)
    p = predicted(
        task, LocalFederation.of_panel(panel).fit_average([CountSettings(rank=0, dispersion="negbin")])
    )
    y = task.test["count"].to_numpy()
    assert ((y >= p.lower) & (y <= p.upper)).mean() > 0.85


def test_a_hidden_count_is_predicted_by_who_made_the_visit():
    """Of eight observers four find five times as much as the others; the mean observer's count is neither's."""
    rng = np.random.default_rng(0)
    site, year = (x.ravel() for x in np.meshgrid(np.arange(25), np.arange(2001, 2013), indexing="ij"))
    who = rng.integers(0, 8, site.size)
    mean = np.exp(2.0 + rng.normal(0, 0.6, 25)[site] + np.where(who < 4, -0.8, 0.8))
    table = pd.DataFrame(
        {
            "site": site.astype(str),
            "year": year,
            "month": 1,
            "count": rng.poisson(mean),
            "observer": who.astype(str),
        }
    )
    away = rng.random(site.size) < 0.2
    task = Task.of(table.assign(owner="a"), away)
    model = CountSettings(rank=0, dispersion="negbin", observers=True)
    p = predicted(task, LocalFederation.of_panel(panel_of(task)).fit_average([model]))
    for some in (who[away] < 4, who[away] >= 4):
        assert 0.9 < p.expected[some].sum() / mean[away][some].sum() < 1.1


# -- the tables of FedImpute's scenarios -----------------------------------------------------------------------------------


def test_the_normal_with_missing_entries_obeys_the_laws_of_a_model():
    rng = np.random.default_rng(0)
    A = rng.normal(size=(4, 4))
    rows = rng.normal(size=(60, 4)) @ A.T
    rows[rng.random(rows.shape) < 0.3] = np.nan
    theta = Normal(rng.normal(size=4), A @ A.T + np.eye(4))
    check_model(MissingNormal(4), rows, theta)


def test_conditional_moments_are_those_of_the_textbook():
    """One row by the formula for a partitioned normal."""
    rng = np.random.default_rng(1)
    A = rng.normal(size=(5, 5))
    theta = Normal(rng.normal(size=5), A @ A.T + np.eye(5))
    row = rng.normal(size=(1, 5))
    row[0, [1, 3]] = np.nan
    mean, cov = MissingNormal(5).moments(theta, row)
    o, m = [0, 2, 4], [1, 3]
    G = theta.Sigma[np.ix_(m, o)] @ np.linalg.inv(theta.Sigma[np.ix_(o, o)])
    np.testing.assert_allclose(mean[0, m], theta.mu[m] + G @ (row[0, o] - theta.mu[o]))
    np.testing.assert_allclose(
        cov[0][np.ix_(m, m)], theta.Sigma[np.ix_(m, m)] - G @ theta.Sigma[np.ix_(o, m)]
    )
    np.testing.assert_allclose(cov[0][o], 0.0, atol=1e-12)


@pytest.mark.parametrize("how", SCENARIOS)
def test_scenarios_hide_what_they_say(how):
    rng = np.random.default_rng(2)
    X, client = rng.normal(size=(4000, 6)), rng.integers(0, 5, 4000)
    out = gaps(X, client, how, rng)
    assert not out.all(axis=1).any()
    shares = [out[client == c].mean() for c in range(5)]
    assert (np.ptp(shares) > 0.05) == ("heterogeneous" in how)
    higher = X[out].mean() - X[~out].mean()
    if how == "MNAR homogeneous":
        assert higher > 0.5
    if how.startswith("MCAR"):
        assert abs(higher) < 0.05
