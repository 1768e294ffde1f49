"""What the commands say at the end, and what ``inspect`` says of a folder: plain sentences."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer
from typer import Argument, Option

from fedmiss.cli.options import refuse_typed
from fedmiss.errors import InputError, several
from fedmiss.files import MANIFEST, Manifest, read_manifest
from fedmiss.folders import FitFacts, ImputedFacts, PanelFacts


def say_written(folder: Path, *made_from: Path) -> None:
    """Tell what was written, where, and what was noticed in this step; notes of the steps before it were said there."""
    manifest = read_manifest(folder)
    # A step hands the warnings of its inputs on: only the new ones are news.
    said = {warning for folder in made_from for warning in read_manifest(folder)["warnings"]}
    typer.echo(f"Wrote {folder}: {_summary(manifest, folder)}")
    for warning in manifest["warnings"]:
        if warning not in said:
            typer.echo(f"  note: {warning}")


def _span(facts: PanelFacts) -> str:
    """Return the length of the panel, in years where its counts are yearly."""
    first, last = facts.first_month, facts.last_month
    if facts.period == "year":
        return f"{several(facts.n_months, 'year')} ({first[:4]} to {last[:4]})"
    return f"{several(facts.n_months, 'month')} ({first} to {last})"


def _n(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:,.4g}"


def _summary(manifest: Manifest, where: Path) -> str:
    results, kind = manifest["results"], manifest["kind"]
    if kind == "panel":
        facts = PanelFacts.of(results, where)
        n = facts.n_observers  # 0 where the records name none
        by = f"by {several(n, 'observer')} " if n else ""
        return (
            f"{facts.species}, {several(facts.n_visits, 'visit')} ({_n(facts.n_counted)} with a count, "
            f"{several(facts.n_zeros, 'zero')}) {by}in {several(len(facts.groups), 'group')}, "
            f"at {several(facts.n_sites, 'site')} in {_span(facts)}; "
            f"cells with a count: {_n(facts.n_cells_observed)} of {_n(facts.n_sites * facts.n_months)}."
        )
    if kind == "records":
        listed = sorted(results["species"], key=lambda s: -s["records"])
        shown = ", ".join(
            f"{species['common_name'] or species['species']} ({_n(species['records'])})"
            for species in listed[:12]
        )
        more = f" and {len(listed) - 12} more" if len(listed) > 12 else ""
        return (
            f"{several(results['n_records'], 'record')} on {several(results['n_checklists'], 'checklist')}, "
            f"{_n(results['n_zero_ok'])} of which may give zeros; {len(listed)} species: {shown or 'none'}{more}."
        )
    if kind == "fit":
        fitted = FitFacts.of(results, where)
        how = "chosen by cross-validation" if fitted.cv_summary else "as asked for"
        others = " and ".join(str(member["rank"]) for member in fitted.members[1:])
        how += f"; averaged with rank {others}" if others else ""
        text = (
            f"{fitted.species}, {fitted.model} of rank {fitted.rank} ({how}) on {several(fitted.n_counted, 'count')} of "
            f"{several(fitted.n_groups, 'group')}; "
            + ("converged" if fitted.converged else f"NOT converged ({fitted.stop_reason})")
            + f" after {several(fitted.rounds, 'round')}."
        )
        return text + (f" {fitted.advice}" if fitted.advice else "")
    if kind == "imputed":
        imputed = ImputedFacts.of(results, where)
        return (
            f"{imputed.species}, {several(imputed.cells, 'cell')}, {_n(imputed.observed_cells)} of them observed; "
            f"{100 * imputed.imputed_share:.0f} % of the total is imputed. Standard effort: {imputed.standard_effort}."
        )
    if kind == "method":
        arrays = [
            f"{name} ({' x '.join(map(str, n)) or 'a number'})" for name, n in results["arrays"].items()
        ]
        without = [f"{name} in {n}" for name, n in results["rounds_without"].items()]
        return "; ".join(
            [
                f"{several(results['exchanges'], 'exchange')} of the method {manifest['settings']['method']['run']}",
                *([f"rounds went on without {', '.join(without)}"] if without else []),
                f"arrays.npz holds {', '.join(arrays) or 'nothing'}, result.json what else it returned.",
            ]
        )
    words = [
        f"{key.replace('_', ' ')} {value if isinstance(value, str) or key in ('from_year', 'to_year') else _n(value)}"
        for key, value in results.items()
        if isinstance(value, int | float | str) and not isinstance(value, bool)
    ]
    return "; ".join(words) + "." if words else kind


def inspect(
    context: typer.Context,
    path: Path = Argument(help="A folder or parquet file made by fedmiss."),
    messages: bool = Option(
        False, "--messages", help="For a fit: content of each kind of message between groups and hub."
    ),
    json: bool = Option(False, "--json", help="Print a folder's manifest as JSON."),
) -> None:
    """Describe in words what a file or folder made by fedmiss holds."""
    if json:
        refuse_typed(context, ("messages",), "--json prints the manifest")
        import json as to_json

        typer.echo(to_json.dumps(read_manifest(path), indent=2, ensure_ascii=False))
        return
    typer.echo(_messages(path) if messages else _describe(path))


def _describe(path: Path) -> str:
    """Describe a produced folder or table."""
    if path.is_dir():
        return _describe_folder(path)
    if not path.exists():
        raise InputError(f"there is no file or folder {path}. Check its name and place.")
    if path.suffix != ".parquet":
        raise InputError(
            f"{path} is neither a folder nor a .parquet table, which inspect describes. Name the folder that it lies in."
        )
    return _describe_table(path)


def _describe_folder(path: Path) -> str:
    if not (path / MANIFEST).exists() and (path / "visits.parquet").exists():
        table = _describe_table(path / "visits.parquet")
        return f"{path}: the visits and observed cells of one group.\n{table}"
    if not (path / MANIFEST).exists():
        return _describe_other(path)
    manifest = read_manifest(path)
    lines = [f"{path}: {manifest['kind']}, made by fedmiss {manifest['fedmiss']}.", _summary(manifest, path)]
    if chosen := _settings(manifest["settings"]):
        lines.append("Settings: " + ", ".join(chosen))
    if manifest["flow"]:
        lines.append("Rows on the way here:")
        lines += [
            f"  {row['rows']:>14,}  {row['step']}" + (f" ({row['note']})" if row.get("note") else "")
            for row in manifest["flow"]
        ]
    for key, value in manifest["terms"].items():
        if value:
            lines.append(f"{key.capitalize()}: {value}")
    if "ledger" in manifest["results"]:
        lines += _ledger(manifest["results"]["ledger"])
    lines += [f"Note: {warning}" for warning in manifest["warnings"]]
    files = sorted(file for file in path.rglob("*") if file.is_file())
    lines.append(f"{several(len(files), 'file')}, {sum(file.stat().st_size for file in files):,} bytes.")
    return "\n".join(lines)


def _ledger(ledger: dict[str, Any]) -> list[str]:
    """What crossed between groups and hub, by stage."""
    lines = ["Messages between groups and hub, as counted on their bytes:"]
    for name, line in [*ledger["stages"].items(), ("in all", ledger)]:
        lines.append(
            f"  {name:<18} {line['exchanges']:>7,} exchanges {line['bytes_up']:>14,} bytes up "
            f"{line['bytes_down']:>14,} bytes down"
        )
    return lines


def _messages(path: Path) -> str:
    """Say in words what each kind of message of a fit held."""
    from fedmiss.federation.words import describe_kinds

    manifest = read_manifest(path, "fit")
    ledger = manifest["results"].get("ledger")
    if ledger is None:
        raise InputError(
            f"{path} has no ledger of questions and answers: it was made by --method {manifest['results']['method']}."
        )
    return "\n".join([*_ledger(ledger), "", *describe_kinds(ledger["messages"])])


def _settings(settings: dict[str, Any]) -> list[str]:
    """Settings that say something, one level deep."""
    out = []
    for key, value in settings.items():
        if isinstance(value, dict):
            out += _settings(value)
        elif value not in ("", None, False, [], [None, None]):
            out.append(f"{key}={value}")
    return out


def _describe_other(path: Path) -> str:
    """Describe a folder without a manifest: results of a recipe, unfinished work, or tables."""
    if path.name.endswith(".partial") and (path / "key.json").exists():
        done = len(list(path.glob("draws-*.npz")))
        name = path.name.removesuffix(".partial")
        parts = f"{done} parts of its bootstrap are done"
        return f"{path}: an unfinished fit ({parts}); the same `fedmiss fit --out {name}` goes on."
    folders = sorted(file.parent for file in path.glob(f"*/{MANIFEST}"))
    tables = sorted(path.glob("*.parquet"))
    if not folders and not tables:
        read_manifest(path)  # raises the error that says what is wrong
    lines = [f"{path}: {len(folders)} folders and {len(tables)} tables."]
    lines += [
        f"  {folder.name}: {manifest['kind']}. {_summary(manifest, folder)}"
        for folder in folders
        for manifest in [read_manifest(folder)]
    ]
    return "\n".join([*lines, *(_describe_table(table).split("\n")[0] for table in tables)])


def _describe_table(path: Path) -> str:
    import pyarrow as pa
    import pyarrow.parquet as pq

    from fedmiss.tables import load_schema, unreadable

    try:
        file = pq.ParquetFile(path)
    except (pa.ArrowInvalid, OSError) as error:
        raise unreadable(path, error) from None
    tag = (file.schema_arrow.metadata or {}).get(b"fedmiss_schema", b"").decode()
    lines = [
        f"{path}: {several(file.metadata.num_rows, 'row')}"
        + (f", schema {tag}." if tag else ", no fedmiss schema.")
    ]
    meaning = {}
    if tag:
        schema = load_schema(tag.split(".")[0])
        lines.append(schema.description)
        meaning = {
            column["name"]: f"{column['description']}" + (f" [{column['unit']}]" if column["unit"] else "")
            for column in schema.columns
        }
    lines += [
        f"  {field.name:<18} {field.type!s:<10} {meaning.get(field.name, '')}" for field in file.schema_arrow
    ]
    return "\n".join(lines)
