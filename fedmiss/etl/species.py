"""Names of species: which columns of tables hold them, the rows of the one asked for, and which taxa an import means."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

from fedmiss.arrays import I32, U8, Bool
from fedmiss.errors import ConfigError, InputError, fold, listed, several
from fedmiss.etl.columns import did_you_mean, familiar, near_names, quoted, several_species
from fedmiss.etl.projection import Projection
from fedmiss.etl.rows import LINE, read_texts
from fedmiss.etl.settings import IngestSettings
from fedmiss.etl.sources import Source, expand
from fedmiss.folders import ALL

# What the first column of these names holds is the species; the others are further names of it.
_NAMES = (
    "scientificname sciname latinname latin binomial acceptedscientificname nomscientifique nomlatin nombrecientifico "
    "nomescientifico species speciesname speciesscientificname specie espece especie art vogelart artname artnamn "
    "soort soortnaam vogelsoort arter druh gatunek laji taxon taxonname commonname englishname vernacularname birdname "
    "bird birdspecies speciescode speciesid speciesnumber speciesnr speciesno spcode sppcode sp spp spec taxoncode taxonid "
    "euring euringcode euringnr alphacode aou aoucode specieskey"
).split()
_COMMON = ("commonname", "englishname", "vernacularname", "birdname")
_NO_NAME = set(
    "n number num total all richness reported complete target group other observed detected".split()
)


def species_columns(header: Iterable[str]) -> list[str]:
    """Return the columns that name a species, the one that names it best first."""
    found = []
    for at, title in enumerate(header):
        words = re.findall(r"[a-z0-9]+", fold(re.sub(r"(?<=[a-z])(?=[A-Z])", " ", title)))
        whole = re.sub(r"[^a-z0-9]", "", fold(title))
        if whole in _NAMES:
            found.append((_NAMES.index(whole), at, title))
        elif {"species", "taxon"} & set(words) and not _NO_NAME & set(words):
            found.append((len(_NAMES), at, title))
    return [title for _, _, title in sorted(found)]


def species_columns_by_content(columns: Mapping[str, pl.Series], wanted: str) -> list[str]:
    """Return the columns of strings that hold scientific names only, or in which the species asked for stands."""
    named = columns_with(columns, wanted)
    return [name for name, values in columns.items() if _binomials(values) or name in named]


def columns_with(columns: Mapping[str, pl.Series], wanted: str) -> list[str]:
    """Return the columns of strings in any row of which the species asked for stands."""
    key = fold(wanted)
    return [name for name, values in columns.items() if key and key in names_in(values)]


def _binomials(values: pl.Series) -> bool:
    held = values.filter(values != "")
    return held.len() > 0 and bool(
        held.str.contains(r"^\s*[A-Z][a-z-]+[ _]+[a-z-]{3,}(\s+[a-z-]{3,})?\s*$").all()
    )


def same_names(values: pl.Series) -> pl.Series:
    """Return names with every spelling (case, accents, blanks) replaced by its most frequent one."""
    best, held = names_in(values), values.drop_nulls().unique()
    clean = [best[fold(name)][0] if fold(name) else "" for name in held]
    return values.replace_strict(
        held, pl.Series(clean, dtype=pl.String), default=None, return_dtype=pl.String
    )


_CODE = re.compile(r"\d+|[A-Z]{4,7}")


def refuse_mixed(source: Source, column: str, values: pl.Series, lines: pl.Series) -> None:
    """Refuse a column that names species by code in some rows and by name in others: one of them would be two.

    Codes are numbers, or four to seven capital letters beside scientific names.

    Raises
    ------
    InputError : with the place of the first of each
    """
    names = [name for name in values.unique(maintain_order=True) if name and name.strip()]
    codes = [name for name in names if _CODE.fullmatch(name.strip())]
    latin = [name for name in names if re.fullmatch(r"[A-Z][a-z-]+[ _]+[a-z-]{3,}.*", name.strip())]
    others = [name for name in names if name not in codes]
    if not codes or not others or not (latin or all(text.strip().isdigit() for text in codes)):
        return
    code, name = codes[0], (latin or others)[0]
    at = {word: int(lines[int((values == word).arg_max() or 0)]) for word in (code, name)}
    raise source.fault(
        at[code],
        column,
        f"{code!r} is a code, and row {at[name]} has the name {name!r}; write all species by code or all by name, so that "
        f"none is read as two ({len(codes)} codes, {len(others)} names).",
    )


def common_name(frame: pl.DataFrame, columns: Sequence[str]) -> str:
    """Return what the rows of one species call it in a column of common names after the first; blank without one."""
    for title in columns[1:]:
        if re.sub(r"[^a-z0-9]", "", fold(title)) in _COMMON and len(names := names_in(frame[title])) == 1:
            return next(iter(names.values()))[0]
    return ""


def only(
    frame: pl.DataFrame, columns: Sequence[str], wanted: str, where: str, option: str = "--species"
) -> tuple[pl.DataFrame, str, list[str]]:
    """Return the rows of one species, its name, and sentences on what was left out.

    Parameters
    ----------
    frame : rows of a table; ``columns`` of it name the species, best first (strings)
    wanted : the species asked for, by any of its names; blank where none was
    option : how the reader asks for one

    Raises
    ------
    ConfigError : several species and none asked for; a name that is not there (with near ones); a name of several
    """
    held = {column: names_in(frame[column]) for column in columns}
    held = {key: names for key, names in held.items() if names}  # a column without a name says nothing
    if not held:
        return frame, wanted.strip(), []
    main = next(iter(held))
    key = fold(wanted)
    if not key:
        if len(held[main]) > 1:
            rows = sorted(held[main].values(), key=lambda x: -x[1])
            raise ConfigError(
                f"{where}: the column {main!r} names {len(rows)} species "
                f"({listed([f'{name}: {number:,} rows' for name, number in rows], 6)}), and their counts are "
                f"never added up. Choose one: {option} {quoted(rows[0][0])}",
                species=[name for name, _ in rows],
            )
        key, column = next(iter(held[main])), main
    else:
        column = next((name for name, names in held.items() if key in names), "")
        if not column:
            raise _unknown(wanted, held, where)
    mine = _is(frame[column], key)
    kept = frame.filter(mine)
    if column != main and len(names := names_in(kept[main])) > 1:
        raise ConfigError(
            f"{where}: {wanted!r} in the column {column!r} is {len(names)} species in the column {main!r} "
            f"({listed([name for name, _ in names.values()], 4)}); choose one of those.",
            species=wanted,
        )
    blank = int(_is(frame[column], "").sum())
    name = next(iter(names_in(kept[main]).values()), (held[column][key][0], 0))[0]
    spellings = kept[column].n_unique()
    in_all = f", in {spellings} spellings" if spellings > 1 else ""
    taken = several(kept.height, "row")  # where it is all: of a part of a table
    if kept.height < frame.height:
        taken = f"{kept.height:,} of {frame.height:,} rows"
    said = [f"{where}: {column} = {held[column][key][0]}, {taken}{in_all}."]
    if blank:
        said.append(f"no species in the column {column!r}: {several(blank, 'row')} left out.")
    return kept, name, said


def names_in(values: pl.Series) -> dict[str, tuple[str, int]]:
    """Return the names in a column: folded -> the most frequent spelling, and how many rows have it in any."""
    found: dict[str, tuple[str, int]] = {}
    counts = values.alias("name").value_counts(sort=True)
    for name, number in sorted(counts.iter_rows(), key=lambda x: (-x[1], x[0] or "")):
        if key := fold(name or ""):
            first = found.get(key, (" ".join(name.split()), 0))
            found[key] = (first[0], first[1] + number)
    return found


def _is(values: pl.Series, key: str) -> pl.Series:
    names = [name for name in values.unique() if fold(name or "") == key]
    return values.is_in(pl.Series(names, dtype=pl.String), nulls_equal=True)


def _unknown(wanted: str, held: dict[str, dict[str, tuple[str, int]]], where: str) -> ConfigError:
    pool = {key: name for names in held.values() for key, (name, _) in names.items()}
    near = near_names(fold(wanted), pool)
    main = next(iter(held))
    hint = did_you_mean(near, f"It holds {listed([name for name, _ in held[main].values()], 6)}.")
    return ConfigError(
        f"{where}: the species {wanted!r} is in none of the columns {', '.join(held)}. {hint}",
        species=wanted,
        near=near,
    )


def tells_apart(frame: pl.DataFrame, keys: Sequence[str], columns: Sequence[str]) -> str:
    """Return the first column that tells repeats of a cell apart, which may be a species under a name of its own."""
    doubled = frame.filter(frame.select(keys).is_duplicated())
    for column in columns:
        values = doubled[column]
        if values.n_unique() > 1 and not doubled.select([*keys, column]).is_duplicated().any():
            return column
    return ""


_GROUPS = "group habitat habitatgroup guild indicator speciesgroup groupe gruppe lebensraum".split()


def read_groups(path: str | Path) -> dict[str, tuple[str, ...]]:
    """Read a table with a column of species and one of groups; a species with two rows is in two groups.

    Raises
    ------
    InputError : no column of species or of groups; a row with one of them blank; a group called all
    """
    source = expand(path)[0]
    group = familiar(source.header, {"group": _GROUPS}).get("group", "")
    species = next((column for column in species_columns(source.header) if column != group), "")
    if not group or not species:
        raise InputError(
            f"{source.name}: a table of groups has a column of species and one called group or habitat; its columns are "
            f"{listed(source.header, 8)}.",
            path=source.name,
        )
    out: dict[str, list[str]] = {}
    for row in read_texts(source).rows(named=True):
        name, kind = row[species].strip(), row[group].strip()
        if not name or not kind:
            said = "blank; name the species and its group, or leave the row out."
            raise source.fault(row[LINE], group if name else species, said)
        if kind == ALL:
            said = f"{ALL!r} is the indicator of all species; name the group otherwise, or leave the row out."
            raise source.fault(row[LINE], group, said)
        out.setdefault(kind, []).append(name)
    return {kind: tuple(dict.fromkeys(names)) for kind, names in sorted(out.items())}


ESCAPEE, UNVETTED = 1, 2
# CATEGORY and name that roll up to a species; everything else stands above it (spuh, slash, hybrid).
BELOW_OR_SPECIES = ("species", "issf", "intergrade", "form", "domestic")
# behind the names of domestic birds in older releases; they belong to the species
DOMESTIC = r" \(Domestic type\)$"
BINOMIAL = r"^[A-Z][a-z-]+ [a-z-]+$"


@dataclass(frozen=True, slots=True)
class SpeciesChoice:
    """Which taxa of which source belong to which species asked for."""

    names: list[str]  # scientific names
    common: list[str | None]
    code: list[I32]  # per source: taxon -> index in names, -1 not asked for or above species
    above: list[Bool]  # per source: taxon -> dropped by category
    flag: list[U8]  # per source: taxon -> ESCAPEE, UNVETTED (neither a detection nor a zero), or 0


def choose_species(records: list[Projection], settings: IngestSettings, warnings: list[str]) -> SpeciesChoice:
    """Resolve the names asked for over all sources; no names means every species of the files."""
    plain = pl.col("species", "common_name").str.replace(DOMESTIC, "")
    taxa = [record.read("taxa").with_columns(plain) for record in records]
    merged = pl.concat([taxon.with_columns(source=pl.lit(i, pl.Int32)) for i, taxon in enumerate(taxa)])
    if records[0].meta.get("any_name"):  # two tables may spell one name in two ways
        merged = merged.with_columns(same_names(merged["species"]), same_names(merged["common_name"]))
    below = pl.col("species").str.contains(BINOMIAL) & pl.col("category").is_in(["", *BELOW_OR_SPECIES])
    # Plain tables name species as they like.
    free = [i for i, record in enumerate(records) if record.meta.get("any_name")]
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
    chosen = _named(known, merged, records, settings, warnings) if settings.species else names
    shown = dict(zip(names, common, strict=True))
    code: list[I32] = []
    above, flag = [], []
    for i, record in enumerate(records):
        taxon = merged.filter(pl.col("source") == i)
        keep = taxon["keep"].fill_null(False)
        number = taxon["species"].replace_strict(
            chosen, range(len(chosen)), default=-1, return_dtype=pl.Int32
        )
        code.append(number.set(~keep, -1).to_numpy())
        above.append((~keep).to_numpy())
        escaped = ~taxon["exotic"].str.strip_chars().str.to_uppercase().is_in(settings.exotic)
        unvetted = _held_back(taxon, settings) | (record.meta["role"] == "unvetted")
        flag.append(np.where(unvetted, UNVETTED, np.where(escaped, ESCAPEE, 0)).astype(np.uint8))
    _check_sensitive(settings, known, warnings)
    _check_breeding(settings, merged, warnings)
    return SpeciesChoice(chosen, [shown.get(name) or None for name in chosen], code, above, flag)


def _held_back(taxa: pl.DataFrame, settings: IngestSettings) -> Bool:
    """Which taxa are neither a detection nor a zero: not accepted; not reviewed or not breeding, where this is asked for."""
    out: Bool = (taxa["approved"] == "0").to_numpy()
    if settings.reviewed_only:
        out = out | (taxa["reviewed"] != "1").to_numpy()
    if settings.breeding:
        wanted = {code.strip().upper() for code in settings.breeding}
        code = taxa["breeding"].str.to_uppercase()
        out = out | ((code == "") if "ANY" in wanted else ~code.is_in(sorted(wanted))).to_numpy()
    return out


def _named(
    known: pl.DataFrame,
    merged: pl.DataFrame,
    records: list[Projection],
    settings: IngestSettings,
    warnings: list[str],
) -> list[str]:
    scientific = {name.casefold(): name for name in known["species"].to_list()}
    common: dict[str, list[str]] = {}
    for sci, all_names in zip(known["species"].to_list(), known["all_names"].to_list(), strict=True):
        for key in {name.casefold() for name in all_names if name}:
            common.setdefault(key, []).append(sci)
    names = {key: held[0] for key, held in common.items()} | scientific
    chosen: list[str] = []
    for name in settings.species:
        key = " ".join(name.split()).casefold()
        if key in names:
            if key not in scientific and len(common[key]) > 1:
                raise several_species(name, common[key])
            hit = names[key]
        else:
            named = pl.any_horizontal(pl.col("species", "common_name").str.to_lowercase() == key)
            above = merged.filter(~pl.col("keep") & named)
            if above.height:
                raise ConfigError(
                    f"{name!r} is a {above['category'][0] or 'taxon above species'}, not a species: nobody can say "
                    "where it was absent. Name a species.",
                    species=name,
                )
            if not (settings.allow_absent or merged["rows"].sum() == 0):
                raise _unknown_species(name, known)
            if not (re.match(BINOMIAL, name) or any(record.meta.get("any_name") for record in records)):
                raise ConfigError(
                    f"{name!r} is not in the files; give its scientific name (two words).", species=name
                )
            warnings.append(
                f"in none of the files: {name!r}; every complete checklist counts as a zero for it."
            )
            hit = name
        if hit not in chosen:
            chosen.append(hit)
    return chosen


def _by_name(known: pl.DataFrame) -> dict[str, str]:
    """Scientific and common names, by themselves in small letters."""
    return {name.casefold(): name for column in ("species", "common_name") for name in known[column] if name}


def _unknown_species(name: str, known: pl.DataFrame) -> ConfigError:
    near = near_names(name.casefold(), _by_name(known))
    hint = did_you_mean(near, f"They hold {known.height} species.")
    return ConfigError(
        f"the species {name!r} is not in the files. {hint} (--allow-absent accepts a species that was never seen.)",
        species=name,
        near=near,
    )


def _check_sensitive(settings: IngestSettings, known: pl.DataFrame, warnings: list[str]) -> None:
    names = _by_name(known)
    warnings += [
        f"{name} is named as sensitive: its absence from a checklist is missing, not zero."
        if name.casefold() in names
        else f"the sensitive species {name!r} is not in the files; check its spelling."
        for name in settings.sensitive
    ]


def _check_breeding(settings: IngestSettings, merged: pl.DataFrame, warnings: list[str]) -> None:
    held = set(merged["breeding"].str.to_uppercase()) | {"ANY"}
    warnings += [
        f"no record has the breeding code {code!r}; several are given by repeating --breeding."
        for code in settings.breeding
        if code.strip().upper() not in held
    ]
