"""How the numbers were made: model, choice of the rank, convergence, messages."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pandas as pd

from fedmiss.errors import listed
from fedmiss.models.lowrank.choice import WORSE
from fedmiss.models.lowrank.structure import IN_WORDS, UNTRIED
from fedmiss.report.findings import Findings
from fedmiss.report.fitted import fitted_years, lack_of_fit, multiplies, no_clear_miss
from fedmiss.report.prose import averaged_ranks, chosen_rows, family_words, progress_words, rows_of
from fedmiss.report.sections import Cell, HtmlTable, Section, cell, table_of
from fedmiss.report.style import Plot
from fedmiss.report.words import count, number, percent, records, share

LEAST_SHARE = 0.005  # of the variance between levels, below which a feature that was not tried has no word


def build(findings: Findings, plots: dict[str, Plot]) -> Section:
    """Return the section of the model."""
    return Section(
        "model",
        "How the numbers were made",
        {
            "words": _words(findings),
            "facts": [(name, value) for name, value in _facts(findings) if value not in _UNSAID],
            "fitted": _fitted(findings),
            "cv": _cv(findings),
            "trials": _trials(findings),
            "terms": _predictor(findings),
        },
    )


def _bytes(value: float | None) -> str:
    if value is None:
        return "not recorded"
    size, units = float(value), ["GB", "MB", "kB", "bytes"]
    while size >= 1000 and len(units) > 1:
        size /= 1000
        units.pop()
    return f"{number(size)} {units[-1]}"


def _value(value: object) -> str:
    if value is None or value == "":
        return "not recorded"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        if not math.isfinite(value):
            return "not finite"
        # from 10,000 on it would have an exponent, which no language writes
        return (
            f"{value:,.4g}"
            if 1e-4 <= abs(value) < 9999.5
            else number(value, 4 if 1 < abs(value) < 1e6 else 3)
        )
    if isinstance(value, int):
        return count(value)
    return str(value)


def _period(findings: Findings) -> str:
    return "year" if findings.yearly_counts else "month"


def _predictor(findings: Findings) -> str:
    rank = findings.data.fact("rank")
    interaction = f"interaction of rank {rank}" if rank else ""
    effects = f"mean + site effect + {_period(findings)} effect"
    effects = "" if findings.data.fact("effects") is False else effects
    slopes = "slope of the site x year" if findings.data.fact("slopes", default=False) else ""
    return " + ".join(part for part in (effects, slopes, interaction) if part) or "mean"


def _observers(findings: Findings) -> str:
    sd = findings.data.fact("observer_sd")
    if sd is not None:
        return f"yes, standard deviation {number(float(sd), 2)} on the link scale"
    return _value(findings.data.fact("observer_effects"))


_UNSAID = ("", "none", "not recorded", "identity")


def _averaged(findings: Findings) -> str:
    """Name the ranks that were averaged; empty where one model was enough."""
    ranks = sorted(averaged_ranks(findings))
    if len(ranks) < 2:
        return ""
    return f"ranks {', '.join(str(rank) for rank in ranks[:-1])} and {ranks[-1]}, with equal weights"


def _average(findings: Findings) -> str:
    """Say which models were averaged, and of which of them the facts are that differ between them."""
    if ranks := _averaged(findings):
        return f"{ranks}; what differs between them is told of rank {findings.data.fact('rank')}"
    return "no: one model"


def _words(findings: Findings) -> str:
    """Say in plain words how the numbers were made."""
    said = [
        f"The counts are described by this model: {family_words(findings)}.",
        _levels(findings),
        *_structure(findings),
    ]
    if findings.data.cv is not None:
        said.append("How many patterns was decided by predicting counts that had been kept out of the fit.")
    if findings.n_draws:
        said.append(
            f"The whole fit was repeated {count(findings.n_draws)} times with other weights for the {findings.redrawn}; "
            "the spread of the results gives the intervals."
        )
    if ranks := _averaged(findings):
        said.append(
            f"The numbers are the mean of several such models ({ranks}), because held-out counts cannot tell them "
            "apart; the spread of the results is that of all of them together."
        )
    return " ".join(said)


def _levels(findings: Findings) -> str:
    """Say how sites differ: not at all where the variances of their trends have switched themselves off."""
    rank, own = findings.data.fact("rank"), []
    if findings.n_sites == 1:
        return f"Every {_period(findings)} has its own level."
    if findings.data.fact("slopes", default=False):
        own.append("each has a trend of its own")
    if rank:
        patterns = f"{rank} common pattern{'s' if rank != 1 else ''}"
        own.append(f"they follow {patterns}, each in its own measure")
    differ = ""
    if findings.data.one_trend:
        differ = f"; {findings.data.alike.lower()} rise and fall together"
    elif own:
        # else they differ by what the next sentences say: sites that may be empty, or another of the averaged models
        differ = f"; sites differ in their course: {', and '.join(own)}"
    return f"Every site has its own level, and every {_period(findings)} its own{differ}."


def _structure(findings: Findings) -> Iterator[str]:
    """Say what the expectation for a site follows, that observers have effects, and which step matters most to the trend."""
    said, shares = [], findings.data.fact("explained", default={})
    names = findings.data.fact("site_covariates", default=[])
    features = findings.data.fact("features", default=[])
    for feature in (f for f in features if f not in UNTRIED):
        words = f"its {listed(names, 6)}" if feature == "covariates" else IN_WORDS[feature]
        part = f" ({share(shares[feature])} of the variance between sites)" if feature in shares else ""
        said.append(words + part)
    if said:
        yield f"What is expected at a site follows {' and '.join(said)}."
    if findings.data.fact("abundance"):
        yield "Trends of sites follow how many birds were counted there."
    if shares.get("times", 0.0) >= LEAST_SHARE:
        yield "Levels of sites follow in which years they were visited."
    if shares.get("effort", 0.0) >= LEAST_SHARE:
        yield "Levels of sites follow the effort of their visits."
    if findings.data.fact("observer_effects") is True:
        yield "Observers count differently, and the model knows it."
    if chain := findings.data.fact("occupancy", default=[]):
        first, gained, lost = chain
        yield (
            f"Sites may be empty: from one year to the next an occupied site was lost with a probability of {share(lost)}, "
            f"an empty one gained with {share(gained)}; {share(first)} were occupied in the first year."
        )
        if (ends := findings.data.fact("occupied")) is not None:
            start, end = (count(round(edge)) for edge in ends)
            were = "was" if start == "1" else "were"
            yield f"Of the sites of this panel about {start} {were} occupied in its first year, {end} in its last."
    if multiplies(findings):
        yield from _experience(findings)
    tried = records(trials(findings).dropna(subset="shift"))
    if tried:
        most = max(tried, key=lambda r: abs(r.shift))
        if abs(change := _percent(most.shift)) >= 0.05:  # less is no change that anybody would name
            yield f"Of the steps that were tried, '{most.what}' changes the trend most, by {percent(change)} per year."


def _experience(findings: Findings) -> Iterator[str]:
    """Say how observers differ who are new, and who come later."""
    if (less := findings.data.fact("learning")) is not None:
        yield f"At first a new observer counts {share(math.exp(-less))} of what the same observer counts later."
    if (more := findings.data.fact("skill")) is not None:
        # drawn to 0, so that the trend may hold more of it
        yield (
            f"Observers who come a year later differ by {percent(_percent(more))} in what they count of the same birds, as "
            "far as the counts tell; the trend leaves that out."
        )


def _percent(slope: float) -> float:
    return 100 * math.expm1(slope)


def trials(findings: Findings) -> pd.DataFrame:
    """Steps of the structure that were tried (schema ``report_trials``)."""
    columns = ["what", "judged_by", "gain", "error", "taken", "shift"]
    types = dict(zip(columns, (str, str, float, float, bool, float), strict=True))
    return pd.DataFrame(findings.data.fact("trials", default=[]), columns=columns).astype(types)


def _trials(findings: Findings) -> HtmlTable | None:
    table = trials(findings)
    if table.empty:
        return None
    note = (
        "Gain: how much better what was left out was predicted, as a share of the deviance. Taken: better by half a "
        "standard error or more (observers: by one; the number of visits, occupancy and slopes: by two; few regions "
        "unless worse by two). "
        "Trend: what the step adds to the change per year, without any other step."
    )
    return table_of(
        "Structure that was tried",
        table,
        [
            ("Step", lambda r: Cell(str(r.what))),
            ("Judged by", lambda r: Cell(str(r.judged_by))),
            ("Gain", lambda r: Cell(percent(100 * r.gain), r.gain)),
            ("Standard error", lambda r: Cell(percent(100 * r.error).removeprefix("+"), r.error)),
            ("Taken", lambda r: Cell("yes" if r.taken else "no")),
            ("Trend", lambda r: cell(percent, _percent(r.shift))),
        ],
        note,
    )


def _facts(findings: Findings) -> list[tuple[str, str]]:
    fact = findings.data.fact
    effort = (f"{key} {number(float(term), 2)}" for key, term in findings.data.effort.items())
    return [
        ("Model", family_words(findings)),
        ("Solver", _value(fact("method"))),
        ("Rank of the interaction of sites and time", _value(fact("rank"))),
        ("Average of models", _average(findings)),
        ("Penalty on the factors", _value(fact("penalty"))),
        ("Dispersion", _value(fact("dispersion"))),
        ("Effective number of parameters", _value(fact("edf"))),
        ("Standard effort", _value(fact("standard_effort"))),
        (
            f"Effort in the model ({'exponents' if multiplies(findings) else 'coefficients'})",
            ", ".join(effort),
        ),
        ("Observer effects, kept inside the groups", _observers(findings)),
        ("Objective at the end", _value(fact("objective"))),
        (f"At the end, {progress_words(findings)} (0 at a solution)", _value(fact("h_norm"))),
        ("Converged", _value(fact("converged"))),
        ("Stopped because", _value(fact("stop_reason"))),
        ("Rounds", _value(fact("rounds"))),
        ("Groups", _groups(findings)),
        ("Participation", _value(fact("participation"))),
        ("Compressor", _value(fact("compressor"))),
        ("Exchanges between the groups, whole job", _value(fact("exchanges"))),
        *_sent(findings),
        ("Bootstrap replicates", count(findings.n_draws)),
    ]


def _groups(findings: Findings) -> str:
    groups, solved = int(findings.data.fact("n_groups", default=1)), findings.solved
    return f"{groups}, solved as {solved}" if solved < groups else f"{groups}"


def _sent(findings: Findings) -> list[tuple[str, str]]:
    """Return what organisations sent and got; a fit of one group sent nothing, so there is nothing to say."""
    if findings.solved < 2:
        return []
    up = "Passed by the groups to the fit (of one person's groups nothing leaves the computer)"
    return [
        (up, _bytes(findings.data.fact("bytes_up"))),
        ("Passed to the groups", _bytes(findings.data.fact("bytes_down"))),
    ]


def _fitted(findings: Findings) -> HtmlTable | None:
    """Counted beside fitted birds of every year, at the visits that were made."""
    table = fitted_years(findings.data.visited, findings.months)
    if table.empty:
        return None
    note = (
        "Sums over the visits that were made, each at its own effort. A model that follows the counts has ratios near 1, "
        "without a drift; an index is not drawn to the counts of single visits, so ratios of thin years lie farther away. "
    ) + (lack_of_fit(table, findings.unit) or no_clear_miss(table))
    found, fitted = f"Counted {findings.unit}", f"Fitted {findings.unit}"
    if findings.data.fact("family") == "bernoulli":  # a site counts on every visit that found the species
        found, fitted = "Visits that found the species", "Fitted number of them"
    if maybe := bool(findings.data.fact("occupancy", default=[])):
        note += " Visits: each by the probability that its site was occupied."
    return table_of(
        "Counted and fitted, year by year",
        table,
        [
            ("Year", lambda r: Cell(f"{r.year}")),
            ("Visits to occupied sites" if maybe else "Visits", lambda r: cell(count, r.visits)),
            (found, lambda r: cell(count, r.counted)),
            (fitted, lambda r: Cell(number(r.fitted, 4), r.fitted)),
            ("Counted / fitted", lambda r: cell(number, r.ratio)),
        ],
        note,
    )


def _cv(findings: Findings) -> HtmlTable | None:
    cv = findings.data.cv
    if cv is None or cv.empty:
        return None
    means = ["deviance", "log_rmse", "total_bias"]
    weighted = cv.assign(chosen=chosen_rows(findings), mean=rows_of(findings, averaged_ranks(findings)))
    weighted[means] = cv[means].mul(cv["n"], axis=0)
    keys = ["candidate", "model", "rank", "chosen", "mean"]
    table: pd.DataFrame = weighted.groupby(keys, as_index=False, dropna=False)[["n", *means]].sum()
    table[means] = table[means].div(table["n"], axis=0)

    def distribution(row: Any) -> Cell:
        return Cell(f"{row.model}{' (chosen)' if row.chosen else ' (averaged with it)' if row.mean else ''}")

    # Of presence a prediction is a chance, which has no logarithm to err in; Gaussian values may be below 0.
    family, log = findings.data.fact("family"), findings.data.fact("scale") == "log1p"
    title = f"Error, {findings.unit}" if family == "gaussian" and not log else "Error of log(1 + birds)"
    error = [(title, lambda r: Cell(number(r.log_rmse, 4), r.log_rmse))] if family != "bernoulli" else []
    return table_of(
        "Cross-validation",
        table,
        [
            ("Distribution", distribution),
            ("Rank", lambda r: cell(str, r.rank)),
            ("Deviance per visit", lambda r: Cell(number(r.deviance, 4), r.deviance)),
            *error,
            ("Predicted / counted total", lambda r: cell(number, r.total_bias)),
            ("Visits held out", lambda r: cell(count, r.n)),
        ],
        "On visits that the fit did not see; lower deviance is better, a ratio of 1 is unbiased. Ranks end with the first "
        f"that predicts worse by {100 * WORSE:.0f} % than the best of its distribution.",
    )
