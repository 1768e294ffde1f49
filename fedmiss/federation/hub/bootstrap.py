"""Uncertainty by a Bayesian bootstrap of observers inside each group, all replicates in lockstep.

Each replicate draws one weight per observer, inside the observer's group and from the group's own secret, so nothing about
single observers travels; the model is refitted from the full fit with its variances, but for those that counts hardly tell,
of regions and of sites' slopes: they are drawn (:mod:`.few`). That covers the noise of the data (counting, observers,
over-dispersion). The part of a random effect that the data do not determine is added: a coefficient
with posterior covariance C = (H + K)^-1, H from the data and K the prior precision, has sampling covariance C H C, which
the bootstrap shows, and prior covariance C K C: every replicate draws the prior's means too, at home for sites, at the hub
for months, before it is fitted, so that sites and months err together as they do in the joint posterior.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from scipy.special import ndtri, stdtrit

from fedmiss.arrays import F64
from fedmiss.federation import messages as msg
from fedmiss.federation.hub.crossval import lockstep_room, open_batch, starts
from fedmiss.federation.hub.fit import fit_replicate
from fedmiss.federation.hub.lockstep import FitTask, run_lockstep, totals_question
from fedmiss.federation.hub.members import FittedModel, dealt
from fedmiss.federation.hub.state import MonthState, Panel, stacked
from fedmiss.federation.link import Link, total
from fedmiss.rng import rng_for

MOST = 200  # replicates side by side: work that an interruption can lose


def effective_observers(panel: Panel) -> float:
    """Effective number of observers (sum n)^2 / sum n^2, n the visits of each."""
    # K of equation weight: Kish's effective number.
    return float(panel.observers[0] ** 2 / panel.observers[1])


def spread_of(panel: Panel, full: MonthState) -> F64:
    """What groups need for their weights: visits of all, factor of the spread, whether to weigh observer x site."""
    K = effective_observers(panel)
    # t_{K-1} / z of equation weight: few observers have wider quantiles than a normal.
    factor = stdtrit(max(K - 1, 1.0), 0.975) / ndtri(0.975) if K >= 2 else 1.0
    # nu / n of equation weight: a fit goes after its counts, so its residuals are too small by that part of their squares.
    factor /= math.sqrt(full.free_visits / full.weight)
    return np.array([panel.observers[0], factor, float(K < 2)])


def lockstep_size(panel: Panel, p: int) -> int:
    """How many replicates run side by side: as many as fit into memory, a number that depends on the panel only."""
    return min(MOST, lockstep_room(panel, p))


def replicates(
    link: Link, panel: Panel, members: Sequence[FittedModel], numbers: Sequence[int], *, seed: int, batch: int
) -> tuple[F64, list[tuple[int, int]]]:
    """Refit the replicates ``numbers`` side by side, each one of the member that it is dealt to (:func:`.members.dealt`).

    Parameters
    ----------
    members : the full fits
    numbers : ascending
    batch : number of the first batch to open, one for each member; they stay open until the groups' own results were taken

    Returns
    -------
    totals (n, regions + 1, L) in the order of ``numbers``, and the (batch, fit) of every replicate
    """
    hands = [
        (batch + i, member, hand)
        for i, (member, hand) in enumerate(zip(members, dealt(numbers, len(members)), strict=True))
        if hand
    ]
    answers = link.ask(
        [
            replace(
                open_batch(panel, at, member.settings, hand), weights="replicate", seed=seed,
                spread=spread_of(panel, member.state), source=member.batch, p=member.state.p,
            )
            for at, member, hand in hands
        ]
    )  # fmt: skip
    lanes = []
    for (at, member, hand), opened in zip(hands, answers, strict=True):
        sums = starts(opened, len(hand))
        for i, number in enumerate(hand):
            noise = rng_for(seed, "prior-noise", panel.species, int(number))
            lanes.append(FitTask(at, i, fit_replicate(panel, member.settings, member.state, sums[i], noise)))
    states = iter(run_lockstep(link, panel, lanes))
    totals = totals_of(link, panel, [(at, [next(states) for _ in hand]) for at, _, hand in hands], drawn=True)
    place = {number: (at, i) for at, _, hand in hands for i, number in enumerate(hand)}
    order = np.argsort([number for _, _, hand in hands for number in hand], kind="stable")
    return np.concatenate(totals)[order], [place[number] for number in numbers]


def totals_of(
    link: Link,
    panel: Panel,
    fits: Sequence[tuple[int, Sequence[MonthState]]],
    *,
    drawn: bool = False,
    more: Sequence[msg.Question] = (),
) -> list[F64]:
    """Monthly totals (n, regions + 1, L) of the fits of each batch, in one exchange.

    ``fits``: batch, and the states of its fits 0 to n - 1; ``drawn``: coefficients are draws, with no variance to integrate
    over; ``more``: what is asked in the same exchange, after it.
    """
    questions = [
        totals_question(
            panel,
            batch,
            np.arange(len(states)),
            stacked(states),
            np.array([state.calibration for state in states]),
            drawn=drawn,
        )
        for batch, states in fits
    ]
    answers = link.ask([*questions, *more])
    return [
        total(answer, "totals", (len(states), len(panel.rows), panel.L))
        for answer, (_, states) in zip(answers[: len(fits)], fits, strict=True)
    ]
