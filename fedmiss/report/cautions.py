"""Sentences about thin and strange data: only what holds for these data, each with its number."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from fedmiss.arrays import F64, I64, Bool
from fedmiss.report.analysis import Analysis
from fedmiss.report.coverage import groups_apart
from fedmiss.report.entries import entry_cautions
from fedmiss.report.findings import Findings
from fedmiss.report.finds import finds_caution
from fedmiss.report.settings import Least
from fedmiss.report.words import count, left_out, number, percent, records, share, year_list

COUNT_CARRIES = 0.25  # share of all that was counted, in one site-month
LEAST_MOVED = 1.0  # per cent of the trend a year that finds without a number are worth
SEASON_MOVED = 0.4  # share of the counts that would have to be moved to other months of the year
PARTS_NAMED = 5
NONE_FOUND = 3  # years in a row, at either end
FELL = 0.1  # of the median total of years with finds: below it a year without one is named by itself
SITE_CARRIES = 0.5  # share of the fitted total at one site


def cautions(analysis: Analysis) -> list[str]:
    """Return every sentence, the most serious first."""
    return [
        *_uncounted(analysis),
        *entry_cautions(analysis.entries, analysis.unit),
        *carried(analysis),
        *finds_caution(analysis.finds_only, analysis.series, analysis.settings),
        *_pooled(analysis),
        *moved_season(analysis, analysis.data.n_observed),
        *_thin_years(analysis),
        *none_found(
            analysis, np.asarray(analysis.data.found.any(axis=0)), analysis.monthly["visits"].to_numpy()
        ),
        *biased_visits(analysis),
    ]


def asked(analysis: Analysis) -> tuple[Least, Least]:
    """Return the least counts of a year of the index, and of the base year."""
    of = analysis.coverage.n_sites, len(analysis.years.season)
    return analysis.settings.least.of(*of), analysis.settings.least.base.of(*of)


def least_words(analysis: Analysis) -> str:
    """Say what a year needs to enter index and trend, and to be the base."""
    year, base = asked(analysis)
    return (
        f"A year enters index and trend when at least {_counts(analysis, year)} were counted in it; the base, when none is "
        f"named, is the first year with at least {_counts(analysis, base)}, and with a find."
    )


def _counts(analysis: Analysis, least: Least) -> str:
    cells = f"{least.cells} {analysis.cell}{'s' if least.cells != 1 else ''}"
    return f"{cells} at {least.sites} site{'s' if least.sites != 1 else ''}"


def _thin_years(analysis: Analysis) -> Iterator[str]:
    """Name the years that have too few counts, and a base that is not the first year for want of them."""
    yearly = analysis.yearly
    if analysis.coverage.n_detected == 0:
        return
    few = yearly["complete"] & ~yearly["used"] & (yearly["cells_observed"] > 0)
    thin, used = yearly.loc[few, "year"], yearly.loc[yearly["used"], "year"]
    for said in left_out(thin, "has", "have", f"fewer than {_counts(analysis, asked(analysis)[0])} counted"):
        shorter = len(used) and (thin.min() < used.min() or thin.max() > used.max())
        yield f"{said} What is said is of {used.min()} to {used.max()}." if shorter else said
    if analysis.settings.base is None and analysis.base is not None:
        least, earlier = asked(analysis)[1], yearly["used"] & (yearly["year"] < int(analysis.base))
        before = [str(each) for each in yearly.loc[earlier, "year"]]
        why = f"{year_list(before)} {'has' if len(before) == 1 else 'have'} fewer"
        at = yearly["year"] == int(analysis.base)
        enough = (yearly["cells_observed"] >= least.cells) & (yearly["sites_observed"] >= least.sites)
        if (enough & earlier).any():
            why = "years before it have fewer, or found none"
        if (enough & at).any():
            yield f"The base is {analysis.base}, the first year with enough counts for one; {why}."
        else:
            yield (
                f"The base is {analysis.base}, the first year that found the species; no year that found it has enough "
                "counts for one."
            )


def none_found(findings: Findings, found: Bool, visits: F64 | I64) -> Iterator[str]:
    """Say it when the first or the last years, or a year that fell, found nothing: logarithms of such totals are arbitrary.

    ``found`` (L,) whether a visit of a month found the species, ``visits`` (L,) its visits.
    """
    used, member = findings.years.year[findings.years.used], findings.years.W[findings.years.used] > 0
    found = np.asarray((member & found).any(axis=1))
    if not found.any():
        return
    visits, totals = member @ visits, findings.series.yearly[findings.years.used]
    fell = ~found & (totals < FELL * float(np.median(totals[found])))
    for part in (slice(0, int(found.argmax())), slice(used.size - int(found[::-1].argmax()), used.size)):
        if used[part].size >= NONE_FOUND:
            fell[part] = False
            yield (
                f"None of the {count(visits[part].sum())} visits of {used[part][0]} to {used[part][-1]} found the species: "
                "how near to 0 the totals of these years are is the model's guess, and so is the change per year in them."
            )
    if fell.any():
        yield (
            f"None of the {count(visits[fell].sum())} visits of {year_list([str(year) for year in used[fell]])} found the "
            "species: how near to 0 the total came then is the model's guess, and the change per year depends on it. Check "
            "whether these zeros are true."
        )


def _uncounted(analysis: Analysis) -> Iterator[str]:
    coverage = analysis.coverage
    without = coverage.n_visits - coverage.n_counted if coverage.birds_counted else coverage.n_detected
    yield from uncounted(analysis, without, coverage.n_detected, coverage.uncounted_slope)


def uncounted(findings: Findings, without: int, found: int, slope: float) -> Iterator[str]:
    """Say it of ``found`` visits that found the species, of which ``without`` have no number.

    ``slope`` is what these add to that of log totals, per year.
    """
    if not without or not found:
        return
    moved = 100 * math.expm1(slope)
    presence = findings.data.fact("family") == "bernoulli"
    if without >= found:
        shown = "What is shown is at how many sites a visit finds the species." if presence else ""
        yield (
            f"None of the {count(found)} visits that found the species has a number (all are X, present but "
            f"not counted): nothing can be said of numbers. {shown or 'Ask for presence (model bernoulli).'}"
        )
    elif not presence and abs(moved) >= LEAST_MOVED:
        yield (
            f"{count(without)} of the {count(found)} visits that found the species have no number (X). Nothing takes their "
            "place, and visits without a find count as 0, so their share, which changed, moves the trend by about "
            f"{percent(moved)} per year. Compare presence (--model bernoulli)."
        )


def absences(n_zeros: int, n_visits: int) -> Iterator[str]:
    """Say it when no visit, or next to none, records an absence."""
    zero_share = n_zeros / n_visits if n_visits else 0.0
    if n_zeros == 0:
        yield (
            "No visit in this panel records an absence. The numbers describe sites where birds were found and counted: "
            "a site that birds left looks like a site nobody visited, so a decline by desertion of sites would be missed "
            "and totals of such sites are too high."
        )
    elif zero_share < 0.02:
        yield f"Only {share(zero_share)} of the visits record an absence, so sites without birds are hardly known."


def moved_season(findings: Findings, n_observed: F64 | I64) -> Iterator[str]:
    """Say it when the later years were counted in other months than the earlier ones; ``n_observed`` (L,) counts."""
    year = findings.years.of_month
    used = findings.years.year[findings.years.used]
    if used.size < 2 or len(findings.years.season) < 2:
        return
    half = used[used.size // 2]
    moy = findings.data.months["month_of_year"].to_numpy()
    early, late = (
        np.bincount(moy[inside], weights=n_observed[inside], minlength=13)
        for inside in (np.isin(year, used[used < half]), np.isin(year, used[used >= half]))
    )
    if not early.sum() or not late.sum():
        return
    # Total variation distance of the two distributions over months: the share that would have to change its month.
    moved = 0.5 * float(np.abs(early / early.sum() - late / late.sum()).sum())
    if moved >= SEASON_MOVED:
        yield (
            f"From {half} on, {share(round(moved, 3))} of the counts lie in other months of the year than before. The model "
            "separates season and trend only by what both periods have in common, so the trend may be that of the season."
        )


def _place(analysis: Analysis, row: Any) -> str:
    if analysis.settings.coarse_map:
        return "one site (its name is withheld)"
    return f"the site {analysis.site_names[row.site_index]}"


def carried(analysis: Analysis) -> Iterator[str]:
    """Name the count, or the site, that carries the result."""
    rows = {row.what: row for row in records(analysis.influential)}
    top = rows.get("largest count")
    if top is not None and top.share >= COUNT_CARRIES and analysis.coverage.n_detected > 1:
        when = top.month[:4] if analysis.yearly_counts else top.month
        yield (
            f"{share(top.share)} of all {analysis.settings.unit} counted are from {_place(analysis, top)} in "
            f"{when}. If that count is a mistake, the result is one: check it first."
        )
    site = rows.get("largest site")
    if site is not None and site.share >= SITE_CARRIES:
        place = _place(analysis, site)
        yield (
            f"{place[0].upper()}{place[1:]} holds {share(site.share)} of the total over all sites and years: index and "
            "trend are mostly its own."
        )
    shift, trend = rows.get("trend without"), analysis.trend
    if shift is None or trend["n_years"] < 3:
        return
    if abs(shift.slope_without - trend["slope"]) > trend["slope_se"]:
        yield (
            f"Without {_place(analysis, shift)} the totals would change by {percent(100 * math.expm1(shift.slope_without))} "
            f"per year instead of {percent(trend['percent_per_year'])}: the trend rests on that site."
        )


def _pooled(analysis: Analysis) -> Iterator[str]:
    """Say that one trend is given for groups that have no region in common, and which they are."""
    parts = groups_apart(analysis.data)
    if not parts:
        return
    named = "; ".join(
        f"{_some(groups)} in {_some(regions)} ({share(weight)} of the total)"
        for groups, regions, weight in parts[:PARTS_NAMED]
    )
    more = f"; and {len(parts) - PARTS_NAMED} more" if len(parts) > PARTS_NAMED else ""
    yield (
        f"The groups fall into {len(parts)} parts that have no region in common: {named}{more}. The one trend above is of "
        "their sum, so it is mostly that of the largest; nothing links the others to it but the model. Read them by region."
    )


def _some(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


# By what is compared: what is said of a positive correlation, and of a negative one.
_BIASED = {
    "visits and birds": (
        "Sites with more {unit} were visited more often ({rho}): people went where they expected them, so totals of {cell}s "
        "without a count may be too high.",
        "Sites with fewer {unit} were visited more often ({rho}): what is known best is not where most {unit} are.",
    ),
    "visits and trend": (
        "Sites that were visited more have the better fitted trends ({rho}): where visits follow success, the trend over "
        "all sites is too high.",
        "Sites that were visited more have the worse fitted trends ({rho}): the trend of sites that are hardly visited is "
        "the model's guess.",
    ),
    "first visit and trend": (
        "Sites that were first visited later have the better fitted trends ({rho}): people may have begun to go where "
        "{unit} had come, and what was there before is the model's guess. The true trend may be higher.",
        "Sites that were first visited later have the worse fitted trends ({rho}): people may have begun to go where "
        "{unit} were most, and what was there before is the model's guess. The true trend may be lower.",
    ),
    "last visit and trend": (
        "Sites whose last visit is longer ago have the worse fitted trends ({rho}): sites that {unit} were leaving may have "
        "been given up, and what became of them is the model's guess. The true trend may be lower.",
        "Sites whose last visit is longer ago have the better fitted trends ({rho}): what became of them is the model's "
        "guess. The true trend may be higher.",
    ),
}


def biased_visits(analysis: Analysis) -> list[str]:
    """Say what a clear pattern of visits does to the numbers."""
    return [
        _BIASED[visit.compared][0 if visit.correlation > 0 else 1].format(
            unit=analysis.settings.unit,
            cell=analysis.cell,
            rho=f"rank correlation {number(visit.correlation, 2)} over {count(visit.n_sites)} sites",
        )
        for visit in records(analysis.visits)
        if visit.clear
    ]
