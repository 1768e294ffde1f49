"""``fedmiss trim``: TRIM's own models on a table of counts."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from typer import Argument, Option

from fedmiss.cli.options import refuse_typed
from fedmiss.cli.steps import conclude
from fedmiss.errors import ConfigError

if TYPE_CHECKING:
    from fedmiss.etl.count_table import CountTable
    from fedmiss.pipeline.trims import Trims
    from fedmiss.report.trim import TrimFit
    from fedmiss.report.trim.files import Shown

InTable = partial(Option, rich_help_panel="The table")
OfMany = partial(Option, rich_help_panel="All species of a table")

# A TRIM command file says all this itself.
_OF_TABLES = (
    "model", "changepoints", "stepwise", "overdispersion", "serial", "covariate", "weights", "months", "columns", "species",
    "repeats", "spellings", "wide", "missing", "sheet", "header_row",
)  # fmt: skip


def trim(
    context: typer.Context,
    table: Path = Argument(
        help="site, year[, month], count[, weight][, covariates] as CSV, .xlsx, .ods or parquet; or a TRIM .tcf file."
    ),
    model: int = Option(3, help="1: no change, 2: slopes, 3: one effect for each year.", min=1, max=3),
    changepoints: str | None = Option(
        None, help="Model 2: auto (stepwise from all), all, or years as 1990,2000.", show_default="one slope"
    ),
    stepwise: bool = Option(False, "--stepwise", help="Model 2: remove weak change points step by step."),
    overdispersion: bool = Option(
        False,
        "--overdispersion/--no-overdispersion",
        help="Scale errors by Pearson's chi-square over its df.",
    ),
    serial: bool = Option(False, "--serial", help="Correlation of a site's counts in neighbouring years."),
    covariate: list[str] | None = Option(
        None,
        help="Column of site categories; repeat for more. Gives totals for each too.",
        show_default=False,
    ),
    weights: bool = Option(
        True,
        "--weights/--no-weights",
        help="Use the weight column in the totals.",
        show_default="if there is one",
    ),
    months: bool = Option(
        True,
        "--months/--no-months",
        help="Use the month column; without it the counts of a year are combined by --repeats.",
        show_default="if there is one",
    ),
    base: int | None = Option(None, help="Base year of the index.", show_default="the first"),
    level: float | None = Option(
        None,
        help="Confidence level of intervals of totals and indices, as 0.95.",
        show_default="no intervals",
    ),
    rule: str = Option("rtrim", help="Rule of the trend class: rtrim, trim (3.61) or pecbms."),
    columns: str | None = InTable(
        None, help="Columns that are not found by name, as site=plot,count=n.", show_default=False
    ),
    species: str = InTable(
        "", help="The species to read, where the table names several.", show_default=False
    ),
    repeats: str = InTable("refuse", help="Several counts of a cell: refuse, sum, max or mean."),
    spellings: str = InTable(
        "refuse", help="Sites written in two ways (case, blanks, 01): refuse, join or apart."
    ),
    wide: bool = InTable(False, "--wide", help="One column for each year."),
    missing: list[str] | None = InTable(
        None, help="One more code for a missing count, as 999.", show_default=False
    ),
    sheet: str = InTable("", help="Sheet of a workbook that has several.", show_default=False),
    header_row: int | None = InTable(
        None, help="Row or line in which the column names stand.", min=1, show_default="found"
    ),
    out: Path | None = Option(
        None, "--out", "-o", help="Folder for TRIM's .out and .ocv, and CSV tables.", show_default=False
    ),
    json: bool = Option(False, "--json", help="Print everything as JSON."),
    overwrite: bool = Option(False, "--overwrite", help="Replace the folder --out."),
    all_species: bool = OfMany(
        False,
        "--all-species",
        help="Fit every species of the table by itself into --out, with the tables of all; run again to go on.",
    ),
    species_groups: Path | None = OfMany(
        None, help="Table of species and group (habitat); each group gets an indicator.", show_default=False
    ),
    jobs: int | None = OfMany(None, help="Species at a time.", min=1, show_default="one per core"),
    date: str | None = OfMany(None, help="Date on the page of all species.", show_default="today"),
) -> None:
    """Fit TRIM's models 1, 2 or 3: totals, indices, slopes and tests; no low rank, no federation."""
    import json as to_json

    from fedmiss.files import hash_file
    from fedmiss.report.trim.files import Shown, as_json, describe

    shown = Shown(rule, base, level)
    if out is None:
        refuse_typed(context, ("overwrite",), "without --out no folder is written")
    if not all_species:
        refuse_typed(context, ("species_groups", "jobs", "date"), "they are of --all-species")
    if table.suffix.lower() == ".tcf":
        refuse_typed(context, _OF_TABLES, f"{table.name} says how its table is read and fitted")
        from fedmiss.report.trim import fit_trim
        from fedmiss.report.trim.command import read_tcf

        command = read_tcf(table)
        shown = shown._replace(windows=command.windows)
        digest = hash_file(table)
        fit, said = fit_trim(**command.arguments), [f"settings and table come from {table.name}."]
    else:
        from fedmiss.etl.count_table import CountOptions
        from fedmiss.etl.filters import parse_map
        from fedmiss.pipeline.trims import Trims, fit_table, run_trims
        from fedmiss.report.trim import TrimSettings

        named, gaps = parse_map(columns), tuple(missing or ())
        options = CountOptions(named, gaps, repeats, wide, spellings, months, species, sheet, header_row)
        settings = TrimSettings(model, _points(changepoints), stepwise, overdispersion, serial)
        plan = Trims(options, settings, shown, tuple(covariate or ()), weights)
        if all_species:
            refuse_typed(
                context,
                ("species", "json", "overwrite"),
                "--all-species writes all into --out, and goes on where it was",
            )
            if out is None:
                raise ConfigError("--all-species needs a folder for the results: add --out trends.")
            conclude(run_trims(table, out, plan, groups=species_groups, jobs=jobs, date=date, say=typer.echo))
            return
        read = _read(table, plan)
        fit, said = fit_table(read, plan)
        digest = read.source.hash()
    for line in (*said, *fit.notes):
        typer.echo(f"note: {line}", err=True)
    if out is not None:
        _write(fit, out, table, digest, shown, [*said, *fit.notes], overwrite=overwrite)
    if json:
        typer.echo(to_json.dumps(as_json(fit, shown), indent=2))
    else:
        typer.echo(describe(fit, shown))
        if out is not None:
            typer.echo(
                f"Wrote {out}: TRIM's {table.stem}.out and {table.stem}.ocv, totals, parameters and imputed counts as CSV."
            )


def _write(
    fit: TrimFit, out: Path, table: Path, digest: str, shown: Shown, said: list[str], *, overwrite: bool
) -> None:
    from fedmiss.files import atomic_folder, write_manifest
    from fedmiss.report.trim.files import as_json, write_trim

    with atomic_folder(out, "trim", overwrite=overwrite, inputs=[table]) as folder:
        write_trim(fit, folder, table.stem, shown)
        write_manifest(
            folder,
            "trim",
            settings={"model": fit.settings.model, **shown._asdict()},
            inputs={table.name: digest},
            results={key: value for key, value in as_json(fit, shown).items() if key != "strata"},
            warnings=said,
        )


def _points(text: str | None) -> str | tuple[int, ...]:
    if text is None or text in ("auto", "all"):
        return text or ()
    try:
        return tuple(int(point) for point in text.split(","))
    except ValueError:
        raise ConfigError(f"--changepoints is {text!r}; give auto, all, or years as 1990,2000.") from None


def _read(path: Path, plan: Trims) -> CountTable:
    from fedmiss.etl.counts import read_counts

    read = read_counts(path, plan.options)
    for flag, idle, why in (
        ("--no-weights", not plan.weights and "weight" not in read.columns, "there is no column of weights"),
        ("--species", plan.options.species and not read.species, "no column names a species"),
    ):
        if idle:
            raise ConfigError(f"{flag} does nothing here: {path}: {why}. Leave {flag} out.")
    return read
