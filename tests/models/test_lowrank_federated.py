"""The fast solver over the wire."""

from __future__ import annotations

import numpy as np
import pytest

from fedmiss.compressors import Dithering, Identity
from fedmiss.core import Bernoulli, Full
from fedmiss.engines import LocalEngine, PlainEngine
from fedmiss.models.lowrank.federated import Momentum, fit_federated
from fedmiss.models.lowrank.solver import Penalty, Theta, fit_cells

from .panels import cells_of, simulate

PENALTY = Penalty(5.0, 1.0, 1.0)


def setting(family, groups=6):
    panel, _ = simulate(J=50, L=24, n=900, family=family, groups=groups, observers=30, level=0.5)
    cells = cells_of(panel, family)
    best = fit_cells(cells, 50, 24, family=family, rank=2, penalty=PENALTY, tol=1e-14, max_sweeps=5000)
    return cells, best.objective[-1]


def go(cells, family, compressor, participation, rounds=250, engine=LocalEngine, **kw):
    return fit_federated(
        cells, 50, 24, engine=engine, compressor=compressor, participation=participation, family=family, rank=2,
        penalty=PENALTY, rounds=rounds, **kw,
    )  # fmt: skip


@pytest.mark.parametrize("family", ["gaussian", "poisson", "bernoulli"])
def test_exact_messages_reach_the_pooled_optimum(family):
    cells, best = setting(family)
    fit = go(cells, family, Identity(), Full())
    assert fit.objective[-1] == pytest.approx(best, rel=1e-6)


@pytest.mark.parametrize("family", ["gaussian", "poisson"])
def test_dithering_and_absences_reach_it_too_with_fewer_bytes(family):
    cells, best = setting(family)
    exact = go(cells, family, Identity(), Full(), target=best + 1e-4 * abs(best))
    rough = go(cells, family, Dithering(levels=32, block=9), Bernoulli(0.5), target=best + 1e-4 * abs(best))
    assert rough.objective[-1] <= best + 1e-4 * abs(best)
    assert rough.bytes_up[-1] < exact.bytes_up[-1]


def test_engines_give_the_same_bits():
    cells, _ = setting("gaussian")
    comp, part = Dithering(levels=32, block=9), Bernoulli(0.5)
    a = go(cells, "gaussian", comp, part, rounds=8)
    b = go(cells, "gaussian", comp, part, rounds=8, engine=lambda rows: PlainEngine(rows, backwards=True))
    np.testing.assert_array_equal(a.theta.U, b.theta.U)
    assert a.bytes_up[-1] == b.bytes_up[-1]


def test_momentum_goes_on_along_the_way_and_stops_when_it_turns_or_rises():
    def at(x):
        return Theta(x, np.full(3, x), np.full(2, x), np.full((3, 1), x), np.full((2, 1), x))

    golden = (1 + 5**0.5) / 2
    momentum = Momentum(at(0.0))
    assert momentum.start(at(0.0), 10.0, at(1.0)).mu == 1.0  # the first round: no pace yet
    assert momentum.old.mu == 1.0
    assert momentum.pace == pytest.approx(golden)
    start = momentum.start(at(1.0), 9.0, at(2.0))
    assert start.mu == pytest.approx(2.0 + (golden - 1) / momentum.pace)  # Nesterov's factor
    np.testing.assert_allclose(start.V, start.mu)
    pace = momentum.pace
    assert momentum.start(at(2.5), 8.0, at(2.2)).mu == 2.2  # went too far: the round came back
    assert momentum.pace == pytest.approx(golden) != pace
    momentum.start(at(2.2), 7.0, at(2.4))
    assert momentum.start(at(2.4), 7.5, at(2.6)).mu == 2.6  # the objective rose


@pytest.mark.parametrize("seed", range(4))
def test_noisy_messages_do_not_feed_the_momentum(seed):
    """Without the rule that starts the momentum again when the objective rises, half of the seeds end at 1e24."""
    panel, _ = simulate(J=60, L=24, n=400, seed=seed, groups=5)
    cells = cells_of(panel, "poisson")
    fit = fit_federated(
        cells, 60, 24, engine=LocalEngine, compressor=Dithering(32, block=9), participation=Full(),
        rank=2, penalty=Penalty(1.0, 1.0, 1.0), rounds=150, seed=seed,
    )  # fmt: skip
    best = fit_cells(cells, 60, 24, rank=2, penalty=Penalty(1.0, 1.0, 1.0)).objective[-1]
    assert fit.objective[75:].max() - best < 0.5 * (fit.objective[0] - best)
