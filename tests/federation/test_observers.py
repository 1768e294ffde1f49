"""Effects of observers: powers of effort beside them, the level, and observers of whom few counts tell."""

import numpy as np
import pytest

from fedmiss.federation.calls import fit_counts
from fedmiss.federation.hub import visit_steps
from fedmiss.federation.hub.values import evolve
from fedmiss.federation.local import LocalFederation
from fedmiss.models.lowrank.data import Group, GroupPanel
from fedmiss.models.lowrank.settings import CountSettings
from tests.designs import simulate_design
from tests.models.panels import calendar, truth


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


@pytest.mark.parametrize("n_groups", [1, 2])
def test_what_few_observers_have_in_common_is_the_level(n_groups):
    """Twenty observers of many visits: no count tells level from mean effect, and their prior has the mean 0."""
    rng = np.random.default_rng(0)
    J, L, n, o = 40, 24, 1200, 20
    effect = rng.normal(0, 0.8, o)
    s, t, who = rng.integers(0, J, n), rng.integers(0, L, n), rng.integers(0, o, n)
    y = rng.poisson(np.exp(0.7 + rng.normal(0, 0.8, J)[s] + effect[who])).astype(float)
    # an observer of two groups is one in each
    groups = [Group.of(f"g{k}", *(v[s % n_groups == k] for v in (s, t, y, who))) for k in range(n_groups)]
    federation = LocalFederation.of_panel(GroupPanel.of(J, L, groups))
    fit = federation.fit(CountSettings(rank=0, dispersion="negbin", observers=True))
    assert fit.fit.converged
    assert np.concatenate(fit.aux.observer).mean() == pytest.approx(0.0, abs=0.01)  # -0.13 where they creep
    # Replicates draw the observers' prior means: they lie around the fit, as far apart as means of twenty observers do.
    totals = np.log(federation.replicates(range(20), seed=1).totals[:, 0].sum(axis=1) / fit.expected().sum())
    assert totals.mean() == pytest.approx(0.0, abs=0.1)
    assert totals.std() < 1.5 * effect.std() / np.sqrt(o)


def test_what_observers_have_in_common_is_moved_without_a_move_of_any_visit():
    """(mu + d) + (kappa + e) z + (o - d - e z) = mu + kappa z + o; d and e are the least of the priors' paraboloid."""
    rng = np.random.default_rng(2)
    I, ridge, mu, kappa, origin = 30, 20.0, 0.4, 0.03, 0.1
    o, z = rng.normal(0.3, 0.2, I), rng.normal(1.0, 4.0, I)
    o += 0.03 * z
    sums = np.array([(o**2).sum(), I, I, o.sum(), z @ o, z.sum(), z @ z])
    panel = GroupPanel.of(2, 12, [Group.of("g", [0, 1], [0, 1], [1.0, 2.0], [0, 1])], calendar(12))
    state = fit_counts(panel, CountSettings(rank=0, max_sweeps=3)).state
    state = evolve(state, mu=mu, kappa=np.array([0.5, kappa]), ridge=ridge, origin=origin, unit=1.0, k=4)
    moved = visit_steps.common_step(state, sums, learning=True)
    d, e = moved.common
    assert abs(d) > 0.1
    assert abs(e) > 0.01
    np.testing.assert_allclose([moved.mu, *moved.kappa], [mu + d, 0.5, kappa + e])

    def loss(d: float, e: float) -> float:
        priors = (mu + d - origin) ** 2 / visit_steps.LEVEL_SD**2 + (
            kappa + e
        ) ** 2 / visit_steps.LEARNING_SD[1] ** 2
        return float(ridge * ((o - d - e * z) ** 2).sum() + priors)

    # Slopes of a paraboloid at its least are 0; a step of .01 away they are not.
    for step in ((1.0, 0.0), (0.0, 1.0)):
        there, away = (
            loss(d + by + step[0], e + step[1]) - loss(d + by - step[0], e - step[1]) for by in (0, 0.01)
        )
        assert abs(there) < 1e-9 * abs(away)


def test_where_months_follow_no_series_their_prior_means_do_not_follow_later_observers():
    """Nothing would bring them back: a fit would end where its way led it, with a trend that no prior holds."""
    p = simulate_design("skilled", 1, sites=40, visits=1200)
    group = Group.of("g", p.site, p.month, p.count, p.observer, effort=p.log_effort[:, None])
    panel = GroupPanel.of(len(p.expected), p.year.size, [group])
    state = fit_counts(panel, CountSettings(rank=0, observers=True, learning=True)).state
    assert state.converged
    assert abs(state.kappa[-1]) > 0.001
    assert np.ptp(state.T[:, 0]) > 0.1
    assert np.ptp(state.prior[:, 0]) < 1e-9


@pytest.mark.parametrize("size", [0.0, 1.5])
def test_observers_of_few_visits_do_not_lift_the_level(size):
    """Forty regulars, and each year more people who come once to five times: what is not known of them has a mean too.

    At the observers' modes totals were 11 % (Poisson) and 14 % (size 1.5) too high. Replicates, whose observers are draws,
    lie around the fit.
    """
    J, L, sd, errors = 60, 72, 0.8, []
    for seed in range(10):
        rng = np.random.default_rng(seed)
        visits_of = [rng.integers(1, 6, int(15 * 1.8**year)) for year in range(6)]
        often = np.concatenate(visits_of)
        who = np.r_[rng.integers(0, 40, 600), 40 + np.repeat(np.arange(often.size), often)]
        when = np.repeat(np.arange(6), [v.sum() for v in visits_of])
        t = np.r_[rng.integers(0, L, 600), 12 * when + rng.integers(0, 12, when.size)]
        s, a = rng.integers(0, J, t.size), 0.7 * rng.standard_normal(J)
        mean = np.exp(-1.0 + a[s] + sd * rng.standard_normal(40 + often.size)[who])
        y = rng.poisson(mean * (rng.gamma(size, 1 / size, t.size) if size else 1.0)).astype(float)
        panel = GroupPanel.of(J, L, [Group.of("g", s, t, y, who)], calendar(L))
        settings = CountSettings(
            rank=0, slopes=False, observers=True, dispersion="negbin" if size else "none"
        )
        federation = LocalFederation.of_panel(panel, secrets={"g": b"g"})
        fit = federation.fit(settings)
        assert fit.fit.converged
        errors.append(np.log(fit.expected().sum() / (L * np.exp(-1.0 + a + sd**2 / 2).sum())))
    assert abs(np.mean(errors)) < 3 * np.std(errors, ddof=1) / np.sqrt(len(errors))
    drawn = np.log(federation.replicates(range(20), seed=1).totals[:, 0].sum(axis=1) / fit.expected().sum())
    assert abs(drawn.mean()) < drawn.std()


@pytest.mark.parametrize("flock", [10.0, 1e5])
def test_a_flock_does_not_take_the_variance_of_observers_without_end(flock):
    """The half-normal prior: var sum(1 - C / var) + var^2 = sum of h^2, where it is not at its least value."""
    rng = np.random.default_rng(3)
    s, t = np.nonzero(rng.random((20, 72)) < 0.3)
    y, who = np.zeros(s.size), rng.integers(0, 7, s.size)
    y[3] = flock
    panel = GroupPanel.of(
        20, 72, [Group.of("a", s, t, y, who)], (np.arange(72) % 12 + 1, 2000 + np.arange(72) // 12)
    )
    settings = CountSettings(rank=0, dispersion="quasi", observers=True, max_sweeps=150)
    assert 1 / fit_counts(panel, settings).state.ridge < 8.0**2


def test_the_variance_of_observers_is_where_its_posterior_is_stationary():
    rng = np.random.default_rng(5)
    J, L, n, observers = 40, 24, 2000, 8
    s, t, who = rng.integers(0, J, n), rng.integers(0, L, n), rng.integers(0, observers, n)
    y = rng.poisson(np.exp(1.0 + rng.normal(0, 1.2, observers)[who])).astype(float)
    panel = GroupPanel.of(J, L, [Group.of("a", s, t, y, who)], calendar(L))
    fit = fit_counts(panel, CountSettings(rank=0, dispersion="none", observers=True))
    variance, (effects,), (spread,) = 1 / fit.state.ridge, fit.aux.observer, fit.aux.observer_var
    known = (1 - spread / variance).sum()
    assert known * variance + variance**2 == pytest.approx((effects**2).sum(), rel=0.01)
