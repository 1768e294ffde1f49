"""The compiled loop of totals: expected counts of all sites and months, seen or not, added up without being kept."""

from __future__ import annotations

import numpy as np

from fedmiss.loops import compiled
from fedmiss.models.lowrank.family_kernels import mean, predictor


@compiled
def expected_sums(
    start, stop, chunks, mu, P, C, T, D, bend, common, changes, when, drawn, family, log, smear, present, year, of, first,
    out, yearly,
):  # fmt: skip
    """Add expected counts at standard effort of one fit, site by site, to sums over sites and over years.

    Parameters
    ----------
    P, C : (J, p), (J, p, p)       coefficients of sites, and their covariances
    T, D : (p, L), (p, p, L)       those of months; ``drawn`` coefficients have no variance to integrate over: the spread
                                   of the replicates holds it already
    bend : (J, Y)                  what the years add to x of each site's own line (:mod:`.own_lines`), or no rows;
                                   ``common`` (J,) the slopes without it; ``changes`` (J, Y) variance of later changes, or
                                   where they are ``drawn`` these; ``when`` (L,) the column of every month
    log, smear                     whether values are log1p of counts; the calibration of totals
    present, year : (J, Y), (L,)   probability that a site is occupied, and its column for every month; or no rows
    of : (n, J)                    which sites are in which sum
    first : (years,)               first month of each year
    out : (chunks, n, L)           out: sums over sites
    yearly : (J, years)            out: sums over the months of a year
    """
    J, (p, L), years = P.shape[0], T.shape, first.size
    eta, var = np.empty(L), np.zeros(L)
    for c in range(start, stop):
        for j in range(c * J // chunks, (c + 1) * J // chunks):
            # Mean x'P + z'T and variance x'C x + z'D z + tr(C D) of the predictor, as in ``kernels._linear``, all months of
            # a site at a time: these loops run over four numbers at once.
            level = mu + P[j, 0]
            for l in range(L):
                eta[l] = level + T[0, l]
            for a in range(1, p):
                u = P[j, a]
                for l in range(L):
                    eta[l] += u * T[a, l]
            if not drawn:
                level = C[j, 0, 0]
                for l in range(L):
                    var[l] = level + D[0, 0, l]
                for a in range(1, p):
                    u, s = 2.0 * P[j, a], 2.0 * C[j, a, 0]
                    for l in range(L):
                        var[l] += s * T[a, l] + u * D[a, 0, l]
                    for b in range(1, p):
                        u, s = P[j, a] * P[j, b], C[j, a, b]
                        for l in range(L):
                            var[l] += s * (T[a, l] * T[b, l] + D[a, b, l]) + u * D[a, b, l]
            if bend.shape[0]:  # (s - m)(x + bend) + m x, and its variance
                d = P[j, 1] - common[j]
                for l in range(L):
                    t = bend[j, when[l]]
                    if t != 0.0:
                        eta[l] += d * t
                        if drawn:
                            eta[l] += changes[j, when[l]]
                        else:
                            s = C[j, 1, 0]
                            for a in range(1, p):
                                s += C[j, 1, a] * T[a, l]
                            var[l] += t * (2.0 * s + t * C[j, 1, 1]) + changes[j, when[l]]
            if family == 1:  # of its own, since the loop is faster without a choice in it
                for l in range(L):
                    eta[l] = smear * mean(predictor(eta[l], var[l], 1), 1)
            else:
                for l in range(L):
                    eta[l] = smear * mean(predictor(eta[l], var[l], family), family)
            if log:
                for l in range(L):
                    eta[l] = max(eta[l] - 1.0, 0.0)
            if present.shape[0]:
                for l in range(L):
                    eta[l] *= present[j, year[l]]
            for t in range(years):
                for l in range(first[t], first[t + 1] if t + 1 < years else L):
                    yearly[j, t] += eta[l]
            for i in range(of.shape[0]):
                if of[i, j]:
                    for l in range(L):
                        out[c, i, l] += eta[l]
