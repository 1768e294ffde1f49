"""Trials of the structure: what each step would do to the trend, and which are tried."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fedmiss.federation.hub.structure import slope_of
from fedmiss.federation.local import LocalFederation
from fedmiss.federation.results import totals_by_region
from fedmiss.models.lowrank.structure import FEATURES, IN_WORDS
from fedmiss.simulate.designs import simulate_design
from tests.federation.test_features import panel_of, tried


def test_the_slope_is_that_of_the_years_whatever_the_season_and_the_first_month():
    L, start = 90, 4
    at = np.arange(start, start + L)
    month, year = at % 12 + 1, 2010 + at // 12
    totals = np.exp(3.0 + 0.02 * year + np.sin(month))
    assert slope_of(totals, month, year) == pytest.approx(0.02)


@pytest.mark.slow
@pytest.mark.parametrize("design", ["preferred", "random"])
def test_what_a_step_adds_to_the_trend_is_the_difference_of_two_fits(design):
    p = simulate_design(design, 7, sites=50, years=6, visits=1200)
    panel = panel_of(p, "site")
    federation = LocalFederation.of_panel(panel)
    choice = tried(federation, FEATURES)
    names = {words: f for f, words in IN_WORDS.items()}
    assert len(choice.trials) >= 3

    def slope(settings):
        other = LocalFederation.of_panel(panel)
        fit = other.fit(settings)
        return slope_of(totals_by_region(fit, np.full(fit.J, -1), 0)[0], *panel.calendar)

    with_all = slope(choice.best)
    for t in choice.trials:
        feature = names.get(t.what.removeprefix("what is expected at a site follows "))
        if feature:
            turned = tuple(f for f in FEATURES if (f in choice.best.features) != (f == feature))
            other = replace(choice.best, features=turned)
        elif t.what == "effects of observers":
            other = replace(choice.best, observers=not choice.best.observers)
        else:
            other = replace(choice.best, slopes=not choice.best.slopes)
        added = (with_all - slope(other)) * (1 if t.taken else -1)
        assert t.shift == pytest.approx(added, abs=1e-8), t.what


def test_observers_are_tried_where_two_take_part_and_not_where_one_does():
    p = simulate_design("plain", 3, sites=30, years=4, visits=600)
    for observers, there in ((p.observer % 3, True), (p.observer * 0, False)):
        few = replace(p, observer=observers.astype(np.int32))
        choice = tried(LocalFederation.of_panel(panel_of(few, "none")), ())
        assert ("effects of observers" in {t.what for t in choice.trials}) is there
