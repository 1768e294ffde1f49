"""A message names the cause: the M-step, or parameters in the place of a statistic, and not a worker's data."""

from __future__ import annotations

import numpy as np
import pytest

import fedmiss
from fedmiss.compressors import Identity
from fedmiss.core import pooled_s_bar
from fedmiss.errors import ConfigError, DomainError
from fedmiss.models.gmm import GMMParams

ROWS = np.random.default_rng(0).normal(size=(3, 20, 1)) + np.where(np.arange(20) % 2, 3, -3)[:, None]
THETA = GMMParams(np.array([0.5, 0.5]), np.array([[-1.0], [1.0]]), np.eye(1))
ROSTER = fedmiss.core.Roster.of([20] * 3)


class Broken(fedmiss.models.GMM):
    """Its M-step gives nan after a number of calls."""

    left = 0

    def T(self, S):
        theta = super().T(S)
        self.left -= 1
        return theta if self.left >= 0 else GMMParams(theta.pi, theta.mu * np.nan, theta.Sigma)


def go(model, S, init="h"):
    algo = fedmiss.core.FedEM(model, Identity(), ROSTER, gamma=0.2)
    return fedmiss.core.run(algo, fedmiss.engines.LocalEngine(ROWS), S, stop=6, init=init)


@pytest.mark.parametrize("left", range(4))
@pytest.mark.parametrize("init", ["h", "zero"])
def test_an_m_step_of_nan_is_named_and_no_worker_is_blamed(left, init):
    model = Broken(G=2, d=1, covariance="known", Sigma=np.eye(1))
    model.left = 10
    S = pooled_s_bar(model, THETA, ROWS, ROSTER)
    model.left = left
    with pytest.raises(DomainError, match=r"the M-step T\(S\) gave nan") as told:
        go(model, S, init)
    assert "look at that worker's data" not in str(told.value)


def test_a_first_statistic_of_zeros_names_the_statistic():
    model = fedmiss.models.GMM(G=2, d=1, covariance="known", Sigma=np.eye(1))
    with pytest.raises((DomainError, ConfigError)) as told:
        go(model, np.zeros(model.q))
    assert "S_0" in str(told.value)
    assert "worker's data" not in str(told.value)


def test_parameters_in_the_place_of_the_first_statistic_are_refused_in_words():
    model = fedmiss.models.GMM(G=2, d=1, covariance="known", Sigma=np.eye(1))
    with pytest.raises(ConfigError, match=r"is a GMMParams .*not from parameters theta: take pooled_s_bar"):
        go(model, THETA)
