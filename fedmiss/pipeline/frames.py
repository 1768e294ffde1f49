"""From a DataFrame of counts to a panel that :func:`fedmiss.fit_counts` takes."""

from __future__ import annotations

import numpy as np
import pandas as pd
import polars as pl

from fedmiss.arrays import F64, I64, Bool
from fedmiss.errors import InputError
from fedmiss.etl.species import only, species_columns, species_columns_by_content
from fedmiss.models.lowrank.data import Group, GroupPanel


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
    InputError : a column that is not there or is there twice, a row without site, time, observer or group, a time that is
        no date, month or year, a count that is no number, negative or infinite
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
    # A column may be named by a number, also by 0.
    used = [name for name in (site, time, observer, group) if name not in (None, "")]
    for name in (*used, count):
        if name not in frame.columns:
            raise InputError(
                f"the table has no column {name!r}; it has {', '.join(map(str, frame.columns[:12]))}."
            )
        if (frame.columns == name).sum() > 1:
            raise InputError(f"the table has {(frame.columns == name).sum()} columns {name!r}; keep one.")
    frame = _one_species(frame, species, {*used, count})
    kept = frame[frame[count].notna()]
    names = {}
    for name in used:
        # Blanks around a name are no part of it, as in ``fedmiss ingest``; a text of blanks alone names nothing.
        names[name] = kept[name].astype(str).str.strip()
        if (blank := (kept[name].isna() | (names[name] == "")).to_numpy(bool)).any():
            raise InputError(f"row {_row(kept, blank)}: no {name} is given; write it, or leave the row out.")
    value = _counts(kept[count])
    stamp = _months(kept[time], names[time])
    months = np.unique(stamp)
    sites, at_site = np.unique(names[site].to_numpy(dtype=object), return_inverse=True)
    at_month = np.searchsorted(months, stamp)
    who = pd.factorize(names[observer], sort=True)[0] if observer in names else at_site
    part = names[group].to_numpy(dtype=object) if group in names else np.full(len(kept), "all")
    groups = []
    for name in np.unique(part):
        mine = part == name
        # Numbers of observers are a group's own: they begin at 0 in each.
        local = np.unique(np.asarray(who)[mine], return_inverse=True)[1]
        groups.append(Group.of(str(name), at_site[mine], at_month[mine], value[mine], observer=local))
    calendar = (months % 12 + 1, months // 12)
    return GroupPanel.of(sites.size, months.size, groups, calendar, site_id=sites)


def _one_species(frame: pd.DataFrame, species: str, used: set[str]) -> pd.DataFrame:
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


def _row(values: pd.Series | pd.DataFrame, bad: Bool) -> str:
    """Name the first bad row by the table's own index."""
    return repr(values.index[bad].tolist()[0])


def _counts(values: pd.Series) -> F64:
    kind = getattr(values.dtype, "kind", "O")
    if kind in "mMc":  # dates, durations and complex numbers would be turned into numbers silently
        raise InputError(f"the counts are of the type {values.dtype} (must be numbers, 0 or more).")
    value: F64 = pd.to_numeric(values, errors="coerce").to_numpy(dtype=float)
    bad = ~(np.isfinite(value) & (value >= 0))
    if bad.any():
        raise InputError(
            f"row {_row(values, bad)}: the count is {values[bad].iloc[0]} (must be a number, 0 or more)."
        )
    return value


def _months(values: pd.Series, text: pd.Series) -> I64:
    """Return 12 year + month - 1; whole years become June, as in ``fedmiss ingest``. ``text``: the same as texts."""
    if pd.api.types.is_datetime64_any_dtype(values):
        return np.asarray(values.dt.year * 12 + values.dt.month - 1, dtype=np.int64)
    if text.str.fullmatch(r"\d{4}(\.0)?").all():
        # June, in the middle of the year: a count of a year belongs to no month.
        return np.asarray(text.str[:4].astype(np.int64) * 12 + 5, dtype=np.int64)
    found = text.str.extract(r"^(\d{4}-\d{2})(?:(-\d{2})(?:[ T]\d.*)?)?$")
    # The calendar says how long a month is: there is no 31 February.
    day = pd.to_datetime(found[0] + found[1].fillna("-01"), format="%Y-%m-%d", errors="coerce")
    if (bad := day.isna().to_numpy(bool)).any():
        raise InputError(
            f"row {_row(values, bad)}: {text[bad].iloc[0]!r} is no date, month or year; write 2024-05-31, 2024-05 or "
            f"2024 (rows: {int(bad.sum())})."
        )
    return np.asarray(day.dt.year * 12 + day.dt.month - 1, dtype=np.int64)
