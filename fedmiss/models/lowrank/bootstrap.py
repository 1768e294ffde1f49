"""Uncertainty by a Bayesian bootstrap of observers inside each group.

Each replicate draws one weight per observer, inside the observer's group, so nothing about single observers
travels; the model is refitted from the full fit with its variances held. That covers the noise of the data
(counting, observers, over-dispersion). The part of a random effect that the data do not determine is added:
a coefficient with posterior covariance C = (H + K)^-1, H from the data and K the prior precision, has sampling
covariance C H C, which the bootstrap shows, and prior covariance C K C, which is drawn.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from scipy import stats

from fedmiss.arrays import F64, I64
from fedmiss.models.lowrank.bayes import Posterior, predictor
from fedmiss.models.lowrank.counts import CountFit, fit_prepared, prepare, to_counts
from fedmiss.models.lowrank.data import GroupPanel
from fedmiss.rng import rng_for

__all__ = [
    "Draws",
    "bootstrap",
    "bootstrap_draw",
    "effective_observers",
    "observer_weights",
    "row_blocks",
    "site_slopes",
    "totals_by_region",
]

BLOCK = 4_000_000  # cells of the imputed matrix held at a time


@dataclass(frozen=True, slots=True)
class Draws:
    """Replicates: ``totals`` (B, R, L) monthly totals per region, ``slopes`` (B, J) yearly log slopes per site."""

    totals: F64
    slopes: F64


def effective_observers(panel: GroupPanel) -> float:
    """Effective number of observers (sum n)^2 / sum n^2, n the visits of each; two numbers per group travel."""
    visits = [np.bincount(g.observer, g.weight) for g in panel.groups if g.count.size]
    return float(sum(v.sum() for v in visits) ** 2 / sum((v**2).sum() for v in visits))


def observer_weights(panel: GroupPanel, seed: int, draw: int) -> list[F64]:
    """Weights (m,) per group: one draw per observer of mean 1, not normalised, so that group totals vary too.

    With many observers alike a draw is Exp(1), the Bayesian bootstrap. With few that matter its spread is too small for
    two reasons, and a Gamma of mean 1 and variance

        c_i = ( t_{0.975, K - 1} / z_{0.975} / (1 - h_i) )^2

    mends both. An observer with a share h_i of the visits draws the fit towards itself, and leaving it out moves the fit by
    1 / (1 - h_i) times its residual: the cluster jackknife's correction (CV3 of MacKinnon, Nielsen and Webb, Journal of
    Econometrics 2023). And a normal quantile presumes many observers: t has K - 1 degrees of freedom, K the effective
    number (Kish). c_i is at most 4. Where one observer has made nearly all visits (K < 2) nothing tells observers apart:
    each of its sites gets a draw of its own.
    """
    K = effective_observers(panel)
    total = sum(float(g.weight.sum()) for g in panel.groups)
    out = []
    for g in panel.groups:
        unit = (
            g.observer
            if K >= 2
            else np.unique(np.stack([g.observer, g.site]), axis=1, return_inverse=True)[1].ravel()
        )
        share = np.bincount(unit, g.weight) / total
        spread = stats.t.ppf(0.975, max(K - 1, 1.0)) / stats.norm.ppf(0.975) if K >= 2 else 1.0
        c = np.minimum((spread / np.maximum(1 - share, 1e-9)) ** 2, 4.0)
        w = c * rng_for(seed, "bootstrap", draw, g.name).standard_gamma(1 / c)
        out.append(g.weight * w[unit])
    return out


def row_blocks(J: int, L: int) -> list[slice]:
    """Blocks of sites whose J x L parts fit in memory."""
    step = max(1, BLOCK // max(L, 1))
    return [slice(i, min(i + step, J)) for i in range(0, J, step)]


def _expected(fit: CountFit, q: Posterior | None, rows: slice) -> F64:
    if q is None:
        return fit.expected(rows)
    return to_counts(predictor(q, rows, fit.settings.family), fit.settings, fit.smear)


def totals_by_region(fit: CountFit, region: I64, n_regions: int, q: Posterior | None = None) -> F64:
    """Sum the expected counts over sites: (n_regions, L); ``region`` (J,) is -1 for sites of no region.

    Row 0 is the whole panel; region ``i`` fills row ``i + 1``.
    """
    out = np.zeros((n_regions + 1, fit.L))
    for rows in row_blocks(fit.J, fit.L):
        values = _expected(fit, q if q is not None else fit.posterior, rows)
        out[0] += values.sum(axis=0)
        for i in np.unique(region[rows]):
            if i >= 0:
                out[i + 1] += values[region[rows] == i].sum(axis=0)
    return out


def site_slopes(fit: CountFit, year: I64, month_of_year: I64, q: Posterior | None = None) -> tuple[F64, F64]:
    """Least-squares slope of log yearly total on year per site, and the mean yearly total, over complete years.

    A year is complete when it has every calendar month of the panel. With fewer than three of them the slope is NaN.
    """
    season = np.unique(month_of_year).size
    years, counts = np.unique(year, return_counts=True)
    full = years[counts == season]
    slopes, means = np.full(fit.J, np.nan), np.zeros(fit.J)
    x = full - full.mean() if full.size else full.astype(float)
    pick = (year[:, None] == full[None, :]).astype(float)
    for rows in row_blocks(fit.J, fit.L):
        values = _expected(fit, q if q is not None else fit.posterior, rows)
        if full.size == 0:
            means[rows] = values.mean(axis=1) * season
            continue
        yearly = values @ pick
        means[rows] = yearly.mean(axis=1)
        if full.size >= 3:
            slopes[rows] = np.log(np.maximum(yearly, 1e-9)) @ x / float(x @ x)
    return slopes, means


def _with_prior_noise(q: Posterior, rng: np.random.Generator) -> Posterior:
    """Draw the part of the coefficients that the data do not determine: N(0, C K C)."""

    def draw(mean: F64, cov: F64, variance: F64) -> tuple[F64, F64]:
        prior_part = np.einsum("nab,b,nbc->nac", cov, 1.0 / variance, cov)
        values, vectors = np.linalg.eigh(prior_part)
        z = rng.standard_normal(mean.shape) * np.sqrt(np.maximum(values, 0.0))
        return mean + np.einsum("nab,nb->na", vectors, z), cov - prior_part

    P, C = draw(q.P, q.C, q.tau)
    T, D = draw(q.T, q.D, q.noise)
    if q.series is not None:  # season and walk err together over months, which independent draws cannot show
        T = T + np.column_stack([s.prior_draw(rng) for s in q.series])
    return replace(q, P=P, C=C, T=T, D=D)


def bootstrap_draw(
    panel: GroupPanel, fit: CountFit, seed: int, region: I64, n_regions: int, calendar: tuple[I64, I64]
) -> Callable[[int], tuple[F64, F64]]:
    """Prepare the panel once; return a function of the replicate's number that gives (totals, slopes).

    A replicate depends on (seed, its number) only, so replicates may be made in any order, or later.
    """
    ready, cells = prepare(panel, fit.settings)

    def draw(b: int) -> tuple[F64, F64]:
        weights = observer_weights(panel, seed, b)
        sample = replace(
            ready, groups=tuple(g.reweighted(w) for g, w in zip(ready.groups, weights, strict=True))
        )
        again = fit_prepared(sample, cells, fit.settings, start=fit)
        q = again.posterior
        if q is not None:
            q = _with_prior_noise(q, rng_for(seed, "prior-noise", b))
        return (
            totals_by_region(again, region, n_regions, q),
            site_slopes(again, calendar[1], calendar[0], q)[0],
        )

    return draw


def bootstrap(
    panel: GroupPanel,
    fit: CountFit,
    *,
    draws: int = 200,
    seed: int = 0,
    region: I64 | None = None,
    n_regions: int = 0,
    calendar: tuple[I64, I64],
    watch: Callable[[int], None] | None = None,
) -> Draws:
    """Refit ``draws`` times with reweighted observers.

    Parameters
    ----------
    panel, fit : the panel and its full fit
    region : (J,) region of each site, -1 for none
    calendar : (month_of_year, year), each (L,)

    Returns
    -------
    Draws    totals (B, 1 + n_regions, L), slopes (B, J)
    """
    where = np.full(fit.J, -1) if region is None else region
    one = bootstrap_draw(panel, fit, seed, where, n_regions, calendar)
    parts = []
    for b in range(draws):
        parts.append(one(b))
        if watch:
            watch(b + 1)
    return Draws(np.stack([p[0] for p in parts]), np.stack([p[1] for p in parts]))
