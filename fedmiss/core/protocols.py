"""The parts that fit together: Model, Compressor, Participation, Oracle, Engine.

Letters as in Dieuleveut, Fort, Moulines, Robin (NeurIPS 2021). A plug-in is any object with these members;
:mod:`fedmiss.core.testing` checks that it also obeys the laws.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np

from fedmiss.arrays import F64, I64

if TYPE_CHECKING:
    from fedmiss.core.fedem import FedEM
    from fedmiss.core.state import Downlink, Replies, ServerState

Rows = Any  # a worker's data: only len(rows) and rows[index] are asked of it by the core
Shards = Any  # the data of all workers in slot order: an (n, m, ...) array, or a sequence of Rows
Theta = Any  # a model's parameter: opaque to the core


@dataclass(frozen=True, slots=True, eq=False)
class WorkerContext:
    """What an oracle with ``wants_own`` gets beside its uniforms.

    ``V_i``: the worker's settled memory, (q,), or (a, q) for several. ``rng(i)``: the generator of the i-th of them,
    keyed by seed, round and worker, for draws whose number is not known beforehand.
    """

    V_i: F64
    rng: Callable[..., np.random.Generator]

    def of(self, at: int | I64) -> WorkerContext:
        """The context of one of several workers, or of some of them."""
        return WorkerContext(self.V_i[at], lambda i=0: self.rng(int(np.ravel(at)[i])))


@runtime_checkable
class Model(Protocol):
    """A curved exponential family, seen through its complete-data sufficient statistic.

    Optional members, used when they are there:

    ``s_bar_many(theta, data, slots, index) -> (a, q)``
        s_bar of several workers at once: ``data`` in slot order, ``index`` (a, b) row numbers or None for all.
        Must give the bits of ``s_bar(theta, data[c][index[i]])``.
    ``s_bar_mixed(thetas, which, data, slots, index) -> (a, q)``
        The same, with the i-th worker asked at ``thetas[which[i]]`` (VR-FedEM asks at two points).
    ``carry_start(S_hat) -> dict[str, array]``, ``advance(carry, theta, gamma) -> dict[str, array]``
        A companion of S_hat on the server, for a part common(theta) of s_bar that all workers share and the
        server knows: s_bar then leaves it out, ``advance`` returns (1 - gamma) carry + gamma common(theta), and
        the M-step is called as ``T(S_hat, carry)``. See :class:`fedmiss.models.lowrank.paper.FedMissEM`.
    ``h_norm2(H, carry, theta) -> float``
        ||H + common(theta) - carry||^2, the squared norm of the whole field of such a model.
    ``to_wire(theta, D)``, ``from_wire(theta, Q)``
        A linear bijection of (..., q) increments and its inverse, known on both sides from theta: the coordinates in
        which messages are compressed. Compressed moments, for one, keep their variance positive in coordinates of theta.
    ``local_walk(x, data, slots, index, eta, H, shift) -> (a, q)``
        Several steps at once, see :class:`~fedmiss.core.local_steps.LocalSteps`.
    ``check_rows(rows)``
        Raises InputError where rows are not what the model reads; the engine that was given them names the worker.
    ``log_likelihood(theta, rows) -> float``
        The MEAN over ``rows`` of log p(y; theta).
    ``surrogate(theta, S) -> float``
        psi(theta) + R(theta) - <S, phi(theta)>, what T minimises, up to what does not depend on theta.
    ``penalty(theta) -> float``
        R(theta); 0 without it. EM raises log_likelihood - penalty. ``check_model`` uses these three to find wrong
        formulas, and :func:`fedmiss.core.likelihood.watch_likelihood` writes the first into traces.
    """

    @property
    def q(self) -> int:
        """Number of entries of the statistic."""

    def s_bar(self, theta: Theta, rows: Rows) -> F64:
        """E-step: the (q,) MEAN over ``rows`` of E[s(y, Z) | y; theta]."""

    def T(self, S: F64, /) -> Theta:
        """M-step: argmin psi(theta) + R(theta) - <S, phi(theta)>; raises DomainError outside its domain."""


@runtime_checkable
class Compressor(Protocol):
    """Quant: E Quant(x) = x and E||Quant(x) - x||^2 <= omega(q) ||x||^2, with real bytes.

    All randomness of a message of q numbers is ``draws(q)`` uniforms on [0, 1), given by the caller.

    A biased compressor has ``delta(q)`` instead of ``omega(q)``: ||C(x) - x||^2 <= (1 - delta) ||x||^2.
    Optional member ``compress_batch(X, U) -> ((a, q), (a,))``: decode(encode(x)) of each row and the lengths, at once.
    """

    def draws(self, q: int) -> int:
        """Return how many uniforms one message uses."""

    def omega(self, q: int) -> float:
        """Return the exact variance factor, or a proved upper bound."""

    def encode(self, x: F64, u: F64) -> bytes:
        """Quantize and pack the (q,) vector ``x``."""

    def decode(self, payload: bytes, q: int) -> F64:
        """Unpack a message; a damaged one raises UplinkError."""


@runtime_checkable
class Participation(Protocol):
    """Who answers in round k."""

    def prob(self, n: int) -> F64:
        """(n,) probability that each worker answers."""

    def active(self, seed: int, k: int, n: int) -> I64:
        """Return the slots that answer in round ``k``, increasing."""


class Oracle(Protocol):
    """How a worker estimates its s_bar_c(theta): all rows, a minibatch, or a variance-reduced recursion.

    Optional members:

    ``wants_own``
        True to get an :class:`WorkerContext` as last argument of ``many``.
    ``corrects``
        True to have V in the broadcast.

    Derive from :class:`fedmiss.core.oracles.NoMemory` (or ``OneByOne``) to write ``draws`` and one worker's answer ``one``
    only, and check the result with :func:`fedmiss.core.testing.check_oracle`.
    """

    @property
    def draws(self) -> int:
        """How many uniforms one answer uses."""

    def start_many(self, n: int, q: int) -> Any:
        """Memory of n workers, stacked; ``many`` changes it in place."""

    def many(
        self, model: Model, memory: Any, down: Downlink, data: Shards, slots: I64, u: F64, *own: Any
    ) -> tuple[F64, int]:
        """Return (estimates (a, q), conditional expectations computed), to each the bits that it gets alone."""

    def pack(self, memory: Any) -> dict[str, np.ndarray]:
        """Arrays of a stacked memory, for a checkpoint."""

    def unpack(self, model: Model, arrays: dict[str, np.ndarray], n: int, q: int) -> Any:
        """Return the stacked memory that ``pack`` saw."""


class Engine(Protocol):
    """The machine that holds the workers and carries the messages."""

    def start(self, algo: FedEM, S_hat: F64, init: str | F64) -> ServerState:
        """Set the workers' memories V_c ("h", "zero" or (n, q) values) and return the server's first state."""

    def round(self, algo: FedEM, server: ServerState, down: Downlink, active: I64) -> Replies:
        """Ask the active workers; return the answers that arrived."""

    def save(self, algo: FedEM) -> dict[str, np.ndarray]:
        """Arrays from which :meth:`load` restores the workers' memories to the bit."""

    def load(self, algo: FedEM, arrays: dict[str, np.ndarray]) -> None:
        """Restore the workers' memories."""
