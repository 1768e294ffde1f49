"""The fast solver: alternating damped Newton on federated normal equations.

Same objective and fixed points as FedMissEM (Algorithm 7 of Dieuleveut et al. 2021), here with effects,
offsets and weights:

    F = sum_cells [ E psi(eta) - y eta ] + lambda/2 (||U||^2 + ||V||^2) + lambda_a/2 ||a||^2 + 1/2 b' Q b,
    eta_jl = mu + a_j + b_l + (U V')_jl.

Given V and b, the sites separate: site j needs the normal equations of a regression with r + 1 coefficients,
which are sums over the cells, hence over the groups. The same holds for months given U and a. A group sends
(r+1)(r+4)/2 numbers per site (month) that it has visited instead of a J x L statistic. The paper's objective
has a mean over the n groups; here it is a sum, so lambda here is n times the paper's.

Every accepted step lowers F: a step is halved, block by block, until it does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from fedmiss.arrays import F64, I64, Bool
from fedmiss.errors import DomainError
from fedmiss.models.lowrank.data import Cells
from fedmiss.models.lowrank.families import family_code

LEAP = 2  # sweeps between two leaps

__all__ = ["Fit", "Penalty", "Theta", "fit_cells", "objective", "set_eta"]


@dataclass(frozen=True, slots=True)
class Penalty:
    """Ridges of the objective, on the scale of the summed loss.

    ``factors`` lambda on U and V; ``sites`` on a; ``months`` on b; ``time`` an optional (L, L) precision
    matrix Q of b that replaces ``months`` (seasonal and smooth structure).
    """

    factors: float = 0.0
    sites: float = 0.0
    months: float = 0.0
    time: F64 | None = None

    def scaled(self, by: float) -> Penalty:
        """Multiply every ridge (the dispersion scales the loss, so it scales the penalties)."""
        return Penalty(
            self.factors * by,
            self.sites * by,
            self.months * by,
            None if self.time is None else self.time * by,
        )


@dataclass(frozen=True, slots=True)
class Theta:
    """Parameters: mu scalar, a (J,), b (L,), U (J, r), V (L, r), all on the link scale."""

    mu: float
    a: F64
    b: F64
    U: F64
    V: F64

    @property
    def rank(self) -> int:
        """Number of factor columns r."""
        return int(self.U.shape[1])

    def eta(self, site: slice | I64, month: slice | I64 = slice(None)) -> F64:
        """Linear predictor of the block ``site`` x ``month``."""
        out: F64 = self.mu + self.a[site][:, None] + self.b[month] + self.U[site] @ self.V[month].T
        return out


@dataclass(slots=True)
class Fit:
    """Result of one fit: parameters, objective after each sweep, and why it stopped."""

    theta: Theta
    objective: list[float]
    converged: bool
    stop_reason: str
    sweeps: int
    loss: float = float("nan")
    edf: float = float("nan")


def start_theta(cells: Sequence[Cells], J: int, L: int, rank: int, family: str, effects: bool) -> Theta:
    """Constant start: mu at the overall mean, all effects and factors zero."""
    y = sum(float(c.y.sum()) for c in cells)
    E = sum(float(c.E.sum()) for c in cells)
    if E <= 0:
        raise DomainError(
            "no observed cell has positive weight, so no mean can be computed; check the weights."
        )
    m = y / E
    if family == "poisson":
        mu = float(np.log(max(m, 1e-8)))
    elif family == "bernoulli":
        m = min(max(m, 1e-6), 1 - 1e-6)
        mu = float(np.log(m / (1 - m)))
    else:
        mu = m
    return Theta(mu if effects else 0.0, np.zeros(J), np.zeros(L), np.zeros((J, rank)), np.zeros((L, rank)))


def set_eta(cells: Sequence[Cells], theta: Theta) -> None:
    """Recompute the cached predictor of every group from the broadcast parameters."""
    for c in cells:
        row = c.row
        eta = c.offset + (theta.mu + theta.a[row] + theta.b[c.col])
        for k in range(theta.rank):
            eta += theta.U[row, k] * theta.V[c.col, k]
        c.eta = eta
        if c.trial.size != c.nnz:
            c.trial = np.empty(c.nnz)


def cells_loss(cells: Sequence[Cells], family: str) -> float:
    """Sum of E psi(eta) - y eta over the groups at their cached predictor."""
    from fedmiss.models.lowrank.families import psi

    return float(sum((c.E * psi(c.eta, family) - c.y * c.eta).sum() for c in cells))


def penalty_value(theta: Theta, pen: Penalty) -> float:
    """Value of the penalty at ``theta``."""
    value = 0.5 * pen.factors * float((theta.U**2).sum() + (theta.V**2).sum()) + 0.5 * pen.sites * float(
        (theta.a**2).sum()
    )
    if pen.time is not None:
        return value + 0.5 * float(theta.b @ pen.time @ theta.b)
    return value + 0.5 * pen.months * float((theta.b**2).sum())


def objective(cells: Sequence[Cells], theta: Theta, pen: Penalty, family: str) -> float:
    """Penalised objective F at ``theta`` (recomputes the predictor)."""
    set_eta(cells, theta)
    return cells_loss(cells, family) + penalty_value(theta, pen)


# -- the two phases -------------------------------------------------------------------------------------------


class _Phase:
    """One block-separable phase: sites given months, or months given sites, over all groups."""

    def __init__(self, cells: Sequence[Cells], size: int, family: str, *, by_site: bool) -> None:
        self.cells, self.size, self.by_site = cells, size, by_site
        self.name, self.family = family, family_code(family)

    def sums(self, design: F64) -> tuple[F64, F64]:
        from fedmiss.models.lowrank.kernels import month_sums, site_sums

        p = design.shape[1]
        g, G = np.zeros((self.size, p)), np.zeros((self.size, p, p))
        for c in self.cells:  # sorted by group name
            if self.by_site:
                gc, Gc = site_sums(c.ptr, c.col, c.y, c.E, c.eta, design, self.family)
            else:
                gc, Gc = month_sums(c.ptr, c.col, c.y, c.E, c.eta, design, self.size, self.family)
            g += gc
            G += Gc
        return g, G

    def trial(self, design: F64, step: F64, todo: Bool, loss: F64) -> None:
        from fedmiss.models.lowrank.kernels import month_step, site_step

        loss[todo] = 0.0
        part = np.zeros(self.size)
        for c in self.cells:
            move = site_step if self.by_site else month_step
            move(c.ptr, c.col, c.y, c.E, c.eta, step, design, todo, self.family, c.trial, part)
            loss[todo] += part[todo]

    def accept(self) -> None:
        for c in self.cells:
            c.eta, c.trial = c.trial, c.eta

    def __call__(self, coef: F64, design: F64, ridge: F64, loss: F64, max_halvings: int = 30) -> F64:
        """One damped Newton step of every block; returns the new coefficients, ``loss`` (size,) is updated."""
        from fedmiss.models.lowrank.kernels import solve_blocks

        g, G = self.sums(design)
        g -= ridge * coef
        step: F64 = solve_blocks(G, g, np.ascontiguousarray(np.broadcast_to(ridge, coef.shape)), 1e-13)
        if self.family == 1:  # Poisson: a Newton step from far below overshoots by e^step
            reach = np.abs(step).sum(axis=1)
            step *= np.minimum(1.0, 8.0 / np.maximum(reach, 1e-300))[:, None]
        before = loss + 0.5 * (ridge * coef**2).sum(axis=1)
        slack = 1e-12 * (np.abs(before) + 1.0)
        todo = np.ones(self.size, dtype=np.bool_)
        new: F64 = coef + step
        for _ in range(max_halvings):
            self.trial(design, step, todo, loss)
            after = loss + 0.5 * (ridge * new**2).sum(axis=1)
            # Gaussian steps are exact minimisers, so only rounding could make one look worse.
            todo &= ~(after <= before + slack) if self.family else np.zeros_like(todo)
            if not todo.any():
                break
            step[todo] *= 0.25
            new[todo] = coef[todo] + step[todo]
        else:
            step[todo] = 0.0
            new[todo] = coef[todo]
            self.trial(design, step, todo, loss)
        self.accept()
        return new


def _time_step(phase: _Phase, b: F64, Q: F64, loss: F64) -> F64:
    """Joint damped Newton step of the month effects under the precision matrix ``Q``."""
    ones = np.ones((phase.cells[0].ptr.size - 1, 1))
    g, G = phase.sums(ones)
    step = np.linalg.solve(Q + np.diag(G[:, 0, 0] + 1e-12), g[:, 0] - Q @ b)
    before = float(loss.sum()) + 0.5 * float(b @ Q @ b)
    todo = np.ones(b.size, dtype=np.bool_)
    for _ in range(40):
        phase.trial(ones, np.asarray(step[:, None], dtype=float), todo, loss)
        new: F64 = b + step
        if float(loss.sum()) + 0.5 * float(new @ Q @ new) <= before + 1e-12 * (abs(before) + 1.0):
            phase.accept()
            return new
        step *= 0.25
    phase.trial(ones, np.zeros((b.size, 1)), todo, loss)
    phase.accept()
    return b


def block_losses(cells: Sequence[Cells], size: int, family: str, *, by_site: bool) -> F64:
    """Loss of every site (or month) at the cached predictor."""
    phase = _Phase(cells, size, family, by_site=by_site)
    loss = np.zeros(size)
    J = cells[0].ptr.size - 1
    other = np.zeros((1, 0)) if by_site else np.zeros((J, 0))
    phase.trial(other, np.zeros((size, 0)), np.ones(size, dtype=np.bool_), loss)
    return loss


def balance(U: F64, V: F64) -> tuple[F64, F64]:
    """Rotate and rescale the factors so that U'U = V'V is diagonal; U V' and hence the loss do not change.

    Among all factorisations this one has the smallest ||U||^2 + ||V||^2 (twice the nuclear norm of U V').
    """
    if U.shape[1] == 0:
        return U, V
    Qu, Ru = np.linalg.qr(U)
    Qv, Rv = np.linalg.qr(V)
    A, s, Bt = np.linalg.svd(Ru @ Rv.T)
    root = np.sqrt(s)
    left, right = Qu @ A, Qv @ Bt.T
    sign = np.where(right.sum(axis=0) < 0, -1.0, 1.0)
    return left * (sign * root), right * (sign * root)


def recentre(theta: Theta, pen: Penalty) -> Theta:
    """Move the parts of a and b that the penalty does not want into mu; eta does not change."""
    da = float(theta.a.mean())
    if pen.time is not None:
        q1 = pen.time.sum(axis=0)
        total = float(q1.sum())
        db = float(q1 @ theta.b) / total if total > 1e-12 else float(theta.b.mean())
    else:
        db = float(theta.b.mean())
    return replace(theta, mu=theta.mu + da + db, a=theta.a - da, b=theta.b - db)


def grow(
    cells: Sequence[Cells], theta: Theta, rank: int, family: str, seed: int, *, scale: float = 0.1
) -> Theta:
    """Add factor columns up to ``rank`` along the leading singular vectors of the residual matrix.

    The residual P_Omega(y - E psi'(eta)) is the negative gradient of the loss in U V'; block power iterations
    only need its products with J- and L-vectors, which are sums over groups.
    """
    from fedmiss.models.lowrank.certificate import residual_svd

    extra = rank - theta.rank
    if extra <= 0:
        return theta
    set_eta(cells, theta)
    # the site factors start at zero: the first site phase computes them, and eta does not jump
    right = residual_svd(cells, family, theta.a.size, theta.b.size, extra, seed=seed)[2]
    V = np.hstack([theta.V, right * (scale * np.sqrt(theta.b.size))])
    return replace(theta, U=np.hstack([theta.U, np.zeros((theta.a.size, extra))]), V=V)


def fit_cells(
    cells: Sequence[Cells],
    J: int,
    L: int,
    *,
    family: str = "poisson",
    rank: int = 2,
    penalty: Penalty | None = None,
    effects: bool = True,
    start: Theta | None = None,
    tol: float = 1e-8,
    max_sweeps: int = 500,
    seed: int = 0,
    watch: Callable[[int, float, float], None] | None = None,
) -> Fit:
    """Minimise the penalised objective by alternating damped Newton sweeps.

    Parameters
    ----------
    cells : one :class:`Cells` per group, filled; their ``eta`` is overwritten
    rank : number of factors r; ``start`` may have fewer, the rest is grown from the residual
    effects : with mu, a and b (counts), or without (the paper's model, theta = U V')
    tol : stop when a sweep lowers the objective by less than ``tol * (|F| + 1)``, three times in a row
    watch : called after each sweep with (sweep, objective, root mean square move of the cells' predictors)

    Returns
    -------
    Fit    its objective list never increases
    """
    from fedmiss.models.lowrank.kernels import set_threads

    set_threads(max(c.nnz for c in cells))
    pen = penalty or Penalty()
    rank = min(rank, J, L)  # no matrix of this shape has more
    theta = start or start_theta(cells, J, L, 0, family, effects)
    theta = grow(cells, theta, rank, family, seed)
    if theta.rank > rank:
        U, V = balance(theta.U, theta.V)
        theta = replace(theta, U=U[:, :rank], V=V[:, :rank])
    set_eta(cells, theta)
    sites = _Phase(cells, J, family, by_site=True)
    months = _Phase(cells, L, family, by_site=False)
    history: list[float] = []
    reason, converged, calm = f"the limit of {max_sweeps} sweeps was reached", False, 0
    site_loss = block_losses(cells, J, family, by_site=True)
    sweep = 0
    before = [c.eta.copy() for c in cells]
    anchor, reach = theta, 4.0
    for sweep in range(1, max_sweeps + 1):
        theta = _sweep(theta, sites, months, pen, effects, site_loss, J, L)
        value = float(site_loss.sum()) + penalty_value(theta, pen)
        if sweep % LEAP == 0:
            theta, value, reach = _leap(cells, anchor, theta, value, reach, pen, family, site_loss)
            anchor = theta
        history.append(value)
        if not np.isfinite(value):
            raise DomainError(
                f"sweep {sweep}: the objective is {value}. A count or a weight is too large for the "
                f"{family} family, or the penalty is too small (factors={pen.factors:g}); raise it."
            )
        if watch:
            watch(sweep, value, moved(cells, before))
        small = len(history) > 1 and history[-2] - value <= tol * (abs(value) + 1.0)
        calm = calm + 1 if small else 0
        if calm >= 3 or (sweep == 1 and rank == 0 and not effects):
            converged, reason = True, f"the objective changed by less than {tol:g} (relative) in three sweeps"
            break
    set_eta(cells, theta)
    return Fit(theta, history, converged, reason, sweep, loss=float(site_loss.sum()))


def moved(cells: Sequence[Cells], before: list[F64]) -> float:
    """Root mean square move of the observed cells' predictors since ``before``, which is brought up to date.

    Weighted by E, so that it is the same however visits are split into groups. It is the residual of the fixed-point
    map in predictor space, the fast solver's counterpart of ||H||.
    """
    total = sum(float((c.E * (c.eta - b) ** 2).sum()) for c, b in zip(cells, before, strict=True))
    for c, b in zip(cells, before, strict=True):
        b[:] = c.eta
    return float(np.sqrt(total / max(sum(float(c.E.sum()) for c in cells), 1e-300)))


def _leap(
    cells: Sequence[Cells],
    old: Theta,
    new: Theta,
    value: float,
    reach: float,
    pen: Penalty,
    family: str,
    site_loss: F64,
) -> tuple[Theta, float, float]:
    """Go on along the way of the last sweeps, ``reach`` times as far, if that lowers the objective.

    Alternating sweeps creep along narrow valleys of U V'; a leap costs half a sweep and saves many. ``reach`` grows
    while leaps succeed and shrinks when one fails, which then changes nothing.
    """
    if old.rank != new.rank:
        return new, value, reach
    far = Theta(
        new.mu + reach * (new.mu - old.mu),
        new.a + reach * (new.a - old.a),
        new.b + reach * (new.b - old.b),
        new.U + reach * (new.U - old.U),
        new.V + reach * (new.V - old.V),
    )
    with np.errstate(all="ignore"):  # far out exp may overflow: then "there" is not below "value"
        there = objective(cells, far, pen, family)
    if there < value:
        site_loss[:] = block_losses(cells, site_loss.size, family, by_site=True)
        return far, there, min(2.0 * reach, 1e4)
    set_eta(cells, new)
    return new, value, max(reach / 4.0, 1.0)


def _sweep(
    theta: Theta, sites: _Phase, months: _Phase, pen: Penalty, effects: bool, site_loss: F64, J: int, L: int
) -> Theta:
    """One pass over both axes; ``site_loss`` (J,) is kept equal to the loss of every site."""
    r = theta.rank
    mu, a, b, U, V = theta.mu, theta.a, theta.b, theta.U, theta.V
    # sites given months
    if effects:
        ridge = np.r_[pen.sites, np.full(r, pen.factors)]
        P = sites(np.column_stack([a, U]), np.column_stack([np.ones(L), V]), ridge, site_loss)
        a, U = P[:, 0].copy(), np.ascontiguousarray(P[:, 1:])
    else:
        U = sites(U, V, np.full(r, pen.factors), site_loss)
    # months given sites
    month_loss = block_losses(months.cells, L, months.name, by_site=False)
    if not effects:
        V = months(V, U, np.full(r, pen.factors), month_loss)
    elif pen.time is None:
        ridge = np.r_[pen.months, np.full(r, pen.factors)]
        T = months(np.column_stack([b, V]), np.column_stack([np.ones(J), U]), ridge, month_loss)
        b, V = T[:, 0].copy(), np.ascontiguousarray(T[:, 1:])
    else:
        b = _time_step(months, b, pen.time, month_loss)
        if r:
            V = months(V, U, np.full(r, pen.factors), month_loss)
    U, V = balance(U, V)
    theta = Theta(mu, a, b, U, V)
    if effects:
        theta = recentre(theta, pen)
    site_loss[:] = block_losses(sites.cells, J, sites.name, by_site=True)
    return theta
