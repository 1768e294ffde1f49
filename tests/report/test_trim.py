"""TRIM's models against statsmodels and first principles."""

import warnings
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from fedmiss.errors import ConfigError, InputError
from fedmiss.report.classes import classify
from fedmiss.report.trim import TrimSettings, fit_trim
from fedmiss.report.trim.files import Shown, describe

OVER = TrimSettings(overdispersion=True)
SERIAL = TrimSettings(serial_correlation=True, overdispersion=True)


def long(f):
    """Site, year and count of every cell of a matrix (sites, years)."""
    i, j = np.indices(f.shape)
    return i.ravel(), 2000 + j.ravel(), f.ravel()


def panel(seed=0, n=25, J=9, seen=0.55):
    rng = np.random.default_rng(seed)
    mu = np.exp(rng.normal(1.5, 1.0, n)[:, None] + np.cumsum(rng.normal(0, 0.2, J))[None, :])
    f = rng.poisson(mu).astype(float)
    f[rng.random((n, J)) > seen] = np.nan
    f[0] = rng.poisson(mu[0]) + 1.0  # one site counted throughout links the years
    f = f[np.nansum(f, axis=1) > 0]
    return f, *long(f)


def design(f):
    i, j = (at.ravel()[:, None] for at in np.indices(f.shape))
    return np.hstack([i == np.arange(f.shape[0]), j == np.arange(1, f.shape[1])]).astype(float)


@pytest.mark.parametrize("seed", range(3))
def test_imputed_totals_have_the_variance_of_what_is_counted_and_what_is_filled(seed):
    """Written as a linear function of the counts, first order: t = B f + C mu(beta(f))."""
    f, site, time, count = panel(seed, n=12, J=6)
    X, ok = design(f), np.isfinite(count)
    got = fit_trim(site, time, count, OVER)
    n, J = f.shape
    mu = got.mu.ravel()
    K = np.linalg.inv(X[ok].T @ (mu[ok, None] * X[ok])) @ X[ok].T  # d beta / d f
    A = np.tile(np.eye(J), n)
    L = A[:, ok] + A[:, ~ok] @ (mu[~ok, None] * X[~ok]) @ K
    want = L @ np.diag(got.sigma2 * mu[ok]) @ L.T
    np.testing.assert_allclose(got.var_imputed, want, rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(got.total_imputed, A[:, ok] @ f.ravel()[ok] + A[:, ~ok] @ mu[~ok], rtol=1e-12)


def test_slope_and_sandwich_by_their_formula():
    f, site, time, count = panel(7)
    got = fit_trim(site, time, count, OVER)
    row = got.overall().iloc[0]
    J = f.shape[1]
    X = np.column_stack([np.ones(J), np.arange(1, J + 1)])
    inv = np.linalg.inv(X.T @ X)
    t = got.total_imputed
    Om = np.diag(1 / t) @ got.var_imputed @ np.diag(1 / t)
    assert row["slope"] == pytest.approx((inv @ X.T @ np.log(t))[1], rel=1e-12)
    assert row["slope_se"] == pytest.approx(np.sqrt((inv @ X.T @ Om @ X @ inv)[1, 1]), rel=1e-12)
    assert row["label"] == classify(row["slope"], row["slope_se"], J, "rtrim").label
    # Wald's test of the deviations, in a basis of all contrasts that no line can move
    N = np.linalg.qr(X, mode="complete")[0][:, 2:]
    z = N.T @ got.gamma
    W, df, _ = got.wald_deviations()
    assert df == J - 2
    assert pytest.approx(z @ np.linalg.solve(N.T @ got.var_gamma @ N, z)) == W


def test_index_is_one_without_error_in_the_base_and_free_of_scale():
    _f, site, time, count = panel(8)
    a, b = fit_trim(site, time, count, OVER), fit_trim(site, time, 10 * count, OVER)
    x, y = a.index(base=2003), b.index(base=2003)
    assert x.loc[3, "index"] == 1.0
    assert x.loc[3, "se"] == pytest.approx(0.0, abs=1e-9)
    np.testing.assert_allclose(x["index"], y["index"], rtol=1e-9)
    # ten times the counts with Pearson's dispersion ten times: relative errors stay
    np.testing.assert_allclose(x["se"], y["se"], rtol=1e-7, atol=1e-9)
    assert a.overall().loc[0, "slope"] == pytest.approx(b.overall().loc[0, "slope"], rel=1e-9)


def test_serial_correlation_is_found_and_solves_its_estimating_equations():
    rng = np.random.default_rng(3)
    n, J, rho = 300, 10, 0.6
    mu = np.exp(rng.normal(4, 0.5, n))[:, None] * np.exp(np.linspace(0, -0.5, J))[None, :]
    z = rng.normal(size=(n, J))
    for j in range(1, J):
        z[:, j] = rho * z[:, j - 1] + np.sqrt(1 - rho**2) * z[:, j]
    f = np.maximum(np.round(mu + np.sqrt(2 * mu) * z), 0)
    f[rng.random((n, J)) < 0.3] = np.nan
    got = fit_trim(*long(f), SERIAL)
    # TRIM's moment estimate is pulled down: residuals lose the site mean and cells are missing
    assert 0.15 < got.rho < rho
    R = got.rho ** np.abs(np.subtract.outer(np.arange(J), np.arange(J)))
    score_time = np.zeros(J)
    for k in range(n):
        ok = np.isfinite(f[k])
        root = np.sqrt(got.mu[k][ok])
        s = root * np.linalg.solve(R[np.ix_(ok, ok)], (f[k][ok] - got.mu[k][ok]) / root)
        assert abs(s.sum()) < 1e-4
        score_time[ok] += s
    assert np.abs(score_time).max() < 1e-3
    plain = fit_trim(*long(f), OVER)
    assert got.overall().loc[0, "slope_se"] > plain.overall().loc[0, "slope_se"]


def test_weights_multiply_the_totals_and_nothing_else():
    _f, site, time, count = panel(9)
    one = fit_trim(site, time, count, OVER)
    w = {s: 2.5 for s in one.sites}
    two = fit_trim(site, time, count, OVER, weights=w)
    np.testing.assert_allclose(two.total_imputed, 2.5 * one.total_imputed)
    np.testing.assert_allclose(two.var_imputed, 6.25 * one.var_imputed, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(two.mu, one.mu)


BAD = [
    ([1, 1, 2], [2000, 2000, 2001], [1, 2, 3], {}, "site 1 at time 2000 has two counts"),
    ([1, 1], [2000, 2001], [1, -3], {}, "-3 is negative"),
    ([1, 1], [2000, np.nan], [1, 3], {}, "row 1 .* has no time"),
    (["a", None], [2000, 2001], [1, 3], {}, "row 1 .* has no site"),
    ([1, 1, 1], [2000, 2001, 2002], [1, 0, 2], {}, "time point 2001 has no positive count"),
    ([1, 1, 2, 2], [2000, 2001, 2002, 2003], [1, 2, 3, 4], {}, "no site links time 2000 with time 2002"),
    (["a", "a", np.nan, np.nan], [2000, 2001] * 2, [1, 2, 3, 4], {}, "row 2 .* has no site"),
    (["a", "a", 1, 1], [2000, 2001] * 2, [1, 2, 3, 4], {}, "site holds texts and numbers"),
    ([1, 1], [2000, 2001], [1, np.inf], {}, "row 1 .*the count is inf"),
    ([1, 1], [2000, 2001], [1, "X"], {}, "row 1 .*the count is X"),
    ([1, 1], [2000, np.inf], [1, 2], {}, "row 1 .*infinite time"),
    ([1], [2000, 2001], [1, 2], {}, "differ in length: site 1, time 2, count 2"),
    ([1, 1], [20000101, 20200101], [1, 2], {"settings": TrimSettings(2)},
     "from 20000101 to 20200101; give years"),
    *(
        ([1, 1, 2, 2], [2000, 2001] * 2, [1, 2, 3, 4], more, said)
        for more, said in (
            ({"covariates": {"habitat": ["a", "a", None, "b"]}}, "habitat is missing at site 2"),
            ({"covariates": {"habitat": ["a", "b", "b", "b"]}}, "habitat changes within site 1"),
            ({"weights": [1, 1, -1, -1]}, "weight of site 2 is -1"),
            ({"weights": [1, 1, np.nan, np.nan]}, "weight is missing at site 2 at time 2000 .rows: 2"),
            ({"weights": [1, 1, np.inf, np.inf]}, "weight of site 2 is inf"),
            ({"weights": {1: 2.0}}, "site 2 has no weight"),
            ({"weights": [1, 1]}, "weights has the shape"),
            ({"covariates": {"habitat": ["a", "b"]}}, "the covariate habitat has the shape"),
            ({"settings": TrimSettings(2, (1999,), overdispersion=True)}, "change point 1999"),
        )
    ),
]  # fmt: skip


@pytest.mark.parametrize(("site", "time", "count", "more", "said"), BAD)
def test_bad_panels_covariates_and_weights_are_named(site, time, count, more, said):
    with pytest.raises((ConfigError, InputError), match=said):
        fit_trim(site, time, count, **more)


def test_covariates_may_be_columns_of_a_frame():
    table = pd.DataFrame({"habitat": ["a", "a", "b", "b"]})
    fit = fit_trim([1, 1, 2, 2], [2000, 2001] * 2, [1, 2, 3, 4], covariates=table)
    assert fit.strata == ("all", "habitat=a", "habitat=b")


def test_a_site_without_birds_is_dropped_and_a_stratum_that_is_not_there_is_named():
    got = fit_trim([1, 1, 2, 2], [2000, 2001, 2000, 2001], [1, 2, 0, 0])
    assert got.dropped == (2,)
    for ask in (got.stratum, got.n_sites):
        with pytest.raises(ConfigError, match="no stratum 'north'; there are all"):
            ask("north")


def dense(f, X):
    """Totals over the rows of (site, month, time) cells and their covariance, from the full design and statsmodels."""
    from statsmodels.genmod.families import Poisson
    from statsmodels.genmod.generalized_linear_model import GLM

    n, M, J = f.shape
    y = f.ravel()
    ok = np.isfinite(y)
    fit = GLM(y[ok], X[ok], family=Poisson()).fit(tol=1e-14, maxiter=300)
    mu = np.exp(X @ fit.params)
    cov = np.linalg.inv(X[ok].T @ (mu[ok, None] * X[ok])) * fit.pearson_chi2 / fit.df_resid
    A = np.tile(np.eye(J), n * M)
    D = A @ (mu[:, None] * X)
    return A @ mu, D @ cov @ D.T, fit


def monthly_panel(seed, n=8, M=4, J=6):
    rng = np.random.default_rng(seed)
    eta = rng.normal(1.5, 0.7, n)[:, None, None] + rng.normal(0, 0.5, M)[None, :, None]
    f = rng.poisson(np.exp(eta + np.cumsum(rng.normal(0, 0.2, J))[None, None, :])).astype(float)
    f[rng.random(f.shape) < 0.35] = np.nan
    f[:3] = np.nan_to_num(f[:3]) + 1.0
    i, m, j = (a.ravel() for a in np.indices(f.shape))
    return f, i, m, j, rng.integers(0, 3, n)


@pytest.mark.parametrize("model", [1, 2, 3])
@pytest.mark.parametrize("with_covariate", [False, True])
@pytest.mark.parametrize("months", [1, 4])
def test_months_covariates_and_every_model_equal_the_dense_glm(model, with_covariate, months):
    f, i, m, j, kind = monthly_panel(3, M=months)
    kind[:3] = [0, 1, 2]
    points = (2000, 2002)
    base = {
        1: np.zeros((i.size, 0)),
        2: np.column_stack([np.clip(j, 0, 2), np.clip(j - 2, 0, 3)]),
        3: (j[:, None] == np.arange(1, 6)).astype(float),
    }[model]
    columns = [(i[:, None] == np.arange(8)).astype(float), base]
    if with_covariate:
        columns += [base * (kind[i] == c)[:, None] for c in (1, 2)]
    columns.append((m[:, None] == np.arange(1, months)).astype(float))
    X = np.hstack(columns)
    total, var, fit = dense(f, X)
    got = fit_trim(
        i, 2000 + j, f.ravel(), TrimSettings(model, points if model == 2 else (), overdispersion=True), month=m,
        covariates={"kind": kind[i]} if with_covariate else None,
    )  # fmt: skip
    np.testing.assert_allclose(got.mu.ravel(), np.exp(X @ fit.params), rtol=1e-8)
    np.testing.assert_allclose(got.total_model, total, rtol=1e-8)
    np.testing.assert_allclose(got.var_model, var, rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(got.estimate.beta, fit.params[8:], rtol=1e-6, atol=1e-8)
    assert got.df == fit.df_resid
    assert got.chi2 == pytest.approx(fit.pearson_chi2, rel=1e-9)
    if with_covariate:  # strata are a partition of the sites
        parts = [got.stratum(s).imputed for s in got.strata if s != "all"]
        np.testing.assert_allclose(np.sum(parts, axis=0), got.total_imputed, rtol=1e-12)


def test_a_change_point_at_every_year_is_model_3():
    _f, site, time, count = panel(5)
    for serial in (False, True):
        three = fit_trim(site, time, count, SERIAL if serial else OVER)
        two = fit_trim(site, time, count, replace(three.settings, model=2, changepoints="all"))
        np.testing.assert_allclose(two.total_imputed, three.total_imputed, rtol=1e-7)
        np.testing.assert_allclose(two.var_imputed, three.var_imputed, rtol=1e-5, atol=1e-7)
        steps = np.diff(three.gamma)
        np.testing.assert_allclose(two.coefficients()["additive"], steps, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("given", [[2001, 2003], np.array([2001, 2003])], ids=["list", "array"])
def test_change_points_may_be_a_list(given):
    """Settings with a list had no hash, and were not those with the same tuple."""
    mine, same = TrimSettings(2, given), TrimSettings(2, (2001, 2003))
    assert (mine, hash(mine)) == (same, hash(same))


def test_stepwise_finds_the_planted_break_and_leaves_no_useless_one():
    rng = np.random.default_rng(6)
    n, J = 120, 12
    line = np.where(np.arange(J) < 6, 0.15 * np.arange(J), 0.15 * 6 - 0.25 * (np.arange(J) - 6))
    f = rng.poisson(np.exp(rng.normal(2.5, 0.4, n)[:, None] + line[None, :])).astype(float)
    f[rng.random(f.shape) < 0.3] = np.nan
    got = fit_trim(*long(f), TrimSettings(2, "auto", overdispersion=True))
    assert 2006 in got.changepoints
    assert len(got.changepoints) < 8
    assert all(got.wald_change(k)[2] <= 0.2 for k in range(len(got.changepoints)))


def test_serial_correlation_runs_over_the_years_of_one_month():
    """One month of many is fitted as if alone, when the other months are copies of it at other sites' places."""
    f, i, m, j, _ = monthly_panel(9, n=30, M=1, J=8)
    alone, named = fit_trim(i, j, f.ravel(), SERIAL), fit_trim(i, j, f.ravel(), SERIAL, month=m + 5)
    assert alone.rho == pytest.approx(named.rho, rel=1e-12)
    f, i, m, j, _ = monthly_panel(9, n=30, M=3, J=8)
    got = fit_trim(i, j, f.ravel(), SERIAL, month=m)
    r = np.where(got.cells.seen, (np.nan_to_num(got.cells.counts) - got.mu) / np.sqrt(got.mu), 0).reshape(
        30, 3, 8
    )
    both = np.isfinite(f)[:, :, 1:] & np.isfinite(f)[:, :, :-1]
    products = (r[:, :, 1:] * r[:, :, :-1])[both]
    assert got.rho == pytest.approx(products.mean() / got.sigma2, rel=1e-6)


def test_a_gap_of_years_is_filled_by_model_2_and_refused_by_name_in_model_3():
    site, time, count = [1, 1, 1, 2, 2, 2], [2000, 2001, 2004] * 2, [5, 6, 9, 4, 5, 8]
    got = fit_trim(site, time, count, TrimSettings(2, overdispersion=True))
    assert got.times == (2000, 2001, 2002, 2003, 2004)
    np.testing.assert_allclose(np.diff(np.log(got.total_model)), got.estimate.beta[0], rtol=1e-9)
    three = fit_trim(site, time, count)  # its axis has the years with counts, at their true distance
    x, y = np.array([2000.0, 2001, 2004]), np.log(three.total_imputed)
    assert three.overall().loc[0, "slope"] == pytest.approx(np.polyfit(x, y, 1)[0], rel=1e-9)
    with pytest.raises(InputError, match="after 2001 up to 2003"):
        fit_trim(site, time, count, TrimSettings(2, (2000, 2001, 2003), overdispersion=True))
    thin = fit_trim(site, time, count, TrimSettings(2, "auto", overdispersion=True))
    assert any("no change point at" in n for n in thin.notes)


@pytest.mark.parametrize("month", [False, True])
def test_rows_of_blank_counts_say_no_more_than_no_rows(month):
    """A year, or a month, in which nobody could count: listed in full with blanks, as in a wide table, or left out."""
    f, i, m, j, _ = monthly_panel(4, n=20, M=3, J=7)
    table = pd.DataFrame({"site": i, "time": j, "count": f.ravel(), "month": m})
    table.loc[(table["month"] == 2) if month else (table["time"] == 3), "count"] = np.nan
    blank, absent = (
        fit_trim(each["site"], each["time"], each["count"], SERIAL, month=each["month"])
        for each in (table, table.dropna())
    )
    pd.testing.assert_frame_equal(blank.totals(), absent.totals())
    pd.testing.assert_frame_equal(blank.overall(), absent.overall())


@pytest.mark.parametrize("blank", [(2000,), (2003,), (2002, 2005), (2004, 2005)])
def test_change_points_at_all_years_draw_straight_lines_through_years_without_counts(blank):
    """The crash of 2002 must not run on into an unvisited 2003: the line goes to the next count."""
    rng = np.random.default_rng(11)
    f = rng.poisson(np.exp(rng.normal(3, 0.5, 25)[:, None] + np.log([1, 1, 0.1, 1, 1.2, 0.3, 1]))).astype(
        float
    )
    site, year, count = long(f)
    count[np.isin(year, blank)] = np.nan
    two = fit_trim(site, year, count, replace(OVER, model=2, changepoints="all"))
    three = fit_trim(site, year, count, OVER)
    counted = np.isin(two.times, three.times)
    np.testing.assert_allclose(two.total_model[counted], three.total_model, rtol=1e-7)
    line = np.interp(two.times, three.times, np.log(three.total_model))
    np.testing.assert_allclose(np.log(two.total_model), line, rtol=1e-7)


def test_a_base_without_birds_gives_no_index_and_says_so():
    site, year, count = long(np.array([[0.0, 3, 4, 6], [0, 5, 7, 7]]))
    fit = fit_trim(site, year, count, replace(OVER, model=2))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        table = fit.index(level=0.95)
    assert table.drop(columns="time").isna().all(axis=None)
    assert "No index: no bird was counted in its base; --base" in describe(fit)
    assert "No index" not in describe(fit, Shown(base=2001))
    assert fit.index("model")["index"].notna().all()


def test_overdispersion_that_cannot_be_estimated_is_said():
    one = fit_trim(["a"] * 4, [1, 2, 3, 4], [5, 9, 2, 7], OVER)
    assert one.df == 0
    assert any("overdispersion cannot be estimated" in note for note in one.notes)
    assert not fit_trim(["a"] * 4, [1, 2, 3, 4], [5, 9, 2, 7]).notes


@pytest.mark.mc
def test_standard_errors_of_totals_and_slope_match_their_spread():
    rng = np.random.default_rng(11)
    n, J, B, phi = 60, 8, 400, 3.0
    mu = np.exp(rng.normal(2.5, 0.6, n))[:, None] * np.exp(-0.05 * np.arange(J))[None, :]
    hole = rng.random((n, J)) < 0.4
    hole[0] = False
    totals, se, slopes, slope_se = [], [], [], []
    for _ in range(B):
        f = rng.poisson(rng.gamma(mu / (phi - 1), phi - 1)).astype(float)
        f[hole] = np.nan
        got = fit_trim(*long(f), OVER)
        # the total of what would be counted varies by itself: the model total does not
        totals.append(got.total_model)
        se.append(np.sqrt(np.diag(got.var_model)))
        row = got.overall("model").iloc[0]
        slopes.append(row["slope"])
        slope_se.append(row["slope_se"])
    ratio = np.mean(se, axis=0) / np.std(totals, axis=0, ddof=1)
    tolerance = 4 / np.sqrt(2 * (B - 1))
    assert np.abs(ratio - 1).max() < tolerance
    assert abs(np.mean(slope_se) / np.std(slopes, ddof=1) - 1) < tolerance
