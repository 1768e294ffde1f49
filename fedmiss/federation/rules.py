"""Least numbers behind a released sum over groups: the same rule at the hub and, checked, at every group."""

from __future__ import annotations

import hashlib

import numpy as np

from fedmiss.arrays import F64, Bool
from fedmiss.federation.messages import Support

__all__ = ["CONTRIBUTORS", "blinded", "dominated", "releasable"]

CONTRIBUTORS = 2  # groups behind a released month: of one alone, the sum would be that group's


BLIND = 14.0  # binary digits of the factors that hide by how much a group is above or below its share
NEAR = 0.01  # birds: what fixed point and rounding leave of nothing


def blinded(key: bytes, name: str, q: Support, birds: F64, what: str) -> F64:
    """A group's part (parts, groups, L) of "birds of group i less the share of all birds", times a factor, in secret order.

    The sum over groups is above 0 where group i has more than its share, and nothing but the sign can be read: factors,
    log-uniform on 1 to 2^14, and the order of groups follow from the groups' common key, which the hub lacks.

    Parameters
    ----------
    key : 16 bytes that the groups share;  name : of this group, one of ``q.names``;  birds : (parts, L) of this group
    what : tells two questions with the same folds apart
    """
    shape = (birds.shape[0], len(q.names), birds.shape[1])
    words = f"{what}\0{q.by}\0{q.folds}\0{q.seed}\0{shape}".encode()
    raw = hashlib.shake_256(b"blind\0" + key + words).digest(16 * int(np.prod(shape)))
    u, order = ((np.frombuffer(raw, "<u8") >> 11) * 2.0**-53).reshape(2, *shape)
    mine = np.array([n == name for n in q.names], dtype=float)
    part = (mine[:, None] - q.share) * birds[:, None, :] * 2.0 ** (BLIND * u)
    return np.take_along_axis(part, np.argsort(order, axis=1), axis=1)


def dominated(birds: F64) -> Bool:
    """Months (or regions) in which some group has more than its share: from sums (..., groups, L) of :func:`blinded`."""
    return np.asarray((birds > NEAR).any(axis=-2))


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
