"""What the counts can bear: coverage of the panel, least counts of a year, and what one site or count carries.

Also the correlation of visits with birds, and groups that share no region.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from scipy.sparse.csgraph import connected_components
from scipy.special import stdtr

from fedmiss.arrays import F64, I64, Bool
from fedmiss.errors import several
from fedmiss.group_names import group_name
from fedmiss.report.settings import Least
from fedmiss.report.slopes import log_slope
from fedmiss.report.years import Years, make_years
from fedmiss.tables import load_schema

if TYPE_CHECKING:
    from fedmiss.report.inputs import ReportInputs

MIN_SITES_REPEATED = 5  # sites counted in two or more years: only they inform a trend
MIN_CELLS_PER_YEAR = 10  # counted cells in the median year
MAX_COUNT_SHARE = 0.5  # of all that was counted, in one site-month
MIN_DETECTIONS = 20  # visits with a detection; with fewer, the mean of all years has an error above 22 %


@dataclass(frozen=True, slots=True)
class Coverage:
    """Figures of the data behind a report; shares are between 0 and 1.

    ``share_observed`` and ``share_imputed_total`` are of the ``n_cells_used`` cells: the season's of the years in the trend,
    all where no year is in it; so is ``sites_repeated``. ``uncounted_slope``: what visits that found the species and have no
    number (X) add to the slope of log totals, per year.
    """

    n_sites: int
    n_months: int
    n_cells: int
    n_observed: int
    n_cells_used: int
    n_visits: int
    n_counted: int
    n_detected: int
    n_zeros: int
    birds_counted: int
    share_observed: float
    share_imputed_total: float
    sites_repeated: int
    median_cells_per_year: float
    months_unseen: int
    sites_with_coordinates: int
    linked_years: int
    years_sharing_months: int
    uncounted_slope: float

    @property
    def share_cells(self) -> float:
        """Share of all cells that have a count, whatever their year."""
        return self.n_observed / self.n_cells


def linked_years(site: np.ndarray, year: np.ndarray, n_sites: int, n_years: int) -> int:
    """Return the size of the largest set of years linked by sites (or months) that were counted in more than one year."""
    # Years are linked through chains of sites: 2001 and 2003 by two sites that share 2002.
    linked = np.zeros((n_sites, n_years), dtype=bool)
    linked[site, year] = True
    return int(np.bincount(connected(linked)[np.unique(year)], minlength=1).max())


def coverage(data: ReportInputs, years: Years) -> Coverage:
    """Count the data behind a report."""
    J, L = data.expected.shape
    cells = data.cells
    # the season only, as the yearly and the site table
    seasonal = np.asarray((years.W > 0).any(axis=0))[cells["month_index"].to_numpy()]
    counted = cells[(cells["n_used"] > 0).to_numpy() & seasonal]
    site = counted["site_index"].to_numpy()
    position = np.searchsorted(years.year, years.of_month[counted["month_index"].to_numpy()])
    used = years.used[position] | ~years.used.any()
    # Each site once a year, however many months of it were counted.
    pairs = pd.DataFrame({"site": site[used], "year": position[used]}).drop_duplicates()
    repeated = int((pairs.groupby("site").size() >= 2).sum())
    per_year = np.bincount(position, minlength=years.year.size)[years.used]
    linked = linked_years(pairs["site"].to_numpy(), pairs["year"].to_numpy(), J, years.year.size)
    # the season's cells of the years in the trend, as for the totals; all cells where no year is in it
    weight = years.W[years.used].sum(axis=0) if years.used.any() else np.ones(L)
    total = float(data.totals @ weight)
    # The model's expectation in cells without a count: what the total owes to the model alone.
    imputed = float(np.where(data.observed, 0.0, data.expected).sum(axis=0) @ weight)
    median = float(np.median(per_year)) if per_year.size else 0.0
    visits = int(cells["n_visits"].sum())
    month_of_year = data.months["month_of_year"].to_numpy()[counted["month_index"].to_numpy()]
    # The same question of months: years counted in May and years counted in October have no common ground.
    season = linked_years(month_of_year[used], position[used], 13, years.year.size)
    by_month = np.zeros((L, 3))
    np.add.at(by_month, cells["month_index"], cells[["n_visits", "n_detected", "n_used"]].to_numpy())
    known = data.sites[["latitude", "longitude"]].notna().all(axis=1)
    return Coverage(
        n_sites=J,
        n_months=L,
        n_cells=J * L,
        n_observed=int(data.observed.sum()),
        n_cells_used=J * int((weight > 0).sum()),
        n_visits=visits,
        n_counted=int(cells["n_counted"].sum()),
        n_detected=int(cells["n_detected"].sum()),
        n_zeros=visits - int(cells["n_detected"].sum()),
        birds_counted=int(cells["count_sum"].sum()),
        share_observed=float(data.observed[:, weight > 0].mean()),
        share_imputed_total=imputed / total if total > 0 else float("nan"),
        sites_repeated=repeated,
        median_cells_per_year=median,
        months_unseen=int((data.n_observed == 0).sum()),
        sites_with_coordinates=int(known.sum()),
        linked_years=linked,
        years_sharing_months=season,
        uncounted_slope=uncounted_slope(years, *by_month.T),
    )


def uncounted_slope(years: Years, visits: F64, found: F64, counted: F64) -> float:
    """Slope of the log of what finds without a number make of a year's mean count, from numbers by month (L,).

    Of n visits f found the species, x of them without a number. If these finds are as large as the others, the mean of the
    n - x counts is that of all n times (f - x) / f n / (n - x): all zeros are in it, and not all finds.
    """
    member = years.W[years.used] > 0
    n, f, counted = (member @ of_month for of_month in (visits, found, counted))
    # Half a visit more: in a year all finds may be without a number.
    factor = (f - (n - counted) + 0.5) / (f + 0.5) * n / np.maximum(counted, 0.5)
    return float(np.nan_to_num(log_slope(years.year[years.used], factor)))


def thin_counts(found: Coverage, data: ReportInputs, n_used: int) -> Iterator[str]:
    """Yield every reason why the counts do not allow a trend class; the trend has ``n_used`` years.

    Only sites counted in several years inform a trend. When no such site links two years, the difference
    between them is the model's assumption and not an observation.
    """
    cell, counts = data.cell, data.sums
    largest = float(counts.max() / counts.sum()) if counts.sum() else 0.0
    if largest > MAX_COUNT_SHARE:
        yield f"one {cell} holds {100 * largest:.0f} % of all that was counted"
    if found.n_detected < MIN_DETECTIONS:
        yield f"{several(found.n_detected, 'visit')} found the species; a class needs {MIN_DETECTIONS}"
    if found.sites_repeated < MIN_SITES_REPEATED:
        were = "site was" if found.sites_repeated == 1 else "sites were"
        yield f"{found.sites_repeated} {were} counted in two or more years; a class needs {MIN_SITES_REPEATED}"
    median = found.median_cells_per_year
    if median < MIN_CELLS_PER_YEAR:
        s = "" if median == 1 else "s"
        yield f"the median year has {median:g} {cell}{s} with a count; a class needs {MIN_CELLS_PER_YEAR}"
    if 0 < found.linked_years < n_used:
        are = "is" if found.linked_years == 1 else "are"
        yield f"only {found.linked_years} of {n_used} years {are} linked by sites counted in more than one of them"
    yield from seasons_apart(found.years_sharing_months, n_used)


def seasons_apart(sharing: int, n_used: int) -> Iterator[str]:
    """Say that only so many of the years share a month of the year with the others."""
    if 0 < sharing < n_used:
        yield (
            f"only {sharing} of {n_used} years have a month of the year in common with the others, so a "
            "change of the season in which was counted cannot be told from a change of the birds"
        )


def monthly_coverage(data: ReportInputs) -> pd.DataFrame:
    """Return per month: cells with a count, missing cells, visits, and the imputed share of the total."""
    visits = np.bincount(data.cells["month_index"], data.cells["n_visits"], len(data.months))
    observed = data.n_observed
    return data.months[["month_index", "month"]].assign(
        observed=observed,
        missing=data.expected.shape[0] - observed,
        visits=visits.astype(np.int64),
        imputed_share=imputed_share(data, np.eye(len(data.months))),
    )


def imputed_share(data: ReportInputs, member: F64 | Bool) -> F64:
    """Return the part of the total of some months, rows of ``member`` (N, L), that comes from cells without a count."""
    total, seen = member @ data.totals, member @ np.where(data.observed, data.expected, 0.0).sum(axis=0)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(total > 0, 1.0 - seen / total, np.nan)


# -- years, sites and groups that carry a result -------------------------------------------------------------


CLEAR = 0.3  # least rank correlation for a pattern of visits to be reported,
SURE = 0.001  # and largest p-value
MIN_SITES_COMPARED = 20
MIN_FINDS = 3  # expected of a mean site: with fewer a site's level comes mostly from the other sites
MIN_SITE_YEARS = 3  # the trend of a site counted in fewer years comes mostly from the other sites


def year_support(observed: Bool, years: Years) -> tuple[I64, I64]:
    """Return the counted cells and the sites counted in the season of each year, both (Y,).

    ``observed`` (J, L): cells with a count.
    """
    member = years.W > 0
    cells, sites = member @ observed.sum(axis=0), in_years(observed, member).sum(axis=0)
    return cells.astype(np.int64), sites.astype(np.int64)


def in_years(cells: Bool, member: Bool) -> Bool:
    """Whether a site has any of ``cells`` (J, L) in the months of each year, rows of ``member`` (Y, L); (J, Y)."""
    return np.asarray(cells.astype(np.float32) @ member.T.astype(np.float32) > 0)


def usable_counts(observed: Bool, months: pd.DataFrame, least: Least = Least()) -> I64:
    """Return the cells with a count in each month (L,), with a minus in years that have fewer than the least.

    This is the ``n_observed`` of the functions of ``trends``: a year without counts leaves index and trend. One with too few
    leaves them too, and still says which months are the season: years would be judged by one season and shown by another.
    """
    n_observed: I64 = observed.sum(axis=0).astype(np.int64)
    years = make_years(months, n_observed)
    asked = least.of(observed.shape[0], len(years.season))
    cells, sites = year_support(observed, years)
    enough = (cells >= asked.cells) & (sites >= asked.sites)
    at = np.searchsorted(years.year, years.of_month)
    return np.where(enough[at], n_observed, -n_observed)


def first_base(observed: Bool, years: Years, least: Least, found: Bool) -> str | None:
    """Return the first used year with a find and enough counts for a base; None where that is the first used one.

    Where no year has enough, it is the first one with a find: an index against nothing says nothing.

    ``observed``, ``found`` (J, L): cells with a count, and those that found the species.
    """
    asked = least.base.of(observed.shape[0], len(years.season))
    cells, sites = year_support(observed, years)
    there = year_support(found, years)[0]
    used = np.flatnonzero(years.used)
    good = [at for at in used if cells[at] >= asked.cells and sites[at] >= asked.sites and there[at]]
    good = good or [at for at in used if there[at]]
    return str(years.year[good[0]]) if good and good[0] != used[0] else None


def influential_sites(data: ReportInputs, sites: pd.DataFrame, years: Years) -> pd.DataFrame:
    """Return the site-month with the largest count and the sites that weigh most in total and in trend.

    Schema ``report_carriers``. The slope without a site is that of the fitted total: the model is not fitted again.
    """
    rows: list[tuple[str, int, str, float, float]] = []
    cells, ids = data.cells, sites["site_id"].to_numpy(object)
    birds = float(cells["count_sum"].sum())
    if birds > 0 and data.fact("family") != "bernoulli":  # of presence no count is larger than another
        top = cells.iloc[int(cells["count_sum"].to_numpy().argmax())]
        month = str(data.months["month"].iloc[int(top["month_index"])])
        rows.append(("largest count", int(top["site_index"]), month, float(top["count_sum"]) / birds, np.nan))
    used = years.used
    per_year = data.expected @ years.W[used].T
    total = per_year.sum(axis=0)
    if used.any() and total.sum() > 0 and len(ids) > 1:
        # Slopes without each site, all at once: rows of total minus the site's own.
        share = per_year.sum(axis=1) / total.sum()
        without: F64 = np.full(ids.size, np.nan)
        if used.sum() >= 3:
            without = log_slope(years.year[used], total - per_year)
            # without the only site where the species was found nothing is left to change
            finds = np.bincount(cells["site_index"], cells["n_detected"], ids.size)
            without[finds == finds.sum()] = np.nan
        found = {"largest site": int(share.argmax())}
        shift = np.abs(without - log_slope(years.year[used], total))
        if np.isfinite(shift).any():
            found["trend without"] = int(np.nanargmax(shift))
        rows += [(what, at, "", float(share[at]), float(without[at])) for what, at in found.items()]
    columns = {"what": object, "site_index": int, "month": object, "share": float, "slope_without": float}
    table = pd.DataFrame(rows, columns=list(columns)).astype(columns)
    table.insert(2, "site_id", ids[table["site_index"]])
    return table


def visits_by_site(cells: pd.DataFrame, sites: pd.DataFrame) -> pd.DataFrame:
    """Return Spearman's rank correlations of visits with birds and trends, over the visited sites.

    Schema ``report_visits``. Fewer than 20 sites, or values that are all alike, give no correlation; birds are of sites
    visited so often that a mean one would give three finds, trends of sites counted in three years or more. Fitted trends
    of thinly visited sites lie near the mean, so correlations with them are smaller than with the true ones.

    Parameters
    ----------
    cells : ``site_index``, ``month_index``, ``n_visits``, ``n_detected`` of the visited cells
    sites : the table of sites, with ``mean_total``, ``slope`` and ``years_counted``
    """
    of_site = cells.groupby("site_index").agg(
        visits=("n_visits", "sum"), first=("month_index", "min"), last=("month_index", "max")
    )
    visits, first, last = of_site.reindex(range(len(sites)), fill_value=0).to_numpy(dtype=np.float64).T
    size, slope = (sites[name].to_numpy(dtype=np.float64) for name in ("mean_total", "slope"))
    # The level of a site with few visits is drawn to the mean, and that of one visited often without a find lies far below
    # it: of a rare species that alone makes visits and fitted birds go apart.
    finds = visits * cells["n_detected"].sum() / max(cells["n_visits"].sum(), 1)
    pairs = {
        "visits and birds": (visits, size),
        "visits and trend": (visits, slope),
        "first visit and trend": (first, slope),
        "last visit and trend": (last, slope),
    }
    rows = []
    for name, (x, y) in pairs.items():
        known = (visits > 0) & np.isfinite(y)
        if y is size:
            known &= finds >= MIN_FINDS
        else:
            known &= sites["years_counted"].to_numpy() >= MIN_SITE_YEARS
        n_compared, rho, p_value = int(known.sum()), np.nan, np.nan
        if n_compared >= MIN_SITES_COMPARED and np.ptp(x[known]) > 0 and np.ptp(y[known]) > 1e-9:
            rho, p_value = _spearman(x[known], y[known])
        rows.append((name, n_compared, rho, p_value, bool(abs(rho) >= CLEAR and p_value < SURE)))
    return pd.DataFrame(rows, columns=load_schema("report_visits").names)


def _spearman(x: F64, y: F64) -> tuple[float, float]:
    """Spearman's rank correlation and its p-value by Student's t, as scipy.stats, which takes a second to load."""
    rho = float(np.corrcoef(pd.Series(x).rank(), pd.Series(y).rank())[0, 1])
    df = x.size - 2
    t = rho * np.sqrt(df / max((1.0 - rho) * (1.0 + rho), 1e-300))
    return rho, float(2.0 * stdtr(df, -abs(t)))


def connected(linked: Bool) -> I64:
    """Label the K columns of a matrix (N, K): two columns with a common row have one label, and so on along the chain."""
    common = linked.T.astype(np.float32) @ linked.astype(np.float32)  # rows of two columns; float32: BLAS
    return np.asarray(connected_components(common, directed=False)[1], dtype=np.int64)


def groups_apart(data: ReportInputs) -> list[tuple[list[str], list[str], float]]:
    """Return groups, regions and share of the total of each part that has no region in common with others, largest first.

    Nothing when all are connected, when regions are not known, or when the groups are the regions by the user's choice.
    """
    if data.panel.get("settings", {}).get("group_by") == "region":
        return []
    names = sorted(data.group_regions)
    regions = sorted({region for home in data.group_regions.values() for region in home})
    held = np.array(
        [[region in data.group_regions[name] for name in names] for region in regions], dtype=bool
    )
    if not (held.size and held.any(axis=0).all()):
        return []  # a group of unknown place may lie anywhere
    label = connected(held)
    home = data.sites["region"].to_numpy(object)
    total = {region: float(data.expected[home == region].sum()) for region in data.region_names()}
    whole, parts = sum(total.values()), []
    for part in np.unique(label):
        inside = [group_name(names[at]) for at in np.flatnonzero(label == part)]
        here = [region for region, row in zip(regions, held, strict=True) if row[label == part].any()]
        share = sum(total[region] for region in here) / whole if whole > 0 else np.nan
        parts.append((inside, here, share))
    return sorted(parts, key=lambda part: -part[2]) if len(parts) > 1 else []
