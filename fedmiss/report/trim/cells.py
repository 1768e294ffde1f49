"""Counts in long form as the matrix that TRIM's models are fitted to: sites by (month, time point)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from fedmiss.arrays import F64, I64, Bool
from fedmiss.errors import InputError, listed
from fedmiss.report.coverage import connected
from fedmiss.seasons import stray

_MOST_YEARS = 10_000
CHECK = "check the year"  # with which a note on mistyped years begins
_FIRST_YEAR = 1500  # below, times are points 1, 2, ...

Label = int | float | str  # a site, time point, month or category, as the table names it
Weights = Mapping[Label, float] | ArrayLike | None
Covariates = Mapping[str, ArrayLike] | None


@dataclass(frozen=True)
class Cells:
    """Counts of I sites at T = M x J cells; the cells of one month are contiguous, in the order of the time points.

    ``counts`` (I, T) with NaN for missing cells, ``weights`` (I, T), ``time`` (J,) position of the time points on
    their axis (years as they are, names as 0, 1, ..., dates years or months apart),
    ``category`` (I, K) number of each site's category for K covariates, ``labels`` the categories of each covariate in
    order, ``dropped`` sites without a positive count.
    """

    sites: tuple[Label, ...]
    times: tuple[Label, ...]
    months: tuple[Label, ...]
    dropped: tuple[Label, ...]
    counts: F64
    weights: F64
    time: F64
    covariates: tuple[str, ...]
    category: I64
    labels: tuple[tuple[Label, ...], ...]

    @property
    def seen(self) -> Bool:
        """Cells with a count, (I, T)."""
        return np.asarray(np.isfinite(self.counts))

    @property
    def shape(self) -> tuple[int, int, int]:
        """Sites, months, time points."""
        return len(self.sites), len(self.months), len(self.times)

    def groups(self) -> Iterator[tuple[str, str, Bool]]:
        """Yield name, words and mask (I,) of all sites, then of the sites of each category."""
        yield "all", "", np.ones(len(self.sites), dtype=bool)
        for at, name in enumerate(self.covariates):
            for value, label in enumerate(self.labels[at]):
                mask = np.asarray(self.category[:, at] == value)
                yield f"{name}={label}", f" at sites with {name} {label}", mask


def rows_of(site: ArrayLike, time: ArrayLike, count: ArrayLike, month: ArrayLike | None) -> pd.DataFrame:
    """Return the columns as a table of site, time, month and count, in numbers where they are numbers."""
    columns = {"site": _column(site, "site"), "time": _times(_column(time, "time"))}
    columns |= {"count": _counts(_column(count, "count"))}
    if month is not None:
        columns["month"] = _column(month, "month")
    sizes = {name: len(column) for name, column in columns.items()}
    if len(set(sizes.values())) > 1:
        raise InputError(f"the columns differ in length: {', '.join(f'{n} {k}' for n, k in sizes.items())}.")
    frame = pd.DataFrame(columns)
    return frame if month is not None else frame.assign(month=1)


def _column(values: ArrayLike, name: str) -> pd.Series:
    # A list goes to pandas as it is: numpy would turn what is missing among texts into the text "nan".
    if isinstance(values, list | tuple):
        column = pd.Series(list(values), dtype=None if values else float)
    else:
        array = np.asarray(values)
        if array.ndim != 1:
            raise InputError(f"{name} has the shape {array.shape}; give one value for each row.")
        column = pd.Series(array)
    if pd.api.types.infer_dtype(column, skipna=True) in ("mixed", "mixed-integer") and name != "count":
        raise InputError(f"{name} holds texts and numbers; write all as texts, or all as numbers.")
    return column


def _times(column: pd.Series) -> pd.Series:
    """Times as numbers where texts are numbers: as texts 10 would come before 9, and a gap would be one step."""
    if pd.api.types.infer_dtype(column, skipna=True) == "string":
        number = pd.to_numeric(column, errors="coerce")
        if number.notna().equals(column.notna()):
            column = number
    if pd.api.types.is_float_dtype(column) and np.isinf(column).any():
        raise InputError(
            f"row {int(np.argmax(np.isinf(column)))} (from 0) has an infinite time; give a number."
        )
    return column


def _positions(times: list[Any]) -> F64:
    """Places of time points that are no numbers: years or months apart where they are dates, else one step."""
    if pd.api.types.infer_dtype(times) in ("datetime64", "datetime", "date", "period"):
        years: F64 = np.array([time.year for time in times], dtype=np.float64)
        months: F64 = np.array([12 * time.year + time.month for time in times], dtype=np.float64)
        for place in (years, months):
            if (np.diff(place) > 0).all():
                return place
    return np.arange(float(len(times)))


def _counts(column: pd.Series) -> pd.Series:
    value = pd.to_numeric(column, errors="coerce").astype(float)
    bad = np.isinf(value) | (value.isna() & column.notna() & (column.astype(str).str.lower() != "nan"))
    if bad.any():
        at = int(np.argmax(bad))
        raise InputError(f"row {at} (from 0): the count is {column.iloc[at]} (must be a number, 0 or more).")
    return value


def make_cells(frame: pd.DataFrame, weights: Weights, covariates: Covariates, *, every_year: bool) -> Cells:
    """Lay out the rows of ``frame`` (site, time, month, count) as :class:`Cells`.

    Parameters
    ----------
    weights : (N,) one per row, mapping site -> weight, or None
    covariates : mapping name -> (N,) categories, one per row and the same in all rows of a site; or None
    every_year : also keep years without counts: those with blank rows, and whole years that lie between others (models 1
        and 2 fill them)

    Raises
    ------
    InputError : doubled cells, negative counts, weights that are not positive, categories that are missing or that
        change within a site, no site with a positive count, fewer than two time points.
    """
    _check_rows(frame)
    sites = tuple(sorted(frame.loc[frame["count"] > 0, "site"].unique()))
    dropped = tuple(sorted(set(frame["site"].unique()) - set(sites)))
    counted = frame[frame["count"].notna()]
    times = sorted((frame if every_year else counted)["time"].unique())
    numeric = all(isinstance(time, int | float | np.integer | np.floating) for time in times)
    if every_year and times and numeric and all(float(time).is_integer() for time in times):
        if times[-1] - times[0] > _MOST_YEARS:
            raise InputError(
                f"the times run from {int(times[0])} to {int(times[-1])}; give years: models 1 and 2 have a total "
                "for each whole number between the first and the last."
            )
        times = list(range(int(times[0]), int(times[-1]) + 1))
    months = tuple(sorted(counted["month"].unique()))
    if not sites or len(times) < 2:
        raise InputError("the model needs a site with a positive count and two time points; there are fewer.")
    # Where nothing was counted, rows with blank counts say no more than no rows.
    kept = frame[frame["site"].isin(set(sites)) & frame["time"].isin(times) & frame["month"].isin(months)]
    row = pd.Index(sites).get_indexer(kept["site"])
    column = pd.Index(times).get_indexer(kept["time"])
    column = column + len(times) * pd.Index(months).get_indexer(kept["month"])
    counts = np.full((len(sites), len(months) * len(times)), np.nan)
    counts[row, column] = kept["count"]
    names, category, labels = _categories(frame, covariates, sites)
    return Cells(
        sites=sites,
        times=tuple(times),
        months=months,
        dropped=dropped,
        counts=counts,
        weights=_weights(weights, frame, kept.index, (row, column), counts.shape, sites),
        time=np.array(times, dtype=float) if numeric else _positions(times),
        covariates=names,
        category=category,
        labels=labels,
    )


def stray_times(frame: pd.DataFrame) -> tuple[str, ...]:
    """Say that counts lie after this year, or a few years apart from all others: in most such rows the year is mistyped.

    A winter may bear the number of the year in which it ends. Where most times are after that they are no years.
    """
    counted = frame[frame["count"].notna()].sort_values("time", kind="stable")
    if not pd.api.types.is_numeric_dtype(counted["time"]) or not len(counted):
        return ()
    time = counted["time"].to_numpy(dtype=float)
    found, out = stray((12 * time).astype(np.int64), ahead=1), []
    if any(2 * time[place].size > time.size for place, _ in found):
        return ()
    for place, how in found:
        odd = counted.iloc[place]
        first, last, one = time[place][0], time[place][-1], len(odd) == 1
        span = f"{first:g}{f' to {last:g}' if last != first else ''} at {'site' if one else 'sites'} "
        span += listed([str(site) for site in odd["site"].unique()], 3)
        how = how if np.median(time) > _FIRST_YEAR else how.replace("years", "time points")
        out.append(
            f"{CHECK}{'' if one else 's'}: {len(odd):,} of {len(time):,} counts ({span}) "
            f"{'lies' if one else 'lie'} {how}, and {'bears' if one else 'bear'} on totals, slope and class. Correct "
            f"{'it' if one else 'them'} in the table if mistyped."
        )
    return tuple(out)


def _check_rows(frame: pd.DataFrame) -> None:
    for name in ("site", "time", "month"):
        if (blank := frame[name].isna()).any():
            raise InputError(
                f"row {int(np.argmax(blank))} (from 0) has no {name}; write it, or leave the row out."
            )
    double = frame.duplicated(["site", "time", "month"])
    if double.any():
        raise InputError(
            f"{_where(frame, double)} has two counts ({int(double.sum())} doubled cells in all); sum or average "
            "them first."
        )
    below = frame["count"] < 0
    if below.any():
        raise InputError(f"{_where(frame, below)}: the count {frame['count'][below].iloc[0]:g} is negative.")


def _where(frame: pd.DataFrame, rows: pd.Series[bool]) -> str:
    site, time, month = (frame[name][rows].iloc[0] for name in ("site", "time", "month"))
    return f"site {site} at time {time}" + (f", month {month}" if frame["month"].nunique() > 1 else "")


def _categories(
    frame: pd.DataFrame, covariates: Covariates, sites: tuple[Label, ...]
) -> tuple[tuple[str, ...], I64, tuple[tuple[Label, ...], ...]]:
    names: list[str] = []
    columns: list[I64] = []
    labels: list[tuple[Label, ...]] = []
    for name, values in dict({} if covariates is None else covariates).items():
        column = _of_rows(values, frame, f"the covariate {name}")
        blank = column.isna()
        if blank.any():
            raise InputError(
                f"the covariate {name} is missing at {_where(frame, blank)} (rows: {int(blank.sum())}); give every row "
                "of a site its category, or leave the site out."
            )
        per_site = column.groupby(frame["site"]).nunique()
        if (per_site > 1).any():
            raise InputError(
                f"the covariate {name} changes within site {per_site[per_site > 1].index[0]} "
                f"({int((per_site > 1).sum())} sites); a site has one category in TRIM's models."
            )
        if pd.api.types.infer_dtype(column) in ("mixed", "mixed-integer"):
            raise InputError(f"the covariate {name} holds texts and numbers; write all as texts.")
        value = column.groupby(frame["site"]).first().loc[list(sites)]
        found = tuple(sorted(value.unique()))
        if len(found) > 1:  # a covariate with one category has no effect
            names.append(str(name))
            columns.append(pd.Index(found).get_indexer(value).astype(np.int64))
            labels.append(found)
    category = np.column_stack(columns) if columns else np.zeros((len(sites), 0), dtype=np.int64)
    return tuple(names), category, tuple(labels)


def _of_rows(values: ArrayLike, frame: pd.DataFrame, name: str) -> pd.Series:
    """Return a column that has one value for each row of the table."""
    given = np.asarray(values, dtype=object)
    if given.shape not in ((), (len(frame),)):
        raise InputError(
            f"{name} has the shape {given.shape}, and there are {len(frame)} rows; give one for each."
        )
    return pd.Series(given if given.ndim else given.item(), index=frame.index, dtype=object)


def _weights(
    weights: Weights,
    frame: pd.DataFrame,
    kept: pd.Index[int],
    at: tuple[I64, I64],
    shape: tuple[int, int],
    sites: tuple[Label, ...],
) -> F64:
    """Weights of all cells: a cell that no row names has the weight of its site, which must then be one number."""
    if weights is None:
        return np.ones(shape)
    if isinstance(weights, Mapping):
        if lacking := [site for site in sites if site not in weights]:
            raise InputError(
                f"site {lacking[0]} has no weight ({len(lacking)} such sites); give each site one."
            )
        out = np.repeat(np.array([[float(weights[site])] for site in sites]), shape[1], axis=1)
    else:
        value = _of_rows(weights, frame, "weights").astype(float)
        if (blank := value.isna()).any():
            raise InputError(
                f"the weight is missing at {_where(frame, blank)} (rows: {int(blank.sum())}); give every row one, or leave "
                "the site out."
            )
        value = value.loc[kept]
        out = np.full(shape, np.nan)
        out[at] = value
        low, high = np.nanmin(out, axis=1), np.nanmax(out, axis=1)
        unnamed = np.isnan(out)
        change = unnamed.any(axis=1) & (low != high)
        if change.any():
            raise InputError(
                f"the weight of site {sites[int(np.argmax(change))]} changes, and some of its time points have no row; "
                "list them with a blank count and their weight."
            )
        out = np.where(unnamed, low[:, None], out)
    bad = ~((out > 0) & np.isfinite(out))
    if bad.any():
        first = int(np.argmax(bad.any(axis=1)))
        raise InputError(
            f"the weight of site {sites[first]} is {out[first][bad[first]][0]:g} (must be a number above 0); leave the "
            "site out instead."
        )
    return out


def check_links(cells: Cells) -> None:
    """Raise unless the counts determine the ratio of any two time points, in every category, and of any two months.

    Only a model with one effect for each time point (model 3) needs this.
    """
    J = len(cells.times)
    for _, where, mask in cells.groups():
        f = np.nan_to_num(cells.counts[mask]).reshape(int(mask.sum()), len(cells.months), J)
        empty = [time for time, birds in zip(cells.times, f.sum(axis=(0, 1)), strict=True) if not birds > 0]
        if empty:
            raise InputError(
                f"time point {empty[0]} has no positive count{where} ({len(empty)} such points), so its effect cannot be "
                "estimated; leave it out, join it with its neighbour, or fit model 2, which draws a line through it."
            )
        # Effects of two time points can be compared through sites counted at both, or along a chain of such sites.
        label = connected(np.asarray(cells.seen[mask].reshape(-1, len(cells.months), J).any(axis=1)))
        if (label != label[0]).any():
            other = cells.times[int(np.flatnonzero(label != label[0])[0])]
            raise InputError(
                f"no site links time {cells.times[0]} with time {other}{where}: no site was counted on both sides, so the "
                "ratio of their totals is not in the data. Fit the two periods apart."
            )
    per_month = np.nan_to_num(cells.counts).reshape(-1, len(cells.months), J).sum(axis=(0, 2))
    for month, birds in zip(cells.months, per_month, strict=True):
        if not birds > 0:
            raise InputError(
                f"month {month} has no positive count, so its effect cannot be estimated; leave it out."
            )
