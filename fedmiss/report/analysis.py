"""Everything a report states, computed once from its inputs; figures, tables and prose only read it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import pandas as pd

from fedmiss.arrays import F64, Bool
from fedmiss.errors import InputError
from fedmiss.folders import ALL, VISITED
from fedmiss.report import words
from fedmiss.report.classes import NOT_CLASSIFIED, classify, student_quantile
from fedmiss.report.coverage import (
    MIN_SITE_YEARS,
    Coverage,
    coverage,
    first_base,
    imputed_share,
    in_years,
    influential_sites,
    monthly_coverage,
    thin_counts,
    usable_counts,
    visits_by_site,
    year_support,
)
from fedmiss.report.entries import Entry, entries, entry_reason
from fedmiss.report.findings import BUT_ONE, ONE_TREND, Findings, Part, found_in, never_found, region_table
from fedmiss.report.finds import FindsOnly, finds_only, finds_reason, split
from fedmiss.report.inputs import ReportInputs
from fedmiss.report.series import MonthlySeries
from fedmiss.report.settings import ReportSettings
from fedmiss.report.slopes import log_slope
from fedmiss.report.years import Years, base_years, weekly


@dataclass(frozen=True, slots=True)
class Beside:
    """The two indices side by side.

    ``table`` has ``year``, ``index``, ``index_lo``, ``index_hi``, ``trim``, ``trim_se`` (base = 100); ``trend`` is TRIM's
    slope in words, ``numbers`` are the numbers in these words; ``problem`` says why TRIM's model was not fitted.
    """

    table: pd.DataFrame
    trend: str = ""
    problem: str = ""
    numbers: Mapping[str, float] = field(default_factory=dict)


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

    @cached_property
    def site_names(self) -> list[str]:
        """The name of each site, else its id; where positions are coarse its number: a name gives away the exact place."""
        if self.settings.coarse_map > 0:
            return [f"site {site}" for site in self.sites["site_index"]]
        pairs = zip(self.sites["site_name"], self.sites["site_id"], strict=True)
        return [str(name if isinstance(name, str) and name else site) for name, site in pairs]

    @property
    def sites_differ(self) -> bool:
        """True when sites have trends of their own to show."""
        return not self.data.one_trend and bool(self.years.used.any())


def analyse(data: ReportInputs, settings: ReportSettings) -> Analysis:
    """Compute every table of the report."""
    series, base, cover, entered, only, refuse = _whole(data, settings)
    years = series.years
    by_month, found = monthly_coverage(data), cover.n_detected > 0
    monthly, yearly = (t if found else never_found(t) for t in (series.monthly(), series.index(base)))
    whole = found_in(
        Part(series, refuse, cover.n_sites), settings, base, by_month["missing"].to_numpy(dtype=np.float64)
    )
    sites = _sites(data, years, settings, whole["trend"])
    parts = _parts(data, settings, refuse)
    return Analysis(
        data=data,
        found=found,
        coverage=cover,
        monthly=monthly.merge(by_month, on=["month_index", "month"]),
        yearly=_with_coverage(yearly, data, years),
        influential=influential_sites(data, sites, years),
        # Where all sites share one trend, a correlation with trends of sites would be one with nothing.
        visits=visits_by_site(data.cells, sites.assign(slope=np.nan) if data.one_trend else sites),
        entries=entered,
        finds_only=only,
        parts=parts,
        regions=region_table(parts, settings, series),
        visited=region_table(_visited(data, settings, refuse), settings, series),
        sites=sites,
        **whole,
    )


def why_no_class(data: ReportInputs, settings: ReportSettings) -> str | None:
    """Say why the counts allow no class of the trend; None where they do."""
    return _whole(data, settings)[-1]


def _whole(
    data: ReportInputs, settings: ReportSettings
) -> tuple[MonthlySeries, str | None, Coverage, list[Entry], list[FindsOnly], str | None]:
    """The series of all sites with base, coverage, late and early visits, years of finds only; why it has no class."""
    series = _series(data, settings, ALL, np.ones(len(data.sites), dtype=bool))
    years = series.years
    base = settings.base or first_base(data.observed, years, settings.least, data.found)
    cover, entered, only = coverage(data, years), entries(data, series, settings), _finds_only(data, years)
    thin: list[str | None] = [*thin_counts(cover, data, int(years.used.sum()))]
    trend = Part(series, None, cover.n_sites).trend(settings, base)
    # The class may depend on sites that came or went: known only once the trend is.
    thin.append(entry_reason(entered, float(trend["percent_lo"]), float(trend["percent_hi"])))
    thin.append(finds_reason(only, series, settings))
    return series, base, cover, entered, only, "; ".join(filter(None, thin)) or None


def _finds_only(data: ReportInputs, years: Years) -> list[FindsOnly]:
    """Years of finds only, by the visits at the same sites, and of the same months of the year."""
    site, month, visits, finds = (
        data.cells[name].to_numpy() for name in ("site_index", "month_index", "n_visits", "n_detected")
    )
    of_year = data.months["month_of_year"].to_numpy()[month]
    both = [split(years, month, part, visits, finds) for part in (site, of_year)]
    return finds_only(years.year[years.used], both, by_site=True)


def _series(data: ReportInputs, settings: ReportSettings, name: str, at: Bool) -> MonthlySeries:
    """The totals of the sites ``at`` (J,), whose replicates have this name."""
    seen = usable_counts(data.observed[at], data.months, settings.least)
    if not data.cells.loc[at[data.cells["site_index"]], "n_detected"].any():
        # Never detected there: no year has an index. The trend would be that of the model, or of the other regions.
        seen = np.zeros_like(seen)
    return MonthlySeries.of(data.expected[at].sum(axis=0), data.months, data.draws.get(name), seen)


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
        series, n_sites = _series(data, settings, region, mask), int(mask.sum())
        thin: str | None = "no year of the region has enough counts that found the species"
        if series.years.used.any():
            thin = refuse or _region_reason(data, region, n_sites)
        parts[region] = Part(series, thin, n_sites)
    return parts


def _visited(data: ReportInputs, settings: ReportSettings, refuse: str | None) -> dict[str, Part]:
    """The series of the visited sites, where the panel has sites that stand for an area; else none."""
    at = data.observed.any(axis=1)
    if VISITED not in data.draws or at.all() or not at.any():
        return {}
    seen = usable_counts(data.observed, data.months, settings.least)
    series = MonthlySeries.of(data.expected[at].sum(axis=0), data.months, data.draws[VISITED], seen)
    return {VISITED: Part(series, refuse, int(at.sum()))}


def _region_reason(data: ReportInputs, region: str, n_sites: int) -> str | None:
    """Return why a region gets no class of its own."""
    if data.one_trend:
        return BUT_ONE if data.fact("large_site") else ONE_TREND
    if n_sites < 3:
        return f"the region has {n_sites} site{'s' if n_sites > 1 else ''}; a class needs 3"
    if data.draws and region not in data.draws:
        return "the fit kept no bootstrap replicates of this region"
    return None


def _sites(data: ReportInputs, years: Years, settings: ReportSettings, trend: pd.Series) -> pd.DataFrame:
    """Trend and abundance of each site; the map and the site table are drawn from it.

    Good and bad years are common to the sites: no site's ``trend`` is known better than the scatter of years lets that of
    all sites be known, and where that one has no class none has.
    """
    per_year = data.expected @ years.W.T  # (J, Y) birds, mean over the season's months
    used = years.used
    slope: F64 = log_slope(years.year[used], per_year[:, used])
    se: F64 = np.full(slope.shape, np.nan)
    if data.site_trends is not None:
        table = data.site_trends.sort_values("site_index")
        # The fit's own slopes of sites, with the spread of the replicates, where it has kept them.
        slope, se = table["slope"].to_numpy(dtype=np.float64), table["slope_se"].to_numpy(dtype=np.float64)
    n_years = (in_years(data.observed, years.W > 0) & (used | ~used.any())).sum(axis=1)
    n_used = int(used.sum())
    if not n_used:
        slope, se = np.full((2, len(data.sites)), np.nan)
    # Where it was looked for and never found no count tells a change: the fit draws a slope among next to no birds, without
    # an error, since all replicates have the same zeros.
    finds = data.cells.groupby("site_index")["n_detected"].sum()
    slope, se = slope.copy(), se.copy()
    slope[finds.index[finds == 0]] = se[finds.index[finds == 0]] = np.nan
    # A total below 0, as a Gaussian fit may give, has no logarithm: the fit's slope there is that of a billionth of a bird.
    slope, se = (np.where((per_year < 0).any(axis=1), np.nan, value) for value in (slope, se))
    # The error of the totals aside, nothing where the convention leaves the scatter out.
    se = np.sqrt(se**2 + max(trend["slope_se"] ** 2 - trend["slope_se_sampling"] ** 2, 0.0))
    quantile = 1.96 if settings.convention == "trim" or n_used < 3 else student_quantile(0.95, n_used - 2)
    classes = [classify(*known, n_used, settings.rule, quantile) for known in zip(slope, se, strict=True)]
    refused = data.one_trend or trend["trend_class"] == NOT_CLASSIFIED
    names = [
        NOT_CLASSIFIED if refused or counted < MIN_SITE_YEARS else found.name
        for found, counted in zip(classes, n_years, strict=True)
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
        percent_lo=[100.0 * (found.lo - 1.0) for found in classes],
        percent_hi=[100.0 * (found.hi - 1.0) for found in classes],
        trend_class=names,
    )


def trim_beside(analysis: Analysis) -> Beside | None:
    """Fit TRIM's model 3 (with months where a year has several) to the mean count of every counted cell.

    Effort and observers do not enter, as in TRIM. Only the season's months and the years that enter the trend are used, so
    that both indices speak of the same. None when the report does not ask for it.
    """
    if not analysis.settings.trim:
        return None
    # TRIM's solver takes half a second to load.
    from fedmiss.report.trim import TrimSettings, fit_trim

    years = analysis.years
    cells = analysis.data.cells.assign(counted=analysis.data.sums).merge(analysis.months, on="month_index")
    # The same months and years for both: TRIM would take a lone December for a year.
    inside = cells["year"].isin(years.year[years.used]) & cells["month_of_year"].isin(years.season)
    cells = cells[(cells["n_used"] > 0) & inside]
    try:
        fit = fit_trim(
            cells["site_index"],
            cells["year"],
            # TRIM takes one count a site and time: the mean of the visits, since their number is effort and not birds.
            cells["counted"] / cells["n_used"],
            TrimSettings(model=3, overdispersion=True),
            month=cells["month_of_year"],
        )
    except InputError as error:
        empty = pd.DataFrame(columns=["year", "index", "index_lo", "index_hi", "trim", "trim_se"])
        return Beside(empty, problem=str(error))
    base = years.year[base_years(analysis.base, years)]
    index = fit.index(base=[int(year) for year in base if year in fit.times] or None)
    both = analysis.yearly[["year", "index", "index_lo", "index_hi"]].merge(
        pd.DataFrame({"year": index["time"], "trim": 100 * index["index"], "trim_se": 100 * index["se"]}),
        on="year",
    )
    row = fit.overall().iloc[0]
    # The interval that decides the class stands beside it.
    kind = classify(row["slope"], row["slope_se"], len(fit.times), analysis.settings.rule)
    change, lo, hi = (100 * (factor - 1) for factor in (row["multiplicative"], kind.lo, kind.hi))
    trend = f"{words.per_year(change, lo, hi)}, {kind.name}, overdispersion {words.number(fit.sigma2)}"
    numbers = {"trim_percent": change, "trim_percent_lo": lo, "trim_percent_hi": hi}
    return Beside(both, trend, numbers=numbers | {"trim_overdispersion": fit.sigma2})
