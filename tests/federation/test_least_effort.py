"""Least numbers for sums over effort and observers: which terms and columns may be told."""

from dataclasses import replace

import numpy as np
import pytest

from fedmiss.errors import ConfigError
from fedmiss.federation.group.visits import effort_columns
from fedmiss.federation.hub.agree import DataSpec, agree
from fedmiss.federation.hub.job import JobSpec, run_job
from fedmiss.federation.link import InProcess, Link
from fedmiss.federation.rules import kept_effort

from .network import JOB, NEGBIN, SETTINGS, clubs_of
from .owners import owned


@pytest.fixture(scope="module")
def panel():
    return owned(3, n=420, J=30, L=24, size=2.0, seed=8)


def agreed_on_effort(panel, folder, efforts, **more):
    """What groups with such effort (minutes, km, people) agree on, between organisations."""
    clubs = clubs_of(panel, folder)
    for name, club in clubs.items():
        effort = efforts(name, club.visits.site.size)
        club.visits = replace(club.visits, effort=effort, given=False, **more)
    programs = {name: club.program() for name, club in clubs.items()}
    plan = DataSpec(jointly=True, minimum=3, share=0.9)
    return agree(Link(InProcess(programs), JOB[:8], SETTINGS), plan), programs


def test_one_visit_without_a_term_has_no_column_of_its_own(panel, tmp_path):
    """Score and curvature of such a column would be the visit's count less what is expected, and what is expected."""

    def efforts(name, n):
        effort = np.column_stack([np.geomspace(10, 200, n), np.ones(n), np.ones(n)])
        effort[:9, 1] = 5.0 if name == "owner-0" else 1.0  # distances differ in one group alone
        effort[0, 0] = np.nan if name == "owner-0" else 30.0
        return effort

    got, programs = agreed_on_effort(panel, tmp_path, efforts)
    assert (got.terms, got.blanks, got.panel.K) == (("duration",), (), 1)
    for words in ("left out where its values differ at fewer", "visits without duration count as the mean"):
        assert any(words in note for note in got.notes)
    assert np.isfinite(programs["owner-0"].used.effort).all()
    filled = effort_columns(np.array([[60.0, 1, 1], [np.nan, 1, 1], [240, 1, 1]]), ("duration",), ())
    np.testing.assert_allclose(filled[:, 0], np.log([1, 2, 4]))


def test_visits_that_lack_one_of_two_terms_are_told_only_where_they_are_enough(panel, tmp_path):
    def efforts(name, n):
        effort = np.column_stack([np.geomspace(10, 200, n), np.geomspace(1, 9, n), np.ones(n)])
        effort[::3, :2] = np.nan
        effort[1, 1] = np.nan if name == "owner-0" else 2.0
        return effort

    got, _ = agreed_on_effort(panel, tmp_path, efforts)
    assert (got.terms, got.blanks) == (("duration", "distance"), ("duration",))


@pytest.mark.parametrize("odd", [True, False])
@pytest.mark.parametrize("protocol", ["two", "seasons"])
def test_terms_that_agree_but_for_one_visit_do_not_tell_its_count(panel, tmp_path, protocol, odd):
    """Of two protocols with minutes and km of their own, or minutes that follow the month, one visit departs."""

    def efforts(name, n):
        months = clubs_of(panel, tmp_path / "again")[name].visits.month % 2
        long = (np.arange(n) % 3 == 0) if protocol == "two" else months == 0
        effort = np.column_stack(
            [np.where(long, 60.0, 5.0), np.where(long & (protocol == "two"), 1.0, 0.0), np.ones(n)]
        )
        if odd and name == "owner-1":
            effort[4] = 45.0, effort[4, 1], 1.0
        return effort

    got, _ = agreed_on_effort(panel, tmp_path, efforts)
    assert got.terms == (("duration",) if protocol == "two" else ())  # km or the month tell all that is left


def test_effort_and_observers_rest_on_enough_sites_and_groups():
    enough, few = [9.0, 3.0, 0.0], [9.0, 2.0, 0.0]
    terms = ("duration", "distance")
    all_fine = np.array([enough] * 6)
    assert kept_effort(all_fine[[0, 1, 2, 3, 4]], terms, ("distance",), 5, 3) == (
        terms, ("distance",), True, True,
    )  # fmt: skip
    for place, left in ((0, (("distance",), ("distance",))), (1, (("duration",), ())), (2, (terms, ()))):
        sums = all_fine[:5].copy()
        sums[place:3] = few  # those that follow are counted again first
        assert kept_effort(sums, terms, ("distance",), 5, 3)[:2] == left
    sums[3:] = [few, [9.0, 3.0, 1.0]]  # two groups; one has too large a share
    assert kept_effort(sums, terms, ("distance",), 5, 3)[2:] == (False, False)


def test_observers_of_one_group_alone_are_not_told_of(panel, tmp_path):
    programs = {n: c.program() for n, c in clubs_of(panel, tmp_path).items()}
    for name, program in programs.items():
        if name != "owner-0":  # without observers: each site is its own
            program.held = replace(program.held, observer=program.held.site)
    plan = DataSpec(jointly=True, minimum=3, share=0.9)
    link = Link(InProcess(programs), JOB[:8], SETTINGS)
    assert agree(link, plan).panel.observers[3] == 0
    link = Link(InProcess(programs), b"2" * 8, SETTINGS)
    with pytest.raises(ConfigError, match="Leave observers out"):
        run_job(link, JobSpec(plan, [replace(NEGBIN, observers=True)], bootstrap=0))
