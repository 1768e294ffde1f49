"""Choice of rank and distribution by federated cross-validation: all folds of all candidates in lockstep.

Folds are drawn inside each group, so a held-out visit never leaves it: a group sends the sums of its training visits,
and for each candidate five numbers. Count models are scored on the same scale, birds, whatever scale they were fitted on.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import Any

import numpy as np
import pandas as pd

from fedmiss.arrays import F64
from fedmiss.errors import ConfigError
from fedmiss.federation import messages as msg
from fedmiss.federation.hub.agree import folds_like_gaps
from fedmiss.federation.hub.begin import known_line, most_rank, responding
from fedmiss.federation.hub.fit import fit_path, polished, summary
from fedmiss.federation.hub.lockstep import FitTask, run_lockstep
from fedmiss.federation.hub.products import AskProduct
from fedmiss.federation.hub.requests import AskKeep, AskScore, Enough, Fitting, Request, Stage
from fedmiss.federation.hub.state import MonthState, Panel
from fedmiss.federation.hub.steps import Sums
from fedmiss.federation.hub.support import released_months
from fedmiss.federation.link import Link, total
from fedmiss.models.lowrank.choice import Choice, choose, enough, model_name, scores
from fedmiss.models.lowrank.settings import CountSettings

FOLDS, WHOLE = 1000, 1900  # first batch of the folds; that of all visits beside them
KEPT = 100_000  # rank r of a path is kept in the path's batch and r + 1 times as much
NUMBERS = 50_000_000  # held at a time by the fits that run side by side, over all groups
Known = dict[CountSettings, MonthState]  # what all visits come to by a model


def open_batch(panel: Panel, batch: int, settings: CountSettings, numbers: Sequence[int] = (0,)) -> msg.Open:
    """Return the question that opens a batch of fits of all visits; its answers are read by :func:`starts`.

    For folds and replicates ``replace`` the fields from ``weights`` on.
    """
    line, features = known_line(panel, settings), panel.features
    columns = (
        np.zeros(0, np.int64) if features is None else features.of(settings.responses or settings.features)
    )
    centre = np.zeros(0) if features is None else features.centre[columns]
    return msg.Open(
        batch, settings.family, settings.scale, settings.observers, settings.learning, settings.occupancy,
        p=settings.rank + 1 + (line.size > 0) + responding(panel, settings), weights="all", by="cell", folds=0, seed=0,
        numbers=np.array(numbers, dtype=np.int64), spread=np.zeros(3), source=-1, released=np.zeros(0, np.uint8),
        features=columns, centre=centre, responses=bool(settings.responses), line=line,
    )  # fmt: skip


def starts(answers: dict[str, msg.Answer], n: int) -> F64:
    """(n, 4) sums over groups of weights, weighted values, exposures and squared values."""
    # The sum of squares crosses in two parts, coarse and rest, since it would exceed the range of a masked number.
    coarse, rest = total(answers, "squares", (n, 2)).T
    return np.column_stack([total(answers, "sums", (n, 3)), coarse * msg.SQUARES + rest])


def lockstep_room(panel: Panel, p: int) -> int:
    """How many fits run side by side: as many as fit into memory, a number that depends on the panel only."""
    return max(1, int(NUMBERS / _held(panel, p)))


def _held(panel: Panel, p: int) -> float:
    """Numbers that a fit of p coefficients a site holds."""
    # Cells and effort of a visit, and mean and covariance of a site.
    return (8.0 + 2.0 * panel.K) * panel.visits + panel.J * p * (p + 2)


@dataclass(frozen=True, slots=True)
class Contest:
    """Candidates to score on folds that hold out ``by``; ``first`` of the batches of their paths."""

    candidates: Sequence[CountSettings]
    by: str
    first: int = FOLDS


@dataclass(slots=True)
class _Climb:
    """How far the paths of a model climb: to the rank ``most``, once the ``scores`` of its ``ranks`` in all folds say so.

    ``scores``: rank -> fold -> deviance and weight of the held-out visits; see :func:`.choice.enough`.
    """

    folds: int
    ranks: Sequence[int]
    scores: dict[int, dict[int, tuple[float, float]]] = field(default_factory=dict)
    most: float = np.inf

    def note(self, rank: int, fold: int, deviance: float, weight: float) -> None:
        self.scores.setdefault(rank, {})[fold] = deviance, weight
        below: list[float] = []
        for one in takewhile(lambda rank: len(self.scores.get(rank, ())) == self.folds, self.ranks):
            sums = [math.fsum(part) for part in zip(*self.scores[one].values(), strict=True)]
            below.append(sums[0] / sums[1] if sums[1] else 0.0)
            if enough(below):
                self.most = min(self.most, one)

    def check(self, rank: int) -> None:
        if rank > self.most:
            raise Enough


@dataclass(slots=True)
class _Path:
    """Candidates of a contest that differ in rank only are stages of one path: ``ranks``, with their places in it.

    ``fold`` of it; ``climb``: how far it goes; ``scored``: the rows of the ranks that did not run away; ``plain``: where
    rank 0 has come to its end; ``rank``: where the path is.
    """

    batch: int
    fold: int
    settings: CountSettings
    climb: _Climb
    ranks: dict[int, int] = field(default_factory=dict)
    opening: dict[str, Any] = field(default_factory=dict)
    table: list[dict[str, object]] = field(default_factory=list)
    known: Known | None = None  # to be given the states that it ends its ranks with
    scored: dict[int, dict[str, object]] = field(default_factory=dict)
    copies: set[int] = field(default_factory=set)  # batches that keep its ranks
    plain: list[tuple[int, list[MonthState]]] = field(default_factory=list)
    rank: int = 0


def cross_validate(
    link: Link,
    panel: Panel,
    candidates: Sequence[CountSettings],
    *,
    folds: int = 5,
    by: str = "auto",
    seed: int = 0,
    one_se: bool = False,
    inverse_size: float = 0.0,
    watch: Callable[[int], None] | None = None,
    known: Known | None = None,
) -> Choice:
    """Score every candidate on held-out visits and choose as ``fedmiss.models.lowrank.choice`` says.

    ``inverse_size`` above 0: the deviance is that of the negative binomial with this 1 / size, for which few large counts
    decide less. ``known``: as in :func:`score_folds`.
    """
    by = folds_like_gaps(link, panel) if by == "auto" else by
    (table,) = score_folds(
        link, panel, [Contest(candidates, by)], folds=folds, seed=seed, inverse_size=inverse_size, watch=watch, known=known
    )  # fmt: skip
    return choose(table, candidates, by=by, one_se=one_se, visits=panel.visits)


def score_folds(
    link: Link,
    panel: Panel,
    contests: Sequence[Contest],
    *,
    folds: int,
    seed: int,
    inverse_size: float = 0.0,
    watch: Callable[[int], None] | None = None,
    known: Known | None = None,
    whole: Sequence[tuple[int, CountSettings]] = (),
    ended: Callable[[list[tuple[int, list[MonthState]]], msg.Close], None] | None = None,
) -> list[pd.DataFrame]:
    """Score the candidates of all contests, the folds of all their paths side by side; a table for each contest.

    Parameters
    ----------
    watch : called with the number of scores of the first contest
    known : is given what all visits come to beside the folds at every rank, by the first candidate's distribution and by
        those of ``whole``
    whole : batches and settings of fits of all visits beside the folds
    ended : called with batches and states of the first rank of such fits; it has to ask to close the batches
    """
    paths: list[_Path] = []
    tables: list[list[dict[str, object]]] = []
    for contest in contests:
        released = released_months(link, panel, by=contest.by, folds=folds, seed=seed)
        opening = {"weights": "fold", "by": contest.by, "folds": folds, "seed": seed, "released": released}
        tables.append([])
        base = [replace(candidate, rank=0) for candidate in contest.candidates]
        for i, model in enumerate(dict.fromkeys(base)):
            ranks = {
                candidate.rank: place
                for place, candidate in enumerate(contest.candidates)
                if base[place] == model
            }
            longest = replace(model, rank=max(ranks))
            climb = _Climb(folds, sorted(ranks))
            paths += [
                _Path(contest.first + i, fold, longest, climb, ranks, opening, tables[-1])
                for fold in range(folds)
            ]
    beside = [_Path(batch, 0, settings, paths[0].climb, known=known) for batch, settings in whole]
    if known is not None:
        first = replace(paths[0].settings, rank=max(path.settings.rank for path in paths))
        if all(replace(path.settings, rank=first.rank) != first for path in beside):
            beside.insert(0, _Path(WHOLE, 0, first, paths[0].climb, known=known))
    # Where one start is all that may be told, a fit of all visits finds it, and so comes first.
    unknown = panel.least > 0 and not panel.start.directions.size
    finder = next((path for path in beside if path.settings.rank), None) if unknown else None
    paths = [*beside, *paths]
    for part in _parts(panel, paths):
        together: dict[int, list[_Path]] = {}
        for path in part:
            together.setdefault(path.batch, []).append(path)
        questions = [
            replace(
                open_batch(panel, batch, mine[0].settings, [path.fold for path in mine]), **mine[0].opening
            )
            for batch, mine in together.items()
        ]
        lanes, whose = [], []
        for mine, answers in zip(together.values(), link.ask(questions), strict=True):
            sums = starts(answers, len(mine))
            for at, path in enumerate(mine):
                if not sums[at, 0] > 0:
                    raise ConfigError(
                        f"fold {path.fold} leaves no visit to train on; use fewer folds, folds by visit, a lower least "
                        "number of sites (--minimum), or name the model, as --model negbin --rank 0, which needs no folds."
                    )
                told = watch if path.table is tables[0] else None
                each = _scorer(panel, path, inverse_size, told)
                waits = finder is not None and path is not finder
                fitting = fit_path(
                    panel, path.settings, sums[at], each=each, watch=_checks(path), waits=waits
                )
                lanes.append(FitTask(path.batch, at, fitting))
                whose.append(path)
        ends = []
        run_lockstep(link, panel, lanes)
        for path in whose:
            _complete(path)
            if not path.ranks and path.batch != WHOLE:
                ends += path.plain
        if watch:
            watch(len(tables[0]))
        close = msg.Close(np.array(sorted(together.keys() | set().union(*(path.copies for path in whose)))))
        if ended is not None and ends:
            ended(ends, close)
        else:
            link.ask([close])
    # Folds are drawn cell by cell: of a few cells a fold may hold out none, and has no score then.
    return [pd.DataFrame([row for row in rows if row["n"]], columns=list(rows[0])) for rows in tables]


def _parts(panel: Panel, paths: Sequence[_Path]) -> Iterator[list[_Path]]:
    """Paths that fit into memory together, with the copies of their ranks."""
    part: list[_Path] = []
    held = 0.0
    for path in paths:
        numbers = (1 + most_rank(panel, path.settings)) * _held(panel, path.settings.rank + 2)
        if part and held + numbers > NUMBERS:
            yield part
            part, held = [], 0.0
        part.append(path)
        held += numbers
    yield part


def _checks(path: _Path, rank: int | None = None) -> Callable[[int, float], None]:
    """What ends a fit of this rank, or of the one that the path is at, when it is too high."""
    return lambda *_: path.climb.check(path.rank if rank is None else rank)


def _complete(path: _Path) -> None:
    """Take out ranks that are too high, and give others without a score that of the largest rank below them.

    So much the panel can bear where a rank ran away.
    """
    high = {candidate for rank, candidate in path.ranks.items() if rank > path.climb.most}
    path.table[:] = [row for row in path.table if row["candidate"] not in high]
    there = {row["candidate"] for row in path.table if row["fold"] == path.fold}
    for rank, candidate in path.ranks.items():
        if candidate not in there | high:
            row = path.scored[max(below for below in path.scored if below < rank)]
            path.table.append(row | {"candidate": candidate, "rank": rank})


def _scorer(
    panel: Panel, path: _Path, inverse_size: float, watch: Callable[[int], None] | None
) -> Callable[[MonthState, MonthState, AskProduct | None], Generator[Request, Any, Stage]]:
    most = most_rank(panel, path.settings)  # a small panel cannot have the ranks above: they are this one

    def to_the_end(batch: int, state: MonthState, below: MonthState) -> Fitting:
        state = yield from polished(panel, path.settings, state, below, _checks(path, state.rank), fold=True)
        if path.known is not None and not state.away:
            path.known[replace(path.settings, rank=state.rank)] = state
        if not (state.rank or state.away):
            path.plain.append((batch, [state]))
        if path.ranks and not state.away:
            yield AskScore(state.smear, inverse_size, lambda sums: note(state.rank, sums))
        return state

    def score(
        state: MonthState, below: MonthState, ahead: AskProduct | None
    ) -> Generator[Request, Any, Stage]:
        if state.rank == most:
            return (yield from to_the_end(path.batch, state, below)), None
        copy = path.batch + KEPT * (state.rank + 1)
        path.copies.add(copy)
        yield AskKeep(copy, to_the_end(copy, state, below))
        path.rank = state.rank + 1
        # at every rank, since it brings the groups' half to the last round's end
        return (yield from summary(panel, state, path.settings, ahead=ahead))

    def note(rank: int, sums: Sums) -> None:
        row: dict[str, object] = {"candidate": -1, "model": model_name(path.settings), "rank": -1}
        row.update(penalty=np.nan, fold=path.fold, **scores(sums["sums"]))
        path.scored[rank] = row
        path.climb.note(rank, path.fold, float(sums["sums"][0]), float(sums["sums"][4]))
        for wanted, candidate in path.ranks.items():
            if min(wanted, most) == rank:
                path.table.append(row | {"candidate": candidate, "rank": wanted})
                if watch:
                    watch(len(path.table))

    return score
