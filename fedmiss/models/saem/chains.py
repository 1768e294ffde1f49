"""The E-step of FL-SAEM: Langevin chains with a quantized gradient, inside the worker, as an oracle of the core."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

import numpy as np

from fedmiss.arrays import F64, I64
from fedmiss.core.oracles import OneByOne
from fedmiss.core.protocols import Model, Rows, Theta, WorkerContext
from fedmiss.core.state import Downlink
from fedmiss.errors import ConfigError, DomainError
from fedmiss.rng import rng_for

State = Mapping[str, np.ndarray]  # of the chains of a worker; the first axis of each array is the chain
Target = Callable[[F64], tuple[F64, F64]]  # z -> (log density of each entry, its gradient), both (M, N)


class Kernel(Protocol):
    """One step of M chains, see :meth:`Langevin.move`."""

    def move(
        self, rng: np.random.Generator, z: F64, P: F64, target: Target, starts: I64
    ) -> tuple[F64, float]:
        """Return new z, share accepted."""


class Latent(Protocol):
    """A model whose latents are drawn by chains, and whose complete log-likelihood is linear in its statistic."""

    @property
    def q(self) -> int:
        """Number of entries of the statistic."""

    def latent_start(self, rows: Rows, M: int) -> State:
        """Return the first state of M chains."""

    def move(
        self, theta: Theta, rows: Rows, state: State, kernel: Kernel, rng: np.random.Generator
    ) -> tuple[State, float]:
        """Return the state after one step, and the share accepted."""

    def statistic(self, rows: Rows, state: State) -> F64:
        """(q,) mean over chains and rows."""

    def unit_totals(self, rows: Rows, state: State) -> F64:
        """(M, units, q) statistics of the units that are independent given theta."""

    def vector(self, theta: Theta) -> F64:
        """(k,) the parameter as numbers."""

    def complete(self, vector: F64, S: F64) -> float:
        """Mean complete log-likelihood at a statistic, without what theta does not touch."""


def quantize(g: F64, u: F64, levels: int, starts: I64) -> F64:
    """QSGD of each block: (n/l) sign(g) floor(l |g| / n + u), n = ||g||_2 over the block, C(0) = 0.

    Parameters
    ----------
    g, u : (M, N) vectors and uniforms on [0, 1)
    levels : l >= 1
    starts : (blocks,) first entries of the blocks, increasing from 0

    Source: Karimi's weekly report, eq. (1); Alistarh et al. (2017). Differs in: the report writes ||v|| without saying of
    which vector; here it is the vector that is quantized. Of one number it is the identity.
    """
    # Equation (1) of the report: the level is rounded up with probability frac(l |g| / n), so that E C(g) = g.
    norm = np.sqrt(np.add.reduceat(g * g, starts, axis=1))
    scale = np.repeat(norm, np.diff(np.append(starts, g.shape[1])), axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        level = np.where(scale > 0, np.floor(levels * np.abs(g) / scale + u), 0.0)
    # |g| = n gives l + u, whose floor is l but for rounding: the level never exceeds l.
    out: F64 = np.sign(g) * np.minimum(level, levels) * scale / levels
    return out


def kappa(d: int) -> float:
    """1 + c_1 of one level in d dimensions, Gaussian: d Gamma(d/2) / (sqrt(pi) Gamma((d + 1)/2)) ~ sqrt(2 d / pi).

    Source: none, derived for the quantizer of the weekly report's eq. (1), see :func:`langevin_variance`.
    """
    return d / math.sqrt(math.pi) * math.exp(math.lgamma(d / 2) - math.lgamma((d + 1) / 2))


def langevin_variance(g: float, d: int = 1, levels: int | None = None) -> float:
    """Stationary variance over the target's of unadjusted Langevin on a Gaussian, step over variance = g.

    1 / (1 - (g/4)(1 + c_l)), c_l = E[n^2 f (1 - f) / l^2] / E g_j^2, n = ||g||, f = frac(l |g_j| / n); c = 0 without
    quantizer, 1 + c_1 = kappa(d). inf where the chain diverges. Second moments are equated, and the stationary law is taken
    as Gaussian; c_l for l > 1 by Monte Carlo.

    Source: second moments of one step, equated; the report does not give the bias of its chains.
    """
    factor = 1.0
    if levels == 1:
        factor = kappa(d)
    elif levels is not None:
        x = rng_for(0, "c_l").standard_normal((max(200_000 // d, 1), d))
        norm = np.linalg.norm(x, axis=1, keepdims=True)
        # Rounding a level up with probability f has the variance f (1 - f), in units of (n / l)^2.
        f = np.mod(levels * np.abs(x) / norm, 1.0)
        factor = 1.0 + float((norm**2 * f * (1 - f)).mean()) / levels**2
    left = 1.0 - 0.25 * g * factor
    return 1.0 / left if left > 0 else math.inf


@dataclass(frozen=True, slots=True)
class Langevin:
    """z <- z + (gamma/2) P^{1/2} C(P^{1/2} grad f(z)) + sqrt(gamma) P^{1/2} N(0, I), P diagonal from the model.

    With ``adjust`` a block (a site) is accepted or not by Metropolis's rule, with the same uniforms of C in the forward and
    the reverse drift: for fixed uniforms the drift is a deterministic function, so the posterior is kept whatever C is.

    Source: the weekly report's E-step. Differs in: P (the report has P = 1, which no scalar step makes right for counts
    of 0 and of 500), theta fixed within a round, adjusted by default, and no quantizer by default: **the chain runs inside
    the worker, so its quantized gradient saves no bytes and gives no privacy; it costs accuracy or acceptance.**

    Parameters
    ----------
    gamma : step in units of P
    levels : l of the quantizer, None for none
    over : "site" or "worker": the vector that shares a norm
    adjust : Metropolis correction
    precondition : P of the model, or P = 1
    """

    gamma: float = 0.3
    levels: int | None = None
    over: str = "site"
    adjust: bool = True
    precondition: bool = True

    def __post_init__(self) -> None:
        if not (math.isfinite(self.gamma) and self.gamma > 0):
            raise ConfigError(f"Langevin step gamma={self.gamma} (must be above 0); try 0.3.")
        if self.levels is not None and self.levels < 1:
            raise ConfigError(f"quantizer with levels={self.levels} (at least 1, or None for none).")
        if self.over not in ("site", "worker"):
            raise ConfigError(f"over={self.over!r} is unknown; use 'site' or 'worker'.")

    def move(
        self, rng: np.random.Generator, z: F64, P: F64, target: Target, starts: I64
    ) -> tuple[F64, float]:
        """One step of M chains.

        Parameters
        ----------
        z : (M, N) latents, blocks side by side
        P : (N,) preconditioner
        target : z -> (log density of each entry, its gradient), both (M, N)
        starts : (blocks,) first entries of the blocks

        Returns
        -------
        new z, share of blocks accepted
        """
        # One block: all latents of the worker share a norm, and are accepted or not together.
        if self.over == "worker":
            starts = starts[:1]
        # P is fixed within a round: a step that followed z would need the change of P in the acceptance.
        root = np.sqrt(P) if self.precondition else np.ones_like(P)
        half, size = 0.5 * self.gamma, math.sqrt(self.gamma)
        # Drawn once for both drifts of the step: see the class on why this keeps the posterior.
        u = None if self.levels is None else rng.random(z.shape)

        def drift(g: F64) -> F64:
            x = g * root
            return half * (x if u is None or self.levels is None else quantize(x, u, self.levels, starts))

        density, g = target(z)
        noise = size * rng.standard_normal(z.shape)
        step = drift(g) + noise  # z' = z + P^{1/2} [ (gamma/2) C(P^{1/2} grad f(z)) + sqrt(gamma) N(0, I) ]
        new = z + root * step
        if not self.adjust:
            if not np.isfinite(new).all():
                raise DomainError(
                    f"the Langevin chain left the finite numbers; lower its step (gamma={self.gamma:g})."
                )
            return new, 1.0
        with np.errstate(over="ignore", invalid="ignore"):
            density_new, g_new = target(new)
            # The reverse move starts at z' and needs the noise -(step +
            # drift(z')): its square stands beside the forward noise's.
            back = step + drift(g_new)
            # log of f(z') q(z | z') / (f(z) q(z' | z)), block by block
            ratio = density_new - density - (back * back - noise * noise) / (2.0 * self.gamma)
            log_a = np.add.reduceat(ratio, starts, axis=1)
        accept = np.log(rng.random(log_a.shape)) < log_a  # nan compares as false
        sizes = np.diff(np.append(starts, z.shape[1]))
        return np.where(np.repeat(accept, sizes, axis=1), new, z), float(accept.mean())


@dataclass(frozen=True, slots=True)
class Laplace:
    """Independent Metropolis: z' = mode + t_df / sqrt(curvature), accepted latent by latent.

    For latents that are independent given theta and the rest of the state, with log-concave densities: models A, B and C
    (:class:`fedmiss.models.saem.months.PoissonMonths`, :class:`fedmiss.models.saem.counts.Counts`). The mode is found by
    Newton steps from the chain's place, which it forgets; the curvature by differences of the gradient. A step costs about
    ten gradients, and leaves almost no correlation with the step before, so one step a round is enough.

    Source: f-SAEM, Karimi, Lavielle, Moulines (2020); the weekly report names Langevin only.
    Differs in: t instead of normal proposals, since a Poisson latent's left tail is its prior's, which is wider.

    Parameters
    ----------
    df : degrees of freedom of the proposal, above 2
    """

    df: float = 8.0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.df) and self.df > 2):
            raise ConfigError(f"Laplace proposals with df={self.df} (must be above 2); try 8.")

    def move(
        self, rng: np.random.Generator, z: F64, P: F64, target: Target, starts: I64
    ) -> tuple[F64, float]:
        """One step of M chains, as :meth:`Langevin.move`; P is the scale of differences, ``starts`` is not needed."""
        # The mode depends on theta and the other latents, not on z:
        # a proposal around it is independent of the chain's place.
        mode, h = z.copy(), 1e-4 * np.sqrt(P)
        for _ in range(60):
            curve = self._curvature(target, mode, h)
            step = np.clip(target(mode)[1] / curve, -1.0, 1.0)  # short steps where exp(z) is far too large
            mode += step
            if float(np.abs(step).max(initial=0.0)) < 1e-7:
                break
        scale = 1.0 / np.sqrt(self._curvature(target, mode, h))
        draw = rng.standard_t(self.df, z.shape)
        new = mode + scale * draw
        old = (z - mode) / scale
        power = 0.5 * (self.df + 1.0)
        with np.errstate(over="ignore", invalid="ignore"):
            # f(z') q(z) / (f(z) q(z')), q the t density at the standardised place; its constants and the scale cancel.
            ratio = target(new)[0] - target(z)[0]
            ratio += power * (np.log1p(draw * draw / self.df) - np.log1p(old * old / self.df))
        accept = np.log(rng.random(z.shape)) < ratio  # nan compares as false
        return np.where(accept, new, z), float(accept.mean())

    @staticmethod
    def _curvature(target: Target, at: F64, h: F64) -> F64:
        """Minus the second derivative of each entry's log density, above 0."""
        low: F64 = (target(at - h)[1] - target(at + h)[1]) / (2.0 * h)
        return np.maximum(low, 1e-8)


@dataclass(frozen=True, slots=True)
class Chains(OneByOne):
    """S_c = mean over M chains, each moved K steps at theta_k, of the statistic of their latents.

    The chains go on from round to round. The model gives ``latent_start(rows, M)``, ``move(theta, rows, state, kernel,
    rng)`` and ``statistic(rows, state)``; a state is a mapping of arrays whose first axis is the chain.

    Source: FL-SAEM, the weekly report's algorithm 1, E-step; Kuhn and Lavielle (2005). Differs in: chains persist (the
    report does not say where they start).
    """

    K: int = 5
    M: int = 4
    kernel: Kernel = field(default_factory=Langevin)
    wants_own: ClassVar[bool] = True  # the number of a chain's draws is not known beforehand
    draws: ClassVar[int] = 0

    def __post_init__(self) -> None:
        if self.K < 1 or self.M < 1:
            raise ConfigError(f"K={self.K} steps of M={self.M} chains (both must be at least 1).")

    def one(
        self, model: Model, memory: State | None, down: Downlink, rows: Rows, u: F64, *own: WorkerContext
    ) -> tuple[F64, State, int]:
        """Move the chains of one worker."""
        latent: Any = model
        rng = own[0].rng()
        state = latent.latent_start(rows, self.M) if memory is None else memory
        for _ in range(self.K):
            state, _ = latent.move(down.theta, rows, state, self.kernel, rng)
        return latent.statistic(rows, state), state, len(rows)
