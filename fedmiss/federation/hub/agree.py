"""Agreeing on a job: axes, effort terms, regions, and how the gaps lie."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedmiss.arrays import F64, I64
from fedmiss.errors import ConfigError, InputError, UplinkError, listed, shown
from fedmiss.federation import messages as msg
from fedmiss.federation.hub.features import covariates_of
from fedmiss.federation.hub.state import Panel
from fedmiss.federation.hub.support import FEWEST_REGIONS, JUNE, Released, release_jointly, steps
from fedmiss.federation.link import Link, total
from fedmiss.federation.rules import CONTRIBUTORS, VISITS_OF_A_STUDY
from fedmiss.seasons import amid_winters, season_years, years_of
from fedmiss.version import __version__

TERMS = ("duration", "distance", "observers")  # the order of ``Description.effort``
MOST_REGIONS = 60
MOST_MONTHS = 12 * 500  # of a study: one wrong date would make all organisations' axes as long
FEW_BLOCKS = 50  # ten for each of five folds


@dataclass(frozen=True, slots=True)
class DataSpec:
    """What is wanted.

    ``months`` given axis (12 year + month - 1), None to agree on the union; ``effort`` auto, none or terms;
    ``minimum`` least number of a group's sites behind a month's sums. With ``jointly`` it is the least number of
    visits and of sites of all groups together, of ``contributors`` groups at least, none of which has more than ``share`` of
    the visits: the rule for masked answers, of which only the sums are seen. ``few_sites``: go on with fewer sites or
    visits than these sums can hide (``SITES_A_MONTH`` and ``VISITS_OF_A_STUDY`` of :mod:`fedmiss.federation.rules`).
    """

    species: str = ""
    season: tuple[int, ...] = ()
    months: I64 | None = None
    effort: str | tuple[str, ...] = "auto"
    detections: bool = False
    minimum: int = 0
    jointly: bool = False
    share: float = 0.85
    contributors: int = CONTRIBUTORS
    few_sites: bool = True


@dataclass(frozen=True, slots=True)
class Agreement:
    """The panel, and what was found on the way, in words."""

    panel: Panel
    terms: tuple[str, ...]
    blanks: tuple[str, ...]
    months: I64
    withheld: int
    notes: tuple[str, ...]
    behind: F64 | None = (
        None  # (L,) visits of all groups in every released month, known under joint least numbers
    )
    lost: dict[str, I64] | None = None  # places of the months that each of these rules left out

    @property
    def year(self) -> I64:
        """Years (L,) from that of the first month on."""
        year = years_of(self.months)
        return year - year[:1]

    @property
    def standard_effort(self) -> str:
        """The visit that expected counts are of, in words."""
        return "one hour, standing still, one observer" if self.terms else "one visit"


def agree(link: Link, plan: DataSpec) -> Agreement:
    """Two exchanges: who brings what, and the agreed axes; for joint least numbers two more each time that one fails."""
    described, tallied = link.ask(
        [msg.Hello(plan.species, np.array(plan.season, dtype=np.int64)), msg.Tally(plan.detections)]
    )
    groups = {name: answer for name, answer in described.items() if isinstance(answer, msg.Description)}
    if plan.jointly:
        _check_texts(groups)
    notes = _check(groups, {} if plan.jointly else tallied, jointly=plan.jointly)
    calendar = all(given.calendar for given in groups.values())
    months = _months(groups, plan, calendar)
    terms, blanks = _effort(groups, tallied, plan.effort)
    names = sorted({region for given in groups.values() for region in given.regions})
    regions = tuple(names) if FEWEST_REGIONS <= len(names) <= MOST_REGIONS else ()
    minimum = (
        max([plan.minimum, *(given.minimum for given in groups.values())]) if plan.jointly else plan.minimum
    )
    contributors = max([plan.contributors, *(given.contributors for given in groups.values())])
    higher = [
        name
        for name, given in groups.items()
        if plan.jointly and (given.minimum > plan.minimum or given.contributors > plan.contributors)
    ]
    stricter = f" Least numbers are those of {listed(higher, 4)}, above the job's own." if higher else ""
    if higher:
        notes.append(stricter.strip())
    june = [name for name, given in groups.items() if given.season.tolist() == [JUNE]]
    if plan.jointly and june and steps(months) == "months":
        notes.append(
            f"All visits of {listed(june, 4)} are of June, and others have other months. Yearly counts stand in June too: "
            "if these are yearly, they were taken for counts of a month. Do not use the result then."
        )
    axes = msg.Axes(months, terms, blanks, plan.detections, minimum, regions, np.zeros(0, np.uint8))
    if plan.jointly:
        released = release_jointly(link, axes, plan.share, contributors, notes)
        if released.few[0] and not plan.few_sites:
            raise ConfigError(_few_sites(released, months, calendar=calendar))
        if calendar:
            notes += _amid_winters(months, released.behind)
    else:
        (done,) = link.ask([axes])
        released = Released(axes, done)
    axes, out = released.axes, released.out
    ready = {name: answer for name, answer in released.done.items() if isinstance(answer, msg.Done)}
    used = sum(answer.used for answer in ready.values())
    if not used:
        many = f"{contributors} groups, and none of them with over {plan.share:.0%} of the visits"
        own = any(answer.withheld for answer in ready.values())
        raise InputError(_no_visits(steps(months), minimum, many if out else "", stricter, own=own))
    for name, answer in ready.items():
        if not answer.used and groups[name].months.size:
            notes.append(f"group {name!r} has no counted visit that takes part; it answers with zeros.")
    K = _covariates(groups, len(axes.terms) + len(axes.blanks))
    panel = Panel(
        L=int(months.size),
        J=float(sum(answer.sites for answer in ready.values())),
        K=K,
        visits=used,
        calendar=(months % 12 + 1, months // 12) if calendar else None,
        regions=axes.regions,
        observers=np.sum([answer.observers for answer in ready.values()], axis=0)
        * np.r_[1, 1, released.enough, released.enough[1]],
        contributors=contributors,
        least=minimum if plan.jointly else 0,
        own_least=0 if plan.jointly else minimum,
        share=plan.share,
        patterns=not released.few[1],
        covariates=covariates_of(groups, notes, jointly=plan.jointly),
        frame=any(given.frame for given in groups.values()),
        species=plan.species,
    )
    withheld = sum(answer.withheld for answer in ready.values()) + out
    if withheld > out:
        notes.append(
            f"{withheld - out:,} visits were withheld: their group has fewer sites than the least number in their "
            f"{steps(months)[:-1]}."
        )
    known = (released.behind, released.lost) if plan.jointly else (None, None)
    return Agreement(panel, axes.terms, axes.blanks, months, withheld, tuple(notes), *known)


def _few_sites(released: Released, months: I64, *, calendar: bool) -> str:
    """Why a study in which all but one have few sites stops."""
    # without a calendar columns are species
    when = steps(months) if calendar else "species"
    fewer = f"name fewer {when} (season, months)" if calendar else "list fewer species"
    return (
        f"without one of them, the organisations have fewer sites than half the {int((released.behind > 0).sum())} {when}, "
        f"or fewer than {VISITS_OF_A_STUDY} visits: that one could work out single counts, if it knows how often each site "
        f"was visited. Invite organisations with more sites, {fewer}, or, if all agree to it, say few_sites = true in "
        "study.toml, and begin a new revision."
    )


def _no_visits(where: str, minimum: int, many: str, stricter: str, *, own: bool) -> str:
    """Why no visit takes part: ``many`` groups are needed in words, blank where no joint rule left anything out."""
    if many:
        return (
            f"all visits were withheld: none of the {where} has {minimum} visits and sites of all groups together, {many}. "
            f"More groups, or a species that more of them count, would help.{stricter}"
        )
    if own:
        return (
            f"all visits were withheld: none of the {where} has the least number of {minimum} own sites behind it. "
            "Lower --minimum."
        )
    return (
        "no group has a counted visit of the species in these months: there is nothing to fit. Choose another species "
        "or season, or model detections (--model bernoulli)."
    )


def _amid_winters(months: I64, behind: F64) -> list[str]:
    """Say which months of the axis keep winters from being one season; from the joint numbers of visits alone."""
    rare = amid_winters(months[behind > 0], months)
    if not rare.size:
        return []
    season = np.setdiff1d(months % 12 + 1, rare).tolist()
    return [
        f"the study's calendar months {listed([str(month) for month in rare], 12)}, in which most years lack the least "
        "numbers, keep its winters from being one season each: both calendar years of a winter are fitted as two. Name the "
        f"other months in a new study: season = {season}."
    ]


def _tally(tallied: dict[str, msg.Answer]) -> dict[str, msg.Tallies]:
    return {name: answer for name, answer in tallied.items() if isinstance(answer, msg.Tallies)}


def _check_texts(groups: dict[str, msg.Description]) -> None:
    """Of other organisations: words that would steer a screen, numbers that no panel has."""
    for name, given in groups.items():
        words = (given.version, given.species, *given.regions, *given.site_covariates)
        if strange := [word for word in words if shown(word) != word[:400]]:
            raise UplinkError(
                f"group {name!r} names {shown(strange[0])!r}, with characters that no screen shows. Rename it there, and "
                "begin a new revision of the study.",
                group=name,
            )
        whole = (given.months, given.season, given.magnitudes)
        sizes = given.magnitudes  # powers of 2
        if (
            any(x.ndim != 1 or x.dtype != np.int64 for x in whole)
            or (given.months.size == 2 and not 0 <= given.months[0] <= given.months[1])
            or (sizes.size and not -1022 <= sizes.min() <= sizes.max() <= 1023)
        ):
            raise UplinkError(
                f"group {name!r} described its panel with impossible numbers. Install the same fedmiss everywhere, and "
                "begin a new revision of the study.",
                group=name,
            )


def _check(groups: dict[str, msg.Description], tallied: dict[str, msg.Answer], *, jointly: bool) -> list[str]:
    """Versions and species must be the same everywhere; what only one group brings is worth a note.

    Not between organisations: such months are withheld there, and the notes stand in a report that others read.
    """
    first = next(iter(groups))
    for name, given in groups.items():
        if given.months.shape not in ((0,), (2,)) or given.terms not in (0, len(TERMS)):
            raise UplinkError(
                f"group {name!r} described itself with months {given.months.tolist()[:3]} and {given.terms} effort terms. "
                "Install the same fedmiss everywhere."
            )
    for name, given in groups.items():
        if given.version != __version__:
            raise ConfigError(
                f"group {name!r} runs fedmiss {given.version}, the hub {__version__}. Install the same version on all sides."
            )
        if given.species and groups[first].species and given.species != groups[first].species:
            raise InputError(
                f"group {name!r} holds {given.species!r}, group {first!r} {groups[first].species!r}. One job is about one "
                "species: make both panels of the same one."
            )
        if given.calendar != groups[first].calendar:
            raise InputError(
                f"group {name!r} {'has' if given.calendar else 'lacks'} calendar months, unlike group {first!r}. "
                "Make both panels in the same way."
            )
    notes = [
        f"group {name!r} has no visit in the job's season; it answers with zeros."
        if not given.months.size
        else f"group {name!r} never saw the species."
        for name, given in groups.items()
        if not given.months.size or (name in tallied and not _tally(tallied)[name].detected)
    ]
    if len(groups) > 1 and not jointly:
        for name, given in groups.items():
            others = [
                theirs.months for other, theirs in groups.items() if other != name and theirs.months.size
            ]
            if not given.months.size or not others:
                continue
            if given.months[0] < min(int(theirs[0]) for theirs in others):
                notes.append(f"group {name!r} alone has visits before all others.")
            if given.months[1] > max(int(theirs[1]) for theirs in others):
                notes.append(f"group {name!r} alone has visits after all others.")
    return notes


def _months(groups: dict[str, msg.Description], plan: DataSpec, calendar: bool) -> I64:
    if plan.months is not None:
        return np.asarray(plan.months, dtype=np.int64)
    extents = [given.months for given in groups.values() if given.months.size]
    if not extents:
        raise InputError(
            "no group has a visit in the job's season: there is nothing to fit. Choose another season."
        )
    first, last = min(int(extent[0]) for extent in extents), max(int(extent[1]) for extent in extents)
    if plan.jointly and last - first >= MOST_MONTHS:
        who = sorted(name for name, given in groups.items() if {first, last} & set(given.months.tolist()))
        raise InputError(
            f"the months reach over {(last - first) // 12:,} years (limit {MOST_MONTHS // 12}): the first or the last is of "
            f"{listed(who, 4)}. Correct the date there, or name months in the study, and begin a new revision."
        )
    stamps = np.arange(first, last + 1, dtype=np.int64)
    if not calendar:
        return stamps
    season = sorted({int(calendar_month) for given in groups.values() for calendar_month in given.season})
    return stamps[np.isin(stamps % 12 + 1, season)]


def _effort(
    groups: dict[str, msg.Description], tallied: dict[str, msg.Answer], wanted: str | tuple[str, ...]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Resolve ``auto``, ``none`` or terms: ``auto`` takes a term that half of the visits have and that varies."""
    if wanted == "none" or not all(given.terms for given in groups.values()):
        return (), ()
    missing = total(tallied, "blanks", (len(TERMS),))
    known, varies = total(tallied, "effort", (len(TERMS), 2)).T
    if wanted == "auto":
        visits = sum(tally.visits for tally in _tally(tallied).values())
        terms = tuple(
            term for place, term in enumerate(TERMS) if known[place] >= 0.5 * visits and varies[place]
        )
    else:
        terms = tuple(wanted)
        unknown = [term for term in terms if term not in TERMS]
        if unknown:
            raise ConfigError(
                f"the effort term {unknown[0]!r} is unknown; choose auto, none, or some of {', '.join(TERMS)}."
            )
        for term in terms:
            for name, tally in _tally(tallied).items():
                if not tally.effort[TERMS.index(term), 0]:
                    raise InputError(
                        f"group {name!r} has no visit with a known {term}, which the job asks for. "
                        "Leave the term out of the job, or the group."
                    )
    return terms, tuple(term for term in terms if missing[TERMS.index(term)])


def _covariates(groups: dict[str, msg.Description], terms: int) -> int:
    """Number of effort coefficients; groups that bring ready-made covariates must bring equally many."""
    given = {name: group.covariates for name, group in groups.items() if not group.terms}
    if not given:
        return terms
    first = next(iter(given))
    for name, K in given.items():
        if K != given[first]:
            raise InputError(
                f"group {name!r} has {K} effort covariates, group {first!r} {given[first]}. Give all groups the same ones."
            )
    return given[first]


# -- folds ---------------------------------------------------------------------------------------------------


def folds_like_gaps(link: Link, panel: Panel) -> str:
    """``"block"`` when most missing cells lie in years of a site without any count, else ``"cell"``.

    What is held out should be missed as the real gaps are: a cell whose neighbours in time were counted is easier to
    predict than a year of a site without any visit, and by cells a rank is chosen that is too high for whole years.
    Cells also where there are no more than ``FEW_BLOCKS`` blocks with a count. Needs visited cells, not counts.
    """
    L = panel.L
    if panel.calendar is None:
        years = np.arange(L) // 12
    else:
        month_of_year, year = panel.calendar
        years = np.unique(season_years(year, month_of_year), return_inverse=True)[1]
    length = np.bincount(years)
    if length.max() <= 1:
        return "cell"  # a year is one cell
    question = ("gaps", panel.L, panel.visits)
    if question not in link.known:
        (link.known[question],) = link.ask([msg.Gaps()])
    answers = link.known[question]
    cells, blocks, inside = (float(total(answers, name, ())) for name in ("cells", "blocks", "inside"))
    missing, in_empty = panel.J * L - cells, panel.J * L - inside
    return "block" if blocks > FEW_BLOCKS and in_empty > 0.5 * missing else "cell"
