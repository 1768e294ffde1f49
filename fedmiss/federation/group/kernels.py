"""Compiled loops over a group's observed cells, for many fits side by side.

Every loop takes the numbers ``fits`` of the fits that are asked about. Fits differ in their weights (folds, replicates)
and share the cells: rows by site (``ptr`` (J + 1,), ``col`` (nnz,)). Work is cut into tasks, ``first`` to ``last`` of which
a call does: fits, or fits times ``chunks`` of sites, a number that depends on the data only. The parts are added in order,
so the result has the same bits for any number of threads (:func:`fedmiss.loops.spread_out`).

Coefficients of site j are N(P_j, C_j), those of month l are N(T_l, D_l), p = 1 + rank of them; the effect comes first.
The design of the site is x_l = (1, v_l), that of the month z_j = (1, u_j). Symmetric blocks travel as their lower
triangle, row by row. ``off`` says whether ``offset`` holds offsets that are not in the predictor yet. The loops take many
parameters: numba takes arrays one by one.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from functools import lru_cache

import numpy as np

from fedmiss.federation.group import lane_kernels
from fedmiss.federation.group.lane_kernels import LANES
from fedmiss.loops import compiled, most_in, part, stored
from fedmiss.models.lowrank.family_kernels import bend, curvature, far_above, mean, predictor, tilts
from fedmiss.models.lowrank.own_lines import MAJOR


def chunks_of(cells: int) -> int:
    """Number of parts that the sites are cut into: a function of the data only, never of the machine."""
    return 16 if cells > 20_000 else 1


@part
def _linear(mu, offset, p, P, C, T, D):
    """Mean and variance of the predictor of a cell: site N(P, C), month N(T, D)."""
    # eta = offset + mu + x'z with x = (1, v_l), z = (1, u_j); both rows uncertain: var = x'Cx + z'Dz + tr(C D) over factors.
    eta = offset + mu + P[0] + T[0]
    var = C[0, 0] + D[0, 0]
    for a in range(1, p):
        u, v = P[a], T[a]
        eta += u * v
        sx = 2.0 * C[a, 0]
        sz = 2.0 * D[a, 0]
        for b in range(1, p):
            c, d = C[a, b], D[a, b]
            sx += c * T[b]
            sz += d * P[b]
            var += c * d
        var += v * sx + u * sz
    return eta, var


@part
def _cell(mu, offset, p, P, C, T, D, y, E, family, mine, other, S, e, acc):
    """Add a cell to ``acc`` (p (p + 3) / 2,): gradient and lower triangle of the curvature of one block.

    The block is the site (coefficients ``mine`` = P) or the month (T); the design is that of the other axis, a one and
    its factors ``other``. Its covariance ``S`` enters twice: S m, with m the block's own coefficients, tilts the design,
    and S adds to the curvature. ``e`` (p,) is scratch. Returns the predictor and the residual.
    """
    eta, var = _linear(mu, offset, p, P, C, T, D)
    h = predictor(eta, var, family)
    # Expected count E exp(eta + var / 2) of a Poisson cell: the lognormal mean under the posterior.
    m = E * mean(h, family)
    w = curvature(m, E, family)
    res = y - m
    acc[0] += res
    acc[p] += w
    q = p + 1
    for a in range(1, p):
        # S m, m the block's own coefficients: half the derivative of var, through which they move exp(eta + var / 2) too.
        t = S[a, 0]
        for b in range(1, p):
            t += S[a, b] * mine[b]
        d = other[a]
        # g of equation normal, x uncertain: y x - E[x exp(eta)] = (y - w) x - w S m.
        acc[a] += res * d - w * t
        if tilts(family):
            d += t
        e[a] = d
        # G of equation normal, x uncertain: E[x x' exp(eta)] = w (d d' + S), with d = x + S m.
        acc[q] += w * d
        q += 1
        for b in range(1, a + 1):
            acc[q] += w * (d * e[b] + S[a, b])
            q += 1
    return h, res


@part
def _site(j, p, ptr, col, y, E, offset, off, mu, P, C, T, D, family, inverse_size, e, acc, bends):
    """Sums of the cells of site j at its current coefficients, added to ``acc``.

    Returns how many of its cells have counts far above their mean, with their months and ``bend`` in ``bends`` (n, 2).
    """
    n = 0
    for k in range(ptr[j], ptr[j + 1]):
        if E[k] == 0.0:
            continue
        o = offset[k] if off else 0.0
        l = col[k]
        if p == 1:  # rank 0: nothing tilts
            h = predictor(o + mu + P[j, 0] + T[l, 0], C[j, 0, 0] + D[l, 0, 0], family)
            m = E[k] * mean(h, family)
            res = y[k] - m
            acc[0] += res
            acc[1] += curvature(m, E[k], family)
        else:
            h, res = _cell(mu, o, p, P[j], C[j], T[l], D[l], y[k], E[k], family, P[j], T[l], D[l], e, acc)
        if inverse_size > 0.0 and far_above(y[k], res):
            bends[n, 0], bends[n, 1] = l, bend(y[k], E[k], res, inverse_size)
            n += 1
    return n


@part
def _share(p, phi, T, bends, step, right):
    """Share of Newton's step that a site takes, so that it does not swing round a flock for good.

    Along the step s the expected curvature is s' A s = s' g; with that of the counts the step would be shorter.
    """
    more = 0.0
    for i in range(bends.shape[0]):
        s, l = step[0], int(bends[i, 0])
        for a in range(1, p):
            s += step[a] * T[l, a]
        more += bends[i, 1] * s * s
    known = 0.0
    for a in range(p):
        known += step[a] * right[a]
    return known / (known + more / phi) if more > 0.0 else 1.0


@part
def _solve(p, j, acc, phi, tau, max_step, M, P, C, T, bends, square, family, A, B, step):
    """One damped Newton step of a site from its sums ``acc``; C moves to its covariance. Returns its edf.

    The sums grow with the exponential of the variance, and the covariance ``A`` is the inverse of the sums: a full step of C
    swings for good where a site that has zeros only has a large prior variance. ``hub.priors.share_of_step`` says how far
    C goes; a site that is well known takes the full step. ``square`` (p,) are the mean squares of the months' coefficients.
    A pivot of the Cholesky factor is at least that of the prior, 1 / tau; sums that are large beyond all measure (a fit that
    runs away, which the hub then stops) lose that to rounding.
    """
    # Cholesky factor A of G / phi + diag(1 / tau), row by row; ``step`` holds the inverses of its pivots.
    q = p
    for a in range(p):
        for b in range(a + 1):
            s = acc[q] / phi
            q += 1
            for k in range(b):
                s -= A[a, k] * A[b, k]
            if b < a:
                A[a, b] = s * step[b]
            else:
                prior = 1.0 / tau[a]
                s += prior
                step[a] = 1.0 / math.sqrt(s if s > prior else prior)
    # Inverse K of the factor, in the lower triangle of B, then the covariance K'K in A.
    for b in range(p):
        B[b, b] = step[b]
        for a in range(b + 1, p):
            s = 0.0
            for k in range(b, a):
                s -= A[a, k] * B[k, b]
            B[a, b] = s * step[a]
    for a in range(p):
        for b in range(a + 1):
            s = 0.0
            for k in range(a, p):
                s += B[k, a] * B[k, b]
            A[a, b] = A[b, a] = s
    # Right side of Newton's step: g / phi - (P - M) / tau, with M = B' f_j the prior mean of equation prior.
    edf = float(p)
    before = after = 0.0
    for a in range(p):
        B[0, a] = acc[a] / phi - (P[j, a] - M[j, a]) / tau[a]
        # edf = tr(C G / phi) = p - sum C_aa / tau_a.
        edf -= A[a, a] / tau[a]
        before += C[j, a, a] * square[a]
        after += A[a, a] * square[a]
    longest = 0.0
    for a in range(p):
        s = 0.0
        for b in range(p):
            s += A[a, b] * B[0, b]
        step[a] = s
        longest = max(longest, abs(s))
    part = 1.0
    if tilts(family):
        # min(1, 1 / (1/2 + g)), g half of the predictor's variance times edf (``hub.priors.share_of_step``).
        part = min(1.0, 2.0 / (1.0 + max(before, after) * max(edf, 0.0)))
    for a in range(p):
        for b in range(p):
            C[j, a, b] = A[a, b] if part == 1.0 else C[j, a, b] + part * (A[a, b] - C[j, a, b])
    # As one piece, so that a long step keeps its direction.
    short = min(_share(p, phi, T, bends, step, B[0]), max_step / max(longest, 1e-12))
    for a in range(p):
        P[j, a] += short * step[a]
    return edf


@compiled
def _round(
    first, last, fits, p, chunks, ptr, col, y, E, offset, off, mu, T, D, tau, major, phi, size, max_step, M, P,
    C, eta, family, month, stats,
):  # fmt: skip
    """One round: every site takes its Newton step, then adds its cells to the months' sums.

    Parameters
    ----------
    month : (n chunks, L, p (p + 3) / 2)      out: gradient and lower triangle of the curvature of every month
    M : (n, J, p)                             prior means of the sites' coefficients
    stats : (n chunks, 5 + 3 p)               out: edf, sum E (move)^2, sum E, number of sites whose cells say something,
                                              then their sums of P - M, P^2 and diag C (p each), and of the squared
                                              share (1 - C / tau)^2 of the second coefficient that counts tell
    """
    J, width = ptr.size - 1, p + p * (p + 1) // 2
    own, e, A, B, step = np.zeros(width), np.empty(p), np.empty((p, p)), np.empty((p, p)), np.empty(p)
    square = np.empty(p)
    bends = np.empty((most_in(ptr), 2))
    for task in range(first, last):
        i, c = task // chunks, task % chunks
        f = fits[i]
        acc, yf, Ef, ef, of = month[task], y[f], E[f], eta[f], offset[f if off else 0]
        Pf, Cf, Mf, Tf, Df, muf, phif, tauf = P[f], C[f], M[f], T[f], D[f], mu[f], phi[f], tau[f]
        # Mean squares of the months' coefficients: 1 for the effect, whose design is constant.
        square[0] = 1.0
        for a in range(1, p):
            square[a] = 0.0
            for l in range(T.shape[1]):
                square[a] += Tf[l, a] * Tf[l, a] / T.shape[1]
        # The slope of a site with more than half of all birds is its own.
        alone = tauf.copy()
        if p > 1:
            alone[1] += MAJOR
        parameters = moved = weight = 0.0
        for j in range(c * J // chunks, (c + 1) * J // chunks):
            own[:] = 0.0
            n = _site(j, p, ptr, col, yf, Ef, of, off, muf, Pf, Cf, Tf, Df, family, size[f], e, own, bends)
            prior = alone if j == major[f] else tauf
            edf = _solve(
                p, j, own, phif, prior, max_step, Mf, Pf, Cf, Tf, bends[:n], square, family, A, B, step
            )
            parameters += edf
            # a site without a visit is its prior, and says nothing of the variance between sites
            if own[p] > 0.0:
                stats[task, 3] += 1.0
                for a in range(p):
                    stats[task, 4 + a] += Pf[j, a] - Mf[j, a]
                    stats[task, 4 + p + a] += Pf[j, a] * Pf[j, a]
                    stats[task, 4 + 2 * p + a] += Cf[j, a, a]
                if j == major[f]:  # it says as little of the others' slopes as a site without a visit
                    stats[task, 5] -= Pf[j, 1] - Mf[j, 1]
                    stats[task, 5 + p] += Mf[j, 1] * Mf[j, 1] - Pf[j, 1] * Pf[j, 1]
                    stats[task, 5 + 2 * p] += tauf[1] - Cf[j, 1, 1]
                elif p > 1:
                    share = max(1.0 - Cf[j, 1, 1] / tauf[1], 0.0)
                    stats[task, 4 + 3 * p] += share * share
            # The cells enter the months' sums at the site's new coefficients: a round is one pass over the data.
            for k in range(ptr[j], ptr[j + 1]):
                if Ef[k] == 0.0:
                    continue
                l = col[k]
                o = of[k] if off else 0.0
                if p == 1:
                    h = predictor(o + muf + Pf[j, 0] + Tf[l, 0], Cf[j, 0, 0] + Df[l, 0, 0], family)
                    m = Ef[k] * mean(h, family)
                    acc[l, 0] += yf[k] - m
                    acc[l, 1] += curvature(m, Ef[k], family)
                else:
                    h, _ = _cell(
                        muf, o, p, Pf[j], Cf[j], Tf[l], Df[l], yf[k], Ef[k], family, Tf[l], Pf[j], Cf[j], e, acc[l]
                    )  # fmt: skip
                move = h - ef[k]
                moved += Ef[k] * move * move
                weight += Ef[k]
                ef[k] = h
        stats[task, 0] += parameters
        stats[task, 1] += moved
        stats[task, 2] += weight


@lru_cache(maxsize=16)
def _of_width(p: int) -> Callable[..., None]:
    @compiled
    def loop(
        first, last, fits, _, chunks, ptr, col, y, E, offset, off, mu, T, D, tau, major, phi, size, max_step, M,
        P, C, eta, family, month, stats,
    ):  # fmt: skip
        _round(
            first, last, fits, p, chunks, ptr, col, y, E, offset, off, mu, T, D, tau, major, phi, size,
            max_step, M, P, C, eta, family, month, stats,
        )  # fmt: skip

    return loop


# cells times fits, by p and family; family -1 where it is no constant
_done: Counter[tuple[int, int]] = Counter()
PAYS = 20_000_000  # of them after which a loop for one p alone is worth its compilation, some seconds once


def _pays(loop: Callable[..., None], p: int, family: int, work: int) -> bool:
    _done[p, family] += work
    return _done[p, family] > PAYS or stored(loop)


def round_loops(
    p: int, family: int, fits: int, cells: int, chunks: int
) -> Iterator[tuple[Callable[..., None], int, int, int]]:
    """Loops that do a round of so many ``fits``: each with how many of them it does, its tasks, and its fourth argument.

    Where p is a constant the compiler unrolls the loops over coefficients, and does eight fits at a time where there are
    as many: a round takes a quarter to three quarters of the time, with the same operations in the same order, hence the
    same bits (``benchmarks/round_speed.py``). Such loops are compiled for each p, so small jobs do without.
    """
    together = lane_kernels.together(p, fits, chunks)
    if together and _pays(beside := lane_kernels.side_by_side(p, family), p, family, cells * together):
        yield beside, together, -(-together // LANES) * chunks, LANES
        fits -= together
    if fits:
        loop = _of_width(p)
        yield loop if _pays(loop, p, -1, cells * fits) else _round, fits, fits * chunks, p


@compiled
def predict_cells(first, last, chunks, fits, p, ptr, col, offset, off, mu, T, D, P, C, family, eta):
    """Give every cell, weighted or not, the predictor that has its expected mean."""
    J = ptr.size - 1
    for task in range(first, last):
        i, c = task // chunks, task % chunks
        f = fits[i]
        for j in range(c * J // chunks, (c + 1) * J // chunks):
            for k in range(ptr[j], ptr[j + 1]):
                l = col[k]
                o = offset[f, k] if off else 0.0
                line, var = _linear(mu[f], o, p, P[f, j], C[f, j], T[f, l], D[f, l])
                eta[f, k] = predictor(line, var, family)


@compiled
def product_sums(first, last, chunks, fits, ptr, col, y, E, eta, V, family, pairs, out):
    """R' (R V): ``out`` (n chunks, L, width); of two months only where ``pairs`` (L, L) is 1, of all where it is empty."""
    J, width = ptr.size - 1, V.shape[2]
    res, t = np.empty(most_in(ptr)), np.empty(width)
    for task in range(first, last):
        i, c = task // chunks, task % chunks
        f = fits[i]
        for j in range(c * J // chunks, (c + 1) * J // chunks):
            begin = ptr[j]
            whole = True  # all pairs of this site's months take part
            for k in range(begin, ptr[j + 1]):
                res[k - begin] = y[f, k] - E[f, k] * mean(eta[f, k], family)
                for l in range(begin, k if pairs.size else begin):
                    whole &= pairs[col[k], col[l]] == 1
            t[:] = 0.0
            for k in range(begin, ptr[j + 1]):
                for a in range(width):
                    t[a] += res[k - begin] * V[i, col[k], a]
            for k in range(begin, ptr[j + 1]):
                if not whole:
                    t[:] = 0.0
                    for l in range(begin, ptr[j + 1]):
                        if pairs[col[k], col[l]] == 1:
                            for a in range(width):
                                t[a] += res[l - begin] * V[i, col[l], a]
                for a in range(width):
                    out[task, col[k], a] += res[k - begin] * t[a]
