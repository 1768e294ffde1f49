"""One group's own report, made on its side: its sites at the months' parameters that all groups found together.

What it needs is what the group has: its own visits, the coefficients of its own sites, replicates of their totals, and from
the hub the months' parameters and the variances. Nothing of another group's own sites is in it.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from fedmiss.errors import ConfigError
from fedmiss.files import FlowRow, Manifest, atomic_folder, check_same_panel, read_manifest, write_manifest
from fedmiss.folders import FitFacts
from fedmiss.group_names import group_name
from fedmiss.pipeline.imputing import impute_panel
from fedmiss.pipeline.panels import PanelFolder, open_panel, panel_hash
from fedmiss.report.build import build_report
from fedmiss.report.language import OWN_SITES, read_catalog
from fedmiss.report.settings import ReportSettings
from fedmiss.settings import kinds_checked
from fedmiss.tables import read_table, write_table


@kinds_checked
def own_report(
    panel_path: str | Path,
    fit_path: str | Path,
    group: str,
    out: str | Path,
    *,
    unit: str = "birds",
    language: str | None = None,
    overwrite: bool = False,
) -> Path:
    """Write ``out`` with the folders panel, fit, imputed and report of one group; return its report folder.

    ``unit`` and ``language`` are those of :class:`fedmiss.ReportSettings`.

    Examples
    --------
    >>> import fedmiss
    >>> p = fedmiss.simulate_panel(20, 24, 0.5, seed=1, groups=2)
    >>> panel = fedmiss.simulate.write_panel(p, "panel")
    >>> fit = fedmiss.fit_panel(panel, "fit", fedmiss.FitSettings(rank=0, bootstrap=20, own=True))
    >>> page = fedmiss.pipeline.own_report(panel, fit, "g01", "own")
    >>> page.name
    'report'
    """
    settings = ReportSettings(unit=unit, language=language)
    if language:
        read_catalog(language)  # refused before anything is imputed
    panel, fit = open_panel(panel_path), Path(fit_path)
    manifest = read_manifest(fit, "fit")
    check_same_panel(panel.manifest, panel.path, manifest, fit)
    names = [group.name for group in panel.groups]
    if group not in names:  # given by its own name instead of its folder's
        group = next((name for name in names if group_name(name) == group), group)
    if group not in names:
        shown = ", ".join(group_name(name) for name in names[:12])
        raise ConfigError(f"the panel has no group {group!r}; its groups are {shown}.")
    draws = fit / "own" / group / "draws.parquet"
    if not draws.exists():
        raise ConfigError(
            f"{fit} kept nothing for {group!r}'s own report. Run `fedmiss fit` again with --own and a bootstrap."
        )
    with atomic_folder(out, "own", overwrite=overwrite, inputs=[panel_path, fit_path]) as tmp:
        mine = _write_panel(panel, group, tmp / "panel")
        _write_fit(fit, manifest, draws, mine, tmp, panel.manifest["warnings"])
        finish_own(tmp, {"group": group}, panel_hash(panel), settings, whose=group_name(group))
    return Path(out) / "report"


def finish_own(
    folder: Path, settings: dict[str, Any], inputs: dict[str, str], report: ReportSettings, *, whose: str
) -> None:
    """Impute and report an organisation's own panel and fit, which stand in the folder, and write its manifest."""
    panel, fit, imputed = (folder / name for name in ("panel", "fit", "imputed"))
    impute_panel(panel, fit, imputed)
    facts = read_manifest(panel, "panel")["results"]
    # Or the page would read like that of all groups.
    name = facts.get("common_name") or facts.get("species") or "Species not named"
    title = f"{name}{OWN_SITES}{whose or 'observers without a name'}"
    build_report(panel, fit, imputed, folder / "report", replace(report, title=title))
    write_manifest(folder, "own", settings=settings, inputs=inputs)


def describe_panel(
    panel: PanelFolder, visits: pd.DataFrame, out: Path, flow: Sequence[FlowRow] = (), **facts: Any
) -> None:
    """Write the manifest of a panel of these visits, a part of those of another panel; ``facts`` are set as given."""
    counted, old = visits["count"].notna(), panel.manifest
    described = replace(
        panel.facts,
        n_observers=int(visits["observer_id"].nunique()) if panel.facts.n_observers else 0,
        n_visits=len(visits),
        n_counted=int(counted.sum()),
        n_detected=int(visits["detected"].sum()),
        n_zeros=int((visits["count"] == 0).sum()),
        n_cells_observed=len(visits.loc[counted, ["site_index", "month_index"]].drop_duplicates()),
        birds=int(visits["count"].sum()),
        **facts,
    )
    write_manifest(
        out, "panel", settings=old["settings"], inputs=old["inputs"], results=described.as_results(),
        flow=[*old["flow"], *flow], terms=old["terms"], warnings=old["warnings"],
    )  # fmt: skip


def _write_panel(panel: PanelFolder, group: str, out: Path) -> np.ndarray:
    """Panel of the group's own sites; returns their rows in the common panel."""
    source = panel.path / "groups" / group
    tables = {name: read_table(source / f"{name}.parquet", name) for name in ("visits", "cells")}
    # Sites are numbered anew, in the same order, so that rows of every table of sites can be taken by these numbers.
    mine = np.unique(tables["visits"].column("site_index").to_numpy())
    for name, table in tables.items():
        at = np.searchsorted(mine, table.column("site_index").to_numpy())
        write_table(_numbered(table, at), out / "groups" / group / f"{name}.parquet", name)
    _write_rows(panel.path / "sites.parquet", "sites", mine, out)
    shutil.copyfile(panel.path / "months.parquet", out / "months.parquet")
    step: FlowRow = {
        "step": "visits of the group",
        "rows": len(tables["visits"]),
        "note": f"{group}: its own sites only",
    }
    groups = {group: panel.facts.groups.get(group, {})}
    # Warnings of the whole panel name sites, days and files of others.
    quiet = replace(panel, manifest={**panel.manifest, "warnings": []})
    describe_panel(quiet, tables["visits"].to_pandas(), out, [step], n_sites=int(mine.size), groups=groups)
    return mine


def _write_fit(
    fit: Path, manifest: Manifest, draws: Path, mine: np.ndarray, tmp: Path, hidden: Sequence[str]
) -> None:
    """Cut the fit to the group's own sites, and leave out the ``hidden`` warnings."""
    out = tmp / "fit"
    for table in sorted(fit.rglob("*.parquet")):  # those of the averaged members too
        place = out / table.relative_to(fit)
        if table.stem in ("site_factors", "site_trends"):
            _write_rows(table, table.stem, mine, place.parent)
        elif table.stem in ("month_factors", "trace", "cv"):  # of all groups together: copied, not cut
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(table, place)
    shutil.copyfile(draws, out / "draws.parquet")
    panel = open_panel(tmp / "panel")
    mine_only = panel.facts
    facts = replace(
        FitFacts.of(manifest["results"], fit),
        n_visits=mine_only.n_visits, n_counted=mine_only.n_counted, n_sites=mine_only.n_sites,
        n_cells_observed=mine_only.n_cells_observed, n_groups=1,
    )  # fmt: skip
    write_manifest(
        out,
        "fit",
        settings=manifest["settings"],
        inputs=panel_hash(panel),
        results=facts.as_results(),
        flow=panel.manifest["flow"],
        terms=manifest["terms"],
        warnings=[
            *(warning for warning in manifest["warnings"] if warning not in hidden),
            "Months, variances and the choice of the model come from all groups together; sites, totals and map are the "
            "group's own. Warnings of the import stand with the panel of all groups, since they may name others' sites.",
        ],
    )


def _numbered(table: pa.Table, site_index: np.ndarray) -> pa.Table:
    """The table with other numbers of its sites."""
    at = table.schema.get_field_index("site_index")
    return table.set_column(at, "site_index", pa.array(site_index.astype(np.int32)))


def _write_rows(path: Path, name: str, mine: np.ndarray, out: Path) -> None:
    """Copy the rows of the group's own sites of a table that has one row a site."""
    table = read_table(path, name).take(pa.array(mine))
    write_table(_numbered(table, np.arange(mine.size)), out / f"{name}.parquet", name)
