"""TRIM's model 3 (site + time Poisson GLM with exact covariances) by size: time, memory, and agreement.

    python benchmarks/report_trim.py

The small panel is also fitted by statsmodels' GLM, and the largest difference of a total or of an element of their
covariance is printed, relative to its size.
"""

from __future__ import annotations

import resource
import time

import numpy as np

from fedmiss.report.trim import TrimSettings, fit_trim


def panel(n: int, J: int, cells: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    flat = rng.choice(n * J, cells, replace=False)
    i, j = np.divmod(flat, J)
    mu = np.exp(rng.normal(1, 1, n)[i] + np.cumsum(rng.normal(0, 0.1, J))[j])
    return i, j, rng.poisson(mu).astype(float)


def against_statsmodels(i: np.ndarray, j: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    import statsmodels.api as sm

    fit = fit_trim(i, j, y, TrimSettings(overdispersion=True))
    keep = np.isin(i, fit.sites)
    i, j, y = np.searchsorted(fit.sites, i[keep]), j[keep], y[keep]
    n, J = fit.mu.shape
    X = np.zeros((y.size, n + J - 1))
    X[np.arange(y.size), i] = 1
    X[np.flatnonzero(j > 0), n + j[j > 0] - 1] = 1
    glm = sm.GLM(y, X, family=sm.families.Poisson()).fit(tol=1e-14, maxiter=200)
    alpha, gamma = glm.params[:n], np.r_[0, glm.params[n:]]
    mu = np.exp(alpha[:, None] + gamma[None, :])
    D = np.hstack([mu.T, np.diag(mu.sum(axis=0))[:, 1:]])
    cov = D @ (np.asarray(glm.cov_params()) * fit.sigma2) @ D.T
    return float(np.abs(fit.total_model / mu.sum(axis=0) - 1).max()), float(
        np.abs(fit.var_model / cov - 1).max()
    )


def main() -> None:
    print(f"{'sites x times':>14} {'cells':>10} {'AR(1)':>6} {'CPU s':>7} {'wall s':>7} {'peak MiB':>9}")
    jobs = [(500, 20, 5_000, False), (500, 20, 5_000, True), (1_000, 200, 20_000, False), (5_000, 300, 500_000, False),
            (10_000, 300, 1_000_000, False), (5_000, 30, 60_000, True)]  # fmt: skip
    for n, J, cells, serial in jobs:
        i, j, y = panel(n, J, cells)
        cpu, wall = time.process_time(), time.perf_counter()
        fit_trim(i, j, y, TrimSettings(overdispersion=True, serial_correlation=serial))
        cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(
            f"{f'{n} x {J}':>14} {cells:>10,} {'yes' if serial else 'no':>6} {cpu:>7.2f} {wall:>7.2f} {peak:>9.0f}",
            flush=True,
        )
    total, cov = against_statsmodels(*panel(300, 15, 2_500))
    print(f"300 x 15 against statsmodels: totals within {total:.1e}, covariances within {cov:.1e} (relative)")


if __name__ == "__main__":
    main()
