"""What follows from a fitted community: axes, associations, richness, and what the others say of each species."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from fedmiss.arrays import F64, I64
from fedmiss.community.model import Cells, Community
from fedmiss.federation.results import AverageFit, Posterior, moments
from fedmiss.models.lowrank.families import FAMILIES
from fedmiss.models.lowrank.predictive import LEVEL
from fedmiss.rng import rng_for

DRAWS = 400
LEAST_EFFORT = 1e-3  # standard visits to a site: the logarithm of 0 is not defined
INVERSE_SIZES = 2.0 ** np.arange(-5, 6)  # among which that of richness is found
TAILS = [(1 - LEVEL) / 2, (1 + LEVEL) / 2]


@dataclass(frozen=True, slots=True)
class Axes:
    """Axes of the community, by the share of the factors' variance that they carry, the largest first.

    ``scores`` (J, r) of the sites, of mean 0 and variance 1, with errors ``scores_se``; ``loadings`` (S, r) of the species,
    their change on the log scale for a deviation of the sites, with ``loadings_se``; ``share`` (r,). ``turn`` (r, r) makes
    scores of the factors' coefficients about their mean ``centre``; ``back`` (r, r) makes loadings.
    ``sites`` how many there are, ``effort`` at one of them, in standard visits.
    """

    scores: F64
    scores_se: F64
    loadings: F64
    loadings_se: F64
    share: F64
    turn: F64
    back: F64
    centre: F64
    sites: int
    effort: float


def site_sums(community: Community, visits: F64 | None = None) -> F64:
    """Sums (1 + r + r^2 + 12 + 2,) over the sites that axes and richness need.

    Of 1, of the factors' coefficients, of their products with their covariances, of cells with a bird and of those that are
    expected with each of ``INVERSE_SIZES``, and of the log of ``visits`` (J,), by
    default the effort of the cells: as it is, and of one visit at least. Of several organisations they are added up, so that
    axes are those of all sites.
    """
    return np.insert(_axis_sums(community, visits), -2, _with_birds(community))


def _axis_sums(community: Community, visits: F64 | None = None) -> F64:
    """Those of :func:`site_sums` that axes and visits need: each of many refits has axes, and none a richness."""
    q, rank = community.posterior, community.rank
    first = q.P.shape[1] - rank
    U, C = q.P[:, first:], q.C[:, first:, first:]
    # The mean of logarithms, so that a few sites with hundreds of visits do not make the usual number.
    visits = community.cells.visited().max(axis=1) if visits is None else visits
    logs = [np.log(np.maximum(visits, least)).sum() for least in (LEAST_EFFORT, 1.0)]
    return np.concatenate([[len(U)], U.sum(axis=0), (U.T @ U + C.sum(axis=0)).ravel(), logs])


def axes_of(community: Community, sums: F64 | None = None) -> Axes:
    """Turn the factors, which are known up to a turn only, to principal axes; the largest loading of each is positive.

    ``sums`` are those of :func:`site_sums` over all sites, where not all of them are here.
    """
    q, rank = community.posterior, community.rank
    sums = _axis_sums(community) if sums is None else sums
    of = round(float(sums[0])), float(np.exp(sums[-2] / sums[0]))
    if not rank:
        sites, species, square = np.zeros((len(q.P), 0)), np.zeros((len(q.T), 0)), np.zeros((0, 0))
        return Axes(sites, sites, species, species, np.zeros(0), square, square, np.zeros(0), *of)
    U, C, W, D = q.P[:, -rank:], q.C[:, -rank:, -rank:], q.T[:, -rank:], q.D[:, -rank:, -rank:]
    centre = sums[1 : 1 + rank] / sums[0]
    # Second moment of the true coefficients: that of their means plus the mean of their posterior covariances.
    spread = sums[1 + rank : 1 + rank + rank * rank].reshape(rank, rank) / sums[0] - np.outer(centre, centre)
    # With scores of variance one the interaction is scores @ (W root)'; its singular vectors are the principal axes.
    root = np.linalg.cholesky(spread)
    _, size, right = np.linalg.svd(W @ root, full_matrices=False)
    back = root @ right.T
    back = back * np.where((W @ back)[np.abs(W @ back).argmax(axis=0), np.arange(rank)] < 0, -1.0, 1.0)
    # (U turn)(W back)' = U W': the interaction does not change.
    turn = np.linalg.inv(back).T
    return Axes(
        (U - centre) @ turn, _errors(C, turn), W @ back, _errors(D, back), size**2 / max(float((size**2).sum()), 1e-300),
        turn, back, centre, *of,
    )  # fmt: skip


def _errors(covariances: F64, turn: F64) -> F64:
    out: F64 = np.sqrt(np.maximum(np.einsum("ka,nkl,la->na", turn, covariances, turn), 0.0))
    return out


def usual_visits(community: Community, sums: F64 | None = None) -> float:
    """Standard visits to a usual site (their geometric mean), 1 at least: richness is of so many, and no extrapolation."""
    sums = _axis_sums(community) if sums is None else sums
    return float(max(1.0, np.round(np.exp(sums[-1] / sums[0]))))


def _chance(mean: F64, inverse_size: float) -> F64:
    """Chance that a negative binomial count is not 0: 1 - (1 + mean / size)^-size."""
    return np.asarray(-np.expm1(-np.log1p(mean * inverse_size) / inverse_size))


def _with_birds(community: Community) -> F64:
    """Cells with a bird, and those expected with each of ``INVERSE_SIZES`` (11,); zeros for presence."""
    fit, cells = community.fit, community.cells
    if fit.settings.family != "poisson":
        return np.zeros(1 + INVERSE_SIZES.size)
    cells = cells.take(cells.weight > 0)  # of the others nothing may be told
    eta, var = (part[cells.site, cells.species] for part in moments(community.posterior, slice(None)))
    nodes, shares = np.polynomial.hermite_e.hermegauss(7)  # over the posterior of the log mean
    out = np.zeros(1 + INVERSE_SIZES.size)
    out[0] = (cells.count > 0).sum()
    for node, share in zip(nodes, shares / shares.sum(), strict=True):
        mean = cells.effort * fit.smear * np.exp(np.minimum(eta + node * np.sqrt(var), 30.0))
        out[1:] += [share * _chance(mean, inverse_size).sum() for inverse_size in INVERSE_SIZES]
    return out


def _inverse_size(sums: F64) -> float:
    """The 1 / size with which as many cells have a bird as have.

    That of the fit is one of few that were tried with the axes, and mostly too small: birds would be spread too evenly over
    the sites, and too many species be found at each.
    """
    found, *expected = sums[-3 - INVERSE_SIZES.size : -2]
    # The more uneven, the fewer cells with a bird: np.interp wants them rising.
    return float(np.exp(np.interp(found, expected[::-1], np.log(INVERSE_SIZES)[::-1])))


def richness(community: Community, *, visits: float, sums: F64 | None = None) -> tuple[F64, F64, F64]:
    """Species (J,) found on ``visits`` standard visits to each site: expected number, and its 95 % interval by draws.

    ``sums`` are those of :func:`site_sums` over all sites, where not all of them are here.
    """
    fit, rng = AverageFit((community.fit,)), rng_for(community.fit.settings.seed, "richness")
    counts = community.fit.settings.family == "poisson"
    inverse_size = _inverse_size(site_sums(community) if sums is None else sums) if counts else 0.0
    # Draw by draw: the matrix of sites and species would be held 400 times otherwise.
    expected, drawn = np.zeros(community.cells.J), np.empty((DRAWS, community.cells.J), dtype=np.int32)
    for i in range(DRAWS):
        eta = fit.draw(rng)(slice(None))
        if counts:
            # The site's own level is one for all visits, so they are not independent.
            found = _chance(visits * np.exp(np.minimum(eta, 30.0)), inverse_size)
        else:
            # 1 - (1 - p)^n, with log(1 - p) = -log(1 + e^eta).
            found = -np.expm1(visits * -np.logaddexp(0.0, eta))
        expected += found.sum(axis=1) / DRAWS
        # The interval is of the number found: presence of each species is drawn, not only its probability.
        drawn[i] = (rng.random(found.shape) < found).sum(axis=1)
    low, high = np.quantile(drawn, TAILS, axis=0)
    return expected, low, high


def left_out_scores(community: Community, axes: Axes) -> Iterator[F64]:
    """Scores (J, r) of the sites as the other species give them, species by species: its own counts are taken out.

    The posterior of a site's coefficients is Gaussian with precision A, and at its mean the gradient is zero; without the
    species' cell its precision is A - H and its gradient -g, so that one Newton step gives (A - H)^-1 (-g): exact but for
    the change of the other cells' curvature on the way.
    """
    q, rank = community.posterior, community.rank
    J, p = q.P.shape
    eta, var = moments(q, slice(None))
    eta = eta - community.raised  # gradients are 0 at the levels of the fit
    A, floor = np.linalg.inv(q.C + 1e-12 * np.eye(p)), np.diag(1.0 / q.tau)
    order = np.argsort(community.cells.species, kind="stable")
    ends = np.searchsorted(community.cells.species[order], np.arange(community.cells.S + 1))
    for species in range(community.cells.S):
        cells = community.cells.take(order[ends[species] : ends[species + 1]])
        gradient, curve = _of_cells(
            community, q, cells, species, eta[cells.site, species], var[cells.site, species]
        )
        G, H = np.zeros((J, p)), np.zeros((J, p, p))
        np.add.at(G, cells.site, gradient / community.fit.aux.phi)
        np.add.at(H, cells.site, curve / community.fit.aux.phi)
        values, vectors = np.linalg.eigh(A - H - floor)  # never below the prior's own precision
        rest = floor + np.einsum("nab,nb,ncb->nac", vectors, np.maximum(values, 0.0), vectors)
        moved: F64 = (q.P - np.linalg.solve(rest, G[:, :, None])[:, :, 0])[:, p - rank :]
        yield (moved - axes.centre) @ axes.turn


def _of_cells(
    community: Community, posterior: Posterior, cells: Cells, species: int, eta: F64, var: F64
) -> tuple[F64, F64]:
    """Gradient (n, p) and curvature (n, p, p) of a species' cells in the coefficients of their sites."""
    z, D = np.r_[1.0, posterior.T[species, 1:]], posterior.D[species].copy()
    D[:, 0] = 0.0  # the species' own level is no coefficient of the site, and moves with the loadings
    # var holds (1, u)' D (1, u) of the species' level and loadings: half its derivative in u.
    pull = np.hstack([np.ones((len(eta), 1)), posterior.P[cells.site, 1:]]) @ D
    D[0] = 0.0
    if community.fit.settings.family == "poisson":
        mean = cells.effort * np.exp(eta + var / 2)
        # Negative binomial: the score (y - mu) / (1 + mu / size).
        weight = cells.weight / (1.0 + mean / community.fit.aux.size)
        curve = weight * mean
    else:
        mean = FAMILIES["bernoulli"].mean(FAMILIES["bernoulli"].marginal(eta, var))
        weight = cells.weight
        curve = weight * mean * (1.0 - mean)
    gradient = (weight * (cells.count - mean))[:, None] * z - curve[:, None] * pull
    return gradient, curve[:, None, None] * (np.outer(z, z) + D)


# numbers of lists of a site, and where each begins
STEPS = {"1": 1, "2 to 3": 2, "4 to 9": 4, "10 or more": 10}


def steps_of(lists: F64) -> I64:
    """Which of ``STEPS`` the sites are, by their numbers of lists."""
    return np.searchsorted([*STEPS.values()][1:], lists, side="right")


def gains_by(community: Community, lists: F64) -> tuple[F64, F64]:
    """Deviance of left-out cells, without axes and of the model chosen.

    (S, 2) by species, and (4, 2) by the number of lists (J,) of the site.
    """
    gains, out = community.gains, []
    for key, size in ((gains["species"], community.cells.S), (steps_of(lists)[gains["site"]], len(STEPS))):
        both = [np.bincount(key, np.nan_to_num(gains[name]), size) for name in ("none", "chosen")]
        out.append(np.stack(both, axis=1))
    return out[0].astype(float), out[1].astype(float)
