"""Exact laws of FedLSA and SCAFFLSA: bias, first-order bias, second moments of every round, rounds to an accuracy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedmiss.arrays import F64
from fedmiss.errors import ConfigError
from fedmiss.models.lsa import mean_system


def solution(A: F64, b: F64) -> tuple[F64, F64]:
    """theta* (p,) of the mean system and theta*_c (n, p) of each worker's own, from A (n, p, p) and b (n, p).

    Source: theta* and theta*_c of Mangold et al. (2024).
    """
    theta = np.asarray(np.linalg.solve(A.mean(axis=0), b.mean(axis=0)), dtype=np.float64)
    local = np.asarray(np.linalg.solve(A, b[:, :, None])[:, :, 0], dtype=np.float64)
    return theta, local


def check_stable(A: F64, eta: float, H: int) -> None:
    """Raise ConfigError with the eigenvalue unless the mean system is stable and the mean of the local maps contracts.

    Source: what the limit in :func:`bias` needs to exist.
    """
    values = np.linalg.eigvals(A.mean(axis=0))
    worst = values[np.argmin(values.real)]
    if worst.real <= 0.0:
        raise ConfigError(
            f"the mean system is not stable: an eigenvalue of mean A_c is {worst:.3g} (all need a positive real part); "
            "no step makes it converge."
        )
    # A round maps theta - theta* to Gbar (theta - theta*) plus a drift: it contracts where the spectral radius is below 1.
    G = np.mean([np.linalg.matrix_power(np.eye(A.shape[1]) - eta * A_c, H) for A_c in A], axis=0)
    values = np.linalg.eigvals(G)
    worst = values[np.argmax(np.abs(values))]
    if not abs(worst) < 1.0:
        raise ConfigError(
            f"FedLSA diverges at eta={eta:g}, H={H}: an eigenvalue of mean_c (I - eta A_c)^H is {worst:.3g} (all must lie "
            f"inside the unit circle); lower eta (try {eta / 4:g}) or H."
        )


def bias(A: F64, b: F64, eta: float, H: int) -> F64:
    """(p,) limit of E theta_t - theta* for FedLSA, exactly, multiplicative noise included.

    (I - Gbar)^{-1} mean_c [ (I - G_c)(theta*_c - theta*) ],  G_c = (I - eta A_c)^H.
    Source: Mangold et al. (2024), proposition 3.1 (the talk's bias formula).
    """
    check_stable(A, eta, H)
    theta, local = solution(A, b)
    eye = np.eye(A.shape[1])
    G = np.array([np.linalg.matrix_power(eye - eta * A_c, H) for A_c in A])
    # Draws are independent of theta, so the mean of H steps with noisy A_c(Z) is that of the mean map, (I - eta A_c)^H.
    drift = np.einsum("cij,cj->i", eye - G, local - theta) / len(A)
    return np.linalg.solve(eye - G.mean(axis=0), drift)


def bias_first_order(A: F64, b: F64, eta: float, H: int) -> F64:
    """(p,) first order of :func:`bias`: eta (H - 1)/2 Abar^{-1} mean_c (A_c - Abar) A_c (theta* - theta*_c).

    Source: the expansion in eta of Mangold et al. (2024), proposition 3.1, see :func:`bias`.
    """
    theta, local = solution(A, b)
    A_bar = A.mean(axis=0)
    part = np.einsum("cij,cjk,ck->i", A - A_bar, A, theta - local) / len(A)
    return 0.5 * eta * (H - 1) * np.linalg.solve(A_bar, part)


@dataclass(frozen=True, slots=True, eq=False)
class Moments:
    """Exact moments after each round.

    Parameters
    ----------
    mean : (rounds + 1, p)    E theta_t
    mse : (rounds + 1,)       E||theta_t - theta*||^2
    variance : (rounds + 1,)  E||theta_t - E theta_t||^2
    """

    mean: F64
    mse: F64
    variance: F64


def _local_maps(rows: F64, eta: float, H: int, scaffold: bool) -> tuple[F64, F64]:
    """Mean (d, d) and mean Kronecker square (d d, d d) of the H-step map of z = (1, theta) or (1, theta, xi)."""
    m, p = rows.shape[0], rows.shape[1]
    d = 1 + p * (2 if scaffold else 1)
    # z = (1, theta, xi) makes the affine step linear: theta <- theta - eta (A theta - b - xi), and 1 and xi stay.
    B = np.zeros((m, d, d))
    B[:, 0, 0] = 1.0
    B[:, 1 : p + 1, 0] = eta * rows[:, :, p]
    B[:, 1 : p + 1, 1 : p + 1] = np.eye(p) - eta * rows[:, :, :p]
    if scaffold:
        B[:, 1 : p + 1, p + 1 :] = eta * np.eye(p)
        B[:, p + 1 :, p + 1 :] = np.eye(p)
    flat = B.reshape(m, d * d)
    # E[B_ij B_kl] sorted to rows (i, k) and columns (j, l) is E[B (x) B], which acts on vec(z z').
    K = (flat.T @ flat / m).reshape(d, d, d, d).transpose(0, 2, 1, 3).reshape(d * d, d * d)
    return np.linalg.matrix_power(B.mean(axis=0), H), np.linalg.matrix_power(K, H)


def second_moments(
    data: Sequence[F64] | F64,
    eta: float,
    H: int,
    rounds: int,
    *,
    theta_0: F64 | None = None,
    scaffold: bool = False,
) -> Moments:
    """Exact E theta_t and E||theta_t - theta*||^2 of FedLSA (or SCAFFLSA, xi_c = 0 at the start), one draw a step.

    A local step is linear in z = (1, theta, xi_c) with an independent random matrix B, so E[z z'] of worker c after H steps
    is (E B (x) B)^H applied to E[z z'], and workers are independent given the round's start: the second moments of
    (1, theta, xi_1..xi_n) follow a linear recursion.

    Source: none, exact algebra on the algorithms of Mangold et al. (2024).

    Parameters
    ----------
    data : pools (m, p, p + 1) of the workers
    theta_0 : (p,) start, default 0
    """
    pools = [np.asarray(rows, dtype=np.float64) for rows in data]
    for worker, rows in enumerate(pools):
        if rows.ndim != 3 or rows.shape[2] != rows.shape[1] + 1 or not np.isfinite(rows).all():
            raise ConfigError(
                f"pool {worker} has shape {rows.shape} (expected (m, p, p + 1), finite numbers)."
            )
    A, b = mean_system(pools)
    n, p = b.shape
    check_stable(A, eta, H)
    star = solution(A, b)[0]
    start = np.zeros(p) if theta_0 is None else np.asarray(theta_0, dtype=np.float64)
    D = 1 + p + (n * p if scaffold else 0)
    own = [
        np.r_[0 : 1 + p, 1 + p + worker * p : 1 + p + (worker + 1) * p] if scaffold else np.arange(1 + p)
        for worker in range(n)
    ]
    maps = [_local_maps(rows, eta, H, scaffold) for rows in pools]
    into = np.zeros((n, D, p))  # how worker c's last theta enters the next state
    into[:, 1 : 1 + p] = np.eye(p) / n
    keep = np.zeros((D, D))
    keep[0, 0] = 1.0
    if scaffold:
        keep[1 + p :, 1 + p :] = np.eye(n * p)
        for worker in range(n):
            for e in range(n):
                at = slice(1 + p + e * p, 1 + p + (e + 1) * p)
                # xi_e <- xi_e + (theta_{t+1} - th_e) / (eta H), theta_{t+1} =
                # mean_c th_c: worker c enters with 1/n, and -1 more for its own.
                into[worker, at] = np.eye(p) * (1.0 / n - float(worker == e)) / (eta * H)
    F = keep.copy()
    for worker in range(n):
        F[:, own[worker]] += into[worker] @ maps[worker][0][1 : 1 + p]
    z = np.zeros(D)
    z[0], z[1 : 1 + p] = 1.0, start
    M = np.outer(z, z)
    out = [(z[1 : 1 + p].copy(), M[1 : 1 + p, 1 : 1 + p].copy())]
    for _ in range(rounds):
        new = F @ M @ F.T
        for worker in range(n):
            # F M F' counts every worker at its mean map; given the start
            # they are independent, so each adds its own covariance only.
            M_c = M[np.ix_(own[worker], own[worker])]
            B, K = maps[worker]
            d = len(M_c)
            spread = (K @ M_c.ravel()).reshape(d, d) - B @ M_c @ B.T
            new += into[worker] @ spread[1 : 1 + p, 1 : 1 + p] @ into[worker].T
        M, z = new, F @ z
        out.append((z[1 : 1 + p].copy(), M[1 : 1 + p, 1 : 1 + p].copy()))
    mean = np.array([v for v, _ in out])
    trace = np.array([np.trace(C) for _, C in out])
    # E||theta - theta*||^2 = tr E[theta theta'] - 2 E theta . theta* + ||theta*||^2.
    mse = trace - 2 * mean @ star + star @ star
    return Moments(mean, mse, trace - (mean**2).sum(axis=1))


def rounds_to(
    data: Sequence[F64] | F64,
    eps: Sequence[float],
    etas: Sequence[float],
    steps: Sequence[int],
    *,
    scaffold: bool,
    theta_0: F64,
    most: int = 200,
) -> list[tuple[int, float, int]]:
    """(T, eta, H) with the fewest rounds T such that E||theta_T - theta*||^2 <= eps^2, for each eps; T = -1 for none.

    Over all pairs with eta H <= 4 that are stable. Source: the talk's comparison of T and H; exact here.
    """
    best: list[tuple[int, float, int]] = [(-1, 0.0, 0)] * len(eps)
    for eta in etas:
        for H in steps:
            if eta * H > 4.0:
                continue
            try:
                mse = second_moments(data, eta, H, most, theta_0=theta_0, scaffold=scaffold).mse
            except ConfigError:
                continue
            for i, target in enumerate(eps):
                hit = np.flatnonzero(mse <= target * target)
                if hit.size and (best[i][0] < 0 or hit[0] < best[i][0]):
                    best[i] = (int(hit[0]), float(eta), int(H))
    return best
