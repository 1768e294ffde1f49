"""Read a panel folder into the arrays that the solver works on."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fedmiss.arrays import F64
from fedmiss.errors import ConfigError, InputError
from fedmiss.etl.codes import NEVER_DETECTED
from fedmiss.files import hash_file, read_manifest
from fedmiss.models.lowrank.data import Group, GroupPanel
from fedmiss.tables import read_table

__all__ = ["EFFORT_TERMS", "PanelFolder", "check_same_panel", "effort_matrix", "open_panel", "panel_hash"]

SECRET = "secret.key"
EFFORT_TERMS = ("duration", "distance", "observers")
_COLUMNS = {"duration": "duration_minutes", "distance": "distance_km", "observers": "n_observers"}


@dataclass(frozen=True, slots=True)
class PanelFolder:
    """A panel folder that has been opened: manifest and axes; visits are read by :meth:`load`."""

    path: Path
    manifest: dict[str, Any]
    sites: pd.DataFrame
    months: pd.DataFrame

    @property
    def groups(self) -> list[Path]:
        """Folders of the groups, sorted by name."""
        return sorted(p for p in (self.path / "groups").iterdir() if p.is_dir())

    def secrets(self) -> dict[str, bytes]:
        """Secrets of the groups that keep one with their data (``secret.key``); weights of replicates come from it."""
        return {g.name: (g / SECRET).read_bytes() for g in self.groups if (g / SECRET).exists()}

    @property
    def several_sources(self) -> bool:
        """Whether the panel was made of several records folders, which may hold the same checklist."""
        return len({name.split("/")[0] for name in self.manifest["inputs"]}) > 1

    @property
    def calendar(self) -> tuple[Any, Any]:
        """(month_of_year, year) of the month axis, each (L,) int64."""
        return self.months["month_of_year"].to_numpy(np.int64), self.months["year"].to_numpy(np.int64)

    @property
    def chosen_by_detection(self) -> bool:
        """Whether sites were left out because the species was never detected there."""
        return any(row["step"] == NEVER_DETECTED and row["rows"] < 0 for row in self.manifest["flow"])

    def effort_terms(self, wanted: str) -> tuple[str, ...]:
        """Resolve ``auto``, ``none`` or a comma list into effort terms that the visits can support.

        ``auto`` takes a term when at least half of the visits have it and it varies.
        """
        if wanted == "none":
            return ()
        if wanted != "auto":
            terms = tuple(t.strip() for t in wanted.split(",") if t.strip())
            unknown = [t for t in terms if t not in EFFORT_TERMS]
            if unknown:
                raise ConfigError(
                    f"the effort term {unknown[0]!r} is unknown; choose auto, none, or some of {', '.join(EFFORT_TERMS)}."
                )
            return terms
        columns = list(_COLUMNS.values())
        known = dict.fromkeys(columns, 0)
        low, high = dict.fromkeys(columns, np.inf), dict.fromkeys(columns, -np.inf)
        total = 0
        for folder in self.groups:
            visits = read_table(folder / "visits.parquet", "visits", columns=columns).to_pandas()
            total += len(visits)
            for c in columns:
                values = visits[c].dropna()
                known[c] += len(values)
                if len(values):
                    low[c], high[c] = min(low[c], values.min()), max(high[c], values.max())
        return tuple(t for t, c in _COLUMNS.items() if known[c] >= 0.5 * total and high[c] > low[c])

    def load(self, family: str, effort: tuple[str, ...] = ()) -> GroupPanel:
        """Read the visits of every group: counts (X left out), or detections for the Bernoulli family."""
        groups = []
        missing = self.terms_with_blanks(effort)
        for folder in self.groups:
            columns = ["observer_id", "site_index", "month_index", "count", "detected"]
            columns += ["checklist_id"] if self.several_sources else []
            visits = read_table(
                folder / "visits.parquet", "visits", columns=columns + [_COLUMNS[t] for t in effort]
            ).to_pandas()
            if family == "bernoulli":
                value = visits["detected"].to_numpy(float)
            else:
                visits = visits[visits["count"].notna()]
                value = visits["count"].to_numpy(float)
            observer = pd.factorize(visits["observer_id"], sort=True)[0]
            groups.append(
                Group.of(
                    folder.name,
                    visits["site_index"].to_numpy(),
                    visits["month_index"].to_numpy(),
                    value,
                    observer,
                    effort_matrix(visits, effort, missing),
                    checklist=visits["checklist_id"].to_numpy(object) if self.several_sources else None,
                )
            )
        region = self.sites["region"].fillna("").to_numpy(object)
        ids = self.sites["site_id"].to_numpy(object)
        return GroupPanel.of(len(self.sites), len(self.months), groups, self.calendar, ids, region)

    def terms_with_blanks(self, effort: tuple[str, ...]) -> set[str]:
        """Return the effort terms that some visit of some group lacks."""
        out = set()
        for folder in self.groups:
            table = read_table(folder / "visits.parquet", "visits", columns=[_COLUMNS[t] for t in effort])
            out |= {t for t in effort if table[_COLUMNS[t]].null_count}
        return out


def effort_matrix(visits: pd.DataFrame, terms: tuple[str, ...], missing: set[str]) -> F64:
    """Effort covariates (m, K), all zero for a standard visit: one hour, standing still, one observer.

    duration: log(minutes / 60); distance: log(1 + km); observers: log(people). A term that some visit lacks gets a
    second column that marks those visits, so that they are compared with each other and not with an hour.
    """
    columns: list[F64] = []
    for term in terms:
        raw = visits[_COLUMNS[term]].to_numpy(float, na_value=np.nan)
        if term == "duration":
            x = np.log(np.clip(raw, 1.0, None) / 60.0)
        elif term == "distance":
            x = np.log1p(np.clip(raw, 0.0, None))
        else:
            x = np.log(np.clip(raw, 1.0, None))
        blank = np.isnan(x)
        columns.append(np.where(blank, 0.0, x))
        if term in missing:
            columns.append(blank.astype(float))
    return np.column_stack(columns) if columns else np.zeros((len(visits), 0))


def effort_names(terms: tuple[str, ...], missing: set[str]) -> list[str]:
    """Names of the columns of :func:`effort_matrix`."""
    names = {"duration": "log(hours)", "distance": "log(1 + km)", "observers": "log(observers)"}
    return [n for t in terms for n in ([names[t], f"{t} unknown"] if t in missing else [names[t]])]


def open_panel(path: str | Path) -> PanelFolder:
    """Open a panel folder; checks its manifest, axes and groups."""
    path = Path(path)
    manifest = read_manifest(path, "panel")
    if not (path / "groups").is_dir() or not any((path / "groups").iterdir()):
        raise InputError(f"{path} has no group in {path / 'groups'}; make the panel again.", path=str(path))
    sites = read_table(path / "sites.parquet", "sites").to_pandas()
    months = read_table(path / "months.parquet", "months").to_pandas()
    return PanelFolder(path, manifest, sites, months)


def panel_hash(panel: PanelFolder) -> dict[str, str]:
    """SHA-256 of every table of a panel."""
    files = [panel.path / "sites.parquet", panel.path / "months.parquet"]
    files += [g / "visits.parquet" for g in panel.groups]
    return {str(f.relative_to(panel.path)): hash_file(f) for f in files}


def check_same_panel(panel: PanelFolder, manifest: dict[str, Any], fit_path: str | Path) -> None:
    """Raise unless the fit with this manifest was made on this panel."""
    if manifest["inputs"] != panel_hash(panel):
        raise InputError(
            f"{fit_path} was not fitted on {panel.path}: their tables differ. Run `fedmiss fit` on this panel first; "
            "a fit cannot impute sites or months that it has not seen."
        )
