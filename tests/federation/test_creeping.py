"""Fits that creep are led on: months take what sites have in common in a factor, variances longer steps. Ends stay."""

import numpy as np
import pytest

from fedmiss.federation.calls import fit_counts
from fedmiss.federation.group import kernels
from fedmiss.federation.hub import fit as hub_fit
from fedmiss.federation.hub import steps
from fedmiss.federation.hub.values import evolve
from fedmiss.models.lowrank.data import Group, GroupPanel
from fedmiss.models.lowrank.families import POISSON
from fedmiss.models.lowrank.settings import CountSettings


def one_factor(seed: int, J: int = 30, L: int = 24) -> GroupPanel:
    """Counts of sites whose seasons differ in strength, two thirds of the cells visited."""
    rng = np.random.default_rng([seed, 77])
    wave = np.cos(2 * np.pi * np.arange(L) / 12)
    eta = 1.5 + 0.7 * rng.normal(size=J)[:, None] + 0.8 * rng.normal(size=J)[:, None] * wave
    y = rng.poisson(np.exp(eta)).astype(float)
    s, t = np.nonzero(rng.random((J, L)) < 0.67)
    calendar = np.arange(L) % 12 + 1, 2000 + np.arange(L) // 12
    return GroupPanel.of(J, L, [Group.of("g", s, t, y[s, t])], calendar)


@pytest.mark.slow
@pytest.mark.parametrize("dispersion", ["negbin", "quasi"])
def test_a_fit_that_is_led_on_ends_where_the_turns_end(monkeypatch, dispersion):
    """To moves of 1e-7 the cells of both are the same, to what is left of the way at a rate of .99 a round."""
    monkeypatch.setattr(hub_fit, "TOL", 1e-9)  # of 3,000 rounds a hundredfold
    settings = CountSettings(rank=1, dispersion=dispersion, max_sweeps=3000)
    panel = one_factor(3)
    led = fit_counts(panel, settings)
    monkeypatch.setattr(steps, "_share_factors", lambda *given: None)
    monkeypatch.setattr(steps, "LONGEST", 1.0)
    alone = fit_counts(panel, settings)
    assert led.state.converged
    assert alone.state.converged
    assert led.state.rank == alone.state.rank == 1
    apart = np.log(led.expected() / alone.expected())
    assert np.sqrt((apart**2).mean()) < 100 * 1e-7


def test_what_sites_share_in_a_factor_is_moved_without_a_move_of_any_cell():
    """(b + d v) + (u - d) v = b + u v, and the d that is taken is the least of the priors' parabola."""
    rng = np.random.default_rng(5)
    J, L = 30, 12
    panel = one_factor(1, J, L)
    state = fit_counts(panel, CountSettings(rank=1, dispersion="negbin")).state
    state = evolve(state, noise=np.full(state.p, 0.3))
    T, D, mean, shift = state.T.copy(), state.D, rng.normal(size=state.p), np.zeros(state.p)
    u = rng.normal(size=J)
    u += mean[-1] - u.mean()
    steps._share_factors(state, shift, T, D, mean, state.tau, np.float64(J))
    d, v = shift[-1], state.T[:, -1]
    assert abs(d) > 0.01
    np.testing.assert_allclose(
        T[:, 0] + (u - d)[:, None] * v, state.T[:, 0] + u[:, None] * v, rtol=0, atol=1e-12
    )

    def loss(d: float) -> float:
        moved = state.T[:, 0] + d * v - state.prior[:, 0]
        about = moved**2 + D[:, 0, 0] + 2 * d * D[:, 0, -1] + d**2 * D[:, -1, -1]
        return float(((u - d) ** 2).sum() / (2 * state.tau[-1]) + (about / (2 * state.widths[:, 0])).sum())

    # The slope of a parabola at its least is 0; at a step of .01 away it is not.
    slope = [loss(at + 1.0) - loss(at - 1.0) for at in (d, d + 0.01)]
    assert abs(slope[0]) < 1e-9 * abs(slope[1])


@pytest.mark.parametrize("birds", [40.0, 400.0])
@pytest.mark.parametrize("size", [0.25, 1.0, 4.0])
@pytest.mark.parametrize("tau", [0.5, 6.0])
def test_a_site_with_flocks_comes_to_rest_where_its_score_is_zero(birds, size, tau):
    """Two flocks among zeros: full steps with the expected curvature swing round the end for good."""
    x = np.linspace(-1.7, 1.7, 25)
    y = np.where(np.arange(25) % 24 == 0, [birds, *[10.0] * 24], 0.0)
    T, D = np.column_stack([1.9 - 1.3 * x**2, x])[None], np.zeros((1, 25, 2, 2))
    P, C, tau_ = np.zeros((1, 1, 2)), np.zeros((1, 1, 2, 2)), np.full((1, 2), tau)
    X = np.column_stack([np.ones(25), x])
    for _ in range(80):
        h = T[0, :, 0] + X @ P[0, 0] + 0.5 * np.einsum("na,ab,nb->n", X, C[0, 0], X)
        w = 1.0 / (1.0 + np.exp(h) / size)
        score = X.T @ (w * (y - np.exp(h))) - P[0, 0] / tau
        kernels._round(
            0, 1, np.zeros(1, np.int64), 2, 1, np.array([0, 25]), np.arange(25, dtype=np.int32), (w * y)[None], w[None],
            np.zeros((1, 1)), False, np.zeros(1), T, D, tau_, np.array([-1]), np.ones(1), np.array([1.0 / size]), 1.0,
            np.zeros((1, 1, 2)), P, C, np.zeros((1, 25)), POISSON.code, np.zeros((1, 25, 5)), np.zeros((1, 10)),
        )  # fmt: skip
    np.testing.assert_allclose(score, 0.0, atol=1e-4)
