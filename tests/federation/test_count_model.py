"""Variational EM, the count model around it, cross-validation and bootstrap."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from numba import njit
from scipy import stats

from fedmiss.errors import ConfigError
from fedmiss.federation.group import kernels
from fedmiss.federation.group.folds import draw_folds, replicate_weights
from fedmiss.federation.hub.agree import folds_like_gaps as like_gaps
from fedmiss.federation.hub.begin import switched_off, with_factor
from fedmiss.federation.hub.bootstrap import effective_observers, spread_of, totals_of
from fedmiss.federation.hub.features import start_coefficients
from fedmiss.federation.hub.season import SeriesPrior
from fedmiss.federation.hub.state import MonthState
from fedmiss.federation.hub.steps import Turn, after_round
from fedmiss.federation.local import LocalFederation, bootstrap, cross_validate, fit_counts
from fedmiss.federation.results import Posterior, totals_by_region
from fedmiss.federation.triangle import from_triangle
from fedmiss.models.lowrank.choice import _above, _choose, default_candidates, model_name
from fedmiss.models.lowrank.data import Group, GroupPanel
from fedmiss.models.lowrank.families import FAMILIES, POISSON
from fedmiss.models.lowrank.settings import CountSettings
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
        kernels._site(j, p, ptr, col, y, E, off, False, mu, P, C, T, D, code, np.empty(p), out[j])


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
        P, C, eta, stats = q.P[None].copy(), q.C[None].copy(), np.zeros((1, c.nnz)), np.zeros((1, 4 + 3 * p))
        kernels._round(
            0, 1, np.zeros(1, np.int64), p, 1, c.ptr, c.col, c.y[None], c.E[None], off, False, np.array([q.mu]), q.T[None],
            q.D[None], np.ones((1, p)), np.ones(1), 0.0, np.zeros((1, J, p)), P, C, eta, code, out[None], stats,
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
    scores = [
        POISSON.deviance(fresh, fit_counts(panel, CountSettings(rank=r)).expected()).mean() for r in (0, 2)
    ]
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
    assert (
        np.abs(np.log(flat / np.exp(eta).sum(axis=0)))[26:32].max() > 0.7
    )  # without a calendar: the mean month


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


def test_effort_and_observers_are_recovered():
    rng = np.random.default_rng(5)
    J, L, n, observers = 40, 24, 6000, 60
    eta = truth(J, L, 2, scale=0.3)
    s, t, who = rng.integers(0, J, n), rng.integers(0, L, n), rng.integers(0, observers, n)
    o = rng.normal(0, 0.5, observers)
    effort = rng.normal(0, 0.5, (n, 1))
    y = rng.poisson(np.exp(eta[s, t] + o[who] + 0.7 * effort[:, 0])).astype(float)
    groups = []
    for k in range(3):
        m = who % 3 == k
        groups.append(Group.of(f"g{k}", s[m], t[m], y[m], who[m] // 3, effort[m]))
    panel = GroupPanel.of(J, L, groups, calendar(L))
    fit = fit_counts(panel, CountSettings(rank=2, observers=True))
    assert fit.aux.kappa[0] == pytest.approx(0.7, abs=0.05)
    got = np.concatenate(fit.aux.observer)
    want = np.concatenate([o[k::3] for k in range(3)])
    assert np.corrcoef(got, want)[0, 1] > 0.95
    assert (1 / fit.aux.observers) ** 0.5 == pytest.approx(o.std(), rel=0.3)
    assert fit.dispersion == pytest.approx(1.0, abs=0.15)


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
    assert (1 + predicted).sum() == pytest.approx((1 + g.count).sum(), rel=0.05)


def folds_of(g, by, folds=5, seed=0, years=None):
    """Folds of a group's visits, sites named by their numbers."""
    month = g.month.astype(np.int64)
    return draw_folds(
        by, folds, seed, name=g.name, site_id=np.arange(200).astype(str).astype(object), site=g.site, month=month,
        year=month // 12 if years is None else years[month], observer=g.observer,
    )  # fmt: skip


def test_folds_are_drawn_inside_groups_and_cover_them():
    panel, _ = simulate(n=500)
    for g in panel.groups:
        for by in ("cell", "visit", "observer", "block"):
            folds = folds_of(g, by)
            assert folds.size == g.count.size
            assert set(folds) <= set(range(5))
        sizes = np.bincount(folds_of(g, "visit"), minlength=5)
        assert sizes.max() - sizes.min() <= 1
        whole = folds_of(g, "observer")
        fold_of_cell = dict(zip(zip(g.site, g.month, strict=True), folds_of(g, "cell"), strict=True))
        for h in panel.groups:  # visits of one cell share a fold, in every group
            folds = folds_of(h, "cell")
            assert all(
                fold_of_cell.get((s, t), k) == k for s, t, k in zip(h.site, h.month, folds, strict=True)
            )
        assert all(np.unique(whole[g.observer == o]).size == 1 for o in np.unique(g.observer))
    with pytest.raises(ConfigError, match="folds by 'moon'"):
        folds_of(panel.groups[0], "moon")


def test_folds_are_even_and_independent_of_each_other():
    """Keyed draws: each fold has its fifth of 20,000 cells, and neighbours in place or time are not alike."""
    site, month = np.divmod(np.arange(20_000), 100)
    g = Group.of("a", site, month, np.ones(20_000))
    folds = folds_of(g, "cell").reshape(200, 100)
    sizes = np.bincount(folds.ravel(), minlength=5)
    assert np.abs(sizes - 4000).max() < 5 * np.sqrt(20_000 * 0.16)
    for same in ((folds[:, 1:] == folds[:, :-1]).mean(), (folds[1:] == folds[:-1]).mean()):
        assert same == pytest.approx(0.2, abs=5 * np.sqrt(0.16 / 19_800))
    other = folds_of(g, "cell", seed=1).reshape(200, 100)
    assert (folds == other).mean() == pytest.approx(0.2, abs=5 * np.sqrt(0.16 / 20_000))


def test_blocks_are_site_years_whatever_the_season():
    month = np.arange(48)
    g = Group.of("a", np.zeros(48, int), month, np.ones(48))
    by_year = folds_of(g, "block", years=month // 6).reshape(8, 6)
    assert np.ptp(by_year, axis=1).max() == 0
    assert np.unique(by_year).size > 1
    yearly = replace(simulate(J=12, L=10, n=200)[0], calendar=(np.ones(10, int), 2000 + np.arange(10)))
    table = cross_validate(yearly, [CountSettings(rank=0)], by="block").table
    assert (table["n"] > 0).all()  # ten columns are ten years, not one block


@pytest.mark.parametrize("by", ["auto", "cell", "block", "visit", "observer"])
def test_a_group_without_counted_visits_has_no_folds(by):
    panel, _ = simulate(n=200)
    empty = GroupPanel.of(panel.J, panel.L, [*panel.groups, Group.of("zz", [], [], [])], panel.calendar)
    settings = [CountSettings(rank=0)]
    with_it, without = (cross_validate(p, settings, by=by, folds=3).table["deviance"] for p in (empty, panel))
    np.testing.assert_allclose(with_it, without, rtol=1e-12)


def folds_like_gaps(panel):
    federation = LocalFederation.of_panel(panel)
    return like_gaps(federation.link, federation.hub)


def test_folds_are_like_the_gaps():
    rng = np.random.default_rng(0)
    site, month = np.divmod(np.arange(20 * 48), 48)

    def panel(keep, groups=3):
        y = np.ones(int(keep.sum()))
        return split(
            20, 48, site[keep], month[keep], y, np.zeros(y.size, int), rng.integers(0, groups, y.size)
        )

    single = rng.random(site.size) < 0.7
    years = (rng.random((20, 4)) < 0.7)[site, month // 12]
    assert folds_like_gaps(panel(single)) == "cell"
    assert folds_like_gaps(panel(years)) == "block"
    assert folds_like_gaps(panel(years & single)) == "block"  # 30 % by years, 21 % by cells
    yearly = replace(panel(years), calendar=(np.ones(48, int), 1960 + np.arange(48)))
    assert folds_like_gaps(yearly) == "cell"  # a cell is a year
    summer = replace(panel(years), calendar=(np.tile([5, 6, 7, 8], 12), 2000 + np.repeat(np.arange(12), 4)))
    assert (
        folds_like_gaps(summer) == "block"
    )  # 12 months are more than a year there; a gap of 12 months holds whole years
    assert (
        folds_like_gaps(replace(panel(years), J=20, groups=panel(years & (site < 2)).groups)) == "cell"
    )  # few blocks
    assert folds_like_gaps(panel(np.ones(site.size, bool))) == "cell"  # no gaps at all
    text = cross_validate(panel(years), [CountSettings(rank=0)]).advice
    assert text.endswith("Folds held out whole years of sites.")


def test_small_groups_do_not_all_fill_one_fold():
    lone = [Group.of(f"g{i}", [0, 1], [0, 1], [1.0, 2.0], [0, 1]) for i in range(60)]
    sizes = np.bincount(np.concatenate([folds_of(g, "observer") for g in lone]), minlength=5)
    assert sizes.min() > 10
    block = [folds_of(g, "block") for g in lone[:2]]
    np.testing.assert_array_equal(block[0], block[1])  # a block is held out in every group that visits it


@pytest.mark.slow
def test_candidates_are_scored_the_same_alone_and_together():
    panel, _ = simulate(n=400)
    mixed = [CountSettings(rank=2), CountSettings(rank=1, dispersion="negbin"), CountSettings(rank=1)]
    together = cross_validate(panel, mixed, folds=3).summary["deviance"]
    for i, c in enumerate(mixed):
        assert cross_validate(panel, [c], folds=3).summary["deviance"][0] == pytest.approx(together[i])
    with pytest.raises(ConfigError, match="no common score"):
        cross_validate(panel, [CountSettings(), CountSettings(family="gaussian", scale="raw")])


@pytest.mark.parametrize("shape", [(1, 12), (12, 1), (3, 12), (12, 3)])
def test_panels_smaller_than_the_rank(shape):
    rng = np.random.default_rng(0)
    s, t = rng.integers(0, shape[0], 60), rng.integers(0, shape[1], 60)
    panel = split(*shape, s, t, rng.poisson(3.0, 60).astype(float), s % 1 + t % 2, t % 2)
    fit = fit_counts(panel, CountSettings(rank=4))
    assert np.isfinite(fit.expected()).all()
    assert fit.settings.rank == fit.posterior.T.shape[1] - 1 == max(0, min(shape[0], (shape[1] - 2) // 5))


@pytest.mark.slow
def test_cross_validation_finds_the_rank():
    flat, _ = simulate(J=60, L=36, n=2500, scale=0.0)
    rich, _ = simulate(J=60, L=36, n=2500, scale=0.8)
    candidates = [CountSettings(rank=r) for r in (0, 1, 2)]
    none = cross_validate(flat, candidates, by="visit").summary["deviance"]
    assert (
        none.max() < 1.01 * none.min()
    )  # nothing to gain, and nothing lost: the factors switch themselves off
    chosen = cross_validate(rich, candidates)
    assert chosen.best.rank == 2
    assert len(chosen.table) == 15
    assert chosen.table["n"].sum() == 3 * rich.m
    assert "rank 2" in chosen.advice


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
    np.testing.assert_array_equal(
        long.table.loc[long.table["candidate"] == 1, "deviance"], short.table["deviance"]
    )


def month_state(L, p, seed=0):
    rng = np.random.default_rng(seed)
    return MonthState(
        0.3, rng.normal(size=(L, p)), np.tile(0.01 * np.eye(p), (L, 1, 1)), np.zeros((L, p)), np.ones(p), np.ones(p),
        kappa=np.zeros(0), shift=np.zeros(p), squares=np.ones(p),
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


def test_with_a_calendar_a_factor_starts_at_season_and_walk():
    month, year = calendar(48)
    state = replace(month_state(48, 1), series=(SeriesPrior.of(month, year, 1.0),))
    v = np.sin(2 * np.pi * month / 12) + np.random.default_rng(1).normal(0, 0.6, 48)
    panel, _ = simulate(J=60, L=48, n=900)
    hub = LocalFederation.of_panel(panel).hub
    smooth, rough = with_factor(state, v, hub), with_factor(replace(state, series=None), v, hub)
    np.testing.assert_array_equal(smooth.T[:, 1], smooth.prior[:, 1])
    np.testing.assert_array_equal(rough.T[:, 1], v)
    jumps = [np.square(np.diff(x.T[:, 1], n=2)).mean() / np.var(x.T[:, 1]) for x in (smooth, rough)]
    assert jumps[0] < jumps[1]


def test_steps_are_pure():
    """A step makes a new state and leaves the old one, and the sums, as they were."""
    panel, _ = simulate(J=30, L=24, n=500)
    federation = LocalFederation.of_panel(panel)
    fit = federation.fit(CountSettings(rank=1, dispersion="negbin"))
    state, p, L = fit.state, 2, 24
    rng = np.random.default_rng(0)
    sums_in = {
        "months": np.abs(rng.normal(size=(L, p + 3))), "sites": np.abs(rng.normal(size=4 + 3 * p)) + 1,
        "effort": np.zeros(0), "observers": np.zeros(3), "features": np.zeros((1, 0)),
        "distances": np.zeros(0), "dispersion": np.array([100.0, 90.0]),
    }  # fmt: skip
    before = [a.copy() for a in (state.T, state.D, state.prior, state.noise, state.tau)]
    copies = {k: v.copy() for k, v in sums_in.items()}
    turn = Turn(learn=True, settled=True, effort=False, observers=False, tol=1e-3)
    after_round(state, sums_in, federation.hub, fit.settings, np.array([0.0, 0.5]), turn)
    for old, now in zip(before, (state.T, state.D, state.prior, state.noise, state.tau), strict=True):
        np.testing.assert_array_equal(old, now)
    for k in sums_in:
        np.testing.assert_array_equal(copies[k], sums_in[k])


def test_negative_binomial_keeps_the_total_of_the_counts():
    panel, _ = bursts(seed=5)
    g = panel.pooled().groups[0]
    fit = fit_counts(panel, CountSettings(rank=1, dispersion="negbin"))
    assert fit.smear > 1.05  # without it the total would fall short
    assert fit.expected()[g.site, g.month].sum() == pytest.approx(g.count.sum(), rel=1e-9)
    assert fit_counts(panel, CountSettings(rank=1)).smear == 1.0
    assert fit_counts(panel, CountSettings(rank=1, dispersion="negbin", calibrate=False)).smear == 1.0


def judged(*models):
    """Scores of candidates (model, rank, deviances of the folds), and their summary."""
    table = pd.DataFrame(
        [
            {"candidate": i, "fold": k, "model": m, "rank": r, "penalty": np.nan, "deviance": d}
            for i, (m, r, ds) in enumerate(models)
            for k, d in enumerate(ds)
        ]
    )
    return table, table.groupby("candidate").agg(deviance=("deviance", "mean"), model=("model", "first"))


def test_another_distribution_has_to_be_clearly_better():
    table, summary = judged(
        ("negative binomial", 0, [10.0, 12.0, 11.0]),
        ("negative binomial", 1, [9.0, 11.0, 10.5]),
        ("quasi-Poisson", 0, [4.0, 11.5, 11.0]),  # lowest on average, thanks to one fold
    )
    options = [CountSettings(rank=r, dispersion=d) for d, r in (("negbin", 0), ("negbin", 1), ("quasi", 0))]
    assert _choose(table, summary, options, False) == 1
    table.loc[table["candidate"] == 2, "deviance"] = [8.0, 10.1, 9.4]  # lower in every fold
    summary["deviance"] = table.groupby("candidate")["deviance"].mean()
    assert _choose(table, summary, options, False) == 2


def test_candidates_are_compared_within_folds_by_mean_and_its_error():
    table, _ = judged(("a", 0, [10.0, 40.0, 11.0]), ("a", 1, [10.5, 40.5, 14.0]))
    mean, error = _above(table.pivot(index="fold", columns="candidate", values="deviance"), 0)
    np.testing.assert_allclose(mean, [0.0, 4.0 / 3.0])
    np.testing.assert_allclose(error, [0.0, np.std([0.5, 0.5, 3.0], ddof=1) / np.sqrt(3)])


def test_of_ranks_that_are_one_fit_the_lowest_is_chosen():
    options = [CountSettings(rank=r, dispersion="negbin") for r in (0, 1, 2)]

    def chosen(*deviances):
        return _choose(
            *judged(*(("negative binomial", i, ds) for i, ds in enumerate(deviances))), options, False
        )

    first = [10.0, 12.0, 11.0]
    assert chosen([d * 1.01 for d in first], first, [d * 0.9995 for d in first]) == 1
    assert chosen([d * 1.0005 for d in first], first, [d * 0.9999 for d in first]) == 0
    # better by a little in every fold, and by more than that in one
    assert chosen([10.0, 12.0, 11.1], first, [d * 1.2 for d in first]) == 1


def test_default_candidates_include_rank_zero_and_rival_models():
    names = {(c.family, c.dispersion, c.scale, c.rank) for c in default_candidates(CountSettings())}
    assert ("poisson", "quasi", "raw", 0) in names
    assert ("poisson", "negbin", "raw", 2) in names
    assert ("gaussian", "quasi", "log1p", 2) in names
    assert model_name(default_candidates(CountSettings())[0]) == "negative binomial"  # the one to beat


@pytest.mark.parametrize("most", [0, 1, 2, 5])
def test_no_candidate_has_a_rank_above_the_largest_asked_for(most):
    tried = [(c.family, c.dispersion, c.scale, c.rank) for c in default_candidates(CountSettings(), most)]
    assert max(rank for *_, rank in tried) == most
    assert len(set(tried)) == len(tried)


RIGID = SimpleNamespace(weight=1.0, free_visits=1.0)  # a fit that follows no count


def observer_weights(panel, draw):
    """Weights of every group in one replicate."""
    federation = LocalFederation.of_panel(panel)
    spread = spread_of(federation.hub, RIGID)
    return [p._weigh(0, draw, spread, p.used) for p in federation.programs.values()]


def test_bootstrap_weights_stay_inside_groups():
    panel, _ = simulate(n=600)
    federation = LocalFederation.of_panel(panel)
    spread = spread_of(federation.hub, RIGID)
    for program in federation.programs.values():
        w, used = program._weigh(0, 3, spread, program.used), program.used
        per_observer = {o: np.unique(w[used.observer == o]) for o in np.unique(used.observer)}
        assert all(v.size == 1 for v in per_observer.values())
        draws = np.array([program._weigh(0, b, spread, used) for b in range(400)])
        assert draws.mean() == pytest.approx(1.0, abs=5 / np.sqrt(400))
        assert draws.sum(axis=1).std() > 0.05 * draws.sum(axis=1).mean()  # a group's total varies too
        np.testing.assert_array_equal(w, program._weigh(0, 3, spread, used))
        assert not np.array_equal(w, program._weigh(0, 4, spread, used))
        assert not np.array_equal(w, program._weigh(1, 3, spread, used))
        other = replicate_weights(
            b"another secret", 0, 3, spread, program.place[used.site], used.observer, used.weight
        )
        assert not np.isin(
            np.unique(other), np.unique(w)
        ).any()  # only who has the secret can know the weights


@pytest.mark.slow
@pytest.mark.nightly
def test_few_effective_observers_get_wider_weights():
    who = np.repeat(np.arange(29), [72] + [6] * 28)  # one of them makes 30 % of the visits
    s, t = np.divmod(np.arange(240), 24)
    federation = LocalFederation.of_panel(GroupPanel.of(10, 24, [Group.of("a", s, t, np.ones(240), who)]))
    K = effective_observers(federation.hub)
    assert K == pytest.approx(240**2 / (72**2 + 28 * 36))
    program, n = federation.programs["a"], 4000
    w = np.array([program._weigh(0, b, spread_of(federation.hub, RIGID), program.used) for b in range(n)])
    wide = stats.t.ppf(0.975, K - 1) / stats.norm.ppf(0.975)
    for observer, share in ((0, 0.3), (1, 0.025)):
        draws = w[:, program.used.observer == observer][:, 0]
        c = (wide / (1 - share)) ** 2  # a Gamma of mean 1 and variance c has excess kurtosis 6 c
        assert draws.var() == pytest.approx(c, abs=4 * c * np.sqrt((2 + 6 * c) / n))
        assert draws.mean() == pytest.approx(1, abs=4 * np.sqrt(c / n))
    even = GroupPanel.of(10, 24, [Group.of("a", s, t, np.ones(240), np.arange(240))])
    flat = np.array([observer_weights(even, b)[0] for b in range(100)])
    assert flat.var() == pytest.approx(1.0, abs=0.1)  # many observers alike: Exp(1)


def test_a_single_observer_is_resampled_by_site():
    s, t = np.divmod(np.arange(240), 24)
    panel = GroupPanel.of(10, 24, [Group.of("a", s, t, np.ones(240))])
    w = observer_weights(panel, 0)[0].reshape(10, 24)
    assert np.ptp(w, axis=1).max() == 0
    assert np.unique(w[:, 0]).size == 10


@pytest.mark.parametrize("settings", [{}, {"dispersion": "negbin"}], ids=str)
def test_bootstrap_is_a_function_of_seed_and_number(settings):
    panel, _ = simulate(n=500)
    panel = replace(
        panel, region=np.array(["odd" if j % 2 else "even" for j in range(panel.J)], dtype=object)
    )
    settings = CountSettings(rank=1, observers=True, **settings)
    fit = fit_counts(panel, settings)
    first = bootstrap(panel, fit, draws=4, seed=1)
    more = bootstrap(panel, fit, draws=6, seed=1)
    np.testing.assert_allclose(first.totals, more.totals[:4], rtol=1e-13)
    np.testing.assert_allclose(first.totals[:, 1:].sum(axis=1), first.totals[:, 0])
    region = np.arange(panel.J) % 2
    point = totals_by_region(fit, region, 2)
    np.testing.assert_allclose(point[0], fit.expected().sum(axis=0))
    assert first.totals[:, 0].std(axis=0).min() > 0


@pytest.mark.nightly
@pytest.mark.slow
def test_replicates_spread_as_new_counts_would_though_the_fit_goes_after_the_old_ones():
    """Sites and months without a prior, balanced: a month's total is its count, whose variance is its expectation.

    71 of 720 degrees of freedom are the fit's, and squares of residuals fall short by that tenth. What is left (0.95) is
    that weights of few visits do not sum to their number.
    """
    J, L = 60, 12
    s, t = np.divmod(np.arange(J * L), L)
    ratios = []
    for seed in range(24):
        rng = np.random.default_rng(seed)
        mean = np.exp(rng.normal(3, 0.5, J)[s] + rng.normal(0, 0.3, L)[t])
        panel = GroupPanel.of(J, L, [Group.of("a", s, t, rng.poisson(mean).astype(float), np.arange(J * L))])
        federation = LocalFederation.of_panel(panel)
        federation.fit(CountSettings(rank=0, time="fixed"))
        draws = federation.replicates(range(100), seed=seed).totals[:, 0]
        ratios.append((draws.var(axis=0, ddof=1) / mean.reshape(J, L).sum(axis=0)).mean())
    assert 0.905 < np.mean(ratios) < 1.03  # standard error 0.012


@pytest.mark.mc
def test_bootstrap_intervals_cover():
    """Nominal 95 % intervals of the overall log slope over random panels: 90 to 98 % (binomial error about 1.5 %)."""
    hits = total = 0
    for seed in range(120):
        panel, eta = simulate(J=60, L=60, n=1200, seed=1000 + seed, scale=0.4, observers=60)
        fit = fit_counts(panel, CountSettings(rank=2))
        draws = bootstrap(panel, fit, draws=60, seed=seed)
        year = panel.calendar[1]
        x = np.unique(year) - np.unique(year).mean()

        def slope(monthly, year=year, x=x):
            yearly = np.array([monthly[year == y].sum() for y in np.unique(year)])
            return float(np.log(yearly) @ x / (x @ x))

        estimate = slope(totals_by_region(fit, np.full(60, -1), 0)[0])
        se = np.std([slope(d[0]) for d in draws.totals], ddof=1)
        hits += abs(estimate - slope(np.exp(eta).sum(axis=0))) < 1.96 * se
        total += 1
    assert 0.88 <= hits / total <= 0.995


@pytest.mark.slow
def test_replicates_spread_as_three_new_observers_a_year_leave_every_year_unknown():
    """Year and mean of the year's observers share one sum: it is known to sd / sqrt(3), apart from counting."""
    J, years, new = 40, 8, 3
    s, t = np.nonzero(np.ones((J, years)))
    who = t * new + s % new
    ratios = []
    for seed in range(4):
        rng = np.random.default_rng(seed)
        level, true = rng.normal(1.5, 0.5, J), rng.normal(0, 0.4, years * new)
        y = rng.poisson(np.exp(level[s] + true[who])).astype(float)
        when = (np.full(years, 6), 2010 + np.arange(years))
        federation = LocalFederation.of_panel(GroupPanel.of(J, years, [Group.of("a", s, t, y, who)], when))
        federation.fit(CountSettings(rank=0, observers=True))
        draws = np.log(federation.replicates(range(60), seed=1).totals[:, 0])
        draws -= draws.mean(axis=1, keepdims=True)
        variance = draws.var(axis=0).mean() * years / (years - 1)
        ratios.append(
            variance / (1 / (federation.members[0].state.ridge * new) + 1 / np.bincount(t, y).mean())
        )
    assert 0.9 < np.sqrt(np.mean(ratios)) < 1.2


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


def test_effort_and_observers_take_turns_and_find_the_truth():
    """The covariate is mostly an observer's habit: updated together, effort and observers would undo each other."""
    rng = np.random.default_rng(4)
    J, L, n, observers = 40, 24, 5000, 40
    eta = truth(J, L, 2, scale=0.0)
    s, t, who = rng.integers(0, J, n), rng.integers(0, L, n), rng.integers(0, observers, n)
    x = (rng.normal(0, 1.0, observers)[who] + rng.normal(0, 0.5, n))[:, None]
    y = rng.poisson(np.exp(eta[s, t] + 0.8 * x[:, 0])).astype(float)
    groups = [Group.of(f"g{k}", *(v[who % 2 == k] for v in (s, t, y, who // 2, x))) for k in range(2)]
    fit = fit_counts(GroupPanel.of(J, L, groups, calendar(L)), CountSettings(rank=0, observers=True))
    assert fit.aux.kappa[0] == pytest.approx(0.8, abs=0.05)


def test_a_fold_without_a_visit_has_no_score():
    """Of four cells one of five folds holds out none; the others score all candidates."""
    site, month = (x.ravel() for x in np.meshgrid(np.arange(4), [0]))
    panel = GroupPanel.of(
        8, 1, [Group.of("g", site, month, np.arange(4.0))], (np.array([5]), np.array([2012]))
    )
    candidates = [CountSettings(rank=0), CountSettings(rank=0, dispersion="negbin")]
    choice = cross_validate(panel, candidates, folds=5, seed=0)
    assert choice.table["n"].sum() == 2 * 4
    assert (choice.table.groupby("candidate")["fold"].nunique() < 5).all()
    assert np.isfinite(choice.table["deviance"]).all()


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
    assert other.expected().sum() == pytest.approx(
        one.expected().sum() * np.exp(hour * other.aux.kappa[0]), rel=0.02
    )
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
    assert index[2] - index[other].mean() == pytest.approx(
        np.log(seen[2] / seen[other].mean()), abs=0.5 * error
    )
    assert fit.state.widths[2, 0] == 1.0
    assert fit.state.widths[6, 0] == fit.state.noise[0] < 0.5
    assert index[6] == pytest.approx(index[other].mean(), abs=0.15)


@pytest.mark.slow  # compiles a loop
@pytest.mark.parametrize("family", ["poisson", "gaussian", "bernoulli"])
def test_a_loop_for_one_width_gives_the_bits_of_the_loop_for_all(monkeypatch, family):
    panel = owned(2, n=600, J=30, L=24, size=2.0, seed=5)
    settings = CountSettings(family=family, rank=1, dispersion="quasi")
    fits = []
    for pays in (10**12, 0):
        monkeypatch.setattr("fedmiss.federation.group.kernels.PAYS", pays)
        fits.append(fit_counts(panel, settings))
    np.testing.assert_array_equal(fits[0].expected(), fits[1].expected())


def test_replicates_of_no_number_or_of_another_panel_are_refused():
    site, month = (a.ravel() for a in np.indices((6, 8)))
    group = Group.of("a", site, month, np.arange(48.0) % 5)
    panel = GroupPanel.of(6, 8, [group])
    fit = fit_counts(panel, CountSettings(rank=0))
    with pytest.raises(ConfigError, match="draws is 0"):
        bootstrap(panel, fit, draws=0)
    part = Group.of("a", site[:-1], month[:-1], np.ones(47))
    for other in (GroupPanel.of(7, 8, [group]), GroupPanel.of(6, 9, [group]), GroupPanel.of(6, 8, [part])):
        with pytest.raises(ConfigError, match="6 sites, 8 months and 48 counted visits, and the panel has"):
            bootstrap(other, fit, draws=2)
    with pytest.raises(ConfigError, match="the level is 95 "):
        fit.interval(level=95)
