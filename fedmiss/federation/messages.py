"""Everything that can cross between a group and the hub: a closed list of frozen questions and answers.

Axes of arrays: ``n`` fits side by side, ``L`` months, ``p`` coefficients of a site (effect, slope on the line x, factors),
``f`` of them free in a month (x is known), ``q`` = p (p + 3) / 2 numbers of a gradient and the lower triangle of a
curvature, ``K`` effort coefficients, ``k`` features of sites, ``c`` coefficients that follow them (effect, slope), ``R``
regions, ``w`` columns of a product, ``m`` nodes. A question asks about the fits ``fits`` of the batch ``batch``: folds or
replicates that run in lockstep. Each field says in words what it holds; ``docs/research/messages.md`` and
``fedmiss inspect --messages`` are made from these words.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import IntEnum
from typing import ClassVar

import numpy as np

from fedmiss.federation.message import Answer, Message, Question
from fedmiss.federation.message import described as _f
from fedmiss.federation.messages_agree import (
    Axes,
    Covariates,
    CovariateSums,
    Description,
    Done,
    Features,
    FeatureSums,
    Gaps,
    GapSums,
    Hello,
    Pairs,
    PairSums,
    SiteVisits,
    Species,
    SpeciesSums,
    Support,
    SupportSums,
    Tallies,
    Tally,
    VisitSums,
)

__all__ = [
    "ANSWERS", "PROTOCOL", "QUESTIONS", "SQUARES", "Answer", "Axes", "Begin", "Broadcast", "Close", "CovariateSums",
    "Covariates", "Description", "Done", "FeatureSums", "Features", "FitSums", "GapSums", "Gaps", "Hello", "Keep",
    "Message", "Months", "Open", "OpenSums", "Outcome", "PairSums", "Pairs", "Predict", "Product", "ProductSums",
    "Question", "Refusal", "RegionTotals", "Score", "ScoreSums", "SiteTime", "SiteTimeSums", "SiteVisits", "Solve",
    "Species", "SpeciesSums", "Support", "SupportSums", "Tallies", "Tally", "Totals", "VisitSums", "why_not_finite",
    "words",
]  # fmt: skip

SQUARES = 2.0**20  # unit of the first part of ``OpenSums.squares``
PROTOCOL = 41  # raise it whenever a type below changes


class Begin(IntEnum):
    """Where the sites of a round begin."""

    GO_ON = 0
    FROM_ZERO = 1
    NEW_FACTOR = 2  # at zero
    PERTURBED = 3  # from the full fit, with draws of the prior means: replicates
    FROM_FULL = 4  # the same without draws
    AT_REST = 5  # at zero, and from there at their own end for the months that are given


# -- fits ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class OpenSums(Answer):
    """Sums at the start of every fit."""

    about: ClassVar[str] = "sums of weights and counts"
    sums: np.ndarray = _f(
        "sum of weights, of weighted values, of weighted exposures", "(n, 3)", "visits, birds", bits=24
    )
    squares: np.ndarray = _f(
        "sum of weighted squared values: whole units of 2^20, and the rest",
        "(n, 2)",
        "birds squared",
        bits=24,
    )
    sites: float = _f("number of the group's sites that totals are of", unit="sites", bits=30)


@dataclass(frozen=True, slots=True, eq=False)
class Open(Question):
    """Open a batch of fits that run in lockstep: they differ in the weights of the visits only."""

    about: ClassVar[str] = "opens a batch of fits: a full fit, folds, or replicates"
    answer: ClassVar[type[Answer]] = OpenSums
    batch: int = _f("number of the batch")
    family: str = _f("distribution: poisson, gaussian or bernoulli")
    scale: str = _f("raw, or log1p of the counts")
    observers: bool = _f("whether the group estimates observer effects")
    learning: bool = _f(
        "whether effort has two columns more, of observers who are new and of those who come later"
    )
    occupancy: bool = _f("whether sites may be empty in some years")
    p: int = _f("largest number of coefficients of a site")
    weights: str = _f("all, fold or replicate")
    by: str = _f("what a fold holds out: cell, block, visit or observer")
    folds: int = _f("number of folds")
    seed: int = _f("public seed of folds and prior noise")
    numbers: np.ndarray = _f("number of the fold or replicate of each fit", "(n,)")
    spread: np.ndarray = _f(
        "replicates: visits of all groups, factor of the spread of observers' weights, 1 to weigh observer x site",
        "(3,)",
    )
    source: int = _f("replicates: batch of the full fit that they start from, -1 for none")
    released: np.ndarray = _f("folds: 1 for months that take part, empty for all", "(L,)")
    features: np.ndarray = _f("which features of sites the prior follows, empty for none", "(k,)")
    centre: np.ndarray = _f("their means over visited sites", "(k,)")
    responses: bool = _f("whether months respond to these features, and no prior follows them")
    line: np.ndarray = _f("the known line x that every site has a slope on, empty for none", "(L,)")


@dataclass(frozen=True, slots=True, eq=False)
class Broadcast(Question):
    """Base of what brings the months' parameters of a round; nothing in it was computed for one group alone."""

    batch: int = _f("number of the batch")
    fits: np.ndarray = _f("which fits of the batch", "(n,)")
    begin: int = _f(
        "0 go on; 1 sites at zero; 2 one more factor, at zero; 3 from the full fit, with draws of the prior means "
        "(replicates); 4 the same without draws; 5 sites from zero at their end for these months"
    )
    refill: np.ndarray = _f("1 where the weights of visits are to be computed again", "(n,)")
    mu: np.ndarray = _f("overall level", "(n,)", "link scale")
    T: np.ndarray = _f("months' coefficients: effect and factors", "(n, L, f)", "link scale")
    D: np.ndarray = _f("their covariances", "(n, L, f (f + 1) / 2)", "link scale squared")
    tau: np.ndarray = _f("prior variances of the sites' coefficients", "(n, p)")
    half: np.ndarray = _f(
        "a site with more birds than this has a slope of its own, 0 for none", "(n,)", "birds"
    )
    phi: np.ndarray = _f("dispersion", "(n,)")
    inverse_size: np.ndarray = _f("1 / size of the negative binomial, 0 for none", "(n,)")
    kappa: np.ndarray = _f("effort coefficients", "(n, K)")
    ridge: np.ndarray = _f("precision of observer effects", "(n,)")
    B: np.ndarray = _f(
        "prior means of the sites' effects (and slopes) for one unit of each feature",
        "(n, k, c)",
        "link scale",
    )
    chain: np.ndarray = _f(
        "with occupancy: probabilities that a site is occupied in the first year, gained, lost", "(n, 3)"
    )
    shift: np.ndarray = _f("subtract from the sites' coefficients first", "(n, p)")
    common: np.ndarray = _f(
        "subtract from observer effects first, the second times how late an observer's visits are", "(n, 2)"
    )
    nodes: np.ndarray = _f("values of 1 / size at which the dispersion is wanted", "(n, m)")


@dataclass(frozen=True, slots=True, eq=False)
class Months(Answer):
    """Sums over the group's sites, by month."""

    about: ClassVar[str] = "normal equations of every month, summed over the group's sites"
    months: np.ndarray = _f(
        "gradient and curvature of every month's coefficients", "(n, L, f (f + 3) / 2)", bits=32
    )
    sites: np.ndarray = _f(
        "effective parameters, squared move and weight of the cells; number of visited sites, and sums over them of "
        "coefficients about their prior means (p), their squares (p), their variances (p), "
        "squared shares told of the second",
        "(n, 5 + 3 p)",
        bits=32,
    )
    features: np.ndarray = _f(
        "of the coefficients of the features and a constant for the effect, then the slope: gradient and curvature",
        "(n, d (d + 3) / 2), d = c (k + 1)",
        bits=24,
    )
    distances: np.ndarray = _f(
        "with features: sums over sites of the coefficients' squared distances from their prior means",
        "(n, p)",
        bits=32,
    )
    chain: np.ndarray = _f(
        "with occupancy, expected numbers: sites occupied at first and sites, occupied site-years and losses, empty ones "
        "and gains, squared move, and visits by the probability that their site was occupied",
        "(n, 8)",
        bits=32,
    )
    effort: np.ndarray = _f(
        "score and curvature of the effort coefficients, where observers learn of the year, and of a constant",
        "(n, e (e + 1)), e = K + 1 or K + 2",
        bits=30,
    )
    observers: np.ndarray = _f(
        "sum over observers of squared effects, number, effective number, effects about their prior means; the last "
        "by how late their visits are, that by itself, and its square (in a study whole years, and of no fold alone)",
        "(n, 7)",
        bits=32,
    )
    dispersion: np.ndarray = _f(
        "weighted squared residuals over the variance, at every node", "(n, m)", bits=24
    )


@dataclass(frozen=True, slots=True, eq=False)
class Solve(Broadcast):
    """Take the months' parameters, solve the sites at home, and sum the months."""

    about: ClassVar[str] = (
        "brings the months' parameters; asks for the months' sums after the sites were solved at home"
    )
    answer: ClassVar[type[Answer]] = Months
    effort: bool = _f("whether score and curvature of effort are wanted")
    observers: bool = _f("whether observer effects take a step")


# Of fitted counts: where sites were chosen by finds the total expected does not grow with them.
FACTORS = (1.0, 0.7, 0.5, 0.35)


@dataclass(frozen=True, slots=True, eq=False)
class FitSums(Answer):
    """Counted and fitted totals of the visits that took part."""

    about: ClassVar[str] = "counted and fitted totals"
    totals: np.ndarray = _f(
        "sums of weights, counted total, and those expected at fitted counts times each of FACTORS (log1p: of 1 + count)",
        "(n, 6)",
        "visits, birds",
        bits=28,
    )
    dispersion: np.ndarray = _f(
        "weighted squared residuals over the variance, at every node", "(n, m)", bits=24
    )
    months: np.ndarray = _f(
        "by month: sums of weights, counted and fitted total (log1p: of 1 + count), variance of the counts for a "
        "dispersion of 1, effort's effect and square, rounded; visits that found the species, and those of them without a "
        "number (which took no part); empty unless asked for",
        "(n, L, 8)",
        "visits, birds",
        bits=24,
    )


@dataclass(frozen=True, slots=True, eq=False)
class Predict(Broadcast):
    """At the end of a fit: take the months' parameters; the fit to the visits that took part."""

    about: ClassVar[str] = (
        "brings the months' parameters at the end of a fit; asks for its dispersion and totals"
    )
    answer: ClassVar[type[Answer]] = FitSums
    months: bool = _f("whether the totals are wanted by month too")


@dataclass(frozen=True, slots=True, eq=False)
class ScoreSums(Answer):
    """Five sums over the held-out visits."""

    about: ClassVar[str] = "scores of held-out visits"
    sums: np.ndarray = _f(
        "deviance, squared log error, predicted total, counted total, visits", "(n, 5)", bits=24
    )


@dataclass(frozen=True, slots=True, eq=False)
class Score(Question):
    """Score held-out visits."""

    about: ClassVar[str] = "asks for scores of the visits that were held out"
    answer: ClassVar[type[Answer]] = ScoreSums
    batch: int = _f("number of the batch")
    fits: np.ndarray = _f("which fits of the batch", "(n,)")
    smear: np.ndarray = _f("calibration of the fitted totals", "(n,)")
    inverse_size: np.ndarray = _f(
        "1 / size of the negative binomial whose deviance is meant, 0: the family's", "(n,)"
    )


@dataclass(frozen=True, slots=True, eq=False)
class ProductSums(Answer):
    """R' R V, summed over the group's sites."""

    about: ClassVar[str] = "products of residuals with vectors over months"
    product: np.ndarray = _f("R' R V over the group's cells, in the unit asked for", "(n, L, w)", bits=50)


@dataclass(frozen=True, slots=True, eq=False)
class Product(Question):
    """Products R' (R V) of the residuals R of all cells with vectors over months."""

    about: ClassVar[str] = "asks for products of residuals with vectors over months (start of a factor)"
    answer: ClassVar[type[Answer]] = ProductSums
    batch: int = _f("number of the batch")
    fits: np.ndarray = _f("which fits of the batch", "(n,)")
    V: np.ndarray = _f("vectors over months", "(n, L, w)")
    unit: np.ndarray = _f("what the answer is divided by, powers of 2", "(n,)")
    pairs: np.ndarray = _f("1 for two months whose products take part, empty for all", "(L, L)")


@dataclass(frozen=True, slots=True, eq=False)
class RegionTotals(Answer):
    """Expected counts at standard effort, summed over the group's sites."""

    about: ClassVar[str] = "expected counts by month, summed over sites, whole and by region"
    totals: np.ndarray = _f(
        "sums over sites: whole panel, each region, visited sites if asked for",
        "(n, R + 1 or R + 2, L)",
        "birds",
        bits=30,
    )


@dataclass(frozen=True, slots=True, eq=False)
class Totals(Question):
    """Ask for expected counts summed over sites; sites draw their part of the prior's noise at home."""

    about: ClassVar[str] = "asks for monthly totals of a fit or of replicates"
    answer: ClassVar[type[Answer]] = RegionTotals
    batch: int = _f("number of the batch")
    fits: np.ndarray = _f("which fits of the batch", "(n,)")
    mu: np.ndarray = _f("overall level", "(n,)", "link scale")
    T: np.ndarray = _f("months' coefficients: effect and factors", "(n, L, f)", "link scale")
    D: np.ndarray = _f("their covariances", "(n, L, f (f + 1) / 2)", "link scale squared")
    smear: np.ndarray = _f("calibration of the fitted totals", "(n,)")
    drawn: bool = _f("whether coefficients are draws, so that no variance is left to integrate over")
    visited: bool = _f("whether a sum over the visited sites is wanted beside that over all")
    most: float = _f(
        "sums of a fit that has a larger one are told as noise above it, so that masks hold them; 0 for no limit",
        "",
        "as the sums",
    )


@dataclass(frozen=True, slots=True, eq=False)
class SiteTimeSums(Answer):
    """Sums over the group's sites with a positive count."""

    about: ClassVar[str] = "equations of the plain site and time model"
    sums: np.ndarray = _f("log-likelihood but for a constant, and number of sites", "(n, 2)", bits=24)
    counted: np.ndarray = _f("weighted counts of each month", "(n, L)", "birds", bits=24)
    gradient: np.ndarray = _f("gradient of the time effects", "(n, L)", bits=32)
    information: np.ndarray = _f("their information", "(n, L (L + 1) / 2)", bits=32)


@dataclass(frozen=True, slots=True, eq=False)
class SiteTime(Question):
    """Ask for the equations of free time effects, the best site effects put in at home (``fit --time fixed``)."""

    about: ClassVar[str] = "asks for the equations of the plain site and time model"
    answer: ClassVar[type[Answer]] = SiteTimeSums
    batch: int = _f("number of the batch")
    fits: np.ndarray = _f("which fits of the batch", "(n,)")
    time: np.ndarray = _f("time effects", "(n, L)", "log scale")


@dataclass(frozen=True, slots=True, eq=False)
class Close(Question):
    """Forget batches."""

    about: ClassVar[str] = "the batches are not needed any more"
    answer: ClassVar[type[Answer]] = Done
    batches: np.ndarray = _f("numbers of the batches", "(b,)")


@dataclass(frozen=True, slots=True, eq=False)
class Keep(Question):
    """Keep what fits of a batch have come to in a batch of their own: their paths of ranks go on from here."""

    about: ClassVar[str] = "keeps a rank that is finished, while the fit goes on to the next"
    answer: ClassVar[type[Answer]] = Done
    batch: int = _f("number of the batch")
    fits: np.ndarray = _f("which fits of the batch", "(f,)")
    to: int = _f("number of the batch that keeps them, as the same fits")


@dataclass(frozen=True, slots=True, eq=False)
class Outcome(Question):
    """Give a group what its own report needs of the finished job: nothing in it was computed for one group alone."""

    about: ClassVar[str] = "the finished fit's parameters, for the group's own report"
    answer: ClassVar[type[Answer]] = Done
    batch: int = _f("batch of the full fit")
    results: str = _f("what the manifest of a fit says of its results, as JSON")
    months: np.ndarray = _f("the months of the panel", "(L,)", "12 year + month - 1")
    T: np.ndarray = _f("months' coefficients", "(L, p)", "link scale")
    D: np.ndarray = _f("their covariances", "(L, p, p)", "link scale squared")
    trace: np.ndarray = _f("root mean square move of every round", "(rounds,)")


@dataclass(frozen=True, slots=True, eq=False)
class Refusal(Answer):
    """A group cannot or will not answer; it says why in words that hold no data."""

    about: ClassVar[str] = "why the group does not answer"
    code: str = _f("one word", clear="that something went wrong, and of which kind")
    text: str = _f("one sentence with the next move", clear="where the reason stands")


# The order is part of the protocol: a type's number on the wire is its place here.
QUESTIONS: tuple[type[Question], ...] = (
    Hello, Axes, Gaps, Open, Solve, Predict, Score, Product, Totals,
    Close, Tally, Support, Outcome, SiteTime, SiteVisits, Covariates, Features, Keep, Species, Pairs,
)  # fmt: skip
ANSWERS: tuple[type[Answer], ...] = (
    Description, Done, GapSums, OpenSums, Months, FitSums, ScoreSums, ProductSums, RegionTotals,
    Refusal, Tallies, SupportSums, SiteTimeSums, VisitSums, CovariateSums, FeatureSums, SpeciesSums, PairSums,
)  # fmt: skip


def words(kind: type[Message]) -> list[tuple[str, str, str, str]]:
    """(field, words, shape, unit) of every field of a kind of message."""
    return [
        (field.name, field.metadata["words"], field.metadata["shape"], field.metadata["unit"])
        for field in fields(kind)
    ]


# sums of what was read, before any fit
OF_VISITS = (
    CovariateSums, Description, FeatureSums, GapSums, OpenSums, PairSums, SupportSums, Tallies, VisitSums,
)  # fmt: skip


def why_not_finite(kind: type[Answer]) -> str:
    """What to do about a number that is not finite: a sum of visits blames the visits, a sum of a fit the model."""
    if kind in OF_VISITS:
        return "Look at its counts and effort for impossible values"
    return (
        "It is a sum of a fit, so the model has run away on these visits: fit with --rank 0 or another --model, and report "
        "it as a fault of fedmiss"
    )
