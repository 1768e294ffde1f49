"""Years whose visits seem to have been reported only where they found the species.

Such a year has no absence, or next to none, beside years that have many, and its total is that of a species found
everywhere. A single year with every visit a find is rare among honest years: finds of a year go up and down together, with
the birds, the sites and the people, so the number of finds of n visits is taken as beta-binomial, with the mean and the
correlation that the other years have. Visits are compared with those of other years at the same sites (where a page knows
sites) and in the same months of the year. The other years' own rise or fall is part of the correlation, so a species that
comes to be found everywhere is not named. Nor is a year in which the same sites were visited as often as ever, as in a
scheme of fixed sites: no visit lacks there, and birds that were everywhere are gone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy.special import betaln, chdtri, gammaln

from fedmiss.arrays import F64, I64, Bool
from fedmiss.report.changes import alert_of, over_window, windows_of
from fedmiss.report.series import MonthlySeries
from fedmiss.report.settings import ReportSettings
from fedmiss.report.words import count, per_year, share, year_list
from fedmiss.report.years import Years

NEARLY = 0.95  # share of the visits with a find, in such a year
LOWER = 0.8  # share in the other years, at most: a species found nearly everywhere has such years
FEWEST = 10  # visits of such a year, and sites that are visited in others
OTHERS = 3  # other years that tell how much years differ
CHANCE = 0.01  # of as many finds, if the year were as the others
ALIKE = 0.03  # least correlation of the visits of a year
AS_EVER = 0.4  # of what unreported absences would take: so much may visits of sites differ from other years'
DOUBT = 0.75  # the correlation is taken at this upper limit: few years tell it badly

Split = tuple[F64, F64]  # (Y, S) visits and finds of each year, by site or by month of the year


class FindsOnly(NamedTuple):
    """A year with ``visits``, of which ``finds`` found the species, and the share in the other years."""

    year: int
    visits: int
    finds: int
    others: float


def split(years: Years, month: I64, part: I64, visits: F64 | I64, finds: F64 | I64) -> Split:
    """Add up visits and finds (N,) of a ``month`` and a ``part`` (site, month of the year) by used year and part."""
    member = years.W > 0
    inside = np.asarray(member.any(axis=0))[month]
    at = member.argmax(axis=0)[month[inside]], part[inside]
    out: F64 = np.zeros((2, len(member), int(part.max(initial=0)) + 1))
    for into, values in zip(out, (visits, finds), strict=True):
        np.add.at(into, at, np.asarray(values, dtype=np.float64)[inside])
    return out[0, years.used], out[1, years.used]


def finds_only(year: I64, splits: Sequence[Split], *, by_site: bool = False) -> list[FindsOnly]:
    """Return the years (Y,) that look as if only finds had been reported; each split has all their visits.

    ``by_site``: the first split is by site, and tells whether visits lack.
    """
    if year.size <= OTHERS:
        return []
    visits, finds = (np.rint(each.sum(axis=1)) for each in splits[0])
    full = (visits >= FEWEST) & (finds >= NEARLY * visits)
    others = ~full & (visits > 0)
    if not full.any() or others.sum() < OTHERS:
        return []
    usual = float(finds[others].sum() / visits[others].sum())
    return [
        FindsOnly(int(year[at]), int(visits[at]), int(finds[at]), usual)
        for at in np.flatnonzero(full)
        if usual <= LOWER
        and all(_improbable(each, int(at), others) for each in splits)
        and not (by_site and _visited_as_ever(splits[0][0], int(at), others, 1.0 - usual))
    ]


def _visited_as_ever(visits: F64, at: int, others: Bool, without: float) -> bool:
    """Whether the sites had as many visits (Y, S) as in other years, of which a share ``without`` found nothing."""
    usual = np.median(visits[others], axis=0)
    differ = float(np.abs(visits[at] - usual).sum())
    return bool(np.count_nonzero(usual) >= FEWEST and differ <= AS_EVER * without * float(usual.sum()))


def _improbable(by: Split, at: int, others: Bool) -> bool:
    """Whether the other years, at the same sites or in the same months, make so many finds improbable."""
    visits, finds = by
    known = visits[others].sum(axis=0) > 0
    common = known & (visits[at] > 0)
    weight = visits[at]
    if visits[at, common].sum() < 0.5 * visits[at].sum():  # little in common: all that the other years have
        common, weight = known, visits[others].sum(axis=0)
    n, f = visits[others][:, common].sum(axis=1), finds[others][:, common].sum(axis=1)
    shares = finds[others][:, common].sum(axis=0) / visits[others][:, common].sum(axis=0)
    mean = float(weight[common] @ shares / weight[common].sum())
    edge = 0.5 / (float(n.sum()) + 1.0)
    mean = min(max(mean, edge), 1.0 - edge)
    return mean <= LOWER and _chance(visits[at].sum(), finds[at].sum(), mean, _alike(n, f)) < CHANCE


def _alike(n: F64, f: F64) -> float:
    """Correlation of the visits of a year: by moments, at its upper limit.

    With mean p and correlation rho the sum of n (f / n - p)^2 / (p (1 - p)) over m years has the expectation
    (1 - rho) (m - 1) + rho (N - sum n^2 / N), N the sum of n.
    """
    n, f = n[n > 0], f[n > 0]
    p, df = float(f.sum() / n.sum()), n.size - 1
    if not 0.0 < p < 1.0 or df < 1:
        return ALIKE
    scatter = float((n * (f / n - p) ** 2).sum()) / (p * (1.0 - p)) * df / float(chdtri(df, DOUBT))
    room = float(n.sum() - (n**2).sum() / n.sum()) - df
    return min(max((scatter - df) / room, ALIKE), 0.9) if room > 0 else 0.9


def _chance(n: float, f: float, p: float, rho: float) -> float:
    """Chance of at least ``f`` finds of ``n`` visits, beta-binomial of mean ``p`` and correlation ``rho``."""
    a, b = p * (1.0 / rho - 1.0), (1.0 - p) * (1.0 / rho - 1.0)
    k = np.arange(round(f), round(n) + 1, dtype=np.float64)
    logs = gammaln(n + 1) - gammaln(k + 1) - gammaln(n - k + 1) + betaln(k + a, n - k + b) - betaln(a, b)
    return float(np.exp(logs).sum())


def finds_reason(found: Sequence[FindsOnly], series: MonthlySeries, settings: ReportSettings) -> str | None:
    """Say why no class is given: without these years the trend of all years, or of a window, has another class or alert."""
    years = series.years
    doubted = np.isin(years.year, [each.year for each in found]) & years.used
    if not doubted.any():
        return None
    used = years.year[years.used]
    first, last = int(used[0]), int(used[-1])
    without = series.without(doubted)
    for start in (first, *windows_of(used).values()):
        if _told(series, (start, last), settings) != _told(without, (start, last), settings):
            named = year_list([str(year) for year in years.year[doubted]])
            return (
                f"the class or an alert depends on {named}, when next to no visit without a find was reported"
            )
    return None


def _told(series: MonthlySeries, span: tuple[int, int], settings: ReportSettings) -> tuple[str, str]:
    """The class and the alert of the years of a span."""
    row = series.trend(rule=settings.rule, years=span, convention=settings.convention).iloc[0]
    steps = int(row["to_year"]) - int(row["from_year"])
    change, high = (over_window(row[name], steps) for name in ("percent_per_year", "percent_hi"))
    return str(row["trend_class"]), "" if row["reason"] else alert_of(change, high)


def trend_without(found: Sequence[FindsOnly], series: MonthlySeries, settings: ReportSettings) -> pd.Series:
    """The trend of the years but these, the columns of ``overall_trend``."""
    rest = series.without(np.isin(series.years.year, [each.year for each in found]))
    return rest.trend(rule=settings.rule, convention=settings.convention).iloc[0]


def finds_caution(
    found: Sequence[FindsOnly], series: MonthlySeries, settings: ReportSettings
) -> Iterator[str]:
    """Name the years, what is odd about them, what the trend is without them, and what to do."""
    if not found:
        return
    years = " ".join(
        f"{count(each.finds)} of {count(each.visits)} visits of {each.year} found the species, of those of other years "
        f"{share(each.others)}."
        for each in found
    )
    rest, without = trend_without(found, series, settings), ""
    if np.isfinite(rest["percent_lo"]):
        change = per_year(rest["percent_per_year"], rest["percent_lo"], rest["percent_hi"])
        without = f"Without {'this year' if len(found) == 1 else 'these years'} the trend would be {change}. "
    yield (
        f"{years} Visits without a find seem not to have been reported then, which makes the total too high. {without}Check "
        "whether these visits were complete lists. If not, mark them as incomplete and import with --complete, or import "
        "the other years alone (--year)."
    )
