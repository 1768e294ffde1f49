"""One fit as a generator: it yields requests and receives sums over groups.

A fit never touches the wire. :mod:`.lockstep` runs many of them side by side and packs their requests into one exchange.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator
from functools import partial
from typing import Any

import numpy as np

from fedmiss.arrays import F64, I64
from fedmiss.errors import DomainError, InputError
from fedmiss.federation.hub.begin import (
    WILD,
    first_state,
    learns_size,
    most_rank,
    start_again,
    start_replicate,
    switched_off,
    with_factor,
)
from fedmiss.federation.hub.coefficients import start_coefficients
from fedmiss.federation.hub.dispersion import table_nodes
from fedmiss.federation.hub.products import AskProduct, along, directions, first_product
from fedmiss.federation.hub.requests import (
    AskRound,
    AskSiteTime,
    AskSummary,
    AskTotals,
    AwaitStart,
    Fitting,
    Request,
    Stage,
)
from fedmiss.federation.hub.state import MonthState, Panel
from fedmiss.federation.hub.steps import Sums, at_rest, turn_of
from fedmiss.federation.hub.values import evolve
from fedmiss.federation.messages import FACTORS, Begin
from fedmiss.federation.triangle import from_triangle
from fedmiss.models.lowrank.families import FAMILIES, SCALES, counted_family
from fedmiss.models.lowrank.settings import CountSettings
from fedmiss.models.site_time import ascent

TOL, FOLD_TOL, REPLICATE_TOL = 3e-3, 1e-2, 1e-2  # held-out counts and replicates scatter by far more
PATH_TOL = 3e-2  # moves at which the next factor enters: each rank goes on to its own end beside it
REPLICATE_ROUNDS = 25
FAR = 3.0  # root mean square move of a round, in units of the link, that only a fit which runs away makes
# times what the one in the middle finds that the mean observer finds, at a standard deviation of 1.2
FOUND = 2.0
FAR_APART = 20.0  # the same at one of 2.4: one in six finds a tenth, one in six ten times
MOVING = 1.0  # variance of months' noise, below which no month takes a flock
SOON = 150  # rounds in which observers who truly differ so much mostly come to rest
ABOVE = 1.5  # times the mean count that the mean of expected counts seldom is
FAR_ABOVE = 30.0  # the same, however short the visits, and however few where birds are: a factor and months took flocks
SETTLED = 5  # rounds of a rank after which it is looked at
FOR_A_FIND = 0.05  # by how much the total grows less than its factor where a fit of chosen sites is no longer scaled up


def fit_path(
    panel: Panel,
    settings: CountSettings,
    start: F64,
    *,
    each: Callable[[MonthState, MonthState, AskProduct | None], Generator[Request, Any, Stage]],
    watch: Callable[[int, float], None] | None = None,
    waits: bool = False,
) -> Fitting:
    """Fit ranks 0 to ``settings.rank`` to moves of ``PATH_TOL``, factors entering one by one.

    Parameters
    ----------
    start : (4,) sums of weights, values, exposures and squares
    each : called at the end of every rank with its state, that of the rank below, and the first product that the next rank
        begins with, None where there is none; may ask more (scores of held-out visits, the rounds to the end), and gives the
        state that the path goes on from, and the product if it was asked for in passing
    watch : called after each round with (round, root mean square move)
    waits : for another fit to find the start of the job, which runs beside

    Returns
    -------
    The state of the largest rank. Where a rank runs away, which heavy counts among many zeros make it do, the state of the
    rank below, with ``away`` set: the hub's half only, since the groups' half is lost.

    Raises
    ------
    DomainError    rank 0 runs away
    """
    if settings.time == "fixed":
        return (yield from fit_fixed(panel, settings, float(start[0]), months=True))
    state = first_state(panel, settings, start)
    W = None
    ask: AskProduct | None = None
    most, off = most_rank(panel, settings), False
    rounds = partial(
        _rounds,
        panel=panel,
        settings=settings,
        learn=True,
        tol=PATH_TOL,
        most=settings.max_sweeps,
        watch=watch,
    )
    # Greedy, then backfit: after each new factor all of them are fitted again.
    for rank in range(most + 1):
        good = state
        if rank:
            if ask is None:
                while waits and not (off or panel.start.directions.size):
                    yield AwaitStart()
                v = None if off else along(panel, settings, rank)
            else:
                found = yield from directions(panel, ask, W)
                v = found[:, 0]
                if panel.least:  # one start is all that may be told (:class:`.state.Start`)
                    panel.start.tell(found)
            state = with_factor(state, v, panel)
            state = yield from rounds(state, begin=Begin.NEW_FACTOR)
            if (yield from _far_above(panel, state, settings)):
                state = evolve(state, away=rank)
        else:
            state = yield from _without_factors(panel, state, settings, start, rounds)
        if state.away:
            if not rank:
                raise DomainError(_ran_away(state, settings))
            return evolve(good, away=rank)
        off = rank == most or switched_off(state)
        known = off or waits or panel.start.directions.size > 0
        ask = None if known else first_product(panel, settings, rank + 1, float(start[3]))
        state, W = yield from each(state, good, ask)
    return state


def _without_factors(
    panel: Panel, state: MonthState, settings: CountSettings, start: F64, rounds: Callable[..., Fitting]
) -> Fitting:
    """The first rank; it begins again where months or observers took the flocks of a rare species."""
    # Observers that take flocks do so for hundreds of rounds: they are looked at on the way.
    first = min(SOON, settings.max_sweeps) if settings.observers else settings.max_sweeps
    state = yield from rounds(state, begin=Begin.FROM_ZERO, most=first)
    took = yield from _took_flocks(panel, state, settings)
    if not (took or state.converged or state.away) and first < settings.max_sweeps:
        state = yield from rounds(state, begin=Begin.GO_ON)
        took = yield from _took_flocks(panel, state, settings)
    if took:
        again = evolve(start_again(panel, settings, start), rounds=state.rounds)
        state = yield from rounds(again, begin=Begin.FROM_ZERO)
    return state


def _took_flocks(panel: Panel, state: MonthState, settings: CountSettings) -> Generator[Request, Sums, bool]:
    """Whether months or observers, and not the dispersion, took the flocks of a rare species.

    Observers who truly differ so much come to rest soon. Of months the expected counts show it: cells of many flocks' months
    and sites are far above all that was counted, and so is their mean; months that truly differ so much do not lift it.
    """
    if state.away:
        return settings.observers
    if not FAMILIES[settings.family].counts:
        return False
    found = _found(state, settings)
    lasting = found > FOUND and not state.converged and state.k >= SOON
    if state.noise[0] > MOVING and (lasting or found > FAR_APART):
        return True
    if not learns_size(settings) or state.noise[0] <= WILD**2:
        return False
    return (yield from _above(ABOVE, panel, state, settings))


def _far_above(panel: Panel, state: MonthState, settings: CountSettings) -> Generator[Request, Sums, bool]:
    """Whether months and factors took flocks, so that this rank is of no use."""
    # variances of what a month adds of its own, by itself and by its factors (and responses)
    own = np.r_[state.noise[0], (state.tau * state.noise)[1 + state.slopes :]]
    doubtful = own.max() > WILD**2 or not state.converged
    return bool(doubtful and not state.away and (yield from _above(FAR_ABOVE, panel, state, settings)))


def _above(
    times: float, panel: Panel, state: MonthState, settings: CountSettings
) -> Generator[Request, Sums, bool]:
    """Whether expected counts of birds by month are in the mean so many times the counted ones."""
    if not FAMILIES[settings.family].counts or state.series is None:
        return False
    mean = math.exp(state.origin)  # where the level began
    totals = (yield AskTotals(state, times * panel.J * panel.L * mean))["totals"]
    return bool(totals[0].sum() > 1.0)


def polished(
    panel: Panel,
    settings: CountSettings,
    state: MonthState,
    below: MonthState,
    watch: Callable[[int, float], None] | None = None,
    *,
    begin: Begin = Begin.GO_ON,
    fold: bool = False,
    idle: bool = False,
) -> Fitting:
    """Take a rank to its end, and ask for its totals; ``below``: what counts if it runs away.

    The end is at moves of ``TOL``, with totals by month; of a ``fold`` at ``FOLD_TOL``, without. ``idle``: no visit found
    anything, and small moves end the fit, however far it has to go.
    """
    tol = FOLD_TOL if fold else TOL
    end = yield from _rounds(
        state, panel, settings, begin, learn=True, tol=tol, most=settings.max_sweeps, watch=watch, idle=idle
    )
    if end.rank and (yield from _far_above(panel, end, settings)):
        end = evolve(end, away=end.rank)
    if end.away and not end.rank and begin == Begin.GO_ON:
        raise DomainError(_ran_away(end, settings))
    if end.away:
        return evolve(below, away=end.away)
    return (yield from summary(panel, end, settings, months=not fold))[0]


def fit_fixed(
    panel: Panel, settings: CountSettings, weight: float, time: F64 | None = None, *, months: bool = False
) -> Fitting:
    """Fit the plain site and time model: one free effect for each time, the first is zero.

    Parameters
    ----------
    weight : sum of the visits' weights
    time : (L,) where to start;  months : whether counted and fitted totals are wanted by month

    Raises
    ------
    InputError    a time at which no bird was counted; times that no site links
    """
    # Maximum likelihood by damped Newton steps, TRIM's model 3: effects of sites are solved at home, times here.
    climb = ascent(np.zeros(panel.L - 1) if time is None else (time - time[0])[1:])
    b, rounds = np.r_[0.0, next(climb)], 0
    while True:
        sums = yield AskSiteTime(b)
        rounds += 1
        empty = np.flatnonzero(sums["counted"] <= 0)
        if empty.size:
            raise InputError(_no_birds(panel, empty))
        S = from_triangle(sums["information"], panel.L)[1:, 1:]
        try:
            b = np.r_[0.0, climb.send((float(sums["sums"][0]), sums["gradient"][1:], S))]
        except StopIteration as end:
            b = np.r_[0.0, end.value]
            break
    L, free = panel.L, np.full(1, np.inf)
    state = MonthState(
        0.0, b[:, None], np.zeros((L, 1, 1)), np.zeros((L, 1)), free, free, kappa=np.zeros(panel.K), shift=np.zeros(1),
        features=start_coefficients(panel, (), 1.0, slopes=False),
        squares=np.zeros(1), weight=weight, edf=float(sums["sums"][1]) + L - 1.0, k=rounds,
        rounds=rounds, converged=True,
    )  # fmt: skip
    return (yield from summary(panel, state, settings, months=months))[0]


def _no_birds(panel: Panel, empty: I64) -> str:
    """Which times have no bird, and what can be done."""
    if panel.calendar is None:
        names = [str(i + 1) for i in empty]
    else:
        yearly = np.unique(panel.calendar[0]).size == 1
        names = [
            f"{year}" if yearly else f"{year}-{month:02d}"
            for month, year in zip(panel.calendar[0][empty], panel.calendar[1][empty], strict=True)
        ]
    more = f" and {len(names) - 6} more" if len(names) > 6 else ""
    return (
        f"no bird was counted in {', '.join(names[:6])}{more}: a free time effect cannot be estimated there. Leave these "
        "times out of the panel, or fit with --time smooth."
    )


def fit_replicate(
    panel: Panel,
    settings: CountSettings,
    full: MonthState,
    start: F64,
    rng: np.random.Generator | None = None,
) -> Fitting:
    """Fit a bootstrap replicate from the full fit, with its variances (:func:`.begin.start_replicate`).

    ``rng`` draws the prior means of the months, and lets sites draw theirs; None leaves all prior means where they are.
    """
    if settings.time == "fixed":
        return (yield from fit_fixed(panel, settings, float(start[0]), full.T[:, 0]))
    state = start_replicate(full, float(start[0]), rng)
    state = yield from _rounds(
        state,
        panel,
        settings,
        Begin.FROM_FULL if rng is None else Begin.PERTURBED,
        learn=False,
        tol=REPLICATE_TOL,
        most=REPLICATE_ROUNDS,
        watch=None,
    )
    if state.away:
        raise DomainError(_ran_away(state, settings))
    return (yield from summary(panel, state, settings))[0]


def _ran_away(state: MonthState, settings: CountSettings) -> str:
    return (
        f"round {state.k}: the {settings.family} model has run away on these visits, at rank {state.rank}: fit with "
        "--rank 0 or another --model, and report this as a fault of fedmiss."
    )


def _rounds(
    state: MonthState,
    panel: Panel,
    settings: CountSettings,
    begin: Begin,
    *,
    learn: bool,
    tol: float,
    most: int,
    watch: Callable[[int, float], None] | None,
    idle: bool = False,
) -> Fitting:
    state = evolve(state, converged=bool(at_rest(state.moves, state.k, tol * state.patience)))
    while state.k < most and not state.converged:
        k = state.k + 1
        turn = turn_of(panel, settings, k, learn=learn, tol=tol)
        dispersed = settings.dispersion != "none" and FAMILIES[settings.family].dispersed
        known = not (learn and turn.settled and dispersed)
        nodes = np.zeros(0) if known else table_nodes(settings.dispersion, state.inverse_size)
        state = evolve((yield AskRound(state, begin, nodes, turn, settings)), rounds=state.rounds + 1)
        begin = Begin.GO_ON
        finite = np.isfinite(state.T).all() and np.isfinite(state.mu)
        # rank 0 finds its way back, and replicates have their variances
        if not finite or (learn and state.rank and k > SETTLED and state.moves[-1] > FAR):
            return evolve(state, away=max(state.rank, 1))
        if watch is not None:
            watch(state.rounds, state.moves[-1])
        if idle and state.moves.max() < tol:  # the level goes down for ever: to no birds at all
            state = evolve(state, converged=True)
    return state


def summary(
    panel: Panel,
    state: MonthState,
    settings: CountSettings,
    *,
    months: bool = False,
    ahead: AskProduct | None = None,
) -> Generator[Request, Sums, Stage]:
    """Dispersion on visits, and the ratio of the counted to the fitted total.

    log1p: of (1 + count) to exp(eta + var / 2), Duan's smearing factor (JASA 1983) as a ratio of totals. Negative
    binomial: of count to mean. Its score weighs a visit by 1 / (1 + mu/size) at the visit's own fitted mean, so visits
    that happened to be low count for more, and the fitted total falls short (by 4 to 20 % where the size is below 1).
    The Poisson score has no such weights, but where sites and months hardly vary its level, which moves by what they
    have in common, creeps, and a fit ends with a total up to one standard error too small. After multiplication totals
    are the counted ones (the ratio estimator of sampling theory); where sites are there for a find, what is expected of
    such sites is (:func:`_smear`).
    """
    nodes = np.array([state.inverse_size])
    sums = yield AskSummary(state, nodes, months, ahead)
    done = evolve(state, shift=np.zeros(state.p), common=np.zeros(2), refill=False)
    state = summarised(done, settings, sums["totals"], float(sums["dispersion"][0]))
    if settings.learning:  # an expected count is that of the mean visit, new observers' among them
        mean = np.array([-panel.observers[2], panel.observers[4]]) / panel.observers[0]
        usual = float(state.kappa[panel.K :] @ mean)
        # a factor where effort is one, else a step of the level: in log odds, or in birds
        if counted_family(settings.family, settings.scale).counts:
            state = evolve(state, found=state.found * math.exp(usual))
        else:
            state = evolve(state, mu=state.mu + usual)
    return evolve(state, visited=sums["months"]) if months else state, sums.get("product")


def summarised(state: MonthState, settings: CountSettings, totals: F64, pearson: float) -> MonthState:
    """Calibration and dispersion from sums of weights, counted and fitted totals, and the Pearson statistic."""
    weight, counted = float(totals[0]), float(totals[1])
    state = evolve(state, weight=weight)
    scale = SCALES[settings.scale]
    counts = FAMILIES[settings.family].counts and settings.time == "smooth"  # others end at the counted total
    calibrated = scale.log or (settings.calibrate and counts)
    smear = _smear(counted, totals[2:]) if calibrated else 1.0
    found = _found(state, settings)
    return evolve(state, smear=smear, found=found, dispersion=pearson / state.free_visits)


def _smear(counted: float, expected: F64) -> float:
    """The factor at which the total expected, given at ``FACTORS``, is the counted one: equation smear.

    Between them the total goes by a power of the factor, below them in proportion. Above, too, where hardly a site is there
    for a find. Where many are, more zeros than the law of counts holds, of which such a panel says little, look as if counts
    were too high for the fit: it is not scaled up.
    """
    if not counted > 0 or not (expected > 0).all():
        return 1.0
    at = int((expected > counted).sum())  # they fall with the factor
    if at == 0:  # 1 where no site is there for a find, less the more of the total is of such sites
        growth = math.log(expected[0] / expected[1]) / math.log(FACTORS[0] / FACTORS[1])
        return float((counted / expected[0]) ** max(1.0 - (1.0 - growth) / FOR_A_FIND, 0.0))
    if at == len(expected):
        return float(FACTORS[-1] * counted / expected[-1])
    power = math.log(FACTORS[at - 1] / FACTORS[at]) / math.log(expected[at - 1] / expected[at])
    return float(FACTORS[at - 1] * (counted / expected[at - 1]) ** power)


def _found(state: MonthState, settings: CountSettings) -> float:
    """How much more the mean observer finds than the one in the middle: effects are normal on the log scale."""
    varied = settings.observers and counted_family(settings.family, settings.scale).counts
    return math.exp(0.5 / state.ridge) if varied else 1.0
