"""Variational EM, the count model around it, cross-validation and bootstrap."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from fedmiss.models.lowrank.bayes import Posterior, _sums, add_factor, predictor, set_predictor, vb_fit
from fedmiss.models.lowrank.bootstrap import (
    bootstrap,
    bootstrap_draw,
    effective_observers,
    observer_weights,
    totals_by_region,
)
from fedmiss.models.lowrank.counts import CountSettings, fit_counts, fit_prepared, prepare
from fedmiss.models.lowrank.crossval import (
    _choose,
    assign_folds,
    cross_validate,
    default_candidates,
    folds_like_gaps,
    model_name,
)
from fedmiss.models.lowrank.season import SeriesPrior
from scipy import stats

from fedmiss.errors import ConfigError
from fedmiss.models.lowrank.data import Group, GroupPanel
from fedmiss.models.lowrank.families import POISSON

from .panels import calendar, cells_of, simulate, split, truth


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


@pytest.mark.parametrize("family", ["poisson", "gaussian"])
@pytest.mark.parametrize("by_site", [True, False])
def test_variational_sums_are_the_derivatives_of_the_expected_loss(family, by_site):
    panel, _ = simulate(J=5, L=4, n=25, family=family, groups=2)
    cells = cells_of(panel, family)
    q = posterior(5, 4, 3)
    for c in cells:
        c.eta = np.zeros(c.nnz)
    g, G = _sums(cells, q, family, by_site)
    h = 1e-5
    X = q.P if by_site else q.T
    for i in range(len(X)):
        for a in range(3):
            values = []
            for sign in (1, 0, -1):
                moved = X.copy()
                moved[i, a] += sign * h
                values.append(expected_loss(cells, replace(q, **{"P" if by_site else "T": moved}), family))
            assert -g[i, a] == pytest.approx((values[0] - values[2]) / (2 * h), abs=1e-4)
            second = (values[0] - 2 * values[1] + values[2]) / h**2
            assert G[i, a, a] == pytest.approx(second, abs=2e-3 * (1 + abs(second)))
    np.testing.assert_array_equal(G, G.transpose(0, 2, 1))


def test_predictor_has_the_mean_of_the_cells():
    panel, _ = simulate(J=6, L=5, n=40, groups=1)
    cells = cells_of(panel, "poisson")
    cells[0].eta = np.zeros(cells[0].nnz)
    q = posterior(6, 5, 2, seed=4)
    _sums(cells, q, "poisson", True)
    np.testing.assert_allclose(cells[0].eta, predictor(q, slice(None), "poisson")[cells[0].row, cells[0].col])


def test_federated_variational_fit_is_the_pooled_one():
    panel, _ = simulate(groups=10, observers=40, n=600)
    a = fit_counts(panel, CountSettings(rank=2)).expected()
    np.testing.assert_allclose(fit_counts(panel.pooled(), CountSettings(rank=2)).expected(), a, rtol=1e-8)


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
        f, _ = prior.update(mean, var, f, learn=True)
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
    got = np.concatenate([fit.aux.observer[k] for k in range(3)])
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
    assert negbin.aux.theta == pytest.approx(size, rel=0.15)
    quasi = fit_counts(panel, CountSettings(rank=0))
    pearson = float(((y - mu) ** 2 / mu).mean())
    assert quasi.dispersion == pytest.approx(pearson, rel=0.2)


def test_log1p_fit_keeps_the_total_of_the_observed_counts():
    panel, _ = simulate(n=800)
    fit = fit_counts(panel, CountSettings(family="gaussian", scale="log1p", rank=1))
    g = panel.pooled().groups[0]
    predicted = fit.expected()[g.site, g.month]
    assert (1 + predicted).sum() == pytest.approx((1 + g.count).sum(), rel=0.05)


def test_folds_are_drawn_inside_groups_and_cover_them():
    panel, _ = simulate(n=500)
    for g in panel.groups:
        for by in ("cell", "visit", "observer", "block"):
            folds = assign_folds(g, 5, by, 0)
            assert folds.size == g.count.size
            assert set(folds) <= set(range(5))
        sizes = np.bincount(assign_folds(g, 5, "visit", 0), minlength=5)
        assert sizes.max() - sizes.min() <= 1
        whole = assign_folds(g, 5, "observer", 0)
        fold_of_cell = dict(
            zip(zip(g.site, g.month, strict=True), assign_folds(g, 5, "cell", 0), strict=True)
        )
        for h in panel.groups:  # visits of one cell share a fold, in every group
            folds = assign_folds(h, 5, "cell", 0)
            assert all(
                fold_of_cell.get((s, t), k) == k for s, t, k in zip(h.site, h.month, folds, strict=True)
            )
        assert all(np.unique(whole[g.observer == o]).size == 1 for o in np.unique(g.observer))
    with pytest.raises(ConfigError, match="folds by 'moon'"):
        assign_folds(panel.groups[0], 5, "moon", 0)


def test_blocks_are_site_years_whatever_the_season():
    month = np.arange(48)
    g = Group.of("a", np.zeros(48, int), month, np.ones(48))
    by_year = assign_folds(g, 5, "block", 0, month // 6).reshape(8, 6)
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
    summer = replace(
        panel(years), calendar=(np.tile([7, 8, 5, 6], 12), 2000 + np.repeat(np.arange(25), 2)[1:49])
    )
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
    sizes = np.bincount(np.concatenate([assign_folds(g, 5, "observer", 0) for g in lone]), minlength=5)
    assert sizes.min() > 10
    block = [assign_folds(g, 5, "block", 0) for g in lone[:2]]
    np.testing.assert_array_equal(block[0], block[1])  # a block is held out in every group that visits it


def test_candidates_are_scored_the_same_alone_and_together():
    panel, _ = simulate(n=400)
    odd = [
        CountSettings(rank=0, penalty=0.0, site_penalty=1e-3),
        CountSettings(rank=0, penalty=0.0, site_penalty=1e3),
        CountSettings(rank=1, penalty=1.0, effects=False),
    ]
    together = cross_validate(panel, odd, folds=3).summary["deviance"]
    for i, c in enumerate(odd):
        assert cross_validate(panel, [c], folds=3).summary["deviance"][0] == pytest.approx(together[i])
    mixed = [CountSettings(rank=2), CountSettings(rank=1, penalty=1.0), CountSettings(rank=1)]
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
    for penalty in (None, 1.0):
        fit = fit_counts(panel, CountSettings(rank=4, penalty=penalty))
        assert np.isfinite(fit.expected()).all()
        if penalty is None:
            assert fit.settings.rank == fit.theta.rank == min(shape)


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


def test_factors_enter_one_by_one_and_the_path_is_the_same_from_any_start():
    panel, eta = bursts()
    fits = [fit_counts(panel, CountSettings(rank=r, dispersion="negbin")) for r in (0, 1, 2, 4)]
    ready, cells = prepare(panel, fits[2].settings)
    again = fit_prepared(ready, cells, fits[2].settings, start=fits[1])
    np.testing.assert_array_equal(again.expected(), fits[2].expected())
    interaction = eta - eta.mean(axis=1, keepdims=True) - eta.mean(axis=0) + eta.mean()
    error = [np.sqrt(((f.theta.U @ f.theta.V.T - interaction) ** 2).mean()) for f in fits]
    assert error[1] < 0.9 * error[0]
    assert error[2] < 0.95 * error[1]
    assert error[3] < 0.95 * error[0]  # two factors too many do not make all of them vanish


def test_after_a_factor_that_vanished_the_next_stays_at_zero():
    panel, _ = simulate(J=6, L=5, n=60)
    cells = cells_of(panel, "poisson")
    q = posterior(6, 5, 2)
    for c in cells:
        c.eta = np.zeros(c.nnz)
    set_predictor(cells, q, "poisson")
    tried = add_factor(cells, q, "poisson", phi=1.0)
    assert tried.P.shape == (6, 3)
    assert np.abs(tried.P[:, 2]).max() > 0
    q.P[:, 1] = 1e-6
    given_up = add_factor(cells, q, "poisson", phi=1.0)
    np.testing.assert_array_equal(given_up.P[:, 2], 0.0)
    np.testing.assert_array_equal(vb_fit(cells, given_up)[0].P[:, 2], 0.0)


def test_with_a_calendar_a_factor_starts_at_season_and_walk():
    panel, _ = simulate(J=40, L=24, n=800)
    cells = cells_of(panel, "poisson")
    for c in cells:
        c.eta = np.zeros(c.nnz)
    start = replace(posterior(40, 24, 1), D=np.full((24, 1, 1), 1e-3), C=np.full((40, 1, 1), 1e-3))
    q = vb_fit(cells, start, calendar=panel.calendar)[0]
    set_predictor(cells, q, "poisson")
    smooth = add_factor(cells, q, "poisson", phi=1.0)
    np.testing.assert_array_equal(smooth.T[:, 1], smooth.prior[:, 1])
    rough = add_factor(cells, replace(q, series=None), "poisson", phi=1.0)
    assert not rough.prior[:, 1].any()
    jumps = [np.square(np.diff(x.T[:, 1], n=2)).mean() / np.var(x.T[:, 1]) for x in (smooth, rough)]
    assert jumps[0] < jumps[1]


def test_negative_binomial_keeps_the_total_of_the_counts():
    panel, _ = bursts(seed=5)
    g = panel.pooled().groups[0]
    fit = fit_counts(panel, CountSettings(rank=1, dispersion="negbin"))
    assert fit.smear > 1.05  # without it the total would fall short
    assert fit.expected()[g.site, g.month].sum() == pytest.approx(g.count.sum(), rel=1e-9)
    assert fit_counts(panel, CountSettings(rank=1)).smear == 1.0
    assert fit_counts(panel, CountSettings(rank=1, dispersion="negbin", calibrate=False)).smear == 1.0


def test_another_distribution_has_to_be_clearly_better():
    table = pd.DataFrame(
        [
            {"candidate": i, "fold": k, "model": m, "rank": r, "penalty": np.nan, "deviance": d}
            for i, (m, r, ds) in enumerate(
                [
                    ("negative binomial", 0, [10.0, 12.0, 11.0]),
                    ("negative binomial", 1, [9.0, 11.0, 10.5]),
                    ("quasi-Poisson", 0, [4.0, 11.5, 11.0]),  # lowest on average, thanks to one fold
                ]
            )
            for k, d in enumerate(ds)
        ]
    )
    summary = table.groupby("candidate").agg(deviance=("deviance", "mean"), model=("model", "first"))
    options = [CountSettings(rank=r, dispersion=d) for d, r in (("negbin", 0), ("negbin", 1), ("quasi", 0))]
    assert _choose(table, summary, options, False) == 1
    table.loc[table["candidate"] == 2, "deviance"] = [8.0, 10.1, 9.4]  # lower in every fold
    summary["deviance"] = table.groupby("candidate")["deviance"].mean()
    assert _choose(table, summary, options, False) == 2


def test_default_candidates_include_rank_zero_and_rival_models():
    names = {(c.family, c.dispersion, c.scale, c.rank) for c in default_candidates(CountSettings())}
    assert ("poisson", "quasi", "raw", 0) in names
    assert ("poisson", "negbin", "raw", 2) in names
    assert ("gaussian", "quasi", "log1p", 2) in names
    assert model_name(default_candidates(CountSettings())[0]) == "negative binomial"  # the one to beat


def test_bootstrap_weights_stay_inside_groups():
    panel, _ = simulate(n=600)
    for g, w in zip(panel.groups, observer_weights(panel, 0, 3), strict=True):
        per_observer = {o: np.unique(w[g.observer == o]) for o in np.unique(g.observer)}
        assert all(v.size == 1 for v in per_observer.values())
        draws = np.array([observer_weights(panel, 0, b)[0] for b in range(400)])
        assert draws.mean() == pytest.approx(1.0, abs=5 / np.sqrt(400))
        assert draws.sum(axis=1).std() > 0.05 * draws.sum(axis=1).mean()  # a group's total varies too
    again = observer_weights(panel, 0, 3)
    np.testing.assert_array_equal(again[0], observer_weights(panel, 0, 3)[0])
    assert not np.array_equal(again[0], observer_weights(panel, 0, 4)[0])


def test_few_effective_observers_get_wider_weights():
    who = np.repeat(np.arange(29), [72] + [6] * 28)  # one of them makes 30 % of the visits
    s, t = np.divmod(np.arange(240), 24)
    panel = GroupPanel.of(10, 24, [Group.of("a", s, t, np.ones(240), who)])
    K = effective_observers(panel)
    assert K == pytest.approx(240**2 / (72**2 + 28 * 36))
    n = 4000
    w = np.array([observer_weights(panel, 0, b)[0] for b in range(n)])
    wide = stats.t.ppf(0.975, K - 1) / stats.norm.ppf(0.975)
    for observer, share in ((0, 0.3), (1, 0.025)):
        draws = w[:, panel.groups[0].observer == observer][:, 0]
        c = (wide / (1 - share)) ** 2  # a Gamma of mean 1 and variance c has excess kurtosis 6 c
        assert draws.var() == pytest.approx(c, abs=4 * c * np.sqrt((2 + 6 * c) / n))
        assert draws.mean() == pytest.approx(1, abs=4 * np.sqrt(c / n))
    even = GroupPanel.of(10, 24, [Group.of("a", s, t, np.ones(240), np.arange(240))])
    flat = np.array([observer_weights(even, 0, b)[0] for b in range(100)])
    assert flat.var() == pytest.approx(1.0, abs=0.1)  # many observers alike: Exp(1)


def test_a_single_observer_is_resampled_by_site():
    s, t = np.divmod(np.arange(240), 24)
    panel = GroupPanel.of(10, 24, [Group.of("a", s, t, np.ones(240))])
    w = observer_weights(panel, 0, 0)[0].reshape(10, 24)
    assert np.ptp(w, axis=1).max() == 0
    assert np.unique(w[:, 0]).size == 10


@pytest.mark.parametrize("dispersion", ["quasi", "negbin"])
def test_bootstrap_is_a_function_of_seed_and_number(dispersion):
    panel, _ = simulate(n=500)
    fit = fit_counts(panel, CountSettings(rank=1, dispersion=dispersion, observers=True))
    region = np.arange(panel.J) % 2
    first = bootstrap(panel, fit, draws=4, seed=1, region=region, n_regions=2, calendar=panel.calendar)
    more = bootstrap(panel, fit, draws=6, seed=1, region=region, n_regions=2, calendar=panel.calendar)
    np.testing.assert_array_equal(first.totals, more.totals[:4])
    one = bootstrap_draw(panel, fit, 1, region, 2, panel.calendar)
    np.testing.assert_array_equal(one(3)[0], first.totals[3])  # replicate 3 alone, without 0, 1 and 2
    np.testing.assert_allclose(first.totals[:, 1:].sum(axis=1), first.totals[:, 0])
    point = totals_by_region(fit, region, 2)
    np.testing.assert_allclose(point[0], fit.expected().sum(axis=0))


@pytest.mark.mc
def test_bootstrap_intervals_cover():
    """Nominal 95 % intervals of the overall log slope over random panels: 90 to 98 % (binomial error about 1.5 %)."""
    hits = total = 0
    for seed in range(120):
        panel, eta = simulate(J=60, L=60, n=1200, seed=1000 + seed, scale=0.4, observers=60)
        fit = fit_counts(panel, CountSettings(rank=2))
        draws = bootstrap(panel, fit, draws=60, seed=seed, calendar=panel.calendar)
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
