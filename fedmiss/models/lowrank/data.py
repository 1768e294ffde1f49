"""What a group holds: its visits, which never leave it, and which of its cells are observed (Omega_c)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from fedmiss.arrays import F64, I32, I64, Bool
from fedmiss.errors import InputError
from fedmiss.notebook import card
from fedmiss.settings import kinds_checked

_MOST = np.iinfo(np.int32).max


def _floats(column: ArrayLike, name: str, label: str) -> F64:
    try:
        # Dates and complex numbers would become numbers, what a mask hides would be seen, and one number is no column.
        if np.asarray(column).dtype.kind in "mMc" or np.ma.is_masked(column) or not np.ndim(column):
            raise TypeError
        return np.asarray(column, dtype=float)
    except (TypeError, ValueError):
        raise InputError(f"group {name!r}: a {label} is no number; give a column of numbers only.") from None


def _numbers(column: ArrayLike, name: str, label: str, words: str, right: Callable[[F64], Bool]) -> F64:
    """Return a column as numbers; InputError for the first row whose number is not right, which ``words`` end."""
    value = _floats(column, name, label)
    if (bad := ~right(value)).any():
        at = int(np.argwhere(bad)[0][0])
        raise InputError(f"group {name!r}, visit {at}: the {label} is {value[bad][0]:g} ({words}.")
    return value


def _weights(column: ArrayLike, name: str) -> F64:
    words = "must be a number, 0 or more)"
    return _numbers(column, name, "weight", words, lambda x: np.isfinite(x) & (x >= 0))


def _indices(column: ArrayLike, name: str, label: str, low: int = -_MOST) -> I32:
    """Return a column of whole numbers; others would be cut to a number of another site, month or observer."""
    given: np.ndarray = np.asarray(column)
    if given.dtype.kind == "i" and given.itemsize <= 4 and not np.ma.is_masked(column):
        value, right = given, given >= low  # no other check: these are whole, and not too large
    else:
        value = _floats(column, name, label)
        right = (value >= low) & (value <= _MOST) & (value == np.rint(value))
    if not right.all():
        at = int(np.argwhere(~right)[0][0])
        raise InputError(
            f"group {name!r}, visit {at}: the {label} is {value[~right][0]:g}; give its number, from 0."
        )
    return value.astype(np.int32)


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """The counted visits of one group of observers, sorted by site then month.

    Attributes
    ----------
    name : str
    site, month : (m,) int32      cell of each visit
    count : (m,) float64          birds; 0/1 for the Bernoulli family
    observer : (m,) int32         0 .. n_observers-1, local numbering, never sent
    effort : (m, K) float64       effort covariates, 0 at standard effort (see fedmiss.federation.group.visits)
    weight : (m,) float64         prior weight of the visit, 1 by default
    checklist : (m,) texts or None   ids, where the same checklist may be in another group
    exposure : (m,) float64 or None  how many standard visits a row sums, 1 by default

    Examples
    --------
    >>> import fedmiss
    >>> a = fedmiss.Group.of("club a", [0, 0, 1, 1], [0, 1, 0, 1], [2.0, 4.0, 6.0, 12.0])
    >>> b = fedmiss.Group.of("club b", [2, 2], [0, 1], [1.0, 2.0])
    >>> panel = fedmiss.GroupPanel.of(3, 2, [a, b])
    >>> a.n_observers, float(a.count.sum())
    (1, 24.0)
    """

    name: str
    site: I32
    month: I32
    count: F64
    observer: I32
    effort: F64
    weight: F64
    checklist: np.ndarray | None = None
    exposure: F64 | None = None

    @classmethod
    def of(
        cls,
        name: str,
        site: Sequence[int] | I32 | I64,
        month: Sequence[int] | I32 | I64,
        count: Sequence[float] | F64,
        observer: Sequence[int] | I32 | I64 | None = None,
        effort: F64 | None = None,
        weight: F64 | None = None,
        checklist: np.ndarray | None = None,
        exposure: F64 | None = None,
    ) -> Group:
        """Sort visits by (site, month) and fill in what is not given.

        Raises
        ------
        InputError    columns of different lengths, sites or months that are no indices, a count, effort, weight or exposure
            that no fit can use
        """
        # many parameters: the columns of a table of visits, given by name
        if not isinstance(name, str):
            raise InputError(f"the name of a group is {name!r} (must be text).")
        sites, months = _indices(site, name, "site"), _indices(month, name, "month")
        counts = _numbers(count, name, "count", "must be a number); drop X counts first", np.isfinite)
        if not sites.shape == months.shape == counts.shape == (counts.size,):
            raise InputError(
                f"group {name!r}: {sites.size} sites, {months.size} months and {counts.size} counts differ in number, or "
                "are no plain columns."
            )
        m = counts.size
        who = np.zeros(m, np.int32) if observer is None else _indices(observer, name, "observer", low=0)
        efforts = np.zeros((m, 0))
        if effort is not None:
            efforts = _numbers(effort, name, "effort", "must be a number); leave the visit out", np.isfinite)
        weights, sums = np.ones(m) if weight is None else _weights(weight, name), None
        if exposure is not None:
            words = "must be a number above 0)"
            sums = _numbers(exposure, name, "exposure", words, lambda x: np.isfinite(x) & (x > 0))
        ids = None if checklist is None else np.asarray(checklist, dtype=object)
        if efforts.ndim != 2:
            raise InputError(
                f"group {name!r}: effort has the shape {efforts.shape}; give a row for each visit and a column for each "
                f"covariate, ({m}, K)."
            )
        given: dict[str, np.ndarray | None]
        given = {"observer": who, "effort": efforts, "weight": weights, "checklist": ids, "exposure": sums}
        for label, column in given.items():
            if column is not None and column.shape[: column.ndim if label != "effort" else 1] != (m,):
                raise InputError(
                    f"group {name!r}: {label} has the shape {column.shape}, and there are {m} counts; give one for each."
                )
        # By site, then month: solvers walk the visits of a site in one stretch, and a cell's visits stand together.
        at = np.lexsort((months, sites))
        given |= {"site": sites, "month": months, "count": counts}
        sorted_columns: dict[str, Any]
        sorted_columns = {label: None if column is None else column[at] for label, column in given.items()}
        return cls(name, **sorted_columns)

    @property
    def n_observers(self) -> int:
        """Number of observers (local numbering)."""
        return int(self.observer.max()) + 1 if self.observer.size else 0

    def reweighted(self, weight: F64) -> Group:
        """Return the same visits with other weights (folds, bootstrap); InputError where no fit can use them."""
        weight = _weights(weight, self.name)
        if weight.shape != self.count.shape:
            raise InputError(
                f"group {self.name!r}: weight has the shape {weight.shape}, and there are {self.count.size} counts; give "
                "one for each."
            )
        return replace(self, weight=weight)


def _taken(group: Group, keep: Bool) -> Group:
    """Some visits of a group."""
    columns = [name for name in Group.__dataclass_fields__ if name != "name"]
    given = {name: getattr(group, name) for name in columns}
    return replace(group, **{name: column[keep] for name, column in given.items() if column is not None})


def index_cells(site: I32, month: I32, J: int, L: int, *, by_visit: bool = False) -> tuple[I64, I32, I64]:
    """Index visits that are sorted by (site, month), or each as a cell of its own ``by_visit``.

    Returns
    -------
    (J + 1,) first cell of every site, (m,) cell of every visit, and the first visit of every cell
    """
    key = site.astype(np.int64) * L + month
    new = np.ones(key.size, dtype=bool)
    if key.size and not by_visit:
        np.not_equal(key[1:], key[:-1], out=new[1:])
    first = np.flatnonzero(new)
    ptr = np.zeros(J + 1, dtype=np.int64)
    np.cumsum(np.bincount(site[first], minlength=J), out=ptr[1:])
    return ptr, (np.cumsum(new) - 1).astype(np.int32), first


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class GroupPanel:
    """A panel as the solver sees it in process: J sites, L months and the groups, sorted by name.

    ``calendar`` is (month_of_year, year), each (L,), when the months are calendar months. ``site_id`` (J,) texts are the
    sites' own names (their numbers where there are none): folds and prior noise are keyed by them. ``region`` (J,) texts,
    empty for none. ``covariates``: name -> (J,) of the sites, numbers with NaN for a gap or texts with an empty one;
    ``longitude`` and ``latitude`` in degrees are their places.

    Examples
    --------
    >>> import fedmiss
    >>> a = fedmiss.Group.of("club a", [0, 0, 1, 1], [0, 1, 0, 1], [2.0, 4.0, 6.0, 12.0])
    >>> b = fedmiss.Group.of("club b", [2, 2], [0, 1], [1.0, 2.0])
    >>> panel = fedmiss.GroupPanel.of(3, 2, [a, b])
    >>> panel.J, panel.L, panel.m  # sites, months, visits
    (3, 2, 6)
    """

    J: int
    L: int
    groups: tuple[Group, ...]
    calendar: tuple[I64, I64] | None = None
    site_id: np.ndarray | None = None
    region: np.ndarray | None = None
    covariates: Mapping[str, np.ndarray] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"GroupPanel({self.J} sites x {self.L} months, {self.m} visits, groups {len(self.groups)})"

    def _repr_html_(self) -> str:
        """Show what the panel holds in a notebook."""
        years = "" if self.calendar is None else f"{self.calendar[1].min()} to {self.calendar[1].max()}"
        return card(
            "Panel of visits",
            {
                "sites x months": f"{self.J:,} x {self.L:,}",
                "years": years,
                "visits": self.m,
                "groups": tuple(group.name for group in self.groups),
                "covariates of sites": tuple(self.covariates),
            },
        )

    @classmethod
    @kinds_checked
    def of(
        cls,
        J: int,
        L: int,
        groups: Sequence[Group],
        calendar: tuple[I64, I64] | None = None,
        site_id: np.ndarray | None = None,
        region: np.ndarray | None = None,
        covariates: Mapping[str, np.ndarray] | None = None,
    ) -> GroupPanel:
        """Sort the groups by name: sums are taken in this order on every engine."""
        groups = tuple(groups)
        names = [group.name for group in groups]
        if len(set(names)) != len(names):
            raise InputError(f"two groups have the same name among {sorted(names)}; names must differ.")
        if not any(group.count.size for group in groups):
            raise InputError("no group has a counted visit: there is nothing to fit.")
        sizes: dict[str, Any] = {"sites": J, "months": L}
        for word, number in sizes.items():
            if number < 1:
                raise InputError(f"the panel has {number!r} {word} (must be a whole number, 1 or more).")
        if calendar is not None:
            shapes = [np.shape(part) for part in calendar] if np.iterable(calendar) else []
            if shapes != [(L,), (L,)]:
                raise InputError(
                    f"the calendar has parts of the shapes {shapes}, and the panel {L} months; give the months of the year "
                    f"and the years, each ({L},)."
                )
            given = np.array(calendar, dtype=float)
            if (odd := ~(np.isfinite(given) & (given == np.rint(given)))).any():
                raise InputError(f"the calendar has {given[odd][0]:g} (months and years are whole numbers).")
            calendar = given[0].astype(np.int64), given[1].astype(np.int64)
            if (odd := ~np.isin(calendar[0], np.arange(1, 13))).any():
                raise InputError(
                    f"the calendar has the month of the year {calendar[0][odd][0]} (must be 1 to 12); months come first, "
                    "then years."
                )
        # a data frame of them has no truth value, and its columns an index
        known = {
            name: np.asarray(column)
            for name, column in dict(() if covariates is None else covariates).items()
        }
        by_site = {f"the covariate {name!r}": column for name, column in known.items()}
        for name, column in {**by_site, "site_id": site_id, "region": region}.items():
            if column is not None and np.shape(column) != (J,):
                raise InputError(f"{name} has the shape {np.shape(column)}, the panel {J} sites.")
        for name, column in {**by_site, "region": region}.items():
            given = np.asarray("" if column is None else column)
            for at, value in enumerate(given.ravel() if given.dtype.kind not in "fiubUT" else ()):
                if not isinstance(value, str):  # None, dates and numbers as objects would each be a category
                    raise InputError(
                        f"{name} has {value!r} at site {at}; give numbers with NaN for a gap, or texts with an empty one."
                    )
        for name, column in by_site.items():
            if np.asarray(column).dtype.kind == "f" and np.isinf(column).any():
                raise InputError(
                    f"{name} is infinite at site {int(np.argmax(np.isinf(column)))}; give a number."
                )
        for group in groups:
            for label, index, size in (("site", group.site, J), ("month", group.month, L)):
                # A month too many would be counted as one of the next site.
                if (outside := index[(index < 0) | (index >= size)]).size:
                    raise InputError(
                        f"group {group.name!r}: {label} index {int(outside[0])} is outside 0..{size - 1}; correct it, or "
                        f"make a panel of more {label}s."
                    )
        by_name = tuple(sorted(groups, key=lambda g: g.name))
        return cls(J, L, by_name, calendar, site_id, region, known)

    @property
    def m(self) -> int:
        """Number of counted visits."""
        return sum(group.count.size for group in self.groups)

    def pooled(self) -> GroupPanel:
        """Return the same visits as one group (for comparison; a real federation cannot).

        A checklist that several groups hold counts in the first by name only, as in a fit of the groups.
        """
        # Observers are numbered within a group: shift them, or observers of two groups would be one.
        start = np.cumsum([0] + [group.n_observers for group in self.groups])
        shifted = [
            replace(group, observer=group.observer + first)
            for group, first in zip(self.groups, start, strict=False)
        ]
        if len(shifted) > 1 and all(group.checklist is not None for group in shifted):
            seen = np.zeros(0, dtype=str)
            for k, group in enumerate(shifted):
                ids = np.asarray(group.checklist).astype(str)
                shifted[k] = _taken(group, ~np.isin(ids, seen))
                seen = np.union1d(seen, ids)
        names = ("site", "month", "count", "observer", "effort", "weight")
        columns = {name: np.concatenate([getattr(group, name) for group in shifted]) for name in names}
        if any(group.exposure is not None for group in self.groups):
            columns["exposure"] = np.concatenate(
                [np.ones(g.count.size) if g.exposure is None else g.exposure for g in shifted]
            )
        return replace(self, groups=(Group.of("all", **columns),))
