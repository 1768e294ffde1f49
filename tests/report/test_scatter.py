"""Laws of the scatter of years: what it is, what it adds to the error of a trend, and how often it misleads."""

import numpy as np
import pytest
from scipy import stats
from statsmodels.regression.linear_model import OLS
from statsmodels.tools import add_constant

from fedmiss.errors import ConfigError
from fedmiss.report.classes import student_quantile
from fedmiss.report.scatter import ODDS, RUNS, contrast_error, correlation, scatter_of_years, year_variance
from fedmiss.report.trends import overall_trend

from .conftest import axis


def replicates(total, cov, B, seed):
    """Log-normal replicates whose covariance of logs is ``cov`` itself."""
    z = np.random.default_rng(seed).normal(size=(B, total.size))
    z -= z.mean(axis=0)
    z = z @ np.linalg.inv(np.linalg.cholesky(np.cov(z, rowvar=False))).T
    return total * np.exp(z @ np.linalg.cholesky(cov).T)


def test_without_error_of_the_totals_it_is_ordinary_least_squares():
    rng = np.random.default_rng(0)
    year = np.r_[2000:2008, 2011:2016].astype(float)
    logs = 3 - 0.04 * year + rng.normal(0, 0.2, year.size)
    ols = OLS(logs, add_constant(year - year.mean())).fit()
    sigma2, _ = year_variance(year, logs, np.zeros((year.size, year.size)))
    assert sigma2 == pytest.approx(ols.mse_resid, rel=1e-5)
    x = year - year.mean()
    se, quantile = contrast_error(x / (x @ x), 0.0, sigma2 * np.eye(year.size))
    assert se == pytest.approx(ols.bse[1], rel=1e-5)
    np.testing.assert_allclose(
        [ols.params[1] - quantile * se, ols.params[1] + quantile * se], ols.conf_int()[1], rtol=1e-5
    )


def test_three_years_have_one_residual_and_its_square_is_the_scatter():
    year, logs = np.array([2000.0, 2001.0, 2002.0]), np.array([1.0, 1.6, 1.1])
    residual = (logs[0] - 2 * logs[1] + logs[2]) / np.sqrt(6)
    alone, in_runs = (year_variance(year, logs, np.zeros((3, 3)), rho) for rho in (0.0, RUNS))
    assert alone[0] == pytest.approx(residual**2, rel=1e-6)
    assert in_runs[1] == pytest.approx(alone[1], rel=1e-9)  # so they cannot tell independent years from runs
    v = np.array([1, -2, 1]) / np.sqrt(6)
    assert in_runs[0] == pytest.approx(residual**2 / (v @ correlation(year, RUNS) @ v), rel=1e-6)


def test_no_scatter_where_the_residuals_lie_within_the_error_of_the_totals():
    rng = np.random.default_rng(1)
    year = np.arange(12.0)
    A = rng.normal(size=(12, 12)) / 4
    cov = A @ A.T + 0.04 * np.eye(12)
    small = 0.02 * rng.normal(size=12)
    assert year_variance(year, 1 - 0.1 * year + small, cov)[0] == 0.0
    assert year_variance(year, 1 - 0.1 * year, 0 * cov)[0] == 0.0
    big = 1.5 * rng.normal(size=12)
    assert year_variance(year, big, cov)[0] > 0


@pytest.mark.parametrize("rho", [0.0, RUNS])
def test_it_does_not_know_level_line_or_unit_and_a_common_error_is_no_scatter(rho):
    rng = np.random.default_rng(2)
    year = np.arange(2000.0, 2015.0)
    logs, cov = rng.normal(0, 0.3, 15), 0.01 * np.eye(15)
    want = year_variance(year, logs, cov, rho)
    x = year - year.mean()
    shared = 0.5 * np.ones((15, 15)) + 0.2 * np.outer(x, x)
    for other in (logs + 5, logs + 0.3 * year):
        assert year_variance(year, other, cov, rho) == pytest.approx(want, rel=1e-6)
    assert year_variance(year, logs, cov + shared, rho) == pytest.approx(want, rel=1e-6)


def restricted(year, logs, V):
    """-2 log of the restricted likelihood of covariance V, but for a constant: the textbook's dense form."""
    X = np.column_stack([np.ones(year.size), year - year.mean()])
    W = np.linalg.inv(V)
    XWX = X.T @ W @ X
    P = W - W @ X @ np.linalg.solve(XWX, X.T @ W)
    return (
        np.linalg.slogdet(V)[1] + np.linalg.slogdet(XWX)[1] - np.linalg.slogdet(X.T @ X)[1] + logs @ P @ logs
    )


@pytest.mark.parametrize("rho", [0.0, 0.4, RUNS])
def test_it_is_the_maximum_of_the_restricted_likelihood_and_gives_its_value(rho):
    rng = np.random.default_rng(3)
    year = np.r_[0.0:6.0, 8.0:12.0]  # two years are missing
    A = rng.normal(size=(10, 10)) / 10
    cov, logs = A @ A.T, rng.normal(0, 1.0, 10)
    got, loss = year_variance(year, logs, cov, rho)
    R = rho ** np.abs(np.subtract.outer(year, year))
    assert loss == pytest.approx(restricted(year, logs, got * R + cov), rel=1e-8)
    others = got * np.array([0.3, 0.8, 0.97, 1.03, 1.25, 3.0])
    assert all(loss < restricted(year, logs, s * R + cov) for s in others)


@pytest.mark.parametrize("runs", [False, True])
def test_independent_years_and_runs_are_averaged_by_how_well_they_explain_the_totals(runs):
    rng = np.random.default_rng(7)
    year = np.r_[2000:2012, 2014:2032]
    t, own = year.astype(float), 0.05
    true = np.linalg.cholesky(correlation(t, RUNS if runs else 0.0)) @ rng.normal(0, 0.3, t.size)
    total, cov = np.exp(3 + true), own**2 * np.eye(t.size)
    got = scatter_of_years(year, total, replicates(total, cov, 80, 8))
    alone, in_runs = (year_variance(t, np.log(total), cov, rho)[0] for rho in (0.0, RUNS))
    R = RUNS ** np.abs(np.subtract.outer(t, t))
    losses = [restricted(t, np.log(total), s * M + cov) for s, M in ((alone, np.eye(t.size)), (in_runs, R))]
    p = 1 / (1 + ODDS * np.exp((losses[1] - losses[0]) / 2))
    np.testing.assert_allclose(got, (1 - p) * alone * np.eye(t.size) + p * in_runs * R, rtol=1e-6)
    assert np.ptp(np.diag(got)) < 1e-12


def test_three_years_leave_the_weight_of_runs_as_it_was_before_they_were_seen():
    year, total = np.array([2000, 2001, 2002]), np.exp([1.0, 1.6, 1.1])
    cov = 1e-6 * np.eye(3)
    got = scatter_of_years(year, total, replicates(total, cov, 40, 0))
    alone, in_runs = (year_variance(year.astype(float), np.log(total), cov, rho)[0] for rho in (0.0, RUNS))
    assert got[0, 1] == pytest.approx(in_runs * RUNS / (1 + ODDS), rel=1e-4)
    assert got[0, 0] == pytest.approx((in_runs + ODDS * alone) / (1 + ODDS), rel=1e-4)


def test_the_trend_adds_the_scatter_to_the_error_of_the_totals_and_trim_does_not():
    n = 14
    months = axis(n, (6,))
    rng = np.random.default_rng(4)
    total = np.exp(4 - 0.05 * np.arange(n) + rng.normal(0, 0.25, n))
    cov = 0.01 * np.eye(n) + 0.002
    draws = replicates(total, cov, 60, 5)
    wide, narrow = (
        overall_trend(total, months, draws, base=2000, convention=c).iloc[0] for c in ("long-term", "trim")
    )
    x = np.arange(n) - (n - 1) / 2
    assert wide["slope_se_sampling"] == pytest.approx(np.sqrt(0.01 / (x @ x)), rel=1e-6)
    scatter = scatter_of_years(np.arange(n), total, draws)
    assert wide["year_sd"] ** 2 == pytest.approx(scatter[0, 0], rel=1e-6)
    assert wide["slope_se"] ** 2 == pytest.approx(0.01 / (x @ x) + x @ scatter @ x / (x @ x) ** 2, rel=1e-6)
    assert narrow["slope_se"] == narrow["slope_se_sampling"] == wide["slope_se_sampling"]
    assert wide["slope"] == narrow["slope"]
    for a, b in (("percent_lo", "percent_lo_sampling"), ("trend_class", "trend_class_sampling")):
        assert narrow[a] == narrow[b] == wide[b]
    t = stats.t.ppf(0.975, n - 2)
    half = np.log((1 + wide["change_hi"] / 100) / (1 + wide["change_percent"] / 100))
    assert half == pytest.approx(t * np.sqrt(2 * 0.01 + 2 * (scatter[0, 0] - scatter[0, -1])), rel=1e-6)
    half = np.log((1 + wide["change_hi_sampling"] / 100) / (1 + wide["change_percent"] / 100))
    assert half == pytest.approx(1.959964 * np.sqrt(2 * 0.01), rel=1e-5)


def test_two_years_have_no_long_term_interval_and_an_unknown_convention_is_refused():
    months = axis(2, (6,))
    total = np.array([10.0, 12.0])
    row = overall_trend(total, months, replicates(total, 0.01 * np.eye(2), 30, 0)).iloc[0]
    assert np.isnan(row["percent_lo"])
    assert np.isfinite(row["percent_lo_sampling"])
    assert row["trend_class"] == "not classified"
    with pytest.raises(ConfigError, match="'narrow'"):
        overall_trend(total, months, convention="narrow")


@pytest.mark.mc
@pytest.mark.parametrize("n", [6, 8, 17])
@pytest.mark.parametrize("sd", [0.0, 0.1, 0.3])
def test_flat_series_with_scatter_are_called_a_direction_in_at_most_one_of_twenty(n, sd):
    months, runs, own = axis(n, (6,)), 600, 0.1
    rng = np.random.default_rng(n)
    said = narrow = 0
    for i in range(runs):
        total = np.exp(4 + rng.normal(0, np.hypot(sd, own), n))
        row = overall_trend(total, months, replicates(total, own**2 * np.eye(n), 60, i)).iloc[0]
        said += row["percent_lo"] > 0 or row["percent_hi"] < 0
        narrow += row["percent_lo_sampling"] > 0 or row["percent_hi_sampling"] < 0
    assert said / runs < 0.05 + 3 * np.sqrt(0.05 * 0.95 / runs)
    if sd >= 0.3:
        assert narrow / runs > 0.25  # TRIM's convention takes the scatter for a trend


@pytest.mark.mc
@pytest.mark.parametrize("n", [8, 20])
def test_runs_of_years_mislead_less_and_independent_years_pay_little(n):
    year, runs, own = np.arange(n), 500, 0.1
    t = year.astype(float)
    x, quantile = t - t.mean(), student_quantile(0.95, n - 2)
    for rho, most in ((0.0, 0.05), (0.3, 0.07), (0.6, 0.15)):
        rng = np.random.default_rng(n)
        mix = np.linalg.cholesky(correlation(t, rho))
        wrong, width = np.zeros((2, runs)), np.zeros((2, runs))
        for i in range(runs):
            total = np.exp(2 * own * mix @ rng.normal(size=n) + rng.normal(0, own, n))
            values = replicates(total, own**2 * np.eye(n), 60, i)
            alone, _ = year_variance(t, np.log(total), own**2 * np.eye(n))
            errors = [
                contrast_error(x / (x @ x), own / np.sqrt(x @ x), scatter)[0]
                for scatter in (scatter_of_years(year, total, values), alone * np.eye(n))
            ]
            width[:, i] = np.array(errors) * quantile
            wrong[:, i] = abs(np.log(total) @ x / (x @ x)) > width[:, i]
        assert wrong[0].mean() < most + 4 * np.sqrt(most * (1 - most) / runs)
        if rho == 0.0:
            assert width[0].mean() < 1.25 * width[1].mean()
        if rho == 0.6:
            assert wrong[1].mean() > wrong[0].mean()  # years taken for independent
