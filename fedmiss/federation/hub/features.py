"""Features of sites at the hub: the groups agree on their scales, and on which have enough sites behind them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from fedmiss.arrays import F64, I64, Bool
from fedmiss.errors import ConfigError, InputError, listed
from fedmiss.federation import messages as msg
from fedmiss.federation.hub.priors import FEWEST_BIRDS
from fedmiss.federation.hub.season import LEAST_YEARS
from fedmiss.federation.link import Link, total
from fedmiss.federation.messages_agree import LEVEL, PLACE
from fedmiss.federation.rules import SITES_OF_A_NUMBER, behind, crossed, kept_regions
from fedmiss.federation.triangle import from_triangle
from fedmiss.models.lowrank.structure import FEATURES, TOLD, UNTOLD

if TYPE_CHECKING:
    from fedmiss.federation.hub.state import Panel

MOST_COLUMNS = 60  # of covariates
OTHER_UNITS = 2  # powers of two between groups' largest values that are worth a word
UNVISITED = 0.1  # part of the sites from which no level follows means over visits
KNOTS, EXTENT = 6, 2.0  # a side of the smooth's grid, and its half width in deviations of the places


class Column(NamedTuple):
    """A feature: its block, the covariate or region that it is made of, and the value of a category that it stands for."""

    block: str
    of: str = ""
    level: str = ""
    squared: bool = False

    def __str__(self) -> str:
        return " ".join(
            text for text in (self.of or self.block, self.level, "squared" * self.squared) if text
        )


@dataclass(frozen=True, slots=True, eq=False)
class SiteFeatures:
    """Features that the groups agreed on: ``columns`` of each block; their mean and covariance over the visited sites."""

    columns: dict[str, I64]
    made: tuple[Column, ...]
    centre: F64
    covariance: F64
    notes: tuple[str, ...] = ()

    def of(self, blocks: Sequence[str]) -> I64:
        """Columns of some blocks."""
        none = [np.zeros(0, dtype=np.int64)]
        out: I64 = np.concatenate(
            none + [self.columns[block] for block in FEATURES if block in blocks and block in self.columns]
        )
        return out


def agree_features(link: Link, panel: Panel, wanted: Sequence[str], *, strict: bool = False) -> Panel:
    """Agree on the features of sites: scales by sums over all groups, and which features have enough sites behind them.

    Parameters
    ----------
    wanted : blocks to make, of ``FEATURES``
    strict : whether a block that cannot be made is an error

    Raises
    ------
    ConfigError    too many covariates, or with ``strict`` a block that cannot be made
    """
    told = TOLD if panel.least else FEATURES
    if strict and (wrong := [block for block in wanted if block not in told]):
        raise ConfigError(
            f"{UNTOLD[wrong[0]]} is not told to other organisations. Leave the feature {wrong[0]} out of the model."
        )
    blocks = tuple(block for block in told if block in wanted)
    notes: list[str] = []
    visits = _ask_visits(link, panel) if "visits" in blocks else np.zeros(0)
    names, mean, deviation = _scales(link, panel, blocks, notes)
    placed = all(name in names for name in PLACE)
    plain = [covariate for covariate in names if covariate not in PLACE]
    able = {
        "visits": visits.size > 0,
        "covariates": bool(plain),
        "regions": len(panel.regions) > 1,
        "smooth": placed,
        "abundance": panel.calendar is not None,
        "times": panel.calendar is not None and np.unique(panel.calendar[1]).size > 1,
        "effort": panel.K > 0,
    }
    # columns that are left out for the least numbers are told in a note: no fault of the settings
    said = {"covariates"} if notes else set()
    if strict and (wrong := [block for block in blocks if not able[block] and block not in said]):
        raise ConfigError(WHY[wrong[0]])
    blocks = tuple(block for block in blocks if able[block])
    if not blocks:
        return replace(panel, features=SiteFeatures({}, (), np.zeros(0), np.zeros((0, 0)), tuple(notes)))
    side = np.linspace(-EXTENT, EXTENT, KNOTS)
    knots = np.array([(x, y) for x in side for y in side]) if "smooth" in blocks else np.zeros((0, 2))
    none = np.zeros(0)
    ask = msg.Features(
        blocks,
        tuple(names),
        mean,
        deviation,
        visits,
        knots,
        none,
        np.zeros(0, np.uint8),
        none,
        none,
        panel.share,
    )
    columns = [
        column
        for block in blocks
        for column in _columns(block, names, panel.regions, panel.K if block == "effort" else len(knots))
    ]
    u = len(columns)
    least, contributors = (panel.least, panel.contributors) if panel.least else (1, 1)
    sums: dict[str, F64] = {}
    # who has too large a share of the sums is said once they are known
    for _ in range(2 if panel.least else 1):
        (answers,) = link.ask([ask])
        sums = {name: total(answers, name, (u + 1,)) for name in ("behind", "groups", "over")}
        if "abundance" in blocks and not ask.level.size:
            ask = replace(ask, level=_levels_of_months(total(answers, "counted", (2, panel.L))))
        ask = replace(ask, behind=sums["behind"])
    kept = behind(sums["behind"], sums["groups"], least, contributors) & (sums["over"] == 0)
    kept = kept[:-1] & _levels(columns, sums, least, contributors)
    if panel.least:
        answers = _told(link, ask, kept, columns, least, contributors)
    else:
        # Sites of a region that nobody visited err together, by as much as regions differ.
        kept |= np.array([column.block == "regions" for column in columns]) & (sums["behind"][:-1] == 0)
        (answers,) = link.ask([replace(ask, kept=kept.astype(np.uint8))])
    lost = [str(columns[i]) for i in np.flatnonzero(~kept)]
    if lost and panel.least:
        notes.append(
            f"features that rest on, or differ at, fewer than {least} sites or {contributors} organisations, or are too "
            f"many for the sites of all but one, are left out: {listed(lost, 6)}."
        )
    k = int(kept.sum())
    visited = float(sums["behind"][-1])
    centre = total(answers, "sums", (k,)) / visited
    spread = from_triangle(total(answers, "products", (k * (k + 1) // 2,)), k) / visited
    # E f f' - E f E f' over visited sites, from sums over groups.
    spread -= np.outer(centre, centre)
    left = [columns[i] for i in np.flatnonzero(kept)]
    at = {
        block: np.array([i for i, column in enumerate(left) if column.block == block], dtype=np.int64)
        for block in blocks
    }
    # a site without a visit has no mean of its visits
    if not strict and visited < (1.0 - UNVISITED) * panel.J:
        at |= {block: np.zeros(0, dtype=np.int64) for block in ("times", "effort") if block in blocks}
    if "times" in blocks and not (np.diag(spread)[at["times"]] > 1e-12).any():
        at["times"] = np.zeros(0, dtype=np.int64)
        if strict and "times" in wanted and not notes:
            raise ConfigError(WHY["times"])
    return replace(panel, features=SiteFeatures(at, tuple(left), centre, spread, tuple(notes)))


WHY = {
    "visits": "the prior cannot follow how often sites were visited: all were visited equally often. Leave the feature "
    "visits out.",
    "covariates": "the sites have no covariates: give a table of them (fedmiss panel --site-table), or leave the feature "
    "covariates out.",
    "regions": "the sites have no regions, or one only: leave the feature regions out.",
    "abundance": f"sites have no slopes of their own without a calendar, or with {LEAST_YEARS} years or fewer: leave the "
    "feature abundance out.",
    "effort": "effort is not in the model: leave the feature effort out.",
    "times": "sites do not differ in the mean year of their visits, or months have no years: leave the feature times out.",
    "smooth": "the sites have no places that differ (latitude, longitude): leave the feature smooth out.",
}


def _columns(block: str, names: Sequence[str], regions: Sequence[str], number: int) -> list[Column]:
    """Columns of a block, in the order in which groups make them (:mod:`..group.features`)."""
    if block == "regions":
        return [Column(block, region) for region in regions]
    if block != "covariates":
        return [Column(block)] * (number if block in ("smooth", "effort") else 1)
    out: list[Column] = []
    for name in names:
        of, category, level = name.partition(LEVEL)
        if category:
            out.append(Column(block, of, level))
        elif name not in PLACE:
            out += [Column(block, of), Column(block, of, squared=True)]
    return out


def refuse_doubled(covariates: Iterable[str]) -> None:
    """Raise ConfigError where two columns that are made of covariates have one name, as X squared and the square of X."""
    made: dict[str, Column] = {}
    for column in _columns("covariates", tuple(covariates), (), 0):
        other = made.setdefault(str(column), column)
        if other is not column:
            raise ConfigError(
                f"{str(column)!r} names two things that are made of the sites' covariates, one of the column {other.of!r}, "
                f"one of {column.of!r}. Give one of these columns another name in the table of sites."
            )


def _levels_of_months(counted: F64) -> F64:
    """Mean counts (L + 1,) of a visit, in every month and in all, from weights and weighted counts (2, L)."""
    weights, birds = np.column_stack([counted, counted.sum(axis=1)])
    birds[-1] = max(birds[-1], FEWEST_BIRDS)
    return np.asarray(birds / np.maximum(weights, 1e-9))


def _levels(columns: Sequence[Column], sums: dict[str, F64], least: int, contributors: int) -> Bool:
    """Values of a category that may have sums of their own: what is left of the category has enough sites as well."""
    kept = np.ones(len(columns), dtype=bool)
    categories: dict[str, list[int]] = {}
    for i, column in enumerate(columns):
        if column.level:
            categories.setdefault(column.of, []).append(i)
    if least <= 1:
        return kept
    for at in categories.values():
        rest = max(float(sums["behind"][-1]) - float(sums["behind"][at].sum()), 0.0)
        some = kept_regions(
            np.r_[rest, sums["behind"][at]], np.r_[contributors, sums["groups"][at]], np.r_[0.0, sums["over"][at]],
            least, contributors,
        )  # fmt: skip
        kept[[i for place, i in enumerate(at) if place + 1 not in some]] = False
    return kept


def _told(
    link: Link, ask: msg.Features, kept: Bool, columns: Sequence[Column], least: int, contributors: int
) -> dict[str, msg.Answer]:
    """Sums of the features that are kept, without those that differ at too few sites from what others make of them.

    A difference of sums would be these sites' own: of two heights, or of three categories, that agree elsewhere. So would a
    product be: of a habitat and a region that have one site together. ``kept`` is changed, one at a time, since what follows
    it may differ at more sites without it.
    """
    u = kept.size
    kinds = ["regions" if c.block == "regions" else c.of + LEVEL if c.level else "" for c in columns]
    region = np.array([kind == "regions" for kind in kinds])
    apart = together = np.zeros(0)
    while True:
        (answers,) = link.ask([replace(ask, kept=kept.astype(np.uint8), behind=apart, cells=together)])
        sums = {name: total(answers, name, (u + 1,)) for name in ("behind", "groups", "over")}
        fine = behind(sums["behind"], sums["groups"], least, contributors) & (sums["over"] == 0)
        at = np.flatnonzero(kept)
        crossings = crossed([kinds[i] for i in at])
        cells = total(
            answers, "cells", (sum((one.size + 1) * (other.size + 1) for one, other in crossings), 3)
        )
        if (thin := np.flatnonzero(kept & ~fine[:-1])).size:
            # What the features before it tell at every site takes nothing from those that follow.
            kept[thin[0]] = kept[thin[sums["behind"][thin] == 0]] = False
            apart = together = np.zeros(0)
        elif (value := _thinly_crossed(cells, crossings, region[at], least, contributors)) is not None:
            kept[at[value]] = False
            apart = together = np.zeros(0)
        elif apart.size:
            return answers
        else:
            apart, together = sums["behind"], cells[:, 0]


def _thinly_crossed(
    cells: F64, crossings: Sequence[tuple[I64, I64]], region: Bool, least: int, contributors: int
) -> int | None:
    """Find a value that too few sites have together with one of another category: its column.

    It is the later category's, but of regions, which reports have trends of, the value that crosses them.
    """
    first = 0
    for one, other in crossings:
        shape = one.size + 1, other.size + 1
        sites, groups, over = (x.reshape(shape) for x in cells[first : first + shape[0] * shape[1]].T)
        first += shape[0] * shape[1]
        thin = (sites > 0) & ~(behind(sites, groups, least, contributors) & (over == 0))
        if not region[other].any():
            one, sites, thin = other, sites.T, thin.T
        if thin[:-1].any():
            return int(one[np.argmax(thin[:-1].any(axis=1))])
        if thin.any():  # of the sites with none of the values: those with the rarest one join them
            return int(one[np.argmin(sites[:-1].sum(axis=1))])
    return None


def _scales(link: Link, panel: Panel, blocks: Sequence[str], notes: list[str]) -> tuple[list[str], F64, F64]:
    """Names, means and standard deviations of the covariates that are needed and vary."""
    known = panel.covariates
    names = [
        name
        for name in known
        if (name in PLACE and "smooth" in blocks) or (name not in PLACE and "covariates" in blocks)
    ]
    wide = sum(1 if LEVEL in name else 2 for name in names if name not in PLACE)
    if wide > MOST_COLUMNS:
        raise ConfigError(
            f"the sites' covariates make {wide} features (a number makes two, a category one for each value); at most "
            f"{MOST_COLUMNS} are possible. Leave the least useful columns out of the table."
        )
    if panel.least and names:
        none = sites = np.zeros(0)
        whole = np.ones(len(names), bool)
        # twice: whether the others of an organisation have few is said once the number of all is known
        for _ in range(2):
            (answers,) = link.ask([msg.Covariates(tuple(names), none, sites)])
            sites, organisations, few, more = total(answers, "sums", (len(names), 4)).T
            whole &= more > 0  # who has other numbers than 0 and 1 need not be whose others have few
        enough = behind(sites, organisations, panel.least, panel.contributors) & (few == 0) & ~whole
        if lost := [name for name, fine in zip(names, enough, strict=True) if not fine]:
            notes.append(
                f"too few sites (least number: {panel.least}; of the others of any organisation, in a number, "
                f"{max(panel.least, SITES_OF_A_NUMBER)}) or organisations ({panel.contributors}) have, or differ in, "
                f"{listed(lost, 6)}: left out."
            )
        names = [name for name in names if name not in lost]
    if not names:
        return [], np.zeros(0), np.zeros(0)
    unit = np.array([2.0 ** known[name] for name in names])
    (answers,) = link.ask([msg.Covariates(tuple(names), unit, np.zeros(0))])
    sums = total(answers, "sums", (len(names), 4))
    have = np.maximum(sums[:, 0], 1e-9)
    mean = sums[:, 1] / have
    deviation = np.sqrt(np.maximum(sums[:, 2] / have - mean**2, 0.0))
    varies = (sums[:, 0] > 1) & (deviation > 1e-6)
    for i, name in enumerate(names):
        if not varies[i]:
            notes.append(
                f"the covariate {name} is the same at all visited sites that have it; it is left out."
            )
        elif sums[i, 3] < panel.J and name not in PLACE:
            without = round(panel.J - sums[i, 3])
            have, they = ("has", "it counts") if without == 1 else ("have", "they count")
            notes.append(
                f"{without} of {panel.J:.0f} sites {have} no {name}; {they} as the mean of the others."
            )
    mean, deviation = mean * unit, deviation * unit
    if PLACE[0] in names:
        at_line = names.index(PLACE[0])
        mean[at_line], deviation[at_line] = _across(mean[at_line], deviation[at_line])
    at = np.flatnonzero(varies)
    return [names[i] for i in at], mean[at], deviation[at]


def _across(mean: float, deviation: float) -> tuple[float, float]:
    """Centre and deviation of longitudes: of places on both sides of the date line about it, without another sum.

    The squares of the distances from 180 degrees, 180 - |x|, have a mean of at most 180^2 - E x^2, since |x| is at most
    180: where that is below the variance, the places lie nearer together across the line. The mean distance is about 180
    less the root of E x^2.
    """
    square = mean**2 + deviation**2
    if 180.0**2 - square >= deviation**2:
        return mean, deviation
    return 180.0, max(180.0 - square**0.5, 0.01)


def _ask_visits(link: Link, panel: Panel) -> F64:
    """Mean and deviation over visited sites of log(visits + 1/2)."""
    none = np.zeros(0)
    (answers,) = link.ask([msg.SiteVisits()])
    first, second, sites = total(answers, "sums", (3,))
    first, second = first / max(sites, 1.0), second / max(sites, 1.0)
    variance = second - first**2
    return np.array([first, variance**0.5]) if variance > 1e-6 else none


def covariates_of(
    groups: dict[str, msg.Description], notes: list[str], *, jointly: bool = False
) -> dict[str, int]:
    """Names of the covariates of all groups with the power of two that all values stay below; says who lacks which.

    Between organisations nobody is named: notes stand in a report that others read.
    """
    out: dict[str, int] = {}
    least: dict[str, int] = {}
    for name, given in groups.items():
        if len(given.site_covariates) != given.magnitudes.size:
            raise InputError(
                f"group {name!r} described its covariates wrongly. Install the same fedmiss everywhere."
            )
        for covariate, magnitude in zip(given.site_covariates, given.magnitudes.tolist(), strict=True):
            out[covariate], least[covariate] = (
                max(out.get(covariate, magnitude), magnitude),
                min(least.get(covariate, magnitude), magnitude),
            )
    columns = {covariate.split(LEVEL)[0] for covariate in out}
    for name, given in groups.items():
        missing = sorted(
            columns - {covariate.split(LEVEL)[0] for covariate in given.site_covariates} - set(PLACE)
        )
        if missing:
            who = "an organisation" if jointly else f"group {name!r}"
            what = listed([repr(covariate) for covariate in missing], 4)
            said = f"{who} has no covariate {what}; its sites count as the mean of the others."
            notes += [said] if said not in notes else []
    for covariate in sorted(out):
        if (
            covariate not in PLACE
            and LEVEL not in covariate
            and out[covariate] - least[covariate] >= OTHER_UNITS
        ):
            notes.append(
                f"values of the covariate {covariate!r}: below {2.0 ** out[covariate]:,.15g} in one group and below "
                f"{2.0 ** least[covariate]:,.15g} in another; check that both give it in the same unit."
            )
    return dict(sorted(out.items()))
