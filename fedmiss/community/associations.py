"""Associations of the species of a community, with errors by made-up communities that are fitted as the real one was.

The fit's own errors of the loadings are those of a mean-field posterior, given the scores, and too small; its loadings are
too small where counts are scattered, and the size of the negative binomial, which weighs in every correlation, is one of
four values tried. A parametric bootstrap shows all of it: communities are drawn from the fit and fitted by the same model,
first a few, to correct size and loadings until made-up fits look as the real one does, then more, for the errors.

Only the species' half of the fit enters, with the number of sites and their usual effort: organisations that
share no site all come to the same table, without a further exchange.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from scipy.special import polygamma, stdtrit

from fedmiss.arrays import F64
from fedmiss.community.model import ROUNDS, Cells, Community
from fedmiss.community.outputs import Axes, axes_of
from fedmiss.federation.calls import fit_counts
from fedmiss.models.lowrank.families import FAMILIES
from fedmiss.models.lowrank.predictive import LEVEL
from fedmiss.rng import rng_for

STAGES = 2  # corrections of size and loadings
FEW, MANY = 6, 30  # made-up communities of each correction, and for the errors
FOUND = 0.2, 1.5  # least and largest share of the square of an axis's loadings that a fit is taken to find
FURTHEST = 8.0  # factor between the 1 / size of the fit and the corrected one, at most


@dataclass(frozen=True, slots=True)
class _Truth:
    """What communities are drawn from: ``loadings`` (S, r) of scores of variance 1, 1 / size (0 for presence)."""

    loadings: F64
    inverse_size: float


def associations(
    community: Community, axes: Axes, watch: Callable[[float], None] | None = None
) -> tuple[F64, F64, F64]:
    """Correlation (S, S) of the species over sites, on the log scale, after effort, covariates and the sites' own levels.

    r_st = w_s . w_t / sqrt((w_s . w_s + psi) (w_t . w_t + psi)): psi, the variance of a cell's own level, is that of the
    logarithm of the gamma factor of the negative binomial, trigamma(size), and pi^2 / 3 for presence. Without it one axis
    would make every correlation 1 or -1. Loadings and size are corrected by what made-up communities show of the fit.

    Effort is taken as equal at all sites, and responses to covariates as none, in made-up communities; the choice of the
    number of axes is not repeated. It takes as long as 42 fits.

    Parameters
    ----------
    community : with one axis or more;  axes : its own, of :func:`~fedmiss.community.outputs.axes_of`
    watch : called with the part that is done

    Returns
    -------
    estimate, and the ends of the 95 % interval, (S, S) each, 1 on the diagonal
    """
    return drawn_of(community, axes, watch)[0]


def drawn_of(
    community: Community, axes: Axes, watch: Callable[[float], None] | None = None
) -> tuple[tuple[F64, F64, F64], F64]:
    """Those of :func:`associations`, and half of the 95 % intervals of the loadings (S, r).

    Whether all species are commoner at some sites by an axis or by the sites' own levels is hardly known. This error, which
    the loadings have in common, is in those of made-up fits and not in the posterior of a loading given the scores.
    """
    counts = community.fit.settings.family == "poisson"
    held = (community.fit.settings.inverse_size or 0.0) if counts else 0.0
    real, steps = _log(community.fit.dispersion), []
    truth = _Truth(axes.loadings, held)
    done = 0

    def refits(number: int) -> list[tuple[F64, float]]:
        nonlocal done
        out = []
        for _ in range(number):
            # one that is drawn otherwise changes no other
            rng = rng_for(community.fit.settings.seed, "associations", done)
            out.append(_refit(community, axes, truth, rng))
            done += 1
            if watch is not None:
                watch(done / (STAGES * FEW + MANY))
        return out

    for _ in range(STAGES):
        made = refits(FEW)
        found = _found(truth.loadings, [loadings for loadings, _ in made])
        steps.append((_log(truth.inverse_size), float(np.mean([dispersion for _, dispersion in made]))))
        truth = _Truth(axes.loadings / np.sqrt(found), _size(held, steps, real) if held > 0 else 0.0)

    def z_of(loadings: F64, inverse_size: float) -> F64:
        psi = float(polygamma(1, 1.0 / max(inverse_size, 1e-6))) if counts else np.pi**2 / 3
        # Fisher's transformation, in which the error of a correlation depends little on it.
        return np.arctanh(np.clip(_correlation(loadings, psi), -0.999, 0.999))

    made = refits(MANY)
    usual = float(np.mean([dispersion for _, dispersion in made]))
    # What they show of size and loadings is surer than what few did.
    found = _found(truth.loadings, [loadings for loadings, _ in made])
    steps.append((_log(truth.inverse_size), usual))
    size = _size(held, steps, real) if held > 0 else 0.0
    slope = _slope(steps)
    # Every made-up fit is corrected as the real one is: its loadings by axis, its size by its dispersion.
    drawn = [
        z_of(
            loadings / np.sqrt(found), size * float(np.exp(np.clip((dispersion - usual) / slope, -2.0, 2.0)))
        )
        for loadings, dispersion in made
    ]
    # t, and 1 + 1 / MANY, for a standard deviation of so few.
    wide = stdtrit(MANY - 1, 0.5 + LEVEL / 2) * np.sqrt(1 + 1 / MANY)
    half = wide * np.std(drawn, axis=0, ddof=1)
    turned = [_turned(loadings / np.sqrt(found), truth.loadings) for loadings, _ in made]
    z = z_of(axes.loadings / np.sqrt(found), size)
    out = [np.tanh(end) for end in (z, z - half, z + half)]
    for matrix in out:
        np.fill_diagonal(matrix, 1.0)
    return (out[0], out[1], out[2]), wide * np.std(turned, axis=0, ddof=1)


def _turned(loadings: F64, onto: F64) -> F64:
    """Loadings (S, r) turned to those of other axes as near as they come: axes of equal shares are known up to a turn."""
    left, _, right = np.linalg.svd(loadings.T @ onto)
    return np.asarray(loadings @ (left @ right))


def _log(value: float) -> float:
    return float(np.log(max(value, 1e-6)))


def _refit(community: Community, axes: Axes, truth: _Truth, rng: np.random.Generator) -> tuple[F64, float]:
    """Draw a community and fit it: loadings (S, r) of its principal axes, log of its dispersion."""
    made = _made_up(community, axes, truth, rng)
    settings = replace(community.fit.settings, responses=(), max_sweeps=ROUNDS)
    fit = fit_counts(made.panel({}, None), settings)
    return axes_of(replace(community, fit=fit, cells=made, responses=())).loadings, _log(fit.dispersion)


def _made_up(community: Community, axes: Axes, truth: _Truth, rng: np.random.Generator) -> Cells:
    """Cells of as many sites, each with the effort of a usual one."""
    fit, q = community.fit, community.posterior
    J, (S, rank) = axes.sites, truth.loadings.shape
    level = q.mu + q.T[:, 0] + q.T[:, -rank:] @ axes.centre
    counts = fit.settings.family == "poisson"
    if counts:
        # As many birds as the fit expects, whatever was added to the loadings.
        level = (
            level + np.log(fit.smear) + ((axes.loadings**2).sum(axis=1) - (truth.loadings**2).sum(axis=1)) / 2
        )
    eta = (
        level
        + np.sqrt(q.tau[0]) * rng.standard_normal((J, 1))
        + rng.standard_normal((J, rank)) @ truth.loadings.T
    )
    site, species = (index.ravel() for index in np.indices((J, S)))
    if counts:
        mean = axes.effort * np.exp(np.minimum(eta, 20.0))
        if truth.inverse_size > 0:
            mean = mean * rng.gamma(1.0 / truth.inverse_size, truth.inverse_size, mean.shape)
        y = rng.poisson(mean).ravel().astype(float)
        return Cells(J, S, site, species, y, np.full(J * S, axes.effort), np.ones(J * S))
    n = max(round(axes.effort), 1)
    found = rng.binomial(n, FAMILIES["bernoulli"].mean(eta)).ravel().astype(float)
    weight = np.r_[found, n - found]
    cells = Cells(
        J, S, np.r_[site, site], np.r_[species, species], np.repeat([1.0, 0.0], J * S), None, weight
    )
    return cells.take(weight > 0)


def _found(truth: F64, fitted: list[F64]) -> F64:
    """Share (r,) of the variance along each true axis that fits found, in the mean."""
    # The axes are orthogonal, and in their order, whichever is the largest by now.
    size = np.linalg.norm(truth, axis=0)
    left = truth / np.maximum(size, 1e-12)
    along = np.mean([((left.T @ loadings) ** 2).sum(axis=1) for loadings in fitted], axis=0)
    share: F64 = np.clip(along / np.maximum(size**2, 1e-12), *FOUND)
    return share


def _slope(steps: list[tuple[float, float]]) -> float:
    """By how much the log dispersion rises with log 1 / size."""
    x, y = np.array(steps).T
    spread = float(((x - x.mean()) ** 2).sum())
    slope = float(((x - x.mean()) * (y - y.mean())).sum() / spread) if spread > 0.01 else 0.5
    return min(max(slope, 0.2), 1.0)


def _size(first: float, steps: list[tuple[float, float]], dispersion: float) -> float:
    """The 1 / size at which made-up communities would have the real one's dispersion."""
    x, y = steps[-1]
    reach = np.log(FURTHEST)
    return float(
        np.exp(np.clip(x + (dispersion - y) / _slope(steps), np.log(first) - reach, np.log(first) + reach))
    )


def _correlation(W: F64, psi: float) -> F64:
    covariance = W @ W.T
    sd = np.sqrt(np.diag(covariance) + psi)
    # A species of no loading and psi = 0 has sd 0: no correlation, instead of 0/0.
    return np.asarray(covariance / np.maximum(sd[:, None] * sd[None, :], 1e-12))
