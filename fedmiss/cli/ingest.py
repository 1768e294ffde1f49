"""``fedmiss ingest``: records in, a records folder out."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

__all__ = ["ingest"]

_WHERE = "Where"
_WHEN = "When and how"
_RULES = "Rules"
_PLAIN = "Plain tables and other sources"


def ingest(
    files: Annotated[
        list[Path],
        typer.Argument(
            help="EBD text, MyEBirdData.csv, GBIF occurrences, a table of counts (site, year[, month], count), or any other "
            "CSV or parquet with --map. "
            "Plain, .gz, .zip or .tar, as downloaded; a sampling file may be among them.",
            show_default=False,
        ),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder to make.")] = Path("records"),
    sampling: Annotated[
        list[Path] | None,
        typer.Option(help="eBird sampling event file; without one no zeros can be made.", show_default=False),
    ] = None,
    unvetted: Annotated[
        list[Path] | None,
        typer.Option(
            help="eBird file of unvetted or provisional records: they hold back zeros.", show_default=False
        ),
    ] = None,
    species: Annotated[
        list[str] | None,
        typer.Option(
            "--species", "-s", help="Common or scientific name; repeat for more.", show_default="all"
        ),
    ] = None,
    preset: Annotated[
        str | None,
        typer.Option(help="Named filters: best-practices-v1 or best-practices-v2.", show_default=False),
    ] = None,
    country: Annotated[
        list[str] | None,
        typer.Option(help="Country code or name.", rich_help_panel=_WHERE, show_default=False),
    ] = None,
    state: Annotated[
        list[str] | None, typer.Option(help="State code or name.", rich_help_panel=_WHERE, show_default=False)
    ] = None,
    county: Annotated[
        list[str] | None,
        typer.Option(help="County code or name.", rich_help_panel=_WHERE, show_default=False),
    ] = None,
    bcr: Annotated[
        list[str] | None,
        typer.Option(help="Code of a Bird Conservation Region.", rich_help_panel=_WHERE, show_default=False),
    ] = None,
    bbox: Annotated[
        str | None,
        typer.Option(help="west,south,east,north in degrees.", rich_help_panel=_WHERE, show_default=False),
    ] = None,
    polygon: Annotated[
        Path | None,
        typer.Option(help="GeoJSON file with polygons.", rich_help_panel=_WHERE, show_default=False),
    ] = None,
    locality: Annotated[
        list[str] | None, typer.Option(help="Locality id.", rich_help_panel=_WHERE, show_default=False)
    ] = None,
    hotspots: Annotated[
        bool, typer.Option("--hotspots", help="Hotspots only.", rich_help_panel=_WHERE)
    ] = False,
    site: Annotated[
        str, typer.Option(help="What a site is: locality, or grid:3km (equal areas).", rich_help_panel=_WHERE)
    ] = "locality",
    start: Annotated[
        str | None, typer.Option(help="First date, as 2015-01-01.", rich_help_panel=_WHEN, show_default=False)
    ] = None,
    end: Annotated[
        str | None, typer.Option(help="Last date, included.", rich_help_panel=_WHEN, show_default=False)
    ] = None,
    year: Annotated[
        list[int] | None,
        typer.Option(help="Calendar year; repeat for more.", rich_help_panel=_WHEN, show_default=False),
    ] = None,
    last_edited: Annotated[
        str | None,
        typer.Option(
            help="Last edit of the checklist, as 2020-01-01..2021-12-31.",
            rich_help_panel=_WHEN,
            show_default=False,
        ),
    ] = None,
    season: Annotated[
        str | None,
        typer.Option(help="Window of any year, as 11-15..02-15.", rich_help_panel=_WHEN, show_default=False),
    ] = None,
    time: Annotated[
        str | None,
        typer.Option(
            help="Start time, as 05:00..10:30, both included.", rich_help_panel=_WHEN, show_default=False
        ),
    ] = None,
    protocol: Annotated[
        list[str] | None,
        typer.Option(
            help="Protocol, as Traveling; repeat for more.", rich_help_panel=_WHEN, show_default=False
        ),
    ] = None,
    project: Annotated[
        list[str] | None,
        typer.Option(help="eBird project code; repeat for more.", rich_help_panel=_WHEN, show_default=False),
    ] = None,
    duration: Annotated[
        str | None, typer.Option(help="Minutes, as 5..300.", rich_help_panel=_WHEN, show_default=False)
    ] = None,
    distance: Annotated[
        str | None, typer.Option(help="Kilometres, as 0..10.", rich_help_panel=_WHEN, show_default=False)
    ] = None,
    max_speed: Annotated[
        float | None, typer.Option(help="Kilometres an hour.", rich_help_panel=_WHEN, show_default=False)
    ] = None,
    max_observers: Annotated[
        int | None, typer.Option(help="Largest party.", rich_help_panel=_WHEN, show_default=False)
    ] = None,
    complete: Annotated[
        bool, typer.Option("--complete", help="Complete checklists only.", rich_help_panel=_WHEN)
    ] = False,
    observer: Annotated[
        list[str] | None, typer.Option(help="Observer id to keep.", rich_help_panel=_WHEN, show_default=False)
    ] = None,
    without_observer: Annotated[
        list[str] | None,
        typer.Option(help="Observer id to leave out.", rich_help_panel=_WHEN, show_default=False),
    ] = None,
    groups: Annotated[
        str,
        typer.Option(
            help="Shared checklists: first (the lowest id stands for all), merged (observers joined), raw (every "
            "copy counts).",
            rich_help_panel=_RULES,
        ),
    ] = "first",
    exotic: Annotated[
        str,
        typer.Option(
            help="Exotic codes to keep, with commas; natives always stay. X is an escapee.",
            rich_help_panel=_RULES,
        ),
    ] = "N,P",
    breeding: Annotated[
        list[str] | None,
        typer.Option(
            help="Breeding code, or any: records without it are neither a detection nor a zero.",
            rich_help_panel=_RULES,
            show_default=False,
        ),
    ] = None,
    reviewed: Annotated[
        bool,
        typer.Option(
            "--reviewed",
            help="Reviewed records only; the others are neither a detection nor a zero.",
            rich_help_panel=_RULES,
        ),
    ] = False,
    sensitive: Annotated[
        list[str] | None,
        typer.Option(
            help="Species whose records are withheld somewhere: its absence is no zero.",
            rich_help_panel=_RULES,
            show_default=False,
        ),
    ] = None,
    allow_absent: Annotated[
        bool,
        typer.Option(
            "--allow-absent", help="Accept a species that the files never mention.", rich_help_panel=_RULES
        ),
    ] = False,
    map_: Annotated[
        str | None,
        typer.Option(
            "--map",
            help="Columns of a plain table, as observer=who,site=plot,date=day,count=n, or site=plot,year=time,count=n; "
            "or auto.",
            rich_help_panel=_PLAIN,
            show_default=False,
        ),
    ] = None,
    assume_complete: Annotated[
        bool,
        typer.Option(
            "--assume-complete",
            help="Every visit reported every species, so absence is zero.",
            rich_help_panel=_PLAIN,
        ),
    ] = False,
    drop_suspected: Annotated[
        bool,
        typer.Option(
            "--drop-suspected",
            help="MyEBirdData of friends: same place, date, time and duration is one shared list.",
            rich_help_panel=_PLAIN,
        ),
    ] = False,
    decimals: Annotated[
        int,
        typer.Option(
            help="GBIF: decimals of a coordinate that make a site.", min=0, max=5, rich_help_panel=_PLAIN
        ),
    ] = 2,
    repeats: Annotated[
        str,
        typer.Option(
            help="Several counts of a species on one visit (plain tables; refuse means sum), or of a site in one year or "
            "month (tables of counts): refuse, sum, max or mean.",
            rich_help_panel=_PLAIN,
        ),
    ] = "refuse",
    spellings: Annotated[
        str,
        typer.Option(
            help="Plain tables: sites that differ in case, blanks or accents only: refuse, join or apart.",
            rich_help_panel=_PLAIN,
        ),
    ] = "refuse",
    wide: Annotated[
        bool,
        typer.Option("--wide", help="Table of counts with one column for each year.", rich_help_panel=_PLAIN),
    ] = False,
    missing: Annotated[
        list[str] | None,
        typer.Option(
            help="Plain tables: a further sign of a missing count, as 999.",
            rich_help_panel=_PLAIN,
            show_default=False,
        ),
    ] = None,
    dates: Annotated[
        str,
        typer.Option(
            help="Plain tables: what 05/06/2024 means, day-first or month-first.",
            rich_help_panel=_PLAIN,
            show_default="refused",
        ),
    ] = "",
    first_year: Annotated[
        int | None,
        typer.Option(
            help="Table of counts whose time points are 1, 2, ...: the year of the first.",
            rich_help_panel=_PLAIN,
            show_default=False,
        ),
    ] = None,
    cache: Annotated[
        Path | None,
        typer.Option(
            help="Folder for what a second ingest can reuse.", show_default=".fedmiss-cache beside --out"
        ),
    ] = None,
    no_cache: Annotated[bool, typer.Option("--no-cache", help="Keep nothing for a second ingest.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the folder --out.")] = False,
) -> None:
    """Read bird records of any eBird kind, apply the rules that make zeros true, and write a records folder."""
    from fedmiss.etl.filters import Filters
    from fedmiss.etl.filters import preset as preset_filters
    from fedmiss.etl.ingest import IngestSettings
    from fedmiss.etl.ingest import ingest as run_ingest
    from fedmiss.etl.options import (
        clock_range,
        date_range,
        four_numbers,
        number_range,
        parse_map,
        season_window,
    )

    changes: dict[str, Any] = {
        "countries": tuple(country or ()),
        "states": tuple(state or ()),
        "counties": tuple(county or ()),
        "bcrs": tuple(bcr or ()),
        "bbox": four_numbers(bbox),
        "polygon": str(polygon) if polygon else None,
        "localities": tuple(locality or ()),
        "hotspots_only": hotspots,
        "first_date": start,
        "last_date": end,
        "years": tuple(year or ()),
        "last_edited": date_range(last_edited),
        "season": season_window(season),
        "start": clock_range(time),
        "protocols": tuple(protocol or ()),
        "projects": tuple(project or ()),
        "complete_only": complete,
        "duration": number_range(duration, "--duration"),
        "distance": number_range(distance, "--distance"),
        "max_speed": max_speed,
        "party": (None, float(max_observers)) if max_observers is not None else (None, None),
        "observers": tuple(observer or ()),
        "without_observers": tuple(without_observer or ()),
    }
    given = {k: v for k, v in changes.items() if v not in ((), None, False, (None, None))}
    filters = preset_filters(preset, **given) if preset else Filters(**given)
    manifest = run_ingest(
        files,
        out,
        IngestSettings(
            species=tuple(species or ()),
            filters=filters,
            groups=groups,
            site=site,
            exotic=("", *(c.strip().upper() for c in exotic.split(",") if c.strip())),
            breeding=tuple(breeding or ()),
            reviewed_only=reviewed,
            sensitive=tuple(sensitive or ()),
            allow_absent=allow_absent,
            column_map=parse_map(map_),
            assume_complete=assume_complete,
            drop_suspected=drop_suspected,
            decimals=decimals,
            repeats=repeats,
            spellings=spellings,
            wide=wide,
            missing=tuple(missing or ()),
            first_year=first_year,
            dates=dates,
        ),
        sampling=sampling or (),
        unvetted=unvetted or (),
        cache=cache,
        keep_cache=not no_cache,
        overwrite=overwrite,
    )
    _show(manifest, out)


def _show(manifest: dict[str, Any], out: Path) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    for warning in manifest["warnings"]:
        typer.echo(f"note: {warning}", err=True)
    if not console.is_terminal:  # lines that other programs can read
        for row in manifest["flow"]:
            typer.echo(f"{row['rows']:>12}  {row['step']}" + (f"  ({row['note']})" if row["note"] else ""))
    else:
        flow = Table("step", title="Row flow", title_justify="left")
        flow.add_column("rows", justify="right")
        flow.add_column("note", style="dim")
        for row in manifest["flow"]:
            flow.add_row(
                row["step"], f"{row['rows']:,}", row["note"], end_section=row["step"].endswith(": written")
            )
        console.print(flow)
    typer.echo(f"{'species':<32}{'records':>10}{'X':>8}{'zeros':>10}{'visits':>10}")
    listed = sorted(manifest["results"]["species"], key=lambda s: -s["records"])
    for s in listed[:20]:
        name = s["common_name"] or s["species"]
        typer.echo(f"{name[:31]:<32}{s['records']:>10}{s['x']:>8}{s['zeros']:>10}{s['visits']:>10}")
    if len(listed) > 20:
        typer.echo(f"... and {len(listed) - 20} more species")
    typer.echo(f"wrote {out}. Cite: {manifest['terms']['citation']}")
