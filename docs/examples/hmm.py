"""Yearly measurements with gaps, good and bad years following each other: a hidden Markov model.

Rows: (m, L) series with nan where nobody counted. theta = (first (G,), move (G, G), mu (G,), var (G,)).
"""

import numpy as np


class HMM:
    def __init__(self, G):
        self.G, self.q = G, G + G * G + 3 * G

    def _forward_backward(self, theta, y):
        first, move, mu, var = theta
        like = np.exp(-0.5 * (y[:, :, None] - mu) ** 2 / var) / np.sqrt(2 * np.pi * var)
        like = np.where(np.isnan(y)[:, :, None], 1.0, like)
        m, L, _ = like.shape
        ahead, back, scale = np.empty_like(like), np.ones_like(like), np.empty((m, L))
        for t in range(L):
            a = like[:, t] * (first if t == 0 else ahead[:, t - 1] @ move)
            scale[:, t] = a.sum(axis=1)
            ahead[:, t] = a / scale[:, t, None]
        for t in range(L - 2, -1, -1):
            back[:, t] = (like[:, t + 1] * back[:, t + 1]) @ move.T / scale[:, t + 1, None]
        later = like[:, 1:] * back[:, 1:] / scale[:, 1:, None]
        pairs = np.einsum("mti,ij,mtj->mij", ahead[:, :-1], move, later)
        return ahead * back, pairs, np.log(scale).sum(axis=1)

    def s_bar(self, theta, y):
        r, pairs, _ = self._forward_backward(theta, y)
        seen = ~np.isnan(y)[:, :, None] * r
        z = np.where(np.isnan(y), 0.0, y)[:, :, None]
        sums = [(seen * z**p).sum(axis=1).mean(axis=0) for p in range(3)]
        return np.concatenate([r[:, 0].mean(axis=0), pairs.mean(axis=0).ravel(), *sums])

    def _parts(self, S):
        G = self.G
        return S[:G], S[G : G + G * G].reshape(G, G), *S[G + G * G :].reshape(3, G)

    def T(self, S):
        first, pairs, mass, z, z2 = self._parts(S)
        mu = z / mass
        return first / first.sum(), pairs / pairs.sum(axis=1, keepdims=True), mu, z2 / mass - mu**2

    def log_likelihood(self, theta, y):
        return self._forward_backward(theta, y)[2].mean()

    def surrogate(self, theta, S):
        (p, move, mu, var), (first, pairs, mass, z, z2) = theta, self._parts(S)
        squares = (z2 - 2 * mu * z + mass * mu**2) / var + mass * np.log(var)
        return 0.5 * squares.sum() - first @ np.log(p) - (pairs * np.log(move)).sum()

    def impute(self, theta, y):
        """(m, L) with the gaps filled by their posterior mean."""
        return np.where(np.isnan(y), self._forward_backward(theta, y)[0] @ theta[2], y)


def simulate(n=3, m=40, seed=0):
    """Series of n organisations over 12 years; a fifth of the years was not counted."""
    rng, mu, move = np.random.default_rng(seed), np.array([-1.5, 1.5]), np.array([[0.8, 0.2], [0.3, 0.7]])
    rows = []
    for _ in range(n):
        state = np.zeros((m, 12), dtype=int)
        state[:, 0] = rng.random(m) < 0.5
        for t in range(1, 12):
            state[:, t] = rng.random(m) < move[state[:, t - 1], 1]
        y = mu[state] + rng.normal(size=state.shape)
        y[rng.random(y.shape) < 0.2] = np.nan
        rows.append(y)
    start = np.array([[0.7, 0.3], [0.4, 0.6]]), np.array([-1.0, 1.2]), np.array([2.0, 1.8])
    return HMM(2), rows, (np.array([0.4, 0.6]), *start)
