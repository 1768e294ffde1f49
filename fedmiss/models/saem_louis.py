"""Standard errors of a chain-based fit, from sums over workers: Louis' identity."""

from __future__ import annotations

import numpy as np

from fedmiss.arrays import F64
from fedmiss.core.protocols import Shards, Theta
from fedmiss.errors import ConfigError
from fedmiss.models.saem_chains import Langevin
from fedmiss.models.saem_parts import Kernel, Latent
from fedmiss.rng import rng_for

__all__ = ["louis"]


def louis(
    model: Latent,
    theta: Theta,
    data: Shards,
    *,
    rounds: int = 100,
    K: int = 5,
    M: int = 4,
    burn: int = 20,
    kernel: Kernel | None = None,
    seed: int = 0,
) -> F64:
    """(k, k) covariance of the maximum-likelihood estimate, in the order of ``model.vector(theta)``.

    Observed information = mean of the complete information - covariance of the complete score, both under the posterior of
    the latents at theta. Both are sums over workers; a worker sends its mean statistic and the (q, q) covariance of its
    total, no latent. Sites (``model.unit_totals``) are independent given theta, which lowers the noise of the covariance.

    Source: Louis (1982). Differs from saemix and Monolix in: chains run on at the last theta instead of along the last
    rounds, so that nothing of the way is in the covariance.
    """
    # many parameters: the documented interface, given by name
    step = kernel or Langevin()
    rows_total, S_total, spread = 0, np.zeros(model.q), np.zeros((model.q, model.q))
    for c, rows in enumerate(data):
        rng = rng_for(seed, "louis", c)
        state = model.latent_start(rows, M)
        count, summed, square = 0, np.zeros((1, model.q)), np.zeros((model.q, model.q))
        for k in range(burn + rounds):
            for _ in range(K):
                state, _ = model.move(theta, rows, state, step, rng)
            if k < burn:
                continue
            totals = model.unit_totals(rows, state)  # (M, units, q)
            count += M
            summed = summed + totals.sum(axis=0)
            flat = totals.reshape(-1, model.q)
            square += flat.T @ flat
        mean = summed / count  # (units, q)
        spread += (square - count * mean.T @ mean) / (count - 1)
        S_total += mean.sum(axis=0)
        rows_total += len(rows)
    S = S_total / rows_total
    v = model.vector(theta)
    J = _slopes(model, v, S)
    information = -rows_total * _curvature(model, v, S) - J.T @ spread @ J
    values = np.linalg.eigvalsh(information)
    if not values[0] > 0:
        raise ConfigError(
            f"the observed information has eigenvalue {values[0]:.3g} (must be > 0): the fit has not converged, a parameter "
            "is not determined by these data, or rounds is too small; run longer."
        )
    return np.asarray(np.linalg.inv(information), dtype=np.float64)


def _slopes(model: Latent, v: F64, S: F64) -> F64:
    """(q, k) derivative of the complete score by the statistic: the log-likelihood is linear in it."""
    k, q = len(v), len(S)
    zero = np.zeros(q)
    out = np.empty((q, k))
    eye = np.eye(q)
    for i in range(k):
        h = 1e-5 * max(abs(v[i]), 1e-2)
        e = h * np.eye(k)[i]
        base = (model.complete(v + e, zero) - model.complete(v - e, zero)) / (2 * h)
        for j in range(q):
            slope = (model.complete(v + e, eye[j]) - model.complete(v - e, eye[j])) / (2 * h)
            out[j, i] = slope - base
    return out


def _curvature(model: Latent, v: F64, S: F64) -> F64:
    """(k, k) second derivative of the complete log-likelihood by theta."""
    k = len(v)
    h = 1e-4 * np.maximum(np.abs(v), 1e-1)
    E = np.diag(h)
    out = np.empty((k, k))
    f = model.complete
    for i in range(k):
        for j in range(i, k):
            value = (
                f(v + E[i] + E[j], S) - f(v + E[i] - E[j], S) - f(v - E[i] + E[j], S) + f(v - E[i] - E[j], S)
            )
            out[i, j] = out[j, i] = value / (4 * h[i] * h[j])
    return out
