"""Tables of counts as monitoring schemes keep them: site, year[, month], count[, weight][, covariates].

The columns are found by their names, or by what stands in them, and what was found is said. Blank and NA counts
are missing. Anything that is no count is refused with its line: a guess here would be a wrong index there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from fedmiss.errors import ConfigError, InputError, listed
from fedmiss.etl.columns import check_named, plain, squeezed
from fedmiss.etl.one_species import (
    common_name,
    names_in,
    only,
    species_columns,
    species_columns_by_content,
    tells_apart,
)
from fedmiss.etl.rows import Rows, read_rows
from fedmiss.etl.sources import Source, expand
from fedmiss.notebook import card

__all__ = [
    "CountOptions",
    "CountTable",
    "is_count_table",
    "read_counts",
    "read_texts",
    "refuse_thousands",
    "settle_spellings",
    "species_of_counts",
    "wide_years",
]

NAMES: dict[str, tuple[str, ...]] = {
    "site": ("site", "siteid", "sitecode", "plot", "plotid", "plotcode", "station", "colony", "square", "transect",
             "locality", "location", "route", "lieu", "ort", "gebied", "sitio"),
    "year": ("year", "time", "timepoint", "annee", "année", "jahr", "jaar", "ano", "año"),
    "month": ("month", "mois", "monat", "maand", "mes"),
    "count": ("count", "counts", "n", "number", "abundance", "individuals", "total", "birds", "pairs", "nests",
              "territories", "nombre", "anzahl", "aantal"),
    "weight": ("weight", "weights", "wt", "siteweight", "poids", "gewicht"),
    "species": (),  # see `one_species`
}  # fmt: skip
_MISSING = ("", "NA", "N/A", "NAN", "NULL", "NONE", ".", "-")
_REPEATS = ("refuse", "sum", "max", "mean")
_SPELLINGS = ("refuse", "join", "apart")


@dataclass(frozen=True, slots=True)
class CountOptions:
    r"""What to do where a table leaves a choice.

    ``columns`` canonical name -> column, for names that are not found; ``missing`` further words for a missing count
    (as 999); ``repeats`` of a site and time point: ``refuse``, ``sum``, ``max`` or ``mean``; ``wide`` one column for
    each year; ``spellings`` of a site that differ in case, blanks or accents only: ``refuse``, ``join`` or ``apart``;
    ``months`` False leaves the month column out, so that the counts of a year are repeats. ``species``: the one to read
    of a table with a column of species, by any of its names; needed where there are several.

    Examples
    --------
    >>> import fedmiss
    >>> from pathlib import Path
    >>> n = Path("wide.csv").write_text("site,2001,2002\na,4,6\nb,10,\n")
    >>> fedmiss.etl.read_counts("wide.csv", fedmiss.etl.CountOptions(wide=True)).frame["count"].to_list()
    [4.0, 10.0, 6.0, None]
    """

    columns: dict[str, str] | None = None
    missing: tuple[str, ...] = ()
    repeats: str = "refuse"
    wide: bool = False
    spellings: str = "refuse"
    months: bool = True
    species: str = ""


@dataclass(frozen=True, slots=True)
class CountTable:
    """A table as it was read.

    ``frame`` has ``line``, ``site`` (string), ``year`` (int64), ``month`` (int64, if there is one), ``count`` (float64,
    null where missing), ``weight`` (float64, if there is one) and the covariates as strings (null where blank).
    ``said`` has a sentence for each thing that was found or decided. ``species`` is the name in the table's own words,
    blank where no column names one; ``common_name`` what a second column calls it. Of the ``rows_read`` (one for each year
    where years are columns) ``other_species`` are of others, and ``joined`` were added to another row of their cell.
    """

    source: Source
    frame: pl.DataFrame
    columns: dict[str, str]
    covariates: tuple[str, ...]
    said: tuple[str, ...]
    rows_read: int
    species: str = ""
    common_name: str = ""
    other_species: int = 0
    joined: int = 0

    def _repr_html_(self) -> str:
        """Show what was read and decided in a notebook."""
        return card(
            "Table of counts",
            {"species": self.species, "rows": self.frame.height, "rows read": self.rows_read, "columns": tuple(self.columns),
             "covariates": self.covariates, "decided": " ".join(self.said)},
        )  # fmt: skip


def _key(site: str) -> str:
    """Return a site's name without case, blanks and accents."""
    return "".join(plain(site).split())


def settle_spellings(frame: pl.DataFrame, name: str, how: str) -> tuple[pl.DataFrame, list[str]]:
    """Join sites of a table that differ in case, blanks or accents only, or refuse, or leave them apart.

    Parameters
    ----------
    frame : with ``site`` and ``line``; ``name`` is the file's
    how : refuse, join or apart

    Raises
    ------
    InputError : such sites, when ``how`` is refuse; names both and their lines
    """
    first = frame.group_by("site", maintain_order=True).agg(pl.col("line").first())
    first = first.with_columns(key=pl.Series([_key(s) for s in first["site"]], dtype=pl.String))
    doubled = first.filter(pl.col("key").is_duplicated() & (pl.col("key") != "")).sort("key", "line")
    if doubled.is_empty() or how == "apart":
        return frame, []
    if how == "refuse":
        a, b = doubled.head(2).rows(named=True)
        raise InputError(
            f"{name}: the site {a['site']!r} (line {a['line']}) is also written {b['site']!r} (line "
            f"{b['line']}); pass --spellings join if they are one site, or --spellings apart if they are two."
        )
    to = first.join(
        first.group_by("key", maintain_order=True).agg(pl.col("site").first().alias("_one")), on="key"
    )
    joined = frame.join(to.select("site", "_one"), on="site", how="left", maintain_order="left")
    said = f"{doubled.height} spellings of {doubled['key'].n_unique()} sites were joined."
    return joined.with_columns(pl.col("_one").alias("site")).drop("_one"), [said]


def wide_years(header: Sequence[str], least: int = 3) -> list[str]:
    """Return the columns that are years, when there are at least ``least`` and no column is a count."""
    years = [
        h for h in header if h.strip().lstrip("Xx").isdigit() and 1800 <= int(h.strip().lstrip("Xx")) <= 2100
    ]
    return years if len(years) >= least and not any(n in squeezed(header) for n in NAMES["count"]) else []


def is_count_table(header: Sequence[str]) -> bool:
    """Say whether a header looks like a table of yearly or monthly counts: site and year, no date and no observer."""
    names = squeezed(header)
    if {"date", "observationdate", "surveydate", "visitdate", "eventdate", "observer", "observerid"} & set(
        names
    ):
        return False
    has = {k: any(n in names for n in words) for k, words in NAMES.items()}
    return has["site"] and (has["year"] or bool(wide_years(header)))


def read_counts(path: str | Path | Source, options: CountOptions | None = None) -> CountTable:
    r"""Read a table of counts: comma, semicolon or tab, decimal comma, plain or packed, or parquet.

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
    source = path if isinstance(path, Source) else _one(path)
    years = wide_years(source.header, 1 if options.wide else 3)
    if years and not options.wide:
        raise InputError(
            f"{source.name}: the years {years[0]} to {years[-1]} are columns, one for each; pass --wide to read it so, or "
            "make one row for each site and year."
        )
    if options.wide and not years:
        raise ConfigError(
            f"--wide: {source.name} has no columns named by years; it has {', '.join(source.header[:8])}."
        )
    raw, n = read_texts(source)
    return _Reading(source, options, n).table(raw, years)


def species_of_counts(source: Source, options: CountOptions) -> dict[str, int]:
    """Return the species that a table of counts names, with their rows; none for a table without a species column."""
    raw, n = read_texts(source)
    taxa = _Reading(source, options, n).taxa(raw, wide_years(source.header))
    held = [names_in(raw[f"_{source.header.index(h)}"]) for h in taxa]
    first = next((names for names in held if names), {})
    return {name: rows for name, rows in sorted(first.values())}


def read_texts(source: Source) -> tuple[pl.DataFrame, int]:
    """Return all values of a table as texts, columns ``_0``, ``_1``, ... and ``_line``; and how many rows were read."""
    rows = Rows(source)
    names = {f"c{i}": i for i in range(len(source.header))}
    parts = list(read_rows(source, names, rows, quoted=source.separator in (",", ";")))
    if not parts or not sum(p.height for p in parts):
        raise InputError(f"{source.name}: a header and no rows, so there is nothing to read.")
    if rows.malformed:
        raise InputError(
            f"{source.name} {rows.examples[0]}; a value with a comma in it needs quotes around it."
        )
    return pl.concat(parts).rename({f"c{i}": f"_{i}" for i in range(len(source.header))}), rows.read


def refuse_thousands(source: str, column: str, text: pl.Series, lines: pl.Series) -> None:
    """Refuse a column whose every comma may stand before thousands, as in 1,234; 0,125 can be a decimal comma only."""
    commas = text.str.contains(r"^-?\d+,\d+$")
    if not commas.any() or not text.str.contains(r"^-?[1-9]\d{0,2},\d{3}$").filter(commas).all():
        return
    i = int(commas.arg_max() or 0)
    raise InputError(
        f"{source} line {lines[i]}, column {column!r}: {text[i]!r} may be thousands or a decimal comma; write it without "
        "the comma.",
        line=int(lines[i]),
    )


def _one(path: str | Path) -> Source:
    found = expand(path)
    if len(found) != 1 or found[0].role != "plain":
        raise InputError(f"{path} is no table of counts ({', '.join(sorted({s.role for s in found}))}).")
    return found[0]


class _Reading:
    def __init__(self, source: Source, options: CountOptions, n: int) -> None:
        self.source, self.options, self.n = source, options, n
        self.said: list[str] = []

    @property
    def _at(self) -> dict[str, str]:
        return {h: f"_{i}" for i, h in reversed(list(enumerate(self.source.header)))}

    def taxa(self, raw: pl.DataFrame, years: list[str]) -> list[str]:
        """Columns that name the species of a row, the best first."""
        header, at = self.source.header, self._at
        named = (self.options.columns or {}).get("species")
        check_named("--columns", {"species": named} if named else {}, NAMES, self.source.name, header)
        known = self._known(header, years)
        taxa = [named] if named else species_columns(h for h in header if h not in years)
        if taxa:
            return taxa
        free = {h: raw[at[h]] for h in header if h and h not in years and h not in known.values()}
        return species_columns_by_content(free, self.options.species)

    def table(self, raw: pl.DataFrame, years: list[str]) -> CountTable:
        header, at = self.source.header, self._at
        taxa = self.taxa(raw, years)
        name, common, all_rows = "", "", raw.height
        if taxa:
            raw, name, said = only(
                raw.rename({at[h]: h for h in taxa}), taxa, self.options.species, self.source.short_name
            )
            common = common_name(raw, taxa)
            raw = raw.rename({h: at[h] for h in taxa})
            self.said += said
        others = all_rows - raw.height
        columns = self._columns(raw, years, taxa)
        rest = [h for h in header if h and h not in columns.values() and h not in years and h not in taxa]
        frame = raw.select(
            pl.col("_line").alias("line"),
            *(pl.col(at[h]).alias(k) for k, h in columns.items()),
            *(pl.col(at[h]).alias(h if h not in (*NAMES, "line") else f"{h}_") for h in rest),
            *(pl.col(at[y]).alias(f"year {y}") for y in years),
        )
        rest = [h if h not in (*NAMES, "line") else f"{h}_" for h in rest]
        if years:
            frame = frame.unpivot(
                on=[f"year {y}" for y in years],
                index=[c for c in frame.columns if not c.startswith("year ")],
                variable_name="year",
                value_name="count",
            ).with_columns(pl.col("year").str.strip_prefix("year ").str.strip_chars_start("Xx"))
        more = frame.height - raw.height  # rows that years as columns add
        frame = self._values(frame, columns)
        before = frame.height
        frame, joined = settle_spellings(frame, self.source.name, self.options.spellings)
        self.said += joined
        frame = self._repeats(frame, rest)
        missing = int(frame["count"].null_count())
        first, last = (int(str(y)) for y in (frame["year"].min(), frame["year"].max()))
        self.said.insert(
            0,
            f"{self.source.short_name}: {', '.join(f'{k} = {h}' for k, h in columns.items())}"
            + (f", years {years[0]} to {years[-1]} = columns" if years else "")
            + (f"; covariates {', '.join(rest)}" if rest else "")
            + f". {frame['site'].n_unique():,} sites, {frame['year'].n_unique()} "
            + f"{'years' if frame['year'].min() > 1800 else 'time points'} "  # type: ignore[operator]
            + f"({first} to {last}), {frame.height - missing:,} counts, {missing:,} rows with "
            "a missing count.",
        )
        tidy = frame.with_columns(
            pl.when(pl.col(c).str.to_uppercase().is_in(_MISSING)).then(None).otherwise(pl.col(c)).alias(c)
            for c in rest
        )
        return CountTable(
            self.source,
            tidy,
            columns,
            tuple(rest),
            tuple(self.said),
            self.n + more,
            name,
            common,
            others,
            before - tidy.height,
        )

    def _known(self, header: Sequence[str], years: list[str]) -> dict[str, str]:
        """Return the columns that were named or that their names give away."""
        names = squeezed(header)
        chosen = {k: h for k, h in (self.options.columns or {}).items() if k != "species"}
        check_named("--columns", chosen, NAMES, self.source.name, header)
        for key, words in NAMES.items():
            hit = next((names[w] for w in words if w in names and names[w] not in chosen.values()), None)
            if key not in chosen and hit is not None and not (years and key in ("year", "count")):
                chosen[key] = hit
        return chosen

    def _columns(self, raw: pl.DataFrame, years: list[str], taxa: list[str]) -> dict[str, str]:
        header = tuple(h for h in self.source.header if h not in taxa)
        chosen = self._known(header, years)
        wanted = ("site",) if years else ("site", "year", "count")
        lacking = [k for k in wanted if k not in chosen]
        # A column that no name gives away may be the only one that holds years, or the only one that holds counts.
        for key, holds in (("year", self._all_years), ("count", self._all_counts)):
            if key == "year" in lacking or lacking == [key]:
                others = [h for h in header if h not in chosen.values()]
                free = [h for h in others if holds(raw[f"_{self.source.header.index(h)}"])]
                if len(free) == 1:
                    chosen[key] = free[0]
                    lacking.remove(key)
        if lacking:
            raise InputError(
                f"{self.source.name}: no column is clearly the {' or the '.join(lacking)} (its columns: "
                f"{listed(header, 12)}); say which with --columns "
                f"{','.join(f'{k}=...' for k in lacking)}."
            )
        if "month" not in chosen and not self.options.months:
            raise ConfigError(
                f"--no-months does nothing here: {self.source.name} has no column of months. Leave --no-months out."
            )
        return {k: chosen[k] for k in NAMES if k in chosen and (k != "month" or self.options.months)}

    @staticmethod
    def _all_years(values: pl.Series) -> bool:
        return bool(values.str.contains(r"^(1[89]|20)\d\d$").all()) and values.n_unique() > 1

    @staticmethod
    def _all_counts(values: pl.Series) -> bool:
        return bool((values.str.contains(r"^\d+$") | values.str.to_uppercase().is_in(_MISSING)).all())

    def _values(self, frame: pl.DataFrame, columns: dict[str, str]) -> pl.DataFrame:
        blank = frame["site"] == ""
        self._refuse(
            frame, blank, "site", columns.get("site", "site"), "name every site, or leave the row out"
        )
        whole = {"year": "write it as 2024 (and a month in a column of its own)", "month": "write 1 to 12"}
        out = {}
        for key, remedy in whole.items():
            if key in frame.columns:
                value = frame[key].str.strip_suffix(".0").cast(pl.Int64, strict=False)
                bad = value.is_null() | (
                    (value < 1) | (value > 12) if key == "month" else value < 0
                ).fill_null(False)
                self._refuse(frame, bad, key, columns.get(key, key), remedy)
                out[key] = value
        words = [*_MISSING, *(m.upper() for m in self.options.missing)]
        for key in ("count", "weight"):
            if key in frame.columns:
                out[key] = self._decimal(frame, key, columns.get(key, key), words)
        return frame.with_columns(**out)

    def _decimal(self, frame: pl.DataFrame, key: str, column: str, words: list[str]) -> pl.Series:
        text = frame[key].str.strip_chars()
        commas = text.str.contains(r"^\d+,\d+$")
        if commas.any():
            self.said.append(
                f"{column}: {int(commas.sum()):,} values with a decimal comma ({text.filter(commas)[0]})."
            )
        refuse_thousands(self.source.name, column, text, frame["line"])
        value = text.str.replace(",", ".", literal=True).cast(pl.Float64, strict=False)
        absent = text.str.to_uppercase().is_in(words)
        value = value.set(absent, None)
        bad = ~absent & (value.is_null() | ~value.is_finite().fill_null(False) | (value < 0).fill_null(False))
        remedy = {
            "count": "give one number, or NA where it was not counted (a range or an estimate needs your choice)",
            "weight": "weights are above 0",
        }[key]
        if key == "weight":
            bad = bad | absent | (value <= 0).fill_null(False)
        self._refuse(frame, bad, key, column, remedy)
        return value

    def _refuse(self, frame: pl.DataFrame, bad: pl.Series, key: str, column: str, remedy: str) -> None:
        n = int(bad.sum())
        if n:
            row = frame.filter(bad).row(0, named=True)
            more = f" {n:,} rows are like this." if n > 1 else ""
            raise InputError(
                f"{self.source.name} line {row['line']}, column {column!r}: {row[key]!r} is no {key}; {remedy}.{more}",
                line=row["line"],
                value=row[key],
            )

    def _repeats(self, frame: pl.DataFrame, rest: list[str]) -> pl.DataFrame:
        keys = [k for k in ("site", "year", "month") if k in frame.columns]
        doubled = frame.select(keys).is_duplicated()
        if not doubled.any():
            return frame
        first = frame.filter(doubled).row(0, named=True)
        same = frame.filter(*(pl.col(k) == first[k] for k in keys))
        cell = ", ".join(f"{k} {first[k]}" for k in keys)
        apart = tells_apart(frame, keys, rest)
        perhaps = (
            f" The column {apart!r} tells them apart ({listed(frame[apart].drop_nulls().unique().sort().to_list(), 3)}): if "
            f"it names a species, choose one with --columns species={apart} --species NAME."
            if apart
            else ""
        )
        if self.options.repeats == "refuse":
            lines = ", ".join(map(str, same["line"][:3]))
            counts = ", ".join("NA" if c is None else f"{c:g}" for c in same["count"][:3])
            raise InputError(
                f"{self.source.name}: {cell} stands {same.height} times (lines {lines}; counts {counts}); remove copies, "
                f"or pass --repeats sum, max or mean. Repeated cells: {frame.filter(doubled).select(keys).n_unique():,}."
                f"{perhaps}",
                line=first["line"],
            )
        rule = {"sum": pl.col("count").sum(), "max": pl.col("count").max(), "mean": pl.col("count").mean()}
        joined = frame.group_by(keys, maintain_order=True).agg(
            pl.when(pl.col("count").is_not_null().any()).then(rule[self.options.repeats]).alias("count"),
            *(pl.col(c).first() for c in frame.columns if c not in (*keys, "count")),
        )
        self.said.append(
            f"{frame.height - joined.height:,} repeated rows were joined to their cell by the {self.options.repeats} of its "
            f"counts.{perhaps}"
        )
        return joined.select(frame.columns)
