"""Choice of rank and distribution by federated cross-validation: all folds of all candidates in lockstep.

Folds are drawn inside each group, so a held-out visit never leaves it: a group sends the sums of its training visits,
and for each candidate five numbers. Count models are scored on the same scale, birds, whatever scale they were fitted on.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from fedmiss.arrays import F64
from fedmiss.errors import ConfigError, DomainError
from fedmiss.federation import messages as msg
from fedmiss.federation.hub.agree import folds_like_gaps
from fedmiss.federation.hub.fit import FOLD_TOL, AskScore, Request, fit_path
from fedmiss.federation.hub.lockstep import Lane, run_lockstep
from fedmiss.federation.hub.state import MonthState, Panel
from fedmiss.federation.hub.steps import Sums, known_line, most_rank, responding
from fedmiss.federation.hub.support import released_months
from fedmiss.federation.link import Link, total
from fedmiss.models.lowrank.choice import Choice, choose, model_name, scores
from fedmiss.models.lowrank.settings import CountSettings

__all__ = ["FOLDS", "cross_validate", "lockstep_room", "open_batch", "starts"]

FOLDS = 1000  # first batch of the folds
NUMBERS = 50_000_000  # held at a time by the fits that run side by side, over all groups


def open_batch(panel: Panel, batch: int, settings: CountSettings, numbers: Sequence[int] = (0,)) -> msg.Open:
    """Return the question that opens a batch of fits of all visits; its answers are read by :func:`starts`.

    For folds and replicates ``replace`` the fields from ``weights`` on.
    """
    line, f = known_line(panel, settings), panel.features
    columns = np.zeros(0, np.int64) if f is None else f.of(settings.responses or settings.features)
    centre = np.zeros(0) if f is None else f.centre[columns]
    return msg.Open(
        batch, settings.family, settings.scale, settings.observers, settings.learning, settings.occupancy,
        p=settings.rank + 1 + (line.size > 0) + responding(panel, settings), weights="all", by="cell", folds=0, seed=0,
        numbers=np.array(numbers, dtype=np.int64), spread=np.zeros(3), source=-1, released=np.zeros(0, np.uint8),
        features=columns, centre=centre, responses=bool(settings.responses), line=line,
    )  # fmt: skip


def starts(answers: dict[str, msg.Answer], n: int) -> F64:
    """(n, 4) sums over groups of weights, weighted values, exposures and squared values."""
    coarse, rest = total(answers, "squares", (n, 2)).T
    return np.column_stack([total(answers, "sums", (n, 3)), coarse * msg.SQUARES + rest])


def lockstep_room(panel: Panel, p: int) -> int:
    """How many fits run side by side: as many as fit into memory, a number that depends on the panel only."""
    each = (8.0 + 2.0 * panel.K) * panel.visits + panel.J * p * (p + 2)
    return max(1, int(NUMBERS / each))


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
    first_batch: int = FOLDS,
    watch: Callable[[int], None] | None = None,
) -> Choice:
    """Score every candidate on held-out visits and choose as ``fedmiss.models.lowrank.choice`` says.

    Candidates that differ in rank only are stages of one path, since factors enter one by one; the folds of all paths run
    side by side. ``inverse_size`` above 0: the deviance is that of the negative binomial with this 1 / size, for which few
    large counts decide less.
    """
    # many parameters: those of the public function, and the numbers that its batches get
    by = folds_like_gaps(link, panel) if by == "auto" else by
    released = released_months(link, panel, by=by, folds=folds, seed=seed)
    base = [replace(c, rank=0) for c in candidates]
    paths = list(dict.fromkeys(base))
    members = [{c.rank: i for i, c in enumerate(candidates) if base[i] == path} for path in paths]
    longest = [replace(path, rank=max(m)) for path, m in zip(paths, members, strict=True)]
    tasks = [(i, fold) for i in range(len(paths)) for fold in range(folds)]
    room = lockstep_room(panel, max(s.rank for s in longest) + 2)
    rows: list[dict[str, object]] = []
    for first in range(0, len(tasks), room):
        mine: dict[int, list[int]] = {}
        for i, fold in tasks[first : first + room]:
            mine.setdefault(i, []).append(fold)
        questions = [
            replace(
                open_batch(panel, first_batch + i, longest[i], numbers),
                weights="fold", by=by, folds=folds, seed=seed, released=released,
            )
            for i, numbers in mine.items()
        ]  # fmt: skip
        lanes = []
        for (i, numbers), answers in zip(mine.items(), link.ask(questions), strict=True):
            sums = starts(answers, len(numbers))
            for at, fold in enumerate(numbers):
                if not sums[at, 0] > 0:
                    raise ConfigError(
                        f"fold {fold} leaves no visit to train on; use fewer folds, folds by visit, or a lower least "
                        "number of sites (--minimum)."
                    )
                most = most_rank(panel, longest[i])
                score = _scorer(longest[i], members[i], most, fold, rows, inverse_size, watch)
                path = fit_path(panel, longest[i], sums[at], each=score, tol=FOLD_TOL)
                lanes.append(Lane(first_batch + i, at, path))
        for lane, state in zip(lanes, run_lockstep(link, panel, lanes), strict=True):
            if state.away:
                i = lane.batch - first_batch
                _ranks_that_ran_away(rows, members[i], longest[i], mine[i][lane.fit])
        if watch:
            watch(len(rows))
        link.ask([msg.Close(np.array([first_batch + i for i in mine]))])
    return choose(pd.DataFrame(rows), candidates, by=by, one_se=one_se)


def _ranks_that_ran_away(
    rows: list[dict[str, object]], ranks: dict[int, int], settings: CountSettings, fold: int
) -> None:
    """Give ranks without a score in this fold that of the largest rank below them: so much the panel can bear."""
    scored = {r["candidate"]: r for r in rows if r["fold"] == fold}
    below: dict[str, object] = {}
    for rank in sorted(ranks):
        below = scored.get(ranks[rank], below)
        if not below:
            raise DomainError(
                f"fold {fold}: the {settings.family} model has run away on these visits, at a rank up to {rank}. Let lower "
                "ranks take part in the choice, or choose another --model."
            )
        if ranks[rank] not in scored:
            rows.append(below | {"candidate": ranks[rank], "rank": rank})


def _scorer(
    settings: CountSettings,
    ranks: dict[int, int],
    most: int,
    fold: int,
    rows: list[dict[str, object]],
    inverse_size: float,
    watch: Callable[[int], None] | None,
) -> Callable[[MonthState], Generator[Request, Sums, None]]:
    def score(state: MonthState) -> Generator[Request, Sums, None]:
        last = state.rank >= most  # a small panel cannot have the ranks above: they are this one
        wanted = [r for r in ranks if r == state.rank or (last and r > state.rank)]
        if not wanted:
            return
        sums = yield AskScore(state.smear, inverse_size)
        for rank in wanted:
            rows.append(
                {
                    "candidate": ranks[rank],
                    "model": model_name(settings),
                    "rank": rank,
                    "penalty": np.nan,
                    "fold": fold,
                }
                | scores(sums["sums"], settings)
            )
            if watch:
                watch(len(rows))

    return score
