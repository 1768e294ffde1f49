"""Sites enough for the months of a study; least numbers behind products of two months, which factors begin with."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest

from fedmiss.errors import ConfigError
from fedmiss.federation import messages as msg
from fedmiss.federation.hub import support
from fedmiss.federation.hub.agree import DataSpec, agree
from fedmiss.federation.hub.job import JobSpec, run_job
from fedmiss.federation.hub.state import Panel
from fedmiss.federation.link import Link
from fedmiss.federation.rules import followed
from fedmiss.models.lowrank.data import Group, GroupPanel
from tests.models.panels import calendar

from .network import JOB, NEGBIN, SETTINGS, clubs_of
from .owners import owned
from .test_least_numbers import Tapped


@pytest.mark.parametrize(("sites", "stops"), [((8, 8, 8), True), ((60, 8, 8), True), ((18, 18, 18), False)])
def test_a_study_stops_where_all_but_one_have_too_few_sites_for_its_months(sites, stops, tmp_path):
    """Half as many as months: the one takes its own part off."""
    L, owner = 36, np.repeat(np.arange(3), sites)
    site, month = (at.ravel() for at in np.indices((owner.size, L)))
    count = np.random.default_rng(1).poisson(3.0, site.size).astype(float)
    groups = [
        Group.of(f"owner-{k}", site[m], month[m], count[m]) for k in range(3) for m in [owner[site] == k]
    ]
    panel = GroupPanel.of(owner.size, L, groups, calendar(L))
    programs = {name: club.program() for name, club in clubs_of(panel, tmp_path).items()}
    link = Link(Tapped(programs), JOB[:8], SETTINGS)
    plan = DataSpec(jointly=True, minimum=2, share=1.0, few_sites=False)
    with pytest.raises(ConfigError, match="fewer sites than half the 36 months") if stops else nullcontext():
        agree(link, plan)
    assert agree(link, replace(plan, few_sites=True)).panel.L == L


def test_rows_of_few_numbers_follow_from_few_products():
    """A row of at most 4 c numbers; what it tells is known in the other rows."""
    L, columns = 60, 5
    dense = np.ones((L, L), dtype=bool)
    assert not followed(dense, columns).any()
    assert followed(dense, 15).all()
    thin = dense.copy()
    thin[0, 20:] = thin[20:, 0] = False
    told = followed(thin, columns)
    assert told[0].all()
    assert told[:, 0].all()
    assert not told[1:, 1:].any()
    band = (
        np.abs(np.subtract.outer(np.arange(L), np.arange(L))) <= 12
    )  # 25 in the middle, 13 at the ends: all fall in turn
    assert followed(band, columns).all()


def program_with(program, few):
    program.few = few
    return program


@pytest.mark.parametrize("own_sites", [0, 3])
def test_products_lack_pairs_of_months_of_few_sites(own_sites, tmp_path):
    panel = owned(3, n=1000, J=80, L=24, size=2.0, seed=3)
    programs = {name: club.program() for name, club in clubs_of(panel, tmp_path).items()}
    for program in programs.values():
        program.own_sites = own_sites
    tap = Tapped(programs)
    spec = JobSpec(DataSpec(jointly=True, minimum=9), [NEGBIN], bootstrap=0)
    run_job(Link(tap, JOB[:8], SETTINGS), spec)
    released = next(q.pairs for q in tap.asked if isinstance(q, msg.Product))
    own, left_out = [], 0.0
    for program in programs.values():
        seen = np.zeros((program.J, panel.L), np.int64)
        seen[program.used.site, program.used.month] = 1
        both = seen.T @ seen
        both[(both < own_sites) & ~np.eye(panel.L, dtype=bool)] = 0
        own.append(both)
        few, every = program.few, np.zeros((0, 0), np.uint8)
        whole, own_rule, both_rules = (
            program_with(program, rule)
            .reply(msg.Product(0, np.zeros(1, np.int64), np.eye(panel.L)[None], np.ones(1), pairs))
            .product[0]
            for rule, pairs in ((every, every), (few, every), (few, released))
        )
        enough_own = (both > 0) | (seen.T @ seen == 0)
        np.testing.assert_allclose(own_rule, whole * enough_own, rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(both_rules, whole * enough_own * released, rtol=1e-12, atol=1e-12)
        left_out += float(np.abs(whole - both_rules).sum())
    assert left_out > 1.0
    sites, groups, off = sum(own), sum(both > 0 for both in own), ~np.eye(panel.L, dtype=bool)
    enough = (sites >= 9) & (groups >= 3) | (sites == 0)
    np.testing.assert_array_equal(released[off] == 1, enough[off])
    assert 0.01 < (released == 0).mean() < 0.5


def test_it_is_said_where_folds_leave_no_pattern_to_choose(monkeypatch):
    """All pairs of the months that folds can leave out are of few sites, those of the other months of enough."""
    L, folds = 60, 2
    inside = np.arange(L) < 10
    at = np.tril_indices(L, -1)
    few = inside[at[0]] & inside[at[1]]
    sites = np.tile(np.where(few, 6.0, 90.0), (1 + folds, 1))

    class Hub:
        def ask(self, questions):
            asked = sites[: 1 + questions[0].folds]
            return [{"all": msg.PairSums(asked, np.full(asked.shape, 3.0))}]

    monkeypatch.setattr(support, "released_months", lambda *args, **more: inside.astype(np.uint8))
    panel = Panel(L, 100.0, 0, 9000, None, (), np.ones(4), least=9, contributors=3)
    stamps = 24_000 + np.arange(L)
    kept, notes = support.release_pairs(Hub(), panel, stamps, by="cell", folds=folds)
    assert kept.patterns  # a rank that is named is fitted
    assert (
        "the choice of the model tries no pattern: of the pairs of the 10 months that all folds" in notes[0]
    )
    assert not support.release_pairs(Hub(), panel, stamps)[1]
