"""How the numbers were made: model, choice of rank and penalty, convergence, messages."""

from __future__ import annotations

import math
from typing import Any

import pandas as pd

from fedmiss.report.analysis import Analysis
from fedmiss.report.prose import family_words
from fedmiss.report.sections import Cell, HtmlTable, Section
from fedmiss.report.style import Plot
from fedmiss.report.words import count, number

__all__ = ["build"]


def build(a: Analysis, plots: dict[str, Plot]) -> Section:
    """Return the section of the model."""
    return Section(
        "model",
        "Model, choice and convergence",
        {
            "facts": _facts(a),
            "cv": _cv(a),
            "cv_figure": plots.get("cv"),
            "convergence_figure": plots.get("convergence"),
            "rank": a.data.fact("rank"),
            "n_draws": a.n_draws,
        },
    )


def _bytes(value: Any) -> str:
    if value is None:
        return "not recorded"
    size = float(value)
    for unit in ("bytes", "kB", "MB", "GB"):
        if size < 1000 or unit == "GB":
            return f"{number(size)} {unit}"
        size /= 1000
    return ""


def _value(value: Any) -> str:
    if value is None or value == "":
        return "not recorded"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return (f"{value:,.4g}" if 1e-4 <= abs(value) < 1e6 else number(value, 3)) if math.isfinite(value) else "not finite"
    if isinstance(value, int):
        return count(value)
    return str(value)


def _facts(a: Analysis) -> list[tuple[str, str]]:
    f = a.data.fact
    return [
        ("Model", family_words(a)),
        ("Solver", _value(f("method"))),
        ("Rank of the site x month interaction", _value(f("rank"))),
        ("Penalty on the factors", _value(f("penalty"))),
        ("Dispersion", _value(f("dispersion"))),
        ("Objective at the end", _value(f("objective"))),
        ("Norm of the mean field ||h|| at the end (0 at a solution)", _value(f("h_norm"))),
        ("Converged", _value(f("converged"))),
        ("Stopped because", _value(f("stop_reason"))),
        ("Rounds", _value(f("rounds"))),
        ("Groups", _value(f("n_groups", default=len(a.data.groups)))),
        ("Participation", _value(f("participation"))),
        ("Compressor", _value(f("compressor"))),
        ("Sent by the groups", _bytes(f("bytes_up"))),
        ("Sent to the groups", _bytes(f("bytes_down"))),
        ("Bootstrap replicates", count(a.n_draws)),
    ]


def _cv(a: Analysis) -> HtmlTable | None:
    cv = a.data.cv
    if cv is None or cv.empty:
        return None
    means = ["deviance", "log_rmse", "total_bias"]
    weighted = cv.assign(**{m: cv[m] * cv["n"] for m in means})
    table: pd.DataFrame = weighted.groupby(["rank", "penalty"], as_index=False)[["n", *means]].sum()
    rank, penalty = a.data.fact("rank"), a.data.fact("penalty")
    rows = []
    for r in table.itertuples():
        d, e, b = (getattr(r, m) / r.n for m in means)
        chosen = r.rank == rank and penalty is not None and abs(r.penalty - float(penalty)) < 1e-12
        rows.append(
            [
                Cell(f"{r.rank}{' (chosen)' if chosen else ''}", float(r.rank)),
                Cell(number(r.penalty), r.penalty),
                Cell(number(d, 4), d),
                Cell(number(e, 4), e),
                Cell(number(b, 3), b),
                Cell(count(r.n), float(r.n)),
            ]
        )
    columns = ["Rank", "Penalty", "Deviance per visit", "Error of log(1 + birds)", "Predicted / counted total", "Visits held out"]
    note = "On visits that the fit did not see; lower deviance is better, a ratio of 1 is unbiased."
    return HtmlTable("Cross-validation", columns, rows, "cv", note)
