"""Sites that were taken up or given up because of the birds: what no count can say, and what the trend could then be.

Counts say nothing of a site before its first visit and after its last one; the model says what it held by its later or
earlier counts, and what the other sites did. That is wrong where people began to go because the birds had come, or stopped
because they had left. Two patterns show in the data: sites found empty in their last year far more often than before (or
found in their first far more often than later); and a large part of the sites that nobody visited in the first years,
at which the birds were there as soon as people were. The second is what every growing scheme has whose sites are
chosen freely: then it is said by the setting ``free_sites``, or shown by complete checklists, which are not made for one
species.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pandas as pd

from fedmiss.arrays import F64, I64, Bool
from fedmiss.report.coverage import in_years
from fedmiss.report.series import MonthlySeries
from fedmiss.report.slopes import log_slope
from fedmiss.report.words import count, percent, share

if TYPE_CHECKING:
    from fedmiss.report.inputs import ReportInputs
    from fedmiss.report.settings import ReportSettings

FIRST, LAST = "first visits", "last visits"
# part of the years, and least number of them, that make a first visit late or a last one early
EDGE, EDGE_YEARS = 0.25, 2
MANY = 0.4  # part of the sites with a late first visit from which the trend rests on them
MATTERS = 0.01  # difference, log per year, that what they held makes to the trend
AS_LATER = 0.7  # found in the first year at least so often, in relation to later years: no sign that the birds came later
# a difference of shares that is clear: its size, in standard errors, sites
EXCESS, ERRORS, FEWEST = 0.25, 3.0, 10
CHECKLISTS = 0.5  # part of complete checklists from which visits are taken to be made for all species


class Entry(NamedTuple):
    """Late first visits, or early last ones.

    ``year`` a first visit in it or later is late, a last one in it or before is early; ``n_sites`` of ``sites`` visited
    ones; ``share`` of the total of the years before (after) it that the model expects at them; ``found`` part of them where
    the species was found in the first (last) year with a visit, ``otherwise`` mean of the part of their other years;
    ``slope_if`` log per year, of the total if they had no birds before the first visit, where it found some (after the last
    one, where it found none), NaN where nothing would be left; ``clear`` whether the page says so.
    """

    what: str
    year: int
    n_sites: int
    sites: int
    share: float
    found: float
    otherwise: float
    slope_if: float
    clear: bool

    @property
    def percent_if(self) -> float:
        """``slope_if`` in per cent a year."""
        return 100.0 * math.expm1(self.slope_if)


def entries(data: ReportInputs, series: MonthlySeries, settings: ReportSettings) -> list[Entry]:
    """Return what is known of late first visits and of early last ones, where there are such sites."""
    used = series.years.used
    year = series.years.year[used]
    if year.size < 2 * EDGE_YEARS + 1:
        return []
    member = series.years.W[used] > 0
    at = data.cells["site_index"], data.cells["month_index"]
    visits, finds = np.zeros((2, *data.expected.shape), dtype=bool)
    visits[at], finds[at] = data.cells["n_visits"] > 0, data.cells["n_detected"] > 0
    visited, found = in_years(visits, member), in_years(finds, member)
    total: F64 = data.expected @ series.years.W[used].T
    # Complete lists are made for all species: who makes one did not choose the site for this species.
    lists: float = data.fact("share_complete", default=0.0) * data.fact("implied_zeros", default=False)
    free = settings.free_sites or lists >= CHECKLISTS
    back = np.s_[:, ::-1]  # last visits are first visits of the years in reverse
    both = (
        _entry(FIRST, year, visited, found, total, free=free),
        _entry(LAST, year[::-1], visited[back], found[back], total[back], free=True),
    )
    return [entry for entry in both if entry is not None]


def entry_table(found: Sequence[Entry]) -> pd.DataFrame:
    """Return the table ``entries``: a row for each, by the names of :class:`Entry`."""
    types = dict.fromkeys(("year", "n_sites", "sites"), "int32") | dict.fromkeys(
        ("share", "found", "otherwise", "slope_if"), "float64"
    )
    return pd.DataFrame(found, columns=Entry._fields).astype(types | {"clear": "bool"})


def _entry(what: str, year: I64, visited: Bool, found: Bool, total: F64, *, free: bool) -> Entry | None:
    """One of the two; for last visits the years come in the reverse order."""
    edge = max(EDGE_YEARS, math.ceil(EDGE * year.size))
    went = visited.any(axis=1)
    # argmax of a mask is the first true year; sites without a visit get year 0, which is never late.
    first = np.where(went, visited.argmax(axis=1), 0)
    late = first >= edge
    if not late.any():
        return None
    there = found[late, first[late]]
    others = visited[late].sum(axis=1) - 1
    rest = (found[late].sum(axis=1) - there)[others > 0] / others[others > 0]
    # empty before a first visit that found the birds, or after a last one that did not
    empty = (np.arange(year.size) < first[late, None]) & (there == (what == FIRST))[:, None]
    # The total if these sites had been empty: what the model expects there in those years is taken off.
    left: F64 = total.sum(axis=0) - np.where(empty, total[late], 0.0).sum(axis=0)
    known = (left > 1e-9 * total.sum(axis=0)).all()
    slope = float(log_slope(year, left)) if known else math.nan
    part = float(total[late, :edge].sum() / max(total[:, :edge].sum(), 1e-300))
    now, otherwise = float(there.mean()), float(rest.mean()) if rest.size else math.nan
    # Paired by site: found in the first (not in the last) year more often than in the site's other years.
    more = (there[others > 0] - rest) * (1.0 if what == FIRST else -1.0)
    error = float(more.std(ddof=1)) / math.sqrt(more.size) if more.size > 1 else math.inf
    differs = more.size >= FEWEST and float(more.mean()) >= max(EXCESS, ERRORS * error)
    matters = not known or abs(slope - float(log_slope(year, total.sum(axis=0)))) >= MATTERS
    many = FEWEST <= late.sum() >= MANY * went.sum() and matters
    carried = many and not free and not now < AS_LATER * otherwise
    clear = differs or carried
    return Entry(what, int(year[edge]), int(late.sum()), int(went.sum()), part, now, otherwise, slope, clear)


def entry_reason(found: Sequence[Entry], lo: float, hi: float) -> str | None:
    """Say why no class is given: with empty sites before (after) the visits the trend would be outside of its interval."""
    for entry in found:
        if entry.clear and math.isfinite(lo) and not lo <= entry.percent_if <= hi:
            when = f"first visited in {entry.year} or later"
            when = when if entry.what == FIRST else f"last visited in {entry.year} or before"
            return (
                f"{entry.n_sites} of {entry.sites} sites were {when}, and the class depends on what they held "
                "when nobody went"
            )
    return None


def entry_cautions(found: Sequence[Entry], unit: str) -> Iterator[str]:
    """Say what the trend would be if first visits followed arrivals, or last ones losses, where the counts allow for it."""
    for entry in found:
        if not entry.clear:
            continue
        known = math.isfinite(entry.slope_if)
        then = f"{percent(entry.percent_if)} per year" if known else "not to be told from the counts"
        sites = f"{count(entry.n_sites)} of {count(entry.sites)} sites were"
        if entry.what == LAST:
            yield (
                f"{sites} last visited in {entry.year} or before: {share(entry.found)} of them had {unit} in the last year, "
                f"{share(entry.otherwise)} in the years before. Sites seem to be given up when they are empty. "
                f"If they stayed empty, the trend is {then}."
            )
        else:
            yield (
                f"{sites} first visited in {entry.year} or later, and {share(entry.found)} of them had {unit} "
                "in the first year. Of "
                f"the total of the years before, {share(entry.share)} is what the model expects there. If "
                "sites were taken up "
                f"because the {unit} had come, the trend is {then}. If sites are chosen freely, say so (--free-sites)."
            )
