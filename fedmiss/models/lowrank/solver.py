"""The fast solver: alternating damped Newton on federated normal equations, then joint Newton steps.

Same objective and fixed points as FedMissEM (Algorithm 7 of Dieuleveut et al. 2021), here with effects,
offsets and weights:

    F = sum_cells [ E psi(eta) - y eta ] + lambda/2 (||U||^2 + ||V||^2) + lambda_a/2 ||a||^2 + lambda_b/2 ||b||^2,
    eta_jl = mu + a_j + b_l + (U V')_jl.

Given V and b, the sites separate: site j needs the normal equations of a regression with r + 1 coefficients,
which are sums over the cells, hence over the groups. The same holds for months given U and a. A group sends
(r+1)(r+4)/2 numbers per site (month) that it has visited instead of a J x L statistic. The paper's objective
has a mean over the n groups; here it is a sum, so lambda here is n times the paper's.

After a few such sweeps over both axes the joint steps of :mod:`.newton` take over, in which the sites are solved for
while the months move. Every accepted step lowers F: a block's step is halved, and a joint step's trust region shrunk,
until it does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from fedmiss.arrays import F64, Bool
from fedmiss.errors import DomainError
from fedmiss.models.lowrank import kernels
from fedmiss.models.lowrank.data import Cells
from fedmiss.models.lowrank.families import Family, family_of
from fedmiss.models.lowrank.newton import Curvature, as_design
from fedmiss.models.lowrank.residual import residual_svd
from fedmiss.models.lowrank.theta import Fit, Penalty, Theta

SWEEPS = 5  # alternating sweeps before the joint steps begin
ADAPT = 2  # most Newton steps of the sites after a move of the months

__all__ = ["fit_cells", "objective", "set_eta"]


def start_theta(cells: Sequence[Cells], J: int, L: int, rank: int, family: Family, effects: bool) -> Theta:
    """Constant start: mu at the overall mean, all effects and factors zero."""
    y = sum(float(c.y.sum()) for c in cells)
    E = sum(float(c.E.sum()) for c in cells)
    if E <= 0:
        raise DomainError(
            "no observed cell has positive weight, so no mean can be computed; check the weights."
        )
    mu = family.link(y / E)
    return Theta(mu if effects else 0.0, np.zeros(J), np.zeros(L), np.zeros((J, rank)), np.zeros((L, rank)))


def set_eta(cells: Sequence[Cells], theta: Theta) -> None:
    """Recompute the cached predictor of every group from the broadcast parameters."""
    for c in cells:
        if c.trial.size != c.nnz:
            c.trial = np.empty(c.nnz)
        if c.eta.size != c.nnz:
            c.eta = np.empty(c.nnz)
        kernels.predict(c.ptr, c.col, c.offset, theta.mu, theta.a, theta.b, theta.U, theta.V, c.eta)


def cells_loss(cells: Sequence[Cells], family: Family) -> float:
    """Sum of E psi(eta) - y eta over the groups at their cached predictor."""
    return float(sum((c.E * family.psi(c.eta) - c.y * c.eta).sum() for c in cells))


def penalty_value(theta: Theta, pen: Penalty) -> float:
    """Value of the penalty at ``theta``."""
    factors = pen.factors * float((theta.U**2).sum() + (theta.V**2).sum())
    return 0.5 * (factors + pen.sites * float((theta.a**2).sum()) + pen.months * float((theta.b**2).sum()))


def objective(cells: Sequence[Cells], theta: Theta, pen: Penalty, family: str | Family) -> float:
    """Penalised objective F at ``theta`` (recomputes the predictor)."""
    set_eta(cells, theta)
    return cells_loss(cells, family_of(family)) + penalty_value(theta, pen)


# -- the two phases -------------------------------------------------------------------------------------------


class _Phase:
    """One block-separable phase: sites given months, or months given sites, over all groups."""

    def __init__(self, cells: Sequence[Cells], size: int, family: Family, *, by_site: bool) -> None:
        self.cells, self.size, self.by_site, self.family = cells, size, by_site, family

    def sums(self, design: F64) -> tuple[F64, F64, F64]:
        """Gradient (size, p), curvature (size, p, p) and loss (size,) of every block, over the groups."""
        add = kernels.site_sums if self.by_site else kernels.month_sums
        p = design.shape[1]
        g, G, loss = np.zeros((self.size, p)), np.zeros((self.size, p, p)), np.zeros(self.size)
        for c in self.cells:  # sorted by group name
            add(c.ptr, c.col, c.y, c.E, c.eta, design, self.family.code, g, G, loss)
        kernels.mirror(G)
        return g, G, loss

    def _trial(self, design: F64, step: F64, todo: Bool, loss: F64) -> None:
        move = kernels.site_step if self.by_site else kernels.month_step
        loss[todo] = 0.0
        part = np.zeros(self.size)
        for c in self.cells:
            move(c.ptr, c.col, c.y, c.E, c.eta, step, design, todo, self.family.code, c.trial, part)
            loss[todo] += part[todo]

    def __call__(self, coef: F64, design: F64, ridge: F64, max_halvings: int = 30) -> tuple[F64, float]:
        """One damped Newton step of every block; returns the new coefficients (size, p) and the total loss there."""
        step, G, before = self.sums(design)
        step -= ridge * coef
        kernels.factor_blocks(G, ridge, 1e-13)
        kernels.solve_factored(G, step)
        # Poisson: a step from far below overshoots by e^step; Bernoulli: separation has no curvature
        if not self.family.quadratic:
            kernels.cap_steps(step, 8.0)
        kernels.add_ridge(coef, ridge, before)
        loss, after = np.empty(self.size), np.empty(self.size)
        todo = np.ones(self.size, dtype=np.bool_)
        new: F64 = coef + step
        for _ in range(max_halvings):
            self._trial(design, step, todo, loss)
            if self.family.quadratic:  # the step is the exact minimiser
                break
            after[:] = loss
            kernels.add_ridge(new, ridge, after)
            todo &= ~(after <= before + 1e-12 * (np.abs(before) + 1.0))
            if not todo.any():
                break
            step[todo] *= 0.25
            new[todo] = coef[todo] + step[todo]
        else:
            step[todo] = 0.0
            new[todo] = coef[todo]
            self._trial(design, step, todo, loss)
        for c in self.cells:
            c.eta, c.trial = c.trial, c.eta
        return new, float(loss.sum())


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


def recentre(theta: Theta) -> Theta:
    """Move the parts of a and b that the penalty does not want into mu; eta does not change."""
    da = float(theta.a.mean())
    db = float(theta.b.mean())
    return replace(theta, mu=theta.mu + da + db, a=theta.a - da, b=theta.b - db)


def grow(cells: Sequence[Cells], theta: Theta, rank: int, family: Family, seed: int) -> Theta:
    """Add factor columns up to ``rank`` along the leading singular vectors of the residual matrix.

    The residual P_Omega(y - E psi'(eta)) is the negative gradient of the loss in U V'; block power iterations
    only need its products with J- and L-vectors, which are sums over groups.
    """
    extra = rank - theta.rank
    if extra <= 0:
        return theta
    set_eta(cells, theta)
    # the site factors start at zero: the first site phase computes them, and eta does not jump
    right = residual_svd(cells, family, theta.a.size, theta.b.size, extra, seed=seed)[2]
    V = np.hstack([theta.V, right * np.sqrt(theta.b.size)])
    return replace(theta, U=np.hstack([theta.U, np.zeros((theta.a.size, extra))]), V=V)


def _alive(theta: Theta, rank: int) -> Theta:
    """Balance the factors, at most ``rank`` columns by size: a dead column would stay at the saddle U V' = 0."""
    U, V = balance(theta.U, theta.V)
    alive = min(rank, int((np.linalg.norm(U, axis=0) > 1e-3 * (len(U) * len(V)) ** 0.25).sum()))
    return replace(theta, U=U[:, :alive], V=V[:, :alive])


def fit_cells(
    cells: Sequence[Cells],
    J: int,
    L: int,
    *,
    family: str | Family = "poisson",
    rank: int = 2,
    penalty: Penalty | None = None,
    effects: bool = True,
    start: Theta | None = None,
    tol: float = 1e-8,
    max_sweeps: int = 500,
    seed: int = 0,
    watch: Callable[[int, float, float], None] | None = None,
) -> Fit:
    """Minimise the penalised objective: a few alternating sweeps, then joint Newton steps.

    Parameters
    ----------
    cells : one :class:`Cells` per group, filled; their ``eta`` is overwritten
    rank : number of factors r; ``start`` may have fewer, the rest is grown from the residual
    effects : with mu, a and b (counts), or without (the paper's model, theta = U V')
    tol : stop when Newton's model promises a decrease of at most ``tol * (|F| + 1)``, twice in a row (once at rank 0),
        or unconverged after three steps in a row that gained less
    watch : called after each sweep with (sweep, objective, root mean square move of the cells' predictors)

    Returns
    -------
    Fit    its objective list never increases, but for rounding
    """
    # many parameters: the documented interface, given by name
    kernels.set_threads(max(c.nnz for c in cells))
    family, pen = family_of(family), penalty or Penalty()
    rank = min(rank, J, L)  # no matrix of this shape has more
    theta = start or start_theta(cells, J, L, 0, family, effects)
    theta = grow(cells, _alive(theta, rank), rank, family, seed)
    set_eta(cells, theta)
    walk = _Walk(cells, J, L, family, pen, effects, rank)
    history: list[float] = []
    # One function: the reasons to stop share the counters of the loop.
    reason, converged, calm, slow = f"the limit of {max_sweeps} sweeps was reached", False, 0, 0
    alternate, sweep, value, loss = SWEEPS, 0, np.inf, np.nan
    before = [c.eta.copy() for c in cells]
    for sweep in range(1, max_sweeps + 1):
        last = value
        if sweep <= alternate:
            theta, loss = walk.sweep(theta)
            value, promise = loss + penalty_value(theta, pen), np.inf
        else:
            theta, value, loss, promise = walk.joint(theta, value, loss)
        history.append(value)
        if not np.isfinite(value):
            raise _diverged(sweep, value, family, pen)
        if watch:
            watch(sweep, value, moved(cells, before))
        least = tol * (abs(value) + 1.0)
        small = last - value <= least
        if sweep <= alternate:
            if small:  # alternation may creep, so its small steps prove nothing
                alternate = sweep
            if rank == 0 and not effects:
                converged, reason = True, "there is nothing to fit"
                break
            continue
        if promise < 0.0:
            reason = "no step lowers the objective by more than rounding"
            break
        # a promise kept twice is no flat stretch on the way; small steps that the trust region cut prove nothing
        calm = calm + 1 if promise <= least else 0
        slow = slow + 1 if small else 0
        if calm >= (2 if rank else 1):
            converged, reason = (
                True,
                f"a Newton step could lower the objective by no more than {tol:g} (relative)",
            )
            break
        if slow >= 3:
            reason = (
                f"three steps in a row, cut short, each lowered the objective by less than {tol:g} (relative)"
            )
            break
    return Fit(theta, history, converged, reason, sweep, loss=loss)


def _diverged(sweep: int, value: float, family: Family, pen: Penalty) -> DomainError:
    return DomainError(
        f"sweep {sweep}: the objective is {value}. A count or a weight is too large for the "
        f"{family.name} family, or the penalty is too small (factors={pen.factors:g}); raise it."
    )


def moved(cells: Sequence[Cells], before: list[F64]) -> float:
    """Root mean square move of the observed cells' predictors since ``before``, which is brought up to date.

    Weighted by E, so that it is the same however visits are split into groups. It is the residual of the fixed-point
    map in predictor space, the fast solver's counterpart of ||H||.
    """
    total = sum(float((c.E * (c.eta - b) ** 2).sum()) for c, b in zip(cells, before, strict=True))
    for c, b in zip(cells, before, strict=True):
        b[:] = c.eta
    return float(np.sqrt(total / max(sum(float(c.E.sum()) for c in cells), 1e-300)))


class _Walk:
    """The two kinds of step of one fit, and what they remember: the trust region."""

    def __init__(
        self, cells: Sequence[Cells], J: int, L: int, family: Family, pen: Penalty, effects: bool, rank: int
    ) -> None:
        self.cells, self.family, self.pen, self.effects = cells, family, pen, effects
        self.sites = _Phase(cells, J, family, by_site=True)
        self.months = _Phase(cells, L, family, by_site=False)
        one = int(effects)
        self.ridge_s = np.r_[[pen.sites] * one, [pen.factors] * rank]
        self.ridge_t = np.r_[[pen.months] * one, [pen.factors] * rank]
        self.radius = self.steepest = 0.0

    def _tidy(self, theta: Theta) -> Theta:
        U, V = balance(theta.U, theta.V)
        theta = replace(theta, U=U, V=V)
        return recentre(theta) if self.effects else theta

    def sweep(self, theta: Theta) -> tuple[Theta, float]:
        """Sites given months, then months given sites; returns the loss too."""
        sites, months = theta.sides(self.effects)
        sites, _ = self.sites(sites, as_design(months, effects=self.effects), self.ridge_s)
        months, loss = self.months(months, as_design(sites, effects=self.effects), self.ridge_t)
        return self._tidy(theta.with_sides(theta.mu, sites, months, self.effects)), loss

    def joint(self, theta: Theta, value: float, loss: float) -> tuple[Theta, float, float, float]:
        """A Newton step of the months with the sites solved for, in a trust region that shrinks until it helps.

        Returns
        -------
        theta, objective, loss, and the decrease that Newton's model promised: infinite when the region cut the step, -1
        when no step helped
        """
        set_eta(self.cells, theta)
        sites, months = theta.sides(self.effects)
        curve = Curvature(
            self.cells, sites, months, self.ridge_s, self.ridge_t, self.family, effects=self.effects
        )
        slope = curve.slope()
        self.radius = self.radius or slope
        self.steepest = max(self.steepest, slope)
        # superlinear convergence at the end
        tol = min(0.1, np.sqrt(slope / self.steepest)) if slope > 0.0 else 0.1
        noise = 1e-13 * (abs(value) + 1.0)
        for _ in range(40):
            step = curve.step(self.radius, tol)
            promise = np.inf if step.cut else step.promise + curve.sites_promise
            if not step.promise + curve.sites_promise > 0.0:
                break
            there = theta.with_sides(theta.mu + step.mu, sites, months + step.months, self.effects)
            there, new, new_loss = self._adapt(there, 0.02 * step.promise)
            gain = value - new
            if not gain >= 0.25 * step.promise:
                self.radius = 0.4 * min(step.length, self.radius)
            elif gain > 0.75 * step.promise and step.cut:
                self.radius *= 4.0 if gain > 0.9 * step.promise else 2.0
            # at the end the decrease is lost in rounding, while the step still halves the digits that are wrong
            if gain > 0.0 or (gain > -noise and step.promise < 100 * noise):
                there = self._tidy(there)  # the loss stays, the penalty can only fall
                return there, min(value, new_loss + penalty_value(there, self.pen)), new_loss, promise
            if step.promise < noise:
                break
        set_eta(self.cells, theta)
        return theta, value, loss, promise if np.isfinite(promise) else -1.0

    def _adapt(self, theta: Theta, least: float) -> tuple[Theta, float, float]:
        """Solve the sites for the months' coefficients: Newton steps while they lower the objective by ``least``."""
        set_eta(self.cells, theta)
        sites, months = theta.sides(self.effects)
        design = as_design(months, effects=self.effects)
        ridge = 0.5 * float((self.ridge_t * months**2).sum())
        value = loss = np.inf
        for _ in range(1 if self.family.quadratic else ADAPT):
            sites, loss = self.sites(sites, design, self.ridge_s)
            new = loss + ridge + 0.5 * float((self.ridge_s * sites**2).sum())
            enough = value - new < least
            value = new
            if enough:
                break
        return theta.with_sides(theta.mu, sites, months, self.effects), value, loss
