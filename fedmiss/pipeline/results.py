"""A fitted species in Python: the report's quantities as DataFrames."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from fedmiss.arrays import F64, Bool
from fedmiss.errors import ConfigError
from fedmiss.federation.results import POINTS_ONLY, AverageFit, CountFit
from fedmiss.files import Manifest, check_same_panel
from fedmiss.folders import ALL, FitFacts, counted_by
from fedmiss.pipeline.fit_folder import read_fit
from fedmiss.pipeline.imputing import LIMITS, drawn, visits_in_cells
from fedmiss.pipeline.panels import PanelFolder, open_panel
from fedmiss.report import plots
from fedmiss.report.analysis import why_no_class
from fedmiss.report.coverage import first_base, usable_counts
from fedmiss.report.inputs import ReportInputs, inputs_of, read_draws
from fedmiss.report.series import MonthlySeries
from fedmiss.report.settings import Least, ReportSettings
from fedmiss.report.words import per_year
from fedmiss.settings import kinds_checked

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True, slots=True, eq=False)
class SpeciesFit:
    """A fit folder and its panel; every method gives what the report shows, with units in the column names.

    Attributes
    ----------
    panel, fit, manifest : the opened folders
    expected : (J, L) birds at standard effort
    observed : (J, L) whether some group has a count in the cell
    found : (J, L) whether the species was found in the cell
    draws : (B, L) bootstrap replicates of the monthly totals, or None
    data : what a report is computed from

    Examples
    --------
    >>> import fedmiss
    >>> p = fedmiss.simulate_panel(20, 24, 0.5, seed=1, groups=2)
    >>> panel = fedmiss.simulate.write_panel(p, "panel")
    >>> settings = fedmiss.FitSettings(rank=0, bootstrap=0)
    >>> fit = fedmiss.fit_panel(panel, "fit", settings)
    >>> species = fedmiss.open_fit(panel, fit)
    >>> species.imputed().columns.to_list()
    ['site_id', 'month', 'expected', 'expected_lower', 'expected_upper', 'lower', 'upper', 'observed']
    >>> ax = species.plot_index()
    """

    panel: PanelFolder
    fit: CountFit | AverageFit
    manifest: Manifest
    expected: F64
    observed: Bool
    found: Bool
    draws: F64 | None
    data: ReportInputs

    @property
    def _facts(self) -> FitFacts:
        return FitFacts.of(self.manifest["results"])

    @property
    def _series(self) -> MonthlySeries:
        """The monthly totals with their replicates."""
        counted, draws = usable_counts(self.observed, self.panel.months), self.draws
        if (
            not self.found.any()
        ):  # no year has an index: it would be that of the model; and all draws agree on 0
            counted, draws = np.zeros_like(counted), None
        return MonthlySeries.of(self.expected.sum(axis=0), self.panel.months, draws, counted)

    def _base(self, base: str | int | None) -> str | int | None:
        """Return the base, or the report's own when none is named: the first year with enough counts."""
        own = (
            base is None or not self.found.any()
        )  # of a species that was never found: none, whatever is asked
        return first_base(self.observed, self._series.years, Least(), self.found) if own else base

    def totals(self) -> pd.DataFrame:
        """Monthly totals over sites with intervals (birds at standard effort)."""
        return self._series.monthly()

    def index(self, base: str | int | None = None) -> pd.DataFrame:
        """Yearly totals and indices (base = 100) with intervals."""
        return self._series.index(self._base(base))

    def season(self) -> pd.DataFrame:
        """Mean total of each month of the year with intervals, and relative to the mean month."""
        return self._series.season()

    def trend(
        self, base: str | int | None = None, rule: str = "pecbms", convention: str = "long-term"
    ) -> pd.DataFrame:
        """Overall trend: change per year with interval and class; one row.

        No class where the report gives none, with the ``reason``. ``rule`` is ``pecbms`` or ``rtrim``;
        ``convention`` is ``long-term`` or ``trim`` (without the scatter of years).
        """
        refuse = why_no_class(self.data, ReportSettings(rule=rule, convention=convention))
        return self._series.trend(base=self._base(base), rule=rule, refuse=refuse, convention=convention)

    def plot_index(self, ax: Axes | None = None, base: str | int | None = None) -> Axes:
        """Draw the yearly index with its 95 % intervals into ``ax`` (a new one when None); return the axes."""
        return plots.plot_index(self.index(base), ax)

    def plot_season(self, ax: Axes | None = None) -> Axes:
        """Draw the mean total of each month of the year with its 95 % interval; return the axes."""
        return plots.plot_season(self.season(), ax)

    def plot_totals(self, ax: Axes | None = None) -> Axes:
        """Draw the monthly totals with their 95 % intervals; return the axes."""
        return plots.plot_totals(self.totals(), ax)

    def plot_matrix(self, ax: Axes | None = None) -> Axes:
        """Draw the imputed matrix, cells without a count paler; return the axes."""
        return plots.plot_matrix(self.expected, self.observed, ax)

    def __repr__(self) -> str:
        return f"SpeciesFit({self._facts.species}, {self.fit!r})"

    def _repr_html_(self) -> str:
        """Show the trend and the index in a notebook."""
        trend = self.trend().iloc[0]
        change = per_year(*trend[["percent_per_year", "percent_lo", "percent_hi"]])
        years = (
            f"{change}, {trend['from_year']} to {trend['to_year']}" if trend["n_years"] else trend["reason"]
        )
        head = (
            f"<p><b>{escape(self._facts.species)}</b>: {escape(str(trend['trend_class']))}, {years}; {self.fit.J} "
            f"sites, {self.fit.L} {self.panel.facts.period}s, {int(self.observed.sum())} cells counted.</p>"
        )
        shown = self.index()[["year", "total", "index", "index_lo", "index_hi"]].round(1)
        return head + str(shown.to_html(index=False))

    def imputed(self) -> pd.DataFrame:
        """Every cell: site_id, month, expected count at standard effort, whether it was observed.

        ``expected_lower``, ``expected_upper``: 95 % interval of the expected count; ``lower``, ``upper``: of the count of
        one visit. They are NaN for a fit of another method than ``fast``.
        """
        J, L = self.expected.shape
        # Point estimates have no errors: blanks, and not intervals of width 0.
        band = AverageFit(self.fit.fits).interval() if self._facts.errors_known else None
        return pd.DataFrame(
            {
                "site_id": self.panel.sites["site_id"].repeat(L).to_numpy(),
                "month": list(self.panel.months["month"]) * J,
                "expected": self.expected.ravel(),
                **{
                    name: np.full(J * L, np.nan) if band is None else getattr(band, name).ravel()
                    for name in LIMITS
                },
                "observed": self.observed.ravel(),
            }
        )

    @kinds_checked
    def draw_counts(self, number: int = 20, seed: int = 0) -> F64:
        """Draw ``number`` matrices (number, J, L) of counts of one visit at standard effort, for multiple imputation.

        Raises
        ------
        ConfigError    a fit of another method than ``fast``, or less than one matrix
        """
        if not self._facts.errors_known:
            raise ConfigError(POINTS_ONLY)
        if number < 1:
            raise ConfigError(f"number is {number}; draw 1 or more matrices.")
        fit = AverageFit(self.fit.fits)
        return np.stack([counts for _, counts in drawn(fit, number, seed)])

    def cell(self, site_id: str, month: str) -> float:
        """Expected count of one cell; a site or month outside the panel is an error that says why."""
        sites, months = list(self.panel.sites["site_id"]), list(self.panel.months["month"])
        if site_id not in sites:
            raise ConfigError(
                f"the site {site_id!r} is not among the {len(sites)} sites of the panel, so nothing was learned about "
                "it; its records must be part of the panel before the fit."
            )
        if month not in months:
            raise ConfigError(
                f"the month {month!r} is not among the panel's {len(months)} ({months[0]} to {months[-1]}); a fit does "
                "not extrapolate in time."
            )
        return float(self.expected[sites.index(site_id), months.index(month)])


@kinds_checked
def open_fit(panel: str | Path, fit: str | Path) -> SpeciesFit:
    """Open a fit folder with its panel.

    Returns
    -------
    SpeciesFit : its methods give the numbers of the report

    Examples
    --------
    >>> import fedmiss
    >>> p = fedmiss.simulate_panel(20, 24, 0.5, seed=1, groups=2)
    >>> panel = fedmiss.simulate.write_panel(p, "panel")
    >>> settings = fedmiss.FitSettings(rank=0, bootstrap=0)
    >>> fit = fedmiss.fit_panel(panel, "fit", settings)
    >>> species = fedmiss.open_fit(panel, fit)
    >>> species.index()[["year", "index"]].iloc[0].tolist()
    [2000.0, 100.0]
    """
    folder = open_panel(panel)
    manifest, counts = read_fit(fit)
    check_same_panel(folder.manifest, folder.path, manifest, Path(fit))
    draws = read_draws(Path(fit) / "draws.parquet", counts.L).get(ALL)
    used = counted_by(counts.fits[0].settings.family)
    observed, found = (
        visits.toarray() > 0 for visits in visits_in_cells(folder, counts.J, counts.L, used, "n_detected")
    )
    expected = counts.expected()
    blank = np.full(expected.shape, np.nan, np.float32)  # limits of cells have no part in a trend
    manifests = {"panel": folder.manifest, "fit": manifest, "imputed": manifest}
    data = inputs_of(
        Path(panel), Path(fit), manifests, lambda n_months: (expected, (blank, blank), observed), {}
    )
    return SpeciesFit(folder, counts, manifest, expected, observed, found, draws, data)
