"""What a run says of a species that failed: the step, the sentence, and the next move, in the words of recipes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from fedmiss.community.settings import CommunitySettings
from fedmiss.errors import ConfigError, InputError, fold, in_words, listed
from fedmiss.etl.columns import near_names
from fedmiss.etl.settings import PanelSettings
from fedmiss.files import MANIFEST, read_manifest
from fedmiss.pipeline.recipe import ingest_options, slug
from fedmiss.pipeline.settings import FitSettings
from fedmiss.progress import note
from fedmiss.report.many import build_index
from fedmiss.report.settings import ReportSettings
from fedmiss.settings import names

OWN = ("out", "jobs", "scheduler")  # options that ``fedmiss run`` has itself
# values that sentences name behind an option
_VALUES = r"auto|all|frame|file|join|apart|sum|max|mean|day|year|fast|saem|fedmissem|smooth|fixed|negbin|bernoulli|\d+"
AGAIN = "run the same command again; what is finished is kept."


@dataclass(frozen=True, slots=True)
class SpeciesResult:
    """What became of one species: the page, or the step that failed, the reason, and the next move."""

    species: str
    folder: Path
    page: Path | None
    error: str = ""
    redone: tuple[str, ...] = ()
    index: Path | None = None  # the page of all species of the run
    step: str = ""  # that failed
    next: str = ""

    @property
    def line(self) -> str:
        """What became of the species, in the line that a run prints when it is done."""
        return f"{self.species}: " + (f"failed at {self.step}" if self.error else f"{self.page}")

    @property
    def failure(self) -> str:
        """What failed, why, and what to do, in one paragraph; blank where nothing did."""
        return f"Failed at {self.step}: {self.error} Next: {self.next}" if self.error else ""


def check_folders(names: Iterable[str], otherwise: str) -> None:
    """Raise ConfigError where two names would have one folder; ``otherwise`` is what the user can do about it."""
    folders: dict[str, str] = {}
    for name in names:
        if (other := folders.setdefault(slug(name), name)) != name:
            raise ConfigError(
                f"{other!r} and {name!r} would have one folder, {slug(name)}: a folder has the letters a to z and digits of "
                f"the name. Name one of them otherwise{otherwise}."
            )


def failed(name: str, out: Path, step: str, error: str, move: str) -> SpeciesResult:
    """Return the result of a species of a run into ``out`` that failed at ``step``; ``move`` is what the user can do.

    What cannot be written says itself what to do, and is no fault of the species.
    """
    move = AGAIN if "cannot write " in error else move
    return SpeciesResult(name, out / slug(name), None, error, step=step, next=move)


def lost(name: str, out: Path, error: str, move: str = f"add --jobs 1 and {AGAIN}") -> SpeciesResult:
    """Return the result of a species whose process ended with this error, at a step that nobody knows."""
    return failed(name, out, "a step unknown", error, move)


def not_of_the_run(
    groups: Mapping[str, Sequence[str]],
    table: str,
    out: Path,
    known: Mapping[str, str],
    shared: Mapping[str, Sequence[str]],
) -> list[SpeciesResult]:
    """Return a failure for each name of a table of groups that several species share, or that no species has.

    ``known``: folded name -> the name shown; ``shared``: folded common name -> its species, several.
    """
    pool = {name: species[0] for name, species in shared.items()} | dict(known)
    found = []
    for name in dict.fromkeys(name for members in groups.values() for name in members):
        key = fold(name)
        if key in shared:
            error = (
                f"{table} names {name!r}, which is the common name of {', '.join(sorted(set(shared[key])))}; it stands for "
                "none of them."
            )
            move = f"write the scientific names in {table}"
        elif key not in known:
            error = f"{table} names this species, and the run has none of that name."
            near = " or ".join(dict.fromkeys(near_names(key, pool)))
            move = (
                f"write {near} if that is meant, or take the name" if near else "correct the name, or take it"
            )
            move += f" out in {table}"
        else:
            continue
        found.append(failed(name, out, "groups", error, f"{move}, and {AGAIN}"))
    return found


def with_index(
    results: Iterable[SpeciesResult], out: Path, groups: Mapping[str, Sequence[str]], date: str | None
) -> list[SpeciesResult]:
    """Write the page of all species; return their results by name, with the page in each."""
    ordered = sorted(results, key=lambda r: r.species)
    pages = [result.page.parent for result in ordered if result.page]
    failures = {result.species: result.failure for result in ordered if result.error}
    index = build_index(pages, out, failures=failures, groups=groups, date=date)
    return [replace(result, index=index) for result in ordered]


def _is_page(folder: Path) -> bool:
    """Whether a folder is a page that fedmiss made, perhaps an older version, or one that was changed since."""
    if not (folder / MANIFEST).exists():
        return False
    try:
        return read_manifest(folder)["kind"] in ("report", "trim", "report-index")
    except InputError:
        return True


def say_left(out: Path, results: Iterable[SpeciesResult]) -> None:
    """Name the pages in ``out`` that an earlier run made and this one did not: their numbers may be of other data."""
    mine = {page for result in results for page in (result.page, result.index)}
    pages = (
        page
        for each in ("", "report/", "*/", "*/report/")
        for page in out.glob(f"{each}index.html")
        if page not in mine
    )
    left = [page.relative_to(out).as_posix() for page in sorted(pages) if _is_page(page.parent)]
    if left:
        note(
            f"{len(left)} {'page' if len(left) == 1 else 'pages'} in {out} from an earlier run, which this run has not made "
            f"again: {listed(left, 5)}; remove what nobody needs."
        )


def in_recipe(text: str, step: str = "") -> str:
    """Say options of single steps as settings of the recipe, those of ``step`` first: ``run`` does not have them."""
    tables = {
        "ingest": ingest_options(),
        "community": names(CommunitySettings),
        "panel": names(PanelSettings),
        "fit": names(FitSettings),
        "report": names(ReportSettings),
    }
    # Two steps may have a setting of one name: that of the step that failed is meant.
    order = sorted(tables, key=lambda name: name != step)

    def setting(match: re.Match[str]) -> str:
        option = match[1]
        key = option.replace("-", "_")
        if option in OWN:
            return match[0]
        if option == "overwrite":
            return "fedmiss"
        for table in order:
            if key in tables[table]:
                quote = "" if (match[2] or "").isdigit() else '"'
                value = f" = {quote}{match[2]}{quote}" if match[2] else ""
                return f"{key}{value} in [{table}]"
            # --no-average of the command line is average = false in a recipe.
            if key.removeprefix("no_") in tables[table]:
                return f"{key.removeprefix('no_')} = false in [{table}]"
        return match[0]

    return re.sub(rf"--([a-z][a-z-]*[a-z])(?: ({_VALUES})(?![\w-]))?", setting, text)


def sentence(error: BaseException, step: str = "") -> str:
    """Return what went wrong at ``step``, in one paragraph."""
    text = in_words(error)
    if not text and isinstance(error, OSError):
        text = f"{error.filename or 'a file'} cannot be read or written: {error.strerror or error}."
    return in_recipe(text or f"unexpected {type(error).__name__}: {error}", step)


def next_move(step: str, near: Sequence[str] = (), *, named: bool = False) -> str:
    """Return what the user can do about a species that failed at ``step``.

    ``near``: names like the one asked for; ``named``: whether the name itself was refused.
    """
    if near:
        return f"write {' or '.join(near)} in the recipe, and {AGAIN}"
    if named:
        return (
            "correct the name, or leave the species out; a table of counts in which it was looked for and not found needs "
            f"rows of it with 0; then {AGAIN}"
        )
    if step in ("panel", "fit"):
        return f"do what the sentence says in [{step}] of the recipe, or leave the species out; then {AGAIN}"
    return f"remove the cause and {AGAIN}"
