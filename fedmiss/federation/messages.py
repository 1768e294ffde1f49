"""Everything that can cross between a group and the hub: a closed list of frozen questions and answers.

Axes of arrays: ``n`` fits side by side, ``L`` months, ``p`` coefficients of a site (effect, slope on the line x, factors),
``f`` of them free in a month (x is known), ``q`` = p (p + 3) / 2 numbers of a gradient and the lower triangle of a
curvature, ``K`` effort coefficients, ``S`` shared sites of the receiver (or sender), ``R`` regions, ``w`` columns of a
product, ``m`` nodes. A question asks about the fits ``fits`` of the batch ``batch``: folds or replicates
that run in lockstep. Each field says in words what it holds; ``docs/guide/privacy.md`` and
``fedmiss inspect --messages`` are made from these words.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, ClassVar

import numpy as np

__all__ = [
    "ANSWERS",
    "PROTOCOL",
    "QUESTIONS",
    "SQUARES",
    "Answer",
    "Axes",
    "Broadcast",
    "Checklists",
    "Close",
    "Description",
    "Done",
    "Drop",
    "FitSums",
    "GapSums",
    "Gaps",
    "Hello",
    "KeyedHashes",
    "Message",
    "Months",
    "Open",
    "OpenKey",
    "OpenSums",
    "Outcome",
    "Predict",
    "Product",
    "ProductSums",
    "Question",
    "Refusal",
    "RegionTotals",
    "Score",
    "ScoreSums",
    "SealKey",
    "SealedKeys",
    "Shared",
    "SharedProduct",
    "SharedRows",
    "Sites",
    "Solve",
    "Support",
    "SupportSums",
    "Tallies",
    "Tally",
    "Totals",
    "words",
]  # fmt: skip

SQUARES = 2.0**20  # unit of the first part of ``OpenSums.squares``
PROTOCOL = 3  # raise it whenever a type below changes


def _f(words: str, shape: str = "", unit: str = "", *, bits: int | None = None, clear: str = "") -> Any:
    """Describe a field; of an answer also how it is hidden.

    ``bits``: the hub needs only its sum over groups, which is masked with so many binary digits after the point (see
    ``masks``). ``clear``: why it cannot be masked, and what it tells the hub. A field of an answer needs one of them.
    """
    return field(metadata={"words": words, "shape": shape, "unit": unit, "bits": bits, "clear": clear})


@dataclass(frozen=True, slots=True, eq=False)
class Message:
    """Base of all messages; ``about`` says in words what a message of this kind is for."""

    about: ClassVar[str] = ""


@dataclass(frozen=True, slots=True, eq=False)
class Question(Message):
    """What the hub sends."""


@dataclass(frozen=True, slots=True, eq=False)
class Answer(Message):
    """What a group sends."""


# -- agreeing ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Hello(Question):
    """Ask a group what it could bring to the job."""

    about: ClassVar[str] = "asks what the group could bring"
    species: str = _f("scientific name of the species of the job, empty to accept any")
    season: np.ndarray = _f("calendar months of the job, empty for all", "(s,)")


@dataclass(frozen=True, slots=True, eq=False)
class Description(Answer):
    """What a group could bring: extents and sums, no list of places, dates or people."""

    about: ClassVar[str] = "what the group could bring to the job"
    version: str = _f("version of fedmiss at the group", clear="the version")
    species: str = _f("scientific name of the species of the panel", clear="the species, which all agreed on")
    months: np.ndarray = _f(
        "first and last month with a visit, nothing where there is none",
        "(2,)",
        "12 year + month - 1",
        clear="the group's first and last month: the hub needs the union",
    )
    season: np.ndarray = _f(
        "calendar months with a visit", "(s,)", clear="the group's season: the hub needs the union"
    )
    terms: int = _f(
        "number of effort terms, 0 where covariates come ready made", clear="what the panel holds"
    )
    covariates: int = _f(
        "number of effort covariates that come ready made, 0 for terms", clear="what the panel holds"
    )
    regions: tuple[str, ...] = _f(
        "names of the regions of the group's sites", clear="in which regions it has sites"
    )
    calendar: bool = _f("whether months are calendar months", clear="what the panel holds")
    minimum: int = _f(
        "the custodian's least number of sites behind a month's sums",
        unit="sites",
        clear="the custodian's rule",
    )


@dataclass(frozen=True, slots=True, eq=False)
class Tally(Question):
    """Ask how many visits a group brings."""

    about: ClassVar[str] = "asks how many visits there are, in all and with each effort term"


@dataclass(frozen=True, slots=True, eq=False)
class Tallies(Answer):
    """Numbers of visits."""

    about: ClassVar[str] = "numbers of visits"
    visits: int = _f("number of visits", unit="visits", bits=0)
    counted: int = _f("number of visits with a count", unit="visits", bits=0)
    detected: int = _f("number of visits on which the species was seen", unit="visits", bits=0)
    effort: np.ndarray = _f(
        "for each effort term: visits that have it, 1 where it varies", "(terms, 2)", "visits, flag", bits=0
    )
    blanks: np.ndarray = _f("for each effort term: number of visits without it", "(terms,)", "visits", bits=0)


@dataclass(frozen=True, slots=True, eq=False)
class Axes(Question):
    """Tell a group the agreed axes of the panel."""

    about: ClassVar[str] = "the agreed months, effort terms and regions"
    months: np.ndarray = _f(
        "the months of the panel", "(L,)", "12 year + month - 1, or 0..L-1 without a calendar"
    )
    terms: tuple[str, ...] = _f("effort terms of the model")
    blanks: tuple[str, ...] = _f("effort terms that some visit of some group lacks")
    detections: bool = _f("whether detections are modelled (every visit counts) instead of counts")
    minimum: int = _f("least number of a group's own sites behind a month's sums", unit="sites")
    regions: tuple[str, ...] = _f("names of the regions with sums of their own")
    released: np.ndarray = _f("1 for months whose sums may be released, empty for all", "(L,)")


@dataclass(frozen=True, slots=True, eq=False)
class Support(Question):
    """Ask what stands behind the sums of every month, whole or fold by fold."""

    about: ClassVar[str] = "asks how many visits, sites and groups stand behind the sums of every month"
    by: str = _f("what a fold holds out: cell, block, visit or observer; empty for whole months")
    folds: int = _f("number of folds, 0 for whole months")
    seed: int = _f("public seed of the folds")
    share: float = _f("largest share of one group in the visits of a month")
    visits: np.ndarray = _f("sums of the last answer, empty the first time", "(parts, L)", "visits")
    sites: np.ndarray = _f("sums of the last answer, empty the first time", "(parts, L)", "sites")
    groups: np.ndarray = _f("sums of the last answer, empty the first time", "(parts, L)", "groups")
    regions: np.ndarray = _f("sums of the last answer, empty the first time", "(R + 1, 2)", "sites, groups")


@dataclass(frozen=True, slots=True, eq=False)
class SupportSums(Answer):
    """What stands behind the sums of every month."""

    about: ClassVar[str] = "what stands behind the sums of every month and region"
    visits: np.ndarray = _f("number of visits of every part of every month", "(parts, L)", "visits", bits=0)
    sites: np.ndarray = _f("number of sites with such visits", "(parts, L)", "sites", bits=20)
    groups: np.ndarray = _f("1 where the group has such visits", "(parts, L)", "groups", bits=0)
    over: np.ndarray = _f("1 where the group's share of the visits is above the limit", "(parts, L)", bits=0)
    regions: np.ndarray = _f(
        "sites, 1 where the group has some, 1 where its share is above the limit; no region first, then each",
        "(R + 1, 3)",
        bits=20,
    )


@dataclass(frozen=True, slots=True, eq=False)
class Done(Answer):
    """A group has done what was asked, and says what it can use of its visits."""

    about: ClassVar[str] = "the group is ready; sums over its observers"
    used: int = _f("number of visits that take part", unit="visits", bits=0)
    withheld: int = _f(
        "number of visits withheld because their month has too few sites", unit="visits", bits=0
    )
    observers: np.ndarray = _f(
        "sum over observers of their visits, and of the squares (effective number of observers)",
        "(2,)",
        "visits",
        bits=10,
    )
    sites: float = _f(
        "number of sites that the group counts (shared ones are counted once)", unit="sites", bits=30
    )


@dataclass(frozen=True, slots=True, eq=False)
class Sites(Question):
    """Ask for the keyed hashes of the group's sites."""

    about: ClassVar[str] = "asks for hashes of site ids, to find sites that several groups visit"


@dataclass(frozen=True, slots=True, eq=False)
class Checklists(Question):
    """Ask for the keyed hashes of the group's checklists."""

    about: ClassVar[str] = "asks for hashes of checklists, to find those held twice"


@dataclass(frozen=True, slots=True, eq=False)
class KeyedHashes(Answer):
    """Keyed hashes, sorted: equal in two groups when they hold the same site (or checklist)."""

    about: ClassVar[str] = "hashes under a key that the hub does not have"
    hashes: np.ndarray = _f(
        "SipHash-2-4 of each site id (or checklist), under a key that the groups share and the hub lacks",
        "(h,)",
        clear="how many sites (or checklists) the group has, and which of them other groups have",
    )


@dataclass(frozen=True, slots=True, eq=False)
class Shared(Question):
    """Tell a group which of its sites others visit too, by their place in its own sorted hashes."""

    about: ClassVar[str] = "which of the receiver's sites other groups visit too"
    sites: np.ndarray = _f("place of each shared site among the receiver's sorted hashes", "(S,)")
    owners: np.ndarray = _f("number of groups that visit it", "(S,)")
    lead: np.ndarray = _f("1 where the receiver counts the site in sums over sites, else 0", "(S,)")
    joint: bool = _f(
        "whether sums by site are exchanged for shared sites; otherwise each owner treats them as its own"
    )


@dataclass(frozen=True, slots=True, eq=False)
class Drop(Question):
    """Tell a group which of its checklists another group brings."""

    about: ClassVar[str] = "which of the receiver's checklists another group brings"
    checklists: np.ndarray = _f("place of each among the receiver's sorted hashes", "(d,)")


@dataclass(frozen=True, slots=True, eq=False)
class Gaps(Question):
    """Ask how the visited cells lie: for the choice of folds."""

    about: ClassVar[str] = "asks how many site x month cells and site x year blocks were visited"


@dataclass(frozen=True, slots=True, eq=False)
class GapSums(Answer):
    """Counts over the group's own sites; for joint sites a mask under a keyed order of months."""

    about: ClassVar[str] = "visited cells and blocks"
    cells: float = _f("visited site x month cells of own sites", unit="cells", bits=20)
    blocks: float = _f("visited site x year blocks of own sites", unit="blocks", bits=20)
    inside: float = _f("cells that lie in visited blocks of own sites", unit="cells", bits=20)
    sites: float = _f(
        "number of sites that the group counts (shared ones are counted once)", unit="sites", bits=30
    )
    masks: np.ndarray = _f(
        "for each joint site which months were visited, as bits; months of a year in an order that the hub does not know",
        "(S, L / 8)",
        clear="how visits lie at joint sites; empty without joint sites",
    )


# -- fits ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Open(Question):
    """Open a batch of fits that run in lockstep: they differ in the weights of the visits only."""

    about: ClassVar[str] = "opens a batch of fits: a full fit, folds, or replicates"
    batch: int = _f("number of the batch")
    family: str = _f("distribution: poisson, gaussian or bernoulli")
    scale: str = _f("raw, or log1p of the counts")
    observers: bool = _f("whether the group estimates observer effects")
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
    line: np.ndarray = _f("the known line x that every site has a slope on, empty for none", "(L,)")


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
    sites: float = _f(
        "number of sites that the group counts (shared ones are counted once)", unit="sites", bits=30
    )


@dataclass(frozen=True, slots=True, eq=False)
class Broadcast(Question):
    """The months' parameters of a round; nothing in it was computed for one group alone."""

    about: ClassVar[str] = "the months' parameters and the model's variances"
    batch: int = _f("number of the batch")
    fits: np.ndarray = _f("which fits of the batch", "(n,)")
    begin: int = _f(
        "0 go on; 1 sites at zero; 2 one more factor, at zero; 3 from the full fit, with draws of the prior means "
        "(replicates); 4 the same without draws"
    )
    sums: bool = _f("whether sums of joint sites are wanted")
    refill: np.ndarray = _f("1 where the weights of visits are to be computed again", "(n,)")
    mu: np.ndarray = _f("overall level", "(n,)", "link scale")
    T: np.ndarray = _f("months' coefficients: effect and factors", "(n, L, f)", "link scale")
    D: np.ndarray = _f("their covariances", "(n, L, f (f + 1) / 2)", "link scale squared")
    tau: np.ndarray = _f("prior variances of the sites' coefficients", "(n, p)")
    phi: np.ndarray = _f("dispersion", "(n,)")
    inverse_size: np.ndarray = _f("1 / size of the negative binomial, 0 for none", "(n,)")
    kappa: np.ndarray = _f("effort coefficients", "(n, K)")
    ridge: np.ndarray = _f("precision of observer effects", "(n,)")
    shift: np.ndarray = _f("subtract from the sites' coefficients first", "(n, p)")
    stretch: np.ndarray = _f("multiply the sites' coefficients first", "(n, p)")


@dataclass(frozen=True, slots=True, eq=False)
class SharedRows(Answer):
    """Sums by site of the joint sites that the group visits; empty where there are none."""

    about: ClassVar[str] = "normal equations of joint sites, one by one"
    rows: np.ndarray = _f(
        "for each joint site gradient and curvature of its coefficients (or products)",
        "(n, S, q)",
        clear="the group's sums at every joint site; empty without joint sites",
    )


@dataclass(frozen=True, slots=True, eq=False)
class Solve(Question):
    """Solve the sites at home and sum the months."""

    about: ClassVar[str] = "asks for the months' sums after the sites were solved at home"
    batch: int = _f("number of the batch")
    fits: np.ndarray = _f("which fits of the batch", "(n,)")
    p: int = _f("number of coefficients")
    totals: np.ndarray = _f("sums over groups of the joint sites that the receiver visits", "(n, S, q)")
    effort: bool = _f("whether score and curvature of effort are wanted")
    observers: bool = _f("whether observer effects take a step")
    nodes: np.ndarray = _f("values of 1 / size at which the dispersion is wanted", "(n, m)")


@dataclass(frozen=True, slots=True, eq=False)
class Months(Answer):
    """Sums over the group's sites, by month."""

    about: ClassVar[str] = "normal equations of every month, summed over the group's sites"
    months: np.ndarray = _f(
        "gradient and curvature of every month's coefficients", "(n, L, f (f + 3) / 2)", bits=32
    )
    sites: np.ndarray = _f(
        "sums over sites: effective parameters, squared move and weight of the cells, coefficients (p), their squares (p), "
        "their variances (p)",
        "(n, 3 + 3 p)",
        bits=32,
    )
    effort: np.ndarray = _f("score and curvature of the effort coefficients", "(n, K + K^2)", bits=30)
    observers: np.ndarray = _f(
        "sum over observers of squared effects, number, effective number", "(n, 3)", bits=32
    )
    dispersion: np.ndarray = _f(
        "weighted squared residuals over the variance, at every node", "(n, m)", bits=24
    )


@dataclass(frozen=True, slots=True, eq=False)
class Predict(Question):
    """At the end of a fit: its fit to the visits that took part."""

    about: ClassVar[str] = "asks for dispersion and totals of a finished fit"
    batch: int = _f("number of the batch")
    fits: np.ndarray = _f("which fits of the batch", "(n,)")
    nodes: np.ndarray = _f("values of 1 / size at which the dispersion is wanted", "(n, m)")
    months: bool = _f("whether the totals are wanted by month too")


@dataclass(frozen=True, slots=True, eq=False)
class FitSums(Answer):
    """Counted and fitted totals of the visits that took part."""

    about: ClassVar[str] = "counted and fitted totals"
    totals: np.ndarray = _f(
        "sums of weights, counted and fitted total (log1p: of 1 + count)", "(n, 3)", "visits, birds", bits=28
    )
    dispersion: np.ndarray = _f(
        "weighted squared residuals over the variance, at every node", "(n, m)", bits=24
    )
    months: np.ndarray = _f(
        "by month: sums of weights, counted and fitted total (log1p: of 1 + count), and variance of the counts for a "
        "dispersion of 1; empty unless asked for",
        "(n, L, 4)",
        "visits, birds",
        bits=24,
    )


@dataclass(frozen=True, slots=True, eq=False)
class Score(Question):
    """Score held-out visits."""

    about: ClassVar[str] = "asks for scores of the visits that were held out"
    batch: int = _f("number of the batch")
    fits: np.ndarray = _f("which fits of the batch", "(n,)")
    smear: np.ndarray = _f("calibration of the fitted totals", "(n,)")


@dataclass(frozen=True, slots=True, eq=False)
class ScoreSums(Answer):
    """Five sums over the held-out visits."""

    about: ClassVar[str] = "scores of held-out visits"
    sums: np.ndarray = _f(
        "deviance, squared log error, predicted total, counted total, visits", "(n, 5)", bits=24
    )


@dataclass(frozen=True, slots=True, eq=False)
class SharedProduct(Question):
    """Products of residuals with vectors, by joint site."""

    about: ClassVar[str] = "asks for products of residuals at joint sites (start of a factor)"
    batch: int = _f("number of the batch")
    fits: np.ndarray = _f("which fits of the batch", "(n,)")
    V: np.ndarray = _f("vectors over months", "(n, L, w)")


@dataclass(frozen=True, slots=True, eq=False)
class Product(Question):
    """Products R' (R V) of the residuals R of all cells with vectors over months."""

    about: ClassVar[str] = "asks for products of residuals with vectors over months (start of a factor)"
    batch: int = _f("number of the batch")
    fits: np.ndarray = _f("which fits of the batch", "(n,)")
    V: np.ndarray = _f("vectors over months", "(n, L, w)")
    totals: np.ndarray = _f(
        "R V of the joint sites that the receiver visits, summed over groups", "(n, S, w)"
    )
    unit: np.ndarray = _f("what the answer is divided by, powers of 2", "(n,)")


@dataclass(frozen=True, slots=True, eq=False)
class ProductSums(Answer):
    """R' R V, summed over the group's sites."""

    about: ClassVar[str] = "products of residuals with vectors over months"
    product: np.ndarray = _f("R' R V over the group's cells, in the unit asked for", "(n, L, w)", bits=40)


@dataclass(frozen=True, slots=True, eq=False)
class Totals(Question):
    """Ask for expected counts summed over sites; sites draw their part of the prior's noise at home."""

    about: ClassVar[str] = "asks for monthly totals of a fit or of replicates"
    batch: int = _f("number of the batch")
    fits: np.ndarray = _f("which fits of the batch", "(n,)")
    p: int = _f("number of coefficients")
    mu: np.ndarray = _f("overall level", "(n,)", "link scale")
    T: np.ndarray = _f("months' coefficients: effect and factors", "(n, L, f)", "link scale")
    D: np.ndarray = _f("their covariances", "(n, L, f (f + 1) / 2)", "link scale squared")
    smear: np.ndarray = _f("calibration of the fitted totals", "(n,)")
    drawn: bool = _f("whether coefficients are draws, so that no variance is left to integrate over")


@dataclass(frozen=True, slots=True, eq=False)
class RegionTotals(Answer):
    """Expected counts at standard effort, summed over the group's sites."""

    about: ClassVar[str] = "expected counts by month, summed over sites, whole and by region"
    totals: np.ndarray = _f(
        "sums over sites: whole panel, then each region", "(n, R + 1, L)", "birds", bits=30
    )


@dataclass(frozen=True, slots=True, eq=False)
class SiteTime(Question):
    """Ask for the equations of free time effects, the best site effects put in at home (``fit --time fixed``)."""

    about: ClassVar[str] = "asks for the equations of the plain site and time model"
    batch: int = _f("number of the batch")
    fits: np.ndarray = _f("which fits of the batch", "(n,)")
    time: np.ndarray = _f("time effects", "(n, L)", "log scale")


@dataclass(frozen=True, slots=True, eq=False)
class SiteTimeSums(Answer):
    """Sums over the group's sites with a positive count."""

    about: ClassVar[str] = "equations of the plain site and time model"
    sums: np.ndarray = _f("log-likelihood but for a constant, and number of sites", "(n, 2)", bits=24)
    counted: np.ndarray = _f("weighted counts of each month", "(n, L)", "birds", bits=24)
    gradient: np.ndarray = _f("gradient of the time effects", "(n, L)", bits=32)
    information: np.ndarray = _f("their information", "(n, L (L + 1) / 2)", bits=32)


@dataclass(frozen=True, slots=True, eq=False)
class Close(Question):
    """Forget batches."""

    about: ClassVar[str] = "the batches are not needed any more"
    batches: np.ndarray = _f("numbers of the batches", "(b,)")


@dataclass(frozen=True, slots=True, eq=False)
class Outcome(Question):
    """Give a group what its own report needs of the finished job: nothing in it was computed for one group alone."""

    about: ClassVar[str] = "the finished fit's parameters, for the group's own report"
    batch: int = _f("batch of the full fit")
    results: str = _f("what the manifest of a fit says of its results, as JSON")
    months: np.ndarray = _f("the months of the panel", "(L,)", "12 year + month - 1")
    T: np.ndarray = _f("months' coefficients", "(L, p)", "link scale")
    D: np.ndarray = _f("their covariances", "(L, p, p)", "link scale squared")
    trace: np.ndarray = _f("root mean square move of every round", "(rounds,)")


@dataclass(frozen=True, slots=True, eq=False)
class SealKey(Question):
    """Ask the first group by name for the key that the groups share and the hub must not have."""

    about: ClassVar[str] = "asks for the groups' common key, sealed for each of the others"


@dataclass(frozen=True, slots=True, eq=False)
class SealedKeys(Answer):
    """The common key, encrypted for every other group under the key of the pair; of other groups nothing."""

    about: ClassVar[str] = "the groups' common key, encrypted so that the hub cannot read it"
    groups: tuple[str, ...] = _f("for whom each is sealed", clear="the roster")
    sealed: np.ndarray = _f("ChaCha20-Poly1305 of the key", "(groups, 32)", clear="nothing: it is encrypted")


@dataclass(frozen=True, slots=True, eq=False)
class OpenKey(Question):
    """Hand a group its copy of the common key."""

    about: ClassVar[str] = "the groups' common key, sealed for the receiver"
    sender: str = _f("which group made it")
    sealed: np.ndarray = _f("ChaCha20-Poly1305 of the key, empty for the group that made it", "(32,)")


@dataclass(frozen=True, slots=True, eq=False)
class Refusal(Answer):
    """A group cannot or will not answer; it says why in words that hold no data."""

    about: ClassVar[str] = "why the group does not answer"
    code: str = _f("one word", clear="that something went wrong, and of which kind")
    text: str = _f("one sentence with the next move", clear="where the reason stands")


# The order is part of the protocol: a type's number on the wire is its place here.
QUESTIONS: tuple[type[Question], ...] = (
    Hello, Axes, Sites, Checklists, Shared, Drop, Gaps, Open, Broadcast, Solve, Predict, Score, SharedProduct, Product,
    Totals, Close, Tally, Support, Outcome, SealKey, OpenKey, SiteTime,
)  # fmt: skip
ANSWERS: tuple[type[Answer], ...] = (
    Description, Done, KeyedHashes, GapSums, OpenSums, SharedRows, Months, FitSums, ScoreSums, ProductSums, RegionTotals,
    Refusal, Tallies, SupportSums, SealedKeys, SiteTimeSums,
)  # fmt: skip


def words(kind: type[Message]) -> list[tuple[str, str, str, str]]:
    """(field, words, shape, unit) of every field of a kind of message."""
    return [(f.name, f.metadata["words"], f.metadata["shape"], f.metadata["unit"]) for f in fields(kind)]
