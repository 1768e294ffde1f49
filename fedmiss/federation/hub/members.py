"""Fits of all visits whose expected counts are averaged: the chosen model, and those whose scores hardly differ from its.

The mean is arithmetic, so totals of the average are the mean of the members' totals: nothing crosses for it but what crosses
for one fit of the largest rank, and its summary at every rank that is a member.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fedmiss.arrays import F64
from fedmiss.errors import InputError
from fedmiss.federation.hub.begin import most_rank
from fedmiss.federation.hub.crossval import open_batch, starts
from fedmiss.federation.hub.fit import fit_path, polished, summary
from fedmiss.federation.hub.lockstep import FitTask, run_lockstep
from fedmiss.federation.hub.products import AskProduct
from fedmiss.federation.hub.requests import AskKeep, Fitting, Request, Stage
from fedmiss.federation.hub.state import MonthState, Panel
from fedmiss.federation.link import Link
from fedmiss.models.lowrank.families import SCALES
from fedmiss.models.lowrank.settings import CountSettings

FULL = 0  # batch of the chosen fit
OTHERS = 10_000  # batches of the others begin here, beyond those of replicates and folds


@dataclass(frozen=True, slots=True, eq=False)
class FittedModel:
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
) -> list[FittedModel]:
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
    batches = batches_of(len(settings), batch)
    return _borne(link, panel, fit_all(link, panel, settings, batches, watch), watch)


def batches_of(members: int, first: int = FULL) -> list[int]:
    """Batches of models that are fitted side by side."""
    return [first, *range(OTHERS, OTHERS + members - 1)]


def opened(link: Link, panel: Panel, batches: Sequence[int], settings: Sequence[CountSettings]) -> list[F64]:
    """Open a fit of all visits in each batch; (4,) sums of weights, values, exposures and squares of each.

    Raises
    ------
    InputError    no visit has a positive weight
    """
    questions = [open_batch(panel, batch, model) for batch, model in zip(batches, settings, strict=True)]
    sums = [starts(answers, 1)[0] for answers in link.ask(questions)]
    if not all(one[0] > 0 for one in sums):
        raise InputError("no visit has a positive weight: there is nothing to fit. Check the weights.")
    return sums


def fit_all(
    link: Link,
    panel: Panel,
    settings: Sequence[CountSettings],
    batches: Sequence[int],
    watch: Callable[[int, float], None] | None = None,
) -> list[FittedModel]:
    """Fit all visits by every model side by side; some may have run away.

    Models that differ in rank only are stages of one path: the largest has the path's batch, the others a copy of what the
    groups had come to at their rank. The path hurries on (:func:`.fit.fit_path`), and each goes to its own end beside it.
    ``watch`` hears of the rounds of the first model.
    """
    bases = [replace(own, rank=0) for own in settings]
    paths = [[i for i, other in enumerate(bases) if other == base] for base in dict.fromkeys(bases)]
    longest = [max(path, key=lambda i: settings[i].rank) for path in paths]
    sums = opened(link, panel, [batches[i] for i in longest], [settings[i] for i in longest])
    if idle := _nothing_found(settings[0], sums):
        settings = [replace(own, rank=0) for own in settings]
    kept: dict[int, MonthState] = {}
    lanes = []
    for path, i, start in zip(paths, longest, sums, strict=True):
        heard = _until(kept, watch) if 0 in path else None
        each = _keeper(panel, settings, batches, path, i, kept, watch, idle=idle)
        lanes.append(FitTask(batches[i], 0, fit_path(panel, settings[i], start, each=each, watch=heard)))
    for path, end in zip(paths, run_lockstep(link, panel, lanes), strict=True):
        kept |= {k: end for k in path if k not in kept}  # of a path that ran away, or its last rank
    return [FittedModel(own, kept[i], at) for i, (own, at) in enumerate(zip(settings, batches, strict=True))]


def _nothing_found(settings: CountSettings, sums: Sequence[F64]) -> bool:
    """Whether no visit found anything: no pattern is there to be fitted, and the rounds of one would not come to rest."""
    from_zero = settings.family != "gaussian" or SCALES[settings.scale].log
    return from_zero and all(one[1] == 0.0 for one in sums)


def _keeper(
    panel: Panel,
    settings: Sequence[CountSettings],
    batches: Sequence[int],
    path: Sequence[int],
    last: int,
    kept: dict[int, MonthState],
    watch: Callable[[int, float], None] | None,
    *,
    idle: bool,
) -> Callable[[MonthState, MonthState, AskProduct | None], Generator[Request, Any, Stage]]:
    """Let the members of a path go to their own end: ``last`` in the path's batch, the others in a copy of it."""
    most = most_rank(panel, settings[last])  # a small panel cannot have the ranks above: they are this one

    def to_the_end(i: int, state: MonthState, below: MonthState) -> Fitting:
        heard = None if i else watch
        kept[i] = yield from polished(panel, settings[last], state, below, heard, idle=idle)
        return kept[i]

    def keep(
        state: MonthState, below: MonthState, ahead: AskProduct | None
    ) -> Generator[Request, Any, Stage]:
        mine = [i for i in path if state.rank == min(settings[i].rank, most)]
        kept.update(dict.fromkeys(mine, state))
        for i in mine:
            if i != last:
                # The groups have only the batch of the path, which goes on to the next rank: a copy stays at this one.
                yield AskKeep(batches[i], to_the_end(i, state, below))
        if last in mine:
            return (yield from to_the_end(last, state, below)), None
        # as folds do at every rank (:func:`.crossval._scorer`): the path of all visits is that of a fold without a hold-out
        return (yield from summary(panel, state, settings[last], ahead=ahead))

    return keep


def _until(
    kept: Mapping[int, MonthState], watch: Callable[[int, float], None] | None
) -> Callable[[int, float], None] | None:
    """Watch a path until it has come to the first model."""
    if watch is None:
        return None
    return lambda rounds, move: None if 0 in kept else watch(rounds, move)


def _borne(
    link: Link, panel: Panel, members: list[FittedModel], watch: Callable[[int, float], None] | None
) -> list[FittedModel]:
    """Fit members that ran away again at the last rank that did not; a model that others have already is left out.

    The groups' half of such a fit is lost, so all of it is done again: the same rounds up to that rank.
    """
    kept = {_model(member): member for member in members if not member.state.away}
    out: dict[CountSettings, FittedModel] = {}
    for i, member in enumerate(members):
        model, away = _model(member), member.state.away
        if model in out:
            continue
        if away and model in kept:
            member = kept[model]
        elif away:
            mine = None if i else watch
            (member,) = fit_members(link, panel, [model], batch=member.batch, watch=mine)
            # going to its end it may have run away at this rank too, through which the path had hurried
            model, away = _model(member), member.state.away or away
            if model in out:
                continue
            member = kept.get(model, member)
        out[model] = replace(member, state=replace(member.state, away=away)) if away else member
    return list(out.values())


def _model(member: FittedModel) -> CountSettings:
    """Settings with the rank that the fit came to."""
    return replace(member.settings, rank=member.state.rank)


def dealt(numbers: Sequence[int], members: int) -> list[list[int]]:
    """Deal replicates out among the members, by their numbers: each member gets every ``members``-th."""
    return [[number for number in numbers if number % members == member] for member in range(members)]
