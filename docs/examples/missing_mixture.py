"""Measurements with gaps from G kinds of bird: a mixture of Gaussians with missing entries.

Rows: (m, d) with nan where nothing was measured. theta = (pi (G,), mu (G, d), var (G, d)).
"""

import numpy as np
from scipy.special import logsumexp


class MissingMixture:
    def __init__(self, G, d):
        self.G, self.d, self.q = G, d, G * (1 + 2 * d)

    def _log_joint(self, theta, y):
        pi, mu, var = theta
        log_p = -0.5 * ((y[:, None] - mu) ** 2 / var + np.log(2 * np.pi * var))
        return np.log(pi) + np.where(np.isnan(y)[:, None], 0.0, log_p).sum(axis=2)

    def _posterior(self, theta, y):
        log_p = self._log_joint(theta, y)
        return np.exp(log_p - logsumexp(log_p, axis=1, keepdims=True)), np.isnan(y)[:, None]

    def s_bar(self, theta, y):
        _, mu, var = theta
        r, gap = self._posterior(theta, y)
        z = np.where(gap, mu, y[:, None])
        z2 = np.where(gap, mu**2 + var, (y**2)[:, None])
        parts = r.mean(axis=0), (r[:, :, None] * z).mean(axis=0), (r[:, :, None] * z2).mean(axis=0)
        return np.concatenate([part.ravel() for part in parts])

    def _parts(self, S):
        rest = S[self.G :].reshape(2, self.G, self.d)
        return S[: self.G], rest[0], rest[1]

    def T(self, S):
        mass, z, z2 = self._parts(S)
        mu = z / mass[:, None]
        return mass / mass.sum(), mu, z2 / mass[:, None] - mu**2

    def log_likelihood(self, theta, y):
        return logsumexp(self._log_joint(theta, y), axis=1).mean()

    def surrogate(self, theta, S):
        (pi, mu, var), (mass, z, z2) = theta, self._parts(S)
        squares = (z2 - 2 * mu * z + mass[:, None] * mu**2) / var + mass[:, None] * np.log(var)
        return 0.5 * squares.sum() - mass @ np.log(pi)

    def impute(self, theta, y):
        """(m, d) with the gaps filled by their posterior mean."""
        r, _ = self._posterior(theta, y)
        return np.where(np.isnan(y), r @ theta[1], y)


def simulate(n=3, m=200, seed=0):
    """Rows of n organisations that measure different birds; a quarter of the entries is missing."""
    rng = np.random.default_rng(seed)
    centre = np.array([[-2.0, 0.0, 1.0], [2.0, 1.0, -1.0]])
    rows = []
    for share in np.linspace(0.3, 0.7, n):
        y = centre[(rng.random(m) < share).astype(int)] + rng.normal(size=(m, 3))
        y[rng.random(y.shape) < 0.25] = np.nan
        rows.append(y)
    mu = np.array([[-1.0, 0.1, 0.2], [1.0, -0.1, 0.0]])
    return MissingMixture(2, 3), rows, (np.array([0.4, 0.6]), mu, np.linspace(1.5, 2.5, 6).reshape(2, 3))
