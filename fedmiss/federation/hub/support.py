"""What is behind sums over groups: which months, parts of folds and regions may be released (``federation.rules``)."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from fedmiss.arrays import F64, I64, Bool
from fedmiss.errors import ConfigError, listed
from fedmiss.federation import messages as msg
from fedmiss.federation.hub.state import Panel
from fedmiss.federation.link import Link, total
from fedmiss.federation.rules import (
    COLUMNS,
    VISITS_OF_A_FOLD,
    behind,
    followed,
    kept_effort,
    kept_regions,
    releasable,
)

FEWEST_REGIONS = 2
MOST_PAIRS = 0.5  # share of the pairs of months without enough sites, above which no factor is tried
SHARED = 2  # groups with a part in a number, at least, that none of them knows
SEVERAL = 2  # sites of a group with finds of two species, at least
JUNE = 6  # where an import puts yearly counts


@dataclass(frozen=True, slots=True, eq=False)
class Released:
    """Axes that groups have agreed on, and their answers to these.

    Under joint least numbers also ``out``, the number of visits left out; the visits (L,) ``behind`` released months;
    which months (places) each rule has ``lost``; whether ``enough`` stand behind new observers, and behind observers (2,);
    and whether all groups but one have ``few`` sites for the months (or visits), and few visited ones for patterns (2,).
    """

    axes: msg.Axes
    done: dict[str, msg.Answer]
    out: int = 0
    behind: F64 = field(default_factory=lambda: np.zeros(0))
    lost: dict[str, I64] = field(default_factory=dict)
    enough: Bool = field(default_factory=lambda: np.ones(2, dtype=np.bool_))
    few: Bool = field(default_factory=lambda: np.zeros(2, dtype=np.bool_))


def release_jointly(
    link: Link, axes: msg.Axes, share: float, contributors: int, notes: list[str]
) -> Released:
    """Agree on the axes, without months, regions and effort terms that have too few visits behind them.

    Groups count again without the months that are left out, then the regions, then effort, until none is: a group whose
    other visits are too few for its own rule brings none then, and what a region rests on are its sites of released months,
    with those that a group keeps in none because too few are outside all regions.
    """
    months, before, wanted = np.ones(axes.months.size, dtype=bool), -1, axes
    lost: dict[str, I64] = {}
    while True:
        done, sums = _support(link, share, months.size, len(axes.regions), axes)
        before = _held(done) if before < 0 else before
        fine = months.copy()
        for name, rule in _rules(sums, axes.minimum, contributors).items():
            lost[name] = np.append(lost.get(name, np.zeros(0, np.int64)), np.flatnonzero(fine & ~rule))
            fine &= rule
        effort = kept_effort(sums["effort"], axes.terms, axes.blanks, axes.minimum, contributors)
        if (fine != months).any():
            months = fine
            axes = replace(axes, released=months.astype(np.uint8))
        elif (names := _regions(sums, axes, contributors)) != axes.regions:
            axes = replace(axes, regions=names)
        elif effort[:2] != (axes.terms, axes.blanks):
            axes = replace(axes, terms=effort[0], blanks=effort[1])
        else:
            break
    few = f"fewer than {axes.minimum} sites or {contributors} groups, or too many sites of one"
    if lost_terms := [term for term in wanted.terms if term not in axes.terms]:
        notes.append(
            f"effort is left out where its values differ at {few}, beside what the month and other terms tell, or are of "
            f"few habits: {listed(lost_terms, 3)}."
        )
    if filled := [term for term in wanted.blanks if term in axes.terms and term not in axes.blanks]:
        notes.append(
            f"visits without {listed(filled, 3)} count as the mean of their group's others, or as the standard visit where "
            f"it has none: those that another column does not tell of are at {few}."
        )
    for place, who in ((2, "observers who are new"), (3, "observers, who can be told from the site,")):
        if sums["effort"][place - 4, 0] and not effort[place]:
            notes.append(
                f"effects of {who} are not used: they are at {few}, or too few{', or of few habits' if place == 2 else ''}."
            )
    out = before - _held(done)
    if out:
        notes.append(
            f"{out:,} visits were withheld: their {int((~months).sum())} {steps(axes.months)} have fewer than "
            f"{axes.minimum} visits or sites of all groups together, fewer than {contributors} groups, or one with over "
            f"{share:.0%} of the visits or all sites but three."
        )
    visits = sums["visits"].sum(axis=0) * months
    places = {k: np.sort(at) for k, at in lost.items()}
    return Released(axes, done, out, visits, places, np.array(effort[2:]), sums["few"] > 0)


def steps(months: I64) -> str:
    """Return what the months are called: those of a table of years are all June."""
    return "years" if (months % 12 == JUNE - 1).all() else "months"


def _held(done: dict[str, msg.Answer]) -> int:
    """Visits that take part, and those that groups withhold by their own rule."""
    return sum(answer.used + answer.withheld for answer in done.values() if isinstance(answer, msg.Done))


def _support(
    link: Link,
    share: float,
    L: int,
    regions: int,
    axes: msg.Axes | None = None,
    *,
    by: str = "",
    folds: int = 0,
    seed: int = 0,
) -> tuple[dict[str, msg.Answer], dict[str, F64]]:
    """Two exchanges: the sums behind every part of every month, then who has too large a share of them.

    The groups get the sums back, so that each can say whether its share is too large. With ``axes`` they are put on these
    first; their answers to that are returned too.
    """
    parts, none, sums = max(folds, 1), np.zeros((0, 0)), {}
    shapes = {
        "visits": (parts, L),
        "sites": (parts, L),
        "groups": (parts, L),
        "over": (parts, L),
        "regions": (regions + 1, 3),
        "few": (2,),
        "effort": (0, 3)
        if axes is None
        else (len(axes.terms) + len(axes.blanks) + 2, 3),  # and two of observers
    }
    ask = msg.Support(by, folds, seed, share, none, none, none, none, none)
    first = [] if axes is None else [axes]
    done: dict[str, msg.Answer] = {}
    # The second time with the sums: each group then says where its own share is too large, and no more.
    for before in (first, []):
        *put, answers = link.ask([*before, ask])
        done = put[0] if put else done
        sums = {name: total(answers, name, shape) for name, shape in shapes.items()}
        ask = replace(
            ask, visits=sums["visits"], sites=sums["sites"], groups=sums["groups"],
            regions=np.ascontiguousarray(sums["regions"][:, :2]), effort=np.ascontiguousarray(sums["effort"][:, 0]),
        )  # fmt: skip
    return done, sums


def _rules(sums: dict[str, F64], minimum: int, contributors: int) -> dict[str, Bool]:
    """Of each rule the months (L,) that keep it."""
    return {
        f"fewer visits or sites, or fewer than {contributors} organisations": releasable(
            sums["visits"], sums["sites"], sums["groups"], minimum, contributors
        ),
        "too large a share of the visits": (sums["over"] == 0).all(axis=0),
    }


def _regions(sums: dict[str, F64], axes: msg.Axes, contributors: int) -> tuple[str, ...]:
    """Regions whose sums over groups may be released."""
    sites, groups, over = sums["regions"].T
    keep = kept_regions(sites, groups, over, axes.minimum, contributors)
    # A single region would give the rest of the whole away as a difference.
    return tuple(axes.regions[i - 1] for i in keep) if len(keep) >= FEWEST_REGIONS else ()


def released_months(link: Link, panel: Panel, *, by: str, folds: int, seed: int) -> np.ndarray:
    """Months (L,) that take part in cross-validation, 1 or 0: every fold's part may be released. Empty for all months."""
    if not panel.least:
        return np.zeros(0, np.uint8)
    question = ("released", panel.L, panel.visits, by, folds, seed)
    if question in link.known:
        known: np.ndarray = link.known[question]
        return known
    _, sums = _support(
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
            f"folds, or without one group a fold holds out fewer than {VISITS_OF_A_FOLD} visits in all: nothing is left to "
            "choose a model by. Use fewer folds, a lower least number, or name rank and model."
        )
    out: np.ndarray = months.astype(np.uint8)
    link.known[question] = out
    return out


def release_pairs(link: Link, panel: Panel, months: I64) -> tuple[Panel, list[str]]:
    """Find the pairs of months whose products of residuals may be released, which factors begin with; what to say of it.

    A product of two months is a sum over the sites that were visited in both, and from those of a single site its counts
    follow (``tests/attacks/test_products.py``). So pairs that follow from the products keep the rule of months.
    """
    if not panel.patterns:
        return panel, [
            f"no pattern is fitted: without one of them, the organisations visited {COLUMNS} sites or fewer in the mean of "
            f"the {steps(months)}, and the sums that begin a pattern would tell single counts."
        ]
    sites, groups = _behind_pairs(link, panel.L, panel.least)
    some = groups > 0
    few = some & ~behind(sites, groups, panel.least, panel.contributors)
    few &= followed(groups >= SHARED, COLUMNS)
    share = float(few.sum() / max(some.sum(), 1))
    if few.any():
        panel = replace(panel, pairs=np.where(few, np.uint8(0), np.uint8(1)), patterns=share <= MOST_PAIRS)
    if panel.patterns:
        return panel, []
    note = (
        f"no pattern is fitted: of the pairs of {steps(months)} that sites were visited in, {share:.0%} have fewer than "
        f"{panel.least} such sites or {panel.contributors} groups (limit {MOST_PAIRS:.0%}; what an organisation's own rule "
        "leaves out does not count): sums of so few would tell single counts."
    )
    return panel, [note]


def sites_with_both(least: int, contributors: int) -> int:
    """Sites with finds of two species that an organisation has at least behind their pair."""
    return max(SEVERAL, -(-least // contributors))


def release_pairs_of_finds(link: Link, panel: Panel) -> Panel:
    """Find the pairs of species of a community whose products of residuals may be released.

    A product of two rare species is the sum of their birds at sites where both were found, less little
    (``tests/attacks/test_finds.py``). Enough groups need finds of both at several sites each, as many as make the least
    number together: what they say of fewer would tell the finds themselves.
    """
    _, groups = _behind_pairs(link, panel.L, sites_with_both(panel.least, panel.contributors))
    enough = groups >= panel.contributors
    pairs = np.where(enough | np.eye(panel.L, dtype=bool), np.uint8(1), np.uint8(0))
    return replace(panel, pairs=pairs, patterns=bool(enough.any()))


def _behind_pairs(link: Link, L: int, most: int) -> tuple[F64, F64]:
    """Sites (up to ``most`` of each group) and groups behind two months, (L, L) each with a diagonal of zeros."""
    at = np.tril_indices(L, -1)
    (answers,) = link.ask([msg.Pairs(most)])
    sites, groups = np.zeros((2, L, L))
    for whole, name in ((sites, "sites"), (groups, "groups")):
        whole[at] = whole[at[::-1]] = total(answers, name, (at[0].size,))
    return sites, groups
