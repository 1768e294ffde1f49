"""Many measurements that a few hidden factors explain: factor analysis.

Rows: (m, d). theta = (mu (d,), W (d, r), var (d,)); y = mu + W z + noise, z ~ N(0, I).
"""

import numpy as np


class FactorAnalysis:
    def __init__(self, d, r):
        self.d, self.r, self.q = d, r, 2 * d + (1 + r) * r + d * r

    def _posterior(self, theta, y):
        mu, W, var = theta
        cover = np.linalg.inv(np.eye(self.r) + (W.T / var) @ W)
        return (y - mu) @ (W / var[:, None]) @ cover, cover

    def s_bar(self, theta, y):
        z, cover = self._posterior(theta, y)
        zz = z.T @ z / len(y) + cover
        return np.concatenate(
            [y.mean(axis=0), (y**2).mean(axis=0), z.mean(axis=0), zz.ravel(), (y.T @ z / len(y)).ravel()]
        )

    def _parts(self, S):
        d, r = self.d, self.r
        y, yy, z, zz, yz = np.split(S, np.cumsum([d, d, r, r * r]))
        A = np.block([[np.ones((1, 1)), z[None]], [z[:, None], zz.reshape(r, r)]])  # E[(1, z) (1, z)']
        return yy, A, np.column_stack([y, yz.reshape(d, r)])  # E[y (1, z)']

    def T(self, S):
        yy, A, B = self._parts(S)
        line = np.linalg.solve(A, B.T).T
        return line[:, 0], line[:, 1:], yy - (line * B).sum(axis=1)

    def log_likelihood(self, theta, y):
        mu, W, var = theta
        C = W @ W.T + np.diag(var)
        square = ((y - mu) * np.linalg.solve(C, (y - mu).T).T).sum(axis=1)
        return -0.5 * (square.mean() + np.linalg.slogdet(2 * np.pi * C)[1])

    def surrogate(self, theta, S):
        (mu, W, var), (yy, A, B) = theta, self._parts(S)
        line = np.column_stack([mu, W])
        squares = yy - 2 * (line * B).sum(axis=1) + np.einsum("di,ij,dj->d", line, A, line)
        return 0.5 * (squares / var + np.log(var)).sum()

    def predict(self, theta, y):
        """(m, d) what the factors say of each entry."""
        return theta[0] + self._posterior(theta, y)[0] @ theta[1].T


def simulate(n=3, m=150, seed=0):
    """Rows of n organisations: five measurements, two factors, a level of its own in each organisation."""
    rng = np.random.default_rng(seed)
    W = rng.normal(size=(5, 2)) * 1.5
    rows = [
        shift + rng.normal(size=(m, 2)) @ W.T + 0.7 * rng.normal(size=(m, 5))
        for shift in np.linspace(-0.5, 0.5, n)
    ]
    return (
        FactorAnalysis(5, 2),
        rows,
        (0.1 * np.arange(5), W + 0.5 * rng.normal(size=(5, 2)), np.linspace(0.7, 1.3, 5)),
    )
