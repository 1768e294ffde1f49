"""The fast solver over the wire."""

from __future__ import annotations

import numpy as np
import pytest

from fedmiss.compressors import Dithering, Identity
from fedmiss.core import Bernoulli, Full
from fedmiss.engines import LocalEngine, PlainEngine
from fedmiss.models.lowrank.federated import _extrapolate, fit_federated
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


def test_momentum_goes_on_along_the_way_and_stops_when_it_turns():
    def at(x):
        return Theta(x, np.full(3, x), np.full(2, x), np.full((3, 1), x), np.full((2, 1), x))

    start, old, pace = _extrapolate(at(0.0), at(1.0), at(0.0), 1.0)  # the first round: nothing to go on along
    assert start.mu == old.mu == 1.0
    assert pace == pytest.approx((1 + 5**0.5) / 2)
    start, old, after = _extrapolate(start, at(2.0), old, pace)
    assert old.mu == 2.0
    assert start.mu == pytest.approx(2.0 + (pace - 1) / after)  # Nesterov's factor
    np.testing.assert_allclose(start.V, start.mu)
    turned, _, again = _extrapolate(at(2.5), at(2.2), at(2.0), after)  # went too far: the round came back
    assert turned.mu == 2.2
    assert again == pytest.approx((1 + 5**0.5) / 2)
