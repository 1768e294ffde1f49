"""What every report states of a series of monthly totals: of one organisation's panel, or of several together."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from fedmiss.arrays import F64, I64
from fedmiss.report.changes import find_change_points, periods
from fedmiss.report.classes import NOT_CLASSIFIED
from fedmiss.report.finds import FindsOnly
from fedmiss.report.inputs import Source
from fedmiss.report.series import MonthlySeries
from fedmiss.report.settings import ReportSettings
from fedmiss.report.years import Years
from fedmiss.tables import load_schema

ONE_TREND = "the model gives all sites one trend, so it tells no region from another"
BUT_ONE = "the model gives all sites but the one with most birds one trend"


class Part(NamedTuple):
    """A series of all sites or of a region, why it may have no class (None: it may), and how many sites (0: not known)."""

    series: MonthlySeries
    refuse: str | None
    n_sites: int

    def trend(
        self, settings: ReportSettings, base: str | None = None, years: tuple[int, int] | None = None
    ) -> pd.Series:
        """Return the trend by the report's rule and convention, the columns of ``overall_trend``."""
        row = self.series.trend(
            base=base, rule=settings.rule, years=years, refuse=self.refuse, convention=settings.convention
        )
        return row.iloc[0]


@dataclass(frozen=True, kw_only=True)
class Findings:
    """The numbers of a report that follow from totals and replicates; every frame is a table of ``tables/``.

    ``whole`` holds the totals of all sites; ``n_observed`` of its series has a minus in years with too few counts for the
    index. ``found`` is whether the species was found at all, ``base`` the base period (None: the first used year), ``parts``
    the series of each region. ``visited`` has one row, the trend of the visited sites, where other sites stand for an area;
    else none. ``finds_only`` names the years whose visits seem to have been reported only where they found the species.
    """

    data: Source
    settings: ReportSettings
    date: str
    found: bool
    whole: Part
    monthly: pd.DataFrame
    yearly: pd.DataFrame
    trend: pd.Series
    periods: pd.DataFrame
    points: pd.DataFrame
    season: pd.DataFrame
    curve: pd.DataFrame
    base: str | None
    parts: Mapping[str, Part]
    regions: pd.DataFrame
    visited: pd.DataFrame
    finds_only: list[FindsOnly]
    covariance: tuple[I64, F64, F64] | None
    replicates: pd.DataFrame

    @property
    def series(self) -> MonthlySeries:
        """The totals of all sites."""
        return self.whole.series

    @property
    def n_sites(self) -> int:
        """The number of sites behind the totals."""
        return self.whole.n_sites

    @property
    def years(self) -> Years:
        """The year axis of the series."""
        return self.series.years

    @property
    def months(self) -> pd.DataFrame:
        """The months, each with the ``year`` that it counts in."""
        return self.data.months.assign(year=self.years.of_month)

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
    def solved(self) -> int:
        """How many groups answered in the fit: those of one person that share sites are one."""
        return int(self.data.fact("n_solved", default=None) or self.data.fact("n_groups", default=1))

    @property
    def unit(self) -> str:
        """What a total counts: birds, nests, pairs ..., or sites with a find when the fit is of presence and absence."""
        return "sites with a find" if self.data.fact("family") == "bernoulli" else self.settings.unit

    @property
    def unit_of_site(self) -> str:
        """What is expected at one site: birds, nests ..., or a chance."""
        return "chance of presence" if self.data.fact("family") == "bernoulli" else self.settings.unit

    @property
    def yearly_counts(self) -> bool:
        """True when the counts are yearly: then the report names no month."""
        return self.data.yearly_counts

    @property
    def cell(self) -> str:
        """What a cell of the matrix is called."""
        return self.data.cell

    @property
    def redrawn(self) -> str:
        """Whose weights the replicates draw: sites' where observers are not known or one made nearly all visits."""
        sites = self.data.fact("sites_redrawn") or self.data.fact("n_observers", default=1) == 0
        return "sites" if sites else "observers"

    @property
    def no_index(self) -> str:
        """Why no year has an index, where none has."""
        if self.found:
            return "No year has enough counts for an index"
        return "The species was never found, so no year has an index"

    @property
    def n_draws(self) -> int:
        """Number of bootstrap replicates of the total."""
        return 0 if self.series.draws is None else len(self.series.draws)

    @property
    def classified(self) -> bool:
        """True when the data carry a class."""
        return str(self.trend["trend_class"]) != NOT_CLASSIFIED


def found_in(whole: Part, settings: ReportSettings, base: str | None, below: F64) -> dict[str, Any]:
    """Fields of :class:`Findings` that follow from the series of all sites alone.

    ``below`` (L,): what the lower curve of the monthly figure follows: cells without a count, or visits.
    """
    series, points = whole.series, find_change_points(whole.series)
    # Covariances need two replicates, and a year to speak of.
    enough = series.draws is not None and len(series.draws) >= 2 and series.years.used.any()
    return {
        "settings": settings,
        "date": settings.date or dt.date.today().isoformat(),
        "whole": whole,
        "trend": whole.trend(settings, base),
        "periods": periods(
            series, points, rule=settings.rule, refuse=whole.refuse, convention=settings.convention
        ),
        "points": points,
        "season": series.season(),
        "curve": series.smooth(below, settings.span),
        "base": base,
        "covariance": series.covariance() if enough else None,
        "replicates": _replicates(series),
    }


def never_found(table: pd.DataFrame) -> pd.DataFrame:
    """Totals by month or year without limits: replicates that never found a species agree on 0, whoever missed it."""
    limits = [name for name in ("lo", "hi", "se_log", "total_lo", "total_hi", "total_se") if name in table]
    return table.assign(**dict.fromkeys(limits, np.nan))


def region_table(parts: Mapping[str, Part], settings: ReportSettings, whole: MonthlySeries) -> pd.DataFrame:
    """The table of regions; shares are of the totals of index and trend of the ``whole``, or of all months."""
    years, rows = whole.years, []
    weight = years.W[years.used].sum(axis=0) if years.used.any() else np.ones(whole.totals.size)
    grand = float(whole.totals @ weight)
    for name, part in parts.items():
        share = float(part.series.totals @ weight) / grand if grand > 0 else np.nan
        row = {"region": name, "n_sites": part.n_sites, "share": share}
        rows.append(row | part.trend(settings).to_dict())
    return pd.DataFrame(rows, columns=load_schema("report_regions").names)


def _replicates(series: MonthlySeries) -> pd.DataFrame:
    """Return the yearly total of every replicate. A reader can compare any two years or periods with it."""
    year, total = series.years.year, series.yearly_draws
    total = np.empty((0, year.size)) if total is None else total
    draw, of = np.repeat(np.arange(len(total)), year.size), np.tile(year, len(total))
    return pd.DataFrame({"draw": draw, "year": of, "total": total.ravel()})
