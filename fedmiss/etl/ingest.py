"""Import records: read files, apply the rules, write a records folder with its row flow and warnings."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

import polars as pl

from fedmiss.errors import ConfigError, InputError, fold, listed
from fedmiss.etl.checks import refuse_spellings
from fedmiss.etl.codes import COUNT_BLANK
from fedmiss.etl.column_map import by_species, check_map
from fedmiss.etl.columns import date_parts, is_count_table, kept_columns, wide_years
from fedmiss.etl.count_table import CountOptions
from fedmiss.etl.count_visits import OF_PLACE, project_counts
from fedmiss.etl.counts import species_of_counts
from fedmiss.etl.flow import (
    all_simulated,
    orphan_warning,
    row_flow,
    source_warnings,
    summarise,
    terms_of,
    why_no_zeros,
)
from fedmiss.etl.memory import give_back
from fedmiss.etl.others import project_gbif, project_myebird, suspected_copies
from fedmiss.etl.plain import project_plain
from fedmiss.etl.projection import CACHE, Cache, Meta, Projection, is_full, size_of
from fedmiss.etl.reach import NO_LIMIT, SEVERAL_SPECIES, limits_of, reach_warnings
from fedmiss.etl.resolve import share_without_records, write_records
from fedmiss.etl.rows import read_texts
from fedmiss.etl.select import ListRules, make_checklists
from fedmiss.etl.settings import COUNTS, EBIRD, GBIF, MYEBIRD, PLAIN, IngestSettings
from fedmiss.etl.sites import parse_site_rule
from fedmiss.etl.sources import EBIRD_ROLES, Source, dated_by_sheet, expand
from fedmiss.etl.species import SpeciesChoice, choose_species
from fedmiss.files import Manifest, atomic_folder, making, read_manifest, scratch_folder, write_manifest
from fedmiss.locks import clear_inside
from fedmiss.progress import progress
from fedmiss.settings import kinds_checked, refuse_idle

WHEN = ("date", "year", "day")  # names of a map
KINDS = {**dict.fromkeys(EBIRD_ROLES, EBIRD), "myebird": MYEBIRD, "gbif": GBIF}  # of input, by role


@kinds_checked
def ingest(
    files: Sequence[str | Path | Source],
    out: str | Path,
    settings: IngestSettings | None = None,
    *,
    sampling: Sequence[str | Path] = (),
    unvetted: Sequence[str | Path] = (),
    cache: str | Path | None = None,
    keep_cache: bool = True,
    overwrite: bool = False,
) -> Manifest:
    r"""Write the records folder ``out`` from eBird, MyEBirdData, GBIF or plain files; return its manifest.

    Parameters
    ----------
    files : what to read; an archive may hold several of them, sampling files may be among them; or tables that
        ``expand`` has found
    sampling, unvetted : files whose role is given instead of detected
    cache : folder for projections (see ``projection``); beside ``out`` when not given
    keep_cache : False makes the projections in a temporary folder

    Raises
    ------
    InputError, SchemaError : files that cannot be used, each with line and remedy
    ConfigError : settings that contradict each other or the files

    Examples
    --------
    >>> import fedmiss
    >>> from pathlib import Path
    >>> rows = "site;year;count\na;2001;4\na;2002;6\nb;2001;10\nb;2002;NA\n"
    >>> n = Path("counts.csv").write_text(rows)
    >>> manifest = fedmiss.ingest(["counts.csv"], "records")
    >>> sorted(manifest["results"])[:2], Path("records/records.parquet").exists()
    (['n_checklists', 'n_records'], True)
    """
    settings = settings or IngestSettings()
    out = Path(out)
    parse_site_rule(settings.site)
    if cache and not keep_cache:
        raise ConfigError(
            f"--no-cache does nothing beside --cache {cache}, which stores data. Leave one out."
        )
    sources = _sources(files, sampling, unvetted, settings)
    if settings.allow_absent and not settings.species:
        raise ConfigError(
            "--allow-absent does nothing here: no --species is named, so all are taken. Leave --allow-absent out."
        )
    refuse_idle(settings, {source.short_name: _kind(source, settings) for source in sources})
    place = Path(cache) if cache else out.parent / CACHE
    try:
        with making(out, "records", overwrite=overwrite, inputs=[source.path for source in sources]):
            _import(sources, out, settings, place if keep_cache else None)
    except InputError as error:
        if keep_cache and is_full(error) and (held := size_of(place)):
            raise InputError(
                f"{error} The cache {place} holds {held / 1e6:,.1f} MB: delete it, and run this again with --no-cache.",
                **error.fields,
            ) from error.__cause__
        raise
    return read_manifest(out, "records")


def _import(sources: list[Source], out: Path, settings: IngestSettings, cache: Path | None) -> None:
    """Make the records folder ``out``, whose lock is held; without a ``cache`` projections are temporary."""
    site_km = parse_site_rule(settings.site)
    family = _family(sources)
    if settings.filters.complete_only and any(_kind(source, settings) == COUNTS for source in sources):
        raise ConfigError(
            "a table of counts by year has no lists of all species, and complete ones only are asked for (--complete, or a "
            "preset that holds it): leave that out."
        )
    warnings: list[str] = []
    with scratch_folder(out) as scratch:
        store = Cache(cache or scratch, scratch)
        clear_inside(store.folder)
        projections = _project(sources, store, settings)
        releases = {projection.meta["release"] for projection in projections} - {""}
        warnings += _read_warnings(projections, releases)
        _refuse_empty(projections, sources, family)
        records = [projection for projection in projections if projection.has("records")]
        lists = [projection for projection in projections if projection.has("events")]
        presence_only = family == "gbif" or (
            family == "ebird" and not any(projection.meta["role"] == "sampling" for projection in lists)
        )
        if presence_only:
            warnings.append(why_no_zeros(family))
        if family == "plain":
            refuse_spellings(records, settings.spellings)
        choice = choose_species(records, settings, warnings)
        limits = NO_LIMIT if presence_only else limits_of(records, choice.code)
        with atomic_folder(out, "records", overwrite=True) as folder:
            path = folder / "checklists.parquet"
            rules = ListRules(settings.filters, settings.groups, site_km, presence_only, limits)
            shared = _suspected(family, lists, settings, warnings)
            events, lists_flow, unmatched = store.make(
                lambda at: make_checklists(
                    lists, path, rules, shared=shared, cache=None if at == store.spare else at
                )
            )
            silent = share_without_records(events, records) if limits.n_species >= SEVERAL_SPECIES else 0.0
            give_back()
            counts = write_records(events, records, choice, folder / "records.parquet", store)
            del events
            give_back()
            if family == "plain" and len(sources) > 1:
                warnings += _between_tables(sources, settings, choice, counts.steps)
            warnings += unmatched + reach_warnings(limits, lists_flow, silent)
            if counts.orphans:
                warnings.append(orphan_warning(lists, counts, folder))
            results = summarise(counts, lists_flow, settings, choice)
            write_manifest(
                folder,
                "records",
                settings=asdict(settings) | {"presence_only": presence_only, "exported": family == "myebird"},
                inputs=_hashes(projections),
                results=results,
                flow=row_flow(projections, lists_flow, counts.steps, results, presence_only=presence_only),
                terms=_terms(
                    sources, projections, releases, simulated=family == "ebird" and all_simulated(lists)
                ),
                warnings=warnings,
            )


def _refuse_empty(projections: list[Projection], sources: list[Source], family: str) -> None:
    names = listed([source.short_name for source in sources], 4)
    if not any(each.meta["rows"] or each.meta["role"] == "sampling" for each in projections):
        raise InputError(
            f"{names}: a header and no rows, so there is nothing to import; widen the choice made at the "
            "download, or name the sampling file with --sampling."
        )
    if family == "plain" and not any(_says_something(each) for each in projections):
        rows, found = (sum(each.meta["rows"] for each in projections)), projections[0].meta["examples"]
        why = found[0] if found else "the count is missing, NA or blank"
        raise InputError(
            f"{names}: none of {rows:,} rows has a site, a date and a count that can be used ({why}), so there is nothing "
            "to import. See whether these are the right tables, and the right column for each (--map).",
            rows=rows,
        )


def _says_something(table: Projection) -> bool:
    """Whether a plain table has a count, or a list without birds."""
    return bool(table.meta.get("without_birds")) or any(
        (part["count"] != COUNT_BLANK).any() for part in table.slices("records", ["count"])
    )


def _terms(
    sources: list[Source], projections: list[Projection], releases: set[str], *, simulated: bool
) -> dict[str, str]:
    return terms_of(
        "simulated" if simulated else sources[0].role,
        sorted(releases),
        sorted({name for each in projections for name in each.meta.get("licences", [])}),
        sorted({source.citation for source in sources if source.citation}),
    )


def _hashes(projections: list[Projection]) -> dict[str, str]:
    """Name and SHA-256 of each input; files of one name (MyEBirdData.csv of several observers) are numbered."""
    found: dict[str, str] = {}
    seen = Counter[str]()
    for projection in projections:
        name = projection.meta["source"]
        seen[name] += 1
        found[name if seen[name] == 1 else f"{name} ({seen[name]})"] = projection.meta["sha256"]
    return found


def _sources(
    files: Sequence[str | Path | Source],
    sampling: Sequence[str | Path],
    unvetted: Sequence[str | Path],
    settings: IngestSettings,
) -> list[Source]:
    unique: dict[tuple[Path, str | None, str], Source] = {}

    def found(file: str | Path | Source) -> list[Source]:
        if isinstance(file, Source):
            return [file]
        given, tables = settings.column_map or {}, expand(file, settings.sheet, settings.header_row)
        # a map may name a column of dates that is called otherwise
        return [
            table if {given.get(when) for when in WHEN} & {*table.header} else dated_by_sheet(table)
            for table in tables
        ]

    for role, paths in (("", files), ("sampling", sampling), ("unvetted", unvetted)):
        for source in (source for path in paths for source in found(path)):
            fits = source.role in EBIRD_ROLES and (source.role == "sampling") == (role == "sampling")
            if role and not fits:
                raise InputError(
                    f"{source.name} was given with --{role}, but its columns are those of another kind of file "
                    f"({', '.join(source.header[:3])}, ...); check the order of the files.",
                    path=source.name,
                )
            key = (source.path.resolve(), source.member, source.sheet)
            unique.setdefault(key, replace(source, role=role) if role else source)
    if not unique:
        raise ConfigError("no file was named; give at least one.")
    return list(unique.values())


def _family(sources: list[Source]) -> str:
    families = {
        "ebird" if source.role in EBIRD_ROLES else source.role: source.short_name for source in sources
    }
    if len(families) > 1:
        listed = ", ".join(f"{name} ({family})" for family, name in families.items())
        raise ConfigError(
            f"these files are of different kinds: {listed}. Ingest each kind into a folder of its own."
        )
    family = next(iter(families))
    if family == "ebird" and not any(source.role == "ebd" for source in sources):
        kinds = sorted({source.role for source in sources})
        more = " Unvetted records are no substitute for it." if "unvetted" in kinds else ""
        raise ConfigError(
            f"none of the files holds reviewed records (there is only: {', '.join(kinds)}); name the EBD file too.{more}"
        )
    return family


def _project(sources: list[Source], store: Cache, settings: IngestSettings) -> list[Projection]:
    """Return the projection of every source, from the cache or made now."""
    projections = []
    for source in sources:  # before any is read, which may take long
        if source.role == "ebd":
            kept_columns(source.header, settings.keep, source.name)
    for source in sources:
        build, more = _builder(source, settings, sources)
        key = store.key(source, json.dumps(more, default=asdict))
        projections.append(store.projection(key, partial(_watched, source, partial(build, source, **more))))
        give_back()
    return projections


def _between_tables(
    sources: list[Source], settings: IngestSettings, choice: SpeciesChoice, steps: Mapping[str, int]
) -> list[str]:
    """Refuse tables of counts by year that are of several species or share a cell; say what other tables add up."""
    names = listed([source.short_name for source in sources], 4)
    counted = any(_kind(source, settings) == COUNTS for source in sources)
    if counted and (len(choice.names) > 1 or steps["other species"]):
        raise ConfigError(
            f"{names} are of several species, and tables of counts by year are imported one species at a time: each with "
            "another --out; where the tables name none, say it with --species."
        )
    again = steps["rolled up"]
    if not again:
        return []
    if counted and settings.repeats != "sum":
        raise InputError(
            f"{again:,} counts of a site and time stand in more than one of {names}; leave out the table that holds them "
            "twice, or pass --repeats sum if they are of different birds."
        )
    return [
        f"counts of a species on a visit that has another of it, in the same table or between {names}: {again:,}. They are "
        "added up; if they are of the same birds, leave out the table that holds them twice."
    ]


def _read_warnings(projections: list[Projection], releases: set[str]) -> list[str]:
    """Return the sentences about what reading the sources has found."""
    warnings = [sentence for projection in projections for sentence in source_warnings(projection)]
    if len(releases) > 1:
        warnings.append(
            f"the files are of different releases ({', '.join(sorted(releases))}); species names change every "
            "autumn, so one species may stand under two names. Download all files from one release."
        )
    if any(projection.meta["role"] == "unvetted" for projection in projections):
        warnings.append(
            "unvetted records are used only to hold back zeros: a species in them counts as missing."
        )
    return warnings


def _watched(source: Source, build: Callable[..., Meta], folder: Path) -> Meta:
    with progress(f"reading {source.short_name}", source.stamp[0], unit="bytes") as advance:
        meta = build(folder, advance=advance)
    source.refuse_changed()
    return meta


def _builder(
    source: Source, settings: IngestSettings, sources: list[Source]
) -> tuple[Callable[..., Meta], dict[str, object]]:
    """Return the function that makes the projection of a source, and its arguments beside source and folder."""
    if source.role in EBIRD_ROLES:
        from fedmiss.etl.ebird import project_ebird  # its compiled reader is not loaded for other files

        reviewed = source.role == "ebd"
        alone = not any(source.role == "sampling" for source in sources)
        return project_ebird, {"with_events": reviewed and alone, "keep": settings.keep if reviewed else ()}
    if source.role == "myebird":
        return project_myebird, {"observer": _observer_name(source, sources), "keep": settings.keep}
    if source.role == "gbif":
        return project_gbif, {"decimals": settings.decimals, "keep": settings.keep}
    one = settings.species[0] if len(settings.species) == 1 else None
    if _kind(source, settings) == COUNTS:
        if settings.keep:
            raise ConfigError(
                f"--keep: {source.name} is a table of counts by year, which become visits; columns are kept of "
                "tables of records only. Leave --keep out."
            )
        if len(settings.species) > 1:
            raise ConfigError(
                f"{source.name} is a table of counts by year: a site without a row of one species was perhaps not visited "
                f"for it, so each species is imported by itself. Give one --species ({listed(list(settings.species), 3)}), "
                "and another --out for each."
            )
        options = _count_options(settings)
        return project_counts, {
            "options": options,
            "one_species": one or "",
            "first_year": settings.first_year,
            "places": {key: column for key, column in (settings.column_map or {}).items() if key in OF_PLACE},
        }
    chosen = check_map(source, settings.column_map, one_species=one, wide=settings.wide)
    return project_plain, {
        "column_map": chosen,
        "one_species": None if settings.wide or {"species", "common_name"} & set(chosen) else one,
        "by_species": by_species(source, chosen, settings.species, settings.keep) if settings.wide else (),
        "assume_complete": settings.assume_complete,
        "rules": replace(_count_options(settings), columns=None),
        "dates": settings.dates,
        "keep": settings.keep,
    }


def _count_options(settings: IngestSettings) -> CountOptions:
    named = {
        key: column for key, column in (settings.column_map or {}).items() if key not in ("auto", *OF_PLACE)
    }
    one = settings.species[0] if len(settings.species) == 1 else ""
    return CountOptions(
        named, settings.missing, settings.repeats, settings.wide, settings.spellings, species=one
    )


def count_tables(
    files: Sequence[str | Path], settings: IngestSettings
) -> tuple[list[Source], dict[str, int]]:
    """Read tables of counts by year; return them, for ``ingest``, and the species that they name with their rows.

    None where a file is of another kind, or a table names no species. Such a table is read once and imported one species
    at a time: a site without a row of one species was perhaps not visited for it.
    """
    sources, found = _sources(files, (), (), settings), Counter[str]()
    spelt: dict[str, str] = {}  # two tables may spell one name in two ways
    if any(_kind(source, settings) != COUNTS for source in sources):
        return [], {}
    tables = [replace(source, texts=read_texts(source)) for source in sources]
    for table in tables:
        named = species_of_counts(table, _count_options(replace(settings, species=())))
        if not named:
            return [], {}
        for name, rows in named.items():
            found[spelt.setdefault(fold(name), name)] += rows
    return tables, dict(found)


def _kind(source: Source, settings: IngestSettings) -> str:
    """Which kind of input a source is, in the words of the settings."""
    if source.role in KINDS:
        return KINDS[source.role]
    given = settings.column_map or {}
    by_visit = {"date", "day", "observer"} & given.keys()
    yearly = "year" in given and "day" not in given
    if settings.wide and not yearly and not wide_years(source.header) and date_parts(source.header):
        return PLAIN  # its columns are species, not years
    return COUNTS if yearly or (is_count_table(source.header, given) and not by_visit) else PLAIN


def _observer_name(source: Source, sources: list[Source]) -> str:
    """Name the observer of a MyEBirdData file by the file, with its folder where two files have one name."""
    stem = source.path.name.split(".")[0]
    same = [source for source in sources if source.path.name.split(".")[0] == stem]
    if len(same) == 1:
        return stem
    return (
        f"{source.path.resolve().parent.name}/{stem}" if source.member is None else f"{stem}/{source.member}"
    )


def _suspected(
    family: str, lists: list[Projection], settings: IngestSettings, warnings: list[str]
) -> pl.DataFrame | None:
    """Report friends' copies of one list (MyEBirdData has no group id); return them when they are to be joined."""
    if family != "myebird" or len(lists) < 2:
        return None
    parts = []
    for projection in lists:
        events = projection.read("events", ["event", "place", "date", "start", "duration"])
        site = projection.read("places")["site"].gather(events["place"])
        name = projection.read("observers")["observer"][0] if events.height else ""
        parts.append((name, events.drop("place").with_columns(site=site)))
    alike = suspected_copies(parts)
    if not alike.height:
        return None
    shown = listed([f"S{event}" for event in alike["event"]], 4)
    joined = settings.drop_suspected
    fate = "they are treated as shared" if joined else "--drop-suspected treats them as shared"
    warnings.append(
        f"{alike.height} lists look like copies of {alike['group'].n_unique()} shared ones: same place, date, time and "
        f"duration in the files of different observers ({shown}); {fate}."
    )
    return alike if joined else None
