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
from fedmiss.errors import ConfigError
from fedmiss.federation import messages as msg
from fedmiss.federation.hub.agree import folds_like_gaps
from fedmiss.federation.hub.fit import AskScore, Request, fit_path
from fedmiss.federation.hub.lockstep import Lane, run_lockstep
from fedmiss.federation.hub.state import MonthState, Panel
from fedmiss.federation.hub.steps import Sums
from fedmiss.federation.link import Link, total
from fedmiss.models.lowrank.choice import Choice, choose, model_name, scores
from fedmiss.models.lowrank.settings import CountSettings

__all__ = ["cross_validate", "open_batch"]


def open_batch(
    batch: int,
    settings: CountSettings,
    *,
    weights: str = "all",
    numbers: Sequence[int] = (0,),
    by: str = "cell",
    folds: int = 0,
    seed: int = 0,
    spread: F64 | None = None,
    source: int = -1,
    p: int | None = None,
) -> msg.Open:
    """Return the question that opens a batch; its answers are read by :func:`starts`."""
    return msg.Open(
        batch, settings.family, settings.scale, settings.observers, settings.rank + 1 if p is None else p, weights, by,
        folds, seed, np.array(numbers, dtype=np.int64), np.zeros(3) if spread is None else spread, source,
    )  # fmt: skip


def starts(answers: dict[str, msg.Answer], n: int) -> F64:
    """(n, 3) sums over groups of weights, weighted values and exposures."""
    return total(answers, "sums", (n, 3))


def cross_validate(
    link: Link,
    panel: Panel,
    candidates: Sequence[CountSettings],
    *,
    folds: int = 5,
    by: str = "auto",
    seed: int = 0,
    one_se: bool = False,
    first_batch: int = 1000,
    watch: Callable[[int], None] | None = None,
) -> Choice:
    """Score every candidate on held-out visits and choose as ``fedmiss.models.lowrank.choice`` says.

    Candidates that differ in rank only are stages of one path, since factors enter one by one; the folds of all paths run
    side by side.
    """
    by = folds_like_gaps(link, panel) if by == "auto" else by
    base = [replace(c, rank=0) for c in candidates]
    paths = list(dict.fromkeys(base))
    members = [{c.rank: i for i, c in enumerate(candidates) if base[i] == path} for path in paths]
    longest = [replace(path, rank=max(m)) for path, m in zip(paths, members, strict=True)]
    opened = link.ask(
        [
            open_batch(
                first_batch + i, s, weights="fold", numbers=range(folds), by=by, folds=folds, seed=seed
            )
            for i, s in enumerate(longest)
        ]
    )
    rows: list[dict[str, object]] = []
    lanes = []
    for i, (settings, ranks, answers) in enumerate(zip(longest, members, opened, strict=True)):
        sums = starts(answers, folds)
        for fold in range(folds):
            if not sums[fold, 0] > 0:
                raise ConfigError(
                    f"fold {fold} leaves no visit to train on; use fewer folds, folds by visit, or a lower least number "
                    "of sites (--minimum)."
                )
            score = _scorer(settings, ranks, int(min(panel.J, panel.L)), fold, rows, watch)
            lanes.append(Lane(first_batch + i, fold, fit_path(panel, settings, sums[fold], each=score)))
    run_lockstep(link, panel, lanes)
    link.ask([msg.Close(np.arange(first_batch, first_batch + len(paths)))])
    return choose(pd.DataFrame(rows), candidates, by=by, one_se=one_se)


def _scorer(
    settings: CountSettings,
    ranks: dict[int, int],
    most: int,
    fold: int,
    rows: list[dict[str, object]],
    watch: Callable[[int], None] | None,
) -> Callable[[MonthState], Generator[Request, Sums, None]]:
    def score(state: MonthState) -> Generator[Request, Sums, None]:
        last = state.rank >= most  # a small panel cannot have the ranks above: they are this one
        wanted = [r for r in ranks if r == state.rank or (last and r > state.rank)]
        if not wanted:
            return
        sums = yield AskScore(state.smear)
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
