"""Compiled loops over the visits of a group's cells: weights, dispersion, effort and observers.

A row is a visit, or a whole cell where visits have no offsets: weight w, weighted count wy, weighted square wyy. Rows lie
by cell (``row_ptr`` (nnz + 1,)). Fits, tasks and chunks as in :mod:`fedmiss.federation.group.kernels`.
"""

from __future__ import annotations

import math

import numpy as np

from fedmiss.loops import compiled, most_in, part
from fedmiss.models.lowrank.family_kernels import mean, variance, visit_sums

ROWS = 256  # at a time: their numbers stay in the processor's nearest memory


@part
def _predictors(f, k, end, row_ptr, offset, off, eta, h):
    """Predictors of the rows of whole cells from ``k`` on, until they are ROWS; the cell after them, and their number."""
    n = 0
    while k < end and n < ROWS:
        for r in range(row_ptr[k], row_ptr[k + 1]):
            h[n] = eta[f, k] + (offset[f, r] if off else 0.0)
            n += 1
        k += 1
    return k, n


@part
def _means(h, n, family):
    """Means of the first n predictors, in their place; four at a time where the family is a constant."""
    if family == 1:
        for q in range(n):
            h[q] = mean(h[q], 1)
    else:
        for q in range(n):
            h[q] = mean(h[q], family)


@part
def _overs(f, r0, n, h, observer, effect_var, inverse_size, family, out):
    """How much smaller the predictors of scores are than the first n of ``h``, whose exp is the expected mean of a row.

    With an effect of variance C, E[(y - mu) / (1 + mu / size)] is, to first order in C, the score at h - C rho / (1 + rho),
    rho = mu / size: the more a score is bent, the less does a lucky observer pull at it. Poisson: 0.
    """
    one = inverse_size[f]
    if not observer.size or one == 0.0:
        out[:n] = 0.0
        return
    for q in range(n):
        out[q] = h[q]
    _means(out, n, family)
    for q in range(n):
        rho = out[q] * one
        out[q] = effect_var[f, observer[r0 + q]] * rho / (1.0 + rho)


@compiled
def fill_cells(
    first, last, chunks, fits, row_ptr, w, wy, offset, off, observer, effect_var, inverse_size, eta, shrink, old,
    family, y, E,
):  # fmt: skip
    """Sum the rows of every cell into its sufficient statistics (y, E).

    The negative binomial multiplies both by its quasi-score weight 1 / (1 + mu / size), half-way to the old one on the log
    scale where ``old``: full steps overshoot when the size is small, and swing. Exponentials and roots are taken of many
    rows in turn, which is four numbers at a time.
    """
    cells, most = row_ptr.size - 1, most_in(row_ptr)
    room = ROWS + most
    o, factor, line, over = np.empty(room), np.empty(room), np.empty(room), np.empty(room)
    for task in range(first, last):
        i, c = task // chunks, task % chunks
        f = fits[i]
        k, end = c * cells // chunks, (c + 1) * cells // chunks
        while k < end:
            # Whole cells, until they have ROWS rows.
            begin, r0, n = k, row_ptr[k], 0
            while k < end and n < ROWS:
                for r in range(row_ptr[k], row_ptr[k + 1]):
                    o[n], factor[n], line[n] = offset[f, r] if off else 0.0, 1.0, eta[f, k]
                    n += 1
                k += 1
            if inverse_size[f] > 0.0:
                # Quasi-score weight of the negative binomial, Var = mu + mu^2 / size: 1 / (1 + mu / size).
                for q in range(n):
                    factor[q] = line[q] + o[q]
                _overs(f, r0, n, factor, observer, effect_var, inverse_size, family, over)
                for q in range(n):
                    o[q] -= over[q]
                    factor[q] = line[q] + o[q]
                _means(factor, n, family)
                one = inverse_size[f]
                for q in range(n):
                    factor[q] = 1.0 / (1.0 + factor[q] * one)
                if old[i]:
                    # Geometric mean of the old weight and the new one.
                    for q in range(n):
                        factor[q] = math.sqrt(factor[q] * shrink[f, r0 + q])
                for q in range(n):
                    shrink[f, r0 + q] = factor[q]
            for j in range(begin, k):
                sy = sE = 0.0
                for r in range(row_ptr[j], row_ptr[j + 1]):
                    dy, dE = visit_sums(w[f, r], wy[f, r], o[r - r0], off, factor[r - r0], family)
                    sy += dy
                    sE += dE
                y[f, j] = sy
                E[f, j] = sE


@compiled
def dispersion_sums(first, last, chunks, fits, row_ptr, w, wy, wyy, offset, off, eta, family, nodes, out):
    """Add sum w (y - mu)^2 / (mu + mu^2 / t) over the rows at every node log t; ``out`` (n, chunks, nodes).

    ``nodes`` (n, m) are values of 1 / t. Families without a size have one node: their Pearson statistic.
    """
    cells, m = row_ptr.size - 1, nodes.shape[1]
    means = np.empty(ROWS + most_in(row_ptr))
    for task in range(first, last):
        i, c = task // chunks, task % chunks
        f = fits[i]
        k, end = c * cells // chunks, (c + 1) * cells // chunks
        while k < end:
            r0 = row_ptr[k]
            k, n = _predictors(f, k, end, row_ptr, offset, off, eta, means)
            _means(means, n, family)
            for r in range(r0, r0 + n):
                if w[f, r] == 0.0:
                    continue
                mu = means[r - r0]
                # sum w (y - mu)^2 from the row's sums of w, wy and wyy; rounding may bring it below 0.
                square = max(wyy[f, r] - 2.0 * mu * wy[f, r] + mu * mu * w[f, r], 0.0)
                v = variance(mu, family)
                for q in range(m):
                    out[i, c, q] += square / max(v + mu * mu * nodes[i, q], 1e-12)


@part
def _told(
    f, k, end, row_ptr, w, wy, offset, off, observer, effect_var, eta, inverse_size, family, score, curve
):
    """Scores and curvatures of the predictors of rows: y - mu and Var over 1 + mu / size, weighted.

    Of the rows of :func:`_predictors`, and returns what that does.
    """
    r0 = row_ptr[k]
    k, n = _predictors(f, k, end, row_ptr, offset, off, eta, score)
    _overs(f, r0, n, score, observer, effect_var, inverse_size, family, curve)
    for q in range(n):
        score[q] -= curve[q]
    _means(score, n, family)
    one = inverse_size[f]
    for q in range(n):
        mu, weight = score[q], w[f, r0 + q]
        factor = 1.0 / (1.0 + mu * one)
        score[q] = factor * (wy[f, r0 + q] - weight * mu)
        curve[q] = factor * weight * variance(mu, family)
    return k, n


@compiled
def effort_sums(
    first, last, chunks, fits, row_ptr, effort, w, wy, offset, off, observer, effect_var, eta, inverse_size,
    family, out,
):  # fmt: skip
    """Score Z'(y - mu) and information Z' mu Z (IRLS), its lower triangle row by row; Z: effort, and a constant.

    ``out`` (n, chunks, q (q + 3) / 2), q the columns of Z.
    """
    cells, K, room = row_ptr.size - 1, effort.shape[1], ROWS + most_in(row_ptr)
    acc, z, score, curve = np.empty((K + 1) * (K + 4) // 2), np.ones(K + 1), np.empty(room), np.empty(room)
    for task in range(first, last):
        i, c = task // chunks, task % chunks
        f = fits[i]
        acc[:] = 0.0
        k, end = c * cells // chunks, (c + 1) * cells // chunks
        while k < end:
            r0 = row_ptr[k]
            k, n = _told(
                f, k, end, row_ptr, w, wy, offset, off, observer, effect_var, eta, inverse_size, family, score, curve
            )  # fmt: skip
            for r in range(r0, r0 + n):
                if w[f, r] == 0.0:
                    continue
                z[:K] = effort[r]
                q = K + 1
                for a in range(K + 1):
                    acc[a] += score[r - r0] * z[a]
                    t = z[a] * curve[r - r0]
                    for b in range(a + 1):
                        acc[q] += t * z[b]
                        q += 1
        out[i, c] = acc


@compiled
def observer_sums(
    first, last, fits, row_ptr, w, wy, offset, off, observer, effect_var, eta, inverse_size, family, out
):
    """Score, curvature and weight of every observer: ``out`` (n, 3, observers)."""
    cells, room = row_ptr.size - 1, ROWS + most_in(row_ptr)
    score, curve = np.empty(room), np.empty(room)
    for i in range(first, last):
        f, k = fits[i], 0
        while k < cells:
            r0 = row_ptr[k]
            k, n = _told(
                f, k, cells, row_ptr, w, wy, offset, off, observer, effect_var, eta, inverse_size, family, score, curve
            )  # fmt: skip
            for r in range(r0, r0 + n):
                if w[f, r] == 0.0:
                    continue
                o = observer[r]
                out[i, 0, o] += score[r - r0]
                out[i, 1, o] += curve[r - r0]
                out[i, 2, o] += w[f, r]


@compiled
def row_offsets(first, last, chunks, fits, known, effort, kappa, observer, effects, offset):
    """Offset of every row, x' kappa + log exposure + h_o of equation predictor; ``known`` and ``observer`` may be empty."""
    rows, K = len(effort), kappa.shape[1]
    for task in range(first, last):
        i, c = task // chunks, task % chunks
        f = fits[i]
        for r in range(c * rows // chunks, (c + 1) * rows // chunks):
            o = known[r] if known.size else 0.0
            for a in range(K):
                o += effort[r, a] * kappa[f, a]
            offset[f, r] = o + effects[f, observer[r]] if observer.size else o
