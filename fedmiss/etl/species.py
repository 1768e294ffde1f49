"""Which taxa are asked for: names to species, what stands above species, near names for unknown ones."""

from __future__ import annotations

import re

import polars as pl

from fedmiss.arrays import I32, Bool
from fedmiss.errors import ConfigError
from fedmiss.etl.columns import did_you_mean, near_names, several_species
from fedmiss.etl.one_species import same_names
from fedmiss.etl.projection import Projection
from fedmiss.etl.resolve import SpeciesChoice
from fedmiss.etl.settings import IngestSettings

# CATEGORY and name that roll up to a species; everything else stands above it (spuh, slash, hybrid).
BELOW_OR_SPECIES = ("species", "issf", "intergrade", "form", "domestic")
# behind the names of domestic birds in older releases; they belong to the species
DOMESTIC = r" \(Domestic type\)$"
BINOMIAL = r"^[A-Z][a-z-]+ [a-z-]+$"


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
    above, exotic, unvetted = [], [], []
    for i, record in enumerate(records):
        taxon = merged.filter(pl.col("source") == i)
        keep = taxon["keep"].fill_null(False)
        number = taxon["species"].replace_strict(
            chosen, range(len(chosen)), default=-1, return_dtype=pl.Int32
        )
        code.append(number.set(~keep, -1).to_numpy())
        above.append((~keep).to_numpy())
        exotic.append(
            (~taxon["exotic"].str.strip_chars().str.to_uppercase().is_in(settings.exotic)).to_numpy()
        )
        unvetted.append(_held_back(taxon, settings) | (record.meta["role"] == "unvetted"))
    _check_sensitive(settings, known, warnings)
    _check_breeding(settings, merged, warnings)
    return SpeciesChoice(chosen, [shown.get(name) or None for name in chosen], code, above, exotic, unvetted)


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
                f"{name} is in none of the files; every complete checklist counts as a zero for it."
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
    for name in settings.sensitive:
        warnings.append(
            f"{name} is named as sensitive: its absence from a checklist is missing, not zero."
            if name.casefold() in names
            else f"the sensitive species {name!r} is not in the files; check its spelling."
        )


def _check_breeding(settings: IngestSettings, merged: pl.DataFrame, warnings: list[str]) -> None:
    held = set(merged["breeding"].str.to_uppercase()) | {"ANY"}
    warnings += [
        f"no record has the breeding code {code!r}; several are given by repeating --breeding."
        for code in settings.breeding
        if code.strip().upper() not in held
    ]
