"""Prior of a series over months: month-of-year effects, a smooth random walk, and month-by-month noise.

A column t of the month parameters (the effect b, or a factor column) is modelled as

    t_l = season[month_of_year(l)] + walk(l) + noise_l,

with variances (season, walk, noise) estimated by EM. Months without a visit then follow the season and their
neighbours instead of falling back to zero. The walk is kept in the leading eigenvectors of its covariance
(eigenvalues fall as 1/k^2), so a step costs a small matrix however long the series is.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from fedmiss.arrays import F64, I64

__all__ = ["SeriesPrior"]

WALK_COLUMNS = 30


@lru_cache(maxsize=8)
def _basis(months: bytes, years: bytes) -> tuple[F64, int]:
    """Basis of a calendar; kept, since every column of every refit has the same."""
    month_of_year, year = np.frombuffer(months, np.int64), np.frombuffer(years, np.int64)
    L = month_of_year.size
    columns = []
    if np.unique(year).size > 1 and np.unique(month_of_year).size > 1:
        columns.append((month_of_year[:, None] == np.unique(month_of_year)[None, :]).astype(float))
    n_season = columns[0].shape[1] if columns else 0
    time = (np.asarray(year, float) * 12 + month_of_year).astype(float)
    time -= time[0]
    walk = np.minimum(time[:, None], time[None, :])
    centre = np.eye(L) - 1.0 / L
    values, vectors = np.linalg.eigh(centre @ walk @ centre)
    keep = np.argsort(values)[::-1][: min(WALK_COLUMNS, max(L - 1, 0))]
    total = float(values[keep].sum())
    if total > 0:
        sign = np.where(vectors[-1, keep] < 0, -1.0, 1.0)
        columns.append(vectors[:, keep] * sign * np.sqrt(np.maximum(values[keep], 0.0) * L / total))
    B = np.hstack(columns) if columns else np.zeros((L, 0))
    return B, n_season


@dataclass(slots=True)
class SeriesPrior:
    """Basis and variances of one column.

    ``B`` (L, K) holds month-of-year indicators (``n_season`` columns), then scaled eigenvectors of a centred random
    walk on the calendar, of mean variance one over the series; the coefficients have variances ``season`` and
    ``step``, the rest has variance ``noise``.
    """

    B: F64
    n_season: int
    season: float
    step: float
    noise: float
    BB: F64 = field(init=False)

    def __post_init__(self) -> None:
        self.BB = self.B.T @ self.B

    @classmethod
    def of(cls, month_of_year: I64, year: I64, scale: float) -> SeriesPrior:
        """Start with the variance ``scale`` split evenly between the parts."""
        key = (np.asarray(month_of_year, np.int64).tobytes(), np.asarray(year, np.int64).tobytes())
        B, n_season = _basis(*key)
        return cls(B, n_season, scale / 3, scale / 3, scale / 3)

    def smooth(self, mean: F64, var: F64) -> tuple[F64, F64]:
        """Posterior of season + walk given the column's posterior mean and variance (both (L,)); one EM step.

        Returns
        -------
        f : (L,) posterior mean of season + walk;  v : (L,) its posterior variance
        """
        K = self.B.shape[1]
        prior = np.r_[np.full(self.n_season, self.season), np.full(K - self.n_season, self.step)]
        cov = np.linalg.inv(self.BB / self.noise + np.diag(1.0 / prior))
        gain = cov @ self.B.T / self.noise
        coef = gain @ mean
        # E over q(t) = N(mean, var): the coefficients' second moment is coef^2 + cov + gain diag(var) gain'
        second = coef**2 + np.diag(cov) + ((gain**2) * var).sum(axis=1)
        f = self.B @ coef
        v = ((self.B @ cov) * self.B).sum(axis=1)
        if self.n_season:
            self.season = max(float(second[: self.n_season].mean()), 1e-6)
        if K > self.n_season:
            self.step = max(float(second[self.n_season :].mean()), 1e-6)
        return f, v
