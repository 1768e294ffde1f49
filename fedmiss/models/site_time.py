"""The site and time model: Poisson counts of mean exp(a_j + b_l), by maximum likelihood with the site effects eliminated.

``fedmiss trim`` fits it with b_l = x_jl' beta (change points, covariates), ``fedmiss fit --time fixed`` with one b for each
time. The site effect that is best for given b is exact, a_j = log(f_j+ / sum_l E_jl exp(b_l)), so only the equations of b
are solved. Their gradient and information are sums over sites, hence over groups.

Source: Pannekoek and van Strien (2001), TRIM 3 manual, appendix.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass

import numpy as np

from fedmiss.arrays import F64
from fedmiss.errors import InputError

TOLERANCE = 1e-10
MOST_ROUNDS = 500


@dataclass(frozen=True, slots=True, eq=False)
class SiteTime:
    """Sums over sites at given time effects.

    ``value`` log-likelihood but for a constant; ``gradient`` (T,) and ``information`` (T, T) of the time effects;
    ``mu`` (J, T) expected counts of the cells with a count, zero elsewhere.
    """

    value: float
    gradient: F64
    information: F64
    mu: F64


def site_time(f: F64, E: F64, eta: F64) -> SiteTime:
    """Eliminate the effects of sites, each of which has a positive count.

    Parameters
    ----------
    f : (J, T) counts, zero in cells without a count
    E : (J, T) exposures (number of counts of a cell), zero in cells without a count
    eta : (T,) or (J, T) time effects, log scale
    """
    # mu_jl = f_j+ e_jl / e_j+ with e = E exp(eta): the best site effect makes fitted and counted totals of the site equal.
    per_site = f.sum(axis=1)
    e = E * np.exp(eta)
    whole = e.sum(axis=1)
    mu = e * (per_site / whole)[:, None]
    # Of the log-likelihood with a_j eliminated (multinomial within each site): sum_j [diag(mu_j) - mu_j mu_j' / f_j+].
    information = np.diag(mu.sum(axis=0)) - (mu / per_site[:, None]).T @ mu
    value = float((f * eta).sum() - per_site @ np.log(whole))
    return SiteTime(value, (f - mu).sum(axis=0), information, mu)


def solve_scaled(S: F64, rhs: F64) -> F64:
    """Solve with a symmetric matrix, scaled to a unit diagonal.

    Raises
    ------
    InputError    the counts do not determine all time effects
    """
    if rhs.size == 0:
        return rhs
    # Slopes per year and effects of rare categories differ by orders
    # of magnitude: the condition is judged without their units.
    scale = np.sqrt(np.maximum(np.diag(S), 1e-300))
    scaled = S / np.outer(scale, scale)
    if not np.isfinite(scaled).all() or np.linalg.cond(scaled) > 1e12:
        raise InputError(
            "the counts do not determine all parameters of this model (too few sites were counted on both sides of some "
            "time point or in some category); use fewer change points or covariates."
        )
    return np.linalg.solve(scaled, rhs / scale) / scale


def ascent(beta: F64) -> Generator[F64, tuple[float, F64, F64], F64]:
    """Newton's method with halved steps: yields a point, wants (value, gradient, information) there, returns the maximum."""
    best, gradient, information = yield beta
    for _ in range(MOST_ROUNDS):
        # The log-likelihood is concave in the time effects: a Newton step points uphill, and only its length can be wrong.
        step = solve_scaled(information, gradient)
        length = 1.0
        while True:
            trial = beta + length * step
            value, gradient, information = yield trial
            # Near the maximum the values differ by rounding alone: a step is then taken as it is.
            if value >= best - 1e-12 * abs(best) or length < 1e-8:
                break
            length /= 2.0
        beta, best = trial, max(best, value)
        if not beta.size or np.abs(step).max() < TOLERANCE:
            break
    return beta


def site_effects(f: F64, E: F64, eta: F64) -> F64:
    """Log site effects that are best for the time effects, (J,); -inf where nothing was counted."""
    # A site without birds has the effect -inf (expected counts of zero); one without counts is 0/0, and gets the same.
    whole = (E * np.exp(eta)).sum(axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        out: F64 = np.log(f.sum(axis=1)) - np.log(whole)
    return np.where(np.isnan(out), -np.inf, out)
