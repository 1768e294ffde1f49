"""The seasonal profile by week: a known shape comes back, whatever sites were visited in which week."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from fedmiss.report.analysis import analyse
from fedmiss.report.figures import season, weeks
from fedmiss.report.fitted import fitted_years
from fedmiss.report.plots import plot_season
from fedmiss.report.prose import caveats
from fedmiss.rng import rng_for

from .conftest import analysed

SHAPE = np.array([0.5, 1.5, 1.2, 0.8])


@pytest.fixture(scope="module")
def a(small):
    return analysed(small)


def with_weeks(a, shape, *, drop=lambda w: w.index < 0):
    """Return the analysis with visits whose counts are exactly the model's, times the shape; large sites early."""
    J, L = a.data.expected.shape
    rng = rng_for(1, "weeks")
    rows = [
        (j, t, q, int(rng.integers(1, 4 + 8 * (q == j % 4))))
        for j in range(J)
        for t in range(L)
        for q in range(4)
    ]
    w = pd.DataFrame(rows, columns=["site_index", "month_index", "quarter", "n_counted"])
    fitted = a.data.expected[w["site_index"], w["month_index"]]
    w["count_sum"] = 1e9 * w["n_counted"] * fitted * shape[w["quarter"]]
    return replace(a, data=replace(a.data, weeks=w[~drop(w)]))


def test_a_known_shape_comes_back_and_a_month_is_the_mean_of_its_weeks(a):
    t = with_weeks(a, SHAPE).weeks
    used = a.monthly[a.monthly["year"].isin(a.years.year[a.years.used])]
    for m, part in t.groupby("month_of_year"):
        month = used.loc[used["month_of_year"] == m, "total"].mean()
        np.testing.assert_allclose(part["total"] / part["total"].sum(), SHAPE / SHAPE.sum(), rtol=1e-9)
        exposure = _exposure(a, m)
        assert (part["total"] * exposure).sum() / exposure.sum() == pytest.approx(month, rel=1e-9)
        assert (part["low_year"] < part["total"]).all()
        assert (part["total"] < part["high_year"]).all()
    assert list(t.columns[:2]) == ["month_of_year", "week"]
    assert len(t) == 4 * len(a.years.season)


def test_a_winter_has_the_numbers_of_the_same_counts_in_spring(a):
    a = with_weeks(a, SHAPE)
    a = analysed(a.data, trim=True)
    year, month = np.divmod(12 * a.data.months["year"] + a.data.months["month_of_year"] - 1 - 5, 12)
    names = [f"{y}-{m + 1:02d}" for y, m in zip(year, month, strict=True)]
    earlier = a.data.months.assign(year=year, month_of_year=month + 1, month=names)
    b = analyse(replace(a.data, months=earlier), a.settings)
    assert (a.years.season, b.years.season) == ((4, 5, 6), (1, 11, 12))
    for name in ("trend", "coverage", "entries"):
        assert repr(getattr(a, name)) == repr(getattr(b, name))
    for name in ("yearly", "regions", "sites", "influential", "periods", "points", "curve"):
        x, y = (getattr(one, name).drop(columns=["month", "time"], errors="ignore") for one in (a, b))
        pd.testing.assert_frame_equal(x, y, rtol=1e-9)
    pd.testing.assert_frame_equal(a.beside.table, b.beside.table, rtol=1e-6)
    pd.testing.assert_frame_equal(
        fitted_years(a.data.visited, a.months), fitted_years(b.data.visited, b.months)
    )
    for one in ("season", "weeks"):
        x, y = (getattr(each, one).drop(columns="days", errors="ignore") for each in (a, b))
        shifted = y.assign(month_of_year=(y["month_of_year"] + 4) % 12 + 1)
        by = ["month_of_year", "week"][: 1 + (one == "weeks")]
        pd.testing.assert_frame_equal(
            x, shifted.sort_values(by, ignore_index=True), check_dtype=False, rtol=1e-9
        )
    # Nor has its picture a line over a summer that nobody counted: November stands before January.
    for draw in (season, weeks):
        steps = [np.diff(draw(each).figure.axes[0].lines[-1].get_xydata(), axis=0) for each in (a, b)]
        np.testing.assert_allclose(*steps, rtol=1e-6)
    steps = [np.diff(plot_season(each.season).lines[-1].get_xydata(), axis=0) for each in (a, b)]
    np.testing.assert_allclose(*steps, rtol=1e-6)


def test_of_a_winter_that_lacks_months_it_is_said_by_which_year_it_goes(a, monkeypatch):
    """Counts to December 2023 have an incomplete "2024", of which the reader did not hear why."""
    before = a.years
    ends = [(before, False), (replace(before, season=(1, 11, 12)), True)]
    for years, over in ends:
        short = replace(years, complete=years.complete & (years.year != years.year[0]))
        monkeypatch.setitem(a.series.__dict__, "years", short)
        (lacks,) = [said for said in caveats(a) if "lacks some months" in said]
        assert lacks.endswith("A season over the New Year counts as the year in which it ends.") == over


def test_no_line_is_drawn_through_a_pause_inside_a_year(a):
    """January, March and September were joined by a line, over months that nobody counted."""
    at = a.data.months["month_of_year"].map({4: 1, 5: 3, 6: 9})
    names = [f"{y}-{m:02d}" for y, m in zip(a.data.months["year"], at, strict=True)]
    months = a.data.months.assign(month_of_year=at, month=names)
    b = with_weeks(analyse(replace(a.data, months=months), a.settings), SHAPE)
    lines = [draw(b).figure.axes[0].lines[-1] for draw in (season, weeks)] + [plot_season(b.season).lines[-1]]
    for line in lines:
        x = line.get_xdata()
        assert np.isnan(x).sum() == 2
        assert not (np.diff(x) > 1.0).any()


def _exposure(a, m):
    """Expected counts of the visits of each quarter of month m in the used years."""
    w = with_weeks(a, SHAPE).data.weeks
    months = a.data.months
    mine = (months["month_of_year"] == m) & months["year"].isin(a.years.year[a.years.used])
    w = w[w["month_index"].isin(months.index[mine])]
    fitted = w["n_counted"] * a.data.expected[w["site_index"], w["month_index"]]
    return fitted.groupby(w["quarter"]).sum().to_numpy()


def test_few_counts_have_no_dot_and_monthly_tables_no_weeks(a):
    thin = with_weeks(a, SHAPE, drop=lambda w: (w["quarter"] == 3) & (w["site_index"] > 0)).weeks
    assert thin.loc[thin["week"] < 4, "total"].notna().all()
    scarce = thin["week"] == 4
    assert (thin.loc[scarce, "total"].isna() == (thin.loc[scarce, "n_counted"] < 10)).all()
    assert with_weeks(a, SHAPE, drop=lambda w: w["quarter"] != 2).weeks.empty
    assert a.weeks.empty  # the panel has no visits with days


def test_effort_that_grows_over_the_years_is_no_difference_of_years_or_weeks(a):
    """The range of the years was that of their effort, and the week that was visited in later years stood too high."""
    plain = with_weeks(a, SHAPE)
    w = plain.data.weeks
    year, late = a.data.months["year"].to_numpy(), w["quarter"] == 3
    growth = np.exp(0.1 * (year - year[0]))
    at = w["month_index"].to_numpy()
    many = np.where(late, 1 + year[at] - year[0], 1)  # the last week has more and more of the visits
    fitted = w["n_counted"] * many * growth[at] * a.data.expected[w["site_index"], at]
    grown = w.assign(n_counted=w["n_counted"] * many, count_sum=w["count_sum"] * many * growth[at])
    visited = pd.DataFrame({"month_index": at, "fitted": fitted}).groupby("month_index", as_index=False).sum()
    weekly = replace(plain, data=replace(plain.data, weeks=grown, visited=visited)).weeks
    for _, part in weekly.groupby("month_of_year"):
        np.testing.assert_allclose(part["total"] / part["total"].sum(), SHAPE / SHAPE.sum(), rtol=1e-9)
        # years differ by their months' estimates, in each week in the same way
        for end in ("low_year", "high_year"):
            assert np.ptp(part[end] / part["total"]) == pytest.approx(0, abs=1e-9)
        month = a.monthly[a.monthly["month_of_year"] == part["month_of_year"].iloc[0]]["total"]
        assert (part["high_year"] / part["low_year"]).max() == pytest.approx(month.max() / month.min())


def test_weeks_are_summed_over_groups_without_dates(tmp_path):
    from fedmiss.report.inputs import _read_weeks
    from fedmiss.simulate.panel_folder import write_panel
    from fedmiss.simulate.panels import simulate_panel

    p = simulate_panel(20, 12, 0.6, seed=3, groups=3)
    folder = write_panel(p, tmp_path / "panel")
    w = _read_weeks(folder)
    assert set(w.columns) == {"site_index", "month_index", "quarter", "n_counted", "count_sum"}
    assert w["n_counted"].sum() == p.y.size
    assert w["count_sum"].sum() == p.y.sum()
    assert w["quarter"].between(0, 3).all()
