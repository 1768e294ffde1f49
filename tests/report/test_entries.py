"""Sites taken up because the birds had come, or given up because they had left: closed forms, designs, the page."""

import dataclasses
import math
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from fedmiss.federation.calls import fit_counts
from fedmiss.models.lowrank.data import Group, GroupPanel
from fedmiss.models.lowrank.settings import CountSettings
from fedmiss.report.cautions import cautions
from fedmiss.report.entries import FIRST, LAST, entries, entry_cautions, entry_reason
from fedmiss.report.inputs import read_inputs
from fedmiss.report.series import MonthlySeries
from fedmiss.report.settings import ReportSettings
from tests.designs import simulate_design

from .conftest import World, analysed, make_folders

YEARS = 8


def found_in(visited, found, expected, *, settings=None, complete=0.0):
    """The entries of a panel of yearly cells, all (J, Y)."""
    J, Y = np.shape(visited)
    months = pd.DataFrame({"year": 2010 + np.arange(Y), "month_of_year": 1})
    site, month = np.nonzero(visited)
    seen = np.asarray(found)[site, month]
    cells = pd.DataFrame({"site_index": site, "month_index": month, "n_visits": 1, "n_detected": seen})
    expected = np.broadcast_to(expected, (J, Y)).astype(float)
    data = SimpleNamespace(
        expected=expected,
        cells=cells,
        fact=lambda name, default: {"share_complete": complete, "implied_zeros": True}[name],
    )
    series = MonthlySeries.of(expected.sum(axis=0), months, None)
    return {e.what: e for e in entries(data, series, settings or ReportSettings())}


def growing(sites=40, late=20, start=4):
    """Sites of which the last ones are first visited in the year ``start``."""
    visited = np.ones((sites, YEARS), dtype=bool)
    visited[sites - late :, :start] = False
    return visited


def test_the_trend_without_birds_before_the_first_visit_is_that_of_the_totals():
    visited = growing()
    e = found_in(visited, visited, 2.0)[FIRST]
    x = np.arange(YEARS) - (YEARS - 1) / 2
    assert e.slope_if == pytest.approx(np.log(2.0 * visited.sum(axis=0)) @ x / (x @ x))
    assert (e.year, e.n_sites, e.sites, e.found, e.otherwise) == (2012, 20, 40, 1.0, 1.0)
    assert e.share == pytest.approx(0.5)
    assert e.clear


def test_the_trend_of_sites_that_stay_empty_is_that_of_the_totals():
    visited = np.ones((40, YEARS), dtype=bool)
    visited[:16, 5:] = False
    found = visited.copy()
    found[:12, 4] = False  # twelve of the sixteen are empty in the last year
    e = found_in(visited, found, 3.0)[LAST]
    total = 3.0 * np.where(np.arange(YEARS) > 4, 40 - 12, 40)
    x = np.arange(YEARS) - (YEARS - 1) / 2
    assert e.slope_if == pytest.approx(np.log(total) @ x / (x @ x))
    assert (e.year, e.n_sites, e.found, e.otherwise, e.clear) == (2015, 16, 0.25, 1.0, True)
    assert FIRST not in found_in(visited, found, 3.0)


@pytest.mark.parametrize(
    ("late", "there", "settings", "complete"),
    [
        (12, 1.0, {}, 0.0),  # three of ten sites
        (20, 0.5, {}, 0.0),  # half of them were empty at first: they were not taken up for the birds
        (20, 1.0, {"free_sites": True}, 0.0),
        (20, 1.0, {}, 0.9),  # complete checklists
    ],
)
def test_sites_that_were_taken_up_freely_are_no_caution(late, there, settings, complete):
    visited = growing(late=late)
    found = visited.copy()
    found[40 - int(late * (1 - there)) :, 4] = False
    e = found_in(visited, found, 2.0, settings=ReportSettings(**settings), complete=complete)[FIRST]
    assert not e.clear
    assert list(entry_cautions([e], "birds")) == []
    assert entry_reason([e], -1.0, 1.0) is None


def test_a_first_visit_that_finds_the_birds_far_more_often_than_later_ones_is_clear_with_checklists_too():
    rng = np.random.default_rng(0)
    visited = growing(sites=60, late=20)
    found = visited & (rng.random(visited.shape) < 0.4)
    found[40:, 4] = True
    assert found_in(visited, found, 1.0, complete=1.0)[FIRST].clear


def test_where_nothing_would_be_left_the_class_is_withheld_and_the_sentence_has_no_number():
    visited = np.zeros((20, YEARS), dtype=bool)
    visited[:, 3:] = True
    visited[0] = True
    expected = np.where(np.arange(20)[:, None] == 0, 0.0, 1.0)
    e = found_in(visited, visited, expected)[FIRST]
    assert math.isnan(e.slope_if)
    assert "the class depends on" in entry_reason([e], -1.0, 1.0)
    assert "not to be told from the counts" in next(entry_cautions([e], "nests"))


def test_few_years_and_sites_without_a_visit_say_nothing():
    visited = growing()
    assert found_in(visited[:, :4], visited[:, :4], 1.0) == {}
    nobody = np.zeros((40, YEARS), dtype=bool)
    both = np.concatenate([visited, nobody])
    one, two = (found_in(v, v, 1.0)[FIRST] for v in (visited, both))
    assert (one.n_sites, one.sites, one.clear) == (two.n_sites, two.sites, two.clear)


@pytest.mark.nightly
def test_designs_in_which_visits_follow_the_birds_are_said_and_others_seldom():
    """Every panel of arrivals and losses; of other designs at most a third, since a third of their sites starts late."""
    said = {}
    for design in ("arrivals", "losses", "random", "preferred", "plain"):
        said[design] = []
        for seed in range(8):
            p = simulate_design(design, seed)
            L = p.year.size
            effort = p.log_effort[:, None] if p.log_effort.any() else None
            group = Group.of("g", p.site, p.month, p.count, p.observer, effort=effort)
            fit = fit_counts(
                GroupPanel.of(len(p.expected), L, [group], (np.arange(L) % 12 + 1, p.year)),
                CountSettings(rank=0, dispersion="negbin"),
            )
            months = pd.DataFrame({"year": p.year, "month_of_year": np.arange(L) % 12 + 1})
            cells = pd.DataFrame(
                {"site_index": p.site, "month_index": p.month, "n_visits": 1, "n_detected": p.count > 0}
            )
            data = SimpleNamespace(
                expected=fit.expected(),
                cells=cells.groupby(["site_index", "month_index"], as_index=False).sum(),
                fact=lambda name, default: default,
            )
            series = MonthlySeries.of(data.expected.sum(axis=0), months, None)
            found = entries(data, series, ReportSettings())
            said[design].append({e.what for e in found if e.clear})
            if design == "arrivals":  # the truth is nearer to what the page supposes
                first = next(e for e in found if e.what == FIRST)
                assert abs(first.slope_if - p.slope) < abs(series.trend().iloc[0]["slope"] - p.slope)
    assert all(FIRST in s for s in said["arrivals"])
    assert all(LAST in s for s in said["losses"])
    for design in ("random", "preferred", "plain"):
        assert sum(bool(s) for s in said[design]) <= 3, design


def test_the_page_says_it_and_withholds_the_class(tmp_path):
    data = read_inputs(**make_folders(tmp_path, World(late=0.6, slope=0.0, rank=2)))
    a = analysed(data)
    said = [s for s in cautions(a) if "first visited in 2012 or later" in s]
    assert len(said) == 1
    assert "24 of 40 sites were" in said[0]
    assert not a.classified
    assert "24 of 40 sites were first visited in 2012 or later" in a.trend["reason"]
    assert a.regions["trend_class"].eq("not classified").all()
    free = analysed(data, free_sites=True)
    assert free.classified
    assert not any("first visited" in s for s in cautions(free))
    facts = data.panel["results"] | {"share_complete": 0.8}
    for implied in (True, False):  # a table of counts is complete, and implies no zero
        panel = {**data.panel, "results": facts | {"implied_zeros": implied}}
        lists = dataclasses.replace(data, panel=panel)
        assert analysed(lists).classified is implied
