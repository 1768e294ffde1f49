"""What follows from a fitted count model: totals of its visits by month and of regions, slopes of its sites."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedmiss.arrays import F64, I64
from fedmiss.federation.hub.state import MonthState
from fedmiss.federation.results import AverageFit, CountFit
from fedmiss.models.lowrank.families import SCALES
from fedmiss.models.lowrank.occupancy import log_yearly
from fedmiss.models.lowrank.settings import CountSettings
from fedmiss.seasons import season_years

BLOCK = 4_000_000  # cells of the imputed matrix held at a time


def visited_totals(fits: Sequence[tuple[MonthState, CountSettings]]) -> dict[str, F64 | I64]:
    """Columns of the table ``visited``: counted and fitted totals of each month's visits, in birds.

    Of several fits the mean of the fitted totals and of their variances: of the counts themselves, not of the mean's error.
    """
    tables = [_visited(state, settings) for state, settings in fits]
    month: I64 = np.arange(len(tables[0]["weight"]), dtype=np.int32)
    out: dict[str, F64 | I64] = {
        name: np.mean([table[name] for table in tables], axis=0) for name in tables[0]
    }
    return out | {"month_index": month}


def _visited(state: MonthState, settings: CountSettings) -> dict[str, F64]:
    assert state.visited is not None
    weight, counted, fitted, variance, effort, square, _, _ = state.visited.T
    if SCALES[settings.scale].log:  # sums of 1 + count, whose logarithm has the variance phi
        counted, fitted = counted - weight, state.smear * fitted - weight
        # a lognormal of mean m has variance m^2 (exp(phi) - 1), and smear makes exp(eta + var / 2) the mean
        variance = state.smear**2 * variance * np.expm1(state.phi)
    else:
        variance = state.smear**2 * variance * state.dispersion
        fitted = state.smear * fitted
    sums = {"weight": weight, "counted": counted, "fitted": fitted, "variance": variance}
    return sums | {"effort": effort, "effort_square": square}


def row_blocks(J: int, L: int) -> list[slice]:
    """Blocks of sites whose J x L parts fit in memory."""
    step = max(1, BLOCK // max(L, 1))
    return [slice(i, min(i + step, J)) for i in range(0, J, step)]


def totals_by_region(fit: CountFit | AverageFit, region: I64, n_regions: int) -> F64:
    """Sum the expected counts over sites: (n_regions, L); ``region`` (J,) is -1 for sites of no region.

    Row 0 is the whole panel; region ``i`` fills row ``i + 1``.
    """
    out = np.zeros((n_regions + 1, fit.L))
    for rows in row_blocks(fit.J, fit.L):
        values = fit.expected(rows)
        out[0] += values.sum(axis=0)
        for i in np.unique(region[rows]):
            if i >= 0:
                out[i + 1] += values[region[rows] == i].sum(axis=0)
    return out


def site_slopes(fit: CountFit | AverageFit, year: I64, month_of_year: I64) -> tuple[F64, F64]:
    """Least-squares slope of log yearly total on year per site, and the mean yearly total, over complete years.

    A year is complete when it has every calendar month of the panel; a season over the New Year is of the year in which it
    ends. With fewer than three complete years the slope is NaN.
    """
    year = season_years(year, month_of_year)
    season, empty = np.unique(month_of_year).size, any(one.presence is not None for one in fit.fits)
    years, counts = np.unique(year, return_counts=True)
    full = years[counts == season]
    slopes, means = np.full(fit.J, np.nan), np.zeros(fit.J)
    x = full - full.mean() if full.size else full.astype(float)
    pick = (year[:, None] == full[None, :]).astype(float)
    for rows in row_blocks(fit.J, fit.L):
        values = fit.expected(rows)
        if full.size == 0:
            means[rows] = values.mean(axis=1) * season
            continue
        yearly = values @ pick
        means[rows] = yearly.mean(axis=1)
        if full.size >= 3:
            slopes[rows] = log_yearly(yearly, empty=empty) @ x / float(x @ x)
    return slopes, means
