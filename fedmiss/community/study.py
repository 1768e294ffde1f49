"""All species of a site between organisations: the job that each of them runs together with the others.

Three conversations over one :class:`~fedmiss.federation.circle.Circle`, each by the count model's own questions: at how
many sites each species of the study's list was found, which decides what may be told of it; what effort does to the number
of birds; the community, whose months are species. Sites, their scores and their cells stay at home.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from fedmiss.arrays import F64, I64, Bool
from fedmiss.community.model import (
    Cells,
    Community,
    Effort,
    cells_of,
    effort_by,
    effort_plan,
    effort_visits,
    fit_by,
    plain_model,
)
from fedmiss.community.outputs import STEPS, gains_by, richness, site_sums, steps_of, usual_visits
from fedmiss.community.settings import CommunitySettings
from fedmiss.community.tables import numbers_of
from fedmiss.errors import InputError, listed
from fedmiss.etl.community import Lists, alike, names_of, read_lists
from fedmiss.federation import messages as msg
from fedmiss.federation.circle import Circle
from fedmiss.federation.group.program import GroupProgram
from fedmiss.federation.group.totals import told_apart
from fedmiss.federation.group.visits import Visits, check_counts
from fedmiss.federation.hub.agree import DataSpec, agree
from fedmiss.federation.hub.directions import begin_factors
from fedmiss.federation.hub.support import release_pairs_of_finds, sites_with_both
from fedmiss.federation.link import Link, total
from fedmiss.federation.local import LocalFederation
from fedmiss.federation.member import Look, Member
from fedmiss.federation.messages_agree import LEVEL, PLACE
from fedmiss.federation.rules import COLUMNS, kept_regions

FEWEST_SPECIES = 3


@dataclass(frozen=True, slots=True)
class Terms:
    """What all organisations have agreed on: model, list of species, least numbers, masks; ``job``, ``digest`` of frames.

    ``few_sites``: go on where all but one have fewer sites than half the species.
    """

    settings: CommunitySettings
    species: tuple[str, ...]
    minimum: int
    share: float
    contributors: int
    masks: bool
    job: bytes
    digest: bytes
    few_sites: bool = False

    def plan(
        self, months: I64, effort: str | tuple[str, ...] = "none", *, few_sites: bool = True
    ) -> DataSpec:
        """The plan of a conversation, under the study's least numbers."""
        return DataSpec(
            months=months, effort=effort, jointly=True, minimum=self.minimum, share=self.share,
            contributors=self.contributors, few_sites=few_sites,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class CommunitySeat:
    """An organisation's own end: its records, secret, least number of own sites and covariates of the sites.

    ``look`` may hold messages back; ``watch`` is called with (stage, exchanges), ``told`` with every member after it.
    """

    circle: Circle
    records: Path
    secret: bytes
    own_sites: int = 0
    covariates: Callable[[Lists], Mapping[str, np.ndarray]] = lambda lists: {}
    look: Look | None = None
    watch: Callable[[str, int], None] = lambda stage, exchanges: None
    told: Callable[[Member], None] = lambda member: None

    def link(self, terms: Terms, visits: Visits, stage: str) -> tuple[GroupProgram, Link]:
        """Begin a conversation about some visits."""
        program = GroupProgram(
            self.circle.name, visits, secret=self.secret, settings=terms.digest, jointly=True,
            minimum=terms.minimum, contributors=terms.contributors, own_sites=self.own_sites, finds=True,
        )  # fmt: skip
        member = Member(program, self.circle, self.look)

        def watch(part: str, exchanges: int) -> None:
            self.watch(f"{stage}: {part}", self.circle.exchange)
            self.told(member)

        return program, Link(member, terms.job[:8], terms.digest, watch, masked=terms.masks)


class _Ours(LocalFederation):
    """The stages of a fit asked of all organisations; of the sites' half only the own one is here."""

    def __init__(self, program: GroupProgram, link: Link, plan: DataSpec) -> None:
        self.own, self.programs, self.J = False, {program.name: program}, program.held.site_id.size
        self.at = {program.name: np.arange(self.J, dtype=np.int64)}
        self.link, self.agreement = link, agree(link, plan)
        self.hub = self.agreement.panel
        self.L, self.members, self.last = self.hub.L, [], None


@dataclass(frozen=True, slots=True, eq=False)
class JointCommunity:
    """What an organisation knows at the end.

    ``fit``, ``lists``, ``effort`` of its own sites, whose species' half is joint. Of all sites: ``sums`` as of
    :func:`~fedmiss.community.outputs.site_sums`; ``numbers`` (S, 4) and ``gains`` (S, 2) of the species; ``step_sites``
    (4,) and ``step_gains`` (4, 2) by the number of checklists, zero where too few stand behind them; ``richness`` of a
    site in the mean; ``n_lists``. ``left_out`` names the species of the study's list that are told nothing of, by reason.
    """

    fit: Community
    lists: Lists
    effort: Effort
    sums: F64
    numbers: F64
    gains: F64
    step_sites: I64
    step_gains: F64
    richness: float
    n_lists: int
    left_out: Mapping[str, tuple[str, ...]]
    notes: tuple[str, ...]


def run_community(seat: CommunitySeat, terms: Terms) -> JointCommunity:
    """Run the job of a community to its end.

    Raises
    ------
    InputError    fewer than three species have enough sites and organisations behind them
    ConfigError    all but one have few sites for so many species, and the study does not allow it
    """
    settings = terms.settings
    whole = read_lists(seat.records, species=terms.species)
    behind, left_out = _species(seat, terms, whole)
    names = tuple(name for name, sites in zip(terms.species, behind, strict=True) if sites)
    settings.most_axes(len(names))
    # Read again without the species that may not be told of: they are in no sum of what follows.
    lists = read_lists(seat.records, species=names)
    effort = _effort(seat, terms, lists)
    few = _few(lists, settings.model, seat.own_sites)
    cells = _kept(cells_of(lists, effort, settings.model), few)
    known = dict(seat.covariates(lists))
    # Months of the conversation are the species: the protocol of the count model is used as it is.
    site_id = lists.sites["site_id"].to_numpy()
    program, link = seat.link(terms, cells.visits(site_id, known), "community")
    plan = terms.plan(np.arange(len(names), dtype=np.int64), few_sites=terms.few_sites)
    ours = _Ours(program, link, plan)
    notes = [
        *ours.agreement.notes,
        *_without_covariates(ours, terms, dict(zip(names, behind[behind > 0], strict=True))),
    ]
    notes += begin_axes(ours, terms)
    fit = fit_by(ours, cells, settings, known)
    return _joint(terms, program, link, fit, lists, few, effort, left_out, notes)


def _without_covariates(ours: _Ours, terms: Terms, found: Mapping[str, float]) -> list[str]:
    """Leave covariates out where sums of a species are too many for the sites at which it was ``found``; say so.

    A species has a sum more for each column of the covariates. Who knows these of all sites has so many equations of its
    counts, most of which are zero: a third of the sites with a find is as good as all. Each sum needs the least number.
    """
    sums = 1 + sum(1 if LEVEL in name else 2 for name in ours.hub.covariates if name not in PLACE)
    few = [name for name, sites in found.items() if sites < sums * terms.minimum]
    if sums == 1 or not few:
        return []
    ours.hub = replace(ours.hub, covariates={})
    return [
        f"covariates are left out: with them a species has {sums} sums, which need {sums * terms.minimum} sites with a "
        f"find. Fewer have {listed(few, 4)}."
    ]


def begin_axes(ours: _Ours, terms: Terms) -> list[str]:
    """Find what axes begin along, from pairs of species that enough were found together; say so where there is none."""
    if not terms.settings.rank:
        return []
    if not ours.hub.patterns:
        return [
            f"no axes are fitted: without one of them, the organisations have {COLUMNS} sites or fewer, and the sums that "
            "begin an axis would tell single counts. Organisations with more sites would help."
        ]
    ours.hub = release_pairs_of_finds(ours.link, ours.hub)
    if ours.hub.patterns:
        begin_factors(ours.link, ours.hub, plain_model(terms.settings))
        return []
    both = sites_with_both(ours.hub.least, ours.hub.contributors)
    return [
        f"no axes are fitted: no two species were found together at {both} sites or more of each of {terms.contributors} "
        "organisations, and sums of fewer would tell finds. Organisations with more checklists would help."
    ]


def _species(seat: CommunitySeat, terms: Terms, lists: Lists) -> tuple[F64, dict[str, tuple[str, ...]]]:
    """Of each species that may be told of the sites where it was found, else 0; names of the others by rule.

    The rule is that of months, but of sites where the species was found.
    """
    # every species has a row at every site, else its first and last one would be told in clear; zeros weigh nothing
    site, species = (index.ravel() for index in np.indices((lists.J, lists.S)))
    found_at = _found(lists, terms.settings.model).ravel().astype(float)
    scarce = _few(lists, terms.settings.model, seat.own_sites)
    cells = _kept(Cells(lists.J, lists.S, site, species, found_at, None, found_at), scarce)
    _, link = seat.link(terms, cells.visits(lists.sites["site_id"].to_numpy(), {}), "species")
    few = (
        f"fewer than {FEWEST_SPECIES} species of the study's {lists.S} were found at {terms.minimum} sites or more of "
        f"{terms.contributors} organisations or more, none with over {terms.share:.0%} of them: other species can tell "
        "something from three on. Propose a study with more species, a lower minimum, or a higher share."
    )
    try:
        found = agree(link, terms.plan(np.arange(lists.S, dtype=np.int64)))
    except InputError:  # nobody has any, or none may be told of
        raise InputError(few) from None
    released = np.zeros(lists.S) if found.behind is None else found.behind
    if (released > 0).sum() < FEWEST_SPECIES:
        raise InputError(few)
    lost = dict(found.lost or {})
    rules = {
        f"fewer than {terms.minimum} sites, or than {terms.contributors} organisations": "fewer visits or sites",
        f"one organisation has over {terms.share:.0%} of its sites": "too large a share",
    }
    at = {
        words: [place for rule, value in lost.items() if rule.startswith(key) for place in value]
        for words, key in rules.items()
    }
    named = {place for places in at.values() for place in places}
    at["found on no complete checklist"] = [
        place for place in np.flatnonzero(released == 0) if place not in named
    ]
    return released, {
        why: tuple(terms.species[place] for place in sorted(value)) for why, value in at.items() if value
    }


def _effort(seat: CommunitySeat, terms: Terms, lists: Lists) -> Effort:
    settings = terms.settings
    if settings.model == "presence" or settings.effort == "none":
        return Effort(np.ones(lists.site.size))
    visits = effort_visits(lists)
    check_counts(
        seat.circle.name, visits, one="on one checklist", mend="in what was imported, and import it again"
    )
    plan = effort_plan(settings.effort)
    assert plan.months is not None
    program, link = seat.link(terms, visits, "effort")
    try:
        ours = _Ours(program, link, terms.plan(plan.months, plan.effort))
    except InputError as error:  # what else can fail here has failed for the species
        raise InputError(
            f"no calendar month has checklists with all birds counted at {terms.minimum} sites of "
            f"{terms.contributors} organisations, none with over {terms.share:.0%} of them: what effort does to the number "
            "of birds cannot be told. Import the same season everywhere (`fedmiss ingest --season`), or propose a revision "
            'with effort = "none" in [community], which takes all checklists as alike.'
        ) from error
    return effort_by(ours, lists)


def _found(lists: Lists, model: str) -> Bool:
    """Sites (J, S) behind a species: where it was found; for counts with a number, since birds are those of these alone."""
    birds, _, found = lists.summed()
    return (found if model == "presence" else birds) > 0


def _few(lists: Lists, model: str, own_sites: int) -> Bool:
    """Species (S,) that were found somewhere, at fewer than ``own_sites`` of the own sites: nothing is told of them."""
    anywhere, sites = _found(lists, "presence").any(axis=0), _found(lists, model).sum(axis=0)
    out: Bool = anywhere & (sites < own_sites)
    return out


def _kept(cells: Cells, few: Bool) -> Cells:
    """Cells, without weight where the own least number of sites is not reached."""
    return replace(cells, weight=np.where(few[cells.species], 0.0, cells.weight)) if few.any() else cells


def _joint(
    terms: Terms, program: GroupProgram, link: Link, fit: Community, lists: Lists, few: Bool, effort: Effort,
    left_out: Mapping[str, tuple[str, ...]], notes: Sequence[str],
) -> JointCommunity:  # fmt: skip
    """Four more exchanges: sums behind the axes, what is behind each number of checklists, and the joint tables."""
    n_species, n_steps = lists.S, len(STEPS)
    own, step = site_sums(fit), told_apart(steps_of(lists.visits), program.own_sites)
    # Of whole numbers of checklists the exact sum of logarithms, beside their sum, leaves few sets of as many sites.
    own[-2:] = np.round(own[-2:])
    sites = np.bincount(step[step >= 0], minlength=n_steps).astype(float)

    def mine(q: msg.Species) -> F64:
        if q.part == "sites":
            return own
        if q.part == "steps":
            # The second question of the steps: only with the totals of all can a share, and the others' sites, be known.
            over = np.zeros(n_steps, dtype=bool)
            if q.totals.size:
                others = q.totals - sites
                over = (sites > terms.share * q.totals) | ((0 < others) & (others < terms.minimum))
            return np.concatenate([sites, sites > 0, over]).astype(float)
        by_species, by_step = gains_by(fit, lists.visits)
        rich = richness(fit, visits=q.usual, sums=sums)[0].sum() if q.usual > 0 else 0.0
        # Here totals are 1 for the steps that may be told and 0 for the others, which are so never sent.
        numbers = numbers_of(lists, fit)
        numbers[few, :3] = by_species[few] = by_step[sites == 0] = 0.0
        if terms.settings.model == "presence":
            numbers[:, 2] = 0.0  # birds, which may have a number at one site only
        parts = [numbers, by_species, by_step * q.totals[:, None], [rich, lists.site.size]]
        return np.concatenate([np.asarray(part, dtype=float).ravel() for part in parts])

    # The fourth kind of question is answered by this function: everything it returns is a sum over the own sites.
    program.community, link.stage = mine, "tables"
    none = np.zeros(0)

    def asked(part: str, size: int, usual: float = 0.0, totals: F64 = none) -> F64:
        (answers,) = link.ask([msg.Species(part, usual, totals)])
        return total(answers, "sums", (size,))

    sums = asked("sites", own.size)
    of_steps = asked("steps", 3 * n_steps, totals=asked("steps", 3 * n_steps)[:n_steps]).reshape(3, n_steps)
    behind, groups, over = np.hstack([np.zeros((3, 1)), of_steps])  # no step first, as for regions
    kept = np.zeros(n_steps)
    kept[[region - 1 for region in kept_regions(behind, groups, over, terms.minimum, terms.contributors)]] = (
        1.0
    )
    told = asked("species", 6 * n_species + 2 * n_steps + 2, usual_visits(fit, sums), kept)
    numbers, gains, steps, rest = np.split(told, [4 * n_species, 6 * n_species, 6 * n_species + 2 * n_steps])
    if unjudged := int((gains[::2] == 0).sum()):
        notes = [
            *notes,
            f"{unjudged} of {n_species} species {'has' if unjudged == 1 else 'have'} too few sites in one of the "
            f"{terms.settings.folds} folds to be left out and predicted: the model was chosen by the others. With fewer "
            "folds more would take part.",
        ]
    return JointCommunity(
        fit, lists, effort, sums, numbers.reshape(n_species, 4), gains.reshape(n_species, 2),
        np.rint(of_steps[0] * kept).astype(np.int64),
        steps.reshape(n_steps, 2), float(rest[0] / sums[0]), round(float(rest[1])), dict(left_out), tuple(notes),
    )  # fmt: skip


def beside(species: Sequence[str], records: Path, name: str) -> list[str]:
    """What an organisation's records are beside the study's list, in words, for its custodian; nothing of it is sent."""
    lists, (named, sensitive) = read_lists(records, species=species), names_of(records, species)
    found = (lists.summed()[2] > 0).sum(axis=0)
    hidden = [bird for bird in species if bird in sensitive]
    absent = [
        bird for bird, number in zip(species, found, strict=True) if not number and bird not in sensitive
    ]
    more = [bird for bird in named if bird not in set(species)]
    lines = [
        f"{name}: {lists.site.size:,} complete checklists at {lists.J:,} sites, {np.count_nonzero(found)} of the study's "
        f"{len(species)} species on them"
    ]
    if absent:
        lines.append(
            f"  in the study and not on your checklists, each of which is a zero for them: {listed(absent, 4)}"
        )
    if hidden:
        lines.append(f"  named as sensitive by you, so nothing of them is used: {listed(hidden, 4)}")
    if more:
        lines.append(f"  in your records and not in the study, so they stay at home: {listed(more, 4)}")
    lines += [
        f"  {mine} of yours and {theirs} of the study: perhaps one species in two names; if so, import it under the study's"
        for mine in more
        for theirs in absent
        if alike(mine, theirs)
    ]
    return lines
