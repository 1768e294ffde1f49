"""Prior of a series over months: month-of-year effects, a smooth random walk, and month-by-month noise.

A column t of the month parameters (the effect b, or a factor column) is modelled as

    t_l = season[month_of_year(l)] + walk(l) + noise_l,

with variances (season, walk, noise) estimated by EM. Months without a visit then follow the season and their
neighbours instead of falling back to zero. The walk is kept in the leading eigenvectors of its covariance
(eigenvalues fall as 1/k^2), so a step costs a small matrix however long the series is.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
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


@dataclass(frozen=True, slots=True, eq=False)
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
    cov: F64 = field(default_factory=lambda: np.zeros((0, 0)))  # posterior covariance of the coefficients

    @classmethod
    def of(cls, month_of_year: I64, year: I64, scale: float) -> SeriesPrior:
        """Start with the variance ``scale`` split evenly between the parts."""
        key = (np.asarray(month_of_year, np.int64).tobytes(), np.asarray(year, np.int64).tobytes())
        B, n_season = _basis(*key)
        return cls(B, n_season, scale / 3, scale / 3, scale / 3)

    def update(self, mean: F64, var: F64, prior: F64, *, learn: bool) -> tuple[SeriesPrior, F64, F64]:
        """Re-estimate season + walk, and the column given it; with ``learn`` one EM step of the variances.

        The posterior N(mean, var) of a month that was computed under the prior N(prior, noise) is taken apart into
        what the data say (precision H = 1/var - 1/noise, centre y) and the prior, so that season + walk are fitted
        to data of variance noise + 1/H: the month's own deviation is integrated out, not held at its last value.

        Returns
        -------
        prior with its new variances and covariance;  f : (L,) posterior mean of season + walk;
        column : (L,) posterior mean of the months given f
        """
        noise = self.noise
        H = np.maximum(1.0 / np.maximum(var, 1e-12) - 1.0 / noise, 0.0)
        seen = H > 1e-9 / noise
        y = np.where(seen, (mean / np.maximum(var, 1e-12) - prior / noise) / np.where(seen, H, 1.0), 0.0)
        weight = np.where(seen, 1.0 / (noise + 1.0 / np.where(seen, H, 1.0)), 0.0)
        cov: F64 = np.asarray(
            np.linalg.inv((self.B.T * weight) @ self.B + np.diag(1.0 / self._prior())), dtype=float
        )
        coef = cov @ (self.B.T @ (weight * y))
        f = self.B @ coef
        shrink = H / (H + 1.0 / noise)
        new = replace(self, cov=cov)
        if learn:
            second = coef**2 + np.diag(cov)
            spread = ((self.B @ cov) * self.B).sum(axis=1)
            deviation = (shrink * (y - f)) ** 2 + 1.0 / (H + 1.0 / noise) + shrink**2 * spread
            season, step = second[: self.n_season], second[self.n_season :]
            new = replace(
                new,
                season=max(float(season.mean()), 1e-6) if season.size else self.season,
                step=max(float(step.mean()), 1e-6) if step.size else self.step,
                noise=max(float(deviation.mean()), 1e-5),
            )
        return new, f, f + shrink * (y - f)

    def _prior(self) -> F64:
        out: F64 = np.r_[
            np.full(self.n_season, self.season), np.full(self.B.shape[1] - self.n_season, self.step)
        ]
        return out

    def prior_draw(self, z: F64, /) -> F64:
        """Draw the part of season + walk that the data do not determine: N(0, C K C) of its coefficients.

        ``z`` (K,) standard normal: C K^(1/2) z has that covariance.
        """
        draw: F64 = self.B @ (self.cov @ (z / np.sqrt(self._prior())))
        return draw
