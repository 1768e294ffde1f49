"""Everything a report states, computed once from its inputs; figures, tables and prose only read it."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd

from fedmiss.arrays import F64, I64
from fedmiss.report.changes import bends, periods
from fedmiss.report.classes import NOT_CLASSIFIED, classify
from fedmiss.report.coverage import Coverage, coverage, monthly_coverage
from fedmiss.report.inputs import ALL, ReportInputs
from fedmiss.report.series import MonthlySeries
from fedmiss.report.settings import ReportSettings
from fedmiss.report.slopes import log_slope
from fedmiss.report.support import carriers, first_base, usable_counts, visits_by_site, year_support
from fedmiss.report.weeks import weekly
from fedmiss.report.years import Years

__all__ = ["MIN_SITE_YEARS", "Analysis", "ReportSettings", "analyse"]

MIN_SITE_YEARS = 3  # the trend of a site counted in fewer years comes mostly from the other sites


@dataclass(frozen=True)
class Analysis:
    """The numbers of one report; every frame is a table that is also written to ``tables/``.

    ``series`` holds the totals of all sites; its ``n_observed`` is 0 in years that have too few counts for the index.
    ``base`` is the base period (None: the first used year).
    """

    data: ReportInputs
    settings: ReportSettings
    date: str
    series: MonthlySeries
    coverage: Coverage
    monthly: pd.DataFrame
    yearly: pd.DataFrame
    trend: pd.Series
    periods: pd.DataFrame
    points: pd.DataFrame
    season: pd.DataFrame
    curve: pd.DataFrame
    base: str | None
    carriers: pd.DataFrame
    visits: pd.DataFrame
    regions: pd.DataFrame
    sites: pd.DataFrame
    covariance: tuple[I64, F64, F64] | None
    replicates: pd.DataFrame

    @cached_property
    def weeks(self) -> pd.DataFrame:
        """The seasonal profile by week; empty where the data have no weeks."""
        return weekly(self)

    @property
    def years(self) -> Years:
        """The year axis of the series."""
        return self.series.years

    @property
    def species(self) -> str:
        """Scientific name, or what the panel calls its species."""
        return str(self.data.fact("species", default="") or "species not named")

    @property
    def common_name(self) -> str:
        """Common name, blank when not known."""
        return str(self.data.fact("common_name", default="") or "")

    @property
    def name(self) -> str:
        """Common name where there is one, else the scientific name."""
        return self.common_name or self.species

    @property
    def unit(self) -> str:
        """What a total counts: birds, nests, pairs ..., or occupied sites when the fit is of presence and absence."""
        return "occupied sites" if self.data.fact("family") == "bernoulli" else self.settings.unit

    @property
    def yearly_counts(self) -> bool:
        """True when the counts are yearly: then the report names no month."""
        return self.data.yearly_counts

    @property
    def cell(self) -> str:
        """What a cell of the matrix is called."""
        return self.data.cell

    @property
    def sites_differ(self) -> bool:
        """True when sites have trends of their own to show."""
        return not self.data.one_trend and bool(self.years.used.any())

    @property
    def n_draws(self) -> int:
        """Number of bootstrap replicates of the total."""
        return 0 if self.series.draws is None else len(self.series.draws)

    @property
    def classified(self) -> bool:
        """True when the data carry a class."""
        return str(self.trend["trend_class"]) != NOT_CLASSIFIED


def analyse(data: ReportInputs, settings: ReportSettings) -> Analysis:
    """Compute every table of the report."""
    seen = usable_counts(data.observed, data.months, settings.least)
    if not data.cells["n_detected"].any():
        seen = np.zeros_like(seen)  # never detected: no year has an index
    series = MonthlySeries.of(data.totals, data.months, data.draws.get(ALL), seen)
    years = series.years
    base = settings.base or first_base(data.observed, years, settings.least)
    cover = coverage(data, years)
    refuse = "; ".join(cover.thin) or None
    by_month = monthly_coverage(data)
    rule, convention = settings.rule, settings.convention
    sites = _sites(data, years, settings)
    points = bends(series)
    enough = series.draws is not None and len(series.draws) >= 2 and years.used.any()
    return Analysis(
        data=data,
        settings=settings,
        date=settings.date or dt.date.today().isoformat(),
        series=series,
        coverage=cover,
        monthly=series.monthly().merge(by_month, on=["month_index", "month"]),
        yearly=_with_coverage(series.index(base), data, years),
        trend=series.trend(base=base, rule=rule, refuse=refuse, convention=convention).iloc[0],
        periods=periods(series, points, rule=rule, refuse=refuse, convention=convention),
        points=points,
        season=series.season(),
        curve=series.smooth(n_missing=by_month["missing"], span=settings.span),
        base=base,
        carriers=_withheld(carriers(data, years), settings),
        visits=visits_by_site(data.cells, sites.assign(slope=np.nan) if data.one_trend else sites),
        regions=_regions(data, settings, refuse),
        sites=sites,
        covariance=series.covariance() if enough else None,
        replicates=_replicates(series),
    )


def _withheld(table: pd.DataFrame, settings: ReportSettings) -> pd.DataFrame:
    """Withhold site ids where positions are coarse: an id gives away the exact place."""
    return table.assign(site_id="withheld") if settings.coarse_map > 0 else table


def _with_coverage(yearly: pd.DataFrame, data: ReportInputs, years: Years) -> pd.DataFrame:
    """Add cells counted and the imputed share of the year's total."""
    attrs = dict(yearly.attrs)
    member = years.W > 0
    observed, at_sites = year_support(data.observed, years)
    cells = member.sum(axis=1) * data.expected.shape[0]
    total = member @ data.totals
    seen = member @ np.where(data.observed, data.expected, 0.0).sum(axis=0)
    with np.errstate(divide="ignore", invalid="ignore"):
        share = np.where(total > 0, 1.0 - seen / total, np.nan)
    out = yearly.assign(cells_observed=observed, sites_observed=at_sites, cells=cells, imputed_share=share)
    out.attrs.update(attrs)
    return out


def _regions(data: ReportInputs, settings: ReportSettings, refuse: str | None) -> pd.DataFrame:
    rows = []
    names = data.region_names()
    grand = data.totals.mean()
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
        row = series.trend(rule=settings.rule, refuse=thin, convention=settings.convention).iloc[0]
        share = float(series.totals.mean() / grand) if grand > 0 else np.nan
        rows.append({"region": region, "n_sites": few, "share": share} | {k: row[k] for k in _REGION})
    return pd.DataFrame(rows, columns=["region", "n_sites", "share", *_REGION])


def _replicates(series: MonthlySeries) -> pd.DataFrame:
    """Return the yearly total of every replicate. A reader can compare any two years or periods with it."""
    year, total = series.years.year, series.yearly_draws
    total = np.empty((0, year.size)) if total is None else total
    draw, of = np.repeat(np.arange(len(total)), year.size), np.tile(year, len(total))
    return pd.DataFrame({"draw": draw, "year": of, "total": total.ravel()})


def _region_reason(data: ReportInputs, region: str, n_sites: int) -> str | None:
    """Return why a region gets no class of its own."""
    if data.one_trend:
        return "the model has rank 0, so every region has the same trend by construction"
    if n_sites < 3:
        return f"the region has {n_sites} site{'s' if n_sites > 1 else ''}; a class needs 3"
    if data.draws and region not in data.draws:
        return "the fit kept no bootstrap replicates of this region"
    return None


_REGION = [
    "from_year", "to_year", "n_years", "slope", "slope_se", "percent_per_year", "percent_lo", "percent_hi",
    "trend_class", "slope_se_sampling", "percent_lo_sampling", "percent_hi_sampling", "trend_class_sampling", "reason",
]  # fmt: skip


def _sites(data: ReportInputs, years: Years, settings: ReportSettings) -> pd.DataFrame:
    """Trend and abundance of each site; the map and the site table are drawn from it."""
    per_year = data.expected @ years.W.T  # (J, Y) birds, mean over the season's months
    used = years.used
    slope: F64 = log_slope(years.year[used], per_year[:, used])
    se: F64 = np.full(slope.shape, np.nan)
    if data.site_trends is not None:
        table = data.site_trends.sort_values("site_index")
        slope, se = table["slope"].to_numpy(dtype=np.float64), table["slope_se"].to_numpy(dtype=np.float64)
    counted = (data.observed.astype(np.int64) @ (years.W.T > 0)) > 0
    n_years = (counted & used).sum(axis=1)
    n_used = int(used.sum())
    if not n_used:
        slope, se = np.full(slope.shape, np.nan), np.full(slope.shape, np.nan)
    names = [
        classify(b, s, n_used, settings.rule).name
        if n >= MIN_SITE_YEARS and not data.one_trend
        else NOT_CLASSIFIED
        for b, s, n in zip(slope, se, n_years, strict=True)
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
