"""FL-SAEM's E-step: Langevin chains with a quantized gradient, inside the worker, as an oracle of the core."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from fedmiss.arrays import F64, I64
from fedmiss.core import FedEM, Full, Remembered, Roster, SaemSteps
from fedmiss.core.oracles import OneByOne
from fedmiss.core.protocols import Compressor, Model, Oracle, Own, Participation, Rows, Shards
from fedmiss.core.state import Downlink
from fedmiss.errors import ConfigError, DomainError
from fedmiss.models.saem_anneal import Annealed
from fedmiss.models.saem_parts import Kernel, State, Target
from fedmiss.rng import rng_for

__all__ = ["Chains", "Langevin", "Smoothed", "fed_saem", "kappa", "langevin_variance", "quantize"]


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
    norm = np.sqrt(np.add.reduceat(g * g, starts, axis=1))
    n = np.repeat(norm, np.diff(np.append(starts, g.shape[1])), axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        level = np.where(n > 0, np.floor(levels * np.abs(g) / n + u), 0.0)
    out: F64 = np.sign(g) * np.minimum(level, levels) * n / levels
    return out


def kappa(d: int) -> float:
    """1 + c_1 of one level in d dimensions, Gaussian: d Gamma(d/2) / (sqrt(pi) Gamma((d + 1)/2)) ~ sqrt(2 d / pi).

    Source: none, derived for the quantizer of the weekly report's eq. (1), see :func:`langevin_variance`.
    """
    return d / math.sqrt(math.pi) * math.exp(math.lgamma(d / 2) - math.lgamma((d + 1) / 2))


def langevin_variance(
    g: float, d: int = 1, levels: int | None = None, *, draws: int = 200_000, seed: int = 0
) -> float:
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
        x = rng_for(seed, "c_l").standard_normal((max(draws // d, 1), d))
        n = np.linalg.norm(x, axis=1, keepdims=True)
        f = np.mod(levels * np.abs(x) / n, 1.0)
        factor = 1.0 + float((n**2 * f * (1 - f)).mean()) / levels**2
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
        if self.over == "worker":
            starts = starts[:1]
        root = np.sqrt(P) if self.precondition else np.ones_like(P)
        half, size = 0.5 * self.gamma, math.sqrt(self.gamma)
        u = None if self.levels is None else rng.random(z.shape)

        def drift(g: F64) -> F64:
            x = g * root
            return half * (x if u is None or self.levels is None else quantize(x, u, self.levels, starts))

        density, g = target(z)
        noise = size * rng.standard_normal(z.shape)
        step = drift(g) + noise
        new = z + root * step
        if not self.adjust:
            if not np.isfinite(new).all():
                raise DomainError(
                    f"the Langevin chain left the finite numbers; lower its step (gamma={self.gamma:g})."
                )
            return new, 1.0
        with np.errstate(over="ignore", invalid="ignore"):
            density_new, g_new = target(new)
            back = step + drift(g_new)
            ratio = density_new - density - (back * back - noise * noise) / (2.0 * self.gamma)
            log_a = np.add.reduceat(ratio, starts, axis=1)
        accept = np.log(rng.random(log_a.shape)) < log_a  # nan compares as false
        sizes = np.diff(np.append(starts, z.shape[1]))
        return np.where(np.repeat(accept, sizes, axis=1), new, z), float(accept.mean())


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

    def __post_init__(self) -> None:
        if self.K < 1 or self.M < 1:
            raise ConfigError(f"K={self.K} steps of M={self.M} chains (both must be at least 1).")

    @property
    def wants_own(self) -> bool:
        """A chain's draws are not counted beforehand."""
        return True

    @property
    def draws(self) -> int:
        """No uniforms by number."""
        return 0

    def costs(self, m: int) -> tuple[int, ...]:
        """A pass over the rows counts once, whatever K and M."""
        return (m,)

    def one(
        self, model: Model, memory: State | None, down: Downlink, rows: Rows, u: F64, *own: Own
    ) -> tuple[F64, State, int]:
        """Move the chains of one worker."""
        latent: Any = model
        rng = own[0].rng()
        state = latent.latent_start(rows, self.M) if memory is None else memory
        for _ in range(self.K):
            state, _ = latent.move(down.theta, rows, state, self.kernel, rng)
        return latent.statistic(rows, state), state, len(rows)

    def pack(self, memory: list[State | None]) -> dict[str, np.ndarray]:
        """Arrays end to end, with the length of each worker's."""
        known = {c: state for c, state in enumerate(memory) if state is not None}
        out = {"known": np.array(list(known), dtype=np.int64)}
        for name in next(iter(known.values()), ()):
            parts = [np.asarray(state[name]) for state in known.values()]
            out[f"{name}.sizes"] = np.array([part.shape[1] for part in parts], dtype=np.int64)
            out[f"{name}.values"] = np.concatenate(parts, axis=1)
        return out

    def unpack(
        self, model: Model, arrays: Mapping[str, np.ndarray], n: int, q: int
    ) -> list[dict[str, np.ndarray] | None]:
        """Cut the arrays again."""
        known: dict[int, dict[str, np.ndarray]] = {c: {} for c in arrays["known"].tolist()}
        for name in sorted(key[:-6] for key in arrays if key.endswith(".sizes")):
            cuts = np.cumsum(arrays[f"{name}.sizes"])[:-1]
            parts = np.split(np.array(arrays[f"{name}.values"]), cuts, axis=1)
            for state, part in zip(known.values(), parts, strict=True):
                state[name] = np.ascontiguousarray(part)
        return [known.get(c) for c in range(n)]


@dataclass(frozen=True, slots=True)
class Smoothed:
    """Stochastic approximation at the worker: S~_c <- S~_c + rho_j (S_c - S~_c), j the worker's own count of answers.

    S~_c starts at what the server knows, V_c of memory="statistic". Source: Delyon, Lavielle, Moulines (1999), done where
    the report's algorithm 1 names "surrogate statistics" without defining them.
    """

    inner: Oracle
    rho: SaemSteps

    @property
    def wants_own(self) -> bool:
        """V_c is the start."""
        return True

    @property
    def draws(self) -> int:
        """As the oracle inside."""
        return self.inner.draws

    def costs(self, m: int) -> tuple[int, ...]:
        """As the oracle inside."""
        inner: Any = self.inner
        return tuple(inner.costs(m))

    def start(self) -> tuple[int, None, object]:
        """(answers given, S~_c, memory of the oracle inside)."""
        return (0, None, self.inner.start())

    def _own(self, own: Own) -> tuple[Own, ...]:
        return (own,) if getattr(self.inner, "wants_own", False) else ()

    def one(
        self,
        model: Model,
        memory: tuple[int, F64 | None, object],
        down: Downlink,
        rows: Rows,
        u: F64,
        *own: Own,
    ) -> tuple[F64, tuple[int, F64, object], int]:
        """Ask the oracle inside and move towards its answer."""
        j, S, inner = memory
        S_c, inner, cost = self.inner.one(model, inner, down, rows, u, *self._own(own[0]))
        S = own[0].V_i if S is None else S
        S = S + self.rho(j) * (S_c - S)
        return S, (j + 1, S, inner), cost

    def start_many(self, n: int, q: int) -> tuple[I64, F64, object]:
        """Counts, statistics (nan: none yet), memory of the oracle inside."""
        return np.zeros(n, dtype=np.int64), np.full((n, q), np.nan), self.inner.start_many(n, q)

    def many(
        self,
        model: Model,
        memory: tuple[I64, F64, object],
        down: Downlink,
        data: Shards,
        slots: I64,
        u: F64,
        *own: Own,
    ) -> tuple[F64, int]:
        """Ask the oracle inside for all, and move each towards its answer."""
        count, S, inner = memory
        new, cost = self.inner.many(model, inner, down, data, slots, u, *self._own(own[0]))
        for i, c in enumerate(slots):
            was = own[0].V_i[i] if count[c] == 0 else S[c]
            S[c] = was + self.rho(int(count[c])) * (new[i] - was)
            count[c] += 1
        return S[slots], cost

    def pack(self, memory: tuple[I64, F64, object]) -> dict[str, np.ndarray]:
        """Counts, statistics, and the memory inside."""
        inner = {f"inner.{k}": v for k, v in self.inner.pack(memory[2]).items()}
        return {"count": memory[0], "S": memory[1]} | inner

    def unpack(
        self, model: Model, arrays: Mapping[str, np.ndarray], n: int, q: int
    ) -> tuple[I64, F64, object]:
        """Return what ``pack`` saw."""
        inner = {k[6:]: v for k, v in arrays.items() if k.startswith("inner.")}
        return np.array(arrays["count"]), np.array(arrays["S"]), self.inner.unpack(model, inner, n, q)


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
    anneal: float | None = None,
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
    anneal : share of a variance that is left at least after each of the first R1 rounds, see
        :class:`~fedmiss.models.saem_anneal.Annealed`; saemix has 0.97, None is off

    Start with ``init=`` the workers' first statistics for "memory". With full participation and nothing compressed the
    three give the same S for the same draws.

    Source: Karimi's weekly report, algorithm 1. Differs in: rho, which the report leaves undefined; weights w_c; 1/p or
    remembered statistics instead of an unweighted mean over those present; what is sent is a change and not Top-k of the
    statistic, which keeps a bias for ever.
    """
    # many parameters: the documented interface, given by name
    exact = getattr(compressor, "delta", None) is None and compressor.omega(model.q) == 0.0
    cap = 1.0 if exact else (0.2 if how == "memory" else 0.3)
    rho, who, oracle = steps or SaemSteps(cap=cap), participation or Full(), estep or Chains()
    if anneal is not None:
        model = Annealed(model, rho.R1, anneal)
    if how == "server":
        algo = FedEM(model, compressor, roster, rho, participation=who, oracle=oracle, seed=seed, **settings)
        if not exact:
            omega, p = compressor.omega(model.q), float(who.prob(roster.n).mean())
            if omega / (roster.n * p) > 1.0:
                warnings.warn(
                    f"omega/(n p) = {omega / (roster.n * p):.2g} is above 1 (omega={omega:.3g}, n={roster.n}, p={p:g}): "
                    "one round's noise exceeds its signal; use how='memory' with Top-k, k = q/5.",
                    stacklevel=2,
                )
        return algo
    if how not in ("memory", "error"):
        raise ConfigError(f"how={how!r} is unknown; use 'server', 'memory' or 'error'.")
    kept = who if isinstance(who, (Full, Remembered)) else Remembered(who)
    if how == "error":
        return FedEM(
            model,
            compressor,
            roster,
            rho,
            participation=kept,
            oracle=oracle,
            seed=seed,
            memory="error",
            **settings,
        )
    return FedEM(
        model, compressor, roster, 1.0, participation=kept, oracle=Smoothed(oracle, rho), seed=seed,
        memory="statistic", **settings,
    )  # fmt: skip


def with_seed(algo: FedEM, seed: int) -> FedEM:
    """The same method with other draws."""
    return replace(algo, seed=seed)
