"""fedmiss: bird counts imputed and trends reported, by federated EM, while records stay where they are.

The names below are fetched when first used, so that ``import fedmiss`` stays light.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fedmiss.version import __version__ as __version__

if TYPE_CHECKING:
    from fedmiss.community.run import build_community
    from fedmiss.community.settings import CommunitySettings
    from fedmiss.compressors.dither import Dithering
    from fedmiss.core.em import em
    from fedmiss.core.fedem import FedEM
    from fedmiss.core.loop import Stop, run
    from fedmiss.core.participation import Bernoulli
    from fedmiss.core.state import Roster
    from fedmiss.engines.local import LocalEngine
    from fedmiss.errors import ConfigError, FedmissError, InputError
    from fedmiss.etl.counts import CountOptions, read_counts
    from fedmiss.etl.ingest import ingest
    from fedmiss.etl.panel import make_panel
    from fedmiss.etl.settings import IngestSettings, PanelSettings
    from fedmiss.federation.local import LocalFederation, bootstrap, cross_validate, fit_counts
    from fedmiss.federation.results import CountFit
    from fedmiss.files import read_manifest
    from fedmiss.models.gmm import GMM
    from fedmiss.models.lowrank.data import Group, GroupPanel
    from fedmiss.models.lowrank.settings import CountSettings
    from fedmiss.pipeline.chain import run_recipe
    from fedmiss.pipeline.fitting import fit_panel
    from fedmiss.pipeline.frames import from_dataframe
    from fedmiss.pipeline.imputer import SiteMonthImputer
    from fedmiss.pipeline.imputing import impute_panel
    from fedmiss.pipeline.own import own_report
    from fedmiss.pipeline.panels import open_panel
    from fedmiss.pipeline.recipe import read_recipe
    from fedmiss.pipeline.results import SpeciesFit, open_fit
    from fedmiss.pipeline.settings import FitSettings, ImputeSettings
    from fedmiss.pipeline.trims import Trims, run_trims
    from fedmiss.report.build import build_report
    from fedmiss.report.changes import change_points, period_trends
    from fedmiss.report.classes import classify
    from fedmiss.report.indicator import indicator, indicator_trends
    from fedmiss.report.many import build_index
    from fedmiss.report.plots import (
        plot_index,
        plot_indicator,
        plot_matrix,
        plot_season,
        plot_totals,
        plot_trim,
    )
    from fedmiss.report.settings import ReportSettings
    from fedmiss.report.trends import monthly_totals, overall_trend, seasonal, yearly_index
    from fedmiss.report.trim import TrimFit, TrimSettings, fit_trim
    from fedmiss.simulate.ebird import EbirdSettings, simulate_ebird
    from fedmiss.simulate.panel_folder import write_panel
    from fedmiss.simulate.panels import simulate_panel
    from fedmiss.tables import read_table

__all__ = [
    "GMM",
    "Bernoulli",
    "CommunitySettings",
    "ConfigError",
    "CountFit",
    "CountOptions",
    "CountSettings",
    "Dithering",
    "EbirdSettings",
    "FedEM",
    "FedmissError",
    "FitSettings",
    "Group",
    "GroupPanel",
    "ImputeSettings",
    "IngestSettings",
    "InputError",
    "LocalEngine",
    "LocalFederation",
    "PanelSettings",
    "ReportSettings",
    "Roster",
    "SiteMonthImputer",
    "SpeciesFit",
    "Stop",
    "TrimFit",
    "TrimSettings",
    "Trims",
    "bootstrap",
    "build_community",
    "build_index",
    "build_report",
    "change_points",
    "classify",
    "cross_validate",
    "em",
    "fit_counts",
    "fit_panel",
    "fit_trim",
    "from_dataframe",
    "impute_panel",
    "indicator",
    "indicator_trends",
    "ingest",
    "make_panel",
    "monthly_totals",
    "open_fit",
    "open_panel",
    "overall_trend",
    "own_report",
    "period_trends",
    "plot_index",
    "plot_indicator",
    "plot_matrix",
    "plot_season",
    "plot_totals",
    "plot_trim",
    "read_counts",
    "read_manifest",
    "read_recipe",
    "read_table",
    "run",
    "run_recipe",
    "run_trims",
    "seasonal",
    "simulate_ebird",
    "simulate_panel",
    "write_panel",
    "yearly_index",
]

# what it is about -> name -> module of fedmiss; the reference is written in this order
_HOME = {
    "Read": {
        "ingest": "etl.ingest",
        "IngestSettings": "etl.settings",
        "read_counts": "etl.counts",
        "CountOptions": "etl.counts",
        "make_panel": "etl.panel",
        "PanelSettings": "etl.settings",
        "open_panel": "pipeline.panels",
        "from_dataframe": "pipeline.frames",
        "read_table": "tables",
        "read_manifest": "files",
    },
    "Fit and impute": {
        "fit_panel": "pipeline.fitting",
        "FitSettings": "pipeline.settings",
        "ImputeSettings": "pipeline.settings",
        "impute_panel": "pipeline.imputing",
        "open_fit": "pipeline.results",
        "SpeciesFit": "pipeline.results",
        "SiteMonthImputer": "pipeline.imputer",
        "Group": "models.lowrank.data",
        "GroupPanel": "models.lowrank.data",
        "CountSettings": "models.lowrank.settings",
        "CountFit": "federation.results",
        "fit_counts": "federation.local",
        "cross_validate": "federation.local",
        "bootstrap": "federation.local",
        "LocalFederation": "federation.local",
        "own_report": "pipeline.own",
        "build_community": "community.run",
        "CommunitySettings": "community.settings",
    },
    "Trends": {
        "monthly_totals": "report.trends",
        "yearly_index": "report.trends",
        "overall_trend": "report.trends",
        "seasonal": "report.trends",
        "period_trends": "report.changes",
        "change_points": "report.changes",
        "classify": "report.classes",
        "indicator": "report.indicator",
        "indicator_trends": "report.indicator",
        "Trims": "pipeline.trims",
        "run_trims": "pipeline.trims",
    },
    "TRIM": {
        "fit_trim": "report.trim",
        "TrimSettings": "report.trim",
        "TrimFit": "report.trim",
    },
    "Report": {
        "build_report": "report.build",
        "ReportSettings": "report.settings",
        "build_index": "report.many",
        "read_recipe": "pipeline.recipe",
        "run_recipe": "pipeline.chain",
    },
    "Plots": {
        "plot_index": "report.plots",
        "plot_totals": "report.plots",
        "plot_season": "report.plots",
        "plot_matrix": "report.plots",
        "plot_trim": "report.plots",
        "plot_indicator": "report.plots",
    },
    "Simulate": {
        "simulate_panel": "simulate.panels",
        "write_panel": "simulate.panel_folder",
        "simulate_ebird": "simulate.ebird",
        "EbirdSettings": "simulate.ebird",
    },
    "Algorithms": {
        "FedEM": "core.fedem",
        "em": "core.em",
        "run": "core.loop",
        "Stop": "core.loop",
        "Roster": "core.state",
        "GMM": "models.gmm",
        "LocalEngine": "engines.local",
        "Dithering": "compressors.dither",
        "Bernoulli": "core.participation",
    },
    "Errors": {
        "FedmissError": "errors",
        "ConfigError": "errors",
        "InputError": "errors",
    },
}


def __getattr__(name: str) -> Any:
    for names in _HOME.values():
        if name in names:
            from importlib import import_module

            return getattr(import_module(f"fedmiss.{names[name]}"), name)
    raise AttributeError(f"module 'fedmiss' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
