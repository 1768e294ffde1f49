"""Replicates: weights inside groups, and intervals that hold what they say."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from scipy import stats

from fedmiss.errors import ConfigError
from fedmiss.federation.calls import bootstrap, cross_validate, fit_counts
from fedmiss.federation.fit_tables import totals_by_region
from fedmiss.federation.group.folds import replicate_weights
from fedmiss.federation.group.panel import stamps_of, visits_of
from fedmiss.federation.hub import lockstep
from fedmiss.federation.hub.agree import DataSpec
from fedmiss.federation.hub.bootstrap import effective_observers, spread_of
from fedmiss.federation.hub.values import evolve
from fedmiss.federation.local import LocalFederation
from fedmiss.models.lowrank.data import Group, GroupPanel
from fedmiss.models.lowrank.settings import CountSettings
from tests.models.panels import simulate

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
            b"another secret", 0, 3, spread, program.visits.who, program.place[used.site], used.observer,
            used.weight,
        )  # fmt: skip
        # only who has the secret can know the weights
        assert not np.isin(np.unique(other), np.unique(w)).any()


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
    names = np.array(["even", "odd"], dtype=object)
    panel = replace(panel, region=names[np.arange(panel.J) % 2])
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


def test_what_series_hear_in_replicates_does_not_depend_on_how_far_months_go(monkeypatch):
    """A month that took half of its step, beside a narrow prior that had been moved, told of counts of exp(-200)."""
    panel, _ = simulate(n=900)
    months = np.arange(panel.L)
    panel = replace(panel, calendar=(months % 12 + 1, months // 12 + 2001))
    calls, step = [], lockstep.after_round

    def after_round(state, *rest):
        calls.append((state, *rest))
        return step(state, *rest)

    federation = LocalFederation.of_panel(panel)
    federation.fit(CountSettings(rank=1))
    monkeypatch.setattr(lockstep, "after_round", after_round)
    federation.replicates(range(3), seed=0)
    state, sums, hub, settings, *rest = calls[0]
    assert not rest[-1].learn
    # held: then every step that turns back is halved
    rest = [sums, hub, replace(settings, inverse_size=1.0), *rest]
    stay = evolve(state, damping=(np.zeros_like(state.damping[0]), np.ones_like(state.damping[1])))
    whole = step(stay, *rest)
    back = step(evolve(stay, damping=(-whole.damping[0], stay.damping[1])), *rest)
    assert (back.damping[1] == 0.5).all()
    assert np.abs(back.T - whole.T).max() > 1e-3
    np.testing.assert_allclose(back.prior[..., 1:], whole.prior[..., 1:], atol=1e-9)


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
        known = 1 / (federation.members[0].state.ridge * new) + 1 / np.bincount(t, y).mean()
        ratios.append(variance / known)
    assert 0.9 < np.sqrt(np.mean(ratios)) < 1.2


def test_replicates_of_no_number_or_of_another_panel_are_refused():
    site, month = (a.ravel() for a in np.indices((6, 8)))
    group = Group.of("a", site, month, np.arange(48.0) % 5)
    panel = GroupPanel.of(6, 8, [group])
    fit = fit_counts(panel, CountSettings(rank=0))
    for draws in (0, 10**20):  # the second had no end
        with pytest.raises(ConfigError, match=f"draws is {draws} "):
            bootstrap(panel, fit, draws=draws)
    with pytest.raises(ConfigError, match="has 1000000 folds"):
        cross_validate(panel, [CountSettings(rank=0)], folds=10**6)
    part = Group.of("a", site[:-1], month[:-1], np.ones(47))
    for other in (GroupPanel.of(7, 8, [group]), GroupPanel.of(6, 9, [group]), GroupPanel.of(6, 8, [part])):
        with pytest.raises(ConfigError, match="6 sites, 8 months and 48 counted visits, and the panel has"):
            bootstrap(other, fit, draws=2)
    with pytest.raises(ConfigError, match="the level is 95 "):
        fit.interval(level=95)


def species(name: str, observers: list[str], secret: bytes) -> LocalFederation:
    """One group whose observers are numbered by what they are called, each with forty visits."""
    rng = np.random.default_rng(3)
    who = np.repeat(np.arange(len(observers)), 40).astype(np.int32)
    site = rng.integers(0, 12, who.size)
    group = Group.of("a", site, rng.integers(0, 24, who.size), np.ones(who.size), who)
    panel = GroupPanel.of(12, 24, [group])
    held, at = visits_of(panel)
    ids = np.array(observers, dtype=object)
    held = {"a": replace(held["a"], species=name, observer_id=ids)}
    plan = DataSpec(species=name, months=stamps_of(panel))
    return LocalFederation(held, at, 12, plan, secrets={"a": secret})


def test_an_observer_weighs_the_same_in_fits_of_other_species():
    """They were keyed by local numbers and a secret of each species: what observers do to all species was in no sum."""
    one, other = ["ann", "ben", "cat", "dan"], ["ben", "cat", "dan", "eve"]  # ben is number 1 here, 0 there

    def weights(name, observers, secret):
        federation = species(name, observers, secret)
        program = federation.programs["a"]
        spread = np.array([160.0, 1.0, 0.0])
        w = [program._weigh(0, b, spread, program.used) for b in range(5)]
        return {ids: np.array(w)[:, program.used.observer == i][:, 0] for i, ids in enumerate(observers)}

    wren, crow = weights("wren", one, b"k"), weights("crow", other, b"k")
    apart = weights("crow", other, b"other records")
    for name in ("ben", "cat", "dan"):
        np.testing.assert_array_equal(wren[name], crow[name])
        assert not np.isin(wren[name], apart[name]).any()
    assert np.unique(np.concatenate([*wren.values(), crow["eve"]])).size == 25


def test_what_the_prior_adds_to_replicates_is_each_species_own():
    """Replicates of one number stand together in an indicator: noise that species shared would be an error of their mean."""
    rows = {}
    for name in ("wren", "wren again", "crow"):
        federation = species(name.split()[0], ["ann", "ben"], b"k")
        federation.programs["a"].weigh = lambda seed, number, spread, used: used.weight
        federation.fit(CountSettings(rank=0))
        rows[name] = federation.replicates(range(60), seed=1).totals[:, 0].sum(axis=1)
    np.testing.assert_array_equal(rows["wren"], rows["wren again"])
    assert rows["wren"].std() > 0
    assert abs(np.corrcoef(rows["wren"], rows["crow"])[0, 1]) < 0.4  # three standard errors of 60 draws
