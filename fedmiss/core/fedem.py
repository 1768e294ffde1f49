"""FedEM with partial participation, and its relatives that differ in one setting only."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any

import numpy as np

from fedmiss.arrays import F64, I64
from fedmiss.core import oracles
from fedmiss.core.participation import Full
from fedmiss.core.protocols import Compressor, Model, Oracle, Participation, Rows, Shards
from fedmiss.core.state import Downlink, Replies, Roster, RoundInfo, ServerState, Uplink, WorkerState
from fedmiss.core.wire import HEADER, frame, unframe
from fedmiss.errors import ConfigError, DomainError, UplinkError
from fedmiss.rng import uniforms

__all__ = ["FedEM", "naive_fedem", "spider_em", "theta_bytes", "vr_fedem"]


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
    """

    model: Model
    compressor: Compressor
    roster: Roster
    gamma: float | Callable[[int], float]
    alpha: float = None  # type: ignore[assignment]  # filled by __post_init__
    participation: Participation = field(default_factory=Full)
    oracle: Oracle = field(default_factory=oracles.Full)
    seed: int = 0

    def __post_init__(self) -> None:
        if self.alpha is None:  # mypy believes the annotation
            object.__setattr__(  # type: ignore[unreachable]
                self, "alpha", 1.0 / (1.0 + self.compressor.omega(self.model.q))
            )
        if not 0.0 <= self.alpha <= 1.0:
            raise ConfigError(f"alpha={self.alpha} is not in [0, 1]; use 1/(1+omega) (alpha=None).")
        if not callable(self.gamma) and not 0.0 < self.gamma <= 1.0:
            raise ConfigError(f"gamma={self.gamma} is not in (0, 1]; try 0.1.")
        if isinstance(self.oracle, oracles.Spider) and hasattr(self.model, "carry_start"):
            raise ConfigError("VR-FedEM needs a model whose T depends on S only; use FedEM for this one.")
        self.participation.prob(self.roster.n)  # raises now, not at round 1

    def step(self, k: int) -> float:
        """gamma_k."""
        return float(self.gamma(k)) if callable(self.gamma) else float(self.gamma)

    # ---- both sides -------------------------------------------------------------------------------------------

    def init(self, S_hat: F64, V_i: F64) -> ServerState:
        """Server's state before round 0, from S_0 (q,) and the workers' first memories (n, q) in slot order."""
        q, n = self.model.q, self.roster.n
        S_hat, V_i = np.array(S_hat, dtype=np.float64), np.asarray(V_i, dtype=np.float64)
        if S_hat.shape != (q,) or V_i.shape != (n, q):
            raise ConfigError(
                f"S_hat has shape {S_hat.shape} and V_i {V_i.shape}; expected ({q},) and ({n}, {q})."
            )
        carry = self.model.carry_start(S_hat) if hasattr(self.model, "carry_start") else None
        V = np.add.reduce(self.roster.weights[:, None] * V_i, axis=0)
        return ServerState(S_hat, V, 0, np.full(n, -1, dtype=np.int64), carry)

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
        return Downlink(server.k, server.S_hat, theta)

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
        """One answer of the worker in ``slot`` (algorithm 1, lines 5-9)."""
        V_i = self.settle(worker, down.ack)
        u, xi = self._uniforms(down.k, [slot])
        S_i, memory, count = self.oracle.one(self.model, worker.oracle, down, rows, u[0])
        D_i = S_i - down.S_hat - V_i
        q = self.model.q
        payload = self.compressor.encode(D_i, xi[0])
        Q_i = self.compressor.decode(payload, q)  # the very numbers that the server will see
        message = frame(payload, kind=self.compressor.kind, k=down.k, q=q)
        name = self.roster.ids[slot]
        return WorkerState(V_i, (down.k, Q_i), memory), Uplink(down.k, name, message, count)

    def workers_step(self, V: F64, memory: Any, down: Downlink, data: Shards, slots: I64) -> Replies:
        """Answers of many workers at once, with the bits of :meth:`worker_step`; changes V (n, q) in place.

        Only for an engine that loses nothing between worker and server: V_c is committed here and now.
        """
        u, xi = self._uniforms(down.k, slots)
        S, count = self.oracle.many(self.model, memory, down, data, slots, u)
        at = slice(None) if len(slots) == len(V) else slots  # a slice is a view: no copy when all answer
        D = S - down.S_hat
        D -= V[at]
        Q, nbytes = self.compressor.compress_batch(D, xi)
        free = None if np.may_share_memory(Q, D) else D  # D is done with, unless Q is D (identity)
        V[at] += np.multiply(self.alpha, Q, out=free)
        return Replies(slots, Q, int(nbytes.sum()) + HEADER * len(slots), count)

    # ---- server -----------------------------------------------------------------------------------------------

    def collect(self, down: Downlink, active: I64, uplinks: Iterable[Uplink]) -> Replies:
        """Check and decode the messages of a round, in slot order whatever their order of arrival."""
        q, asked = self.model.q, set(np.asarray(active).tolist())
        got: dict[int, Uplink] = {}
        for up in uplinks:
            slot = self.roster.slots.get(up.worker)
            if slot is None or slot not in asked:
                raise UplinkError(
                    f"worker {up.worker!r} answered round {down.k} without being asked; its message is ignored.",
                    worker=up.worker,
                    k=down.k,
                )
            if slot in got:
                raise UplinkError(
                    f"worker {up.worker!r} answered round {down.k} twice; two processes run under one name: "
                    "stop one.",
                    worker=up.worker,
                    k=down.k,
                )
            got[slot] = up
        slots = np.array(sorted(got), dtype=np.int64)
        Q = np.empty((len(slots), q))
        for i, slot in enumerate(slots):
            up = got[int(slot)]
            payload = unframe(up.payload, kind=self.compressor.kind, k=down.k, q=q, worker=up.worker)
            try:
                Q[i] = self.compressor.decode(payload, q)
            except UplinkError as error:
                raise UplinkError(
                    f"worker {up.worker!r} at round {down.k}: {error}", worker=up.worker, k=down.k
                ) from None
        return Replies(
            slots, Q, sum(len(u.payload) for u in got.values()), sum(u.evaluations for u in got.values())
        )

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
        info = RoundInfo(server.k, gamma, h_norm2, a, replies.bytes_up, bytes_down, replies.evaluations)
        return ServerState(S_hat, V, server.k + 1, acks, carry), info


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
    """The same run without memories (alpha = 0; start it with init="zero"): the ablation of the paper, section 2."""
    return replace(algo, alpha=0.0)
