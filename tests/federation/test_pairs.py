"""Sites enough for the months of a study; least numbers behind products of two months, which factors begin with."""

from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest

from fedmiss.errors import ConfigError
from fedmiss.federation import messages as msg
from fedmiss.federation.hub.agree import DataSpec, agree
from fedmiss.federation.hub.job import JobSpec, run_job
from fedmiss.federation.link import Link
from fedmiss.federation.rules import followed

from .network import JOB, NEGBIN, SETTINGS, Tapped, clubs_of
from .owners import dealt, owned


@pytest.mark.parametrize(("sites", "stops"), [((8, 8, 8), True), ((60, 8, 8), True), ((18, 18, 18), False)])
def test_a_study_stops_where_all_but_one_have_too_few_sites_for_its_months(sites, stops, tmp_path):
    """Half as many as months: the one takes its own part off."""
    L, owner = 36, np.repeat(np.arange(3), sites)
    site, month = (at.ravel() for at in np.indices((owner.size, L)))
    count = np.random.default_rng(1).poisson(3.0, site.size).astype(float)
    panel = dealt((owner.size, L), site, month, count, owner[site])
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
    # 25 in the middle, 13 at the ends: all fall in turn
    band = np.abs(np.subtract.outer(np.arange(L), np.arange(L))) <= 12
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
    released = tap.of(msg.Product)[0][0].pairs
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


def test_a_joint_result_does_not_say_whose_visits_are_the_first_or_last(tmp_path):
    """Members alone learn the months of each other; the result's notes stand in a report that others read."""
    rng = np.random.default_rng(2)
    site, month = (at.ravel() for at in np.indices((60, 24)))
    # owner-1 was there before the others, and after them
    keep = (site % 3 == 1) | ((month > 2) & (month < 21))
    panel = dealt((60, 24), site[keep], month[keep], rng.poisson(3.0, keep.sum()).astype(float))
    programs = {n: c.program() for n, c in clubs_of(panel, tmp_path).items()}
    agreement = agree(Link(Tapped(programs), JOB[:8], SETTINGS), DataSpec(jointly=True, minimum=5))
    assert (agreement.behind == 0).sum() == 6
    assert any("6 months have fewer than 5 visits or sites" in note for note in agreement.notes)
    assert not any("owner-1" in note for note in agreement.notes)
