"""What is behind sums over groups: which months, parts of folds and regions may be released (``federation.rules``)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fedmiss.arrays import F64, I64, Bool
from fedmiss.errors import ConfigError
from fedmiss.federation import messages as msg
from fedmiss.federation.hub.state import Panel
from fedmiss.federation.link import Link, total
from fedmiss.federation.rules import kept_regions, releasable

__all__ = ["FEWEST_REGIONS", "release_jointly", "released_months"]

FEWEST_REGIONS = 2


def release_jointly(
    link: Link,
    axes: msg.Axes,
    share: float,
    contributors: int,
    done: dict[str, msg.Answer],
    notes: list[str],
) -> tuple[msg.Axes, dict[str, msg.Answer], int, F64, dict[str, I64]]:
    """Agree on the axes again, without months and regions that have too few visits behind them.

    Returns
    -------
    the final axes, the groups' answers to them, the number of visits left out, the visits (L,) behind released months, and
    which months (places) each rule left out
    """
    before = _used(done)
    released, regions, behind, lost = _released(link, share, axes, contributors)
    axes = replace(axes, regions=regions, released=released.astype(np.uint8))
    (done,) = link.ask([axes])
    out = before - _used(done)
    if out:
        notes.append(
            f"{out} visits were withheld: their {int((~released).sum())} months have fewer than {axes.minimum} visits or "
            f"sites of all groups together, fewer than {contributors} groups, or one with over {share:.0%} of the visits."
        )
    return axes, done, out, behind, lost


def _used(done: dict[str, msg.Answer]) -> int:
    return sum(answer.used for answer in done.values() if isinstance(answer, msg.Done))


def _support(
    link: Link,
    share: float,
    L: int,
    regions: int,
    *,
    by: str = "",
    folds: int = 0,
    seed: int = 0,
) -> dict[str, F64]:
    """Two exchanges: the sums behind every part of every month, then who has too large a share of them.

    The groups get the sums back, so that each can say whether its share is too large.
    """
    parts, none, sums = max(folds, 1), np.zeros((0, 0)), {}
    shapes = {
        "visits": (parts, L),
        "sites": (parts, L),
        "groups": (parts, L),
        "over": (parts, L),
        "regions": (regions + 1, 3),
    }
    ask = msg.Support(by, folds, seed, share, none, none, none, none)
    # The second time with the sums: each group then says where its own share is too large, and no more.
    for _ in range(2):
        (answers,) = link.ask([ask])
        sums = {name: total(answers, name, shape) for name, shape in shapes.items()}
        ask = replace(
            ask, visits=sums["visits"], sites=sums["sites"], groups=sums["groups"],
            regions=np.ascontiguousarray(sums["regions"][:, :2]),
        )  # fmt: skip
    return sums


def _released(
    link: Link, share: float, axes: msg.Axes, contributors: int
) -> tuple[Bool, tuple[str, ...], F64, dict[str, I64]]:
    """Months and regions whose sums over groups may be released; visits of released months; which months each rule loses."""
    L, minimum, regions = int(axes.months.size), axes.minimum, axes.regions
    sums = _support(link, share, L, len(regions))
    rules = {
        f"fewer visits or sites, or fewer than {contributors} organisations": releasable(
            sums["visits"], sums["sites"], sums["groups"], minimum, contributors
        ),
        "too large a share of the visits": (sums["over"] == 0).all(axis=0),
    }
    months, lost = np.ones(L, dtype=bool), {}
    for name, rule in rules.items():
        lost[name] = np.flatnonzero(months & ~rule)
        months &= rule
    sites, groups, over = sums["regions"].T
    keep = kept_regions(sites, groups, over, minimum, contributors)
    names = tuple(regions[i - 1] for i in keep)
    # A single region would give the rest of the whole away as a difference.
    return months, names if len(names) >= FEWEST_REGIONS else (), sums["visits"].sum(axis=0) * months, lost


def released_months(link: Link, panel: Panel, *, by: str, folds: int, seed: int) -> np.ndarray:
    """Months (L,) that take part in cross-validation, 1 or 0: every fold's part may be released. Empty for all months."""
    if not panel.least:
        return np.zeros(0, np.uint8)
    sums = _support(
        link,
        panel.share,
        panel.L,
        len(panel.regions),
        by=by,
        folds=folds,
        seed=seed,
    )
    months = releasable(sums["visits"], sums["sites"], sums["groups"], panel.least, panel.contributors)
    months &= (sums["over"] == 0).all(axis=0)
    if not (months & (sums["visits"].sum(axis=0) > 0)).any():
        raise ConfigError(
            f"no month has {panel.least} visits and sites, and {panel.contributors} groups, in each of {folds} "
            "folds: nothing is left to choose "
            "a model by. Use fewer folds, a lower least number, or name rank and model."
        )
    out: np.ndarray = months.astype(np.uint8)
    return out
