"""A site that is written in two ways: in one table, in two of one import, or in several records folders."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from fedmiss.errors import InputError, listed
from fedmiss.etl.columns import plain
from fedmiss.etl.projection import Projection

__all__ = ["refuse_spellings", "settle_spellings", "site_key", "spelt_alike"]


def site_key(site: str) -> str:
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
    # One row a spelling, with its first line for the message.
    first = frame.group_by("site", maintain_order=True).agg(pl.col("line").first())
    first = first.with_columns(key=pl.Series([site_key(site) for site in first["site"]], dtype=pl.String))
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
