"""The solver of algorithm 7: its M-step over all cells (Poisson and Bernoulli), and its objective over the observed ones.

Alternating damped Newton steps for sites and months come near a minimum; they converge only linearly. Newton steps for both
together, by preconditioned conjugate gradients, then bring the gradient down to :data:`GRADIENT` of its terms. The rotations
of the factors leave the objective as it is: the gradient has no part along them, so conjugate gradients do not see them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import scipy.sparse as sp

from fedmiss.arrays import F64
from fedmiss.errors import ConfigError, DomainError, InputError
from fedmiss.models.lowrank.data import GroupPanel
from fedmiss.models.lowrank.families import Family, family_of
from fedmiss.settings import kinds_checked

GRADIENT = 1e-12  # norm of the gradient at exit, of the norm of the terms whose difference it is
NEAR = 1e-5  # relative progress of a sweep below which both sides are solved together
FEW = 20  # cells for each observed one up to which a dense matrix is quicker than a sparse one
BLOCK = 2_000_000  # cells that are dense at one time
MOST = 200  # sweeps, and then Newton steps

Pair = tuple[F64, F64]
Matrix = Any  # of cells, dense or sparse


class MStep:
    """Minimise sum over all cells of psi(UV') - S UV', plus the ridge; S = A B' + sparse is never formed at once."""

    def __init__(self, family: Family, penalty: float, sparse: sp.csr_array, A: F64, B: F64) -> None:
        self.family, self.penalty, self.sparse, self.A, self.B = family, penalty, sparse, A, B
        self.J, self.L = sparse.shape
        self._turned = sp.csr_array(sparse.T)
        cells = sparse.tocoo()
        self._row, self._col, self._S = cells.row, cells.col, cells.data
        self._kept: tuple[F64, F64, list[tuple[slice, Matrix, Matrix]]] | None = None

    def minimise(self, U: F64, V: F64, tol: float = GRADIENT) -> Pair:
        """Return U and V at a local minimum, where the gradient is ``tol`` of its terms, from a start."""
        return self._together(*self._sweeps(U, V), tol)

    def value(self, U: F64, V: F64) -> float:
        """Objective."""
        total = 0.5 * self.penalty * float((U**2).sum() + (V**2).sum())
        for block in self._blocks():
            eta = U[block] @ V.T
            total += float(self.family.psi(eta).sum()) - float(((self.A[block] @ self.B.T) * eta).sum())
        return total - float(self._S @ np.einsum("kr,kr->k", U[self._row], V[self._col]))

    def gradient(self, U: F64, V: F64) -> tuple[F64, F64, float]:
        """Gradient by U and by V, and the norm of the terms whose difference it is."""
        # d/dU = (psi'(U V') - S) V + penalty U, where S = A B' + sparse and D = psi' - A B'; the same for V, transposed.
        gU, gV = self.penalty * U - self.sparse @ V, self.penalty * V - self._turned @ U
        tU, tV = np.zeros_like(U), np.zeros_like(V)
        for b, _, D in self._fields(U, V):
            gU[b] += D @ V
            gV += D.T @ U[b]
            # At a minimum without penalty psi' V = S V: the norm of either says how much rounding the difference holds.
            mean = self._mean(b, D)
            tU[b] += mean @ V
            tV += mean.T @ U[b]
        return gU, gV, float(np.sqrt((tU**2).sum() + (tV**2).sum()))

    def _blocks(self) -> list[slice]:
        return blocks(self.J, self.L)

    def _fields(self, U: F64, V: F64) -> Iterator[tuple[slice, Matrix, Matrix]]:
        """Variance and mean minus A B' of each block of sites; kept where one block holds all cells."""
        if self._kept is None or self._kept[0] is not U or self._kept[1] is not V:
            blocks = self._blocks()
            if len(blocks) > 1:
                yield from (self._field(U, V, block) for block in blocks)
                return
            self._kept = (U, V, [self._field(U, V, blocks[0])])
        yield from self._kept[2]

    def _field(self, U: F64, V: F64, b: slice) -> tuple[slice, Matrix, Matrix]:
        mean = self.family.mean(U[b] @ V.T)
        return b, self.family.variance(mean), mean - self.A[b] @ self.B.T

    def _mean(self, b: slice, D: Matrix) -> Matrix:
        """The mean, from its field."""
        return D + self.A[b] @ self.B.T

    def _moved(self, W: Matrix, b: slice, U: F64, V: F64, P: F64, Q: F64) -> Matrix:
        """Variance times the move of the predictor in the direction (P, Q)."""
        return W * (P[b] @ V.T + U[b] @ Q.T)

    def _curvature(self, U: F64, V: F64, sides: tuple[int, ...] = (0, 1)) -> list[F64]:
        """Diagonal blocks of the Hessian, with the ridge: by site (J, r, r), side 0, and by month (L, r, r), side 1."""
        r = U.shape[1]
        blocks = {side: np.zeros(((self.J, self.L)[side], r, r)) for side in sides}
        for b, W, _ in self._fields(U, V):
            for side, G in blocks.items():
                if side == 0:
                    # Block of site j: sum_l psi''(eta_jl) v_l v_l'.
                    G[b] = (W @ _squares(V)).reshape(-1, r, r)
                else:
                    # Block of month l: sum_j psi''(eta_jl) u_j u_j'.
                    G += (W.T @ _squares(U[b])).reshape(-1, r, r)
        at = np.arange(r)
        for G in blocks.values():
            # Without penalty a row whose partners are all near zero has a singular block: a ridge relative to its trace.
            G[:, at, at] += self.penalty + 1e-9 * (1.0 + np.trace(G, axis1=1, axis2=2)[:, None])
        return list(blocks.values())

    def _slope(self, U: F64, V: F64, side: int) -> F64:
        """Gradient of one side, without the terms: a sweep moves one side and needs no more."""
        g = self.penalty * V - self._turned @ U if side else self.penalty * U - self.sparse @ V
        for b, _, D in self._fields(U, V):
            if side:
                g += D.T @ U[b]
            else:
                g[b] += D @ V
        return g

    def _sweeps(self, U: F64, V: F64) -> Pair:
        value = self.value(U, V)
        for _ in range(MOST):
            before = value
            for side in (0, 1):
                # Given one side, the rows of the other are separate problems of r unknowns: one Newton step for each.
                g, (G,) = self._slope(U, V, side), self._curvature(U, V, (side,))
                step = -np.linalg.solve(G, g[:, :, None])[:, :, 0]
                if not self.family.quadratic:  # from far below a step overshoots by e^step
                    step *= np.minimum(1.0, 2.0 / np.maximum(np.abs(step).max(axis=1), 1e-300))[:, None]
                # Rows share the step length; halving it ends where the objective does not rise.
                for _ in range(30):
                    trial = (U + step, V) if side == 0 else (U, V + step)
                    new = self.value(*trial)
                    if new <= value:
                        (U, V), value = trial, new
                        break
                    step = 0.5 * step
            if before - value <= NEAR * (abs(value) + 1.0):
                break
        return U, V

    def _together(self, U: F64, V: F64, tol: float) -> Pair:
        """Newton steps for U and V at once; the objective guards far from the minimum, the gradient at rounding."""
        value, (gU, gV, terms) = self.value(U, V), self.gradient(U, V)
        # The terms may shrink on the way (counts of zero): the goal counts from the larger of then and now.
        floor, norm = terms, _norm(gU, gV)
        for _ in range(MOST):
            if norm <= tol * max(terms, floor):
                break
            P, Q = self._direction(U, V, gU, gV, self._forcing(norm / max(terms, floor)))
            slope = _dot((P, Q), (gU, gV))
            # Armijo's rule while the objective can see the step; near the
            # end its rounding hides the gain, and the gradient decides.
            go, done = 1.0, False
            for _ in range(40):
                U1, V1 = U + go * P, V + go * Q
                new = self.value(U1, V1)
                if new <= value + 1e-4 * go * slope:
                    done = True
                elif abs(new - value) <= 1e-12 * (abs(value) + 1.0):  # too small to see in the objective
                    done = _norm(*self.gradient(U1, V1)[:2]) < norm
                if done:
                    break
                go *= 0.5
            if not done:
                break
            U, V, value = U1, V1, new
            gU, gV, terms = self.gradient(U, V)
            norm = _norm(gU, gV)
        return U, V

    def _forcing(self, left: float) -> float:
        """Relative residual to which a Newton step is solved, from the gradient's share of its terms."""
        # Inexact Newton (Dembo, Eisenstat, Steihaug 1982): a residual in proportion to the gradient keeps the order two.
        return min(0.1, left)

    def _direction(self, U: F64, V: F64, gU: F64, gV: F64, tol: float) -> Pair:
        """Solve H x = -g by conjugate gradients to ``tol``; a direction of negative curvature ends it."""
        # Preconditioner: the inverse of the diagonal blocks, which is what a sweep of Newton steps inverts.
        inverse = [np.linalg.inv(G) for G in self._curvature(U, V)]

        def precondition(R: Pair) -> Pair:
            return tuple(np.einsum("jab,jb->ja", I, x) for I, x in zip(inverse, R, strict=True))

        times = self._times(U, V)
        x: Pair = (np.zeros_like(U), np.zeros_like(V))
        R: Pair = (-gU, -gV)
        y = precondition(R)
        P, rho, goal = y, _dot(R, y), tol * _norm(*R)
        for i in range(20 + 2 * (U.size + V.size)):
            HP = times(P)
            curve = _dot(P, HP)
            # The objective is not convex in (U, V): keep what is solved so
            # far, or steepest descent in the first step (Steihaug 1983).
            if curve <= 1e-14 * _dot(P, P):
                return x if i else P
            go = rho / curve
            x = (x[0] + go * P[0], x[1] + go * P[1])
            R = (R[0] - go * HP[0], R[1] - go * HP[1])
            # Beyond 500 products a better direction costs more than the next Newton step.
            if _norm(*R) <= goal or i >= 500:
                break
            y = precondition(R)
            new = _dot(R, y)
            P, rho = (y[0] + new / rho * P[0], y[1] + new / rho * P[1]), new
        return x

    def _times(self, U: F64, V: F64) -> Callable[[Pair], Pair]:
        """Product of the Hessian with a direction."""

        def times(X: Pair) -> Pair:
            P, Q = X
            outU, outV = self.penalty * P - self.sparse @ Q, self.penalty * Q - self._turned @ P
            for b, W, D in self._fields(U, V):
                # H (P, Q): psi'' times the change of the predictor, P V' + U Q',
                # and the gradient's own factor (psi' - S) that P and Q turn.
                move = self._moved(W, b, U, V, P, Q)
                outU[b] += move @ V + D @ Q
                outV += move.T @ U[b] + D.T @ P[b]
            return outU, outV

        return times


class Observed(MStep):
    """Minimise sum over the observed cells of E psi(eta) - y eta, eta = u_j . v_l, plus the ridge.

    The optimum of which algorithm 7 is the federated way, for the sums over all groups: its penalty is n times the paper's.
    ``y`` and ``E`` (J, L) have the observed cells, in the same order. Fields are dense where that is little.
    """

    def __init__(self, family: Family, penalty: float, y: sp.csr_array, E: sp.csr_array) -> None:
        J, L = y.shape
        super().__init__(family, penalty, y, np.zeros((J, 0)), np.zeros((L, 0)))
        self._E, self._ptr = E.data, y.indptr
        self._whole = E.toarray() if J * L <= FEW * E.nnz else None

    def _on_cells(self, value: F64) -> sp.csr_array:
        return sp.csr_array((value, self._col, self._ptr), shape=(self.J, self.L))

    def _forcing(self, left: float) -> float:
        # Products are cheap on the observed cells alone: order 3/2 with fewer of them in each step.
        return float(min(0.1, np.sqrt(left)))

    def _eta(self, U: F64, V: F64) -> F64:
        if self._whole is not None:
            return np.asarray((U @ V.T)[self._row, self._col])
        out: F64 = np.einsum("kr,kr->k", U[self._row], V[self._col])
        return out

    def value(self, U: F64, V: F64) -> float:
        """Objective."""
        eta = self._eta(U, V)
        loss = float((self._E * self.family.psi(eta) - self._S * eta).sum())
        return loss + 0.5 * self.penalty * float((U**2).sum() + (V**2).sum())

    def _blocks(self) -> list[slice]:
        return [slice(0, self.J)]

    def _field(self, U: F64, V: F64, b: slice) -> tuple[slice, Matrix, Matrix]:
        if self._whole is not None:
            mean = self.family.mean(U @ V.T)
            return b, self._whole * self.family.variance(mean), self._whole * mean
        mean = self.family.mean(self._eta(U, V))
        return b, self._on_cells(self._E * self.family.variance(mean)), self._on_cells(self._E * mean)

    def _mean(self, b: slice, D: Matrix) -> Matrix:
        return D

    def _moved(self, W: Matrix, b: slice, U: F64, V: F64, P: F64, Q: F64) -> Matrix:
        if self._whole is not None:
            return super()._moved(W, b, U, V, P, Q)
        return self._on_cells(W.data * (self._eta(P, V) + self._eta(U, Q)))


def check_values(panel: GroupPanel, family: Family) -> None:
    """Refuse counts that the family cannot have: the objective has no minimum then, and factors run away.

    Raises
    ------
    InputError    names group, visit, count and limits
    """
    high = np.inf if family.counts else 1.0
    for group in panel.groups if not family.quadratic else ():
        bad = (group.count < 0) | (group.count > high)
        if bad.any():
            at = int(np.argmax(bad))
            raise InputError(
                f"group {group.name!r} has the count {group.count[at]:g} at site {group.site[at]}, month {group.month[at]}; "
                f"for the {family.name} family it must be 0 {'or more' if family.counts else 'to 1'}. Correct it, or choose "
                "another family."
            )


def check_size(rank: int, penalty: float) -> None:
    """Refuse a rank or a penalty below 0: without a floor the objective has no minimum."""
    if rank < 0 or penalty < 0:
        raise ConfigError(f"rank is {rank} and penalty {penalty:g} (both must be 0 or more).")


@kinds_checked
def fit_observed(
    panel: GroupPanel, *, family: str | Family, rank: int, penalty: float = 0.0, tol: float = 1e-8
) -> tuple[F64, F64, float]:
    """Solve algorithm 7's objective directly, as if one person held all visits: a local minimum, where the rank is low.

    Starts at V along the leading right singular vectors of the residual y - E psi'(0), and U = 0.

    Returns
    -------
    U (J, r) and V (L, r), balanced, and the objective there

    Raises
    ------
    DomainError : the objective is not finite
    """
    check_size(rank, penalty)
    kind, J, L = family_of(family), panel.J, panel.L
    check_values(panel, kind)
    key = np.concatenate([group.site.astype(np.int64) * L + group.month for group in panel.groups])
    weight = np.concatenate([group.weight for group in panel.groups])
    cells, at = np.unique(key, return_inverse=True)
    y = np.bincount(at, weight * np.concatenate([group.count for group in panel.groups])).astype(np.float64)
    E = np.bincount(at, weight).astype(np.float64)
    ptr, rank = np.searchsorted(cells // L, np.arange(J + 1)), min(rank, J, L)

    def on_cells(value: F64) -> sp.csr_array:
        return sp.csr_array((value, cells % L, ptr), shape=(J, L))

    step = Observed(kind, penalty, on_cells(y), on_cells(E))
    # At U = 0 the predictor is 0 for every V: V is chosen along what the first Newton step of U can explain best.
    residual = on_cells(y - E * kind.mean(np.zeros(y.size)))
    right = np.linalg.eigh((residual.T @ residual).toarray())[1][:, ::-1][:, :rank]
    U, V = balance(*step.minimise(np.zeros((J, rank)), right * np.sqrt(L), tol=tol))
    value = step.value(U, V)
    if not np.isfinite(value):
        raise DomainError(
            f"the objective is {value}: a count or a weight is too large for the {kind.name} family, or the penalty "
            f"({penalty:g}) is too small; raise it."
        )
    return U, V, value


def blocks(J: int, L: int) -> list[slice]:
    """Sites in stretches of at most :data:`BLOCK` cells."""
    step = max(1, BLOCK // L)
    return [slice(i, min(i + step, J)) for i in range(0, J, step)]


def balance(U: F64, V: F64) -> Pair:
    """Rotate and rescale the factors so that U'U = V'V is diagonal; U V' and hence the loss do not change.

    Among all factorisations this one has the smallest ||U||^2 + ||V||^2 (twice the nuclear norm of U V').
    """
    if U.shape[1] == 0:
        return U, V
    Qu, Ru = np.linalg.qr(U)
    Qv, Rv = np.linalg.qr(V)
    # U V' = (Qu A) diag(s) (Qv Bt')': the roots of s go to both sides in equal parts.
    A, s, Bt = np.linalg.svd(Ru @ Rv.T)
    root = np.sqrt(s)
    left, right = Qu @ A, Qv @ Bt.T
    sign = np.where(right.sum(axis=0) < 0, -1.0, 1.0)
    return left * (sign * root), right * (sign * root)


def _squares(X: F64) -> F64:
    """Outer product of each row with itself, in one row."""
    return (X[:, :, None] * X[:, None, :]).reshape(len(X), -1)


def _dot(X: Pair, Y: Pair) -> float:
    return float((X[0] * Y[0]).sum() + (X[1] * Y[1]).sum())


def _norm(gU: F64, gV: F64) -> float:
    return float(np.sqrt((gU**2).sum() + (gV**2).sum()))
