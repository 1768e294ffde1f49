"""From records to the panel of one species: visits of (observer, site, month), split into groups.

A panel folder holds the two axes (sites, months), shared by all, and one folder per group of observers with
that group's visits and its observed-index set Omega_c. A group's folder can be handed over or run elsewhere
as it is; nothing in it points outside.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import polars as pl

from fedmiss.atomic import write_secret
from fedmiss.errors import ConfigError, InputError, listed, several
from fedmiss.etl.cells import entry_of, resolve_species, scattered, sites_of, species_visits
from fedmiss.etl.checks import spelt_alike
from fedmiss.etl.codes import FRAME, NEVER_DETECTED
from fedmiss.etl.community import scores_without
from fedmiss.etl.count_visits import DAY_OF_COUNTS, MONTH_OF_YEARLY
from fedmiss.etl.months import panel_months
from fedmiss.etl.settings import PanelSettings
from fedmiss.etl.site_table import SiteTable, read_site_table
from fedmiss.files import (
    SECRET,
    FlowRow,
    Manifest,
    atomic_folder,
    hash_file,
    identity,
    read_manifest,
    write_manifest,
)
from fedmiss.folders import ALL, VISITED, PanelFacts
from fedmiss.group_names import group_folders
from fedmiss.rng import rng_for
from fedmiss.settings import kinds_checked
from fedmiss.tables import read_table, write_table

_NO_GROUPS = ("_source", "count", "detected", "exported")
EFFORT = ("start_minutes", "duration_minutes", "distance_km", "n_observers", "protocol")


@kinds_checked
def make_panel(
    records: str | Path | Sequence[str | Path],
    out: str | Path,
    settings: PanelSettings | None = None,
    *,
    overwrite: bool = False,
) -> Path:
    r"""Write the panel folder of one species.

    Parameters
    ----------
    records : one records folder, or several: then each folder is one group, named after it
    out : folder to make

    Raises
    ------
    InputError    no such species (near names are proposed), no visit with a count, or a region called all
    ConfigError   fewer observers than groups, one observer only, unknown column

    Examples
    --------
    >>> import fedmiss
    >>> from pathlib import Path
    >>> rows = "site;year;count\na;2001;4\na;2002;6\nb;2001;10\nb;2002;NA\n"
    >>> n = Path("counts.csv").write_text(rows)
    >>> records = fedmiss.ingest(["counts.csv"], "records")
    >>> folder = fedmiss.make_panel("records", "panel")
    >>> fedmiss.open_panel("panel").sites["site_id"].to_list()
    ['a', 'b']
    """
    settings = settings or PanelSettings()
    folders = [Path(records)] if isinstance(records, str | Path) else [Path(record) for record in records]
    if len(folders) > 1:
        settings.refuse_groups("each of several records folders is a group", ("group_by", "groups", "seed"))
    manifests = [read_manifest(folder, "records", verify=True) for folder in folders]
    with atomic_folder(out, "panel", overwrite=overwrite, inputs=folders) as tmp:
        flow = [row for manifest in manifests for row in manifest["flow"]]
        warnings = [warning for manifest in manifests for warning in manifest["warnings"]]
        named = dict(zip(_source_names(folders), folders, strict=True))
        species, common, visits = _all_visits(named, manifests, settings, warnings)
        flow.append({"step": "visits of the species, zeros included", "rows": visits.height, "note": species})
        visits = _once(visits, flow, warnings)
        settings = _never_seen(settings, species, visits, warnings)
        visits = _choose_sites(visits, settings, flow)
        warnings += [*_odd_counts(species, visits), *scattered(visits)]
        table = _about_sites(settings, species, common)
        sites = _sites(visits, table, flow, warnings, frame=settings.sites == "frame")
        for name in (ALL, VISITED):
            if name in sites["region"]:
                raise InputError(
                    f"a region is called {name!r}, as the whole is in tables; call it otherwise, or leave it blank."
                )
        months = panel_months(visits["date"], warnings, yearly=_yearly(visits))
        visits = (
            visits.with_columns(pl.col("date").dt.strftime("%Y-%m").alias("month"))
            .join(sites.select("site_id", "site_index"), on="site_id")
            .join(months.select("month", "month_index"), on="month")
        )
        visits = assign_groups(visits, settings, by_source=len(folders) > 1)
        warnings += _apart(visits) if len(folders) > 1 or settings.group_by == "file" else []
        warnings += spelt_alike(sites["site_id"].to_list()) if len(folders) > 1 else []
        write_table(sites, tmp / "sites.parquet", "sites")
        write_table(months, tmp / "months.parquet", "months")
        if table is not None and table.covariates:
            write_table(table.long(sites), tmp / "site_covariates.parquet", "site_covariates")
        groups = _write_groups(tmp / "groups", visits, secrets=settings.secrets)
        if not settings.secrets:
            # Of the panel, not of its groups, whose folders may be handed over; the same for all species of the records.
            write_secret(tmp / SECRET, _secret_of(folders))
        flow.append({"step": "visits written", "rows": visits.height, "note": several(len(groups), "group")})
        write_manifest(
            tmp,
            "panel",
            settings=asdict(settings) | _named(settings),
            inputs=_inputs(dict(zip(named, manifests, strict=True)), settings),
            results=_facts(species, common, visits, sites, months, groups, manifests).as_results(),
            flow=flow,
            terms=manifests[0]["terms"],
            warnings=warnings,
        )
    return Path(out)


def _never_seen(
    settings: PanelSettings, species: str, visits: pl.DataFrame, warnings: list[str]
) -> PanelSettings:
    """Keep all sites where the species was seen at none: else none would be left, and absence everywhere is a result."""
    if settings.sites != "seen" or visits["detected"].any():
        return settings
    warnings.append(
        f"{species} was found on none of {visits.height} visits, so every site is kept, not only those where it was seen."
    )
    return replace(settings, sites="all")


def _inputs(manifests: dict[str, Manifest], settings: PanelSettings) -> dict[str, str]:
    """SHA-256 of what the panel is made of: tables of the records, table of sites, community."""
    out = {
        f"{name}/{file}": manifest["files"][file]["sha256"]
        for name, manifest in manifests.items()
        for file in ("records.parquet", "checklists.parquet")
    }
    if settings.site_table:
        out["site table"] = hash_file(settings.site_table)
    return out | ({"community": identity(settings.community)} if settings.community else {})


def _named(settings: PanelSettings) -> dict[str, str]:
    """What is known of the sites beside the records: setting -> name of the file or folder, without its path."""
    paths = {"site_table": settings.site_table, "community": settings.community}
    return {key: Path(path).name for key, path in paths.items() if path}


def _about_sites(settings: PanelSettings, species: str, common: str) -> SiteTable | None:
    """The table of sites, with the scores of the other species in a community beside it."""
    table = read_site_table(settings.site_table) if settings.site_table else None
    if not settings.community:
        return table
    scores = scores_without(settings.community, species, common)
    return table.joined(scores) if table else scores


def _facts(
    species: str,
    common: str,
    visits: pl.DataFrame,
    sites: pl.DataFrame,
    months: pl.DataFrame,
    groups: dict[str, dict[str, int]],
    manifests: list[Manifest],
) -> PanelFacts:
    counted = visits["count"].is_not_null()
    # A table of counts without observers: the importer writes the site as its observer.
    unobserved = (visits["observer_id"] == visits["site_id"]).all()
    return PanelFacts(
        species=species,
        common_name=common,
        n_sites=sites.height,
        n_months=months.height,
        first_month=months["month"][0],
        last_month=months["month"][-1],
        n_observers=0 if unobserved else visits["observer_id"].n_unique(),
        n_visits=visits.height,
        n_counted=int(counted.sum()),
        n_detected=int(visits["detected"].sum()),
        n_zeros=int((visits["count"] == 0).sum()),
        n_cells_observed=visits.filter(counted).select("site_index", "month_index").n_unique(),
        birds=int(visits["count"].sum()),
        effort={
            name: round(1 - visits[name].null_count() / visits.height, 4)
            for name in EFFORT
            if name != "protocol"
        },
        share_complete=round(float(visits["complete"].sum() / visits.height), 4),
        groups=groups,
        # a table of yearly counts has no months: all its counts have the same one (see plain)
        period="year" if _yearly(visits) else "month",
        implied_zeros=any(row["zeros"] for manifest in manifests for row in manifest["results"]["species"]),
    )


def _yearly(visits: pl.DataFrame) -> bool:
    # Yearly tables have no month: the importer writes one day for all.
    june = (visits["date"].dt.month() == MONTH_OF_YEARLY) & (visits["date"].dt.day() == DAY_OF_COUNTS)
    return bool(june.all()) and visits.select("site_id", pl.col("date").dt.year()).is_duplicated().sum() == 0


def _odd_counts(species: str, visits: pl.DataFrame) -> list[str]:
    """Say that all counts are X, or that one is larger than all others together; no count at all is an error."""
    if visits["count"].null_count() == visits.height:
        raise InputError(
            f"{species}: none of its {visits.height} visits has a count (all are X, present but not counted) and none "
            "records an absence, so no index of numbers or of presence can be made. Choose another species or wider "
            "filters at ingest.",
            species=species,
        )
    total, found = visits["count"].sum(), int(visits["detected"].sum())
    if found and not total:
        return [
            f"{species} was found on {found} visits and counted on none of them (all are X): no "
            "index of numbers can be made, but one of presence and absence can."
        ]
    most = visits.filter(pl.col("count") == pl.col("count").max()).head(1)
    if visits.height < 20 or 2 * most["count"][0] <= total:
        return []
    return [
        f"one count, {most['count'][0]:,} birds at {most['site_id'][0]} on {most['date'][0]}, is larger than all others "
        f"together ({total - most['count'][0]:,} birds); check it, since it can decide totals and trend."
    ]


def _source_names(folders: list[Path]) -> list[str]:
    """Return a name for each records folder: its own, with the one above where two have the same."""
    whole = [folder.resolve() for folder in folders]
    if len(set(whole)) < len(whole):
        again = next(folder for i, folder in enumerate(whole) if folder in whole[:i])
        raise ConfigError(f"the records folder {again} is named twice; name each folder once.")
    own = [folder.name for folder in whole]
    return [
        f"{folder.parent.name}-{folder.name}" if own.count(folder.name) > 1 else folder.name
        for folder in whole
    ]


def _all_visits(
    folders: dict[str, Path], manifests: list[Manifest], settings: PanelSettings, warnings: list[str]
) -> tuple[str, str, pl.DataFrame]:
    """Return the visits of one species in all records folders; a folder without a record of it gives zeros or nothing."""
    entries = [manifest["results"]["species"] for manifest in manifests]
    holders = [i for i, entry in enumerate(entries) if settings.species and entry_of(entry, settings.species)]
    first = holders[0] if holders else 0
    entry = resolve_species(entries[first], settings.species, list(folders.values())[first])
    parts = []
    for (name, folder), held in zip(folders.items(), entries, strict=True):
        for file, schema in (("records.parquet", "records"), ("checklists.parquet", "checklists")):
            # only to check the schema: an error names the file
            read_table(folder / file, schema, columns=["checklist_id"])
        mine = entry_of(held, entry["species"])
        part = species_visits(folder, entry["species"], absent=mine is None).collect().sort("checklist_id")
        if mine is None:
            zeros = f"zeros of its complete checklists: {part.height:,}"
            what = zeros if part.height else "it has no part in the panel"
            warnings.append(f"no record of {entry['species']} in {name!r}: {what}.")
        parts.append(part.with_columns(pl.lit(name if len(folders) > 1 else "").alias("_source")))
    return entry["species"], entry["common_name"] or "", pl.concat(parts)


def _once(visits: pl.DataFrame, flow: list[FlowRow], warnings: list[str]) -> pl.DataFrame:
    """Leave out visits that a folder named earlier holds too.

    They have the same id at the same site on the same day; or, in observers' own exports, where every member of a party has
    an id of his own, place, date, start and duration are the same.
    """
    own = ("site_id", "date", "start_minutes", "duration_minutes")
    # An export of one's own gives each member of a party an id of his own: only place and time tell that it was one visit.
    personal = pl.all_horizontal(
        pl.col("exported").fill_null(False), *(pl.col(column).is_not_null() for column in own)
    )
    first = pl.col("_source").first()
    same = pl.col("_source") != first.over("checklist_id", "site_id", "date")
    alike = personal & (pl.col("_source") != first.over(*own, "exported"))
    kept = visits.filter(~(same | alike))
    if twice := visits.height - kept.height:
        flow.append({"step": "visits that another folder holds too", "rows": -twice, "note": ""})
        warnings.append(
            f"{twice:,} visits are in several of the folders; each counts once, for the folder named first."
        )
    return kept


def _apart(visits: pl.DataFrame) -> list[str]:
    """Say which groups have no region in common with any other: they learn from each other by the months only."""
    regions = {
        str(name): set(part["region"].drop_nulls().to_list()) for (name,), part in visits.group_by("_group")
    }
    if len(regions) < 2 or not all(regions.values()):
        return []
    alone = sorted(
        name
        for name, mine in regions.items()
        if not any(mine & other for key, other in regions.items() if key != name)
    )
    if not alone:
        return []
    return [
        f"{listed(alone, 4)}: no region in common with another group. Groups share "
        "the course of the months; where regions differ in it, make a panel of each region."
    ]


def _choose_sites(visits: pl.DataFrame, settings: PanelSettings, flow: list[FlowRow]) -> pl.DataFrame:
    rules = []
    if settings.sites == "seen":
        seen = pl.col("detected").any().over("site_id")
        rules.append((NEVER_DETECTED, seen, "; --sites all keeps "))
    if settings.min_visits > 1:
        enough = pl.len().over("site_id") >= settings.min_visits
        rules.append((f"at sites with fewer than {settings.min_visits} visits", enough, ""))
    for step, keep, more in rules:
        lost = visits.filter(~keep)
        n = lost["site_id"].n_unique()
        note = several(n, "site") + (more and more + ("it" if n == 1 else "them"))
        flow.append({"step": step, "rows": -lost.height, "note": note})
        visits = visits.filter(keep)
    if visits.is_empty():
        raise InputError(
            "no site is left in the panel: the species was never detected, or --min-visits is too high. "
            "Lower --min-visits, pass --sites all, or widen the filters of ingest."
        )
    return visits


def _sites(
    visits: pl.DataFrame, table: SiteTable | None, flow: list[FlowRow], warnings: list[str], *, frame: bool
) -> pl.DataFrame:
    """Sites of the visits, with what the table knows of them; with ``frame`` those that nobody visited too."""
    sites = _numbered(sites_of(visits))
    if table is None:
        return sites
    warnings += [*table.said, *table.beside(sites)]
    sites = table.placed(sites)
    if not frame:
        return sites
    warnings += table.beyond(sites)
    more = table.frame.filter(~pl.col("site_id").is_in(sites["site_id"].to_list()))
    flow.append({"step": FRAME, "rows": 0, "note": several(more.height, "site")})
    columns = sites.columns[1:]
    return _numbered(pl.concat([sites.select(columns), more.select(columns)], how="vertical_relaxed"))


def _numbered(sites: pl.DataFrame) -> pl.DataFrame:
    """Sites in the order of their ids, with their numbers."""
    index = pl.int_range(pl.len(), dtype=pl.Int32).alias("site_index")
    return sites.sort("site_id").select(index, "site_id", "site_name", "latitude", "longitude", "region")


def assign_groups(visits: pl.DataFrame, settings: PanelSettings, *, by_source: bool = False) -> pl.DataFrame:
    """Add the column ``_group``. An observer is in one group only, unless groups follow a column or files."""
    if by_source:
        return visits.with_columns(pl.col("_source").alias("_group"))
    if settings.group_by == "file":
        if not visits["exported"].fill_null(False).all():
            raise ConfigError(
                "--group-by file is for observers' own exports (MyEBirdData.csv), one file each; these records are of "
                "another kind. Choose region, observer_id, protocol or site_id."
            )
        return visits.with_columns(pl.col("observer_id").alias("_group"))
    if settings.group_by:
        if settings.group_by not in visits.columns or settings.group_by in _NO_GROUPS:
            allowed = "region, observer_id, protocol, site_id, file"
            raise ConfigError(
                f"--group-by {settings.group_by!r} is not a column to group by; choose one of {allowed}."
            )
        return visits.with_columns(pl.col(settings.group_by).cast(pl.String).alias("_group"))
    observers = visits["observer_id"].unique().sort()
    groups = settings.groups
    if observers.len() < groups:
        few = "one observer only" if observers.len() == 1 else f"{observers.len()} observers"
        raise ConfigError(
            f"the panel has {few}, fewer than --groups {groups}; pass --groups {observers.len()} or less.",
            observers=observers.len(),
        )
    width = max(2, len(str(groups)))
    # Dealt like cards: groups differ by one observer at most, and the seed alone decides.
    order = rng_for(settings.seed, "groups").permutation(observers.len())
    number = np.empty(observers.len(), dtype=np.int64)
    number[order] = np.arange(observers.len()) % groups + 1
    table = pl.DataFrame({"observer_id": observers, "_group": [f"g{group:0{width}d}" for group in number]})
    return visits.join(table, on="observer_id", how="left", maintain_order="left")


def _secret_of(folders: Sequence[Path]) -> bytes:
    """Give what only who has the records can know: no digest that a manifest tells."""
    digests = []
    for folder in folders:
        with (folder / "records.parquet").open("rb") as stream:
            digests.append(hashlib.file_digest(stream, lambda: hashlib.blake2b(key=b"weights")).digest())
    return hashlib.blake2b(b"".join(sorted(digests)), digest_size=32).digest()


def _write_groups(out: Path, visits: pl.DataFrame, *, secrets: bool) -> dict[str, dict[str, int]]:
    """Write a folder for each group; return what each of them holds."""
    folder_of = group_folders(visits["_group"].unique().to_list())
    groups = {}
    for name, folder in sorted(folder_of.items(), key=lambda item: item[1]):
        # eq_missing: a group without a name (a blank region) is a group too.
        rows = visits.filter(pl.col("_group").eq_missing(pl.lit(name, pl.String)))
        groups[folder] = _write_group(out / folder, rows)
        if secrets:
            write_secret(out / folder / SECRET)
    return groups


def _write_group(folder: Path, rows: pl.DataFrame) -> dict[str, int]:
    rows = rows.sort("site_index", "month_index", "date", "checklist_id")
    own = ("checklist_id", "observer_id", "site_index", "month_index", "date", "count", "detected")
    write_table(rows.select(*own, *EFFORT), folder / "visits.parquet", "visits")
    cells = (
        rows.group_by("site_index", "month_index")
        .agg(
            pl.len().cast(pl.Int32).alias("n_visits"),
            pl.col("count").is_not_null().sum().cast(pl.Int32).alias("n_counted"),
            pl.col("detected").sum().cast(pl.Int32).alias("n_detected"),
            pl.col("count").sum().cast(pl.Int64).alias("count_sum"),
        )
        .sort("site_index", "month_index")
    )
    write_table(cells, folder / "cells.parquet", "cells")
    return {
        "n_visits": rows.height,
        "n_observers": rows["observer_id"].n_unique(),
        "n_cells": cells.height,
        "n_counted": int(cells["n_counted"].sum()),
    }
