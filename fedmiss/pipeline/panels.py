"""Read a panel folder into the arrays that the solver works on."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from fedmiss.arrays import I64
from fedmiss.errors import InputError
from fedmiss.etl.codes import NEVER_DETECTED
from fedmiss.federation.group.covariates import expanded
from fedmiss.federation.group.visits import Visits, deal_sites
from fedmiss.files import SECRET, Manifest, panel_tables, read_manifest
from fedmiss.folders import PanelFacts
from fedmiss.models.lowrank.data import Group, GroupPanel
from fedmiss.notebook import card
from fedmiss.settings import kinds_checked
from fedmiss.tables import read_table

FEWEST_ZEROS = 0.01  # share of counts that are zero above which zeros are written down
_VISIT = ["observer_id", "site_index", "month_index", "count", "detected"]
_COLUMNS = {"duration": "duration_minutes", "distance": "distance_km", "observers": "n_observers"}


@dataclass(frozen=True, slots=True, eq=False)
class PanelFolder:
    """A panel folder that has been opened: manifest and axes; visits are read by :meth:`load`."""

    path: Path
    manifest: Manifest
    sites: pd.DataFrame
    months: pd.DataFrame

    def __repr__(self) -> str:
        return f"PanelFolder({str(self.path)!r}, {self.facts.species}, {len(self.sites)} sites x {len(self.months)} months)"

    def _repr_html_(self) -> str:
        """Show what the folder holds in a notebook."""
        facts = self.facts
        return card(
            "Panel folder",
            {
                "folder": self.path,
                "species": facts.species,
                "sites x months": f"{len(self.sites):,} x {len(self.months):,}",
                "from, to": (self.months["month"].iloc[0], self.months["month"].iloc[-1])
                if len(self.months)
                else None,
                "groups": tuple(group.name for group in self.groups),
            },
        )

    @property
    def facts(self) -> PanelFacts:
        """What the manifest says of the panel."""
        return PanelFacts.of(self.manifest["results"], self.path)

    @property
    def groups(self) -> list[Path]:
        """Folders of the groups, sorted by name."""
        names = {name.split("/")[1] for name in self.manifest["files"] if name.startswith("groups/")}
        return [self.path / "groups" / name for name in sorted(names)]

    def secrets(self) -> dict[str, bytes]:
        """Secrets of the groups (``secret.key``, their own or the panel's); weights of replicates come from them."""
        out = {}
        for group in self.groups:
            if (group / SECRET).exists():
                out[group.name] = (group / SECRET).read_bytes()
            elif (self.path / SECRET).exists():
                out[group.name] = (self.path / SECRET).read_bytes()
        return out

    @property
    def several_sources(self) -> bool:
        """Whether the panel was made of several records folders, which may hold the same checklist."""
        return len({name.split("/")[0] for name in self.manifest["inputs"]}) > 1

    @property
    def calendar(self) -> tuple[I64, I64]:
        """(month_of_year, year) of the month axis, each (L,) int64."""
        return self.months["month_of_year"].to_numpy(np.int64), self.months["year"].to_numpy(np.int64)

    @property
    def stamps(self) -> I64:
        """The month axis as 12 year + month - 1, (L,)."""
        month_of_year, year = self.calendar
        return year * 12 + month_of_year - 1

    @property
    def chosen_by_detection(self) -> bool:
        """Whether sites were left out because the species was never detected there."""
        return any(row["step"] == NEVER_DETECTED and row["rows"] < 0 for row in self.manifest["flow"])

    @property
    def listed_by_detection(self) -> bool:
        """Whether sites are in the panel because the species was found there: others were dropped, or zeros unwritten.

        A survey that writes zeros has more than one in a hundred.
        """
        return self.chosen_by_detection or self.facts.n_zeros <= FEWEST_ZEROS * self.facts.n_counted

    @property
    def frame(self) -> bool:
        """Whether the panel has sites of a table that nobody visited (``fedmiss panel --sites frame``)."""
        return bool(self.manifest["settings"].get("sites") == "frame")

    def visits(self, *, effort: bool = True) -> tuple[dict[str, Visits], dict[str, I64]]:
        """What every group holds, and which sites of the panel are its own.

        Nothing is decided here that needs two groups: axes and effort terms are agreed through the protocol.
        Sites that nobody visited go to the first group. ``effort=False`` leaves effort unread.
        """
        ids = self.sites["site_id"].to_numpy(object)
        region = self.sites["region"].fillna("").to_numpy(object)
        stamps, covariates = self.stamps, expanded(self.covariates())
        own = list(_COLUMNS.values()) if effort else []
        columns = [*_VISIT, *own, *(["checklist_id"] if self.several_sources else [])]
        tables = {
            folder.name: read_table(folder / "visits.parquet", "visits", columns=columns)
            for folder in self.groups
        }
        # A site that several groups visit is among the sites of each of them.
        mine = deal_sites(
            {name: table.column("site_index").to_numpy() for name, table in tables.items()}, ids.size
        )
        held = {}
        for name in sorted(tables):
            table, at = tables.pop(name).to_pandas(), mine[name]
            # Numbered by sorted id: the same numbers for any order of rows.
            observer, who = pd.factorize(table["observer_id"], sort=True)
            if self.several_sources:  # which may call different people the same
                who = name + "\0" + who
            held[name] = Visits(
                site_id=ids[at],
                site=np.searchsorted(at, table["site_index"].to_numpy()).astype(np.int32),
                month=stamps[table["month_index"].to_numpy()],
                count=table["count"].to_numpy(float, na_value=np.nan),
                detected=table["detected"].to_numpy(bool),
                observer=observer.astype(np.int32),
                effort=np.ascontiguousarray(table[own].to_numpy(float, na_value=np.nan)),
                weight=np.ones(len(table)),
                region=region[at],
                species=self.facts.species,
                checklist=table["checklist_id"].to_numpy(object) if self.several_sources else None,
                given=not effort,
                covariates={name: column[at] for name, column in covariates.items()},
                frame=self.frame,
                chosen=self.chosen_by_detection,
                observer_id=who.to_numpy(object),
            )
        return held, mine

    def covariates(self) -> dict[str, np.ndarray]:
        """Covariates (J,) of the sites by name: numbers, NaN for a gap; texts, empty for a gap; and the sites' places."""
        J = len(self.sites)
        out = {name: self.sites[name].to_numpy(float, na_value=np.nan) for name in ("latitude", "longitude")}
        out = {name: column for name, column in out.items() if not np.isnan(column).all()}
        if "site_covariates.parquet" not in self.manifest["files"]:
            return out
        table = read_table(self.path / "site_covariates.parquet", "site_covariates").to_pandas()
        for name, part in table.groupby("covariate", sort=True):
            at = part["site_index"].to_numpy()
            # A covariate is of categories or of numbers, and a blank is a gap in either.
            if part["category"].notna().any():
                texts = np.full(J, "", dtype=object)
                texts[at] = part["category"].fillna("").to_numpy(object)
                out[str(name)] = texts
            else:
                numbers = np.full(J, np.nan)
                numbers[at] = part["value"].to_numpy(float, na_value=np.nan)
                out[str(name)] = numbers
        return out

    def load(self, family: str) -> GroupPanel:
        """Counts of every group without effort (X left out), or detections for the Bernoulli family."""
        groups = []
        for folder in self.groups:
            visits = read_table(folder / "visits.parquet", "visits", columns=_VISIT).to_pandas()
            if family == "bernoulli":
                value = visits["detected"].to_numpy(float)
            else:
                # X says that there were birds and not how many: no count, though it is a detection.
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
                )
            )
        region = self.sites["region"].fillna("").to_numpy(object)
        ids = self.sites["site_id"].to_numpy(object)
        return GroupPanel.of(len(self.sites), len(self.months), groups, self.calendar, ids, region)


def effort_names(terms: tuple[str, ...], blanks: tuple[str, ...]) -> list[str]:
    """Names of the effort covariates (``fedmiss.federation.group.visits.effort_columns``)."""
    names = {"duration": "log(hours)", "distance": "log(1 + km)", "observers": "log(observers)"}
    return [
        name
        for term in terms
        for name in ([names[term], f"{term} unknown"] if term in blanks else [names[term]])
    ]


@kinds_checked
def open_panel(path: str | Path) -> PanelFolder:
    """Open a panel folder; checks its manifest, axes and groups.

    Examples
    --------
    >>> import fedmiss
    >>> p = fedmiss.simulate_panel(20, 24, 0.5, seed=1, groups=2)
    >>> panel = fedmiss.simulate.write_panel(p, "panel")
    >>> folder = fedmiss.open_panel("panel")
    >>> len(folder.sites), len(folder.months)
    (20, 24)
    """
    path = Path(path)
    manifest = read_manifest(path, "panel", verify=True)
    if not any(name.startswith("groups/") for name in manifest["files"]):
        raise InputError(f"{path} has no group in {path / 'groups'}; make the panel again.")
    sites = read_table(path / "sites.parquet", "sites").to_pandas()
    months = read_table(path / "months.parquet", "months").to_pandas()
    return PanelFolder(path, manifest, sites, months)


def panel_hash(panel: PanelFolder) -> dict[str, str]:
    """SHA-256 of every table that a panel's fit and what follows depend on, as checked when the panel was opened."""
    return panel_tables(panel.manifest)
