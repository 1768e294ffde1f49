"""Everything a report states, computed once from its inputs; figures, tables and prose only read it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd

from fedmiss.arrays import F64
from fedmiss.folders import ALL, VISITED
from fedmiss.report.beside import Beside, trim_beside
from fedmiss.report.classes import NOT_CLASSIFIED, classify
from fedmiss.report.coverage import (
    MIN_SITE_YEARS,
    Coverage,
    coverage,
    first_base,
    imputed_share,
    influential_sites,
    monthly_coverage,
    thin_counts,
    usable_counts,
    visits_by_site,
    year_support,
)
from fedmiss.report.entries import Entry, entries, entry_reason
from fedmiss.report.findings import ONE_TREND, Findings, Part, found_in, region_table
from fedmiss.report.inputs import ReportInputs
from fedmiss.report.series import MonthlySeries
from fedmiss.report.settings import ReportSettings
from fedmiss.report.slopes import log_slope
from fedmiss.report.years import Years, weekly

__all__ = ["Analysis", "ReportSettings", "analyse"]


@dataclass(frozen=True, kw_only=True)
class Analysis(Findings):
    """The numbers of one report about a panel."""

    data: ReportInputs
    coverage: Coverage
    influential: pd.DataFrame
    visits: pd.DataFrame
    entries: list[Entry]
    sites: pd.DataFrame

    @cached_property
    def beside(self) -> Beside | None:
        """TRIM's index beside ours, where the report asks for it."""
        return trim_beside(self)

    @cached_property
    def weeks(self) -> pd.DataFrame:
        """The seasonal profile by week; empty where the data have no weeks."""
        return weekly(self)

    @property
    def sites_differ(self) -> bool:
        """True when sites have trends of their own to show."""
        return not self.data.one_trend and bool(self.years.used.any())


def analyse(data: ReportInputs, settings: ReportSettings) -> Analysis:
    """Compute every table of the report."""
    seen = usable_counts(data.observed, data.months, settings.least)
    if not data.cells["n_detected"].any():
        seen = np.zeros_like(seen)  # never detected: no year has an index
    series = MonthlySeries.of(data.totals, data.months, data.draws.get(ALL), seen)
    years = series.years
    base = settings.base or first_base(data.observed, years, settings.least)
    cover = coverage(data, years)
    thin = list(thin_counts(cover, data, int(years.used.sum())))
    entered = entries(data, series, settings)
    trend = Part(series, None, cover.n_sites).trend(settings, base)
    # The class may depend on sites that came or went: known only once the trend is.
    if reason := entry_reason(entered, float(trend["percent_lo"]), float(trend["percent_hi"])):
        thin.append(reason)
    refuse = "; ".join(thin) or None
    by_month = monthly_coverage(data)
    sites = _sites(data, years, settings)
    parts, grand = _parts(data, settings, refuse), data.totals.mean()
    return Analysis(
        data=data,
        found=cover.n_detected > 0,
        coverage=cover,
        monthly=series.monthly().merge(by_month, on=["month_index", "month"]),
        yearly=_with_coverage(series.index(base), data, years),
        influential=_withheld(influential_sites(data, years), settings),
        # Where all sites share one trend, a correlation with trends of sites would be one with nothing.
        visits=visits_by_site(data.cells, sites.assign(slope=np.nan) if data.one_trend else sites),
        entries=entered,
        parts=parts,
        regions=region_table(parts, settings, grand),
        visited=region_table(_visited(data, settings, refuse), settings, grand),
        sites=sites,
        **found_in(
            Part(series, refuse, cover.n_sites),
            settings,
            base,
            by_month["missing"].to_numpy(dtype=np.float64),
        ),
    )


def _withheld(table: pd.DataFrame, settings: ReportSettings) -> pd.DataFrame:
    """Withhold site ids where positions are coarse: an id gives away the exact place."""
    return table.assign(site_id="withheld") if settings.coarse_map > 0 else table


def _with_coverage(yearly: pd.DataFrame, data: ReportInputs, years: Years) -> pd.DataFrame:
    """Add cells counted and the imputed share of the year's total."""
    member = years.W > 0
    observed, at_sites = year_support(data.observed, years)
    cells = member.sum(axis=1) * data.expected.shape[0]
    share = imputed_share(data, member)
    return yearly.assign(cells_observed=observed, sites_observed=at_sites, cells=cells, imputed_share=share)


def _parts(data: ReportInputs, settings: ReportSettings, refuse: str | None) -> dict[str, Part]:
    """Return the series of each region, where there are two or more."""
    parts = {}
    names = data.region_names()
    for region in names if len(names) > 1 else []:
        mask = (data.sites["region"] == region).to_numpy()
        seen = usable_counts(data.observed[mask], data.months, settings.least)
        if not data.cells.loc[data.cells["site_index"].isin(np.flatnonzero(mask)), "n_detected"].any():
            seen = np.zeros_like(seen)  # never detected there: its trend would be that of the other regions
        series = MonthlySeries.of(data.region_totals(region), data.months, data.draws.get(region), seen)
        few = int(mask.sum())
        if series.years.used.any():
            thin = refuse or _region_reason(data, region, few)
        else:
            thin = "no year of the region has enough counts that found the species"
        parts[region] = Part(series, thin, few)
    return parts


def _visited(data: ReportInputs, settings: ReportSettings, refuse: str | None) -> dict[str, Part]:
    """The series of the visited sites, where the panel has sites that stand for an area; else none."""
    at = data.observed.any(axis=1)
    if VISITED not in data.draws or at.all() or not at.any():
        return {}
    seen = usable_counts(data.observed, data.months, settings.least)
    totals: F64 = data.expected[at].sum(axis=0)
    series = MonthlySeries.of(totals, data.months, data.draws[VISITED], seen)
    return {VISITED: Part(series, refuse, int(at.sum()))}


def _region_reason(data: ReportInputs, region: str, n_sites: int) -> str | None:
    """Return why a region gets no class of its own."""
    if data.one_trend:
        return ONE_TREND
    if n_sites < 3:
        return f"the region has {n_sites} site{'s' if n_sites > 1 else ''}; a class needs 3"
    if data.draws and region not in data.draws:
        return "the fit kept no bootstrap replicates of this region"
    return None


def _sites(data: ReportInputs, years: Years, settings: ReportSettings) -> pd.DataFrame:
    """Trend and abundance of each site; the map and the site table are drawn from it."""
    per_year = data.expected @ years.W.T  # (J, Y) birds, mean over the season's months
    used = years.used
    slope: F64 = log_slope(years.year[used], per_year[:, used])
    se: F64 = np.full(slope.shape, np.nan)
    if data.site_trends is not None:
        table = data.site_trends.sort_values("site_index")
        # The fit's own slopes of sites, with the spread of the replicates, where it has kept them.
        slope, se = table["slope"].to_numpy(dtype=np.float64), table["slope_se"].to_numpy(dtype=np.float64)
    # (J, Y): whether anybody counted at the site in the season of the year.
    counted = (data.observed.astype(np.int64) @ (years.W.T > 0)) > 0
    n_years = (counted & used).sum(axis=1)
    n_used = int(used.sum())
    if not n_used:
        slope, se = np.full(slope.shape, np.nan), np.full(slope.shape, np.nan)
    names = [
        classify(change, error, n_used, settings.rule).name
        if years >= MIN_SITE_YEARS and not data.one_trend
        else NOT_CLASSIFIED
        for change, error, years in zip(slope, se, n_years, strict=True)
    ]
    out = data.sites[["site_index", "site_id", "site_name", "region", "latitude", "longitude"]].copy()
    if settings.coarse_map > 0:
        step = settings.coarse_map
        for axis in ("latitude", "longitude"):
            out[axis] = (out[axis] / step).round() * step
        # An id or a name gives away the exact place, as coordinates do.
        out["site_id"] = "withheld"
        out["site_name"] = None
    return out.assign(
        cells_observed=data.observed.sum(axis=1),
        years_counted=n_years,
        mean_total=per_year[:, used].mean(axis=1) if n_used else np.nan,
        slope=slope,
        slope_se=se,
        percent_per_year=100.0 * (np.exp(slope) - 1.0),
        trend_class=names,
    )
