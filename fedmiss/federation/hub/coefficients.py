"""Coefficients of the features of sites: the M-step of them and of their variances.

Site j's effect (and slope) has the prior N(B' f_j, tau). Columns of f come in blocks (:mod:`..group.features`); the
coefficients of a block b have the prior N(0, rho_b), and rho_b is estimated, so that a block that says nothing switches
itself off. B moves by Newton steps of the marginal likelihood of the sites' data, with the site's coefficient integrated
out; rho by MacKay's fixed point rho = sum B^2 / (k - tr(cov) / rho) (Neural Computation 4, 1992). Sums over sites of k and
k (k + 1) / 2 numbers cross for each coefficient.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from fedmiss.arrays import F64, I64, Bool
from fedmiss.federation.hub.few import drawn_variance
from fedmiss.federation.hub.priors import SITE_SD, SLOPE_SD, STRIDE
from fedmiss.federation.hub.values import evolve
from fedmiss.federation.triangle import from_triangle
from fedmiss.models.lowrank.structure import ALONE, FEATURES, OF_LEVELS, OF_SLOPES

if TYPE_CHECKING:
    from fedmiss.federation.hub.state import MonthState, Panel
    from fedmiss.models.lowrank.choice import Choice

SHARE = 0.5  # of a Newton step: sites answer to new variances over a few rounds, and a full step swings
FARTHEST = 0.3  # that a coefficient moves in a round, in units of the link
START, SLOPES, LEAST, MOST = 0.1, 0.02, 1e-6, 4.0  # variance of coefficients, in units of the link squared
CLEAR = 2.0  # variances by which the square of a coefficient alone in its block exceeds 0
FEW = "regions"  # the block whose trends are reported: an error of its variance is an error of them
QUANTILES = 20  # of the posterior of a variance, that stand for it
_SCALES = (SITE_SD, SLOPE_SD)  # of the half-normal priors of regions' levels and slopes: those of sites


@dataclass(frozen=True, eq=False)
class Coefficients:
    """Coefficients of the features of one fit.

    Attributes
    ----------
    columns : (k,) features;  block : (k,) which of ``blocks`` each belongs to
    B : (k, c) coefficients of the effect (and the slope);  prior : their prior means, zero but for replicates
    rho : (blocks, c) their prior variances;  cov : (c, k, k) posterior covariances
    aim : (k, c) their posterior means, to which the whole of the last Newton step leads
    under : the variances ``rho`` that ``cov`` and ``aim`` were computed with
    edf : effective number of coefficients, under these variances
    Of many fits (:func:`.state.stacked`) the last seven have a leading axis.
    """

    blocks: tuple[str, ...]
    columns: I64
    block: I64
    B: F64
    prior: F64
    rho: F64
    cov: F64
    aim: F64
    under: F64
    edf: F64 | float = 0.0

    @property
    def k(self) -> int:
        """Number of features."""
        return int(self.columns.size)

    def _known(self, cov: F64) -> F64:
        """How much of each coefficient (..., k, c) the data determine, with posterior covariances ``cov``."""
        spread = np.einsum("...caa->...ac", cov)
        return np.where(self.used, 1.0 - spread / self.rho[..., self.block, :], 0.0)

    @property
    def used(self) -> Bool:
        """(k, c) whether a feature may move a coefficient: some speak for the effect only, or the slope."""
        out = np.ones(self.B.shape[-2:], dtype=bool)
        for others, only in ((slice(1, None), OF_LEVELS), (slice(0, 1), OF_SLOPES)):
            out[np.isin([self.blocks[number] for number in self.block], only), others] = False
        return out

    def uncertainty(self, panel: Panel) -> F64:
        """(..., c) what the coefficients' uncertainty adds to a site's squared distance from its prior mean, on average."""
        if panel.features is None or not self.k:
            return np.zeros((*self.B.shape[:-2], self.B.shape[-1]))
        spread = panel.features.covariance[np.ix_(self.columns, self.columns)]
        # E [(B - B_hat)' f]^2 over visited sites: trace of cov(B) times the covariance of f.
        out: F64 = np.einsum("...cab,ab->...c", self.cov, spread)
        return out

    def drawn(self, rng: np.random.Generator, unit: float = 1.0) -> Coefficients:
        """Draw the prior means, for a replicate that starts at its own response to them; of regions the variance too."""
        z = rng.standard_normal(self.B.shape)
        drawn = self._at_variance(rng.random(self.B.shape[1:]), unit) if FEW in self.blocks else self
        prior = np.where(self.used, z * np.sqrt(drawn.rho[self.block]), 0.0)
        # C K m, as for every coefficient of a replicate; variances may have moved since ``cov`` was computed.
        wide = np.maximum(drawn.rho[self.block], np.einsum("caa->ac", drawn.cov))
        move = np.einsum("cab,bc->ac", drawn.cov, prior / wide) if self.k else prior
        return evolve(drawn, prior=prior, B=drawn.B + move)

    def covariance(self, unit: float) -> F64:
        """(c, k, k) posterior covariances where the variances of regions are not known, but have their posterior."""
        if FEW not in self.blocks:
            return self.cov
        levels = (np.arange(QUANTILES) + 0.5) / QUANTILES
        each = [self._at_variance(np.full(self.B.shape[1], level), unit) for level in levels]
        moved = np.stack([one.B for one in each]) - np.mean([one.B for one in each], axis=0)
        out: F64 = (
            np.mean([one.cov for one in each], axis=0) + np.einsum("nac,nbc->cab", moved, moved) / QUANTILES
        )
        return out

    def _at_variance(self, levels: F64, unit: float) -> Coefficients:
        """Take these quantiles (c,) of the variances of regions, with the coefficients and covariances that follow."""
        number = self.blocks.index(FEW)
        B, rho, cov = self.B.copy(), self.rho.copy(), self.cov.copy()
        for c, level in enumerate(levels):
            at = np.flatnonzero(self.used[:, c])
            own = np.flatnonzero(self.block[at] == number)
            C, aim, old = cov[c][np.ix_(at, at)], self.aim[at, c], self.under[number, c]
            new = drawn_variance(C[np.ix_(own, own)], aim[own], old, _SCALES[c], unit, level)
            # cov^-1 gains the change of 1 / rho; cov^-1 aim is what the data say, and stays.
            before = np.linalg.inv(C)
            after = before.copy()
            after[own, own] += 1.0 / new - 1.0 / old
            C = np.linalg.inv(0.5 * (after + after.T))
            B[at, c], cov[c][np.ix_(at, at)], rho[number, c] = C @ before @ aim, C, new
        return evolve(self, B=B, rho=rho, cov=cov)


def start_coefficients(panel: Panel, blocks: Sequence[str], unit: float, *, slopes: bool) -> Coefficients:
    """Coefficients of zero; ``unit`` is the variance of the link's unit."""
    features, c = panel.features, 1 + slopes
    there = tuple(
        name
        for name in FEATURES
        if features is not None and name in blocks and features.columns.get(name, np.zeros(0)).size
    )
    if features is None or not there:
        none, zero = np.zeros(0, dtype=np.int64), np.zeros((0, c))
        return Coefficients((), none, none, zero, zero, zero, np.zeros((c, 0, 0)), zero, zero)
    columns = features.of(there)
    block = np.repeat(np.arange(len(there)), [features.columns[name].size for name in there])
    # Equation prior, B_kc ~ N(0, rho_bc): rho starts at a tenth of the link's unit, far from 0, where it would stay.
    rho, k = np.full((len(there), c), START * unit), columns.size
    rho[:, 1:] *= SLOPES
    cov = np.stack([np.diag(rho[block, coefficient]) for coefficient in range(c)])
    zero = np.zeros((k, c))
    return Coefficients(there, columns, block, zero, zero, rho, cov, zero, rho)


def feature_step(state: MonthState, sums: F64, *, learn: bool) -> Coefficients:
    """One Newton step of all coefficients; with ``learn`` their variances. ``sums`` (..., d (d + 3) / 2), d = c (k + 1).

    The constants take part in the equations and are not moved: what visited sites have in common is the level's (and the
    line's), which move in the same round. Without them both would correct the same, and swing.
    """
    before, unit = state.features, np.asarray(state.unit)[..., None, None]
    *many, k, c = before.B.shape
    d = c * (k + 1)
    moved = np.vstack([before.used, np.zeros((1, c), dtype=bool)]).T.ravel()  # (d,) in the order of the sums
    # Coefficients that may move, and the constants (the last of every k + 1), which only take part.
    at = np.flatnonzero(moved | (np.arange(d) % (k + 1) == k))
    # (information + 1 / rho) step = gradient - (B - prior) / rho: Newton on the sites' marginal likelihood.
    precision, pull = np.empty((*many, c, k + 1)), np.zeros((*many, c, k + 1))
    precision[...] = 1.0 / (MOST * unit**2)
    precision[..., :k] = 1.0 / before.rho[..., before.block, :].swapaxes(-1, -2)
    pull[..., :k] = precision[..., :k] * (before.B - before.prior).swapaxes(-1, -2)
    A = np.ascontiguousarray(from_triangle(sums[..., d:], d)[..., at[:, None], at])
    own_prior, gradient = precision.reshape(*many, d)[..., at], sums[..., :d].copy()
    inner, inverse = np.zeros((*many, d, d)), _inverse(A, own_prior)
    alone = np.flatnonzero(np.isin([before.blocks[number] for number in before.block], ALONE))
    for x in np.flatnonzero(np.isin(at, [of * (k + 1) + own for own in alone for of in range(c)])):
        # Covariances of sites that are on their way, as of rare species, may say less than nothing of it: then nothing.
        none = ~(1.0 / inverse[..., x, x] > own_prior[..., x])
        if np.any(none):
            A[none, x, :] = A[none, :, x] = gradient[none, at[x]] = 0.0
            inverse = _inverse(A, own_prior)
    inner[..., at[:, None], at] = inverse
    step = (inner @ (gradient - pull.reshape(*many, d))[..., None])[..., 0].reshape(*many, c, k + 1)
    whole = step[..., :k].swapaxes(-1, -2)
    step = np.clip(SHARE * whole, -FARTHEST * unit, FARTHEST * unit)
    cov = np.stack(
        [inner[..., a * (k + 1) : a * (k + 1) + k, a * (k + 1) : a * (k + 1) + k] for a in range(c)], axis=-3
    )
    known = before._known(cov)
    B, aim = (before.B + np.where(before.used, part, 0.0) for part in (step, whole))
    new = evolve(before, B=B, aim=aim, cov=cov, under=before.rho, edf=known.sum(axis=(-2, -1)))
    if not learn:
        return new
    # Equation mackay: rho = sum B^2 / (k - tr(cov) / rho), block by block.
    rho = [
        (new.B[..., own, :] ** 2).sum(axis=-2) / np.maximum(known[..., own, :].sum(axis=-2), 1e-3)
        for own in (before.block == number for number in range(len(before.blocks)))
    ]
    most, scales = np.full((len(before.blocks), c), MOST), np.array(_SCALES[:c])
    for own in alone:
        # Of one coefficient, which the data alone put at b with the variance s^2, the likeliest rho is b^2 - s^2. It is
        # switched off at once below CLEAR s^2: else it dies away over more rounds than a fit takes.
        number, some = before.block[own], np.maximum(known[..., own, :], 1e-12)
        b2, s2 = (aim[..., own, :] / some) ** 2, np.einsum("...caa->...ac", cov)[..., own, :] / some
        most[number], on = scales**2, (b2 > CLEAR * s2) & (s2 < (scales * unit[..., 0]) ** 2)
        rho[number] = np.where(on, np.minimum(b2 - s2, STRIDE * before.rho[..., number, :]), 0.0)
    return evolve(new, rho=np.clip(np.stack(rho, axis=-2), LEAST * unit**2, most * unit**2))


def _inverse(A: F64, prior: F64) -> F64:
    """Inverse of A (..., d, d), symmetric by its formula and not to the last bit after sums over groups, and ``prior``."""
    whole = 0.5 * (A + A.swapaxes(-1, -2))
    whole[..., np.arange(A.shape[-1]), np.arange(A.shape[-1])] += prior
    return np.asarray(np.linalg.inv(whole), dtype=np.float64)


def explained(panel: Panel, coefficients: Coefficients, tau: F64) -> dict[str, float]:
    """Share of the variance between sites' levels that each block explains: that of B' f over that of B' f and tau."""
    features = panel.features
    if features is None or not coefficients.k:
        return {}
    B, spread = coefficients.B[:, 0], features.covariance[np.ix_(coefficients.columns, coefficients.columns)]
    # Var(B' f) over visited sites, over Var(B' f) + tau.
    whole = float(B @ spread @ B + tau[0])
    at = {
        name: coefficients.block == number
        for number, name in enumerate(coefficients.blocks)
        if name not in OF_SLOPES
    }
    return {name: float(B[own] @ spread[np.ix_(own, own)] @ B[own]) / whole for name, own in at.items()}


def slope_by_abundance(state: MonthState) -> float:
    """What the slope on x rises by where a site has e times the birds; 0 where that switched itself off."""
    features = state.features
    of = np.isin(np.array(features.blocks), OF_SLOPES)
    on = of & (features.rho[:, -1] > 1.001 * LEAST * state.unit**2)
    return float(features.B[on[features.block], -1].sum()) if on.any() else 0.0


def covariate_names(panel: Panel, coefficients: Coefficients) -> list[str]:
    """Names of the covariates, a category once, that are among the features of a fit."""
    if panel.features is None or "covariates" not in coefficients.blocks:
        return []
    return sorted({panel.features.made[i].of for i in panel.features.columns["covariates"]})


def structure_facts(panel: Panel, choice: Choice | None, state: MonthState | None) -> dict[str, Any]:
    """What was tried, what the features are, and what they explain, by their names in the manifest."""
    facts: dict[str, Any] = {"trials": [trial._asdict() for trial in choice.trials] if choice else []}
    if state is None:  # algorithm 7 has no structure
        return facts
    return facts | {
        "site_covariates": covariate_names(panel, state.features),
        "explained": explained(panel, state.features, state.tau),
    }
