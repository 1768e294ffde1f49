"""A linear model whose every quantity can be written down, a small mixture, and the models of docs/examples."""

import runpy
from functools import cache
from pathlib import Path

import numpy as np

from fedmiss.core import Roster, pooled_s_bar
from fedmiss.models.gmm import GMM, GMMParams


class Linear:
    """s_bar(theta) = mean of rows + A theta, T = identity: h(s) = ybar + A s - s."""

    def __init__(self, q=3, A=None):
        self.q = q
        self.A = 0.3 * np.eye(q) + 0.1 * np.eye(q, k=1) if A is None else A

    def s_bar(self, theta, rows):
        return rows.mean(axis=0) + self.A @ theta

    def T(self, S):
        return S.copy()

    def root(self, data, weights=None):
        w = np.full(len(data), 1 / len(data)) if weights is None else weights
        mean = sum(wc * rows.mean(axis=0) for wc, rows in zip(w, data, strict=True))
        return np.linalg.solve(np.eye(self.q) - self.A, mean)


def linear_data(n=5, m=8, q=3, seed=0):
    """Workers that differ: their means are far apart."""
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, m, q)) + 3.0 * rng.normal(size=(n, 1, q))


def mixture(n=5, m=40, seed=0):
    """(model, data, roster, S_0) of a two-component mixture in the plane."""
    rng = np.random.default_rng(seed)
    means = np.array([[-1.5, 0.0], [1.5, 0.5]])
    Y = means[(rng.random(n * m) < 0.6).astype(int)] + rng.normal(size=(n * m, 2))
    data = Y.reshape(n, m, 2)
    model = GMM(2, 2, "known", Sigma=np.eye(2))
    roster = Roster.of([m] * n)
    theta = GMMParams(np.array([0.5, 0.5]), np.array([[-0.5, 0.1], [0.5, 0.0]]), np.eye(2))
    return model, data, roster, pooled_s_bar(model, theta, data, roster)


@cache
def _simulation(name):
    return runpy.run_path(str(Path(__file__).parents[2] / "docs" / "examples" / f"{name}.py"))["simulate"]


def example(name, **settings):
    """(model, data, theta) of a model of docs/examples."""
    return _simulation(name)(**settings)
