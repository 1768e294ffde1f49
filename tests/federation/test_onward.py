"""A job that goes on from an earlier one: nothing is chosen again, few rounds, and the answer of a fit from nothing."""

import json
from dataclasses import replace

import numpy as np
import pytest

from fedmiss.errors import ConfigError
from fedmiss.federation.hub.job import Stages, preview_job, run_job
from fedmiss.federation.hub.onward import Before, begun_beside, read_before, written
from fedmiss.federation.link import InProcess, Link
from fedmiss.federation.messages import Product
from fedmiss.models.lowrank.choice import default_candidates
from fedmiss.models.lowrank.settings import CountSettings

from .network import JOB, SETTINGS, Tapped, clubs_of, order, run
from .owners import owned


@pytest.fixture(scope="module")
def clubs(tmp_path_factory):
    return clubs_of(owned(5, n=2500, J=80, L=60, size=2.0, seed=5), tmp_path_factory.mktemp("clubs"))


def job(clubs, what):
    """Result, exchanges, and what a later job can go on from."""
    kept, link = [], Link(InProcess({n: c.program() for n, c in clubs.items()}), JOB[:8], SETTINGS)
    stages = Stages()
    stages.known = kept.append
    return run_job(link, what, stages), link.exchange, kept


WHOLE = replace(order(default_candidates(CountSettings(), 2), bootstrap=4), folds=5)


@pytest.fixture(scope="module")
def first(clubs):
    return job(clubs, WHOLE)


def through_json(models):
    return read_before(json.loads(json.dumps(written(models))), "a file")


def apart(a, b):
    """Root mean square difference of two series of totals, on the log scale."""
    return float(np.sqrt(np.mean(np.log(a.totals[0] / b.totals[0]) ** 2)))


def without(clubs, name):
    return {n: c for n, c in clubs.items() if n != name}


def test_the_same_data_go_on_where_they_were(clubs, first):
    whole, exchanges, kept = first
    again, fewer, _ = job(clubs, replace(WHOLE, before=through_json(kept[-1])))
    assert [m.settings for m in again.members] == [m.settings for m in whole.members]
    assert fewer < exchanges / 2
    # sites find their place at home, for the months that are given: there is next to nothing left to do
    assert all(m.state.rounds <= 12 for m in again.members)
    assert apart(again, whole) < 0.01  # both stop where a round moves by less than .003


def test_the_fit_of_a_choice_begins_beside_its_folds(clubs, first):
    """It needs fewer rounds than one from nothing, and has its answer; a rank that all visits did not reach begins there."""
    whole, _, kept = first
    assert kept[0][0].months is None  # others may stand at another round: only the choice is told
    chosen = tuple(Before(one.settings) for one in kept[-1])
    nothing, _, _ = job(clubs, replace(WHOLE, before=chosen))
    assert [m.settings for m in nothing.members] == [m.settings for m in whole.members]
    other = replace(chosen[0].settings, rank=9)
    assert (
        begun_beside([other], {chosen[0].settings: whole.members[0].state}, np.arange(12))[0].months is None
    )
    rounds = [[m.state.rounds for m in one.members] for one in (whole, nothing)]
    assert sum(rounds[0]) < sum(rounds[1]) / 2
    assert apart(whole, nothing) < 0.01


def test_one_leaves_and_the_others_go_on(clubs, first):
    _, exchanges, kept = first
    less = without(clubs, "owner-4")
    chosen, fitted = (through_json(k) for k in (kept[0], kept[-1]))
    assert chosen[0].months is None  # of a job that had not come further
    assert fitted[0].months is not None
    cold, more, _ = job(less, replace(WHOLE, before=chosen))
    warm, fewer, _ = job(less, replace(WHOLE, before=fitted))
    assert fewer <= more
    assert fewer < exchanges
    assert [m.settings for m in warm.members] == [m.settings for m in cold.members]
    assert apart(warm, cold) < 0.02
    assert apart(warm, first[0]) > 0.05  # it is another sum
    assert all(m.state.converged for m in warm.members)


@pytest.mark.slow
def test_one_joins_and_years_are_added(clubs, first):
    less, early = without(clubs, "owner-4"), {}
    last = max(int(c.visits.month.max()) for c in less.values())
    for name, club in less.items():
        early[name] = replace_visits(club, club.visits.take(club.visits.month <= last - 12))
    _, _, kept = job(early, WHOLE)
    before = through_json(kept[-1])
    cold, more, _ = job(clubs, replace(WHOLE, before=through_json(kept[0])))
    warm, fewer, _ = job(clubs, replace(WHOLE, before=before))
    assert before[0].months.size == warm.agreement.months.size - 12
    assert fewer < more
    assert apart(warm, cold) < 0.02


@pytest.mark.parametrize("years", [(3, 4), (4, 3)])
def test_a_line_that_years_bring_or_take_is_no_factor(clubs, years):
    """Sites have slopes from four years on: then the months have other columns, and the fit begins from nothing."""
    first = min(int(c.visits.month.min()) for c in clubs.values())
    spans = [
        {n: replace_visits(c, c.visits.take(c.visits.month < first + 12 * y)) for n, c in clubs.items()}
        for y in years
    ]
    one = order([CountSettings(rank=1)], bootstrap=0)
    before = through_json(job(spans[0], one)[2][-1])
    onward, exchanges, _ = job(spans[1], replace(one, before=before))
    cold, more, _ = job(spans[1], one)
    assert onward.members[0].state.rank == cold.members[0].state.rank == 1
    np.testing.assert_array_equal(onward.totals, cold.totals)
    assert exchanges == more


def replace_visits(club, visits):
    out = object.__new__(type(club))
    out.__dict__ = club.__dict__ | {"visits": visits}
    return out


def test_all_organisations_go_on_together_under_masks(clubs, first, tmp_path):
    less = without(clubs, "owner-4")
    roster = {n: c.roster[n] for n, c in less.items()}
    for n, c in less.items():
        less[n] = c = replace_visits(c, c.visits)
        c.roster, c.journal = roster, tmp_path / f"{n}.journal"
    what = replace(WHOLE, before=through_json(first[2][-1]), bootstrap=1)
    here = job(less, what)[0]
    for joint in run(less, what).values():
        np.testing.assert_allclose(joint.totals, here.totals, rtol=1e-8)


def test_what_is_handed_on_keeps_its_bits(first):
    for one, back in zip(first[2][-1], through_json(first[2][-1]), strict=True):
        assert one.settings == back.settings
        for name in ("months", "T", "tau", "noise", "series", "kappa", "chain"):
            np.testing.assert_array_equal(getattr(one, name), getattr(back, name))


def test_a_preview_asks_what_a_job_with_factors_begins_with(tmp_path):
    """Its journal holds these answers: a job that asked anything else there would be refused by all."""
    held = clubs_of(owned(3, n=4000, J=150, L=24, size=2.0, seed=5), tmp_path)
    ranks = [CountSettings(rank=r, dispersion="negbin", max_sweeps=6) for r in (0, 1)]
    taps = []
    for goes in (preview_job, run_job):
        taps.append(Tapped({n: c.program() for n, c in held.items()}))
        goes(Link(taps[-1], JOB[:8], SETTINGS), order(ranks, bootstrap=0))
    preview, whole = ([asked for asked, _ in tap.frames] for tap in taps)
    assert preview == whole[: len(preview)]
    assert any(isinstance(asked, Product) for asked in taps[1].asked)


def test_the_preview_is_the_beginning_of_the_same_job(clubs, first):
    link = Link(InProcess({n: c.program() for n, c in clubs.items()}), JOB[:8], SETTINGS)
    agreement, months = preview_job(link, replace(WHOLE, before=through_json(first[2][-1])))
    assert agreement.panel.visits == first[0].agreement.panel.visits
    assert months.size == 0  # nothing is chosen


FIXED = CountSettings(time="fixed", rank=0, season=False, slopes=False)


def test_a_forged_start_tells_no_sums_of_single_sites(clubs):
    """A pair of months may rest on one site, whose birds the equations of fixed times tell; a region's month likewise."""
    for forged in (FIXED, CountSettings(season=False, slopes=False, responses=("regions",))):
        with pytest.raises(ConfigError, match=r"a file: model 1 .* may be of one site"):
            through_json([Before(forged)])
    # nor does any organisation answer
    with pytest.raises(ConfigError, match=r"owner-0.*on the group's own screen"):
        job(clubs, replace(WHOLE, before=(Before(FIXED),)))


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda r: r[0]["T"].pop(), "T is not"),
        (lambda r: r[0].update(mu=float("nan")), "mu is nan"),
        (lambda r: r[0]["tau"].append(1.0), "tau is not"),
        (lambda r: r[0]["noise"].__setitem__(0, 0.0), "noise holds a variance"),
        (lambda r: r[0]["series"].__setitem__(0, [1.0]), "cannot be read|series is not"),
        (lambda r: r[0]["settings"].update(rank=9), "T has"),
        (lambda r: r[0].update(T="many"), "cannot be read"),
        (lambda r: r[0]["settings"].update(rank=-1), "the rank is -1"),
        (lambda r: r[0]["settings"].update(ranks=1), "cannot be read"),
        (lambda r: r[0].pop("settings"), "cannot be read"),
        (lambda r: r.clear(), "no model of it"),
    ],
)
def test_a_damaged_start_is_refused_in_words(first, damage, words):
    rows = written(first[2][-1])
    damage(rows)
    with pytest.raises(ConfigError, match=f"a file.*{words}"):
        read_before(rows, "a file")
