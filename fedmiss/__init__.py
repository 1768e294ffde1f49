"""fedmiss: bird counts imputed and trends reported, by federated EM, while records stay where they are.

The public names stand in ``__init__.pyi`` and are fetched when first used, so that ``import fedmiss`` stays light.

A public name that moves keeps its old place for one minor version, with a ``DeprecationWarning`` that says the new one.
"""

from __future__ import annotations

from typing import Any

from fedmiss.lazy import attach

_fetch, __dir__, __all__ = attach(__name__)

_MOVED_GO_IN = "0.4.0"

# old place fedmiss.NAME -> the module below fedmiss that has the name now
_MOVED = {
    name: home
    for home, names in {
        "community": "build_community CommunitySettings",
        "compressors": "Dithering",
        "core": "Bernoulli FedEM Roster Stop em run",
        "engines": "LocalEngine",
        "etl": "CountOptions read_counts",
        "federation": "CountFit LocalFederation bootstrap cross_validate",
        "files": "read_manifest",
        "models": "GMM",
        "pipeline": "SpeciesFit own_report read_recipe run_recipe",
        "report": "TrimFit build_index change_points classify monthly_totals overall_trend period_trends seasonal"
        " yearly_index plot_index plot_indicator plot_matrix plot_season plot_totals plot_trim",
        "report.indicator": "indicator",
        "simulate": "EbirdSettings simulate_ebird write_panel",
        "tables": "read_table",
    }.items()
    for name in names.split()
}


def __getattr__(name: str) -> Any:
    if name in _MOVED:
        import warnings
        from importlib import import_module

        warnings.warn(
            f"fedmiss.{name} is now fedmiss.{_MOVED[name]}.{name}; the old name goes in fedmiss {_MOVED_GO_IN}.",
            DeprecationWarning,
            stacklevel=2,
        )
        return getattr(import_module(f"fedmiss.{_MOVED[name]}"), name)
    return _fetch(name)
