"""Priors of the level and of the variances of sites, and how far a covariance goes in a round.

On a rare species most sites have zeros only. A low level with a large variance between sites then fits the counts about as
well as a moderate level with a moderate variance, and without a prior EM goes down that valley, to a level of -13 with a
standard deviation of 5, or without end where no bird is left at all (a fold, a resample). Both priors are too weak to be
seen where the data speak: they count like one observation, the data like the number of sites.
"""

from __future__ import annotations

import numpy as np

from fedmiss.arrays import F64, Bool

SITE_SD, SLOPE_SD = 1.0, 0.3  # scales of the half-normal priors of standard deviations, on the log scale
OBSERVER_SD = 1.0  # and of that of observers' effects
LEFT_OUT = 1e12  # precision, in units of the values' variance, of effects of observers that are left out: all are zero
LEVEL_SD = 5.0  # of the level around the logarithm of the mean count
# of what a new observer counts less at first, and of what observers count more whose visits are a year later
LEARNING_SD = (0.25, 0.02)
EFFORT_SD = 1.0  # of the powers of effort, else one flock among zeros is put down to a long visit
SMALLEST = 1e-4  # least prior variance, in units of the link squared
STRIDE = 4.0  # factor by which a variance moves in a round at most
FEWEST_BIRDS = 0.5  # counts without a bird start, and are centred, at the level of half a bird


def next_variance(
    squares: F64,
    known: F64,
    old: F64 | float,
    least: float = 0.0,
    unit: F64 | float = 1.0,
    scale: float = np.inf,
) -> F64:
    """The next prior variance (...) of terms with these squared posterior means (..., m); the data determine ``known``.

    EM's step is the mean of mean^2 + variance, and the variance of a term is (1 - known) ``old``: that is ``old`` + g / m
    with g = sum(mean^2) - ``old`` sum(known). Where little is known it takes hundreds of rounds, and a fit would end on the
    way. Two steps have the same fixed point, g = 0. Down goes MacKay's, ``old`` + g / sum(known) (Neural Computation 1992,
    section 4.2). Up goes Fisher's scoring of what the data say of the variance, ``old`` + g / sum(known^2), but less of it
    beyond a variance of ``unit``: the curvature of months with zeros grows with exp(variance / 2), and full steps would
    swing where one flock among zeros is all that there is. Both go by a factor of ``STRIDE`` at most, and not below
    ``least`` units.

    The standard deviation has a half-normal prior of this ``scale`` (in units of sqrt(``unit``)), whose fixed point is
    g = v^2 / scale^2: without it years without a bird after years with birds go down, and the variance up, without end.
    """
    old, unit = np.asarray(old, dtype=float), np.asarray(unit, dtype=float)
    width = scale**2 * unit
    # EM: v = mean(m^2 + C), with C = (1 - known) v.
    em = shrunk(1.0, (squares + (1.0 - known) * old[..., None]).mean(axis=-1), squares.shape[-1] * width)
    much = known.sum(axis=-1)
    some = np.where(much > 0.0, much, 1.0)
    # MacKay: v = sum m^2 / sum(known), quicker than EM where v falls.
    quick = np.where(much > 0.0, shrunk(some, squares.sum(axis=-1), width), em)
    # Fisher: v + g / sum(known^2), g = sum m^2 - v sum(known): score over expected information, both times 2 v^2.
    gain = squares.sum(axis=-1) - old * much - old**2 / width
    score = old + gain / np.maximum((known**2).sum(axis=-1) + 2.0 * old / width, 1e-300)
    up = np.minimum(score, STRIDE * old)
    # Less of the way beyond a variance of ``unit``, but never less than EM's step, which is safe.
    up = np.maximum(em, old + (up - old) / (1.0 + up / unit) ** 2)
    return np.maximum(np.where(em < old, _sooner(em, quick, old), up), least * unit)


def shrunk(g: F64 | float, a: F64, width: F64 | float) -> F64:
    """The positive root v of g v + v^2 / width = a, in the form that does not cancel for a small a / width."""
    out: F64 = 2.0 * a / (g + np.sqrt(np.square(g) + 4.0 * a / width))
    return out


def _sooner(em: F64, quick: F64, old: F64 | float) -> F64:
    """EM's step where it leads up; MacKay's, which is quicker, where it leads down, by a factor of ``STRIDE`` at most."""
    return np.where(em < old, np.maximum(np.minimum(quick, em), old / STRIDE), em)


def shrunk_variances(
    squares: F64, spread: F64, old: F64, J: F64 | float, unit: F64 | float, *, slopes: bool
) -> F64:
    """One step of the variances (..., p) of J (...) sites from ``old``; their standard deviations have half-normal priors.

    ``squares`` and ``spread`` (..., p) are means over sites of squared posterior means a and of posterior variances s. With
    the scale c of the prior EM's step solves v + v^2 / (J c^2) = a + s: 1 % below a + s at a standard deviation of c and a
    hundred sites. MacKay's solves v (1 - s / old) + v^2 / (J c^2) = a; which is taken, see :func:`next_variance`. A
    half-normal is the half-t of Gelman (Bayesian Analysis 2006) without its tail, which does not bound the variance of
    sites that have zeros only.
    """
    scale = np.full(squares.shape[-1], SITE_SD)
    if slopes:
        scale[1] = SLOPE_SD
    # J scale^2 of equation variance.
    width = np.asarray(J)[..., None] * (scale * np.asarray(unit)[..., None]) ** 2

    # Equation variance: g = 1, a + s on the right.
    em = shrunk(1.0, squares + spread, width)
    # The same fixed point with (1 - s / old) v for v - s: MacKay's step.
    quick = shrunk(np.maximum(1.0 - spread / old, 1e-9), squares, width)
    return _sooner(em, quick, old)


def level_pull(
    level: F64 | float, origin: F64 | float, variance: F64 | float, unit: F64 | float
) -> F64 | float:
    """How far the prior N(``origin``, LEVEL_SD^2) pulls the level in a round.

    The level moves by what sites and months have in common: by G times ``variance``, G the slope of the log likelihood in
    the level, in birds, and ``variance`` that of a common shift under the priors of sites and months. Added to these moves,
    the pull makes the fixed point that of the posterior, G + (origin - level) / LEVEL_SD^2 = 0: less than a tenth of a bird
    where the level is within two units of its origin.
    """
    # Posterior mean of a normal shift: prior precision over the sum of both, 1 / variance + precision.
    precision = 1.0 / (LEVEL_SD * unit) ** 2
    return precision * variance / (1.0 + precision * variance) * (origin - level)


def share_of_step(before: F64, after: F64, known: F64) -> F64:
    """Share of the way that posterior covariances go from one round's to the next's.

    The curvature of a count grows with exp(variance / 2), and the covariance is its inverse. Where g = variance * known / 2,
    ``known`` the number of coefficients that the data determine, a full step multiplies an error of the covariance by -g:
    beyond 1 it swings for good between a covariance that is too large and one that is too small. The share
    min(1, 1 / (1/2 + g)) is a full step up to g = 1/2 and near Newton's 1 / (1 + g) beyond.

    Parameters
    ----------
    before, after : variances of a typical predictor under the two covariances
    """
    # 1 / (1/2 + g) with g = variance known / 2; the larger variance of the two, since both ways must be stable.
    share: F64 = np.minimum(1.0, 2.0 / (1.0 + np.maximum(before, after) * np.maximum(known, 0.0)))
    return share


def left_out(ridge: float | F64, unit: float | F64) -> Bool:
    """Whether effects of observers of this precision are those that are left out; ``unit``: standard deviation of values."""
    return np.asarray(np.asarray(ridge) * np.asarray(unit) ** 2 >= 0.5 * LEFT_OUT)
