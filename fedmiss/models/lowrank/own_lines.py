"""Sites' own lines beyond the years in which they were visited: they bend back to the common course.

The distance d_j = s_j - m_j of a site's slope from its prior mean, which sites of a region or place share, is told by its
counts from its first visit to its last. Beyond, the slopes of years follow an autoregression about m_j,

    d_(t+1) = phi d_t + e,   e ~ N(0, (1 - phi^2) tau_s),   phi = ``DAMPING``,

a damped trend (Gardner and McKenzie 1985). After h years the line has gone on by phi (1 - phi^h) / (1 - phi) years in the
place of h, with a variance of (1 - phi^2) tau_s sum_(m <= h) ((1 - phi^m) / (1 - phi))^2 beside that of d_j. No visit lies
there, so fits are what they are without. Why: docs/decisions/0132-damped-lines.md.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from fedmiss.arrays import F64, I64, Bool

MAJOR = 0.3**2  # variance, beside tau_s, of the slope of a site with more than half of all birds
DAMPING = 0.8  # of the slope of a year, the next year's share
LATE = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True, eq=False)
class OwnLines:
    """Where the sites' own lines begin and end.

    ``first``, ``last`` (J,) first and last year with a visit that takes part, from 0; -1 where there is none: such a site
    has its whole prior. ``mean`` (J,) prior means of the slopes; ``year`` (L,) of every month, from 0; ``unit`` what the
    known line x rises by in a year; ``more`` (J,) variance of the slope beside tau_s.
    """

    first: I64
    last: I64
    mean: F64
    year: I64
    unit: float
    more: F64

    @classmethod
    def of(cls, first: I64, last: I64, mean: F64, year: I64, line: F64, more: F64) -> OwnLines:
        """Take the years, which begin anywhere, from those of the months; ``line`` (L,) is the known line x."""
        start = int(year[0])
        seen = first >= 0
        rise = float(line[-1] - line[0]) / max(int(year[-1]) - start, 1)
        return cls(
            np.where(seen, first - start, -1),
            np.where(seen, last - start, -1),
            mean,
            year - start,
            rise,
            more,
        )

    @classmethod
    def joined(cls, parts: Iterable[OwnLines], at: Iterable[I64], J: int) -> OwnLines:
        """Lines of the sites of several groups, whose places among the J sites are ``at``."""
        known = list(zip(parts, at, strict=True))
        first, last = np.full(J, LATE), np.full(J, -1)
        mean, more, owners = np.zeros(J), np.zeros(J), np.zeros(J)
        for part, rows in known:
            first[rows] = np.minimum(first[rows], np.where(part.first < 0, LATE, part.first))
            last[rows] = np.maximum(last[rows], part.last)
            mean[rows] += part.mean
            more[rows] = np.maximum(more[rows], part.more)
            owners[rows] += 1
        year, unit = known[0][0].year, known[0][0].unit
        return cls(np.where(last < 0, -1, first), last, mean / np.maximum(owners, 1), year, unit, more)

    def _beyond(self, rows: slice | I64) -> tuple[I64, I64]:
        """Years (rows, Y) that each year lies before the first visit and after the last."""
        return self._years(self.first[rows][:, None], self.last[rows][:, None], np.arange(self.n_years))

    @staticmethod
    def _years(first: I64, last: I64, year: I64) -> tuple[I64, I64]:
        seen = first >= 0
        return np.where(seen, np.maximum(first - year, 0), 0), np.where(seen, np.maximum(year - last, 0), 0)

    @property
    def n_years(self) -> int:
        """Number of years Y from the first month's to the last's."""
        return int(self.year[-1]) + 1

    def _lost(self, before: I64, after: I64) -> F64:
        """What x is less than the years that have passed."""
        h = np.arange(self.n_years)
        lost = self.unit * (DAMPING * (1.0 - DAMPING**h) / (1.0 - DAMPING) - h)
        return lost[after] - lost[before]

    def _spread(self, before: I64, after: I64) -> F64:
        h = np.arange(self.n_years)
        spread = (1.0 - DAMPING**2) * np.cumsum((self.unit * (1.0 - DAMPING**h) / (1.0 - DAMPING)) ** 2)
        return spread[before] + spread[after]

    def bend(self, rows: slice | I64 = slice(None)) -> F64:
        """What is added to x for the distance of a site's slope from its prior mean, (rows, Y)."""
        return self._lost(*self._beyond(rows))

    def variance(self, rows: slice | I64 = slice(None)) -> F64:
        """Variance (rows, Y) of the slopes' later changes, for a variance tau_s of 1."""
        return self._spread(*self._beyond(rows))

    def path(self, z: F64) -> F64:
        """Draw these changes, for a variance tau_s of 1: (J, Y) from standard normal ``z`` (J, Y)."""
        out, (before, after) = np.zeros(z.shape), self._beyond(slice(None))
        for h, years in ((after, range(1, self.n_years)), (before, range(self.n_years - 2, -1, -1))):
            slope, way = np.zeros(len(z)), np.zeros(len(z))
            for t in years:
                on = h[:, t] > 0
                slope = np.where(on, DAMPING * slope + np.sqrt(1.0 - DAMPING**2) * z[:, t], 0.0)
                way = np.where(on, way + slope, 0.0)
                out[:, t] += self.unit * way
        return out

    def moved(self, P: F64, C: F64, T: F64, tau: F64, rows: slice | I64) -> tuple[F64, F64]:
        """What mean and variance (rows, L) of the predictor change by: sites N(P, C) (rows, p), months ``T`` (L, p)."""
        bend = self.bend(rows)[:, self.year]
        own = C[:, 1, :1] + C[:, 1, 1:] @ T[:, 1:].T  # covariance of the slope with the predictor
        more = (
            bend * (2.0 * own + bend * C[:, 1, 1, None])
            + (tau[1] + self.more[rows])[:, None] * self.variance(rows)[:, self.year]
        )
        return (P[:, 1] - self.mean[rows])[:, None] * bend, more

    def beyond(self, site: I64, month: I64) -> Bool:
        """Whether visits (n,) lie beyond the line of their site."""
        before, after = self._years(self.first[site], self.last[site], self.year[month])
        return np.asarray(before + after > 0)

    def moved_at(self, P: F64, C: F64, T: F64, tau: F64, site: I64, month: I64) -> tuple[F64, F64]:
        """The same as :meth:`moved` (n,) for pairs of a site N(P, C) (n, p) and a month ``T`` (n, p)."""
        years = self._years(self.first[site], self.last[site], self.year[month])
        bend = self._lost(*years)
        own = C[:, 1, 0] + np.einsum("na,na->n", C[:, 1, 1:], T[:, 1:])
        more = bend * (2.0 * own + bend * C[:, 1, 1]) + (tau[1] + self.more[site]) * self._spread(*years)
        return (P[:, 1] - self.mean[site]) * bend, more
