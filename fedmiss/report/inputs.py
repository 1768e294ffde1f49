"""Read what a report is made of (panel, fit, imputed matrix) into one frozen object, and check that they fit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import DTypeLike, NDArray

from fedmiss.arrays import F32, F64, I64, Bool
from fedmiss.errors import InputError
from fedmiss.files import MANIFEST, FlowRow, Manifest, identity, panel_beside, read_manifest
from fedmiss.folders import FACTS, counted_by
from fedmiss.group_names import group_name
from fedmiss.models.lowrank.structure import OF_LEVELS, OF_SLOPES
from fedmiss.tables import read_table

_FACTS = {field.name for cls in FACTS.values() for field in fields(cls)}
_INTERACTIONS = ("rank", "slopes", "features", "abundance", "occupancy", "family", "site_variances")
LEAST_VARIANCE = 1e-4  # least prior variance of counts' coefficients in a fit


def _without_interaction(model: Mapping[str, Any]) -> bool:
    """Whether the sites of a fitted model, by its facts, have no trends of their own."""
    if model.get("occupancy"):
        return False
    if model.get("rank") == 0 and not model.get("slopes"):
        return True
    if set(model.get("features") or ()) - {*OF_LEVELS, *OF_SLOPES} or model.get("abundance"):
        return False
    # The first is of levels. On other scales the least variance is in units of theirs.
    own = (model.get("site_variances") or ())[1:]
    return bool(own) and model.get("family") == "poisson" and max(own) <= 1.001 * LEAST_VARIANCE


@dataclass(frozen=True, kw_only=True)
class Source:
    """What every report is made of, of one organisation's panel or of several organisations together.

    ``draws`` region -> (B, L) replicates of monthly totals, ``cv`` scores of the candidates, ``visited`` counted and fitted
    totals of the visits, by month, ``effort`` exponents of effort in the model by name, ``yearly_counts``
    whether the counts are yearly: then no month is spoken of.
    """

    months: pd.DataFrame
    draws: Mapping[str, F64]
    cv: pd.DataFrame | None
    visited: pd.DataFrame | None
    effort: Mapping[str, float]
    yearly_counts: bool

    @property
    def manifests(self) -> tuple[Mapping[str, Any], ...]:
        """Manifests that hold facts, the first one that knows a fact first."""
        raise NotImplementedError

    @property
    def entering(self) -> Bool:
        """Months (L,) with a visit behind them."""
        raise NotImplementedError

    @property
    def period(self) -> str:
        """First and last month, or year, with a visit behind it: a study's rules, or others' years, leave some without."""
        label = self.months["year" if self.yearly_counts else "month"]
        label = label[self.entering] if self.entering.any() else label
        return f"{label.iloc[0]} to {label.iloc[-1]}"

    @property
    def one_trend(self) -> bool:
        """True when the model has no site x month interaction: :attr:`alike` then share one trend.

        Of models that are averaged none has one. A term whose variance is the least one switched itself off.
        """
        members = self.fact("members", default=None) or [{name: self.fact(name) for name in _INTERACTIONS}]
        return all(_without_interaction(member) for member in members)

    @property
    def alike(self) -> str:
        """The sites that share one trend where the model tells none apart: a site with most of the birds has its own."""
        return "All sites but the one with most birds" if self.fact("large_site") else "All sites"

    @property
    def cell(self) -> str:
        """What a cell of the matrix is called."""
        return "site-year" if self.yearly_counts else "site-month"

    @property
    def rests_on(self) -> str:
        """The visits that the model uses: of a find without a number (X) one of presence takes the find."""
        return "visits" if self.fact("family") == "bernoulli" else "visits with a count"

    def fact(self, name: str, default: Any = None) -> Any:
        """Return a fact of the first manifest that knows it, results before settings, fit before panel.

        Results that hold it blank know that there is none: the settings of a simulated panel are no facts of a fit.
        """
        if name not in _FACTS:
            raise LookupError(f"no folder has the fact {name}; see fedmiss.folders")
        for manifest in self.manifests:
            for part in ("results", "settings"):
                if (value := manifest.get(part, {}).get(name)) is not None:
                    return value
            if name in manifest.get("results", {}):
                break
        return default


@dataclass(frozen=True, kw_only=True)
class ReportInputs(Source):
    """Everything a report is computed from; tables and numbers only, no record.

    ``expected`` (J, L) birds at standard effort, ``limits`` its 95 % limits (NaN where the fit has none), ``observed``
    (J, L) cells with a count, ``cells`` one row per visited cell summed over groups, with ``n_used`` visits in the fit,
    ``groups`` one row per group with its counts of cells and visits, ``group_regions`` the regions that each group has
    visited; ``weeks`` (None when the panel has no visits) one row per site, month and quarter of the month (days to 7, 14,
    21, the end): visits with a count, and their sum.
    """

    panel: Mapping[str, Any]
    fit: Mapping[str, Any]
    imputed: Mapping[str, Any]
    sites: pd.DataFrame
    cells: pd.DataFrame
    groups: pd.DataFrame
    group_regions: Mapping[str, tuple[str, ...]]
    expected: F64
    limits: tuple[F32, F32]
    observed: Bool
    trace: pd.DataFrame | None
    site_trends: pd.DataFrame | None
    hashes: Mapping[str, str]
    weeks: pd.DataFrame | None = None

    @property
    def found(self) -> Bool:
        """Cells in which the species was found, (J, L)."""
        out = np.zeros(self.observed.shape, dtype=bool)
        at = self.cells[self.cells["n_detected"] > 0]
        out[at["site_index"], at["month_index"]] = True
        return out

    @property
    def entering(self) -> Bool:
        """Months (L,) with a visit behind them."""
        return np.isin(np.arange(len(self.months)), self.cells["month_index"])

    @property
    def n_observed(self) -> I64:
        """Cells with a count in each month, (L,)."""
        return np.asarray(self.observed.sum(axis=0), dtype=np.int64)

    @property
    def totals(self) -> F64:
        """Total over sites in each month, (L,) birds."""
        return np.asarray(self.expected.sum(axis=0))

    @property
    def manifests(self) -> tuple[Mapping[str, Any], ...]:
        """Fit before panel before imputed matrix."""
        return self.fit, self.panel, self.imputed

    @property
    def flow(self) -> list[FlowRow]:
        """Rows of the row-flow table, from the last step that has one."""
        return list(self.imputed["flow"] or self.fit["flow"] or self.panel["flow"])

    def region_names(self) -> list[str]:
        """Regions that sites name, sorted."""
        return sorted(str(region) for region in self.sites["region"].dropna().unique())


def _frame(path: Path, schema: str) -> pd.DataFrame:
    frame: pd.DataFrame = read_table(path, schema).to_pandas()
    return frame


def _optional(path: Path, schema: str) -> pd.DataFrame | None:
    return _frame(path, schema) if path.exists() else None


def _read_cells(
    panel: Path, sites: pd.DataFrame, n_months: int, used: str
) -> tuple[pd.DataFrame, pd.DataFrame, dict[str, tuple[str, ...]]]:
    n_sites, region = len(sites), sites["region"].to_numpy(object)
    regions = {}
    folders = sorted(path for path in (panel / "groups").glob("*") if (path / "cells.parquet").exists())
    if not folders:
        raise InputError(
            f"{panel}/groups holds no cells.parquet, so what was observed is not known; make the panel again."
        )
    parts, rows = [], []
    for folder in folders:
        cells = _frame(folder / "cells.parquet", "cells")
        if len(cells) and (cells["site_index"].max() >= n_sites or cells["month_index"].max() >= n_months):
            raise InputError(
                f"{folder}/cells.parquet names site {cells['site_index'].max()} or month {cells['month_index'].max()}, "
                f"but the panel has {n_sites} sites and {n_months} months; the folders belong to different panels."
            )
        cells["n_used"] = cells[used]
        parts.append(cells)
        seen = {name for name in region[cells["site_index"].unique()] if isinstance(name, str)}
        regions[folder.name] = tuple(sorted(seen))
        rows.append(
            {
                "group": group_name(folder.name),
                "cells": len(cells),
                "visits": int(cells["n_visits"].sum()),
                "counted": int(cells["n_counted"].sum()),
            }
        )
    merged = pd.concat(parts, ignore_index=True).groupby(["site_index", "month_index"], as_index=False).sum()
    return merged, pd.DataFrame(rows), regions


def _read_weeks(panel: Path) -> pd.DataFrame | None:
    """Sum the visits of every group by site, month and quarter of the month; dates and observers are not kept."""
    keys, parts = ["site_index", "month_index", "quarter"], []
    for path in sorted((panel / "groups").glob("*/visits.parquet")):
        table = read_table(path, "visits", columns=["site_index", "month_index", "date", "count"])
        counted = np.flatnonzero(table["count"].is_valid().to_numpy())
        site, month, date, count = (table[name].take(counted).to_numpy() for name in table.column_names)
        day = (date.astype("datetime64[D]") - date.astype("datetime64[M]")).astype(np.int64)  # from 0
        week = pd.DataFrame(
            {"site_index": site, "month_index": month, "quarter": np.minimum(day // 7, 3).astype(np.int32)}
        )
        sums = week.assign(n_counted=1, count_sum=count).groupby(keys, as_index=False).sum()
        parts.append(sums)
    return pd.concat(parts).groupby(keys, as_index=False).sum() if parts else None


def _read_matrix(path: Path, n_sites: int, n_months: int) -> tuple[F64, tuple[F32, F32], Bool]:
    def matrix(name: str, dtype: DTypeLike) -> NDArray[Any]:
        # One column at a time: they are large.
        column = read_table(path, "imputed", columns=[name])[name]
        return np.asarray(column.to_numpy(zero_copy_only=False), dtype=dtype).reshape(-1, n_months)

    place = read_table(path, "imputed", columns=["site_index", "month_index"])
    site, month = place["site_index"].to_numpy(), place["month_index"].to_numpy()
    if site.size != n_sites * n_months:
        raise InputError(
            f"{path} has {site.size} rows, but {n_sites} sites x {n_months} months need {n_sites * n_months}; "
            "it belongs to another panel. Run `fedmiss impute` again."
        )
    # `fedmiss impute` writes the rows by site, then month.
    at = np.arange(site.size)
    if not (np.array_equal(site, at // n_months) and np.array_equal(month, at % n_months)):
        raise InputError(
            f"{path} does not list every month of every site of the panel, by site and then by month (it names sites to "
            f"{site.max()} and months to {month.max()}); it belongs to another panel. Run `fedmiss impute` again."
        )
    expected, observed = matrix("expected", float), matrix("observed", bool)
    low, high = matrix("expected_lower", np.float32), matrix("expected_upper", np.float32)
    if not np.isfinite(expected).all():
        row, column = (int(found[0]) for found in np.nonzero(~np.isfinite(expected)))
        raise InputError(
            f"{path} has no finite value for site {row}, month {column}; fit again with a larger penalty."
        )
    return expected, (low, high), observed


def read_draws(path: Path, n_months: int) -> dict[str, F64]:
    """Read the replicates of the monthly totals of each region, (B, L) birds; none where the fit kept none."""
    if not path.exists():
        return {}
    table = _frame(path, "draws")
    out = {}
    for region, part in table.groupby("region", sort=True):
        n_draws = int(part["draw"].nunique())
        if len(part) != n_draws * n_months:
            raise InputError(
                f"{path}: region {region!r} has {len(part)} rows for {n_draws} draws x {n_months} months; "
                "it belongs to another panel. Fit again."
            )
        wide = part.sort_values(["draw", "month_index"])["total"].to_numpy()
        out[str(region)] = wide.reshape(n_draws, n_months)
    return out


def _check_one_chain(panel: Manifest, fit: Manifest, imputed: Manifest, fit_path: Path, path: Path) -> None:
    """Raise unless the imputed matrix was made from this fit, and both from this panel."""
    made_from = {f"panel/{name}": file["sha256"] for name, file in panel["files"].items()}
    if any(made_from.get(f"panel/{name}") != value for name, value in fit["inputs"].items()):
        own = panel_beside(fit_path, fit["inputs"])
        mend = f"it belongs to {own}, so name that" if own else "run `fedmiss fit` and `fedmiss impute` again"
        raise InputError(f"{fit_path} was not fitted on this panel: {mend}.")
    made_from |= {f"fit/{name}": file["sha256"] for name, file in fit["files"].items()}
    if any(made_from.get(name) != value for name, value in imputed["inputs"].items()):
        raise InputError(
            f"{path} was not imputed from {fit_path}, but from another fit or panel: run `fedmiss impute` on these two."
        )


def read_inputs(panel: str | Path, fit: str | Path, imputed: str | Path) -> ReportInputs:
    """Read the three folders.

    Raises
    ------
    InputError : when a folder is missing, is of another kind, or belongs to another panel than the others.
    """
    panel, fit, imputed = Path(panel), Path(fit), Path(imputed)
    manifests = {
        name: read_manifest(folder, name, verify=True)
        for name, folder in (("panel", panel), ("fit", fit), ("imputed", imputed))
    }
    _check_one_chain(manifests["panel"], manifests["fit"], manifests["imputed"], fit, imputed)
    hashes = {f"{folder.name}/{MANIFEST}": identity(folder) for folder in (panel, fit, imputed)}
    return inputs_of(
        panel, fit, manifests, lambda *size: _read_matrix(imputed / "imputed.parquet", *size), hashes
    )


def inputs_of(
    panel: Path,
    fit: Path,
    manifests: Mapping[str, Manifest],
    matrix: Callable[[int, int], tuple[F64, tuple[F32, F32], Bool]],
    hashes: Mapping[str, str],
) -> ReportInputs:
    """Read what a report takes of panel and fit; ``matrix`` gives the imputed one of so many sites and months."""
    sites = _frame(panel / "sites.parquet", "sites").sort_values("site_index", ignore_index=True)
    months = _frame(panel / "months.parquet", "months").sort_values("month_index", ignore_index=True)
    if sites.empty or months.empty:
        raise InputError(
            f"the panel {panel} has {len(sites)} sites and {len(months)} months; a report needs some of each."
        )
    cells, groups, group_regions = _read_cells(
        panel, sites, len(months), counted_by(manifests["fit"]["results"].get("family", ""))
    )
    expected, limits, observed = matrix(len(sites), len(months))
    site_trends = _optional(fit / "site_trends.parquet", "site_trends")
    if site_trends is not None and len(site_trends) != len(sites):
        raise InputError(
            f"{fit}/site_trends.parquet has {len(site_trends)} rows for {len(sites)} sites; it belongs to another panel."
        )
    return ReportInputs(
        **manifests,
        effort=manifests["fit"]["results"]["effort"],
        yearly_counts=manifests["panel"]["results"].get("period") == "year",
        sites=sites,
        months=months,
        cells=cells,
        groups=groups,
        group_regions=group_regions,
        expected=expected,
        limits=limits,
        observed=observed,
        draws=read_draws(fit / "draws.parquet", len(months)),
        trace=_optional(fit / "trace.parquet", "trace"),
        cv=_optional(fit / "cv.parquet", "cv"),
        site_trends=site_trends,
        visited=_optional(fit / "visited.parquet", "visited"),
        hashes=hashes,
        weeks=_read_weeks(panel),
    )
