"""Laws that guard single lines: schedules, zero memories, bytes, norms, steps, and the masses of a mixture."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fedmiss.compressors import Dithering, Identity, Natural, RandK
from fedmiss.core import (
    Constants,
    Decreasing,
    FedEM,
    Piecewise,
    Roster,
    gamma_max,
    gamma_star,
    naive_fedem,
    run,
)
from fedmiss.core.messages import HEADER
from fedmiss.engines import LocalEngine
from fedmiss.errors import ConfigError, UplinkError
from fedmiss.models.gmm import GMM
from tests.core.one_by_one import PlainEngine
from tests.core.toys import Linear, linear_data, mixture

ROSTER = Roster.of([8] * 5)


@pytest.mark.parametrize(
    ("gamma", "words"),
    [
        (lambda k: 0.1 - 0.05 * k, r"gamma=0\.0 at round 2"),
        (lambda k: math.nan, r"gamma=nan at round 0"),
        (lambda k: math.inf if k == 3 else 0.1, r"gamma=inf at round 3"),
        (lambda k: 0.5 * (k + 1), r"gamma=1\.5 at round 2"),
        (lambda k: "fast", r"gamma='fast' at round 0"),
    ],
)
def test_a_schedule_is_checked_in_every_round(gamma, words):
    with pytest.raises(ConfigError, match=words):
        run(FedEM(Linear(), Identity(), ROSTER, gamma, 0.3), LocalEngine(linear_data()), np.zeros(3), stop=9)


def test_impossible_schedules_are_refused():
    for make in (
        lambda: Decreasing(-0.1), lambda: Decreasing(0.1, k0=0.0), lambda: Decreasing(0.1, power=-1.0),
        lambda: Piecewise((1,), (0.1,)), lambda: Piecewise((0, 5), (0.1,)), lambda: Piecewise((0, 5), (0.1, 0.0)),
        lambda: Piecewise((0, 5, 3), (0.1, 0.2, 0.3)), lambda: Piecewise((), ()),
    ):  # fmt: skip
        with pytest.raises(ConfigError):
            make()
    assert [Piecewise((0, 3), (0.2, 0.1))(k) for k in (0, 2, 3, 9)] == [0.2, 0.2, 0.1, 0.1]


@pytest.mark.parametrize("engine", [LocalEngine, PlainEngine])
def test_naive_fedem_has_zero_memories_whatever_the_start(engine):
    algo = naive_fedem(FedEM(Linear(), Dithering(), ROSTER, 0.1, 0.3))
    runs = [run(algo, engine(linear_data()), np.zeros(3), stop=20, init=init) for init in ("h", "zero")]
    assert np.array_equal(runs[0].server.S_hat, runs[1].server.S_hat)
    assert not runs[0].server.V.any()
    with pytest.raises(ConfigError, match="memories of 0"):
        run(algo, engine(linear_data()), np.zeros(3), stop=1, init=np.ones((5, 3)))


def test_bytes_down_are_statistic_parameter_and_header_of_each_that_answered():
    model, data, roster, S_0 = mixture(n=3, m=10)
    result = run(FedEM(model, Dithering(), roster, 0.1, 0.3), LocalEngine(data), S_0, stop=2)
    theta = 8 * (2 + 2 * 2 + 2 * 2)  # pi, mu, Sigma
    assert result.trace["bytes_down"].tolist() == [3 * (HEADER + 8 * model.q + theta)] * 2


def test_norms_are_rounded_up_so_that_no_entry_is_cut():
    """A norm rounded to the nearest float32 is too small half of the time: |x| / norm > 1 has no level."""
    rng = np.random.default_rng(0)
    for norm, ord_ in ((2.0, 2), (math.inf, np.inf), (1.0, 1)):
        coder = Dithering(1, norm)
        for _ in range(200):
            x = rng.normal(size=7)
            sent = float(np.frombuffer(coder.encode(x, rng.random(7))[1:5], dtype="<f4")[0])
            exact = np.linalg.norm(x, ord_)
            assert exact * (1 - 1e-15) <= sent <= exact * (1 + 2.0**-22)


def test_gamma_star_at_partial_participation_is_corollary_2_with_theorem_4s_factor():
    C = Constants(v_min=0.5, v_max=3.0, L_W=2.0, L=1.5, L_rows=2.5, sigma2=0.7, W_gap=2.0)
    for p in (0.2, 0.5, 1.0):
        factor = 1 + 5 * (3.0 + (1 - p) / p * 4.0)
        expected = math.sqrt(2.0 * 16 / (10**6 * 2.0 * factor * 0.7))
        assert expected < gamma_max(C, n=16, omega=3.0, p=p)
        assert gamma_star(C, n=16, omega=3.0, k_max=10**6, p=p) == pytest.approx(expected, rel=1e-12)


def test_the_common_covariance_takes_masses_as_they_are():
    """Compression and absences leave masses that do not sum to 1: Sigma needs s1, the weights need s1 / sum s1."""
    YY = 5.0 * np.eye(2)
    model = GMM(2, 2, "tied", YY=YY)
    s1, mu = np.array([0.5, 0.3]), np.array([[1.0, 0.5], [-1.0, 0.2]])
    theta = model.T(np.r_[s1, (s1[:, None] * mu).ravel()])
    np.testing.assert_allclose(theta.pi, s1 / 0.8, rtol=1e-13)
    np.testing.assert_allclose(theta.mu, mu, rtol=1e-13)
    expected = YY - sum(s * np.outer(m, m) for s, m in zip(s1, mu, strict=True))
    np.testing.assert_allclose(theta.Sigma, expected, rtol=1e-13)


@pytest.mark.parametrize(
    "compressor", [Natural(6), Natural(2), Dithering(5), Dithering(3, 2.0, 10), RandK(9)], ids=str
)
@pytest.mark.parametrize("q", [5, 30, 400])
def test_payloads_one_byte_short_or_long_are_refused(compressor, q):
    rng = np.random.default_rng(2)
    for scale in (1.0, 0.0, 1e-3):
        x = rng.normal(size=q) * scale
        code = compressor.encode(x, rng.random(q))
        assert np.isfinite(compressor.decode(code, q)).all()
        for bad in (code[:-1], *(code + bytes([b]) for b in (0, 1, 255))):
            with pytest.raises(UplinkError):
                compressor.decode(bad, q)
