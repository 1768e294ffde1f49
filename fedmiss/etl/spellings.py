"""A site (or observer) that is written in two ways: in one table, in two of one import, or in several records folders."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from fedmiss.errors import InputError, listed
from fedmiss.etl.columns import plain
from fedmiss.etl.projection import Projection


def site_key(site: str) -> str:
    """Return a site's name without case, blanks and accents."""
    return "".join(plain(site).split())


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
        f"{twice.height} observers differ in case, blanks or accents only (as in lines {twice['line'][0]} and "
        f"{twice['line'][1]}): if they are one, write the name in one way, or one visit is two, each with zeros."
    ]


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
    said = f"{doubled.height} spellings of {doubled['key'].n_unique()} sites were joined."
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
        f"sites that differ in case, blanks or accents only are two in this panel: {listed(twice, 3)}. If they are one, "
        "write them in one way."
    ]
