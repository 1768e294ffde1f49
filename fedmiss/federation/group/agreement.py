"""Answers before the first fit: what a group could bring, on which axes, what is behind sums."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from scipy.sparse import csr_array

from fedmiss.arrays import F64, I32, I64, Bool, distinct, pairs
from fedmiss.errors import ConfigError, InputError
from fedmiss.federation import messages as msg
from fedmiss.federation.group.apart import SAMPLE, set_apart
from fedmiss.federation.group.covariates import covariate_sums, magnitudes
from fedmiss.federation.group.features import count_visits, features
from fedmiss.federation.group.totals import regions_of
from fedmiss.federation.group.visits import (
    EFFORT_TERMS,
    Axis,
    IncludedVisits,
    Visits,
    effort_columns,
    experience,
)
from fedmiss.federation.messages_agree import PLACE
from fedmiss.federation.rules import (
    COLUMNS,
    CONTRIBUTORS,
    SITES_A_MONTH,
    SITES_LEFT,
    VISITS_OF_A_FOLD,
    VISITS_OF_A_STUDY,
    releasable,
)
from fedmiss.version import __version__

if TYPE_CHECKING:
    from fedmiss.federation.group.program import GroupProgram

LEAST_VISITS = 20  # twice the numbers in a table of the dispersion


def hello(program: GroupProgram, question: msg.Hello) -> msg.Description:
    """Extents and sums of what the group holds."""
    visits = program.visits
    if question.species and visits.species and question.species != visits.species:
        raise InputError(
            f"group {program.name!r} holds {visits.species!r}, the job is about {question.species!r}. Make a panel of that "
            "species."
        )
    season = np.unique(visits.month % 12) + 1 if visits.calendar else np.zeros(0, np.int64)
    if question.season.size:
        outside = ~np.isin(visits.month % 12 + 1, question.season)
        visits = program.visits = visits.take(~outside) if outside.any() else visits
        season = season[np.isin(season, question.season)]
    covariates = {
        name: column for name, column in visits.covariates.items() if not (program.jointly and name in PLACE)
    }
    return msg.Description(
        __version__,
        visits.species,
        np.array([visits.month.min(), visits.month.max()] if visits.site.size else [], dtype=np.int64),
        season.astype(np.int64),
        0 if visits.given else len(EFFORT_TERMS),
        visits.effort.shape[1] if visits.given else 0,
        tuple(sorted({str(region) for region in np.unique(visits.region) if region})),
        tuple(covariates),
        magnitudes(covariates),
        visits.calendar,
        program.minimum,
        program.contributors,
        visits.frame,
    )


def tally(program: GroupProgram, question: msg.Tally) -> msg.Tallies:
    """Numbers of visits of the job, without those that cannot take part: these would tell the finds without a number."""
    visits = program.visits
    able = _able(visits, detections=question.detections)
    effort, blanks = np.zeros((0, 2)), np.zeros(0, np.int64)
    if not visits.given:
        known = able[:, None] & ~np.isnan(visits.effort)
        blanks = able.sum() - known.sum(axis=0)
        effort = np.zeros((len(EFFORT_TERMS), 2))
        for term in range(len(EFFORT_TERMS)):
            x = visits.effort[known[:, term], term]
            effort[term] = x.size, float(x.size > 0 and x.max() > x.min())
    return msg.Tallies(
        int(able.sum()), 0 if program.jointly else int(visits.detected.sum()), effort, blanks.astype(np.int64)
    )


def _able(visits: Visits, *, detections: bool) -> Bool:
    """Visits (m,) that can take part: all where detections are modelled, else those with a number."""
    return np.ones(visits.site.size, dtype=bool) if detections else ~np.isnan(visits.count)


def axes(program: GroupProgram, question: msg.Axes) -> msg.Done:
    """Put the visits on the agreed axes; months with too few sites are withheld."""
    visits = program.visits
    # The custodian's own minimum holds even where the job asks for less.
    minimum = program.own_sites if program.jointly else max(question.minimum, program.minimum)
    program.axis = Axis(
        question.months.astype(np.int64),
        question.terms,
        question.blanks,
        question.detections,
        minimum,
        question.regions,
    )
    able = _able(visits, detections=question.detections)
    keep = able.copy()
    index = program.axis.index(visits.month, program.name)
    if question.released.size:
        keep &= question.released[index] == 1
    before = int(keep.sum())
    here = question.released[index] == 1 if question.released.size else np.ones(index.size, bool)
    kept = np.flatnonzero(keep)
    thin = program.thin(visits.site[kept], index[kept], np.zeros(kept.size, np.int64))
    keep[kept[thin]] = False
    here &= ~np.isin(index, index[kept[thin]])
    if minimum > 1 and (distinct(visits.site[keep]).size < minimum or int(keep.sum()) < LEAST_VISITS):
        keep[:] = here[:] = False  # even its sums over all months would be those of few sites or visits
    # Sites all of whose visits are left out are behind no number that is released, so joint totals are not of them either.
    # Those of a frame stand for an area, visited or not.
    if program.jointly and not visits.frame:
        program.standing = np.bincount(visits.site[here], minlength=program.J) > 0
    program.withheld = before - int(keep.sum())
    effort = visits.effort if visits.given else effort_columns(visits.effort, question.terms, question.blanks)
    at = np.flatnonzero(keep)
    order = at[np.argsort(pairs(visits.site[at], index[at])[0], kind="stable")]
    value = visits.detected.astype(float) if question.detections else visits.count
    program.used = IncludedVisits(
        visits.site[order],
        index[order],
        visits.month[order],
        value[order],
        visits.observer[order],
        effort[order],
        visits.weight[order],
        *experience(visits.observer[order], visits.site[order], visits.month[order], program.axis.months),
        None if visits.exposure is None else visits.exposure[order],
    )
    # Finds without a number take no part, so nothing else is behind them: they are told of months that others stand for.
    without = visits.detected & ~able & np.isin(index, index[keep])
    program.found = (visits.site[without], index[without])
    program.uncounted = np.zeros(question.months.size)
    np.add.at(program.uncounted, index[without], visits.weight[without])
    program.forget()
    return program.ready()


def support(program: GroupProgram, question: msg.Support) -> msg.SupportSums:
    """Count what is behind every month's sums; given the sums of all groups, say whether this group dominates."""
    used, L = program.need(), program.axis.L
    part = (
        program.fold_of(question.by, question.folds, question.seed, used)
        if question.folds
        else np.zeros(used.site.size, np.int64)
    )
    # a visit without weight, or that the custodian's own rule withholds, stands behind nothing
    live = program.live(used)
    live &= ~program.thin(used.site, used.month, part, live)
    parts, key, site = max(question.folds, 1), (part * L + used.month)[live], used.site[live]
    visits = np.bincount(key, minlength=parts * L).reshape(parts, L).astype(float)
    places = distinct(key * program.J + site)
    if question.folds:
        # A site whose visits of a month lie in several folds is one site of what each leaves in: of one fold, in turn, as
        # evenly as cells are.
        turn, cell = np.divmod(places, L * program.J)
        places = places[np.lexsort(((turn + cell) % parts, cell))]
        places = places[np.unique(places % (L * program.J), return_index=True)[1]]
    sites = np.bincount(places // program.J, minlength=parts * L).reshape(parts, L).astype(float)
    groups = (visits > 0).astype(float)
    regions = np.zeros((len(program.axis.regions) + 1, 3))
    at = regions_of(program)[distinct(site)] + 1
    regions[:, 0] = np.bincount(at, minlength=regions.shape[0])
    regions[:, 1] = regions[:, 0] > 0
    over, few = np.zeros((parts, L)), np.zeros(2)
    stands = _stands_out(program, used, live) if not question.folds else np.zeros((site.size, 0), bool)
    effort = np.zeros((stands.shape[1], 3))
    effort[:, 0] = [distinct(site[there]).size for there in stands.T]
    if len(effort):  # sums over observers, not sites: of two their effects followed; a community has none
        for who in (-2, -1):
            observers = 0 if program.finds else distinct(used.observer[live][stands[:, who]]).size
            effort[who, 0] = min(effort[who, 0], observers)
        columns = np.column_stack([used.effort, used.experience[:, 1]])[live]
        # each column beside those before it; the last is that of new observers
        last = columns.shape[1] - np.arange(len(effort) - 1)[::-1]
        kinds = np.array([_kinds(columns[:, :k]) for k in last])
        # Too few kinds are a part of the least number; where they are enough sites stay, of which shares are.
        enough = np.where(kinds < 1.0, max(program.minimum, 1) * kinds, np.inf)
        effort[:-1, 0] = np.minimum(effort[:-1, 0], enough)
    effort[:, 1] = effort[:, 0] > 0
    if question.visits.size:
        left, made = question.sites - sites, question.visits - visits
        if question.folds:  # told is what a fold leaves in: visits to sites that may count in this fold
            left, made = left.sum(axis=0) - left, made.sum(axis=0) - made
        alone = (made > 0) & (left < SITES_LEFT) & (program.contributors >= CONTRIBUTORS)
        over = ((visits > question.share * question.visits) | alone).astype(float)
        if question.folds and program.contributors >= CONTRIBUTORS:
            told = (over == 0).all(axis=0) & releasable(
                question.visits, question.sites, question.groups, program.minimum, program.contributors
            )
            held_out = (question.visits - visits)[:, told].sum(axis=1)
            # each candidate's score of a fold is three sums over its visits, which of few have one set of counts
            over[:, :] = np.maximum(over, ((0 < held_out) & (held_out < VISITS_OF_A_FOLD)).any())
        months = int((question.visits > 0).any(axis=0).sum())
        others = question.regions[:, 0].sum() - regions[:, 0].sum()
        # of a community every site tells of every species
        cells = others * months if program.finds else question.sites.sum() - sites.sum()
        theirs = question.visits.sum() - visits.sum()
        few[0] = others < SITES_A_MONTH * months or 0 < theirs < VISITS_OF_A_STUDY
        few[1] = cells <= COLUMNS * months
        own = regions[:, 0]  # with few of them all others together would have these sites' expected birds
        # a region's months are equations of what is expected at each site: two sites' followed from them
        others_there = question.regions[:, 0] - own
        regions[:, 2] = (own > question.share * question.regions[:, 0]) | (
            ((own > 0) & (own < program.own_sites)) | ((others_there > 0) & (others_there < program.minimum))
        )
        # what regions leave of the whole may be sites that stand there without a visit that takes part, and nobody else's
        lone = int((program.standing & ~program.visited & (regions_of(program) < 0)).sum())
        least = max(program.axis.minimum, program.minimum)
        regions[0, 2] = max(regions[0, 2], question.regions[0, 0] == 0 and 0 < lone < least)
        own = effort[:, 0]
        effort[:, 2] = (own > question.share * question.effort) | ((own > 0) & (own < program.own_sites))
        if len(effort):
            others_there = question.effort - own
            effort[:, 2] = np.maximum(effort[:, 2], (0 < others_there) & (others_there < program.minimum))
    return msg.SupportSums(visits, sites, groups, over, regions, few, effort)


def sites_in_both(site: I32, month: I32 | I64, shape: tuple[int, int]) -> I64:
    """Numbers (L, L) of sites that were visited in each two months; ``shape``: sites and months L."""
    cells = distinct(site.astype(np.int64) * shape[1] + month)
    visited = csr_array((np.ones(cells.size, np.int64), np.divmod(cells, shape[1])), shape=shape)
    both: I64 = (visited.T @ visited).toarray()
    return both


def together(program: GroupProgram, question: msg.Pairs) -> msg.PairSums:
    """Count the sites visited in two months: a product of residuals is a sum over them.

    Of a community the sites with finds of two species, where they are as many as asked for: of fewer nothing is told.
    """
    used, L = program.need(), program.axis.L
    live = program.live(used)
    both = sites_in_both(used.site[live], used.month[live], (program.J, L))
    program.few = np.asarray((both > 0) & (both < program.own_sites), np.uint8)
    np.fill_diagonal(program.few, 0)  # a month by itself is withheld with its visits (``GroupProgram.thin``)
    sites = np.where(program.few == 1, 0, both)[np.tril_indices(L, -1)].astype(float)
    if program.finds:
        sites[sites < question.most] = 0.0
    return msg.PairSums(np.minimum(sites, question.most), (sites > 0).astype(float))


def _stands_out(program: GroupProgram, used: IncludedVisits, live: Bool) -> Bool:
    """Live visits (m, E) that a sum over effort or observers may be of alone (``messages.SupportSums.effort``)."""
    effort = np.zeros((int(live.sum()), 0)) if program.visits.given else used.effort[live]
    # of fewer observers than the own least number nothing is told (``answers.solve``): they stand behind no sum
    told = used.observer.max(initial=-1) + 1 >= program.axis.minimum
    return np.column_stack(
        [set_apart(effort, used.month[live]), used.experience[live, 0] < 0, used.apart[live] & told]
    )


def _kinds(columns: F64) -> float:
    """How many kinds of visits there are for each product of a constant and columns of effort, or of observers' mean years.

    Rounds tell sums of these products with new weights each time. Where each observer's effort is always the same, what they
    span holds few but the observers' own, as of features of sites (``tests/attacks/test_habits.py``).
    """
    some = columns[:: max(1, len(columns) // SAMPLE)]
    q = some.shape[1] + 1
    lines = sum(np.unique(column).size < 3 for column in some.T)  # whose squares lie on a line with them
    return len(np.unique(some, axis=0)) / float(max(q * (q + 1) / 2 - lines, 1.0))


def outcome(program: GroupProgram, question: msg.Outcome) -> msg.Done:
    """Keep what the group's own report needs."""
    program.results.append(question)
    return program.ready()


def species(program: GroupProgram, question: msg.Species) -> msg.SpeciesSums:
    """What a community says of the group's sites; who runs one puts the means to compute it here."""
    if program.community is None:
        raise ConfigError(f"group {program.name!r} is in no community of species. Start the job again.")
    return msg.SpeciesSums(program.community(question))


def gaps(program: GroupProgram, question: msg.Gaps) -> msg.GapSums:
    """Count visited cells and site-years."""
    used, L, years = program.need(), program.axis.L, program.axis.years(program.visits.calendar)
    length = np.bincount(years)
    cells = distinct(used.site.astype(np.int64) * L + used.month)
    blocks = distinct(cells // L * length.size + years[cells % L])
    inside = length[blocks % length.size].sum()
    return msg.GapSums(float(cells.size), float(blocks.size), float(inside), program.n_standing)


AGREEMENT: dict[type[msg.Message], Callable[..., msg.Answer]] = {
    msg.Hello: hello, msg.Axes: axes, msg.Gaps: gaps, msg.Tally: tally, msg.Support: support,
    msg.Pairs: together, msg.SiteVisits: count_visits, msg.Covariates: covariate_sums, msg.Features: features,
    msg.Outcome: outcome, msg.Species: species,
}  # fmt: skip
