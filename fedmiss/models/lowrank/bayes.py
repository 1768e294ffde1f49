"""Variational EM for the count model: the ridges estimate themselves.

Site coefficients p_j = (a_j, u_j) ~ N(0, diag(tau)) and month coefficients t_l = (b_l, v_l) ~ N(f_l, noise), with f a
seasonal and smooth series (``season``), are latent. Their posteriors are taken Gaussian and independent,
N(P_j, C_j) and N(T_l, D_l). The expected loss of a cell uses the lognormal mean exp(eta + var/2), so that a
factor that is poorly known counts for less. Each half-step is a damped Newton step on normal equations that are
sums over cells, hence over groups: the same message as the penalised solver's. Variances follow by EM.

Relation to the paper: this is EM with latent factors (probabilistic PCA with missing cells; for counts its
Poisson analogue). It differs from FedMissEM's objective in integrating the factors out instead of maximising
over them; ``solver`` minimises the paper's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from fedmiss.arrays import F64, I64
from fedmiss.models.lowrank.data import Cells
from fedmiss.models.lowrank.families import family_code
from fedmiss.models.lowrank.season import SeriesPrior
from fedmiss.models.lowrank.solver import Penalty, Theta, fit_cells, moved

__all__ = ["Posterior", "add_factor", "predictor", "set_predictor", "start_posterior", "vb_fit"]

SMALLEST = 1e-4  # least prior variance
SLIGHT = 0.01  # root mean square of u_k v_k below which a factor has been switched off


@dataclass(slots=True)
class Posterior:
    """Gaussian posteriors of the site and month coefficients.

    ``mu`` scalar; ``P`` (J, p), ``C`` (J, p, p) sites; ``T`` (L, p), ``D`` (L, p, p) months; p = 1 + r.
    ``tau`` (p,) prior variances of the sites' coefficients; ``prior`` (L, p) prior means and ``noise`` (p,) prior
    variances of the months'.
    """

    mu: float
    P: F64
    C: F64
    T: F64
    D: F64
    tau: F64
    prior: F64
    noise: F64
    series: list[SeriesPrior] | None = None  # how the months' prior means are made; None: they are zero

    def theta(self) -> Theta:
        """Posterior means as parameters of the low-rank model."""
        return Theta(self.mu, self.P[:, 0], self.T[:, 0], self.P[:, 1:], self.T[:, 1:])


def start_posterior(theta: Theta) -> Posterior:
    """Start at a penalised fit, with no uncertainty yet."""
    J, L, p = theta.a.size, theta.b.size, theta.rank + 1
    P, T = np.column_stack([theta.a, theta.U]), np.column_stack([theta.b, theta.V])
    tau = (P**2).mean(axis=0) + 0.05
    noise = (T**2).mean(axis=0) + 0.05
    return Posterior(theta.mu, P, np.zeros((J, p, p)), T, np.zeros((L, p, p)), tau, np.zeros((L, p)), noise)


def add_factor(
    cells: Sequence[Cells], q: Posterior, family: str, *, phi: float, seed: int = 0, sweeps: int = 4
) -> Posterior:
    """Give a converged posterior one more factor, started at the best penalised rank-1 fit of what is left.

    The cells must hold the predictor of ``q`` (:func:`set_predictor`).

    Factors enter one by one, and after each the whole posterior is fitted again ("greedy, then backfit": Wang and
    Stephens, JMLR 2021, "Empirical Bayes matrix factorization", section 3.3). Started together, weak factors share one
    signal, each is too weak for its prior, and all are switched off where one alone would have stayed.
    With a calendar the factor starts at its season and walk, a third of its variance each, without the month-by-month
    rest: the leading singular vector of noisy residuals is mostly noise. After a factor that was switched off the next
    one starts, and stays, at zero.
    """
    k = q.P.shape[1]
    J, L = q.P.shape[0], q.T.shape[0]
    u, v = np.zeros((J, 1)), np.zeros((L, 1))
    tau = noise = SMALLEST
    if k == 1 or float((q.P[:, -1] ** 2).mean() * (q.T[:, -1] ** 2).mean()) > SLIGHT**4:
        rest = [replace(c, offset=c.eta, eta=c.eta.copy(), trial=np.empty(c.nnz)) for c in cells]
        one = fit_cells(
            rest,
            J,
            L,
            family=family,
            rank=1,
            effects=False,
            penalty=Penalty(phi),
            max_sweeps=sweeps,
            seed=seed,
        ).theta
        u, v = one.U, one.V
        tau, noise = float((u**2).mean()) + 0.05, float((v**2).mean()) + 0.05

    prior, series = np.zeros((L, 1)), None
    if q.series is not None:
        third = noise / 3
        fresh = replace(q.series[0], season=third, step=third, noise=third, cov=np.zeros((0, 0)))
        prior[:, 0], _ = fresh.update(v[:, 0], np.full(L, third / 2), prior[:, 0], learn=False)
        v, noise, series = prior, third, [*q.series, fresh]

    def wider(cov: F64) -> F64:
        out = np.zeros((cov.shape[0], k + 1, k + 1))
        out[:, :k, :k] = cov
        return out

    return Posterior(
        q.mu,
        np.hstack([q.P, u]),
        wider(q.C),
        np.hstack([q.T, v]),
        wider(q.D),
        np.r_[q.tau, tau],
        np.hstack([q.prior, prior]),
        np.r_[q.noise, noise],
        series,
    )


def _sums(cells: Sequence[Cells], q: Posterior, family: str, by_site: bool) -> tuple[F64, F64]:
    from fedmiss.models.lowrank.kernels import vb_month_sums, vb_site_sums

    kernel = vb_site_sums if by_site else vb_month_sums
    n, p = (q.P if by_site else q.T).shape
    g, G = np.zeros((n, p)), np.zeros((n, p, p))
    for c in cells:  # sorted by group name
        gc, Gc = kernel(
            c.ptr, c.col, c.y, c.E, c.offset, q.mu, q.P, q.C, q.T, q.D, family_code(family), c.eta
        )
        g += gc
        G += Gc
    return g, G


def set_predictor(cells: Sequence[Cells], q: Posterior, family: str) -> None:
    """Give every cell the predictor that has its posterior mean."""
    for c in cells:
        if c.eta.size != c.nnz:
            c.eta = np.zeros(c.nnz)
    _sums(cells, q, family, True)


def _newton(
    mean: F64, prior: F64, variance: F64, g: F64, G: F64, phi: float, reach: float
) -> tuple[F64, F64, float]:
    """One damped Newton step of every block; returns means, covariances and effective degrees of freedom."""
    H = G / phi
    idx = np.arange(mean.shape[1])
    A = H.copy()
    A[:, idx, idx] += 1.0 / variance
    cov: F64 = np.asarray(np.linalg.inv(A), dtype=float)
    step = np.einsum("nab,nb->na", cov, g / phi - (mean - prior) / variance)
    longest = np.abs(step).max(axis=1)
    step *= np.minimum(1.0, reach / np.maximum(longest, 1e-12))[:, None]
    return mean + step, cov, float(np.einsum("nab,nba->", cov, H))


def _rescale(q: Posterior) -> None:
    """Give every factor column the same prior variance on both sides; U V' does not change."""
    p = q.P.shape[1]
    for k in range(1, p):
        total = float((q.T[:, k] ** 2 + q.D[:, k, k]).mean())
        c = (max(total, 1e-8) / max(float(q.tau[k]), 1e-8)) ** 0.25
        c = float(np.clip(c, 0.2, 5.0))
        q.P[:, k] *= c
        q.C[:, k, :] *= c
        q.C[:, :, k] *= c
        q.tau[k] *= c * c
        q.T[:, k] /= c
        q.D[:, k, :] /= c
        q.D[:, :, k] /= c
        q.prior[:, k] /= c
        q.noise[k] /= c * c
        if q.series is not None:
            q.series[k].season /= c * c
            q.series[k].step /= c * c


def vb_fit(
    cells: Sequence[Cells],
    start: Posterior,
    *,
    family: str = "poisson",
    phi: float = 1.0,
    calendar: tuple[I64, I64] | None = None,
    effects: bool = True,
    tol: float = 1e-4,
    max_rounds: int = 200,
    learn: bool = True,
    between: Callable[[Posterior, float, int], float] | None = None,
    watch: Callable[[int, float, float], None] | None = None,
) -> tuple[Posterior, float, float, int, bool]:
    """Run variational EM.

    Parameters
    ----------
    cells : one per group, filled; ``eta`` receives the predictor that has each cell's posterior mean
    phi : dispersion; ``between(q, edf, k)`` may update it (and refill the cells) after each round
    calendar : (month_of_year, year), each (L,): gives the months a seasonal and smooth prior
    learn : re-estimate the prior variances (False: keep them, for bootstrap replicates; prior means still follow)
    tol : stop when neither the observed cells' predictors nor the months moved by more than ``tol`` (root mean square)
        in three rounds in a row (effort, observers and dispersion are updated every third round)

    Returns
    -------
    posterior, phi, effective degrees of freedom, rounds, converged
    """
    q = replace(
        start,
        P=start.P.copy(),
        C=start.C.copy(),
        T=start.T.copy(),
        D=start.D.copy(),
        tau=start.tau.copy(),
        prior=start.prior.copy(),
        noise=start.noise.copy(),
    )
    p = q.P.shape[1]
    series = None if start.series is None else [replace(s) for s in start.series]
    if series is None and calendar is not None and learn:
        series = [SeriesPrior.of(calendar[0], calendar[1], float(q.noise[k])) for k in range(p)]
    q.series = series
    set_predictor(cells, start, family)
    from fedmiss.models.lowrank.kernels import set_threads

    set_threads(max(c.nnz for c in cells))
    old = [np.zeros(c.nnz) for c in cells]
    months = q.T[:, 0].copy()
    edf, k = float(p), 0
    recent = [float("inf")]
    for k in range(1, max_rounds + 1):
        g, G = _sums(cells, q, family, True)
        q.P, q.C, edf_sites = _newton(q.P, np.zeros_like(q.P), q.tau, g, G, phi, 1.0)
        if learn and k > 2:
            q.tau = np.maximum((q.P**2 + np.einsum("naa->na", q.C)).mean(axis=0), SMALLEST)
        g, G = _sums(cells, q, family, False)
        q.T, q.D, edf_months = _newton(q.T, q.prior, q.noise, g, G, phi, 1.0)
        edf = edf_sites + edf_months + 1.0
        if effects:
            q.mu += float(q.P[:, 0].mean() + q.T[:, 0].mean())
            q.P[:, 0] -= q.P[:, 0].mean()
            shift = q.T[:, 0].mean()
            q.T[:, 0] -= shift
            q.prior[:, 0] -= shift
        if k > 2 or not learn:
            _months(q, series, learn=learn)
        if k > 2 and learn:
            _rescale(q)
        # Months without a visit move no cell: they are watched by themselves.
        change = max(moved(cells, old), float(np.sqrt(((q.T[:, 0] - months) ** 2).mean())))
        months = q.T[:, 0].copy()
        if watch:
            watch(k, float("nan"), change)
        if between is not None:
            phi = between(q, edf, k)
        recent = [*recent[-2:], change]
        if k > 5 and max(recent) < tol:
            break
    return q, phi, edf, k, bool(max(recent) < tol)


def _months(q: Posterior, series: list[SeriesPrior] | None, *, learn: bool) -> None:
    """Re-estimate the months' prior means, and with ``learn`` its variances."""
    spread = np.einsum("naa->na", q.D)
    if series is None:
        if learn:
            q.noise = np.maximum((q.T**2 + spread).mean(axis=0), SMALLEST)
        return
    for i, s in enumerate(series):
        s.noise = float(q.noise[i])
        q.prior[:, i], q.T[:, i] = s.update(q.T[:, i], spread[:, i], q.prior[:, i], learn=learn)
        q.noise[i] = s.noise


def predictor(q: Posterior, site: slice | I64, family: str) -> F64:
    """Predictor (rows of ``site`` x L) that has the posterior mean of every cell, observed or not."""
    P, C = q.P[site], q.C[site]
    ones = np.ones((P.shape[0], 1))
    eta: F64 = q.mu + P[:, :1] + q.T[:, 0] + P[:, 1:] @ q.T[:, 1:].T
    if family == "gaussian":
        return eta
    x = np.column_stack([np.ones(q.T.shape[0]), q.T[:, 1:]])
    z = np.hstack([ones, P[:, 1:]])
    p = x.shape[1]
    # var = x'C x + z'D z + tr(C D) over the factor block, as three matrix products
    xx = (x[:, :, None] * x[:, None, :]).reshape(-1, p * p)
    zz = (z[:, :, None] * z[:, None, :]).reshape(-1, p * p)
    var = C.reshape(-1, p * p) @ xx.T + zz @ q.D.reshape(-1, p * p).T
    var += C[:, 1:, 1:].reshape(len(P), -1) @ q.D[:, 1:, 1:].reshape(len(q.T), -1).T
    if family == "poisson":
        eta += 0.5 * np.minimum(var, 20.0)
    else:
        eta /= np.sqrt(1.0 + 0.39269908169872414 * var)
    return eta
