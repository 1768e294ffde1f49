"""Newton steps on the months once the sites have been solved for: the end game of the fast solver.

Alternating sweeps creep along the narrow valleys of U V'. Given the months' coefficients t = (mu, b, V) the sites
separate, so F(t) = min over sites is a function of 1 + L (r + 1) numbers only (variable projection: Golub and Pereyra
1973; for matrix completion Boumal and Absil 2011). Its Hessian is the Schur complement

    S = H_tt - H_ts H_ss^-1 H_st,

whose product with a vector is two passes over the cells, each a sum over groups of J- or L-vectors, like a sweep. The
Newton system is solved by conjugate gradients that stop at negative curvature or at the border of a trust region
(Steihaug 1983), preconditioned by the blocks of H_tt. No group's cells are needed anywhere but in its own sums.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedmiss.arrays import F64
from fedmiss.models.lowrank import kernels as k
from fedmiss.models.lowrank import newton_kernels as nk
from fedmiss.models.lowrank.data import Cells
from fedmiss.models.lowrank.families import Family, family_of

__all__ = ["Curvature", "Step", "as_design"]


@dataclass(frozen=True, slots=True)
class Step:
    """A proposed move of the months.

    ``months`` (L, p), ``mu``; ``promise`` the decrease that the quadratic model expects of it, with the sites following
    but without their own step (``Curvature.sites_promise``); ``length`` in the norm of the
    preconditioner; ``cut`` whether the border of the trust region or negative curvature ended it.
    """

    months: F64
    mu: float
    promise: float
    length: float
    cut: bool


def as_design(coef: F64, *, effects: bool) -> F64:
    """Design that coefficients (n, p) of one axis are for the other: factors, after a one where they have an effect."""
    design: F64 = np.array(coef, order="C")
    design[:, : int(effects)] = 1.0
    return design


class Curvature:
    """Second derivatives of the objective at one point, summed over the groups.

    Parameters
    ----------
    cells : one per group, with the current predictor
    sites, months : (J, p), (L, p) coefficients: effect first when ``effects``
    ridge_s, ridge_t : (p,) ridges of the coefficients
    """

    def __init__(
        self,
        cells: Sequence[Cells],
        sites: F64,
        months: F64,
        ridge_s: F64,
        ridge_t: F64,
        family: str | Family,
        *,
        effects: bool,
    ) -> None:
        J, L, p, code = len(sites), len(months), sites.shape[1], family_of(family).code
        self.cells, self.ridge_t, self.first = cells, ridge_t, int(effects)
        self.X, self.Z = as_design(months, effects=effects), as_design(sites, effects=effects)
        gs, gt = -ridge_s * sites, -ridge_t * months
        Gs, Gt = np.zeros((J, p, p)), np.zeros((L, p, p))
        self.w, self.res = [], []
        for c in cells:
            w, res = np.empty(c.nnz), np.empty(c.nnz)
            nk.cell_weights(c.y, c.E, c.eta, code, w, res)
            k.site_sums(c.ptr, c.col, c.y, c.E, c.eta, self.X, code, gs, Gs, np.zeros(J))
            k.month_sums(c.ptr, c.col, c.y, c.E, c.eta, self.Z, code, gt, Gt, np.zeros(L))
            self.w.append(w)
            self.res.append(res)
        k.factor_blocks(Gs, ridge_s, 1e-13)
        # a month without cells or ridge has no curvature and no gradient: any positive block will do
        k.factor_blocks(Gt, ridge_t + 1e-10, 1e-13)
        self.Gs, self.M = Gs, Gt
        self.mu_weight = max(sum(float(w.sum()) for w in self.w), 1e-10) if effects else 1.0
        # right-hand side: the gradient once the sites have taken their own Newton step
        W = gs.copy()
        k.solve_factored(Gs, W)
        self.sites_promise = 0.5 * float((gs * W).sum())  # what the sites' own step lowers the model by
        out, mu = self._back(np.zeros((L, p)), 0.0, W)
        self.b = gt + out
        self.b_mu = sum(float(r.sum()) for r in self.res) + mu if effects else 0.0

    def _sites(self, D: F64, mu: float) -> F64:
        """H_ss^-1 H_st (D, mu): how far the sites follow, with the opposite sign; (J, p)."""
        q = np.zeros_like(self.Z)
        for c, w, res in zip(self.cells, self.w, self.res, strict=True):
            nk.site_cross(c.ptr, c.col, w, res, self.X, self.Z, D, mu, self.first, q)
        k.solve_factored(self.Gs, q)
        return q

    def _back(self, D: F64, mu: float, W: F64) -> tuple[F64, float]:
        out, total = np.zeros_like(self.X), 0.0
        for c, w, res in zip(self.cells, self.w, self.res, strict=True):
            total += nk.month_cross(c.ptr, c.col, w, res, self.X, self.Z, D, mu, W, self.first, out)
        return out, total

    def times(self, D: F64, mu: float) -> tuple[F64, float]:
        """Product of the reduced Hessian S with (D, mu)."""
        out, total = self._back(D, mu, self._sites(D, mu))
        return out + self.ridge_t * D, total if self.first else mu

    def _precondition(self, R: F64, mu: float) -> tuple[F64, float]:
        y = R.copy()
        k.solve_factored(self.M, y)
        return y, mu / self.mu_weight

    def slope(self) -> float:
        """Length of the reduced gradient in the dual norm of the preconditioner: where a trust region starts."""
        y, mu = self._precondition(self.b, self.b_mu)
        return math.sqrt(max(float((self.b * y).sum()) + self.b_mu * mu, 0.0))

    def step(self, radius: float, tol: float = 0.1, most: int = 200) -> Step:
        """Minimise the quadratic model within ``radius`` by preconditioned conjugate gradients (Steihaug 1983).

        ``tol`` is the relative residual at which it stops, ``most`` the largest number of products with S.
        """
        D, d = np.zeros_like(self.b), 0.0
        R, s = self.b.copy(), self.b_mu
        y, m = self._precondition(R, s)
        P, q = y, m
        rho = first = float((R * y).sum()) + s * m
        # squared M-norms of D and P and their product, by recurrence
        DD, DP, PP, promise = 0.0, 0.0, rho, 0.0
        for _ in range(most):
            if rho <= tol * tol * first or rho <= 0.0:
                break
            HP, h = self.times(P, q)
            curve = float((P * HP).sum()) + q * h
            go = rho / curve if curve > 0.0 else math.inf
            if curve <= 0.0 or DD + 2 * go * DP + go * go * PP >= radius**2:
                go = (math.sqrt(max(DP**2 + PP * (radius**2 - DD), 0.0)) - DP) / PP
                promise += go * rho - 0.5 * go * go * curve
                return Step(D + go * P, d + go * q, promise, radius, True)
            D, d = D + go * P, d + go * q
            R, s = R - go * HP, s - go * h
            promise += 0.5 * go * rho
            DD += 2 * go * DP + go * go * PP
            y, m = self._precondition(R, s)
            new = float((R * y).sum()) + s * m
            beta, rho = new / rho, new
            DP = beta * (DP + go * PP)
            PP = rho + beta * beta * PP
            P, q = y + beta * P, m + beta * q
        return Step(D, d, promise, math.sqrt(max(DD, 0.0)), False)
