"""Where factors begin, found before the first of several fits that one after the other begin along it."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import numpy as np

from fedmiss.federation import messages as msg
from fedmiss.federation.hub.crossval import WHOLE, open_batch, starts
from fedmiss.federation.hub.fit import fit_path, summary
from fedmiss.federation.hub.lockstep import FitTask, run_lockstep
from fedmiss.federation.hub.products import AskProduct, directions, first_product
from fedmiss.federation.hub.requests import Request, Stage
from fedmiss.federation.hub.state import MonthState, Panel
from fedmiss.federation.link import Link
from fedmiss.models.lowrank.settings import CountSettings


def begin_factors(link: Link, panel: Panel, plain: CountSettings) -> None:
    """Find the start of a job's factors at the end of the ``plain`` model, which has none.

    Raises
    ------
    DomainError    the plain model runs away
    """
    (answers,) = link.ask([open_batch(panel, WHOLE, plain)])
    start = starts(answers, 1)[0]

    def each(
        state: MonthState, below: MonthState, ahead: AskProduct | None
    ) -> Generator[Request, Any, Stage]:
        first = first_product(panel, plain, 1, float(start[3]))
        state, W = yield from summary(panel, state, plain, ahead=first)
        panel.start.tell((yield from directions(panel, first, W)))
        return state, None

    run_lockstep(link, panel, [FitTask(WHOLE, 0, fit_path(panel, plain, start, each=each))])
    link.ask([msg.Close(np.array([WHOLE]))])
