"""Sentences of the report; each follows from a number, and says its unit and interval."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from fedmiss.arrays import Bool
from fedmiss.report.analysis import Analysis
from fedmiss.report.cautions import carried, cautions
from fedmiss.report.classes import MIN_DRAWS
from fedmiss.report.findings import Findings
from fedmiss.report.fitted import effort_caution, fitted_years, lack_of_fit
from fedmiss.report.words import count, interval_words, left_out, number, per_year, percent, quantity, share
from fedmiss.report.years import season_text

__all__ = [
    "Headline",
    "area",
    "averaged_ranks",
    "averaged_rows",
    "caveats",
    "chosen_rows",
    "family_words",
    "headline",
    "headline_of",
    "latest",
    "limits",
    "model_caveats",
    "not_converged",
    "other_convention",
    "over_the_period",
    "progress_words",
]

_SAID = {
    "strong increase": "has increased strongly",
    "moderate increase": "has increased moderately",
    "stable": "has been stable",
    "moderate decline": "has declined moderately",
    "strong decline": "has declined strongly",
}
_SURE = {  # of the others the direction is clear
    "uncertain": "it may have risen or fallen",
    "stable": "changes above 5 % per year are excluded",
}
_FAMILIES = {"poisson": "Poisson (log link)", "gaussian": "Gaussian", "bernoulli": "Bernoulli (logit link)"}


@dataclass(frozen=True, slots=True)
class Headline:
    """The class in a few words, the sentence that carries it, what it rests on; since when and how sure."""

    verdict: str
    sentence: str
    support: str
    sure: str = ""


def headline(a: Analysis) -> Headline:
    """Return the headline: it follows from the trend class and the coverage, and from nothing else."""
    if not a.found:
        # with n visits alike, a chance of finding above 1 - 0.05^(1/n) would have given a find in 95 of 100 cases
        rate = 1.0 - 0.05 ** (1.0 / max(a.coverage.n_visits, 1))
        return Headline(
            "Never found",
            f"{a.name} was found on none of {count(a.coverage.n_visits)} visits {_where(a)}. There is no index and no trend "
            f"to report. If visits were alike and independent, a chance of finding it above {share(rate)} on a visit is "
            "excluded (95 %); where nobody looked, nothing is known.",
            basis(a),
        )
    subject = f"{a.name}, as counted where it was found," if a.coverage.no_zeros else a.name
    return headline_of(a, basis(a), subject, " (resting on one site or count)" if any(carried(a)) else "")


def _where(a: Findings) -> str:
    season = "" if a.yearly_counts else f", {season_text(a.years.season)}"
    return f"at {count(a.n_sites)} site{'s' if a.n_sites != 1 else ''}{season}"


def headline_of(a: Findings, support: str, subject: str, doubt: str = "") -> Headline:
    """Return the headline of a species that was found.

    Parameters
    ----------
    support : what the estimate rests on, a sentence
    subject : the species, as the sentence names it
    doubt : what is added to the class, where the fit has converged
    """
    t, where = a.trend, _where(a)
    if t["n_years"] < 2:
        return Headline(
            "No trend",
            f"{a.name}: the panel has {int(t['n_years'])} complete year{'' if t['n_years'] == 1 else 's'} with enough "
            "counts, so there is no trend to report.",
            support,
        )
    years = f"{t['from_year']} to {t['to_year']}"
    change = per_year(t["percent_per_year"], t["percent_lo"], t["percent_hi"])
    kind = str(t["trend_class"])
    if a.data.fact("converged") is False:
        doubt = " (provisional: the fit has not converged)"
    if kind in _SAID:
        sentence = f"{subject} {_SAID[kind]} from {years}: {change}, {where}."
    elif kind == "uncertain":
        sentence = (
            f"{subject.rstrip(',')}: the trend from {years} is uncertain. The estimate is {change}; the interval includes "
            f"no change and leaves room for {_room(t['percent_lo'], t['percent_hi'])}, {where}."
        )
    else:
        sentence = f"{a.name}: no trend class is given for {years}, because {t['reason']}. "
        return Headline("No trend class", sentence + _orientation(t, change, where), support)
    sure = f"since {t['from_year']}: {_SURE.get(kind, 'the direction is clear')}"
    return Headline(kind.capitalize() + doubt, sentence, support, "" if doubt else sure)


def over_the_period(a: Findings) -> str:
    """Return the change of the trend line from the first to the last year; empty where the trend has no class."""
    t = a.trend
    if str(t["trend_class"]) not in _SAID:
        return ""
    steps = int(t["to_year"]) - int(t["from_year"])
    change, lo, hi = (
        100 * math.expm1(steps * math.log1p(t[k] / 100)) if t[k] > -100 else -100.0
        for k in ("percent_per_year", "percent_lo", "percent_hi")
    )
    return (
        f"Over the whole period that is {percent(change)} ({interval_words(lo, hi)}): the same line, from its first year to "
        "its last. Two single years may differ by more or less."
    )


def _orientation(t: pd.Series, change: str, where: str) -> str:
    """Give the change without a class, never without an interval where one can be had."""
    if not math.isfinite(t["percent_lo"]) and math.isfinite(t["percent_lo_sampling"]):
        narrow = interval_words(t["percent_lo_sampling"], t["percent_hi_sampling"])
        return (
            f"Between the two years the total changed by {percent(t['percent_per_year'])} per year ({narrow}, of the error "
            f"of the totals alone), {where}; two years cannot tell a trend from the ups and downs of single years."
        )
    return f"For orientation only, the estimated change is {change}, {where}."


def other_convention(a: Findings) -> str:
    """Say what TRIM's convention makes of the same numbers, or that it is the one in use."""
    t = a.trend
    if not math.isfinite(t["slope_se_sampling"]):
        return ""
    if a.settings.convention == "trim":
        return (
            "The interval is by TRIM's convention: the error of the totals of just these years, without the scatter of "
            "years about their line."
        )
    if t["n_years"] < 3:
        return ""  # the headline says it
    scatter = (
        "No scatter of years about their line was found beyond the error of the totals; the interval still allows for "
        "some, as few years cannot exclude it."
    )
    if t["year_sd"] > 0.005:
        sd = share(math.expm1(t["year_sd"]))
        allows = "and the interval of the trend allows for that"
        scatter = f"True yearly totals scatter about their line by an estimated {sd}, {allows}."
    narrow = interval_words(t["percent_lo_sampling"], t["percent_hi_sampling"])
    return f"{scatter} Without it (TRIM's convention): {narrow} per year."


def _room(lo: float, hi: float) -> str:
    """Name the changes that matter (5 % a year, the threshold of every rule) and that an interval does not exclude."""
    room = ["a decline of more than 5 % per year"] if lo < -5 else []
    room += ["an increase of more than 5 % per year"] if hi > 5 else []
    return " and for ".join(room) or "a moderate one"


def basis(a: Analysis) -> str:
    """Say what the estimate rests on."""
    c = a.coverage
    observers = a.data.fact("n_observers")
    who = f" by {count(observers)} observers" if observers and not a.yearly_counts else ""
    groups = len(a.data.groups)
    if c.n_detected == 0:
        return f"{count(c.n_visits)} visits{who} went to {share(c.share_observed)} of {count(c.n_cells)} {a.cell}s."
    years = f"{int(a.years.used.sum())} of {a.years.year.size} years"
    return (
        f"It rests on {count(c.n_counted)} visits with a count{who} in {years}, held by {count(groups)} "
        f"group{'s' if groups != 1 else ''}; {share(c.share_observed)} of {count(c.n_cells)} {a.cell}s were counted, "
        f"and {share(c.share_imputed_total)} of the total comes from {a.cell}s that were not."
    )


def area(a: Findings) -> str:
    """Set the trend of the area beside that of the visited sites; empty where every site was visited."""
    if a.visited.empty:
        return ""
    r = a.visited.iloc[0]
    went = f"of which {count(r['n_sites'])} were visited" if r["n_sites"] else "visited and not"
    follows = "are those of a mean site, since nothing that is known of the sites predicts their counts clearly better"
    if a.data.fact("features", default=[]):
        follows = "follow from what they have in common with the visited ones"
    said = (
        f"The area is {count(a.n_sites)} sites, {went}; the numbers of those that nobody visited, "
        f"{share(1.0 - r['share'])} of the total, {follows}."
    )
    if math.isfinite(r["percent_lo"]):
        change = per_year(r["percent_per_year"], r["percent_lo"], r["percent_hi"])
        said += f" At the visited sites alone the trend is {change}."
    return said


def caveats(a: Analysis) -> list[str]:
    """List what a reader must know before using the numbers; only what holds for these data."""
    move = ": give it more rounds where the method takes them (--rounds), else fewer terms (--rank 0)"
    return [
        *not_converged(a, move),
        *cautions(a),
        *_of_counts(a),
        *model_caveats(a, birds=bool(a.coverage.birds_counted)),
    ]


def not_converged(a: Findings, move: str = "") -> Iterator[str]:
    """Say it of a fit that did not converge; ``move``: what its owner can do."""
    if a.data.fact("converged") is False:
        why = a.data.fact("stop_reason", default="not said")
        yield (
            f"The fit did not converge (it stopped because: {why}). Use no number before a fit converges{move}."
        )


def _of_counts(a: Analysis) -> Iterator[str]:
    c, period = a.coverage, "year" if a.yearly_counts else "month"
    zero_share = c.n_zeros / c.n_visits if c.n_visits else 0.0
    if c.no_zeros:
        yield (
            "No visit in this panel records an absence. The numbers describe sites where birds were found and counted: "
            "a site that birds left looks like a site nobody visited, so a decline by desertion of sites would be missed "
            "and totals of such sites are too high."
        )
    elif zero_share < 0.02:
        yield f"Only {share(zero_share)} of the visits record an absence, so sites without birds are hardly known."
    if c.share_observed < 0.05:
        yield (
            f"{share(c.share_observed)} of the {a.cell}s were counted. The rest is the model's expectation from the "
            f"same site in other {period}s and from other sites in the same {period}."
        )
    if n := c.months_unseen:
        has, its = ("has", "its total is") if n == 1 else ("have", "their totals are")
        yield f"{count(n)} of {count(c.n_months)} {period}s {has} no count at any site; {its} imputed whole."
    season = season_text(a.years.season)
    yield from left_out(
        a.years.year[~a.years.complete], "lacks", "lack", f"some months of the season ({season})"
    )
    empty = a.years.complete & (a.yearly["cells_observed"] == 0).to_numpy()
    yield from left_out(a.years.year[empty], "has", "have", "no count")


def model_caveats(a: Findings, *, birds: bool) -> Iterator[str]:
    """Say what a reader must know of the model; ``birds``: whether any were counted."""
    if a.data.effort is not None and not a.data.effort:
        yield (
            "Effort does not enter the model, so a change in how long or how far people searched cannot be told from a "
            "change in birds."
        )
    yield from effort_caution(a)
    if a.n_draws == 0:
        yield (
            "No bootstrap replicates were made, so no number has an interval. Fit again with bootstrap replicates before "
            "using the trend."
        )
    elif a.n_draws < MIN_DRAWS:
        yield f"Only {a.n_draws} bootstrap replicates were made; intervals need {MIN_DRAWS} or more."
    if a.data.one_trend:
        yield (
            "The model in use gives all sites and regions one trend: differences between them would not predict counts any "
            "better, or were not asked for. They are not shown."
        )
    if a.data.fact("scale") == "log1p":
        smear, how = a.data.fact("smear"), "without a correction for flocks"
        if smear is not None:
            how = f"with one factor for all cells ({number(float(smear))})"
        yield (
            f"The fit is on the log(1 + count) scale and is turned back into birds {how}: totals are less sure than "
            "indices and trends, which are ratios."
        )
    if a.data.fact("family") == "bernoulli":
        yield "The fit is of presence and absence: totals are expected numbers of occupied sites, not of birds."
    if miss := lack_of_fit(fitted_years(a.data.visited, a.data.months)):
        yield miss
    chosen = None if a.data.cv is None else a.data.cv[chosen_rows(a)]
    if chosen is not None and len(chosen) and birds:
        bias = float((chosen["total_bias"] * chosen["n"]).sum() / chosen["n"].sum())
        if math.isfinite(bias) and not 0.9 <= bias <= 1.1:
            yield (
                f"On visits kept out of the fit, the predicted total is {number(bias)} times the counted one: absolute "
                "totals may be off by as much, and their intervals do not cover that. Index and trend are ratios and suffer "
                "less."
            )


def limits(a: Findings) -> list[str]:
    """Say what this report cannot tell, whatever its numbers are."""
    spoken_of = (
        f"It speaks of the {count(a.n_sites)} sites in the panel, not of a country or a population: places that nobody "
        "visits are not in it."
    )
    if not a.visited.empty:
        spoken_of = (
            f"It speaks of the {count(a.n_sites)} sites of the table. What it says of those that nobody visited holds as "
            "far as they are like visited sites with the same covariates; beyond what visited sites span, the number at the "
            "edge is used."
        )
    scatter = (
        "That of the trend, and of a change between years, also covers the birds' ordinary ups and downs from year to year; "
        "those of totals and indices are of the numbers in that year."
    )
    if a.settings.convention == "trim":
        scatter = (
            "All are of the numbers in the counted years: none covers the birds' ordinary ups and downs from year to "
            "year, which a line through few years follows."
        )
    out = [
        spoken_of,
        "People go where they expect birds. The model uses where and when counts were made as given; if "
        f"visits follow the birds, totals of {a.cell}s without a count are too high.",
        "Standard effort is the model's reference visit. A total at standard effort is comparable from "
        "year to year; it is not a census.",
        "Effort that is not recorded looks like birds: if visits became longer, or eyes better, by one per cent a year, and "
        "nobody wrote it down, the trend is too high by up to one per cent a year.",
        f"Intervals cover who happened to be counting (observers are redrawn inside each group). {scatter} None covers a "
        "wrong model, a change in identification skill shared by everybody, or double counting.",
    ]
    season = a.years.season
    if len(season) < 12 and not a.yearly_counts:
        out.append(
            f"The yearly figures are of {season_text(season)}; they say nothing of the rest of the year."
        )
        if beyond := sorted(set(a.data.months["month_of_year"].astype(int)) - set(season)):
            out[-1] += (
                f" {season_text(tuple(beyond))} is in the panel but not in the yearly figures, because too few of the years "
                "have it."
            )
    return out


def family_words(a: Findings) -> str:
    """Name the model in words."""
    family = str(a.data.fact("family", default="not said"))
    words = _FAMILIES.get(family, family)
    model = a.data.fact("model")
    if model:
        return f"{model}{' (log link)' if family == 'poisson' else ''}"
    scale = a.data.fact("scale", default="raw")
    return f"{words}{' on the log(1 + count) scale' if scale == 'log1p' else ''}"


def progress_words(a: Findings) -> str:
    """Say what the trace's ``||h||`` measures: the paper's mean field, or the movement of the fast solver."""
    if a.data.fact("method") == "fast":
        return "mean change of the fitted values from one round to the next"
    return "norm of the mean field ||h||"


def chosen_rows(a: Findings) -> Bool:
    """Mark the rows of the cross-validation that belong to the fitted candidate."""
    return _rows_of(a, [float(a.data.fact("rank", default=-1))])


def averaged_ranks(a: Findings) -> list[int]:
    """Ranks of the models that were averaged, the chosen one first; one or none where there is no average."""
    return [int(m["rank"]) for m in a.data.fact("members", default=[])]


def averaged_rows(a: Findings) -> Bool:
    """Mark the rows of the cross-validation that belong to the models that were averaged, the chosen one included."""
    return _rows_of(a, averaged_ranks(a))


def _rows_of(a: Findings, ranks: Sequence[float]) -> Bool:
    cv = a.data.cv
    assert cv is not None
    model = a.data.fact("model")
    mask = cv["rank"].isin(ranks).to_numpy()
    if model is not None:
        mask = mask & (cv["model"] == model).to_numpy()
    return np.asarray(mask, dtype=bool)


def latest(a: Findings) -> str:
    """Say where the last complete year stands, with unit and interval."""
    used = a.yearly[a.yearly["used"]]
    if used.empty:
        return ""
    row, where = used.iloc[-1], "" if a.yearly_counts else ", in the mean month of the season,"
    total = quantity(row["total"], row["total_lo"], row["total_hi"], a.unit)
    return f"In {int(row['year'])} the estimated total over all sites{where} was {total}."
