"""Least numbers behind a released sum over groups: the same rule at the hub and, checked, at every group."""

from __future__ import annotations

from fedmiss.arrays import F64, Bool

__all__ = ["CONTRIBUTORS", "releasable"]

CONTRIBUTORS = 2  # groups behind a released month: of one alone, the sum would be that group's


def releasable(visits: F64, sites: F64, groups: F64, minimum: int) -> Bool:
    """Months (L,) every part of which is empty, or rests on ``minimum`` visits and sites and on two groups.

    Parameters
    ----------
    visits, sites, groups : (parts, L) sums over groups; one part for whole months, else one a fold. The hub knows the sum of
        a month and those of its training parts, hence every fold's own part too
    """
    enough = (visits >= minimum) & (sites >= minimum - 1e-3) & (groups >= CONTRIBUTORS)
    out: Bool = ((visits == 0) | enough).all(axis=0)
    return out
