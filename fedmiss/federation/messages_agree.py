"""Questions and answers before the first fit: who brings what, on which axes, what is behind sums."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedmiss.federation.message import Answer, Question
from fedmiss.federation.message import described as _f

LEVEL = ": "  # between the name of a category and one of its values
PLACE = ("longitude", "latitude")  # covariates of the smooth


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
        clear="the group's first and last month: the job needs the union",
    )
    season: np.ndarray = _f(
        "calendar months with a visit", "(s,)", clear="the group's season: the job needs the union"
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
    site_covariates: tuple[str, ...] = _f(
        "names of the sites' covariates, and of the values of categories",
        clear="which covariates its sites have, and which categories",
    )
    magnitudes: np.ndarray = _f(
        "of each the power of 2 that its values stay below",
        "(c,)",
        clear="how large the largest value is, within a factor of 2",
    )
    calendar: bool = _f("whether months are calendar months", clear="what the panel holds")
    minimum: int = _f(
        "the custodian's least number of sites behind a month's sums",
        unit="sites",
        clear="the custodian's rule",
    )
    contributors: int = _f(
        "the custodian's least number of groups behind a sum", unit="groups", clear="the custodian's rule"
    )
    frame: bool = _f(
        "whether sites that nobody visited stand for an area", clear="whether its panel has such sites"
    )


@dataclass(frozen=True, slots=True, eq=False)
class Hello(Question):
    """Ask a group what it could bring to the job."""

    about: ClassVar[str] = "asks what the group could bring"
    answer: ClassVar[type[Answer]] = Description
    species: str = _f("scientific name of the species of the job, empty to accept any")
    season: np.ndarray = _f("calendar months of the job, empty for all", "(s,)")


@dataclass(frozen=True, slots=True, eq=False)
class Tallies(Answer):
    """Numbers of visits."""

    about: ClassVar[str] = "numbers of visits"
    visits: int = _f("number of visits that can take part", unit="visits", bits=0)
    detected: int = _f(
        "number of visits on which the species was seen; 0 between organisations, where beside the finds of released months "
        "it would tell those of the others",
        unit="visits",
        bits=0,
    )
    effort: np.ndarray = _f(
        "for each effort term: visits that have it, 1 where it varies", "(terms, 2)", "visits, flag", bits=0
    )
    blanks: np.ndarray = _f("for each effort term: number of visits without it", "(terms,)", "visits", bits=0)


@dataclass(frozen=True, slots=True, eq=False)
class Tally(Question):
    """Ask how many visits a group brings."""

    about: ClassVar[str] = "asks how many visits there are, in all and with each effort term"
    answer: ClassVar[type[Answer]] = Tallies
    detections: bool = _f("whether visits without a number count: where detections are modelled")


@dataclass(frozen=True, slots=True, eq=False)
class Done(Answer):
    """A group has done what was asked, and says what it can use of its visits."""

    about: ClassVar[str] = "the group is ready; sums over its observers"
    used: int = _f("number of visits that take part", unit="visits", bits=0)
    withheld: int = _f(
        "number of visits withheld because their month has too few sites", unit="visits", bits=0
    )
    observers: np.ndarray = _f(
        "sum over observers of their visits, and of the squares (effective number of observers); experience that "
        "is lacking, over visits; visits that can tell an observer from a site (in a study all or none); over these, how "
        "late their observers come; the third and the last rounded there to a 32nd of the visits",
        "(5,)",
        "visits",
        bits=10,
    )
    sites: float = _f("number of the group's sites that totals are of", unit="sites", bits=30)


@dataclass(frozen=True, slots=True, eq=False)
class Axes(Question):
    """Tell a group the agreed axes of the panel."""

    about: ClassVar[str] = "the agreed months, effort terms and regions"
    answer: ClassVar[type[Answer]] = Done
    months: np.ndarray = _f(
        "the months of the panel", "(L,)", "12 year + month - 1, or 0..L-1 without a calendar"
    )
    terms: tuple[str, ...] = _f("effort terms of the model")
    blanks: tuple[str, ...] = _f("effort terms that some visits lack, which have a column of their own")
    detections: bool = _f("whether detections are modelled (every visit counts) instead of counts")
    minimum: int = _f("least number of a group's own sites behind a month's sums", unit="sites")
    regions: tuple[str, ...] = _f("names of the regions with sums of their own")
    released: np.ndarray = _f("1 for months whose sums may be released, empty for all", "(L,)")


@dataclass(frozen=True, slots=True, eq=False)
class SupportSums(Answer):
    """What stands behind the sums of every month."""

    about: ClassVar[str] = "what stands behind the sums of every month and region"
    visits: np.ndarray = _f(
        "number of visits of every part of every month; of a community those with a find",
        "(parts, L)",
        "visits",
        bits=0,
    )
    sites: np.ndarray = _f("number of sites with such visits", "(parts, L)", "sites", bits=20)
    groups: np.ndarray = _f("1 where the group has such visits", "(parts, L)", "groups", bits=0)
    over: np.ndarray = _f(
        "1 where the group's share of the visits is too large, or the others have three sites, or few visits of a fold",
        "(parts, L)",
        bits=0,
    )
    regions: np.ndarray = _f(
        "sites, 1 where the group has some, 1 where its share is too large, the others' sites too few, or in no region few "
        "unvisited; no region first, then each",
        "(R + 1, 3)",
        bits=20,
    )
    few: np.ndarray = _f(
        "1 where the others' sites are fewer than half the months, or their visits few; 1 where those they visited are too "
        "few for patterns",
        "(2,)",
        bits=0,
    )
    effort: np.ndarray = _f(
        "the same of sites with a visit that stands out: by each column of effort, beside month and columns before it, "
        "by a new observer, by one who can be told from the site (or such observers, if fewer); but for the last, a part "
        "of the least number where kinds of visits are fewer than products of columns",
        "(E, 3)",
        bits=20,
    )


@dataclass(frozen=True, slots=True, eq=False)
class Support(Question):
    """Ask what stands behind the sums of every month, whole or fold by fold."""

    about: ClassVar[str] = (
        "asks how many visits, sites and groups stand behind the sums of every month, and of effort"
    )
    answer: ClassVar[type[Answer]] = SupportSums
    by: str = _f("what a fold holds out: cell, block, visit or observer; empty for whole months")
    folds: int = _f("number of folds, 0 for whole months")
    seed: int = _f("public seed of the folds")
    share: float = _f("largest share of one group in the visits of a month")
    visits: np.ndarray = _f(
        "sums of the last answer; empty the first time",
        "(parts, L)",
        "visits",
    )
    sites: np.ndarray = _f("the same of sites", "(parts, L)", "sites")
    groups: np.ndarray = _f("the same of groups", "(parts, L)", "groups")
    regions: np.ndarray = _f("the same by region", "(R + 1, 2)", "sites, groups")
    effort: np.ndarray = _f("sites by what stands out in effort", "(E,)", "sites")


@dataclass(frozen=True, slots=True, eq=False)
class PairSums(Answer):
    """What stands behind two months together, t < s in rows of a triangle without its diagonal."""

    about: ClassVar[str] = "what stands behind every two months together"
    sites: np.ndarray = _f(
        "number of sites visited in both months, up to the number asked for; of a community those with finds of both "
        "species, 0 where fewer",
        "(L (L - 1) / 2,)",
        "sites",
        bits=0,
    )
    groups: np.ndarray = _f("1 where the group has such a site", "(L (L - 1) / 2,)", "groups", bits=0)


@dataclass(frozen=True, slots=True, eq=False)
class Pairs(Question):
    """Ask what stands behind products of residuals of two months."""

    about: ClassVar[str] = "asks how many sites and groups stand behind every two months together (patterns)"
    answer: ClassVar[type[Answer]] = PairSums
    most: int = _f("number of sites above which a group says no more", unit="sites")


@dataclass(frozen=True, slots=True, eq=False)
class GapSums(Answer):
    """Counts over the group's sites."""

    about: ClassVar[str] = "visited cells and blocks"
    cells: float = _f("visited site x month cells", unit="cells", bits=20)
    blocks: float = _f("visited site x year blocks", unit="blocks", bits=20)
    inside: float = _f("cells that lie in visited blocks", unit="cells", bits=20)
    sites: float = _f("number of the group's sites that totals are of", unit="sites", bits=30)


@dataclass(frozen=True, slots=True, eq=False)
class Gaps(Question):
    """Ask how the visited cells lie: for the choice of folds."""

    about: ClassVar[str] = "asks how many site x month cells and site x year blocks were visited"
    answer: ClassVar[type[Answer]] = GapSums


@dataclass(frozen=True, slots=True, eq=False)
class VisitSums(Answer):
    """Sums over the group's sites of the log number of visits."""

    about: ClassVar[str] = "sums of the log number of visits of sites"
    sums: np.ndarray = _f(
        "sum over visited sites of log(visits + 1/2), of its square, and of 1", "(3,)", bits=30
    )


@dataclass(frozen=True, slots=True, eq=False)
class SiteVisits(Question):
    """Ask how often sites were visited."""

    about: ClassVar[str] = "asks how often sites were visited, for the prior of site effects"
    answer: ClassVar[type[Answer]] = VisitSums


@dataclass(frozen=True, slots=True, eq=False)
class CovariateSums(Answer):
    """Sums over the group's sites of their covariates."""

    about: ClassVar[str] = "sums of the sites' covariates"
    sums: np.ndarray = _f(
        "for each covariate: visited sites that have it, sum of their values, sum of the squares (before: 1 where the group "
        "has some, 1 where the others have too few); all sites that have it (before: 1 for numbers but 0, 1; of few)",
        "(c, 4)",
        bits=30,
    )


@dataclass(frozen=True, slots=True, eq=False)
class Covariates(Question):
    """Ask for the scale of the sites' covariates."""

    about: ClassVar[str] = "asks for sums of the sites' covariates, for their mean and deviation"
    answer: ClassVar[type[Answer]] = CovariateSums
    names: tuple[str, ...] = _f("names of the covariates")
    unit: np.ndarray = _f("what each is divided by, powers of 2; none to count sites first", "(c,)")
    sites: np.ndarray = _f("visited sites of all groups behind each; empty: not known yet", "(c,)")


@dataclass(frozen=True, slots=True, eq=False)
class FeatureSums(Answer):
    """What is behind each feature; for those that are used their sums over sites."""

    about: ClassVar[str] = "what is behind each feature of sites, and sums of those that are used"
    counted: np.ndarray = _f(
        "for abundance: weights and weighted counts of every month's visits, before their means are known",
        "(2, L)",
        "visits, birds",
        bits=24,
    )
    behind: np.ndarray = _f(
        "visited sites behind each feature (once kept: where those before it do not tell it), and in all",
        "(u + 1,)",
        "sites",
        bits=30,
    )
    groups: np.ndarray = _f("1 where the group has such a site", "(u + 1,)", "flag", bits=0)
    over: np.ndarray = _f(
        "1 where the group has too large a share of them, or fewer than its own least number",
        "(u + 1,)",
        "flag",
        bits=0,
    )
    cells: np.ndarray = _f(
        "of every two of categories and regions that are kept, sites, groups, and groups with too many of them, of each "
        "value of one (no value last) with each of the other",
        "(cells, 3)",
        bits=30,
    )
    sums: np.ndarray = _f(
        "sums over visited sites of the features that are used (log abundance and mean years of visits too)",
        "(k,)",
        bits=30,
    )
    products: np.ndarray = _f("and of their products", "(k (k + 1) / 2,)", bits=30)


@dataclass(frozen=True, slots=True, eq=False)
class Features(Question):
    """Tell a group which features of sites the prior may follow; ask what is behind each, or for their sums."""

    about: ClassVar[str] = "which features of sites the prior may follow, and what is behind each"
    answer: ClassVar[type[Answer]] = FeatureSums
    blocks: tuple[str, ...] = _f(
        "kinds of features: visits, covariates, regions, smooth, abundance, times, effort"
    )
    names: tuple[str, ...] = _f("names of the covariates")
    mean: np.ndarray = _f("their means over visited sites", "(c,)")
    deviation: np.ndarray = _f("their standard deviations over visited sites", "(c,)")
    visits: np.ndarray = _f("mean and deviation over sites of log(visits + 1/2), or empty", "(2,)")
    knots: np.ndarray = _f("places of the smooth's knots, in deviations of longitude and latitude", "(m, 2)")
    level: np.ndarray = _f(
        "for abundance mean counts of a visit, in every month and in all; empty: not known yet",
        "(L + 1,)",
        "birds",
    )
    kept: np.ndarray = _f("1 for features that are used; empty: not known yet", "(u,)")
    behind: np.ndarray = _f(
        "visited sites of all groups behind each feature, and in all; empty: not known yet, then no sums",
        "(u + 1,)",
    )
    cells: np.ndarray = _f("the same of each two values of categories and regions", "(cells,)")
    share: float = _f("largest share of one group in the sites behind a feature")


@dataclass(frozen=True, slots=True, eq=False)
class SpeciesSums(Answer):
    """Sums over the group's sites behind the joint tables of a community of species (months are species there)."""

    about: ClassVar[str] = "sums over sites behind the joint tables of a community of species"
    sums: np.ndarray = _f(
        "sites: number, coefficients of the factors, their products, cells with birds and those expected, log of effort "
        "and of visits, rounded; steps: by number of checklists the sites, 1 where the group has some, 1 where its share "
        "is too large, the others' sites too few; species: of each the sites and checklists with it, its birds, expected "
        "birds, deviance of left-out cells, which is also by step; richness; checklists",
        "(s,)",
        bits=28,
    )


@dataclass(frozen=True, slots=True, eq=False)
class Species(Question):
    """At the end of a community of species: ask for what its joint tables need."""

    about: ClassVar[str] = "asks for sums over sites behind the joint tables of a community"
    answer: ClassVar[type[Answer]] = SpeciesSums
    part: str = _f("sites, steps or species: which sums")
    usual: float = _f("species: standard visits to a usual site")
    totals: np.ndarray = _f(
        "steps: sums of the last answer, empty at first; species: 1 for the steps wanted", "(4,)"
    )
