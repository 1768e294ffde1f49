"""Trials of the structure: what each step would do to the trend, and which are tried."""

from dataclasses import replace

import numpy as np
import pytest

from fedmiss.errors import ConfigError
from fedmiss.federation.fit_tables import totals_by_region
from fedmiss.federation.group.visits import TO_LEARN, experience
from fedmiss.federation.hub import fit, job
from fedmiss.federation.hub.fit import TOL
from fedmiss.federation.hub.job import run_job
from fedmiss.federation.hub.structure import FEWEST_NEW, choose_model, slope_of
from fedmiss.federation.link import InProcess, Link
from fedmiss.federation.local import LocalFederation
from fedmiss.models.lowrank.choice import choose
from fedmiss.models.lowrank.data import Group, GroupPanel
from fedmiss.models.lowrank.settings import CountSettings
from fedmiss.models.lowrank.structure import FEATURES, IN_WORDS
from tests.designs import NEW, SKILL, simulate_design
from tests.federation.network import JOB, SETTINGS, clubs_of, order
from tests.federation.owners import COVARIATES, PLAIN, country, owned, panel_of, tried


def test_the_slope_is_that_of_the_years_whatever_the_season_and_the_first_month():
    L, start = 90, 4
    at = np.arange(start, start + L)
    month, year = at % 12 + 1, 2010 + at // 12
    totals = np.exp(3.0 + 0.02 * year + np.sin(month))
    assert slope_of(totals, month, year) == pytest.approx(0.02)


@pytest.mark.slow
@pytest.mark.parametrize("design", ["preferred", "random"])
def test_what_a_step_adds_to_the_trend_is_the_difference_of_two_fits(design, monkeypatch):
    p = simulate_design(design, 7, sites=50, years=6, visits=1200)
    panel = panel_of(p, "site")
    federation = LocalFederation.of_panel(panel)
    choice = tried(federation, FEATURES)
    names = {words: f for f, words in IN_WORDS.items()}
    assert len(choice.trials) >= 3

    def slope(settings):
        other = LocalFederation.of_panel(panel)
        whole = other.fit(settings)
        return slope_of(totals_by_region(whole, np.full(whole.J, -1), 0)[0], *panel.calendar)

    monkeypatch.setattr(fit, "TOL", fit.FOLD_TOL)  # as closely as trials go
    without = slope(PLAIN)
    for t in choice.trials:
        feature = names.get(t.what.removeprefix("what is expected at a site follows "))
        if feature:
            other = replace(PLAIN, features=(feature,))
        elif t.what == "effects of observers":
            new = bool(federation.hub.observers[2] >= FEWEST_NEW)
            other = replace(PLAIN, observers=True, learning=new)
        elif t.what == "sites that are empty in some years":
            other = replace(PLAIN, occupancy=True)
        else:
            assert t.what == "no slopes of sites"
            other = replace(PLAIN, slopes=False)
        assert t.shift == pytest.approx(slope(other) - without, abs=1e-8), t.what


def test_what_a_step_adds_to_the_trend_is_of_the_months_that_were_visited(monkeypatch):
    """Of 15 years without a visit, before the others, a study's page said that a step adds 22 % a year."""
    p = simulate_design("plain", 3, sites=30, years=12, visits=900)
    at = p.month >= 72
    panel = panel_of(
        replace(p, **{n: getattr(p, n)[at] for n in ("site", "month", "count", "observer")}), "none"
    )
    choice = tried(LocalFederation.of_panel(panel), ())
    monkeypatch.setattr(fit, "TOL", fit.FOLD_TOL)  # as closely as trials go

    def slope(settings, months):
        whole = LocalFederation.of_panel(panel).fit(settings)
        totals = totals_by_region(whole, np.full(whole.J, -1), 0)[0]
        return slope_of(totals[months], *(each[months] for each in panel.calendar))

    visited, every = slice(72, None), slice(None)
    (t,) = [t for t in choice.trials if t.what == "no slopes of sites"]
    flat = replace(PLAIN, slopes=False)
    assert t.shift == pytest.approx(slope(flat, visited) - slope(PLAIN, visited), abs=1e-8)
    assert abs(t.shift - slope(flat, every) + slope(PLAIN, every)) > 1e-4


def test_observers_are_tried_where_two_take_part_and_not_where_one_does_or_they_are_the_sites():
    p = simulate_design("plain", 3, sites=30, years=4, visits=600)
    for observers, there in ((p.observer % 3, True), (p.observer * 0, False), (p.site, False)):
        few = replace(p, observer=observers.astype(np.int32))
        choice = tried(LocalFederation.of_panel(panel_of(few, "none")), ())
        assert ("effects of observers" in {t.what for t in choice.trials}) is there


def test_under_a_least_number_of_own_sites_structure_is_judged_by_cells_and_how_few_is_said():
    """Folds of whole sites held out nothing that may be told, and the choice ended in an error of the program."""
    p = simulate_design("plain", 1, sites=24, years=5, visits=400)
    federation = LocalFederation.of_panel(panel_of(p, "none"), minimum=2)
    _, choice = choose_model(federation.link, federation.hub, [PLAIN], structure=FEATURES, by="cell")
    assert {t.judged_by for t in choice.trials} == {"single cells of site and time left out"}
    held = int(choice.table["n"].sum())
    assert f" They hold {held} of {federation.hub.visits} visits: in other months" in choice.advice
    with pytest.raises(ConfigError, match="no fold holds out a visit"):
        choose(choice.table[:0], [PLAIN], by="cell")


def test_experience_is_counted_by_observer_and_month_whatever_the_order_of_the_visits():
    """An exact small case: a starts in the first year, b later with one, three and one visits, c keeps to one site."""
    month = np.array([0, 20, 15, 16, 16, 16, 17, 30, 31, 32])
    observer = np.array([0, 0, 1, 1, 1, 1, 1, 0, 2, 2], dtype=np.int32)
    site = np.array([0, 1, 0, 0, 1, 1, 0, 0, 4, 4], dtype=np.int32)
    expected = np.r_[0, 0, -np.exp(-np.array([0, 2, 2, 2, 4]) / TO_LEARN), 0, 0, 0]
    # a's visits are of month 50 / 3 in the mean, b's of month 16, the axis' middle is month 17.5
    late = np.r_[np.full(2, 50 / 3 - 17.5), np.full(5, 16 - 17.5), 50 / 3 - 17.5, 0, 0] / 12
    months = np.arange(36)
    order = np.random.default_rng(0).permutation(month.size)
    apart = np.r_[np.ones(8, bool), False, False]  # nobody else went to the only site of c
    for at in (np.arange(month.size), order):
        columns, told = experience(observer[at], site[at], month[at], months)
        np.testing.assert_allclose(columns, np.column_stack([expected, late])[at])
        np.testing.assert_array_equal(told, apart[at])
    assert [x.shape for x in experience(observer[:0], site[:0], month[:0], months)] == [(0, 2), (0,)]


@pytest.mark.parametrize(
    "model",
    [
        PLAIN,
        CountSettings(rank=0, family="bernoulli", dispersion="none"),
        CountSettings(rank=0, family="gaussian"),
    ],
    ids=["counts", "presence", "gaussian"],
)
def test_the_year_from_which_observers_are_late_does_not_matter(monkeypatch, model):
    """Its level is that of the mean visit, so that expected counts are too: by a factor, in log odds, or in birds."""
    monkeypatch.setattr("tests.designs.SKILL", 0.2)
    p = simulate_design("skilled", 2, sites=40, visits=2000)
    settings = replace(model, observers=True, learning=True)
    fit = LocalFederation.of_panel(panel_of(p, "observer")).fit(settings)
    assert 30 * fit.aux.kappa[-1] > 0.1

    def later(*visits):
        columns, apart = experience(*visits)
        return columns + np.outer(apart, [0.0, 30.0]), apart

    monkeypatch.setattr("fedmiss.federation.group.agreement.experience", later)
    other = LocalFederation.of_panel(panel_of(p, "observer")).fit(settings)
    assert other.expected().sum() == pytest.approx(fit.expected().sum(), rel=0.02)


def test_a_fit_does_not_end_before_later_observers_and_the_trend_have_parted(monkeypatch):
    """Both explain years: in turns they creep, so slowly that each move looks like rest."""
    settings = replace(PLAIN, observers=True, learning=True, max_sweeps=2000)
    panels = []
    for seed in range(4):
        p = simulate_design("skilled", seed, visits=3000)
        group = Group.of("g", p.site, p.month, p.count, p.observer, effort=p.log_effort[:, None])
        L = p.year.size
        panels.append(GroupPanel.of(len(p.expected), L, [group], (np.arange(L) % 12 + 1, p.year)))
    found = []
    for tol in (TOL, TOL / 50):
        monkeypatch.setattr("fedmiss.federation.hub.fit.TOL", tol)
        found.append([LocalFederation.of_panel(panel).fit(settings).aux.kappa[-1] for panel in panels])
    assert np.abs(np.subtract(*found)).mean() < 0.001


@pytest.mark.slow
def test_what_later_observers_count_more_is_found():
    found = []
    for seed in range(8):
        p = simulate_design("skilled", seed, visits=6000)
        settings = replace(PLAIN, observers=True, learning=True)
        found.append(LocalFederation.of_panel(panel_of(p, "observer")).fit(settings).aux.kappa[-1])
    error = np.std(found, ddof=1) / 8**0.5
    assert 3 * error < np.mean(found) < SKILL + 3 * error


@pytest.mark.slow
def test_what_a_new_observer_counts_less_is_found_and_groups_do_not_matter():
    found = []
    for seed in range(4):
        p = simulate_design("learning", seed, visits=4000)
        panel = panel_of(p, "observer")
        settings = replace(PLAIN, observers=True, learning=True)
        fit = LocalFederation.of_panel(panel).fit(settings)
        found.append(fit.aux.kappa[-2])
        if not seed:
            one = LocalFederation.of_panel(panel_of(p, "none")).fit(settings)
            np.testing.assert_allclose(one.expected(), fit.expected(), rtol=1e-7)
    error = np.std(found, ddof=1) / 2
    assert np.mean(found) > 0.5 * -np.log(NEW), "shrunk, and of the right sign"
    assert np.mean(found) < -np.log(NEW) + 3 * error


@pytest.mark.slow
def test_learning_is_part_of_the_trial_of_observers_where_new_ones_came():
    p = simulate_design("learning", 1, sites=40, years=5, visits=900)
    p = replace(p, count=p.count * np.where(p.observer % 3 == 0, 4.0, 1.0))
    choice = tried(LocalFederation.of_panel(panel_of(p, "none")), ())
    assert choice.best.observers
    assert choice.best.learning
    same = replace(p, observer=(p.observer % 4).astype(np.int32))  # all of them there in the first year
    assert not tried(LocalFederation.of_panel(panel_of(same, "none")), ()).best.learning


@pytest.mark.parametrize(("design", "taken"), [("preferred", True), ("handover", False)])
def test_it_is_taken_where_visits_follow_the_birds_and_nowhere_else(design, taken):
    p = simulate_design(design, 4)
    federation = LocalFederation.of_panel(panel_of(p, "none"))
    choice = tried(federation, ("visits",))
    assert (choice.best.features == ("visits",)) is taken
    (trial,) = [t for t in choice.trials if "how often it was visited" in t.what]
    assert trial.taken is taken
    assert trial.judged_by == "whole sites left out"


@pytest.mark.slow
@pytest.mark.parametrize(("share", "taken"), [(0.5, True), (0.0, False)])
def test_covariates_are_taken_where_they_speak_and_nowhere_else(share, taken):
    """Of three countries in two at least: of 40 whose sites follow nothing three take covariates (docs, ``truth``)."""
    times = 0
    for seed in (12, 14, 16):
        visits, _, covariates = country(seed, share=share)
        choice = tried(LocalFederation.of_panel(panel_of(visits, "site", covariates)), FEATURES)
        times += "covariates" in choice.best.features
    assert (times >= 2) is taken


def test_a_choice_that_was_kept_is_fitted_again_as_it_was():
    """Coefficients depend on the columns asked for, not on which other features were tried beside them."""
    visits, _, covariates = country(13, J=60, years=4)
    federation = LocalFederation.of_panel(panel_of(visits, "site", covariates))
    federation.ask_features([COVARIATES], FEATURES)
    alone = LocalFederation.of_panel(panel_of(visits, "site", covariates)).fit(COVARIATES)
    np.testing.assert_allclose(federation.fit(COVARIATES).expected(), alone.expected(), rtol=1e-10)


def test_what_the_choice_of_a_study_may_take_together_is_fitted_beside_the_folds(tmp_path, monkeypatch):
    """In one process, where work costs more than rounds do, each step is fitted alone."""
    panel = owned(3, n=900, J=45, L=60, size=2.0, seed=5)
    found = []

    def chosen(*words, known, **more):
        out = choose_model(*words, known=known, **more)
        found.append(known)
        return out

    monkeypatch.setattr(job, "choose_model", chosen)
    programs = {name: club.program() for name, club in clubs_of(panel, tmp_path).items()}
    models = [PLAIN, replace(PLAIN, rank=1)]
    study = run_job(Link(InProcess(programs), JOB[:8], SETTINGS), order(models, structure=()))
    alone = LocalFederation.of_panel(panel)
    _, choice = chosen(alone.link, alone.hub, models, structure=(), known={})
    assert [t.what for t in study.choice.trials] == [t.what for t in choice.trials]
    empty = replace(PLAIN, occupancy=True)
    assert [(empty in known, replace(empty, slopes=False) in known) for known in found] == [
        (True, True),
        (True, False),
    ]


def test_few_sites_are_not_tried():
    p = simulate_design("preferred", 5, sites=12, years=4, visits=300)
    assert "may follow" not in tried(LocalFederation.of_panel(panel_of(p, "none")), FEATURES).advice
