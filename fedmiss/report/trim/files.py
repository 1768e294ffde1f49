"""A fitted TRIM model in plain words, and in TRIM's files: ``.out`` and ``.ocv`` as TRIM 3 lays them out."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from fedmiss.atomic import write_json
from fedmiss.errors import listed, several
from fedmiss.report.exchange import (
    FIRST_LINE,
    file_stem,
    harmless,
    index_lines,
    ocv_text,
    plain,
    slope_lines,
    total_lines,
)
from fedmiss.report.trim.cells import Label
from fedmiss.report.trim.fit import TrimFit

_TITLES = {1: "No Time Effects", 2: "Linear Trend", 3: "Effects for Each Time Point"}
_IN_WORDS = {1: "no change over time", 2: "slopes between change points", 3: "one effect for each time point"}


class Shown(NamedTuple):
    """How results are shown: rule of the trend class, base of the index, level of intervals (None: none).

    ``windows``: first and last time points of stretches whose overall slopes are wanted too.
    """

    rule: str = "rtrim"
    base: Label | None = None
    level: float | None = None
    windows: tuple[tuple[Label, Label], ...] = ()


def out_text(fit: TrimFit, title: str, shown: Shown = Shown()) -> str:
    """Lay out a fit as TRIM's ``.out`` file, for programs that read TRIM's.

    Of ``shown`` it takes the rule of classes and the stretches. The base of its indices is the first time, as in every file
    of TRIM; those of another base are in ``totals.csv``.
    """
    cells, settings = fit.cells, fit.settings
    lines = [
        *_head_lines(fit, title),
        f" RESULTS FOR MODEL: {_TITLES[settings.model]}",
        " " + "-" * (19 + len(_TITLES[settings.model])),
    ]
    if cells.covariates:
        lines += ["   Effects of covariate(s)", *(f"    {name.upper()}" for name in cells.covariates)]
    if settings.model == 2 and settings.changepoints:
        lines += [
            "  Changes in Slope at Timepoints",
            "  " + " ".join(f"{changepoint:>5}" for changepoint in fit.changepoints),
        ]
    if (cells.weights != 1).any():
        lines += ["", " WEIGHTING = On"]
    equations = settings.overdispersion or settings.serial_correlation
    method = "Generalised Estimating Equations" if equations else "Maximum Likelihood"
    lines += ["", f" ESTIMATION METHOD = {method}", *_stepwise_lines(fit), ""]
    if settings.overdispersion:
        lines.append(f"  Estimated Overdispersion     = {fit.sigma2:6.3f}")
    if settings.serial_correlation:
        lines.append(f"  Estimated Serial Correlation = {fit.rho:6.3f}")
    chi2, lr = fit.goodness_of_fit().itertuples(index=False)
    lines += [
        "",
        " GOODNESS OF FIT",
        f"  Chi-square           {chi2.statistic:11.2f}, df {fit.df:6d}, p {chi2.p:6.4f}",
        f"  Likelihood Ratio     {lr.statistic:11.2f}, df {fit.df:6d}, p {lr.p:6.4f}",
        f"  AIC (up to a constant){fit.aic:10.2f}",
        *_wald_lines(fit),
        *_coefficient_lines(fit),
        *_total_lines(fit),
    ]
    for name, which in (("MODEL", "model"), ("IMPUTED+(recommended)", "imputed")):
        row = fit.overall(which, rule=shown.rule).iloc[0]
        # TRIM prints stars after the class, by the level in brackets at the label's end.
        stars = {"(p<0.01)": " **", "(p<0.05)": " *"}.get(row["label"].rpartition(" ")[2], "")
        lines += ["", *slope_lines(name, row["label"] + stars, row["slope"], row["slope_se"])]
        if shown.windows:
            plural = f" OVERALL SLOPE {name.partition('+')[0]} (with intercept) FOR TIME INTERVALS"
            lines += ["", plural, " from upto   Additive  std.err.    Multiplicative   std.err."]
            lines += [
                f" {first:4} {last:4}{row['slope']:10.4f}{row['slope_se']:10.4f}{row['multiplicative']:16.4f}"
                f"{row['multiplicative_se']:13.4f}"
                for first, last, row in _stretches(fit, which, shown)
            ]
    return "\n".join(lines) + "\n\n"  # rtrim wants a blank line after the last slope


def _head_lines(fit: TrimFit, title: str) -> list[str]:
    cells, n_seen = fit.cells, int(fit.cells.seen.sum())
    return [
        FIRST_LINE,
        "",
        f" Title :   {title}",
        "",
        f" The following  {3 + len(cells.covariates)} variables have been read from file:",
        "",
        f" 1. Site             number of values: {len(cells.sites):5d}",
        f" 2. Time             number of values: {len(cells.times):5d}",
        " 3. Count            missing =       NA",
        *(
            f" {at + 4}. {name:<16} number of values: {len(labels):2d}"
            for at, (name, labels) in enumerate(zip(cells.covariates, cells.labels, strict=True))
        ),
        "",
        f" Number of sites without positive counts (removed) {len(cells.dropped):7d}",
        "",
        f" Number of observed zero counts    {int((cells.counts == 0).sum()):8d}",
        f" Number of observed positive counts{int((cells.counts > 0).sum()):8d}",
        f" Total number of observed counts   {n_seen:8d}",
        f" Number of missing counts          {cells.counts.size - n_seen:8d}",
        f" Total number of counts            {cells.counts.size:8d}",
        "",
        f" Total count                  {np.nansum(cells.counts):10.1f}",
        "",
    ]


def _wald_lines(fit: TrimFit) -> list[str]:
    titles = {
        "deviations from a line": "DEVIATIONS FROM LINEAR TREND",
        "slope": "SLOPE PARAMETER",
        "change of slope": "CHANGES IN SLOPE",
        "covariate": "COVARIATES",
    }
    lines: list[str] = []
    for test, rows in fit.wald().groupby("test", sort=False):
        lines += ["", f" WALD-TEST FOR SIGNIFICANCE OF {titles[str(test)]} "]
        if test in ("deviations from a line", "slope"):
            row = rows.iloc[0]
            lines.append(f"  Wald-Test         {row['statistic']:9.2f}, df {row['df']:5d}, p {row['p']:7.4f}")
            continue
        of = "Changepoint" if test == "change of slope" else "Covariate"
        lines.append(f" {of:<15}Wald-Test  df   p  ")
        lines += [f"{str(r.of).upper():>9}{r.statistic:14.2f}{r.df:5d}{r.p:8.4f}" for r in rows.itertuples()]
    return lines


def _stepwise_lines(fit: TrimFit) -> list[str]:
    if not fit.steps:
        return []
    words = {"deleted": ("Deleted ", "delete"), "taken back": ("Entered ", "enter")}
    return [
        "",
        " STEPWISE SELECTION OF CHANGEPOINTS ",
        *(
            f"   {words[step['step']][0]}ChangePoint {step['changepoint']:>5}  Significance to "
            f"{words[step['step']][1]} {step['p']:.4f}"
            for step in fit.steps
        ),
        "",
        "   Remaining Changepoints at time:",
        "  " + " ".join(f"{changepoint:>5}" for changepoint in fit.changepoints),
    ]


def _numbers(row: Any) -> str:
    return f"{row.additive:12.4f}{row.se:12.4f}{row.multiplicative:15.4f}{row.multiplicative_se:12.4f}"


_COLUMNS = "Additive    std.err.   Multiplicative  std.err."


def _coefficient_lines(fit: TrimFit) -> list[str]:
    """Lay out the parameters; every case has TRIM's own layout, down to its blank lines, which its readers count."""
    table = fit.coefficients()
    body, months = table[table["kind"] != "month"], table[table["kind"] == "month"]
    lines = ["", " PARAMETER ESTIMATES ", ""]
    if fit.settings.model == 3:
        lines += _time_lines(fit, body)
    elif fit.settings.model == 2:
        lines += _slope_lines(fit, body)
    if len(months):
        lines += [
            " Parameters for Each Month",
            "",
            f" Month    {_COLUMNS}",
            f"{fit.cells.months[0]:>6}      0                          1",
        ]
        lines += [f"{row.upto:>6}{_numbers(row)}" for row in months.itertuples()]
    # What follows begins with a blank line of its own.
    return lines if lines[-1] != "" else lines[:-1]


def _time_lines(fit: TrimFit, table: pd.DataFrame) -> list[str]:
    if not fit.cells.covariates:
        # The first time is the reference: 0 without an error, and the factor 1.
        lines = [" Parameters for Each Time Point", "", f"  Time    {_COLUMNS}"]
        lines += [f"{fit.times[0]:>6}      0                          1"]
        lines += [f"{row.upto:>6}{_numbers(row)}" for row in table.itertuples()]
        if len(fit.times) > 2:
            slope, *rest = fit.deviations().itertuples()
            lines += [
                "",
                " Linear Trend + Deviations for Each Time ",
                "",
                f"           {_COLUMNS}",
                f" Slope{_numbers(slope)}",
            ]
            lines += ["", " Time Deviations", *(f"{row.time:>6}{_numbers(row)}" for row in rest)]
        return [*lines, ""]
    lines = [f"                    {_COLUMNS}", " Constant", " --------"]
    for (covariate, category), rows in table.groupby(["covariate", "category"], sort=False):
        if str(covariate):
            at, number = _place(fit, covariate, category)
            lines += [f" Covariate {at:2d}", " ------------", f" Category {number:3d}"]
        lines.append(f"  Time  {fit.times[0]:>5}      0.0000      0.0000         1.0000      0.0000")
        lines += [f"        {row.upto:>5}{_numbers(row)}" for row in rows.itertuples()]
        lines.append("")
    return [*lines, ""]


def _slope_lines(fit: TrimFit, table: pd.DataFrame) -> list[str]:
    if not fit.cells.covariates:
        if not fit.settings.changepoints:
            return [f"         {_COLUMNS}", *(f" Slope{_numbers(row)}" for row in table.itertuples()), ""]
        lines = [" Slope for Time Intervals", " from upto   Additive  std.err.    Multiplicative   std.err."]
        return [*lines, *(f"{row[4]:>5}{row.upto:>5}{_numbers(row)}" for row in table.itertuples()), ""]
    lines = [" Effects of Covariates on Slope for Time Intervals"]
    for _, rows in table.groupby(table["from"].map(fit.times.index)):
        first = rows.iloc[0]
        lines += [" from upto", f"{first['from']:>5}{first['upto']:>5}", f"               {_COLUMNS}"]
        for row in rows.itertuples():
            if not row.covariate:
                lines += [f" Constant   {_numbers(row)}", ""]
                continue
            at, number = _place(fit, row.covariate, row.category)
            lines += [f" Covariate {at:2d}", " ------------", f" Category {number:3d}{_numbers(row)}", ""]
    return [*lines, ""]


def _place(fit: TrimFit, covariate: Any, category: Any) -> tuple[int, int]:
    """Return the number of a covariate, and of one of its categories, as TRIM counts them: from 1."""
    at = fit.cells.covariates.index(str(covariate))
    return at + 1, fit.cells.labels[at].index(category) + 1


def _total_lines(fit: TrimFit) -> list[str]:
    """Indices and totals. Readers of TRIM's files take the first time for the base, whatever base was asked for."""

    def rows(table: pd.DataFrame) -> Iterator[tuple[Any, ...]]:
        return table.itertuples(index=False, name=None)

    index = index_lines(rows(fit.index("model")), rows(fit.index()))
    return ["", *index, "", *total_lines(rows(fit.totals("model")), rows(fit.totals()), 0)]


def _stretches(
    fit: TrimFit, which: str, shown: Shown, stratum: str = "all"
) -> Iterator[tuple[Label, Label, dict[str, Any]]]:
    """First and last time of every stretch of ``shown``, and its overall slope."""
    for first, last in shown.windows:
        yield first, last, _rows(fit.overall(which, shown.rule, stratum, (first, last)))[0]


def _rows(frame: pd.DataFrame) -> list[dict[str, Any]]:
    return [{str(key): plain(value) for key, value in row.items()} for row in frame.to_dict("records")]


def as_json(fit: TrimFit, shown: Shown = Shown()) -> dict[str, object]:
    """Return all results of a fit as plain lists and numbers, at full precision."""
    return {
        "model": fit.settings.model,
        "sites": len(fit.sites),
        "dropped_sites": [str(site) for site in fit.dropped],
        "time_points": [plain(time) for time in fit.times],
        "months": [plain(month) for month in fit.cells.months] if len(fit.cells.months) > 1 else [],
        "changepoints": [plain(changepoint) for changepoint in fit.changepoints],
        "stepwise": [{key: plain(value) for key, value in step.items()} for step in fit.steps],
        "overdispersion": fit.sigma2 if fit.settings.overdispersion else None,
        "serial_correlation": fit.rho if fit.settings.serial_correlation else None,
        "goodness_of_fit": _rows(fit.goodness_of_fit()),
        "aic": fit.aic,
        "wald": _rows(fit.wald()),
        "coefficients": _rows(fit.coefficients()),
        "sites_of_strata": {name: fit.n_sites(name) for name in fit.strata},
        "strata": {
            name: {
                which: {
                    "totals": _rows(fit.totals(which, name, shown.level)),
                    "index": _rows(fit.index(which, shown.base, name, shown.level)),
                    "overall": _rows(fit.overall(which, shown.rule, name))[0],
                    "stretches": [
                        {"from": plain(first), "upto": plain(last)} | row
                        for first, last, row in _stretches(fit, which, shown, name)
                    ],
                }
                for which in ("imputed", "model")
            }
            for name in fit.strata
        },
        "notes": list(fit.notes),
    }


def write_trim(fit: TrimFit, folder: Path, stem: str, shown: Shown = Shown()) -> None:
    """Write ``<stem>.out``, ``<stem>.ocv``, ``totals.csv``, ``coefficients.csv``, ``imputed.csv`` and ``trim.json``."""
    folder.mkdir(parents=True, exist_ok=True)
    parts = {}
    for name in fit.strata:
        for which in ("imputed", "model"):
            index = fit.index(which, shown.base, name, shown.level).drop(columns="time").add_prefix("index_")
            table = [fit.totals(which, name, shown.level), index.rename(columns={"index_index": "index"})]
            parts[name, which] = pd.concat(table, axis=1)
    totals = pd.concat(parts, names=["stratum", "which"]).droplevel(2).reset_index()
    cells = fit.cells
    n, M, J = cells.shape
    filled = pd.DataFrame(
        {
            "site": np.repeat(np.array(cells.sites, dtype=object), M * J),
            "time": np.tile(np.array(cells.times, dtype=object), n * M),
            "month": np.tile(np.repeat(np.array(cells.months, dtype=object), J), n),
            "observed": cells.counts.ravel(),
            "fitted": fit.mu.ravel(),
            "imputed": fit.filled.ravel(),
        }
    )
    filled = filled if M > 1 else filled.drop(columns="month")
    stem = file_stem(stem, "trim")
    text = {
        f"{stem}.out": out_text(fit, stem, shown),
        f"{stem}.ocv": ocv_text(fit.var_imputed),
        "totals.csv": harmless(totals).to_csv(index=False, lineterminator="\n"),
        "coefficients.csv": harmless(fit.coefficients()).to_csv(index=False, lineterminator="\n"),
        "imputed.csv": harmless(filled).to_csv(index=False, lineterminator="\n"),
    }
    for name, content in text.items():
        (folder / name).write_text(content, encoding="utf-8")
    write_json(folder / "trim.json", as_json(fit, shown))


# -- for a terminal ------------------------------------------------------------------------------------------


def describe(fit: TrimFit, shown: Shown = Shown()) -> str:
    """Return what ``fedmiss trim`` prints: fit, tests, slopes, then totals and indices of every stratum."""
    settings, cells = fit.settings, fit.cells
    n_seen, size = int(cells.seen.sum()), cells.counts.size
    months = f", {several(len(cells.months), 'month')}" if len(cells.months) > 1 else ""
    lines = [
        f"Model {settings.model} ({_IN_WORDS[settings.model]}): {several(len(cells.sites), 'site')}, "
        f"{several(len(cells.times), 'time point')}{months}, {several(n_seen, 'count')}, "
        f"{several(size - n_seen, 'cell')} to fill ({1 - n_seen / size:.0%})."
    ]
    if cells.dropped:
        named = listed([str(site) for site in cells.dropped], 5)
        lines.append(
            f"Left out, because they have no positive count: {several(len(cells.dropped), 'site')} ({named})."
        )
    if settings.overdispersion:
        lines.append(f"Overdispersion: {fit.sigma2:.4g} times the variance of a Poisson count.")
    if settings.serial_correlation:
        lines.append(f"Serial correlation of neighbouring time points: {fit.rho:.3f}.")
    lines += [f"Change point {step['changepoint']} {step['step']} (p {step['p']:.4f})." for step in fit.steps]
    if fit.changepoints:
        lines.append(f"Change points: {', '.join(str(changepoint) for changepoint in fit.changepoints)}.")
    lines += ["", "Goodness of fit", _table(fit.goodness_of_fit()), f"AIC (up to a constant): {fit.aic:.2f}"]
    wald = fit.wald()
    if len(wald):
        lines += ["", "Wald tests", _table(wald)]
    parameters = fit.coefficients()
    if len(parameters) and (settings.model == 2 or len(parameters) <= 24):
        if not cells.covariates:
            parameters = parameters.drop(columns=["covariate", "category"])
        lines += ["", "Parameters (log scale, and as factors)", _table(parameters)]
    for name in fit.strata:
        lines += ["", "All sites" if name == "all" else f"Sites with {name.replace('=', ' = ')}"]
        for which in ("imputed", "model"):
            overall = fit.overall(which, shown.rule, name).iloc[0]
            slope = round(overall["slope"], 5) + 0.0  # no minus sign before a zero
            lines.append(
                f"  slope, {which:8s}{slope:10.5f} (SE {overall['slope_se']:.5f}), per step x "
                f"{overall['multiplicative']:.5f} (SE {overall['multiplicative_se']:.5f}): {overall['label']}"
            )
            lines += [
                f"    {first} to {last}{row['slope']:10.5f} (SE {row['slope_se']:.5f}): {row['label']}"
                for first, last, row in _stretches(fit, which, shown, name)
            ]
        # Blanks keep the names of the columns apart.
        index = fit.index(base=shown.base, stratum=name, level=shown.level).drop(columns="time")
        if index["index"].isna().all():
            lines.append("  No index: no bird was counted in its base; --base gives another.")
        index = index.rename(columns={"se": "SE ", "lo": f"{shown.level or 0:.4g} from", "hi": "to"})
        table = fit.totals(stratum=name).rename(columns={"total": "imputed", "se": "SE"})
        modelled = fit.totals("model", name)[["total", "se"]].set_axis(["model", "SE  "], axis=1)
        lines.append(_table(pd.concat([table, index, modelled], axis=1)))
    return "\n".join(lines)


def _table(frame: pd.DataFrame) -> str:
    return frame.to_string(
        index=False, float_format=lambda v: f"{v:.4f}" if abs(v) < 100 else f"{v:,.1f}", na_rep=""
    )
