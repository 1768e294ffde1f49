"""Years whose visits were reported only where they found the species: which are named, which are not, what it does."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import betabinom

from fedmiss.report.analysis import analyse
from fedmiss.report.changes import window_trends
from fedmiss.report.finds import _alike, _chance, finds_only, finds_reason
from fedmiss.report.joint import caveats as joint_caveats
from fedmiss.report.prose import caveats, headline
from fedmiss.report.series import MonthlySeries
from fedmiss.report.settings import ReportSettings
from fedmiss.report.tables import fact_table
from fedmiss.report.words import MINUS
from fedmiss.report.years import month_table

from .test_joint import STAMPS, findings, result_of

YEAR = np.arange(2008, 2022)
SAID = "Visits without a find seem not to have been reported then"


def series_without(a):
    """The trend of the totals that are left, by their own series."""
    later = a.series.n_observed * np.where(
        np.isin(a.series.years.of_month, [each.year for each in a.finds_only]), 0, 1
    )
    return replace(a.series, n_observed=later).trend().iloc[0]["percent_per_year"]


def named(visits, finds):
    """The years that are named, of visits and finds (Y,) or (Y, sites)."""
    visits, finds = (np.array(each, dtype=float).reshape(len(visits), -1) for each in (visits, finds))
    return [each.year for each in finds_only(YEAR[: len(visits)], [(visits, finds)])]


def test_the_chance_of_so_many_finds_is_that_of_a_beta_binomial():
    n, f, p, rho = 33, 32, 0.3, 0.07
    a, b = p * (1 / rho - 1), (1 - p) * (1 / rho - 1)
    assert _chance(n, f, p, rho) == pytest.approx(betabinom(n, a, b).sf(f - 1), rel=1e-9)
    rng = np.random.default_rng(1)
    rate = rng.beta(a, b, 4000)
    assert _alike(np.full(4000, 30.0), rng.binomial(30, rate).astype(float)) == pytest.approx(rho, abs=0.01)


@pytest.mark.parametrize(
    ("visits", "finds", "years"),
    [
        ([30] * 7 + [33] + [30] * 6, [9, 11, 8, 10, 7, 9, 12, 33, 10, 9, 8, 11, 9, 7], [2015]),
        ([30] * 7 + [40] + [30] * 6, [9, 11, 8, 10, 7, 9, 12, 39, 10, 9, 8, 11, 9, 7], [2015]),
        ([30] * 7 + [33] * 2 + [30] * 5, [9, 11, 8, 10, 7, 9, 12, 33, 33, 9, 8, 11, 9, 7], [2015, 2016]),
        # never found in other years
        ([30] * 13 + [20], [0] * 13 + [20], [2021]),
        # honest: few visits; a boom with visits that found none; found nearly everywhere
        ([30] * 7 + [6] + [30] * 6, [9, 11, 8, 10, 7, 9, 12, 6, 10, 9, 8, 11, 9, 7], []),
        ([30] * 7 + [33] + [30] * 6, [9, 11, 8, 10, 7, 9, 12, 30, 10, 9, 8, 11, 9, 7], []),
        ([30] * 14, [26, 27, 28, 26, 25, 27, 28, 30, 27, 26, 28, 27, 26, 27], []),
        # a species that comes to be found everywhere, and years that differ much
        ([30] * 14, [3, 4, 6, 8, 10, 13, 16, 19, 22, 24, 26, 27, 30, 30], []),
        ([30] * 14, [2, 20, 8, 27, 1, 28, 10, 30, 3, 25, 6, 27, 12, 28], []),
        # no other years to tell by; every visit a find in all of them
        ([30] * 4, [30, 30, 9, 10], []),
        ([30] * 14, [30] * 14, []),
    ],
)
def test_a_year_of_finds_only_is_named_where_the_others_make_it_improbable(visits, finds, years):
    assert named(visits, finds) == years


@pytest.mark.parametrize("gaps", [0.0, 0.1])
@pytest.mark.parametrize("later", [0.0, 0.3])
def test_birds_that_were_at_all_sites_of_a_scheme_may_be_gone(later, gaps):
    """The same sites counted in every year: no visit lacks in the years in which all found the species."""
    rng = np.random.default_rng(1)
    visits = (rng.random((14, 30)) >= gaps).astype(float)
    finds = visits * (rng.random((14, 30)) < np.where(np.arange(14) < 6, 1.0, later)[:, None])
    assert named(visits, finds)
    assert not finds_only(YEAR, [(visits, finds)], by_site=True)
    # without the visits that found nothing such years would look the same, but for the sites that lack
    finds = visits * (rng.random((14, 30)) < 0.5)
    visits[:6] = finds[:6]
    found = [each.year for each in finds_only(YEAR, [(visits, finds)], by_site=True)]
    assert found == named(visits, finds)
    assert len(found) >= 3


def test_visits_are_compared_with_those_at_the_same_sites():
    """A year that went to the one site where the birds always are has no absence, and that is honest."""
    visits = np.tile([10.0, 30.0], (14, 1))
    finds = np.column_stack([np.tile([10.0, 9.0], 7), np.tile([3.0, 2.0], 7)])
    visits[7], finds[7] = (30.0, 0.0), (30.0, 0.0)
    assert named(visits, finds) == []
    assert named(visits.sum(axis=1), finds.sum(axis=1)) == [2015]


def honest(rng, years=12, sites=25, n=30):
    """Visits and finds (years, sites) of a panel whose sites, years, and people at work differ."""
    level, pop = rng.normal(rng.normal(0, 1.5), 1.2, sites), rng.dirichlet(np.full(sites, 0.6))
    visits = np.array(
        [rng.multinomial(max(1, rng.poisson(n * rng.gamma(3, 1 / 3))), pop) for _ in range(years)]
    )
    year = rng.normal(0, 0.7, (years, 1)) + rng.normal(0, 0.15) * np.arange(years)[:, None]
    rate = 1 / (1 + np.exp(-(level + year + rng.normal(0, 0.6, (years, sites)))))
    return visits, rng.binomial(visits, rate)


def test_few_honest_panels_are_named_and_most_others_are():
    false = right = 0
    for i in range(300):
        rng = np.random.default_rng(i)
        visits, finds = honest(rng)
        false += bool(named(visits, finds))
        visits, finds = honest(rng, n=90)
        visits[4] = finds[4]  # only finds were reported
        rare = visits[4].sum() >= 10 and finds.sum() < 0.6 * np.delete(visits, 4, axis=0).sum()
        right += 1 if not rare else 2012 in named(visits, finds)
    assert false <= 3
    assert right >= 250


def test_a_local_page_names_the_year_and_withholds_a_class_that_depends_on_it(full):
    at = full.data.cells["month_index"].to_numpy()
    first = full.data.months["year"].isin([2008, 2009]).to_numpy()
    cells = full.data.cells[~first[at] | (full.data.cells["n_detected"] > 0)].reset_index(drop=True)
    # later the species is at every other site only
    early, odd = (first[cells["month_index"]], cells["site_index"] % 2)
    few = cells.assign(n_detected=np.where(early, cells["n_detected"], cells["n_detected"] * odd))
    expected = full.data.expected * np.where(first, 1.6, 0.75)
    expected[:, ~first] *= np.exp(0.03 * (full.data.months["year"] - 2008).to_numpy()[~first])
    draws = {name: each * np.where(first, 1.6, 0.75) for name, each in full.data.draws.items()}
    a = analyse(replace(full.data, cells=few, expected=expected, draws=draws), full.settings)
    assert [each.year for each in a.finds_only] == [2008, 2009]
    said = next(each for each in caveats(a) if SAID in each)
    n = int(few.loc[first[few["month_index"]], "n_visits"].sum())
    assert sum(each.visits for each in a.finds_only) == n
    y = a.finds_only[0]
    assert f"{y.finds} of {y.visits} visits of 2008 found the species, of those of other years" in said
    assert "--complete" in said
    assert "(--year)" in said
    assert "the class or an alert depends on 2008 and 2009" in headline(a).sentence
    assert not window_trends(a)["alert"].any()
    rest = series_without(a)
    assert f"Without these years the trend would be {rest:+.1f} % per year".replace("-", MINUS) in said
    facts = fact_table(a).set_index("name")["value"]
    assert facts["finds_only_2008_visits"] == facts["finds_only_2008_finds"] == y.visits
    assert facts["finds_only_2008_share_of_others"] == y.others
    assert not any(SAID in each for each in caveats(full))


@pytest.mark.parametrize("family", ["bernoulli", "poisson"])
def test_a_joint_page_names_it_from_what_is_sent(family, tmp_path):
    """Finds without a number are finds, and their visits are visits."""
    finds = np.where(STAMPS // 12 == 2008, 18.0, 5.0)
    a = findings(result_of(tmp_path / "only", finds=finds, family=family))
    said = next(each for each in joint_caveats(a) if SAID in each)
    assert said.startswith("216 of 216 visits of 2008 found the species, of those of other years 28 %.")
    b = findings(result_of(tmp_path / "honest", family=family))
    assert not any(SAID in each for each in joint_caveats(b))
    c = findings(result_of(tmp_path / "without", finds=finds + 2, uncounted=2.0, family=family))
    said = next(each for each in joint_caveats(c) if SAID in each)
    assert said.startswith("240 of 240 visits of 2008 found the species, of those of other years 35 %.")


@pytest.mark.parametrize(("at", "depends"), [(2011, True), (2004, False)])
def test_a_class_is_withheld_only_where_it_depends_on_the_year(at, depends):
    """A decline that only the year of finds makes; a year of finds in the middle of a clear decline."""
    months = month_table(12 * 2001 + np.arange(12 * 11))
    year = months["year"].to_numpy()
    level = 100 * np.exp((0.0 if depends else -0.08) * (year - 2001.0))
    level[year == at] *= 1.1 if not depends else 3.0
    rng = np.random.default_rng(2)
    draws = level * np.exp(0.02 * rng.normal(size=(60, 1)) + 0.02 * rng.normal(size=(60, level.size)))
    series = MonthlySeries.of(level, months, draws, np.ones(level.size))
    only = finds_only(
        np.unique(year), [(np.full((11, 1), 30.0), np.where(np.unique(year) == at, 30.0, 9.0)[:, None])]
    )
    assert [each.year for each in only] == [at]
    assert bool(finds_reason(only, series, ReportSettings())) == depends
