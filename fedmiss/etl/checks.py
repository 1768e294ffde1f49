"""What tables hold that nobody may guess: thousands or decimals, ranges, totals among sites, a name written in two ways."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TypeVar

import polars as pl

from fedmiss.errors import InputError, listed, plain, several
from fedmiss.etl.projection import Projection
from fedmiss.etl.sources import Source
from fedmiss.etl.spreadsheets import serial_date

_Column = TypeVar("_Column", pl.Expr, pl.Series)


def refuse_thousands(
    source: Source, column: str, text: pl.Series, lines: pl.Series, *, points: bool = True
) -> None:
    """Refuse a column whose every comma, or point, may stand before thousands: 1,234, or 1.250 beside 12.

    0,125 can be a decimal comma only. Decimals have zeros at their end in all values of a column, or in none: points are
    decimal ones where no value ends so, or none is a whole number, and wherever ``points`` is False.
    """
    points = points and text.str.contains(r"\.\d\d0$").any() and text.str.contains(r"^-?\d+$").any()
    for sign, name in ((",", "comma"), (".", "point"))[: 1 + points]:
        signs = text.str.contains(rf"^-?\d+[{sign}]\d+$")
        # One value that cannot be thousands (0,125 or 12,5) shows that the sign is a decimal one throughout.
        if signs.any() and text.str.contains(rf"^-?[1-9]\d{{0,2}}[{sign}]\d{{3}}$").filter(signs).all():
            first = int(signs.arg_max() or 0)
            whole, decimal = (text[first].replace(sign, other) for other in ("", "."))
            raise source.fault(
                lines[first],
                column,
                f"{text[first]!r} may be thousands or a decimal {name}; write {whole} or {float(decimal):g}.",
            )


_RANGE = re.compile(r"(\d+)\s*(?:-|\u2013|to|bis)\s*(\d+)")
_ABOUT = re.compile(r"(?:c|ca|circa|about|around|approx|etwa|env|~)[. ]*\s*(\d+)|(\d+)\s*\?", re.IGNORECASE)
_LIMIT = re.compile(r"[<>\u2264\u2265+]=?\s*(\d+)|(\d+)\s*\+")


def advice(key: str, text: str) -> str:
    """Say what to write for a value that people do write where a number is needed; blank for any other."""
    text = text.strip()
    if key in ("year", "date") and (day := serial_date(text)):
        return f"it is the date {day} as Excel counts days; write {day[:4] if key == 'year' else day}"
    if key != "count":
        return ""
    else_missing = "else NA (--missing takes a value as NA)"
    if found := _RANGE.fullmatch(text):
        middle = (int(found[1]) + int(found[2])) // 2
        return f"a range needs your choice: write one number, as its middle {middle}; {else_missing}"
    if found := _ABOUT.fullmatch(text):
        return f"if the estimate is to count, write {found[1] or found[2]}; {else_missing}"
    if found := _LIMIT.fullmatch(text):
        return f"it is a limit: write {found[1] or found[2]} if so many were counted; {else_missing}"
    if re.fullmatch(r"\d{4}-\d{2}-\d{2}( .*)?", text):
        return "it is a date, which spreadsheets make of ranges such as 10-12: look what was written, and write one number"
    return ""


# Rows of totals among the sites, as spreadsheets have them: they would count every bird twice.
TOTALS = frozenset(
    "total totals grandtotal summe gesamt insgesamt gesamtsumme totaal totale sumatotal razem totalt yhteensa osszesen "
    "celkem vsego itogo \u0432\u0441\u0435\u0433\u043e \u0438\u0442\u043e\u0433\u043e".split()
)
# From so many time points and so many other sites with birds, so many different sums, and a sum so large on, it is no chance
# that a site has the sum of all others.
_TIMES, _SITES, _SUMS, _LARGEST = 5, 3, 3, 10


def no_count(source: Source, rows: int, species: str) -> InputError:
    """Return the refusal of a table in which nobody counted."""
    return InputError(
        f"{source.name}: the count of {species} is missing (NA or blank) in every row ({rows:,}), so there is nothing to "
        "import. Leave the species out, or see whether its counts stand in another column."
    )


def refuse_parts(source: Source, counts: pl.Series, lines: pl.Series) -> None:
    """Refuse the first count that is no whole number."""
    odd = counts != counts.round()
    source.refuse(
        odd, lines, "",
        lambda row: f"the count {counts[row]:g} is no whole number (rows: {odd.sum():,}), and this model is one of whole "
        "counts. Round them if they are rounded means, or use `fedmiss trim`, which takes them as they are.",
    )  # fmt: skip


def refuse_totals(frame: pl.DataFrame, source: Source, column: str) -> None:
    """Refuse a site that is called a total, or that has the sum of all other sites at every time point.

    Parameters
    ----------
    frame : with ``line``, ``site``, ``year``, perhaps ``month``, and ``count``, one row a cell
    source, column : the table, and what its column of sites is called

    Raises
    ------
    InputError : names the row and the site
    """

    def refused(line: int, site: str, why: str, place: str) -> InputError:
        said = f"the site {site!r} {why}, and would count every bird twice. Leave such rows out; if it is a place, {place}."
        return source.fault(line, column, said)

    sites = frame.group_by("site", maintain_order=True).agg(pl.col("line").first())
    for site, line in sites.iter_rows():
        # a name with a number, as TOTAL 3, is a code
        if "".join(filter(str.isalnum, plain(site))) in TOTALS:
            raise refused(line, site, "is called as a row of totals is", "give it another name")
    times = [name for name in ("year", "month") if name in frame.columns]
    cells = frame.filter(pl.col("count").is_not_null())
    # Where s has the sum of all others, it has half of all.
    half = cells.with_columns(pl.col("count").sum().over(times).alias("_all"))
    half = half.group_by("site", maintain_order=True).agg(
        pl.col("line").first(),
        ((2.0 * pl.col("count") - pl.col("_all")).abs() <= 1e-6 * pl.col("_all")).all().alias("_half"),
        (pl.col("count") > 0).sum().alias("_times"),
        pl.col("count").n_unique().alias("_sums"),
        pl.col("count").max().alias("_largest"),
    )
    large = pl.col("_largest") >= _LARGEST
    found = half.filter("_half", pl.col("_times") >= _TIMES, pl.col("_sums") >= _SUMS, large)
    with_birds = cells.filter(pl.col("count") > 0)["site"].n_unique() - 1
    if found.height == 1 and with_birds >= _SITES:
        line, site = found.select("line", "site").row(0)
        why = "has the sum of all other sites at every time point"
        raise refused(line, site, why, "ask who made the table")


def site_key(site: str) -> str:
    """Return a site's name without case, blanks, accents and the zeros of a number: spreadsheets write 007 as 7 or 7.0."""
    return re.sub(r"^0+(?=\d)|(?<=\d)[.]0+$", "", "".join(plain(site).split()))


AT_ZERO = "latitude 0 and longitude 0"  # among what reads as blank


def at_zero(latitude: _Column, longitude: _Column) -> _Column:
    """Which places are 0, 0, as programs write for one that nobody knows."""
    return ((latitude == 0) & (longitude == 0)).fill_null(False)


def _first_lines(frame: pl.DataFrame, column: str) -> pl.DataFrame:
    """Return each spelling of a column, with its first ``line`` and its ``key``."""
    first = frame.group_by(column, maintain_order=True).agg(pl.col("line").first())
    return first.with_columns(key=pl.Series([site_key(name) for name in first[column]], dtype=pl.String))


def observers_alike(frame: pl.DataFrame) -> list[str]:
    """Say by their lines, since pages show warnings, that observers are perhaps one whose name is written in two ways."""
    names = _first_lines(frame, "observer")
    twice = names.filter(pl.col("key").is_duplicated()).sort("key", "line")
    if twice.is_empty():
        return []
    return [
        f"{twice.height} observers differ in case, blanks, accents or zeros only (as in lines {twice['line'][0]} and "
        f"{twice['line'][1]}): if they are one, write the name in one way, or one visit is two, each with zeros."
    ]


def settle_spellings(frame: pl.DataFrame, name: str, how: str) -> tuple[pl.DataFrame, list[str]]:
    """Join sites of a table that differ in case, blanks, accents or zeros only, or refuse, or leave them apart.

    Parameters
    ----------
    frame : with ``site`` and ``line``; ``name`` is the file's
    how : refuse, join or apart

    Raises
    ------
    InputError : such sites, when ``how`` is refuse; names both and their lines
    """
    first = _first_lines(frame, "site")
    doubled = first.filter(pl.col("key").is_duplicated() & (pl.col("key") != "")).sort("key", "line")
    if doubled.is_empty() or how == "apart":
        return frame, []
    if how == "refuse":
        one, other = doubled.head(2).rows(named=True)
        raise InputError(
            f"{name}: the site {one['site']!r} (line {one['line']}) is also written {other['site']!r} (line "
            f"{other['line']}); pass --spellings join if they are one site, or --spellings apart if they are two."
        )
    to = first.join(
        first.group_by("key", maintain_order=True).agg(pl.col("site").first().alias("_one")), on="key"
    )
    joined = frame.join(to.select("site", "_one"), on="site", how="left", maintain_order="left")
    said = f"{doubled.height} spellings of {several(doubled['key'].n_unique(), 'site')} were joined."
    return joined.with_columns(pl.col("_one").alias("site")).drop("_one"), [said]


def refuse_spellings(tables: Sequence[Projection], how: str) -> None:
    """Refuse a site that two tables write in two ways, as :func:`settle_spellings` does within one."""
    seen: dict[str, tuple[str, str]] = {}
    for table in tables if how != "apart" else ():
        for site in table.column("places", "site").unique(maintain_order=True):
            one, where = seen.setdefault(site_key(site), (site, table.meta["source"]))
            if one != site:
                raise InputError(
                    f"{table.meta['source']}: the site {site!r} is written {one!r} in {where}; write it in one way in both "
                    "(--spellings join joins within a table), or pass --spellings apart if they are two."
                )


def spelt_alike(sites: list[str]) -> list[str]:
    """Say which sites of several folders are perhaps one, written in two ways."""
    first: dict[str, str] = {}
    pairs = [(first.setdefault(site_key(site), site), site) for site in sites]
    twice = [f"{one!r} and {other!r}" for one, other in pairs if one != other]
    if not twice:
        return []
    return [
        f"sites that differ in case, blanks, accents or zeros only are two in this panel: {listed(twice, 3)}. If they are "
        "one, write them in one way."
    ]
