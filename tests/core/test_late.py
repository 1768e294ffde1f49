"""Late answers: an explicit recursion, the same root, V = mean V_c, the same bits on every engine and after a resume."""

import numpy as np
import pytest

from fedmiss.compressors import Dithering, Identity
from fedmiss.core import Bernoulli, FedEM, FullBatch, Late, Minibatch, Roster, SemVr, Spider, run, scafflsa
from fedmiss.core.testing import check_oracle
from fedmiss.engines import LocalEngine
from fedmiss.errors import ConfigError
from fedmiss.models.saem.chains import Chains
from fedmiss.models.saem.months import PoissonMonths, first_statistics, simulate_months
from tests.core.one_by_one import PlainEngine, same_everywhere
from tests.core.toys import Linear, linear_data

N5 = Roster.of([8] * 5)


def test_all_present_it_is_the_recursion_with_the_field_of_the_round_before():
    """S_{k+1} = S_k + gamma h(S_{k-1}), h(S_{-1}) = h(S_0)."""
    data, model, gamma = linear_data(), Linear(), 0.3
    result = run(
        FedEM(model, Identity(), N5, gamma, oracle=Late(FullBatch())), LocalEngine(data), np.ones(3), stop=40
    )

    def h(s):
        return data.mean(axis=(0, 1)) + model.A @ s - s

    now, before = np.ones(3), np.ones(3)
    for _ in range(40):
        now, before = now + gamma * h(before), now
    np.testing.assert_allclose(result.server.S_hat, now, rtol=1e-12)
    assert np.abs(now - model.root(data)).max() < 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("compressor", [Identity(), Dithering()], ids=["float64", "dithered"])
def test_with_absences_and_compression_it_reaches_the_root_of_the_synchronous_run(compressor):
    data, model = linear_data(), Linear()
    algo = FedEM(model, compressor, N5, 0.05, participation=Bernoulli(0.5), oracle=Late(FullBatch()), seed=1)
    engine = PlainEngine(data)
    result = run(algo, engine, np.zeros(3), stop=1000)
    assert np.abs(result.server.S_hat - model.root(data)).max() < 1e-9
    np.testing.assert_allclose(result.server.V, engine.V.mean(axis=0), atol=1e-12)


def test_one_round_late_halves_the_range_of_steps():
    """h(s) = 1 - s: stable below gamma = 1 when late, below 2 when not."""

    class Unit(Linear):
        def __init__(self):
            self.q, self.A = 3, np.zeros((3, 3))

    data = np.ones((5, 8, 3))
    far = {}
    for late, gamma in ((False, 0.98), (True, 0.9), (True, 1.0)):
        oracle = Late(FullBatch()) if late else FullBatch()
        S = run(FedEM(Unit(), Identity(), N5, gamma, oracle=oracle), LocalEngine(data), np.zeros(3), stop=300)
        far[late, gamma] = np.abs(S.server.S_hat - 1).max()
    assert far[False, 0.98] < 1e-12
    assert far[True, 0.9] < 1e-5
    assert far[True, 1.0] > 0.1  # a cycle of six rounds, not a limit


@pytest.mark.parametrize("chains", [False, True])
def test_the_same_bits_on_every_engine_and_after_a_resume(chains, tmp_path):
    if chains:
        data, model = simulate_months(5, 8, 4, seed=1), PoissonMonths(4)
        S, inner = first_statistics(model, data).mean(axis=0), Chains(2, 2)
    else:
        data, model = linear_data(), Linear()
        S, inner = np.ones(3), Minibatch(3)
    algo = FedEM(model, Dithering(16), N5, 0.05, participation=Bernoulli(0.6), oracle=Late(inner), seed=2)
    whole = same_everywhere(algo, data, S, tmp_path)
    fresh = run(FedEM(model, Dithering(16), N5, 0.05, participation=Bernoulli(0.6), oracle=inner, seed=2),
                LocalEngine(data), S, stop=20)  # fmt: skip
    assert not np.array_equal(whole.server.S_hat, fresh.server.S_hat)


def test_the_oracle_obeys_the_checker_and_refuses_control_variates():
    check_oracle(Late(FullBatch()), Linear(), linear_data(), np.ones(3))
    check_oracle(Late(Minibatch(3)), Linear(), linear_data(), np.ones(3), unbiased=400)
    corrected = scafflsa(H=3, eta=0.1, model=Linear(), compressor=Identity(), roster=N5).oracle
    with pytest.raises(ConfigError, match="need this round's V"):
        Late(corrected)


def test_variance_reduction_needs_a_reference_of_each_worker():
    """SPIDER's differences start at one point a round; late workers answer at several, and would start at another's."""
    check_oracle(Late(SemVr(2, 4)), Linear(), linear_data(), np.ones(3), rounds=12)
    with pytest.raises(ConfigError, match="use SemVr"):
        Late(Spider(3, 4))
