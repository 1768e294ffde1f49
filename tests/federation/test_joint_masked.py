"""Joint sites under masks: three owners or more, the pooled answer, and nothing for the hub to read."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fedmiss.errors import ConfigError
from fedmiss.federation import messages as msg
from fedmiss.federation.codec import decode
from fedmiss.federation.hub.agree import Plan
from fedmiss.federation.hub.job import Order, run_job
from fedmiss.federation.link import Link
from fedmiss.federation.local import fit_counts
from fedmiss.federation.masks import common_pad

from .network import JOB, NEGBIN, SETTINGS, Wire, sites_of
from .owners import largest, owned

PLAN = Plan(joint=True, owners=3, jointly=True, minimum=2, share=1.0)


@pytest.fixture(scope="module")
def panel():
    """Three owners, some sites of all three; two visits of one owner are moved, so that some sites have two owners."""
    return owned(3, n=900, J=24, L=24, shared=0.5, size=2.0, seed=5)


def owners_of(panel):
    there = np.zeros((len(panel.groups), panel.J), bool)
    for k, g in enumerate(panel.groups):
        there[k, g.site] = True
    return there.sum(axis=0)


def allowed(panel, folder, *, joint=True, masked=True):
    sites = sites_of(panel, folder, masked=masked)
    for site in sites.values():
        site.joint = joint
        site.start()
    return sites


def ran(panel, folder, *, plan=PLAN, masked=True, bootstrap=2):
    wire = Wire(allowed(panel, folder, masked=masked))
    link = Link(wire, JOB[:8], SETTINGS, masked=masked)
    return run_job(link, Order(plan, [NEGBIN], bootstrap=bootstrap)), wire, link


def without(panel, site, group):
    """The panel without the visits of one group at one site."""
    groups = []
    for g in panel.groups:
        m = (g.site != site) | (g.name != group)
        groups.append(type(g).of(g.name, g.site[m], g.month[m], g.count[m], g.observer[m]))
    return replace(panel, groups=tuple(groups))


def test_the_answer_is_the_pooled_one(panel, tmp_path):
    joint, _, _ = ran(panel, tmp_path)
    shared = owners_of(panel)
    assert (shared == 3).sum() > 5
    assert not (shared == 2).any()
    assert joint.agreement.panel.n_joint == (shared == 3).sum()
    expected = fit_counts(panel.pooled(), NEGBIN).expected().sum(axis=0)
    assert largest(joint.totals[0], expected) < 1e-8
    apart, _, _ = ran(panel, tmp_path / "apart", plan=replace(PLAN, joint=False))
    assert largest(apart.totals[0], expected) > 1e-4  # the test can tell


def test_a_site_of_two_owners_stays_with_each(panel, tmp_path):
    site = int(np.flatnonzero(owners_of(panel) == 3)[0])
    two = without(panel, site, "owner-2")
    joint, _, _ = ran(two, tmp_path, bootstrap=0)
    assert (owners_of(two) == 2).sum() == 1
    assert joint.agreement.panel.n_joint == (owners_of(two) == 3).sum()
    assert joint.agreement.shared == joint.agreement.panel.n_joint + 1
    unmasked, _, _ = ran(two, tmp_path / "clear", masked=False, bootstrap=0)
    assert largest(joint.totals, unmasked.totals) < 1e-8


def test_the_hub_reads_neither_rows_nor_their_sums(panel, tmp_path):
    """What reaches the hub of joint sites, each answer and their sum, is uniform; the owners' sums are not."""
    joint, wire, _ = ran(panel, tmp_path, bootstrap=0)
    seen = 0
    for frames, replies in wire.log:
        answers = {n: decode(r, None, asks=False, who=n)[1] for n, r in replies.items()}
        for i, first in enumerate(answers["owner-0"]):
            if not isinstance(first, msg.SharedRows) or not first.rows.size:
                continue
            rows = [a[i].rows for a in answers.values()]
            assert {r.shape for r in rows} == {rows[0].shape}  # also of an owner that does not go there
            total = sum(rows[1:], start=rows[0])
            for word in (*rows, total):
                high = (word >> np.uint64(56)).astype(
                    float
                )  # numbers in fixed point would have 0 or 255 here
                assert abs(high.mean() - 127.5) < 6 * 74 / np.sqrt(high.size)
                assert np.isin(high, (0, 255)).mean() < 0.2
            seen += 1
        asked = [q for f in frames.values() for q in decode(f, None, asks=True, who="hub")[1]]
        assert all(q.totals.dtype == np.uint64 for q in asked if isinstance(q, msg.Solve) and q.totals.size)
    assert seen > 5
    assert joint.agreement.panel.n_joint


def test_no_pad_is_used_twice(panel, tmp_path):
    sites = allowed(panel, tmp_path)
    used = []
    for site in sites.values():
        plain = site.program._pad
        site.program._pad = lambda asked, shape, plain=plain: used.append(asked) or plain(asked, shape)
    run_job(Link(Wire(sites), JOB[:8], SETTINGS, masked=True), Order(PLAN, [NEGBIN], bootstrap=0))
    assert len(used) > 5
    assert len(set(used)) == len(used)


def test_a_pad_depends_on_key_job_exchange_and_question():
    base = (b"k" * 16, b"job", (3, 0))
    others = [
        (b"l" * 16, b"job", (3, 0)),
        (b"k" * 16, b"jab", (3, 0)),
        (b"k" * 16, b"job", (4, 0)),
        (b"k" * 16, b"job", (3, 1)),
    ]
    pads = [common_pad(*words, (2, 50)) for words in (base, *others)]
    for i, pad in enumerate(pads):
        assert not any((pad == other).any() for other in pads[:i])
    np.testing.assert_array_equal(pads[0], common_pad(*base, (2, 50)))


def test_a_group_refuses_what_its_custodian_did_not_approve(panel, tmp_path):
    sites = allowed(panel, tmp_path, joint=False)
    with pytest.raises(ConfigError, match="own screen"):
        run_job(Link(Wire(sites), JOB[:8], SETTINGS, masked=True), Order(PLAN, [NEGBIN], bootstrap=0))
    assert "which the study does not have" in str(sites["owner-0"].program.program.refusal)
    sites = allowed(
        without(panel, int(np.flatnonzero(owners_of(panel) == 3)[0]), "owner-2"), tmp_path / "two"
    )
    with pytest.raises(ConfigError, match="own screen"):  # a hub that joins a site of two
        run_job(
            Link(Wire(sites), JOB[:8], SETTINGS, masked=True),
            Order(replace(PLAN, owners=2), [NEGBIN], bootstrap=0),
        )
    assert "a joint site of fewer than 3 groups" in str(sites["owner-0"].program.program.refusal)


def test_a_restart_gives_the_same_bits(panel, tmp_path):
    """Sites are killed in the middle; pads follow from the journal."""

    class Restarting(Wire):
        def ask(self, frames):
            if self.asked in (9, 10, 14):
                for site in self.sites.values():
                    site.stop()
                    site.start()
            return super().ask(frames)

    whole, _, _ = ran(panel, tmp_path, bootstrap=0)
    sites = sites_of(panel, tmp_path / "again", masked=False)  # folders only
    for name in sites:  # the same keys
        (tmp_path / "again" / name).mkdir(parents=True)
        (tmp_path / "again" / name / "identity.key").write_bytes(
            (tmp_path / name / "identity.key").read_bytes()
        )
        (tmp_path / "again" / name / "identity.key").chmod(0o600)
    wire = Restarting(allowed(panel, tmp_path / "again"))
    again = run_job(Link(wire, JOB[:8], SETTINGS, masked=True), Order(PLAN, [NEGBIN], bootstrap=0))
    np.testing.assert_array_equal(again.totals, whole.totals)
