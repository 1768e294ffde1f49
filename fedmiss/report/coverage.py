"""Coverage: how much of the panel was counted, whether zeros were recorded, and whether this is enough for a trend."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from fedmiss.report.inputs import ReportInputs
from fedmiss.report.support import connected
from fedmiss.report.years import Years

__all__ = [
    "MIN_CELLS_PER_YEAR",
    "MIN_DETECTIONS",
    "MIN_SITES_REPEATED",
    "Coverage",
    "coverage",
    "monthly_coverage",
]

MIN_SITES_REPEATED = 5  # sites counted in two or more years: only they inform a trend
MIN_CELLS_PER_YEAR = 10  # counted cells in the median year
MAX_COUNT_SHARE = 0.5  # of all that was counted, in one site-month
MIN_DETECTIONS = 20  # visits with a detection; with fewer, the mean of all years has an error above 22 %


@dataclass(frozen=True, slots=True)
class Coverage:
    """Figures of the data behind a report; shares are between 0 and 1."""

    n_sites: int
    n_months: int
    n_cells: int
    n_observed: int
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
    thin: tuple[str, ...] = ()

    @property
    def no_zeros(self) -> bool:
        """True when not a single visit without the species is in the panel."""
        return self.n_zeros == 0


def _linked_years(site: np.ndarray, year: np.ndarray, n_sites: int, n_years: int) -> int:
    """Return the size of the largest set of years linked by sites (or months) that were counted in more than one year."""
    linked = np.zeros((n_sites, n_years), dtype=bool)
    linked[site, year] = True
    return int(np.bincount(connected(linked)[np.unique(year)], minlength=1).max())


def coverage(data: ReportInputs, years: Years) -> Coverage:
    """Count the data, and list every reason why they do not allow a trend class (``thin``).

    Only sites counted in several years inform a trend. When no such site links two years, the difference
    between them is the model's assumption and not an observation.
    """
    J, L = data.expected.shape
    cells = data.cells
    # the season only, as the yearly and the site table
    seasonal = np.asarray((years.W > 0).any(axis=0))[cells["month_index"].to_numpy()]
    counted = cells[(cells["n_counted"] > 0).to_numpy() & seasonal]
    site = counted["site_index"].to_numpy()
    month_year = data.months["year"].to_numpy()[counted["month_index"].to_numpy()]
    position = np.searchsorted(years.year, month_year)
    used = years.used[position]
    pairs = pd.DataFrame({"site": site[used], "year": position[used]}).drop_duplicates()
    repeated = int((pairs.groupby("site").size() >= 2).sum())
    per_year = np.bincount(position, minlength=years.year.size)[years.used]
    linked = _linked_years(pairs["site"].to_numpy(), pairs["year"].to_numpy(), J, years.year.size)
    # the season's cells of the years in the trend, as for the totals; all cells where no year is in it
    weight = years.W[years.used].sum(axis=0) if years.used.any() else np.ones(L)
    total = float(data.totals @ weight)
    imputed = float(np.where(data.observed, 0.0, data.expected).sum(axis=0) @ weight)
    median = float(np.median(per_year)) if per_year.size else 0.0
    visits = int(cells["n_visits"].sum())
    month_of_year = data.months["month_of_year"].to_numpy()[counted["month_index"].to_numpy()]
    season = _linked_years(month_of_year[used], position[used], 13, years.year.size)
    known = data.sites[["latitude", "longitude"]].notna().all(axis=1)
    c = Coverage(
        n_sites=J,
        n_months=L,
        n_cells=J * L,
        n_observed=int(data.observed.sum()),
        n_visits=visits,
        n_counted=int(cells["n_counted"].sum()),
        n_detected=int(cells["n_detected"].sum()),
        n_zeros=visits - int(cells["n_detected"].sum()),
        birds_counted=int(cells["count_sum"].sum()),
        share_observed=float(data.observed.mean()),
        share_imputed_total=imputed / total if total > 0 else float("nan"),
        sites_repeated=repeated,
        median_cells_per_year=median,
        months_unseen=int((data.n_observed == 0).sum()),
        sites_with_coordinates=int(known.sum()),
        linked_years=linked,
        years_sharing_months=season,
    )
    return replace(c, thin=tuple(_thin(c, data, int(years.used.sum()))))


def _thin(c: Coverage, data: ReportInputs, n_used: int) -> Iterator[str]:
    """Yield the reasons why the counts do not allow a trend class; the trend has ``n_used`` years."""
    cell, counts = data.cell, data.cells["count_sum"]
    largest = float(counts.max() / counts.sum()) if counts.sum() else 0.0
    if largest > MAX_COUNT_SHARE:
        yield f"one {cell} holds {100 * largest:.0f} % of all that was counted"
    if c.n_detected < MIN_DETECTIONS:
        yield f"{c.n_detected} visits found the species; a class needs {MIN_DETECTIONS}"
    if c.sites_repeated < MIN_SITES_REPEATED:
        were = "site was" if c.sites_repeated == 1 else "sites were"
        yield f"{c.sites_repeated} {were} counted in two or more years; a class needs {MIN_SITES_REPEATED}"
    median = c.median_cells_per_year
    if median < MIN_CELLS_PER_YEAR:
        yield f"the median year has {median:.0f} {cell}s with a count; a class needs {MIN_CELLS_PER_YEAR}"
    if 0 < c.linked_years < n_used:
        are = "is" if c.linked_years == 1 else "are"
        yield f"only {c.linked_years} of {n_used} years {are} linked by sites counted in more than one of them"
    if 0 < c.years_sharing_months < n_used:
        yield (
            f"only {c.years_sharing_months} of {n_used} years have a month of the year in common with the others, so a "
            "change of the season in which was counted cannot be told from a change of the birds"
        )


def monthly_coverage(data: ReportInputs) -> pd.DataFrame:
    """Return per month: cells, cells with a count, missing cells, visits, and the imputed share of the total.

    Columns: ``month_index``, ``month``, ``observed``, ``missing`` (cells), ``visits``, ``imputed_share``.
    """
    visits = np.zeros(len(data.months), dtype=np.int64)
    np.add.at(visits, data.cells["month_index"].to_numpy(), data.cells["n_visits"].to_numpy())
    observed = data.n_observed
    total = data.totals
    seen = np.where(data.observed, data.expected, 0.0).sum(axis=0)
    with np.errstate(divide="ignore", invalid="ignore"):
        share = np.where(total > 0, 1.0 - seen / total, np.nan)
    frame = data.months[["month_index", "month"]].reset_index(drop=True)
    return frame.assign(
        observed=observed, missing=data.expected.shape[0] - observed, visits=visits, imputed_share=share
    )
