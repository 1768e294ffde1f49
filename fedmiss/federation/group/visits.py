"""What a group holds: its visits, by its own numbering of sites, and the axes that the groups agreed on."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from fedmiss.arrays import F64, I32, I64, Bool, distinct, pairs, stable_order
from fedmiss.errors import InputError, listed
from fedmiss.federation.keys import keyed_hashes, seed_key
from fedmiss.federation.rules import LARGEST_COUNT
from fedmiss.seasons import years_of

EFFORT_TERMS = ("duration", "distance", "observers")
TO_LEARN = 50.0  # visits in which what an observer lacks in experience falls to a third


@dataclass(frozen=True, slots=True)
class Visits:
    """All visits of one group, X counts included, in any order.

    Attributes
    ----------
    species : scientific name, empty when unknown
    site_id : (J,) texts            ids of the group's sites, unique; visited or not
    region : (J,) texts             region of each site, empty for none
    site : (m,) int32               row of ``site_id``
    month : (m,) int64              12 year + month - 1; without a calendar a number from 0
    count : (m,) float64            birds, NaN where present but not counted (X)
    detected : (m,) bool
    observer : (m,) int32           local numbering
    effort : (m, 3) float64         minutes, km, observers; NaN where unknown. Or (m, K) covariates that are 0 at standard
        effort, when ``given`` is set
    weight : (m,) float64           prior weight of the visit
    checklist : (m,) texts or None  ids, for finding checklists that two groups of a person hold
    exposure : (m,) float64 or None how many standard visits a row sums, above 0; None for 1
    calendar : whether ``month`` is a calendar month
    covariates : name -> (J,) of the sites, NaN for a gap; categories as columns of 0 and 1 (``features.expanded``)
    frame : whether sites that nobody visited stand for an area, so that totals of the visited ones are wanted too
    chosen : whether sites are here because the species was found there, so that counts are above what is expected
    observer_id : (n,) texts        id of every observer, which keys its weights in replicates; None for its number
    """

    site_id: np.ndarray
    site: I32
    month: I64
    count: F64
    detected: np.ndarray
    observer: I32
    effort: F64
    weight: F64
    region: np.ndarray
    species: str = ""
    checklist: np.ndarray | None = None
    exposure: F64 | None = None
    given: bool = False
    calendar: bool = True
    covariates: Mapping[str, F64] = field(default_factory=dict)
    frame: bool = False
    chosen: bool = False
    observer_id: np.ndarray | None = None

    @property
    def who(self) -> np.ndarray:
        """Ids (n,) of the observers, or their numbers."""
        numbers = np.arange(self.observer.max(initial=-1) + 1)
        return numbers.astype(str).astype(object) if self.observer_id is None else self.observer_id

    def take(self, keep: np.ndarray) -> Visits:
        """Return some of the visits; sites and observers keep their numbers."""
        return replace(
            self,
            site=self.site[keep],
            month=self.month[keep],
            count=self.count[keep],
            detected=self.detected[keep],
            observer=self.observer[keep],
            effort=self.effort[keep],
            weight=self.weight[keep],
            checklist=None if self.checklist is None else self.checklist[keep],
            exposure=None if self.exposure is None else self.exposure[keep],
        )


def digest_of(visits: Visits) -> bytes:
    """Digest of all that a group holds: a journal is of one state of the data."""
    digest = hashlib.blake2b(digest_size=16)
    for f in fields(visits):
        value = getattr(visits, f.name)
        for name, part in value.items() if isinstance(value, Mapping) else [(f.name, value)]:
            if isinstance(part, np.ndarray):
                part = part.tolist() if part.dtype == object else part.tobytes()
            raw = part if isinstance(part, bytes) else repr(part).encode()
            digest.update(f"{name} {len(raw)} ".encode() + raw)
    return digest.digest()


@dataclass(frozen=True, slots=True)
class Axis:
    """The agreed axes: ``months`` (L,), effort ``terms`` and which of them have ``blanks``, names of ``regions``."""

    months: I64
    terms: tuple[str, ...] = ()
    blanks: tuple[str, ...] = ()
    detections: bool = False
    minimum: int = 0
    regions: tuple[str, ...] = ()
    L: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "L", int(self.months.size))

    def index(self, month: I64, name: str) -> I32:
        """Columns of the given months; a month outside the axis is an error of the agreement."""
        at = np.searchsorted(self.months, month)
        at = np.minimum(at, self.L - 1)
        wrong = self.months[at] != month
        if wrong.any():
            raise InputError(
                f"group {name!r}: a visit in month {int(month[wrong][0])} is outside the agreed months. "
                "Make the panel again."
            )
        return at.astype(np.int32)

    @property
    def year(self) -> I64:
        """Years (L,) from that of the first month on."""
        year = years_of(self.months)
        return year - year[:1]

    def years(self, calendar: bool) -> I64:
        """Year 0, 1, ... of every month: those of the season, or twelve months each."""
        if not calendar:
            return np.arange(self.L, dtype=np.int64) // 12
        return np.unique(years_of(self.months), return_inverse=True)[1].astype(np.int64)


def deal_sites(visited: Mapping[str, np.ndarray], J: int) -> dict[str, I64]:
    """Rows of the panel's ``J`` sites that each group holds: those it visited; the first by name also those nobody did."""
    mine = {name: distinct(site).astype(np.int64) for name, site in visited.items()}
    lone = np.ones(J, dtype=bool)
    for at in mine.values():
        lone[at] = False
    first = min(mine)
    mine[first] = np.union1d(mine[first], np.flatnonzero(lone))
    return mine


def unite(
    held: Mapping[str, Visits],
    at: Mapping[str, I64],
    J: int,
    *,
    duplicates: bool = False,
    most: int | None = None,
) -> tuple[dict[str, Visits], dict[str, I64], dict[str, list[str]], int]:
    """Make one group of those of a person's groups that share sites, directly or through others.

    Who holds all visits of a site solves it once, so that no sums by site travel between groups. Observers stay those of
    their groups.

    Parameters
    ----------
    held, at : visits of each group, and the rows of its sites among ``J`` sites
    duplicates : whether a checklist that several groups hold counts in the first by name only
    most : so many groups at most, of each kind; others are made one too, since every group costs time in every round

    Returns
    -------
    visits and rows of each united group, by the names of the groups in it; these names; how many visits were left out as
    duplicates
    """
    names, kept, dropped = sorted(held), dict(held), 0
    seen = np.zeros(0, dtype=np.uint64)
    for name in names if duplicates else ():
        ids = held[name].checklist
        if ids is None:
            continue
        hashes = keyed_hashes(ids, seed_key("checklist"))
        twice = np.isin(hashes, seen)
        if twice.any():
            kept[name], dropped = held[name].take(~twice), dropped + int(twice.sum())
        seen = np.union1d(seen, hashes)
    # A graph of groups and sites: the groups of a component share sites.
    group = np.repeat(np.arange(len(names)), [at[name].size for name in names])
    site = len(names) + np.concatenate([at[name] for name in names])
    n = len(names) + J
    _, label = connected_components(
        coo_array((np.ones(site.size), (group, site)), shape=(n, n)), directed=False
    )
    parts: dict[tuple[object, ...], list[str]] = {}
    for name, component in zip(names, label.tolist(), strict=False):
        one = kept[name]
        # Groups of another kind than the others stay apart: the agreement refuses them by name.
        kind = (one.species, one.given, one.calendar, one.effort.shape[1])
        parts.setdefault((component, *kind), []).append(name)
    alike: dict[tuple[object, ...], list[list[str]]] = {}
    for of_what, part in parts.items():
        alike.setdefault(of_what[1:], []).append(part)
    united, rows, members = {}, {}, {}
    for part in (part for some in alike.values() for part in _dealt(some, most or len(some))):
        name = listed(part, 3)
        members[name], rows[name] = part, distinct(np.concatenate([at[one] for one in part])).astype(np.int64)
        united[name] = (
            kept[part[0]]
            if len(part) == 1
            else _together([kept[one] for one in part], [at[one] for one in part])
        )
    return united, rows, members, dropped


def _dealt(parts: list[list[str]], most: int) -> list[list[str]]:
    """The parts, neighbours joined so that there are at most ``most``."""
    size = -(-len(parts) // most)  # rounded up
    return [[name for part in parts[i : i + size] for name in part] for i in range(0, len(parts), size)]


def _together(groups: list[Visits], at: list[I64]) -> Visits:
    """The visits of several groups as those of one; ``at`` rows of their sites in a common list."""
    mine, first = np.unique(np.concatenate(at), return_index=True)
    # Observers are numbered within a group: shift them, so that two groups' first observers stay two.
    who = [one.who for one in groups]
    shift = np.cumsum([0] + [ids.size for ids in who[:-1]]).astype(np.int32)
    place = [np.searchsorted(mine, rows) for rows in at]

    def joined(name: str) -> Any:
        return np.concatenate([getattr(one, name) for one in groups])

    def of_sites(name: str) -> F64:
        out = np.full(mine.size, np.nan)
        for one, rows in zip(groups, place, strict=True):
            column = one.covariates.get(name, np.full(rows.size, np.nan))
            out[rows[~np.isnan(column)]] = column[~np.isnan(column)]
        return out

    standard = [np.ones(one.site.size) if one.exposure is None else one.exposure for one in groups]
    return Visits(
        site_id=joined("site_id")[first],
        site=np.concatenate([rows[one.site] for one, rows in zip(groups, place, strict=True)]).astype(
            np.int32
        ),
        month=joined("month"),
        count=joined("count"),
        detected=joined("detected"),
        observer=np.concatenate([one.observer + n for one, n in zip(groups, shift, strict=True)]),
        effort=joined("effort"),
        weight=joined("weight"),
        region=joined("region")[first],
        species=groups[0].species,
        exposure=None if all(one.exposure is None for one in groups) else np.concatenate(standard),
        given=groups[0].given,
        calendar=groups[0].calendar,
        covariates={
            name: of_sites(name) for name in dict.fromkeys(n for one in groups for n in one.covariates)
        },
        frame=any(one.frame for one in groups),
        chosen=any(one.chosen for one in groups),
        observer_id=np.concatenate(who),
    )


def effort_columns(raw: F64, terms: tuple[str, ...], blanks: tuple[str, ...]) -> F64:
    """Effort covariates (m, K), all zero for a standard visit: one hour, standing still, one observer.

    duration: log(minutes / 60); distance: log(1 + km); observers: log(people). A term that some visit lacks gets a second
    column that marks those visits, so that they are compared with each other and not with an hour. Where too few stand
    behind that column, the term is not among ``blanks``: such visits have the mean of the group's others.
    """
    columns: list[F64] = []
    for term in terms:
        x = raw[:, EFFORT_TERMS.index(term)]
        if term == "duration":
            x = np.log(np.clip(x, 1.0, None) / 60.0)
        elif term == "distance":
            x = np.log1p(np.clip(x, 0.0, None))
        else:
            x = np.log(np.clip(x, 1.0, None))
        blank = np.isnan(x)
        usual = 0.0 if term in blanks or blank.all() else float(x[~blank].mean())
        columns.append(np.where(blank, usual, x))
        if term in blanks:
            columns.append(blank.astype(float))
    return np.column_stack(columns) if columns else np.zeros((len(raw), 0))


def experience(observer: I32, site: I32, month: I64, months: I64) -> tuple[F64, Bool]:
    """What a visit's observer lacks in experience, and how late the observer's visits are (m, 2); two columns of effort.

    Lacking is -exp(-n / TO_LEARN), n the observer's earlier visits; towards 0. Nothing is lacking for observers who were
    there in the first year of the axis ``months``, of whom nobody knows how long they had counted, and for those of one
    site: what they learn cannot be told from how the site changed (in a table without observers they are the sites).
    Visits of one month have no order: each has the mean of their numbers.

    How late: mean year of the observer's visits, from the middle of the axis. Effects of observers are drawn to one mean,
    so that observers of whom each is better than the last would make a trend (Mundlak, Econometrica 1978).

    And whether its observer can be told from the site (m,), by other sites or observers; else neither column does anything.
    """
    out = np.zeros(observer.size)
    if not observer.size:
        return np.zeros((0, 2)), out > 0
    pair, n_sites = pairs(observer, site)
    sites, observers = (np.bincount(part) for part in divmod(distinct(pair), n_sites))
    # In the order of observer and month, so that the number of earlier visits is a place in the list.
    key, n_months = pairs(observer, month - month.min())
    order = stable_order(key)
    key = key[order]
    cell = np.flatnonzero(np.r_[True, key[1:] != key[:-1]])  # first visit of each observer and month
    size = np.diff(np.r_[cell, key.size])
    who, when = divmod(key[cell], n_months)
    begins = np.r_[True, who[1:] != who[:-1]]
    start = np.flatnonzero(begins)[np.cumsum(begins) - 1]  # first month of the cell's observer
    # Visits of one month share the middle of their places.
    n = cell + (size - 1) / 2 - cell[start]
    known = (when[start] + month.min() < months[0] + 12) | (sites[who] < 2)
    # The columns that effort's coefficients multiply ("New observers learn" of the guide's model page).
    out[order] = np.repeat(np.where(known, 0.0, -np.exp(-n / TO_LEARN)), size)
    apart = (sites[observer] > 1) | (observers[site] > 1)
    mean = np.bincount(observer, month) / np.maximum(np.bincount(observer), 1)
    late = np.where(apart, mean[observer] - months.mean(), 0.0) / 12.0
    return np.column_stack([out, late]), apart


@dataclass(frozen=True, slots=True)
class IncludedVisits:
    """The visits that take part, sorted by (site, month), on the agreed axes.

    ``experience`` (m, 2) and ``apart`` (m,) whether the observer can be told from the site: as :func:`experience`;
    ``exposure`` (m,) how many standard visits each sums; None: one.
    """

    site: I32
    month: I32
    stamp: I64
    count: F64
    observer: I32
    effort: F64
    weight: F64
    experience: F64
    apart: Bool
    exposure: F64 | None = None


def check_counts(
    name: str,
    visits: Visits,
    *,
    one: str = "in one visit",
    mend: str = "in the records, and make the panel again",
) -> None:
    """Refuse a count that is too large for a masked sum of squares; ``one``, ``mend``: of what, and where to correct it.

    Raises
    ------
    InputError    with site and count
    """
    many = visits.count > LARGEST_COUNT
    if many.any():
        at = int(np.argmax(many))
        raise InputError(
            f"{name!r} has a {one.split()[-1]} with {visits.count[at]:,.0f} birds at site "
            f"{visits.site_id[visits.site[at]]!r} (limit {LARGEST_COUNT:,} {one} of a study). Correct the count {mend}."
        )
