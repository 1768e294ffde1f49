"""How far a fit is from the optimum: a duality gap for the convex problem, and norms of gradient and mean field.

With enough columns, lambda/2 (||U||^2 + ||V||^2) at its balanced minimum is lambda ||M||_* (M = U V'), so the
penalised problem without effects is the convex one

    P(M) = sum_cells [ E psi(M) - y M ] + lambda ||M||_*,      D(Z) = - sum_cells f*(y - Z),   ||Z||_2 <= lambda,

with f*(s) the conjugate of E psi. Z = t R, R = y - E psi'(M) the residual on the observed cells and
t = min(1, lambda / ||R||_2), is feasible, so P(M) - D(t R) bounds the distance to the optimum for all three
families. The only global quantity is the largest singular value of the sparse residual, which needs products
with vectors only: sums over groups.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import scipy.sparse as sp

from fedmiss.arrays import F64
from fedmiss.models.lowrank.data import Cells
from fedmiss.models.lowrank.families import Family, family_of
from fedmiss.models.lowrank.residual import residuals, times, times_t
from fedmiss.models.lowrank.solver import cells_loss, fit_cells, penalty_value, set_eta
from fedmiss.models.lowrank.theta import Fit, Penalty, Theta
from fedmiss.rng import rng_for

__all__ = ["Certificate", "certify", "fit_certified", "leading_values"]


@dataclass(frozen=True, slots=True)
class Certificate:
    """What is known about the distance to the optimum.

    ``primal`` P, ``dual`` D and ``gap`` (P - D) / |P|, all NaN for a model with effects; ``gradient`` Euclidean norm of
    the gradient of the objective in (mu, a, b, U, V); ``spectral`` ||R||_2 (must not exceed lambda); ``above`` how many
    singular values of R exceed it, as far as they were computed: columns that would still lower the objective.

    Source: weak duality, derived at the head of this module; not in the paper.
    """

    primal: float
    dual: float
    gap: float
    gradient: float
    spectral: float
    above: int


def leading_values(
    cells: Sequence[Cells], family: Family, J: int, L: int, *, multiplicity: int = 1, seed: int = 0
) -> F64:
    """Largest singular values of the residual, falling, to a relative 1e-8 (Lanczos on products with vectors).

    At an optimum of rank r the value lambda is repeated r times: ``multiplicity`` + 1 values are returned, at most 16.
    """
    mats = residuals(cells, family, J, L)
    if not any(m.nnz and np.abs(m.data).max() > 0 for m in mats):
        return np.zeros(1)
    if min(J, L) <= 2:
        exact: F64 = np.asarray(np.linalg.svd(times(mats, np.eye(L)), compute_uv=False))
        return exact
    op = sp.linalg.LinearOperator(
        (J, L), matvec=lambda v: times(mats, v), rmatvec=lambda u: times_t(mats, u), dtype=np.float64
    )
    v0 = rng_for(seed, "lanczos").standard_normal(min(J, L))
    k = max(1, min(multiplicity + 1, 16, min(J, L) - 2))
    ncv = min(max(20, 4 * k + 1), min(J, L) - 1)
    values: F64 = np.asarray(
        sp.linalg.svds(op, k=k, v0=v0, ncv=ncv, tol=1e-4, maxiter=10_000, return_singular_vectors=False)
    )
    return np.sort(values)[::-1].copy()


def _conjugate(cells: Sequence[Cells], family: Family, t: float) -> float:
    """Sum of f*(y - t R) over the cells; y - t R = (1 - t) y + t E psi' stays in the domain of f*."""
    total = 0.0
    for c in cells:
        s = (1.0 - t) * c.y + t * c.E * family.mean(c.eta)
        total += float(family.conjugate(s, np.maximum(c.E, 1e-300)).sum())
    return total


def certify(
    cells: Sequence[Cells],
    theta: Theta,
    pen: Penalty,
    family: str | Family,
    *,
    effects: bool,
    multiplicity: int = 1,
) -> Certificate:
    """Measure a fit. ``cells`` must be filled; their predictor is recomputed."""
    J, L, family = theta.a.size, theta.b.size, family_of(family)
    set_eta(cells, theta)
    mats = residuals(cells, family, J, L)
    R_V, R_U = times(mats, theta.V), times_t(mats, theta.U)
    parts = [R_V - pen.factors * theta.U, R_U - pen.factors * theta.V]
    if effects:
        rows, columns = times(mats, np.ones(L)), times_t(mats, np.ones(J))
        parts += [rows - pen.sites * theta.a, columns - pen.months * theta.b, np.array([rows.sum()])]
    gradient = float(np.sqrt(sum((p**2).sum() for p in parts)))
    values = leading_values(cells, family, J, L, multiplicity=max(theta.rank, multiplicity))
    spectral, above = float(values[0]), int((values > pen.factors * (1 + 1e-6)).sum())
    if effects:
        return Certificate(np.nan, np.nan, np.nan, gradient, spectral, above)
    primal = cells_loss(cells, family) + penalty_value(theta, pen)
    t = min(1.0, pen.factors / spectral) if spectral > 0 else 1.0
    dual = -_conjugate(cells, family, t)
    return Certificate(primal, dual, (primal - dual) / max(abs(primal), 1e-300), gradient, spectral, above)


def fit_certified(
    cells: Sequence[Cells],
    J: int,
    L: int,
    *,
    family: str | Family = "gaussian",
    penalty: float = 1.0,
    gap: float = 1e-6,
    rank: int = 2,
    max_rank: int = 50,
    max_sweeps: int = 3000,
    seed: int = 0,
) -> tuple[Fit, Certificate]:
    """Solve the nuclear-norm problem to a relative duality gap, growing the rank as needed.

    A column is added for every singular value of the residual above lambda, along which the objective still falls, once
    the columns that there are are all in use; otherwise the tolerance is tightened.

    Source: not in the paper; the gap is derived at the head of this module.
    """
    # many parameters: the documented interface, given by name
    pen = Penalty(factors=penalty)
    theta: Theta | None = None
    tol, sweeps = 1e-5, 0
    while True:
        fit = fit_cells(
            cells, J, L, family=family, rank=rank, penalty=pen, effects=False, start=theta, tol=tol,
            max_sweeps=max(max_sweeps - sweeps, 1), seed=seed,
        )  # fmt: skip
        theta, sweeps = fit.theta, sweeps + fit.sweeps
        cert = certify(cells, theta, pen, family, effects=False, multiplicity=15)
        if cert.gap <= gap or sweeps >= max_sweeps:
            reached = cert.gap <= gap
            reason = f"relative duality gap {cert.gap:.1e}" + ("" if reached else f" after {sweeps} sweeps")
            return replace(fit, converged=reached, stop_reason=reason, sweeps=sweeps), cert
        size = np.linalg.norm(theta.U, axis=0) * np.linalg.norm(theta.V, axis=0)  # singular values of U V'
        in_use = int((size > 1e-3 * size.max(initial=0.0)).sum())
        if cert.above and in_use == theta.rank and rank < min(max_rank, J, L):
            rank = min(theta.rank + cert.above, max_rank, J, L)
        else:
            rank, tol = max(in_use, 1), max(tol / 10, 1e-16)
