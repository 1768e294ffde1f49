"""Sentences of the report; each follows from a number, and says its unit and interval."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pandas as pd

from fedmiss.arrays import Bool
from fedmiss.files import WITHHELD
from fedmiss.models.lowrank.structure import UNTRIED
from fedmiss.report.analysis import Analysis
from fedmiss.report.cautions import absences, carried, cautions
from fedmiss.report.classes import MIN_DRAWS
from fedmiss.report.findings import Findings
from fedmiss.report.fitted import effort_caution, fitted_years, lack_of_fit, level_off
from fedmiss.report.words import count, interval_words, left_out, number, per_year, percent, quantity, share
from fedmiss.report.years import season_text
from fedmiss.seasons import first_month

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
_NEW_YEAR = " A season over the New Year counts as the year in which it ends."
_FAMILIES = {"poisson": "Poisson (log link)", "gaussian": "Gaussian", "bernoulli": "Bernoulli (logit link)"}


@dataclass(frozen=True, slots=True)
class Headline:
    """The class in a few words, the sentence that carries it, what it rests on; since when and how sure."""

    verdict: str
    sentence: str
    support: str
    sure: str = ""


def headline(analysis: Analysis) -> Headline:
    """Return the headline: it follows from the trend class and the coverage, and from nothing else."""
    if not analysis.found:
        # with n visits alike, a chance of finding above 1 - 0.05^(1/n) would have given a find in 95 of 100 cases
        rate = 1.0 - 0.05 ** (1.0 / max(analysis.coverage.n_visits, 1))
        sentence = (
            f"{analysis.name} was found on none of {count(analysis.coverage.n_visits)} visits {_where(analysis)}. There is "
            "no index and no trend to report. If visits were alike and independent, a chance of finding it above "
            f"{share(rate)} on a visit is excluded (95 %); where nobody looked, nothing is known."
        )
        return Headline("Never found", sentence, basis(analysis))
    subject = analysis.name + (", as counted where it was found," if analysis.coverage.n_zeros == 0 else "")
    doubt = ", resting on one site or count" if any(carried(analysis)) else ""
    return headline_of(analysis, basis(analysis), subject, doubt)


def _where(findings: Findings) -> str:
    season = "" if findings.yearly_counts else f", {season_text(findings.years.season)}"
    return f"at {count(findings.n_sites)} site{'s' if findings.n_sites != 1 else ''}{season}"


def headline_of(findings: Findings, support: str, subject: str, doubt: str = "") -> Headline:
    """Return the headline of a species that was found.

    Parameters
    ----------
    support : what the estimate rests on, a sentence
    subject : the species, as the sentence names it
    doubt : what is added to the class, where the fit has converged
    """
    trend, where = findings.trend, _where(findings)
    if (n := int(trend["n_years"])) < 2:
        complete = f"{n} complete year{'' if n == 1 else 's'}"
        sentence = (
            f"{findings.name}: the panel has {complete} with enough counts, so there is no trend to report."
        )
        return Headline("No trend", sentence, support)
    years = f"{trend['from_year']} to {trend['to_year']}"
    change = per_year(trend["percent_per_year"], trend["percent_lo"], trend["percent_hi"])
    kind = str(trend["trend_class"])
    if findings.data.fact("converged") is False:
        doubt = ", provisional since the fit has not converged"
    if kind in _SAID:
        sentence = f"{subject} {_SAID[kind]} from {years}: {change}, {where}."
    elif kind == "uncertain":
        sentence = (
            f"{subject.rstrip(',')}: the trend from {years} is uncertain. The estimate is {change}; the interval includes "
            f"no change and leaves room for {_room(trend['percent_lo'], trend['percent_hi'])}, {where}."
        )
    else:
        sentence = f"{findings.name}: no trend class is given for {years}, because {trend['reason']}. "
        return Headline("No trend class", sentence + _orientation(trend, change, where), support)
    sure = f"since {trend['from_year']}: {_SURE.get(kind, 'the direction is clear')}"
    return Headline(kind.capitalize() + doubt, sentence, support, "" if doubt else sure)


def over_the_period(windows: pd.DataFrame) -> str:
    """Return the change of the trend line from the first to the last year; empty where the trend has no class.

    ``windows``: of :func:`fedmiss.report.changes.window_trends`; its first row is of all years.
    """
    if windows.empty or windows["trend_class"].iloc[0] not in _SAID:
        return ""
    change, lo, hi = windows[["change_percent", "change_lo", "change_hi"]].iloc[0]
    return (
        f"Over the whole period that is {percent(change)} ({interval_words(lo, hi)}): the same line, from its first year to "
        "its last. Two single years may differ by more or less."
    )


def _orientation(trend: pd.Series, change: str, where: str) -> str:
    """Give the change without a class, never without an interval where one can be had."""
    if not math.isfinite(trend["percent_lo"]) and math.isfinite(trend["percent_lo_sampling"]):
        narrow = interval_words(trend["percent_lo_sampling"], trend["percent_hi_sampling"])
        return (
            f"Between the two years the total changed by {percent(trend['percent_per_year'])} per year ({narrow}, of the "
            f"error of the totals alone), {where}; two years cannot tell a trend from the ups and downs of single years."
        )
    return f"For orientation only, the estimated change is {change}, {where}."


def other_convention(findings: Findings) -> str:
    """Say what TRIM's convention makes of the same numbers, or that it is the one in use."""
    trend = findings.trend
    if not math.isfinite(trend["slope_se_sampling"]):
        return ""
    if findings.settings.convention == "trim":
        return (
            "The interval is by TRIM's convention: the error of the totals of just these years, without the scatter of "
            "years about their line."
        )
    if trend["n_years"] < 3:
        return ""  # the headline says it
    scatter = (
        "No scatter of years about their line was found beyond the error of the totals; the interval still allows for "
        "some, as few years cannot exclude it."
    )
    if trend["year_sd"] > 0.005:
        sd = share(math.expm1(trend["year_sd"]))
        allows = "and the interval of the trend allows for that"
        scatter = f"True yearly totals scatter about their line by an estimated {sd}, {allows}."
    narrow = interval_words(trend["percent_lo_sampling"], trend["percent_hi_sampling"])
    return f"{scatter} Without it (TRIM's convention): {narrow} per year."


def _room(lo: float, hi: float) -> str:
    """Name the changes that matter (5 % a year, the threshold of every rule) and that an interval does not exclude."""
    room = ["a decline of more than 5 % per year"] if lo < -5 else []
    room += ["an increase of more than 5 % per year"] if hi > 5 else []
    return " and for ".join(room) or "a moderate one"


def basis(analysis: Analysis) -> str:
    """Say what the estimate rests on."""
    coverage = analysis.coverage
    observers = analysis.data.fact("n_observers")
    who = f" by {count(observers)} observer{'s' if observers > 1 else ''}" if observers else ""
    groups = len(analysis.data.groups)
    if coverage.n_detected == 0:
        return (
            f"{count(coverage.n_visits)} visits{who} went to {share(coverage.share_observed)} of "
            f"{count(coverage.n_cells)} {analysis.cell}s."
        )
    held = f", held by {count(groups)} groups" if groups > 1 else ""
    known = f"{count(coverage.n_counted)} visits with a count"
    if analysis.data.fact("family") == "bernoulli":  # of a find without a number (X) it takes the find
        known = f"{count(coverage.n_visits)} visits"
    rests = f"It rests on {known}{who}{held}."
    if not (used := int(analysis.years.used.sum())):
        return rests
    return (
        f"{rests} Index and trend are of {used} of {analysis.years.year.size} years: {share(coverage.share_observed)} of "
        f"their {count(coverage.n_cells_used)} {analysis.cell}s were counted, and {share(coverage.share_imputed_total)} of "
        "the total comes from those that were not."
    )


def area(findings: Findings) -> str:
    """Set the trend of the area beside that of the visited sites; empty where every site was visited."""
    if findings.visited.empty:
        return ""
    visited = findings.visited.iloc[0]
    went = f"of which {count(visited['n_sites'])} were visited" if visited["n_sites"] else "visited and not"
    follows = "are those of a mean site, since nothing that is known of the sites predicts their counts clearly better"
    if set(findings.data.fact("features", default=[])) - {*UNTRIED}:
        follows = "follow from what they have in common with the visited ones"
    said = (
        f"The area is {count(findings.n_sites)} sites, {went}; the numbers of those that nobody visited, "
        f"{share(1.0 - visited['share'])} of the total, {follows}."
    )
    if math.isfinite(visited["percent_lo"]):
        change = per_year(visited["percent_per_year"], visited["percent_lo"], visited["percent_hi"])
        said += f" At the visited sites alone the trend is {change}."
    return said


def caveats(analysis: Analysis) -> list[str]:
    """List what a reader must know before using the numbers; only what holds for these data."""
    move = ": give it more rounds where the method takes them (--rounds), else fewer terms (--rank 0)"
    return [
        *not_converged(analysis, move),
        *cautions(analysis),
        *_of_counts(analysis),
        *model_caveats(analysis, birds=bool(analysis.coverage.birds_counted)),
    ]


def not_converged(findings: Findings, move: str = "") -> Iterator[str]:
    """Say it of a fit that did not converge; ``move``: what its owner can do."""
    if findings.data.fact("converged") is False:
        why = findings.data.fact("stop_reason", default="not said")
        yield f"The fit did not converge (it stopped because: {why}). Use no number before a fit converges{move}."


def _of_counts(analysis: Analysis) -> Iterator[str]:
    coverage, period = analysis.coverage, "year" if analysis.yearly_counts else "month"
    yield from absences(coverage.n_zeros, coverage.n_visits)
    if coverage.share_cells < 0.05:
        yield (
            f"{share(coverage.share_cells)} of the {analysis.cell}s were counted. The rest is the model's "
            f"expectation from the same site in other {period}s and from other sites in the same {period}."
        )
    if unseen := coverage.months_unseen:
        has, its = ("has", "its total is") if unseen == 1 else ("have", "their totals are")
        said = f"{count(unseen)} of {count(coverage.n_months)} {period}s {has} no count at any site; {its} imputed whole."
        if hidden := -sum(row["rows"] for row in analysis.data.flow if row["step"] == WITHHELD):
            said += f" {count(hidden)} visit{'s were' if hidden > 1 else ' was'} withheld."
        yield said
    years = analysis.years
    some = f"some months of the season ({season_text(years.season)})"
    for said in left_out(years.year[~years.complete], "lacks", "lack", some):
        yield said + _NEW_YEAR if first_month(years.season) <= 12 else said
    empty = years.complete & (analysis.yearly["cells_observed"] == 0).to_numpy()
    yield from left_out(years.year[empty], "has", "have", "no count")


def model_caveats(findings: Findings, *, birds: bool) -> Iterator[str]:
    """Say what a reader must know of the model; ``birds``: whether any were counted."""
    if not findings.data.effort:
        yield (
            "Effort does not enter the model, so a change in how long or how far people searched cannot be told from a "
            "change in birds."
        )
    yield from effort_caution(findings)
    if findings.n_draws == 0:
        without = findings.data.fact("method") in ("fedmissem", "saem")  # which make none
        again = "Fit with --method fast" if without else "Fit again with bootstrap replicates"
        yield (
            f"No bootstrap replicates were made, so no number has an interval. {again} before using the trend."
        )
    elif findings.n_draws < MIN_DRAWS:
        yield f"Only {findings.n_draws} bootstrap replicates were made; intervals need {MIN_DRAWS} or more."
    if findings.data.one_trend and findings.n_sites != 1:
        large = findings.data.fact("large_site")
        who, other = "all sites and regions", "differences"
        if large:
            who, other = "all sites but the one with most birds", "other differences"
        yield (
            f"The model in use gives {who} one trend: {other} between them would not predict counts any better, or were not "
            "asked for. They are not shown."
        )
        if findings.data.fact("slopes") and large is None:
            yield "A site with more than half of all birds counted, where there is one, has a trend of its own."
    if findings.data.fact("scale") == "log1p":
        smear, how = findings.data.fact("smear"), "without a correction for flocks"
        if smear is not None:
            how = f"with one factor for all cells ({number(float(smear))})"
        yield (
            f"The fit is on the log(1 + count) scale and is turned back into birds {how}: totals are less sure than "
            "indices and trends, which are ratios."
        )
    if findings.data.fact("family") == "bernoulli":
        yield (
            "The fit is of presence and absence: totals are expected numbers of sites at which one standard visit finds the "
            "species, not of birds. Sites at which it is overlooked are not in them."
        )
    table = fitted_years(findings.data.visited, findings.months)
    if miss := lack_of_fit(table, findings.unit):
        yield miss
    off = level_off(table, findings.unit, scaled=findings.data.fact("family") == "poisson")
    chosen = None if findings.data.cv is None else findings.data.cv[chosen_rows(findings)]
    if chosen is not None and len(chosen) and birds:
        bias = float((chosen["total_bias"] * chosen["n"]).sum() / chosen["n"].sum())
        if math.isfinite(bias) and not 0.9 <= bias <= 1.1:
            off = ""  # said of the visits kept out
            yield (
                f"On visits kept out of the fit, the predicted total is {number(bias)} times the counted one: absolute "
                "totals may be off by as much, and their intervals do not cover that. Index and trend are ratios and suffer "
                "less."
            )
    if off and birds:
        yield off


def limits(findings: Findings) -> list[str]:
    """Say what this report cannot tell, whatever its numbers are."""
    sites = "It speaks of the " + (
        f"{count(findings.n_sites)} sites" if findings.n_sites != 1 else "one site"
    )
    spoken_of = (
        f"{sites} in the panel, not of a country or a population: places that nobody visits are not in it."
    )
    if not findings.visited.empty:
        spoken_of = (
            f"{sites} of the table. What it says of those that nobody visited holds as far as they are like visited sites "
            "with the same covariates; beyond what visited sites span, the number at the edge is used."
        )
    scatter = (
        "That of the trend, and of a change between years, also covers the birds' ordinary ups and downs from year to year; "
        "where good and bad years come in long runs it is still too narrow. Those of totals and indices are of the numbers "
        "in that year."
    )
    if findings.settings.convention == "trim":
        scatter = (
            "All are of the numbers in the counted years: none covers the birds' ordinary ups and downs from year to "
            "year, which a line through few years follows."
        )
    covered = (
        "which sites happened to be counted" if findings.redrawn == "sites" else "who happened to be counting"
    )
    out = [
        spoken_of,
        "People go where they expect birds. The model uses where and when counts were made as given; if "
        f"visits follow the birds, totals of {findings.cell}s without a count are too high.",
        "Standard effort is the model's reference visit. A total at standard effort is comparable from "
        "year to year; it is not a census.",
        "Effort that is not recorded looks like birds: if visits became longer, or eyes better, by one per cent a year, and "
        "nobody wrote it down, the trend is too high by up to one per cent a year.",
        f"Intervals cover {covered} ({findings.redrawn} are redrawn inside each group). {scatter} None covers a wrong "
        "model, a change in identification skill shared by everybody, or double counting.",
    ]
    season = findings.years.season
    if len(season) < 12 and not findings.yearly_counts:
        out.append(
            f"The yearly figures are of {season_text(season)}; they say nothing of the rest of the year."
        )
        if first_month(season) <= 12:
            out[-1] += _NEW_YEAR
        if beyond := sorted(set(findings.data.months["month_of_year"].astype(int)) - set(season)):
            out[-1] += (
                f" {season_text(tuple(beyond))} is in the panel but not in the yearly figures, because too few of the years "
                "have it."
            )
    return out


def family_words(findings: Findings) -> str:
    """Name the model in words."""
    family = str(findings.data.fact("family", default="not said"))
    if model := findings.data.fact("model"):
        return f"{model}{' (log link)' if family == 'poisson' else ''}"
    scale = " on the log(1 + count) scale" if findings.data.fact("scale") == "log1p" else ""
    return _FAMILIES.get(family, family) + scale


def progress_words(findings: Findings) -> str:
    """Say what the trace's ``||h||`` measures: the paper's mean field, or the movement of the fast solver."""
    if findings.data.fact("method") == "fast":
        return "mean change of the fitted values from one round to the next"
    return "norm of the mean field ||h||"


def chosen_rows(findings: Findings) -> Bool:
    """Mark the rows of the cross-validation that belong to the fitted candidate."""
    return rows_of(findings, [float(findings.data.fact("rank", default=-1))])


def averaged_ranks(findings: Findings) -> list[int]:
    """Ranks of the models that were averaged, the chosen one first; one or none where there is no average."""
    return [int(member["rank"]) for member in findings.data.fact("members", default=[])]


def rows_of(findings: Findings, ranks: Sequence[float]) -> Bool:
    """Mark the rows of the cross-validation that belong to the fitted model with one of these ranks."""
    cv, model = findings.data.cv, findings.data.fact("model")
    assert cv is not None
    mask = cv["rank"].isin(ranks) & (model is None or cv["model"] == model)
    return mask.to_numpy(dtype=bool)


def latest(findings: Findings) -> str:
    """Say where the last complete year stands, with unit and interval."""
    used = findings.yearly[findings.yearly["used"]]
    if used.empty:
        return ""
    row, where = used.iloc[-1], "" if findings.yearly_counts else ", in the mean month of the season,"
    total = quantity(row["total"], row["total_lo"], row["total_hi"], findings.unit)
    return f"In {int(row['year'])} the estimated total over all sites{where} was {total}."
