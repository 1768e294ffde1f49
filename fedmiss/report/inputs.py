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
from fedmiss.files import MANIFEST, FlowRow, Manifest, check_same_panel, identity, imputed_from, read_manifest
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
    21, the end): visits in the fit, and their sum.
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
    def sums(self) -> pd.Series:
        """What was counted in each row of ``cells`` on its ``n_used`` visits; of presence how many found the species."""
        return self.cells["n_detected" if self.fact("family") == "bernoulli" else "count_sum"]

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
    panel: Path, sites: pd.DataFrame, used: str
) -> tuple[pd.DataFrame, pd.DataFrame, dict[str, tuple[str, ...]]]:
    region, regions = sites["region"].to_numpy(object), {}
    parts, rows = [], []
    for path in sorted((panel / "groups").glob("*/cells.parquet")):
        cells, name = _frame(path, "cells"), path.parent.name
        cells["n_used"] = cells[used]
        parts.append(cells)
        seen = {place for place in region[cells["site_index"].unique()] if isinstance(place, str)}
        regions[name] = tuple(sorted(seen))
        rows.append(
            {
                "group": group_name(name),
                "cells": len(cells),
                "visits": int(cells["n_visits"].sum()),
                "counted": int(cells["n_counted"].sum()),
            }
        )
    merged = pd.concat(parts, ignore_index=True).groupby(["site_index", "month_index"], as_index=False).sum()
    return merged, pd.DataFrame(rows), regions


def _read_weeks(panel: Path, *, found: bool = False) -> pd.DataFrame | None:
    """Sum the visits of every group by site, month and quarter of the month; dates and observers are not kept.

    ``found``: each visit counts 1 where it found the species, and 0 where not.
    """
    keys, parts = ["site_index", "month_index", "quarter"], []
    for path in sorted((panel / "groups").glob("*/visits.parquet")):
        table = read_table(
            path, "visits", columns=["site_index", "month_index", "date", "detected" if found else "count"]
        )
        counted = np.flatnonzero(table.column(3).is_valid().to_numpy())
        site, month, date, count = (table[name].take(counted).to_numpy() for name in table.column_names)
        day = (date.astype("datetime64[D]") - date.astype("datetime64[M]")).astype(np.int64)  # from 0
        week = pd.DataFrame(
            {"site_index": site, "month_index": month, "quarter": np.minimum(day // 7, 3).astype(np.int32)}
        )
        sums = week.assign(n_counted=1, count_sum=count).groupby(keys, as_index=False).sum()
        parts.append(sums)
    return pd.concat(parts).groupby(keys, as_index=False).sum() if parts else None


def _read_matrix(path: Path, n_months: int) -> tuple[F64, tuple[F32, F32], Bool]:
    """Columns of the imputed matrix, (J, L) each: `fedmiss impute` writes its rows by site, then month."""

    def matrix(name: str, dtype: DTypeLike) -> NDArray[Any]:
        # One column at a time: they are large.
        column = read_table(path, "imputed", columns=[name])[name]
        return np.asarray(column.to_numpy(zero_copy_only=False), dtype=dtype).reshape(-1, n_months)

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
        wide = part.sort_values(["draw", "month_index"])["total"].to_numpy()
        out[str(region)] = wide.reshape(-1, n_months)
    return out


def read_inputs(panel: str | Path, fit: str | Path, imputed: str | Path) -> ReportInputs:
    """Read the three folders.

    Raises InputError when a folder is missing, is of another kind, or belongs to another panel than the others.
    """
    panel, fit, imputed = Path(panel), Path(fit), Path(imputed)
    manifests = {
        name: read_manifest(folder, name, verify=True)
        for name, folder in (("panel", panel), ("fit", fit), ("imputed", imputed))
    }
    check_same_panel(manifests["panel"], panel, manifests["fit"], fit)
    if manifests["imputed"]["inputs"] != imputed_from(manifests["fit"]):
        raise InputError(
            f"{imputed} was not imputed from {fit}, but from another fit or panel: run `fedmiss impute` on these two."
        )
    hashes = {f"{folder.name}/{MANIFEST}": identity(folder) for folder in (panel, fit, imputed)}
    return inputs_of(
        panel, fit, manifests, lambda n_months: _read_matrix(imputed / "imputed.parquet", n_months), hashes
    )


def inputs_of(
    panel: Path,
    fit: Path,
    manifests: Mapping[str, Manifest],
    matrix: Callable[[int], tuple[F64, tuple[F32, F32], Bool]],
    hashes: Mapping[str, str],
) -> ReportInputs:
    """Read what a report takes of panel and fit; ``matrix`` gives the imputed one of so many months."""
    sites = _frame(panel / "sites.parquet", "sites").sort_values("site_index", ignore_index=True)
    months = _frame(panel / "months.parquet", "months").sort_values("month_index", ignore_index=True)
    family = manifests["fit"]["results"].get("family", "")
    cells, groups, group_regions = _read_cells(panel, sites, counted_by(family))
    expected, limits, observed = matrix(len(months))
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
        site_trends=_optional(fit / "site_trends.parquet", "site_trends"),
        visited=_optional(fit / "visited.parquet", "visited"),
        hashes=hashes,
        weeks=_read_weeks(panel, found=family == "bernoulli"),
    )
