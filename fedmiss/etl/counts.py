"""Tables of counts as monitoring schemes keep them: site, year[, month], count[, weight][, covariates].

The columns are found by their names, or by what stands in them, and what was found is said. Blank and NA counts
are missing. Anything that is no count is refused with its line: a guess here would be a wrong index there.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import polars as pl

from fedmiss.errors import ConfigError, InputError, fold, listed
from fedmiss.etl.columns import NAMES, squeezed, wide_years
from fedmiss.etl.count_table import CountOptions, CountTable, Reading
from fedmiss.etl.rows import read_texts
from fedmiss.etl.sources import Source, expand
from fedmiss.etl.species import names_in
from fedmiss.settings import kinds_checked

_REPEATS = ("refuse", "sum", "max", "mean")
_SPELLINGS = ("refuse", "join", "apart")


@kinds_checked
def read_counts(path: str | Path | Source, options: CountOptions | None = None) -> CountTable:
    r"""Read a table of counts: a sheet of a workbook, text with commas, semicolons or tabs, plain or packed, or parquet.

    Parameters
    ----------
    path : the file, or a table that ``expand`` has found
    options : what to do where the table leaves a choice

    Raises
    ------
    InputError : no such table; values that are no count, year, month or weight; doubled rows; sites in two spellings;
        years as columns. Each with the line, the value, and what to do.
    ConfigError : options that do not fit the table; several species and none chosen; a species that is not there

    Examples
    --------
    >>> import fedmiss
    >>> from pathlib import Path
    >>> rows = "site;year;count\na;2001;4\na;2002;6\nb;2001;10\nb;2002;NA\n"
    >>> n = Path("counts.csv").write_text(rows)
    >>> table = fedmiss.etl.read_counts("counts.csv")
    >>> table.frame["count"].to_list()
    [4.0, 6.0, 10.0, None]
    """
    options = options or CountOptions()
    for name, value, known in (
        ("repeats", options.repeats, _REPEATS),
        ("spellings", options.spellings, _SPELLINGS),
    ):
        if value not in known:
            raise ConfigError(f"--{name} is {value!r} (must be {', '.join(known)}).")
    source = path if isinstance(path, Source) else _one(path, options)
    years = wide_years(source.header, 1 if options.wide else 3)
    if years and not options.wide:
        raise InputError(
            f"{source.name}: the years {years[0]} to {years[-1]} are columns, one for each; pass --wide to read it so, or "
            "make one row for each site and year."
        )
    if options.wide and not years:
        named = squeezed(source.header)
        count = next((named[name] for name in NAMES["count"] if name in named), "")
        raise ConfigError(
            f"--wide: {source.name} has a column {count!r}, which is taken for the count; leave it out, or leave --wide out."
            if count
            else f"--wide: {source.name} has no columns named by years; it has {', '.join(source.header[:8])}."
        )
    return Reading(source, options).table(read_texts(source))


def split_counts(path: str | Path, options: CountOptions) -> SplitCounts:
    """Read a table of counts once, and take its species apart; ``read_counts`` reads each of them.

    Raises
    ------
    ConfigError : no column names a species
    """
    source = _one(path, options)
    raw = read_texts(source)
    held = _species_named(source, raw, options)
    if not held:
        raise ConfigError(
            f"{source.name}: no column names a species (its columns: {listed(source.header, 12)}); say which with "
            "--columns species=..."
        )
    main = next(iter(held))
    # Spellings of one species that differ in case or blanks are one part.
    spellings: dict[str, list[str]] = {}
    for name in raw[main].unique(maintain_order=True).to_list():
        spellings.setdefault(fold(name), []).append(name)
    rows = {
        shown: raw.filter(raw[main].is_in(spellings[key]))
        for key, (shown, _) in sorted(held[main].items(), key=lambda item: item[1])
    }
    names = {fold(shown): shown for shown in rows}
    others: dict[str, dict[str, None]] = {}
    for column in held:
        for shown, part in rows.items():
            for key in names_in(part[column]).keys() - names.keys():
                others.setdefault(key, {})[shown] = None
    shared = {key: tuple(species) for key, species in others.items() if len(species) > 1}
    names |= {key: next(iter(species)) for key, species in others.items() if key not in shared}
    parts = {name: replace(source, texts=part) for name, part in rows.items()}
    unnamed = raw.height - sum(part.height for part in rows.values())
    return SplitCounts(source, parts, names, shared, unnamed)


@dataclass(frozen=True, slots=True)
class SplitCounts:
    """The species of one table: ``parts`` with the rows of each, and ``names``: any name, folded, to that of its part.

    ``shared`` are further names that several species have, with those; ``unnamed`` rows name no species.
    """

    source: Source
    parts: dict[str, Source]
    names: dict[str, str]
    shared: dict[str, tuple[str, ...]]
    unnamed: int


def species_of_counts(source: Source, options: CountOptions) -> dict[str, int]:
    """Return the species that a table of counts names, with their rows; none for a table without a species column."""
    held = _species_named(source, read_texts(source), options)
    return dict(sorted(next(iter(held.values()), {}).values()))


def _species_named(
    source: Source, raw: pl.DataFrame, options: CountOptions
) -> dict[str, dict[str, tuple[str, int]]]:
    """Return the columns that name species, the best first, with the names in each (see ``names_in``)."""
    held = {column: names_in(raw[column]) for column in Reading(source, options).taxa(raw)}
    return {column: names for column, names in held.items() if names}


def _one(path: str | Path, options: CountOptions) -> Source:
    found = expand(path, options.sheet, options.header_row)
    if found[0].one_of > 1:
        raise ConfigError(
            f"--sheet {options.sheet}: one table is read here, of one sheet. `fedmiss ingest --sheet {options.sheet}` "
            f"joins the sheets of {path}."
        )
    if len(found) != 1 or found[0].role != "plain":
        raise InputError(
            f"{path} is no table of counts ({', '.join(sorted({source.role for source in found}))})."
        )
    return found[0]
