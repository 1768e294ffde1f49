"""A table of counts: what to do where it leaves a choice, what was read, and how its columns are found and read."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

from fedmiss.errors import ConfigError, InputError, listed, several
from fedmiss.etl.checks import advice, refuse_thousands, refuse_totals, settle_spellings
from fedmiss.etl.columns import NAMES, check_named, date_parts, familiar, normal, quoted, wide_years
from fedmiss.etl.rows import LINE, decimals, without_codes
from fedmiss.etl.sources import Source
from fedmiss.etl.species import (
    common_name,
    only,
    refuse_mixed,
    species_columns,
    species_columns_by_content,
    tells_apart,
)
from fedmiss.notebook import card
from fedmiss.settings import kinds_checked

_MISSING = ("", "NA", "N/A", "NAN", "NULL", "NONE", ".", "-")
_NO_YEAR = 20_000  # from here on a number is a date as spreadsheets count days


@kinds_checked
@dataclass(frozen=True, slots=True)
class CountOptions:
    r"""What to do where a table leaves a choice.

    ``columns`` canonical name -> column, for names that are not found; ``missing`` further words for a missing count
    (as 999); ``repeats`` of a site and time point: ``refuse``, ``sum``, ``max`` or ``mean``; ``wide`` one column for
    each year; ``spellings`` of a site that differ in case, blanks, accents or zeros only: ``refuse``, ``join`` or ``apart``;
    ``months`` False leaves the month column out, so that the counts of a year are repeats. ``species``: the one to read
    of a table with a column of species, by any of its names; needed where there are several. ``sheet`` of a workbook;
    ``header_row``: in which row or line the column names stand, where that is not found.

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
    sheet: str = ""
    header_row: int | None = None


@dataclass(frozen=True, slots=True, eq=False)
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


_CUBE = (
    "the counts are numbers of occurrence records (a cube of GBIF), not of birds: without effort and without zeros, more "
    "records may be more observers."
)


class Reading:
    """The columns of one table, by what they are called and what they hold, and what is said of them."""

    def __init__(self, source: Source, options: CountOptions) -> None:
        self.source, self.options = source, options
        self.said: list[str] = list(source.said)
        if patterns := [title for title in source.header if title == "*" or re.fullmatch(r"\^.*\$", title)]:
            raise InputError(
                f"{source.name} has a column called {patterns[0]!r}, which is a pattern of names; give it a name of letters."
            )
        self.years = wide_years(source.header, 1 if options.wide else 3)
        self.named = dict(options.columns or {})
        check_named("--columns or --map", self.named, NAMES, source.name, source.header)
        self.named_species = self.named.pop("species", "")
        self.columns: dict[str, str] = {}

    def taxa(self, raw: pl.DataFrame) -> list[str]:
        """Columns that name the species of a row, the best first."""
        header = [column for column in self.source.header if column and column not in self.years]
        taxa = [self.named_species] if self.named_species else species_columns(header)
        for column in taxa:
            refuse_mixed(self.source, column, raw[column], raw[LINE])
        if taxa:
            return taxa
        known = self._known(self.source.header).values()
        free = {column: raw[column] for column in header if column not in known}
        return species_columns_by_content(free, self.options.species)

    def table(self, raw: pl.DataFrame) -> CountTable:
        """Read the texts of all columns; see :func:`read_counts`."""
        years, taxa, all_rows, name = self.years, self.taxa(raw), raw.height, ""
        if taxa:
            raw, name, said = only(raw, taxa, self.options.species, self.source.short_name)
            self.said += said
        columns = self.columns = self._columns(raw, taxa)
        frame, rest = self._texts(raw, (*columns.values(), *years, *taxa))
        # Only where all values are of that form: a lone 2024-05 among years is a slip of the pen.
        months = frame["year"].str.contains(r"^\d{4}-(0[1-9]|1[0-2])$")  # as 2024-05
        if "month" not in frame.columns and self.options.months and months.len() and months.all():
            frame = frame.with_columns(frame["year"].str.slice(0, 4), month=frame["year"].str.slice(5, 2))
            columns["month"] = columns["year"]
        if normal(columns.get("count", "")) == "occurrences":
            self.said.append(_CUBE)
        more = frame.height - raw.height  # rows that years as columns add
        frame = self._values(frame)
        before = frame.height
        frame, joined = settle_spellings(frame, self.source.name, self.options.spellings)
        self.said += joined
        frame = self._repeats(frame, rest)
        refuse_totals(frame, self.source, self.columns["site"])
        self.said.insert(len(self.source.said), self._what_was_read(frame, rest))
        tidy = frame.with_columns(
            pl.when(pl.col(column).str.to_uppercase().is_in(_MISSING))
            .then(None)
            .otherwise(pl.col(column))
            .alias(column)
            for column in rest
        )
        return CountTable(
            self.source, tidy, columns, tuple(rest), tuple(self.said), rows_read=all_rows + more, species=name,
            common_name=common_name(raw, taxa), other_species=all_rows - raw.height,
            joined=before - tidy.height,
        )  # fmt: skip

    def _texts(self, raw: pl.DataFrame, used: Sequence[str]) -> tuple[pl.DataFrame, list[str]]:
        """The columns by their canonical names, one row for each count; and the names of those not ``used``."""
        covariates: dict[str, pl.Series] = {}
        for column in self.source.header:
            if column and column not in used:
                free = column
                while free in (*NAMES, "line", *covariates):
                    free += "_"
                covariates[free] = raw[column]
        named = {"line": raw[LINE]} | {key: raw[column] for key, column in self.columns.items()} | covariates
        frame = pl.DataFrame(named | {year: raw[year] for year in self.years})
        if self.years:
            frame = frame.unpivot(self.years, index=list(named), variable_name="year", value_name="count")
            frame = frame.with_columns(pl.col("year").str.strip_chars_start("Xx"))
        return frame, list(covariates)

    def _what_was_read(self, frame: pl.DataFrame, covariates: list[str]) -> str:
        missing, years = frame["count"].null_count(), self.years
        first, last = (int(str(edge)) for edge in (frame["year"].min(), frame["year"].max()))
        return (
            f"{self.source.short_name}: {', '.join(f'{key} = {column}' for key, column in self.columns.items())}"
            + (f", years {years[0]} to {years[-1]} = columns" if years else "")
            + (f"; covariates = {' + '.join(covariates)}" if covariates else "")
            + f". {several(frame['site'].n_unique(), 'site')}, "
            f"{several(frame['year'].n_unique(), 'year' if first > 1800 else 'time point')} "
            f"({first} to {last}), {several(frame.height - missing, 'count')}, "
            f"{several(missing, 'row')} with a missing count."
        )

    def _known(self, header: Sequence[str]) -> dict[str, str]:
        """Return the columns that were named or that their names give away."""
        sought = {key: words for key, words in NAMES.items() if not (self.years and key in ("year", "count"))}
        return familiar(header, sought, self.named)

    def _columns(self, raw: pl.DataFrame, taxa: list[str]) -> dict[str, str]:
        header = tuple(column for column in self.source.header if column not in taxa)
        chosen = self._known(header)
        wanted = ("site",) if self.years else ("site", "year", "count")
        lacking = [name for name in wanted if name not in chosen]
        # A column that no name gives away may be the only one that holds years, or the only one that holds counts.
        for key, holds in (("year", _all_years), ("count", _all_counts)):
            if key == "year" in lacking or lacking == [key]:
                others = [column for column in header if column and column not in chosen.values()]
                free = [other for other in others if holds(raw[other])]
                if len(free) == 1:
                    chosen[key] = free[0]
                    lacking.remove(key)
        if lacking:
            raise InputError(
                f"{self.source.name}: no column is clearly the {' or the '.join(lacking)} (its columns"
                f"{'' if self.source.separator else f', from row {self.source.header_row}'}: "
                f"{listed(header, 12)}); say which with --columns "
                f"{','.join(f'{name}=...' for name in lacking)} (`fedmiss ingest`: --map), or --header-row N if the "
                "names stand in another row."
            )
        if "month" not in chosen and not self.options.months:
            raise ConfigError(
                f"--no-months does nothing here: {self.source.name} has no column of months. Leave --no-months out."
            )
        return {
            name: chosen[name]
            for name in NAMES
            if name in chosen and (name != "month" or self.options.months)
        }

    def _values(self, frame: pl.DataFrame) -> pl.DataFrame:
        self._refuse(frame, frame["site"] == "", "site", "name every site, or leave the row out")
        out = {}
        for key, low, high, remedy in (
            ("year", 0, _NO_YEAR - 1, "write it as 2024 (a winter by its last year, months in a column)"),
            ("month", 1, 12, "write 1 to 12"),
        ):
            if key in frame.columns:
                out[key] = frame[key].str.strip_suffix(".0").cast(pl.Int64, strict=False)
                self._refuse(frame, ~out[key].is_between(low, high).fill_null(False), key, remedy)
        for key, remedy in (
            ("count", "give one number, or NA where it was not counted (--missing takes a value as NA)"),
            ("weight", "weights are above 0"),
        ):
            if key in frame.columns:
                out[key] = self._decimal(frame, key, remedy)
        return frame.with_columns(**out)

    def _decimal(self, frame: pl.DataFrame, key: str, remedy: str) -> pl.Series:
        text, column = frame[key].str.strip_chars(), self.columns.get(key, key)
        commas = text.str.contains(r"^\d+,\d+$")
        if commas.any():
            self.said.append(
                f"{several(int(commas.sum()), 'value')} with a decimal comma, as {text.filter(commas)[0]!r}, in the column "
                f"{column!r}."
            )
        refuse_thousands(self.source, column, text, frame["line"])
        text = without_codes(text, self.options.missing)
        value, bad = decimals(text, _MISSING)
        # as of a plain table: a count has at most 18 digits
        out = value <= 0 if key == "weight" else (value < 0) | (value >= 1e18)
        # +50 is a limit, as 50+ is
        bad |= out.fill_null(key == "weight") | text.str.starts_with("+")
        self._refuse(frame, bad, key, remedy)
        return value

    def _refuse(self, frame: pl.DataFrame, bad: pl.Series, key: str, remedy: str) -> None:
        if not bad.any():
            return
        row, n_bad = frame.filter(bad).row(0, named=True), int(bad.sum())
        more = f" {n_bad:,} rows are like this." if n_bad > 1 else ""
        column = self.columns.get(key, key)
        if key == "count" and key not in self.columns:  # one column for each year
            column = next(year for year in self.years if year.strip().lstrip("Xx") == str(row["year"]))
        remedy = advice(key, row[key]) or remedy
        raise self.source.fault(row["line"], column, f"{row[key]!r} is no {key}; {remedy}.{more}")

    def _repeats(self, frame: pl.DataFrame, rest: list[str]) -> pl.DataFrame:
        keys = [name for name in ("site", "year", "month") if name in frame.columns]
        doubled = frame.select(keys).is_duplicated()
        if not doubled.any():
            return frame
        first = frame.filter(doubled).row(0, named=True)
        same = frame.filter(*(pl.col(key) == first[key] for key in keys))
        cell = ", ".join(f"{key} {first[key]}" for key in keys)
        # a column that was renamed, as the month that is left out, names no species
        apart = tells_apart(frame, keys, [column for column in rest if column in self.source.header])
        perhaps = ""
        if parts := date_parts(self.source.header):
            named = {key: self.columns[key] for key in ("site", "count") if key in self.columns} | parts
            perhaps = (
                " If each row is a visit of its day, `fedmiss ingest` reads it with --map observer=...,"
                f"{','.join(f'{key}={quoted(column)}' for key, column in named.items())} (where nobody noted the observer, "
                "name the column of the site again)."
            )
        elif apart:
            values = frame[apart].drop_nulls().unique().sort().to_list()
            perhaps = (
                f" The column {apart!r} tells them apart ({listed(values, 3)}): if it names a species, choose one with "
                f"--columns species={apart} (`fedmiss ingest`: --map) --species NAME; if it is a part of the site's name, "
                "as the state of a route, join both in one column."
            )
        if self.options.repeats == "refuse":
            lines = ", ".join(map(str, same["line"][:3]))
            counts = ", ".join("NA" if value is None else f"{value:g}" for value in same["count"][:3])
            unit = "rows" if self.source.sheet else "lines"
            raise InputError(
                f"{self.source.name}: {cell} stands {same.height} times ({unit} {lines}; counts {counts}); remove copies, "
                f"or pass --repeats sum, max or mean. Repeated cells: {frame.filter(doubled).select(keys).n_unique():,}."
                f"{perhaps}",
                line=first["line"],
            )
        rule = {"sum": pl.col("count").sum(), "max": pl.col("count").max(), "mean": pl.col("count").mean()}
        joined = frame.group_by(keys, maintain_order=True).agg(
            pl.when(pl.col("count").is_not_null().any()).then(rule[self.options.repeats]).alias("count"),
            *(pl.col(column).first() for column in frame.columns if column not in (*keys, "count")),
        )
        self.said.append(
            f"{frame.height - joined.height:,} repeated rows were joined to their cell by the {self.options.repeats} of its "
            f"counts.{perhaps}"
        )
        if self.options.repeats == "sum":
            self.said += _low_sums(frame, keys)
        return joined.select(frame.columns)


def _low_sums(frame: pl.DataFrame, keys: Sequence[str]) -> list[str]:
    counted = frame.group_by(keys, maintain_order=True).agg(n=pl.col("count").count())
    low = counted.filter((pl.col("n") > 0) & (pl.col("n") < pl.col("n").max().over("site")))
    if low.is_empty():
        return []
    cell = ", ".join(f"{key} {low[key][0]}" for key in keys)
    return [
        "sums of fewer counts than others of their site, too low by what was not counted: "
        f"{low.height:,} (the first: {cell}). "
        "Keep the months, which are then filled, or pass --repeats mean."
    ]


def _all_years(values: pl.Series) -> bool:
    return bool(values.str.contains(r"^(1[89]|20)\d\d$").all()) and values.n_unique() > 1


def _all_counts(values: pl.Series) -> bool:
    return bool((values.str.contains(r"^\d+$") | values.str.to_uppercase().is_in(_MISSING)).all())
