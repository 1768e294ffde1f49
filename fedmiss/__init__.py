"""fedmiss: bird counts imputed and trends reported, by federated EM, while records stay where they are.

The names below are fetched when first used, so that ``import fedmiss`` stays light.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedmiss.federation.local import fit_counts
    from fedmiss.models.lowrank.data import Group, GroupPanel
    from fedmiss.models.lowrank.settings import CountSettings
    from fedmiss.pipeline.chain import run_recipe
    from fedmiss.pipeline.frames import from_dataframe
    from fedmiss.pipeline.imputer import SiteMonthImputer
    from fedmiss.pipeline.recipe import read_recipe
    from fedmiss.pipeline.results import SpeciesFit, open_fit
    from fedmiss.report.trim import TrimFit, TrimSettings, fit_trim
    from fedmiss.simulate.panels import simulate_panel

__version__ = "0.2.0"

__all__ = [
    "CountSettings",
    "Group",
    "GroupPanel",
    "SiteMonthImputer",
    "SpeciesFit",
    "TrimFit",
    "TrimSettings",
    "fit_counts",
    "fit_trim",
    "from_dataframe",
    "open_fit",
    "read_recipe",
    "run_recipe",
    "simulate_panel",
]

_HOME = {
    "CountSettings": "models.lowrank.settings",
    "fit_counts": "federation.local",
    "Group": "models.lowrank.data",
    "GroupPanel": "models.lowrank.data",
    "run_recipe": "pipeline.chain",
    "read_recipe": "pipeline.recipe",
    "SpeciesFit": "pipeline.results",
    "open_fit": "pipeline.results",
    "simulate_panel": "simulate.panels",
    "SiteMonthImputer": "pipeline.imputer",
    "from_dataframe": "pipeline.frames",
    "fit_trim": "report.trim",
    "TrimFit": "report.trim",
    "TrimSettings": "report.trim",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'fedmiss' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"fedmiss.{_HOME[name]}"), name)
