"""Fits of birds that come in flocks end: what turns back is shortened, and nothing goes round in a circle."""

from __future__ import annotations

import numpy as np
import pytest

from fedmiss.federation.hub import fit as hub_fit
from fedmiss.federation.hub.steps import LEAST_SHARE, _share
from fedmiss.federation.local import fit_counts
from fedmiss.models.lowrank.data import Group, GroupPanel
from fedmiss.models.lowrank.settings import CountSettings


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
@pytest.mark.parametrize("seed", range(3))
def test_flocks_without_a_pattern_are_scatter_and_not_months(seed, share, middle):
    panel, mean = scattered(seed, share, middle)
    fit = fit_counts(panel, CountSettings(rank=0, dispersion="negbin"))
    assert fit.state.converged
    assert 0.6 < fit.expected().mean() / mean < 2.0
    assert fit.aux.size < 2.0


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


def test_shares_of_steps_bring_a_map_that_swings_to_its_fixed_point():
    """x -> -c x with c > 1 leaves 0 for good under full steps, and with all c up to 10 it comes to 0 with shares."""
    c = np.array([0.5, 1.0, 2.0, 5.0, 10.0])
    x, last, part = np.ones(5), np.zeros(5), np.ones(5)
    for _ in range(200):
        step = -(1.0 + c) * x
        part = _share(part, step * last < 0.0, 1.2)
        last = part * step
        x = x + last
    assert np.abs(x).max() < 1e-3
    assert (part >= LEAST_SHARE).all()
