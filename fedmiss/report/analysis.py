"""Everything a report states, computed once from its inputs; figures, tables and prose only read it."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd

from fedmiss.arrays import F64, I64
from fedmiss.report.changes import change_points, period_trends
from fedmiss.report.classes import NOT_CLASSIFIED, classify
from fedmiss.report.coverage import Coverage, coverage, monthly_coverage
from fedmiss.report.inputs import ALL, ReportInputs
from fedmiss.report.settings import ReportSettings
from fedmiss.report.support import carriers, first_base, usable_counts, visits_by_site, year_support
from fedmiss.report.trends import (
    log_slope,
    monthly_totals,
    overall_trend,
    seasonal,
    smooth,
    yearly_covariance,
    yearly_index,
)
from fedmiss.report.years import Years, make_years

__all__ = ["MIN_SITE_YEARS", "Analysis", "ReportSettings", "analyse"]

MIN_SITE_YEARS = 3  # a site counted in fewer years borrows its trend from the others


@dataclass(frozen=True)
class Analysis:
    """The numbers of one report; every frame is a table that is also written to ``tables/``.

    ``seen`` (L,) is the number of cells with a count in each month, 0 in years that have too few for the index;
    ``base`` the base period (None: the first used year).
    """

    data: ReportInputs
    settings: ReportSettings
    date: str
    years: Years
    coverage: Coverage
    monthly: pd.DataFrame
    yearly: pd.DataFrame
    trend: pd.Series
    periods: pd.DataFrame
    points: pd.DataFrame
    season: pd.DataFrame
    curve: pd.DataFrame
    seen: I64
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
        from fedmiss.report.weeks import weekly

        return weekly(self)

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
        """True when the counts are yearly: then no month is spoken of."""
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
        draws = self.data.draws.get(ALL)
        return 0 if draws is None else len(draws)

    @property
    def classified(self) -> bool:
        """True when the data carry a class."""
        return str(self.trend["trend_class"]) != NOT_CLASSIFIED


def analyse(data: ReportInputs, settings: ReportSettings) -> Analysis:
    """Compute every table of the report."""
    totals, draws = data.totals, data.draws.get(ALL)
    seen = usable_counts(data.observed, data.months, settings.least)
    if not data.cells["n_detected"].any():
        seen = np.zeros_like(seen)  # never found: no year has an index
    years = make_years(data.months, seen)
    base = settings.base or first_base(data.observed, years, settings.least)
    cover = coverage(data, years)
    refuse = "; ".join(cover.thin) or None
    by_month = monthly_coverage(data)
    monthly = monthly_totals(totals, data.months, draws).merge(by_month, on=["month_index", "month"])
    yearly = yearly_index(totals, data.months, draws, base=base, n_observed=seen)
    yearly = _with_coverage(yearly, data, years)
    trend = overall_trend(
        totals, data.months, draws, base=base, rule=settings.rule, n_observed=seen, refuse=refuse,
        convention=settings.convention,
    ).iloc[0]  # fmt: skip
    sites = _sites(data, years, settings)
    points = change_points(totals, data.months, draws, n_observed=seen)
    covariance = None
    if draws is not None and len(draws) >= 2 and years.used.any():
        covariance = yearly_covariance(totals, data.months, draws, seen)
    return Analysis(
        data=data,
        settings=settings,
        date=settings.date or dt.date.today().isoformat(),
        years=years,
        coverage=cover,
        monthly=monthly,
        yearly=yearly,
        trend=trend,
        periods=period_trends(
            totals,
            data.months,
            draws,
            rule=settings.rule,
            n_observed=seen,
            points=points,
            refuse=refuse,
            convention=settings.convention,
        ),
        points=points,
        season=seasonal(totals, data.months, draws, n_observed=seen),
        curve=smooth(
            totals, data.months, draws, n_missing=by_month["missing"], n_observed=seen, span=settings.span
        ),
        seen=seen,
        base=base,
        carriers=_withheld(carriers(data, years), settings),
        visits=visits_by_site(data.cells, sites.assign(slope=np.nan) if data.one_trend else sites),
        regions=_regions(data, settings, refuse),
        sites=sites,
        covariance=covariance,
        replicates=_replicates(data, years),
    )


def _withheld(table: pd.DataFrame, settings: ReportSettings) -> pd.DataFrame:
    """Withhold the id of a site where positions are coarse: an id leads to the exact place."""
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
            seen = np.zeros_like(seen)  # never found there: its trend would be that of the others
        totals = data.region_totals(region)
        few = int(mask.sum())
        if make_years(data.months, seen).used.any():
            thin = refuse or _region_reason(data, region, few)
        else:
            thin = "no year of the region has enough counts that found the species"
        row = overall_trend(
            totals, data.months, data.draws.get(region), rule=settings.rule, n_observed=seen, refuse=thin,
            convention=settings.convention,
        ).iloc[0]  # fmt: skip
        rows.append(
            {"region": region, "n_sites": few, "share": float(totals.mean() / grand) if grand > 0 else np.nan}
            | {k: row[k] for k in _REGION}
        )
    return pd.DataFrame(rows, columns=["region", "n_sites", "share", *_REGION])


def _replicates(data: ReportInputs, years: Years) -> pd.DataFrame:
    """Return the yearly total of every replicate, so that a reader can compare two years or periods of their own."""
    draws = data.draws.get(ALL)
    B = 0 if draws is None else len(draws)
    total = np.empty((0, years.year.size)) if draws is None else draws @ years.W.T
    return pd.DataFrame(
        {
            "draw": np.repeat(np.arange(B), years.year.size),
            "year": np.tile(years.year, B),
            "total": total.ravel(),
        }
    )


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
        # An id or a name leads to the exact place as surely as its coordinates do.
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
