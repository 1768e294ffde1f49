"""Fits of all visits whose expected counts are averaged: the chosen model, and those whose scores hardly differ from its.

The mean is arithmetic, so totals of the average are the mean of the members' totals: nothing crosses for it but what crosses
for one fit, once for each member. All members are fitted side by side, in the same exchanges.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from fedmiss.errors import InputError
from fedmiss.federation.hub.crossval import open_batch, starts
from fedmiss.federation.hub.fit import fit_path
from fedmiss.federation.hub.lockstep import Lane, run_lockstep
from fedmiss.federation.hub.state import MonthState, Panel
from fedmiss.federation.link import Link
from fedmiss.models.lowrank.settings import CountSettings

__all__ = ["FULL", "OTHERS", "Member", "dealt", "fit_all", "fit_members"]

FULL = 0  # batch of the chosen fit
OTHERS = 10_000  # batches of the others begin here, beyond those of replicates and folds


@dataclass(frozen=True, slots=True, eq=False)
class Member:
    """A fit of all visits: its settings, the hub's half of it, and the batch whose fit 0 is the groups' half."""

    settings: CountSettings
    state: MonthState
    batch: int = FULL


def fit_members(
    link: Link,
    panel: Panel,
    settings: Sequence[CountSettings],
    *,
    batch: int = FULL,
    watch: Callable[[int, float], None] | None = None,
) -> list[Member]:
    """Fit all visits by every model, side by side.

    Parameters
    ----------
    settings : of the members, the chosen model first
    batch : of the first; the others take batches from ``OTHERS`` on
    watch : called after each round of the first with (round, root mean square move)

    Raises
    ------
    InputError    no visit has a positive weight
    """
    batches = [batch, *range(OTHERS, OTHERS + len(settings) - 1)]
    return _borne(link, panel, fit_all(link, panel, settings, batches, watch), watch)


def fit_all(
    link: Link,
    panel: Panel,
    settings: Sequence[CountSettings],
    batches: Sequence[int],
    watch: Callable[[int, float], None] | None = None,
) -> list[Member]:
    """Fit all visits by every model side by side, each in a batch of its own; some may have run away."""
    answers = link.ask([open_batch(panel, b, s) for b, s in zip(batches, settings, strict=True)])
    lanes = []
    for i, (at, s, opened) in enumerate(zip(batches, settings, answers, strict=True)):
        start = starts(opened, 1)
        if not start[0, 0] > 0:
            raise InputError("no visit has a positive weight: there is nothing to fit. Check the weights.")
        path = fit_path(panel, s, start[0], watch=None if i else watch, months=True)
        lanes.append(Lane(at, 0, path))
    states = run_lockstep(link, panel, lanes)
    return [Member(s, state, at) for s, state, at in zip(settings, states, batches, strict=True)]


def _borne(
    link: Link, panel: Panel, members: list[Member], watch: Callable[[int, float], None] | None
) -> list[Member]:
    """Fit members that ran away again at the last rank that did not; a rank that others have already is left out.

    The groups' half of such a fit is lost, so all of it is done again: the same rounds up to that rank.
    """
    kept = {m.state.rank: m for m in members if not m.state.away}
    out: dict[int, Member] = {}
    for i, m in enumerate(members):
        rank, away = m.state.rank, m.state.away
        if rank in out:
            continue
        if away and rank in kept:
            m = kept[rank]
        elif away:
            mine = None if i else watch
            (m,) = fit_members(link, panel, [replace(m.settings, rank=rank)], batch=m.batch, watch=mine)
        out[rank] = replace(m, state=replace(m.state, away=away)) if away else m
    return list(out.values())


def dealt(numbers: Sequence[int], members: int) -> list[list[int]]:
    """Deal replicates out among the members, by their numbers: each member gets every ``members``-th."""
    return [[b for b in numbers if b % members == i] for i in range(members)]
