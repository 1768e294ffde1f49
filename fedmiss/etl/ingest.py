"""Import records: files in, a records folder out, with everything that happened on the way written down."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedmiss.arrays import I32
from fedmiss.errors import ConfigError, InputError
from fedmiss.etl.ebird import project_ebird
from fedmiss.etl.filters import Filters
from fedmiss.etl.others import project_gbif, project_myebird, suspected_copies
from fedmiss.etl.plain import check_map, project_plain
from fedmiss.etl.projection import Cache, Projection
from fedmiss.etl.select import POLICIES, Events, SpeciesChoice, event_names, write_checklists, write_records
from fedmiss.etl.sites import parse_site_rule
from fedmiss.etl.sources import Source, expand
from fedmiss.etl.terms import terms_of
from fedmiss.files import atomic_folder, check_free, write_manifest
from fedmiss.progress import progress

if TYPE_CHECKING:
    import polars as pl

__all__ = ["IngestSettings", "ingest"]

# CATEGORY and name that roll up to a species; everything else stands above it (spuh, slash, hybrid).
BELOW_OR_SPECIES = ("species", "issf", "intergrade", "form", "domestic")
BINOMIAL = r"^[A-Z][a-z-]+ [a-z-]+$"
FAMILIES = {"ebd": "ebird", "sampling": "ebird", "unvetted": "ebird", "myebird": "myebird", "gbif": "gbif"}


@dataclass(frozen=True, slots=True)
class IngestSettings:
    """What to take from the files.

    Parameters
    ----------
    species : scientific or common names; none means all species of the files
    filters : which checklists to keep
    groups : policy for shared checklists: ``first``, ``merged`` or ``raw``
    site : ``locality``, or ``grid:3km``
    exotic : eBird exotic codes to keep; blank stands for native
    sensitive : species whose absence is no zero, because their records are withheld somewhere
    allow_absent : accept a species that the files do not contain (all zeros)
    column_map : canonical name -> column, for plain tables; ``{"auto": ""}`` takes the proposal
    assume_complete : plain tables: every visit reported all species
    drop_suspected : MyEBirdData: treat suspected copies of a shared list as one shared list
    decimals : GBIF: coordinates are rounded to so many decimals to make sites
    """

    species: tuple[str, ...] = ()
    filters: Filters = field(default_factory=Filters)
    groups: str = "first"
    site: str = "locality"
    exotic: tuple[str, ...] = ("", "N", "P")
    sensitive: tuple[str, ...] = ()
    allow_absent: bool = False
    column_map: dict[str, str] | None = None
    assume_complete: bool = False
    drop_suspected: bool = False
    decimals: int = 2


def ingest(
    files: Sequence[str | Path],
    out: str | Path,
    settings: IngestSettings | None = None,
    *,
    sampling: Sequence[str | Path] = (),
    unvetted: Sequence[str | Path] = (),
    cache: str | Path | None = None,
    keep_cache: bool = True,
    overwrite: bool = False,
) -> dict[str, Any]:
    """Write the records folder ``out`` from eBird, MyEBirdData, GBIF or plain files; return its manifest.

    Parameters
    ----------
    files : what to read; an archive may hold several of them, sampling files may be among them
    sampling, unvetted : files whose role is told instead of seen
    cache : folder for projections (see ``projection``); beside ``out`` when not given
    keep_cache : False makes the projections in a temporary folder

    Raises
    ------
    InputError, SchemaError : files that cannot be used, each with line and remedy
    ConfigError : settings that contradict each other or the files
    """
    from fedmiss.files import read_manifest

    settings = settings or IngestSettings()
    out = Path(out)
    if settings.groups not in POLICIES:
        raise ConfigError(f"the policy {settings.groups!r} is unknown; choose {', '.join(POLICIES)}.")
    site_km = parse_site_rule(settings.site)
    check_free(out, overwrite=overwrite)
    sources = _sources(files, sampling, unvetted)
    family = _family(sources)
    warnings: list[str] = []
    with tempfile.TemporaryDirectory(prefix="fedmiss-") as scratch:
        store = Cache(
            Path(cache) if cache else out.parent / ".fedmiss-cache" if keep_cache else Path(scratch)
        )
        projections = _project(sources, store, settings, warnings)
        records = [p for p in projections if p.has("records")]
        lists = [p for p in projections if p.has("events")]
        presence_only = family == "gbif" or (
            family == "ebird" and not any(p.meta["role"] == "sampling" for p in lists)
        )
        if presence_only:
            warnings.append(_why_no_zeros(family))
        choice = _choose_species(records, settings, warnings)
        events = Events.load(lists, settings.groups, _suspected(family, lists, settings, warnings))
        with atomic_folder(out, overwrite=overwrite) as folder:
            lists_flow = write_checklists(
                events,
                settings.filters,
                site_km,
                presence_only=presence_only,
                path=folder / "checklists.parquet",
            )
            flow, tally, orphans = write_records(events, records, choice, folder / "records.parquet")
            warnings += settings.filters.unmatched(events.seen)
            if orphans.size:
                warnings.append(_orphan_warning(lists, orphans, flow["orphans"], folder))
            results = _results(tally, lists_flow, settings, choice)
            write_manifest(
                folder,
                "records",
                settings=asdict(settings) | {"presence_only": presence_only},
                inputs={p.meta["source"]: p.meta["sha256"] for p in projections},
                results=results | {"orphans": int(orphans.size)},
                flow=_flow(projections, lists_flow, flow, results, presence_only),
                terms=terms_of(
                    sources[0].role,
                    sorted({p.meta["release"] for p in projections if p.meta.get("release")}),
                    sorted({x for p in projections for x in p.meta.get("licences", [])}),
                ),
                warnings=warnings,
            )
    return read_manifest(out, "records")


def _sources(
    files: Sequence[str | Path], sampling: Sequence[str | Path], unvetted: Sequence[str | Path]
) -> list[Source]:
    from dataclasses import replace

    found: list[Source] = []
    for path in files:
        found += expand(path)
    for path, role in [*((p, "sampling") for p in sampling), *((p, "unvetted") for p in unvetted)]:
        for source in expand(path):
            if source.role not in ("ebd", "sampling", "unvetted") or (source.role == "sampling") != (
                role == "sampling"
            ):
                raise InputError(
                    f"{source.name} was given with --{role}, but its columns are those of another kind of file "
                    f"({', '.join(source.header[:3])}, ...); check the order of the files.",
                    path=source.name,
                )
            found.append(replace(source, role=role))
    unique: dict[tuple[Path, str | None], Source] = {}
    for source in found:
        unique.setdefault((source.path.resolve(), source.member), source)
    if not unique:
        raise ConfigError("no file was named; give at least one.")
    return list(unique.values())


def _family(sources: list[Source]) -> str:
    families = {FAMILIES.get(s.role, "plain"): s.short_name for s in sources}
    if len(families) > 1:
        listed = ", ".join(f"{name} ({family})" for family, name in families.items())
        raise ConfigError(
            f"these files are of different kinds: {listed}. Ingest each kind into a folder of its own."
        )
    family = next(iter(families))
    if family == "ebird" and not any(s.role == "ebd" for s in sources):
        kinds = ", ".join(sorted({s.role for s in sources}))
        raise ConfigError(
            f"none of the files holds reviewed records (there is only: {kinds}); name the EBD file too."
            + (
                " Unvetted records are no substitute for it."
                if any(s.role == "unvetted" for s in sources)
                else ""
            )
        )
    return family


def _project(
    sources: list[Source], store: Cache, settings: IngestSettings, warnings: list[str]
) -> list[Projection]:
    """Return the projection of every source, from the cache or made now."""
    with_events = not any(s.role == "sampling" for s in sources)
    projections = []
    for source in sources:
        key, build = _builder(
            source, store, settings, sources, with_events=with_events and source.role == "ebd"
        )
        projection = store.find(key)
        if projection is None:
            with progress(
                f"reading {source.short_name}", source.path.stat().st_size, unit="bytes"
            ) as advance:
                projection = store.store(key, partial(build, advance=advance))
        projections.append(projection)
        warnings += _source_warnings(projection)
    releases = {p.meta["release"] for p in projections if p.meta.get("release")}
    if len(releases) > 1:
        warnings.append(
            f"the files are of different releases ({', '.join(sorted(releases))}); species names change every "
            "autumn, so one species may stand under two names. Download all files from one release."
        )
    if any(p.meta["role"] == "unvetted" for p in projections):
        warnings.append(
            "unvetted records are used only to hold back zeros: a species in them counts as missing."
        )
    return projections


def _builder(
    source: Source, store: Cache, settings: IngestSettings, sources: list[Source], *, with_events: bool
) -> tuple[str, Any]:
    """Return the cache key of a source and the function that makes its projection in a folder."""
    if source.role in ("ebd", "sampling", "unvetted"):
        return store.key(source, with_events=with_events), partial(
            project_ebird, source, with_events=with_events
        )
    extra: dict[str, Any]
    if source.role == "myebird":
        extra = {"observer": _observer_name(source, sources)}
        build: Any = project_myebird
    elif source.role == "gbif":
        extra = {"decimals": settings.decimals}
        build = project_gbif
    else:
        one = settings.species[0] if len(settings.species) == 1 else None
        chosen = check_map(source, settings.column_map, one_species=one is not None)
        named = "species" in chosen or "common_name" in chosen
        extra = {
            "column_map": chosen,
            "one_species": None if named else one,
            "assume_complete": settings.assume_complete,
        }
        build = project_plain
    return store.key(source, with_events=True, extra=json.dumps(extra)), partial(build, source, **extra)


def _observer_name(source: Source, sources: list[Source]) -> str:
    """Name the observer of a MyEBirdData file by the file, with its folder where two files have one name."""
    stem = source.path.name.split(".")[0]
    same = [s for s in sources if s.path.name.split(".")[0] == stem]
    if len(same) == 1:
        return stem
    return (
        f"{source.path.resolve().parent.name}/{stem}" if source.member is None else f"{stem}/{source.member}"
    )


def _source_warnings(p: Projection) -> list[str]:
    m, out = p.meta, []
    name = m["source"]
    bad = sum(m["malformed"].values())
    if bad:
        out.append(f"{name}: {bad:,} of {m['rows']:,} rows were left out ({'; '.join(m['examples'])}).")
    for column, n in m["unreadable"].items():
        shown = next((e for e in m["examples"] if column in e), "")
        out.append(f"{name}: {n:,} values of {column} could not be read and count as blank ({shown}).")
    if m.get("long_rows"):
        out.append(f"{name}: {m['long_rows']:,} rows have more columns than the header (tabs in comments).")
    if m.get("short_rows"):
        out.append(
            f"{name}: {m['short_rows']:,} rows have fewer columns than the header; the rest counts as blank."
        )
    if m.get("unterminated"):
        out.append(f"{name}: the last line has no line end; the file may have been cut short.")
    for column in m.get("absent_columns", []):
        consequence = {
            "GROUP IDENTIFIER": "copies of shared checklists cannot be told apart from other checklists",
            "GLOBAL UNIQUE IDENTIFIER": "duplicated records cannot be found",
            "CATEGORY": "taxa above species are told by their names only",
        }.get(column)
        if consequence:
            out.append(f"{name} has no column {column}: {consequence}.")
    return out


def _suspected(
    family: str, lists: list[Projection], settings: IngestSettings, warnings: list[str]
) -> pl.DataFrame | None:
    """Report friends' copies of one list (MyEBirdData has no group id); return them when they are to be joined."""
    if family != "myebird" or len(lists) < 2:
        return None
    parts = []
    for p in lists:
        events = p.read("events", ["event", "place", "date", "start", "duration"])
        site = p.read("places")["site"].gather(events["place"])
        parts.append(
            (p.read("observers")["observer"][0] if events.height else "", events.with_columns(site=site))
        )
    alike = suspected_copies([(name, f.drop("place")) for name, f in parts])
    if not alike.height:
        return None
    shown = ", ".join(f"S{e}" for e in alike["event"].head(4))
    fate = (
        "they are treated as shared" if settings.drop_suspected else "--drop-suspected treats them as shared"
    )
    warnings.append(
        f"{alike.height} lists look like copies of {alike['group'].n_unique()} shared ones: same place, date, time and "
        f"duration in the files of different observers ({shown}{', ...' if alike.height > 4 else ''}); {fate}."
    )
    return alike if settings.drop_suspected else None


def _why_no_zeros(family: str) -> str:
    if family == "gbif":
        return (
            "GBIF occurrences carry no checklist, effort or completeness, so no zeros are made from them: only what "
            "was seen is used."
        )
    return (
        "no sampling file was given, so no zeros are made: checklists without the species stand only in the sampling "
        "file. Name it with --sampling."
    )


def _choose_species(
    records: list[Projection], settings: IngestSettings, warnings: list[str]
) -> SpeciesChoice:
    import polars as pl

    taxa = [p.read("taxa") for p in records]
    merged = pl.concat([t.with_columns(source=pl.lit(i, pl.Int32)) for i, t in enumerate(taxa)])
    below = pl.col("species").str.contains(BINOMIAL) & pl.col("category").is_in(["", *BELOW_OR_SPECIES])
    free = [
        i for i, p in enumerate(records) if p.meta.get("any_name")
    ]  # plain tables name species as they like
    merged = merged.with_columns(
        keep=pl.when(pl.col("source").is_in(free)).then(pl.col("species") != "").otherwise(below)
    )
    known = (
        merged.filter("keep")
        .sort(pl.col("category") == "species", "rows", descending=True)
        .group_by("species", maintain_order=True)
        .agg(pl.col("common_name").first(), pl.col("common_name").unique().alias("all_names"))
        .sort("species")
    )
    names: list[str] = known["species"].to_list()
    common: list[str] = known["common_name"].to_list()
    if settings.species:
        chosen = _named(settings.species, known, merged, records, settings, warnings)
    else:
        chosen = names
    shown = dict(zip(names, common, strict=True))
    index = {name: i for i, name in enumerate(chosen)}
    exotic_kept = {c.strip().upper() for c in settings.exotic}
    code: list[I32] = []
    above, exotic, unvetted = [], [], []
    for p, t in zip(records, taxa, strict=True):
        keep = merged.filter(pl.col("source") == len(code))["keep"].fill_null(False).to_numpy()
        code.append(
            np.array(
                [index.get(n, -1) if k else -1 for n, k in zip(t["species"].to_list(), keep, strict=True)],
                np.int32,
            )
        )
        above.append(~keep)
        exotic.append(
            np.array([c.strip().upper() not in exotic_kept for c in t["exotic"].to_list()], np.bool_)
        )
        unvetted.append((t["approved"] == "0").to_numpy() | (p.meta["role"] == "unvetted"))
    _check_sensitive(settings, known, warnings)
    return SpeciesChoice(chosen, [shown.get(n) or None for n in chosen], code, above, exotic, unvetted)


def _named(
    wanted: tuple[str, ...],
    known: pl.DataFrame,
    merged: pl.DataFrame,
    records: list[Projection],
    settings: IngestSettings,
    warnings: list[str],
) -> list[str]:
    import polars as pl

    scientific = {n.casefold(): n for n in known["species"].to_list()}
    names = dict(scientific)
    for sci, all_names in zip(known["species"].to_list(), known["all_names"].to_list(), strict=True):
        for name in all_names:
            if name:
                names.setdefault(name.casefold(), sci)
    chosen: list[str] = []
    for name in wanted:
        key = " ".join(name.split()).casefold()
        if key in names:
            hit = names[key]
        else:
            above = merged.filter(
                ~pl.col("keep")
                & (
                    (pl.col("species").str.to_lowercase() == key)
                    | (pl.col("common_name").str.to_lowercase() == key)
                )
            )
            if above.height:
                raise ConfigError(
                    f"{name!r} is a {above['category'][0] or 'taxon above species'}, not a species: nobody can say "
                    "where it was absent. Name a species.",
                    species=name,
                )
            if not (settings.allow_absent or merged["rows"].sum() == 0):
                raise _unknown_species(name, known)
            if not (re.match(BINOMIAL, name) or any(p.meta.get("any_name") for p in records)):
                raise ConfigError(
                    f"{name!r} is not in the files; give its scientific name (two words).", species=name
                )
            warnings.append(
                f"{name} is in none of the files; every complete checklist counts as a zero for it."
            )
            hit = name
        if hit not in chosen:
            chosen.append(hit)
    return chosen


def _unknown_species(name: str, known: pl.DataFrame) -> ConfigError:
    pool = {n.casefold(): n for n in known["species"].to_list()}
    pool |= {n.casefold(): n for n in known["common_name"].to_list() if n}
    near = [pool[k] for k in get_close_matches(name.casefold(), list(pool), n=3, cutoff=0.6)]
    if not near:  # the last word alone is often right: 'Wood Trush' for 'Wood Thrush', 'thrush' for it too
        near = [v for k, v in pool.items() if name.casefold().split()[-1] in k][:3]
    hint = f"Did you mean {' or '.join(near)}?" if near else f"They hold {known.height} species."
    return ConfigError(
        f"the species {name!r} is not in the files. {hint} (--allow-absent accepts a species that was never seen.)",
        species=name,
        near=near,
    )


def _check_sensitive(settings: IngestSettings, known: pl.DataFrame, warnings: list[str]) -> None:
    names = {n.casefold() for n in known["species"].to_list()} | {
        n.casefold() for n in known["common_name"].to_list() if n
    }
    for name in settings.sensitive:
        if name.casefold() not in names:
            warnings.append(f"the sensitive species {name!r} is not in the files; check its spelling.")
        else:
            warnings.append(
                f"{name} is named as sensitive: its absence from a checklist is missing, not zero."
            )


def _results(
    tally: pl.DataFrame, lists: dict[str, int], settings: IngestSettings, choice: SpeciesChoice
) -> dict[str, Any]:
    sensitive = {n.casefold() for n in settings.sensitive}
    species = []
    for row in tally.to_dicts():
        names = {row["species"].casefold(), (row["common_name"] or "").casefold()}
        zeros_ok = not (names & sensitive)
        zeros = lists["zero_ok"] - row["on_zero_ok"] if zeros_ok else 0
        species.append(
            {
                "species": row["species"],
                "common_name": row["common_name"],
                "records": row["records"],
                "x": row["x"],
                "zeros": zeros,
                "visits": row["records"] + zeros,
                "zeros_allowed": zeros_ok,
            }
        )
    return {
        "n_checklists": lists["written"],
        "n_zero_ok": lists["zero_ok"],
        "n_records": int(tally["records"].sum()),
        "species": species,
    }


def _flow(
    projections: list[Projection],
    lists: dict[str, int],
    records: dict[str, int],
    results: dict[str, Any],
    presence_only: bool,
) -> list[dict[str, Any]]:
    """Return the row flow: each table starts at what was read, and its signed steps add up to what was written."""
    rows: list[dict[str, Any]] = []

    def add(table: str, step: str, n: int, note: str = "", *, always: bool = False) -> None:
        if n or always:
            rows.append({"step": f"{table}: {step}", "rows": n, "note": note})

    for p in projections:
        if p.has("events") and not p.has("records"):
            add("checklists", "read", p.meta["rows"], p.meta["source"], always=True)
            add("checklists", "malformed", -sum(p.meta["malformed"].values()), p.meta["source"])
    if presence_only or not any(r["step"] == "checklists: read" for r in rows):
        add("checklists", "met in the records", lists["read"] - lists["duplicates"], always=True)
    else:
        add("checklists", "duplicates", -lists["duplicates"], "same id twice, latest edit kept")
    add("checklists", "copies of shared lists", -lists["copies"])
    for key, n in lists.items():
        if key.startswith("filter: "):
            add("checklists", key, -n, always=True)
    add("checklists", "no coordinates", -lists["no coordinates"], "no grid cell can be told")
    add(
        "checklists", "written", lists["written"], f"{lists['zero_ok']:,} of them may give zeros", always=True
    )

    for p in projections:
        if p.has("records"):
            add("records", "read", p.meta["rows"], p.meta["source"], always=True)
            add("records", "malformed", -sum(p.meta["malformed"].values()), p.meta["source"])
    notes = {
        "above": ("taxa above species", "spuh, slash, hybrid"),
        "other species": ("other species", ""),
        "duplicates": ("duplicates", "same global unique identifier, latest edit kept"),
        "explicit zeros": ("explicit zeros", "reported as 0: not detected"),
        "orphans": ("checklist not in the sampling file", ""),
        "unvetted": ("not reviewed", "hold back zeros only"),
        "escapees": ("escapees", "hold back zeros only"),
        "copies": ("copies on shared lists", "the lowest id that lists the species counts"),
        "rolled up": ("rolled up", "subspecies and forms added to their species"),
    }
    for key, (step, note) in notes.items():
        add("records", step, -records[key], note)
    for key, n in records.items():
        if key.startswith("on checklists"):
            add("records", key, -n)
    add("records", "held back", records["held back"], "seen, but neither a count nor a zero")
    add("records", "written", records["written"], f"{records['X']:,} of them X (not counted)", always=True)

    visits = results["species"]
    add("visits", "records", sum(s["records"] for s in visits), always=True)
    add(
        "visits",
        "zeros implied",
        sum(s["zeros"] for s in visits),
        "never stored; made in a panel",
        always=True,
    )
    add("visits", "over all species", sum(s["visits"] for s in visits), always=True)
    return rows


def _orphan_warning(lists: list[Projection], orphans: Any, n_rows: int, folder: Path) -> str:
    ids = event_names(lists[0], orphans) if not lists[0].has("names") else None
    text = [str(i) for i in (ids.to_list() if ids is not None else orphans.tolist())]
    (folder / "orphans.txt").write_text("\n".join(text) + "\n", encoding="utf-8")
    return (
        f"{n_rows:,} records stand on {len(text):,} checklists that the sampling file does not have "
        f"({', '.join(text[:5])}{', ...' if len(text) > 5 else ''}; all in orphans.txt); they were left out, since "
        "their effort is unknown. Download both files together."
    )
