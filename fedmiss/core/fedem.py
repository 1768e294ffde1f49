"""FedEM with partial participation: one worker step, one server step, for every method of the papers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fedmiss.arrays import F64, I64
from fedmiss.core import checks, oracles
from fedmiss.core.messages import HEADER
from fedmiss.core.participation import Full
from fedmiss.core.protocols import Compressor, Model, Oracle, Participation, Shards, WorkerContext
from fedmiss.core.rules import Field as Rule
from fedmiss.core.rules import rule_of
from fedmiss.core.state import Downlink, Replies, Roster, RoundInfo, ServerState, leaves
from fedmiss.errors import DomainError
from fedmiss.rng import rng_for, uniforms
from fedmiss.settings import kinds_checked


@kinds_checked
@dataclass(frozen=True, slots=True, eq=False)
class FedEM:
    """Find the root of the mean field h(s) = sum_c w_c [s_bar_c(T(s)) - s] from compressed, local answers.

    Workers send a quantized increment of what the server does not know yet, where the memory V_c learns h_c(S_k).

    Source: Dieuleveut, Fort, Moulines, Robin (2021), algorithm 1 (= 3 and 4), whose lines the comments number; algorithm 2
    with ``oracle=Spider(...)``. Differs in: weights w_c and probabilities p_c may differ between workers (1/n and p there).

    Parameters
    ----------
    gamma : float or function of the round k
    alpha : float or None      step of the memories; None is 1 / (1 + omega)
    oracle : Oracle            how S_c is estimated: FullBatch(), Minibatch(b), Spider(b, k_in)
    seed : int                 of every draw of the run
    memory : what a worker remembers as V_c and how the server moves: a rule of :mod:`fedmiss.core.rules`, or its name:
        "field" (FedEM), "statistic", "error" (error feedback), and the ablations "none" (naive) and "bare"
    bound : float or None      drop a message more than ``bound`` times as long as the round's median message
    downlink : Compressor or None      compress broadcasts too, see :func:`next_downlink`

    Examples
    --------
    >>> import numpy as np, fedmiss
    >>> from fedmiss.core import pooled_s_bar
    >>> from fedmiss.models.gmm import GMMParams
    >>> rows = np.random.default_rng(0).normal(size=(4, 50, 1)) + np.where(np.arange(50) % 2, 3, -3)[:, None]
    >>> model = fedmiss.models.GMM(G=2, d=1, covariance="known", Sigma=np.eye(1))
    >>> roster = fedmiss.core.Roster.of([50] * 4)  # four workers with 50 rows each
    >>> start = pooled_s_bar(model, GMMParams(np.array([0.5, 0.5]), np.array([[-1.0], [1.0]]), np.eye(1)), rows, roster)
    >>> algo = fedmiss.core.FedEM(model, fedmiss.compressors.Dithering(levels=2), roster, gamma=0.2)
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
    downlink: Compressor | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "alpha", checks.alpha_of(self))
        checks.check_settings(self)

    @property
    def rule(self) -> Rule:
        """What ``memory`` names."""
        return rule_of(self.memory)

    def step(self, k: int) -> float:
        """gamma_k."""
        return checks.step(self, k)

    def init(self, S_hat: F64, V_i: F64) -> ServerState:
        """Server's state before round 0, from S_0 (q,) and the workers' first memories (n, q) in slot order."""
        S_hat, V_i = checks.first_state(self, S_hat, V_i)
        carry = self.model.carry_start(S_hat) if hasattr(self.model, "carry_start") else None
        V = np.add.reduce(self.roster.weights[:, None] * V_i, axis=0)  # line 1: V_0 = sum_c w_c V_{0,c}
        shadow = None if self.downlink is None else S_hat
        return ServerState(S_hat, V, 0, np.full(self.roster.n, -1, dtype=np.int64), carry, shadow)

    def broadcast(self, server: ServerState) -> Downlink:
        """M-step: theta_k = T(S_k), computed once, for all workers (line 17)."""
        # With a compressed downlink workers hold E_k instead of S_k, and the M-step must be at what they hold.
        S_hat, model = server.S_hat if server.shadow is None else server.shadow, self.model
        try:
            S = S_hat.copy()  # an M-step that works in place must not move the server's statistic
            theta = model.T(S) if server.carry is None else model.T(S, server.carry)  # type: ignore[call-arg]
        except DomainError as error:
            raise checks.left_domain(self, server.k, error) from error
        checks.check_theta(theta, S_hat, server.k)
        return Downlink(server.k, S_hat, theta, server.V if getattr(self.oracle, "corrects", False) else None)

    def answers(
        self, V_i: F64, memory: object, down: Downlink, data: Shards, slots: I64, at: I64 | None = None
    ) -> tuple[F64, F64, F64, int]:
        """What the workers in ``slots`` have to say (lines 6 and 7); one worker alone gets the bits that it gets among all.

        ``V_i`` (a, q) are their memories, ``memory`` the oracle's, changed in place; ``slots[i]`` has place ``at[i]`` in
        ``data`` (default: its slot). Returns increments D (a, q), the same in the coordinates in which they are compressed,
        the uniforms of the quantizers, and the number of conditional expectations.
        """
        at, draws = slots if at is None else at, self.oracle.draws
        # One row of uniforms for each worker, keyed by its slot: the same draws whoever else answers, hence the same bits.
        u = uniforms(self.seed, "worker", down.k, slots, draws + self.compressor.draws(self.model.q))  # type: ignore[arg-type]
        # Line 6 knows no memories; V_c is for oracles that correct local steps, and for MARINA.
        own = (WorkerContext(V_i, lambda i=0: rng_for(self.seed, "estep", down.k, int(slots[i]))),)
        try:  # line 6: S_{k+1,c}, an estimate of s_bar_c(T(S_k))
            wanted = own[: getattr(self.oracle, "wants_own", 0)]
            S, count = self.oracle.many(self.model, memory, down, data, at, u[:, :draws], *wanted)
        except DomainError as error:
            raise checks.left_domain_locally(self, down.k, slots, at, error) from error
        # line 7: Delta_c = S_{k+1,c} - S_k - V_{k,c}
        D = self.rule.increment(S, V_i, down, self.step(down.k))
        # Line 8 needs Quant(Delta_c) in the statistic's coordinates, line 9 sends it in those in which it is short.
        to_wire = getattr(self.model, "to_wire", None)
        return D, D if to_wire is None else to_wire(down.theta, D), u[:, draws:], count

    def settle(self, V_i: F64, D: F64, Q: F64) -> F64:
        """V_{k+1,c} = V_{k,c} + alpha Quant(Delta_c), once the messages Q of the increments D have counted (line 8)."""
        return self.rule.settle(V_i, self.rule.kept(D, Q), self.alpha)

    def server_step(
        self, server: ServerState, down: Downlink, replies: Replies
    ) -> tuple[ServerState, RoundInfo]:
        """Aggregate a round (lines 14 to 16)."""
        gamma, slots, Q = self.step(server.k), replies.slots, replies.Q
        w, p = self.roster.weights[slots], self.participation.prob(self.roster.n)[slots]
        # 1 / p_c makes up for the absent in H (line 14), not in V (line 16), which stays the mean of all the V_c.
        mean, scaled = weighted_sum(w, Q), weighted_sum(w / p, Q)
        # lines 14 and 16: H = V_k + sum_c (w_c / p_c) Q_c and V_{k+1} = V_k + alpha sum_c w_c Q_c
        V, H = self.rule.server(server.V, server.S_hat, mean, scaled, self.alpha, gamma)
        S_hat = self.rule.place(self.model, server.S_hat + gamma * H)  # line 15
        # Who is not in ``slots`` keeps V_c (lines 10 to 12): a worker learns from ``acks`` whether its message has counted.
        acks = server.acks.copy()
        acks[slots] = server.k
        model: Any = self.model
        carry, h_norm2 = server.carry, float(H @ H)
        if carry is not None:
            h_norm2 = float(model.h_norm2(H, carry, down.theta)) if hasattr(model, "h_norm2") else h_norm2
            carry = model.advance(carry, down.theta, gamma)
        shadow, bytes_down = next_downlink(self, server, down, S_hat, slots)
        up = (replies.bytes_up, bytes_down, replies.evaluations, replies.dropped, replies.away)
        info = RoundInfo(server.k, gamma, h_norm2, len(slots), *up)
        return ServerState(S_hat, V, server.k + 1, acks, carry, shadow), info


def next_downlink(
    algo: FedEM, server: ServerState, down: Downlink, S_hat: F64, slots: I64
) -> tuple[F64 | None, int]:
    """Return what the workers will hold (None: S_k itself), and the bytes of the round's broadcast.

    With a compressed downlink workers hold E_k, which moves by C(S_k - E_k) / (1 + omega), and answer at T(E_k), which
    each computes itself. A worker whose answer of the round before did not count gets E_k whole.

    Source: Philippenko and Dieuleveut (2020), Artemis, with the memory on the server; not in the paper.
    """
    a, q, quant = len(slots), algo.model.q, algo.downlink
    V = 0 if down.V is None else 8 * q
    # Without compression everybody gets S_k and theta_k = T(S_k), line 17 of algorithm 1.
    if quant is None or server.shadow is None:
        return None, a * (HEADER + 8 * q + theta_bytes(down.theta) + V)
    u = uniforms(algo.seed, "downlink", server.k, [0], quant.draws(q))[0]
    code = quant.encode(S_hat - server.shadow, u)
    # E_k is the same at all who heard the last round; the others (no answer counted) get it whole, and go on from there.
    follow = int((server.acks[slots] == server.k - 1).sum()) if server.k else 0
    size = follow * (HEADER + len(code) + V) + (a - follow) * (HEADER + 8 * q + V)
    # 1 / (1 + omega) is the step of the memory, as alpha is upwards.
    return server.shadow + quant.decode(code, q) / (1.0 + quant.omega(q)), size


def weighted_sum(coef: F64, Q: F64) -> F64:
    """sum_i coef_i Q_i, added in slot order (so that every engine gives the same bits)."""
    if len(coef) == 0:
        return np.zeros(Q.shape[1])
    # One product for equal weights: faster, and the same operations in every engine.
    if bool((coef == coef[0]).all()):
        total: F64 = coef[0] * np.add.reduce(Q, axis=0)
        return total
    out: F64 = np.add.reduce(coef[:, None] * Q, axis=0)
    return out


def theta_bytes(theta: object) -> int:
    """Bytes of the arrays and numbers in a parameter, as they are counted in ``bytes_down``."""
    return sum(
        part.nbytes if isinstance(part, np.ndarray) else 8
        for part in leaves(theta)
        if isinstance(part, np.ndarray | int | float)
    )
