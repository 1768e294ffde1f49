"""TRIM's model 3: counts ~ site + time, Poisson, with holes; its totals, their covariance, and its slope.

The incumbent of bird monitoring, kept here for two uses: as the reference that a fit of rank 0 without penalty
must equal, and as the baseline that a scheme already knows.

    log mu_ij = alpha_i + gamma_j,   gamma_1 = 0,   var(f_i) = sigma2 sqrt(mu_i) R(rho) sqrt(mu_i)

Source: Pannekoek and van Strien (2001), TRIM 3 manual; van der Loo, Bogaart and Pannekoek, rtrim. Differs from
rtrim in: iterates to 1e-10 instead of 1e-5; standard errors are not rounded to integers; sites without a
positive count are dropped and named.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components

from fedmiss.arrays import F64, Bool
from fedmiss.errors import ConfigError, InputError
from fedmiss.report.classes import classify
from fedmiss.report.intervals import ratio_to_base

__all__ = ["TrimFit", "fit_trim"]

_TOLERANCE = 1e-10
_MAX_ROUNDS = 500


@dataclass(frozen=True)
class TrimFit:
    """A fitted model 3.

    ``counts`` (I, J) with NaN for missing cells, ``mu`` (I, J) expected counts, ``gamma`` (J,) log time effects
    against the first time point and ``var_gamma`` (J, J), ``total_model``, ``total_imputed`` (J,) in birds with
    ``var_model``, ``var_imputed`` (J, J); in an imputed total an observed count is kept and a missing one is mu.
    """

    sites: tuple[Any, ...]
    times: tuple[Any, ...]
    dropped: tuple[Any, ...]
    counts: F64
    mu: F64
    gamma: F64
    var_gamma: F64
    sigma2: float
    rho: float
    df: int
    chi2: float
    likelihood_ratio: float
    total_model: F64
    var_model: F64
    total_imputed: F64
    var_imputed: F64

    @property
    def aic(self) -> float:
        """Return TRIM's AIC up to a constant: likelihood ratio minus twice the degrees of freedom."""
        return self.likelihood_ratio - 2 * self.df

    def _chosen(self, which: str) -> tuple[F64, F64]:
        if which not in ("imputed", "model"):
            raise ConfigError(f"which is {which!r}; it must be imputed or model.", which=which)
        return (
            (self.total_imputed, self.var_imputed)
            if which == "imputed"
            else (self.total_model, self.var_model)
        )

    def totals(self, which: str = "imputed") -> pd.DataFrame:
        """Return ``time``, ``total``, ``se`` (birds)."""
        total, var = self._chosen(which)
        return pd.DataFrame({"time": self.times, "total": total, "se": np.sqrt(np.diag(var))})

    def index(self, which: str = "imputed", base: Any = None) -> pd.DataFrame:
        """Return ``time``, ``index``, ``se`` against a base time point or a list of them (default: the first)."""
        total, var = self._chosen(which)
        wanted = [self.times[0]] if base is None else list(base) if isinstance(base, list | tuple) else [base]
        mask = np.isin(np.asarray(self.times), wanted)
        if not mask.any():
            raise ConfigError(
                f"the base {base!r} is not among the time points {self.times[0]} to {self.times[-1]}."
            )
        ratio, se = ratio_to_base(total, var, mask)
        return pd.DataFrame({"time": self.times, "index": ratio, "se": se})

    def overall(self, which: str = "imputed", rule: str = "rtrim") -> pd.DataFrame:
        """Return the overall slope: OLS of log totals on 1..J, sandwich standard error, class; one row.

        Columns ``slope``, ``slope_se``, ``multiplicative``, ``multiplicative_se``, ``p``, ``trend_class``, ``label``.
        """
        total, var = self._chosen(which)
        J = total.size
        x = np.arange(1.0, J + 1.0)
        c = (x - x.mean()) / ((x - x.mean()) ** 2).sum()
        safe = np.where(total < 1e-6, 1.0, total)  # rtrim: a zero total enters as log 1
        slope = float(c @ np.log(safe))
        se = float(np.sqrt((c / safe) @ var @ (c / safe)))
        p = 2 * stats.t.sf(abs(slope / se), J - 2) if J > 2 and se > 0 else np.nan
        kind = classify(slope, se, J, rule)
        row = {
            "slope": slope,
            "slope_se": se,
            "multiplicative": np.exp(slope),
            "multiplicative_se": np.exp(slope) * se,
            "p": p,
            "trend_class": kind.name,
            "label": kind.label,
        }
        return pd.DataFrame([row])

    def wald_deviations(self) -> tuple[float, int, float]:
        """Test the deviations of the time effects from a straight line: Wald statistic, its df, p-value."""
        J = self.gamma.size
        d = np.arange(J) - (J - 1) / 2.0
        P = np.eye(J) - 1.0 / J - np.outer(d, d) / (d @ d)
        g, V = P @ self.gamma, P @ self.var_gamma @ P.T
        W = float(g @ np.linalg.pinv(V, rcond=1e-10) @ g)
        return W, J - 2, float(stats.chi2.sf(W, J - 2))


def fit_trim(
    site: Any,
    time: Any,
    count: Any,
    *,
    overdispersion: bool = True,
    serial_correlation: bool = False,
    weights: Any = None,
) -> TrimFit:
    """Fit model 3 to counts in long form.

    Without serial correlation this is maximum likelihood of a Poisson GLM with site and time effects, by Newton
    steps on the time effects with the site effects profiled out (each step solves J x J, never (I + J) x (I + J)).
    With it, generalised estimating equations with ``R = rho^|i-j|`` start from that fit.

    Parameters
    ----------
    site, time, count : (N,) one row per cell; a NaN count, or a cell that is not listed, is missing
    overdispersion : scale variances by Pearson's chi-square over its degrees of freedom
    serial_correlation : estimate rho between neighbouring time points of a site
    weights : mapping site -> weight in the totals, or None for 1 each

    Raises
    ------
    InputError : doubled cells, negative counts, a time point without a positive count, or time points that no
        site links to the others (their ratio cannot be estimated).
    """
    frame = pd.DataFrame(
        {"site": np.asarray(site), "time": np.asarray(time), "count": np.asarray(count, dtype=float)}
    )
    f, sites, times, dropped = _matrix(frame)
    seen = np.isfinite(f)
    _check_links(seen, times)
    mu, gamma = _newton(f, seen)
    rho, sigma2 = 0.0, 1.0
    df = int(seen.sum()) - len(sites) - (len(times) - 1)
    R = np.eye(len(times))
    if serial_correlation:
        mu, gamma, rho = _gee(f, seen, mu, gamma, df)
        R = rho ** np.abs(np.subtract.outer(np.arange(len(times)), np.arange(len(times))))
    pearson = np.where(seen, (f - mu) ** 2 / mu, 0.0)
    if overdispersion and df > 0:
        sigma2 = float(pearson.sum() / df)
    w = np.ones(len(sites)) if weights is None else np.array([float(weights[s]) for s in sites])
    parts = _covariances(mu, seen, R, sigma2, w)
    filled = np.where(seen, np.nan_to_num(f), mu)
    positive = seen & (np.nan_to_num(f) > 0)
    lr = 2.0 * float((f[positive] * np.log(f[positive] / mu[positive])).sum())
    return TrimFit(
        sites=sites,
        times=times,
        dropped=dropped,
        counts=f,
        mu=mu,
        gamma=gamma,
        sigma2=sigma2,
        rho=rho,
        df=df,
        chi2=float(pearson.sum()),
        likelihood_ratio=lr,
        total_model=w @ mu,
        total_imputed=w @ filled,
        **parts,
    )


def _matrix(frame: pd.DataFrame) -> tuple[F64, tuple[Any, ...], tuple[Any, ...], tuple[Any, ...]]:
    double = frame.duplicated(["site", "time"])
    if double.any():
        where = _where(frame, double)
        raise InputError(
            f"{where} has two counts ({int(double.sum())} doubled cells in all); sum or average them first."
        )
    if (frame["count"] < 0).any():
        below = frame["count"] < 0
        raise InputError(f"{_where(frame, below)}: the count {frame['count'][below].iloc[0]:g} is negative.")
    wide = frame.pivot(index="site", columns="time", values="count").sort_index(axis=0).sort_index(axis=1)
    keep = (wide.fillna(0) > 0).any(axis=1)
    dropped = tuple(wide.index[~keep])
    wide = wide[keep]
    if wide.shape[0] == 0 or wide.shape[1] < 2:
        raise InputError("the model needs a site with a positive count and two time points; there are fewer.")
    empty = [t for t in wide.columns if not (wide[t].fillna(0) > 0).any()]
    if empty:
        raise InputError(
            f"time point {empty[0]} has no positive count ({len(empty)} such points), so its effect cannot be "
            "estimated; leave it out or join it with its neighbour."
        )
    return wide.to_numpy(dtype=np.float64), tuple(wide.index), tuple(wide.columns), dropped


def _where(frame: pd.DataFrame, rows: pd.Series[bool]) -> str:
    return f"site {frame['site'][rows].iloc[0]} at time {frame['time'][rows].iloc[0]}"


def _check_links(seen: Bool, times: tuple[Any, ...]) -> None:
    i, j = np.nonzero(seen)
    n = seen.shape[0]
    graph = coo_matrix((np.ones(i.size), (i, n + j)), shape=(n + seen.shape[1],) * 2)
    label = connected_components(graph, directed=False)[1][n:]
    if (label != label[0]).any():
        other = times[int(np.flatnonzero(label != label[0])[0])]
        raise InputError(
            f"no site links time {times[0]} with time {other}: no site was counted on both sides, so the ratio of their "
            "totals is not in the data. Fit the two periods apart."
        )


def _newton(f: F64, seen: Bool) -> tuple[F64, F64]:
    """Maximise the Poisson likelihood; alpha_i = log(f_i+ / sum_j exp(gamma_j)) is exact at every step."""
    counts = np.where(seen, f, 0.0)
    per_site, per_time = counts.sum(axis=1), counts.sum(axis=0)
    gamma = np.zeros(f.shape[1])

    def expected(g: F64) -> F64:
        e = np.where(seen, np.exp(g)[None, :], 0.0)
        return np.asarray(e * (per_site / e.sum(axis=1))[:, None])

    def value(g: F64) -> float:
        return float(per_time @ g - per_site @ np.log(np.where(seen, np.exp(g)[None, :], 0.0).sum(axis=1)))

    best = value(gamma)
    for _ in range(_MAX_ROUNDS):
        mu = expected(gamma)
        score = per_time - mu.sum(axis=0)
        hessian = np.diag(mu.sum(axis=0)) - (mu / per_site[:, None]).T @ mu
        step = np.zeros_like(gamma)
        step[1:] = np.linalg.solve(hessian[1:, 1:], score[1:])
        length = 1.0
        while length > 1e-8:
            trial = value(gamma + length * step)
            if trial >= best - 1e-12 * abs(best):
                break
            length /= 2.0
        gamma, best = gamma + length * step, max(best, trial)
        if np.abs(step).max() < _TOLERANCE:
            break
    alpha = np.log(per_site / np.where(seen, np.exp(gamma)[None, :], 0.0).sum(axis=1))
    return np.exp(alpha[:, None] + gamma[None, :]), gamma


def _blocks(n: int, J: int) -> list[slice]:
    size = max(1, 4_000_000 // (J * J))
    return [slice(i, min(i + size, n)) for i in range(0, n, size)]


def _inverse(seen: Bool, R: F64) -> F64:
    """Return the inverse of R over the seen points of each site, zero elsewhere: (i, J, J)."""
    both = seen[:, :, None] & seen[:, None, :]
    padded = np.where(both, R, 0.0)
    J = R.shape[0]
    padded[:, np.arange(J), np.arange(J)] = 1.0
    return np.where(both, np.linalg.inv(padded), 0.0)


def _gee(f: F64, seen: Bool, mu: F64, gamma: F64, df: int) -> tuple[F64, F64, float]:
    """Solve the estimating equations with AR(1) working correlation; Fisher scoring with alpha eliminated."""
    n, J = f.shape
    alpha = np.log(mu[:, 0]) - gamma[0]
    counts = np.where(seen, f, 0.0)
    pairs = seen[:, 1:] & seen[:, :-1]
    if not pairs.any():
        raise InputError(
            "no site has counts at two neighbouring times, so serial correlation cannot be estimated."
        )
    rho = 0.0
    for _ in range(_MAX_ROUNDS):
        r = np.where(seen, (counts - mu) / np.sqrt(mu), 0.0)
        sigma2 = (r**2).sum() / df if df > 0 else 1.0
        new_rho = float((r[:, 1:] * r[:, :-1])[pairs].sum() / (pairs.sum() * sigma2))
        R = new_rho ** np.abs(np.subtract.outer(np.arange(J), np.arange(J)))
        S, rhs = np.zeros((J, J)), np.zeros(J)
        d, U, W = np.empty(n), np.empty(n), np.empty((n, J))
        for b in _blocks(n, J):
            root = np.sqrt(mu[b])
            A = _inverse(seen[b], R)
            omega = root[:, :, None] * A * root[:, None, :]
            score = root * np.einsum("ijk,ik->ij", A, r[b])
            W[b], U[b] = omega.sum(axis=2), score.sum(axis=1)
            d[b] = W[b].sum(axis=1)
            S += omega.sum(axis=0) - (W[b] / d[b][:, None]).T @ W[b]
            rhs += score.sum(axis=0) - W[b].T @ (U[b] / d[b])
        step = np.zeros(J)
        step[1:] = np.linalg.solve(S[1:, 1:], rhs[1:])
        gamma = gamma + step
        alpha = alpha + (U - W @ step) / d
        mu = np.exp(alpha[:, None] + gamma[None, :])
        if max(np.abs(step).max(), abs(new_rho - rho)) < _TOLERANCE:
            return mu, gamma, new_rho
        rho = new_rho
    raise InputError(f"the serial correlation did not settle in {_MAX_ROUNDS} rounds; fit without it.")


def _covariances(mu: F64, seen: Bool, R: F64, sigma2: float, w: F64) -> dict[str, F64]:
    """Covariances by the delta method, from the information with alpha eliminated (TRIM 3 manual, appendix)."""
    n, J = mu.shape
    root = np.where(seen, np.sqrt(mu), 0.0)
    scaled = w[:, None] * root
    observed = sigma2 * R * (scaled.T @ scaled)
    if not np.any(R - np.eye(J)):  # independent: every Omega_i is diagonal
        W = root**2 / sigma2
        S = np.diag(W.sum(axis=0))
    else:
        W, S = np.empty((n, J)), np.zeros((J, J))
        for b in _blocks(n, J):
            omega = root[b][:, :, None] * _inverse(seen[b], R) * root[b][:, None, :] / sigma2
            W[b] = omega.sum(axis=2)
            S += omega.sum(axis=0)
    d = W.sum(axis=1)
    S -= (W / d[:, None]).T @ W
    var_gamma = np.zeros((J, J))
    var_gamma[1:, 1:] = np.linalg.inv(S[1:, 1:])

    def of_totals(m: F64) -> F64:
        # d total_j / d alpha_i = m_ij; d total_j / d gamma_k = [j = k] sum_i m_ij
        by_gamma = np.diag(m.sum(axis=0)) - (m / d[:, None]).T @ W
        return np.asarray((m / d[:, None]).T @ m + by_gamma @ var_gamma @ by_gamma.T)

    weighted = w[:, None] * mu
    var_model = of_totals(weighted)
    # Replace what the fitted values of observed cells contribute by what the counts themselves do.
    var_imputed = var_model - of_totals(np.where(seen, weighted, 0.0)) + observed
    return {"var_gamma": var_gamma, "var_model": var_model, "var_imputed": var_imputed}
