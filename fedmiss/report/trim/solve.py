"""Estimates of TRIM's log-linear models: maximum likelihood, or estimating equations with serial correlation.

    log mu_it = alpha_i + x_it' beta,    var(f_i) = sigma2 sqrt(mu_i) R(rho) sqrt(mu_i)

The site effects alpha are eliminated at every step, so that only p x p systems are solved. R is AR(1) over the time
points of one month; different months of a year are taken as independent, as in rtrim.

Source: Pannekoek and van Strien (2001), TRIM 3 manual, appendix. Differs from it in: iterates to 1e-10.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from fedmiss.arrays import F64, I64, Bool
from fedmiss.errors import InputError
from fedmiss.models.site_time import MOST_ROUNDS, TOLERANCE, ascent, site_effects, site_time, solve_scaled
from fedmiss.report.trim.cells import Cells
from fedmiss.report.trim.design import Design


@dataclass(frozen=True)
class Estimate:
    """``mu`` (I, T) expected counts, ``beta`` (p,), ``rho``; ``R`` (J, J) correlation of one month's time points."""

    mu: F64
    beta: F64
    rho: float
    R: F64


@dataclass(frozen=True)
class Information:
    """With the site effects eliminated: ``var_beta`` (p, p), ``W`` (I, T) row sums of Omega_i, ``d`` (I,) their sums."""

    var_beta: F64
    W: F64
    d: F64


def estimate(cells: Cells, design: Design, *, serial: bool) -> Estimate:
    """Fit the model. Every site must have a positive count.

    Raises InputError: parameters that the counts do not determine; no neighbouring counts for a serial correlation.
    """
    f = np.nan_to_num(cells.counts)
    mu, beta = _newton(f, cells.seen, design)
    if not serial:
        return Estimate(mu, beta, 0.0, np.eye(len(cells.times)))
    return _gee(cells, f, design, mu, beta)


def _linear(design: Design, beta: F64) -> F64:
    """``x_it' beta``, (I, T)."""
    return np.asarray((design.X @ beta)[design.site_class])


def _newton(f: F64, seen: Bool, design: Design) -> tuple[F64, F64]:
    """Maximise the Poisson likelihood, with the site effects eliminated at every step."""
    E = seen.astype(float)
    climb = ascent(np.zeros(design.X.shape[2]))
    beta = next(climb)
    while True:
        value, score, S = 0.0, np.zeros(beta.size), np.zeros((beta.size, beta.size))
        eta = _linear(design, beta)
        for c, X in enumerate(design.X):
            mine = design.site_class == c
            # A step that is too long overflows, and is halved.
            with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
                one = site_time(f[mine], E[mine], eta[mine])
            value += one.value
            # Chain rule: eta = X beta within a class of sites, so sums over the class's time points suffice.
            score += X.T @ one.gradient
            S += X.T @ one.information @ X
        try:
            beta = climb.send((value, score, S))
        except StopIteration as end:
            beta = end.value
            break
    eta = _linear(design, beta)
    return np.exp(site_effects(f, E, eta)[:, None] + eta), beta


def _inverse(seen: Bool, R: F64) -> F64:
    """Return the inverse of R over the seen points of each site, zero elsewhere: (i, J, J)."""
    both = seen[:, :, None] & seen[:, None, :]
    # Missing points become a unit block of their own: one batched inverse serves all patterns of missing counts.
    padded = np.where(both, R, 0.0)
    J = R.shape[0]
    padded[:, np.arange(J), np.arange(J)] = 1.0
    return np.where(both, np.linalg.inv(padded), 0.0)


def _pieces(cells: Cells, design: Design) -> Iterator[tuple[int, slice, I64]]:
    """Yield class, columns and sites of blocks that share a month and a class and fit into memory."""
    _I, M, J = cells.shape
    size = max(1, 4_000_000 // (J * J))
    for c in range(len(design.X)):
        mine = np.flatnonzero(design.site_class == c)
        for m in range(M):
            for start in range(0, mine.size, size):
                yield c, slice(m * J, (m + 1) * J), mine[start : start + size]


def _gee(cells: Cells, f: F64, design: Design, mu: F64, beta: F64) -> Estimate:
    """Fisher scoring on the estimating equations, alpha eliminated, rho by moments at every step."""
    seen, (n, M, J) = cells.seen, cells.shape
    # Counts minus parameters: a site effect for each site, and beta.
    df = int(seen.sum()) - n - beta.size
    lag = np.abs(np.subtract.outer(cells.time, cells.time))
    by_month = seen.reshape(n, M, J)
    # Only pairs one time step apart estimate rho: a gap of two years would show rho squared.
    next_to = np.isclose(np.diff(cells.time), 1.0)
    pairs = by_month[:, :, 1:] & by_month[:, :, :-1] & next_to
    if not pairs.any():
        raise InputError(
            "no site has counts at two neighbouring times, so serial correlation cannot be estimated."
        )
    alpha = np.log(mu[:, 0]) - _linear(design, beta)[:, 0]
    rho = 0.0
    for _ in range(MOST_ROUNDS):
        # Moments of Pearson residuals: sigma2 their mean square, rho the mean product of neighbours over sigma2.
        r = np.where(seen, (f - mu) / np.sqrt(mu), 0.0)
        sigma2 = (r**2).sum() / df if df > 0 else 1.0
        z = r.reshape(n, M, J)
        together = (z[:, :, 1:] * z[:, :, :-1])[pairs].sum()
        # Where every count is met nothing goes together; less is rounding.
        scattered = (r**2).sum() > 1e-12 * f[seen].sum()
        new_rho = float(together / (pairs.sum() * sigma2)) if scattered else 0.0
        # No correlation outside of (-1, 1) has an R, but a moment on the way may lie there.
        inside = np.clip(new_rho, -0.999, 0.999)
        # A negative rho to a lag that is no whole number is not real: the sign follows the nearest whole lag.
        R = inside**lag if inside >= 0 else np.sign(inside) ** np.round(lag) * abs(inside) ** lag
        U, W = np.zeros(n), np.zeros((n, M * J))
        S, rhs = np.zeros((beta.size, beta.size)), np.zeros(beta.size)
        for c, columns, sites in _pieces(cells, design):
            X, root = design.X[c][columns], np.sqrt(mu[sites, columns])
            A = _inverse(seen[sites, columns], R)
            # Omega_i = mu^(1/2) R^-1 mu^(1/2) over the seen points, without 1/sigma2, which cancels in the step.
            omega = root[:, :, None] * A * root[:, None, :]
            score = root * np.einsum("ijk,ik->ij", A, r[sites, columns])
            W[sites, columns] = omega.sum(axis=2)
            U[sites] += score.sum(axis=1)
            S += X.T @ omega.sum(axis=0) @ X
            rhs += X.T @ score.sum(axis=0)
        S, d, WX = _without_sites(S, W, design)
        rhs -= WX.T @ (U / d)
        step = solve_scaled(S, rhs)
        beta = beta + step
        # Back substitution for the site effects.
        change = (U - WX @ step) / d
        alpha = alpha + change
        with np.errstate(over="ignore"):
            mu = np.exp(alpha[:, None] + _linear(design, beta))
        if not (np.isfinite(mu) & (mu > 0)).all():
            break  # few counts, and steps that grow without end
        if max(np.abs(np.append(step, change)).max(), abs(new_rho - rho)) < TOLERANCE:
            if inside != new_rho:
                break
            return Estimate(mu, beta, new_rho, R)
        rho = new_rho
    raise InputError("the serial correlation did not settle between -1 and 1; fit without it.")


def information(cells: Cells, design: Design, estimated: Estimate, sigma2: float) -> Information:
    """Return the covariance of beta and what the covariance of totals needs beside it."""
    seen, mu = cells.seen, estimated.mu
    p = design.X.shape[2]
    S = np.zeros((p, p))
    W = np.zeros_like(mu)
    # The same sums as in the last step of the estimate, now with 1/sigma2: the inverse is a covariance.
    if estimated.rho == 0.0:  # every Omega_i is diagonal
        W = np.where(seen, mu, 0.0) / sigma2
        for c, X in enumerate(design.X):
            S += X.T @ (W[design.site_class == c].sum(axis=0)[:, None] * X)
    else:
        for c, columns, sites in _pieces(cells, design):
            X = design.X[c][columns]
            root = np.where(seen[sites, columns], np.sqrt(mu[sites, columns]), 0.0)
            omega = root[:, :, None] * _inverse(seen[sites, columns], estimated.R) * root[:, None, :] / sigma2
            W[sites, columns] = omega.sum(axis=2)
            S += X.T @ omega.sum(axis=0) @ X
    whole = np.diag(S)
    S, d, _ = _without_sites(S, W, design)
    # Where all birds of a slope are at one end of it, each step makes it steeper until nothing is known of it.
    if (np.diag(S) <= 1e-12 * whole).any():
        raise InputError(
            "all birds behind some slope or effect were counted at one end of it, so it grows without end; use fewer "
            "change points or covariates, or model 1 (no change)."
        )
    root = np.sqrt(np.diag(S))
    scale = np.outer(root, root)
    return Information(np.linalg.inv(S / scale) / scale, W, d)


def _without_sites(S: F64, W: F64, design: Design) -> tuple[F64, F64, F64]:
    """Eliminate the site effects from the information ``S`` (p, p) of beta: ``S``, ``d`` (I,), ``X' W_i`` (I, p).

    ``d_i`` is the information of alpha_i, ``W_i`` its products with the time points, and the Schur complement of beta is
    ``S - sum_i (X' W_i)(X' W_i)' / d_i``.
    """
    d = W.sum(axis=1)
    WX = np.stack([W[i] @ design.X[c] for i, c in enumerate(design.site_class)])
    return S - (WX / d[:, None]).T @ WX, d, WX
