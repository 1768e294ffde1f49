"""Heavy counts among many zeros: a rank that runs away does not stop a job, and leaves no mark on the others."""

from dataclasses import replace

import numpy as np
import pytest

from fedmiss import CountSettings, Group, GroupPanel
from fedmiss.errors import ConfigError, DomainError
from fedmiss.federation.hub import fit, lockstep
from fedmiss.federation.local import LocalFederation


def ibises(seed=0, J=30, L=48):
    """Four of five counts are zero, the others up to thousands, and change from month to month."""
    rng = np.random.default_rng(seed)
    site, month = (x.ravel() for x in np.meshgrid(np.arange(J), np.arange(L), indexing="ij"))
    seen = rng.random(site.size) < 0.5
    site, month = site[seen], month[seen]
    big = rng.random(site.size) < 0.2
    count = np.where(big, np.floor(np.exp(rng.normal(4.5, 2.0, site.size))), 0.0)
    calendar = (np.arange(L) % 12 + 1, 2000 + np.arange(L) // 12)
    return GroupPanel.of(J, L, [Group.of("all", site, month, count)], calendar)


def _runs_away_at(monkeypatch, rank, rounds=6):
    """The hub takes every fit of this rank for one that runs away in its sixth round, or in another."""
    real = lockstep.after_round

    def after(state, *rest):
        new = real(state, *rest)
        at = (new.k == rounds) & (new.rank == rank)
        moves = np.where(at[:, None], 10 * fit.FAR, new.moves)
        return replace(new, moves=moves, mu=new.mu if rank else np.where(at, np.nan, new.mu))

    monkeypatch.setattr(lockstep, "after_round", after)


@pytest.fixture(scope="module")
def panel():
    return ibises(seed=3, J=24, L=36)  # a fit of rank 1 ends after 56 rounds


def settings(rank):
    return CountSettings(rank=rank, dispersion="negbin")


def test_a_fit_that_runs_away_is_the_one_of_the_rank_below(panel, monkeypatch):
    """The same bits as asking for that rank, and the reason says what was left out."""
    want = LocalFederation.of_panel(panel).fit(settings(1))
    _runs_away_at(monkeypatch, 2)
    got = LocalFederation.of_panel(panel).fit(settings(3))
    np.testing.assert_array_equal(got.expected(), want.expected())
    assert got.settings.rank == 1
    assert "rank 2 ran away" in got.fit.stop_reason


@pytest.mark.slow
def test_scores_of_such_a_rank_are_those_of_the_rank_below(panel, monkeypatch):
    candidates = [settings(r) for r in (0, 1, 2, 3)]
    want = LocalFederation.of_panel(panel).cross_validate(candidates[:2], folds=3)
    _runs_away_at(monkeypatch, 2)
    got = LocalFederation.of_panel(panel).cross_validate(candidates, folds=3)
    wide = got.table.pivot(index="fold", columns="candidate", values="deviance")
    assert list(wide.columns) == [0, 1, 2, 3]
    np.testing.assert_array_equal(
        wide[[0, 1]], want.table.pivot(index="fold", columns="candidate", values="deviance")
    )
    np.testing.assert_array_equal(wide[2], wide[1])
    np.testing.assert_array_equal(wide[3], wide[1])
    assert got.best.rank <= 1


def test_members_that_fall_to_one_rank_are_one(panel, monkeypatch):
    _runs_away_at(monkeypatch, 1)
    average = LocalFederation.of_panel(panel).fit_average([settings(r) for r in (2, 0, 1)])
    assert [f.settings.rank for f in average.fits] == [0]


@pytest.mark.parametrize("ranks", [(0, 2), (2, 0)])
def test_a_member_that_runs_away_again_at_the_rank_below_is_one_with_that_of_its_last_rank(
    panel, monkeypatch, ranks
):
    """A path hurries through rank 1, which runs away when it goes to its end: rank 0 was averaged with rank 0."""
    _runs_away_at(monkeypatch, 2)
    _runs_away_at(monkeypatch, 1, rounds=15)
    average = LocalFederation.of_panel(panel).fit_average([settings(r) for r in ranks])
    assert [f.settings.rank for f in average.fits] == [0]


@pytest.mark.slow
def test_replicates_follow_a_fit_that_ran_away(panel, monkeypatch):
    """The same draws as of a fit that was asked for that rank."""
    federation = LocalFederation.of_panel(panel)
    federation.fit(settings(1))
    want = federation.replicates(range(3), seed=1).totals
    _runs_away_at(monkeypatch, 2)
    federation = LocalFederation.of_panel(panel)
    federation.fit(settings(3))
    np.testing.assert_array_equal(federation.replicates(range(3), seed=1).totals, want)


def test_the_chosen_fit_stays_first_where_another_has_its_rank(panel, monkeypatch):
    _runs_away_at(monkeypatch, 2)
    average = LocalFederation.of_panel(panel).fit_average([settings(r) for r in (2, 0, 1)])
    assert [f.settings.rank for f in average.fits] == [1, 0]
    assert "rank 2 ran away" in average.fits[0].fit.stop_reason


def test_rank_0_that_runs_away_is_an_error_that_says_what_to_do(panel, monkeypatch):
    _runs_away_at(monkeypatch, 0)
    with pytest.raises(DomainError, match="at rank 0: fit with --rank 0 or another --model"):
        LocalFederation.of_panel(panel).fit(settings(1))
    with pytest.raises(DomainError, match="rank 0"):
        LocalFederation.of_panel(panel).cross_validate([settings(r) for r in (0, 1)])


def test_a_single_visit_is_told_what_needs_no_folds():
    """The sentence named other folds and --minimum only, none of which helps here."""
    federation = LocalFederation.of_panel(GroupPanel.of(1, 1, [Group.of("all", [0], [0], [3.0])]))
    with pytest.raises(ConfigError, match="name the model, as --model negbin --rank 0, which needs no folds"):
        federation.cross_validate([settings(0), settings(1)], folds=2)
    assert federation.fit(settings(0)).expected().shape == (1, 1)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_heavy_counts_end_with_finite_numbers(seed):
    """The whole choice of ranks on such counts, and ranks that the counts cannot bear."""
    federation = LocalFederation.of_panel(ibises(seed))
    choice = federation.cross_validate(
        [CountSettings(rank=r, dispersion="negbin", max_sweeps=150) for r in range(4)], folds=2
    )
    average = federation.fit_average(choice.members)
    assert np.isfinite(average.expected()).all()
    assert np.isfinite(choice.summary["deviance"]).all()
