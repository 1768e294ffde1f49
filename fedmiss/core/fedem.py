"""FedEM with partial participation: one worker step, one server step, for every method of the papers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from fedmiss.arrays import F64, I64
from fedmiss.core import arrivals, oracles
from fedmiss.core.checks import check_settings, check_theta, first_statistic
from fedmiss.core.fingerprint import describe, digest
from fedmiss.core.participation import Full
from fedmiss.core.protocols import Compressor, Model, Oracle, Own, Participation, Rows, Shards, Theta
from fedmiss.core.rules import Field as Rule
from fedmiss.core.rules import rule_of
from fedmiss.core.state import Downlink, Dropped, Replies, Roster, RoundInfo, ServerState, Uplink, WorkerState
from fedmiss.core.sums import compress_rows, theta_bytes, weighted_sum
from fedmiss.core.wire import HEADER, REFUSED, frame
from fedmiss.errors import ConfigError, DomainError
from fedmiss.rng import rng_for, uniforms

__all__ = ["FedEM", "compress_rows", "theta_bytes"]


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
    memory : what a worker remembers as V_c and how the server moves: a rule of :mod:`fedmiss.core.rules`, or the name of
        one: "field" (FedEM), "statistic" (FL-SAEM's safe order; gamma is usually 1), "error" (error feedback), and the
        ablations "none" (naive) and "bare" (the weekly report's Top-k)
    bound : float or None      drop a message more than ``bound`` times as long as the round's median message.
        None, the default, drops none: no theorem asks for it, and honest workers may differ by any factor
    downlink : Compressor or None
        compress broadcasts too: workers hold E_k, which moves by C(S_k - E_k) / (1 + omega), and answer at T(E_k), which
        each computes itself. A worker whose last answer did not count gets E_k whole. Source: Philippenko and Dieuleveut
        (2020), Artemis, with the memory on the server; not in the paper
    job : str                  name of the job; messages and stored states of another job are refused

    Examples
    --------
    >>> import numpy as np, fedmiss
    >>> from fedmiss.core import pooled_s_bar
    >>> from fedmiss.models.gmm import GMMParams
    >>> rows = np.random.default_rng(0).normal(size=(4, 50, 1)) + np.where(np.arange(50) % 2, 3, -3)[:, None]
    >>> model = fedmiss.models.GMM(G=2, d=1, covariance="known", Sigma=np.eye(1))
    >>> roster = fedmiss.core.Roster.of([50] * 4)  # four workers with 50 rows each
    >>> start = pooled_s_bar(model, GMMParams(np.array([0.5, 0.5]), np.array([[-1.0], [1.0]]), np.eye(1)), rows, roster)
    >>> quant, present = fedmiss.compressors.Dithering(levels=2), fedmiss.core.Bernoulli(0.75)
    >>> algo = fedmiss.core.FedEM(model, quant, roster, gamma=0.2, participation=present)
    >>> result = fedmiss.core.run(algo, fedmiss.engines.LocalEngine(rows), start, stop=100)
    >>> np.sort(result.theta.mu.ravel()).round().tolist()
    [-3.0, 3.0]
    """

    model: Model
    compressor: Compressor
    roster: Roster
    gamma: float | Callable[[int], float]
    alpha: float = None  # type: ignore[assignment]  # filled by __post_init__
    participation: Participation = field(default_factory=Full)
    oracle: Oracle = field(default_factory=oracles.Full)
    seed: int = 0
    memory: str | Rule = "field"
    bound: float | None = None
    job: str = ""
    downlink: Compressor | None = None
    _identity: tuple[bytes, bytes] | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        biased = getattr(self.compressor, "delta", None) is not None
        if self.alpha is None:  # mypy believes the annotation
            omega = 0.0 if biased else self.compressor.omega(self.model.q)  # type: ignore[unreachable]
            object.__setattr__(self, "alpha", 1.0 / (1.0 + omega))
        if not 0.0 <= self.alpha <= 1.0:
            raise ConfigError(f"alpha={self.alpha} is not in [0, 1]; use 1/(1+omega) (alpha=None).")
        if not self.rule.learns:
            object.__setattr__(self, "alpha", 0.0)
        check_settings(self)

    def step(self, k: int) -> float:
        """gamma_k; a schedule is checked at each round."""
        if not callable(self.gamma):  # checked once, when made
            return float(self.gamma)
        value = self.gamma(k)
        try:
            gamma = float(value)
        except (TypeError, ValueError):
            raise ConfigError(f"the schedule gives gamma={value!r} at round {k}, not a number.") from None
        if not (math.isfinite(gamma) and 0.0 < gamma and (gamma <= 1.0 or self.local)):
            raise ConfigError(
                f"the schedule gives gamma={gamma} at round {k}, which is not in (0, 1]; bound it below and above."
            )
        return self.check_local(k, gamma)

    @property
    def rule(self) -> Rule:
        """What ``memory`` names."""
        return rule_of(self.memory)

    @property
    def local(self) -> bool:
        """Whether the oracle makes several local steps: gamma = eta H may then exceed 1."""
        return getattr(self.oracle, "eta", None) is not None

    def check_local(self, k: int, gamma: float) -> float:
        """Return gamma; raise ConfigError when local steps move by another length."""
        if self.local:
            o: Any = self.oracle
            if not math.isclose(gamma, o.step(k) * o.H, rel_tol=1e-9):
                raise ConfigError(
                    f"gamma={gamma:g} at round {k}, but local steps of eta={o.step(k):g}, H={o.H} move by eta H; "
                    "use local_em, fed_lsa or scafflsa, which set it."
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
            "memory": self.memory if isinstance(self.memory, str) else describe(self.memory),
            "bound": describe(self.bound),
            "downlink": describe(self.downlink),
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
        S_hat, V_i = first_statistic(S_hat, q), np.asarray(V_i, dtype=np.float64)
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
        shadow = None if self.downlink is None else S_hat
        return ServerState(S_hat, V, 0, np.full(n, -1, dtype=np.int64), carry, shadow=shadow)

    def first_memories(self, server: ServerState, S: F64) -> F64:
        """(n, q) first memories with init "h", of the workers' statistics S (n, q) at S_0."""
        return self.rule.first(S, server.S_hat) if self.rule.remembers else np.zeros_like(S)

    def broadcast(self, server: ServerState) -> Downlink:
        """M-step: theta_k = T(S_k), computed once, for all workers."""
        S_hat = server.S_hat if server.shadow is None else server.shadow
        try:
            theta = (
                self.model.T(S_hat) if server.carry is None else self.model.T(server.S_hat, server.carry)  # type: ignore[call-arg]
            )
        except DomainError as error:
            if server.k == 0:
                raise DomainError(
                    f"round 0: {error} The M-step T does not take the first statistic S_0: start from one in its domain, as "
                    "pooled_s_bar(model, theta, data, roster) gives.",
                    k=0,
                    **error.fields,
                ) from error
            gamma = self.step(server.k - 1)
            raise DomainError(
                f"round {server.k}: {error} gamma={gamma:g}. Lower gamma (try {gamma / 5:g}) or start the "
                'memories with init="h".',
                k=server.k,
                **error.fields,
            ) from error
        check_theta(theta, S_hat, server.k)
        V = server.V if getattr(self.oracle, "corrects", False) else None
        return Downlink(server.k, S_hat, theta, V=V, saved=server.saved, life=server.life)

    def to_wire(self, theta: Theta, D: F64) -> F64:
        """Increments, (..., q), in the coordinates in which they are compressed (optional model member)."""
        change = getattr(self.model, "to_wire", None)
        return D if change is None else change(theta, D)

    def from_wire(self, theta: Theta, Q: F64) -> F64:
        """Decoded numbers, (..., q), as increments of the statistic: the inverse of :meth:`to_wire`."""
        change = getattr(self.model, "from_wire", None)
        return Q if change is None else change(theta, Q)

    def _own(self, k: int, V_i: F64, slots: Sequence[int] | I64) -> tuple[Own, ...]:
        """What an oracle that asks for it gets beside its uniforms: the settled V_c, and generators by worker."""
        if not getattr(self.oracle, "wants_own", False):
            return ()
        return (Own(V_i, lambda i=0: rng_for(self.seed, "estep", k, int(slots[i]))),)

    # ---- worker -----------------------------------------------------------------------------------------------

    def _uniforms(self, k: int, slots: Sequence[int] | I64) -> tuple[F64, F64]:
        """Randomness of each slot's answer to round k: (a, .) for its minibatch and (a, .) for its quantizer."""
        b = self.oracle.draws
        u = uniforms(self.seed, "worker", k, slots, b + self.compressor.draws(self.model.q))  # type: ignore[arg-type]
        return u[:, :b], u[:, b:]

    def settle(self, worker: WorkerState, ack: int) -> F64:
        """Return V_c after the last message counted (its round is ``ack``) or was lost (any other round)."""
        if worker.pending is not None and worker.pending[0] == ack:
            return self.rule.settle(worker.V_i, worker.pending[1], self.alpha)
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
        own = self._own(down.k, worker.V_i, [slot])
        try:
            S_i, memory, count = self.oracle.one(self.model, before, down, rows, u[0], *own)
        except DomainError as error:
            raise self._local_domain(error, down.k, slot) from error
        D_i = self.rule.increment(S_i, worker.V_i, down, self.step(down.k))
        X_i = self.to_wire(down.theta, D_i)
        work, context = self._work_code(slot, count), self.context(name)
        if not arrivals.usable(X_i):
            message = frame(arrivals.NOTHING, kind=REFUSED, k=down.k, q=q, work=work, context=context)
            return replace(worker, oracle=memory, before=before), Uplink(down.k, name, message, count)
        quant = self.rule.quant(self, down.k)
        payload = quant.encode(X_i, xi[0])
        # the same numbers as at the server: otherwise V and the mean of the V_c would part
        Q_i = self.from_wire(down.theta, quant.decode(payload, q))
        message = frame(payload, kind=kind, k=down.k, q=q, work=work, context=context)
        state = replace(worker, pending=(down.k, self.rule.kept(D_i, Q_i)), oracle=memory, before=before)
        return state, Uplink(down.k, name, message, count)

    def _local_domain(self, error: DomainError, k: int, slot: int) -> DomainError:
        """Name the worker, the round and the local step at which T left its domain."""
        step = error.fields.get("local_step")
        where = "" if step is None else f" at local step {step + 1} of {getattr(self.oracle, 'H', 1)}"
        name = self.roster.ids[slot]
        return DomainError(
            f"worker {name!r}, round {k}{where}: {error} Lower eta or H.", worker=name, k=k, **error.fields
        )

    def _work_code(self, slot: int, count: int) -> int:
        costs = self.costs(slot)
        if costs is None:
            return 15
        if count not in costs[:15]:
            raise ConfigError(
                f"{self.oracle} computed {count} conditional expectations; costs() lists {costs}."
            )
        return costs.index(count)

    def workers_step(self, V: F64, memory: object, down: Downlink, data: Shards, slots: I64) -> Replies:
        """Answers of many workers at once, with the bits of :meth:`worker_step`; changes V (n, q) in place.

        Only for an engine that loses nothing between worker and server: V_c is committed here and now.
        """
        u, xi = self._uniforms(down.k, slots)
        at = slice(None) if len(slots) == len(V) else slots  # a slice is a view: no copy when all answer
        # picking rows copies them: only for an oracle that asks for its own
        own = self._own(down.k, V[at], slots) if getattr(self.oracle, "wants_own", False) else ()
        try:
            S, count = self.oracle.many(self.model, memory, down, data, slots, u, *own)
        except DomainError as error:
            raise self._local_domain(error, down.k, int(error.fields.get("slot", slots[0]))) from error
        rule = self.rule
        D = rule.increment(S, V[at], down, self.step(down.k))
        X = self.to_wire(down.theta, D)
        dropped: tuple[Dropped, ...] = ()
        refused = 0
        if not np.vdot(X, X) < arrivals.LARGEST**2:  # one pass; who it is, is only asked then
            good = arrivals.usable(X)
            dropped = tuple(
                Dropped(down.k, name, arrivals.nothing(name, down.k))
                for name in (self.roster.ids[c] for c in slots[~good])
            )
            refused, slots, D, X, xi = len(dropped), slots[good], D[good], X[good], xi[good]
            at = slots
        Q, nbytes = compress_rows(rule.quant(self, down.k), X, xi)
        Q = self.from_wire(down.theta, Q)
        size = int(nbytes.sum()) + HEADER * len(slots) + (HEADER + len(arrivals.NOTHING)) * refused
        if self.bound is not None and (far := arrivals.outliers(Q, self.bound)).any():
            dropped += tuple(arrivals.too_long(self, down.k, slots[far]))
            slots, Q, D = slots[~far], Q[~far], D[~far]
            at = slots
        V[at] = rule.settle(V[at], rule.kept(D, Q), self.alpha)
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
        V, H = self.rule.server(
            server.V, server.S_hat, weighted_sum(w, Q), weighted_sum(w / p, Q), self.alpha, gamma
        )  # lines 14 and 16
        S_hat = self.rule.place(self.model, server.S_hat + gamma * H)  # line 15
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
        bytes_down += 0 if down.V is None else a * 8 * self.model.q
        shadow = server.shadow
        if self.downlink is not None and shadow is not None:
            shadow, bytes_down = self._move_shadow(server, S_hat, shadow, slots)
        info = RoundInfo(
            server.k, gamma, h_norm2, a, replies.bytes_up, bytes_down, replies.evaluations, replies.dropped
        )
        k = server.k + 1
        return ServerState(S_hat, V, k, acks, carry, server.saved, server.life, shadow), info

    def _move_shadow(self, server: ServerState, S_hat: F64, shadow: F64, slots: I64) -> tuple[F64, int]:
        """What the workers will hold, and the bytes of a broadcast: the increment, or all of E_k."""
        assert self.downlink is not None
        q, quant = self.model.q, self.downlink
        u = uniforms(self.seed, "downlink", server.k, [0], quant.draws(q))[0]
        code = quant.encode(S_hat - shadow, u)
        step = 1.0 / (1.0 + quant.omega(q))
        follow = int((server.acks[slots] == server.k - 1).sum()) if server.k else 0
        V = 8 * q if getattr(self.oracle, "corrects", False) else 0
        size = follow * (HEADER + len(code) + V) + (len(slots) - follow) * (HEADER + 8 * q + V)
        return shadow + step * quant.decode(code, q), size
