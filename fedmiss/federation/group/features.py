"""Features of sites that the prior of their coefficients follows: what a group makes of its covariates, regions and places.

The prior of site j is p_j ~ N(B' f_j, diag(tau)) for its effect, and its slope; f_j stays at home. A feature is a column:

``visits``      log(visits + 1/2) of the site, 0 (the mean) where nobody counted
``covariates``  of a number z and (z^2 - 1) / sqrt 2, z the value less the mean of visited sites over their deviation, at
                most LIMIT deviations from the mean, so that a site beyond what was seen gets what was seen at the edge; of
                a category 0 or 1; a gap counts as the mean
``regions``     0 or 1 for every region of the job
``smooth``      a Gaussian process over longitude and latitude by its values at knots: k(x, knots) K^(-1/2) (predictive
                process: Banerjee et al., JRSS B 2008); longitudes are counted from their mean the short way round
``abundance``   log of the site's birds over what the mean site would have had at the same visits, both with a visit more at
                the mean, so that one visit says little; between organisations rounded
``times``       mean year of the site's visits
``effort``      means of the terms of effort of the site's visits
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fedmiss.arrays import F64, I64, Bool
from fedmiss.errors import ConfigError, UplinkError
from fedmiss.federation import messages as msg
from fedmiss.federation.group.apart import set_apart
from fedmiss.federation.group.covariates import covariate_of, differs
from fedmiss.federation.group.folds import secret_rng
from fedmiss.federation.messages_agree import LEVEL, PLACE
from fedmiss.federation.rules import CONTRIBUTORS, SITES_OF_A_NUMBER, crossed
from fedmiss.federation.triangle import to_triangle
from fedmiss.models.lowrank.structure import ALONE, LIMIT, OF_LEVELS, OF_SLOPES, UNTOLD

if TYPE_CHECKING:
    from fedmiss.federation.group.batch import Batch
    from fedmiss.federation.group.program import GroupProgram

WIDTH = 0.8  # of the smooth, in deviations of longitude and latitude
NEAR = 0.5  # least weight of a knot at a site that stands behind it
COARSE = 0.25  # unit of the log abundance of a site, between organisations
NOISE = 2.0**20  # in the place of sums that are withheld, between organisations
EDGE = 10.0  # farther from the middle, in deviations of the years, no visit is


def count_visits(program: GroupProgram, question: msg.SiteVisits) -> msg.VisitSums:
    """Count the visits of every site. Not between organisations."""
    if program.party is not None or program.jointly:
        raise ConfigError(
            f"group {program.name!r} does not tell how often sites were visited to other organisations. Leave the feature "
            "'visits' out of the job."
        )
    visits = np.bincount(program.need().site, minlength=program.J)
    program.log_visits = np.log(visits + 0.5)
    program.unvisited = visits == 0
    z = program.log_visits[~program.unvisited]
    return msg.VisitSums(np.array([z.sum(), z @ z, float(z.size)]))


def log_visits(program: GroupProgram, scale: F64) -> F64:
    """Log visits of the sites, centred and scaled.

    0, the mean site's, for a site without a counted visit: the regression is about sites that people went to, and says
    nothing of one where nobody counted.
    """
    if scale.shape != (2,) or not scale[1] > 0 or program.log_visits.shape != (program.J,):
        raise UplinkError(
            f"group {program.name!r} was sent a scale of visits that it cannot use. Install the same fedmiss on all sides, "
            "and start the job again."
        )
    out: F64 = np.where(program.unvisited, 0.0, (program.log_visits - scale[0]) / scale[1])
    return out


def _columns(program: GroupProgram, question: msg.Features) -> tuple[F64, F64, NDArray[np.str_]]:
    """Features (J, u) before the smooth is made of its knots, whether a site stands behind each (J, u), blocks (u,)."""
    J = program.J
    columns, support = [np.zeros((J, 0))], [np.zeros((J, 0))]
    blocks: list[str] = []

    def add(x: F64, there: np.ndarray) -> None:
        columns.append(x)
        support.append(there.astype(float))
        blocks.extend([block] * x.shape[1])

    z = {}
    for i, name in enumerate(question.names):
        z[name] = covariate_of(program, name)
        if LEVEL not in name:
            away = z[name] - question.mean[i]
            if name == PLACE[0]:
                away -= 360.0 * np.round(away / 360.0)
            z[name] = away / question.deviation[i]
    for block in question.blocks:
        if block == "visits":
            add(log_visits(program, question.visits)[:, None], np.ones((J, 1)))
        elif block == "covariates":
            for i, name in enumerate(question.names):
                if name in PLACE:
                    continue
                x, known = z[name], differs(program, z[name])[:, None]
                if LEVEL in name:
                    add(np.where(np.isnan(x), question.mean[i], x)[:, None], (x == 1.0)[:, None])
                else:
                    x = np.clip(x, -LIMIT, LIMIT)
                    # Mean 0 and variance 1 for a normal z: the second Hermite polynomial, nearly uncorrelated with z.
                    both = np.column_stack([x, (x**2 - 1.0) / np.sqrt(2.0)])
                    add(np.nan_to_num(both), np.repeat(known, 2, axis=1))
        elif block == "abundance":
            add(_abundance(program, question.level)[:, None], np.ones((J, 1)))
        elif block == "times":
            x = _times(program)
            add(x[:, None], differs(program, x)[:, None])
        elif block == "effort":
            x = _means(program, program.need().effort)
            add(x, np.ones(x.shape))
        elif block == "regions":
            at = np.column_stack([program.visits.region == name for name in program.axis.regions])
            add(at.astype(float), at)
        else:
            x = np.column_stack([z[name] for name in PLACE])
            near = np.nan_to_num(_near(x, question.knots))
            add(near, near > NEAR)
    return np.hstack(columns), np.hstack(support), np.array(blocks, dtype=str)


def _counted(program: GroupProgram) -> F64:
    """Weights and weighted counts (2, L) of every month's visits."""
    used, L = program.need(), program.axis.L
    return np.stack([np.bincount(used.month, w, L) for w in (used.weight, used.weight * used.count)])


def _abundance(program: GroupProgram, level: F64) -> F64:
    """Log abundance (J,) of the sites at mean counts ``level`` (L + 1,) of a visit; 0 before these are known."""
    if not level.size:
        return np.zeros(program.J)
    if level.shape != (program.axis.L + 1,) or not level[-1] > 0:
        raise UplinkError(
            f"group {program.name!r} was sent mean counts that it cannot use. Install the same fedmiss on all sides, and "
            "start the job again."
        )
    used = program.need()
    birds, usual = (
        np.bincount(used.site, used.weight * each, program.J) for each in (used.count, level[used.month])
    )
    out: F64 = np.log((birds + level[-1]) / (usual + level[-1]))
    # Of whole numbers of birds the exact sum over a region's five sites tells each.
    return np.round(out / COARSE) * COARSE if program.jointly else out


def _times(program: GroupProgram) -> F64:
    """Mean year (J,) of the sites' visits, from the middle of the years in their standard deviation; alike ones equal.

    Sums of the same years in another order, or number of visits, end in other last digits: no site had the value of most.
    """
    year = program.axis.year.astype(float)
    line = (year - 0.5 * year[-1]) * np.sqrt(12.0) / max(year[-1], 1.0)
    return _means(program, line[program.need().month][:, None])[:, 0].round(9)


def _means(program: GroupProgram, x: F64) -> F64:
    """Means (J, K) of x (m, K) over the visits of each site; 0 without a visit."""
    used = program.need()
    visits = np.bincount(used.site, used.weight, program.J)
    out = np.zeros((program.J, x.shape[1]))
    np.add.at(out, used.site, used.weight[:, None] * x)
    return out / np.where(visits > 0.0, visits, 1.0)[:, None]


def _near(x: F64, knots: F64) -> F64:
    d2 = ((x[:, None, :] - knots[None, :, :]) ** 2).sum(axis=2)
    out: F64 = np.exp(-0.5 * d2 / WIDTH**2)
    return out


def _too_many(kinds: Sequence[str], blocks: NDArray[np.str_], others: F64) -> Bool:
    """Features (u,) of which sums over the others' sites would tell single ones; ``others`` (u + 1,): theirs, and in all.

    Every round of every fit tells the sums over sites of the products of each two of q numbers, a constant among them, with
    other weights. Where there are fewer sites than products, the weights of enough rounds leave each site's own products as
    the only ones of their kind in what the sums span. Of the sites of a region, or with a value of a category, each round
    tells q sums, of those that differ in a number (and its square) 2 q - 1. See ``tests/attacks/test_features.py``.
    """
    number = np.array([not kind for kind in kinds], dtype=bool)
    q, out = 1, np.zeros(blocks.size, dtype=bool)
    fewest = others[-1]  # sites that differ in each of the numbers so far: a gap is the mean
    for i in np.flatnonzero(np.isin(blocks, ALONE)):
        these = min(fewest, others[i])
        if (q + 1) * (q + 2) // 2 > these:
            out[i] = True
        else:
            q, fewest = q + 1, these
    for first in np.flatnonzero(number & (blocks == "covariates"))[::2]:
        these, more = min(fewest, others[first]), q + 2
        if more * (more + 1) // 2 > others[-1] or 2 * more - 1 > these:
            out[first : first + 2] = True
        else:
            q, fewest = more, these
    out[~number] = others[:-1][~number] < q
    of = np.array(kinds, dtype=str)
    for kind in dict.fromkeys(kind for kind in kinds if kind):  # what is left of a category is told too
        told = np.flatnonzero((of == kind) & ~out)
        rest = others[-1] - others[told].sum()
        for i in told[np.argsort(others[told], kind="stable")]:
            if not 0 < rest < q:
                break
            out[i], rest = True, rest + others[i]
    return out


def _few_of_a_number(minimum: int, kept: Bool, others: F64) -> Bool:
    """Whether numbers and their squares (2 n,) differ at few sites of the ``others``: all but these are cut off, or follow.

    A square that is ``kept`` is of a number of more than two values, and with it four powers are told: of few whole numbers
    one set has them (see ``rules.SITES_OF_A_NUMBER``).
    """
    out = kept & (0 < others) & (others < minimum)
    enough = SITES_OF_A_NUMBER - CONTRIBUTORS  # the middle site of each organisation is not set apart
    out[1::2] |= kept[::2] & kept[1::2] & (0 < others[::2]) & (others[::2] < enough)
    return out


def _kinds(question: msg.Features, blocks: NDArray[np.str_]) -> list[str]:
    """Of each feature the category that it is a value of, empty for a number."""
    of = [
        (name.split(LEVEL)[0] + LEVEL) if LEVEL in name else ""
        for name in question.names
        if name not in PLACE
    ]
    # a number has a column of its square
    of_covariates = [kind for kind in of for _ in range(1 if kind else 2)]
    out = []
    for block in blocks:
        out.append(of_covariates.pop(0) if block == "covariates" else "regions" if block == "regions" else "")
    return out


def _cells(x: F64, kinds: Sequence[str]) -> F64:
    """Sites (cells,) of each value of one category (none of them last) with each of another."""
    out = [np.zeros(0)]
    for two in crossed(kinds):
        one, other = (
            np.column_stack([x[:, at] == 1.0, (x[:, at] != 1.0).all(axis=1)]).astype(float) for at in two
        )
        out.append((one.T @ other).ravel())
    return np.concatenate(out)


def features(program: GroupProgram, question: msg.Features) -> msg.FeatureSums:
    """Make the features, and say what is behind each; of those that are kept, keep the columns and return their sums.

    Behind those that are kept are the sites that they set apart from what the features before them tell. Of a sum that
    rests on fewer of the group's own sites than its custodian allows, or leaves out fewer, the group says that it is not to
    be used.
    """
    if program.jointly and (told := [block for block in question.blocks if block in UNTOLD]):
        raise ConfigError(
            f"group {program.name!r} does not tell {UNTOLD[told[0]]} to other organisations. Leave the feature {told[0]} "
            "out of the job."
        )
    x, there, blocks = _columns(program, question)
    made, smooth, kinds = x.shape[1], blocks == "smooth", _kinds(question, blocks)
    if question.kept.size not in (0, made) or question.behind.size not in (0, made + 1):
        raise UplinkError(
            f"group {program.name!r} was asked about {max(question.kept.size, question.behind.size - 1)} features; it "
            f"makes {made}. Install the same fedmiss on all sides, and start the job again."
        )
    # a site without a visit says nothing, and hides nothing
    seen, kept = program.visited, question.kept == 1
    if program.jointly and kept.size:
        there[:, kept] = 0.0
        there[np.ix_(seen, kept)] = set_apart(x[np.ix_(seen, kept)], np.zeros(int(seen.sum()), np.int32))
    there = np.column_stack([there, np.ones(len(x))]) * seen[:, None]
    behind, least = there.sum(axis=0), program.axis.minimum
    few = (behind > 0) & (behind < least)
    if not kept.size:
        few |= (behind < behind[-1]) & (behind[-1] - behind < least)
    over = (behind > question.share * question.behind) | few if question.behind.size else few
    if program.jointly and question.behind.size:
        others = question.behind - behind
        if kept.size:
            number = np.flatnonzero(np.array([not kind for kind in kinds]) & (blocks == "covariates"))
            over[number] |= _few_of_a_number(program.minimum, kept[number], others[number])
        else:
            over[:-1] |= _too_many(kinds, blocks, others)
    flags = ((behind > 0).astype(float), over.astype(float))
    cells = np.zeros((0, 3))
    if program.jointly and kept.size:
        sites = _cells(
            x[np.ix_(seen, kept)], [kind for kind, there in zip(kinds, kept, strict=True) if there]
        )
        wide = sites > question.share * question.cells if question.cells.size else np.zeros(sites.size, bool)
        cells = np.column_stack([sites, sites > 0, wide | ((sites > 0) & (sites < least))])
    if not kept.size or (program.jointly and not question.behind.size):
        wanted = "abundance" in question.blocks and not question.level.size
        counted = _counted(program) if wanted else np.zeros((0, 0))
        return msg.FeatureSums(counted, behind, *flags, cells, np.zeros(0), np.zeros(0))
    x = x[:, kept]
    if smooth.any():
        knots = question.knots[kept[smooth]]
        # K^(-1/2) of the knots that are kept, eigenvalues bounded below: near knots are nearly alike.
        values, vectors = np.linalg.eigh(_near(knots, knots))
        root = vectors @ np.diag(1.0 / np.sqrt(np.maximum(values, 1e-6))) @ vectors.T
        x[:, smooth[kept]] = x[:, smooth[kept]] @ root
    program.features, program.of_slopes = np.array(x, order="C"), np.isin(blocks[kept], OF_SLOPES)
    program.features[np.ix_(~seen, np.isin(blocks[kept], OF_LEVELS))] = np.nan  # of visits that there are not
    weighted = seen[:, None] * x
    sums, products = weighted.sum(axis=0), to_triangle(weighted.T @ x)
    # Sums that all others would have of this group nearly alone are not told; the features are then asked for again. Zeros
    # in their place would leave the others' sums, which may be one group's.
    if program.jointly and (over[:-1][kept].any() or cells[:, 2].any()):
        asked = repr([*question.blocks, *question.names]).encode()
        asked += b"".join(
            v.tobytes()
            for v in (
                question.mean,
                question.deviation,
                question.level,
                question.kept,
                question.behind,
                question.cells,
            )
        )
        rng = secret_rng(program.secret, program.name, "withheld", hashlib.blake2b(asked).hexdigest())
        sums, products = (rng.uniform(-NOISE, NOISE, v.shape) for v in (sums, products))
    return msg.FeatureSums(np.zeros((0, 0)), behind, *flags, cells, sums, products)


def move_prior_means(batch: Batch, at: slice | I64, B: F64) -> None:
    """Move the prior means of the sites' coefficients from the batch's coefficients of features to ``B`` (n, k, c)."""
    change = B - batch.B[at]
    if change.any():
        batch.site_prior[at, :, : B.shape[2]] += np.matmul(batch.F, change)
        batch.B[at] = B


def feature_sums(batch: Batch, fits: I64, p: int) -> tuple[F64, F64]:
    """Equations of the coefficients B of the features, and the squares of the sites' coefficients about their prior means.

    The marginal likelihood of site j's data has in its prior mean m (c,) the gradient (P - m) / tau and the curvature
    1 / tau - C / (tau tau'), P and C the posterior mean and covariance: the site's coefficients are integrated out. The last
    column of the features is a constant, whose coefficients are the level and the line.

    Abundance is made of the counts that tell the level too, and at a site that was visited late of its slope as well. So
    its coefficient is told the likelihood of the slope given the site's mean in the year of its visits.
    """
    F = np.column_stack([batch.F, np.ones(len(batch.F))])
    k, c = F.shape[1], batch.B.shape[2]
    only = np.flatnonzero(batch.of_slopes & (c > 1))
    q = c * k
    equations, about = np.zeros((fits.size, q * (q + 3) // 2)), np.zeros((fits.size, p))
    for i, f in enumerate(fits):
        away, major = batch.site_mean[f, :, :p] - batch.site_prior[f, :, :p], int(batch.major[f])
        if major >= 0:  # its slope says nothing of the others'
            away[major, 1] = 0.0
        tau, C = batch.tau[f, :c], batch.site_cov[f, :, :c, :c]
        about[i] = (away**2).sum(axis=0)
        # Curvature 1 / tau - C / (tau tau') of site j's marginal likelihood in its prior mean.
        w = np.diag(1.0 / tau) - C / (tau[:, None] * tau[None, :])
        if major >= 0:
            w[major, 1, :] = w[major, :, 1] = 0.0
        A = np.zeros((c, k, c, k))
        for x in range(c):
            # Gradient (P - M) / tau, times f_j.
            equations[i, x * k : (x + 1) * k] = F.T @ away[:, x] / tau[x]
            for y in range(x + 1):
                # Sum of the curvature times f_j f_j'; only y <= x is computed, the rest is its transpose.
                A[x, :, y] = (F * w[:, x, y, None]).T @ F
                A[y, :, x] = A[x, :, y].T
        if only.size:
            # H = C^-1 - 1 / tau is what the site's visits say; they lie around the year t = H_01 / H_00 (both times det C).
            told = C[:, 1, 1] - (C[:, 0, 0] * C[:, 1, 1] - C[:, 0, 1] ** 2) / tau[0]
            t = np.divide(-C[:, 0, 1], told, out=np.zeros(len(w)), where=told > 1e-6 * C[:, 1, 1])
            t = np.clip(t, -EDGE, EDGE)
            # The score of the slope given the mean at t is that along (-t, 1), in units of its own change with the slope.
            own = np.maximum(w[:, 1, 1] - t * w[:, 0, 1], 0.0)
            spread = own - t * (w[:, 0, 1] - t * w[:, 0, 0])
            share = np.divide(own, spread, out=np.zeros(len(w)), where=spread > 1e-6 / tau[1])
            curvature = share * own
            gradient = share * (away[:, 1] / tau[1] - t * away[:, 0] / tau[0])
        for at in only:
            equations[i, k + at] = F[:, at] @ gradient
            A[0, :, 1, at] = A[1, at, 0, :] = 0.0
            A[1, :, 1, at] = A[1, at, 1, :] = (F[:, at] * curvature) @ F
        equations[i, q:] = to_triangle(A.reshape(q, q))
    return equations, about
