"""Choice of rank and distribution by federated cross-validation: all folds of all candidates in lockstep.

Folds are drawn inside each group, so a held-out visit never leaves it: a group sends the sums of its training visits,
and for each candidate five numbers. Count models are scored on the same scale, birds, whatever scale they were fitted on.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd

from fedmiss.arrays import F64
from fedmiss.errors import ConfigError
from fedmiss.federation import messages as msg
from fedmiss.federation.hub.agree import folds_like_gaps
from fedmiss.federation.hub.begin import known_line, most_rank, responding
from fedmiss.federation.hub.fit import AskScore, Request, Stage, fit_path, summary
from fedmiss.federation.hub.lockstep import FitTask, run_lockstep
from fedmiss.federation.hub.products import AskProduct
from fedmiss.federation.hub.state import MonthState, Panel
from fedmiss.federation.hub.steps import Sums
from fedmiss.federation.hub.support import released_months
from fedmiss.federation.link import Link, total
from fedmiss.models.lowrank.choice import Choice, choose, model_name, scores
from fedmiss.models.lowrank.settings import CountSettings

FOLDS, WHOLE = 1000, 1900  # first batch of the folds; that of all visits beside them
NUMBERS = 50_000_000  # held at a time by the fits that run side by side, over all groups


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
    # Cells and effort of a visit, and mean and covariance of a site.
    each = (8.0 + 2.0 * panel.K) * panel.visits + panel.J * p * (p + 2)
    return max(1, int(NUMBERS / each))


@dataclass(frozen=True, slots=True)
class Contest:
    """Candidates to score on folds that hold out ``by``; ``first`` of the batches of their paths."""

    candidates: Sequence[CountSettings]
    by: str
    first: int = FOLDS


@dataclass(frozen=True, slots=True)
class _Path:
    """Candidates of a contest that differ in rank only are stages of one path: ``ranks``, with their places in it."""

    batch: int
    settings: CountSettings
    ranks: dict[int, int]
    opening: dict[str, Any]
    table: list[dict[str, object]]
    known: dict[int, MonthState] | None = None  # to be given the states that it ends its ranks with
    last: dict[str, object] = field(default_factory=dict)  # scores of the largest rank that did not run away


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
    known: dict[int, MonthState] | None = None,
) -> Choice:
    """Score every candidate on held-out visits and choose as ``fedmiss.models.lowrank.choice`` says.

    ``inverse_size`` above 0: the deviance is that of the negative binomial with this 1 / size, for which few large counts
    decide less. ``known``: as in :func:`score_folds`.
    """
    by = folds_like_gaps(link, panel) if by == "auto" else by
    (table,) = score_folds(
        link, panel, [Contest(candidates, by)], folds=folds, seed=seed, inverse_size=inverse_size, watch=watch, known=known
    )  # fmt: skip
    return choose(table, candidates, by=by, one_se=one_se)


def score_folds(
    link: Link,
    panel: Panel,
    contests: Sequence[Contest],
    *,
    folds: int,
    seed: int,
    inverse_size: float = 0.0,
    watch: Callable[[int], None] | None = None,
    known: dict[int, MonthState] | None = None,
    whole: Sequence[tuple[int, CountSettings]] = (),
    ended: Callable[[list[tuple[int, list[MonthState]]], msg.Close], None] | None = None,
) -> list[pd.DataFrame]:
    """Score the candidates of all contests, the folds of all their paths side by side; a table for each contest.

    Parameters
    ----------
    watch : called with the number of scores of the first contest
    known : is given the states that all visits end every rank with, by the first candidate's distribution
    whole : batches, and settings of rank 0 of fits of all visits beside the folds
    ended : called with batches and states of such fits; it has to ask to close the batches
    """
    tasks: list[tuple[_Path, int]] = []
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
            tasks += [
                (_Path(contest.first + i, longest, ranks, opening, tables[-1]), fold) for fold in range(folds)
            ]
    tasks += [(_Path(batch, settings, {}, {}, []), 0) for batch, settings in whole]
    if known is not None:
        tasks.append((_Path(WHOLE, tasks[0][0].settings, {}, {}, [], known), 0))
    room = lockstep_room(panel, max(path.settings.rank for path, _ in tasks) + 2)
    for first in range(0, len(tasks), room):
        together: dict[int, list[tuple[_Path, int]]] = {}
        for path, fold in tasks[first : first + room]:
            together.setdefault(path.batch, []).append((path, fold))
        questions = [
            replace(
                open_batch(panel, batch, mine[0][0].settings, [fold for _, fold in mine]),
                **mine[0][0].opening,
            )
            for batch, mine in together.items()
        ]
        lanes, whose = [], []
        for mine, answers in zip(together.values(), link.ask(questions), strict=True):
            sums = starts(answers, len(mine))
            for at, (path, fold) in enumerate(mine):
                if not sums[at, 0] > 0:
                    raise ConfigError(
                        f"fold {fold} leaves no visit to train on; use fewer folds, folds by visit, or a lower least "
                        "number of sites (--minimum)."
                    )
                told = watch if path.table is tables[0] else None
                each = _scorer(panel, path, fold, inverse_size, told)
                lanes.append(FitTask(path.batch, at, fit_path(panel, path.settings, sums[at], each=each)))
                whose.append((path, fold))
        ends = []
        for (path, fold), state in zip(whose, run_lockstep(link, panel, lanes), strict=True):
            if state.away:
                _ranks_that_ran_away(path, fold)
            if not path.ranks and path.known is None:
                ends.append((path.batch, [state]))
        if watch:
            watch(len(tables[0]))
        close = msg.Close(np.array(list(together)))
        if ended is not None and ends:
            ended(ends, close)
        else:
            link.ask([close])
    # Folds are drawn cell by cell: of a few cells a fold may hold out none, and has no score then.
    return [pd.DataFrame([row for row in rows if row["n"]]) for rows in tables]


def _ranks_that_ran_away(path: _Path, fold: int) -> None:
    """Give ranks without a score in this fold that of the largest rank below them: so much the panel can bear."""
    scored = {row["candidate"] for row in path.table if row["fold"] == fold}
    for rank, candidate in path.ranks.items():
        if candidate not in scored:
            path.table.append(path.last | {"candidate": candidate, "rank": rank})


def _scorer(
    panel: Panel, path: _Path, fold: int, inverse_size: float, watch: Callable[[int], None] | None
) -> Callable[[MonthState, MonthState, AskProduct | None], Generator[Request, Any, Stage]]:
    most = most_rank(panel, path.settings)  # a small panel cannot have the ranks above: they are this one

    def score(
        state: MonthState, below: MonthState, ahead: AskProduct | None
    ) -> Generator[Request, Any, Stage]:
        wanted = [rank for rank in path.ranks if min(rank, most) == state.rank]
        # at every rank, since it brings the groups' half to the last round's end: a score must not depend on which ranks
        # of its path are scored too
        state, product = yield from summary(panel, state, path.settings, ahead=ahead)
        if path.known is not None:
            path.known[state.rank] = state
        if path.ranks:
            yield AskScore(state.smear, inverse_size, lambda sums: note(wanted, sums))
        return state, product

    def note(wanted: Sequence[int], sums: Sums) -> None:
        row: dict[str, object] = {"candidate": -1, "model": model_name(path.settings), "rank": -1}
        row.update(penalty=np.nan, fold=fold, **scores(sums["sums"], path.settings))
        path.last.update(row)
        for rank in wanted:
            path.table.append(row | {"candidate": path.ranks[rank], "rank": rank})
            if watch:
                watch(len(path.table))

    return score
