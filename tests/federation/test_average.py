"""The mean of ranks that folds cannot tell apart: a mean of fits, of totals, and replicates dealt out among them."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pandas as pd
import pytest

from fedmiss.errors import ConfigError
from fedmiss.federation.fit_tables import totals_by_region
from fedmiss.federation.hub.agree import DataSpec
from fedmiss.federation.hub.job import JobSpec, run_job
from fedmiss.federation.hub.onward import Before
from fedmiss.federation.link import InProcess, Link
from fedmiss.federation.local import LocalFederation
from fedmiss.models.lowrank.choice import choose
from fedmiss.models.lowrank.settings import CountSettings

from .network import JOB, SETTINGS, clubs_of
from .owners import owned

RANKS = [CountSettings(rank=r, dispersion="negbin") for r in (1, 0, 2)]


@pytest.fixture(scope="module")
def panel():
    return owned(3, n=900, J=30, L=24, size=2.0, seed=4)


@pytest.fixture(scope="module")
def average(panel):
    federation = LocalFederation.of_panel(panel)
    return federation, federation.fit_average(RANKS)


def test_the_average_is_the_mean_of_the_fits_made_one_by_one(panel, average):
    _, mean = average
    alone = [LocalFederation.of_panel(panel).fit(s) for s in RANKS]
    for one, other in zip(mean.fits, alone, strict=True):
        np.testing.assert_array_equal(one.expected(), other.expected())
    np.testing.assert_array_equal(mean.expected(), np.mean([f.expected() for f in alone], axis=0))
    nowhere = np.full(panel.J, -1)
    np.testing.assert_allclose(
        totals_by_region(mean, nowhere, 0)[0],
        np.mean([totals_by_region(f, nowhere, 0)[0] for f in alone], axis=0),
    )


def test_models_of_one_rank_that_differ_in_structure_all_take_part(panel):
    settings = [RANKS[1], replace(RANKS[1], slopes=False)]
    mean = LocalFederation.of_panel(panel).fit_average([*settings, settings[0]])
    alone = [LocalFederation.of_panel(panel).fit(s) for s in settings]
    assert [fit.settings for fit in mean.fits] == settings  # one that stands twice counts once
    np.testing.assert_allclose(mean.expected(), np.mean([f.expected() for f in alone], axis=0))


@pytest.mark.parametrize("settings", [[], [RANKS[0], CountSettings(rank=0, dispersion="quasi")]])
def test_models_with_different_laws_have_no_mean(panel, settings):
    with pytest.raises(ConfigError, match=r"laws of counts \(must be one\)"):
        LocalFederation.of_panel(panel).fit_average(settings)


def test_the_fits_cross_in_the_same_exchanges(panel):
    def exchanges(settings):
        federation = LocalFederation.of_panel(panel)
        before = federation.link.ledger.total.exchanges
        federation.fit_average(settings)
        return federation.link.ledger.total.exchanges - before

    alone = [exchanges([s]) for s in RANKS]
    assert exchanges(RANKS) == max(alone) < sum(alone)


@pytest.mark.parametrize(
    "first",
    [
        CountSettings(rank=0, slopes=False),
        CountSettings(rank=2, observers=True),
        CountSettings(family="gaussian"),
    ],
)
def test_what_was_fitted_before_changes_nothing(panel, average, first):
    """Ranks were copied into what an earlier fit of other models had left with the groups."""
    federation = LocalFederation.of_panel(panel)
    federation.fit(first)
    np.testing.assert_array_equal(federation.fit_average(RANKS).expected(), average[1].expected())


def test_a_kept_rank_shares_nothing_that_rounds_change(average):
    federation, _ = average
    for program in federation.programs.values():
        batches = [program.batches[m.batch] for m in federation.members]
        assert not any(b.off for b in batches)  # these visits have no offsets, in a copy neither
        for one, other in pairwise(batches):
            shared = [n for n, x in one.changing().items() if np.shares_memory(x, other.changing()[n])]
            assert shared == ["offset"]  # that there are none


def test_a_replicate_of_the_average_is_that_of_the_member_it_is_dealt_to(panel, average):
    federation, _ = average
    draws = federation.replicates(range(6), seed=7)
    later = federation.replicates(range(4, 6), seed=7)
    np.testing.assert_array_equal(draws.totals[4:], later.totals)
    for i, settings in enumerate(RANKS):
        one = LocalFederation.of_panel(panel)
        one.fit(settings)
        mine = one.replicates([i, i + 3], seed=7)
        np.testing.assert_array_equal(draws.totals[[i, i + 3]], mine.totals)
        np.testing.assert_array_equal(draws.slopes[[i, i + 3]], mine.slopes)


@pytest.mark.slow
def test_a_job_between_organisations_gives_the_mean_and_tells_every_member(panel, tmp_path):
    def there(folder):
        """Organisations without a rule for released sums."""
        programs = {name: club.program() for name, club in clubs_of(panel, folder).items()}
        for program in programs.values():
            program.jointly = False
        return programs

    sites = there(tmp_path)
    months = panel.calendar[1] * 12 + panel.calendar[0] - 1
    plan = DataSpec(months=months)
    job = run_job(Link(InProcess(sites), JOB[:8], SETTINGS), JobSpec(plan, RANKS, folds=3, bootstrap=4))
    members = [m.settings for m in job.members]
    assert members == list(job.choice.members)
    federation = LocalFederation.of_panel(panel)
    fit = federation.fit_average(members)
    reference = np.mean([totals_by_region(f, np.full(panel.J, -1), 0)[0] for f in fit.fits], axis=0)
    # begun beside the folds, and ended as near
    np.testing.assert_allclose(job.totals[0], reference, rtol=0.02)
    known = JobSpec(plan, RANKS, folds=3, bootstrap=0, before=tuple(Before(m) for m in members))
    nothing = run_job(Link(InProcess(there(tmp_path / "nothing")), JOB[:8], SETTINGS), known)
    np.testing.assert_allclose(nothing.totals[0], reference, rtol=1e-9)
    for site in sites.values():
        told = site.results
        assert [t.batch for t in told] == [m.batch for m in job.members]
        for t, m in zip(told, job.members, strict=True):
            np.testing.assert_array_equal(t.T, m.state.T)
    one = run_job(
        Link(InProcess(there(tmp_path / "one")), JOB[:8], SETTINGS),
        JobSpec(plan, RANKS, folds=3, bootstrap=0, average=False),
    )
    assert [m.settings for m in one.members] == [one.choice.best]


def table(**excess):
    """Scores of candidates over five folds: the named ones above those of a deviance of 1."""
    base = np.array([0.9, 0.95, 1.0, 1.05, 1.1])
    rows = []
    for i, (name, more) in enumerate(excess.items()):
        model, rank = name.rsplit("_", 1)
        for fold, score in enumerate(base + np.asarray(more)):
            rows.append({"candidate": i, "model": model, "rank": int(rank), "penalty": np.nan, "fold": fold, "n": 10,
                         "deviance": score, "log_rmse": 1.0, "total_bias": 1.0})  # fmt: skip
    settings = [CountSettings(rank=int(n.rsplit("_", 1)[1]), dispersion="negbin") for n in excess]
    return pd.DataFrame(rows), settings


NOISE = np.array([-0.04, 0.05, -0.02, 0.03, 0.0])


@pytest.mark.parametrize(
    ("scores", "near"),
    [
        ({"nb_0": 0 * NOISE, "nb_1": 0.01 + NOISE}, [1]),  # a quarter of its error worse
        ({"nb_0": 0 * NOISE, "nb_1": 0.04 + 0.1 * NOISE}, []),  # clearly worse
        # not clearly worse, but by a fifth of the deviance
        ({"nb_0": 0 * NOISE, "nb_1": 0.2 + 10 * NOISE}, []),
        ({"nb_0": 0 * NOISE, "quasi_0": 0.01 + NOISE}, []),  # another distribution
        ({"nb_0": 0 * NOISE, "nb_1": 0.01 + NOISE, "nb_2": 0.01 + NOISE}, [1]),  # the same fit twice
    ],
)
def test_who_is_averaged(scores, near):
    rows, settings = table(**scores)
    choice = choose(rows, settings, by="cell")
    assert choice.best == settings[0]
    assert list(choice.near) == [settings[i] for i in near]
    assert choice.members == (choice.best, *choice.near)
    assert choose(rows, settings, by="cell", one_se=True).near == ()
