"""Variational EM and the count model around it."""

from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
from numba import njit

from fedmiss.federation.calls import bootstrap, cross_validate, fit_counts
from fedmiss.federation.group import kernels, lane_kernels
from fedmiss.federation.group.visits import Visits
from fedmiss.federation.hub.begin import full_strides, switched_off, with_factor
from fedmiss.federation.hub.bootstrap import totals_of
from fedmiss.federation.hub.coefficients import start_coefficients
from fedmiss.federation.hub.season import SeriesPrior
from fedmiss.federation.hub.state import MonthState
from fedmiss.federation.local import LocalFederation
from fedmiss.federation.results import AverageFit, Posterior
from fedmiss.federation.triangle import from_triangle
from fedmiss.models.lowrank.data import Group, GroupPanel
from fedmiss.models.lowrank.families import FAMILIES, POISSON
from fedmiss.models.lowrank.occupancy import log_zero
from fedmiss.models.lowrank.settings import CountSettings
from tests.federation.network import clubs_of, tapped
from tests.federation.owners import owned
from tests.models.panels import calendar, cells_of, simulate, split, truth


def posterior(J, L, p, seed=0):
    rng = np.random.default_rng(seed)

    def spd(n):
        A = 0.2 * rng.normal(size=(n, p, p))
        return A @ A.transpose(0, 2, 1) + 0.02 * np.eye(p)

    return Posterior(
        0.4, 0.4 * rng.normal(size=(J, p)), spd(J), 0.4 * rng.normal(size=(L, p)), spd(L), np.ones(p), np.zeros((L, p)),
        np.ones(p),
    )  # fmt: skip


def expected_loss(cells, q, family):
    """Expected loss under the approximation of the module: slow and obvious."""
    total = 0.0
    for c in cells:
        for k in range(c.nnz):
            j, month = c.row[k], c.col[k]
            x, z = np.r_[1.0, q.T[month, 1:]], np.r_[1.0, q.P[j, 1:]]
            eta = q.mu + q.P[j, 0] + q.T[month, 0] + q.P[j, 1:] @ q.T[month, 1:]
            var = x @ q.C[j] @ x + z @ q.D[month] @ z + (q.C[j, 1:, 1:] * q.D[month, 1:, 1:]).sum()
            inner = np.exp(eta + var / 2) if family == "poisson" else 0.5 * (eta**2 + var)
            total += c.E[k] * inner - c.y[k] * eta
    return total


@njit(cache=True)
def add_sites(p, ptr, col, y, E, off, mu, P, C, T, D, code, out):
    """A part of the loops has no entry from Python."""
    for j in range(len(P)):
        kernels._site(
            j, p, ptr, col, y, E, off, False, mu, P, C, T, D, code, 0.0, np.empty(p), out[j], np.empty((col.size, 2))
        )  # fmt: skip


def sums(c, q, family, by_site):
    """The compiled loops on one fit: gradient and curvature of every site or month, and where they are taken."""
    J, p = q.P.shape
    L = q.T.shape[0]
    off, code = np.zeros((1, 1)), FAMILIES[family].code
    out = np.zeros((J if by_site else L, p + p * (p + 1) // 2))
    if by_site:
        add_sites(p, c.ptr, c.col, c.y, c.E, off[0], q.mu, q.P, q.C, q.T, q.D, code, out)
    else:
        # no step is allowed; the sites' covariances are those that the round comes to
        P, C, eta, stats = q.P[None].copy(), q.C[None].copy(), np.zeros((1, c.nnz)), np.zeros((1, 5 + 3 * p))
        kernels._round(
            0, 1, np.zeros(1, np.int64), p, 1, c.ptr, c.col, c.y[None], c.E[None], off, False, np.array([q.mu]), q.T[None],
            q.D[None], np.ones((1, p)),
            np.array([-1]), np.ones(1), np.zeros(1), 0.0, np.zeros((1, J, p)), P, C, eta, code, out[None], stats,
        )  # fmt: skip
        np.testing.assert_array_equal(P[0], q.P)
        assert not np.array_equal(C[0], q.C)
        q = replace(q, C=C[0])
    return out[:, :p], from_triangle(out[:, p:], p), q


@pytest.mark.parametrize("family", ["poisson", "gaussian"])
@pytest.mark.parametrize("by_site", [True, False])
@pytest.mark.parametrize("p", [1, 3])
def test_variational_sums_are_the_derivatives_of_the_expected_loss(family, by_site, p):
    panel, _ = simulate(J=5, L=4, n=25, family=family, groups=1)
    cells = cells_of(panel, family)
    g, G, q = sums(cells[0], posterior(5, 4, p), family, by_site)
    h = 1e-5
    X = q.P if by_site else q.T
    for i in range(len(X)):
        for a in range(p):
            values = []
            for sign in (1, 0, -1):
                moved = X.copy()
                moved[i, a] += sign * h
                values.append(expected_loss(cells, replace(q, **{"P" if by_site else "T": moved}), family))
            assert -g[i, a] == pytest.approx((values[0] - values[2]) / (2 * h), abs=1e-4)
            second = (values[0] - 2 * values[1] + values[2]) / h**2
            assert G[i, a, a] == pytest.approx(second, abs=2e-3 * (1 + abs(second)))
    np.testing.assert_array_equal(G, G.transpose(0, 2, 1))


def test_a_factor_that_is_not_there_is_switched_off():
    panel, _ = simulate(J=80, L=36, n=3000, scale=0.0)
    fit = fit_counts(panel, CountSettings(rank=2))
    assert np.std(fit.theta.U @ fit.theta.V.T) < 0.1 * fit.theta.a.std()


def test_low_rank_beats_the_additive_model_on_new_counts():
    panel, eta = simulate(J=100, L=48, n=1500, scale=0.6)
    fresh = np.random.default_rng(9).poisson(np.exp(eta))
    fits = [fit_counts(panel, CountSettings(rank=rank)) for rank in (0, 2)]
    scores = [POISSON.deviance(fresh, fit.expected()).mean() for fit in fits]
    best = POISSON.deviance(fresh, np.exp(eta)).mean()
    assert scores[1] - best < 0.5 * (scores[0] - best)


def test_months_without_visits_follow_season_and_neighbours():
    J, L = 30, 60
    rng = np.random.default_rng(0)
    eta = 2.0 + rng.normal(0, 0.3, J)[:, None] + 1.2 * np.sin(2 * np.pi * np.arange(L) / 12)
    s, t = rng.integers(0, J, 1500), rng.integers(0, L, 1500)
    hole = (t >= 26) & (t < 32)
    s, t = s[~hole], t[~hole]
    panel = split(J, L, s, t, rng.poisson(np.exp(eta[s, t])).astype(float), s % 5, s % 2)
    totals = fit_counts(panel, CountSettings(rank=0)).expected().sum(axis=0)
    error = np.log(totals / np.exp(eta).sum(axis=0))
    assert np.abs(error[26:32]).max() < 0.35
    flat = fit_counts(replace(panel, calendar=None), CountSettings(rank=0)).expected().sum(axis=0)
    # without a calendar: the mean month
    assert np.abs(np.log(flat / np.exp(eta).sum(axis=0)))[26:32].max() > 0.7


def test_series_prior_recovers_its_variances():
    rng = np.random.default_rng(1)
    month, year = calendar(240)
    season = rng.normal(0, 1.0, 12)[month - 1]
    prior = SeriesPrior.of(month, year, 1.0)
    series = season + rng.normal(0, 0.2, 240)
    exact = np.full(240, 1e-6)
    mean, f = series, np.zeros(240)
    for _ in range(200):
        var = 1 / (1 / exact + 1 / prior.noise)  # the posterior of nearly exact data under the current prior
        mean = var * (series / exact + f / prior.noise)
        prior, f, _ = prior.update(mean, var, f, np.full(mean.size, prior.noise), learn=True)
    assert prior.season == pytest.approx(np.var(season), rel=0.6)
    assert prior.step < 0.1
    assert prior.noise == pytest.approx(0.04, rel=0.4)
    assert np.corrcoef(f, season)[0, 1] > 0.99


def test_dispersion_is_estimated():
    rng = np.random.default_rng(3)
    J, L, n = 60, 24, 5000
    eta = truth(J, L, 1, scale=0.0, level=1.5)
    s, t = rng.integers(0, J, n), rng.integers(0, L, n)
    mu = np.exp(eta[s, t])
    size = 2.0
    y = rng.negative_binomial(size, size / (size + mu)).astype(float)
    panel = split(J, L, s, t, y, s % 20, s % 3)
    negbin = fit_counts(panel, CountSettings(rank=0, dispersion="negbin"))
    assert negbin.aux.size == pytest.approx(size, rel=0.15)
    quasi = fit_counts(panel, CountSettings(rank=0))
    pearson = float(((y - mu) ** 2 / mu).mean())
    assert quasi.dispersion == pytest.approx(pearson, rel=0.2)


def test_log1p_fit_keeps_the_total_of_the_observed_counts():
    panel, _ = simulate(n=800)
    fit = fit_counts(panel, CountSettings(family="gaussian", scale="log1p", rank=1))
    g = panel.pooled().groups[0]
    predicted = fit.expected()[g.site, g.month]
    none = predicted == 0  # below nothing: nothing is expected, which adds at most a bird a visit
    assert (1 + predicted).sum() == pytest.approx((1 + g.count).sum(), rel=1e-6, abs=float(none.sum()))


def test_log1p_gives_sites_without_visits_the_mean_of_their_law():
    # log(1 + count) = level + N(0, sd^2) of a site + N(0, phi) of a visit: the mean of exp of it, not exp of its mean.
    J, L, level, sd, phi, ratio, never = 400, 24, 2.0, 0.8, 0.4, [], slice(200, 400)
    for seed in range(4):
        rng = np.random.default_rng(seed)
        s, t = rng.integers(0, J // 2, 1200), rng.integers(0, L, 1200)
        y = np.expm1(level + rng.normal(0, sd, J)[s] + rng.normal(0, phi**0.5, s.size))
        panel = split(J, L, s, t, np.maximum(y, 0.0), s * 0, s * 0)
        fit = fit_counts(panel, CountSettings(rank=0, family="gaussian", scale="log1p"))
        ratio.append((1 + fit.expected(never)).mean() / np.exp(level + (sd**2 + phi) / 2))
    # Standard errors of the level and of half the variance of 200 sites, and four panels.
    error = np.sqrt((sd**2 + 0.5 * sd**4) / 200 / 4)
    assert np.mean(ratio) == pytest.approx(1.0, abs=3 * error)
    # A drawn fit has the same mean: what the draws scatter by is not counted twice.
    mean = AverageFit((fit,))
    drawn = np.array([mean.counts_at(mean.draw(rng)(never)).mean() for _ in range(60)])
    assert drawn.mean() == pytest.approx(fit.expected(never).mean(), abs=4 * drawn.std() / np.sqrt(60))


@pytest.mark.parametrize("shape", [(1, 12), (12, 1), (3, 12), (12, 3)])
def test_panels_smaller_than_the_rank(shape):
    rng = np.random.default_rng(0)
    s, t = rng.integers(0, shape[0], 60), rng.integers(0, shape[1], 60)
    panel = split(*shape, s, t, rng.poisson(3.0, 60).astype(float), s % 1 + t % 2, t % 2)
    fit = fit_counts(panel, CountSettings(rank=4))
    assert np.isfinite(fit.expected()).all()
    assert fit.settings.rank == fit.posterior.T.shape[1] - 1 == max(0, min(shape[0], (shape[1] - 2) // 5))


def bursts(J=200, L=24, seed=2, season=1.1):
    """Seasons that differ by site under counts of gamma shape 0.5: factors are barely visible."""
    rng = np.random.default_rng(seed)
    wave = np.cos(2 * np.pi * np.arange(L) / 12 + 1.5 * rng.normal(size=J)[:, None])
    eta = 3.0 + rng.normal(0, 1.5, J)[:, None] + season * wave
    s, t = np.nonzero(rng.random((J, L)) < 0.5)
    y = rng.poisson(np.exp(eta[s, t]) * rng.gamma(0.5, 2.0, s.size)).astype(float)
    return split(J, L, s, t, y, s % 20, s % 3), eta


@pytest.mark.slow
def test_factors_enter_one_by_one_and_a_path_passes_through_the_lower_ranks():
    panel, eta = bursts()
    fits = [fit_counts(panel, CountSettings(rank=r, dispersion="negbin")) for r in (0, 1, 2, 4)]
    interaction = eta - eta.mean(axis=1, keepdims=True) - eta.mean(axis=0) + eta.mean()
    error = [np.sqrt(((f.theta.U @ f.theta.V.T - interaction) ** 2).mean()) for f in fits]
    assert error[1] < 0.97 * error[0]
    assert error[2] < 0.97 * error[1]
    assert error[3] < 0.97 * error[0]  # two factors too many do not make all of them vanish
    # a candidate's scores are the same as a stage of a longer path and alone
    long, short = (
        cross_validate(panel, [CountSettings(rank=r, dispersion="negbin") for r in ranks], folds=2, by="cell")
        for ranks in ((0, 1, 2), (1,))
    )
    own = long.table.loc[long.table["candidate"] == 1, "deviance"]
    np.testing.assert_array_equal(own, short.table["deviance"])


def month_state(L, p, seed=0):
    rng = np.random.default_rng(seed)
    return MonthState(
        0.3, rng.normal(size=(L, p)), np.tile(0.01 * np.eye(p), (L, 1, 1)), np.zeros((L, p)), np.ones(p), np.ones(p),
        kappa=np.zeros(0), shift=np.zeros(p), squares=np.ones(p), strides=full_strides(p),
        features=start_coefficients(SimpleNamespace(features=None), (), 1.0, slopes=False),
    )  # fmt: skip


def test_after_a_factor_that_vanished_the_next_stays_at_zero():
    state = month_state(24, 2)
    assert not switched_off(state)
    gone = replace(state, squares=np.array([1.0, 1e-12]))
    assert switched_off(gone)
    panel, _ = simulate(J=60, L=24, n=900, scale=0.0)  # no factor is there to be found
    more = with_factor(gone, None, LocalFederation.of_panel(panel).hub)
    assert more.p == 3
    np.testing.assert_array_equal(more.T[:, 2], 0.0)
    fit = fit_counts(panel, CountSettings(rank=3))
    size = np.sqrt((fit.theta.U**2).mean(axis=0) * (fit.theta.V**2).mean(axis=0))
    assert (np.diff(size) <= 1e-12).all() or size.max() < 0.1
    assert size[-1] < 0.1


def test_negative_binomial_keeps_the_total_of_the_counts():
    panel, _ = bursts(seed=5)
    g = panel.pooled().groups[0]
    fit = fit_counts(panel, CountSettings(rank=1, dispersion="negbin"))
    assert fit.smear > 1.05  # without it the total would fall short
    assert fit.expected()[g.site, g.month].sum() == pytest.approx(g.count.sum(), rel=1e-9)
    assert fit_counts(panel, CountSettings(rank=1)).smear == pytest.approx(1.0, abs=0.01)
    assert fit_counts(panel, CountSettings(rank=1, dispersion="negbin", calibrate=False)).smear == 1.0


@pytest.mark.parametrize(
    "settings", [{"rank": 1, "dispersion": "negbin"}, {"rank": 0}], ids=["negbin", "quasi"]
)
@pytest.mark.parametrize("others", [0, 40], ids=["these-finds", "or-others"])
def test_where_sites_are_there_for_a_find_counts_are_scaled_to_what_is_expected_of_such_sites(
    monkeypatch, settings, others
):
    """Only sites with a find stand in such a panel: E[y | some find] = mu / (1 - P(no find)); summed, that is the counts.

    With ``others``, which are there for finds without a number or outside the season: they say nothing of that.
    """
    rng = np.random.default_rng(5)
    mean = np.exp(rng.normal(-1.5, 1.2, 120))
    site, month = np.nonzero(rng.random((120, 36)) < 0.3)
    count = rng.negative_binomial(0.8, 0.8 / (0.8 + mean[site])).astype(float)
    found = np.bincount(site, count, 120) > 0
    assert 60 < found.sum() < 110
    here = found | (np.cumsum(~found) <= others)
    keep = here[site]
    site, month, count = (np.cumsum(here) - 1)[site[keep]], month[keep], count[keep]
    few = GroupPanel.of(int(here.sum()), 36, [Group.of("a", site, month, count)])
    whole = fit_counts(few, CountSettings(**settings))
    monkeypatch.setattr("fedmiss.federation.group.panel.Visits", partial(Visits, chosen=True))
    fit = fit_counts(few, CountSettings(**settings))
    mu = fit.expected()[site, month]
    zero = np.bincount(site, log_zero(mu, fit.state.inverse_size, fit.state.phi), few.J)
    law = found[here] * np.bincount(site, mu, few.J) / -np.expm1(zero)
    assert law.sum() == pytest.approx(
        count.sum(), rel=5e-3
    )  # between two factors the total is taken as a power of them
    assert others or fit.smear < whole.smear


def test_visits_left_out_are_predicted_as_those_of_sites_that_are_there_for_a_find(monkeypatch):
    """Of a rare species the page said that totals are an eighth too low: as much as counts of such sites are raised."""
    rng = np.random.default_rng(0)
    mean = np.exp(rng.normal(-3.0, 1.2, 150))
    site, month = np.nonzero(rng.random((150, 36)) < 0.3)
    count = rng.poisson(mean[site]).astype(float)
    found = np.bincount(site, count, 150) > 0
    keep = found[site]
    visits = (np.cumsum(found) - 1)[site[keep]], month[keep], count[keep]
    few = GroupPanel.of(int(found.sum()), 36, [Group.of("a", *visits)])
    model = [CountSettings(rank=0, slopes=False, season=False)]
    smear, bias = (
        [fit_counts(few, *model).smear],
        [float(cross_validate(few, model).summary["total_bias"][0])],
    )
    monkeypatch.setattr("fedmiss.federation.group.panel.Visits", partial(Visits, chosen=True))
    smear.append(fit_counts(few, *model).smear)
    bias.append(float(cross_validate(few, model).summary["total_bias"][0]))
    assert smear[1] < 0.92 * smear[0]
    assert bias[1] == pytest.approx(bias[0], abs=0.02)


def test_a_study_is_scaled_to_the_counts_by_what_each_club_knows_of_its_sites(tmp_path):
    panel, _ = bursts(J=80, seed=5)
    clubs = clubs_of(panel, tmp_path)
    model = [CountSettings(rank=0, dispersion="negbin")]
    plain = tapped(clubs, tmp_path / "a", model)[2].members[0].state.smear
    clubs["g01"].visits = replace(clubs["g01"].visits, chosen=True)
    assert 1.02 < tapped(clubs, tmp_path / "b", model)[2].members[0].state.smear < plain


@pytest.mark.parametrize("dispersion", ["quasi", "negbin", "none"])
def test_where_sites_are_alike_the_total_is_the_counted_one_and_its_error_that_of_a_poisson_count(dispersion):
    """Variances near zero: the level moves by what sites and months have in common, hence next to nothing a round.

    Of 40 replicates a standard deviation is known to 11 %, its mean over three panels to 7 %; fits are a little off Poisson.
    """
    ratios = []
    for seed in range(3):
        rng = np.random.default_rng(seed)
        site, month = np.nonzero(rng.random((30, 96)) < 0.1)
        y = rng.poisson(np.exp(1.0), site.size).astype(float)
        group = Group.of("a", site, month, y, np.arange(site.size))
        t = np.arange(96)
        federation = LocalFederation.of_panel(GroupPanel.of(30, 96, [group], (t % 12 + 1, 2000 + t // 12)))
        fit = federation.fit(CountSettings(rank=0, dispersion=dispersion))
        assert fit.expected()[site, month].sum() == pytest.approx(y.sum(), rel=1e-9)
        draws = federation.replicates(range(40), seed=1).totals[:, 0].sum(axis=1)
        ratios.append(np.log(draws).std(ddof=1) * np.sqrt(y.sum() / fit.aux.phi))
    assert 0.8 < np.mean(ratios) < 1.25


@pytest.mark.parametrize("scale", [1e-4, 0.01, 100.0, 10_000.0])
def test_gaussian_values_may_have_any_scale(scale):
    """Values in thousandths, or in thousands, have the same fit and intervals in their own unit."""
    panel, eta = simulate(n=900, family="gaussian", seed=3)
    wide = replace(panel, groups=tuple(replace(g, count=scale * g.count) for g in panel.groups))
    settings = CountSettings(family="gaussian", rank=1, observers=True)
    secrets = {g.name: g.name.encode() for g in panel.groups}
    one, other = (LocalFederation.of_panel(p, secrets=secrets) for p in (panel, wide))
    fit = other.fit(settings)
    assert fit.fit.converged
    error = fit.expected() / scale - eta
    assert np.sqrt((error**2).mean()) < 0.6 * eta.std()
    np.testing.assert_allclose(fit.expected() / scale, one.fit(settings).expected(), atol=1e-6)
    one, other = (federation.replicates(range(2), seed=1).totals for federation in (one, other))
    np.testing.assert_allclose(other / scale, one, rtol=1e-6)


@pytest.mark.parametrize("observers", [False, True])
def test_a_power_of_effort_is_found_where_no_visit_is_near_the_standard_one(observers):
    """Five-minute counts, one hour the standard: power and level say nearly the same, and the fit ends at both.

    Intervals of what is expected in an hour hold the error of the power, by the Fisher information of the visits.
    """
    rng = np.random.default_rng(4)
    J, L, n, hour = 40, 36, 800, np.log(60 / 5)
    s, t, who = rng.integers(0, J, n), rng.integers(0, L, n), rng.integers(0, 60, n)
    x = rng.normal(0, 0.3, (n, 1))
    mean = np.exp(truth(J, L, 2, scale=0.0)[s, t] + 0.7 * x[:, 0])
    y = rng.negative_binomial(2, 2 / (2 + mean))
    near, far = (
        LocalFederation.of_panel(
            GroupPanel.of(J, L, [Group.of("g", s, t, y, who, away)], calendar(L)), secrets={"g": b"g"}
        )
        for away in (x, x - hour)
    )
    settings = CountSettings(rank=0, dispersion="negbin", observers=observers)
    one, other = near.fit(settings), far.fit(settings)
    assert other.fit.converged
    assert other.state.rounds < 80
    assert other.aux.kappa[0] == pytest.approx(one.aux.kappa[0], abs=0.02)
    wanted = one.expected().sum() * np.exp(hour * other.aux.kappa[0])
    assert other.expected().sum() == pytest.approx(wanted, rel=0.02)
    one, other = (np.log(f.replicates(range(40), seed=1).totals[:, 0].sum(axis=1)) for f in (near, far))
    error = 1 / np.sqrt((mean / (1 + mean / 2) * x[:, 0] ** 2).sum())
    assert np.std(other - one) == pytest.approx(hour * error, rel=0.35)


@pytest.mark.parametrize(("standard", "spread"), [(60.0, 1.0), (15.0, 0.2), (-2.5, 0.0)])
def test_a_column_far_from_its_standard_does_not_swing(standard, spread):
    """As minutes or degrees of a user's own would be: the prior of the level holds what the few birds do not."""
    rng = np.random.default_rng(1)
    J, L, n = 20, 24, 480
    s, t = rng.integers(0, J, n), rng.integers(0, L, n)
    x = standard + spread * rng.normal(size=(n, 1))
    y = rng.poisson(0.07, n).astype(float)
    panel = GroupPanel.of(J, L, [Group.of("g", s, t, y, s, x)], calendar(L))
    fit = fit_counts(panel, CountSettings(rank=0, dispersion="quasi"))
    assert fit.fit.converged
    assert fit.state.rounds < 60
    visits = fit.expected()[s, t] * np.exp(x[:, 0] * fit.aux.kappa[0])
    assert visits.sum() == pytest.approx(y.sum(), rel=0.2)


def test_totals_of_sites_that_groups_keep_apart_are_those_of_all_their_owners():
    panel, _ = simulate(J=30, n=1200, groups=2, observers=8)
    f = LocalFederation.of_panel(panel, apart=True)
    owners = sum(np.bincount(at, minlength=30) for at in f.at.values())
    fit = f.fit(CountSettings(rank=0))
    hub = totals_of(f.link, f.hub, [(0, [f.members[0].state])])[0][0, 0]
    assert (owners @ fit.expected()).sum() == pytest.approx(hub.sum(), rel=0.05)  # at the mean of two effects
    draws = f.replicates(range(3), seed=0)
    assert np.isnan(draws.slopes).all() or np.isfinite(draws.slopes).all()


def test_a_counted_year_is_free_where_a_month_is_a_year_and_an_uncounted_one_is_not():
    """A crash of one year is found nearly whole; a year that nobody counted stays at its neighbours' line."""
    rng = np.random.default_rng(3)
    J, years = 60, 9
    level = rng.normal(1.5, 0.5, J)
    b = np.r_[0.0, 0.0, -0.8, np.zeros(6)]
    site, year = np.nonzero(np.ones((J, years)))
    keep = year != 6
    site, year = site[keep], year[keep]
    count = rng.poisson(np.exp(level[site] + b[year])).astype(float)
    calendar = (np.ones(years, dtype=np.int64), np.arange(2000, 2000 + years))
    panel = GroupPanel.of(J, years, [Group.of("a", site, year, count)], calendar)
    fit = fit_counts(panel, CountSettings(rank=0))
    index = np.log(fit.expected().sum(axis=0))
    seen = np.array([count[year == t].sum() if t != 6 else np.nan for t in range(years)])
    other = np.array([0, 1, 3, 4, 5, 7, 8])
    error = 1 / np.sqrt(seen[2])
    wanted = np.log(seen[2] / seen[other].mean())
    assert index[2] - index[other].mean() == pytest.approx(wanted, abs=0.5 * error)
    assert fit.state.widths[2, 0] == 1.0
    assert fit.state.widths[6, 0] == fit.state.noise[0] < 0.5
    assert index[6] == pytest.approx(index[other].mean(), abs=0.15)


@pytest.mark.parametrize("months", [1, 4])
def test_the_change_between_two_years_is_not_pulled_to_none(months):
    """Two years once had no line, and the variance of what they differed by was learned from one difference: often 0."""
    site, t = (x.ravel() for x in np.meshgrid(np.arange(30), np.arange(2 * months), indexing="ij"))
    year = np.arange(2 * months) // months
    found = []
    for seed in range(10):
        rng = np.random.default_rng(seed)
        count = rng.poisson(np.exp(rng.normal(1.6, 0.5, 30)[site] - 0.3 * year[t]))
        calendar = np.arange(2 * months) % months + 6, 2010 + year
        panel = GroupPanel.of(30, 2 * months, [Group.of("all", site, t, count)], calendar)
        total = fit_counts(panel, CountSettings(rank=0, dispersion="negbin")).expected().sum(axis=0)
        model, by_hand = np.bincount(year, total), np.bincount(year[t], count)
        found.append(np.log(model[1] / model[0]) / np.log(by_hand[1] / by_hand[0]))
    assert 0.95 < np.mean(found) < 1.05


@pytest.mark.slow  # compiles a loop
@pytest.mark.parametrize("family", ["poisson", "gaussian", "bernoulli"])
def test_a_loop_for_one_width_gives_the_bits_of_the_loop_for_all(monkeypatch, family):
    panel = owned(2, n=600, J=30, L=24, size=2.0, seed=5)
    settings = CountSettings(family=family, rank=1, dispersion="quasi")
    monkeypatch.setattr(kernels, "stored", lambda loop: False)
    fits = []
    for pays in (10**12, 0):
        monkeypatch.setattr("fedmiss.federation.group.kernels.PAYS", pays)
        fits.append(fit_counts(panel, settings))
    np.testing.assert_array_equal(fits[0].expected(), fits[1].expected())


@pytest.mark.slow  # compiles a loop
def test_replicates_side_by_side_have_the_bits_of_one_at_a_time(monkeypatch):
    panel = owned(2, n=3000, J=40, L=24, size=2.0, seed=6)
    whole = fit_counts(panel, CountSettings(rank=2))
    lane_kernels.side_by_side.cache_clear()
    draws = []
    monkeypatch.setattr(lane_kernels, "CORES", 1)
    monkeypatch.setattr(kernels, "stored", lambda loop: False)
    for pays in (10**12, 0):
        monkeypatch.setattr("fedmiss.federation.group.kernels.PAYS", pays)
        draws.append(bootstrap(panel, whole, draws=11))
    assert lane_kernels.side_by_side(3, POISSON.code).signatures  # it was run: effect and two factors
    np.testing.assert_array_equal(draws[0].totals, draws[1].totals)
