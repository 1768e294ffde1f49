"""Prior of a series over months: month-of-year effects, a random walk, and month-by-month noise.

A column t of the month parameters (the effect b, or a factor column) is modelled as

    t_l = season[month_of_year(l)] + walk_l + noise_l,

with variances (season, walk per step, noise) estimated by EM. Months without a visit then follow the season
and their neighbours instead of falling back to zero.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedmiss.arrays import F64, I64

__all__ = ["SeriesPrior"]


@dataclass(slots=True)
class SeriesPrior:
    """Variances of one column and the kernels they multiply.

    ``same`` (L, L) is 1 where two months share the month of year; ``walk`` (L, L) is the covariance of a centred
    random walk of unit step variance on the calendar.
    """

    same: F64
    walk: F64
    season: float
    step: float
    noise: float
    rank: int  # number of different months of the year

    @classmethod
    def of(cls, month_of_year: I64, year: I64, scale: float) -> SeriesPrior:
        """Start with the variance ``scale`` split evenly between the parts."""
        L = month_of_year.size
        several = np.unique(year).size > 1
        same = (month_of_year[:, None] == month_of_year[None, :]).astype(float)
        time = (np.asarray(year, float) * 12 + month_of_year).astype(float)
        time -= time[0]
        walk = np.minimum(time[:, None], time[None, :])
        centre = np.eye(L) - 1.0 / L
        walk = centre @ walk @ centre
        unit = float(np.trace(walk)) / L
        if unit > 0:
            walk /= unit  # unit mean variance: ``step`` is the variance of the walk over the whole series
        return cls(same, walk, scale / 3 if several else 0.0, scale / 3, scale / 3, np.unique(month_of_year).size)

    def smooth(self, mean: F64, var: F64) -> tuple[F64, F64]:
        """Posterior of season + walk given the column's posterior mean and variance (both (L,)), one EM step.

        Returns
        -------
        f : (L,) posterior mean of season + walk;  v : (L,) its posterior variance
        """
        # mean-field: the column's own posterior q(t_l) = N(mean, var) stands in for data with noise variance
        K = self.season * self.same + self.step * self.walk
        A = K + self.noise * np.eye(mean.size)
        inv = np.linalg.inv(A + 1e-9 * np.trace(A) / mean.size * np.eye(mean.size))
        weight = inv @ mean
        f = K @ weight
        v = np.clip(np.diag(K) - ((K @ inv) * K).sum(axis=1), 0.0, None)
        # EM for a variance s of kernel M: s' = s + s^2 (tr(E[w w'] M) - tr(A^-1 M)) / rank(M), w = A^-1 t.
        spread = (inv * var) @ inv
        ww = np.outer(weight, weight) + spread
        for name, M in (("season", self.same), ("step", self.walk)):
            old = getattr(self, name)
            if old > 0:
                rank = self.rank if name == "season" else max(mean.size - 1, 1)
                new = old + old**2 * float((ww * M).sum() - (inv * M).sum()) / rank
                setattr(self, name, max(new, 1e-8))
        self.noise = max(self.noise + self.noise**2 * float(np.trace(ww) - np.trace(inv)) / mean.size, 1e-6)
        return f, v
