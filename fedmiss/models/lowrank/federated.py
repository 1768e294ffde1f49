"""The fast solver over the wire: normal equations as the statistic of FedEM, with compression and absences.

Each round has two exchanges, one for sites and one for months. In each, a group's statistic S_c is the weighted
least squares problem of its cells at the current parameters, in the form (r, G) with r = G coef + gradient, so that
it stops moving at the fixed point. A group sends Quant(S_c - V_c); its memory V_c learns S_c, the increments vanish,
and with them the noise of compression. The server solves (G + ridge) coef = r. With an identity compressor and all
groups present that is one sweep of the in-process solver, with capped steps. The next round starts a little further
along the same way (:class:`Momentum`), which costs 8 bytes a group.

Two settings of the core differ from FedEM's. V_c tracks S_c rather than S_c - S_hat, and a silent group counts
with what is remembered of it instead of being made up for by the factor 1/p of the others (incremental EM, Neal and
Hinton 1998): with exact local statistics the memories are the better estimate, and least squares is
sensitive to the noise that 1/p adds to G.

A site costs (r+1)(r+4)/2 numbers where algorithm 7 sends a residual for every observed cell in every one of its
many more rounds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from fedmiss.arrays import F64, I64
from fedmiss.core import FedEM, Remembered, Roster, ServerState
from fedmiss.core.protocols import Compressor, Engine, Participation
from fedmiss.core.state import Downlink
from fedmiss.models.lowrank.data import Cells
from fedmiss.models.lowrank.families import Family, family_of
from fedmiss.models.lowrank.newton import as_design
from fedmiss.models.lowrank.residual import numbers_sent
from fedmiss.models.lowrank.solver import (
    _Phase,
    cells_loss,
    grow,
    objective,
    penalty_value,
    recentre,
    set_eta,
    start_theta,
)
from fedmiss.models.lowrank.theta import Penalty, Theta

__all__ = ["FederatedFit", "NormalEquations", "fit_federated"]


class _Rows:
    """A group's cells as the core wants rows: it only asks how many there are."""

    def __init__(self, cells: Cells) -> None:
        self.cells = cells

    def __len__(self) -> int:
        return max(self.cells.nnz, 1)


class NormalEquations:
    """One exchange as a model of the core: s_bar gives a group's (r, G), T solves for the coefficients.

    Parameters
    ----------
    size, p : number of blocks (sites or months) and of coefficients in each
    ridge : (p,) ridge of each coefficient, divided by the number of groups (the core averages over groups)
    by_site : which axis the blocks are
    effects : whether the first coefficient is an effect whose design is 1
    """

    def __init__(
        self, size: int, p: int, ridge: F64, family: Family, *, by_site: bool, effects: bool
    ) -> None:
        self.size, self.p, self.ridge, self.family = size, p, ridge, family
        self.by_site, self.effects = by_site, effects
        self._low = np.tril_indices(p)

    @property
    def q(self) -> int:
        """Numbers in the statistic: p + p(p+1)/2 for each site (month), side by side.

        Quantize with that block length: sites differ by orders of magnitude, and each should err in proportion.
        """
        return self.size * (self.p + self.p * (self.p + 1) // 2)

    def coefficients(self, theta: Theta) -> F64:
        """Coefficients of this axis, (size, p)."""
        return theta.sides(self.effects)[0 if self.by_site else 1]

    def design(self, theta: Theta) -> F64:
        """Design of this axis, made of the other axis's coefficients."""
        return as_design(theta.sides(self.effects)[1 if self.by_site else 0], effects=self.effects)

    def s_bar(self, theta: Theta, rows: _Rows) -> F64:
        """Return the group's normal equations at ``theta``, flattened."""
        set_eta([rows.cells], theta)
        phase = _Phase([rows.cells], self.size, self.family, by_site=self.by_site)
        g, G, _ = phase.sums(self.design(theta))
        r = g + np.einsum("nab,nb->na", G, self.coefficients(theta))
        return np.hstack([r, G[:, self._low[0], self._low[1]]]).ravel()

    def T(self, S: F64) -> F64:
        """Solve every block; a curvature that noise made indefinite is lifted to be positive."""
        n, p = self.size, self.p
        table = S.reshape(n, -1)
        r, low = table[:, :p], table[:, p:]
        G = np.empty((n, p, p))
        G[:, self._low[0], self._low[1]] = low
        G[:, self._low[1], self._low[0]] = low
        values, vectors = np.linalg.eigh(G)
        values = np.maximum(values, 0.0)[:, :, None]
        A = vectors @ (values * np.swapaxes(vectors, 1, 2))
        A[:, np.arange(p), np.arange(p)] += self.ridge + 1e-12 * (1.0 + values.max(axis=(1, 2))[:, None])
        out: F64 = np.linalg.solve(A, r[:, :, None])[:, :, 0]
        return out


@dataclass(frozen=True, slots=True)
class FederatedFit:
    """Parameters and what they cost: the objective (seen centrally), bytes and seconds, after each round."""

    theta: Theta
    objective: F64
    bytes_up: F64
    bytes_down: F64
    rounds: int
    seconds: F64


def fit_federated(
    cells: Sequence[Cells],
    J: int,
    L: int,
    *,
    engine: Callable[[list[_Rows]], Engine],
    compressor: Compressor,
    participation: Participation,
    family: str | Family = "poisson",
    rank: int = 2,
    penalty: Penalty | None = None,
    effects: bool = True,
    rounds: int = 100,
    alpha: float | None = None,
    target: float | None = None,
    start: Theta | None = None,
    seed: int = 0,
) -> FederatedFit:
    """Minimise the penalised objective of :mod:`.solver` by exchanges of compressed normal equations.

    Parameters
    ----------
    cells : one :class:`Cells` per group, filled, sorted by name
    engine : makes an engine of the groups' rows, for example ``fedmiss.engines.LocalEngine``
    alpha : step of the memories; None is 1/(1 + omega)
    target : stop when the objective is below it (in simulations: it looks at all groups' cells)
    start : parameters to start from; None grows the factors from the residual as the in-process solver does, by sums
        over groups that the first round's bytes hold
    """
    # many parameters: the documented interface, given by name
    pen, family = penalty or Penalty(), family_of(family)
    rank = min(rank, J, L)
    sent, got = 0.0, 0.0
    if start is None:
        # Where the in-process solver starts: factors drawn at random end in a second local optimum for some seeds.
        start = grow(cells, start_theta(cells, J, L, 0, family, effects), rank, family, seed)
        sent, got = (8.0 * len(cells) * q for q in numbers_sent(J, L, rank)) if rank else (0.0, 0.0)
    theta = start
    roster = Roster.of({c.name: max(c.nnz, 1) for c in cells})
    sides = []
    for by_site, size, ridge in ((True, J, pen.sites), (False, L, pen.months)):
        ridges = np.r_[ridge, np.full(rank, pen.factors)][1 - effects :] / len(cells)
        model = NormalEquations(size, len(ridges), ridges, family, by_site=by_site, effects=effects)
        algo = FedEM(
            model, compressor, roster, gamma=1.0, alpha=alpha,  # type: ignore[arg-type]
            participation=Remembered(participation), seed=2 * seed + int(by_site),
        )  # fmt: skip
        sides.append(_Side(algo, model, engine([_Rows(c) for c in cells])))
    began, clock, values = time.perf_counter(), [], []
    traffic: list[tuple[float, float]] = []  # bytes up and down
    found, momentum = theta, Momentum(theta)
    losses = np.full(len(cells), np.nan)  # of each group where a round started, as last heard
    for _ in range(rounds):
        ahead, heard = theta, sides[0].active()
        there = [cells[c] for c in heard]
        set_eta(there, ahead)
        losses[heard] = [cells_loss([c], family) for c in there]
        sent += 8.0 * len(heard)
        for side in sides:
            theta, up, down = side.exchange(theta)
            sent, got = sent + up, got + down
        found = theta
        values.append(objective(cells, found, pen, family))
        clock.append(time.perf_counter() - began)
        traffic.append((sent, got))
        sent, got = 0.0, 0.0
        if target is not None and values[-1] <= target:
            break
        theta = momentum.start(ahead, float(losses.sum()) + penalty_value(ahead, pen), found)
    bytes_up, bytes_down = np.cumsum(np.array(traffic).reshape(-1, 2), axis=0).T
    return FederatedFit(found, np.array(values), bytes_up, bytes_down, len(values), np.array(clock))


@dataclass(slots=True)
class _Side:
    """The exchanges of one axis: its algorithm, its machine, and what the server knows."""

    algo: FedEM
    model: NormalEquations
    machine: Engine
    server: ServerState | None = None

    def _known(self) -> ServerState:
        if self.server is None:  # nothing is remembered: the first increments are the statistics themselves
            q, n = self.model.q, self.algo.roster.n
            self.server = self.machine.start(self.algo, np.zeros(q), np.zeros((n, q)))
        return self.server

    def active(self) -> I64:
        """Slots of the groups that answer now."""
        return self.algo.participation.active(self.algo.seed, self._known().k, self.algo.roster.n)

    def exchange(self, theta: Theta) -> tuple[Theta, float, float]:
        """Ask for the normal equations at ``theta`` and solve them; return bytes up and down too."""
        server, q, active = self._known(), self.model.q, self.active()
        down = Downlink(server.k, np.zeros(q), theta)
        replies = self.machine.round(self.algo, server, down, active)
        self.server, info = self.algo.server_step(replace(server, S_hat=down.S_hat), down, replies)
        # S_hat = 0 + 1 * H: the estimate of the mean S_c
        moved = _move(theta, self.model, self.model.T(self.server.S_hat))
        return moved, info.bytes_up, info.bytes_down - len(active) * 8 * q


@dataclass(slots=True)
class Momentum:
    """Nesterov's momentum at the server. Alternation creeps along the valleys of U V'.

    It starts again from nothing when the round turns back against the way taken (O'Donoghue and Candes 2015; for
    alternating least squares Mitchell, Ye and De Sterck 2020), and when the objective where the round started is above
    that of the round before: noise in the messages would feed on itself. For that each group sends its loss, 8 bytes.
    """

    old: Theta
    pace: float = 1.0
    value: float = np.inf

    def start(self, ahead: Theta, value: float, new: Theta) -> Theta:
        """Where the next round starts, after one that started at ``ahead`` with objective ``value`` and found ``new``."""
        way = _apart(new, self.old)
        back = sum(float((d * w).sum()) for d, w in zip(_apart(ahead, new), way, strict=True)) > 0.0
        if back or not value <= self.value:
            self.pace = 1.0
        after = 0.5 * (1.0 + float(np.sqrt(1.0 + 4.0 * self.pace**2)))
        far = (self.pace - 1.0) / after
        self.old, self.pace, self.value = new, after, value
        mu, a, b, U, V = (far * w for w in way)
        return Theta(new.mu + float(mu), new.a + a, new.b + b, new.U + U, new.V + V)


def _apart(x: Theta, y: Theta) -> list[F64]:
    return [np.array(x.mu - y.mu), x.a - y.a, x.b - y.b, x.U - y.U, x.V - y.V]


def _move(theta: Theta, model: NormalEquations, coef: F64) -> Theta:
    """Take the new coefficients of one axis, with steps of at most 0.5 unless they are exact (Gaussian), then recentre."""
    old = model.coefficients(theta)
    step = coef - old
    if not model.family.quadratic:
        step *= np.minimum(1.0, 0.5 / np.maximum(np.abs(step).max(axis=1), 1e-300))[:, None]
    sites, months = theta.sides(model.effects)
    sides = (old + step, months) if model.by_site else (sites, old + step)
    theta = theta.with_sides(theta.mu, *sides, model.effects)
    return recentre(theta) if model.effects else theta
