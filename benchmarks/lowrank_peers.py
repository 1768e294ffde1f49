"""What the low-rank benchmarks compare with, written from the sources named, and how they measure.

Not a script: ``lowrank_accuracy.py`` and ``lowrank_speed.py`` import it. Import it before numpy.
"""

from __future__ import annotations

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import csv
import resource
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from numba import njit

from fedmiss.models.lowrank.data import Group, GroupPanel
from fedmiss.models.lowrank.families import POISSON
from fedmiss.simulate.panels import Panel


def group_panel(p: Panel) -> GroupPanel:
    """Turn a simulated panel into the groups that the solver sees, with a calendar that starts in January."""
    J, L = p.shape
    groups = []
    for k in np.unique(p.group):
        mine = p.group == k
        who = np.unique(p.observer[mine], return_inverse=True)[1]
        groups.append(Group.of(f"g{k:02d}", p.site_index[mine], p.month_index[mine], p.y[mine], who))
    return GroupPanel.of(J, L, groups, (np.arange(L) % 12 + 1, 2000 + np.arange(L) // 12))


# -- the site + time Poisson GLM (TRIM's model 3) ------------------------------------------------------------------


def additive_glm(
    site: np.ndarray, month: np.ndarray, y: np.ndarray, J: int, L: int, tol: float = 1e-9, sweeps: int = 5000
) -> tuple[np.ndarray, np.ndarray]:
    """Fit mu_jl = alpha_j beta_l by iterative proportional fitting over the observed cells.

    Each half-step makes the fitted totals of the sites (months) equal to the observed ones, which are the
    likelihood equations of the Poisson GLM with site and time effects.

    Returns
    -------
    alpha (J,), beta (L,)    a site or month without any observation gets the overall level
    """
    beta = np.ones(L)
    by_site, by_month = np.bincount(site, y, J), np.bincount(month, y, L)
    alpha = np.zeros(J)
    seen_site, seen_month = np.bincount(site, minlength=J) > 0, np.bincount(month, minlength=L) > 0
    for _ in range(sweeps):
        before = beta
        alpha = by_site / np.maximum(np.bincount(site, beta[month], J), 1e-300)
        beta = by_month / np.maximum(np.bincount(month, alpha[site], L), 1e-300)
        beta /= beta[seen_month].mean()
        if np.abs(beta - before).max() < tol * max(beta.max(), 1.0):
            break
    alpha[~seen_site] = alpha[seen_site].mean()
    beta[~seen_month] = 1.0
    return alpha, beta


# -- softImpute-ALS ------------------------------------------------------------------------------------------------


@njit(cache=True)
def _residual(row, col, x, A, B, out):
    """Write x - (A B') on the observed cells to ``out``; return its sum of squares."""
    total = 0.0
    for k in range(row.size):
        fitted = 0.0
        for i in range(A.shape[1]):
            fitted += A[row[k], i] * B[col[k], i]
        out[k] = x[k] - fitted
        total += out[k] * out[k]
    return total


@dataclass
class SoftImputed:
    """A fitted matrix U diag(d) V', its objective after each iteration, and why it stopped."""

    U: np.ndarray
    d: np.ndarray
    V: np.ndarray
    objective: list[float] = field(default_factory=list)
    stopped_itself: bool = False

    def at(self, site: np.ndarray, month: np.ndarray) -> np.ndarray:
        return np.einsum("kr,kr->k", (self.U * self.d)[site], self.V[month])


def soft_impute_als(
    row: np.ndarray,
    col: np.ndarray,
    x: np.ndarray,
    shape: tuple[int, int],
    lam: float,
    rank: int,
    *,
    tol: float = 1e-5,
    max_iterations: int = 100,
    target: float | None = None,
    start: SoftImputed | None = None,
    seed: int = 0,
) -> SoftImputed:
    """Minimise ||P(X - A B')||^2 / 2 + lam/2 (||A||^2 + ||B||^2) by alternating ridge regressions on a filled matrix.

    Source: Hastie, Mazumder, Lee, Zadeh (JMLR 2015), "Matrix completion and low-rank SVD via fast alternating least
    squares", algorithm 3.1 with the sparse + low-rank products of its section 3: the filled matrix
    X* = P(X - A B') + A B' is never formed. Own implementation; the residual on the cells is compiled, products
    are scipy's, so it costs what the authors' Fortran costs.

    Parameters
    ----------
    row, col, x : (N,) the observed cells, sorted by row
    tol : stop when the relative change of the fitted matrix, ||M_new - M||^2 / ||M||^2, is below it (the paper's rule
        and the package's default 1e-5; 0 never stops there)
    target : stop when the objective is at most this
    """
    J, L = shape
    rng = np.random.default_rng(seed)
    if start is None:
        U, d, V = np.linalg.qr(rng.standard_normal((J, rank)))[0], np.ones(rank), np.zeros((L, rank))
        B_is_zero = True
    else:
        U, d, V, B_is_zero = start.U.copy(), start.d.copy(), start.V.copy(), False
    ptr = np.searchsorted(row, np.arange(J + 1))
    residual = np.empty(x.size)
    S = sp.csr_array((residual, col, ptr), shape=shape)
    S.data = residual
    out = SoftImputed(U, d, V)
    if B_is_zero:
        residual[:] = x
    else:
        _residual(row, col, x, U * d, V, residual)
    for _ in range(max_iterations):
        old_U, old_d, old_V = U, d, V
        # B given A: X*' U = S' U + V d (U'U = I), shrunk by d / (d + lam); its SVD rotates both sides
        shrink = d / (d + lam)
        V, d, R = np.linalg.svd((S.T @ U + (0.0 if B_is_zero else V * d)) * shrink, full_matrices=False)
        U, B_is_zero = U @ R.T, False
        _residual(row, col, x, U * d, V, residual)
        # A given B, the same with the sides exchanged
        shrink = d / (d + lam)
        U, d, R = np.linalg.svd((S @ V + U * d) * shrink, full_matrices=False)
        V = V @ R.T
        rss = _residual(row, col, x, U * d, V, residual)
        out.objective.append(0.5 * rss + lam * float(d.sum()))
        if target is not None and out.objective[-1] <= target:
            break
        old = float((old_d**2).sum())
        cross = float((((old_U * old_d).T @ (U * d)) * (old_V.T @ V)).sum())
        change = (old + float((d**2).sum()) - 2 * cross) / max(old, 1e-300)
        if tol and change < tol:
            out.stopped_itself = True
            break
    out.U, out.d, out.V = U, d, V
    return out


def largest_lambda(row: np.ndarray, col: np.ndarray, x: np.ndarray, shape: tuple[int, int]) -> float:
    """Return the smallest lambda at which the solution is zero: the largest singular value of the sparse matrix."""
    X = sp.coo_array((x, (row, col)), shape=shape).tocsr()
    return float(sp.linalg.svds(X, k=1, v0=np.ones(min(shape)), return_singular_vectors=False)[0])


def soft_impute_path(
    s: np.ndarray,
    t: np.ndarray,
    y: np.ndarray,
    at: tuple[np.ndarray, np.ndarray],
    J: int,
    L: int,
    additive: bool,
) -> list[np.ndarray]:
    """Fit log(1 + count), after site and month means if ``additive``, on 12 lambdas: counts expected at the cells ``at``."""
    x = np.log1p(y)
    base, base_at = np.full(x.size, x.mean()), np.full(at[0].size, x.mean())
    if additive:  # least-squares site and month effects (with a whiff of ridge), by alternating means
        a, b = np.zeros(J), np.zeros(L)
        ns, nt = np.bincount(s, minlength=J) + 0.5, np.bincount(t, minlength=L) + 0.5
        for _ in range(50):
            a = np.bincount(s, x - x.mean() - b[t], J) / ns
            b = np.bincount(t, x - x.mean() - a[s], L) / nt
        base, base_at = base + a[s] + b[t], base_at + a[at[0]] + b[at[1]]
    top = largest_lambda(s, t, x - base, (J, L))
    out, warm = [], None
    for lam in top * np.geomspace(0.9, 0.05, 12):
        warm = soft_impute_als(
            s, t, x - base, (J, L), lam, min(10, J, L), tol=1e-8, max_iterations=300, start=warm
        )
        smear = (1.0 + y).sum() / np.exp(base + warm.at(s, t)).sum()
        out.append(np.maximum(smear * np.exp(base_at + warm.at(*at)) - 1.0, 1e-3))
    return out


def soft_impute_tried(
    s: np.ndarray,
    t: np.ndarray,
    y: np.ndarray,
    at: tuple[np.ndarray, np.ndarray],
    shape: tuple[int, int],
    aside: np.ndarray,
) -> list[tuple[float, np.ndarray]]:
    """Both variants on all lambdas: Poisson deviance of the cells set ``aside``, and counts expected at ``at``."""
    tried = []
    for additive in (False, True):
        check = soft_impute_path(s[~aside], t[~aside], y[~aside], (s[aside], t[aside]), *shape, additive)
        whole = soft_impute_path(s, t, y, at, *shape, additive)
        for validated, final in zip(check, whole, strict=True):
            tried.append((float(POISSON.deviance(y[aside], validated).mean()), final))
    return tried


# -- measuring -----------------------------------------------------------------------------------------------------


@dataclass
class Cost:
    """Least CPU seconds and wall seconds of the repetitions."""

    cpu: float
    wall: float


def measure(work: Callable[..., Any], *args: Any, repeat: int = 1, **options: Any) -> tuple[Any, Cost]:
    """Call ``work`` and return its last result with the least CPU and wall seconds (the machine may be shared)."""
    best = Cost(float("inf"), float("inf"))
    result = None
    for _ in range(repeat):
        cpu, wall = time.process_time(), time.perf_counter()
        result = work(*args, **options)
        cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
        best = Cost(min(best.cpu, cpu), min(best.wall, wall))
    return result, best


def write_rows(path: Path, rows: Sequence[dict[str, object]]) -> None:
    """Write the scores so far as CSV: an interrupted run keeps them."""
    with path.open("w", newline="") as f:
        writer = csv.DictWriter(f, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def peak_mib() -> float:
    """Return the largest resident memory of this process so far, MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def in_own_process(work: Callable[..., Any], *args: Any) -> Any:
    """Run ``work`` in a fresh process, so that its peak memory is its own."""
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor

    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(work, *args).result()


def markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Lay out a markdown table, columns padded."""
    table = [list(header), *(list(r) for r in rows)]
    width = [max(len(r[i]) for r in table) for i in range(len(header))]
    lines = ["| " + " | ".join(c.ljust(w) for c, w in zip(r, width, strict=True)) + " |" for r in table]
    lines.insert(1, "|" + "|".join("-" * (w + 2) for w in width) + "|")
    return "\n".join(lines)
