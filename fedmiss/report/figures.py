"""The figures of a report. Each takes the analysis and returns a Plot, or None when there is nothing to draw.

This module, ``fit_figures``, ``maps`` and ``basemap`` load matplotlib, which takes a second: only what draws imports them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator, PercentFormatter
from numpy.typing import ArrayLike

from fedmiss.report.analysis import Analysis
from fedmiss.report.changes import smooth_index
from fedmiss.report.findings import Findings
from fedmiss.report.fit_figures import convergence, cross_validation
from fedmiss.report.maps import heatmap, site_map
from fedmiss.report.plots import band, bars, base_line, broken, index_line
from fedmiss.report.style import BLUE, GREY, INK, ORANGE, PEACH, SKY, Plot, axes, figure, lay_out, style
from fedmiss.report.words import (
    MINUS,
    count,
    marks,
    number,
    per_year,
    percent,
    records,
    share,
    with_limits,
    year_list,
)
from fedmiss.report.years import MONTH_NAMES, season_text
from fedmiss.seasons import along_season

A = TypeVar("A", bound=Findings)


def all_figures(analysis: Analysis) -> dict[str, Plot]:
    """Draw every figure that the data allow, in the order of the page."""
    makers: Sequence[Callable[[Analysis], Plot | None]] = (
        trend, smoothed, beside, monthly_smooth, season, weeks, heatmap, site_map, regions, cross_validation, convergence,
    )  # fmt: skip
    return _drawn(analysis, makers)


def joint_figures(findings: Findings) -> dict[str, Plot]:
    """Draw every figure that needs no site, in the order of the page."""
    return _drawn(findings, (trend, smoothed, monthly_smooth, season, regions, cross_validation))


def _drawn(found: A, makers: Sequence[Callable[[A], Plot | None]]) -> dict[str, Plot]:
    with style():
        plots = [plot for plot in (make(found) for make in makers) if plot is not None]
        for plot in plots:
            lay_out(plot.figure)
    return {plot.name: plot for plot in plots}


def _thousands(ax: Axes, whole: bool = False) -> None:
    ax.yaxis.set_major_locator(MaxNLocator(5, min_n_ticks=3, steps=[1, 2, 5, 10], integer=whole))
    ax.yaxis.set_major_formatter(lambda v, _: f"{v:,.10g}".replace("-", MINUS))


def _years_axis(ax: Axes, years: ArrayLike) -> None:
    ax.xaxis.set_major_locator(MaxNLocator(7, integer=True, min_n_ticks=2))
    if np.size(years) == 1:
        ax.set_xticks([int(np.min(years))])
    ax.set_xlim(float(np.min(years)) - 0.7, float(np.max(years)) + 0.7)


def _end_axis(ax: Axes, index: ArrayLike, high: ArrayLike) -> str:
    """End the axis of an index where its intervals do, but not far above it, where nobody would see it; say so."""
    largest = float(np.nanmax(np.append(index, 100.0)))  # no year may have an index
    most, top = 5.0 * largest, max(largest, float(np.nanmax(np.append(high, 100.0))))
    ax.set_ylim(0, min(top * 1.08, most))
    beyond = " The axis ends at five times the largest index; intervals go on beyond it."
    return beyond if top > most else ""


def trend(findings: Findings) -> Plot:
    """Draw the yearly index with its interval and straight trend; below it, what the index rests on.

    Where no year has an index there is only the lower panel.
    """
    # Of several organisations' cells nothing is known, only their visits.
    by_cell = "cells" in findings.yearly
    support = ["cells_observed", "cells", "imputed_share"] if by_cell else ["visits"]
    table = findings.yearly[["year", "used", "index", "index_lo", "index_hi", *support]]
    used = table[table["used"]]
    rests = f"{findings.data.rests_on}, in the season of each year."
    if by_cell:
        rests = (
            f"share of each year's total that comes from {findings.cell}s without a count (bars), and share of "
            f"the {findings.cell}s with a count (dots)."
        )
    if left_out := [str(each) for each in table.loc[~table["used"], "year"]]:
        # Visits that a study withheld are not known: such a year has no bar.
        pale = by_cell or bool((table.loc[~table["used"], "visits"] > 0).all())
        rests += f" {'Pale bars, n' if pale else 'N'}ot in the trend: {year_list(left_out)}."
    if used.empty:
        fig = figure(height=2.2)
        _draw_support(fig.subplots(), table)
        caption = f"{findings.no_index}. {rests[0].upper()}{rests[1:]}"
        alt = "Yearly index: no year has one."
        return Plot("trend", "What there is of each year", caption, alt, fig, table)
    fig = figure(height=4.6)
    top, low = fig.subplots(2, 1, sharex=True, height_ratios=[3, 1.15])
    beyond = _draw_index(top, findings, table, used)
    _draw_support(low, table)
    base, row, last = str(findings.trend["base"]), findings.trend, used.iloc[-1]
    caption = ""
    if base:
        season = "" if findings.yearly_counts else f" ({season_text(findings.years.season)})"
        where = f"over all {count(findings.n_sites)} sites" if findings.n_sites != 1 else "of the one site"
        caption = f"Index of the mean total {where}{season}, {base} = 100. "
    if used["index_lo"].notna().any():
        caption += "Bars: 95 % interval of each year's index. "
    elif not findings.n_draws:
        caption += "No interval: no bootstrap replicates. "
    drawn = _has_line(findings, used)
    caption += f"{'Orange: straight trend on the log scale. ' if drawn else ''}Below: {rests}{beyond}"
    least, most = table[support[-1]].agg(["min", "max"])
    below = f"{share(least)} to {share(most)} of a year's total is imputed."
    below = below if by_cell else f"{count(least)} to {count(most)} visits a year."
    trend = (
        f"; trend {per_year(row['percent_per_year'], row['percent_lo'], row['percent_hi'])}" if drawn else ""
    )
    alt = (
        f"Line of the yearly index from {int(used['year'].iloc[0])} to {int(last['year'])}: it ends at "
        f"{number(last['index'])} with {base} = 100{trend}. Bars below: {below}"
    )

    def said(row: Any) -> str:
        index = f"index {with_limits(row.index_, row.index_lo, row.index_hi)}" if row.used else "no index"
        rests = f"{share(row.imputed_share)} imputed" if by_cell else f"{count(row.visits)} visits"
        return f"{row.year}: {index}; {rests}"

    return Plot("trend", "Yearly index and trend", caption, alt, fig, table, marks(table, "year", said))


def _has_line(findings: Findings, used: pd.DataFrame) -> bool:
    """Whether the figure shows a trend: of two years or more, and with an interval where intervals were asked for."""
    known = np.isfinite(findings.trend["percent_lo"])
    return bool(len(used) >= 2 and np.isfinite(findings.trend["slope"]) and (known or not findings.n_draws))


def _draw_index(ax: Axes, findings: Findings, table: pd.DataFrame, used: pd.DataFrame) -> str:
    year = used["year"].to_numpy(dtype=float)
    index_line(ax, table, str(findings.trend["base"]))
    base_line(ax)
    row = findings.trend
    known = np.isfinite(row["percent_lo"])
    if _has_line(findings, used):
        level = np.log(used["index"]).mean()
        line = np.exp(level + row["slope"] * (year - year.mean()))
        ax.plot(year, line, color=ORANGE, lw=1.6)
        limits = f" ({percent(row['percent_lo'])} to {percent(row['percent_hi'])})" if known else ""
        ax.set_title(f"trend {percent(row['percent_per_year'])} per year{limits}", color=ORANGE, loc="right")
    beyond = _end_axis(ax, used["index"], used["index_hi"])
    _thousands(ax)
    return beyond


def _draw_support(ax: Axes, table: pd.DataFrame) -> None:
    height = table["visits" if "visits" in table else "imputed_share"]
    ax.bar(table["year"], height, color=np.where(table["used"], GREY, "#dddddd"), width=0.7)
    if "visits" in table:
        ax.set_ylabel("visits")
        _thousands(ax, whole=True)
    else:
        counted = table["cells_observed"] / table["cells"]
        ax.plot(table["year"], counted, ls="none", marker="o", ms=3.5, color=INK, clip_on=False)
        ax.set_ylim(0, 1)
        ax.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        ax.set_ylabel("imputed (bars)\ncounted (dots)")
    _years_axis(ax, table["year"])


def smoothed(findings: Findings) -> Plot | None:
    """Draw the smoothed yearly index with its band, and the index of each year as dots."""
    table = smooth_index(findings)
    if table.empty:
        return None
    fig, ax = axes(height=4.6)
    year = table["year"].to_numpy(dtype=float)
    band(ax, year, table["smooth_lo"], table["smooth_hi"])
    ax.plot(year, table["index"], ls="none", marker="o", ms=4, color=GREY)
    ax.plot(year, table["smooth"], color=BLUE, lw=2.2)
    base_line(ax)
    beyond = _end_axis(ax, table[["index", "smooth"]], table["smooth_hi"])
    ax.set_ylabel(f"index ({findings.trend['base']} = 100)")
    _thousands(ax)
    _years_axis(ax, year)
    first, last = table.iloc[0], table.iloc[-1]
    caption = (
        f"The curve follows the index (dots) over {'all' if len(table) <= 10 else 'about ten'} years at a time and "
        "leaves out the ups and downs of single years. Shaded: its 95 % interval where available. Its ends are the least "
        "certain part. It need not pass through "
        f"100 in the base year: a single year lies above or below the years around it.{beyond}"
    )
    alt = (
        f"Smoothed index: {number(first['smooth'])} in {int(first['year'])}, {number(last['smooth'])} in "
        f"{int(last['year'])}, with {findings.trend['base']} = 100."
    )

    def said(row: Any) -> str:
        smooth = with_limits(row.smooth, row.smooth_lo, row.smooth_hi)
        return f"{row.year}: smoothed {smooth}; index {number(row.index_)}"

    return Plot("smoothed", "Smoothed index", caption, alt, fig, table, marks(table, "year", said))


def beside(analysis: Analysis) -> Plot | None:
    """Draw TRIM's index beside ours, when the report asks for it and TRIM's model can be fitted."""
    both = analysis.beside
    if both is None or both.table.empty:
        return None
    table = both.table
    fig, ax = axes(height=3.2)
    year = table["year"].to_numpy(dtype=float)
    half = 1.96 * table["trim_se"]
    bars(ax, year - 0.12, table["index_lo"], table["index_hi"])
    bars(ax, year + 0.12, np.maximum(table["trim"] - half, 0), table["trim"] + half, PEACH)
    # lines break where years are left out
    every = table.set_index("year").reindex(range(int(year.min()), int(year.max()) + 1))
    ax.plot(every.index - 0.12, every["index"], "o-", color=BLUE, ms=4, lw=1.2, label="fedmiss")
    ax.plot(every.index + 0.12, every["trim"], "s-", color=ORANGE, ms=3.5, lw=1.2, label="TRIM, model 3")
    highs = np.append(table["index_hi"], table["trim"] + half)
    beyond = _end_axis(ax, table[["index", "trim"]], highs)
    ax.set_ylabel(f"index ({analysis.trend['base']} = 100)")
    # above the bars
    ax.legend(frameon=False, fontsize=8.5, loc="lower right", bbox_to_anchor=(1, 1), ncols=2)
    _thousands(ax)
    _years_axis(ax, year)
    taken = "share of visits with a find" if analysis.data.fact("family") == "bernoulli" else "mean count"
    caption = (
        f"The same counts in TRIM's model 3: {both.trend}. TRIM takes the {taken} of every {analysis.cell}, without "
        f"effort, observers, or trends that differ between sites. Bars are 95 % intervals.{beyond}"
    )
    alt = f"Two yearly indices: fedmiss and TRIM. TRIM: {both.trend}."
    return Plot("beside", "TRIM beside fedmiss", caption, alt, fig, table)


def monthly_smooth(findings: Findings) -> Plot | None:
    """Draw the paper's figure 2: total over sites per month with LOESS, and missing cells per month with LOESS."""
    if findings.yearly_counts or not findings.found:  # the smoothed index says it already; nothing was found
        return None
    curve = findings.curve
    fig = figure(height=4.8)
    top, low = fig.subplots(2, 1, sharex=True, height_ratios=[1.6, 1])
    time = curve["time"].to_numpy()
    top.plot(time, curve["total"], ls="none", marker="o", ms=2.2, color=GREY, mew=0, alpha=0.8)
    # No curve outside the season: the line connects across these months.
    solid = curve.dropna(subset=["smooth"])
    if curve["smooth_lo"].notna().any():
        top.fill_between(solid["time"], solid["smooth_lo"], solid["smooth_hi"], color=SKY, alpha=0.4, lw=0)
    top.plot(solid["time"], solid["smooth"], color=BLUE, lw=2)
    top.set_ylabel(f"{findings.unit}, all sites")
    bound = np.nanquantile(curve["total"], 0.995) * 1.25
    hidden = int((curve["total"] > bound).sum())
    top.set_ylim(min(0.0, float(np.nanmin(curve["total"]))), bound if hidden else None)
    _thousands(top)
    low.plot(time, curve["missing"], ls="none", marker="o", ms=2.2, color=GREY, mew=0, alpha=0.8)
    below = curve.dropna(subset=["missing_smooth"])
    low.plot(below["time"], below["missing_smooth"], color=ORANGE, lw=2)
    cells = "missing" in findings.monthly
    low.set_ylabel("sites without\na count" if cells else "visits")
    least, most = float(curve["missing"].min()), float(curve["missing"].max())
    margin = 0.15 * (most - least) + 1
    low.set_ylim(max(0.0, least - margin), most + margin)
    _thousands(low, whole=True)
    _years_axis(low, time)
    span = curve.attrs["span"]
    how = "chosen by leaving out whole years" if curve.attrs["span_chosen"] else "as set"
    extra = f" Not drawn, above the frame: {hidden} month{'s' if hidden > 1 else ''}." if hidden else ""
    what, filled = ("sites without", ": what the estimate had to fill") if cells else ("visits with", "")
    caption = (
        "Above: estimated total over sites of each month at standard effort (dots), and of an average month its LOESS curve "
        f"(span {span:g}, {how}; {curve.attrs['it']} robust iterations) with its 95 % interval where available. Below: "
        f"number of {what} a count in each month, and its LOESS curve{filled}.{extra}"
    )
    alt = "Monthly totals with a LOESS curve"
    if len(solid):
        (start, first), (end, last) = solid[["month", "smooth"]].iloc[[0, -1]].to_numpy()
        alt += f" from {number(first)} {findings.unit} in {start} to {number(last)} {findings.unit} in {end}"
    what, of = ("sites without a count", f" of {count(findings.n_sites)}") if cells else ("visits", "")
    alt += f"; below, {what} per month, between {count(least)} and {count(most)}{of}."
    title = "Monthly totals and missing cells" if cells else "Monthly totals and visits"
    said = marks(curve, "time", lambda r: f"{r.month}: {number(r.total)} {findings.unit}")
    return Plot("monthly", title, caption, alt, fig, curve, said)


def season(findings: Findings) -> Plot | None:
    """Draw the seasonal profile: mean total of each month of the year."""
    profile = findings.season
    if len(profile) < 2 or not profile["n_years"].any():
        return None
    fig, ax = axes(height=4.8)
    used = findings.monthly[np.isin(findings.years.of_month, findings.years.year[findings.years.used])]
    ends = used.groupby("month_of_year")["total"].agg(low_year="min", high_year="max")
    profile = profile.merge(ends, left_on="month_of_year", right_index=True, how="left")
    month = along_season(profile["month_of_year"])
    profile, month = profile.iloc[np.argsort(month)], np.sort(month)
    x, least, most = broken(month, profile["low_year"], profile["high_year"])
    ax.fill_between(x, least, most, color="#dcdcdc", alpha=0.7, lw=0)
    if (alone := ~np.isin(month - 1, month) & ~np.isin(month + 1, month)).any():  # an area needs two months
        single = profile[alone]
        ax.vlines(month[alone], single["low_year"], single["high_year"], color="#dcdcdc", alpha=0.7, lw=5)
    if profile["lo"].notna().any():
        error = np.abs(np.vstack([profile["total"] - profile["lo"], profile["hi"] - profile["total"]]))
        ax.errorbar(month, profile["total"], yerr=error, fmt="none", ecolor=SKY, elinewidth=4, alpha=0.7)
    ax.plot(*broken(month, profile["total"]), color=BLUE, marker="o", ms=5, lw=1)
    ax.set_xticks(month, [MONTH_NAMES[each - 1] for each in month])  # 0 is December: the last name
    top = float(np.nanmax(profile[["total", "hi", "high_year"]].to_numpy(dtype=float)))
    ax.set_ylim(0 if profile["total"].min() >= 0 else None, top * 1.08)
    ax.set_ylabel(f"{findings.unit}, all sites")
    _thousands(ax)
    peak = profile.iloc[int(profile["total"].to_numpy().argmax())]
    caption = (
        "Mean over years of the estimated total in each month of the year, at standard effort; blue bars are its 95 % "
        "interval where available. Grey: from the year with the fewest to the year with the most."
    )
    high = MONTH_NAMES[int(peak["month_of_year"]) - 1]
    alt = f"Seasonal profile: highest in {high} with {number(peak['total'])} {findings.unit}."

    def said(row: Any) -> str:
        name = MONTH_NAMES[row.month_of_year - 1]
        return f"{name}: {with_limits(row.total, row.lo, row.hi)} {findings.unit}"

    at = marks(profile.assign(at=month), "at", said)
    return Plot("season", "Seasonal profile", caption, alt, fig, profile, at)


def weeks(analysis: Analysis) -> Plot | None:
    """Draw the seasonal profile by week, with the lowest and the highest year."""
    table = analysis.weeks
    if table.empty:
        return None
    fig, ax = axes(height=4.8)
    month = along_season(table["month_of_year"])
    table = table.iloc[np.argsort(month, kind="stable")]
    month.sort()
    time = month + (table["week"].to_numpy() - 2.5) / 4
    ax.vlines(time, table["low_year"], table["high_year"], color="#d0d0d0", lw=5)  # blank ranges draw nothing
    ax.plot(*broken(time, table["total"]), color=BLUE, marker="o", ms=3.5, lw=1.2)
    at = np.unique(month)
    ax.set_xticks(at, [MONTH_NAMES[each - 1] for each in at])
    ax.set_ylim(0, float(np.nanmax(table[["total", "high_year"]].to_numpy(dtype=float))) * 1.08)
    ax.set_ylabel(f"{analysis.unit}, all sites")
    _thousands(ax)
    peak = table.iloc[int(np.nanargmax(table["total"].to_numpy(dtype=float)))]
    caption = (
        "Each month's estimate, split over its four weeks (days to 7, 14, 21 and the end) by what was counted in them, "
        "compared with what the model expects of the same sites and months. Grey: from the lowest to the highest "
        "year, where there are 5; few counts widen it by chance. A week with fewer than 10 counts has no dot."
    )
    when = f"{peak['days'].split()[0]}, week {peak['week']}"
    alt = f"Seasonal profile by week: highest in {when}, with {number(peak['total'])} {analysis.unit}."
    return Plot("weeks", "Seasonal profile by week", caption, alt, fig, table)


def regions(findings: Findings) -> Plot | None:
    """Draw the trend of each region with its interval, largest region first."""
    shown = "percent_lo" if findings.n_draws else "percent_per_year"  # as in the table
    known = findings.regions[findings.regions[shown].notna()]
    table = known.sort_values("share", ascending=False).head(25)
    if len(table) < 2 or findings.data.one_trend:
        return None
    fig, ax = axes(height=0.9 + 0.26 * len(table))
    y = np.arange(len(table))[::-1]
    lo, hi, mid = table["percent_lo"], table["percent_hi"], table["percent_per_year"]
    reach = 1.5 * float(np.nanquantile(np.abs(mid), 0.9)) + 5.0
    ax.hlines(y, np.clip(lo, -reach, reach), np.clip(hi, -reach, reach), color=SKY, lw=4)
    ax.plot(np.clip(mid, -reach, reach), y, ls="none", marker="o", color=BLUE, ms=5)
    ax.axvline(0, color=GREY, lw=0.8)
    ax.set_ylim(-0.7, len(table) - 0.3)
    known_sites = bool((table["n_sites"] > 0).all())
    names = table["region"].str[:24]
    ax.set_yticks(y, names + " (" + table["n_sites"].astype(str) + ")" if known_sites else names)
    ax.set_xlabel("change per year, %")
    beyond = table[["percent_lo", "percent_hi", "percent_per_year"]].abs().to_numpy(dtype=float) > reach
    edge = f" Values beyond ±{reach:.0f} % are drawn at the edge." if beyond.any() else ""
    more = " Regions without enough counts for a number are in the table only."
    more = more if len(known) < len(findings.regions) else ""
    caption = (
        "Trend of each region (largest totals first) with its 95 % interval where available"
        f"{', and its number of sites after its name' if known_sites else ''}"
        f"{f'; the 25 largest of {len(known)}' if len(known) > 25 else ''}.{edge}{more}"
    )
    first = "; ".join(
        f"{row.region} {percent(row.percent_per_year)} per year" for row in records(table.head(5))
    )
    alt = f"Trends by region: {first}."
    return Plot("regions", "Trends by region", caption, alt, fig, table)
