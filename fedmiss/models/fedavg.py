"""Federated averaging of gradients as local steps on a mean field: its bias, and Richardson-Romberg extrapolation."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedmiss.arrays import F64
from fedmiss.errors import ConfigError


class RidgeLogistic:
    """mean log(1 + exp(-y x'theta)) + (penalty/2) ||theta||^2 as a mean field: s_bar_c(theta) = theta - grad_c(theta).

    Rows are (m, p + 1): x and y = +-1. T is the identity, so FedEM's local steps are local SGD.

    Source: Mangold, Durmus, Dieuleveut, Samsonov, Moulines (arXiv 2412.01389), section 5's kind of problem.
    """

    def __init__(self, p: int, penalty: float = 0.1) -> None:
        if p < 1 or not penalty >= 0.0:
            raise ConfigError(f"p={p}, penalty={penalty} (p >= 1 and penalty >= 0 are needed).")
        self.p = self.q = p
        self.penalty = penalty

    def _parts(self, theta: F64, rows: F64) -> tuple[F64, F64, F64]:
        x, y = rows[..., : self.p], rows[..., self.p]
        # r = 1 / (1 + exp(y x'theta)), the chance that the model gives to the wrong label; d r / d theta = -y r (1 - r) x.
        return x, y, 1.0 / (1.0 + np.exp(y * (x * theta).sum(axis=-1)))

    def gradient(self, theta: F64, rows: F64) -> F64:
        """(p,) gradient over ``rows``."""
        x, y, residual = self._parts(theta, rows)
        out: F64 = -((y * residual)[:, None] * x).mean(axis=0) + self.penalty * theta
        return out

    def hessian(self, theta: F64, rows: F64) -> F64:
        """(p, p) second derivative over ``rows``."""
        x, _, residual = self._parts(theta, rows)
        return (x.T * (residual * (1.0 - residual))) @ x / len(x) + self.penalty * np.eye(self.p)

    def third(self, theta: F64, rows: F64, M: F64) -> F64:
        """(p,) third derivative contracted with the symmetric ``M``."""
        x, y, residual = self._parts(theta, rows)
        # Derivative of the Hessian's weight r (1 - r) along x: y r (1 - r) (2 r - 1).
        weight = y * residual * (1.0 - residual) * (2.0 * residual - 1.0)
        out: F64 = (x.T @ (weight * np.einsum("mi,ij,mj->m", x, M, x))) / len(x)
        return out

    def s_bar(self, theta: F64, rows: F64) -> F64:
        """(p,) theta minus the gradient."""
        return theta - self.gradient(theta, rows)

    def T(self, S: F64, /) -> F64:
        """The statistic is the parameter."""
        return S.copy()

    def minimum(self, data: Sequence[F64] | F64) -> F64:
        """(p,) minimum of the mean of the workers' objectives, by Newton's method."""
        theta = np.zeros(self.p)
        for _ in range(100):
            gradient = np.mean([self.gradient(theta, rows) for rows in data], axis=0)
            H = np.mean([self.hessian(theta, rows) for rows in data], axis=0)
            step = np.linalg.solve(H, gradient)
            # At most a step of length one: from 0 the full Newton step may pass far beyond the minimum.
            theta = theta - step / max(1.0, float(np.linalg.norm(step)))
            if float(np.abs(step).max()) < 1e-15:
                break
        return theta


def bias_first_order(
    model: RidgeLogistic, data: Sequence[F64] | F64, eta: float, H: int, *, noise: F64 | None = None
) -> F64:
    """(p,) first-order bias of federated averaging at step eta with H local steps.

    eta (H - 1)/2 Hbar^{-1} mean_c (H_c - Hbar) grad_c(theta*)
    - eta/(2 n) Hbar^{-1} f'''[ (Hbar (x) I + I (x) Hbar)^{-1} C ],
    C (p, p) the mean covariance of a worker's gradient noise, None for exact gradients.

    Source: Mangold et al. (arXiv 2412.01389), theorem 4. The talk's slide has the inverse of each Hessian, ``H^c - H^c``,
    and a plus before the noise term: misprints.
    """
    theta = model.minimum(data)
    hessians = np.array([model.hessian(theta, rows) for rows in data])
    mean = hessians.mean(axis=0)
    drift = np.mean(
        [(H_c - mean) @ model.gradient(theta, rows) for H_c, rows in zip(hessians, data, strict=True)], axis=0
    )
    # First term of theorem 4, the drift of the local steps; zero for H = 1 or equal workers.
    out = 0.5 * eta * (H - 1) * np.linalg.solve(mean, drift)
    if noise is not None:
        values, Q = np.linalg.eigh(mean)
        # (Hbar (x) I + I (x) Hbar)^-1 C in the eigenvectors of Hbar: divide entry (i, j) by lambda_i + lambda_j.
        X = Q @ ((Q.T @ noise @ Q) / (values[:, None] + values[None, :])) @ Q.T
        third = np.mean([model.third(theta, rows, X) for rows in data], axis=0)
        out = out - eta / (2.0 * len(data)) * np.linalg.solve(mean, third)
    return out


def richardson_romberg(at_eta: F64, at_half: F64) -> F64:
    """2 theta_{eta/2} - theta_eta: removes both first-order parts of the bias.

    Costs two runs, and up to 5 times the variance of one: average each over its rounds first (``Result.S_mean``).
    Source: Mangold et al. (arXiv 2412.01389), section 4; the talk writes it with eta and 2 eta.
    """
    return 2.0 * at_half - at_eta
