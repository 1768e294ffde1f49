"""Covariates of sites: their columns, which sites stand behind each, and the sums that their scale is made of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from fedmiss.arrays import F64, I64, Bool
from fedmiss.federation import messages as msg
from fedmiss.federation.messages_agree import LEVEL
from fedmiss.federation.rules import CONTRIBUTORS, SITES_OF_A_NUMBER

if TYPE_CHECKING:
    from fedmiss.federation.group.program import GroupProgram


def expanded(table: Mapping[str, np.ndarray]) -> dict[str, F64]:
    """Numbers as they are, NaN for a gap; a category (texts, empty for a gap) as one column of 0 and 1 for each value."""
    out: dict[str, F64] = {}
    for name, given in table.items():
        column = np.asarray(given)
        if column.dtype.kind in "fiub":
            out[name] = column.astype(float)
            continue
        known = column != ""
        for value in sorted({str(value) for value in column[known]}):
            out[f"{name}{LEVEL}{value}"] = np.where(known, (column == value).astype(float), np.nan)
    return out


def magnitudes(columns: Mapping[str, F64]) -> I64:
    """Of every column the least power of two that its values stay below."""
    most = [
        float(np.nanmax(np.abs(column), initial=0.0, where=~np.isnan(column))) for column in columns.values()
    ]
    return np.array([int(np.floor(np.log2(size))) + 1 if size > 0 else 0 for size in most], dtype=np.int64)


def covariate_of(program: GroupProgram, name: str) -> F64:
    """Values of a covariate at the group's sites; of a value of a category 0 where the category is known, else gaps."""
    own = program.visits.covariates
    if name in own:
        return own[name]
    if LEVEL in name:
        same = [column for other, column in own.items() if other.split(LEVEL)[0] == name.split(LEVEL)[0]]
        if same:
            return np.where(np.isnan(same[0]), np.nan, 0.0)
    return np.full(program.J, np.nan)


def covariate_sums(program: GroupProgram, question: msg.Covariates) -> msg.CovariateSums:
    """Visited sites that have a covariate, sums of its values and squares in the unit asked for, and sites that have it.

    Without a unit no values, but whether the group has such sites, and other numbers than 0 and 1 there; of the number of
    all whether the others have few: what too few stand behind is then not asked for.
    The scale is that of visited sites: what lies LIMIT deviations from their mean is beyond what they can speak for.
    """
    out = np.zeros((len(question.names), 4))
    for i, name in enumerate(question.names):
        x = covariate_of(program, name)
        known = ~np.isnan(x)
        w = (known & program.visited).astype(float)
        if w.sum() < program.axis.minimum:
            w[:] = 0.0
        if question.unit.size:
            x = np.nan_to_num(x) / question.unit[i]
            out[i] = w.sum(), w @ x, w @ x**2, (known & program.standing).sum()
        else:
            w = w if LEVEL in name else w * differs(program, x)
            left = question.sites[i] - w.sum() if question.sites.size and LEVEL not in name else 0.0
            # Whole numbers follow from their powers where others have few; of 0 and 1 these tell how many have each only.
            more = not np.isin(x[known & program.visited], (0, 1)).all()
            if question.sites.size:
                more = 0 < left < SITES_OF_A_NUMBER
            more &= LEVEL not in name and program.contributors >= CONTRIBUTORS
            out[i] = w.sum(), w.any(), 0 < left < program.minimum, more
    return msg.CovariateSums(out)


def differs(program: GroupProgram, x: F64) -> Bool:
    """Sites (J,) that stand behind sums of a number: between organisations not those with the value that most have.

    A constant takes that value away: of one site with another value the sums would be told.
    """
    known: Bool = ~np.isnan(x)
    values, times = np.unique(x[known & program.visited], return_counts=True)
    if program.jointly and times.size and 2 * times.max() > times.sum():
        known &= x != values[np.argmax(times)]
    return known
