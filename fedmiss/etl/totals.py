"""Rows of totals among the sites of a table of counts, as spreadsheets have them: they would count every bird twice."""

from __future__ import annotations

import polars as pl

from fedmiss.errors import InputError
from fedmiss.etl.columns import plain
from fedmiss.etl.sources import Source

_WORDS = frozenset(
    "total totals grandtotal summe gesamt insgesamt gesamtsumme totaal totale sumatotal razem totalt yhteensa osszesen "
    "celkem vsego itogo \u0432\u0441\u0435\u0433\u043e \u0438\u0442\u043e\u0433\u043e".split()
)
# From so many time points and so many other sites with birds, so many different sums, and a sum so large on, it is no chance
# that a site has the sum of all others.
_TIMES, _SITES, _SUMS, _LARGEST = 5, 3, 3, 10


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
        if "".join(filter(str.isalnum, plain(site))) in _WORDS:
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
