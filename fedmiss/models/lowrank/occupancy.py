"""A chain of two states for every site: occupied or empty, year by year."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtr, ndtri

from fedmiss.arrays import F64, I64
from fedmiss.models.lowrank.predictive import Law

SURE = 1e6  # log odds of presence where a bird was counted
PROBIT_STEP = 0.5  # between the probits at which quantiles of counts are computed


@dataclass(frozen=True, slots=True)
class ChainPosterior:
    """Posterior of the chain of every site, itself a chain.

    ``came``, ``stayed`` (J, Y): probability of being occupied in a year, given that the site was empty, or occupied, in the
    year before and given all counts; equal in the first year.
    """

    came: F64
    stayed: F64

    @classmethod
    def mean_of(cls, chains: Sequence[ChainPosterior], rows: Sequence[I64], J: int) -> ChainPosterior:
        """Chains of ``J`` sites from those of groups, whose sites are ``rows``; a site of several has the mean of theirs."""
        # A mean of conditional probabilities: exact where one group has all visits of the site, else an approximation.
        owners = np.bincount(np.concatenate(list(rows)), minlength=J)
        both = np.zeros((2, J, chains[0].came.shape[1]))
        for one, at in zip(chains, rows, strict=True):
            both[:, at] += one.came, one.stayed
        return cls(*(both / np.maximum(owners, 1)[:, None]))

    @property
    def present(self) -> F64:
        """Probability (J, Y) that a site was occupied."""
        out = np.empty_like(self.came)
        out[:, 0] = self.came[:, 0]
        for year in range(1, out.shape[1]):
            # P(z_y = 1) = P(z_{y-1} = 0) came + P(z_{y-1} = 1) stayed.
            out[:, year] = self.came[:, year] + out[:, year - 1] * (self.stayed[:, year] - self.came[:, year])
        return out

    def draw(self, uniform: F64) -> F64:
        """Draw states (J, Y), 0 or 1, from uniform numbers (J, Y)."""
        z = np.empty_like(self.came)
        before = np.zeros(len(z))
        for year in range(z.shape[1]):
            # In the first year came = stayed, so that the zeros of ``before`` do not matter.
            before = (
                uniform[:, year] < np.where(before > 0, self.stayed[:, year], self.came[:, year])
            ).astype(float)
            z[:, year] = before
        return z

    def sums(self, share: F64, present: F64) -> F64:
        """Expected numbers (6,) over sites of weight ``share`` (J,), for the M-step of the chain.

        Occupied in the first year, sites; occupied site-years that another year follows, and how many of them were lost;
        empty ones, and how many of them were gained.
        """
        # E-step numbers of the guide's equation of rates (psi, epsilon,
        # gamma), by the posterior's own transition probabilities.
        before, came, stayed = present[:, :-1], self.came[:, 1:], self.stayed[:, 1:]
        parts = [before, before * (1.0 - stayed), 1.0 - before, (1.0 - before) * came]
        return np.array(
            [share @ present[:, 0], share.sum(), *(float((share @ part).sum()) for part in parts)]
        )


def log_zero(mu: F64, inverse_size: float, phi: float) -> F64:
    """Log probability of a zero of the count's law at means ``mu``.

    The negative binomial's, (1 + mu / size)^-size. Where the variance is phi mu that of the negative binomial with this
    variance, exp(-mu log(phi) / (phi - 1)); of both, the product of the exponents.
    """
    # -log P(0): size log(1 + mu / size), which tends to mu for the Poisson law.
    rate = np.log1p(mu * inverse_size) / inverse_size if inverse_size > 0 else mu
    over = np.log(phi) / (phi - 1.0) if phi > 1.0 + 1e-6 else 1.0
    return -rate * over


def log_yearly(yearly: F64, *, empty: bool) -> F64:
    """Logarithm of yearly totals (J, Y) of sites; where sites may be ``empty``, at least that of 1/50 of the site's mean.

    An empty site has no logarithm: the slope of a site that was lost says that it fell, and not how far below one bird.
    """
    least = 0.02 * yearly.mean(axis=1, keepdims=True) if empty else 0.0
    return np.log(np.maximum(np.maximum(yearly, least), 1e-9))


def zero_inflated(
    law: Law, counts_at: Callable[[F64], F64], eta: F64, var: F64, present: F64, level: float
) -> tuple[F64, F64, F64, F64]:
    """Limits of cells that are zero with probability 1 - ``present``: both of a visit's count, both of the expected count.

    A quantile a of the mixture is 0 up to a = 1 - present, and beyond that the quantile (a - 1 + present) / present of the
    occupied site. Quantiles of counts are computed at probits that are ``PROBIT_STEP`` apart, and interpolated.
    """
    out = []
    for tail in ((1 - level) / 2, (1 + level) / 2):
        # Where part <= 0 the quantile is in the mass at zero: z = -inf leaves count and mean at 0.
        part = (tail - 1.0 + present) / np.maximum(present, 1e-12)
        z = np.where(part > 0, ndtri(np.clip(part, 1e-4, 1.0 - 1e-4)), -np.inf)
        z = np.where(present > 1.0 - 1e-9, ndtri(tail), z)
        count, mean, some = np.zeros(eta.shape), np.zeros(eta.shape), z > -np.inf
        mean[some] = counts_at(eta[some] + z[some] * np.sqrt(var[some]))
        sure = present > 1.0 - 1e-9
        count[sure] = _quantile(law, eta[sure], var[sure], tail)
        # Cells with nearly the same level share one table of quantiles:
        # a law's table costs more than the cells that read it.
        place = np.where(some & ~sure, np.floor(z / PROBIT_STEP), np.inf)
        for cell in np.unique(place[np.isfinite(place)]):
            at = place == cell
            low, high = (
                _quantile(law, eta[at], var[at], float(ndtr(PROBIT_STEP * edge))) for edge in (cell, cell + 1)
            )
            # Between whole numbers the limits go outwards: the interval holds at least its level.
            outwards = np.floor if tail < 0.5 else np.ceil
            count[at] = outwards(low + (z[at] / PROBIT_STEP - cell) * (high - low))
        out.append((count, mean))
    return out[0][0], out[1][0], out[0][1], out[1][1]


def _quantile(law: Law, eta: F64, var: F64, a: float) -> F64:
    return law.interval(eta, var, 2.0 * a - 1.0)[1] if eta.size else eta
