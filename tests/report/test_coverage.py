"""Laws of what years and results rest on."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from fedmiss.errors import ConfigError
from fedmiss.report.analysis import _sites, analyse
from fedmiss.report.cautions import cautions
from fedmiss.report.coverage import (
    Least,
    coverage,
    first_base,
    groups_apart,
    influential_sites,
    thin_counts,
    usable_counts,
    visits_by_site,
    year_support,
)
from fedmiss.report.findings import Part, region_table
from fedmiss.report.inputs import read_inputs
from fedmiss.report.prose import basis
from fedmiss.report.sections.index import build as index_section
from fedmiss.report.series import MonthlySeries
from fedmiss.report.settings import ReportSettings
from fedmiss.report.words import percent
from fedmiss.report.years import make_years

from .conftest import analysed, axis


def counted(per_year, J=20, months=3):
    """(J, L) cells: in year t, ``cells`` of them at ``sites`` sites."""
    out = np.zeros((J, months * len(per_year)), dtype=bool)
    for t, (cells, sites) in enumerate(per_year):
        for k in range(cells):
            out[k % sites, months * t + k // sites] = True
    return out


def test_a_year_with_too_few_counts_or_sites_leaves_and_the_base_asks_for_twice_as_much():
    months = axis(6, (4, 5, 6))
    observed = counted([(4, 4), (6, 2), (7, 3), (9, 3), (14, 5), (16, 6)])
    seen = usable_counts(observed, months)
    years = make_years(months, seen)
    assert years.used.tolist() == [False, False, True, True, True, True]
    cells, sites = year_support(observed, years)
    assert cells.tolist() == [4, 6, 7, 9, 14, 16]
    assert sites.tolist() == [4, 2, 3, 3, 5, 6]
    assert first_base(observed, years, Least(), observed) == "2005"
    assert first_base(observed, years, Least(2, 2), observed) == "2004"
    assert first_base(observed, years, Least(1, 1), observed) is None
    late = observed & (months["year"].to_numpy() > 2004)
    assert first_base(observed, years, Least(1, 1), late) == "2005"  # a base has a find
    assert first_base(observed, years, Least(50, 50), late) == "2005"  # also where no year has enough counts
    assert first_base(observed, years, Least(50, 50), observed) is None
    loose = make_years(months, usable_counts(observed, months, Least(1, 1)))
    assert loose.used.all()
    with pytest.raises(ConfigError, match="--min-sites is 0"):
        ReportSettings(min_sites=0)


def test_a_panel_of_few_sites_is_asked_for_half_of_what_there_is():
    months = axis(3, season=(6,))
    observed = np.array([[1, 1, 1], [1, 0, 1], [0, 0, 1], [0, 1, 0]], dtype=bool)
    assert make_years(months, usable_counts(observed, months)).used.all()
    observed[1, 0] = False
    assert make_years(months, usable_counts(observed, months)).used.tolist() == [False, True, True]
    assert Least().of(1, 12) == Least(5, 1)


def test_years_are_judged_by_the_season_that_is_shown():
    """Without the two thin years June was counted in too few: years with three counts in May were used."""
    months = axis(8, season=(5, 6))
    observed = counted([(0, 1), (0, 1), (6, 3), (6, 3), (6, 6), (6, 6), (6, 6), (6, 6)], months=2)
    observed[0, [1, 3]] = True  # June of the first two years
    years = make_years(months, usable_counts(observed, months))
    assert years.season == (5, 6)
    cells, sites = year_support(observed, years)
    assert years.used.tolist() == ((cells >= 5) & (sites >= 3)).tolist() == [False] * 2 + [True] * 6
    # Where every year is thin, a season of fewer months than the calendar has stays one.
    few = counted([(2, 2)] * 4, months=2)
    assert make_years(axis(4, season=(5, 6)), usable_counts(few, axis(4, season=(5, 6)))).season == (5,)


def data_of(expected, months, cells, groups=None, settings=None):
    J = len(expected)
    return SimpleNamespace(
        expected=expected, months=months, cells=cells,
        sites=pd.DataFrame({"site_id": [f"s{j}" for j in range(J)]}), group_regions=groups or {},
        panel={"settings": settings or {}}, fact=lambda name: None,
    )  # fmt: skip


def cells_of(site, month, visits, birds):
    cells = pd.DataFrame({"site_index": site, "month_index": month, "n_visits": visits, "count_sum": birds})
    return cells.assign(n_detected=np.minimum(cells["n_visits"], cells["count_sum"]))


def test_the_count_and_the_site_that_carry_a_result_are_found():
    months = axis(8, season=(5,))
    t = np.arange(8)
    expected = np.exp(np.zeros((6, 1)) - 0.02 * t)
    expected[4] = 8 * np.exp(0.2 * t)
    data = data_of(expected, months, cells_of([0, 3, 4], [0, 5, 7], [1, 1, 2], [10, 80, 10]))
    got = influential_sites(data, data.sites, make_years(months)).set_index("what")
    assert got.loc["largest count", ["site_id", "month", "share"]].tolist() == ["s3", "2005-05", 0.8]
    assert got.loc["largest site", "site_id"] == "s4"
    assert got.loc["largest site", "share"] == pytest.approx(expected[4].sum() / expected.sum())
    assert got.loc["trend without", "site_id"] == "s4"
    assert got.loc["trend without", "slope_without"] == pytest.approx(-0.02)
    # Where it was found at no other site the rest has no trend: the page named one, of next to no birds.
    data = data_of(expected, months, cells_of([0, 3, 4], [0, 5, 7], [1, 1, 2], [0, 0, 10]))
    got = influential_sites(data, data.sites, make_years(months)).set_index("what")
    assert got.loc["largest site", ["site_id", "slope_without"]].isna().tolist() == [False, True]
    assert got.loc["trend without", "site_id"] != "s4"


def test_the_share_of_a_region_is_of_the_totals_of_the_index():
    """It was of all months: birds of January, which was counted once, and of years without counts entered."""
    months, seen = axis(6, season=(1, 5)), np.tile([0.0, 9.0], 6)
    seen[0] = 1
    north, south = np.tile([90.0, 10.0], 6), np.tile([0.0, 30.0], 6)
    whole, part = (MonthlySeries.of(total, months, None, seen) for total in (north + south, north))
    shares = region_table({"north": Part(part, None, 3)}, ReportSettings(), whole)["share"]
    assert shares.tolist() == pytest.approx([0.25])


def test_a_site_whose_total_is_below_nought_has_no_slope():
    """The fit's own slope is of logarithms of a billionth there: a site rose by 39 % a year."""
    months, t = axis(8, season=(5,)), np.arange(8)
    expected = np.stack([5 + 0.1 * t, t - 2.0])
    slopes = pd.DataFrame({"site_index": [0, 1], "slope": [0.02, 0.3], "slope_se": [0.01, 0.1]})
    sites = pd.DataFrame({"site_index": [0, 1], "site_id": ["a", "b"]}).reindex(
        columns=["site_index", "site_id", "site_name", "region", "latitude", "longitude"]
    )
    data = SimpleNamespace(
        expected=expected,
        observed=np.ones((2, 8), dtype=bool),
        site_trends=slopes,
        one_trend=False,
        sites=sites,
        cells=pd.DataFrame({"site_index": [0, 1], "n_detected": [1, 1]}),
    )
    trend = pd.Series({"slope_se": 0.01, "slope_se_sampling": 0.01, "trend_class": "stable"})
    got = _sites(data, make_years(months), ReportSettings(), trend)
    assert got["slope"].isna().tolist() == got["slope_se"].isna().tolist() == [False, True]
    assert got["trend_class"].tolist() == ["stable", "not classified"]


def test_groups_without_a_common_region_are_told_apart_and_only_those():
    months, expected = axis(2, (4, 5, 6)), np.repeat([[1.0], [1.0], [1.0], [3.0]], 6, axis=1)

    def parts(groups, **settings):
        data = data_of(expected, months, cells_of([], [], [], []), groups, settings)
        data.sites["region"], data.region_names = list("WXYZ"), lambda: list("WXYZ")
        return groups_apart(data)

    chain = {"a": ("X", "Y"), "b": ("Y",), "c": ("Z",), "d": ("Z", "W")}
    assert parts(chain) == [(["c", "d"], ["W", "Z"], 2 / 3), (["a", "b"], ["X", "Y"], 1 / 3)]
    assert parts(chain | {"e": ("Y", "Z")}) == []
    assert parts(chain | {"e": ()}) == []
    assert parts(chain, group_by="region") == []
    assert parts({"a": ("X",)}) == []
    # the page says names, not those of folders
    assert ["Club Süd"] in [groups for groups, *_ in parts({"Club%20S%C3%BCd": ("X",), "b": ("Y",)})]


def test_visits_that_follow_birds_or_end_with_them_are_seen_and_others_are_not():
    rng = np.random.default_rng(0)
    J = 60
    size, slope = np.exp(rng.normal(size=J)), rng.normal(0, 0.05, J)

    def table(visits, last):
        sites = pd.DataFrame({"mean_total": size, "slope": slope, "years_counted": 5})
        return visits_by_site(cells_of(np.arange(J), last, visits, visits), sites).set_index("compared")

    any_month = rng.integers(0, 30, J)
    chance = table(rng.integers(1, 50, J), any_month)
    assert not chance["clear"].any()
    follow = table(np.ceil(10 * size).astype(int), any_month)
    assert follow["clear"].tolist() == [True, False, False, False]
    assert follow.loc["visits and birds", "correlation"] > 0.95
    ended = table(rng.integers(1, 50, J), (slope.argsort().argsort() * 30) // J)
    assert ended["clear"].tolist() == [False, False, True, True]  # one visit each: the last is the first
    alike = table(np.full(J, 3), any_month)
    assert np.isnan(alike.loc["visits and birds", "correlation"])


@pytest.mark.parametrize("rate", [0.02, 0.05, 0.5])
def test_visits_of_a_rare_species_do_not_go_with_levels_that_are_drawn_to_the_mean(rate):
    rng, J, clear = np.random.default_rng(3), 80, 0
    for _ in range(30):
        visits, level = 1 + rng.poisson(25 * rng.gamma(1.0, 1.0, J)), rate * rng.gamma(1.0, 1.0, J)
        finds = rng.binomial(visits, np.minimum(level, 1.0))
        # the posterior mean of a gamma prior of shape 1
        drawn = (1 + finds) / (1 / rate + visits)
        sites = pd.DataFrame({"mean_total": drawn, "slope": np.nan, "years_counted": 5})
        cells = cells_of(np.arange(J), np.zeros(J, int), visits, finds)
        clear += visits_by_site(cells, sites)["clear"].iloc[0]
    assert clear <= 1


def finds_without_number(data, lost, *, zeros=True):
    """1,000 visits a month that find 5 birds on 400 of them or on all, ``lost`` (L,) times without a number."""
    visits = pd.DataFrame({"site_index": 0, "month_index": data.months["month_index"], "n_visits": 1000})
    found = 400 if zeros else 1000
    visits = visits.assign(
        n_detected=found, n_counted=1000 - lost, n_used=1000 - lost, count_sum=5 * (found - lost)
    )
    return replace(data, cells=visits)


def test_finds_without_a_number_move_the_trend_by_what_they_take_from_the_mean_count(folders):
    data = read_inputs(**folders)
    year, settings = data.months["year"].to_numpy() - 2008, ReportSettings(date="2026-01-02")
    lost = 25 * year
    a = analyse(finds_without_number(data, lost), settings)
    by_year = a.data.cells.groupby(year)[["count_sum", "n_counted"]].sum()
    means = by_year["count_sum"] / by_year["n_counted"]  # of all visits: 2 birds in every year
    assert a.coverage.uncounted_slope == pytest.approx(np.polyfit(means.index, np.log(means), 1)[0], rel=1e-3)
    moved = f"moves the trend by about {percent(100 * np.expm1(a.coverage.uncounted_slope))} per year"
    assert moved in " ".join(cautions(a))
    for lost, zeros in ((0 * year, True), (0 * year + 100, True), (25 * year, False)):
        b = analyse(finds_without_number(data, lost, zeros=zeros), settings)
        assert abs(b.coverage.uncounted_slope) < 1e-4  # no change of the share, or no zeros beside it
        assert not any("have no number" in said for said in cautions(b))


@pytest.mark.parametrize("why", ["not counted", "never found"])
def test_a_region_without_counts_is_listed_and_said(folders, why):
    data = read_inputs(**folders)
    there = (data.sites["region"] == "XX-01").to_numpy()
    if why == "not counted":
        data.observed[there] = False
    else:
        data.cells.loc[there[data.cells["site_index"]], ["n_detected", "count_sum"]] = 0
    a = analysed(data)
    assert a.regions["region"].tolist() == data.region_names()
    assert a.regions["share"].sum() == pytest.approx(1)
    row = a.regions.set_index("region").loc["XX-01"]
    assert (row["n_years"], row["trend_class"]) == (0, "not classified")
    shown = index_section(a, {}).values["regions"]
    said = "no year of the region has enough counts that found the species"
    cells = {r[0].text: [c.text for c in r] for r in shown.rows}
    assert cells["XX-01"][3:] == ["none", "n/a", "n/a", "not classified", said]
    assert cells["XX-00"][3] == "2008 to 2021"
    assert cells["XX-00"][-1] == ""
    assert shown.columns[-1] == "Why no class"


def test_coverage_counts_what_was_seen(full):
    a = full
    c, data = a.coverage, a.data
    assert c.n_observed == len(data.cells) == int(data.observed.sum())
    hidden = float(np.where(data.observed, 0.0, data.expected).sum() / data.expected.sum())
    assert c.share_imputed_total == pytest.approx(hidden)
    assert hidden > 0.6
    year = data.months["year"].to_numpy()[data.cells["month_index"]]
    assert c.sites_repeated == 40
    once = replace(data, cells=data.cells[(data.cells["site_index"] < 35) | (year == 2010)])
    assert coverage(once, a.years).sites_repeated == 35
    assert c.n_zeros == int((data.cells["count_sum"] == 0).sum())
    assert c.linked_years == 14
    np.testing.assert_allclose(a.yearly["imputed_share"].mean(), hidden, atol=0.05)


def test_what_was_counted_and_what_was_imputed_are_of_the_same_years(folders):
    data = read_inputs(**folders)
    data.observed[:, data.months["year"] == 2012] = False
    a = analysed(data)
    c, used = a.coverage, a.yearly[a.yearly["used"]]
    assert len(used) == 13
    assert c.n_cells_used == used["cells"].sum()
    assert c.share_observed == pytest.approx(used["cells_observed"].sum() / used["cells"].sum())
    assert f"of their {used['cells'].sum():,} site-months were counted" in basis(a)


def test_a_species_that_was_never_found_was_still_looked_for(full):
    data = replace(full.data, cells=full.data.cells.assign(n_detected=0, count_sum=0))
    a = analysed(data)
    assert a.coverage.sites_repeated == (a.sites["years_counted"] >= 2).sum() == 40
    assert a.monthly[["lo", "hi"]].isna().all(axis=None), "replicates of nought agree, and say nothing"
    assert a.yearly[["total_lo", "total_hi", "total_se"]].isna().all(axis=None)
    assert full.yearly["total_lo"].notna().all()


def test_a_median_below_the_limit_is_not_written_as_the_limit(full):
    c = replace(full.coverage, median_cells_per_year=9.5)
    assert list(thin_counts(c, full.data, 14)) == [
        "the median year has 9.5 site-months with a count; a class needs 10"
    ]
    c = replace(full.coverage, n_detected=1)
    assert next(thin_counts(c, full.data, 14)) == "1 visit found the species; a class needs 20"
