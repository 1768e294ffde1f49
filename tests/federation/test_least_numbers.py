"""Least numbers for sums over groups: of months, of every fold's part of them, of regions."""

from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from fedmiss.errors import ConfigError, InputError
from fedmiss.federation import messages as msg
from fedmiss.federation.calls import fit_counts
from fedmiss.federation.group import agreement
from fedmiss.federation.group.folds import draw_folds
from fedmiss.federation.group.program import GroupProgram
from fedmiss.federation.group.totals import regions_of
from fedmiss.federation.group.visits import Visits
from fedmiss.federation.hub.agree import DataSpec, agree
from fedmiss.federation.hub.job import JobSpec, run_job
from fedmiss.federation.link import InProcess, Link
from fedmiss.federation.rules import SITES_LEFT, kept_regions, releasable
from fedmiss.models.lowrank.data import Group, GroupPanel
from fedmiss.models.lowrank.settings import CountSettings

from .network import JOB, NEGBIN, SETTINGS, Club, Tapped, clubs_of, order, run, tapped
from .owners import largest, owned

MINIMUM, SHARE, FOLDS = 13, 0.55, 2


@pytest.fixture(scope="module")
def panel():
    return owned(3, n=420, J=30, L=24, size=2.0, seed=8)


def ran(panel, folder, candidates=(NEGBIN,), minimum=MINIMUM, share=SHARE, *, detections=False):
    plan = DataSpec(jointly=True, minimum=minimum, share=share, detections=detections)
    tap, sites, result = tapped(panel, folder, candidates, plan, folds=FOLDS, by="cell")
    return sites, tap, result


def counts(panel, part=None):
    """Visits, sites, groups, largest share of visits and of birds of every part of every month: (parts, L) each."""
    L = panel.L
    visits, sites, birds = [], [], []
    for g in panel.groups:
        fold = np.zeros(g.site.size, np.int64) if part is None else part(g)
        n = 1 if part is None else FOLDS
        v, s, b = np.zeros((n, L)), np.zeros((n, L)), np.zeros((n, L))
        np.add.at(v, (fold, g.month), 1)
        np.add.at(b, (fold, g.month), g.count)
        cells = np.unique(np.stack([fold, g.month, g.site]), axis=1)
        np.add.at(s, (cells[0], cells[1]), 1)
        visits.append(v)
        sites.append(s)
        birds.append(b)
    v, b = np.array(visits), np.array(birds)
    share = [x.max(axis=0) / np.maximum(x.sum(axis=0), 1) for x in (v, b)]
    return v.sum(axis=0), np.array(sites).sum(axis=0), (v > 0).sum(axis=0), *share


def test_released_months_are_those_with_enough_behind_them(panel, tmp_path):
    visits, places, groups, largest, _ = (x[0] for x in counts(panel))
    enough = (visits >= MINIMUM) & (places >= MINIMUM) & (groups >= 3)
    share = float(np.median(largest[enough]))
    sites, _, joint = ran(panel, tmp_path, share=share)
    fine = enough & (largest <= share)
    assert 2 < fine.sum() < panel.L - 2  # the test tests something
    assert (enough & (largest > share)).any()
    assert [at.size for at in joint.agreement.lost.values()] == [
        (~enough).sum(), (enough & (largest > share)).sum(),
    ]  # fmt: skip
    seen = np.zeros(panel.L, bool)
    for site in sites.values():
        seen[np.unique(site.used.month)] = True
    np.testing.assert_array_equal(seen, fine)
    np.testing.assert_array_equal(joint.agreement.behind, visits * fine)
    assert joint.agreement.withheld == visits[~fine].sum()
    assert any("were withheld" in note for note in joint.agreement.notes)


def test_a_month_with_a_thin_fold_leaves_cross_validation(panel, tmp_path, monkeypatch):
    monkeypatch.setattr(agreement, "VISITS_OF_A_FOLD", 0)  # the rule of months alone
    candidates = [NEGBIN, msg_free(NEGBIN)]
    _, tap, joint = ran(panel, tmp_path, candidates, minimum=3, share=0.6)
    opened, told = next((q, told) for q, told in tap.of(msg.Open) if q.weights == "fold")
    stamps = panel.calendar[1] * 12 + panel.calendar[0] - 1

    def part(g):
        return draw_folds(
            "cell", FOLDS, 0, name=g.name, site_id=panel.site_id, site=g.site, month=stamps[g.month],
            year=stamps[g.month] // 12, observer=g.observer, secret=g.name.encode() + JOB[:8],
        )  # fmt: skip

    visits, places, groups, largest, _ = counts(panel, part)
    empty = visits == 0
    enough = (visits >= 3) & (places >= 3) & (groups >= 3) & (largest <= 0.6)
    own = np.stack([counts(SimpleNamespace(L=panel.L, groups=[g]), part)[1] for g in panel.groups])
    left = own.sum(axis=0) - own
    left = left.sum(axis=1, keepdims=True) - left  # sites of the others that a fold leaves in
    enough &= ((left == 0) | (left >= SITES_LEFT)).all(axis=0)
    whole = counts(panel)
    released = (whole[0] >= 3) & (whole[1] >= 3) & (whole[2] >= 3) & (whole[3] <= 0.6)
    fine = (empty | enough).all(axis=0)
    assert 0 < (released[0] & ~fine).sum()
    by_share = (empty | (visits >= 3) & (places >= 3) & (groups >= 3)).all(axis=0) & ~fine
    assert (released[0] & by_share).any()
    np.testing.assert_array_equal(opened.released[released[0]], fine[released[0]])
    # of these months some have enough sites in each fold
    held = whole[0][0][released[0] & fine].sum()
    said = f"They hold {held:.0f} of {joint.agreement.panel.visits} visits: in other months the least numbers left out"
    assert said in joint.choice.advice
    weight = sum(a.sums[:, 0].sum() for a in told)  # every visit trains all folds but its own
    assert weight == (FOLDS - 1) * held


def msg_free(settings):
    return replace(settings, rank=0)


def test_the_rule_looks_at_every_part():
    v = np.array([[5.0, 5, 0, 5], [5, 1, 5, 5]])
    s, g = v.copy(), np.where(v > 0, 2.0, 0.0)
    g[0, 3] = 1
    np.testing.assert_array_equal(releasable(v, s, g, 3, 2), [True, False, True, False])


@pytest.mark.parametrize(
    ("sites", "groups", "over", "kept"),
    [
        ([9, 9, 9, 9], [3, 3, 3, 3], [0, 0, 0, 0], [1, 2, 3]),
        ([0, 9, 9, 9], [0, 3, 3, 3], [0, 0, 0, 0], [1, 2, 3]),  # no rest: nothing to tell of by difference
        ([9, 9, 4, 9], [3, 3, 3, 3], [0, 0, 0, 0], [1, 3]),  # too few sites
        ([9, 9, 9, 9], [3, 3, 2, 3], [0, 0, 0, 0], [1, 3]),  # too few organisations
        ([9, 9, 9, 9], [3, 3, 3, 3], [0, 0, 1, 0], [1, 3]),  # one has nearly all
        # the rest has too few sites: the smallest joins it
        ([4, 8, 7, 9], [3, 3, 3, 3], [0, 0, 0, 0], [1, 3]),
        ([9, 8, 7, 9], [2, 3, 3, 3], [0, 0, 0, 0], [1, 3]),  # too few organisations in the rest
        ([9, 8, 7, 9], [3, 3, 3, 3], [1, 0, 0, 0], [1, 3]),  # one has nearly all of the rest
    ],
)
def test_regions_are_told_apart_where_enough_stand_behind_each_and_the_rest(sites, groups, over, kept):
    assert kept_regions(*(np.array(x, dtype=float) for x in (sites, groups, over)), 5, 3) == kept


def test_the_rest_is_the_pooled_answer_of_the_released_visits(panel, tmp_path):
    plain = msg_free(NEGBIN)  # patterns begin with sums that have a rule of their own
    _, _, joint = ran(panel, tmp_path, [plain])
    keep = joint.agreement.behind > 0
    groups = []
    for g in panel.groups:  # the pooled reference obeys the same rule
        m = keep[g.month]
        groups.append(Group.of(g.name, g.site[m], g.month[m], g.count[m], g.observer[m]))
    reference = GroupPanel.of(panel.J, panel.L, groups, panel.calendar, panel.site_id, panel.region).pooled()
    expected = fit_counts(reference, plain).expected().sum(axis=0)
    assert largest(joint.totals[0], expected) < 1e-9


@pytest.mark.parametrize(
    "model",
    [NEGBIN, CountSettings(family="gaussian", scale="log1p"), CountSettings(family="bernoulli")],
    ids=lambda model: model.family,
)
def test_finds_are_told_of_released_months_alone(panel, tmp_path, model):
    """Those without a number too; and no sum of all months, which would tell those of withheld ones."""
    detections, clubs = model.family == "bernoulli", clubs_of(panel, tmp_path)
    sites = {name: club.program() for name, club in clubs.items()}
    finds, without = np.zeros((2, panel.L))
    visits, places, apart = *np.zeros((2, panel.L)), 0
    for name, program in sorted(sites.items(), key=lambda item: item[0] == "owner-1"):
        held, program.contributors = program.held, 2
        at = held.month - 12 * panel.calendar[1][0]
        lost = held.detected & (np.arange(held.site.size) % 4 == 0)
        if name == "owner-1":  # of one month it has finds without a number alone: nothing stands beside them
            behind = np.minimum(visits, places)
            busiest, minimum = int(behind.argmax()), int(behind.max())
            lost[at == busiest], keep = True, held.detected | (at != busiest)
            held, lost, apart = held.take(keep), lost[keep], int((at[keep] == busiest).sum())
        else:
            number = ~lost | detections
            visits += np.bincount(at[number], minlength=panel.L)
            places += [np.unique(held.site[number & (at == month)]).size for month in range(panel.L)]
        program.held = replace(held, count=np.where(lost, np.nan, held.count))
    tap = Tapped(sites)
    plan = DataSpec(jointly=True, minimum=minimum, share=1.0, detections=detections, contributors=2)
    joint = run_job(Link(tap, JOB[:8], SETTINGS), JobSpec(plan, [model], folds=FOLDS, by="cell", bootstrap=0))
    released, first = joint.agreement.behind > 0, int(joint.agreement.months[0])
    assert 0 < released.sum() < panel.L
    for program in sites.values():
        held, at = program.held, program.held.month - first
        number = ~np.isnan(held.count) | detections
        others = np.bincount(at[number], minlength=panel.L) > 0
        finds += np.bincount(at, held.detected & (number | others[at]), panel.L) * released
        without += np.bincount(at, ~number & others[at], panel.L) * released
    state = joint.members[0].state
    np.testing.assert_array_equal(state.visited[:, 6:].T, [finds, without])
    assert (without.sum() > 0) != detections
    assert apart > 0
    assert released[busiest]
    told = tap.of(msg.Tally)[0][1]
    assert [answer.detected for answer in told] == [0, 0, 0]
    # Less those that take part nothing is left of finds without a number.
    for tallies, done in zip(told, tap.of(msg.Axes)[0][1], strict=True):
        assert tallies.visits == done.used + done.withheld
        assert (tallies.effort[:, 0] + tallies.blanks == tallies.visits).all()


@pytest.fixture(scope="module")
def busy():
    panel = owned(3, n=2400, J=60, L=24, size=2.0, seed=8)
    region = np.empty(panel.J, dtype=object)
    for group in panel.groups:  # each has sites in all of five regions
        sites = np.unique(group.site)
        region[sites] = [f"R{i % 5}" for i in range(sites.size)]
    return replace(panel, region=region)


def with_own_rule(panel, folder, least):
    clubs = {name: club.program() for name, club in clubs_of(panel, folder).items()}
    clubs["owner-1"].own_sites = least
    tap = Tapped(clubs)
    plan = DataSpec(jointly=True, minimum=2, share=1.0)
    order = JobSpec(plan, [NEGBIN, msg_free(NEGBIN)], folds=FOLDS, by="cell", bootstrap=0)
    run_job(Link(tap, JOB[:8], SETTINGS), order)
    return clubs, tap


def least_of(used):
    return min(np.unique(used.site[used.month == t]).size for t in np.unique(used.month))


def test_own_sites_hold_in_every_month_and_stand_behind_no_thin_fold(busy, tmp_path):
    """All others together learn no sum over fewer of a custodian's sites than its own number; and a fold that its rule
    empties is not released as if it were there: it would rest on two organisations, of which either has the other's part."""
    clubs, _ = with_own_rule(busy, tmp_path / "0", 0)
    program, u = clubs["owner-1"], clubs["owner-1"].used
    fold = program.fold_of("cell", FOLDS, 0, u)
    parts = [
        np.unique(u.site[(u.month == t) & (fold == k)]).size for t in np.unique(u.month) for k in range(FOLDS)
    ]
    least = int(np.median(parts))
    clubs, tap = with_own_rule(busy, tmp_path / "1", least)
    program, u = clubs["owner-1"], clubs["owner-1"].used
    assert least_of(u) >= least
    asked, told = next((q, told) for q, told in tap.of(msg.Open) if q.weights == "fold")
    fold, left_out = program.fold_of("cell", FOLDS, 0, u), 0
    for t in np.unique(u.month):
        sites = [np.unique(u.site[(u.month == t) & (fold == k)]).size for k in range(FOLDS)]
        assert not asked.released[t] or min(sites) >= least
        left_out += not asked.released[t]
    assert left_out
    weight = sum(a.sums[:, 0].sum() for a in told)
    mine = np.isin(u.month, np.flatnonzero(asked.released)).sum()
    assert weight > 0
    assert told[sorted(clubs).index("owner-1")].sums[:, 0].sum() == (FOLDS - 1) * mine


def test_observers_of_whom_an_organisation_tells_nothing_stand_behind_no_sum(busy, tmp_path):
    """Its two observers are fewer than its own number: sums over the others' would be of two organisations."""
    two = Group.of(busy.groups[1].name, *(getattr(busy.groups[1], x) for x in ("site", "month", "count")),
                   busy.groups[1].observer % 2)  # fmt: skip
    panel = replace(busy, groups=(busy.groups[0], two, busy.groups[2]))
    plan, model = DataSpec(jointly=True, minimum=2, share=1.0), replace(NEGBIN, observers=True, rank=0)
    for least in (0, 3):
        clubs = {name: club.program() for name, club in clubs_of(panel, tmp_path / str(least)).items()}
        clubs["owner-1"].own_sites = least
        tap = Tapped(clubs)
        job = JobSpec(plan, [model], folds=FOLDS, by="cell", bootstrap=0)
        with pytest.raises(ConfigError, match="effects of observers") if least else nullcontext():
            run_job(Link(tap, JOB[:8], SETTINGS), job)
        sums = [[a.observers for a in told] for told in tap.told if isinstance(told[0], msg.Months)]
        assert {sum(bool(x.any()) for x in one) for one in sums} == (set() if least else {0, 3})


def test_few_own_sites_of_a_region_stand_behind_nothing(busy, tmp_path):
    """They are in no sum of the region, which would rest on two organisations, of which either has the other's part."""
    sites = np.unique(busy.groups[1].site)
    region = busy.region.copy()
    region[sites[region[sites] == "R2"][1:]] = "R1"  # one of its sites is left in R2
    for least in (0, 2):
        _, tap = with_own_rule(replace(busy, region=region), tmp_path / str(least), least)
        asked = [q for q, _ in tap.of(msg.Axes)]
        assert "R2" in asked[0].regions
        assert ("R2" in asked[-1].regions) == (least == 0)
        assert len(asked[-1].regions) >= 2


def kept_visits(panel, keep):
    """The panel with those visits only: ``keep`` is called with each group."""
    groups = [
        Group.of(g.name, *(x[keep(g)] for x in (g.site, g.month, g.count, g.observer))) for g in panel.groups
    ]
    return replace(panel, groups=tuple(groups))


def axes_asked(panel, folder, own_visits=0, plan=DataSpec(jointly=True, minimum=2, share=1.0)):
    clubs = {name: club.program() for name, club in clubs_of(panel, folder).items()}
    clubs["owner-1"].own_sites = own_visits
    tap = Tapped(clubs)
    agree(Link(tap, JOB[:8], SETTINGS), plan)
    return clubs, [q for q, _ in tap.of(msg.Axes)]


def test_a_region_rests_on_visits_of_released_months(busy, tmp_path):
    """Two organisations were there in months only in which the third was not out: the region would be the third's alone."""
    region, thin = busy.region, 3  # months

    def keep(g):
        early = g.month < thin
        return ~early if g.name == "owner-2" else early | (region[g.site] != "R2")

    _, asked = axes_asked(kept_visits(busy, keep), tmp_path)
    np.testing.assert_array_equal(asked[-1].released, np.arange(busy.L) >= thin)
    assert "R2" in asked[0].regions
    # without the smallest other one, which joins R2: of that alone the sum would be the difference
    kept = asked[-1].regions
    assert len(kept) == 3
    assert set(kept) < {"R0", "R1", "R3", "R4"}


def test_who_brings_nothing_after_months_are_left_out_stands_behind_none(busy, tmp_path):
    """Left with fewer visits than its own rule allows, it withdraws them all; the others' months rest on two then."""
    thin, least = 3, 2

    def keep(g):
        early, at = g.month < thin, np.zeros(g.month.size, bool)
        if g.name != "owner-1":
            return ~early if g.name == "owner-2" else ~at
        for t in np.unique(g.month[~early])[:2]:  # two visits each, of two sites
            at[np.flatnonzero(g.month == t)[np.unique(g.site[g.month == t], return_index=True)[1][:2]]] = True
        return early | at

    with pytest.raises(InputError, match="all visits were withheld"):
        axes_asked(kept_visits(busy, keep), tmp_path, own_visits=least)


def test_agreement_needs_no_exchange_more_where_nothing_is_left_out(busy, tmp_path):
    _, asked = axes_asked(busy, tmp_path)
    assert len(asked) == 1
    assert not asked[0].released.size


@pytest.mark.slow
def test_a_member_that_lies_can_lift_months_over_the_least_numbers(panel, tmp_path):
    """What the page on privacy gives up: least numbers are sums that members tell, and masks hide who told what."""
    alone = np.arange(3)  # months in which only owner-2 was out
    groups = []
    for g in panel.groups:
        keep = np.ones(g.month.size, bool) if g.name == "owner-2" else ~np.isin(g.month, alone)
        groups.append(Group.of(g.name, g.site[keep], g.month[keep], g.count[keep], g.observer[keep]))
    thin = replace(panel, groups=tuple(groups))
    assert np.isin(alone, groups[2].month).any()

    class Liar(Club):
        def program(self):
            program = super().program()
            honest = program.reply
            program.reply = lambda question: lied(honest(question))
            return program

    def lied(answer):
        if not isinstance(answer, msg.SupportSums):
            return answer
        more = {f: getattr(answer, f) + 1000.0 for f in ("visits", "sites", "groups")}
        return replace(answer, **more)

    plan = DataSpec(jointly=True, minimum=MINIMUM, share=SHARE)
    job = order(plan=plan, bootstrap=0)
    for folder, kind in (("honest", Club), ("lying", Liar)):
        clubs = clubs_of(thin, tmp_path / folder)
        clubs["owner-0"].__class__ = kind
        joint = run(clubs, job)["owner-1"]
        released = joint.agreement.behind[alone] > 0
        assert released.tolist() == [kind is Liar] * alone.size


def club_of(name, regions, times, L=3, first=24_012):
    """An organisation with one site for each of ``regions``, visited so many times in each of L months."""
    site, J = np.repeat(np.arange(len(regions)), L * times), len(regions)
    month = np.tile(np.repeat(np.arange(L), times), J) + first
    ones = np.ones(site.size)
    return Visits(
        np.array([f"{name}{j}" for j in range(J)], dtype=object), site.astype(np.int32), month.astype(np.int64), ones,
        ones > 0, np.arange(site.size, dtype=np.int32) % 7, np.full((site.size, 3), np.nan), ones,
        np.array(regions, dtype=object),
    )  # fmt: skip


def agreed(data, own_sites, **terms):
    programs = {
        name: GroupProgram(name, v, secret=name.encode() * 8, jointly=True, own_sites=own_sites.get(name, 0))
        for name, v in data.items()
    }
    link = Link(InProcess(programs), JOB[:8], SETTINGS)
    return programs, agree(link, DataSpec(jointly=True, **terms))


def test_the_regions_that_are_told_are_the_ones_that_were_counted():
    """Sites of a region that stay out of it beside a left-out one return to it: then one organisation has too much of it."""
    others = ["R2"] * 5 + ["R3"] * 5 + ["R4"] * 5 + [""] * 20
    data = {"a": club_of("a", ["R1"] * 40 + ["R2"] * 30 + [""] * 2, 1)}
    data |= {name: club_of(name, others, 3) for name in "bcd"}
    programs, found = agreed(data, {"a": 5}, minimum=5, share=0.55)
    assert found.panel.regions == ("R3", "R4")
    for i in range(2):
        sites = np.array([np.count_nonzero(regions_of(p) == i) for p in programs.values()])
        assert sites.max() <= 0.55 * sites.sum()
        assert np.count_nonzero(sites) >= 3


def test_every_visit_takes_part_or_is_withheld_once():
    """Also of an organisation that withdraws what is left of its visits once months are left out."""
    data = {name: club_of(name, [""] * 6, 1) for name in "bcd"}
    data["a"] = club_of("a", [""] * 4, 1, L=8, first=24_006)
    _, found = agreed(data, {"a": 3}, minimum=5, share=0.9)
    assert found.panel.visits == 54
    assert found.withheld == sum(v.site.size for v in data.values()) - 54


def test_joint_totals_are_of_sites_behind_released_months():
    """An organisation all of whose months are left out adds no birds that nobody counted, nor do single such sites."""
    data = {name: club_of(name, [""] * 6, 2) for name in "bcd"}
    plan = DataSpec(jointly=True, minimum=3, share=0.9)
    job = JobSpec(plan, [NEGBIN], folds=FOLDS, by="cell", bootstrap=0)

    def total(data):
        programs = {
            name: GroupProgram(name, v, secret=name.encode() * 8, jointly=True) for name, v in data.items()
        }
        done = run_job(Link(InProcess(programs), JOB[:8], SETTINGS), job)
        return done.agreement.panel.J, done.totals[0][-3:]

    alone = total(data)
    with_early = total(data | {"a": club_of("a", [""] * 20, 2, first=24_006)})
    assert alone[0] == with_early[0] == 18
    np.testing.assert_allclose(with_early[1], alone[1], rtol=1e-2)

    early = club_of("b", [""] * 9, 2, first=24_006)
    columns = ("site", "month", "count", "detected", "observer", "effort", "weight")
    both = {name: np.concatenate([getattr(early, name), getattr(data["b"], name)]) for name in columns}
    assert total(data | {"b": replace(early, **both)})[0] == 18


@pytest.mark.parametrize("lone", [1, 4])
def test_few_sites_that_nobody_visited_are_not_told_by_a_difference(panel, tmp_path, lone):
    """Totals of all sites less those of visited ones would be one site's, and tell what the prior follows there."""
    programs = {name: club.program() for name, club in clubs_of(panel, tmp_path).items()}
    held = programs["owner-1"].held
    ids = np.append(held.site_id, [f"unseen {j}" for j in range(lone)])
    more = replace(held, site_id=ids, region=np.append(held.region, ["R0"] * lone), frame=True)
    programs["owner-1"] = GroupProgram(
        "owner-1", more, secret=b"owner-1", settings=SETTINGS, jointly=True,
        minimum=MINIMUM if lone == 1 else 4,
    )  # fmt: skip
    tap = Tapped(programs)
    plan = DataSpec(jointly=True, minimum=3, share=0.9)
    run_job(Link(tap, JOB[:8], SETTINGS), JobSpec(plan, [msg_free(NEGBIN)], bootstrap=0))
    told = next(told for q, told in tap.of(msg.Totals) if q.visited and not q.most)
    apart = sum(answer.totals[0, 0] - answer.totals[0, -1] for answer in told)
    assert (np.abs(apart) < 1e-9).all() == (lone == 1)
