"""What a fit asks for: the requests that its generator yields, and :mod:`.lockstep` answers."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any

from fedmiss.arrays import F64
from fedmiss.federation.hub.products import AskProduct
from fedmiss.federation.hub.state import MonthState
from fedmiss.federation.hub.steps import Sums, Turn
from fedmiss.federation.messages import Begin
from fedmiss.models.lowrank.settings import CountSettings


@dataclass(frozen=True, slots=True, eq=False)
class AskRound:
    """The state after a round from this one (:func:`.steps.after_round`); ``begin``: where sites begin."""

    state: MonthState
    begin: Begin
    nodes: F64
    turn: Turn
    settings: CountSettings


@dataclass(frozen=True, slots=True, eq=False)
class AskSummary:
    """Counted and fitted totals, and dispersion, of a finished fit; ``months``: the totals by month too."""

    state: MonthState
    nodes: F64
    months: bool = False
    ahead: AskProduct | None = None  # asked after it in the same exchange


@dataclass(frozen=True, slots=True, eq=False)
class AskScore:
    """Scores of held-out visits; ``inverse_size`` of the negative binomial whose deviance is meant, 0: the family's.

    An errand: the fit goes on without it, and ``then`` gets the sums.
    """

    smear: float
    inverse_size: float
    then: Callable[[Sums], None]


@dataclass(frozen=True, slots=True, eq=False)
class AskSiteTime:
    """Equations of the plain site and time model at these time effects (L,)."""

    time: F64


@dataclass(frozen=True, slots=True, eq=False)
class AskTotals:
    """Expected counts summed over sites, by region and month, at this state, in this unit; noise for large ones."""

    state: MonthState
    unit: float


@dataclass(frozen=True, slots=True, eq=False)
class AwaitStart:
    """Nothing is asked until another fit has found the start of the job."""


class Enough(Exception):
    """Raised by the ``watch`` of a fit that nobody needs any more."""


@dataclass(frozen=True, slots=True, eq=False)
class AskKeep:
    """Keep the groups' half of the fit, as it is now, in the batch ``to``: an errand. ``then`` goes on from there."""

    to: int
    then: Fitting


Errand = AskScore | AskKeep
Request = AskRound | AskProduct | AskSummary | AskSiteTime | AskTotals | AwaitStart | Errand
Stage = tuple[MonthState, F64 | None]  # a finished rank, and the first product that the next one begins with
Fitting = Generator[Request, Any, MonthState]  # a round is answered by a state, all else by sums
