"""Laws of totals, indices, trends, seasons, curves and change points."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pandas as pd
import pytest

from fedmiss.errors import ConfigError
from fedmiss.report import trends
from fedmiss.report.changes import _best, _candidates, change_points, period_trends, window_trends, windows_of
from fedmiss.report.classes import interval, normal_quantile, ratio_to_base, student_quantile
from fedmiss.report.loess import choose_span, loess
from fedmiss.report.prose import headline
from fedmiss.report.sections.headline import found
from fedmiss.report.series import MonthlySeries
from fedmiss.report.years import MONTH_NAMES, make_years, season_text
from fedmiss.rng import rng_for

from .conftest import axis


def series(months, slope=-0.03, noise=0.0, B=50, seed=0):
    rng = np.random.default_rng(seed)
    logs = 4 + slope * (months["year"] - months["year"].min()) + 0.7 * np.sin(months["month_of_year"] / 2)
    totals = np.exp(logs.to_numpy() + rng.normal(0, noise, len(months)))
    draws = totals * np.exp(rng.normal(0, 0.05, (B, 1)) + rng.normal(0, 0.1, (B, len(months))))
    return totals, draws


@pytest.mark.parametrize("season", [tuple(range(1, 13)), tuple(range(1, 7)), (3, 11, 12), (5,)])
def test_an_exponential_series_has_its_slope_whatever_the_season(season):
    months = axis(season=season)
    totals, _ = series(months, slope=-0.03)
    row = trends.overall_trend(totals, months).iloc[0]
    assert row["slope"] == pytest.approx(-0.03, rel=1e-9)
    assert row["percent_per_year"] == pytest.approx(100 * (np.exp(-0.03) - 1))
    index = trends.yearly_index(totals, months)
    np.testing.assert_allclose(index["index"], 100 * np.exp(-0.03 * np.arange(15)), rtol=1e-9)


@pytest.mark.parametrize("last", [1, 3, 6, 11])
def test_a_last_year_cut_short_changes_nothing_before_it(last):
    whole, cut = axis(n_years=14), axis(n_years=15, last=last)
    totals, draws = series(cut)
    n = len(whole)
    a = trends.overall_trend(totals[:n], whole, draws[:, :n]).iloc[0]
    b = trends.overall_trend(totals, cut, draws).iloc[0]
    pd.testing.assert_series_equal(a, b)
    index = trends.yearly_index(totals, cut, draws)
    assert not index["used"].iloc[-1]
    assert np.isnan(index["index"].iloc[-1])
    assert index["n_months"].iloc[-1] == last
    x = MonthlySeries.of(totals[:n], whole).smooth(totals[:n], 0.3)["smooth"]
    y = MonthlySeries.of(totals, cut).smooth(totals, 0.3)["smooth"]
    np.testing.assert_array_equal(x, y[:n])
    assert y[n:].isna().all()


def test_indices_are_scale_free_and_the_slope_does_not_know_the_base():
    months = axis()
    totals, draws = series(months, noise=0.2)
    for base in (None, "2003", "2005-2008"):
        a = trends.yearly_index(totals, months, draws, base=base)
        b = trends.yearly_index(1000 * totals, months, 1000 * draws, base=base)
        for column in ("index", "index_lo", "index_hi", "index_se_log"):
            np.testing.assert_allclose(a[column], b[column], rtol=1e-9, atol=1e-12)
        row, first = (trends.overall_trend(totals, months, draws, base=x).iloc[0] for x in (base, None))
        for column in ("slope", "slope_se", "lo", "hi", "trend_class"):
            assert row[column] == first[column]


def test_the_base_is_100_and_other_bases_rescale_the_index():
    months = axis()
    totals, draws = series(months, noise=0.2)
    one = trends.yearly_index(totals, months, draws, base=2003)
    assert one.loc[3, "index"] == pytest.approx(100, abs=1e-12)
    assert one.loc[3, "index_lo"] == pytest.approx(100, abs=1e-9)
    many = trends.yearly_index(totals, months, draws, base="2003-2006")
    assert many["index"].iloc[3:7].mean() == pytest.approx(100)
    ratio = one["index"] / many["index"]
    np.testing.assert_allclose(ratio, ratio.iloc[0], rtol=1e-12)
    change = trends.overall_trend(totals, months, draws, base=2003).iloc[0]
    assert change["change_percent"] == pytest.approx(one["index"].iloc[-1] - 100)
    assert change["change_lo_sampling"] == pytest.approx(one["index_lo"].iloc[-1] - 100)


def test_a_last_year_without_birds_has_a_change_whose_two_limits_differ_as_the_replicates_do():
    months = axis(n_years=12, season=(6,))
    totals = np.where(np.arange(12) < 11, 100.0, 0.5)
    rng = np.random.default_rng(2)
    log = np.where(np.arange(12) < 11, rng.normal(0, 0.1, (200, 12)), rng.normal(-1, 2.5, (200, 12)))
    draws = totals * np.exp(log)  # replicates of the last year go down without end, and hardly up
    index = trends.yearly_index(totals, months, draws).iloc[-1]
    row = trends.overall_trend(totals, months, draws).iloc[0]
    narrow = [100 + row["change_lo_sampling"], 100 + row["change_hi_sampling"]]
    assert narrow == pytest.approx([index["index_lo"], index["index_hi"]])
    # Nothing scatters but the replicates, so Student's quantile alone makes the difference.
    wider = student_quantile(0.95, 10) / normal_quantile(0.95)
    wide = np.log(np.array([row["change_lo"], row["change_hi"]]) / 100 + 1) - np.log(0.005)
    np.testing.assert_allclose(wide, wider * (np.log(narrow) - np.log(0.5)), rtol=0.02)
    draws[:6, -1] = 0.0  # then all may be gone, and the upper limit is as the other replicates say
    row = trends.overall_trend(totals, months, draws).iloc[0]
    assert row["change_lo"] == -100
    assert row["change_hi"] == pytest.approx(100 * np.exp(wide[1]) * 0.005 - 100, rel=0.05)
    # Where the replicates are not skewed both are as far.
    totals, draws = series(axis(), noise=0.2)
    row = trends.overall_trend(totals, axis(), draws).iloc[0]
    limits = row["change_lo"], row["change_hi"]
    down, up = (np.log((100 + limit) / (100 + row["change_percent"])) for limit in limits)
    assert -down == pytest.approx(up)


def test_the_error_of_the_slope_is_the_sandwich_of_the_replicates():
    months = axis()
    totals, draws = series(months, noise=0.1, B=80)
    years = make_years(months)
    logs = np.log(draws @ years.W.T)
    X = np.column_stack([np.ones(15), years.year])
    inv = np.linalg.pinv(X.T @ X)
    V = inv @ X.T @ np.cov(logs, rowvar=False) @ X @ inv
    for convention, column in (("long-term", "slope_se_sampling"), ("trim", "slope_se")):
        got = trends.overall_trend(totals, months, draws, convention=convention).iloc[0]
        assert got[column] == pytest.approx(np.sqrt(V[1, 1]), rel=1e-6)


def test_covariance_and_intervals_tell_the_same_standard_error():
    months = axis()
    totals, draws = series(months)
    year, total, cov = MonthlySeries.of(totals, months, draws).covariance()
    table = trends.yearly_index(totals, months, draws)
    relative = np.sqrt(np.diag(cov)) / total
    z = np.log(table["total_hi"] / table["total"]) / 1.959963984540054
    np.testing.assert_allclose(relative, z, rtol=1e-9)
    assert year.tolist() == table["year"].tolist()
    # The table and the exchange files give one error of a total, also beside a year that one replicate takes below 0.
    for lowest in (draws[3].min(), -1.0):
        draws[3, months["year"] == year[2]] = lowest
        cov = MonthlySeries.of(totals, months, draws).covariance()[2]
        errors = trends.yearly_index(totals, months, draws)["total_se"]
        np.testing.assert_allclose(errors, np.sqrt(np.diag(cov)), rtol=1e-9)


def test_limits_stay_positive_and_hold_the_estimate():
    rng = np.random.default_rng(3)
    est = np.exp(rng.normal(0, 2, 200))
    draws = est * np.exp(rng.normal(0, 3, (30, 200)))
    got = interval(est, draws)
    assert (got.lo > 0).all()
    assert ((got.lo <= est) & (est <= got.hi)).all()
    below = interval(np.array([1.0]), np.array([[-1.0], [2.0], [3.0]]))
    assert below.lo[0] == 0.0
    assert np.isnan(below.se_log[0])
    # replicates of a species that was never found
    nothing = interval(np.zeros(1), np.array([[1e-6], [2e-6]]))
    assert nothing.lo == 0 < nothing.hi
    assert np.isnan(interval(est, None).lo).all()


def test_where_nothing_was_found_the_limits_end_where_the_replicates_do():
    """Replicates that go down without end on the log scale do not go up as far."""
    rng = np.random.default_rng(4)
    draws = 3.0 * np.exp(-rng.gamma(1.0, 3.0, (200, 1)))
    got = interval(np.array([0.2]), draws)
    assert got.se_log[0] > 2.0
    np.testing.assert_allclose([got.lo[0], got.hi[0]], np.quantile(draws, [0.025, 0.975]))
    assert got.hi[0] < 3.0 < 0.2 * np.exp(1.96 * got.se_log[0])
    few = interval(np.array([0.2]), draws[:10])  # quantiles of a handful are too near
    assert few.hi[0] == 0.2 * np.exp(normal_quantile(0.95) * few.se_log[0])


def test_ratio_to_base_is_the_delta_method():
    rng = np.random.default_rng(8)
    total = rng.uniform(50, 100, 6)
    A = rng.normal(size=(6, 6))
    cov = A @ A.T
    base = np.array([False, True, True, False, False, False])
    ratio, se = ratio_to_base(total, cov, base)

    def index(t):
        return t / t[1:3].mean()

    h = 1e-4
    J = np.column_stack([(index(total + h * e) - index(total - h * e)) / (2 * h) for e in np.eye(6)])
    np.testing.assert_allclose(ratio, index(total))
    np.testing.assert_allclose(se, np.sqrt(np.diag(J @ cov @ J.T)), rtol=1e-6)
    one = ratio_to_base(total, cov, np.arange(6) == 2)
    assert (one[0][2], one[1][2]) == (1.0, 0.0)


@pytest.mark.parametrize(
    ("n_years", "B", "word"), [(4, 60, "4 complete years"), (15, 0, "no bootstrap"), (15, 5, "5 bootstrap")]
)
def test_a_class_is_refused_for_thin_data_with_the_number_that_is_too_small(n_years, B, word):
    months = axis(n_years=n_years)
    totals, draws = series(months, B=max(B, 2))
    row = trends.overall_trend(totals, months, draws[:B] if B else None).iloc[0]
    assert row["trend_class"] == "not classified"
    assert word in row["reason"]
    assert np.isfinite(row["slope"])


def test_years_without_a_count_leave_the_trend():
    months = axis()
    totals, draws = series(months)
    seen = np.ones(len(months))
    seen[months["year"] == 2004] = 0
    wrong = totals.copy()
    wrong[months["year"] == 2004] *= 50
    a = trends.overall_trend(wrong, months, draws, n_observed=seen).iloc[0]
    assert a["n_years"] == 14
    assert a["slope"] == pytest.approx(-0.03, rel=1e-9)


def test_a_month_counted_in_few_years_is_not_part_of_the_season():
    months = axis()
    seen = np.where(months["month_of_year"] <= 6, 1, 0)
    seen[(months["month_of_year"] == 7) & (months["year"] == 2005)] = 1
    years = make_years(months, seen)
    assert years.season == (1, 2, 3, 4, 5, 6)
    assert years.used.all()
    assert season_text(years.season) == "Jan to Jun"
    assert season_text((1, 3, 9, 11)) == "Jan, Mar, Sep, Nov"
    assert season_text(tuple(range(1, 13))) == "all months"


@pytest.mark.parametrize("begins", [7, 10, 12])
def test_a_season_over_the_new_year_is_one_year_and_a_year_without_a_month_is_no_winter(begins):
    months = axis()
    winter = (months["month_of_year"] >= begins) | (months["month_of_year"] <= 3)
    years = make_years(months, winter.astype(int))
    assert season_text(years.season) == f"{MONTH_NAMES[begins - 1]} to Mar"
    assert years.year[years.used].tolist() == list(range(2001, 2015))  # the first and the last are halves
    for row, year in zip(years.W[years.used], years.year[years.used], strict=True):
        held = months["month"][row > 0]
        assert (held.iloc[0], held.iloc[-1]) == (f"{year - 1}-{begins:02d}", f"{year}-03")
    whole = make_years(months, (months["month_of_year"] != 11).astype(int))
    assert whole.season == (*range(1, 11), 12)
    assert whole.year[whole.used].tolist() == list(range(2000, 2015))


def test_the_seasonal_profile_averages_to_one_and_finds_the_season():
    months = axis()
    totals, draws = series(months, slope=0.0)
    s = trends.seasonal(totals, months, draws)
    assert s["relative"].mean() == pytest.approx(1.0)
    np.testing.assert_allclose(s["total"], totals[:12], rtol=1e-9)
    assert (s["relative_lo"] < s["relative"]).all()


def test_loess_is_statsmodels_lowess():
    from statsmodels.nonparametric.smoothers_lowess import lowess

    months = axis()
    totals, draws = series(months, noise=0.3)
    x = months["year"].to_numpy() + (months["month_of_year"].to_numpy() - 0.5) / 12
    centred, at = x - x.mean(), x[30:40]  # statsmodels loses digits to 2000 years
    for it in (0, 3):
        want = lowess(totals, centred, frac=0.4, it=it, return_sorted=False)
        np.testing.assert_allclose(loess(x, totals, 0.4, it), want, rtol=1e-12)
        every = [lowess(d, centred, frac=0.4, it=it, return_sorted=False) for d in draws]
        np.testing.assert_allclose(loess(x, draws, 0.4, it), every, rtol=1e-12)
        there = [lowess(d, centred, frac=0.4, it=it, xvals=centred[30:40]) for d in draws]
        np.testing.assert_allclose(loess(x, draws, 0.4, it, at=at), there, rtol=1e-12)
    got = MonthlySeries.of(totals, months).smooth(totals, 0.4)
    # the last one, of three robust iterations
    np.testing.assert_allclose(got["missing_smooth"], want, rtol=1e-12)
    by_month = pd.Series(totals).groupby(months["month_of_year"]).transform("mean").to_numpy()
    adjusted = lowess(totals * totals.mean() / by_month, centred, frac=0.4, it=3, return_sorted=False)
    np.testing.assert_allclose(got["smooth"], adjusted, rtol=1e-12)
    line = 3 + 2 * x
    np.testing.assert_allclose(loess(x, line, 0.3), line, rtol=1e-9)
    np.testing.assert_allclose(loess(x, np.full(x.size, 7.0), 0.3), 7.0)


@pytest.mark.parametrize("present", [3, 6, 12])
def test_the_curve_of_a_bird_of_few_months_is_that_of_an_average_month(present):
    """Robust weights took the months with birds for outliers: three of twelve gave a curve at a thirtieth."""
    months = axis()
    totals = np.where(months["month_of_year"] <= present, 100.0, 1.0) * 0.97 ** (months["year"] - 2000)
    curve = MonthlySeries.of(totals, months, np.stack([totals, 1.1 * totals, 0.9 * totals])).smooth(totals)
    yearly = (pd.Series(values).groupby(months["year"]).mean() for values in (totals, curve["smooth"]))
    means, smooth = (values.to_numpy() for values in yearly)
    np.testing.assert_allclose(smooth[2:-2], means[2:-2], rtol=0.02)
    assert ((curve["smooth_lo"] < curve["smooth"]) & (curve["smooth"] < curve["smooth_hi"])).all()


@pytest.mark.slow
def test_the_span_follows_the_course():
    rng = np.random.default_rng(5)
    months = axis(n_years=20)
    x = months["year"].to_numpy() + (months["month_of_year"].to_numpy() - 0.5) / 12
    year = months["year"].to_numpy()
    noise = rng.normal(0, 0.2, x.size)
    wave = 10 + 3 * np.sin(2 * np.pi * (x - 2000) / 8) + noise
    assert choose_span(x, 10 + 0.1 * (x - 2000) + noise, year) >= 0.65
    assert choose_span(x, wave, year) <= 0.2
    assert choose_span(x, wave, year, least=0.3) >= 0.3


def test_change_points_are_found_where_they_are_and_not_where_there_are_none():
    months = axis(n_years=24)
    rng = np.random.default_rng(6)
    t = months["year"].to_numpy() - 2000
    straight = np.exp(4 - 0.05 * t)
    bent = np.exp(4 - 0.10 * np.minimum(t, 12) + 0.08 * np.maximum(t - 12, 0))
    wobbles = np.repeat(np.exp(rng.normal(0, 0.04, (20, 24))), 12, axis=1)
    wobble = wobbles[0]
    draws = np.exp(rng.normal(0, 0.03, (60, 24))).repeat(12, axis=1)
    assert sum(not change_points(straight * w, months).empty for w in wobbles) <= 5  # of 20; 1 is usual
    found = change_points(bent * wobble, months, bent * wobble * draws)
    found = found[found["support"] > 0.5]  # noise may bend the line elsewhere: few draws have it
    assert len(found) == 1
    assert abs(found["year"].iloc[0] - 2012) <= 1
    assert found["support"].iloc[0] > 0.9
    assert found["slope_before"].iloc[0] == pytest.approx(-0.10, abs=0.02)
    assert found["slope_after"].iloc[0] == pytest.approx(0.08, abs=0.02)
    periods = period_trends(bent * wobble, months, bent * wobble * draws, points=found)
    assert periods["trend_class"].tolist()[-2:] == ["strong decline", "strong increase"]


@pytest.mark.parametrize("n_years", [8, 10, 15, 40])
def test_one_straight_line_in_twenty_has_a_bend_however_few_its_years(n_years):
    wobbles = rng_for(9, "straight lines", n_years).normal(0, 0.1, (400, n_years))
    bends = _best(2000 + np.arange(n_years), 4 - 0.03 * np.arange(n_years) + wobbles, 2)
    assert 0.01 < np.mean([len(knots) > 0 for knots in bends]) < 0.10


def test_a_stretch_between_bends_holds_four_totals_whatever_years_lack():
    gaps = np.concatenate([2000 + 8 * k + np.arange(4) for k in range(4)])
    for year in (gaps, np.arange(1990, 2022, 2)):
        sets = _candidates(year, 2)
        assert max(map(len, sets)) == 2
        for knots in sets[1:]:
            edges = [year[0], *knots, year[-1]]
            assert min(((start <= year) & (year <= end)).sum() for start, end in pairwise(edges)) >= 4


MONTHS = axis()
GIVEN, REPLICATES = series(MONTHS)
SEEN = np.where(MONTHS["year"] == 2001, 0, 9)
TWICE = MONTHS.assign(month_of_year=MONTHS["month_of_year"].replace(2, 1))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: trends.overall_trend(GIVEN[:-1], MONTHS), "179 monthly totals for 180 months"),
        (lambda: trends.overall_trend(GIVEN, MONTHS, REPLICATES[:, :-1]), r"\(50, 179\)"),
        (lambda: trends.overall_trend(GIVEN, MONTHS, n_observed=[1, 2]), "2 numbers of counts for 180 months"),
        (lambda: trends.yearly_index(GIVEN, MONTHS[["year"]]), "columns year and month_of_year"),
        (lambda: trends.yearly_index(GIVEN, MONTHS.assign(month_of_year=13)), "none of 1 to 12"),
        (lambda: trends.yearly_index(GIVEN, TWICE), "month 1 of 2000 is there twice"),
        *((lambda level=level: trends.yearly_index(GIVEN, MONTHS, REPLICATES, level=level),
           f"level is {level:g} ") for level in (95, 1.0, 0.0)),  # 95 gave limits of NaN without a word
        (lambda: trends.yearly_index(GIVEN, MONTHS, base=1990), "base 1990 has no year"),
        (lambda: trends.yearly_index(GIVEN, MONTHS, base=2001, n_observed=SEEN),
         r"base 2001 has no year that can be used.* are: 2000, 2002, "),
        (lambda: trends.yearly_index(GIVEN, MONTHS, base="2010-2005"),
         r"ends before it begins; write --base 2005-2010\."),
        *((lambda years=years: trends.overall_trend(GIVEN, MONTHS, REPLICATES, years=years),
           f"years {years[0]} to {years[1]} are none of .*2000 to 2014")
          for years in ((2011, 2003), (1990, 1999), (2050, 2060))),
        (lambda: trends.yearly_index(GIVEN, MONTHS, base="early"), "'early' is not a year"),
        (lambda: MonthlySeries.of(GIVEN, MONTHS).smooth(GIVEN, 1.5), r"span is 1\.5"),
        (lambda: MonthlySeries.of(GIVEN, MONTHS).covariance(), "need bootstrap replicates"),
    ],
)  # fmt: skip
def test_bad_input_is_named(make, words):
    with pytest.raises(ConfigError, match=words):
        make()


def test_a_season_leaves_the_curve_of_values_about_nought_as_it_is():
    """A series, or a replicate, with a month whose mean is not positive kept its season, which bent the curve."""
    months, rng = axis(), np.random.default_rng(5)
    season = np.repeat([-1.0, 5.0], [10, 2])[months["month_of_year"] - 1]
    season -= season.mean()
    flat = np.stack([0.3 + np.sin(np.arange(180) / 30) + rng.normal(0, 0.1, 180) for _ in range(5)])
    both = (flat + 1.1 * season, flat + 2 * season)
    curves = [MonthlySeries.of(each[0], months, each).smooth(np.zeros(180), 0.3) for each in both]
    columns = ["smooth", "smooth_lo", "smooth_hi"]
    np.testing.assert_allclose(curves[0][columns], curves[1][columns], rtol=1e-9, atol=1e-9)
    assert curves[0]["smooth"].min() < 0  # no birds, so no floor


def test_years_whose_totals_counts_cannot_tell_from_nought_give_a_clear_direction_alone():
    months = axis()
    totals, draws = series(months)
    last = int(months["year"].max())
    for gone, years, kind in (
        (months["year"] > last - 6, None, "strong decline"),
        (months["year"] > last - 6, (last - 4, last), "not classified"),
        (months["year"] == last - 7, None, "not classified"),
    ):
        left, left_draws = (np.where(gone, 1e-9 * each, each) for each in (totals, draws))
        row = trends.overall_trend(left, months, left_draws, years=years).iloc[0]
        assert row["trend_class"] == kind
        assert ("cannot tell from 0" in row["reason"]) == (kind == "not classified")


def test_totals_that_are_not_positive_are_the_reason_why_there_is_no_class():
    """Of a replicate it was blank, so the page said: no class is given, because ."""
    months = axis()
    totals, draws = series(months)
    below, none = totals.copy(), draws.copy()
    below[months["year"] == 2003] = -1.0
    none[3, months["year"] == 2003] = -1.0
    for left, replicates, reason in ((below, draws, "is not positive"), (totals, none, "in some replicate")):
        row = trends.overall_trend(left, months, replicates).iloc[0]
        assert row["trend_class"] == "not classified"
        assert reason in row["reason"]
    assert change_points(below, months, draws).empty


@pytest.mark.parametrize("end", [0, -1])
def test_a_species_that_left_or_came_has_a_class_though_replicates_hold_none_of_it(end):
    """Of a local extinction the page gave no class and no alert, since some replicate of the last year had no bird."""
    months = axis()
    years = months["year"].unique()
    totals, draws = series(months)
    factor = np.exp(-np.abs(months["year"].to_numpy() - years[-1 - end]))
    gone = months["year"] == years[end]
    none = draws * factor
    none[:5, gone] = 0.0
    row = trends.overall_trend(totals * factor, months, none).iloc[0]
    assert row["reason"] == ""
    assert row["trend_class"] == ("strong increase" if end == 0 else "strong decline")
    few = none.copy()
    few[:5, gone] = 1e-9
    same = trends.overall_trend(totals * factor, months, few).iloc[0]
    for name in ("slope", "slope_se", "percent_lo", "percent_hi"):
        assert same[name] == row[name]
    middle = draws.copy()
    middle[:5, months["year"] == years[len(years) // 2]] = 0.0
    wide, narrow = (trends.overall_trend(totals, months, d).iloc[0]["slope_se"] for d in (middle, draws))
    assert wide >= narrow


@pytest.mark.mc
def test_log_limits_cover_at_their_level():
    rng = np.random.default_rng(4)
    n, sd = 4000, 0.4
    est = np.exp(rng.normal(0, sd, n))
    draws = est * np.exp(rng.normal(0, sd, (200, n)))
    got = interval(est, draws)
    cover = np.mean((got.lo < 1) & (got.hi > 1))
    # the standard deviation over 200 replicates widens nothing: expected coverage of a t with 199 df at 1.96
    assert abs(cover - 0.949) < 4 * np.sqrt(0.05 * 0.95 / n)


def test_a_change_of_few_years_is_not_shown_as_one_of_ten(full):
    year = full.years.year
    for lacking, shown in (([], [2011, 2016]), ([2011, 2012], [2013, 2016]), (range(2011, 2015), [2016])):
        whole = full.whole._replace(series=full.series.without(np.isin(year, list(lacking))))
        a = replace(full, whole=whole, trend=whole.trend(full.settings))
        windows = window_trends(a)
        assert list(windows["from_year"][1:]) == shown
        note = found(a, headline(a), []).values["windows"].note
        assert ("more than a fifth" in note) == (len(shown) < 2)
    assert windows_of(np.arange(1990, 2025)) == {25: 1999, 10: 2014, 5: 2019}
    assert windows_of(np.array([1990, *range(2005, 2025)])) == {10: 2014, 5: 2019}
    assert windows_of(np.array([1990, *range(2004, 2025)])) == {25: 1999, 10: 2014, 5: 2019}
