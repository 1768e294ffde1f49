"""The loop of a round for eight fits at a time, with the same bits as for one at a time (``kernels._round``).

A cell has its place in every fit of a batch, so that one instruction does a step for four or eight fits. The steps are
those of :mod:`fedmiss.federation.group.kernels`, where their equations stand, operation by operation; here a number is a
row of eight, one a fit. A compiler puts them together only where few arrays might overlap, and where the distance of two
rows is a constant: hence one array ``S`` for all that belongs to a site, and one row of ``R`` and of ``A`` for a month.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

import numpy as np

from fedmiss.loops import CORES, compiled, most_in, part
from fedmiss.models.lowrank.family_kernels import bend, curvature, far_above, mean, predictor, tilts
from fedmiss.models.lowrank.own_lines import MAJOR

# Fits at a time: a processor's widest instruction, or two of them that need not wait for each other.
LANES = 8
# Coefficients of which the compiler does make rows: with fewer it finds too few steps, with more too many.
WIDTHS = range(3, 6)

# Rows of S: first the cell, and what belongs to a fit; then from ``_rows(p)`` on blocks of p, p^2 or p (p + 3) / 2.
_Y, _E, _OFFSET, _H, _BEND, _MU, _PHI, _SIZE, _EDF, _LONGEST, _MORE, _MOVED, _WEIGHT, _P = range(14)


@part
def _rows(p):
    """Where blocks of S begin, and the number of its rows.

    Covariance C of the coefficients P, prior means M, variances tau, mean squares of the months, sums of the site, then
    scratch: e, step, A and B.
    """
    C = _P + p
    M = C + p * p
    own = M + 3 * p
    e = own + p + p * (p + 1) // 2
    A = e + 2 * p
    return C, M, M + p, M + 2 * p, own, e, e + p, A, A + p * p, A + 2 * p * p


@part
def _cell(p, family, of_site, lanes, S, R, sums):
    """Add a cell to the sums of its site, in S, or of its month, ``sums``. Rows of R: coefficients and covariance (p, p)."""
    (C, _, _, _, own, e, _, _, _, _), D = _rows(p), p
    for q in range(lanes):
        eta = S[_OFFSET, q] + S[_MU, q] + S[_P, q] + R[0, q]
        var = S[C, q] + R[D, q]
        for a in range(1, p):
            u, v = S[_P + a, q], R[a, q]
            eta += u * v
            sx = 2.0 * S[C + a * p, q]
            sz = 2.0 * R[D + a * p, q]
            for b in range(1, p):
                c, d = S[C + a * p + b, q], R[D + a * p + b, q]
                sx += c * R[b, q]
                sz += d * S[_P + b, q]
                var += c * d
            var += v * sx + u * sz
        h = predictor(eta, var, family)
        m = S[_E, q] * mean(h, family)
        # A fit that leaves the cell out adds zeros, as long as it has finite numbers (others are stopped: ``hub.fit``).
        w = curvature(m, S[_E, q], family) if S[_E, q] != 0.0 else 0.0
        res = S[_Y, q] - m
        if of_site:
            S[own, q] += res
            S[own + p, q] += w
            bent = S[_SIZE, q] > 0.0 and far_above(S[_Y, q], res)
            S[_BEND, q] = bend(S[_Y, q], S[_E, q], res, S[_SIZE, q]) if bent else 0.0
        else:
            S[_H, q] = h
            sums[0, q] += res
            sums[p, q] += w
        i = p + 1
        for a in range(1, p):
            if of_site:
                d = R[a, q]
                t = R[D + a * p, q]
                for b in range(1, p):
                    t += R[D + a * p + b, q] * S[_P + b, q]
                S[own + a, q] += res * d - w * t
            else:
                d = S[_P + a, q]
                t = S[C + a * p, q]
                for b in range(1, p):
                    t += S[C + a * p + b, q] * R[b, q]
                sums[a, q] += res * d - w * t
            if tilts(family):
                d += t
            S[e + a, q] = d
            if of_site:
                S[own + i, q] += w * d
            else:
                sums[i, q] += w * d
            i += 1
            for b in range(1, a + 1):
                if of_site:
                    S[own + i, q] += w * (d * S[e + b, q] + R[D + a * p + b, q])
                else:
                    sums[i, q] += w * (d * S[e + b, q] + S[C + a * p + b, q])
                i += 1


@part
def _solve(p, family, lanes, S):
    """Newton's step of a site, and the move of its covariance; its edf is added to its row."""
    C, M, tau, square, own, _, step, A, B, _ = _rows(p)
    for q in range(lanes):
        phi = S[_PHI, q]
        i = own + p
        for a in range(p):
            for b in range(a + 1):
                s = S[i, q] / phi
                i += 1
                for k in range(b):
                    s -= S[A + a * p + k, q] * S[A + b * p + k, q]
                if b < a:
                    S[A + a * p + b, q] = s * S[step + b, q]
                else:
                    prior = 1.0 / S[tau + a, q]
                    s += prior
                    S[step + a, q] = 1.0 / math.sqrt(s if s > prior else prior)
        for b in range(p):
            S[B + b * p + b, q] = S[step + b, q]
            for a in range(b + 1, p):
                s = 0.0
                for k in range(b, a):
                    s -= S[A + a * p + k, q] * S[B + k * p + b, q]
                S[B + a * p + b, q] = s * S[step + a, q]
        for a in range(p):
            for b in range(a + 1):
                s = 0.0
                for k in range(a, p):
                    s += S[B + k * p + a, q] * S[B + k * p + b, q]
                S[A + a * p + b, q] = S[A + b * p + a, q] = s
        edf = float(p)
        before = after = 0.0
        for a in range(p):
            S[B + a, q] = S[own + a, q] / phi - (S[_P + a, q] - S[M + a, q]) / S[tau + a, q]
            edf -= S[A + a * p + a, q] / S[tau + a, q]
            before += S[C + a * p + a, q] * S[square + a, q]
            after += S[A + a * p + a, q] * S[square + a, q]
        longest = 0.0
        for a in range(p):
            s = 0.0
            for b in range(p):
                s += S[A + a * p + b, q] * S[B + b, q]
            S[step + a, q] = s
            longest = max(longest, abs(s))
        share = 1.0
        if tilts(family):
            share = min(1.0, 2.0 / (1.0 + max(before, after) * max(edf, 0.0)))
        for i in range(p * p):
            old, new = S[C + i, q], S[A + i, q]
            S[C + i, q] = new if share == 1.0 else old + share * (new - old)
        S[_LONGEST, q] = longest
        S[_EDF, q] += edf


@part
def _move(p, lanes, S, R, months, bends, max_step):
    """The share of the step that a site takes; ``bends`` of its cells (0, LANES) where no fit is negative binomial."""
    _, _, _, _, _, _, step, _, B, _ = _rows(p)
    for q in range(lanes):
        S[_MORE, q] = 0.0
    for i in range(bends.shape[0]):
        l = months[i]
        for q in range(lanes):
            s = S[step, q]
            for a in range(1, p):
                s += S[step + a, q] * R[l, a, q]
            S[_MORE, q] += bends[i, q] * s * s
    for q in range(lanes):
        known = 0.0
        for a in range(p):
            known += S[step + a, q] * S[B + a, q]
        more = S[_MORE, q]
        share = known / (known + more / S[_PHI, q]) if more > 0.0 else 1.0
        short = min(share, max_step / max(S[_LONGEST, q], 1e-12))
        for a in range(p):
            S[_P + a, q] += short * S[step + a, q]


@part
def _read(S, fits, k, y, E, offset, off):
    for q in range(LANES):
        f = fits[q]
        S[_Y, q], S[_E, q], S[_OFFSET, q] = y[f, k], E[f, k], offset[f, k] if off else 0.0


@part
def _start(p, S, R, fits, mu, T, D, tau, phi, size):
    """Read what belongs to the fits and to their months."""
    _, _, prior, square, _, _, _, _, _, _ = _rows(p)
    L = T.shape[1]
    for q in range(LANES):
        f = fits[q]
        S[_MU, q], S[_PHI, q], S[_SIZE, q] = mu[f], phi[f], size[f]
        S[_EDF, q] = S[_MOVED, q] = S[_WEIGHT, q] = 0.0
        for a in range(p):
            S[prior + a, q] = tau[f, a]
            S[square + a, q] = 0.0 if a else 1.0
        for l in range(L):
            for a in range(p):
                R[l, a, q] = T[f, l, a]
                if a:
                    S[square + a, q] += T[f, l, a] * T[f, l, a] / L
                for b in range(p):
                    R[l, p + a * p + b, q] = D[f, l, a, b]


@compiled
def _round(
    p, family, first, last, fits, lanes, chunks, ptr, col, y, E, offset, off, mu, T, D, tau, major, phi, size, max_step, M,
    P, C, eta, month, stats,
):  # fmt: skip
    J, L, width = ptr.size - 1, T.shape[1], p + p * (p + 1) // 2
    c0, m0, prior, _, own, _, _, _, _, rows = _rows(p)
    S, R, sums = np.empty((rows, LANES)), np.empty((L, p + p * p, LANES)), np.empty((L, width, LANES))
    at = np.empty(LANES, np.int64)
    bends = np.empty((most_in(ptr), LANES))
    for task in range(first, last):
        i0, c = task // chunks * LANES, task % chunks
        n = min(LANES, fits.size - i0)
        for q in range(LANES):
            at[q] = fits[i0 + min(q, n - 1)]  # lanes without a fit do the last one again, and write nothing
        _start(p, S, R, at, mu, T, D, tau, phi, size)
        sums[:] = 0.0
        for j in range(c * J // chunks, (c + 1) * J // chunks):
            for q in range(LANES):
                f = at[q]
                for a in range(p):
                    S[_P + a, q], S[m0 + a, q] = P[f, j, a], M[f, j, a]
                    for b in range(p):
                        S[c0 + a * p + b, q] = C[f, j, a, b]
                if p > 1:
                    S[prior + 1, q] = tau[f, 1] + (MAJOR if j == major[f] else 0.0)
            S[own : own + width] = 0.0
            for k in range(ptr[j], ptr[j + 1]):
                _read(S, at, k, y, E, offset, off)
                _cell(p, family, True, lanes, S, R[col[k]], sums[0])
                bends[k - ptr[j]] = S[_BEND]
            _solve(p, family, lanes, S)
            cells = ptr[j + 1] - ptr[j] if S[_SIZE].any() else 0
            _move(p, lanes, S, R, col[ptr[j] : ptr[j + 1]], bends[:cells], max_step)
            for q in range(n):
                f, out = at[q], stats[(i0 + q) * chunks + c]
                says = S[own + p, q] > 0.0
                out[3] += says
                for a in range(p):
                    u = P[f, j, a] = S[_P + a, q]
                    for b in range(p):
                        C[f, j, a, b] = S[c0 + a * p + b, q]
                    if says:
                        out[4 + a] += u - S[m0 + a, q]
                        out[4 + p + a] += u * u
                        out[4 + 2 * p + a] += S[c0 + a * p + a, q]
                if says and j == major[f]:
                    out[5] -= S[_P + 1, q] - S[m0 + 1, q]
                    out[5 + p] += S[m0 + 1, q] * S[m0 + 1, q] - S[_P + 1, q] * S[_P + 1, q]
                    out[5 + 2 * p] += tau[f, 1] - S[c0 + p + 1, q]
                elif says and p > 1:
                    share = max(1.0 - S[c0 + p + 1, q] / S[prior + 1, q], 0.0)
                    out[4 + 3 * p] += share * share
            for k in range(ptr[j], ptr[j + 1]):
                _read(S, at, k, y, E, offset, off)
                _cell(p, family, False, lanes, S, R[col[k]], sums[col[k]])
                for q in range(n):
                    if S[_E, q] != 0.0:
                        move = S[_H, q] - eta[at[q], k]
                        S[_MOVED, q] += S[_E, q] * move * move
                        S[_WEIGHT, q] += S[_E, q]
                        eta[at[q], k] = S[_H, q]
        for q in range(n):
            t = (i0 + q) * chunks + c
            stats[t, 0] += S[_EDF, q]
            stats[t, 1] += S[_MOVED, q]
            stats[t, 2] += S[_WEIGHT, q]
            for l in range(L):
                for i in range(width):
                    month[t, l, i] += sums[l, i, q]


def together(p: int, fits: int, chunks: int) -> int:
    """How many of the first ``fits`` are worth doing side by side; the same bits either way."""
    # Three fits take as long as one at a time.
    number = fits - fits % LANES * (fits % LANES < 3)
    # One core does eight as quickly as three do them one at a time.
    idle = 3 * -(-number // LANES) * chunks < min(CORES, fits * chunks)
    return 0 if p not in WIDTHS or idle else number


@lru_cache(maxsize=16)
def side_by_side(p: int, family: int) -> Callable[..., None]:
    """The loop for sites of ``p`` coefficients and one family; a task is eight fits and a chunk of sites."""

    # ``lanes`` is LANES, which the compiler must not know: it would write every step eight times.
    @compiled
    def loop(
        first, last, fits, lanes, chunks, ptr, col, y, E, offset, off, mu, T, D, tau, major, phi, size, max_step, M,
        P, C, eta, _, month, stats,
    ):  # fmt: skip
        _round(
            p, family, first, last, fits, lanes, chunks, ptr, col, y, E, offset, off, mu, T, D, tau, major, phi, size,
            max_step, M, P, C, eta, month, stats,
        )  # fmt: skip

    return loop
