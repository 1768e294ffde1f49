"""Joint sites under masks: what a group sends of them, and how it opens the sums that the hub could add up but not read.

Every group sends rows for all joint sites of the federation, zeros where it does not go, masked like any other sum. The
first group by name adds a pad besides, a stream under the groups' common key, which the hub lacks: so the hub adds up
random numbers. It hands every owner the sums of its own sites, and the owner takes the pad off again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fedmiss.arrays import F64, I64
from fedmiss.errors import UplinkError
from fedmiss.federation.masks import U64, common_pad, masked_fields
from fedmiss.federation.messages import SharedRows

if TYPE_CHECKING:
    from fedmiss.federation.group.batch import Batch
    from fedmiss.federation.group.program import GroupProgram

__all__ = ["opened", "pad_of", "spread"]

BITS = masked_fields(SharedRows)["rows"]


def spread(program: GroupProgram, b: Batch, fits: I64, rows: F64) -> F64:
    """Rows (n, S, q) of the group's joint sites as they leave: under masks (n, all joint sites, q)."""
    if not program.masked or not program.n_joint:
        return rows
    out = np.zeros((rows.shape[0], program.n_joint, rows.shape[2]))
    if rows.size:
        out[:, program.joint_place] = rows
    b.sealed = {k: v for k, v in b.sealed.items() if v[0][0] == program.asked[0]}  # older ones are settled
    b.sealed[fits.tobytes()] = (program.asked, out.shape)
    return out


def pad_of(program: GroupProgram, asked: tuple[int, int], shape: tuple[int, ...]) -> U64:
    """The pad (shape) of one answer: the same at every group, unknown to the hub."""
    return common_pad(program.key, program.among().context, asked, shape)


def opened(program: GroupProgram, b: Batch, fits: I64, totals: np.ndarray) -> F64:
    """Sums over groups at the group's joint sites (n, S, q), as numbers.

    Raises
    ------
    UplinkError    the sums are not those of the last rows that were asked for
    """
    if totals.dtype != np.uint64:
        if program.masked and totals.size:
            raise UplinkError(f"group {program.name!r} was sent sums of joint sites that were not sealed.")
        return np.asarray(totals, dtype=float)
    asked, shape = b.sealed.get(fits.tobytes(), ((0, 0), (0, 0, 0)))
    if shape[2] != totals.shape[2]:
        raise UplinkError(
            f"group {program.name!r} was sent sums of joint sites that it was not asked about before. Start the job again."
        )
    pad = pad_of(program, asked, shape)[:, program.joint_place]
    out: F64 = (totals - pad).view(np.int64).astype(np.float64) * 2.0**-BITS
    return out
