"""The chain: ingest, then panel, fit, impute and report for each species; redoes only what changed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from itertools import chain
from pathlib import Path

from fedmiss.atomic import hash_json
from fedmiss.errors import ConfigError, FedmissError, InputError, fold
from fedmiss.etl.cells import entry_of
from fedmiss.etl.ingest import count_tables, ingest
from fedmiss.etl.panel import make_panel
from fedmiss.etl.sources import Source
from fedmiss.etl.species import read_groups
from fedmiss.files import hash_file, identity, read_manifest, refuse_link, update_manifest
from fedmiss.locks import clear_inside, locked
from fedmiss.pipeline.failures import (
    AGAIN,
    SpeciesResult,
    check_folders,
    failed,
    in_recipe,
    lost,
    next_move,
    not_of_the_run,
    say_left,
    sentence,
    with_index,
)
from fedmiss.pipeline.fitting import fit_panel
from fedmiss.pipeline.imputing import impute_panel
from fedmiss.pipeline.parallel import over_cluster, over_processes
from fedmiss.pipeline.recipe import Recipe, slug
from fedmiss.pipeline.steps import claimed
from fedmiss.pipeline.steps import step as once
from fedmiss.report.build import build_report
from fedmiss.report.settings import ReportSettings
from fedmiss.settings import kinds_checked
from fedmiss.tables import read_table
from fedmiss.version import __version__

REFUSED = "refused_species"  # in the results of the records' manifest: names that could not be ingested
STEPS = ("panel", "fit", "imputed", "report")
OTHERWISE = ", or run them with recipes of their own"  # two species of one folder


def _manifest_key(folder: Path, settings: object) -> str:
    # The version too: another version may give other numbers from the same inputs.
    manifest = read_manifest(folder)
    # What the manifest of records says may be the same for other counts; their tables are not.
    tables = manifest["files"] if manifest["kind"] == "records" else None
    return hash_json([__version__, identity(folder), tables, settings])


def input_files(recipe: Recipe) -> list[Path]:
    """Return the files that a recipe reads; raise InputError when one is not there."""
    beside = [path for path in (recipe.ingest.filters.polygon, recipe.species_groups) if path]
    inputs = [*recipe.files, *recipe.sampling, *recipe.unvetted, *map(Path, beside), *_of_page(recipe.report)]
    for path in inputs:
        if not path.exists():
            raise InputError(f"there is no file {path} (named by the recipe {recipe.name}).")
    return inputs


def _of_page(settings: ReportSettings) -> list[Path]:
    """Return the files that a page takes something from: its picture, and a catalogue of its language."""
    catalogue = settings.language if settings.language and Path(settings.language).suffix else ""
    return [Path(name) for name in (settings.photo, catalogue) if name]


@kinds_checked
def run_recipe(
    recipe: Recipe,
    *,
    say: Callable[[str], None] = lambda text: None,
    jobs: int | None = None,
    scheduler: str | None = None,
) -> list[SpeciesResult]:
    r"""Run a recipe; steps whose inputs and settings have not changed are skipped.

    A species that fails does not stop the others; its error is in its result. Several species run in parallel
    processes, one per core; or on the workers of a Dask cluster, when the address of its ``scheduler`` is given (they must
    see the folder of the recipe's results under the same path).

    Examples
    --------
    >>> import fedmiss
    >>> from pathlib import Path
    >>> lines = [f"{site};{year};{5 + site + year % 3}" for site in range(6) for year in range(2010, 2016)]
    >>> n = Path("counts.csv").write_text("\n".join(["site;year;count", *lines]))
    >>> text = 'species = ["wren"]\n[ingest]\nfiles = ["counts.csv"]\nspecies = ["wren"]\n[fit]\nrank = 0\nbootstrap = 0\n'
    >>> n = Path("wren.toml").write_text(text)
    >>> [r.species for r in fedmiss.pipeline.run_recipe(fedmiss.pipeline.read_recipe("wren.toml"))]
    ['wren']
    """
    if jobs is not None and jobs < 1:
        raise ConfigError(f"--jobs is {jobs} (must be at least 1).")
    if jobs is not None and scheduler:
        raise ConfigError(
            "--jobs does nothing here: the workers of --scheduler are as many as the cluster has. Leave --jobs out."
        )
    input_files(recipe)
    refuse_link(recipe.out)
    recipe.out.parent.mkdir(parents=True, exist_ok=True)
    with locked(recipe.out):
        clear_inside(recipe.out)
        clear_inside(recipe.out / ".cache")
        with claimed(recipe.out, recipe.path):
            results = _run(recipe, say, jobs, scheduler)
        say_left(recipe.out, results)
        return results


def _run(
    recipe: Recipe, say: Callable[[str], None], jobs: int | None, scheduler: str | None
) -> list[SpeciesResult]:
    """Run a recipe whose folder is locked."""
    tables, apart = _species_of_counts(recipe, say)
    hashes = _hashes(recipe)
    if apart:
        if recipe.community:
            raise ConfigError(
                "[community] needs complete checklists of all species; a table of counts by year does not say that "
                "a species was absent where another was counted. Leave [community] out."
            )
        check_folders(apart, OTHERWISE)
        say("ingest")
        found, failures = _import_each(recipe, apart, tables, hashes, say)
        del tables  # their texts
        return _all_species(recipe, found, failures, say, jobs, scheduler)
    # One folder of records for all species: checklists and zeros are the same for each.
    records = recipe.out / "records"
    say("ingest")
    ran = once(records, _ingest_key(recipe, hashes), partial(_ingest, recipe, records, recipe.files))
    say("  done" if ran else "  unchanged, kept")
    refused = read_manifest(records, "records")["results"].get(REFUSED, {})
    failures = [
        failed(name, recipe.out, "ingest", why["error"], next_move("ingest", why["near"], named=True))
        for name, why in refused.items()
    ]
    names = [name for name in _species(recipe, records, say) if name not in refused]
    if recipe.community:
        recipe = _with_community(recipe, records, say)
    if len(names) == 1 and not failures:
        return [run_species(recipe, names[0], records, recipe.out, say=say)]
    check_folders(names, OTHERWISE)
    return _all_species(recipe, {name: (name, records) for name in names}, failures, say, jobs, scheduler)


def _with_community(recipe: Recipe, records: Path, say: Callable[[str], None]) -> Recipe:
    """Fit all species together, and give the recipe's panels the scores of the sites, where there are any."""
    from fedmiss.community.run import build_community  # its solvers take a second to load

    settings, folder = recipe.community, recipe.out / "community"
    assert settings is not None
    say("community")
    table = hash_file(settings.site_table) if settings.site_table else None
    key = _manifest_key(records, asdict(settings) | {"site_table": table})
    try:
        ran = once(folder, key, partial(build_community, records, folder, settings))
    except (ConfigError, InputError) as error:
        raise type(error)(in_recipe(str(error), "community"), **error.fields) from None
    say("  done" if ran else "  unchanged, kept")
    if not read_manifest(folder, "community")["results"]["rank"]:
        say("  other species say nothing of the sites: no trend follows them")
        return recipe
    return replace(recipe, panel=replace(recipe.panel, community=str(folder)))


def _species_of_counts(recipe: Recipe, say: Callable[[str], None]) -> tuple[list[Source], list[str]]:
    """Read a recipe's tables of counts by year and return them with their species; none for any other recipe.

    The tables are read here, once. Each species gets records of its own: a site without a row of one species was perhaps
    not visited for it.
    """
    every = recipe.species == ("all",)
    named = recipe.ingest.species if every else recipe.species or recipe.ingest.species
    if not every and len(named) < 2:
        return [], []
    tables, held = count_tables(recipe.files, recipe.ingest)
    if not held or named:
        return tables, list(dict.fromkeys(named)) if held else []
    return tables, _with_enough(held, recipe.min_records, "rows", say)


def _hashes(recipe: Recipe) -> list[tuple[str, str, str]]:
    """Return what ingest reads: as what it is read, name and SHA-256 of each file."""
    polygon = recipe.ingest.filters.polygon
    given = {
        "files": recipe.files,
        "sampling": recipe.sampling,
        "unvetted": recipe.unvetted,
        "polygon": [Path(polygon)] if polygon else [],
    }
    return [
        (role, path.name, hash_file(path))
        for role, paths in given.items()
        for path in paths
        if path.is_file()
    ]


def _ingest_key(recipe: Recipe, hashes: list[tuple[str, str, str]]) -> str:
    filters = replace(recipe.ingest.filters, polygon=None)  # its content is among the files
    return hash_json([__version__, hashes, asdict(replace(recipe.ingest, filters=filters)), recipe.terms])


def _all_species(
    recipe: Recipe,
    found: dict[str, tuple[str, Path]],
    failures: list[SpeciesResult],
    say: Callable[[str], None],
    jobs: int | None,
    scheduler: str | None,
) -> list[SpeciesResult]:
    """Run several species and write their index; ``found``: the name of each in its records, and their folder."""
    # first: a fault of this table would be told when all species are fitted, and the page of all would be missing
    groups = read_groups(recipe.species_groups) if recipe.species_groups else {}
    _refuse_twice(found)
    one_by_one = _each(recipe, found, jobs, scheduler)
    results = []
    for result in chain(failures, one_by_one):
        results.append(result)
        say(result.line)
    results += _absent(recipe, groups, results)
    return with_index(results, recipe.out, groups, recipe.report.date)


def _refuse_twice(found: Mapping[str, tuple[str, Path]]) -> None:
    """Raise ConfigError where two names are one species, which would count twice in every indicator."""
    folders = {records for _, records in found.values()}
    held = {folder: read_manifest(folder, "records")["results"]["species"] for folder in folders}
    names: dict[str, str] = {}
    for name, (own, records) in found.items():
        try:
            entry = entry_of(held[records], own)
        except ConfigError:  # of several species: the step that uses the name says so
            continue
        species = entry["species"] if entry else own
        if (other := names.setdefault(species, name)) != name:
            raise ConfigError(
                f"{other!r} and {name!r} are one species, {species}, which would count twice in every indicator; leave one "
                "of the names out."
            )


def _absent(
    recipe: Recipe, groups: Mapping[str, Sequence[str]], results: Sequence[SpeciesResult]
) -> list[SpeciesResult]:
    """Return a failure for each species of the groups that the run does not have, or has two of."""
    if not recipe.species_groups:
        return []
    known = {fold(result.species): result.species for result in results}
    common: dict[str, list[str]] = {}
    for result in results:
        if result.page:
            found = read_manifest(result.page.parent)["results"]
            known[fold(found["species"])] = result.species
            if found.get("common_name"):
                common.setdefault(fold(found["common_name"]), []).append(found["species"])
    shared = {key: names for key, names in common.items() if len(set(names)) > 1 and key not in known}
    known = {key: names[0] for key, names in common.items()} | known
    return not_of_the_run(groups, recipe.species_groups.name, recipe.out, known, shared)


def _ingest(recipe: Recipe, records: Path, files: Sequence[Path | Source], *, overwrite: bool) -> None:
    """Ingest all species but those whose names are refused, which the manifest then lists with the reason.

    A name that is refused must not stop the others; a recipe of none but refused names has nothing to make.
    """
    settings, refused = recipe.ingest, {}
    while True:
        try:
            manifest = ingest(
                files,
                records,
                settings,
                sampling=recipe.sampling,
                unvetted=recipe.unvetted,
                cache=recipe.out / ".cache",
                overwrite=overwrite,
            )
            break
        except ConfigError as error:
            name = error.fields.get("species")
            if name not in settings.species or len(recipe.ingest.species) == 1:
                raise type(error)(in_recipe(str(error), "ingest"), **error.fields) from None
            # Ingest again without that name: the others need complete records.
            refused[name] = {"error": sentence(error, "ingest"), "near": list(error.fields.get("near", ()))}
            if len(settings.species) == 1:
                reasons = " ".join(f"{name}: {why['error']}" for name, why in refused.items())
                raise ConfigError(f"none of the species of the recipe can be ingested. {reasons}") from None
            settings = replace(settings, species=tuple(bird for bird in settings.species if bird != name))
    if refused:
        update_manifest(records, results=manifest["results"] | {REFUSED: refused})
    if recipe.terms:
        update_manifest(records, terms=manifest["terms"] | recipe.terms)


def _import_each(
    recipe: Recipe,
    names: list[str],
    tables: list[Source],
    hashes: list[tuple[str, str, str]],
    say: Callable[[str], None],
) -> tuple[dict[str, tuple[str, Path]], list[SpeciesResult]]:
    """Import every species of tables that were read before; return name and records of each, and those that failed."""
    found, failures, ran = {}, [], False
    for name in names:
        folder = recipe.out / slug(name)
        one = replace(recipe, species=(), ingest=replace(recipe.ingest, species=(name,)))
        records = folder / "records"
        try:
            refuse_link(folder)
            folder.mkdir(parents=True, exist_ok=True)
            ran |= once(records, _ingest_key(one, hashes), partial(_ingest, one, records, tables))
            # The name as the records write it, which may differ from the recipe's spelling.
            (own,) = _species(replace(one, ingest=replace(one.ingest, species=())), records, say)
            found[name] = (own, records)
        except Exception as error:
            failures.append(_failure(recipe, name, error, "ingest"))
    say("  done" if ran else "  unchanged, kept")
    return found, failures


def _failure(recipe: Recipe, name: str, error: Exception, step: str) -> SpeciesResult:
    """Turn the error of a species into its result, so that the others go on."""
    fields = error.fields if isinstance(error, FedmissError) else {}
    move = next_move(step, fields.get("near", ()), named="near" in fields)
    return failed(name, recipe.out, step, sentence(error, step), move)


def _one_of_many(recipe: Recipe, found: dict[str, tuple[str, Path]], name: str) -> SpeciesResult:
    """Run one species, whatever happens."""
    said = ["start"]
    species, records = found[name]
    try:
        done = run_species(recipe, species, records, recipe.out / slug(name), say=said.append)
        return replace(done, species=name)
    except Exception as error:
        return _failure(
            recipe, name, error, next(text for text in reversed(said) if not text.startswith(" "))
        )


def _each(
    recipe: Recipe, found: dict[str, tuple[str, Path]], jobs: int | None, scheduler: str | None
) -> Iterator[SpeciesResult]:
    """Run the species in processes here, or over a cluster; yield each when it is done."""
    if scheduler:
        # Workers have working folders of their own, so relative paths would point elsewhere.
        here = replace(recipe, out=recipe.out.resolve())
        there = {name: (own, records.resolve()) for name, (own, records) in found.items()}
        done = over_cluster(scheduler, partial(_one_of_many, here, there), list(found), here.out)
    else:
        done = over_processes(partial(_one_of_many, recipe, found), list(found), jobs)
    for name, result, error in done:
        yield result or lost(name, recipe.out, error, *([AGAIN] if scheduler else []))


def _species(recipe: Recipe, records: Path, say: Callable[[str], None]) -> list[str]:
    table = read_table(records / "records.parquet", "records", columns=["species"]).to_pandas()
    counts = {str(name): int(number) for name, number in table["species"].value_counts().items()}
    if recipe.species == ("all",):
        return _with_enough(counts, recipe.min_records, "records", say)
    for named in (recipe.species, (recipe.panel.species,), recipe.ingest.species):
        if any(named):
            return list(named)
    if len(counts) == 1:
        return list(counts)
    raise ConfigError(
        f'the records hold {len(counts)} species; name them in the recipe: species = ["..."], or species = "all".'
    )


def _with_enough(held: Mapping[str, int], least: int, what: str, say: Callable[[str], None]) -> list[str]:
    """Return the species with at least so many rows or records, the largest first: none is left alone at the end."""
    names = [name for name in sorted(held) if held[name] >= least]
    if not names:
        raise ConfigError(
            f"no species has {least} {what} (the most is {max(held.values(), default=0)}); lower min_records in the recipe."
        )
    if few := len(held) - len(names):
        say(f"{few} of {len(held)} species have fewer than {least} {what} (min_records) and are left out")
    return sorted(names, key=lambda name: -held[name])


def run_species(
    recipe: Recipe,
    species: str,
    records: Path,
    folder: Path,
    *,
    say: Callable[[str], None] = lambda text: None,
) -> SpeciesResult:
    """Panel, fit, impute and report of one species."""
    refuse_link(folder)
    folder.mkdir(parents=True, exist_ok=True)
    clear_inside(folder)
    panel, fit, imputed, report = (folder / name for name in STEPS)
    panel_settings = replace(recipe.panel, species=species)
    redone = []

    def step(name: str, where: Path, key: str, make: Callable[..., object]) -> None:
        say(name)
        if once(where, key, make):
            redone.append(name)
            say("  done")
        else:
            say("  unchanged, kept")

    table = panel_settings.site_table
    others = panel_settings.community
    about = {
        "site_table": hash_file(table) if table else None,
        "community": identity(others) if others else None,
    }
    key = _manifest_key(records, asdict(panel_settings) | about)
    step("panel", panel, key, partial(make_panel, records, panel, panel_settings))
    key = _manifest_key(panel, asdict(recipe.fit))  # type: ignore[call-overload]
    step("fit", fit, key, partial(fit_panel, panel, fit, recipe.fit))
    step("impute", imputed, _manifest_key(fit, None), partial(impute_panel, panel, fit, imputed))
    # By content, not by place: a recipe may be run from another folder.
    shown = {str(path): hash_file(path) for path in _of_page(recipe.report)}
    settings = {name: shown.get(value, value) for name, value in asdict(recipe.report).items()}
    key = hash_json([_manifest_key(fit, settings), identity(imputed)])
    step("report", report, key, partial(build_report, panel, fit, imputed, report, recipe.report))
    return SpeciesResult(species, folder, report / "index.html", redone=tuple(redone))
