"""Counts from G kinds of visit, of which nobody wrote down the kind: a mixture of Poisson distributions.

Rows: (m,) counts. theta = (pi (G,), rate (G,)).
"""

import numpy as np
from scipy.special import gammaln, logsumexp


class PoissonMixture:
    def __init__(self, G):
        self.G, self.q = G, 2 * G

    def _log_joint(self, theta, y):
        pi, rate = theta
        return np.log(pi) - rate + y[:, None] * np.log(rate) - gammaln(y + 1)[:, None]

    def s_bar(self, theta, y):
        log_p = self._log_joint(theta, y)
        r = np.exp(log_p - logsumexp(log_p, axis=1, keepdims=True))
        return np.r_[r.mean(axis=0), (r * y[:, None]).mean(axis=0)]

    def T(self, S):
        mass, total = S[: self.G], S[self.G :]
        return mass / mass.sum(), total / mass

    def log_likelihood(self, theta, y):
        return logsumexp(self._log_joint(theta, y), axis=1).mean()

    def surrogate(self, theta, S):
        pi, rate = theta
        return S[: self.G] @ (rate - np.log(pi)) - S[self.G :] @ np.log(rate)

    def predict(self, theta, m, rng):
        """(m,) new counts."""
        return rng.poisson(theta[1][rng.choice(self.G, m, p=theta[0])]).astype(float)


def simulate(n=3, m=200, seed=0):
    """Rows of n organisations with shares of their own of the two kinds, and a parameter to start from."""
    rng = np.random.default_rng(seed)
    rows = [
        rng.poisson(np.where(rng.random(m) < share, 2.0, 9.0)) * 1.0 for share in np.linspace(0.3, 0.7, n)
    ]
    return PoissonMixture(2), rows, (np.array([0.4, 0.6]), np.array([1.0, 5.0]))
