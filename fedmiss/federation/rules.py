"""Least numbers behind a released sum over groups: the same rule in every copy of the job."""

from __future__ import annotations

from fedmiss.arrays import F64, Bool

__all__ = ["CONTRIBUTORS", "LARGEST_COUNT", "behind", "kept_regions", "releasable"]

# groups behind a released sum: of one alone it would be that group's, of two either subtracts its own part
CONTRIBUTORS = 3
LARGEST_COUNT = 10_000_000  # birds of one visit: sums of squares of such counts fit into a masked number


def behind(sites: F64, groups: F64, minimum: int, contributors: int, visits: F64 | None = None) -> Bool:
    """Which sums rest on ``minimum`` sites (and visits) and on enough groups; all arrays of one shape."""
    out: Bool = (sites >= minimum) & (groups >= contributors)
    return out if visits is None else out & (visits >= minimum)


def releasable(visits: F64, sites: F64, groups: F64, minimum: int, contributors: int) -> Bool:
    """Months (L,) every part of which is empty, or rests on ``minimum`` visits and sites and on enough groups.

    Parameters
    ----------
    visits, sites, groups : (parts, L) sums over groups; one part for whole months, else one a fold. The hub knows the sum of
        a month and those of its training parts, hence every fold's own part too
    """
    out: Bool = ((visits == 0) | behind(sites, groups, minimum, contributors, visits)).all(axis=0)
    return out


def kept_regions(sites: F64, groups: F64, over: F64, minimum: int, contributors: int) -> list[int]:
    """Numbers of the regions whose sums may be released; (R + 1,) each, sites of no region first.

    What is left of the whole is a sum too: if it rests on too few, the smallest region joins it, until it has enough.
    """
    fine = behind(sites, groups, minimum, contributors) & (over == 0)
    keep = [i for i in range(1, len(sites)) if fine[i]]
    while keep:
        rest = [i for i in range(len(sites)) if i not in keep and sites[i] > 0]
        if not rest or (sites[rest].sum() >= minimum and any(fine[i] for i in rest)):
            break
        keep.remove(min(keep, key=lambda i: sites[i]))
    return keep
