"""Workers leave and join: the run ends at the root of those who are in the roster at the end."""

from __future__ import annotations

import numpy as np
import pytest

from fedmiss.compressors import Dithering
from fedmiss.core import Bernoulli, FedEM, Roster, run
from fedmiss.core.revision import revise
from fedmiss.engines import LocalEngine
from fedmiss.errors import ConfigError
from tests.core.toys import Linear, linear_data


def roster_of(names):
    return Roster.of(dict.fromkeys(names, 8))


@pytest.mark.parametrize("seed", range(3))
def test_one_leaves_at_200_and_one_joins_at_400(seed):
    rows = dict(zip([f"w{c:02d}" for c in range(13)], linear_data(n=13, seed=seed), strict=True))
    twelve = sorted(rows)[:12]
    model, stages = (
        Linear(),
        [(twelve, 200), (twelve[:3] + twelve[4:], 200), (twelve[:3] + twelve[4:] + ["w12"], 3000)],
    )
    algo = FedEM(model, Dithering(8), roster_of(twelve), 0.2, participation=Bernoulli(0.8), seed=seed)
    S_hat, V, engine = np.zeros(3), "h", None
    for names, rounds in stages:
        if engine is not None:
            algo, V = revise(algo, result.server, engine.V, roster_of(names), rows)  # noqa: F821
            S_hat = result.server.S_hat  # noqa: F821
        engine = LocalEngine({n: rows[n] for n in names})
        result = run(algo, engine, S_hat, stop=rounds, init=V)
        mean = np.average(engine.V, axis=0, weights=algo.roster.weights)
        np.testing.assert_allclose(
            result.server.V, mean, atol=1e-10
        )  # V == mean V_c, over the present roster
    root = model.root([rows[n] for n in sorted(stages[-1][0])])
    np.testing.assert_allclose(result.server.S_hat, root, atol=1e-10)
    others = model.root([rows[n] for n in twelve])
    assert np.abs(root - others).max() > 1e-3


def test_rows_of_who_is_new_are_asked_for():
    data = linear_data(n=2)
    algo = FedEM(Linear(), Dithering(8), roster_of("ab"), 0.2)
    engine = LocalEngine(dict(zip("ab", data, strict=True)))
    result = run(algo, engine, np.zeros(3), stop=5)
    with pytest.raises(ConfigError, match="worker 'c' is new"):
        revise(algo, result.server, engine.V, roster_of("ac"), {})
    with pytest.raises(ConfigError, match="one memory for each worker"):
        revise(algo, result.server, engine.V[:1], roster_of("ab"), {})
