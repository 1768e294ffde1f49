"""A hub that does not follow the protocol, against unchanged sites: what it gains is a refusal, or noise."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest

from fedmiss.errors import ConfigError, FedmissError
from fedmiss.federation import messages as msg
from fedmiss.federation.approved import MOST_NODES
from fedmiss.federation.group import guard
from fedmiss.federation.group.folds import draw_folds
from fedmiss.federation.hub import dispersion, fit
from fedmiss.federation.hub.agree import Plan
from fedmiss.federation.hub.job import Order, run_job
from fedmiss.federation.link import Link
from fedmiss.federation.rules import kept_regions, tags

from .network import JOB, NEGBIN, SETTINGS, Wire, approved_of, sites_of
from .owners import owned

FREE = replace(NEGBIN, rank=0)
PLAN = Plan(joint=False, jointly=True, minimum=3, share=0.9)
ORDER = Order(PLAN, [NEGBIN, FREE], folds=2, by="cell", bootstrap=2)


@pytest.fixture(scope="module")
def panel():
    return owned(3, n=700, J=20, L=14, size=2.0, seed=8)


class EnoughError(Exception):
    """The hub has seen what it wanted."""


class Crafting(Link):
    """A hub that changes questions: ``craft`` is given each question and the name of the site, and gives another."""

    def __init__(self, wire, craft, *, alone=(), until=None):
        super().__init__(wire, JOB[:8], SETTINGS, masked=True)
        self.craft, self.alone, self.until = craft, alone, until  # until: it has what it wanted
        self.got = []

    def ask(self, questions):
        lists = questions if isinstance(questions, dict) else dict.fromkeys(self.names, questions)
        asked = {n: [self.craft(q) if n not in self.alone else q for q in qs] for n, qs in lists.items()}
        same = not self.alone and not isinstance(questions, dict)
        out = super().ask(asked[self.names[0]] if same else asked)
        self.got += list(zip(asked[self.names[0]], out, strict=True))
        if self.until and isinstance(asked[self.names[0]][-1], self.until):
            raise EnoughError
        return out


def sites(panel, folder, *, guarded=True, order=ORDER, masked=True, **more):
    out = sites_of(panel, folder, masked=masked)
    for site in out.values():
        if guarded:
            site.approved = approved_of(order, out, **more)
        site.start()
    return out


def refusals(there):
    return [str(s.program.program.refusal) for s in there.values() if s.program.program.refusal]


def attacked(panel, folder, craft, **more):
    """The sentences with which the sites refused."""
    there = sites(panel, folder, **more)
    with pytest.raises(FedmissError, match="own screen"):
        run_job(Crafting(Wire(there), craft), ORDER)
    said = refusals(there)
    assert said
    return said[0]


CRAFTED = [
    ("Hello", {"species": "Anas crecca"}, "Hello.species is Anas crecca, the approved study has ."),
    ("Hello", {"season": np.array([5])}, "Hello.season is [5], the approved study has []"),
    ("Shared", {"joint": 4}, "Shared.joint is 4, the approved study has 0"),
    ("Drop", {"checklists": np.array([0, 1])}, "Drop.checklists is [0, 1], the approved study has no duplicates"),
    ("Axes", {"minimum": 1}, "Axes.minimum is 1, the approved study has 3 or more"),
    ("Axes", {"detections": True}, "Axes.detections is True, the approved study has False"),
    ("Support", {"share": 1.0}, "Support.share is 1.0, the approved study has 0.9"),
    ("Support", {"names": ("owner-0", "mallory")}, "Support.names is [owner-0, mallory]"),
    ("Support", {"folds": 1_000_000}, "Support.folds is 1000000, the approved study has 0"),
    ("Open", {"folds": 1, "numbers": np.array([0])}, "Open.folds is 1, the approved study has 2"),
    ("Open", {"folds": 1_000_000}, "Open.folds is 1000000, the approved study has 2"),
    ("Open", {"seed": 7}, "Open.seed is 7, the approved study has 0"),
    ("Open", {"by": "visit"}, "Open.by is visit, the approved study has cell"),
    ("Open", {"numbers": np.array([2])}, "Open.numbers is [2], the approved study has 0 to 1"),
    ("Open", {"numbers": np.array([0, 0])}, "Open.numbers is [0, 0]"),
    ("Open", {"weights": "none"}, "Open.weights is none, the approved study has fold, all, replicate"),
    ("Open", {"family": "bernoulli"}, "the model of Open is bernoulli"),
    ("Open", {"observers": True}, "the model of Open is poisson, raw, observers True"),
    ("Open", {"p": 9}, "Open.p is 9"),
    ("Open", {"released": np.zeros(0, np.uint8)}, "Open.released is []"),
    ("Broadcast", {"sums": True}, "Broadcast.sums is True, the approved study has False"),
    ("Broadcast", {"begin": 4}, "Broadcast.begin is 4"),
    ("Broadcast", {"mu": np.full(2, np.nan)}, "Broadcast.mu is [nan, nan], the approved study has finite"),
    ("Solve", {"nodes": np.ones((2, 400))}, "the approved study has at most 12 values"),
    ("Predict", {"months": True}, "Predict.months is True"),
    ("Predict", {"nodes": np.ones((2, 40))}, "the approved study has one value"),
    ("Totals", {"drawn": True}, "Totals.drawn is True, the approved study has False"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "change", "words"), CRAFTED)
def test_a_question_that_differs_is_refused_by_name_with_both_values(kind, change, words, panel, tmp_path):
    said = attacked(panel, tmp_path, lambda q: replace(q, **change) if type(q).__name__ == kind else q)
    assert words in said
    assert "ask the coordinator" in said


def test_the_unchanged_job_passes_every_door(panel, tmp_path):
    there = sites(panel, tmp_path)
    joint = run_job(Crafting(Wire(there), lambda q: q), ORDER)
    assert joint.draws.shape[0] == 2
    assert not refusals(there)


@pytest.mark.parametrize("guarded", [True, False])
def test_to_silence_the_others_gains_nothing(guarded, panel, tmp_path):
    """The victim is asked as the study says; the others hold every visit out, so that their part of the sum is zero."""

    def craft(q):
        fold = isinstance(q, msg.Open) and q.weights == "fold"
        return replace(q, folds=1, numbers=np.zeros_like(q.numbers)) if fold else q

    there = sites(panel, tmp_path, guarded=guarded)
    link = Crafting(Wire(there), craft, alone=("owner-0",), until=msg.Open)
    with pytest.raises(FedmissError if guarded else EnoughError):
        run_job(link, ORDER)
    if guarded:
        assert any("Open.folds is 1, the approved study has 2" in s for s in refusals(there))
        return
    opened = [a["all groups"].sums for q, a in link.got if isinstance(q, msg.Open)]
    own = sum(float(s.program.program.need().count.sum()) for s in there.values())
    assert opened
    assert all(np.abs(sums).max() > 1e6 * own for sums in opened)  # noise of 64 bits, no sum of counts


def test_members_that_are_asked_different_things_have_masks_that_do_not_cancel(panel, tmp_path):
    """Even a last bit in one month's coefficient: without any guard, the hub reads noise."""

    def craft(q):
        return replace(q, T=np.nextafter(q.T, 1.0)) if isinstance(q, msg.Broadcast) else q

    there = sites(panel, tmp_path, guarded=False)
    link = Crafting(Wire(there), craft, alone=("owner-1",), until=msg.Solve)
    with pytest.raises(EnoughError):
        run_job(link, ORDER)
    months = [a["all groups"].months for q, a in link.got if isinstance(q, msg.Solve)]
    assert months
    assert all(np.median(np.abs(m)) > 1e6 for m in months)


def test_a_group_that_missed_a_question_answers_later_ones_with_noise_only(panel):
    """The masks of an exchange follow from all questions before it."""
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

    from fedmiss.federation.masks import Masks, public_key

    keys = {n: X25519PrivateKey.generate() for n in "abc"}
    roster = {n: public_key(k) for n, k in keys.items()}
    masks = {n: Masks(n, k, roster, JOB) for n, k in keys.items()}
    agreed = sum((m.stream(4, 9, b"same") for m in masks.values()), np.zeros(9, np.uint64))
    apart = sum(
        (m.stream(4, 9, b"same" if n < "c" else b"other") for n, m in masks.items()), np.zeros(9, np.uint64)
    )
    assert not agreed.any()
    assert apart.all()


def test_a_hub_with_wrong_numbers_behind_months_is_refused(panel, tmp_path):
    """Larger sums, with the tags as they came, scaled, or those of another month: none of them is the groups' own."""
    lies = {
        "larger": lambda q: replace(q, visits=q.visits + 50, sites=q.sites + 50, groups=q.groups + 1),
        "scaled": lambda q: replace(q, visits=2 * q.visits, sites=2 * q.sites, groups=2 * q.groups, tags=q.tags + q.tags),
        "moved": lambda q: replace(
            q, visits=q.visits[:, ::-1].copy(), sites=q.sites[:, ::-1].copy(), groups=q.groups[:, ::-1].copy(),
            tags=q.tags[:, ::-1].copy(),
        ),
        "regions": lambda q: replace(q, regions=q.regions + 9),
    }  # fmt: skip
    for name, lie in lies.items():

        def craft(q, lie=lie):
            return lie(q) if isinstance(q, msg.Support) and q.visits.size else q

        said = attacked(panel, tmp_path / name, craft)
        assert "are not the groups' sums" in said, name


def test_months_that_are_blank_or_not_approved_are_not_released(panel, tmp_path):
    def blank(q):
        if isinstance(q, msg.Support) and q.visits.size and not q.folds:
            none = np.zeros_like(q.visits)
            return replace(q, visits=none, sites=none, groups=none, tags=np.zeros_like(q.tags))
        return q

    assert "releases months that do not have" in attacked(panel, tmp_path / "blank", blank)
    axes = []

    def empty(q):
        if isinstance(q, msg.Axes):
            axes.append(q)
            return replace(q, released=np.zeros(0, np.uint8)) if len(axes) > 3 else q
        return q

    assert "Axes.released is []" in attacked(panel, tmp_path / "empty", empty)
    axes.clear()
    there = sites(panel, tmp_path / "unguarded", guarded=False)
    with pytest.raises(ConfigError, match="own screen"):
        run_job(Crafting(Wire(there), empty), ORDER)
    assert "a list of 0 months" in refusals(there)[0]


def test_more_questions_than_the_budget_are_refused(panel, tmp_path):
    said = attacked(panel, tmp_path, lambda q: q, exchanges=20)
    assert "the number of exchanges is 21, the approved study has at most 20" in said


def test_questions_cannot_be_repeated_or_come_out_of_order(panel, tmp_path):
    there = sites(panel, tmp_path)

    class Again(Crafting):
        def ask(self, questions):
            out = super().ask(questions)
            if not isinstance(questions, dict) and isinstance(questions[0], self.kind):
                super().ask(questions)
            return out

    link = Again(Wire(there), lambda q: q)
    link.kind = msg.Hello
    with pytest.raises(FedmissError):
        run_job(link, ORDER)
    assert "is Hello, Tally, the approved study has Sites" in refusals(there)[0]
    there = sites(panel, tmp_path / "later")
    link = Again(Wire(there), lambda q: q)
    link.kind = msg.Totals
    with pytest.raises(FedmissError):
        run_job(link, ORDER)
    assert (
        "how often Totals is asked of fit 0 of batch 0 is 2, the approved study has 1" in refusals(there)[0]
    )


def test_nobody_can_tell_the_fold_of_a_place_that_he_can_name():
    """The public seed says nothing: folds of 4,000 ids agree with any guess as often as chance has it."""
    ids = np.array([f"L{i}" for i in range(4000)], dtype=object)
    n = np.arange(ids.size)
    same = {"site_id": ids, "site": n.astype(np.int32), "month": n * 0 + 24000, "year": n * 0 + 2000}
    for by in ("cell", "block", "site", "observer", "visit"):
        a, b, public = (
            draw_folds(by, 5, 0, name="a", observer=n.astype(np.int32), secret=s, **same)
            for s in (b"one", b"two", b"")
        )
        np.testing.assert_array_equal(
            a, draw_folds(by, 5, 0, name="a", observer=n.astype(np.int32), secret=b"one", **same)
        )
        for guess in (b, public):
            assert abs((a == guess).mean() - 0.2) < 5 * 0.4 / np.sqrt(ids.size)


def test_a_region_with_too_little_behind_it_is_refused_at_home():
    sites_in, groups, over = np.array([0.0, 1, 20, 30]), np.array([0.0, 1, 3, 3]), np.zeros(4)
    assert kept_regions(sites_in, groups, over, 3, 3) == [3]  # the smallest joins the one site
    assert kept_regions(sites_in, np.array([0.0, 1, 2, 3]), over, 3, 3) == []


def test_a_hub_that_asks_for_a_thin_region_is_refused(tmp_path):
    panel = owned(3, n=700, J=20, L=14, size=2.0, seed=8)
    region = np.array(["east", "west"], dtype=object)[np.arange(panel.J) % 2]
    first = next(iter(panel.groups))
    alone = int(np.unique(first.site)[0])
    region[alone] = "one site"
    panel = replace(panel, region=region)

    def craft(q):
        more = isinstance(q, msg.Axes) and q.released.size
        return replace(q, regions=("east", "one site", "west")) if more else q

    said = attacked(panel, tmp_path, craft)
    assert "the region 'one site'" in said


def test_no_answer_has_a_table_by_group():
    for kind in msg.ANSWERS:
        for f in fields(kind):
            assert "groups," not in f.metadata["shape"] or kind is msg.SealedKeys, (kind, f.name)


def test_a_member_is_not_handed_sums_that_rest_on_two_groups(panel, tmp_path):
    """Of a month in which two of three went out, the third one's sums are nobody's to subtract."""
    thin = 3
    groups = []
    for g in panel.groups:
        m = (g.month != thin) | (g.name != "owner-2")
        groups.append(type(g).of(g.name, g.site[m], g.month[m], g.count[m], g.observer[m]))
    link = Crafting(Wire(sites(replace(panel, groups=tuple(groups)), tmp_path)), lambda q: q)
    joint = run_job(link, ORDER)
    handed = [q for q, _ in link.got if isinstance(q, msg.Support) and q.visits.size]
    assert len(handed) == 2
    for q in handed:
        for sums in (q.visits, q.sites, q.groups):
            assert not sums[:, thin].any()
            assert sums.any()
    assert not joint.agreement.behind[thin]


def test_tags_of_a_sum_are_the_sum_of_tags_and_need_the_key():
    rng = np.random.default_rng(0)
    parts = {n: rng.integers(0, 50, (4, 3)).astype(float) for n in "abc"}
    added = sum((tags(b"k" * 16, [n], x, "w") for n, x in parts.items()), np.zeros(4, np.uint64))
    total = sum(parts.values())
    np.testing.assert_array_equal(added, tags(b"k" * 16, list(parts), total, "w"))
    for other in (tags(b"l" * 16, list(parts), total, "w"), tags(b"k" * 16, list(parts), total, "v")):
        assert (added != other).all()
    assert (added != tags(b"k" * 16, list(parts), total + np.array([0, 0, 1.0]), "w")).all()


def test_the_limits_of_the_door_are_those_of_the_job():
    assert (guard.POWER, guard.WIDTH, guard.REPLICATE_ROUNDS) == (fit.POWER, fit.WIDTH, fit.REPLICATE_ROUNDS)
    assert dispersion.WIDE + 1 <= MOST_NODES
