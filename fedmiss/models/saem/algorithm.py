"""FL-SAEM: stochastic approximation over the workers' chains, and the standard errors of what it finds."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from fedmiss.arrays import F64, I64
from fedmiss.core import FedEM, Full, Remembered, Roster, SaemSteps
from fedmiss.core.oracles import Around
from fedmiss.core.protocols import Compressor, Model, Oracle, Participation, Shards, Theta
from fedmiss.core.state import Downlink
from fedmiss.errors import ConfigError
from fedmiss.models.saem.chains import Chains, Langevin, Latent
from fedmiss.rng import rng_for


@dataclass(frozen=True, slots=True)
class Smoothed(Around):
    """Stochastic approximation at the worker: S~_c <- S~_c + rho_j (S_c - S~_c), j the worker's own count of answers.

    S~_c starts at what the server knows, V_c of memory="statistic". Source: Delyon, Lavielle, Moulines (1999), done where
    the report's algorithm 1 names "surrogate statistics" without defining them.
    """

    rho: SaemSteps
    wants_own: ClassVar[bool] = True  # V_c is the start

    def start_many(self, n: int, q: int) -> tuple[dict[str, np.ndarray], Any]:
        """Counts, statistics (nan: none yet), memory of the oracle inside."""
        own = {"count": np.zeros(n, dtype=np.int64), "S": np.full((n, q), np.nan)}
        return own, self.inner.start_many(n, q)

    def many(
        self,
        model: Model,
        memory: tuple[dict[str, np.ndarray], Any],
        down: Downlink,
        data: Shards,
        slots: I64,
        u: F64,
        *own: Any,
    ) -> tuple[F64, int]:
        """Ask the oracle inside for all, and move each towards its answer."""
        count, S, inner = memory[0]["count"], memory[0]["S"], memory[1]
        wanted = own[: getattr(self.inner, "wants_own", 0)]
        new, cost = self.inner.many(model, inner, down, data, slots, u, *wanted)
        for i, slot in enumerate(slots):
            # rho runs on the worker's own count of answers, so a worker
            # that was silent does not come back with a frozen step.
            was = own[0].V_i[i] if count[slot] == 0 else S[slot]
            S[slot] = was + self.rho(int(count[slot])) * (new[i] - was)
            count[slot] += 1
        return S[slots], cost


def fed_saem(
    model: Model,
    roster: Roster,
    compressor: Compressor,
    *,
    how: str = "memory",
    estep: Oracle | None = None,
    steps: SaemSteps | None = None,
    participation: Participation | None = None,
    seed: int = 0,
    **settings: Any,
) -> FedEM:
    """FL-SAEM: averaged statistics, one M-step at the server, stochastic approximation, compression.

    Parameters
    ----------
    how : where the stochastic approximation is
        "server": S <- S + rho H, FedEM's step, for unbiased compressors
        "memory": at the worker, its change is compressed and remembered: S = mean_c G_c; the safe order
        "error": rho (S_c - S) is compressed with error feedback, for Top-k
    estep : the oracle, default :class:`Chains` (M = 4, K = 5, Metropolis)
    steps : rho; default R1 = 300, a = 0.7, capped at 0.2 ("memory") or 0.3 where anything is compressed

    Start with ``init=`` the workers' first statistics for "memory". With full participation and nothing compressed the
    three give the same S for the same draws.

    Source: Karimi's weekly report, algorithm 1. Differs in: rho, which the report leaves undefined; weights w_c; 1/p or
    remembered statistics instead of an unweighted mean over those present; what is sent is a change and not Top-k of the
    statistic, which keeps a bias for ever.
    """
    # many parameters: the documented interface, given by name
    # Compressed changes need small steps: what is not sent yet must stay small beside what the memory holds.
    exact = getattr(compressor, "delta", None) is None and compressor.omega(model.q) == 0.0
    cap = 1.0 if exact else (0.2 if how == "memory" else 0.3)
    rho, who, oracle = steps or SaemSteps(cap=cap), participation or Full(), estep or Chains()
    if how == "server":
        algo = FedEM(model, compressor, roster, rho, participation=who, oracle=oracle, seed=seed, **settings)
        if not exact:
            omega, p = compressor.omega(model.q), float(who.prob(roster.n).mean())
            # omega / (n p) is the variance of the averaged message beside the squared size of one worker's change.
            if omega / (roster.n * p) > 1.0:
                warnings.warn(
                    f"omega/(n p) = {omega / (roster.n * p):.2g} is above 1 (omega={omega:.3g}, n={roster.n}, p={p:g}): "
                    "one round's noise exceeds its signal; use how='memory' with Top-k, k = q/5.",
                    stacklevel=2,
                )
        return algo
    if how not in ("memory", "error"):
        raise ConfigError(f"how={how!r} is unknown; use 'server', 'memory' or 'error'.")
    # Silent workers count with what the server remembers of them: 1/p would scale the bias of Top-k too.
    kept = who if isinstance(who, (Full, Remembered)) else Remembered(who)
    common = {"participation": kept, "seed": seed, **settings}
    if how == "error":
        return FedEM(model, compressor, roster, rho, oracle=oracle, memory="error", **common)
    return FedEM(model, compressor, roster, 1.0, oracle=Smoothed(oracle, rho), memory="statistic", **common)


def louis(model: Latent, theta: Theta, data: Shards, *, rounds: int = 100, seed: int = 0) -> F64:
    """(k, k) covariance of the maximum-likelihood estimate, in the order of ``model.vector(theta)``.

    Observed information = mean of the complete information - covariance of the complete score, both under the posterior of
    the latents at theta. Both are sums over workers; a worker sends its mean statistic and the (q, q) covariance of its
    total, no latent. Sites (``model.unit_totals``) are independent given theta, which lowers the noise of the covariance.

    Source: Louis (1982). Differs from saemix and Monolix in: chains run on at the last theta instead of along the last
    rounds, so that nothing of the way is in the covariance.
    """
    K, M, burn, step = 5, 4, 20, Langevin()  # steps a round, chains, rounds that are not counted
    rows_total, S_total, spread = 0, np.zeros(model.q), np.zeros((model.q, model.q))
    for worker, rows in enumerate(data):
        rng = rng_for(seed, "louis", worker)
        state = model.latent_start(rows, M)
        count, summed, square = 0, np.zeros((1, model.q)), np.zeros((model.q, model.q))
        for update in range(burn + rounds):
            for _ in range(K):
                state, _ = model.move(theta, rows, state, step, rng)
            if update < burn:
                continue
            # Units are independent given theta: the covariance of the
            # total is the sum of theirs, without noise between units.
            totals = model.unit_totals(rows, state)  # (M, units, q)
            count += M
            summed = summed + totals.sum(axis=0)
            flat = totals.reshape(-1, model.q)
            square += flat.T @ flat
        # Sample covariance over the draws, summed over the units: sum t t' - count sum m m', over count - 1.
        mean = summed / count  # (units, q)
        spread += (square - count * mean.T @ mean) / (count - 1)
        S_total += mean.sum(axis=0)
        rows_total += len(rows)
    S = S_total / rows_total
    v = model.vector(theta)
    # The complete log-likelihood is <S, phi(v)> - psi(v): the score is linear in S, with the slope J' = phi'(v).
    J = _slopes(model, v, S)
    # Louis: observed information = E[complete information] - Cov[complete score]
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
        step = 1e-5 * max(abs(v[i]), 1e-2)
        move = step * np.eye(k)[i]
        # At S = 0 only -psi is left: what the unit statistics add to it is the derivative of phi.
        base = (model.complete(v + move, zero) - model.complete(v - move, zero)) / (2 * step)
        for j in range(q):
            slope = (model.complete(v + move, eye[j]) - model.complete(v - move, eye[j])) / (2 * step)
            out[j, i] = slope - base
    return out


def _curvature(model: Latent, v: F64, S: F64) -> F64:
    """(k, k) second derivative of the complete log-likelihood by theta."""
    k = len(v)
    step = 1e-4 * np.maximum(np.abs(v), 1e-1)
    E = np.diag(step)
    out = np.empty((k, k))
    complete = model.complete
    for i in range(k):
        for j in range(i, k):
            # Second difference over the four corners: exact for a quadratic, and it needs no derivative of the model.
            value = (
                complete(v + E[i] + E[j], S)
                - complete(v + E[i] - E[j], S)
                - complete(v - E[i] + E[j], S)
                + complete(v - E[i] - E[j], S)
            )
            out[i, j] = out[j, i] = value / (4 * step[i] * step[j])
    return out
