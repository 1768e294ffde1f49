"""Algorithm 7 over the transport that carries the default job: the bits of the engine in this process."""

from __future__ import annotations

import numpy as np
import pytest

from fedmiss.compressors import Dithering
from fedmiss.core import Bernoulli, FedEM, Roster, Stop, run
from fedmiss.engines import CoreWorker, LocalEngine, TransportEngine
from fedmiss.errors import ConfigError
from fedmiss.federation.link import InProcess
from fedmiss.models.lowrank.paper import FedMissEM
from tests.models.panels import simulate


def job(init_seed=0):
    panel, _ = simulate(J=20, L=12, n=250, family="gaussian", groups=3)
    model = FedMissEM(panel, family="gaussian", rank=2, penalty=0.3, seed=init_seed)
    data = model.rows(panel)
    roster = Roster.of({name: len(rows) for name, rows in data.items()})
    algo = FedEM(model, Dithering(4), roster, gamma=0.2, participation=Bernoulli(0.7), seed=3)
    return algo, data


@pytest.mark.parametrize("init", ["zero", "h"])
def test_algorithm_7_over_a_transport_has_the_bits_of_the_local_engine(init):
    algo, data = job()
    start = np.zeros(algo.model.q)
    local = run(algo, LocalEngine(data), start, stop=Stop(rounds=25), init=init)
    workers = {name: CoreWorker(algo, name, rows) for name, rows in data.items()}
    apart = run(algo, TransportEngine(InProcess(workers)), start, stop=Stop(rounds=25), init=init)
    np.testing.assert_array_equal(apart.server.S_hat, local.server.S_hat)
    np.testing.assert_array_equal(apart.server.V, local.server.V)
    np.testing.assert_array_equal(apart.theta.U, local.theta.U)
    np.testing.assert_array_equal(apart.trace["bytes_up"], local.trace["bytes_up"])


def test_a_worker_that_stays_away_counts_as_missing_and_is_named():
    algo, data = job()
    workers = {name: CoreWorker(algo, name, rows) for name, rows in data.items()}

    class Absent(InProcess):
        def ask(self, frames):
            return super().ask({n: f for n, f in frames.items() if n != "g01"})

    result = run(
        algo, TransportEngine(Absent(workers)), np.zeros(algo.model.q), stop=Stop(rounds=10), init="zero"
    )
    assert {d.worker for d in result.dropped} == {"g01"}
    assert np.isfinite(result.server.S_hat).all()
    few = InProcess({n: w for n, w in workers.items() if n != "g02"})
    with pytest.raises(ConfigError, match="'g02' of the roster is not at the transport"):
        TransportEngine(few).start(algo, np.zeros(algo.model.q), "zero")
