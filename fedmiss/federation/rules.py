"""Least numbers behind a released sum over groups: the same rule in every copy of the job."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import numpy as np

from fedmiss.arrays import F64, I64, Bool

# groups behind a released sum: of one alone it would be that group's, of two either subtracts its own part
CONTRIBUTORS = 3
# Of a symmetric matrix c products with vectors are c equations a row, and each number stands in two rows: a row whose
# numbers are no more than 2 c can follow; twice as many to be sure.
EQUATIONS = 4
POWER = 3  # block power iterations that start a factor
WIDTH = 6  # vectors in the block
COLUMNS = POWER * WIDTH  # numbers of each month that start a factor
# Of the others with a third as many sites as months every count was worked out (tests/attacks/test_counts.py).
SITES_A_MONTH = 0.5
# In a month without any one organisation's: a fit tells sums of means, of their squares and of weights, from which those of
# three follow, and single counts (tests/attacks/test_thin_months.py).
SITES_LEFT = 4
# Without any one organisation's, that have a number of its own kind: sums of its first four powers are told, and of as many
# whole percents as sites below, one set only has them (tests/attacks/test_whole_numbers.py).
SITES_OF_A_NUMBER = 20
# Without any one organisation's, that a fold holds out: of two the counts follow from one score
# (tests/attacks/test_scores.py), of several whose expected counts are known too.
VISITS_OF_A_FOLD = 20
# Without any one organisation's, in a study: of twelve all rounds told every count (tests/attacks/test_small_studies.py).
VISITS_OF_A_STUDY = 20
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


def followed(shared: Bool, columns: int) -> Bool:
    """Numbers of a symmetric matrix (L, L) that its products with ``columns`` vectors can tell some group.

    Each takes its own part off first: ``shared`` marks what is not zero to any group then, since two have a part in it. A
    row with few such numbers follows from its own equations, and with it what other rows have in its column.
    """
    left, told = shared.copy(), np.zeros(len(shared), dtype=bool)
    while (few := ~told & (left.sum(axis=1) <= EQUATIONS * columns)).any():
        told |= few
        left[few], left[:, few] = False, False
    out: Bool = told[:, None] | told
    return out


def kept_regions(sites: F64, groups: F64, over: F64, minimum: int, contributors: int) -> list[int]:
    """Numbers of the regions whose sums may be released; (R + 1,) each, sites of no region first.

    What is left of the whole is a sum too: if it rests on too few (by ``over`` on sites without visits, which are not among
    ``sites``), the smallest region joins it, until it has enough.
    """
    fine = behind(sites, groups, minimum, contributors) & (over == 0)
    keep = [i for i in range(1, len(sites)) if fine[i]]
    while keep:
        rest = [i for i in range(len(sites)) if i not in keep and (sites[i] > 0 or over[i] > 0)]
        if not rest or (sites[rest].sum() >= minimum and any(fine[i] for i in rest)):
            break
        keep.remove(min(keep, key=lambda i: sites[i]))
    return keep


def crossed(kinds: Sequence[str]) -> list[tuple[I64, I64]]:
    """Columns of each two categories; ``kinds``: of every column the category that it is a value of, empty for a number.

    Sums over sites tell products of columns too: of a habitat and a region the sites of that habitat in that region.
    """
    names = np.array(kinds, dtype=str)
    at = [np.flatnonzero(names == name) for name in dict.fromkeys(kinds) if name]
    return list(combinations(at, 2))


def kept_effort(
    effort: F64, terms: Sequence[str], blanks: Sequence[str], minimum: int, contributors: int
) -> tuple[tuple[str, ...], tuple[str, ...], bool, bool]:
    """Terms and columns of visits that lack one, but the first whose sums may not be released; whether (new) observers' may.

    ``effort`` (E, 3): sites, groups, and groups with too many of the sites (``messages.SupportSums.effort``). One visit
    that stands out in a column would be told by its sums, its count too. Columns that follow are counted again without it.
    """
    fine = behind(effort[:, 0], effort[:, 1], minimum, contributors) & (effort[:, 2] == 0)
    columns = [(term, mark) for term in terms for mark in ([False, True] if term in blanks else [False])]
    new, observers = fine[-2:]
    for (term, mark), good in zip(columns, fine[:-2], strict=True):
        if not good:
            blanks = [other for other in blanks if other != term]
            terms = terms if mark else [other for other in terms if other != term]
            break
    return tuple(terms), tuple(t for t in terms if t in blanks), bool(new), bool(observers)
