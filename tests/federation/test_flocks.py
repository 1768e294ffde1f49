"""Fits of birds that come in flocks end: what turns back is shortened, and nothing goes round in a circle."""

from dataclasses import replace

import numpy as np
import pytest

from fedmiss.federation.calls import fit_counts
from fedmiss.federation.hub import fit as hub_fit
from fedmiss.federation.hub.agree import DataSpec
from fedmiss.federation.hub.begin import start_again
from fedmiss.federation.hub.job import JobSpec, run_job
from fedmiss.federation.hub.lockstep import totals_question
from fedmiss.federation.hub.priors import LEVEL_SD
from fedmiss.federation.hub.state import stacked
from fedmiss.federation.local import LocalFederation
from fedmiss.models.lowrank.data import Group, GroupPanel
from fedmiss.models.lowrank.settings import CountSettings

from .network import clubs_of, order, run


def flocks(seed: int, J: int = 60, L: int = 240) -> GroupPanel:
    """A bird of passage: a few counts are most of all birds, and many visits out of season find none."""
    rng = np.random.default_rng(seed)
    wave = np.cos(2 * np.pi * np.arange(L) / 12 + 0.6 * rng.normal(size=J)[:, None])
    trend = 0.4 * rng.normal(size=J)[:, None] * np.linspace(-1.7, 1.7, L)
    rate = np.exp(3.5 + 1.7 * rng.normal(size=J)[:, None] + wave + trend)
    away = np.clip(0.12 * np.exp(0.8 * rng.normal(size=J)[:, None] - wave), 0.0, 0.9)
    there = rng.random((J, L)) >= away
    flock = rng.gamma(0.5, 2.0, (J, L)) * np.where(rng.random((J, L)) < 0.02, 8.0, 1.0)
    y = rng.poisson(rate * flock * there).astype(float)
    s, t = np.nonzero(rng.random((J, L)) < 0.7)
    calendar = np.arange(L) % 12 + 1, 2000 + np.arange(L) // 12
    return GroupPanel.of(J, L, [Group.of("g", s, t, y[s, t])], calendar)


# Under full steps seven of these 80 went on for 500 rounds: a flock moves the dispersion, which moves its weight, which
# moves its month. 59 needs shares of the variances' steps, 5 and 34 those of the months'.
@pytest.mark.parametrize(
    "seed",
    [5, 34, 59, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in {*range(80)} - {5, 34, 59})],
)
def test_a_flock_that_moves_the_dispersion_does_not_keep_a_fit_from_its_end(seed):
    fit = fit_counts(flocks(seed), CountSettings(rank=2, dispersion="negbin"))
    assert fit.state.converged
    assert fit.state.rounds < 300


def scattered(seed: int, share: float, middle: float) -> tuple[GroupPanel, float]:
    """Flocks at sites and times that have nothing in common, and their mean count."""
    rng = np.random.default_rng(seed)
    J, L = 40, 72
    site, month = np.nonzero(rng.random((J, L)) < 0.2)
    flock = np.ceil(middle * np.exp(1.3 * rng.normal(size=site.size)))
    y = np.where(rng.random(site.size) < share, flock, 0.0)
    calendar = np.arange(L) % 12 + 1, 2000 + np.arange(L) // 12
    return GroupPanel.of(J, L, [Group.of("g", site, month, y)], calendar), float(y.mean())


# Months took the flocks as their noise (of a variance of 20), and what no visit saw was 8 to 1,000 times what was counted.
@pytest.mark.parametrize(("share", "middle"), [(0.03, 20.0), (0.1, 50.0), (0.1, 5.0)])
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2))])
def test_flocks_without_a_pattern_are_scatter_and_not_months(seed, share, middle):
    panel, mean = scattered(seed, share, middle)
    fit = fit_counts(panel, CountSettings(rank=0, dispersion="negbin"))
    assert fit.state.converged or middle == 50.0  # one in ten of these swings by a few hundredths at the end
    assert 0.6 < fit.expected().mean() / mean < 2.0
    assert fit.aux.size < 2.0


def test_months_that_swing_while_all_go_one_way_come_to_rest():
    """They kept their sign beside what sites and level undid in every round: 500 rounds, and not converged."""
    fit = fit_counts(scattered(16, 0.1, 50.0)[0], CountSettings(rank=0, dispersion="negbin"))
    assert fit.state.converged


# Months and a factor took them together: up to 3e16 times what was counted, some of it called converged.
@pytest.mark.parametrize("dispersion", ["negbin", "quasi"])
def test_a_rank_that_takes_flocks_is_left_out(dispersion):
    panels = [scattered(seed, 0.1, 5.0) for seed in (0, 4)]
    fits = [fit_counts(panel, CountSettings(rank=1, dispersion=dispersion)) for panel, _ in panels]
    assert all(fit.expected().mean() / mean < 35.0 for fit, (_, mean) in zip(fits, panels, strict=True))
    assert sum(fit.state.away == 1 and fit.state.rank == 0 for fit in fits) >= 1


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_a_rank_below_stands_for_one_that_takes_flocks_in_a_fold(seed):
    """Also where no lower rank is a candidate."""
    panel, mean = scattered(seed, 0.1, 5.0)
    models = [CountSettings(rank=1, dispersion=dispersion) for dispersion in ("negbin", "quasi")]
    federation = LocalFederation.of_panel(panel)
    choice = federation.cross_validate(models, folds=3, structure=())
    assert len(choice.table) == 6
    fits = [*map(federation.fit, models), *federation.fit_average(choice.members).fits]
    assert all(0.3 < fit.expected().mean() / mean < 35.0 for fit in fits)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("calendar", [True, False])
def test_months_that_differ_by_as_much_are_no_flocks(seed, calendar, monkeypatch):
    """A bird of passage, and species of a community: the fit is the one without a second start, to the bit."""
    rng = np.random.default_rng(seed)
    J, L = 40, 72
    site, month = np.nonzero(rng.random((J, L)) < 0.3)
    mean = np.exp(0.8 * rng.normal(size=J)[site] + 2.3 * rng.normal(size=L)[month])
    y = rng.negative_binomial(1.0, 1.0 / (1.0 + mean)).astype(float)
    times = (np.arange(L) % 12 + 1, 2000 + np.arange(L) // 12) if calendar else None
    panel = GroupPanel.of(J, L, [Group.of("g", site, month, y)], times)
    settings = CountSettings(rank=0, dispersion="negbin")
    monkeypatch.setattr(hub_fit, "WILD", 1.0)  # all of them are looked at
    fit = fit_counts(panel, settings)
    monkeypatch.setattr(hub_fit, "ABOVE", np.inf)
    np.testing.assert_array_equal(fit.expected(), fit_counts(panel, settings).expected())


def watched(panel: GroupPanel, n: int) -> GroupPanel:
    """The same visits, each by one of n observers who find alike."""
    (all_,) = panel.groups
    who = np.random.default_rng(n).integers(0, n, all_.count.size)
    group = Group.of("g", all_.site, all_.month, all_.count, who)
    return GroupPanel.of(panel.J, panel.L, [group], panel.calendar)


RARE = CountSettings(rank=0, dispersion="negbin")


def study_of(seed, folder):
    """The result of three organisations that share the sites of scattered flocks, the panel, and its mean count."""
    panel, mean = scattered(seed, 0.03, 50.0)
    (g,) = panel.groups
    parts = [g.site % 3 == k for k in range(3)]
    groups = [Group.of(f"owner-{k}", g.site[at], g.month[at], g.count[at]) for k, at in enumerate(parts)]
    clubs = clubs_of(GroupPanel.of(panel.J, panel.L, groups, panel.calendar), folder)
    plan = DataSpec(jointly=True, minimum=2, share=1.0)
    return run(clubs, order((RARE,), bootstrap=0, plan=plan))["owner-0"], panel, mean


# Observers took the flocks beside months, with a standard deviation of 3 to 23: totals were up to 1e137 times too high.
@pytest.mark.parametrize(
    ("seed", "share", "middle", "observers"),
    [
        (1, 0.03, 50.0, 6), (3, 0.03, 50.0, 30), (3, 0.03, 50.0, 200),
        *(pytest.param(seed, 0.03, 50.0, n, marks=pytest.mark.slow) for seed in (0, 2, 4, 5) for n in (6, 30, 200)),
    ],
)  # fmt: skip
def test_observers_who_take_flocks_are_left_out(seed, share, middle, observers):
    """The fit is that of a model without observers which begins dispersed, and comes to its end."""
    panel, mean = scattered(seed, share, middle)
    fit = fit_counts(watched(panel, observers), replace(RARE, observers=True))
    assert fit.state.converged
    assert fit.state.observers_left_out
    assert fit.state.found == pytest.approx(1.0)
    assert 0.8 < fit.expected().mean() / mean < 1.3
    assert fit.state.rounds < 300
    with pytest.MonkeyPatch.context() as changed:
        changed.setattr(hub_fit, "first_state", start_again)
        np.testing.assert_allclose(fit.expected(), fit_counts(panel, RARE).expected(), rtol=1e-6)


def test_replicates_of_a_fit_without_observers_leave_them_out_too():
    panel, _ = scattered(1, 0.03, 50.0)
    federation = LocalFederation.of_panel(watched(panel, 30), secrets={"g": b"g"})
    fit = federation.fit(replace(RARE, observers=True))
    totals = federation.replicates(range(20), seed=1).totals[:, 0].sum(axis=1) / fit.expected().sum()
    assert np.isfinite(totals).all()
    assert 0.2 < np.median(totals) < 2.0


@pytest.mark.parametrize(
    ("sd", "observers", "seed", "noise"),
    [
        (1.0, 40, 1, 0.0), (2.0, 40, 1, 0.0), (2.0, 6, 2, 0.0),
        *((2.0, 60, seed, 1.2) for seed in range(4)), *((1.6, 40, seed, 1.3) for seed in range(2)),
    ],
)  # fmt: skip
def test_observers_who_differ_as_much_are_kept(sd, observers, seed, noise, monkeypatch):
    """A common species, and observers of whom some find a tenth: the fit is the one that is not looked at, to the bit.

    What the mean observer is expected to find may be far from what these few did, too.
    """
    rng = np.random.default_rng(seed)
    J, L = 40, 72
    site, month = np.nonzero(rng.random((J, L)) < 0.3)
    who = rng.integers(0, observers, site.size)
    effect = rng.normal(size=observers)
    effect *= sd / effect.std()
    season = 0.6 * np.cos(np.arange(L) * np.pi / 6) + noise * rng.normal(size=L)
    mean = np.exp(0.5 + 0.7 * rng.normal(size=J)[site] + season[month] + effect[who])
    y = rng.negative_binomial(1.0, 1.0 / (1.0 + mean)).astype(float)
    times = (np.arange(L) % 12 + 1, 2000 + np.arange(L) // 12)
    panel = GroupPanel.of(J, L, [Group.of("g", site, month, y, who)], times)
    fit = fit_counts(panel, replace(RARE, observers=True))
    assert not fit.state.observers_left_out
    assert fit.state.ridge**-0.5 == pytest.approx(sd, rel=0.3)
    monkeypatch.setattr(hub_fit, "MOVING", np.inf)
    other = fit_counts(panel, replace(RARE, observers=True))
    np.testing.assert_array_equal(fit.expected(), other.expected())


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_level_and_observers_do_not_part(seed, monkeypatch):
    """What observers have in common is the level's where months take short steps too.

    The level's prior pulled it away from six observers for hundreds of rounds, up to a mean effect of -20, whose
    square their variance took.
    """
    monkeypatch.setattr(hub_fit, "MOVING", np.inf)  # nobody is left out
    monkeypatch.setattr(hub_fit, "ABOVE", np.inf)
    panel, _ = scattered(seed, 0.03, 50.0)
    fit = fit_counts(watched(panel, 6), replace(RARE, observers=True))
    state, (effects,) = fit.state, fit.aux.observer
    level = LEVEL_SD**-2.0
    common = state.ridge * effects.sum() + level * (state.origin - state.mu)
    assert abs(common / (state.ridge * effects.size + level)) < 0.2


def test_a_joint_fit_says_that_observers_are_left_out():
    panel, _ = scattered(1, 0.03, 50.0)
    federation = LocalFederation.of_panel(watched(panel, 30), secrets={"g": b"g"})
    model = replace(RARE, observers=True)
    order = JobSpec(DataSpec(), (model,), bootstrap=0)
    facts = run_job(federation.link, order, begun=(federation.agreement, federation.hub)).facts
    assert facts.observer_effects is False
    assert facts.observer_sd is None
    assert [note for note in facts.notes if note.startswith("effects of observers are left out")]


def test_expected_counts_that_no_mask_holds_do_not_end_a_study(tmp_path):
    """They are what is looked for; sums above what decides are told as noise."""
    result, panel, mean = study_of(5, tmp_path)
    assert 0.3 < result.totals[0].sum() / (panel.J * panel.L) / mean < 10.0


@pytest.mark.parametrize("seed", [8, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (6, 13))])
def test_months_of_a_study_do_not_take_the_flocks_again_on_the_way_to_the_end(seed, tmp_path):
    """Half of the months are withheld; the others took the flocks twice: expected were 30, 8 and 2.6 times the birds."""
    result, panel, mean = study_of(seed, tmp_path)
    assert result.totals[0].sum() / (panel.J * panel.L) / mean < 2.0


def test_beside_a_sum_that_no_mask_holds_nothing_is_told_of_the_others():
    """Cut at a limit it would be a known number, and what is left of the joint sum that of the only other organisation."""
    panel, _ = scattered(1, 0.1, 5.0)
    (g,) = panel.groups
    large = g.site < 35  # of 40 sites
    clubs = [Group.of(n, g.site[m], g.month[m], g.count[m]) for n, m in (("a", large), ("b", ~large))]
    federation = LocalFederation.of_panel(GroupPanel.of(panel.J, panel.L, clubs, panel.calendar))
    state = federation.fit(RARE).state

    def told(unit, most):
        states = stacked([state])
        ask = totals_question(federation.hub, 0, np.zeros(1, int), states, np.array([1.0 / unit]), most=most)
        (answers,) = federation.link.ask([ask])
        return {n: answers[n].totals[0, 0] for n in "ab"}

    plain = told(1.0, 0.0)
    unit = plain["a"].max() / 3.0
    assert plain["b"].max() < 2.0 * unit
    first, again, other = told(unit, 2.0), told(unit, 2.0), told(1.001 * unit, 2.0)
    np.testing.assert_allclose(first["b"] * unit, plain["b"], rtol=1e-12)
    assert first["a"].min() > 2.0  # also of months below the limit
    assert first["a"].std() > 1e4 * first["b"].max()
    np.testing.assert_array_equal(first["a"], again["a"])  # after a restart the frame has to be the same
    assert abs(np.corrcoef(first["a"], other["a"])[0, 1]) < 0.5  # no difference of two looks is without noise
    assert first["a"].max() < 2.0**33 / 1000  # organisations


def test_values_that_are_no_counts_have_no_flocks():
    """Their noise is in units of their variance, and their totals are no totals of values."""
    panel = flocks(5, J=30, L=60)
    for scale in ("log1p", "raw"):
        fit = fit_counts(panel, CountSettings(rank=1, family="gaussian", scale=scale))
        assert (fit.state.rank, fit.state.away) == (1, 0)
