"""Support of years and results.

Least counts of a year; influential counts and sites; correlation of visits with birds; groups that share no region.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from scipy.special import stdtr

from fedmiss.arrays import F64, I64, Bool
from fedmiss.report.settings import Least
from fedmiss.report.slopes import log_slope
from fedmiss.report.years import Years, make_years

if TYPE_CHECKING:
    from fedmiss.report.inputs import ReportInputs

__all__ = [
    "Least",
    "connected",
    "first_base",
    "groups_apart",
    "influential_sites",
    "usable_counts",
    "visits_by_site",
    "year_support",
]

CLEAR = 0.3  # least rank correlation for a pattern of visits to be reported,
SURE = 0.001  # and largest p-value
MIN_SITES_COMPARED = 20
MIN_YEARS_COMPARED = 3  # the trend of a site counted in fewer comes mostly from the other sites


def year_support(observed: Bool, years: Years) -> tuple[I64, I64]:
    """Return the counted cells and the sites counted in the season of each year, both (Y,).

    Parameters
    ----------
    observed : (J, L) cells with a count
    """
    member = years.W > 0
    cells = member @ observed.sum(axis=0)
    by_site = observed.astype(np.float32) @ member.T.astype(np.float32)
    return cells.astype(np.int64), (by_site > 0).sum(axis=0).astype(np.int64)


def usable_counts(observed: Bool, months: pd.DataFrame, least: Least | None = None) -> I64:
    """Return the cells with a count in each month (L,), 0 in years that have fewer than the least.

    This is the ``n_observed`` of the functions of ``trends``: a year without counts leaves index and trend.
    """
    n_observed = observed.sum(axis=0).astype(np.int64)
    years = make_years(months, n_observed)
    asked = (least or Least()).of(observed.shape[0], len(years.season))
    cells, sites = year_support(observed, years)
    enough = (cells >= asked.cells) & (sites >= asked.sites)
    at = np.searchsorted(years.year, months["year"].to_numpy(dtype=np.int64))
    return np.where(enough[at], n_observed, 0)


def first_base(observed: Bool, years: Years, least: Least) -> str | None:
    """Return the first used year with enough counts for a base; None when no year has them, or the first used one has."""
    asked = least.base.of(observed.shape[0], len(years.season))
    cells, sites = year_support(observed, years)
    used = np.flatnonzero(years.used)
    good = [i for i in used if cells[i] >= asked.cells and sites[i] >= asked.sites]
    return str(years.year[good[0]]) if good and good[0] != used[0] else None


def influential_sites(data: ReportInputs, years: Years) -> pd.DataFrame:
    """Return the site-month with the largest count and the sites that weigh most in total and in trend.

    Columns: ``what`` (``largest count``, ``largest site``, ``trend without``), ``site_index``, ``site_id``, ``month``
    (blank for a site), ``share`` (of all birds counted; of the fitted total over the used years), ``slope_without`` (log per
    year: least-squares slope of the fitted total without the site; the model is not fitted again).
    """
    rows = []
    cells, ids = data.cells, data.sites["site_id"].to_numpy(object)
    birds = float(cells["count_sum"].sum())
    if birds > 0:
        counts = cells["count_sum"].to_numpy()
        at = int(counts.argmax())
        j, m = int(cells["site_index"].iloc[at]), int(cells["month_index"].iloc[at])
        month = str(data.months["month"].iloc[m])
        rows.append(("largest count", j, ids[j], month, float(counts[at]) / birds, np.nan))
    used = years.used
    per_year = data.expected @ years.W[used].T
    total = per_year.sum(axis=0)
    if used.any() and total.sum() > 0 and len(ids) > 1:
        share = per_year.sum(axis=1) / total.sum()
        without: F64 = (
            log_slope(years.year[used], total - per_year) if used.sum() >= 3 else np.full(ids.size, np.nan)
        )
        j = int(share.argmax())
        rows.append(("largest site", j, ids[j], "", float(share[j]), float(without[j])))
        shift = np.abs(without - log_slope(years.year[used], total))
        if np.isfinite(shift).any():
            j = int(np.nanargmax(shift))
            rows.append(("trend without", j, ids[j], "", float(share[j]), float(without[j])))
    return pd.DataFrame(
        rows, columns=["what", "site_index", "site_id", "month", "share", "slope_without"]
    ).astype({"site_index": "int64", "share": "float64", "slope_without": "float64"})


def visits_by_site(cells: pd.DataFrame, sites: pd.DataFrame) -> pd.DataFrame:
    """Return Spearman's rank correlations of visits with birds and trends, over the visited sites.

    Columns: ``compared`` (``visits and birds``, ``visits and trend``, ``first visit and trend``,
    ``last visit and trend``), ``n_sites``,
    ``correlation``, ``p_value``, ``clear`` (at least 0.3 either way, p below 0.001). Fewer than 20 sites, or values that
    are all alike, give no correlation; trends are of sites counted in three years or more. Fitted trends of thinly
    visited sites lie near the mean, so correlations with them are smaller than with the true ones.

    Parameters
    ----------
    cells : ``site_index``, ``month_index``, ``n_visits`` of the visited cells
    sites : the table of sites, with ``mean_total``, ``slope`` and ``years_counted``
    """
    J = len(sites)
    visits, first, last = np.zeros(J), np.full(J, np.iinfo(np.int64).max), np.full(J, -1)
    np.add.at(visits, cells["site_index"].to_numpy(), cells["n_visits"].to_numpy())
    np.minimum.at(first, cells["site_index"].to_numpy(), cells["month_index"].to_numpy())
    np.maximum.at(last, cells["site_index"].to_numpy(), cells["month_index"].to_numpy())
    size, slope = (sites[c].to_numpy(dtype=np.float64) for c in ("mean_total", "slope"))
    pairs = {
        "visits and birds": (visits, size),
        "visits and trend": (visits, slope),
        "first visit and trend": (first, slope),
        "last visit and trend": (last, slope),
    }
    rows = []
    for name, (x, y) in pairs.items():
        known = (visits > 0) & np.isfinite(y)
        if y is slope:
            known &= sites["years_counted"].to_numpy() >= MIN_YEARS_COMPARED
        n, rho, p = int(known.sum()), np.nan, np.nan
        if n >= MIN_SITES_COMPARED and np.ptp(x[known]) > 0 and np.ptp(y[known]) > 1e-9:
            rho, p = _spearman(x[known], y[known])
        rows.append((name, n, rho, p, bool(abs(rho) >= CLEAR and p < SURE)))
    return pd.DataFrame(rows, columns=["compared", "n_sites", "correlation", "p_value", "clear"])


def _spearman(x: F64, y: F64) -> tuple[float, float]:
    """Spearman's rank correlation and its p-value by Student's t, as scipy.stats, which takes a second to load."""
    rho = float(np.corrcoef(pd.Series(x).rank(), pd.Series(y).rank())[0, 1])
    df = x.size - 2
    t = rho * np.sqrt(df / max((1.0 - rho) * (1.0 + rho), 1e-300))
    return rho, float(2.0 * stdtr(df, -abs(t)))


def connected(linked: Bool) -> I64:
    """Label the K columns of a matrix (N, K): two columns with a common row have one label, and so on along the chain.

    Returns
    -------
    label : (K,) the smallest column of each connected set
    """
    reach = linked.T.astype(np.float32) @ linked.astype(np.float32) > 0
    np.fill_diagonal(reach, True)
    while (wider := reach.astype(np.float32) @ reach.astype(np.float32) > 0).sum() > reach.sum():
        reach = wider
    return np.asarray(reach.argmax(axis=0), dtype=np.int64)


def groups_apart(data: ReportInputs) -> list[tuple[list[str], list[str]]]:
    """Return the connected parts of the groups, linked by shared regions: (groups, regions) of each.

    Nothing when all are connected, when regions are not known, or when the groups are the regions by the user's choice.
    """
    if data.panel.get("settings", {}).get("group_by") == "region" or len(data.group_regions) < 2:
        return []
    names = sorted(data.group_regions)
    regions = sorted({r for v in data.group_regions.values() for r in v})
    held = np.array([[r in data.group_regions[n] for n in names] for r in regions], dtype=bool)
    if not (held.size and held.any(axis=0).all()):
        return []  # a group of unknown place may lie anywhere
    label = connected(held)
    parts = [[n for n, k in zip(names, label, strict=True) if k == part] for part in np.unique(label)]
    if len(parts) < 2:
        return []
    return [(part, sorted({r for n in part for r in data.group_regions[n]})) for part in parts]
