"""Rare species with every site in the panel: fits end, finite and bounded; priors are not seen where birds are many."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import minimize_scalar

from fedmiss.federation import messages as msg
from fedmiss.federation.calls import fit_counts
from fedmiss.federation.fit_tables import totals_by_region
from fedmiss.federation.hub import priors, season
from fedmiss.federation.local import LocalFederation
from fedmiss.models.lowrank.choice import default_candidates
from fedmiss.models.lowrank.data import Group, GroupPanel
from fedmiss.models.lowrank.settings import CountSettings
from fedmiss.models.lowrank.structure import FEATURES
from fedmiss.rng import rng_for
from tests.designs import simulate_design

NEGBIN = CountSettings(rank=0, dispersion="negbin")
LOG1P = CountSettings(rank=0, family="gaussian", scale="log1p")


def visits_of(p, count, groups=2):
    """The visits of a design with other counts, dealt to groups by observer."""
    members = []
    for g in range(groups):
        m = p.observer % groups == g
        who = np.unique(p.observer[m], return_inverse=True)[1]
        effort = p.log_effort[m][:, None]
        members.append(Group.of(f"g{g}", p.site[m], p.month[m], count[m], who, effort=effort))
    L = p.year.size
    return GroupPanel.of(len(p.expected), L, members, (np.arange(L) % 12 + 1, p.year))


def rare(seed, visits=170, sites=57, occupied=0.3, groups=2):
    """A panel of which only a share of the sites ever has birds."""
    p = simulate_design("random", seed, visits=visits, sites=sites)
    with_birds = np.zeros(sites, bool)
    with_birds[rng_for(seed, "rare").permutation(sites)[: max(2, round(occupied * sites))]] = True
    return visits_of(p, p.count * with_birds[p.site], groups)


def birds_at(places, count=1.0, visits=120, sites=30):
    """A panel with birds on a few visits only."""
    p = simulate_design("random", 5, visits=visits, sites=sites, years=5)
    counts = np.zeros(visits)
    counts[list(places)] = count
    return visits_of(p, counts)


def totals(fit):
    return totals_by_region(fit, np.full(fit.J, -1), 0)[0]


def check(fit, J):
    """What holds of every fit of counts: it converged, is finite, and level and variances are bounded."""
    q = fit.posterior
    assert fit.fit.converged, fit.fit.stop_reason
    assert all(np.isfinite(x).all() for x in (q.mu, q.P, q.C, q.T, q.D, q.tau, totals(fit)))
    assert (np.linalg.eigvalsh(q.C) > -1e-9).all()
    assert q.tau[0] < 2.0 * np.sqrt(J)
    assert abs(q.mu - fit.state.origin) < 8.0


@pytest.mark.parametrize("size", [(600, 60, 0.1), (1500, 60, 0.05), (3000, 96, 0.25)])
@pytest.mark.parametrize("seed", range(2))
def test_fits_of_rare_species_end_and_stay_bounded(size, seed):
    panel = rare(seed, *size)
    check(fit_counts(panel, replace(NEGBIN, rank=1)), panel.J)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(s, marks=pytest.mark.nightly) for s in range(2, 30))])
def test_default_fits_of_rare_species_end(seed):
    visits, sites, occupied = ((100, 40, 0.4), (170, 57, 0.3), (600, 80, 0.1), (1200, 80, 0.05))[seed % 4]
    federation = LocalFederation.of_panel(rare(seed, visits, sites, occupied))
    choice = federation.cross_validate(default_candidates(CountSettings()), seed=seed, structure=FEATURES)
    fit = federation.fit_average(choice.members)
    for one in fit.fits:
        if one.settings.family == "poisson":
            check(one, sites)
    draws = federation.replicates(range(6), seed=seed)
    assert np.isfinite(draws.totals).all()
    assert np.isfinite(choice.table["deviance"]).all()


def test_groups_do_not_matter_to_a_rare_species():
    panel = rare(3, groups=1)
    g = panel.groups[0]
    parts = [g.site % 3 == k for k in range(3)]
    groups = tuple(
        Group.of(f"g{k}", g.site[m], g.month[m], g.count[m], g.observer[m], g.effort[m])
        for k, m in enumerate(parts)
    )
    pooled, apart = (fit_counts(p, replace(NEGBIN, rank=1)) for p in (panel, replace(panel, groups=groups)))
    assert pooled.posterior.tau[0] > 3.0  # covariances take shorter steps
    np.testing.assert_allclose(apart.expected(), pooled.expected(), rtol=1e-7)


@pytest.mark.parametrize("settings", [NEGBIN, CountSettings(rank=1), LOG1P])
def test_a_panel_without_any_bird_has_the_result_of_its_prior(settings):
    fit = fit_counts(birds_at([]), settings)
    assert fit.fit.converged
    assert 0.0 <= totals(fit).max() < 1.0
    if settings is not LOG1P:
        assert fit.posterior.mu > np.log(0.5 / 120) - 5.0  # half a bird on 120 visits
        assert totals(fit).min() > 0.0


def test_the_level_goes_where_birds_and_prior_balance():
    level, variance, visits = -20.0, 0.5, 40.0
    for _ in range(3000):
        level += variance * -visits * np.exp(level) + priors.level_pull(level, -4.0, variance, 1.0)
    assert -visits * np.exp(level) + (-4.0 - level) / priors.LEVEL_SD**2 == pytest.approx(0.0, abs=3e-3)
    assert level > -8.0


@pytest.mark.slow
@pytest.mark.parametrize("places", [[], [7]])
def test_folds_and_replicates_without_a_bird_have_finite_results(places):
    federation = LocalFederation.of_panel(birds_at(places))
    choice = federation.cross_validate([replace(NEGBIN, rank=r) for r in (0, 1)], folds=3, by="visit")
    assert np.isfinite(choice.table["deviance"]).all()
    federation.fit(choice.best)
    assert np.isfinite(federation.replicates(range(3), seed=1).totals).all()


@pytest.mark.parametrize("count", [20.0, 500.0])
def test_one_flock_among_zeros_is_fitted_and_not_put_down_to_effort(count):
    fit = fit_counts(birds_at([11], count), NEGBIN)
    assert fit.fit.converged
    assert np.isfinite(fit.expected()).all()
    assert abs(fit.aux.kappa).max() < 5.0


def test_the_priors_are_not_seen_where_sites_have_birds(monkeypatch):
    p = simulate_design("random", 4)
    panel = visits_of(p, p.count)
    fit = fit_counts(panel, replace(NEGBIN, rank=1))
    for name in ("SITE_SD", "SLOPE_SD", "LEVEL_SD"):
        monkeypatch.setattr(priors, name, 1e6)
    for name in ("WALK_SD", "LINE_VARIANCE"):
        monkeypatch.setattr(season, name, 1e6)
    free = fit_counts(panel, replace(NEGBIN, rank=1))
    np.testing.assert_allclose(fit.posterior.tau[0], free.posterior.tau[0], rtol=0.03)
    np.testing.assert_allclose(totals(fit), totals(free), rtol=0.01)


def test_a_step_of_the_variances_solves_its_equation_and_shrinks_less_with_more_sites():
    squares, spread = np.array([0.005, 0.2, 1.0, 40.0]), np.array([0.005, 0.1, 1.0, 10.0])
    # unit of values
    scale = 2.0 * np.array([priors.SITE_SD, priors.SLOPE_SD, priors.SITE_SD, priors.SITE_SD])
    wanted = squares + spread
    for J in (5.0, 100.0, 1e6):
        v = priors.shrunk_variances(squares, spread, 0.1 * wanted, J, 2.0, slopes=True)  # upwards: EM's step
        np.testing.assert_allclose(v + v**2 / (J * scale**2), wanted)
        assert (v < wanted).all()
    np.testing.assert_allclose(v, wanted, rtol=1e-3)


@pytest.mark.parametrize("J", [5.0, 1e6])
def test_variances_that_fall_come_to_the_fixed_point_of_em_sooner(J):
    """Terms with one datum each of variance 1: their posterior variance is v / (1 + v), their mean v / (1 + v) times it."""
    data, rounds = np.full(1, 1.3), {}
    for quick in (True, False):
        v, k = np.full(1, 4.0), 0
        while k < 10_000:
            part = v / (1.0 + v)
            a, s = part**2 * data, part
            em = priors.shrunk_variances(a, s, np.full(1, 1e-9), J, 1.0, slopes=False)
            new = priors.shrunk_variances(a, s, v, J, 1.0, slopes=False) if quick else em
            k += 1
            if abs(new - v) < 1e-9 * v:
                break
            v = new
        rounds[quick] = k
        np.testing.assert_allclose(v, em, rtol=1e-6)  # where EM would stay
    assert rounds[True] < 0.6 * rounds[False]


@pytest.mark.parametrize("v", [0.01, 0.2, 5.0])
def test_steps_both_ways_come_to_the_fixed_point_of_em_also_under_a_prior(v):
    squares, known, unit, free = np.array([0.9, 0.4, 0.3]), np.array([0.8, 0.1, 0.4]), 2.0, v
    fallen = priors.next_variance(squares, known, 50.0)
    assert fallen == 50.0 / priors.STRIDE  # bounded
    for _ in range(300):
        free = priors.next_variance(squares, known, free)
    assert free == pytest.approx((squares + (1 - known) * free).mean(), rel=1e-6)
    for _ in range(300):
        v = float(priors.next_variance(squares, known, v, unit=unit, scale=0.5))
    assert v + v**2 / (3 * 0.5**2 * unit) == pytest.approx((squares + (1 - known) * v).mean(), rel=1e-6)


def series_of(level, monthly, seed, sites=40):
    """Negative binomial counts of sites that differ, with these means (years,), once a year or in all its months."""
    rng, each = rng_for(seed, "series"), 12 if monthly else 1
    L = len(level) * each
    mean = np.exp(rng.normal(0.0, 0.8, sites))[:, None] * np.repeat(level, each)
    site, month = np.nonzero(rng.random((sites, L)) < (0.1 if monthly else 0.7))
    count = rng.negative_binomial(2.0, 2.0 / (2.0 + mean[site, month])).astype(float)
    of_year = np.arange(L) % each + 6 * (not monthly) + monthly
    calendar = of_year, np.repeat(np.arange(len(level)) + 2001, each)
    return GroupPanel.of(sites, L, [Group.of("g", site, month, count, site * 0)], calendar), mean.sum(axis=0)


SERIES = {
    "vanished": np.where(np.arange(20) < 9, 4.0, 0.0),
    "arrived": 0.3 * np.maximum(np.arange(20) - 9.0, 0.0),
    "away": np.where(np.abs(np.arange(20) - 9.5) < 4, 0.0, 3.0),
}


@pytest.mark.parametrize("monthly", [False, True])
@pytest.mark.parametrize("name", SERIES)
def test_a_species_that_vanished_or_arrived_has_a_fit_that_ends(name, monthly):
    """Years without a bird after years with birds: nothing in the data holds a line that goes on down."""
    panel, mean = series_of(SERIES[name], monthly, 3)
    fit = fit_counts(panel, NEGBIN)
    assert fit.fit.converged, fit.fit.stop_reason
    assert fit.state.rounds < 400  # 500 were too few
    years, true = (total.reshape(20, -1).mean(axis=1) for total in (totals(fit), mean))
    present = SERIES[name] > 1.0
    assert years[present].sum() == pytest.approx(true[present].sum(), rel=0.25)
    assert (years[SERIES[name] == 0.0] < 5.0).all()  # of 40 sites, where some 170 birds had been
    assert (years > 1e-4).all()


def test_a_step_up_comes_to_the_likeliest_variance_where_em_would_stay_near_zero():
    """Months whose own noise has variance .02, each with a datum of another variance."""
    rng = rng_for(7, "noise")
    own = rng.uniform(0.01, 0.5, 2000)  # so many that the likeliest variance is near .02 whatever the draw
    data = rng.normal(0.0, np.sqrt(0.02 + own))

    def loss(v):
        return (np.log(v + own) + data**2 / (v + own)).sum()

    likeliest = minimize_scalar(loss, bounds=(1e-6, 1.0), method="bounded").x
    rounds = {}
    for fisher in (True, False):
        v, rounds[fisher] = 1e-5, 0
        while abs(v - likeliest) > 0.05 * likeliest:
            known = v / (v + own)
            squares = (known * data) ** 2
            em = (squares + (1 - known) * v).mean()
            v = float(priors.next_variance(squares, known, v)) if fisher else em
            rounds[fisher] += 1
    assert likeliest > 0.005
    assert rounds[True] < 20 < 500 < rounds[False]


def test_a_share_of_the_step_makes_the_iteration_of_a_variance_converge():
    """A site with zeros only: C = 1 / (m exp(C / 2) + 1 / tau), whose full steps swing for ever."""
    for tau in (2.0, 10.0, 40.0):
        for m in np.exp(np.linspace(-18, 4, 23)):
            C = tau
            for _ in range(60):
                new = 1.0 / (m * np.exp(C / 2) + 1.0 / tau)
                C += priors.share_of_step(C, new, 1.0 - new / tau) * (new - C)
            assert C * (m * np.exp(C / 2) + 1.0 / tau) == pytest.approx(1.0, rel=1e-3)


def test_a_fit_that_does_not_end_says_how_far_it_was_and_what_to_do():
    for rank, advice in ((2, "--rank 0"), (0, "larger area")):
        fit = fit_counts(rare(0), replace(NEGBIN, rank=rank, max_sweeps=4))
        assert not fit.fit.converged
        assert "after 4 rounds" in fit.fit.stop_reason
        assert advice in fit.fit.stop_reason


@pytest.mark.parametrize("seed", [8, 9])
def test_months_that_undo_their_steps_come_to_rest(seed):
    """Months and presence of these swung from side to side by less than what was looked for: 298 rounds, and for good."""
    panel = rare(seed, *((100, 40, 0.4), (170, 57, 0.3))[seed % 2])
    fit = fit_counts(panel, replace(NEGBIN, occupancy=True))
    check(fit, panel.J)
    assert fit.fit.sweeps < 150


def test_a_fit_that_creeps_goes_on():
    """Moves of 0.003 that hardly fall have a long way to go: yearly totals were 40 % off, the slope 0.05 a year."""
    panel = rare(3, 1200, 80, 0.05)
    fit = fit_counts(panel, replace(NEGBIN, occupancy=True))
    check(fit, panel.J)
    first, _, last = fit.state.moves
    rate = np.sqrt(last / first)
    assert last < 3e-4 or last * rate / (1 - rate) < 16 * 3e-3


@pytest.mark.parametrize("seed", [6, 134])
def test_a_fit_that_would_swing_ends_where_its_moves_no_longer_fall(seed):
    """Presence of a rare species: moves of 0.0024 grow again, up to 1.2 after 500 rounds."""
    size = (600, 80, 0.1) if seed == 6 else (1200, 80, 0.05)
    fit = fit_counts(rare(seed, *size), CountSettings(rank=0, family="bernoulli"))
    assert fit.fit.converged
    assert fit.state.moves.max() < 3e-3


def test_only_sums_of_visits_blame_the_visits():
    for kind in msg.ANSWERS:
        text = msg.why_not_finite(kind)
        assert ("counts" in text) == (kind in msg.OF_VISITS)
        assert ("--rank 0" in text) != (kind in msg.OF_VISITS)
    assert msg.Months not in msg.OF_VISITS


@pytest.mark.parametrize("settings", [NEGBIN, replace(NEGBIN, rank=2), replace(LOG1P, rank=1)])
@pytest.mark.parametrize(
    ("seed", "sites", "years"), [(1, 32, 9), pytest.param(5, 42, 12, marks=pytest.mark.slow)]
)
def test_a_species_that_was_never_found_comes_to_an_end_without_factors(seed, sites, years, settings):
    """The level went down for 500 rounds, and the page said that the fit did not converge."""
    site, year = np.nonzero(rng_for(seed, "nothing").random((sites, years)) < 0.6)
    calendar = np.full(years, 6), 2001 + np.arange(years)
    nothing = GroupPanel.of(sites, years, [Group.of("g", site, year, np.zeros(site.size))], calendar)
    fit = fit_counts(nothing, settings)
    assert fit.fit.converged
    assert fit.settings.rank == 0
