"""From a DataFrame of counts to a panel that :func:`fedmiss.fit_counts` takes."""

from __future__ import annotations

import numpy as np
import pandas as pd
import polars as pl

from fedmiss.arrays import F64, I64
from fedmiss.errors import InputError
from fedmiss.etl.one_species import only, species_columns, species_columns_by_content
from fedmiss.models.lowrank.data import Group, GroupPanel

__all__ = ["from_dataframe"]


def from_dataframe(
    frame: pd.DataFrame | pl.DataFrame,
    *,
    site: str = "site",
    time: str = "month",
    count: str = "count",
    observer: str | None = None,
    group: str | None = None,
    species: str = "",
) -> GroupPanel:
    """Make a panel of a table with one row for each count.

    Parameters
    ----------
    frame : a row for each visit, of pandas or polars; rows with a missing count are left out
    site, time, count : columns; ``time`` holds dates, months as ``2024-05``, or whole years
    observer : column of who counted (default: the site, so that replicates draw sites)
    group : column of who holds the row (default: one group)
    species : the one to take, by any of its names; needed where a column of the table names several

    Returns
    -------
    GroupPanel : sites and months sorted; ``site_id`` has their names, ``calendar`` month and year

    Raises
    ------
    InputError : a column that is not there, a row without site, time, observer or group, a time that is no date, month
        or year, a negative or infinite count
    ConfigError : several species and none chosen, or a species that is not there

    Examples
    --------
    >>> import pandas as pd, fedmiss
    >>> t = pd.DataFrame({"site": ["a", "a", "b"], "month": ["2024-05", "2024-06", "2024-05"], "count": [1, 2, 4]})
    >>> p = fedmiss.from_dataframe(t)
    >>> (p.J, p.L, p.m)
    (2, 2, 3)
    """
    if not isinstance(frame, pd.DataFrame):
        if not hasattr(frame, "to_pandas"):  # as polars, and others that know the way
            raise InputError(f"the table is a {type(frame).__name__}; give a data frame of pandas or polars.")
        frame = frame.to_pandas()
    for name in filter(None, (site, time, count, observer, group)):
        if name not in frame.columns:
            raise InputError(
                f"the table has no column {name!r}; it has {', '.join(map(str, frame.columns[:12]))}."
            )
    frame = _one_species(frame, species, {site, time, count, observer, group})
    kept = frame[frame[count].notna()]
    for name in filter(None, (site, time, observer, group)):
        if (blank := kept[name].isna()).any():
            raise InputError(
                f"row {kept.index[blank][0]!r}: no {name} is given; write it, or leave the row out."
            )
    value = _counts(kept[count])
    stamp = _months(kept[time])
    months = np.unique(stamp)
    sites = np.unique(kept[site].astype(str).to_numpy(dtype=object))
    at_site = np.searchsorted(sites, kept[site].astype(str).to_numpy(dtype=object))
    at_month = np.searchsorted(months, stamp)
    who = pd.factorize(kept[observer].astype(str), sort=True)[0] if observer else at_site
    part = kept[group].astype(str).to_numpy() if group else np.full(len(kept), "all")
    groups = []
    for name in np.unique(part):
        mine = part == name
        # Numbers of observers are a group's own: they begin at 0 in each.
        local = np.unique(np.asarray(who)[mine], return_inverse=True)[1]
        groups.append(Group.of(str(name), at_site[mine], at_month[mine], value[mine], observer=local))
    calendar = (months % 12 + 1, months // 12)
    return GroupPanel.of(sites.size, months.size, groups, calendar, site_id=sites)


def _one_species(frame: pd.DataFrame, species: str, used: set[str | None]) -> pd.DataFrame:
    """Return the rows of the species: a column of species is a filter, always."""
    free = [column for column in frame.columns if column not in used]
    columns = species_columns(map(str, free))
    # A column of decimals names nothing; numbers without decimals may be codes of species.
    looked = columns or [column for column in free if not pd.api.types.is_float_dtype(frame[column])]
    text = {str(column): pl.Series(_text(frame[column]), dtype=pl.String) for column in looked}
    columns = columns or species_columns_by_content(text, species)
    if not columns:
        return frame
    rows = pl.DataFrame({column: text[column] for column in columns}).with_row_index("at")
    kept, _, _ = only(rows, columns, species, "the table", "species=")
    return frame.iloc[kept["at"].to_numpy()]


def _text(values: pd.Series) -> list[str]:
    return values.astype(object).where(values.notna(), "").map(str).tolist()


def _counts(values: pd.Series) -> F64:
    value: F64 = pd.to_numeric(values, errors="coerce").to_numpy(dtype=float)
    bad = ~(np.isfinite(value) & (value >= 0))
    if bad.any():
        raise InputError(
            f"row {values.index[bad][0]!r}: the count is {values[bad].iloc[0]} (must be a number, 0 or more)."
        )
    return value


def _months(values: pd.Series) -> I64:
    """Return 12 year + month - 1; whole years become June, as in ``fedmiss ingest``."""
    if pd.api.types.is_datetime64_any_dtype(values):
        return np.asarray(values.dt.year * 12 + values.dt.month - 1, dtype=np.int64)
    text = values.astype(str).str.strip()
    if text.str.fullmatch(r"\d{4}(\.0)?").all():
        # June, in the middle of the year: a count of a year belongs to no month.
        return np.asarray(text.str[:4].astype(np.int64) * 12 + 5, dtype=np.int64)
    found = text.str.extract(r"^(\d{4})-(\d{2})(?:-\d{2})?(?:[ T].*)?$")
    month = pd.to_numeric(found[1], errors="coerce")
    bad = found[0].isna() | ~month.between(1, 12)
    if bad.any():
        raise InputError(
            f"row {values.index[bad][0]!r}: {text[bad].iloc[0]!r} is no date, month or year; write 2024-05-31, 2024-05 or "
            f"2024 (rows: {int(bad.sum())})."
        )
    return np.asarray(found[0].astype(np.int64) * 12 + month - 1, dtype=np.int64)
