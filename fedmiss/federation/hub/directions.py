"""Where factors begin, found once for all fits of a job that chooses between organisations; a fit by itself does so too.

The start of a factor is R'R V for three blocks V of six vectors, R the residuals of all visits at rank 0: 18 numbers of each
month. Were every rank, fold and candidate to begin with products of its own, they would together be more equations than
there are counts (``tests/attacks/test_starts.py``); so all begin along the singular vectors of the one start.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fedmiss.arrays import F64
from fedmiss.federation import messages as msg
from fedmiss.federation.hub.crossval import WHOLE, open_batch, starts
from fedmiss.federation.hub.fit import Request, Stage, fit_path, summary
from fedmiss.federation.hub.lockstep import FitTask, run_lockstep
from fedmiss.federation.hub.products import AskProduct, directions, first_product
from fedmiss.federation.hub.state import MonthState, Panel
from fedmiss.federation.link import Link
from fedmiss.models.lowrank.settings import CountSettings


def begin_factors(link: Link, panel: Panel, candidates: Sequence[CountSettings]) -> Panel:
    """Find the directions that factors begin along, where the job is between organisations and has factors.

    Raises
    ------
    DomainError    rank 0 of the first candidate runs away
    """
    wanted = panel.least and panel.L > 1 and panel.patterns and any(model.rank for model in candidates)
    if not wanted or panel.directions.size:
        return panel
    model = replace(candidates[0], rank=0)
    (answers,) = link.ask([open_batch(panel, WHOLE, model)])
    start, found = starts(answers, 1)[0], [np.zeros((panel.L, 1))]

    def each(
        state: MonthState, below: MonthState, ahead: AskProduct | None
    ) -> Generator[Request, Any, Stage]:
        first = first_product(panel, model, 1, float(start[3]))
        state, W = yield from summary(panel, state, model, ahead=first)
        found.append((yield from directions(panel, first, W)))
        return state, None

    run_lockstep(link, panel, [FitTask(WHOLE, 0, fit_path(panel, model, start, each=each))])
    link.ask([msg.Close(np.array([WHOLE]))])
    out: F64 = found[-1]
    return replace(panel, directions=out)
