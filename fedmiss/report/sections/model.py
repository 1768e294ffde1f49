"""How the numbers were made: model, choice of the rank, convergence, messages."""

from __future__ import annotations

import math

import pandas as pd

from fedmiss.errors import listed
from fedmiss.models.lowrank.structure import IN_WORDS
from fedmiss.report.findings import Findings
from fedmiss.report.fitted import fitted_years, lack_of_fit, no_clear_miss
from fedmiss.report.prose import averaged_ranks, averaged_rows, chosen_rows, family_words, progress_words
from fedmiss.report.sections import Cell, HtmlTable, Section, records
from fedmiss.report.style import Plot
from fedmiss.report.words import count, number, percent, share

__all__ = ["build", "trials"]


def build(a: Findings, plots: dict[str, Plot]) -> Section:
    """Return the section of the model."""
    return Section(
        "model",
        "How the numbers were made",
        {
            "words": _words(a),
            "facts": [(name, value) for name, value in _facts(a) if value not in _UNSAID],
            "fitted": _fitted(a),
            "cv": _cv(a),
            "trials": _trials(a),
            "cv_figure": plots.get("cv"),
            "convergence_figure": plots.get("convergence"),
            "period": _period(a),
            "terms": _predictor(a),
            "n_draws": a.n_draws,
        },
    )


def _bytes(value: float | None) -> str:
    if value is None:
        return "not recorded"
    size = float(value)
    for unit in ("bytes", "kB", "MB", "GB"):
        if size < 1000 or unit == "GB":
            return f"{number(size)} {unit}"
        size /= 1000
    return ""


def _value(value: object) -> str:
    if value is None or value == "":
        return "not recorded"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return (
            (f"{value:,.4g}" if 1e-4 <= abs(value) < 1e6 else number(value, 3))
            if math.isfinite(value)
            else "not finite"
        )
    if isinstance(value, int):
        return count(value)
    return str(value)


def _period(a: Findings) -> str:
    return "year" if a.yearly_counts else "month"


def _predictor(a: Findings) -> str:
    rank = a.data.fact("rank")
    interaction = f"interaction of rank {rank}" if rank else ""
    effects = "" if a.data.fact("effects") is False else f"mean + site effect + {_period(a)} effect"
    slopes = "slope of the site x year" if a.data.fact("slopes", default=False) else ""
    return " + ".join(t for t in (effects, slopes, interaction) if t) or "mean"


def _terms(a: Findings) -> str:
    terms = a.data.effort
    if terms is None:
        return "not recorded"
    return ", ".join(f"{k} {number(float(v), 2)}" for k, v in terms.items()) or "none"


def _observers(a: Findings) -> str:
    sd = a.data.fact("observer_sd")
    if sd is not None:
        return f"yes, standard deviation {number(float(sd), 2)} on the link scale"
    return _value(a.data.fact("observer_effects"))


_UNSAID = ("not recorded", "identity", "none")


def _averaged(a: Findings) -> str:
    """Name the ranks that were averaged; empty where one model was enough."""
    ranks = sorted(averaged_ranks(a))
    if len(ranks) < 2:
        return ""
    return f"ranks {', '.join(str(r) for r in ranks[:-1])} and {ranks[-1]}, with equal weights"


def _words(a: Findings) -> str:
    """Say in plain words how the numbers were made."""
    rank = a.data.fact("rank")
    time = _period(a)
    own = ["each has a trend of its own"] if a.data.fact("slopes", default=False) else []
    own += (
        [f"they follow {rank} common pattern{'s' if rank != 1 else ''}, each in its own measure"]
        if rank
        else []
    )
    differ = (
        f"sites differ in their course: {', and '.join(own)}" if own else "all sites rise and fall together"
    )
    shape = f"Every site has its own level, and every {time} its own; {differ}."
    shape += f" {_structure(a)}" if _structure(a) else ""
    chosen = (
        " How many patterns was decided by predicting counts that had been kept out of the fit."
        if a.data.cv is not None
        else ""
    )
    draws = (
        f" The whole fit was repeated {count(a.n_draws)} times with other weights for the observers; the spread "
        "of the results "
        "gives the intervals."
        if a.n_draws
        else ""
    )
    mean = (
        f" The numbers are the mean of several such models ({_averaged(a)}), because held-out counts cannot tell them "
        "apart; the spread of the results is that of all of them together."
        if _averaged(a)
        else ""
    )
    return f"The counts are described by this model: {family_words(a)}. {shape}{chosen}{draws}{mean}"


def _structure(a: Findings) -> str:
    """Say what the expectation for a site follows, that observers have effects, and which step matters most to the trend."""
    said, shares = [], a.data.fact("explained", default={})
    names = a.data.fact("site_covariates", default=[])
    for feature in a.data.fact("features", default=[]):
        words = f"its {listed(names, 6)}" if feature == "covariates" else IN_WORDS[feature]
        said.append(
            f"{words} ({share(shares[feature])} of the variance between sites)"
            if feature in shares
            else words
        )
    follows = f"What is expected at a site follows {' and '.join(said)}." if said else ""
    who = (
        "Observers count differently, and the model knows it."
        if a.data.fact("observer_effects") is True
        else ""
    )
    chain = a.data.fact("occupancy", default=[])
    if chain:
        first, gained, lost = chain
        who += (
            f" Sites may be empty: from one year to the next an occupied site was lost with a probability of {share(lost)}, "
            f"an empty one gained with {share(gained)}; {share(first)} were occupied in the first year."
        )
        ends = a.data.fact("occupied")
        if ends is not None:
            start, end = (count(round(x)) for x in ends)
            who += f" Of the sites of this panel about {start} were occupied in its first year, {end} in its last."
    less = a.data.fact("learning", default=None)
    if less is not None:
        who += f" At first a new observer counts {share(math.exp(-less))} of what the same observer counts later."
    most = max(records(trials(a).dropna(subset="shift")), key=lambda r: abs(r.shift), default=None)
    step = (
        f"Of the steps that were tried, '{most.what}' changes the trend most, by {percent(_percent(most.shift))} per year."
        if most is not None
        else ""
    )
    return " ".join(t for t in (follows, who, step) if t)


def _percent(slope: float) -> float:
    return 100 * math.expm1(slope)


def trials(a: Findings) -> pd.DataFrame:
    """Steps of the structure that were tried (schema ``report_trials``)."""
    columns = ["what", "judged_by", "gain", "error", "taken", "shift"]
    table = pd.DataFrame(a.data.fact("trials", default=[]), columns=columns)
    return table.astype(
        {"what": str, "judged_by": str, "gain": float, "error": float, "taken": bool, "shift": float}
    )


def _trials(a: Findings) -> HtmlTable | None:
    table = trials(a)
    if table.empty:
        return None
    rows = [
        [
            Cell(str(r.what)),
            Cell(str(r.judged_by)),
            Cell(percent(100 * r.gain), r.gain),
            Cell(percent(100 * r.error), r.error),
            Cell("yes" if r.taken else "no"),
            Cell(percent(_percent(r.shift)), _percent(r.shift)),
        ]
        for r in records(table)
    ]
    note = (
        "Gain: how much better what was left out was predicted, as a share of the deviance. Taken: better by half a "
        "standard error or more (observers: by one; the number of visits, occupancy and slopes: by two). "
        "Trend: what the step adds to the change per year, without any other step."
    )
    columns = ["Step", "Judged by", "Gain", "Standard error", "Taken", "Trend"]
    return HtmlTable("Structure that was tried", columns, rows, "trials", note)


def _facts(a: Findings) -> list[tuple[str, str]]:
    f = a.data.fact
    return [
        ("Model", family_words(a)),
        ("Solver", _value(f("method"))),
        ("Rank of the interaction of sites and time", _value(f("rank"))),
        ("Average of models", _averaged(a) or "no: one model"),
        ("Penalty on the factors", _value(f("penalty"))),
        ("Dispersion", _value(f("dispersion"))),
        ("Effective number of parameters", _value(f("edf"))),
        ("Standard effort", _value(f("standard_effort"))),
        ("Effort in the model (exponents)", _terms(a)),
        ("Observer effects, kept inside the groups", _observers(a)),
        ("Objective at the end", _value(f("objective"))),
        (f"At the end, {progress_words(a)} (0 at a solution)", _value(f("h_norm"))),
        ("Converged", _value(f("converged"))),
        ("Stopped because", _value(f("stop_reason"))),
        ("Rounds", _value(f("rounds"))),
        ("Groups", _value(f("n_groups"))),
        ("Participation", _value(f("participation"))),
        ("Compressor", _value(f("compressor"))),
        ("Exchanges between the groups, whole job", _value(f("exchanges"))),
        *_sent(a),
        ("Bootstrap replicates", count(a.n_draws)),
    ]


def _sent(a: Findings) -> list[tuple[str, str]]:
    """Return what organisations sent and got; a fit of one group sent nothing, so there is nothing to say."""
    if int(a.data.fact("n_groups", default=1)) < 2:
        return []
    return [
        (
            "Passed by the groups to the fit (of one person's groups nothing leaves the computer)",
            _bytes(a.data.fact("bytes_up")),
        ),
        ("Passed to the groups", _bytes(a.data.fact("bytes_down"))),
    ]


def _fitted(a: Findings) -> HtmlTable | None:
    """Counted beside fitted birds of every year, at the visits that were made."""
    table = fitted_years(a.data.visited, a.data.months)
    if table.empty:
        return None
    rows = [
        [
            Cell(f"{r.year}"),
            Cell(count(r.visits), r.visits),
            Cell(count(r.counted), r.counted),
            Cell(number(r.fitted, 4), r.fitted),
            Cell(number(r.ratio, 3) if math.isfinite(r.ratio) else "n/a", r.ratio),
        ]
        for r in records(table)
    ]
    note = (
        "Sums over the visits that were made, each at its own effort. A model that follows the counts has ratios near 1, "
        "without a drift; an index is not drawn to the counts of single visits, so ratios of thin years lie farther away. "
    ) + (lack_of_fit(table) or no_clear_miss(table))
    columns = ["Year", "Visits", f"Counted {a.unit}", f"Fitted {a.unit}", "Counted / fitted"]
    return HtmlTable("Counted and fitted, year by year", columns, rows, "fitted", note)


def _cv(a: Findings) -> HtmlTable | None:
    cv = a.data.cv
    if cv is None or cv.empty:
        return None
    means = ["deviance", "log_rmse", "total_bias"]
    weighted = cv.assign(**{m: cv[m] * cv["n"] for m in means}, chosen=chosen_rows(a), mean=averaged_rows(a))
    keys = ["candidate", "model", "rank", "chosen", "mean"]
    table: pd.DataFrame = weighted.groupby(keys, as_index=False, dropna=False)[["n", *means]].sum()
    rows = []
    for r in records(table):
        d, e, b = (getattr(r, m) / r.n for m in means)
        rows.append(
            [
                Cell(f"{r.model}{' (chosen)' if r.chosen else ' (averaged with it)' if r.mean else ''}"),
                Cell(f"{r.rank}", float(r.rank)),
                Cell(number(d, 4), d),
                Cell(number(e, 4), e),
                Cell(number(b, 3), b),
                Cell(count(r.n), float(r.n)),
            ]
        )
    columns = [
        "Distribution", "Rank", "Deviance per visit", "Error of log(1 + birds)", "Predicted / counted total",
        "Visits held out",
    ]  # fmt: skip
    note = "On visits that the fit did not see; lower deviance is better, a ratio of 1 is unbiased."
    return HtmlTable("Cross-validation", columns, rows, "cv", note)
