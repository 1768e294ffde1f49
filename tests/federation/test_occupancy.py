"""Sites that are empty in some years: groups do not matter, trends with arrivals and losses are right, draws are honest."""

from dataclasses import replace

import numpy as np
import pytest

from fedmiss.federation import messages as msg
from fedmiss.federation.calls import bootstrap, fit_counts
from fedmiss.federation.fit_tables import totals_by_region
from fedmiss.federation.group import answers
from fedmiss.federation.group.panel import stamps_of, visits_of
from fedmiss.federation.group.presence import chain_posterior
from fedmiss.federation.hub.agree import DataSpec
from fedmiss.federation.local import LocalFederation
from fedmiss.federation.results import AverageFit
from fedmiss.models.lowrank.data import Group, GroupPanel
from tests.designs import simulate_design
from tests.federation.owners import PLAIN, panel_of, tried

CHAIN = replace(PLAIN, occupancy=True)


def with_effort(p):
    L = p.year.size
    one = Group.of("all", p.site, p.month, p.count, p.observer, effort=p.log_effort[:, None])
    return GroupPanel.of(len(p.expected), L, [one], (np.arange(L) % 12 + 1, p.year))


def slope(monthly, year):
    total = np.array([monthly[year == y].mean() for y in np.unique(year)])
    x = np.arange(total.size) - (total.size - 1) / 2
    return float(np.log(total) @ x / (x @ x))


def of(fit, year):
    return slope(totals_by_region(fit, np.full(fit.J, -1), 0)[0], year)


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("dispersion", ["negbin", "quasi"])
def test_groups_do_not_matter(rank, dispersion):
    """Every group computes the chains of its own sites; their sums are those of one group."""
    p = simulate_design("vacated", 3, sites=40, years=6, visits=900)
    settings = replace(CHAIN, rank=rank, dispersion=dispersion, max_sweeps=25)
    one, many = (LocalFederation.of_panel(panel_of(p, by)).fit(settings) for by in ("none", "site"))
    np.testing.assert_allclose(many.expected(), one.expected(), rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(many.presence.present, one.presence.present, atol=1e-7)
    np.testing.assert_allclose(many.state.chain, one.state.chain, rtol=1e-7)
    totals = [fit.expected().sum(axis=0) for fit in (one, many)]
    np.testing.assert_allclose(totals[0], totals[1], rtol=1e-7)


def test_a_group_with_too_few_sites_says_nothing_of_them(monkeypatch):
    p = simulate_design("vacated", 3, sites=40, years=6, visits=900)
    few = p.site < 4
    groups = [Group.of(n, p.site[m], p.month[m], p.count[m]) for n, m in (("few", few), ("many", ~few))]
    calendar = (np.arange(p.year.size) % 12 + 1, p.year)
    federation = LocalFederation.of_panel(GroupPanel.of(40, p.year.size, groups, calendar), minimum=5)
    said = {"few": [], "many": []}

    def solve(program, batch, question):
        answer = answers.solve(program, batch, question)
        said[program.name].append(answer.chain[0, :7])
        return answer

    monkeypatch.setitem(answers.ANSWER, msg.Solve, solve)
    federation.fit(replace(CHAIN, max_sweeps=8))
    assert len(said["few"]) == len(said["many"]) > 0
    assert not np.any(said["few"])
    assert np.all(np.array(said["many"])[:, 1] == np.unique(p.site[~few]).size)  # its sites


def test_a_site_with_birds_is_occupied_and_the_fit_is_at_rest():
    p = simulate_design("vacated", 1, sites=60, years=8, visits=2000)
    federation = LocalFederation.of_panel(panel_of(p, "none"))
    fit = federation.fit(CHAIN)
    assert fit.fit.converged
    present = fit.presence.present
    seen = np.zeros(present.shape)
    np.add.at(seen, (p.site, p.year[p.month] - p.year[0]), p.count)
    assert present[seen > 0].min() > 1 - 1e-9
    assert ((present >= 0) & (present <= 1)).all()
    truth = np.stack([p.expected[:, p.year == y].sum(axis=1) > 0 for y in np.unique(p.year)], axis=1)
    assert present[truth].mean() > present[~truth].mean() + 0.4
    # the chain's probabilities solve their own equations
    (program,) = federation.programs.values()
    b = program.batches[0].presence
    post, occupied = chain_posterior(b.evidence[0], fit.state.chain)
    sums = post.sums(np.ones(fit.J), occupied)
    assert fit.state.chain[2] == pytest.approx((sums[3] + 0.05) / (sums[2] + 1.0), abs=2e-3)


@pytest.mark.parametrize("counted", [True, False])
def test_a_find_without_a_number_shows_that_the_site_was_occupied(counted):
    """Of a year with zeros and of one without a visit (``counted``); folds do not know it of what they hold out."""
    p = simulate_design("vacated", 3, sites=40, years=6, visits=900)
    panel = panel_of(p, "none")
    held, at = visits_of(panel)
    ((name, visits),) = held.items()
    year = visits.month // 12 - visits.month.min() // 12

    def federation(visits):
        return LocalFederation({name: visits}, at, panel.J, DataSpec(months=stamps_of(panel)))

    plain = federation(visits).fit(CHAIN)
    birds, lists = np.zeros((2, panel.J, 6))
    np.add.at(birds, (visits.site, year), visits.count)
    np.add.at(lists, (visits.site, year), 1.0)
    empty = (birds == 0) & ((lists > 0) == counted) & (plain.presence.present < 0.2)
    site, when = np.argwhere(empty)[0]
    one = np.flatnonzero(year == when)[:1]
    found = visits.take(np.r_[np.arange(year.size), one])
    found.site[-1], found.count[-1], found.detected[-1] = site, np.nan, True
    joined = federation(found)
    fit = joined.fit(CHAIN)
    assert fit.n_counted == plain.n_counted
    assert fit.presence.present[site, when] > 1 - 1e-9
    (program,) = joined.programs.values()
    batch = program.batches[0]
    batch.test = np.ones((1, year.size))
    before = batch.presence.w.copy()
    held_out = batch.presence.row_at == site * 6 + when
    batch.presence.w[:, held_out] = 0.0
    assert batch.evidence(0)[site, when] == 0.0
    batch.presence.w[:] = before
    assert (batch.evidence(0)[site, when] > 0) == counted


@pytest.mark.slow
@pytest.mark.parametrize("design", ["colonised", "vacated"])
def test_trends_with_arrivals_and_losses_are_right_and_held_out_visits_say_so(design):
    """Without the chain sites that come and go look like a growth or decline at all sites, and the total is wrong."""
    errors = []
    for seed in range(8):
        p = simulate_design(design, seed)
        true = slope(p.expected.sum(axis=0), p.year)
        panel = with_effort(p)
        errors.append([of(fit_counts(panel, s), p.year) - true for s in (PLAIN, CHAIN)])
        if seed < 3:
            choice = tried(LocalFederation.of_panel(panel), ())
            trial = next(t for t in choice.trials if t.what.startswith("sites that are empty"))
            assert trial.taken
            assert trial.gain > 0.05
            assert choice.best.occupancy
    plain, chain = np.sqrt(np.square(errors).mean(axis=0))
    assert chain < 0.75 * plain, (plain, chain)
    mean = np.mean(errors, axis=0)
    assert abs(mean[1]) < 0.5 * abs(mean[0])


@pytest.mark.slow
def test_occupancy_is_not_taken_where_no_site_is_ever_empty():
    taken = 0
    for seed in range(6):
        p = simulate_design("random", seed, sites=60, years=8, visits=1500)
        choice = tried(LocalFederation.of_panel(panel_of(p, "none")), ())
        taken += choice.best.occupancy
    assert taken <= 1


def test_replicates_draw_whether_a_site_was_occupied():
    """The draws' totals surround the fit's, and vary more than those that hold presence at its mean would."""
    p = simulate_design("vacated", 2, sites=30, years=6, visits=300)
    panel = panel_of(p, "none")
    fit = fit_counts(panel, CHAIN)
    draws = bootstrap(panel, fit, draws=40, seed=1)
    assert np.isfinite(draws.totals).all()
    assert np.isfinite(draws.slopes).all()
    total = fit.expected().sum()
    mean, sd = draws.totals[:, 0].sum(axis=1).mean(), draws.totals[:, 0].sum(axis=1).std(ddof=1)
    assert abs(mean - total) < 4 * sd / np.sqrt(40) + 0.1 * total
    again = bootstrap(panel, fit, draws=40, seed=1)
    np.testing.assert_array_equal(draws.totals, again.totals)


@pytest.mark.slow
def test_intervals_and_draws_of_cells_know_that_sites_may_be_empty():
    p = simulate_design("vacated", 4, sites=40, years=6, visits=900)
    fit = fit_counts(panel_of(p, "none"), CHAIN)
    band, expected, present = fit.interval(), fit.expected(), fit.present()
    assert (band.lower[present < 0.97] == 0).all()
    assert (band.expected_lower <= expected + 1e-9).all()
    assert (band.lower <= band.upper).all()
    rng, n = np.random.default_rng(0), 200
    average, totals = AverageFit((fit,)), np.empty(n)
    for i in range(n):
        eta = average.draw(rng)(slice(None))
        totals[i] = average.counts_at(eta).sum()
        counts = average.draw_counts(eta, rng)
        assert (counts[np.isneginf(eta)] == 0).all()
        assert np.isfinite(counts).all()
    assert np.isneginf(eta).any()
    # Draws also have the errors that months have in common, half of whose variance lifts the mean of their exponential.
    error, lifted = totals.std(ddof=1) / np.sqrt(n), 1.03
    assert expected.sum() - 4 * error < totals.mean() < lifted * expected.sum() + 4 * error
