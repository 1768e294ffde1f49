"""Predictive laws of observations: what an interval around an imputed cell must hold.

A visit's count has three sources of error: its expected value exp(eta) is known up to eta ~ N(m, v); counts scatter
around it as their law says (negative binomial, quasi-Poisson, Poisson); and a new observer sees more or fewer birds. All
act on the logarithm of a Poisson rate: log rate = m + N(0, v) + log G, with G a gamma variable of mean 1. So a quantile of
the count depends on m and v alone, is computed on a grid of both, and read off for every cell.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Protocol

import numpy as np
from scipy.special import expit, gammaincc, gammaln, ndtr, ndtri

from fedmiss.arrays import F64

LEVEL = 0.95
STEP = 0.04  # of log rates and log counts
LOW, HIGH = -12.0, 24.0  # log rates of the grid
ETA_STEP = 2 * STEP
SD_STEP = 0.1
MOST_LOG = 50.0  # of counts
MOST_SD = 4.5  # as the mean of a lognormal, whose variance is bounded by 20


class Law(Protocol):
    """How observations scatter around a predictor, which itself is known up to a normal error."""

    def interval(self, eta: F64, var: F64, level: float = LEVEL) -> tuple[F64, F64]:
        """Quantiles (1 - level) / 2 and (1 + level) / 2 of an observation whose predictor is N(eta, var)."""

    def draw(self, eta: F64, rng: np.random.Generator) -> F64:
        """One observation for each predictor."""


@dataclass(frozen=True, slots=True)
class ValueLaw:
    """Normal errors of variance ``phi`` around the predictor; ``observers`` variance of observer effects."""

    phi: float = 1.0
    observers: float = 0.0

    def interval(self, eta: F64, var: F64, level: float = LEVEL) -> tuple[F64, F64]:
        """See :meth:`Law.interval`."""
        half = ndtri(0.5 + level / 2) * np.sqrt(np.maximum(var, 0.0) + self.phi + self.observers)
        return eta - half, eta + half

    def draw(self, eta: F64, rng: np.random.Generator) -> F64:
        """See :meth:`Law.draw`."""
        out: F64 = eta + np.sqrt(self.phi + self.observers) * rng.standard_normal(np.shape(eta))
        return out


@dataclass(frozen=True, slots=True)
class LogCountLaw:
    """Whole counts; 1 + count has ``smear`` times the mean of exp(predictor), and normal errors of its logarithm.

    Were 1 + count lognormal, ``smear`` would be exp(variance / 2) of these errors. Counts with many zeros and a few flocks
    can have a mean several times as large, counts without zeros a smaller one: those of the lognormal law, which has no
    counts below 0, are multiplied so that their mean is the expected count, smear exp(predictor) - 1. Where that is next to
    nothing, or the lognormal law's mean is, the factor is a tenth or ten times ``ratio``, and the mean is not kept.
    """

    logs: ValueLaw
    smear: float

    @property
    def ratio(self) -> float:
        """How many times the counts of the lognormal law there are, where counts are large."""
        return float(self.smear * np.exp(-0.5 * (self.logs.phi + self.logs.observers)))

    def times(self, eta: F64, var: F64) -> F64:
        """How many times the counts of the lognormal law there are, at predictors N(eta, var)."""
        eta = np.minimum(eta, MOST_LOG)
        sd = np.maximum(np.sqrt(np.maximum(var, 0.0) + self.logs.phi + self.logs.observers), 1e-6)
        # E max(exp(x) - 1, 0), x ~ N(eta, sd^2)
        mean = np.exp(eta + 0.5 * sd**2) * ndtr(eta / sd + sd) - ndtr(eta / sd)
        wanted = self.smear * np.exp(eta + 0.5 * np.maximum(var, 0.0)) - 1.0
        return np.clip(wanted / np.maximum(mean, 1e-300), 0.1 * self.ratio, 10.0 * self.ratio)

    def interval(self, eta: F64, var: F64, level: float = LEVEL) -> tuple[F64, F64]:
        """See :meth:`Law.interval`."""
        times = self.times(eta, var)
        lower, upper = (
            np.maximum(np.rint(times * np.expm1(np.minimum(limit, MOST_LOG))), 0.0)
            for limit in self.logs.interval(eta, var, level)
        )
        return lower, upper

    def draw(self, eta: F64, rng: np.random.Generator) -> F64:
        """See :meth:`Law.draw`; numbers are rounded up or down at random, so that small ones keep their mean."""
        logs = np.minimum(self.logs.draw(eta, rng), MOST_LOG)
        count = np.maximum(self.times(eta, np.zeros_like(eta)) * np.expm1(logs), 0.0)
        return np.floor(count + rng.random(count.shape))


@dataclass(frozen=True, slots=True)
class PresenceLaw:
    """0 or 1 with probability 1 / (1 + exp(-eta)); ``observers`` variance of observer effects."""

    observers: float = 0.0

    def interval(self, eta: F64, var: F64, level: float = LEVEL) -> tuple[F64, F64]:
        """See :meth:`Law.interval`."""
        # E expit(N(eta, v)) by the pi/8 rule (MacKay 1992): one number decides both limits, which are 0 or 1.
        chance = expit(eta / np.sqrt(1.0 + np.pi / 8 * (var + self.observers)))
        return (1.0 - chance < (1 - level) / 2).astype(float), (1.0 - chance < (1 + level) / 2).astype(float)

    def draw(self, eta: F64, rng: np.random.Generator) -> F64:
        """See :meth:`Law.draw`."""
        who = np.sqrt(self.observers) * rng.standard_normal(np.shape(eta)) if self.observers else 0.0
        return (rng.random(np.shape(eta)) < expit(eta + who)).astype(np.float64)


@dataclass(frozen=True, slots=True)
class CountLaw:
    """How counts scatter around their expected value.

    ``inverse_size`` 1 / size of the negative binomial, 0 for none; ``phi`` dispersion of a quasi-Poisson law, whose counts
    are read as negative binomial with the variance phi mu; ``observers`` variance of observer effects, whose mean on the
    scale of counts is one, so that the expected value is that of any observer's visit.
    """

    inverse_size: float = 0.0
    phi: float = 1.0
    observers: float = 0.0

    def inverse_size_at(self, eta: F64) -> F64:
        """1 / size of the negative binomial with this law's variance at the means exp(eta)."""
        out: F64 = self.inverse_size + np.maximum(self.phi - 1.0, 0.0) * np.exp(-eta)
        return out

    def interval(self, eta: F64, var: F64, level: float = LEVEL) -> tuple[F64, F64]:
        """See :meth:`Law.interval`: whole numbers, from means and variances of the logarithm of the expected count."""
        shape = np.shape(eta)
        # exp of N(-s2/2, s2) has mean 1: observers scatter counts and leave the expected count as it is.
        m = np.clip(np.ravel(eta) - 0.5 * self.observers, LOW + 4.0, HIGH - 8.0)
        sd = np.sqrt(np.clip(np.ravel(var) + self.observers, 0.0, MOST_SD**2))
        if not m.size:
            return np.zeros(shape), np.zeros(shape)
        # Only the part of the grid that these cells need; a, b are the shares of the way to the next point.
        i, a = _place(m, ETA_STEP)
        k, b = _place(sd, SD_STEP)
        etas = np.arange(i.min(), i.max() + 2) * ETA_STEP
        sds = np.arange(k.min(), k.max() + 2) * SD_STEP
        table = self._quantiles(etas, sds, ((1 - level) / 2, (1 + level) / 2))
        i, k = i - i.min(), k - k.min()
        out = []
        for quantile in table:
            x = (1 - a) * ((1 - b) * quantile[k, i] + b * quantile[k + 1, i]) + a * (
                (1 - b) * quantile[k, i + 1] + b * quantile[k + 1, i + 1]
            )
            # x is log(count + 1) of the continued law: the quantile is
            # the next whole number, but for rounding just above one.
            out.append(np.maximum(np.ceil(np.exp(x) - 1.0 - 1e-9), 0.0).reshape(shape))
        return out[0], out[1]

    def draw(self, eta: F64, rng: np.random.Generator) -> F64:
        """See :meth:`Law.draw`."""
        if self.observers:
            eta = eta + np.sqrt(self.observers) * rng.standard_normal(np.shape(eta)) - 0.5 * self.observers
        mean = np.exp(np.minimum(eta, HIGH))
        k = self.inverse_size_at(eta)
        # Poisson with a gamma rate of mean 1 and variance k; below 1e-9 that is the Poisson law itself.
        shape = 1.0 / np.maximum(k, 1e-9)
        rate = np.where(k > 1e-9, rng.gamma(shape) * np.maximum(k, 1e-9), 1.0) * mean
        out: F64 = rng.poisson(np.minimum(rate, 1e15)).astype(np.float64)
        return out

    def _quantiles(self, etas: F64, sds: F64, levels: tuple[float, ...]) -> list[F64]:
        """log(x + 1) where the law's continuous distribution function reaches each level, (sds, etas)."""
        t, s, poisson = _poisson_cdf()
        cdf = self._gamma_mass(t) @ poisson
        out = [np.empty((sds.size, etas.size)) for _ in levels]
        rows = np.arange(etas.size)
        for j, sd in enumerate(sds):
            # Normal weights of log rates around eta; at least half a grid step wide, or the nearest point would take all.
            mass = np.exp(-0.5 * ((t - etas[:, None]) / max(sd, STEP / 2)) ** 2)
            # P(count <= x): the mixture over log rates of the law's own distribution functions.
            F = (mass / mass.sum(axis=1, keepdims=True)) @ cdf
            for quantile, level in zip(out, levels, strict=True):
                at = np.clip((F < level).sum(axis=1), 1, s.size - 1)
                left, right = F[rows, at - 1], F[rows, at]
                part = np.clip((level - left) / np.maximum(right - left, 1e-300), 0.0, 1.0)
                quantile[j] = s[at - 1] + part * STEP
        return out

    def _gamma_mass(self, t: F64) -> F64:
        """Mass at the grid ``t`` of t_i + log G, one row for each t_i: G is gamma with mean 1 and this law's variance."""
        # a law that is narrower than the grid is as wide as the grid
        k = 1.0 / np.maximum(self.inverse_size_at(t), STEP**2 / 4)[:, None]
        # Density of log G for a gamma variable of shape k and mean 1: k^k / Gamma(k) exp(k (z - e^z)).
        z = t[None, :] - t[:, None]
        log_density = k * np.log(k) - gammaln(k) + k * (z - np.exp(np.minimum(z, 50.0)))
        mass = np.exp(np.minimum(log_density, 50.0)) * STEP
        mass /= np.maximum(mass.sum(axis=1, keepdims=True), 1.0)
        mass[:, 0] += 1.0 - mass.sum(axis=1)  # below the grid no bird is counted
        return mass


@cache
def _poisson_cdf() -> tuple[F64, F64, F64]:
    """Grids t of log rates and s of log(x + 1), and P(count <= x) of a Poisson law on both.

    The incomplete gamma function continues it to any x > -1.
    """
    t = np.arange(LOW, HIGH + STEP / 2, STEP)
    s = np.arange(-8.0, HIGH + STEP / 2, STEP)
    return t, s, gammaincc(np.exp(s)[None, :], np.exp(t)[:, None])


def _place(x: F64, step: float) -> tuple[np.ndarray, F64]:
    """The grid point below each value, and where the value lies between it and the next."""
    i = np.floor(x / step).astype(np.int64)
    return i, x / step - i
