"""Prior of a series over months: a free line, month-of-year effects, year effects, a smooth walk, and month noise.

The effects b of the months are modelled as

    b_l = beta x_l + season[month_of_year(l)] + deviation[year(l)] + walk(l) + noise_l,

x the centred and scaled year. The line is what a report is about: beta has a wide variance that is never re-estimated. The
deviations of years are orthogonal to a constant and to x, so they cannot take from the line, and their standard deviation
is at least ``YEAR_SD``: a year that was counted is believed, and only one with next to no data is drawn to the line. That
of the season is at least ``SEASON_SD``: few counts tell so little of its variance that it would often come out as 0, and the
season of every replicate flat. The other variances are estimated (:func:`.priors.next_variance`), the walk's under a
half-normal prior of its standard deviation: where years without a bird follow years with birds, nothing else holds line and
walk from going down without end.
A factor column has season, walk and noise only.

Months without a visit then follow line, season and neighbours instead of falling back to zero. The walk is kept in the
leading eigenvectors of its covariance (eigenvalues fall as 1/k^2), so a step costs a small matrix however long the series
is.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from fedmiss.arrays import F64, I64, Bool, root_of
from fedmiss.federation.hub.priors import next_variance
from fedmiss.federation.hub.values import evolve
from fedmiss.seasons import season_years

WALK_COLUMNS = 30
# Of the coefficient of x: one standard deviation is a factor of 27 from the first year to the last.
LINE_VARIANCE = 1.0
WALK_SD = 0.5  # scale of the half-normal prior of the walk's standard deviation about the line
SEASON_SD = 0.2  # least standard deviation of the season
YEAR_SD = 0.3  # least standard deviation of the deviations of years from the line
FREE_SD = 1.0  # and of a counted year's deviation from its prior mean, where a month is a year
MOST_APART = 30.0  # standard deviations of values between what a month says and its prior mean, the most that is believed
LEAST_YEARS = 3  # with fewer the line is all that there is to years


def line_of(year: I64) -> F64:
    """Centre and scale the years of the months, (L,); zeros with one year."""
    x: F64 = np.asarray(year, dtype=float) - float(np.mean(year))
    spread = float(np.sqrt((x**2).mean()))
    return x / spread if np.unique(year).size > 1 else np.zeros(x.size)


@lru_cache(maxsize=16)
def _basis(months: bytes, years: bytes, effect: bool) -> tuple[F64, tuple[int, int, int, int]]:
    """Basis of a calendar, and the numbers of its columns for line, season, years and walk.

    It is kept, since every column of every refit has the same.
    """
    month_of_year, calendar_year = np.frombuffer(months, np.int64), np.frombuffer(years, np.int64)
    # The two halves of a winter have one value of the line and one deviation.
    year = season_years(calendar_year, month_of_year)
    L, unique = month_of_year.size, np.unique(year)
    x = line_of(year)
    line = x[:, None] if effect and x.any() else np.zeros((L, 0))
    several = unique.size > 1 and np.unique(month_of_year).size > 1
    season = np.zeros((L, 0))
    if several:
        season = (month_of_year[:, None] == np.unique(month_of_year)[None, :]).astype(float)
    deviation = np.zeros((L, 0))
    if effect and several and unique.size > 2:
        # Contrasts of the years: the columns of a complete QR beyond a constant and a line are orthogonal to both.
        straight = np.column_stack([np.ones(unique.size), unique - unique.mean()])
        rest = np.linalg.qr(straight, mode="complete")[0][:, 2:]
        deviation = rest[np.searchsorted(unique, year)]
    time = (calendar_year * 12 + month_of_year).astype(float)
    time -= time[0]
    # Covariance of a random walk from the first month on, min(t, t'): months that are missing take longer steps.
    walk = np.minimum(time[:, None], time[None, :])
    # Constant and line are taken out, else the walk would take from mu and beta, which have wide priors.
    centre = np.eye(L) - 1.0 / L
    if line.size:
        centre = centre - x[:, None] * x[None, :] / float(x @ x)
    values, vectors = np.linalg.eigh(centre @ walk @ centre)
    keep = np.argsort(values)[::-1][: min(WALK_COLUMNS, max(L - 1, 0))]
    total = float(values[keep].sum())
    smooth = np.zeros((L, 0))
    if total > 0:
        # An eigenvector has no sign of its own: the last month fixes it, so that machines agree.
        sign = np.where(vectors[-1, keep] < 0, -1.0, 1.0)
        smooth = vectors[:, keep] * sign * np.sqrt(np.maximum(values[keep], 0.0) * L / total)
    parts = (line, season, deviation, smooth)
    return np.hstack(parts), tuple(part.shape[1] for part in parts)


@dataclass(frozen=True, eq=False)
class SeriesPrior:
    """Basis and variances of one column, of one fit or, with a leading axis of all that may differ, of many fits.

    ``B`` (L, K) holds in this order the columns of line, season (month-of-year indicators), years (deviations) and walk
    (scaled eigenvectors of a centred random walk on the calendar, of mean variance one over the series), ``sizes`` of each.
    Their coefficients have the variances ``LINE_VARIANCE``, ``season``, ``year`` and ``step``; the rest has variance
    ``noise``. ``mean`` (K,) is the prior mean of the coefficients: zero, or a draw for a replicate. ``unit`` is the variance
    that values have (1 on the log scale): constants are in units of it. ``yearly``: a month is a year, and its noise is the
    year's deviation.
    """

    B: F64
    sizes: tuple[int, int, int, int]
    unit: float | F64
    season: float | F64
    year: float | F64
    step: float | F64
    noise: float | F64
    cov: F64  # posterior covariance of the coefficients
    mean: F64 | None = None
    yearly: bool = False

    @classmethod
    def of(cls, month_of_year: I64, year: I64, scale: float, *, effect: bool = False) -> SeriesPrior:
        """Start with the variance ``scale`` split evenly between the parts; ``effect``: with line and years."""
        key = (np.asarray(month_of_year, np.int64).tobytes(), np.asarray(year, np.int64).tobytes())
        B, sizes = _basis(*key, effect)
        yearly = effect and np.unique(month_of_year).size == 1 and np.unique(year).size >= LEAST_YEARS
        cov = np.zeros((B.shape[1], B.shape[1]))
        return cls(B, sizes, scale, scale / 3, scale / 3, scale / 3, scale / 3, cov, yearly=yearly)

    def update(
        self,
        mean: F64,
        var: F64,
        prior: F64,
        width: F64,
        ahead: F64 | float = 0.0,
        *,
        learn: bool,
        jolt: F64 | None = None,
    ) -> tuple[SeriesPrior, F64, F64]:
        """Re-estimate the series, and the column given it; with ``learn`` one step of the variances.

        The posterior N(mean, var) of a month that was computed under the prior N(prior, width) is taken apart into
        what the data say (precision H = 1/var - 1/noise, centre y) and the prior, so that the series is fitted
        to data of variance noise + 1/H: the month's own deviation is integrated out, not held at its last value.

        Parameters
        ----------
        mean, var, prior : (..., L)
        width : (..., L) of :meth:`widths`
        ahead : (..., L) what the posterior mean is more than ``mean``, where a month has not yet gone all the way
        jolt : (..., L) prior mean of the months' own noise, for replicates; None is zero

        Returns
        -------
        prior, with ``learn`` of new variances and covariance;  f : (..., L) posterior mean of the series (and the jolt);
        column : (..., L) posterior mean of the months given f
        """
        noise, K = np.asarray(self.noise)[..., None], self.B.shape[1]
        e = np.zeros(mean.shape) if jolt is None else jolt
        drawn = e * np.sqrt(noise / width)  # the same draw, as the series sees it
        # Without the prior that it was computed under, a month's posterior says N(y, 1 / H).
        told = 1.0 / np.maximum(var, 1e-12 * np.asarray(self.unit)[..., None])
        H = np.maximum(told - 1.0 / width, 0.0)
        seen = H > 1e-9 / width
        some = np.where(seen, H, 1.0)
        said = ((mean + ahead) * told - prior / width) / some
        # A month that says next to nothing, on its way, would say a number without end.
        most = MOST_APART * np.sqrt(np.asarray(self.unit))[..., None]
        y = np.where(seen, np.clip(said, prior - most, prior + most), 0.0)
        # y = B coef + noise of the month + error of the data: variance noise + 1 / H.
        weight = np.where(seen, 1.0 / (noise + 1.0 / some), 0.0)
        precision = 1.0 / self.variances()
        # products by matrices of one fit each, never of all in one: then the bits do not depend on their number
        # Ridge regression of y on the basis: (B'WB + K) coef = B'W (y - drawn) + K mean.
        A = self.B.T @ (weight[..., None] * self.B)
        A[..., np.arange(K), np.arange(K)] += precision
        pull = _times(self.B.T, weight * (y - drawn))
        pull = pull if self.mean is None else pull + precision * self.mean
        if learn:
            cov = np.asarray(np.linalg.inv(A), dtype=float)
            coef = _times(cov, pull)
        else:  # nothing asks for the covariance of a replicate, which is a third of the work
            cov, coef = self.cov, np.asarray(np.linalg.solve(A, pull[..., None])[..., 0], dtype=float)
        f = _times(self.B, coef) + e
        # Share of its distance from the series that a month keeps, under ``noise`` and under its own, wider prior.
        shrink, freely = H / (H + 1.0 / noise), H / (H + 1.0 / width)
        new = evolve(self, cov=cov)
        if learn:
            # the months' own deviations: squared posterior means, and how much of each the data determine
            spread = ((self.B @ cov) * self.B).sum(axis=-1)
            # 1 - C / noise, with C = noise (1 - shrink) + shrink^2 spread the variance of a deviation.
            known = shrink - shrink**2 * spread / noise
            new = evolve(
                new,
                season=self._step(1, coef, cov, SEASON_SD**2 if self.sizes[0] else 1e-6),
                year=self._step(2, coef, cov, YEAR_SD**2),
                step=self._step(3, coef, cov, 1e-6, WALK_SD),
                noise=next_variance(
                    (shrink * (y - f)) ** 2, known, self.noise, YEAR_SD**2 if self.yearly else 1e-5, self.unit
                ),
            )
        # where a month stands, and what of the series' move its counts leave to it
        column = np.where(ahead == 0.0, f + freely * (y - f), mean + (1.0 - freely) * (f - prior))
        return new, f, column

    def _step(self, part: int, coef: F64, cov: F64, least: float, scale: float = np.inf) -> float | F64:
        """The next variance of the coefficients of one part: season 1, years 2, walk 3."""
        old = (self.season, self.year, self.step)[part - 1]
        if not self.sizes[part]:
            return old
        at = slice(sum(self.sizes[:part]), sum(self.sizes[: part + 1]))
        own = np.einsum("...kk->...k", cov)[..., at]
        known = 1.0 - own / np.asarray(old)[..., None]
        return next_variance(coef[..., at] ** 2, known, old, least, self.unit, scale)

    def widths(self, counted: Bool) -> F64:
        """Prior variances (..., L) of the months about the series, as their posteriors are computed.

        ``noise``; wider for a counted year where a month is a year: what was counted there says its level, and a prior that
        was learned from few years would pull an index towards its line. A year without counts keeps ``noise``.
        """
        noise = np.asarray(self.noise)
        wide = np.maximum(noise, self.unit * FREE_SD**2) if self.yearly else noise
        return np.where(counted, wide[..., None], noise[..., None])

    def variances(self) -> F64:
        """Prior variances of the coefficients, (..., K)."""
        parts = np.stack([np.asarray(self.unit) * LINE_VARIANCE, self.season, self.year, self.step], axis=-1)
        return np.repeat(parts, self.sizes, axis=-1)

    def errors(self) -> F64:
        """Posterior errors (L, K) of the series: a root of their covariance B cov B'."""
        out: F64 = self.B @ root_of(self.cov)
        return out

    def perturbed(self, z: F64) -> tuple[SeriesPrior, F64]:
        """Draw the prior mean of the coefficients from ``z`` (K,) standard normal; also what that moves the series by.

        A coefficient with posterior covariance C and prior precision K answers to a prior mean m by C K m, which has the
        covariance C K C: the part of its uncertainty that the data do not determine (perturb and solve: Papandreou and
        Yuille, NIPS 2010).
        """
        variances = self.variances()
        mean: F64 = z * np.sqrt(variances)
        # variances may have moved since the covariance was computed: a coefficient answers by its whole mean at most
        return evolve(self, mean=mean), self.B @ (
            self.cov @ (mean / np.maximum(variances, np.diag(self.cov)))
        )


def _times(A: F64, x: F64) -> F64:
    """Matrices (..., a, b) times vectors (..., b), one by one."""
    out: F64 = (A @ x[..., None])[..., 0]
    return out
