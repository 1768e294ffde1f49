"""Fits that take their step as one array: each is what it is alone, to the bit."""

from dataclasses import fields, replace

import numpy as np
import pytest

from fedmiss import CountSettings, Group, GroupPanel
from fedmiss.federation.hub import lockstep
from fedmiss.federation.hub.state import apart, stacked
from fedmiss.federation.local import LocalFederation

NEGBIN = CountSettings(rank=1, dispersion="negbin")


def panel_of(J=40, L=48):
    rng = np.random.default_rng(3)
    n = 900
    site, month, who = rng.integers(0, J, n), rng.integers(0, L, n), rng.integers(0, 9, n)
    eta = 1.0 + rng.normal(0, 0.8, J)[site] + np.sin(2 * np.pi * month / 12) * rng.normal(1, 0.4, J)[site]
    y = rng.poisson(np.exp(eta) * rng.gamma(2, 0.5, n)).astype(float)
    effort = rng.normal(0, 0.4, (n, 1))
    month_of_year, year = np.arange(L) % 12 + 1, 2000 + np.arange(L) // 12
    return GroupPanel.of(J, L, [Group.of("all", site, month, y, who, effort)], (month_of_year, year))


def numbers(state):
    """All that a step changes of a fit, as a list of arrays."""
    parts = [state, state.features, *(state.series or ())]
    values = [getattr(part, f.name) for part in parts for f in fields(part)]
    flat = [x for v in values for x in (v if isinstance(v, tuple) else (v,))]
    return [np.asarray(x) for x in flat if isinstance(x, float | np.ndarray)]


@pytest.mark.parametrize(
    "settings",
    [
        replace(NEGBIN, features=("visits",), observers=True),
        replace(NEGBIN, occupancy=True),
        replace(NEGBIN, family="gaussian", scale="log1p", dispersion="quasi", season=False),
    ],
    ids=["features and observers", "occupancy", "log1p without season"],
)
def test_a_fit_takes_the_same_step_alone_and_among_others(monkeypatch, settings):
    real, compared = lockstep.after_round, []

    def after(state, sums, panel, settings, nodes, turn):
        new, n = real(state, sums, panel, settings, nodes, turn), len(state.mu)
        for i, (before, end) in enumerate(zip(apart(state, [state] * n), apart(new, [new] * n), strict=True)):
            mine = {name: value[i : i + 1] for name, value in sums.items()}
            one = real(stacked([before]), mine, panel, settings, nodes[i : i + 1], turn)
            for a, b in zip(numbers(apart(one, [before])[0]), numbers(end), strict=True):
                np.testing.assert_array_equal(a, b)
            compared.append(n)
        return new

    monkeypatch.setattr(lockstep, "after_round", after)
    federation = LocalFederation.of_panel(panel_of())
    federation.cross_validate([settings, replace(settings, rank=0)], folds=4, seed=1)
    assert max(compared) == 4
