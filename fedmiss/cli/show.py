"""What the commands say at the end, and what ``inspect`` says of a folder: plain sentences."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from fedmiss.errors import InputError
from fedmiss.files import MANIFEST, Manifest, read_manifest
from fedmiss.folders import FitFacts, ImputedFacts, PanelFacts

__all__ = ["describe", "say_written"]


def say_written(folder: Path, *made_from: Path) -> None:
    """Tell what was written, where, and what was noticed in this step; notes of the steps before it were said there."""
    manifest = read_manifest(folder)
    said = {w for f in made_from for w in read_manifest(f)["warnings"]}
    typer.echo(f"Wrote {folder}: {_summary(manifest)}")
    for warning in manifest["warnings"]:
        if warning not in said:
            typer.echo(f"  note: {warning}")


def _span(facts: PanelFacts) -> str:
    """Return the length of the panel, in years where its counts are yearly."""
    first, last = facts.first_month, facts.last_month
    if facts.period == "year":
        return f"{_n(facts.n_months)} years ({first[:4]} to {last[:4]})"
    return f"{_n(facts.n_months)} months ({first} to {last})"


def _n(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:,.4g}"


def _summary(manifest: Manifest) -> str:
    r, kind = manifest["results"], manifest["kind"]
    if kind == "panel":
        p = PanelFacts.of(r)
        return (
            f"{p.species}, {_n(p.n_visits)} visits ({_n(p.n_counted)} with a count, {_n(p.n_zeros)} zeros) "
            f"by {_n(p.n_observers)} observers in {len(p.groups)} group{'s' if len(p.groups) != 1 else ''}, "
            f"at {_n(p.n_sites)} sites in {_span(p)}; "
            f"{_n(p.n_cells_observed)} of {_n(p.n_sites * p.n_months)} cells have a count."
        )
    if kind == "records":
        listed = sorted(r["species"], key=lambda s: -s["records"])
        shown = ", ".join(f"{s['common_name'] or s['species']} ({_n(s['records'])})" for s in listed[:12])
        more = f" and {len(listed) - 12} more" if len(listed) > 12 else ""
        return (
            f"{_n(r['n_records'])} records on {_n(r['n_checklists'])} checklists, {_n(r['n_zero_ok'])} of which may give "
            f"zeros; {len(listed)} species: {shown or 'none'}{more}."
        )
    if kind == "fit":
        f = FitFacts.of(r)
        how = "chosen by cross-validation" if f.cv_summary else "as asked for"
        others = " and ".join(str(m["rank"]) for m in f.members[1:])
        how += f"; averaged with rank {others}" if others else ""
        text = (
            f"{f.species}, {f.model} of rank {f.rank} ({how}) on {_n(f.n_counted)} counts of "
            f"{f.n_groups} group{'s' if f.n_groups != 1 else ''}; "
            + ("converged" if f.converged else f"NOT converged ({f.stop_reason})")
            + f" after {f.rounds} rounds."
        )
        return text + (f" {f.advice}" if f.advice else "")
    if kind == "imputed":
        i = ImputedFacts.of(r)
        return (
            f"{i.species}, {_n(i.cells)} cells, {_n(i.observed_cells)} of them observed; "
            f"{100 * i.imputed_share:.0f} % of the total is imputed. Standard effort: {i.standard_effort}."
        )
    words = [
        f"{k.replace('_', ' ')} {_n(v) if isinstance(v, int | float) else v}"
        for k, v in r.items()
        if isinstance(v, int | float | str) and not isinstance(v, bool)
    ]
    return "; ".join(words) + "." if words else kind


def describe(path: Path) -> str:
    """Describe a produced folder or table."""
    path = Path(path)
    if path.is_dir():
        return _describe_folder(path)
    if not path.exists():
        raise InputError(f"there is no file or folder {path}.", path=str(path))
    if path.suffix != ".parquet":
        raise InputError(
            f"{path} is not a file of fedmiss: inspect reads produced folders and .parquet tables."
        )
    return _describe_table(path)


def _describe_folder(path: Path) -> str:
    if not (path / MANIFEST).exists() and (path / "visits.parquet").exists():
        table = _describe_table(path / "visits.parquet")
        return f"{path}: the visits and observed cells of one group.\n{table}"
    if not (path / MANIFEST).exists():
        return _describe_other(path)
    m = read_manifest(path)
    lines = [f"{path}: {m['kind']}, made by fedmiss {m['fedmiss']}.", _summary(m)]
    if chosen := _settings(m["settings"]):
        lines.append("Settings: " + ", ".join(chosen))
    if m["flow"]:
        lines.append("Rows on the way here:")
        lines += [
            f"  {row['rows']:>14,}  {row['step']}" + (f" ({row['note']})" if row.get("note") else "")
            for row in m["flow"]
        ]
    for key, value in m["terms"].items():
        if value:
            lines.append(f"{key.capitalize()}: {value}")
    if "ledger" in m["results"]:
        lines += _ledger(m["results"]["ledger"])
    lines += [f"Note: {w}" for w in m["warnings"]]
    files = sorted(p for p in path.rglob("*") if p.is_file())
    lines.append(f"{len(files)} files, {sum(p.stat().st_size for p in files):,} bytes.")
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


def messages(path: Path) -> str:
    """Say in words what each kind of message of a fit held."""
    from fedmiss.federation.words import describe_kinds

    manifest = read_manifest(path, "fit")
    ledger = manifest["results"].get("ledger")
    if ledger is None:
        raise InputError(
            f"{path} has no ledger of questions and answers: it was made by --method {manifest['results']['method']}.",
            path=str(path),
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
    folders = sorted(p.parent for p in path.glob(f"*/{MANIFEST}"))
    tables = sorted(path.glob("*.parquet"))
    if not folders and not tables:
        read_manifest(path)  # raises the error that says what is wrong
    lines = [f"{path}: {len(folders)} folders and {len(tables)} tables."]
    lines += [f"  {f.name}: {m['kind']}. {_summary(m)}" for f in folders for m in [read_manifest(f)]]
    return "\n".join([*lines, *(_describe_table(t).split("\n")[0] for t in tables)])


def _describe_table(path: Path) -> str:
    import pyarrow as pa
    import pyarrow.parquet as pq

    from fedmiss.tables import load_schema

    try:
        file = pq.ParquetFile(path)
    except (pa.ArrowInvalid, OSError) as error:
        raise InputError(f"{path} is not a readable parquet file: {error}") from None
    tag = (file.schema_arrow.metadata or {}).get(b"fedmiss_schema", b"").decode()
    lines = [
        f"{path}: {file.metadata.num_rows:,} rows" + (f", schema {tag}." if tag else ", no fedmiss schema.")
    ]
    meaning = {}
    if tag:
        schema = load_schema(tag.split(".")[0])
        lines.append(schema.description)
        meaning = {
            c["name"]: f"{c['description']}" + (f" [{c['unit']}]" if c["unit"] else "")
            for c in schema.columns
        }
    lines += [f"  {f.name:<18} {f.type!s:<10} {meaning.get(f.name, '')}" for f in file.schema_arrow]
    return "\n".join(lines)
