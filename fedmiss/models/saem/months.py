"""Models A and B of FL-SAEM: months with a Gaussian layer of sites, seen through Gaussian noise or Poisson counts.

The parameters sit in the Gaussian layer and the noise has none (hierarchical centring): this is what makes an
exponential family with a closed M-step out of counts.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy.special import gammaln

from fedmiss.arrays import F64
from fedmiss.core.protocols import Shards
from fedmiss.errors import ConfigError, DomainError
from fedmiss.models.saem.chains import Kernel, Latent, State, Target
from fedmiss.rng import rng_for


@dataclass(frozen=True, slots=True, eq=False)
class Months:
    """theta: beta (L,) mean log intensity of each month, tau2 (L,) variance between sites."""

    beta: F64
    tau2: F64


class _LatentMonths:
    """z_jl ~ N(beta_l, tau2_l); s = (mean_j z, mean_j z^2) per month, q = 2 L."""

    def __init__(self, L: int) -> None:
        if L < 1:
            raise ConfigError(f"L={L} months (at least 1 is needed).")
        self.L, self.q = L, 2 * L

    def T(self, S: F64, /) -> Months:
        """Beta = s1, tau2 = s2 - s1^2."""
        beta, tau2 = S[: self.L], S[self.L :] - S[: self.L] ** 2
        if not bool((tau2 > 0).all()):
            month = int(np.argmin(tau2))
            raise DomainError(
                f"the variance of month {month + 1} of {self.L} is {tau2[month]:.3g} (must be > 0).",
                month=month,
            )
        return Months(beta.copy(), tau2)

    def to_wire(self, theta: Months, D: F64) -> F64:
        """d1 / tau and (d2 - 2 beta d1) / (sqrt(2) tau2): coordinates in which moments are not nearly collinear."""
        d1, d2 = D[..., : self.L], D[..., self.L :]
        # d2 - 2 beta d1 is the change of E (z - beta)^2: what tau2 needs, free of the large common part of s2 and s1^2.
        second = (d2 - 2 * theta.beta * d1) / (np.sqrt(2) * theta.tau2)
        return np.concatenate([d1 / np.sqrt(theta.tau2), second], axis=-1)

    def from_wire(self, theta: Months, Q: F64) -> F64:
        """Return the increments of (s1, s2)."""
        d1 = Q[..., : self.L] * np.sqrt(theta.tau2)
        d2 = Q[..., self.L :] * np.sqrt(2) * theta.tau2 + 2 * theta.beta * d1
        return np.concatenate([d1, d2], axis=-1)

    def statistic(self, rows: F64, state: State) -> F64:
        """(q,) mean over chains and sites of (z, z^2)."""
        z = state["z"].reshape(-1, self.L)
        return np.concatenate([z.mean(axis=0), (z * z).mean(axis=0)])

    def move(
        self, theta: Months, rows: F64, state: State, kernel: Kernel, rng: np.random.Generator
    ) -> tuple[State, float]:
        """One step of the chains."""
        m = len(rows)
        P, target = self._posterior(rows, np.tile(theta.beta, m), np.tile(theta.tau2, m))
        z, share = kernel.move(rng, state["z"], P, target, np.arange(m, dtype=np.int64) * self.L)
        return {"z": z}, share

    def _posterior(self, rows: F64, beta: F64, tau2: F64) -> tuple[F64, Target]:
        """Preconditioner P (m L,) and target of the chains, for ``beta`` and ``tau2`` of each latent."""
        raise NotImplementedError

    def unit_totals(self, rows: F64, state: State) -> F64:
        """(M, m, q) statistics of the sites, which are independent given theta: their mean is :meth:`statistic`."""
        z = state["z"].reshape(-1, len(rows), self.L)
        return np.concatenate([z, z * z], axis=-1)

    def vector(self, theta: Months) -> F64:
        """(2 L,) beta, tau2."""
        return np.concatenate([theta.beta, theta.tau2])

    def complete(self, vector: F64, S: F64) -> float:
        """Mean over sites of log p(y, z; theta) at a statistic, without what theta does not touch."""
        beta, tau2 = vector[: self.L], vector[self.L :]
        squares = S[self.L :] - 2 * beta * S[: self.L] + beta * beta
        return float(-0.5 * (np.log(tau2) + squares / tau2).sum())


class GaussMonths(_LatentMonths):
    """Model A: y_jl ~ N(z_jl, 1), exact answer. Rows of a worker are (sites, L).

    Source: none, a check of FL-SAEM with a closed E-step.
    """

    def s_bar(self, theta: Months, rows: F64) -> F64:
        """E-step: z | y ~ N(v (y + beta/tau2), v), 1/v = 1 + 1/tau2."""
        variance = 1.0 / (1.0 + 1.0 / theta.tau2)  # of the product of N(y; z, 1) and N(z; beta, tau2)
        z = variance * (rows + theta.beta / theta.tau2)
        return np.concatenate([z.mean(axis=0), (z * z).mean(axis=0) + variance])

    def latent_start(self, rows: F64, M: int) -> State:
        """Chains start at the data."""
        return {"z": np.repeat(rows.reshape(1, -1), M, axis=0).astype(np.float64)}

    def _posterior(self, rows: F64, beta: F64, tau2: F64) -> tuple[F64, Target]:
        y = rows.reshape(-1)

        def target(z: F64) -> tuple[F64, F64]:
            # log p = -(y - z)^2 / 2 - (z - beta)^2 / (2 tau2) and its derivative.
            a, b = y - z, (z - beta) / tau2
            return -0.5 * (a * a + (z - beta) * b), a - b

        # P is the exact posterior variance of model A.
        return 1.0 / (1.0 / tau2 + 1.0), target


class PoissonMonths(_LatentMonths):
    """Model B: y_jl ~ Poisson(e_jl exp z_jl). Rows of a worker are (sites, L) counts, or (sites, L, 2) with e beside.

    The E-step by quadrature (:meth:`s_bar`) gives the maximum-likelihood estimate; chains are checked against it.

    Source: none, a check of FL-SAEM with an E-step by quadrature.
    """

    def _counts(self, rows: F64) -> tuple[F64, F64]:
        """Counts and log exposures, (m, L) each."""
        if rows.ndim == 2:
            return rows, np.zeros_like(rows)
        return rows[..., 0], np.log(rows[..., 1])

    def s_bar(self, theta: Months, rows: F64) -> F64:
        """E-step by 30 adaptive Gauss-Hermite nodes a cell."""
        y, log_e = self._counts(rows)
        _, z, z2 = poisson_normal(y, log_e, theta.beta, theta.tau2)
        return np.concatenate([z.mean(axis=0), z2.mean(axis=0)])

    def log_likelihood(self, theta: Months, rows: F64) -> float:
        """Mean over sites of log p(y; theta)."""
        y, log_e = self._counts(rows)
        return float(poisson_normal(y, log_e, theta.beta, theta.tau2)[0].sum() / len(rows))

    def latent_start(self, rows: F64, M: int) -> State:
        """Chains start at log((y + 1/2) / e)."""
        y, log_e = self._counts(rows)
        return {"z": np.repeat((np.log(y + 0.5) - log_e).reshape(1, -1), M, axis=0)}

    def _posterior(self, rows: F64, beta: F64, tau2: F64) -> tuple[F64, Target]:
        counts, log_e = self._counts(rows)
        y, e = counts.reshape(-1), np.exp(log_e).reshape(-1)

        def target(z: F64) -> tuple[F64, F64]:
            with np.errstate(over="ignore"):
                rate = e * np.exp(z)
            b = (z - beta) / tau2
            return y * z - rate - 0.5 * (z - beta) * b, y - rate - b

        # P is 1 over the curvature of a Poisson latent, 1 / tau2 + e exp(z), and e exp(z) is about y + 1/2.
        return 1.0 / (1.0 / tau2 + y + 0.5), target


def first_statistics(model: Latent, data: Shards) -> F64:
    """(n, q) statistics of chains at their start: first memories of how="memory", whose mean is a good S_0."""
    return np.array([model.statistic(rows, model.latent_start(rows, 1)) for rows in data])


def simulate_months(n: int = 10, sites: int = 40, L: int = 20, *, seed: int = 0, counts: bool = True) -> F64:
    """(n, sites, L) counts of model B (or values of model A): 0.8 + sin over the months + a worker's shift + N(0, 0.7^2)."""
    rng = rng_for(seed, "months")
    beta = 0.8 + np.sin(2 * np.pi * np.arange(L) / L)
    z = beta + rng.uniform(-0.5, 0.5, (n, 1, 1)) + 0.7 * rng.standard_normal((n, sites, L))
    if counts:
        return rng.poisson(np.exp(z)).astype(np.float64)
    return z + rng.standard_normal(z.shape)


@lru_cache(maxsize=8)
def gauss_hermite(nodes: int) -> tuple[F64, F64]:
    """Nodes and log weights of integrals against exp(-x^2/2) / sqrt(2 pi)."""
    x, w = np.polynomial.hermite_e.hermegauss(nodes)
    return x, np.log(w) - 0.5 * np.log(2 * np.pi)


def poisson_normal(y: F64, log_e: F64, mu: F64, var: F64, *, nodes: int = 30) -> tuple[F64, F64, F64]:
    """Log p(y), E[z | y], E[z^2 | y] for y ~ Poisson(exp(log_e + z)), z ~ N(mu, var); arrays of one shape.

    Adaptive: nodes at the mode of the posterior, scaled by its curvature; 30 of them are within 1e-5 of log p(y) and 2e-4 of
    the moments for variances up to 4 (worst for zeros), and much nearer for larger counts or smaller variances.

    Source: adaptive Gauss-Hermite quadrature; a check of the chains, not in the report.
    """
    y, log_e, mu, var = np.broadcast_arrays(
        *(np.asarray(value, dtype=np.float64) for value in (y, log_e, mu, var))
    )
    z = np.where(y > 0, np.log(np.maximum(y, 0.5)) - log_e, mu)
    # At the mode y - e exp(z) = (z - mu) / var, so it lies below mu + var y; the start is held near it from both sides.
    z = np.minimum(z, mu + var * y)  # the mode lies below, and Newton from the right of it is monotone
    z = np.maximum(z, np.minimum(mu, np.log(y + 0.5) - log_e))
    for _ in range(60):
        rate = np.exp(np.minimum(log_e + z, 700.0))
        # Newton on a concave log density; a step of at most 1, since from
        # far right exp(z) makes it far too short, from left too long.
        step = (y - rate - (z - mu) / var) / (rate + 1.0 / var)
        z = z + np.clip(step, -1.0, 1.0)
        if float(np.abs(step).max(initial=0.0)) < 1e-11:
            break
    scale = 1.0 / np.sqrt(np.exp(log_e + z) + 1.0 / var)
    x, log_w = gauss_hermite(nodes)
    at = z[..., None] + scale[..., None] * x
    # Integrand over the proposal: nodes are for exp(-x^2/2), so + x^2/2 takes that weight out again.
    log_f = (
        y[..., None] * (at + log_e[..., None])
        - np.exp(np.minimum(at + log_e[..., None], 700.0))
        - 0.5 * (at - mu[..., None]) ** 2 / var[..., None]
        + log_w
        + 0.5 * x * x
    )
    top = log_f.max(axis=-1, keepdims=True)
    weight = np.exp(log_f - top)
    total = weight.sum(axis=-1)
    # Constants: 1/y!, the Jacobian of z = mode + scale x and the
    # normal density's 1/sqrt(var); log_w holds its 1/sqrt(2 pi).
    log_p = top[..., 0] + np.log(total) + np.log(scale) - gammaln(y + 1.0) - 0.5 * np.log(var)
    return log_p, (weight * at).sum(axis=-1) / total, (weight * at**2).sum(axis=-1) / total
