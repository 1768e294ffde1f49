"""The groups of a panel in memory, as what each of them holds."""

from __future__ import annotations

import numpy as np

from fedmiss.arrays import I64
from fedmiss.errors import InputError
from fedmiss.federation.group.covariates import expanded
from fedmiss.federation.group.visits import Visits, deal_sites
from fedmiss.models.lowrank.data import Group, GroupPanel


def visits_of(panel: GroupPanel) -> tuple[dict[str, Visits], dict[str, I64]]:
    """Visits of each group, and the rows of the panel's sites that are its own (:func:`.visits.deal_sites`), by name."""
    at = deal_sites({group.name: group.site for group in panel.groups}, panel.J)
    stamps, covariates = stamps_of(panel), expanded(panel.covariates)
    ids = np.asarray(np.arange(panel.J).astype(str) if panel.site_id is None else panel.site_id, dtype=object)
    region = np.asarray(np.full(panel.J, "") if panel.region is None else panel.region, dtype=object)

    def held(group: Group, mine: I64) -> Visits:
        """The visits of a group by its own numbering of sites, ``mine`` being their rows in the panel."""
        return Visits(
            site_id=ids[mine],
            site=np.searchsorted(mine, group.site).astype(np.int32),
            month=stamps[group.month],
            count=group.count,
            detected=group.count > 0,
            observer=group.observer,
            effort=group.effort,
            weight=group.weight,
            checklist=group.checklist,
            exposure=group.exposure,
            region=region[mine],
            given=True,
            calendar=panel.calendar is not None,
            covariates={name: column[mine] for name, column in covariates.items()},
        )

    return {group.name: held(group, at[group.name]) for group in panel.groups}, at


def stamps_of(panel: GroupPanel) -> I64:
    """Months (L,) of a panel, 12 year + month - 1; without a calendar 0 to L - 1.

    Raises
    ------
    InputError    months that are not in order
    """
    if panel.calendar is None:
        return np.arange(panel.L, dtype=np.int64)
    stamps: I64 = np.asarray(panel.calendar[1] * 12 + panel.calendar[0] - 1, dtype=np.int64)
    if (np.diff(stamps) <= 0).any():
        at = int(np.flatnonzero(np.diff(stamps) <= 0)[0])
        raise InputError(
            f"month {at + 1} of the panel is not after month {at}; give the months in order, each once."
        )
    return stamps
