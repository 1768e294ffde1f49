"""FedEM with partial participation, and its relatives that differ in one setting only."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any

import numpy as np

from fedmiss.arrays import F64, I64
from fedmiss.core import arrivals, oracles
from fedmiss.core.fingerprint import describe, digest
from fedmiss.core.participation import Full
from fedmiss.core.protocols import Compressor, Model, Oracle, Participation, Rows, Shards
from fedmiss.core.state import (
    Downlink,
    Dropped,
    Replies,
    Roster,
    RoundInfo,
    ServerState,
    Uplink,
    WorkerState,
)
from fedmiss.core.wire import HEADER, REFUSED, frame
from fedmiss.errors import ConfigError, DomainError
from fedmiss.rng import uniforms

__all__ = ["FedEM", "naive_fedem", "spider_em", "theta_bytes", "vr_fedem"]

_MEMORIES = ("field", "none")


@dataclass(frozen=True, slots=True, eq=False)
class FedEM:
    """Find the root of the mean field h(s) = sum_c w_c [s_bar_c(T(s)) - s] from compressed, local answers.

    Workers send a quantized increment of what the server does not know yet: ``D_c = S_c - S_k - V_c``, where the
    memory V_c learns h_c(S_k). Compressing S_c - S_k itself (the naive way) leaves an error that never vanishes
    when workers differ, since their h_c are not zero at the solution.

    Source: Dieuleveut, Fort, Moulines, Robin (2021), algorithm 1 (= 3 and 4); algorithm 2 with
    ``oracle=Spider(...)``. Differs in: weights w_c and probabilities p_c may differ between workers (the paper has
    1/n and p); a worker adds alpha Quant(D_c) to V_c only when told that its message counted.

    Parameters
    ----------
    model : Model
    compressor : Compressor
    roster : Roster            the workers, their sizes and weights
    gamma : float or function of the round k
    alpha : float or None      step of the memories; None is 1 / (1 + omega)
    participation : Participation
    oracle : Oracle            how S_c is estimated: Full(), Minibatch(b), Spider(b, k_in)
    seed : int                 of every draw of the run
    memory : "field" (V_c learns h_c) or "none" (V_c stays 0: the naive ablation)
    bound : float or None      drop a message more than ``bound`` times as long as the round's median message.
        None, the default, drops none: no theorem asks for it, and honest workers may differ by any factor
    job : str                  name of the job; messages and stored states of another job are refused
    """

    model: Model
    compressor: Compressor
    roster: Roster
    gamma: float | Callable[[int], float]
    alpha: float = None  # type: ignore[assignment]  # filled by __post_init__
    participation: Participation = field(default_factory=Full)
    oracle: Oracle = field(default_factory=oracles.Full)
    seed: int = 0
    memory: str = "field"
    bound: float | None = None
    job: str = ""
    _identity: tuple[bytes, bytes] | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        if self.alpha is None:  # mypy believes the annotation
            object.__setattr__(  # type: ignore[unreachable]
                self, "alpha", 1.0 / (1.0 + self.compressor.omega(self.model.q))
            )
        if not 0.0 <= self.alpha <= 1.0:
            raise ConfigError(f"alpha={self.alpha} is not in [0, 1]; use 1/(1+omega) (alpha=None).")
        if self.memory not in _MEMORIES:
            raise ConfigError(f"memory={self.memory!r} is unknown; use one of {', '.join(_MEMORIES)}.")
        if self.memory == "none":
            object.__setattr__(self, "alpha", 0.0)
        if self.bound is not None and not self.bound > 1.0:
            raise ConfigError(
                f"bound={self.bound} (must be above 1, the length of the median message); try 100."
            )
        self.step(0)
        if isinstance(self.oracle, oracles.Spider) and hasattr(self.model, "carry_start"):
            raise ConfigError("VR-FedEM needs a model whose T depends on S only; use FedEM for this one.")
        self.participation.prob(self.roster.n)  # raises now, not at round 1

    def step(self, k: int) -> float:
        """gamma_k; a schedule is checked at each round."""
        if not callable(self.gamma):
            if not 0.0 < self.gamma <= 1.0:
                raise ConfigError(f"gamma={self.gamma} is not in (0, 1]; try 0.1.")
            return float(self.gamma)
        value = self.gamma(k)
        try:
            gamma = float(value)
        except (TypeError, ValueError):
            raise ConfigError(f"the schedule gives gamma={value!r} at round {k}, not a number.") from None
        if not (math.isfinite(gamma) and 0.0 < gamma <= 1.0):
            raise ConfigError(
                f"the schedule gives gamma={gamma} at round {k}, which is not in (0, 1]; bound it below and above."
            )
        return gamma

    # ---- identity ---------------------------------------------------------------------------------------------

    def settings(self) -> dict[str, str]:
        """Everything that decides the result beside the data, in words: what a checkpoint must agree with."""
        r = self.roster
        return {
            "job": self.job,
            "seed": str(self.seed),
            "alpha": repr(float(self.alpha)),
            "gamma": describe(self.gamma),
            "memory": self.memory,
            "bound": describe(self.bound),
            "n": str(r.n),
            "names": digest("\n".join(r.ids)).hex(),
            "sizes": describe(r.sizes),
            "weighting": f"{r.weighting} {describe(r.weights)}",
            "q": str(self.model.q),
            "model": describe(self.model),
            "compressor": describe(self.compressor),
            "participation": describe(self.participation),
            "oracle": describe(self.oracle),
        }

    @property
    def identity(self) -> tuple[bytes, bytes]:
        """(job, settings), 8 bytes each, as messages carry them; computed once."""
        if self._identity is None:
            text = "\n".join(f"{k}={v}" for k, v in sorted(self.settings().items()))
            object.__setattr__(self, "_identity", (digest(self.job), digest(text)))
        assert self._identity is not None
        return self._identity

    def context(self, worker: str) -> bytes:
        """What the checksum of a worker's frame covers beside the frame: job, settings, name."""
        return b"".join(self.identity) + worker.encode()

    def costs(self, slot: int) -> tuple[int, ...] | None:
        """Numbers of conditional expectations that one answer of ``slot`` may cost, None if the oracle lists none."""
        listed = getattr(self.oracle, "costs", None)
        return None if listed is None else tuple(listed(int(self.roster.sizes[slot])))

    # ---- both sides -------------------------------------------------------------------------------------------

    def init(self, S_hat: F64, V_i: F64) -> ServerState:
        """Server's state before round 0, from S_0 (q,) and the workers' first memories (n, q) in slot order."""
        q, n = self.model.q, self.roster.n
        S_hat, V_i = np.array(S_hat, dtype=np.float64), np.asarray(V_i, dtype=np.float64)
        if S_hat.shape != (q,) or V_i.shape != (n, q):
            raise ConfigError(
                f"S_hat has shape {S_hat.shape} and V_i {V_i.shape}; expected ({q},) and ({n}, {q})."
            )
        if not np.isfinite(S_hat).all():
            raise ConfigError("S_hat holds nan or inf; start from finite numbers.")
        bad = ~arrivals.usable(V_i)
        if bad.any():
            names = ", ".join(repr(self.roster.ids[c]) for c in np.flatnonzero(bad)[:5])
            raise ConfigError(
                f"the first memory of worker {names} ({int(bad.sum())} of {n}) holds nan, inf or a number above "
                f"{arrivals.LARGEST:g}; look at that worker's data, or leave it out."
            )
        if self.memory == "none" and V_i.any():
            raise ConfigError(
                'memory="none" (naive_fedem) has memories of 0 throughout; start with init="zero".'
            )
        carry = self.model.carry_start(S_hat) if hasattr(self.model, "carry_start") else None
        V = np.add.reduce(self.roster.weights[:, None] * V_i, axis=0)
        return ServerState(S_hat, V, 0, np.full(n, -1, dtype=np.int64), carry)

    def first_memories(self, server: ServerState, S: F64) -> F64:
        """(n, q) first memories V_c = h_c(S_0), of the workers' statistics S (n, q) at S_0; zeros without memory."""
        return np.zeros_like(S) if self.memory == "none" else S - server.S_hat

    def broadcast(self, server: ServerState) -> Downlink:
        """M-step: theta_k = T(S_k), computed once, for all workers."""
        try:
            theta = (
                self.model.T(server.S_hat)
                if server.carry is None
                else self.model.T(server.S_hat, server.carry)  # type: ignore[call-arg]
            )
        except DomainError as error:
            gamma = self.step(max(server.k - 1, 0))
            raise DomainError(
                f"round {server.k}: {error} gamma={gamma:g}. Lower gamma (try {gamma / 5:g}) or start the "
                'memories with init="h".',
                k=server.k,
                **error.fields,
            ) from error
        return Downlink(server.k, server.S_hat, theta, saved=server.saved, life=server.life)

    def from_wire(self, theta: Any, Q: F64) -> F64:
        """Decoded numbers, (..., q), as an increment of the statistic."""
        return Q

    # ---- worker -----------------------------------------------------------------------------------------------

    def _uniforms(self, k: int, slots: Sequence[int] | I64) -> tuple[F64, F64]:
        """Randomness of each slot's answer to round k: (a, .) for its minibatch and (a, .) for its quantizer."""
        b = self.oracle.draws
        u = uniforms(self.seed, "worker", k, slots, b + self.compressor.draws(self.model.q))  # type: ignore[arg-type]
        return u[:, :b], u[:, b:]

    def settle(self, worker: WorkerState, ack: int) -> F64:
        """Return V_c after the last message counted (its round is ``ack``) or was lost (any other round)."""
        if worker.pending is not None and worker.pending[0] == ack:
            return worker.V_i + self.alpha * worker.pending[1]
        return worker.V_i

    def worker_step(
        self, worker: WorkerState, down: Downlink, rows: Rows, slot: int
    ) -> tuple[WorkerState, Uplink]:
        """One answer of the worker in ``slot`` (algorithm 1, lines 5-9).

        Raises UplinkError for a broadcast that is stale or does not fit the worker's memory, see
        :func:`fedmiss.core.arrivals.hear`; the state is then as it was.
        """
        name, q, kind = self.roster.ids[slot], self.model.q, self.compressor.kind
        worker, before = arrivals.hear(self, worker, down, name)
        u, xi = self._uniforms(down.k, [slot])
        S_i, memory, count = self.oracle.one(self.model, before, down, rows, u[0])
        D_i = S_i - down.S_hat - worker.V_i
        work, context = self._work_code(slot, count), self.context(name)
        if not arrivals.usable(D_i):
            message = frame(arrivals.NOTHING, kind=REFUSED, k=down.k, q=q, work=work, context=context)
            return replace(worker, oracle=memory, before=before), Uplink(down.k, name, message, count)
        payload = self.compressor.encode(D_i, xi[0])
        Q_i = self.compressor.decode(payload, q)  # the very numbers that the server will see
        message = frame(payload, kind=kind, k=down.k, q=q, work=work, context=context)
        state = replace(worker, pending=(down.k, Q_i), oracle=memory, before=before)
        return state, Uplink(down.k, name, message, count)

    def _work_code(self, slot: int, count: int) -> int:
        costs = self.costs(slot)
        if costs is None:
            return 15
        if count not in costs[:15]:
            raise ConfigError(
                f"{self.oracle} computed {count} conditional expectations; costs() lists {costs}."
            )
        return costs.index(count)

    def workers_step(self, V: F64, memory: Any, down: Downlink, data: Shards, slots: I64) -> Replies:
        """Answers of many workers at once, with the bits of :meth:`worker_step`; changes V (n, q) in place.

        Only for an engine that loses nothing between worker and server: V_c is committed here and now.
        """
        u, xi = self._uniforms(down.k, slots)
        S, count = self.oracle.many(self.model, memory, down, data, slots, u)
        at = slice(None) if len(slots) == len(V) else slots  # a slice is a view: no copy when all answer
        D = S - down.S_hat
        D -= V[at]
        dropped: tuple[Dropped, ...] = ()
        refused = 0
        if not np.vdot(D, D) < arrivals.LARGEST**2:  # one pass; who it is, is only asked then
            good = arrivals.usable(D)
            dropped = tuple(
                Dropped(down.k, name, arrivals.nothing(name, down.k))
                for name in (self.roster.ids[c] for c in slots[~good])
            )
            refused, slots, D, xi = len(dropped), slots[good], D[good], xi[good]
            at = slots
        Q, nbytes = self.compressor.compress_batch(D, xi)
        size = int(nbytes.sum()) + HEADER * len(slots) + (HEADER + len(arrivals.NOTHING)) * refused
        if self.bound is not None and (far := arrivals.outliers(Q, self.bound)).any():
            dropped += tuple(arrivals.too_long(self, down.k, slots[far]))
            slots, Q, D = slots[~far], Q[~far], D[~far]
            at = slots
        free = None if np.may_share_memory(Q, D) else D  # D is done with, unless Q is D (identity)
        V[at] += np.multiply(self.alpha, Q, out=free)
        return Replies(slots, Q, size, count, dropped)

    # ---- server -----------------------------------------------------------------------------------------------

    def collect(
        self, down: Downlink, active: I64, uplinks: Iterable[Uplink], dropped: Iterable[Dropped] = ()
    ) -> Replies:
        """Check and decode the messages of a round, see :func:`fedmiss.core.arrivals.collect`."""
        return arrivals.collect(self, down, active, uplinks, dropped)

    def server_step(
        self, server: ServerState, down: Downlink, replies: Replies
    ) -> tuple[ServerState, RoundInfo]:
        """Aggregate a round (algorithm 1, lines 14-16)."""
        gamma, slots, Q = self.step(server.k), replies.slots, replies.Q
        w = self.roster.weights[slots]
        p = self.participation.prob(self.roster.n)[slots]
        H = server.V + _weighted_sum(w / p, Q)  # line 14: (1/(n p)) sum over the active workers
        S_hat = server.S_hat + gamma * H  # line 15
        V = server.V + self.alpha * _weighted_sum(w, Q)  # line 16: no 1/p here, V stays the mean of V_c
        acks = server.acks.copy()
        acks[slots] = server.k
        carry, h_norm2 = server.carry, float(H @ H)
        if carry is not None:
            model: Any = self.model
            if hasattr(model, "h_norm2"):
                h_norm2 = float(model.h_norm2(H, carry, down.theta))
            carry = model.advance(carry, down.theta, gamma)
        a = len(slots)
        bytes_down = a * (HEADER + 8 * self.model.q + theta_bytes(down.theta))
        info = RoundInfo(
            server.k, gamma, h_norm2, a, replies.bytes_up, bytes_down, replies.evaluations, replies.dropped
        )
        return replace(server, S_hat=S_hat, V=V, k=server.k + 1, acks=acks, carry=carry), info


def _weighted_sum(coef: F64, Q: F64) -> F64:
    """sum_i coef_i Q_i, added in slot order (so that every engine gives the same bits)."""
    if len(coef) == 0:
        return np.zeros(Q.shape[1])
    if bool((coef == coef[0]).all()):
        total: F64 = coef[0] * np.add.reduce(Q, axis=0)
        return total
    out: F64 = np.add.reduce(coef[:, None] * Q, axis=0)
    return out


def theta_bytes(theta: Any) -> int:
    """Bytes of the arrays and numbers in a parameter, as they are counted in ``bytes_down``."""
    if isinstance(theta, np.ndarray):
        return int(theta.nbytes)
    if isinstance(theta, (tuple, list)):
        return sum(theta_bytes(part) for part in theta)
    if isinstance(theta, dict):
        return sum(theta_bytes(part) for part in theta.values())
    if is_dataclass(theta):
        return sum(theta_bytes(getattr(theta, f.name)) for f in fields(theta))
    return 8 if isinstance(theta, (int, float)) else 0


def vr_fedem(*, b: int, k_in: int, replace: bool = True, **settings: Any) -> FedEM:
    """VR-FedEM (algorithm 2): FedEM whose workers estimate S_c by SPIDER's recursion, see :class:`~.oracles.Spider`."""
    return FedEM(oracle=oracles.Spider(b, k_in, replace), **settings)


def spider_em(*, b: int, k_in: int, replace: bool = True, **settings: Any) -> FedEM:
    """SPIDER-EM: VR-FedEM with one worker and no compression."""
    algo = vr_fedem(b=b, k_in=k_in, replace=replace, **settings)
    if algo.roster.n != 1 or algo.compressor.omega(algo.model.q) != 0.0:
        raise ConfigError(
            f"SPIDER-EM has one worker and no compression; got n={algo.roster.n}, "
            f"omega={algo.compressor.omega(algo.model.q):g}. Use vr_fedem."
        )
    return algo


def naive_fedem(algo: FedEM) -> FedEM:
    """The same run without memories: the ablation of the paper, section 2.

    V_c = 0 throughout, enforced: init "h" and "zero" both start at 0, other values raise ConfigError.
    """
    return replace(algo, alpha=0.0, memory="none")
