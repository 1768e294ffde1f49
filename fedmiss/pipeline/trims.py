"""TRIM's models for every species of one table: results, files and pages of each, and the tables of all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path

import polars as pl

from fedmiss.atomic import hash_json
from fedmiss.errors import ConfigError, FedmissError, InputError, fold, several
from fedmiss.etl.count_table import CountOptions, CountTable
from fedmiss.etl.counts import SplitCounts, read_counts, split_counts
from fedmiss.etl.rows import LINE, read_texts
from fedmiss.etl.species import read_groups
from fedmiss.files import atomic_folder, read_manifest, refuse_link, write_manifest
from fedmiss.locks import clear_inside, locked
from fedmiss.pipeline.failures import (
    AGAIN,
    SpeciesResult,
    check_folders,
    failed,
    lost,
    not_of_the_run,
    say_left,
    sentence,
    with_index,
)
from fedmiss.pipeline.parallel import over_processes
from fedmiss.pipeline.recipe import slug
from fedmiss.pipeline.steps import step
from fedmiss.report.species import headline, log_covariance, write_page
from fedmiss.report.trim import TrimFit, TrimSettings, fit_trim
from fedmiss.report.trim.cells import CHECK
from fedmiss.report.trim.files import Shown, write_trim
from fedmiss.settings import kinds_checked
from fedmiss.version import __version__

HELD = 4  # raise it when what the folder of a species holds changes
LEAST = 3  # years with counts: a slope through two has no error
_MOVES = {
    "read": "correct these rows of the table",
    "fit": "give the species more counts, or take its rows out of the table",
    "file": "remove the cause",
    "option": "change the option, or take the rows of the species out of the table",
}


@kinds_checked
@dataclass(frozen=True, slots=True)
class Trims:
    """What every species of a table is fitted and shown with.

    ``options`` of reading, ``settings`` of the model, ``shown``: rule of classes, base of indices and level of intervals;
    ``covariates`` of the model, also strata of the results; ``weights``: whether a column of them is used.

    Examples
    --------
    >>> import fedmiss
    >>> fedmiss.pipeline.Trims(covariates=("region",)).covariates
    ('region',)
    """

    options: CountOptions = field(default_factory=CountOptions)
    settings: TrimSettings = field(default_factory=TrimSettings)
    shown: Shown = field(default_factory=Shown)
    covariates: tuple[str, ...] = ()
    weights: bool = True


def fit_table(read: CountTable, plan: Trims) -> tuple[TrimFit, list[str]]:
    """Fit TRIM's model to a table of one species; return it, and what was found and decided.

    Raises
    ------
    ConfigError : a covariate that the table does not have
    InputError : a site without its category, counts that do not determine the model
    """
    frame, said = read.frame, list(read.said)
    for name in plan.covariates:
        if name not in read.covariates:
            raise ConfigError(
                f"--covariate {name!r}: the table's covariates are {', '.join(read.covariates)}; name one of them."
                if read.covariates
                else f"--covariate {name!r}: the table has no column of that name, nor any other that is a covariate; add "
                "one with the category of each site, or leave --covariate out."
            )
        blank = frame.filter(frame[name].is_null())
        if blank.height:
            raise InputError(
                f"{read.source.place(blank['line'][0], name)}: the covariate is blank at site {blank['site'][0]!r} "
                f"(rows: {blank.height}); give every row of a site its category, or leave the site out."
            )
    weight = frame["weight"].to_numpy() if plan.weights and "weight" in frame.columns else None
    if weight is not None:
        said.append("the weights count in the totals; --no-weights leaves them out.")
    fit = fit_trim(
        frame["site"].to_list(),
        frame["year"].to_numpy(),
        frame["count"].to_numpy(),
        plan.settings,
        month=frame["month"].to_numpy() if "month" in frame.columns else None,
        weights=weight,
        covariates={name: frame[name].to_list() for name in plan.covariates},
    )
    return fit, said


@kinds_checked
def run_trims(
    path: str | Path,
    out: str | Path,
    plan: Trims | None = None,
    *,
    groups: str | Path | None = None,
    jobs: int | None = None,
    date: str | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> list[SpeciesResult]:
    r"""Fit every species of a table, each by itself, and write a folder of each and the page of all into ``out``.

    A species that fails stops no other; its result says at which step, why, and what to do. Where the model with
    covariates cannot be fitted to a species, it is fitted without them, and its trends by stratum are missing. A second run
    fits only the species whose rows or settings have changed.

    Parameters
    ----------
    path : table of site, species, year[, month], count[, weight][, covariates]
    groups : table of species and groups; each group gets an indicator, and a species of it without counts is named
    jobs : processes, by default one per core; the files are the same for any number

    Raises
    ------
    InputError, ConfigError : a table that cannot be read at all, or names no species

    Examples
    --------
    >>> import fedmiss
    >>> from pathlib import Path
    >>> lines = [f"{s};{b};{y};{3 + s + y % 3}" for s in range(4) for b in ("wren", "robin") for y in range(2001, 2007)]
    >>> n = Path("counts.csv").write_text("\n".join(["site;species;year;count", *lines]))
    >>> [r.species for r in fedmiss.pipeline.run_trims("counts.csv", "trends", jobs=1)]
    ['robin', 'wren']
    """
    plan, path, out = plan or Trims(), Path(path), Path(out)
    refuse_link(out)
    table = split_counts(path, plan.options)
    grouped = read_groups(groups) if groups else {}
    for line in table.source.said:
        say(f"note: {line}")
    if table.unnamed:
        say(f"note: no species is named: {several(table.unnamed, 'row')} left out.")
    results = not_of_the_run(grouped, str(groups), out, table.names, table.shared)
    check_folders(table.parts, " in the table")
    out.parent.mkdir(parents=True, exist_ok=True)
    with locked(out):
        clear_inside(out)
        out.mkdir(exist_ok=True)
        work = partial(_one, inputs={path.resolve(): table.source.hash()}, table=table, out=out, plan=plan)
        for name, result, error in over_processes(work, list(table.parts), jobs):
            done = result or lost(name, out, error)
            say(done.line)
            notes = read_manifest(done.folder, "trim")["warnings"] if done.page else []
            for line in notes:
                if line.startswith(CHECK):  # the class may rest on it: no other note is worth the screen
                    say(f"note: {name}: {line}")
            results.append(done)
        shown = {
            key: [table.names.get(folded, name) for name in names if (folded := fold(name))]
            for key, names in grouped.items()
        }
        results = with_index(results, out, shown, date)
        say_left(out, results)
        return results


def _one(name: str, inputs: dict[Path, str], table: SplitCounts, out: Path, plan: Trims) -> SpeciesResult:
    """Read, fit and write one species; an error becomes its result."""
    folder, at = out / slug(name), "read"
    try:
        read = read_counts(table.parts[name], plan.options)
        at = "fit"
        years = read.frame.filter(pl.col("count").is_not_null())["year"].n_unique()
        if years < LEAST:
            raise InputError(
                f"counts in {years} {'year' if years == 1 else 'years'} only; a trend with a standard error needs {LEAST}."
            )
        rows = read_texts(table.parts[name])
        settings = {"options": asdict(plan.options), "model": asdict(plan.settings), "weights": plan.weights}
        shown = {**plan.shown._asdict(), "covariates": list(plan.covariates)}
        # Rows of the species' own part of the table, wherever they stand, and what is said of them: other species' rows
        # change nothing here, unless a sentence names a line.
        own = rows.drop(LINE).hash_rows(seed=1).to_list()
        key = hash_json([__version__, HELD, name, settings, shown, table.source.header, read.said, own])
        make = partial(_write, read, name, folder, inputs, plan)
        ran = step(folder, key, make)
        return SpeciesResult(name, folder, folder / "index.html", redone=("fit",) if ran else ())
    except Exception as error:
        why = sentence(error) if not isinstance(error, FedmissError) else str(error)
        kind = "file" if isinstance(error, OSError) else "option" if isinstance(error, ConfigError) else at
        move = _MOVES[kind]
        return failed(name, out, at, why, f"{move}, and {AGAIN}")


def _write(
    read: CountTable, name: str, folder: Path, inputs: dict[Path, str], plan: Trims, *, overwrite: bool
) -> None:
    notes = []
    try:
        fit, said = fit_table(read, plan)
    # A stratum without counts may be what failed: the whole is then still worth having.
    except InputError as error:
        if not plan.covariates:
            raise
        fit, said = fit_table(read, replace(plan, covariates=()))
        notes = [f"trends by {', '.join(plan.covariates)} are missing: {error}"]
    seen, filled = fit.cells.seen, fit.filled * fit.cells.weights
    results = {
        "headline": headline(fit, plan.shown),
        "species": name,
        "common_name": read.common_name,
        "rule": plan.shown.rule,
        "n_counted": int(seen.sum()),
        "share_observed": float(seen.mean()),
        "share_imputed_total": float(filled[~seen].sum() / filled.sum()),
        "log_covariance": log_covariance(fit),
    }
    warnings = [*said, *fit.notes, *notes]
    with atomic_folder(folder, "trim", overwrite=overwrite, inputs=list(inputs)) as new:
        write_trim(fit, new, slug(name), plan.shown)
        write_page(fit, new, name, plan.shown, warnings)
        write_manifest(
            new,
            "trim",
            settings={**asdict(plan.settings), **plan.shown._asdict()},
            inputs={path.name: digest for path, digest in inputs.items()},
            results=results,
            warnings=warnings,
        )
